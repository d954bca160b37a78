"""The command line: `python -m transformer translate "Jane visite l'Afrique"`."""

import argparse
import dataclasses
import io
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from transformer.decoding import Translator
    from transformer.translation import Settings

ABOUT = """\
The Transformer of the book, trained on its French-English phrasebook.

  python -m transformer translate "Jane visite l'Afrique en septembre"
  python -m transformer translate < sentences.txt     one sentence a line
  python -m transformer translate --beam-size 4 "Elle est mon amie"
  python -m transformer words                         what it can read
  python -m transformer train-phrasebook --out my.safetensors --seed 1
  python -m transformer translate --weights my.safetensors "Il a deux chats noirs"

A translator of real sentences, trained on Multi30k as chapter 16 does:

  python -m transformer train --preset tiny --out runs/en-de --seed 1
  python -m transformer plot runs/en-de --out curves.svg
  python -m transformer evaluate runs/en-de --split test --beam-size 5
  python -m transformer translate --weights runs/en-de "Two dogs play in the snow."
  torchrun --nproc-per-node 2 -m transformer train …  several processes, one run

A training that was cut short goes on when the same command is given again.
"""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose complaints fit on one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, then leave with exit code 2."""
        line = one_line(f"{self.prog}: {message} ({self.prog} --help explains)")
        self.exit(2, f"{line}\n")


def parser() -> argparse.ArgumentParser:
    """Every command and option, with the help that teaches them."""
    program = "python -m transformer"
    ask = OneLineParser(
        prog=program,
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = ask.add_subparsers(metavar="COMMAND", required=True)
    shipped = "(default: the file that ships)"
    translate = commands.add_parser(
        "translate",
        help="translate a sentence, a file, or standard input line by line",
        description="Translate one sentence, each line of a file, or each line of "
        "standard input; without --weights, from French to English. Blank lines stay "
        "blank. A word that the phrasebook does not know is an error; a translator "
        "with subwords knows no such words.",
    )
    translate.add_argument(
        "--weights",
        metavar="FILE",
        help=f"what train-phrasebook or train wrote {shipped}",
    )
    translate.add_argument(
        "--file", metavar="FILE", help="read the sentences from a file, one a line"
    )
    translate.add_argument(
        "sentence",
        nargs="*",
        metavar="SENTENCE",
        help="in quotes, for the apostrophes; without it, standard input is read",
    )
    translate.add_argument(
        "--beam-size",
        type=whole(1, 1000),
        default=1,
        metavar="N",
        help="how many beginnings to keep in play (default: 1, greedy search)",
    )
    translate.add_argument(
        "--length-penalty",
        type=penalty,
        default=0.6,
        metavar="A",
        help="what length is worth when a beam chooses, 0 to 100 (default: 0.6)",
    )
    translate.set_defaults(run=run_translate)
    words = commands.add_parser(
        "words",
        help="list the words that can be translated",
        description="List every word that the model can read, or can say. A "
        "translator with subwords has no such list.",
    )
    words.add_argument(
        "--weights", metavar="FILE", help=f"what train-phrasebook wrote {shipped}"
    )
    words.add_argument(
        "--english", action="store_true", help="list the words that it can say"
    )
    words.set_defaults(run=run_words)
    train = commands.add_parser(
        "train-phrasebook",
        help="make the weights anew, on one core in about a minute",
        description="Train as chapter 12 does, test on sentences that hold a pair of "
        "words never seen together, and write the weights. The same seed gives the "
        "same weights on the same machine.",
    )
    train.add_argument("--out", metavar="FILE", required=True, help="where to write")
    train.add_argument(
        "--seed", type=whole(0), default=0, metavar="N", help="0 or more (default: 0)"
    )
    train.add_argument(
        "--sentences",
        type=whole(1),
        default=50_000,
        metavar="N",
        help="how many sentences to learn from (default: 50000)",
    )
    train.set_defaults(run=run_train_phrasebook)
    add_train(commands)
    add_evaluate(commands)
    plot = commands.add_parser(
        "plot",
        help="draw how trainings went",
        description="Draw the losses and the validation BLEU of one or more runs.",
    )
    plot.add_argument("runs", nargs="+", metavar="RUN", help="a folder of train's")
    plot.add_argument(
        "--out", metavar="FILE", required=True, help="a .svg, .png or .pdf to write"
    )
    plot.set_defaults(run=run_plot)
    return ask


def corpus_options() -> OneLineParser:
    """The options that say what sentences to read."""
    corpus = OneLineParser(add_help=False)
    group = corpus.add_argument_group("sentences")
    group.add_argument(
        "--data",
        metavar="FOLDER",
        default=os.environ.get("MULTI30K"),
        help="where Multi30k lies, or any train.en, train.de, val.en, val.de, test.en, "
        "test.de, packed (.gz) or not (default: the variable MULTI30K; without it, "
        "Multi30k is fetched once and kept in the user's cache)",
    )
    return corpus


SETTING_HELP = {
    "types": "how many subwords, all told",
    "layers": "layers of the encoder, and of the decoder",
    "d_model": "the width",
    "num_heads": "heads of each attention",
    "d_ff": "the width inside the feed-forward layers",
    "dropout": "the share of numbers left out while learning",
    "norm_first": "normalise before each sublayer instead of after it",
    "max_length": "the longest sentence, in subwords",
    "epochs": "how often to read the training set, at most",
    "step_tokens": "tokens (sentences × longest) a step, all processes together",
    "part_tokens": "tokens that one process takes at once; less needs less memory",
    "schedule": "how the learning rate falls: inverse-sqrt or cosine",
    "peak": "the highest learning rate",
    "warmup": "steps until it is reached",
    "smoothing": "the share of a target that goes to all words",
    "max_norm": "the longest gradient that a step may follow",
    "memory": "what the running mean of the weights keeps a step",
    "patience": "end after so many epochs without a lower validation loss",
    "seed": "0 or more: which weights to begin with, which order, which dropout",
}


def add_train(commands: Any) -> None:
    """The command that trains a translator."""
    train = commands.add_parser(
        "train",
        parents=[corpus_options()],
        help="train a translator on real sentences",
        description="Learn subwords and a translation from the training sentences, "
        "check on the validation sentences after each epoch, and keep the run in a "
        "folder: settings (run.json), a line of metrics a step (metrics.jsonl), the "
        "two newest checkpoints, the last epochs' weights, and the best weights "
        "(model.safetensors). The same command takes a run up again where it was cut "
        "short. Under torchrun, several processes share each step.",
    )
    train.add_argument(
        "--out", metavar="FOLDER", required=True, help="keep the run here"
    )
    train.add_argument(
        "--preset",
        choices=("tiny", "small", "base", "toy"),
        default="tiny",
        help="a set of settings, each of which an option below overrides "
        "(default: tiny, the 2.57 million parameters of chapter 16)",
    )
    train.add_argument("--source", default="en", metavar="CODE", help="default: en")
    train.add_argument("--target", default="de", metavar="CODE", help="default: de")
    train.add_argument(
        "--text",
        choices=("tok", "raw"),
        default="tok",
        help="lowercased and tokenised sentences, or as they were written "
        "(default: tok)",
    )
    train.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="default: the GPU where there is one",
    )
    train.add_argument(
        "--precision",
        choices=("auto", "float32", "bf16"),
        default="auto",
        help="default: bf16 where the device is made for it",
    )
    train.add_argument(
        "--every",
        type=whole(1),
        default=200,
        metavar="N",
        help="steps from one checkpoint to the next (default: 200)",
    )
    train.add_argument(
        "--keep",
        type=whole(1),
        default=10,
        metavar="N",
        help="how many epochs' weights to keep for averaging (default: 10)",
    )
    settings = train.add_argument_group("settings (default: the preset's)")
    for name, meaning in SETTING_HELP.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "norm_first":
            yes_or_no = argparse.BooleanOptionalAction
            settings.add_argument(flag, action=yes_or_no, help=meaning)
        elif name == "schedule":
            choices = "inverse-sqrt", "cosine"
            settings.add_argument(flag, choices=choices, default=None, help=meaning)
        else:
            real = name in ("dropout", "peak", "smoothing", "max_norm", "memory")
            kind = at_least_0 if real else whole(0 if name == "seed" else 1)
            settings.add_argument(flag, type=kind, metavar="N", help=meaning)
    train.set_defaults(run=run_train)


def add_evaluate(commands: Any) -> None:
    """The command that measures a translator."""
    evaluate = commands.add_parser(
        "evaluate",
        parents=[corpus_options()],
        help="measure a translator: BLEU and chrF, with sacreBLEU's signature",
        description="Translate the validation or the test sentences, compare with "
        "their references, and print BLEU and chrF with sacreBLEU's signatures, as "
        "JSON. Choose on validation; test once.",
    )
    evaluate.add_argument("weights", metavar="RUN", help="what train wrote")
    evaluate.add_argument(
        "--split",
        choices=("val", "test"),
        default="val",
        help="which sentences to translate (default: val)",
    )
    evaluate.add_argument(
        "--beam-size", type=whole(1, 1000), default=5, metavar="N", help="default: 5"
    )
    evaluate.add_argument(
        "--length-penalty",
        type=penalty,
        default=1.0,
        metavar="A",
        help="default: 1.0",
    )
    evaluate.add_argument(
        "--average",
        type=whole(0),
        default=0,
        metavar="N",
        help="use the mean of the last N epochs' weights (default: the best model)",
    )
    evaluate.add_argument(
        "--out", metavar="FILE", help="write the translations there, one a line"
    )
    evaluate.set_defaults(run=run_evaluate)


def whole(least: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    """A type of option: a whole number of at least `least` and at most `most`."""

    def read(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            limits = f"at least {least}" + (f", at most {most}" * (most < 2**63 - 1))
            message = f"expected a whole number of {limits}, got {text!r}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    return read


def at_least_0(text: str) -> float:
    """A type of option: a number, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        message = f"expected a number of at least 0, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return number


