"""What holds for every exercise of every chapter.

Solutions and stubs are taken from the chapters themselves, as a reader meets them.
"""

import ast
import functools
import importlib
import math
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from chapters import chapters
from torch import Tensor
from torch.nn import functional as F

import bookkit.checks
import transformer
from tests.exercises import tried
from transformer import micro

ROOT = Path(__file__).resolve().parents[2]
MODULE = re.compile(r"^from (bookkit\.checks\.\w+) import", re.MULTILINE)
CHAPTERS = [
    page for page in chapters(ROOT) if MODULE.search(page.read_text(encoding="utf-8"))
]
CELL = re.compile(r"```\{code-cell\} ipython3\n:tags: \[(\w+)\]\n(.*?)\n```", re.DOTALL)
# Their solutions ask a model that the chapter has built or trained.
ASK_A_MODEL = {"encoder.check_reaches"}


def rotation(k, d_model):
    """Chapter 06's, which its solution may use."""
    blocks = []
    for i in range(d_model // 2):
        angle = k * 10_000 ** (-2 * i / d_model)
        sin, cos = math.sin(angle), math.cos(angle)
        blocks.append(torch.tensor([[cos, sin], [-sin, cos]], dtype=torch.float64))
    return torch.block_diag(*blocks)


def ngrams(words, n):
    """Chapter 16's, which its solutions may use."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def module_of(chapter):
    """Where a page's checks are: it imports them from one module."""
    (name,) = set(MODULE.findall(chapter.read_text(encoding="utf-8")))
    return importlib.import_module(name)


def name_of(check):
    return f"{check.__module__.rpartition('.')[2]}.{check.__name__}"


def answers(chapter, tag):
    """What the chapter's cells with this tag hand to their checks."""
    module, found = module_of(chapter), []
    short = module.__name__.rpartition(".")[2]
    names = {"torch": torch, "math": math, "F": F, "Counter": Counter}
    names |= {"rotation": rotation, "ngrams": ngrams}
    names |= {"KINDS": ["person", "action", "place", "time"]}
    names |= vars(micro)  # chapter 21's solutions use its functions
    for part in transformer.__all__:
        names[part] = getattr(transformer, part)
    for part in ("BOS_ID", "EOS_ID", "PAD_ID"):
        value = getattr(importlib.import_module("transformer.text.words"), part)
        names |= {part: value, part.removesuffix("_ID"): value}
    for name, check in vars(module).items():
        if name.startswith("check_"):
            names[name] = lambda answer, check=check: found.append((check, answer))
    for tagged, source in CELL.findall(chapter.read_text(encoding="utf-8")):
        asked = re.findall(r"check_\w+(?=\()", source)
        unasked = ASK_A_MODEL if tag == "solution" else set()
        if tagged != tag or any(f"{short}.{name}" in unasked for name in asked):
            continue
        tree = ast.parse(source)
        tree.body = [
            line
            for line in tree.body
            if not (isinstance(line, ast.ImportFrom) and line.module == module.__name__)
        ]
        exec(compile(tree, chapter.name, "exec"), names)
    return found


ALL_CHECKS = list(pkgutil.iter_modules(bookkit.checks.__path__))
SOLUTIONS = [pair for chapter in CHAPTERS for pair in answers(chapter, "solution")]
STUBS = [pair for chapter in CHAPTERS for pair in answers(chapter, "exercise")]
FUNCTIONS = [(check, answer) for check, answer in SOLUTIONS if callable(answer)]
CHECKS = [
    check
    for chapter in CHAPTERS
    for name, check in vars(module_of(chapter)).items()
    if name.startswith("check_")
]
each_solution = pytest.mark.parametrize(
    ("check", "answer"), SOLUTIONS, ids=[name_of(check) for check, _ in SOLUTIONS]
)
each_function = pytest.mark.parametrize(
    ("check", "answer"), FUNCTIONS, ids=[name_of(check) for check, _ in FUNCTIONS]
)
each_check = pytest.mark.parametrize("check", CHECKS, ids=map(name_of, CHECKS))


def test_no_exercise_is_left_out():
    everyone = set(map(name_of, CHECKS))
    numbered = {page.stem[:2] for page in chapters(ROOT) if page.stem[:2].isdigit()}
    assert numbered == {page.stem[:2] for page in CHAPTERS if page.stem[:2].isdigit()}
    used = {module_of(chapter).__name__ for chapter in CHAPTERS}
    assert used == {f"bookkit.checks.{one.name}" for one in ALL_CHECKS}
    assert {name_of(check) for check, _ in STUBS} == everyone
    assert {name_of(check) for check, _ in SOLUTIONS} == everyone - ASK_A_MODEL


@each_solution
def test_the_chapters_solution_is_right(check, answer):
    assert check(answer).ok, check(answer)


@pytest.mark.parametrize(
    ("check", "answer"), STUBS, ids=[name_of(check) for check, _ in STUBS]
)
def test_the_chapters_stub_is_unanswered(check, answer):
    assert check(answer).kind == "unanswered", check(answer)


@each_check
def test_nothing_is_no_answer_yet(check):
    assert check(...).kind == check(None).kind == "unanswered"


@each_function
def test_nothing_given_back_is_no_answer_yet(check, answer):
    for nothing in (lambda *_: ..., lambda *_: None):
        assert check(nothing).kind == "unanswered"


def test_every_check_names_two_wrong_answers_or_more():
    """Of each check, the tests beside this one try at least two misconceptions."""
    named = Counter()
    for check, *rest in tried():
        if len(rest) == 2 and check in CHECKS:
            assert len(rest[1]) > 1
            named[name_of(check)] += 1
    assert set(named) == set(map(name_of, CHECKS))
    assert min(named.values()) >= 2, named.most_common()[-1]


JUNK = {
    "text": "text",
    "a huge number": -1e12,
    "NaN": math.nan,
    "an empty list": [],
    "an empty dictionary": {},
    "a triple": (7, 8, 9),
    "a tensor": torch.zeros(2, 3),
    "an object": object(),
    "a type": int,
    "a function of nothing": lambda: 1,
}
RETURNED = {
    "text": "text",
    "a huge number": 1e12,
    "NaN": math.nan,
    "a list": [1],
    "an empty dictionary": {},
    "two tensors": (torch.zeros(2), torch.zeros(2)),
    "a tensor": torch.zeros(7, 7),
    "a tensor of NaN": torch.full((7,), math.nan),
    "an object": object(),
}


@each_check
def test_junk_is_refused_and_not_by_a_traceback(check):
    for name, junk in JUNK.items():
        verdict = check(junk)
        assert verdict.kind == "wrong", (name, verdict)
        assert verdict.message, name
        if not callable(junk):
            assert "your code raised" not in verdict.message, name


@each_check
def test_junk_given_back_is_not_blamed_on_the_readers_code(check):
    for name, junk in RETURNED.items():
        verdict = check(lambda *_, junk=junk: junk)
        assert verdict.kind == "wrong", (name, verdict)
        assert "your code raised" not in verdict.message, name


@each_function
def test_a_result_in_place_of_the_function_is_told_apart(check, answer):
    assert "function itself" in check(torch.zeros(3)).message


def like(answer, after):
    """The same answer, with something done to its result afterwards."""

    @functools.wraps(answer)
    def changed(*args):
        return after(answer(*args))

    return changed


@each_function
def test_double_precision_is_as_right(check, answer):
    def doubled(result):
        tensors = isinstance(result, Tensor) and result.is_floating_point()
        return result.double() if tensors else result

    assert check(like(answer, doubled)).ok


@each_function
@pytest.mark.parametrize(
    ("kind", "turn"), [("a NumPy array", "numpy"), ("a list", "tolist")]
)
def test_arrays_and_lists_are_no_tensors(check, answer, kind, turn):
    def turned(result):
        if isinstance(result, Tensor) and result.dim():
            return getattr(result.detach(), turn)()
        return result

    verdict = check(like(answer, turned))
    assert verdict.ok or kind in verdict.message, verdict


@each_function
def test_a_missing_return_is_named(check, answer):
    assert "`return`" in check(like(answer, lambda result: None)).message


@each_function
def test_an_exception_is_named(check, answer):
    def fails(result):
        raise ValueError("boom")

    assert "your code raised ValueError: boom" in check(like(answer, fails)).message


def copied(result):
    if isinstance(result, Tensor):
        return result.clone()
    if isinstance(result, list | tuple):
        return type(result)(map(copied, result))
    return result


@each_function
def test_an_answer_that_spoils_its_arguments_is_told_so(check, answer):
    spoilt = []

    @functools.wraps(answer)
    def careless(*args):
        result = copied(answer(*args))
        for arg in args:
            for part in arg if isinstance(arg, list | tuple) else [arg]:
                if isinstance(part, Tensor):
                    spoilt.append(part)
                    part.fill_(not part[(0,) * part.dim()])
            if isinstance(arg, list):
                spoilt.append(arg)
                arg.clear()
        return result

    verdict = check(careless)
    assert ("in place" in verdict.message) == bool(spoilt), verdict
    assert verdict.ok == (not spoilt)
