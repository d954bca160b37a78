"""The command that trains: train."""

import dataclasses
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer.cli.commands import PROGRAM, app
from transformer.cli.options import (
    COUNT,
    DEVICE,
    PRECISION,
    PRESET,
    SIZES,
    TASK,
    TEXT,
    Command,
    with_settings,
)
from transformer.cli.progress import Progress
from transformer.cli.resources import (
    chosen_device,
    corpus,
    is_multi30k,
    looks_tokenised,
    require_memory,
    require_new_folder,
)

if TYPE_CHECKING:
    from transformer.training.trainer import Preset

__all__ = ["train"]

FILES = "train.en, train.de, val.en, val.de, test.en, test.de (or packed, .gz)"


@app.command(cls=Command, short_help="train on real sentences, or on a text")
@with_settings
def train(
    context: typer.Context,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="keep the run here")],
    task: Annotated[
        str,
        typer.Option(help="a translator, or (lm) a language model", **TASK),
    ] = "translation",
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            rich_help_panel="Sentences",
            help=f"your own sentence pairs, a folder with {FILES}; for lm a file of "
            "plain text, and once more for each further file  [default: Multi30k, in "
            "the folder that the variable MULTI30K names, or fetched once and kept in "
            "your cache]",
        ),
    ] = None,
    source: Annotated[
        str, typer.Option(metavar="CODE", rich_help_panel="Sentences", help="from")
    ] = "en",
    target: Annotated[
        str, typer.Option(metavar="CODE", rich_help_panel="Sentences", help="into")
    ] = "de",
    text: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Sentences",
            help="raw: sentences stay as they were written; tok: they are lowercased "
            "and their punctuation is set apart  [default: raw, but tok for Multi30k]",
            **TEXT,
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="a translator's sizes and training choices, each of which an option "
            "below overrides; tiny: the 2.57 million parameters of chapter 16",
            **PRESET,
        ),
    ] = "tiny",
    device: Annotated[
        str, typer.Option(help="auto: the GPU where there is one", **DEVICE)
    ] = "auto",
    precision: Annotated[
        str,
        typer.Option(help="auto: bf16 where the device is made for it", **PRECISION),
    ] = "auto",
    save_every: Annotated[
        int, typer.Option(help="steps from one checkpoint to the next", **COUNT)
    ] = 200,
    keep_epochs: Annotated[
        int, typer.Option(help="epochs whose weights are kept for averaging", **COUNT)
    ] = 10,
    **settings: Any,
) -> None:
    """Train a translator on sentence pairs: Multi30k, or your own.

    Learn subwords and a translation from the training sentences, check on the
    validation sentences after each epoch, and keep the run in a folder: its choices
    (run.json), a line of metrics a step (metrics.jsonl), the two newest checkpoints,
    the last epochs' weights, and the best weights (model.safetensors). The same command
    takes a run up again where it was cut short. Under torchrun, several processes share
    each step.

    With --task lm, a language model learns subwords and what comes next from plain text
    instead. About the last tenth of each file is for validation; spaces in a row count
    as one.
    """
    from transformer.checks import optional_import

    if os.environ.get("RANK", "0") == "0":
        require_new_folder(out)
        require_task(out, task)
    if task == "lm":
        given = [
            name
            for name in ("source", "target", "text", "preset", "keep_epochs")
            if str(context.get_parameter_source(name)).endswith("COMMANDLINE")
        ]
        if given:
            option = given[0].replace("_", "-")
            raise ValueError(f"--{option} is for translators, not for --task lm")
        train_on_files(data or [], out, settings, device, precision, save_every)
        return
    if data and len(data) > 1:
        raise ValueError("sentence pairs are in one folder: give --data once")
    for module in ("tokenizers", "sacrebleu"):
        optional_import(module)
    from transformer.model import TransformerConfig
    from transformer.training.trainer import PRESETS

    device = chosen_device(device)
    stacks = "num_encoder_layers", "num_decoder_layers"
    plan = chosen_plan(PRESETS[preset], stacks, settings, device, precision)
    require_memory(
        TransformerConfig(plan.vocab_size, plan.vocab_size, **plan.sizes), device
    )
    folder = data[0] if data else None
    text = text or ("tok" if is_multi30k(folder) else "raw")
    languages = source, target
    train_on_pairs(folder, languages, text, plan, out, device, save_every, keep_epochs)


