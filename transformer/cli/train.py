"""The command that trains: train."""

import dataclasses
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from transformer.beyond.language_model import LanguageModelConfig
from transformer.checks import optional_import
from transformer.cli.models import report_unknown_characters
from transformer.cli.options import (
    COUNT,
    DEVICE,
    FOLDER,
    FOLDER_OR_FILE,
    PROGRAM,
    SEED,
    Command,
    number,
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
from transformer.model import TransformerConfig
from transformer.text.multi30k import TEXTS, read_pairs
from transformer.training.config import SCHEDULES
from transformer.training.distributed import ProcessGroup
from transformer.training.precision import supports_bf16
from transformer.training.run_folder import read_run
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

__all__ = ["train"]

FRACTION = number(0, 1, max_open=True)
POSITIVE = number(0, min_open=True)
SIZES = settings(
    "Model (the preset's, unless given)",
    vocab_size=(COUNT, "Subwords to learn, special symbols included."),
    layers=(COUNT, "Layers of the encoder, and of the decoder if there is one."),
    d_model=(COUNT, "Numbers in the vector of each token."),
    num_heads=(COUNT, "Heads of each attention."),
    d_ff=(COUNT, "Width inside the feed-forward networks."),
    dropout=(FRACTION, "Probability of leaving a number out while training."),
    norm_first=(bool, "Normalise before each sublayer instead of after it."),
    max_length=(COUNT, "Longest sentence, or window of a text, in subwords."),
)
CHOICES = settings(
    "Training (the preset's, unless given)",
    epochs=(COUNT, "Passes over the training set, at most."),
    batch_tokens=(COUNT, "Tokens of a step, padding and all processes included."),
    micro_batch_tokens=(COUNT, "Tokens read at once; fewer take less memory."),
    schedule=(click.Choice(list(SCHEDULES)), "How the learning rate falls."),
    learning_rate=(POSITIVE, "The highest learning rate, after the warm-up."),
    warmup_steps=(COUNT, "Steps until the learning rate is highest."),
    label_smoothing=(FRACTION, "Share of each label that all subwords share."),
    max_grad_norm=(POSITIVE, "A longer gradient is clipped to this length."),
    ema_decay=(FRACTION, "What the weights' moving average keeps at each step."),
    patience=(COUNT, "Epochs without a lower validation loss before it ends."),
    seed=(SEED, "Fixes the first weights, the order and the dropout."),
)


@click.command(cls=Command, short_help="Train a translator, or a language model.")
@click.option(
    "--out", type=FOLDER, required=True, help="The folder in which the run is kept."
)
@click.option(
    "--task",
    type=click.Choice(["translation", "lm"]),
    default="translation",
    help="What to train: a translator or a language model.",
)
@click.option(
    "--data",
    type=FOLDER_OR_FILE,
    multiple=True,
    help="A folder of sentence pairs; for lm, a text file, and again for more files.",
)
@click.option("--source", metavar="CODE", default="en", help="Language to read.")
@click.option("--target", metavar="CODE", default="de", help="Language to write.")
@click.option(
    "--text",
    type=click.Choice(TEXTS),
    default="raw",
    help="tok lowercases sentences and sets their punctuation apart.",
)
@click.option(
    "--preset",
    type=click.Choice(list(PRESETS)),
    default="tiny",
    help="Sizes and choices that go together; tiny is chapter 16's.",
)
@DEVICE
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bf16"]),
    default="auto",
    help="auto takes bf16 where the device is made for it.",
)
@click.option(
    "--save-every", type=COUNT, default=200, help="Steps between checkpoints."
)
@click.option(
    "--keep-epochs", type=COUNT, default=10, help="Epochs whose weights are kept."
)
@SIZES
@CHOICES
@click.pass_context
def train(
    context: click.Context,
    /,
    out: Path,
    task: str,
    data: tuple[Path, ...],
    source: str,
    target: str,
    text: str,
    preset: str,
    device: str,
    precision: str,
    save_every: int,
    keep_epochs: int,
    **settings: Any,
) -> None:
    """Train a translator on sentence pairs, or a language model on plain text.

    Sentence pairs are files in one folder, line n of one belonging to line n of the
    other: train.en, train.de, val.en, val.de and perhaps test.en, test.de, packed (.gz)
    or not. Without --data they are Multi30k's, in the folder that the variable MULTI30K
    names, or fetched once. Of each text for --task lm, about the last tenth is for
    validation.

    The run's folder keeps its choices (run.json), a line of metrics a step
    (metrics.jsonl), two checkpoints, the last epochs' weights and the best ones
    (model.safetensors). The same command goes on with a run that was cut short. Under
    torchrun, several processes share each step.
    """
    if os.environ.get("RANK", "0") == "0":
        require_run_folder(out)
        require_task(out, task)
    device = find_device(device)
    bf16 = supports_bf16(device) if precision == "auto" else precision == "bf16"
    if task == "lm":
        names = "source", "target", "text", "preset", "keep_epochs"
        refuse_given(context, "for translators, not for --task lm", *names)
        plan = choose(TEXT_PRESET, ["num_layers"], settings, bf16)
        train_on_texts(data, plan, out, device, save_every)
        return
    if len(data) > 1:
        raise ValueError("sentence pairs are in one folder: give --data once")
    plan = choose(
        PRESETS[preset], ["num_encoder_layers", "num_decoder_layers"], settings, bf16
    )
    folder = data[0] if data else None
    languages = source, target
    train_on_pairs(folder, languages, text, plan, out, device, save_every, keep_epochs)


