"""Other people's files: their definitions, and a guess of how to build and call.

Made from book/workshop/examination.md: edit the chapter, not this file.
"""

import ast
import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from transformer.doctor.subject import Refused
from transformer.doctor.xray import warm_up

__all__ = ["load", "Guess", "guess", "adapter_text", "read_adapter"]


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


def _definitions(source: str, file: str) -> Any:
    """The code of a file's definitions; a constant that fails is left out."""
    tree = ast.parse(source, file)
    body: list[ast.stmt] = []
    for node in tree.body:
        if not _kept(node):
            continue
        if _is_constant(node):
            guarded = ast.parse("try:\n    pass\nexcept Exception:\n    pass").body[0]
            assert isinstance(guarded, ast.Try)
            guarded.body = [node]
            body.append(ast.copy_location(guarded, node))
        else:
            body.append(node)
    tree.body = body
    return compile(ast.fix_missing_locations(tree), file, "exec")


def _stub(name: str) -> types.ModuleType:
    """A module in the place of one that is not installed: an error once it is used."""
    package = name.split(".")[0]

    class Missing(nn.Module):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()
            if type(self).__module__ == __name__:
                raise ImportError(f"{package} is not installed, and the model uses it")

    class Stub(types.ModuleType):
        def __getattr__(self, attribute: str) -> Any:
            if attribute.startswith("__"):
                raise AttributeError(attribute)
            return type(attribute, (Missing,), {"__module__": __name__})

    made = Stub(name)
    made.__path__ = []  # a package: its parts are stubs too
    return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a student's own modules, as definitions, and stubs what is missing.

    Only what the student's own files import is found or replaced.
    """

    def __init__(self, root: Path) -> None:
        self.roots = [root, *root.parents[:2]]  # scripts are run from a folder above
        self.wanted: set[str] = set()
        self.made: list[str] = []
        self.asking = False

    def read(self, file: Path) -> Any:
        """The code of a student's file, whose imports are then wanted."""
        source = _source_of(file)
        for node in ast.walk(ast.parse(source, str(file))):
            if isinstance(node, ast.Import):
                self.wanted |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                self.wanted.add(node.module.split(".")[0])
        return _definitions(source, str(file))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The student's file for a name; a stub where there is no module at all."""
        first = name.split(".")[0]
        own = first in self.wanted or first in self.made
        if self.asking or first == "torch" or not own:
            return None
        folders = [root.joinpath(*name.split(".")) for root in self.roots]
        for base in folders:
            for file in (base.with_suffix(".py"), base / "__init__.py"):
                if file.exists():
                    package = file.name == "__init__.py"
                    self.made.append(name)
                    return importlib.util.spec_from_file_location(
                        name,
                        file,
                        loader=_Own(name, str(file), self),
                        submodule_search_locations=[str(base)] if package else None,
                    )
        parent = sys.modules.get(name.rpartition(".")[0])
        stubbed = type(parent).__name__ == "Stub"
        if self._is_installed(name, parent) or (parent is not None and not stubbed):
            return None  # of a part of a package, Python says itself that it is missing
        self.made.append(name)
        if places := [str(base) for base in folders if base.is_dir()]:
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = places
            return spec
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _is_installed(self, name: str, parent: Any) -> bool:
        if name in sys.stdlib_module_names:
            return True
        self.asking = True
        try:
            found = importlib.util.find_spec(name) if parent is None else None
        except (ImportError, ValueError):
            found = None
        finally:
            self.asking = False
        return found is not None and found.origin is not None

    def create_module(self, spec: Any) -> types.ModuleType:
        """A stub."""
        return _stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """A stub has nothing to run."""


