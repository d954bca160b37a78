"""The tree of a beam search that the reader walks, as a piece of HTML."""

import json
import re

import pytest

from bookkit import BeamTree, Branch

BRANCHES = [
    Branch("A", None, 0.6, 0.6, "kept"),
    Branch("B", None, 0.4, 0.4, "kept"),
    Branch("C", None, 0.00002, 0.00002, "dropped"),
    Branch("t", 1, 0.9, 0.36, "ended"),
    Branch("p", 0, 0.28, 0.168, "kept"),
    Branch("<b>", 0, 0.1, 0.06, "dropped"),
]


def page(branches=BRANCHES, answer=3, **options) -> str:
    return BeamTree(branches, answer, **options)._repr_html_()


def test_every_branch_is_drawn_without_a_script() -> None:
    drawing = page().partition("<script>")[0]
    assert drawing.count('<g class="beam-node') == len(BRANCHES)
    assert drawing.count("<path") == len(BRANCHES)
    for branch in BRANCHES:
        word = branch.word.replace("<", "&lt;").replace(">", "&gt;")
        assert f">{word}</text>" in drawing
    for short in (".60", ".17", ".06", "2e-05"):
        assert f">{short}</text>" in drawing
    assert "“B” → “t”: probability .90 here, .36 for the whole" in drawing
    assert "Ended; this is the answer." in drawing


def test_the_tree_can_be_read_as_text() -> None:
    rows = re.findall(r"<li>(.*)</li>", page())
    assert rows == [
        "A .60 (kept) · B .40 (kept) · C 2e-05 (dropped)",
        "B t .36 (ended) · A p .17 (kept) · A &lt;b&gt; .06 (dropped)",
    ]


def test_the_script_is_given_every_branch() -> None:
    data = json.loads(re.search(r"branches = (\[.*\]), turns", page())[1])
    assert [branch["turn"] for branch in data] == [1, 1, 1, 2, 2, 2]
    assert [branch["parent"] for branch in data] == [-1, -1, -1, 1, 0, 0]
    assert "“bos” → “A”" in data[0]["say"]
    assert "</script>" not in "".join(branch["say"] for branch in data)
    assert page().count("</script>") == 1


def test_words_are_no_markup_and_pages_tell_themselves_apart() -> None:
    nasty = [Branch("</script><i>", None, 1.0, 1.0, "ended")]
    text = page(nasty, 0, title="<i>&", start="$")
    assert text.count("</script>") == 1
    assert "&lt;i&gt;&amp;" in text
    assert "<i>&" not in text
    key = re.compile(r'data-beamtree="(\w+)"')
    assert page() == page()
    assert key.search(page())[1] != key.search(text)[1]


def test_a_tree_knows_its_words_and_turns() -> None:
    tree = BeamTree(BRANCHES, 3)
    assert tree.turns == [1, 1, 1, 2, 2, 2]
    assert tree.words(3) == ["B", "t"]
    assert repr(tree) == "BeamTree(6 branches in 2 turns)"


@pytest.mark.parametrize(
    ("branches", "answer", "message"),
    [
        (BRANCHES, 6, r"0\.\.5, got 6"),
        (BRANCHES, -1, r"0\.\.5, got -1"),
        ([], 0, r"0\.\.-1, got 0"),
        ([Branch("a", 0, 1, 1, "kept")], 0, "after its parent, got 0"),
        ([*BRANCHES, Branch("a", -1, 1, 1, "kept")], 3, "after its parent, got -1"),
        ([*BRANCHES, Branch("a", 2, 1, 1, "kept")], 3, "one that was dropped"),
        ([*BRANCHES, Branch("a", 3, 1, 1, "kept")], 3, "one that was ended"),
    ],
)
def test_what_is_no_tree_is_refused(branches, answer, message) -> None:
    with pytest.raises(ValueError, match=message):
        BeamTree(branches, answer)