def penalty(text: str) -> float:
    """A type of option: 0 to 100; a power much higher is no number any more."""
    number = at_least_0(text)
    if number > 100:
        message = f"expected a number of at most 100, got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return number


def load_translator(weights: str | None) -> "Translator":
    """The translator in a file, or the one that ships."""
    from transformer.decoding import Translator

    return Translator.load(weights) if weights else Translator.phrasebook()


def with_subwords(weights: str | None) -> bool:
    """Whether train wrote this, and not train-phrasebook."""
    if weights is None or Path(weights).is_dir():
        return weights is not None
    from transformer.model import read_checkpoint

    return "subwords" in read_checkpoint(Path(weights))[1]


def run_translate(options: argparse.Namespace) -> None:
    """Translate the sentence given, or a file or standard input line by line."""
    if options.sentence and options.file:
        raise ValueError("give a sentence or --file, not both")
    if with_subwords(options.weights):
        run_translate_subwords(options)
        return
    translator = load_translator(options.weights)

    def translated(sentence: str) -> str:
        return translator.translate(sentence, options.beam_size, options.length_penalty)

    if options.sentence:
        print(translated(" ".join(options.sentence)))
        return
    typed = not options.file and sys.stdin is not None and sys.stdin.isatty()
    if typed:
        say("One French sentence a line; end with Ctrl-D (Ctrl-Z on Windows).")
    for number, line in enumerate(lines_to_translate(options.file), start=1):
        try:
            print(translated(line) if line.strip() else "", flush=True)
        except ValueError as error:
            if not typed:
                raise ValueError(f"line {number}: {error}") from None
            say(one_line(str(error)))


