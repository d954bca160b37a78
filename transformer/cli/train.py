"""The command that trains: train."""

import contextlib
import dataclasses
import os
import shlex
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import click

from transformer.beyond.language_model import LanguageModelConfig
from transformer.beyond.text_generator import TextGenerator
from transformer.checks import optional_import
from transformer.cli.console import print_error
from transformer.cli.models import load_model, report_unknown
from transformer.cli.options import (
    COUNT,
    DEVICE,
    FOLDER,
    FOLDER_OR_FILE,
    PROGRAM,
    RUN_OR_FILE,
    SEED,
    Command,
    is_given,
    number,
    option,
    refuse_given,
    settings,
)
from transformer.cli.progress import Progress
from transformer.cli.resources import (
    find_corpus,
    find_device,
    looks_tokenised,
    require_memory,
    require_run_folder,
)
from transformer.decoding.translator import Translator, length_ratio_of
from transformer.model import TransformerConfig
from transformer.pretrained.marian import MarianTokenizer
from transformer.text.multi30k import TEXTS, read_pairs
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import Tokenizer
from transformer.training.config import SCHEDULES, TrainingConfig
from transformer.training.distributed import ProcessGroup
from transformer.training.loop import StepMetrics
from transformer.training.precision import supports_bf16
from transformer.training.run_folder import RunFolder, RunInfo, read_run
from transformer.training.text_trainer import (
    TEXT_PRESET,
    TextDataset,
    language_model,
    train_language_model,
)
from transformer.training.trainer import (
    PRESETS,
    Preset,
    TranslationDataset,
    train_translator,
    translation_model,
)
from transformer.weights.files import model_file, write_atomically

__all__ = ["train"]

FRACTION = number(0, 1, max_open=True)
POSITIVE = number(0, min_open=True)
SIZES = {
    "vocab_size": (COUNT, "Subwords to learn, special symbols included."),
    "layers": (COUNT, "Layers of the encoder, and of the decoder if there is one."),
    "d_model": (COUNT, "Numbers in the vector of each token."),
    "num_heads": (COUNT, "Heads of each attention."),
    "d_ff": (COUNT, "Width inside the feed-forward networks."),
    "dropout": (FRACTION, "Probability of leaving a number out while training."),
    "norm_first": (bool, "Normalise before each sublayer instead of after it."),
    "max_length": (COUNT, "Longest sentence, or window of a text, in subwords."),
}
CHOICES = {
    "epochs": (COUNT, "Passes over the training set, at most."),
    "batch_tokens": (COUNT, "Tokens of a step, padding and all processes included."),
    "micro_batch_tokens": (COUNT, "Tokens read at once; fewer take less memory."),
    "schedule": (click.Choice(list(SCHEDULES)), "How the learning rate falls."),
    "learning_rate": (POSITIVE, "The highest learning rate, after the warm-up."),
    "warmup_steps": (COUNT, "Steps until the learning rate is highest."),
    "label_smoothing": (FRACTION, "Share of each label that all subwords share."),
    "max_grad_norm": (POSITIVE, "A longer gradient is clipped to this length."),
    "ema_decay": (FRACTION, "What the weights' moving average keeps at each step."),
    "patience": (COUNT, "Epochs without a lower validation loss before it ends."),
    "seed": (SEED, "Fixes the first weights, the order and the dropout."),
}
TASKS = click.Choice(["translation", "lm"])
PRECISIONS = click.Choice(["auto", "float32", "bf16"])


