"""Style sheets without what no page uses, and a site without the files of icons.

The theme brings 400 kB of rules for all that a theme may be asked for. After a build
each rule goes whose classes and names occur in no page and in no script: a class that a
script puts together from pieces would have to be said whole somewhere.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tinycss2
from sphinx.application import Sphinx

# Icons as a script and as fonts; what pages use of them is in book.css. Sources of
# minified files, and the theme's words in other languages.
UNUSED = ("scripts/fontawesome.js*", "vendor/fontawesome", "**/*.map", "locales")
NAMED = re.compile(r"""\b(?:class|id)=(?:"([^"]*)"|'([^']*)'|([\w-]+))""")
SCRIPT = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)
WORD = re.compile(r"[\w-]+")
NESTED = ("media", "supports", "layer", "container")


def names_used(pages: Iterable[str], scripts: Iterable[str]) -> set[str]:
    """The classes and ids of pages, and each word of a script."""
    used: set[str] = set()
    for page in pages:
        for name in NAMED.finditer(page):
            used.update(WORD.findall(next(filter(None, name.groups()), "")))
        for script in SCRIPT.finditer(page):
            used.update(WORD.findall(script[1]))
    for script in scripts:
        used.update(WORD.findall(script))
    return used


def split(tokens: Iterable[Any]) -> list[list[Any]]:
    """The selectors of a list of them."""
    found: list[list[Any]] = [[]]
    for token in tokens:
        if token == ",":
            found.append([])
        else:
            found[-1].append(token)
    return found


def matches(selector: list[Any], used: set[str]) -> bool:
    """Whether all classes and ids that a selector asks for are used."""
    before = None
    for token in selector:
        if token.type == "hash" and token.value not in used:
            return False
        if token.type == "ident" and before == "." and token.value not in used:
            return False
        if token.type == "function" and token.lower_name in ("is", "where"):
            choices = [matches(each, used) for each in split(token.arguments)]
            if not any(choices):
                return False
        before = token
    return True


def lean(rules: Iterable[Any], used: set[str], there: Any) -> Iterator[Any]:
    """The rules that may apply to a page; `there` says whether an address exists."""
    for rule in rules:
        if rule.type == "qualified-rule":
            kept = [each for each in split(rule.prelude) if matches(each, used)]
            if not kept:
                continue
            rule.prelude = [token for each in kept for token in (*each, COMMA)][:-1]
        elif rule.type == "at-rule" and rule.lower_at_keyword in NESTED:
            if rule.content is not None:
                inner = tinycss2.parse_rule_list(rule.content, skip_comments=True)
                rule.content = list(lean(inner, used, there))
                if not any(each.type != "whitespace" for each in rule.content):
                    continue
        elif rule.type == "at-rule" and rule.lower_at_keyword == "font-face":
            addresses = [each for each in rule.content if each.type == "url"]
            if addresses and not any(there(each.value) for each in addresses):
                continue
        yield rule


(COMMA,) = tinycss2.parse_component_value_list(",")


def purge(sheet: Path, used: set[str]) -> None:
    """Write a style sheet anew, without what cannot apply."""

    def there(address: str) -> bool:
        path = re.sub(r"[?#].*", "", address)
        return path.startswith("data:") or (sheet.parent / path).exists()

    rules = tinycss2.parse_stylesheet(
        sheet.read_text("utf-8"), skip_comments=True, skip_whitespace=True
    )
    kept = lean(rules, used, there)
    sheet.write_text(tinycss2.serialize(kept), encoding="utf-8")


def lighten(app: Sphinx, failure: Exception | None) -> None:
    """Take from the finished site what none of its pages uses."""
    if failure is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    static = site / "_static"
    for pattern in UNUSED:
        for path in list(static.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    used = names_used(
        (page.read_text("utf-8") for page in site.rglob("*.html")),
        (script.read_text("utf-8") for script in static.rglob("*.js")),
    )
    for sheet in static.rglob("*.css"):
        if sheet.name != "book.css":  # ours: what it holds is used, or a mistake
            purge(sheet, used)


def setup(app: Sphinx) -> dict[str, bool]:
    """Purge what is built."""
    app.connect("build-finished", lighten, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
