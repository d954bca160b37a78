"""The public names: in `transformer`, on the API page and in their chapters' prose."""

import importlib
import re
from pathlib import Path

import pytest
from chapters import chapters

import transformer

ROOT = Path(__file__).resolve().parent.parent
DIRECTIVE = re.compile(r"^\.\. (currentmodule|auto\w+|py:data):: (\S+)$", re.MULTILINE)
MADE_FROM = re.compile(r"Made from (book/\S+\.md)")


def on_the_page() -> dict[str, str]:
    """Each name on the API page, and the module that it is documented in."""
    found: dict[str, str] = {}
    module = ""
    page = (ROOT / "book" / "api.md").read_text(encoding="utf-8")
    for kind, name in DIRECTIVE.findall(page):
        if kind == "currentmodule":
            module = name
        else:
            assert name not in found, f"{name} twice"
            found[name] = module
    return found


def test_the_api_page_lists_the_public_names() -> None:
    assert not set(transformer.__all__) - set(on_the_page())
    assert len(set(transformer.__all__)) == len(transformer.__all__)
    assert 40 <= len(transformer.__all__) <= 55


def test_what_else_the_page_lists_is_public_in_its_module() -> None:
    for name, module in on_the_page().items():
        assert name in importlib.import_module(module).__all__, name


@pytest.mark.parametrize("name", transformer.__all__)
def test_a_public_name_is_documented_where_it_is_made(name: str) -> None:
    module = importlib.import_module(on_the_page()[name])
    assert getattr(module, name) is getattr(transformer, name)
    assert name in module.__all__
    source = MADE_FROM.search(module.__doc__ or "")
    assert source, module.__name__
    chapter = ROOT / source[1]
    assert chapter in chapters(ROOT)
    text = re.sub(
        r"```\{code-cell\}.*?\n```", "", chapter.read_text("utf-8"), flags=re.DOTALL
    )
    named = re.findall(r"`[^`\n]*`", text)
    assert any(re.search(rf"\b{name}\b", code) for code in named), (
        f"{chapter.name} should name `{name}` in its prose"
    )