@click.command(cls=Command, short_help="Train a translator, or a language model.")
@option("--out", FOLDER, "The folder in which the run is kept.", required=True)
@option("--task", TASKS, "A translator or a language model.  [default: translation]")
@option(
    *("--data", FOLDER_OR_FILE),
    "A folder of sentence pairs; for lm a text file, and again for more files.",
    multiple=True,
)
@option("--source", str, "Language to read.", "en", metavar="CODE")
@option("--target", str, "Language to write.", "de", metavar="CODE")
@option("--text", click.Choice(TEXTS), "tok: lowercased, punctuation apart.", "raw")
@option("--preset", click.Choice(list(PRESETS)), "Sizes and choices.", "tiny")
@click.option(
    *("--from", "start"),
    type=RUN_OR_FILE,
    help="Train this model further: a run, or a folder of MarianMT.",
)
@option("--max-steps", COUNT, "End after so many steps in all; it can go on later.")
@DEVICE
@option("--precision", PRECISIONS, "auto: bf16 where it is fast.", "auto")
@option("--save-every", COUNT, "Steps between checkpoints.", 200)
@option("--keep-epochs", COUNT, "Epochs whose weights are kept for averaging.", 10)
@settings("Model (the preset's, unless given)", **SIZES)
@settings("Training (the preset's, unless given)", **CHOICES)
@click.pass_context
def train(
    context: click.Context,
    /,
    out: Path,
    start: Path | None,
    device: str,
    save_every: int,
    max_steps: int | None,
    **options: Any,
) -> int:
    """Train a translator on sentence pairs, or a language model on plain text.

    Sentence pairs are files in one folder, line n of one belonging to line n of the
    other: train.en, train.de, val.en, val.de and perhaps test.en, test.de, packed (.gz)
    or not. With --preset and no --data they are Multi30k's, in the folder that the
    variable MULTI30K names, or fetched once. Of each text for --task lm, about the last
    tenth is for validation.

    The run's folder keeps its choices (run.json), a line of metrics a step
    (metrics.jsonl), two checkpoints, the last epochs' weights and the best ones
    (model.safetensors). After Ctrl-C, or when it is terminated, a training keeps a
    checkpoint; "train --out FOLDER" alone goes on with it. Under torchrun, several
    processes share each step.
    """
    if is_first_process():
        require_run_folder(out)
    run = read_run(out) if (out / "run.json").is_file() else None
    if run is None and not any(
        is_given(context, name) for name in context.params if name not in ANY_RUN
    ):
        raise ValueError(
            f"{out} has no run to go on with: give --data, or --preset for Multi30k"
        )
    if run is not None:
        recorded = recorded_options(run)
        if options["task"] not in (None, recorded["task"]):
            found = f"{out} has a run of --task {recorded['task']}"
            raise ValueError(f"{found}, not of --task {options['task']}")
        if is_given(context, "preset"):  # it says all sizes and choices
            recorded = {n: x for n, x in recorded.items() if n in BESIDES_PRESET}
        options |= {n: x for n, x in recorded.items() if not is_given(context, n)}
    device = find_device(device)
    is_text = options["task"] == "lm"
    if is_text:
        names = "source", "target", "text", "preset", "keep_epochs"
        refuse_given(context, "for translators, not for --task lm", *names)
    model = starting_model(out, start, run)
    if model is not None:
        refuse_given(context, "that of the model to train further", *SIZES, "text")
        if isinstance(model, TextGenerator) != is_text:
            kind = "translator" if is_text else "language model: give --task lm"
            raise ValueError(f"the model to train further is a {kind}")
    preset = TEXT_PRESET if is_text else PRESETS[options["preset"]]
    plan = choose(preset, options, device)
    if run is None and model is not None:
        require_own_choices(context, model, plan)
    job = Job(out, plan, device, save_every, max_steps)
    if is_text:
        return job.train_on_texts(options["data"], cast("TextGenerator | None", model))
    languages = options["source"], options["target"]
    if isinstance(model, Translator):
        options["text"] = getattr(model.source_tokenizer, "text", "raw")
        if not (is_given(context, "source") or is_given(context, "target")):
            languages = model.languages
    if len(options["data"]) > 1:
        raise ValueError("sentence pairs are in one folder: give --data once")
    # A run that goes on with smaller micro batches has the pairs that it had.
    micro = (run.training if run else vars(plan.training))["micro_batch_tokens"]
    training = dataclasses.replace(plan.training, micro_batch_tokens=micro)
    sizes = plan.sizes
    if model is not None:
        sizes = sizes | {"max_length": model.model.config.max_length}
    longest = plan._replace(training=training, sizes=sizes).max_tokens
    keep_epochs = options["keep_epochs"]
    if not is_given(context, "keep_epochs"):
        keep_epochs = max(keep_epochs, len(list(out.glob("epoch-*.safetensors"))))
    folder = next(iter(options["data"]), None)
    return job.train_on_pairs(
        folder,
        languages,
        options["text"],
        longest,
        cast("Translator | None", model),
        keep_epochs,
    )


