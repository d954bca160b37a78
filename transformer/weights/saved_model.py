"""A model and its config in one file: checked when it is saved and when it is loaded.

Made from book/workshop/checkpoints.md: edit the chapter, not this file.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from transformer.checks import InvalidType, InvalidValue, with_article
from transformer.weights.classes import (
    as_built,
    foreign_parts,
    registered_class,
    registered_classes,
)
from transformer.weights.files import model_file, read_tensors, write_tensors
from transformer.weights.state import (
    require_floats,
    require_same_weights,
    shapes_only,
    tie_parameters,
    tied_names,
)

__all__ = [
    "SavedModel",
    "config_ties",
]


_Model = TypeVar("_Model", bound="SavedModel")
_OWN = ("class", "config", "parts")  # what a file says about the model


class SavedModel(nn.Module):
    """A model made from its config alone, which one safetensors file can hold."""

    config: Any
    config_class: ClassVar[type]

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_post_hook(_tie_again)  # type: ignore[no-untyped-call]

    def tie_weights(self) -> None:
        """Make one weight of those that the config wants shared; here there are none.

        `load_state_dict` calls this at its end.
        """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # PyTorch gives new memory to one parameter at a time, in `to_empty` for one.
        tied = tied_names(self)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, first in tied.items():
            tie_parameters(self, first, name)
        return self

    def save(
        self,
        path: str | os.PathLike[str],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Write config and weights to one safetensors file, whole or not at all.

        `metadata` goes with them, such as a tokenizer as JSON. The same weights and
        metadata always give the same bytes. A weight with two names is written once.
        Code is not written, only the places and names of foreign parts: see
        `foreign_parts`.

        Raises:
            ValueError: for a `path` that is a folder, for a key of `metadata` that is
                reserved, and for what `weights_to_save` refuses.
            TypeError: for metadata that is not text.
        """
        if Path(path).is_dir():  # "" too, which stands for the folder one is in
            folder = os.fspath(path)
            raise InvalidValue(f"a model is saved to a file, got the folder {folder!r}")
        for key in _OWN:
            if metadata and key in metadata:
                raise InvalidValue(
                    f"metadata may not have the key {key!r}, it is reserved"
                )
        weights = self.weights_to_save()
        own = {
            "class": _known(type(self)).__name__,
            "config": json.dumps(dataclasses.asdict(self.config)),
            "parts": json.dumps(foreign_parts(self)),
        }
        write_tensors(Path(path), weights, {**(metadata or {}), **own})

    def weights_to_save(self) -> dict[str, Tensor]:
        """The weights as a file holds them: each once, if it has several names.

        Raises:
            ValueError: naming a tensor that `load` would refuse: one that is not
                finite, that is no longer tied as the config says, or, in a model
                without foreign parts, whose name or shape is not the config's.
        """
        kind = _known(type(self))
        try:
            kind.config_class(**dataclasses.asdict(self.config))
        except TypeError as error:
            what = type(self.config).__name__
            raise InvalidValue(
                f"{with_article(kind.__name__)} has no {what}: {error}"
            ) from None
        weights = {  # a layer that torch.compile wrapped has longer names
            name.replace("._orig_mod.", "."): tensor
            for name, tensor in self.state_dict().items()
        }
        require_floats(weights)
        ties = config_ties(self, weights)
        for name, first in ties.items():
            if not weights.pop(name).equal(weights[first]):
                said = f"{name} differs from {first}, which its config ties"
                raise InvalidValue(said)
        if not foreign_parts(self):
            expected = as_built(kind, self.config).state_dict()
            try:
                require_same_weights(
                    {name: x for name, x in expected.items() if name not in ties},
                    weights,
                )
            except ValueError as error:
                what = "the model is not what its config says"
                raise InvalidValue(f"{what}: {error}") from None
        return weights

    @classmethod
    def load(
        cls: type[_Model], path: str | os.PathLike[str], into: _Model | None = None
    ) -> _Model:
        """Read a model that `save` of the same class wrote, in evaluation mode.

        From a file, or the folder of a run. The model has the dtypes of the file. A
        model with foreign parts is loaded `into` one that has the same: it is filled,
        where it is and in its own dtypes, and returned.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: for a file that is damaged or not of this package, for the
                weights of another model, and for foreign parts that the model lacks.
            TypeError: if `into` is of another class.
        """
        return cls.load_with_metadata(path, into=into)[0]

    @classmethod
    def load_with_metadata(
        cls: type[_Model],
        path: str | os.PathLike[str],
        *others: type[_Model],
        into: _Model | None = None,
    ) -> tuple[_Model, dict[str, str]]:
        """As `load`, with the metadata that `save` was given.

        The file may also hold a model of one of the `others`. Everything about it is
        checked before a model is changed or handed out.
        """
        path = model_file(path)
        tensors, metadata = read_tensors(path)
        name, config, parts = (metadata.pop(key, "") for key in _OWN)
        kinds = [kind for kind in (cls, *others) if _known(kind).__name__ == name]
        if not kinds:
            shown = name if name.isidentifier() else "of no class"
            known = registered_classes().get(name)
            advice = f": {known.__module__}.{name}.load reads it" if known else ""
            raise InvalidValue(
                f"{path} holds the model {shown:.80}, no {cls.__name__}{advice}"
            )
        if into is not None and _known(type(into)).__name__ != name:
            kind = with_article(type(into).__name__)
            raise InvalidType(f"{path} can be loaded into a {name}, got {kind}")
        what = ""
        try:
            require_floats(tensors)
            what = f" has a config that no {kinds[0].__name__} has"
            model = _made(kinds[0], json.loads(config), len(tensors), into)
            what = "'s model has no list of foreign parts"
            expected = _names(json.loads(parts))
            what = ""
            _require_parts(expected, foreign_parts(model))
            what = " does not match its config"
            _fill(model, tensors)
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0][:600]
            raise InvalidValue(f"{path}{what}: {reason}") from None
        return model, metadata


