"""Style sheets without what no page uses."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "_ext"))
from purge import names_used, purge

PAGE = '<p class="a b" id=here><i class=c></i><script>say("late")</script>unused</p>'


def test_names_are_those_of_pages_and_all_words_of_scripts() -> None:
    used = names_used([PAGE], ["x.classList.add('from-script')"])
    assert {"a", "b", "c", "here", "late", "from-script"} <= used
    assert "unused" not in used


@pytest.mark.parametrize(
    ("sheet", "left"),
    [
        ("p, .a:hover > .b { x: y }", "p, .a:hover > .b { x: y }"),
        (".a.gone, .b::before { x: y }", " .b::before { x: y }"),
        (".gone { x: y } #here { x: y }", "#here { x: y }"),
        (".a:not(.gone) { x: y }", ".a:not(.gone) { x: y }"),
        (":is(.gone, .a) i { x: y }", ":is(.gone, .a) i { x: y }"),
        (":where(.gone, .lost) i { x: y }", ""),
        ("@media print { .gone { x: y } }", ""),
        ("@media print{.gone{x:y}.a{x:y}}", "@media print{.a{x:y}}"),
        ('[data-x=".gone"] { x: y }', '[data-x=".gone"] { x: y }'),
        (".a { background: url(data:,.gone) }", ".a { background: url(data:,.gone) }"),
        ("@font-face { src: url(not-there.woff2) }", ""),
        (
            "@font-face { src: url(there.woff2?v) }",
            "@font-face { src: url(there.woff2?v) }",
        ),
        (":root { --x: #gone }", ":root { --x: #gone }"),
    ],
)
def test_a_rule_stays_where_its_names_are_used(
    tmp_path: Path, sheet: str, left: str
) -> None:
    (tmp_path / "there.woff2").touch()
    path = tmp_path / "sheet.css"
    path.write_text(sheet)
    purge(path, names_used([PAGE], []))
    assert path.read_text().strip() == left.strip()
