"""An exercise that a page asks gives the same verdict there as in the notebook."""

import importlib
import pkgutil
import sys
from pathlib import Path

import pytest
import torch

import bookkit.checks
from bookkit.exercises import exercise, right
from tests.exercises import tried

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))
from answers import drawn, registered  # noqa: E402
from javascript import Unknown, compiled  # noqa: E402

pytestmark = pytest.mark.plain
SCRIPT = (ROOT / "book" / "_static" / "answers.js").read_text("utf-8")
CHECKS = {
    f"{module.name}.{name}": check
    for module in pkgutil.iter_modules(bookkit.checks.__path__)
    for name, check in vars(
        importlib.import_module(f"bookkit.checks.{module.name}")
    ).items()
    if hasattr(check, "form")
}


def masks(rows, columns, *drawn):
    """Masks of some size, each by what it shows of a row and a column."""
    return [
        [[bool(sees(q, k)) for k in range(columns)] for q in range(rows)]
        for sees in drawn
    ]


SENTENCES = [3, 4, 1]
BY_HAND = {  # the right answer first
    "masks.check_window": masks(
        *(6, 6),
        lambda q, k: 0 <= q - k < 3,
        lambda q, k: 0 <= q - k < 4,
        lambda q, k: 0 <= q - k < 2,
        lambda q, k: abs(q - k) < 3,
        lambda q, k: k <= q,
        lambda q, k: not 0 <= q - k < 3,
        lambda q, k: 0 <= k - q < 3,
        lambda q, k: 0 < q - k < 3,
        lambda q, k: 0 < q - k <= 3,
        lambda q, k: k == 2,
    ),
    "why_attention.check_context": [
        *([1, 6], [2.77, 14.3], [8, 48], [5, 5], [1.116, 5.77], [0, 8], [2, 4]),
        *([0.5, 3], [3, 2]),
    ],
    "masks.check_layers": [5, 4, 3.5, 5.5, 9],
    "language_model.check_prefix": masks(
        *(5, 5),
        lambda q, k: k <= q or max(q, k) < 3,
        lambda q, k: k <= q,
        lambda q, k: max(q, k) < 3,
        lambda q, k: True,
        lambda q, k: k <= q or q < 3,
        lambda q, k: not (k <= q or max(q, k) < 3),
        lambda q, k: q <= k or max(q, k) < 3,
        lambda q, k: k < 3,
        lambda q, k: k <= q or max(q, k) < 2,
        lambda q, k: k <= q or max(q, k) < 4,
        lambda q, k: k == q,
    ),
    "data.check_lengths": masks(
        *(3, 4),
        lambda q, k: k < SENTENCES[q],
        lambda q, k: k >= SENTENCES[q],
        lambda q, k: k <= SENTENCES[q],
        lambda q, k: k < SENTENCES[q] - 1,
        lambda q, k: 3 - k < SENTENCES[q],
        lambda q, k: k == 1,
    ),
    "embedding.check_moved": [
        {"untied": untied, "tied": tied}
        for untied, tied in (
            ([6, 4, 2, 1], list(range(8))),
            (list(range(8)), list(range(8))),
            ([1, 2, 4, 6], [1, 2, 4, 6]),
            ([1, 2, 4, 6], []),
            ([1, 2, 4], [0, 1]),
            ([1, 4], [0]),
            ([2, 6], [7]),
            ([5], [7, 3]),
        )
    ],
}
NUMBERS = [0, 0.25, -1, -2.5, 1, 2, 3.5, 7, 19, 100, 1234.5, 1e-7, 3e9, 123_456_789]


def swept(form):
    """Answers of the form's own shape, most of them far from right."""
    count = len(form.labels)
    values = form.choices or NUMBERS
    if form.several:
        values = [[], [0], [2, 3, 4, 5], [3, 4, 5], [0, 1, 2, 3, 4, 5], [6], [5, 1]]
    for i, value in enumerate(values):
        row = [values[(i * (1 + j)) % len(values)] for j in range(count)]
        if form.gives == "matrix":
            matrix = [[0.0] * len(form.columns) for _ in form.labels]
            matrix[i % count][i % len(form.columns)] = float(value)
            matrix[2][1] = float(value)
            yield matrix
        elif form.gives == "dictionary":
            yield dict(zip(form.labels, row, strict=True))
            yield dict.fromkeys(form.labels, value)
        else:
            yield value if form.gives == "one" else row