def lines_to_translate(file: str | None) -> Iterable[str]:
    """The lines of a file, or of standard input."""
    if file is not None:
        try:
            return Path(file).read_text("utf-8").removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            raise ValueError(f"{file} is not UTF-8 text") from None
    if sys.stdin is None:
        raise ValueError("no sentence given, and standard input is closed")
    return sys.stdin


def run_translate_subwords(options: argparse.Namespace) -> None:
    """Translate with a translator that train wrote, some lines at a time."""
    from transformer.translation import SubwordTranslator, as_tokenized

    translator = SubwordTranslator.load(options.weights)

    def translated(sentences: Sequence[str]) -> list[str]:
        if translator.text == "tok":
            language, _ = translator.languages
            sentences = [as_tokenized(sentence, language) for sentence in sentences]
        return translator.translate(
            [sentence.strip() for sentence in sentences],
            options.beam_size,
            options.length_penalty,
        )

    if options.sentence:
        print(*translated([" ".join(options.sentence)]))
        return
    typed = not options.file and sys.stdin is not None and sys.stdin.isatty()
    if typed:
        say("One sentence a line; end with Ctrl-D (Ctrl-Z on Windows).")
    lines, done = iter(lines_to_translate(options.file)), 0
    while some := list(itertools.islice(lines, 1 if typed else 64)):
        try:
            print(*translated(some), sep="\n", flush=True)
        except ValueError as error:
            if not typed:
                where = f"lines {done + 1} to {done + len(some)}"
                raise ValueError(f"{where}: {error}") from None
            say(one_line(str(error)))
        done += len(some)


