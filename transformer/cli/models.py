"""The models that commands work with: loaded, on a device, and of the right kind."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from transformer.beyond.text_generator import TextGenerator
from transformer.checks import optional_import
from transformer.cli.console import print_error
from transformer.cli.options import PROGRAM
from transformer.cli.resources import find_device
from transformer.decoding.translator import Translator
from transformer.pretrained.generator import PretrainedGenerator
from transformer.text.multi30k import undo_moses_style
from transformer.text.words import UnknownWordError
from transformer.training.run_folder import load_run


def load_model(
    weights: Path, device: str = "cpu", average: int = 0, first: type = Translator
) -> Translator | TextGenerator:
    """The translator or the language model in a file or a run's folder.

    Raises:
        ValueError: what the loader of the `first` kind says of a file that is neither.
    """
    found = find_device(device)
    loaders: list[Callable[[], Translator | TextGenerator]] = [
        lambda: load_run(weights, average),
        lambda: TextGenerator.load(weights),
    ]
    if first is TextGenerator:
        loaders.reverse()
    try:
        model = loaders[0]()
    except (ValueError, TypeError, OSError) as error:
        try:
            model = loaders[1]()
        except (ValueError, TypeError, OSError):
            raise error from None
    model.model.to(found)
    return model


def load_translator(weights: Path | None, device: str = "cpu") -> Translator:
    """The translator in a file or a run's folder, or the one that ships.

    Raises:
        ValueError: for what `Translator.load` refuses, and for a language model.
    """
    if weights is None:
        translator = Translator.phrasebook()
        translator.model.to(find_device(device))
        return translator
    model = load_model(weights, device)
    if isinstance(model, Translator):
        return model
    raise ValueError(
        f'{weights} is a language model: "{PROGRAM} generate" continues a text with it'
    )


def load_generator(
    weights: Path, device: str = "cpu"
) -> TextGenerator | PretrainedGenerator:
    """The language model in a file or a run's folder, or one of another library.

    Raises:
        ValueError: for what `TextGenerator.load` refuses, and for a translator.
    """
    if PretrainedGenerator.reads(weights):
        pretrained = PretrainedGenerator.load(weights)
        pretrained.model.to(find_device(device))
        return pretrained
    model = load_model(weights, device, first=TextGenerator)
    if isinstance(model, TextGenerator):
        return model
    raise ValueError(
        f'{weights} is a translator: "{PROGRAM} translate" translates with it'
    )


def text_writer(translator: Translator) -> Callable[[str], str]:
    """What makes a translation readable: it undoes the style of tokenised text.

    Raises:
        ImportError: where that needs sacremoses, which is not installed.
    """
    if getattr(translator.target_tokenizer, "text", "raw") != "tok":
        return str
    optional_import("sacremoses")  # better now than after an hour of translating
    return partial(undo_moses_style, language=translator.languages[1])


def explain_error(error: Exception, weights: Path | None = None) -> str:
    """What went wrong; for an unknown word, also the command that lists the words."""
    if isinstance(error, UnknownWordError):
        more = f" --weights {weights}" if weights else ""
        return f'{error}; "{PROGRAM} words{more}" lists them'
    return str(error)


def report_cut(count: int) -> None:
    """Say on standard error how many translations were cut before their end."""
    if count:
        were = "translation was" if count == 1 else "translations were"
        print_error(
            f"{PROGRAM}: {count:,} {were} cut: --max-length lets them become longer"
        )


def report_unknown(found: Iterable[Sequence[str]]) -> None:
    """Name on standard error the unknown characters of some sentences.

    No training sentence had them: the model reads each as the same unknown subword.
    """
    found = list(filter(None, found))
    characters = list(dict.fromkeys(character for each in found for character in each))
    if characters:
        names = ", ".join(characters[:5]) + ", …" * (len(characters) > 5)
        have = "1 sentence has" if len(found) == 1 else f"{len(found):,} sentences have"
        message = f"{have} characters that no training sentence had: {names}"
        print_error(f"{PROGRAM}: {message}")