def train_on_pairs(
    data: str | None,
    languages: tuple[str, str],
    text: str,
    plan: "Preset",
    out: str,
    device: str,
    save_every: int,
    keep_epochs: int,
) -> None:
    """Train a translator on sentence pairs."""
    from transformer.training.distributed import ProcessGroup
    from transformer.training.trainer import (
        TranslationDataset,
        train_translator,
        translation_model,
    )

    group = ProcessGroup.start(device)
    progress = Progress(quiet=group.rank > 0)
    try:
        group.first(lambda: corpus(data, text, languages))  # fetched once
        folder = corpus(data, text, languages)
        dataset = TranslationDataset.load(
            folder, *languages, text, plan.vocab_size, plan.max_tokens
        )
        tokenizer, config = dataset.source_tokenizer, plan.training
        model = translation_model(tokenizer.vocab_size, plan.sizes, config.seed)
        if dataset.left_out:
            pairs = "pair is" if dataset.left_out == 1 else "pairs are"
            progress.say(f"{dataset.left_out:,} {pairs} left out: too long or empty")
        some = [side for pair in dataset.validation_pairs[:1000] for side in pair]
        if text == "raw" and looks_tokenised(some):
            progress.say(
                "the sentences seem to be lowercased and tokenised already: --text tok "
                "would treat in the same way what is typed"
            )
        size = sum(weight.numel() for weight in model.parameters())
        progress.say(
            f"{len(dataset.train):,} pairs, {tokenizer.vocab_size:,} subwords, "
            f"{size:,} parameters; {group.size} × {group.device.type}, "
            f"{'bf16' if config.bf16 else 'float32'}; kept in {out}"
        )
        with group.connected():
            for metrics in train_translator(
                *(model, dataset, config, out, group, save_every, keep_epochs),
                report=progress.say,
            ):
                progress.show(metrics)
    finally:
        progress.close()
        group.close()
    progress.say(f"done: {PROGRAM} evaluate {shlex.quote(out)}")


def train_on_files(
    files: list[str],
    out: str,
    settings: dict[str, Any],
    device: str,
    precision: str,
    save_every: int,
) -> None:
    """Train a language model on plain text."""
    from transformer.checks import optional_import

    if not files:
        raise ValueError("--task lm needs a text: give --data FILE")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("--task lm trains in one process: start it without torchrun")
    optional_import("tokenizers")
    from transformer.beyond.language_model import LanguageModelConfig
    from transformer.training.text_trainer import (
        TEXT_PRESET,
        TextDataset,
        language_model,
        train_language_model,
    )

    device = chosen_device(device)
    plan = chosen_plan(TEXT_PRESET, ["num_layers"], settings, device, precision)
    require_memory(LanguageModelConfig(plan.vocab_size, **plan.sizes), device)
    dataset, config = TextDataset.load(files, plan.vocab_size), plan.training
    model = language_model(dataset.tokenizer.vocab_size, plan.sizes, config.seed)
    progress = Progress()
    steps = train_language_model(
        model, dataset, config, out, device, save_every, report=progress.say
    )
    size = sum(weight.numel() for weight in model.parameters())
    progress.say(
        f"{len(dataset.train):,} tokens, {len(dataset.validation):,} held out, "
        f"{dataset.tokenizer.vocab_size:,} subwords, {size:,} parameters; {device}, "
        f"{'bf16' if config.bf16 else 'float32'}; kept in {out}"
    )
    try:
        for metrics in steps:
            progress.show(metrics)
    finally:
        progress.close()
    progress.say(f'done: {PROGRAM} generate --weights {shlex.quote(out)} "A prompt"')


def require_task(out: str, task: str) -> None:
    """Refuse to go on with the run of another task.

    Raises:
        ValueError: for the folder of a translator's run, or of a language model's.
    """
    if (Path(out) / "run.json").is_file():
        from transformer.training.run_folder import read_run

        found = "lm" if read_run(out).text == "lines" else "translation"
        if found != task:
            raise ValueError(f"{out} has a run of --task {found}, not of --task {task}")


def chosen_plan(
    preset: "Preset",
    stacks: Iterable[str],
    settings: dict[str, Any],
    device: str,
    precision: str,
) -> "Preset":
    """A preset with the settings that were given; `layers` is that of all `stacks`.

    Raises:
        ValueError: for settings that no training could have.
    """
    from transformer.training.precision import made_for_bf16

    given = {name: value for name, value in settings.items() if value is not None}
    vocab_size = given.pop("vocab_size", preset.vocab_size)
    sizes = {name: given.pop(name) for name in SIZES if name in given}
    if layers := sizes.pop("layers", None):
        sizes |= dict.fromkeys(stacks, layers)
    bf16 = made_for_bf16(device) if precision == "auto" else precision == "bf16"
    training = dataclasses.replace(preset.training, **given, bf16=bf16)
    return preset._replace(
        vocab_size=vocab_size, sizes=preset.sizes | sizes, training=training
    )