def run_words(options: argparse.Namespace) -> None:
    """List the words of one side, one a line."""
    if with_subwords(options.weights):
        raise ValueError(f"{options.weights} reads pieces of words: there is no list")
    translator = load_translator(options.weights)
    print("\n".join(translator.target if options.english else translator.source))


def run_train_phrasebook(options: argparse.Namespace) -> None:
    """Train, test and write, with a word on how it goes."""
    import torch

    from transformer import training
    from transformer.data import vocabularies
    from transformer.decoding import Translator

    out = Path(options.out)
    if out.is_dir():
        raise ValueError(f"--out must name a file, got the folder {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"cannot write in the folder {out.parent}")
    torch.set_num_threads(1)  # the order of additions, and so every bit, is fixed
    say(f"making {options.sentences:,} sentences …")
    examples = training.phrasebook_examples(options.sentences, options.seed)
    model = training.phrasebook_model(options.seed)
    terminal = sys.stderr.isatty()
    shown = 0
    for now in training.train(model, examples, seed=options.seed):
        tenth = 10 * now.step // now.total
        if terminal or tenth > shown:
            line = (
                f"step {now.step:,} of {now.total:,}   loss {now.loss:.3f}   "
                f"{now.tokens_per_second:,.0f} tokens/s   {now.seconds_left:.0f} s left"
            )
            say(f"\r{line:<75}" if terminal else line, end="" if terminal else "\n")
            shown = tenth
    if terminal:
        say("")
    held_out = training.phrasebook_examples(1000, options.seed + 1, held_out=True)
    share = training.exact_match(model, held_out)
    Translator(model, *vocabularies()).save(out)
    print(
        f"{share:.1%} of {len(held_out):,} held-out sentences translated exactly; "
        f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)"
    )


def corpus_folder(data: str | None, text: str, languages: tuple[str, str]) -> Path:
    """The folder named, or the user's cache with Multi30k in it."""
    if data:
        if not Path(data).is_dir():
            raise ValueError(f"no folder {data}")
        return Path(data)
    from transformer.translation import fetch_multi30k

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

    def progress(name: str, done: int, total: int) -> None:
        share = f"{done / total:4.0%}" if total else f"{done:,} bytes"
        say(f"\rfetching {name}: {share}", end="\n" if done == total else "")

    folder = cache / "tested-transformer" / "multi30k"
    return fetch_multi30k(folder, text, languages, progress)


def chosen_settings(options: argparse.Namespace) -> "Settings":
    """The preset, and what the options change in it."""
    import torch

    from transformer.translation import PRESETS, made_for_bf16

    changes = {
        name: getattr(options, name)
        for name in SETTING_HELP
        if getattr(options, name) is not None
    }
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    if options.precision == "auto":
        bf16 = made_for_bf16(options.device)
    else:
        bf16 = options.precision == "bf16"
    return dataclasses.replace(PRESETS[options.preset], **changes, bf16=bf16)


def run_train(options: argparse.Namespace) -> None:
    """Train a translator, or take its training up again."""
    from transformer.model import Transformer
    from transformer.translation import Crew, prepare, train_translator

    if Path(options.out).is_file():
        raise ValueError(f"--out must name a folder, got the file {options.out}")
    settings = chosen_settings(options)
    languages = options.source, options.target
    crew = Crew.join(options.device)
    speak = say if crew.rank == 0 else (lambda message, end="": None)
    if crew.rank == 0:
        folder = corpus_folder(options.data, options.text, languages)
    crew.total(0.0)  # the others wait until the sentences are there
    if crew.rank:
        folder = corpus_folder(options.data, options.text, languages)
    lessons = prepare(folder, settings, *languages, options.text)
    model = Transformer(settings.config(lessons.subwords.size))
    size = sum(weight.numel() for weight in model.parameters())
    if lessons.left_out:
        speak(f"{lessons.left_out:,} pairs are too long and left out")
    speak(
        f"{len(lessons.train):,} sentence pairs, {lessons.subwords.size:,} subwords, "
        f"{size:,} parameters; {crew.size} × {crew.device.type}, "
        f"{'bf16' if settings.bf16 else 'float32'}; kept in {options.out}"
    )
    terminal = sys.stderr.isatty()
    shown, clock, tokens = 0.0, time.perf_counter(), 0
    for now in train_translator(
        lessons, settings, options.out, crew, options.every, options.keep, say=speak
    ):
        tokens += now.tokens
        if not shown:  # the first step of this sitting
            first, before = now.step - 1, now.seconds - (time.perf_counter() - clock)
        spent = max(now.seconds - before, 1e-9)
        left = spent / (now.step - first) * (now.total - now.step)
        line = (
            f"epoch {now.epoch}  step {now.step:,} of {now.total:,}  loss "
            f"{now.loss:.3f}  {tokens / spent:,.0f} tokens/s  {span(left)} left at most"
        )
        if terminal:
            speak(f"\r{line:<79}", end="")
        elif now.seconds - shown > 60:
            speak(line)
            shown = now.seconds
        shown = shown or now.seconds
        if now.checked is not None:
            speak(
                f"{chr(10) if terminal else ''}epoch {now.epoch} ends: validation loss "
                f"{now.checked:.3f}, BLEU {now.bleu:.2f} (greedy)"
            )
    crew.leave()
    speak(f"done: python -m transformer evaluate {options.out}")