class _Own(importlib.machinery.SourceFileLoader):
    """Loads a student's module: its definitions alone."""

    def __init__(self, name: str, path: str, finder: _Finder) -> None:
        super().__init__(name, path)
        self.finder = finder

    def get_code(self, fullname: str) -> Any:
        """The code of the definitions; no cache is read or written."""
        return self.finder.read(Path(self.path))


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
    finder = _Finder(root)
    warm_up()  # before other imports are watched
    before = dict(sys.modules)
    if theirs := _called_as_ours(root, module_name):
        for one in theirs:
            del sys.modules[one]  # until the end
    sys.meta_path.insert(0, finder)
    try:
        try:
            if is_file:
                space = _read_file(file, module_name, finder)
            else:
                space = vars(importlib.import_module(module_name))
        except SyntaxError as error:
            raise Refused(f"{place}, line {error.lineno}: {error.msg}") from None
        except Refused:
            raise
        except Exception as error:  # theirs
            said = (str(error).splitlines() or [""])[0]
            raise Refused(f"{place}: {type(error).__name__}: {said}") from None
        if name not in space:
            classes = [n for n, v in space.items() if inspect.isclass(v)]
            own = [n for n in classes if space[n].__module__ == module_name]
            raise Refused(
                f"{place} has no {name}; it has {', '.join(own) or 'no class'}"
            )
        yield space, name
    finally:
        sys.meta_path.remove(finder)
        for made in {*finder.made, module_name} if is_file else finder.made:
            sys.modules.pop(made, None)
        for one in (*finder.made, module_name, *theirs):
            if one in before:
                sys.modules[one] = before[one]


def _called_as_ours(root: Path, module_name: str) -> list[str]:
    """This package's own modules, where the student's has the same name."""
    taken = module_name.split(".")[0] == "transformer"
    if not taken and not any(root.glob("transformer/*.py")):
        return []
    return [one for one in sys.modules if one.split(".")[0] == "transformer"]


def _read_file(file: Path, module_name: str, finder: _Finder) -> dict[str, Any]:
    """The names that a file defines, under its own module's name."""
    module = types.ModuleType(module_name)
    module.__file__ = str(file)
    module.__package__ = module_name.rpartition(".")[0]
    code = finder.read(file)
    if module.__package__:
        finder.wanted.add(module_name.split(".")[0])
        importlib.import_module(module.__package__)
    sys.modules[module_name] = module
    exec(code, vars(module))
    return vars(module)


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


def _meaning(name: str) -> str | None:
    """What an argument is, by its name; None: unknown."""
    for pattern, said in _MEANINGS:
        flags = 0 if name in ("N", "n", "h", "d", "p") else re.IGNORECASE
        if re.search(pattern, name, flags):
            return said
    return None


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
        try:
            return getattr(self, name)
        except AttributeError:
            return default


@dataclasses.dataclass
class Guess:
    """How to build and call what was loaded; `unknown` arguments need an adapter."""

    build: Callable[..., Any] | None
    call: Callable[..., Any] | None
    kind: str
    pad_id: int | None
    unknown: list[str]
    known: dict[str, str]
    inputs: list[str]


def guess(space: dict[str, Any], name: str) -> Guess:
    """How to build and call a class, or a function that builds, by argument names."""
    maker = space[name]
    known: dict[str, str] = {}
    unknown: list[str] = []
    config: Any = None
    config_name = None
    for parameter in inspect.signature(maker).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        if parameter.name.lower() in (
            "config",
            "cfg",
            "args",
            "conf",
            "hparams",
            "params",
            "opt",
            "hp",
        ):
            config_name, config = parameter.name, _config_class(space, parameter)
            continue
        said = _meaning(parameter.name)
        flag = isinstance(parameter.default, bool | str | type(None))
        if (
            said == "default"
            or (flag and not required)
            or (said is None and not required)
        ):
            continue
        if said is None:
            unknown.append(parameter.name)
        else:
            known[parameter.name] = said
    pad = "pad_id" in known.values()

    def build(**sizes: Any) -> Any:
        values = _meant(sizes)
        given = {one: values[said] for one, said in known.items()}
        if config_name is not None:
            given[config_name] = _configured(config, values)
        globals_ = {
            one: values[said]
            for one, old in space.items()
            if isinstance(old, int | float)
            and not isinstance(old, bool)
            and (said := _meaning(one)) in _SIZES
        }
        inner = space.get("__doctor_space__", space)
        inner.update(globals_ if not known and config_name is None else {})
        return maker(**given)

    model = maker if inspect.isclass(maker) else None
    inputs, unsure = _inputs_of(model)
    kind = "encoder-decoder" if len(inputs) == 2 else "language model"
    if re.search("encoder|bert|classif", name, re.IGNORECASE) and len(inputs) == 1:
        kind = "encoder"
    unknown += unsure
    constant = next(
        (v for n, v in space.items() if _meaning(n) == "pad_id" and type(v) is int),
        None,
    )
    pad_id = 0 if pad or (config_name is not None and constant is None) else constant
    pad_id = pad_id if pad or constant is not None else None
    call = _with_targets if _wants_targets(model) and len(inputs) == 1 else None
    return Guess(build, call, kind, pad_id, unknown, known, inputs)