def _tie_again(model: SavedModel, _: object) -> None:
    model.tie_weights()


def _known(kind: type) -> Any:
    """The package's class that a file names; a class of one's own is its own."""
    return registered_class(kind) or kind


def config_ties(model: SavedModel, names: Mapping[str, Any]) -> dict[str, str]:
    """The further names of weights that the config ties, of those that are here."""
    tied = tied_names(as_built(_known(type(model)), model.config))
    return {name: one for name, one in tied.items() if name in names and one in names}


def _made(
    kind: Any, fields: dict[str, Any], tensors: int, into: SavedModel | None
) -> Any:
    """The model of a config, on the meta device, or the one to load into."""
    config = kind.config_class(**fields)
    fields = dataclasses.asdict(config)
    if into is not None:
        theirs = dataclasses.asdict(into.config)
        for name, value in fields.items():
            if theirs.get(name) != value:
                here = f"{name} is {theirs.get(name)!r} in the model"
                raise InvalidValue(f"{here} and {value!r} in the file")
        return into
    # Every layer has its tensors: a claim of millions is refused before they are made.
    layers = sum(n for name, n in fields.items() if name.endswith("_layers"))
    if 8 * layers > tensors:
        raise InvalidValue(f"more layers than {tensors} tensors can fill, got {layers}")
    with shapes_only():
        return kind(config)


def _names(parts: Any) -> dict[str, str]:
    """The places and names of a file's foreign parts, if they are that."""
    if not isinstance(parts, dict):
        raise InvalidValue(f"got {parts!r:.60}")
    for place, name in parts.items():
        if not isinstance(name, str) or not (place + name).isprintable():
            raise InvalidValue(f"got {place!r:.60}: {name!r:.60}")
    return parts


def _require_parts(file: Mapping[str, str], model: Mapping[str, str]) -> None:
    """Refuse a model whose foreign parts are not those that the file names."""
    for place in {**file, **model}:
        theirs, ours = file.get(place), model.get(place)
        if theirs is not None and ours is not None and _same_class(theirs, ours):
            continue
        where, own = place[:100] or "the model", "the package's own"
        if theirs is None:
            raise InvalidValue(f"{where} is {ours} in the model, the file has {own}")
        raise InvalidValue(
            f"{where} is {theirs:.200} in the file and {ours or own} in the model: "
            "build a model that has it, and load the file with into=model"
        )


def _same_class(one: str, other: str) -> bool:
    """Whether two names are of one class; a script that is run is `__main__`."""
    names = sorted((one, other), key=lambda name: not name.startswith("__main__."))
    script = names[0].removeprefix("__main__")
    return one == other or (script != names[0] and names[1].endswith(script))


def _fill(model: SavedModel, tensors: Mapping[str, Tensor]) -> None:
    own = model.state_dict()
    ties = config_ties(model, own)
    require_same_weights({n: x for n, x in own.items() if n not in ties}, tensors)
    empty = any(tensor.is_meta for tensor in own.values())
    shared = {name: tensors[first] for name, first in ties.items()}
    model.load_state_dict({**tensors, **shared}, assign=empty)
    model.eval()