@dataclasses.dataclass
class Job:
    """A training that was asked for: where it is kept, how and how long it goes."""

    out: Path
    plan: Preset
    device: str
    save_every: int
    max_steps: int | None

    def train_on_pairs(
        self,
        data: Path | None,
        languages: tuple[str, str],
        text: str,
        longest: int,
        start: Translator | None,
        keep_epochs: int,
    ) -> int:
        """Train a translator on sentence pairs; the exit code."""
        optional_import("sacrebleu")
        plan, size = self.plan, self.plan.vocab_size
        if start is None:
            optional_import("tokenizers")
            require_memory(TransformerConfig(size, size, **plan.sizes), self.device)
        group = ProcessGroup.start(self.device)
        progress = Progress(quiet=group.rank > 0)
        try:
            group.on_rank_zero(lambda: find_corpus(data, text, languages))  # fetch once
            folder = find_corpus(data, text, languages)
            count = len(read_pairs(folder, text, "train", *languages))
            progress.write(
                f"{count:,} pairs in {folder}, {' to '.join(languages)}, {text} text; "
                f"{group.size} × {group.device.type}, {self.precision}; "
                f"kept in {self.out}"
            )
            dataset = TranslationDataset.load(
                *(folder, *languages, text, size, longest, self.out, progress.write),
                tokenizers=None if start is None else own_tokenizers(start),
            )
            tokenizers = dataset.source_tokenizer, dataset.target_tokenizer
            size, config = tokenizers[0].vocab_size, plan.training
            if start is None:
                model = translation_model(size, plan.sizes, config.seed)
            else:
                model = start.model
            if not progress.quiet:
                report_dataset(dataset)
            weights = sum(weight.numel() for weight in model.parameters())
            progress.write(
                f"{len(dataset.train):,} pairs to learn from, "
                f"{len(dataset.validation_pairs):,} for validation; "
                f"{size:,} subwords, {weights:,} parameters"
            )
            with group.connected():
                code = self.take_steps(
                    partial(train_translator, model, dataset, config, self.out, group),
                    progress,
                    Translator(
                        *(model, *tokenizers, languages),
                        length_ratio_of(dataset.train),
                    ),
                    keep_epochs=keep_epochs,
                )
        finally:
            progress.close()
            group.close()
        if not code:
            progress.write(f"done: {PROGRAM} evaluate {shlex.quote(str(self.out))}")
        return code

    def train_on_texts(
        self, files: tuple[Path, ...], start: TextGenerator | None
    ) -> int:
        """Train a language model on plain text; the exit code."""
        if not files:
            raise ValueError("--task lm needs a text: give --data FILE")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("--task lm trains in one process: run it without torchrun")
        optional_import("tokenizers")
        plan, out, config = self.plan, self.out, self.plan.training
        if start is None:
            sizes = LanguageModelConfig(plan.vocab_size, **plan.sizes)
            require_memory(sizes, self.device)
        progress = Progress()
        size = sum(file.stat().st_size for file in files)
        progress.write(
            f"{size:,} bytes of text in {', '.join(map(str, files))}; "
            f"{self.device}, {self.precision}; kept in {out}"
        )
        dataset = TextDataset.load(
            *(files, plan.vocab_size, out, progress.write),
            tokenizer=None if start is None else start.tokenizer,
        )
        if start is None:
            vocab_size = dataset.tokenizer.vocab_size
            model = language_model(vocab_size, plan.sizes, config.seed)
        else:
            model = start.model
        weights = sum(weight.numel() for weight in model.parameters())
        progress.write(
            f"{len(dataset.train):,} tokens, {len(dataset.validation):,} held out; "
            f"{dataset.tokenizer.vocab_size:,} subwords, {weights:,} parameters"
        )
        try:
            code = self.take_steps(
                partial(train_language_model, model, dataset, config, out, self.device),
                progress,
                TextGenerator(model, dataset.tokenizer),
            )
        finally:
            progress.close()
        if not code:
            prompt = f'generate --weights {shlex.quote(str(out))} "A prompt"'
            progress.write(f"done: {PROGRAM} {prompt}")
        return code

    @property
    def precision(self) -> str:
        """The name of the numbers that matrices are multiplied in."""
        return "bf16" if self.plan.training.bf16 else "float32"

    def take_steps(
        self,
        begin: Callable[..., Iterable[StepMetrics]],
        progress: Progress,
        translator: Translator | TextGenerator,
        **options: Any,
    ) -> int:
        """Take steps to the end, to --max-steps or a signal; the exit code."""
        most, received = self.max_steps, list[int]()
        newest = [path.stem for path in RunFolder(self.out).checkpoints()[:1]]
        done = max((int(name.rpartition("-")[2]) for name in newest), default=0)
        if most is not None and done >= most:
            progress.write(f"the run has taken {done:,} steps already")
            return 0

        def stop() -> bool:
            return bool(received) or progress.step == most

        with note_signals(received):
            for metrics in begin(
                checkpoint_every=self.save_every,
                report=progress.write,
                stop=stop,
                **options,
            ):
                progress.show(metrics)
        if received:
            command = f"{PROGRAM} train --out {shlex.quote(str(self.out))}"
            progress.write(f"to go on: {command}")
            return 128 + received[0]
        best = self.out / "model.safetensors"
        if progress.step == most and not best.exists() and is_first_process():
            translator.save(best)  # no epoch has ended, after which it is kept
        return 0


