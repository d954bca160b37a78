"""Config and weights of a model of the library transformers, read and compared.

Made from book/17-language-model.md: edit the chapter, not this file.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from transformer.checks import with_article

__all__ = [
    "read_config",
    "setting",
    "require_setting",
    "layer_count",
    "end_id",
    "require_tensors",
]


def read_config(config: object, *model_types: str) -> dict[str, Any]:
    """The settings of a model of the library transformers, by the library's names.

    `config` is the library's own object (or any other with a `to_dict()`), a dictionary
    of settings, or the path of a config.json or of the folder that holds it.

    Raises:
        FileNotFoundError: for a path without a config.json.
        TypeError: for something that is no config.
        ValueError: for a file that is not a JSON object, or a `model_type` that is none
            of these.
    """
    settings = config
    if isinstance(config, str | os.PathLike):
        settings = _read_json(Path(config))
    elif hasattr(config, "to_dict"):
        settings = config.to_dict()
    if not isinstance(settings, Mapping):
        raise TypeError(
            "a config of the library transformers is needed: its object, a dictionary "
            f"or the path of a config.json, got {with_article(type(config).__name__)}"
        )
    found = settings.get("model_type")
    if found not in model_types:
        expected = " or ".join(map(repr, model_types))
        raise ValueError(f"model_type is {found!r}, expected {expected}")
    return dict(settings)


def _read_json(path: Path) -> Any:
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise FileNotFoundError(f"there is no config.json at {path}")
    try:
        settings = json.loads(path.read_bytes())
    except ValueError:  # not JSON, or not even text
        settings = None
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is not a JSON object")
    return settings


def setting(settings: Mapping[str, Any], name: str) -> Any:
    """A setting that every config of the model has.

    Raises:
        ValueError: naming it, if it is not there.
    """
    if settings.get(name) is None:
        raise ValueError(f"the config has no {name}")
    return settings[name]


def require_setting(settings: Mapping[str, Any], name: str, *known: object) -> None:
    """Refuse a setting that our class could not follow.

    The first of the `known` values is what the library takes when the config does not
    say.

    Raises:
        ValueError: naming the setting, its value and the first of the known ones.
    """
    found = settings.get(name, known[0])
    if found not in known:
        raise ValueError(f"{name} is {found!r}, expected {known[0]!r}")


def layer_count(
    settings: Mapping[str, Any], name: str, state: Mapping[str, Tensor]
) -> Any:
    """How many layers the config says there are.

    Raises:
        ValueError: for more layers than there are tensors. A model of so many would
            take long to make, only to find its weights missing.
    """
    layers = setting(settings, name)
    if isinstance(layers, int) and layers > len(state):
        raise ValueError(
            f"the config says {layers} layers, but there are {len(state)} tensors"
        )
    return layers


def end_id(settings: Mapping[str, Any], vocab_size: int) -> int | None:
    """The id that ends a text, or None if no id does.

    Some configs give an id beyond the vocabulary, which the model can never write.

    Raises:
        ValueError: for several ids, of which our searches know one alone.
    """
    found = settings.get("eos_token_id")
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    if isinstance(found, list | tuple):
        raise ValueError(f"eos_token_id is {found!r}, expected one id")
    if isinstance(found, int) and found >= vocab_size:
        return None
    return found


def require_tensors(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Refuse weights whose names, shapes or dtypes are not those of a model.

    The `expected` tensors are those of the model, which may be on the meta device,
    under the same names as the weights. Their dtypes do not count, but the weights must
    have one dtype, or no layer could multiply them.

    Raises:
        TypeError: naming the first weight that is no tensor.
        ValueError: naming the first weight at fault.
    """
    for name, weight in state.items():
        if not isinstance(weight, Tensor):
            raise TypeError(f"{name} is {with_article(type(weight).__name__)}")
    for name, shown in expected.items():
        if name not in state:
            raise ValueError(f"{name} is missing")
        if state[name].shape != shown.shape:
            raise ValueError(
                f"{name} has the shape {tuple(state[name].shape)}, the config says "
                f"{tuple(shown.shape)}"
            )
    for name in state:
        if name not in expected:
            raise ValueError(f"{name} is unknown: the model has no such weight")
    dtype = next(iter(state.values())).dtype
    for name, weight in state.items():
        if weight.dtype != dtype:
            raise ValueError(
                f"{name} is {weight.dtype} beside {dtype}, expected one dtype"
            )
