"""The command line: `python -m transformer translate "Jane visite l'Afrique"`."""

import argparse
import io
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from transformer.decoding import Translator

ABOUT = """\
The Transformer of the book, trained on its French-English phrasebook.

  python -m transformer translate "Jane visite l'Afrique en septembre"
  python -m transformer translate < sentences.txt     one sentence a line
  python -m transformer translate --beam-size 4 "Elle est mon amie"
  python -m transformer words                         what it can read
  python -m transformer train-phrasebook --out my.safetensors --seed 1
  python -m transformer translate --weights my.safetensors "Il a deux chats noirs"
"""


class OneLineParser(argparse.ArgumentParser):
    """A parser whose complaints fit on one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, then leave with exit code 2."""
        self.exit(2, f"{self.prog}: {message} ({self.prog} --help explains)\n")


def parser() -> argparse.ArgumentParser:
    """Every command and option, with the help that teaches them."""
    program = "python -m transformer"
    ask = OneLineParser(
        prog=program,
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = ask.add_subparsers(metavar="COMMAND", required=True)
    weights = OneLineParser(add_help=False)
    weights.add_argument(
        "--weights",
        metavar="FILE",
        help="a file that train-phrasebook wrote (default: the one that ships)",
    )
    translate = commands.add_parser(
        "translate",
        parents=[weights],
        help="French to English: a sentence, or standard input line by line",
        description="Translate one sentence, or each line of standard input. Blank "
        "lines stay blank. A word that the model does not know is an error.",
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
        type=at_least_0,
        default=0.6,
        metavar="A",
        help="what length is worth when a beam chooses, 0 or more (default: 0.6)",
    )
    translate.set_defaults(run=run_translate)
    words = commands.add_parser(
        "words",
        parents=[weights],
        help="list the words that can be translated",
        description="List every word that the model can read, or can say.",
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
    return ask


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


def load_translator(weights: str | None) -> "Translator":
    """The translator in a file, or the one that ships."""
    from transformer.decoding import Translator

    return Translator.load(weights) if weights else Translator.phrasebook()


def run_translate(options: argparse.Namespace) -> None:
    """Translate the sentence given, or standard input line by line."""
    translator = load_translator(options.weights)

    def translated(sentence: str) -> str:
        return translator.translate(sentence, options.beam_size, options.length_penalty)

    if options.sentence:
        print(translated(" ".join(options.sentence)))
        return
    if sys.stdin is None:
        raise ValueError("no sentence given, and standard input is closed")
    typed = sys.stdin.isatty()
    if typed:
        say("One French sentence a line; end with Ctrl-D (Ctrl-Z on Windows).")
    for number, line in enumerate(sys.stdin, start=1):
        try:
            print(translated(line) if line.strip() else "", flush=True)
        except ValueError as error:
            if not typed:
                raise ValueError(f"line {number}: {error}") from None
            say(str(error))


def run_words(options: argparse.Namespace) -> None:
    """List the words of one side, one a line."""
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
        say(f"python -m transformer: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