def span(seconds: float) -> str:
    """A time as people say it."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def run_evaluate(options: argparse.Namespace) -> None:
    """Translate a split and print the scores, as JSON."""
    from transformer.model import write_whole
    from transformer.translation import SubwordTranslator, read_pairs, score

    translator = SubwordTranslator.load(options.weights, options.average)
    languages, text = translator.languages, translator.text
    folder = corpus_folder(options.data, text, languages)
    pairs = read_pairs(folder, text, options.split, *languages)
    began = time.perf_counter()
    said = translator.translate(
        [source for source, _ in pairs], options.beam_size, options.length_penalty
    )
    seconds = time.perf_counter() - began
    scores = score(said, [target for _, target in pairs], text)
    found = {
        "weights": options.weights,
        "average": options.average,
        "split": options.split,
        "sentences": len(pairs),
        "beam_size": options.beam_size,
        "length_penalty": options.length_penalty,
        **scores._asdict(),
        "seconds": round(seconds, 1),
    }
    print(json.dumps(found, indent=1), flush=True)  # whatever becomes of --out
    if options.out:
        write_whole(Path(options.out), "".join(f"{one}\n" for one in said).encode())


def run_plot(options: argparse.Namespace) -> None:
    """Draw the curves of some runs."""
    from transformer.translation import extra, read_metrics

    plt = extra("matplotlib.pyplot")
    runs = {folder: read_metrics(folder) for folder in options.runs}
    for folder, lines in runs.items():
        if not lines:
            raise ValueError(f"{folder} has no metrics.jsonl with lines in it")
    fig, (losses, bleus) = plt.subplots(1, 2, figsize=(9, 3.6))
    for folder, lines in runs.items():
        name = Path(folder).name
        step = [line["step"] for line in lines]
        checks = [line for line in lines if "checked" in line]
        (drawn,) = losses.plot(step, [line["loss"] for line in lines], alpha=0.3)
        colour = drawn.get_color()
        at = [line["step"] for line in checks]
        losses.plot(at, [line["checked"] for line in checks], "o-", ms=3, color=colour)
        bleu = [line["bleu"] for line in checks]
        bleus.plot(at, bleu, "o-", ms=3, color=colour, label=name)
    losses.set(xlabel="step", ylabel="loss, nats a target (dots: validation)")
    bleus.set(xlabel="step", ylabel="validation BLEU, greedy")
    bleus.legend()
    fig.tight_layout()
    try:
        fig.savefig(options.out)
    except ValueError as error:
        raise ValueError(f"cannot draw {options.out}: {error}") from None


def one_line(message: str) -> str:
    """A message that may hold what was typed: nothing in it moves the cursor."""
    shown = (c if c.isprintable() else repr(c)[1:-1] for c in message)
    line = "".join(shown)
    return line if len(line) <= 400 else f"{line[:300]} … {line[-90:]}"


def say(message: str, end: str = "\n") -> None:
    """Speak beside the output, not in it."""
    print(message, end=end, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit code is 2 for whatever the caller could mend."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        options = parser().parse_args(arguments)
        options.run(options)
        if sys.stdout:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough, as in `words | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        say("")
        return 130
    except UnicodeDecodeError:
        say("python -m transformer: standard input is not UTF-8 text")
        return 2
    except (ValueError, OSError) as error:
        say(one_line(f"python -m transformer: {error}"))
        return 2
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, if it is loaded
            raise
        say(one_line(f"python -m transformer: {error} Try a lower --part-tokens."))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
