"""Other people's files: their definitions, and a guess of how to build and call.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

import __future__

import ast
import contextlib
import dataclasses
import importlib
import inspect
import json
import re
import symtable
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from torch import nn

from transformer.doctor.examine import examine
from transformer.doctor.findings import Report
from transformer.doctor.subject import Refused, Sizes, one_line
from transformer.doctor.xray import warm_up

__all__ = ["load", "Guess", "guess", "adapter_text", "examine_file"]


_IMPORTS = (ast.Import, ast.ImportFrom)


_DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)


_HARMLESS = re.compile(
    r"(torch\.(device|tensor|cuda\.is_available|backends\.mps\.is_available|float\w*)"
    r"|math\.\w+|len|int|float|min|max|range|list|dict|tuple|set|sorted|TypeVar"
    r"|namedtuple|collections\.namedtuple|logging\.getLogger|Path)$"
)


def _is_constant(node: ast.stmt) -> bool:
    """Whether an assignment computes nothing but numbers, names and devices."""
    value = getattr(node, "value", None)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
        return False
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
    return all(_HARMLESS.match(ast.unparse(call.func)) for call in calls)


def _kept(node: ast.stmt) -> bool:
    """Whether a statement at top level is loaded: definitions, imports, constants."""
    if isinstance(node, ast.Try | ast.If):
        inner = node.body + [s for h in getattr(node, "handlers", []) for s in h.body]
        return all(
            isinstance(s, (*_IMPORTS, ast.Pass)) or _is_constant(s) for s in inner
        )
    return isinstance(node, (*_IMPORTS, *_DEFINITIONS)) or _is_constant(node)


class _Stub(type):
    """A class whose attributes, as far as it has none, are the class itself."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


def _missing(reason: str) -> type:
    """What stands in for a module that is not installed: an error once it is used."""

    class Missing(nn.Module, metaclass=_Stub):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            if type(self) is Missing:
                raise ImportError(f"{reason}, and the model uses it")

    return Missing


def _define(source: str, file: str, space: dict[str, Any]) -> None:
    """Run a file's definitions in a space of names; a constant may fail."""
    body = ast.parse(source, file).body
    imported = [node.module for node in body if isinstance(node, ast.ImportFrom)]
    later = __future__.annotations.compiler_flag if "__future__" in imported else 0
    for node in filter(_kept, body):
        try:
            exec(compile(ast.Module([node], []), file, "exec", later), space)
        except Exception as error:
            if isinstance(node, _IMPORTS) and isinstance(error, ModuleNotFoundError):
                for alias in node.names:
                    name = (alias.asname or alias.name).split(".")[0]
                    space.setdefault(name, _missing(str(error)))
            elif isinstance(node, (*_IMPORTS, *_DEFINITIONS)):
                raise


@contextlib.contextmanager
def _imports_from(root: Path, module_name: str) -> Iterator[None]:
    """Imports find a student's own modules, even one that is called as this package."""
    # Scripts are run from a folder above, too.
    folders = [str(folder) for folder in (root, *root.parents[:2])]
    before, path, bytecode = dict(sys.modules), sys.path, sys.dont_write_bytecode
    sys.path, sys.dont_write_bytecode = [*folders, *path], True
    if theirs := PathFinder.find_spec("transformer", folders):
        for name in before:
            if name.split(".")[0] == "transformer":
                del sys.modules[name]
        if theirs.origin is None:  # a folder without __init__.py, which ours would hide
            sys.modules["transformer"] = module_from_spec(theirs)
    try:
        yield
    finally:
        sys.path, sys.dont_write_bytecode = path, bytecode
        for name in set(sys.modules) - set(before):
            file = getattr(sys.modules[name], "__file__", None) or folders[0]
            found = PathFinder.find_spec(name.split(".")[0], folders)
            if name == module_name or (found and file.startswith(tuple(folders))):
                del sys.modules[name]
        sys.modules.update(before)


