"""Options: how values are read, and the tables that the settings of a run come from.

By hand, as the whole command line is.
"""

import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any

import typer
import typer.core

__all__ = [
    "Command",
    "whole",
    "real",
    "one_of",
    "COUNT",
    "SEED",
    "BEAM",
    "PENALTY",
    "DEVICE",
    "PRECISION",
    "PRESET",
    "SPLIT",
    "TEXT",
    "TASK",
    "SIZES",
    "CHOICES",
    "with_settings",
]


class Command(typer.core.TyperCommand):
    """A command whose help shows options that belong together under one heading."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, each under the heading it was given."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            name, text = parameter.get_help_record(ctx) or ("", "")
            heading = getattr(parameter, "rich_help_panel", None) or "Options"
            if parameter.param_type_name == "argument":
                heading, name = "Arguments", parameter.metavar or name
            sections.setdefault(heading, []).append((name, text))
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def whole(least: int, most: int = 2**63 - 1) -> Callable[[str | int], int]:
    """A reader of options: a whole number of at least `least` and at most `most`."""

    def read(text: str | int) -> int:
        text = str(text)  # a default is a number already
        # Nobody means a number of more digits than the largest one has.
        if not text.isdecimal() or len(text) > 19 or not least <= int(text) <= most:
            limits = f"at least {least}" + (f", at most {most}" * (most < 2**63 - 1))
            raise typer.BadParameter(
                f"expected a whole number of {limits}, got {text!r}"
            )
        return int(text)

    return read


TINY = math.ulp(0.0)  # the least number above 0


def real(least: float, most: float = math.inf) -> Callable[[str | float], float]:
    """A reader of options: a finite number of at least `least` and at most `most`.

    Where `least` is tiny, "above 0" is what it means.
    """

    def read(text: str | float) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not least <= number <= most or math.isinf(number):
            lowest = f"of at least {least:g}" if least != TINY else "above 0"
            limits = lowest + f", at most {most:g}" * (most < math.inf)
            raise typer.BadParameter(f"expected a number {limits}, got {text!r}")
        return number

    return read


def one_of(*choices: str) -> Any:
    """An option that takes one of a few words."""

    def read(text: str) -> str:
        if text not in choices:
            few = ", ".join(choices)
            raise typer.BadParameter(f"expected one of {few}, got {text!r}")
        return text

    return {"parser": read, "metavar": "|".join(choices)}


COUNT: Any = {"parser": whole(1), "metavar": "N"}
NUMBER: Any = {"parser": real(0.0), "metavar": "X"}
SEED: Any = {"parser": whole(0), "metavar": "N"}
BEAM: Any = {"parser": whole(1, 1000), "metavar": "N"}
PENALTY: Any = {"parser": real(0.0, 100.0), "metavar": "X"}
DEVICE: Any = one_of("auto", "cpu", "cuda")
PRECISION: Any = one_of("auto", "float32", "bf16")
PRESET: Any = one_of("tiny", "small", "base", "toy")
SPLIT: Any = one_of("val", "test")
TEXT: Any = one_of("tok", "raw")
TASK: Any = one_of("translation", "lm")
MODEL, TRAINING = "Model (default: the preset's)", "Training (default: the preset's)"
SIZES: dict[str, tuple[type, Any, str]] = {
    "vocab_size": (int, COUNT, "how many subwords, special symbols included"),
    "layers": (int, COUNT, "layers of the encoder, and of the decoder if there is one"),
    "d_model": (int, COUNT, "numbers in each token's vector"),
    "num_heads": (int, COUNT, "heads of each attention"),
    "d_ff": (int, COUNT, "width inside the feed-forward networks"),
    "dropout": (float, NUMBER, "probability of leaving a number out"),
    "norm_first": (bool, {}, "normalise before each sublayer instead of after it"),
    "max_length": (int, COUNT, "longest sentence, or window of a text, in subwords"),
}
CHOICES: dict[str, tuple[type, Any, str]] = {
    "epochs": (int, COUNT, "passes over the training set, at most"),
    "batch_tokens": (
        int,
        COUNT,
        "tokens (sentences × longest) a step, all processes together",
    ),
    "micro_batch_tokens": (
        int,
        COUNT,
        "tokens that one process takes at once; less needs less memory",
    ),
    "schedule": (
        str,
        one_of("inverse-sqrt", "cosine"),
        "how the learning rate falls after the warm-up",
    ),
    "learning_rate": (float, NUMBER, "highest learning rate"),
    "warmup_steps": (int, COUNT, "steps until it is reached"),
    "label_smoothing": (float, NUMBER, "share of the target spread over all subwords"),
    "max_grad_norm": (float, NUMBER, "norm to which longer gradients are clipped"),
    "ema_decay": (float, NUMBER, "decay of the weights' moving average, per step"),
    "patience": (int, COUNT, "epochs without a lower validation loss before the end"),
    "seed": (int, SEED, "fixes the first weights, the order and the dropout"),
}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes `**settings` an option for each of them."""
    signature = inspect.signature(command)
    parameters = list(signature.parameters.values())[:-1]
    for panel, table in ((MODEL, SIZES), (TRAINING, CHOICES)):
        for name, (kind, reader, text) in table.items():
            option = typer.Option(help=text, rich_help_panel=panel, **reader)
            keyword = inspect.Parameter.KEYWORD_ONLY
            annotation: Any = Annotated[kind | None, option]
            parameters.append(
                inspect.Parameter(name, keyword, default=None, annotation=annotation)
            )
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command