@contextlib.contextmanager
def note_signals(received: list[int]) -> Iterator[None]:
    """Note Ctrl-C and SIGTERM, after which a training ends; the second ends it now."""

    def note(number: int, _: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:  # as in a background job
                before[number] = signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_first_process() -> bool:
    """Whether this is the only process, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def own_tokenizers(translator: Translator) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of a translator, refused with a ValueError if they read words."""
    both = translator.source_tokenizer, translator.target_tokenizer
    joint = both[0] is both[1] and isinstance(both[0], SubwordTokenizer)
    if not joint and not isinstance(both[0], MarianTokenizer):
        raise ValueError(
            "only a translator that train wrote, or one of MarianMT, can be trained "
            "further"
        )
    return both


def report_dataset(dataset: TranslationDataset) -> None:
    """Say what a user may not expect of the sentences."""
    if dataset.left_out:
        pairs = "pair is" if dataset.left_out == 1 else "pairs are"
        print_error(f"{dataset.left_out:,} {pairs} left out: too long or empty")
    some = [side for pair in dataset.validation_pairs[:1000] for side in pair]
    if dataset.text == "raw" and looks_tokenised(some):
        print_error(
            "the sentences seem to be lowercased and tokenised already: --text tok "
            "would treat in the same way what is typed"
        )
    if isinstance(dataset.source_tokenizer, SubwordTokenizer):
        unknown = dataset.source_tokenizer.unknown_characters
        report_unknown(unknown(source) for source, _ in dataset.validation_pairs)


def require_own_choices(
    context: click.Context, model: Translator | TextGenerator, plan: Preset
) -> None:
    """Ask for what a preset would otherwise say of training a model further.

    Raises:
        ValueError: without sentences of the user's own, and for the high learning rate
            of a model's first training where a real translator is to be kept.
    """
    if not is_given(context, "data") and not is_given(context, "preset"):
        raise ValueError("give --data, on which to train it further")
    if (
        isinstance(model, Translator)
        and isinstance(model.source_tokenizer, MarianTokenizer)
        and not is_given(context, "learning_rate")
    ):
        raise ValueError(
            "give --learning-rate, such as 0.00005: the preset's "
            f"{plan.training.learning_rate} is for a first training"
        )


def starting_model(
    out: Path, start: Path | None, run: RunInfo | None
) -> Translator | TextGenerator | None:
    """The model to train further, of which the run's folder keeps a copy.

    Raises:
        ValueError: for the folder of a run that began with another one.
    """
    kept = out / "run.start.safetensors"
    if start is not None:
        model = load_model(start)
        if (start / "config.json").is_file():  # of another library, in several files
            model.model.float()
            with tempfile.TemporaryDirectory() as folder:
                start_file = Path(folder) / "model.safetensors"
                model.save(start_file)
                data = start_file.read_bytes()
        else:
            data = model_file(start).read_bytes()
        if run is not None and not (kept.is_file() and kept.read_bytes() == data):
            raise ValueError(f"{out} has a run that did not begin with {start}")
        if is_first_process():
            out.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, data)
        return model
    if run is None:
        kept.unlink(missing_ok=True)  # of a training that never began
    return load_model(kept) if kept.is_file() else None


# What does not say which run to begin.
ANY_RUN = ("out", "device")
# What a run says of itself that no preset says.
BESIDES_PRESET = ("task", "data", "source", "target", "text", "precision")


def recorded_options(run: RunInfo) -> dict[str, Any]:
    """The options that a run was begun with."""
    sizes = dict(run.model)
    vocab_size = sizes.pop("source_vocab_size", sizes.get("vocab_size"))
    data = [run.data] if isinstance(run.data, str) else run.data or []
    return {
        **sizes,
        **run.training,
        "vocab_size": vocab_size,
        "task": "lm" if run.text == "lines" else "translation",
        "data": tuple(map(Path, data)),
        "source": run.languages[0],
        "target": run.languages[1],
        "text": run.text,
        "precision": "bf16" if run.training["bf16"] else "float32",
    }


def choose(preset: Preset, options: Mapping[str, Any], device: str) -> Preset:
    """A preset with the options that were given; --layers is that of all stacks."""
    given = {name: value for name, value in options.items() if value is not None}
    stacks = [name for name in preset.sizes if name.endswith("_layers")]
    if "layers" in given:
        given |= dict.fromkeys(stacks, given["layers"])
    sizes = {name: given[name] for name in preset.sizes if name in given}
    fields = [field.name for field in dataclasses.fields(TrainingConfig)]
    training = {name: given[name] for name in fields if name in given}
    training["bf16"] = given["precision"] == "bf16" or (
        given["precision"] == "auto" and supports_bf16(device)
    )
    return Preset(
        given.get("vocab_size", preset.vocab_size),
        preset.sizes | sizes,
        dataclasses.replace(preset.training, **training),
    )