def _source_of(file: Path) -> str:
    """The Python of a file; of a notebook, that of its code cells.

    Raises:
        Refused: for a file that is no Python and no notebook.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise Refused(f"{file} is not UTF-8 text") from None
    if file.suffix != ".ipynb":
        return text
    try:
        cells = json.loads(text)["cells"]
    except (ValueError, KeyError, TypeError):
        raise Refused(f"{file} is not a notebook") from None
    codes = ["".join(c["source"]) for c in cells if c.get("cell_type") == "code"]
    lines = "\n".join(codes).splitlines()
    return "\n".join("pass" if re.match(r"[%!]", x.lstrip()) else x for x in lines)


def _read_file(file: Path, module_name: str) -> dict[str, Any]:
    """The names that a file defines, under its own module's name."""
    module = types.ModuleType(module_name)
    module.__file__ = str(file)
    module.__package__ = module_name.rpartition(".")[0]
    if module.__package__:
        importlib.import_module(module.__package__)
    sys.modules[module_name] = module
    _define(_source_of(file), str(file), vars(module))
    return vars(module)


@contextlib.contextmanager
def load(target: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The names that a file or module defines, and the one that was asked for.

    While it is open, imports find the student's own modules; then all is put back.

    Raises:
        Refused: in one line, for what cannot be read or is not there.
    """
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise Refused(f"write FILE.py:Class or package.module:name, not {target!r}")
    file = Path(place)
    is_file = file.suffix in (".py", ".ipynb")
    if is_file and not file.is_file():
        raise Refused(f"there is no file {place}")
    root = file.resolve().parent if is_file else Path.cwd()
    module_name = file.stem if is_file else place
    while is_file and (root / "__init__.py").exists():
        module_name, root = f"{root.name}.{module_name}", root.parent
    warm_up()  # before torch could find the student's modules
    with _imports_from(root, module_name):
        try:
            if is_file:
                space = _read_file(file, module_name)
            else:
                space = vars(importlib.import_module(module_name))
        except SyntaxError as error:
            raise Refused(f"{place}, line {error.lineno}: {error.msg}") from None
        except Refused:
            raise
        except (Exception, SystemExit) as error:  # theirs
            raise Refused(f"{place}: {one_line(error)}") from None
        if name not in space:
            classes = [n for n, v in space.items() if inspect.isclass(v)]
            own = [n for n in classes if space[n].__module__ == module_name]
            raise Refused(
                f"{place} has no {name}; it has {', '.join(own) or 'no class'}"
            )
        yield space, name


# What an argument's name says; the first that fits counts.
_MEANINGS = [
    (r"pad", "pad_id"),
    (r"(max|seq|context|block|n_pos|max_pos|ctx).*(len|size|length|position|window)|"
     r"max_?len\w*|n_positions|n_ctx|seq_?length|maxlen|len_max_seq|n_position|"
     r"(src|tgt|trg|source|target)_?(seq_)?len\w*|max_tokens", "max_length"),
    (r"device", "device"),
    (r"drop|^p$|resid_p|attn_p|embd_p", "dropout"),
    (r"vocab|voc_|n_?tokens?$|num_tokens|_words$|n_?token|dict_size|"
     r"^(src|trg|tgt|source|target|input|output|enc|dec|encoder|decoder)_?(size|dim)$",
     "vocab_size"),
    (r"head_?(dim|size)|d_?head|^d_k$|^d_v$|dim_?head", "d_head"),
    (r"head|^h$", "num_heads"),
    (r"(n|num|enc\w*|dec\w*)_?(layers?|blocks?)|layers?$|^N$|^n$|depth|n_?stack|"
     r"blocks?$", "num_layers"),
    (r"expansion|ratio|mult", "ratio"),
    (r"ff|inner|pf_?dim|feed_?forward|mlp_?dim|intermediate|d_?hid$|ffn|ff_?dim|"
     r"hidden_?(dim|size|units)?_?ff|dim_feedforward|nhid|d_?hidden$", "d_ff"),
    (r"d_?model|emb|hidden|n_embd|^dim$|model_?dim|^d$|width|d_word_vec|ninp|features|"
     r"^size$|n_?state|hid_dim|^units$|d_embed", "d_model"),
    (r"bos|sos|start|cls", "one"),
    (r"eos|end|sep", "two"),
    (r"bias|norm_first|pre_norm|causal", "default"),
]  # fmt: skip
_CONFIGS = {"config", "cfg", "args", "conf", "hparams", "params", "opt", "hp"}
_SIZES = {field.name for field in dataclasses.fields(Sizes)} | {"max_length"}


def _meaning(name: str) -> str | None:
    """What an argument is, by its name; None: unknown."""
    for pattern, said in _MEANINGS:
        flags = 0 if name in ("N", "n", "h", "d", "p") else re.IGNORECASE
        if re.search(pattern, name, flags):
            return said
    return None


def _meant(sizes: dict[str, Any]) -> dict[str, Any]:
    """The value of each meaning, from the sizes that are asked for."""
    return sizes | {
        "pad_id": 0,
        "max_length": 128,
        "device": "cpu",
        "d_head": sizes["d_model"] // sizes["num_heads"],
        "ratio": sizes["d_ff"] // sizes["d_model"],
        "one": 1,
        "two": 2,
        "default": False,
    }


class _Loose:
    """A configuration that has whatever its reader asks for, as far as names tell."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        said = _meaning(name)
        if said not in self._values:
            raise AttributeError(f"config.{name} is not a name that says what it is")
        return self._values[said]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """A value by its name, as a dictionary gives it."""
        return getattr(self, name, default)


def _config_class(space: dict[str, Any], parameter: inspect.Parameter) -> Any:
    """The dataclass that a configuration is, if there is one to be found."""
    note = parameter.annotation
    note = space.get(note, note) if isinstance(note, str) else note
    if dataclasses.is_dataclass(note):
        return note
    classes = [
        v for v in space.values() if inspect.isclass(v) and dataclasses.is_dataclass(v)
    ]
    named = [c for c in classes if re.search("config|args", c.__name__, re.IGNORECASE)]
    return named[0] if len(named) == 1 else None


def _configured(config: Any, values: dict[str, Any]) -> Any:
    """A configuration with the sizes asked for."""
    if config is None:
        return _Loose(values)
    given = {}
    for field in dataclasses.fields(config):
        said = _meaning(field.name)
        flag = said == "default" or isinstance(field.default, bool | str)
        if field.init and said in values and not flag:
            given[field.name] = values[said]
    return config(**given)


@dataclasses.dataclass
class Guess:
    """How to build and call what was loaded; `unknown` arguments need an adapter."""

    build: Callable[..., Any]
    call: Callable[..., Any] | None
    kind: str
    pad_id: int | None
    unknown: list[str]
    known: dict[str, str]


def guess(space: dict[str, Any], name: str) -> Guess:
    """How to build and call a class, or a function that builds, by argument names."""
    maker = space[name]
    known: dict[str, str] = {}
    unknown: list[str] = []
    config: inspect.Parameter | None = None
    for parameter in inspect.signature(maker).parameters.values():
        said, default = _meaning(parameter.name), parameter.default
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name.lower() in _CONFIGS:
            config = parameter
        elif said is None and default is parameter.empty:
            unknown.append(parameter.name)
        elif said and said != "default" and not isinstance(default, bool | str | None):
            known[parameter.name] = said

    def build(**sizes: Any) -> Any:
        values = _meant(sizes)
        given = {one: values[said] for one, said in known.items()}
        if config is not None:
            given[config.name] = _configured(_config_class(space, config), values)
        elif not known:  # then constants of the file say how large the model is
            for one, old in space.items():
                if type(old) in (int, float) and (said := _meaning(one)) in _SIZES:
                    space[one] = values[said]
        return maker(**given)

    model = maker if inspect.isclass(maker) else None
    sequences, unsure = _inputs_of(model)
    kind = "encoder-decoder" if sequences == 2 else "language model"
    if sequences == 1 and re.search("encoder|bert|classif", name, re.IGNORECASE):
        kind = "encoder"
    call = _with_targets if sequences == 1 and _wants_targets(model) else None
    ids = (v for n, v in space.items() if _meaning(n) == "pad_id" and type(v) is int)
    pad_id = 0 if "pad_id" in known.values() else next(ids, None)
    return Guess(build, call, kind, pad_id, unknown + unsure, known)


def _inputs_of(model: Any) -> tuple[int, list[str]]:
    """How many sequences forward reads, and its arguments that no name explains."""
    if model is None or getattr(model, "forward", None) in (None, nn.Module.forward):
        return 2, ["forward"] if model is not None else []
    required = [
        p.name
        for p in list(inspect.signature(model.forward).parameters.values())[1:]
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    masks = [name for name in required if "mask" in name.lower()]
    rest = [name for name in required if name not in masks]
    return min(len(rest), 2) or 1, [f"forward's {name}" for name in masks + rest[2:]]


def _wants_targets(model: Any) -> bool:
    """Whether forward may be given targets: some models then give all the logits."""
    forward = getattr(model, "forward", None)
    names = inspect.signature(forward).parameters if forward else {}
    return any(names[n].default is None for n in ("targets", "labels") if n in names)


def _with_targets(model: Any, ids: Any) -> Any:
    """The call of such a model."""
    named = "targets" in inspect.signature(model.forward).parameters
    return model(ids, **{"targets" if named else "labels": ids})


def adapter_text(target: str, name: str, found: Guess | None) -> str:
    """An adapter to fill in: what is known, and dots for the rest."""
    known = found.known if found else {}
    unknown = [one for one in (found.unknown if found else []) if " " not in one]
    kind = found.kind if found else "encoder-decoder"
    values = {"pad_id": "0", "max_length": "128", "device": '"cpu"', "one": "1"}
    given = [f"{one}={values.get(said, said)}" for one, said in known.items()]
    given += [f"{one}=..." for one in unknown]
    inputs = "ids" if kind != "encoder-decoder" else "source, target"
    return f'''# mine.py: replace the dots; every name of the file is known here. Then
#   python -m transformer doctor {target} --adapter mine.py
def build(d_model, num_heads, num_layers, d_ff, dropout, vocab_size):
    return {name}({", ".join(given) or "..."})

def call(model, {inputs}):  # ids, (batch, length); make the masks that you make
    return model({inputs}, ...)

kind = "{kind}"
pad_id = 0  # None: there is no padding
'''


_ADAPTER = (
    *("build", "call", "model", "kind", "pad_id", "window"),
    *("loss", "greedy", "beam", "cached"),
)


def _read_adapter(file: Path, space: dict[str, Any]) -> dict[str, Any]:
    """What an adapter says; it knows all names of the student's file.

    Raises:
        Refused: in one line, for a file that cannot be read or run.
    """
    if not file.is_file():
        raise Refused(f"there is no adapter {file}")
    names = dict(space)
    try:
        text = file.read_text(encoding="utf-8")
        exec(compile(text, str(file), "exec"), names)
    except Exception as error:  # theirs
        raise Refused(f"{file}: {one_line(error)}") from None
    symbols = symtable.symtable(text, str(file), "exec").get_symbols()
    given = {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
    return {name: names[name] for name in _ADAPTER if name in given}


def examine_file(
    target: str,
    adapter: Path | None = None,
    kind: str | None = None,
    pad_id: int | None = None,
) -> tuple[Report, Guess | None]:
    """Examine `FILE.py:Class`, `FILE.ipynb:Class` or `package.module:name`.

    Without an adapter the arguments' names say what they are; what they do not say is
    in the guess that is returned beside the report.

    Raises:
        Refused: in one line, for a file, a class or an adapter that cannot be read.
        ValueError: for a kind that `examine` does not know.
    """
    with load(target) as (space, name):
        said = {} if adapter is None else _read_adapter(adapter, space)
        found: Guess | None = None
        if "build" not in said and "model" not in said:
            try:
                found = guess(space, name)
            except (TypeError, ValueError) as error:
                raise Refused(f"{name}: {error}") from None
            if found.unknown and "call" not in said:
                unknown = f"unknown: {', '.join(found.unknown)}; an adapter can say"
                return Report(name, untested={"all": unknown}), found
            guessed = {n: getattr(found, n) for n in ("build", "call", "kind")}
            said = {**guessed, "pad_id": found.pad_id, **said}
        asked = {"kind": kind, "pad_id": pad_id}
        said |= {n: value for n, value in asked.items() if value is not None}
        return examine(**said, name=name), found