def _wants_targets(model: Any) -> bool:
    """Whether forward may be given targets: some models then give all the logits."""
    forward = getattr(model, "forward", None)
    names = inspect.signature(forward).parameters if forward else {}
    return any(names[n].default is None for n in ("targets", "labels") if n in names)


def _with_targets(model: Any, ids: Any) -> Any:
    """The call of such a model."""
    named = "targets" in inspect.signature(model.forward).parameters
    return model(ids, **{"targets" if named else "labels": ids})


_SIZES = (
    "d_model",
    "num_heads",
    "num_layers",
    "d_ff",
    "dropout",
    "vocab_size",
    "max_length",
)


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
    fields = [f for f in dataclasses.fields(config) if f.init]
    given = {}
    for field in fields:
        said = _meaning(field.name)
        flag = isinstance(field.default, bool | str)
        if said in values and said != "default" and not flag:
            given[field.name] = values[said]
    return config(**given)


def _inputs_of(model: Any) -> tuple[list[str], list[str]]:
    """The sequences that forward reads, and the arguments that no name explains."""
    if model is None or getattr(model, "forward", None) in (None, nn.Module.forward):
        return ["source", "target"], ["forward"] if model is not None else []
    parameters = list(inspect.signature(model.forward).parameters.values())[1:]
    required = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    masks = [n for n in required if "mask" in n.lower()]
    rest = [n for n in required if n not in masks]
    unsure = masks + rest[2:]
    return rest[:2] or ["source"], [f"forward's {name}" for name in unsure]


def adapter_text(target: str, name: str, found: Guess | None) -> str:
    """An adapter to fill in: what is known, and dots for the rest."""
    known = found.known if found else {}
    kind = found.kind if found else "encoder-decoder"
    given = []
    for one, said in known.items():
        default = {"pad_id": "0", "max_length": "128", "device": '"cpu"', "one": "1"}
        given.append(f"{one}={default.get(said, said)}")
    given += [
        f"{one}=..." for one in (found.unknown if found else []) if " " not in one
    ]
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


def read_adapter(file: Path, space: dict[str, Any]) -> dict[str, Any]:
    """What an adapter says; it knows all names of the student's file.

    Raises:
        Refused: in one line, for a file that cannot be read or run.
    """
    if not file.is_file():
        raise Refused(f"there is no adapter {file}")
    names = dict(space)
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        exec(compile(tree, str(file), "exec"), names)
    except Exception as error:  # theirs
        said = (str(error).splitlines() or [""])[0]
        raise Refused(f"{file}: {type(error).__name__}: {said}") from None
    given = {name for node in tree.body for name in _names_of(node)}
    return {name: names[name] for name in _ADAPTER if name in given}


_ADAPTER = (
    *("build", "call", "model", "kind", "pad_id", "window"),
    *("loss", "schedule", "greedy", "beam", "cached"),
)


def _names_of(node: ast.stmt) -> list[str]:
    """The names that a statement at top level gives a meaning to."""
    if isinstance(node, _DEFINITIONS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    parts = [part for target in targets for part in ast.walk(target)]
    return [part.id for part in parts if isinstance(part, ast.Name)]
