"""The models that commands work with: loaded, on a device, and of the right kind."""

from collections.abc import Iterable
from pathlib import Path

from transformer.beyond.text_generator import TextGenerator
from transformer.cli.console import print_error, printable
from transformer.cli.options import PROGRAM
from transformer.cli.resources import find_device
from transformer.decoding.translator import Translator
from transformer.text.subwords import SubwordTokenizer
from transformer.text.words import Tokenizer, UnknownWordError
from transformer.training.run_folder import load_run

__all__ = [
    "explain_error",
    "load_generator",
    "load_translator",
    "refuse_language_model",
    "report_unknown_characters",
]


def load_translator(
    weights: Path | None, device: str = "cpu", average: int = 0
) -> Translator:
    """The translator in a file or a run's folder, or the one that ships.

    Raises:
        ValueError: for what `Translator.load` refuses, and for a language model.
    """
    found = find_device(device)
    if weights is None:
        translator = Translator.phrasebook()
    else:
        try:
            translator = load_run(weights, average)
        except ValueError:
            refuse_language_model(weights)
            raise
    translator.model.to(found)
    return translator


def load_generator(weights: Path, device: str = "cpu") -> TextGenerator:
    """The language model in a file or a run's folder.

    Raises:
        ValueError: for what `TextGenerator.load` refuses, and for a translator.
    """
    found = find_device(device)
    try:
        generator = TextGenerator.load(weights)
    except ValueError:
        if _is_readable(Translator, weights):
            raise ValueError(
                f'{weights} is a translator: "{PROGRAM} translate" translates with it'
            ) from None
        raise
    generator.model.to(found)
    return generator


def refuse_language_model(weights: Path) -> None:
    """Say what a language model is for, where a translator is needed.

    Raises:
        ValueError: for the file or the run of a language model.
    """
    if _is_readable(TextGenerator, weights):
        raise ValueError(
            f"{weights} is a language model: "
            f'"{PROGRAM} generate" continues a text with it'
        ) from None


def _is_readable(kind: type[Translator | TextGenerator], weights: Path) -> bool:
    try:
        kind.load(weights)
    except ValueError:
        return False
    return True


def explain_error(error: Exception, weights: Path | None = None) -> str:
    """What went wrong; for an unknown word, also the command that lists the words."""
    if isinstance(error, UnknownWordError):
        more = f" --weights {weights}" if weights else ""
        return f'{error}; "{PROGRAM} words{more}" lists them'
    return str(error)


def report_unknown_characters(tokenizer: Tokenizer, sentences: Iterable[str]) -> None:
    """Name on standard error the characters that no training sentence had.

    The model reads each of them as the same unknown subword.
    """
    if not isinstance(tokenizer, SubwordTokenizer):
        return
    found = [tokenizer.unknown_characters(sentence) for sentence in sentences]
    characters = list(dict.fromkeys(character for each in found for character in each))
    if characters:
        count = sum(map(bool, found))
        names = ", ".join(characters[:5]) + ", …" * (len(characters) > 5)
        where = "1 sentence has" if count == 1 else f"{count:,} sentences have"
        print_error(
            printable(
                f"{PROGRAM}: {where} characters that no training sentence had: {names}"
            )
        )