def written(answer):
    """An answer as JavaScript gets it, or None where a page cannot hold it."""
    if isinstance(answer, dict):
        return {str(key): written(value) for key, value in answer.items()}
    if isinstance(answer, (list, tuple, range)):
        return [written(value) for value in answer]
    if isinstance(answer, torch.Tensor) or type(answer).__module__ == "numpy":
        return answer.tolist()
    plain = answer is None or isinstance(answer, (bool, int, float, str))
    return answer if plain else None


def keyed(answer, check):
    """Patients have numbers for names in the notebook, and text on the page."""
    patients = check.__name__ == "check_patients" and isinstance(answer, dict)
    return {int(k): v for k, v in answer.items()} if patients else answer


@pytest.fixture(scope="module")
def page(browser):
    """A page with all checks, and no form yet."""
    page = browser.new_page()
    page.set_content(f"<script>{SCRIPT}</script>")
    made = [registered(name, check.form) for name, check in CHECKS.items()]
    page.add_script_tag(content="\n".join(made))
    yield page
    page.close()


def test_a_page_says_of_every_answer_what_the_notebook_says(page):
    rows, wanted, tests_try = [], [], [*tried()]
    for name, check in CHECKS.items():
        before = len(rows)
        if check.form.by_hand:
            says, answers = exercise(check.form.judge), BY_HAND[name]
            first, *others = map(says, answers)
            assert first.ok
            assert len({other.message for other in others}) >= len(others) - 2
        else:
            says = check
            answers = [row[1] for row in tests_try if row[0] is check]
            answers += swept(check.form)
        for answer in answers:
            given = written(answer)
            matrix = check.form.gives == "matrix" and not check.form.ticks
            if given is None or (matrix and not fits(given)):
                continue
            rows.append([name, given])
            wanted.append(says(keyed(answer, check)))
        assert len(rows) - before >= 5, name
        kinds = {verdict.kind for verdict in wanted[before:]}
        assert kinds >= {"right", "wrong"}, name
    judged = page.evaluate(
        "rows => rows.map(([name, answer]) => py.judge(checks[name](), answer))", rows
    )
    for (name, given), verdict, found in zip(rows, wanted, judged, strict=True):
        assert found["kind"] == verdict.kind, (name, given, verdict, found)
        if verdict.kind != "unanswered":
            assert found["message"] == repr(verdict)[2:], (name, given)


def fits(matrix):
    """Whether it is what a page's eight rows of four fields hold."""
    shape = isinstance(matrix, list) and [len(row) for row in matrix] == [4] * 8
    return shape and all(abs(x) < 1e300 for row in matrix for x in row)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("20", 20),
        ("-0.5", -0.5),
        ("196,608", 196_608),
        ("1,024 * 2", 2048),
        ("24 * 2**30 / (2*32*8*128*2)", 196_608),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("3e9", 3e9),
        ("math.log(300) / 4", 1.4259),
        ("log2(8)", 3),
        ("2π", None),
        ("√9 + .5", 3.5),
        ("0,5", None),
        ("twenty", None),
        ("(1", None),
        ("alert(1)", None),
        ("", None),
    ],
)
def test_a_number_may_be_arithmetic(page, written, value):
    found = page.evaluate(
        "text => { try { return calculate(text) } catch (e) { return String(e) } }",
        written,
    )
    if value is None:
        assert "SyntaxError" in str(found)
    else:
        assert found == pytest.approx(value, rel=1e-4)


def test_python_that_is_not_compiled_is_named():
    def check(answer):
        while answer:
            answer -= 1

    with pytest.raises(Unknown, match="line 2: while answer"):
        compiled(check)

    def said(answer):
        return right(f"{answer:,}")

    with pytest.raises(Unknown, match="line 2: the format ,"):
        compiled(said)

    def few(answer):
        return right(", ".join(each for each in answer if each))

    with pytest.raises(Unknown, match="line 2: an `if` in a comprehension"):
        compiled(few)


def test_the_page_says_what_to_do_next(page):
    for name, given, words in (
        ("masks.check_window", None, "○ Tick at least one square."),
        ("embedding.check_moved", "all", "or a range, such as 0–7."),
        ("queries_keys_values.check_loud_key", "2π", "such as 3 * 512 / 2 or 2 * pi"),
    ):
        page.evaluate(
            "html => { document.body.innerHTML = html }", drawn(name, CHECKS[name].form)
        )
        page.evaluate("dispatchEvent(new Event('DOMContentLoaded'))")
        for box in page.locator("input").all() if given else []:
            box.fill(given)
        page.get_by_role("button").click()
        page.get_by_text(words).wait_for(timeout=2000)