def train_on_pairs(
    data: Path | None,
    languages: tuple[str, str],
    text: str,
    plan: Preset,
    out: Path,
    device: str,
    save_every: int,
    keep_epochs: int,
) -> None:
    """Train a translator on sentence pairs."""
    for module in ("tokenizers", "sacrebleu"):
        optional_import(module)
    sizes = TransformerConfig(plan.vocab_size, plan.vocab_size, **plan.sizes)
    require_memory(sizes, device)
    group = ProcessGroup.start(device)
    progress = Progress(quiet=group.rank > 0)
    try:
        group.on_rank_zero(lambda: find_corpus(data, text, languages))  # fetched once
        folder = find_corpus(data, text, languages)
        config = plan.training
        pairs = len(read_pairs(folder, text, "train", *languages))
        progress.write(
            f"{pairs:,} pairs in {folder}, {' to '.join(languages)}, {text} text; "
            f"{group.size} × {group.device.type}, {precision_of(plan)}; kept in {out}"
        )
        progress.write("learning subwords …")
        dataset = TranslationDataset.load(
            folder, *languages, text, plan.vocab_size, plan.max_tokens
        )
        tokenizer = dataset.source_tokenizer
        model = translation_model(tokenizer.vocab_size, plan.sizes, config.seed)
        if dataset.left_out:
            are = "pair is" if dataset.left_out == 1 else "pairs are"
            progress.write(f"{dataset.left_out:,} {are} left out: too long or empty")
        some = [side for pair in dataset.validation_pairs[:1000] for side in pair]
        if text == "raw" and looks_tokenised(some):
            progress.write(
                "the sentences seem to be lowercased and tokenised already: --text tok "
                "would treat in the same way what is typed"
            )
        if not progress.quiet:
            sources = [source for source, _ in dataset.validation_pairs]
            report_unknown_characters(tokenizer, sources)
        size = sum(weight.numel() for weight in model.parameters())
        progress.write(
            f"{len(dataset.train):,} pairs to learn from, {len(dataset.validation):,} "
            f"for validation; {tokenizer.vocab_size:,} subwords, {size:,} parameters"
        )
        with group.connected():
            for metrics in train_translator(
                *(model, dataset, config, out, group, save_every, keep_epochs),
                report=progress.write,
            ):
                progress.show(metrics)
    finally:
        progress.close()
        group.close()
    progress.write(f"done: {PROGRAM} evaluate {shlex.quote(str(out))}")


def train_on_texts(
    files: tuple[Path, ...], plan: Preset, out: Path, device: str, save_every: int
) -> None:
    """Train a language model on plain text."""
    if not files:
        raise ValueError("--task lm needs a text: give --data FILE")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("--task lm trains in one process: start it without torchrun")
    optional_import("tokenizers")
    require_memory(LanguageModelConfig(plan.vocab_size, **plan.sizes), device)
    progress = Progress()
    size = sum(file.stat().st_size for file in files)
    progress.write(
        f"{size:,} bytes of text in {', '.join(map(str, files))}; "
        f"{device}, {precision_of(plan)}; kept in {out}"
    )
    dataset, config = TextDataset.load(files, plan.vocab_size), plan.training
    model = language_model(dataset.tokenizer.vocab_size, plan.sizes, config.seed)
    steps = train_language_model(
        model, dataset, config, out, device, save_every, report=progress.write
    )
    size = sum(weight.numel() for weight in model.parameters())
    progress.write(
        f"{len(dataset.train):,} tokens, {len(dataset.validation):,} held out; "
        f"{dataset.tokenizer.vocab_size:,} subwords, {size:,} parameters"
    )
    try:
        for metrics in steps:
            progress.show(metrics)
    finally:
        progress.close()
    prompt = f'generate --weights {shlex.quote(str(out))} "A prompt"'
    progress.write(f"done: {PROGRAM} {prompt}")


def precision_of(plan: Preset) -> str:
    """The name of the numbers that matrices are multiplied in."""
    return "bf16" if plan.training.bf16 else "float32"


def require_task(out: Path, task: str) -> None:
    """Refuse to go on with the run of another task.

    Raises:
        ValueError: for the folder of a translator's run, or of a language model's.
    """
    if (out / "run.json").is_file():
        found = "lm" if read_run(out).text == "lines" else "translation"
        if found != task:
            raise ValueError(f"{out} has a run of --task {found}, not of --task {task}")


def choose(
    preset: Preset, stacks: Iterable[str], settings: dict[str, Any], bf16: bool
) -> Preset:
    """A preset with the settings that were given; `layers` is that of all `stacks`.

    Raises:
        ValueError: for settings that no training could have.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    vocab_size = given.pop("vocab_size", preset.vocab_size)
    if "layers" in given:
        given |= dict.fromkeys(stacks, given.pop("layers"))
    sizes = {name: given.pop(name) for name in preset.sizes if name in given}
    return Preset(
        vocab_size,
        preset.sizes | sizes,
        dataclasses.replace(preset.training, **given, bf16=bf16),
    )
