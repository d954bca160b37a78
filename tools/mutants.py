"""Break the package in every small way and see whether a test notices.

    python tools/mutants.py run             every mutant, against the package's tests
    python tools/mutants.py run --sample 75 those that the commit draws, for 75 seconds
    python tools/mutants.py claims          every mutant, against its chapter's claims
    python tools/mutants.py report          benchmarks/results/mutants.{json,md}

The changes are mutmut's, and five of our own. mutmut itself leaves decorated functions
alone, and half of this package is decorated, so the mutants are made and run here. In a
copy of the tree a pytest that has collected every test waits; for each mutant it forks,
puts the changed functions in the place of the sound ones, and runs the tests that reach
the changed line, the quickest first, to the first that fails. What is changed outside
functions needs a fresh import, in a process that has only torch loaded.

What was found is kept in `.mutants/`, so that a long run can be stopped and taken up;
`report` adds it to benchmarks/results/mutants_tried.json, so that another machine need
not try it again. Which test runs which line is read from `.coverage`, which `make
units` writes. Limits are of processor time: a busy machine makes no mutant look slow.
"""

import argparse
import ast
import contextlib
import functools
import gc
import hashlib
import importlib
import inspect
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO, Any

import libcst as cst
from libcst.metadata import (
    MetadataWrapper,
    WhitespaceInclusivePositionProvider,
)

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".mutants"
RESULTS = ROOT / "benchmarks" / "results"
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
    "mutants"
]


# What is changed.


@dataclass(frozen=True)
class Mutant:
    """One small change to one module."""

    module: str
    name: str  # function or class, line before, line after, how many such before it
    line: int
    start: int
    end: int
    text: str
    operator: str
    code: str  # a digest of the statement of the module that is changed

    @property
    def function(self) -> str:
        """What it is in."""
        return f"{self.module}.{self.name.partition(': ')[0]}"

    @property
    def identity(self) -> str:
        """Short, and another one when the statement that it changes is another."""
        return digest(self.module, self.name, self.code)[:10]

    def apply(self, source: str) -> str:
        """The module, changed."""
        return source[: self.start] + self.text + source[self.end :]


Change = Iterable[cst.CSTNode]


def negate(test: cst.BaseExpression) -> Change:
    """`if a` becomes `if not (a)`; given the tests of if, while and comprehensions."""
    brackets = {
        "lpar": [cst.LeftParen(), *test.lpar],
        "rpar": [*test.rpar, cst.RightParen()],
    }
    yield cst.UnaryOperation(cst.Not(), test.with_changes(**brackets))


def drop_statement(node: cst.BaseSmallStatement) -> Change:
    """A call, an addition in place, a raise or a break becomes `pass`."""
    yield cst.Pass()


def swap_arguments(node: cst.Call) -> Change:
    """`f(a, b)` becomes `f(b, a)`."""
    for one, two in zip(range(len(node.args)), range(1, len(node.args)), strict=False):
        first, second = node.args[one], node.args[two]
        if not (first.keyword or second.keyword or first.star or second.star):
            args = list(node.args)
            args[one] = first.with_changes(value=second.value)
            args[two] = second.with_changes(value=first.value)
            yield node.with_changes(args=args)


def one_less(node: cst.Integer) -> Change:
    """`n` becomes `n - 1`; mutmut makes it `n + 1`."""
    yield cst.parse_expression(f"({node.evaluated_value - 1})")


def drop_decorator(node: cst.Decorator) -> Change:
    """A function without one of its decorators."""
    yield cst.EmptyLine(indent=False, newline=cst.Newline(""))


def operators() -> list[tuple[Any, Callable[[Any], Change]]]:
    """mutmut's, without what is not worth a mutant; then ours."""
    from mutmut.mutation import mutators

    def one_string(node: cst.BaseString) -> Change:
        for change in mutators.operator_string(node):
            yield change
            return  # "XXtextXX" is enough; mutmut goes on to two other cases

    one_string.__name__ = mutators.operator_string.__name__
    theirs = [
        (kind, one_string if change is mutators.operator_string else change)
        for kind, change in mutators.mutation_operators
    ]
    return [
        *theirs,
        (
            cst.Expr | cst.AugAssign | cst.Raise | cst.Break | cst.Continue,
            drop_statement,
        ),
        (cst.Call, swap_arguments),
        (cst.Integer, one_less),
    ]


