"""A model and its config in one file: saved whole, checked when it is loaded.

Made from book/workshop/checkpoints.md: edit the chapter, not this file.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import nn

from transformer.checks import with_article
from transformer.weights.files import model_file, read_checkpoint, write_checkpoint
from transformer.weights.state import loadable, require_floats, restored, shapes_only

__all__ = [
    "SavedModel",
]


_Model = TypeVar("_Model", bound="SavedModel")
_UNNAMED = "Transformer"  # the class of a model whose file names none


class SavedModel(nn.Module):
    """A model made from its config alone, which one safetensors file can hold.

    `config_class` is the config's class; `stacks` has, for each stack of layers, the
    field of the config that counts them. A file names the model's class, or the one
    called `saved_as`: its subclasses, whose code no file holds, are saved as it is.
    """

    config: Any
    config_class: ClassVar[type]
    stacks: ClassVar[Mapping[str, str]]
    saved_as: ClassVar[str] = ""

    def save(
        self,
        path: str | os.PathLike[str],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Write config and weights to one safetensors file, whole or not at all.

        `metadata` goes with them, such as a tokenizer as JSON. The same weights and
        metadata always give the same bytes. A weight with two names is written once.
        Code is not written: a part exchanged for one with the same weights, such as
        another activation, is loaded as the plain one.

        Raises:
            ValueError: naming a key of `metadata` that is reserved or has no text, or
                a tensor that `load` would refuse: one that is not finite, or whose name
                or shape is not the config's, or that is no longer tied as it says; for
                a `path` that names no file.
        """
        if Path(path).is_dir():  # "" too, which stands for the folder one is in
            folder = os.fspath(path)
            raise ValueError(f"a model is saved to a file, got the folder {folder!r}")
        own = {"config": json.dumps(dataclasses.asdict(self.config))}
        for key in ("config", "kind"):
            if metadata and key in metadata:
                raise ValueError(
                    f"metadata may not have the key {key!r}, it is reserved"
                )
        kind = self._as_saved()
        if kind.__name__ != _UNNAMED:
            own["kind"] = kind.__name__
        try:
            kind.config_class(**dataclasses.asdict(self.config))
        except TypeError as error:
            what = type(self.config).__name__
            whole = with_article(kind.__name__)
            raise ValueError(f"{whole} has no {what}: {error}") from None
        one_layer, layers = kind._one_layer(self.config), kind._layers(self.config)
        tensors = loadable(self.state_dict(), one_layer, **layers)
        write_checkpoint(Path(path), tensors, {**(metadata or {}), **own})

    @classmethod
    def load(cls: type[_Model], path: str | os.PathLike[str]) -> _Model:
        """Read a model that `save` of the same class wrote, in evaluation mode.

        From a file, or the folder of a run. A subclass of the Transformer is saved as
        one: `Transformer.load` reads it, and the subclass's `load` makes one of those.

        Raises:
            ValueError: for a file that is missing, damaged, not ours or too new, or
                the weights of another model.
        """
        return cls.load_with_metadata(path)[0]

    @classmethod
    def load_with_metadata(
        cls: type[_Model], path: str | os.PathLike[str], *others: type[_Model]
    ) -> tuple[_Model, dict[str, str]]:
        """As `load`, with the metadata that `save` was given; the file is read once.

        It may hold a model of one of the `others`, too. Everything about the file is
        checked before a model is handed out. It has the dtypes of the file.
        """
        path = model_file(path)
        tensors, metadata = read_checkpoint(path)
        kind = metadata.pop("kind", _UNNAMED)
        named = [
            one
            for one in (cls, *others)
            if kind in (one.__name__, one._as_saved().__name__)
        ]
        if not named:
            other = kind.encode("unicode_escape").decode()[:80]
            raise ValueError(f"{path} holds the model {other}, no {cls.__name__}")
        cls = named[0]
        what = ""
        try:
            require_floats(tensors)
            what = f" has a config that no {cls.__name__} has"
            config = cls.config_class(**json.loads(metadata.pop("config", "")))
            layers = cls._layers(config)
            if sum(layers.values()) > len(tensors):
                raise ValueError(f"more layers than the {len(tensors)} tensors here")
            one_layer = cls._one_layer(config)
            what = " does not match its config"
            model = restored(lambda: cls(config), tensors, one_layer, **layers)
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0][:300]
            raise ValueError(f"{path}{what}: {reason}") from None
        return model, metadata

    @classmethod
    def _as_saved(cls) -> Any:
        """The class that a file of this one names."""
        known = (kind for kind in cls.__mro__ if kind.__name__ == cls.saved_as)
        return next(known, cls)

    @classmethod
    def _layers(cls, config: Any) -> dict[str, int]:
        return {stack: getattr(config, count) for stack, count in cls.stacks.items()}

    @classmethod
    def _one_layer(cls: type[_Model], config: Any) -> _Model:
        """A model of this config but with one layer a stack, on the meta device."""
        ones = dict.fromkeys(cls.stacks.values(), 1)
        with shapes_only():
            return cls(dataclasses.replace(config, **ones))