def alike(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class Finder(cst.CSTVisitor):
    """Every change to one module, as the text that replaces a piece of it."""

    def __init__(self, module: str, source: str) -> None:
        self.module, self.source = module, source
        self.wrapper = MetadataWrapper(cst.parse_module(source))
        places = self.wrapper.resolve(WhitespaceInclusivePositionProvider)
        self.places = places
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.operators = operators()
        self.inside: list[str] = []
        self.found: list[Mutant] = []
        # From where to where each statement of the module goes, with its decorators.
        tree = ast.parse(source).body
        first_lines = [
            min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            for node in tree
        ]
        ends = [*(self.starts[line - 1] for line in first_lines[1:]), len(source)]
        begins = [self.starts[line - 1] for line in first_lines]
        self.statements = list(zip(begins, ends, strict=True))
        self.seen = {
            f"{begin} {ast.dump(ast.parse(source[begin:end]))}"
            for begin, end in self.statements
        }
        self.times: Counter[str] = Counter()
        self.messages = 0
        self.wrapper.module.visit(self)

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(
            node, cst.Annotation | cst.Import | cst.ImportFrom
        ) or self.is_words(node):
            return False
        if isinstance(node, cst.Raise):
            self.messages += 1
        for kind, change in self.operators:
            if isinstance(node, kind):
                if self.messages and isinstance(node, cst.BaseString):
                    continue  # how a message is worded
                for new in change(node):
                    self.add(node, new, change.__name__)
        if isinstance(node, cst.If | cst.While | cst.CompIf):
            for new in negate(node.test):
                self.add(node.test, new, negate.__name__)
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self.inside.append(node.name.value)
            for decorator in node.decorators:
                for new in drop_decorator(decorator):
                    self.add(decorator.decorator, new, drop_decorator.__name__)
        return True

    def on_leave(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Raise):
            self.messages -= 1
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self.inside.pop()

    def is_words(self, node: cst.CSTNode) -> bool:
        """Docstrings, help texts and the phrasebook's tables are words, not code."""
        if isinstance(node, cst.Expr):
            return isinstance(node.value, cst.SimpleString | cst.ConcatenatedString)
        if isinstance(node, cst.Arg) and node.keyword:
            return node.keyword.value in SETTINGS["words"]["arguments"]
        if isinstance(node, cst.Assign) and not self.inside:
            (target,) = (t.target for t in node.targets)
            name = target.value if isinstance(target, cst.Name) else ""
            return name in SETTINGS["words"]["tables"]
        return isinstance(node, cst.If) and "TYPE_CHECKING" in self.code(node.test)

    def code(self, node: cst.CSTNode) -> str:
        return self.wrapper.module.code_for_node(node)

    def add(self, node: cst.CSTNode, new: cst.CSTNode, operator: str) -> None:
        place = self.places[node]
        start = self.starts[place.start.line - 1] + place.start.column
        end = self.starts[place.end.line - 1] + place.end.column
        old, text = self.code(node), self.code(new)
        if operator == drop_decorator.__name__:
            start, old = start - 1, "@" + old
        # libcst writes a node as if it stood at the margin; here it may be indented.
        at, where = start, []
        for character in old:
            while self.source[at] == " " != character:
                at += 1
            if self.source[at] != character:
                raise AssertionError(f"{self.module}: {old!r} is not here")
            where.append(at)
            at += 1
        if at != end:
            raise AssertionError(f"{self.module}: {old!r} is not all")
        where.append(end)
        same = alike(old, text)
        rest = alike(old[same:][::-1], text[same:][::-1])
        start, end = where[same], where[len(old) - rest]
        text = text[same : len(text) - rest]
        mutant = self.source[:start] + text + self.source[end:]
        first, last = next(s for s in self.statements if s[0] <= start <= s[1])
        statement = mutant[first : len(mutant) - (len(self.source) - last)]
        try:
            dumped = f"{first} {ast.dump(ast.parse(statement))}"
        except SyntaxError:
            return
        if dumped in self.seen:
            return
        self.seen.add(dumped)
        line = self.source.count("\n", 0, start) + 1
        before = self.source.splitlines()[line - 1].strip()
        after = mutant.splitlines()[line - 1].strip()
        name = f"{'.'.join(self.inside) or 'module'}: {before} → {after}"
        self.times[name] += 1
        if self.times[name] > 1:
            name += f" ({self.times[name]})"
        code = digest(self.source[first:last].strip())
        found = Mutant(self.module, name, line, start, end, text, operator, code)
        self.found.append(found)


def modules() -> dict[str, Path]:
    """The package's modules by name."""
    return {path.stem: path for path in sorted((ROOT / "transformer").glob("*.py"))}


def mutants_of(module: str) -> list[Mutant]:
    """All that can be done to a module."""
    return Finder(module, modules()[module].read_text(encoding="utf-8")).found


# Which tests to run.


class Tests:
    """The tests that run each line, and how long each takes."""

    def __init__(self, folder: Path) -> None:
        from coverage import CoverageData

        self.seconds: dict[str, float] = {}
        self.enough = float("inf")
        self.unfit: set[str] = set()  # failing as things are, they prove nothing
        for file in sorted(folder.glob("units-*.xml")):
            for case in ElementTree.parse(file).iter("testcase"):
                test = f"{case.get('file')}::{case.get('name')}"
                if case.find("failure") is None and case.find("error") is None:
                    self.seconds[test] = float(case.get("time") or 0)
                else:
                    self.unfit.add(test)
        if not self.seconds:
            raise SystemExit("which test runs what? Run `make units` first.")
        data = CoverageData(str(ROOT / ".coverage"))
        data.read()
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.touching: dict[str, set[str]] = {}
        self.newer: set[str] = set()
        self.killers: dict[str, Counter[str]] = defaultdict(Counter)
        for path in data.measured_files():
            lines = {
                line: {context.partition("|")[0] for context in contexts}
                for line, contexts in data.contexts_by_lineno(path).items()
            }
            name = Path(path).stem
            self.lines[name] = lines
            self.touching[name] = set().union(*lines.values())

    def meet(self, collected: Iterable[str]) -> None:
        """Keep to the tests that there are; those newer than `.coverage` come in."""
        there = {test for test in collected if not too_slow(test)} - self.unfit
        self.newer = there - self.seconds.keys()
        self.seconds = {t: s for t, s in self.seconds.items() if t in there}
        self.seconds |= dict.fromkeys(self.newer, 0.0)

    def of(self, mutant: Mutant) -> list[str]:
        """The tests to run, in turn.

        Those of the line, the module's own first; then the rest of the module's own: a
        line may run once for many tests, at import, in a fixture or behind a cache,
        and then it has no test to show. Quick tests come before slow ones, and within
        that each file's together, for its fixtures; what killed in this function,
        or often anywhere, comes first. After `enough` seconds that is all.
        """
        names = SETTINGS["files"].get(mutant.module, [f"test_{mutant.module}.py"])
        files = tuple(f"tests/{name}::" for name in names)
        own = {test for test in self.seconds if test.startswith(files)}
        line = self.lines.get(mutant.module, {}).get(mutant.line, set()) - {""}
        line = line & self.seconds.keys()
        if not line:
            line = own | self.touching.get(mutant.module, set()) & self.seconds.keys()
        line |= own & self.newer

        def place(test: str) -> tuple[bool, int, bool, str, float]:
            seconds = self.seconds[test]
            slow = sum(seconds > limit for limit in (0.1, 1, 5))
            return test not in line, slow, test not in own, test.split("::")[0], seconds

        known = [test for test, _ in self.killers[mutant.function].most_common(3)]
        often = [test for test, _ in self.killers[""].most_common(30) if test in line]
        order = list(dict.fromkeys(t for t in known + often[:8] if t in self.seconds))
        order += sorted((line | own) - set(order), key=place)
        left = self.enough
        chosen = []
        for test in order:
            if self.seconds[test] <= left:
                left -= self.seconds[test]
                chosen.append(test)
        return chosen

    def runs_at_import(self, mutant: Mutant) -> bool:
        """Whether the line had its effect before any test began."""
        return "" in self.lines.get(mutant.module, {}).get(mutant.line, {""})


def too_slow(test: str) -> bool:
    """Whether a test is left out, whatever it shows."""
    return test.partition("[")[0].rpartition("::")[2] in SETTINGS["too_slow"]


# One mutant, one process.


def copy_of_the_tree() -> Path:
    """Where the mutants live: the working tree itself is never changed."""
    copy = Path(tempfile.mkdtemp(prefix="mutants-")) / "tree"
    copy.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("vendor/"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    return copy


def enter(copy: Path) -> None:
    """Make this process one that lives in the copy, quietly."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:] = [str(copy), *(p for p in sys.path if Path(p or ".") != ROOT)]
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)


def allow(seconds: float) -> None:
    """End this process when it has used so much processor time from now on."""
    signal.setitimer(signal.ITIMER_PROF, seconds)  # nothing handles it


class Watch:
    """A pytest plugin: no test may take much longer than it did; say which failed."""

    def __init__(self, seconds: dict[str, float], answer: int) -> None:
        self.seconds, self.answer, self.failed = seconds, answer, False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        allow(SETTINGS["patience"] + SETTINGS["slower"] * self.seconds.get(nodeid, 1))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = True
            os.write(self.answer, report.nodeid.encode())


QUIET = (
    *("-x", "-q", "--tb=no", "--no-header", "--no-summary"),
    *("-p", "no:cacheprovider", "-p", "no:nbval", "-p", "no:cov", "-p", "no:xdist"),
    *("-p", "no:unraisableexception"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # loaded before the fork
    "--hypothesis-profile=mutants",
)


BROKEN = "the bench is broken:"


@dataclass
class Fate:
    """What became of a mutant."""

    verdict: str  # survived, killed, timeout; stuck: it waited; reload: not tried
    by: str
    seconds: float


def in_a_child(work: Callable[[int], int], limit: float) -> Fate:
    """Fork, work, and say how it ended."""
    started = time.monotonic()
    hear, say = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setsid()
            os.close(hear)
            memory = int(SETTINGS["memory_gb"]) << 30
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            processor = int(limit)  # of each process that a test may start, too
            resource.setrlimit(resource.RLIMIT_CPU, (processor, processor + 5))
            status = work(say)
        except BaseException as error:  # of this tool, not of a test
            os.write(say, f"{BROKEN} {error!r}".encode())
        finally:
            os._exit(status)
    os.close(say)
    ended, status, stuck = 0, 0, False
    while not ended:
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended:
            time.sleep(0.005)
            if time.monotonic() - started > SETTINGS["waiting"] * limit:
                stuck = True
                os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests had started
    with os.fdopen(hear, "rb") as stream:
        by = stream.read().decode(errors="replace")
    if by.startswith(BROKEN):
        raise AssertionError(by)
    seconds = round(time.monotonic() - started, 2)
    if stuck:
        return Fate("stuck", by, seconds)
    if os.WIFSIGNALED(status):
        late = os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGXCPU)
        return Fate("timeout" if late else "killed", by or "a signal", seconds)
    code = os.WEXITSTATUS(status)
    return Fate("survived" if code == 0 else "killed", by or f"exit {code}", seconds)


REHEARSAL = """
from hypothesis import given, strategies

@given(strategies.integers())
def test_nothing(number): ...
"""


def load_the_heavy() -> None:
    """What every mutant needs and no mutant changes, loaded once before the forks."""
    import beartype
    import jaxtyping
    import pytest
    import safetensors.torch
    import torch.utils.data
    import torch._dynamo  # isort: skip

    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # & had it ignored
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as silence:
        test = Path(folder) / "test_rehearsal.py"
        test.write_text(REHEARSAL)
        with contextlib.redirect_stdout(silence):
            pytest.main([*QUIET[:-1], "--rootdir", folder, str(test)])
    gc.collect()
    gc.freeze()  # or every fork searches all of torch for garbage
    _ = beartype, jaxtyping, safetensors


# A change put into functions that are loaded.


def nested(code: CodeType) -> list[CodeType]:
    """The functions, classes and comprehensions in some code."""
    return [one for one in code.co_consts if isinstance(one, CodeType)]


def itself(code: CodeType) -> tuple[Any, ...]:
    """What some code does, without what is nested in it and where it stands."""
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return (
        (code.co_code, code.co_exceptiontable, code.co_flags, code.co_qualname),
        (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        (code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount),
        (constants, len(nested(code))),
    )


def alike_all_through(one: CodeType, other: CodeType) -> bool:
    """Whether two pieces of code do the same."""
    return itself(one) == itself(other) and all(
        map(alike_all_through, nested(one), nested(other))
    )


def changed_functions(
    old: CodeType, new: CodeType
) -> Iterator[tuple[CodeType, CodeType]]:
    """The outermost functions in which two modules differ.

    Raises:
        LookupError: where they differ outside of functions.
    """
    if itself(old) != itself(new):
        raise LookupError(f"{old.co_qualname} itself is changed")
    for one, other in zip(nested(old), nested(new), strict=True):
        if not one.co_flags & inspect.CO_OPTIMIZED:  # a class
            yield from changed_functions(one, other)
        elif not alike_all_through(one, other):
            yield one, other


Place = tuple[str, str, int]


def place_of(code: CodeType) -> Place:
    """Where code stands: what tells a loaded function of some name from others."""
    return Path(code.co_filename).stem, code.co_qualname, code.co_firstlineno


class Waiting:
    """A pytest plugin: when all is collected, wait for mutants and fork for each."""

    def __init__(
        self, copy: Path, sources: dict[str, str], asked: IO[str], told: IO[str]
    ) -> None:
        self.package, self.sources = copy / "transformer", sources
        self.asked, self.told = asked, told

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        self.tell(list(items))
        for name in self.sources:
            importlib.import_module(f"transformer.{name}".removesuffix(".__init__"))
        functions: dict[Place, list[FunctionType]] = defaultdict(list)
        caches = []
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                if Path(one.__code__.co_filename).parent == self.package:
                    functions[place_of(one.__code__)].append(one)
            elif isinstance(one, functools._lru_cache_wrapper) and (
                one.__module__.startswith("transformer")
            ):
                caches.append(one)
        gc.collect()
        gc.freeze()

        def work(order: list[str], seconds: dict[str, float], say: int) -> int:
            for cache in caches:
                cache.cache_clear()
            for function, code in swaps:
                function.__code__ = code
            watch = Watch(seconds, say)
            session.config.pluginmanager.register(watch)
            run = session.config.hook.pytest_runtest_protocol
            chosen = [items[test] for test in order]
            for item, after in zip(chosen, [*chosen[1:], None], strict=True):
                run(item=item, nextitem=after)
                if watch.failed:
                    return 1
            return 0

        for line in self.asked:
            asked = json.loads(line)
            try:
                swaps = list(self.swaps(functions, asked["module"], asked["source"]))
            except LookupError as reason:
                self.tell(vars(Fate("reload", str(reason), 0.0)))
                continue
            play = functools.partial(work, asked["order"], asked["seconds"])
            self.tell(vars(in_a_child(play, asked["limit"])))
        return True

    def tell(self, what: Any) -> None:
        self.told.write(json.dumps(what) + "\n")
        self.told.flush()

    def swaps(
        self, functions: dict[Place, list[FunctionType]], module: str, source: str
    ) -> Iterator[tuple[FunctionType, CodeType]]:
        """Which functions get which code.

        Raises:
            LookupError: when the change reaches further than into functions.
        """
        path = str(self.package / f"{module}.py")
        old, new = (compile(s, path, "exec") for s in (self.sources[module], source))
        for one, other in changed_functions(old, new):
            found = functions.get(place_of(one), [])
            if {function.__code__.co_code for function in found} != {one.co_code}:
                raise LookupError(f"{one.co_qualname} is not loaded, or not alone")
            if one.co_freevars != other.co_freevars:
                raise LookupError(f"{one.co_qualname} reaches out for other names")
            for function in found:
                yield function, other


class Bench:
    """A copy of the tree in which mutants are tried, one after another."""

    def __init__(self, tests: Tests) -> None:
        self.tests = tests
        self.sound: set[str] = set()
        self.copy = copy_of_the_tree()
        self.sources = {n: p.read_text(encoding="utf-8") for n, p in modules().items()}
        listen, told = os.pipe()
        asked, ask = os.pipe()
        self.waiting = os.fork()
        if not self.waiting:
            try:
                os.setsid()
                os.close(listen)
                os.close(ask)
                self.wait(os.fdopen(asked), os.fdopen(told, "w"))
            finally:
                os._exit(0)
        os.close(asked)
        os.close(told)
        self.ask, self.listen = os.fdopen(ask, "w"), os.fdopen(listen)
        tests.meet(self.hear())

    def wait(self, asked: IO[str], told: IO[str]) -> None:
        """The life of the process that has all tests collected."""
        enter(self.copy)
        import pytest

        files = {test.partition("::")[0] for test in self.tests.seconds}
        files |= {f"tests/{f}" for few in SETTINGS["files"].values() for f in few}
        there = [file for file in sorted(files) if Path(file).exists()]
        plugin = Waiting(self.copy, self.sources, asked, told)
        pytest.main([*QUIET, f"--basetemp={self.copy.parent}/kept", *there], [plugin])

    def hear(self) -> Any:
        """What the waiting process says."""
        line = self.listen.readline()
        if not line:
            raise SystemExit("the tests cannot be collected: does `make units` pass?")
        return json.loads(line)

    def close(self) -> None:
        """End the waiting process, and remove the copy."""
        self.ask.close()
        os.waitpid(self.waiting, 0)
        shutil.rmtree(self.copy.parent)

    def run(self, order: Sequence[str], module: str, source: str) -> Fate:
        """Run tests with a module changed in processes that are loaded."""
        seconds = {test: self.tests.seconds[test] for test in order}
        request = {
            "module": module,
            "source": source,
            "order": order,
            "seconds": seconds,
            "limit": self.limit(order),
        }
        self.ask.write(json.dumps(request) + "\n")
        self.ask.flush()
        return Fate(**self.hear())

    def run_afresh(self, order: Sequence[str]) -> Fate:
        """Run tests in the copy as it is, everything of ours loaded anew."""

        def work(say: int) -> int:
            enter(self.copy)
            sys.dont_write_bytecode = True
            import pytest

            quiet = [*QUIET, f"--basetemp={self.copy.parent}/fresh"]
            return int(pytest.main([*quiet, *order], [Watch(self.tests.seconds, say)]))

        return in_a_child(work, self.limit(order))

    def limit(self, order: Sequence[str]) -> float:
        """Seconds of processor time for some tests together."""
        spent = sum(self.tests.seconds[test] for test in order)
        return float(SETTINGS["patience"] * 4 + SETTINGS["slower"] * spent)

    def try_(self, mutant: Mutant) -> Fate:
        """Put the change in, run its tests, take it out again."""
        path = self.copy / "transformer" / f"{mutant.module}.py"
        source = self.sources[mutant.module]
        changed = mutant.apply(source)
        for old in path.parent.glob(f"__pycache__/{mutant.module}.*"):
            old.unlink()
        path.write_text(changed, encoding="utf-8")  # for processes that tests start
        order = self.tests.of(mutant)
        try:
            fate = self.run(order, mutant.module, changed)
            if fate.verdict == "reload" or (
                fate.verdict == "survived" and self.tests.runs_at_import(mutant)
            ):
                # All at once is quicker than one by one, but not where the first kills.
                for part in (order[:8], order[8:]):
                    if part and fate.verdict in ("reload", "survived"):
                        fate = self.run_afresh(part)
        finally:
            path.write_text(source, encoding="utf-8")
        if fate.verdict in ("killed", "timeout"):
            if not self.vouch(fate.by, order):
                return self.try_(mutant)
            if fate.by in self.tests.seconds:
                for place in (mutant.function, ""):
                    self.tests.killers[place][fate.by] += 1
        return fate

    def vouch(self, killer: str, order: Sequence[str]) -> bool:
        """A test that kills must pass where nothing is changed; asked once of each.

        Raises:
            SystemExit: when many fail in any case, or it is not known which.
        """
        if killer in self.sound:
            return True
        known = killer in self.tests.seconds
        sound = self.sources["attention"]
        fate = self.run([killer] if known else order[:8], "attention", sound)
        if fate.verdict == "survived":
            self.sound.add(killer)
            return True
        say(f"not used: {fate.by} fails ({fate.verdict}) with nothing changed")
        self.tests.seconds.pop(fate.by, None)
        self.tests.unfit.add(fate.by)
        if fate.by not in order or len(self.tests.unfit) > SETTINGS["unfit"]:
            raise SystemExit("too many tests fail with nothing changed")
        return False


# What is kept.


def digest(*texts: str) -> str:
    """A short name for some text."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def tests_digest() -> str:
    """Another one when any test has changed."""
    files = sorted((ROOT / "tests").glob("*.py"))
    return digest(*(file.read_text(encoding="utf-8") for file in files))


def record() -> dict[str, dict[str, dict[str, str]]]:
    """What was found on any machine: by diary and function, identities by verdict."""
    path = RESULTS / "mutants_tried.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


class Diary:
    """What became of each mutant, kept in a file a line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = KEPT / f"{name}.jsonl"
        self.path.parent.mkdir(exist_ok=True)
        self.fates: dict[str, dict[str, Any]] = {}
        self.recorded = {
            identity: verdict
            for verdicts in record().get(name, {}).values()
            for verdict, identities in verdicts.items()
            for identity in identities.split()
        }
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    self.fates[entry["key"]] = entry

    @staticmethod
    def key(mutant: Mutant) -> str:
        """The same mutant of the same module, wherever it stands."""
        return digest(mutant.module, mutant.name)

    def of(self, mutant: Mutant) -> dict[str, Any]:
        """What is known of a mutant of the code as it is now."""
        entry = self.fates.get(self.key(mutant), {})
        if entry.get("code") == mutant.code:
            return entry
        recorded = self.recorded.get(mutant.identity)
        return {"verdict": recorded, "tests": ""} if recorded else {}

    def verdict(self, mutant: Mutant) -> str:
        """Killed, timeout, survived, or by a claim of the book; empty if untried."""
        entry = self.of(mutant)
        by_claim = entry.get("by", "").startswith("claim")
        return "claim" if by_claim else entry.get("verdict", "")

    def knows(self, mutant: Mutant, tests: str) -> bool:
        """A killed mutant stays killed; a survivor is tried again by new tests."""
        entry = self.of(mutant)
        return bool(entry) and (
            entry["verdict"] != "survived" or entry["tests"] == tests
        )

    def write_down(self, mutants: Iterable[Mutant]) -> dict[str, dict[str, str]]:
        """What is known of these, for the record; survivors await more tests."""
        found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for mutant in mutants:
            verdict = self.verdict(mutant)
            if verdict and not (verdict == "survived" and self.name == "tests"):
                found[mutant.function][verdict].append(mutant.identity)
        return {
            function: {verdict: " ".join(sorted(ids)) for verdict, ids in rows.items()}
            for function, rows in found.items()
        }

    def add(self, mutant: Mutant, tests: str, fate: Fate) -> None:
        """Write it down."""
        entry = {
            "key": self.key(mutant),
            "module": mutant.module,
            "name": mutant.name,
            "line": mutant.line,
            "operator": mutant.operator,
            "code": mutant.code,
            "tests": tests,
            "verdict": fate.verdict,
            "by": fate.by,
            "seconds": fate.seconds,
        }
        self.fates[entry["key"]] = entry
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


@functools.cache
def equivalent() -> dict[str, dict[str, str]]:
    """The mutants that no test can tell from the package, and why: by module."""
    path = ROOT / "tests" / "equivalent_mutants.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def reason(mutant: Mutant) -> str | None:
    """Why this mutant is no mistake, if it is known."""
    return equivalent().get(mutant.module, {}).get(mutant.name)


def stale_reasons(module: str) -> list[str]:
    """The mutants that a reason is given for, and that are not there."""
    known = equivalent().get(module, {})
    if not known:
        return []
    return sorted(known.keys() - {mutant.name for mutant in mutants_of(module)})


# The commands.


def say(text: str) -> None:
    """A line at once."""
    print(text, flush=True)


def run_side_by_side(
    chosen: Sequence[str], jobs: int, again: bool, enough: float
) -> int:
    """Several processes share the mutants out."""
    flags = [*["--again"][: int(again)], "--enough", str(enough)]
    command = [sys.executable, __file__, "run", *chosen, *flags]
    running = [
        subprocess.Popen([*command, "--part", f"{part}/{jobs}"]) for part in range(jobs)
    ]
    try:
        return max(process.wait() for process in running)
    finally:
        for process in running:
            process.terminate()


def run_all(
    chosen: Sequence[str], again: bool, enough: float, part: int, parts: int
) -> int:
    """Every mutant that is not in the diary yet; the work of one process."""
    load_the_heavy()
    tests, diary = Tests(KEPT), Diary("tests")
    tests.enough = enough
    now = f"{tests_digest()} {enough:g}"  # a survivor of less is tried again
    for fate in diary.fates.values():
        tests.killers[""][fate["by"]] += fate["verdict"] == "killed"
    order = []
    for module in chosen:
        found = [m for m in mutants_of(module) if again or not reason(m)]
        random.Random(0).shuffle(found)
        order += [(rank / len(found), m) for rank, m in enumerate(found)]
    # Stopped early, it has seen a fair sample of each module.
    order.sort(key=lambda place: place[0])
    mine = [m for _, m in order[part::parts]]
    todo = [m for m in mine if again or not diary.knows(m, now)]
    say(f"{len(todo)} mutants to try in {', '.join(chosen)}")
    if not todo:
        return 0
    bench = Bench(tests)
    started = time.monotonic()
    try:
        for done, mutant in enumerate(todo, 1):
            fate = bench.try_(mutant)
            if fate.verdict != "stuck":
                diary.add(mutant, now, fate)
            left = (time.monotonic() - started) / done * (len(todo) - done) / 60
            if fate.verdict in ("survived", "stuck") or done % 50 == 0:
                say(
                    f"{mutant.module} {done}/{len(todo)}, {left:.0f} min left: "
                    f"{fate.verdict} after {fate.seconds} s, {mutant.name}"
                )
    finally:
        bench.close()
    return 0


def commit() -> str:
    """What the sample is drawn by."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return found.stdout.strip() or "no commit"


def run_sample(budget: float) -> int:
    """Mutants drawn by the commit, for so many seconds; 1 when one survives."""
    chosen = SETTINGS["settled"]
    if old := [f"{m}: {name}" for m in modules() for name in stale_reasons(m)]:
        say("equivalent_mutants.json speaks of what is no mutant any more:")
        say("\n".join(old))
        return 1
    started = time.monotonic()
    load_the_heavy()
    every = [m for name in chosen for m in mutants_of(name) if not reason(m)]
    random.Random(commit()).shuffle(every)
    tests = Tests(KEPT)  # of any length: few survive, and none does for want of time
    bench = Bench(tests)
    fates: Counter[str] = Counter()
    try:
        for mutant in every:
            if fates and time.monotonic() - started > budget:
                break
            fate = bench.try_(mutant)
            fates[fate.verdict] += 1
            if fate.verdict == "survived":
                say(f"survived: {mutant.module}:{mutant.line} {mutant.name}")
    finally:
        bench.close()
    told = ", ".join(f"{count} {verdict}" for verdict, count in fates.items())
    say(f"of {len(every):,} mutants, {fates.total()} tried: {told}")
    return 1 if fates["survived"] else 0


# The book's claims.


def chapter_of(module: str) -> Path | None:
    """The chapter that makes a module; two modules are written by hand."""
    import tangle

    for chapter, path, _ in tangle.modules(ROOT):
        if path.stem == module:
            return chapter
    return None


@dataclass
class Cell:
    """A code cell of a chapter."""

    source: str
    tags: list[str]


def cells_of(chapter: Path) -> list[Cell]:
    """Its code cells, in reading order."""
    import jupytext

    return [
        Cell(cell.source.strip(), cell.metadata.get("tags", []))
        for cell in jupytext.read(chapter, fmt="md:myst").cells
        if cell.cell_type == "code"
    ]


def prepare_the_stage() -> None:
    """Figures are not drawn: no claim is about one."""
    os.environ["MPLBACKEND"] = "Agg"
    import matplotlib
    import myst_nb

    import bookkit

    matplotlib.rcParams["figure.max_open_warning"] = 0

    def nothing(*_: Any, **__: Any) -> None:
        return None

    bookkit.show = bookkit.show_math = nothing
    myst_nb.glue = nothing


def play(cells: Sequence[Cell], first: int, space: dict[str, Any], say: int) -> int:
    """Run cells; 0 when all ran, 1 when a claim failed, 2 when another cell broke."""
    for number, cell in enumerate(cells[first:], first):
        allow(SETTINGS["patience_with_a_cell"])
        try:
            exec(compile(cell.source, f"cell {number}", "exec"), space)
        except BaseException as error:
            claimed = "claim" in cell.tags
            what = f"{'claim' if claimed else 'cell'} {number}: {error!r}"
            os.write(say, what[:200].encode())
            return 1 if claimed else 2
    return 0


def play_chapter(
    module: str, mutants: Sequence[Mutant], budget: float
) -> Iterator[tuple[Mutant, Fate]]:
    """Mutants of a module in its chapter, from their cell to the end of the page."""
    chapter = chapter_of(module)
    if chapter is None:
        return
    source = modules()[module].read_text(encoding="utf-8")
    cells = cells_of(chapter)
    inside: dict[int, list[tuple[Mutant, str]]] = defaultdict(list)
    for mutant in mutants:
        for number, cell in enumerate(cells):
            at = source.find(cell.source) if "export" in cell.tags else -1
            if at >= 0 and at <= mutant.start and mutant.end <= at + len(cell.source):
                start, end = mutant.start - at, mutant.end - at
                changed = cell.source[:start] + mutant.text + cell.source[end:]
                inside[number].append((mutant, changed))
                break
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        for mutant, changed in inside[number]:
            mutated = [*cells[:number], Cell(changed, cell.tags), *cells[number + 1 :]]

            def work(say: int, played: list[Cell] = mutated, at: int = number) -> int:
                silence = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(silence, stream)
                return play(played, at, space, say)

            yield mutant, in_a_child(work, budget)
        with open(os.devnull, "w") as silence, contextlib.redirect_stdout(silence):
            exec(compile(cell.source, f"cell {number}", "exec"), space)


def run_claims(chosen: Sequence[str], most: int | None) -> int:
    """Mutants against the claims of their own chapter: all, or `most` of a module."""
    load_the_heavy()
    os.chdir(tempfile.mkdtemp(prefix="claims-"))
    sys.path.insert(0, str(ROOT))
    prepare_the_stage()
    diary = Diary("claims")
    for module in chosen:
        found = [m for m in mutants_of(module) if not reason(m)]
        random.Random(0).shuffle(found)
        todo = [m for m in found[:most] if not diary.of(m)]
        verdicts: Counter[str] = Counter()
        for mutant, fate in play_chapter(
            module, todo, SETTINGS["patience_with_a_chapter"]
        ):
            if fate.verdict != "stuck":
                diary.add(mutant, "", fate)
                verdicts["claims" if fate.by[:5] == "claim" else fate.verdict] += 1
        say(f"{module}: {verdicts.total()} tried, {dict(verdicts)}")
    return 0


# The report.


def report() -> int:
    """What is in the diaries, as numbers and as a page, and for the next machine."""
    tried, claimed = Diary("tests"), Diary("claims")
    table, survivors = {}, []
    found = {module: mutants_of(module) for module in modules()}
    for module, mutants in found.items():
        row: Counter[str] = Counter()
        for mutant in mutants:
            row["mutants"] += 1
            verdict, why = tried.verdict(mutant), reason(mutant)
            row["equivalent" if why else verdict or "not tried"] += 1
            if why or verdict == "survived":
                survivors.append((module, mutant, why or "not killed yet"))
            if book := claimed.verdict(mutant):
                row["book tried"] += 1
                row["book claims"] += book == "claim"
                row["book breaks"] += book != "survived"
        table[module] = dict(row)
    total: Counter[str] = Counter()
    for row in table.values():
        total.update(row)
    dead = total["killed"] + total["timeout"]
    alive = total["survived"]
    share = dead / max(dead + alive, 1)
    numbers = {
        "modules": table,
        "total": dict(total),
        "killed_share_of_those_tried_and_not_equivalent": round(share, 4),
        "survivors": [
            {"module": module, "line": m.line, "mutant": m.name, "reason": why}
            for module, m, why in survivors
        ],
    }
    every = [mutant for mutants in found.values() for mutant in mutants]
    known = {diary.name: diary.write_down(every) for diary in (tried, claimed)}
    for name, what in (("mutants", numbers), ("mutants_tried", known)):
        text = json.dumps(what, indent=1, ensure_ascii=False) + "\n"
        (RESULTS / f"{name}.json").write_text(text, encoding="utf-8")
    (RESULTS / "mutants.md").write_text(page(table, total, survivors), encoding="utf-8")
    say(
        f"{dead} of {dead + alive} killed ({share:.1%}), {total['not tried']} not tried"
    )
    return 0


COLUMNS = (
    "mutants",
    "killed",
    "timeout",
    "survived",
    "equivalent",
    "not tried",
    "book tried",
    "book claims",
    "book breaks",
)
PAGE = """\
# Mutants

`make mutants` changes one thing at a time in `transformer/`, an operator, a number, an
argument, a condition, a decorator, a whole statement, and runs the tests that reach the
changed line, without the shape checker. A mutant is *killed* when one of them fails and
*timed out* when one no longer ends. The changes are those of mutmut, and five of our
own; how a message is worded, the help texts and the phrasebook's tables of words are
left alone.

**{share:.1%}** of the {tried:,} mutants tried that are not known to be equivalent are
killed or timed out. {how_far}

The last three columns are the book's own: how many mutants were put into the chapter
that defines their module (drawn by chance where not all), how many of those a **claim**
on that page refutes, and how many stop the page in some way (a claim that fails, or a
cell that no longer runs). Figures are not drawn for this, and the printed numbers are
not compared. The claims of other chapters are not counted, though they use the same
modules.

{table}
"""


def page(
    table: dict[str, dict[str, int]],
    total: Counter[str],
    survivors: Sequence[tuple[str, Mutant, str]],
) -> str:
    """The report to read."""
    head = "| module | " + " | ".join(COLUMNS) + " |\n|---"
    head += "|---:" * len(COLUMNS) + "|\n"
    lines = [
        f"| {name} | " + " | ".join(f"{row.get(c, 0):,}" for c in COLUMNS) + " |"
        for name, row in [*table.items(), ("**all**", total)]
    ]
    dead, alive = total["killed"] + total["timeout"], total["survived"]
    whole = sum(bool(row) and not row.get("not tried") for row in table.values())
    how_far = (
        f"{whole} modules were tried whole, the others as far as the time went: of\n"
        f"{total['mutants']:,} mutants {total['not tried']:,} were not tried."
    )
    if not total["not tried"]:
        how_far = "None was left untried."
    text = PAGE.format(
        share=dead / max(dead + alive, 1),
        tried=dead + alive,
        how_far=how_far,
        table=head + "\n".join(lines),
    )
    for title, known in (("Equivalent", True), ("Not killed yet", False)):
        listed = [s for s in survivors if (s[2] != "not killed yet") == known]
        if listed:
            text += f"\n## {title}\n\n"
            for module, mutant, why in listed:
                name = mutant.name.replace("`", "'")
                text += f"- `{module}` line {mutant.line}, `{name}`"
                text += f": {why}\n" if known else "\n"
    return text


def main() -> int:
    """Read the command."""
    ask = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    ask.add_argument("command", choices=("count", "run", "claims", "report"))
    ask.add_argument("modules", nargs="*", help="all of them, unless named")
    ask.add_argument("--sample", type=float, metavar="SECONDS")
    ask.add_argument("--jobs", type=int, default=1, metavar="N", help="side by side")
    ask.add_argument("--most", type=int, metavar="N", help="claims: so many a module")
    ask.add_argument(
        "--enough",
        type=float,
        default=SETTINGS["enough"],
        metavar="SECONDS",
        help="of tests, quick ones first, after which a mutant has survived",
    )
    ask.add_argument("--part", default="0/1", help=argparse.SUPPRESS)
    ask.add_argument("--again", action="store_true", help="the equivalent ones too")
    options = ask.parse_intermixed_args()
    chosen = options.modules or list(modules())
    if options.command == "report":
        return report()
    if options.command == "claims":
        return run_claims(chosen, options.most)
    if options.command == "run":
        if options.sample:
            return run_sample(options.sample)
        if options.jobs > 1:
            return run_side_by_side(chosen, options.jobs, options.again, options.enough)
        part, parts = map(int, options.part.split("/"))
        return run_all(chosen, options.again, options.enough, part, parts)
    for name in chosen:
        say(f"{name}: {len(mutants_of(name))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
