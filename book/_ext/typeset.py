r"""Formulas as MathML, made at build time: no script, nothing to wait for.

What the book needs of LaTeX and amsmath, with TeX's spaces between symbols. A command
that is not known here is a warning, and the build is strict.
"""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

logger = logging.getLogger(__name__)
TOKEN = re.compile(r"\\(?:operatorname\*|[A-Za-z]+|.)|\s+|.", re.DOTALL)
NUMBER = re.compile(r"\d+(?:(?:\{,\}|,(?=\d{3}(?!\d)))\d{3})*(?:\.\d+)?")
THIN = 1 / 6


def names(text: str) -> list[str]:
    """The names in a line of them."""
    return text.split()


GREEK = dict(
    zip(
        names(
            "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota "
            "kappa lambda mu nu xi pi rho sigma tau upsilon phi varphi chi psi omega"
        ),
        "αβγδϵεζηθϑικλμνξπρστυϕφχψω",
        strict=True,
    )
)
CAPITALS = dict(
    zip(
        names("Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega"),
        "ΓΔΘΛΞΠΣΥΦΨΩ",
        strict=True,
    )
)
LETTERS = {  # stand for a quantity: no space around them
    **{"infty": "∞", "partial": "∂", "ell": "ℓ", "nabla": "∇", "top": "⊤", "dots": "…"},
    **{"forall": "∀", "exists": "∃", "ldots": "…", "vdots": "⋮", "cdots": "⋯"},
    **{"%": "%", "#": "#", "$": "$", "_": "_", "&": "&"},
}
BINARY = {
    **{"cdot": "⋅", "times": "×", "odot": "⊙", "oplus": "⊕", "otimes": "⊗", "pm": "±"},
    **{"circ": "∘", "cup": "∪", "cap": "∩", "+": "+", "-": "−", "*": "∗"},
}
RELATIONS = {
    **{"=": "=", "<": "<", ">": ">", ":": ":", "le": "≤", "leq": "≤", "ge": "≥"},
    **{"geq": "≥", "ne": "≠", "neq": "≠", "ll": "≪", "gg": "≫", "approx": "≈"},
    **{"sim": "∼", "equiv": "≡", "propto": "∝", "in": "∈", "notin": "∉", "mid": "∣"},
    **{"subset": "⊂", "subseteq": "⊆", "to": "→", "rightarrow": "→", "mapsto": "↦"},
    **{"leftarrow": "←", "Rightarrow": "⇒"},
}
OPENING = {
    **{"(": "(", "[": "[", "{": "{", "langle": "⟨", "lVert": "‖", "lvert": "|"},
    **{"lfloor": "⌊", "lceil": "⌈"},
}
CLOSING = {
    **{")": ")", "]": "]", "}": "}", "rangle": "⟩", "rVert": "‖", "rvert": "|"},
    **{"rfloor": "⌋", "rceil": "⌉", "!": "!"},
}
PUNCTUATION = {",": ",", ";": ";"}
PLAIN = {"/": "/", "|": "|", ".": "."}
LARGE = {"sum": "∑", "prod": "∏", "int": "∫"}
FUNCTIONS = set(names("log ln exp sin cos tan tanh"))
LIMITS = set(names("max min lim sup inf"))
SPACES = {
    **{",": THIN, ":": 2 / 9, ">": 2 / 9, ";": 5 / 18, "!": -THIN, " ": 0.25},
    **{"quad": 1.0, "qquad": 2.0, "\n": 0.25},
}
ACCENTS = {"bar": "¯", "hat": "^", "tilde": "~", "vec": "→"}
FENCES = {
    **{"matrix": ("", ""), "bmatrix": ("[", "]"), "pmatrix": ("(", ")")},
    "cases": ("{", ""),
}
ALIGNED = {"aligned", "align", "align*"}
STYLES = {  # where the alphabet begins: capitals, small letters, digits
    "mathbf": (0x1D400, 0x1D41A, 0x1D7CE),
    "mathbb": (0x1D538, 0x1D552, 0x1D7D8),
    "mathcal": (0x1D49C, 0x1D4B6, 0),
}
HOLES = {  # letters that Unicode had before it got the alphabets
    **{0x1D49D: "ℬ", 0x1D4A0: "ℰ", 0x1D4A1: "ℱ", 0x1D4A3: "ℋ", 0x1D4A4: "ℐ"},
    **{0x1D4A7: "ℒ", 0x1D4A8: "ℳ", 0x1D4AD: "ℛ", 0x1D53A: "ℂ", 0x1D53F: "ℍ"},
    **{0x1D545: "ℕ", 0x1D547: "ℙ", 0x1D548: "ℚ", 0x1D549: "ℝ", 0x1D551: "ℤ"},
}


class FormulaError(ValueError):
    """A formula that cannot be typeset."""


@dataclass
class Atom:
    """A symbol or a group of them: its class in TeX's sense, and its MathML.

    `mark` is the text of an operator, whose form is only known beside its neighbours.
    """

    kind: str  # ord, op, bin, rel, open, close, punct, inner, space
    body: str = ""
    mark: str = ""
    limits: bool = False
    width: float = 0.0

    def write(self, form: str) -> str:
        """The MathML, an operator's with the space that its place asks for."""
        if not self.mark:
            return self.body
        # An unary minus or a sign in a script stands close.
        space = {"bin": "0.2222em", "rel": "0.2778em"}.get(form, "0")
        after = "0.1667em" if form == "punct" else space
        fence = {"open": ' form="prefix"', "close": ' form="postfix"'}.get(
            self.kind, ""
        )
        return self.body.replace(
            "<mo", f'<mo{fence} lspace="{space}" rspace="{after}"', 1
        )


def mo(text: str, **attributes: str) -> str:
    """An operator."""
    more = "".join(f' {name}="{value}"' for name, value in attributes.items())
    return f"<mo{more}>{html.escape(text)}</mo>"


def sign(kind: str, text: str) -> Atom:
    """An operator that does not grow."""
    return Atom(kind, mo(text, stretchy="false"), mark=text)


def mspace(width: float) -> str:
    """Empty room; what is less than none is a margin."""
    if width < 0:
        return f'<mspace style="margin-left:{width:.4g}em"/>'
    return f'<mspace width="{width:.4g}em"/>'


def row(atoms: list[Atom], before: str = "", script: bool = False) -> str:
    """Atoms side by side, with TeX's spaces; one element, whatever their number."""
    out: list[str] = []
    last = before
    owed = 0.0
    for number, atom in enumerate(atoms):
        if atom.kind == "space":
            owed += atom.width
            continue
        kind = atom.kind
        later = next((a.kind for a in atoms[number + 1 :] if a.kind != "space"), "")
        if kind == "bin" and (
            last in ("", "op", "bin", "rel", "open", "punct")
            or later in ("", "rel", "close", "punct")
        ):
            kind = "ord"
        thin = (
            (last == "op" and kind in ("ord", "op", "inner"))
            or (last in ("ord", "close", "inner") and kind == "op")
            or ("inner" in (last, kind) and last in ("ord", "inner", "close", "punct")
                and kind in ("ord", "inner", "open", "op"))
        )  # fmt: skip
        if thin and not script:
            owed += THIN
        if abs(owed) > 0.01:
            out.append(mspace(owed))
        owed = 0.0
        out.append(atom.write("ord" if script else kind))
        last = kind
    if owed > 0.01:
        out.append(mspace(owed))
    return out[0] if len(out) == 1 else f"<mrow>{''.join(out)}</mrow>"


class Formula:
    """A reader of LaTeX that goes through it once."""

    def __init__(self, tex: str, display: bool = False) -> None:
        self.tex = tex.strip()
        self.place = 0
        self.display = display

    def mathml(self) -> str:
        """The whole formula as a `<math>` element."""
        body = row(self.atoms(()))
        if self.place < len(self.tex):
            raise FormulaError(f"unexpected {self.peek()!r}")
        block = ' display="block"' if self.display else ""
        return f"<math{block}>{body}</math>"

    def peek(self) -> str:
        """The next token, or nothing at the end."""
        found = TOKEN.match(self.tex, self.place)
        return found[0] if found else ""

    def take(self) -> str:
        """The next token, gone past."""
        token = self.peek()
        self.place += len(token)
        return token

    def skip_space(self) -> None:
        """Go past what TeX does not see."""
        while self.peek().isspace():
            self.take()

    def expect(self, token: str) -> None:
        """Go past a token that must stand here."""
        self.skip_space()
        if (got := self.take()) != token:
            raise FormulaError(f"expected {token!r}, got {got!r}")

    def atoms(self, stop: tuple[str, ...]) -> list[Atom]:
        """Everything up to one of the tokens in `stop`, which is left there."""
        found: list[Atom] = []
        while (token := self.peek()) and token not in stop:
            if token in ("^", "_", "'"):
                base = (
                    found.pop()
                    if found and found[-1].kind != "space"
                    else Atom("ord", "<mrow></mrow>")
                )
                found.append(self.scripts(base))
            elif token == r"\displaystyle":
                self.take()
                rest = self.atoms(stop)
                if self.display and not found:
                    return rest
                body = f'<mstyle displaystyle="true">{row(rest)}</mstyle>'
                return [*found, Atom("ord", body)]
            elif token.isspace():
                self.take()
            else:
                found += self.atom()
        return found

    def group(self) -> list[Atom]:
        """An argument: what stands in braces, or one symbol."""
        self.skip_space()
        if self.peek() == "{":
            self.take()
            inside = self.atoms(("}",))
            self.expect("}")
            return inside
        if self.peek().isdigit():
            return [Atom("ord", f"<mn>{self.take()}</mn>")]
        if not self.peek() or self.peek() in ("}", "&", r"\\", "^", "_"):
            raise FormulaError("an argument is missing")
        return self.atom()

    def argument(self, script: bool = False) -> str:
        """An argument as one element."""
        return row(self.group(), script=script)

    def words(self) -> str:
        """A braced argument as it stands."""
        self.expect("{")
        start, depth = self.place, 1
        while depth:
            token = self.take()
            if not token:
                raise FormulaError("a brace is missing")
            depth += (token == "{") - (token == "}")
        return self.tex[start : self.place - 1]

    def scripts(self, base: Atom) -> Atom:
        """What stands under, over, below and above an atom."""
        down = up = ""
        primes = 0
        while self.peek() in ("^", "_", "'"):
            token = self.take()
            if token == "'":
                primes += 1
            elif token == "^" and not up:
                up = self.argument(script=True)
            elif token == "_" and not down:
                down = self.argument(script=True)
            else:
                raise FormulaError("two superscripts or two subscripts")
            self.skip_script_space()
        if primes:
            marks = f"<mo>{'′' * primes}</mo>"
            up = f"<mrow>{marks}{up}</mrow>" if up else marks
        names = ("munder", "mover", "munderover")
        if not base.limits:
            names = ("msub", "msup", "msubsup")
        body = base.write("ord")
        if down and up:
            made = f"<{names[2]}>{body}{down}{up}</{names[2]}>"
        elif down:
            made = f"<{names[0]}>{body}{down}</{names[0]}>"
        else:
            made = f"<{names[1]}>{body}{up}</{names[1]}>"
        if base.kind in ("bin", "rel") and base.mark:  # the operator keeps its space
            made = made.replace('lspace="0" rspace="0"', "", 1)
        return Atom(base.kind, made)

    def skip_script_space(self) -> None:
        """Spaces between an atom's scripts."""
        here = self.place
        self.skip_space()
        if self.peek() not in ("^", "_", "'"):
            self.place = here

    def atom(self) -> list[Atom]:
        """The next symbol, group or command."""
        if number := NUMBER.match(self.tex, self.place):
            self.place = number.end()
            return [Atom("ord", f"<mn>{number[0].replace('{,}', ',')}</mn>")]
        token = self.peek()
        if token == "{":
            return [Atom("ord", row(self.group()))]
        self.take()
        if token == "~":
            return [Atom("space", width=0.25)]
        name = token.removeprefix("\\")
        if token.startswith("\\") and name:
            return self.command(name)
        if token.isalpha():
            return [Atom("ord", f"<mi>{token}</mi>")]
        found = None if token in ("}", "&") else symbol(name)
        if found is None:
            if ord(token) > 127:
                return [Atom("ord", f"<mi>{token}</mi>")]
            raise FormulaError(f"unexpected {token!r}")
        return [found]

    def command(self, name: str) -> list[Atom]:
        """What a command stands for."""
        if name in SPACES:
            return [Atom("space", width=SPACES[name])]
        if name in ("{", "}", "|"):
            kind = {"{": "open", "}": "close", "|": "ord"}[name]
            return [sign(kind, "‖" if name == "|" else name)]
        if (name.isalpha() or name in LETTERS) and (found := symbol(name)):
            return [found]
        if name in STYLES:
            return [Atom("ord", styled(self.words().strip(), STYLES[name]))]
        made: Callable[[], list[Atom]] | None = getattr(
            self, f"do_{name.rstrip('*')}", None
        )
        if made is None:
            if name in ACCENTS:
                return [self.accent(name)]
            raise FormulaError(f"unknown command \\{name}")
        self.starred = name.endswith("*")
        return made()

    def accent(self, name: str) -> Atom:
        """A mark over its argument."""
        mark = mo(ACCENTS[name], stretchy="false")
        return Atom("ord", f'<mover accent="true">{self.argument()}{mark}</mover>')

    def do_underbrace(self) -> list[Atom]:
        """A brace along its argument; what it says is a script with limits."""
        body = f"<munder>{self.argument()}{mo('⏟', stretchy='true')}</munder>"
        return [Atom("inner", body, limits=True)]

    def do_operatorname(self) -> list[Atom]:
        starred = self.starred
        text = re.sub(r"\\[,;: ]", "\u2009", self.words()).replace("\\", "")
        if starred:
            body = mo(text, movablelimits="true", lspace="0", rspace="0")
            return [Atom("op", body, limits=True)]
        return [Atom("op", upright(text))]

    def do_text(self) -> list[Atom]:
        parts = re.split(r"(?<!\\)\$(.*?)(?<!\\)\$", self.words())
        found = []
        for number, part in enumerate(parts):
            if number % 2:
                found.append(row(Formula(part).atoms(())))
            elif part:
                plain = re.sub(r"\\([%#$&_{} ])", r"\1", part).replace(" ", "\u00a0")
                found.append(f"<mtext>{html.escape(plain)}</mtext>")
        body = found[0] if len(found) == 1 else f"<mrow>{''.join(found)}</mrow>"
        return [Atom("ord", body)]

    def do_mathrm(self) -> list[Atom]:
        text = self.words().strip()
        if re.fullmatch(r"[A-Za-z\d ]+", text):
            return [Atom("ord", upright(text.replace(" ", "")))]
        return Formula(text).atoms(())

    def do_frac(self) -> list[Atom]:
        body = f"<mfrac>{self.argument()}{self.argument()}</mfrac>"
        return [Atom("ord" if not self.display else "inner", body)]

    def do_tfrac(self) -> list[Atom]:
        body = f"<mfrac>{self.argument()}{self.argument()}</mfrac>"
        style = f'<mstyle displaystyle="false" scriptlevel="0">{body}</mstyle>'
        return [Atom("ord", style)]

    def do_sqrt(self) -> list[Atom]:
        return [Atom("ord", f"<msqrt>{self.argument()}</msqrt>")]

    def do_underset(self) -> list[Atom]:
        mark, base = self.argument(script=True), self.group()
        kind = base[0].kind if len(base) == 1 else "ord"
        return [Atom(kind, f"<munder>{row(base)}{mark}</munder>")]

    def do_phantom(self) -> list[Atom]:
        return [Atom("ord", f"<mphantom>{self.argument()}</mphantom>")]

    def delimiter(self) -> str:
        r"""The mark behind \left, \middle or \right."""
        self.skip_space()
        token = self.take()
        name = token.removeprefix("\\")
        if token == ".":
            return ""
        if token == r"\|":
            return "‖"
        for known in (OPENING, CLOSING, PLAIN, RELATIONS):
            if name in known:
                return known[name]
        raise FormulaError(f"no delimiter: {token!r}")

    def do_left(self) -> list[Atom]:
        mark = self.delimiter()
        parts = [fence(mark, "prefix")]
        while True:
            parts.append(row(self.atoms((r"\middle", r"\right"))))
            token = self.take()
            if token == r"\right":
                break
            if token != r"\middle":
                raise FormulaError(r"\left without \right")
            parts.append(
                mo(self.delimiter(), stretchy="true", lspace="0.05em", rspace="0.05em")
            )
        parts.append(fence(self.delimiter(), "postfix"))
        return [Atom("inner", f"<mrow>{''.join(parts)}</mrow>")]

    def rows(
        self, stop: tuple[str, ...], before: str = ""
    ) -> list[tuple[list[str], list[bool], str]]:
        """The rows of a table: cells, which of them are numbers, and room below."""
        found = []
        while True:
            cells: list[str] = []
            numbers: list[bool] = []
            while True:
                start = self.place
                # The left side of an aligned sign is empty, yet it binds.
                atoms = self.atoms(("&", r"\\", *stop))
                text = self.tex[start : self.place].strip()
                numbers.append(bool(re.fullmatch(r"[-+]?[\d.,{}]+", text)) or not text)
                cells.append(
                    row(atoms, before if len(cells) % 2 else "") if atoms else ""
                )
                if self.peek() != "&":
                    break
                self.take()
            gap = ""
            token = self.peek()
            if token == r"\\":
                self.take()
                if size := re.compile(r"\s*\[([\d.]+)(pt|em|ex)\]").match(
                    self.tex, self.place
                ):
                    self.place = size.end()
                    gap = f"{float(size[1]) / (10 if size[2] == 'pt' else 1):g}em"
            if any(cells):
                found.append((cells, numbers, gap))
            if token != r"\\":
                return found

    def do_begin(self) -> list[Atom]:
        name = self.words()
        if name not in FENCES and name not in ALIGNED:
            raise FormulaError(f"unknown environment {name}")
        rows = self.rows((r"\end",), before="ord" if name in ALIGNED else "")
        self.expect(r"\end")
        if (other := self.words()) != name:
            raise FormulaError(f"{name} ends as {other}")
        look, shown = "cases" if name == "cases" else "matrix", ""
        if name in ALIGNED:
            look, shown = "aligned", ' displaystyle="true"'
        width = max((len(cells) for cells, _, _ in rows), default=0)
        right = [
            look == "matrix"
            and all(numbers[i] for _, numbers, _ in rows if i < len(numbers))
            for i in range(width)
        ]
        lines = []
        for cells, _, gap in rows:
            line = []
            for i, cell in enumerate(cells):
                told = ' class="right"' if right[i] else ""
                told += f' style="padding-bottom:{gap}"' if gap else ""
                line.append(f"<mtd{told}>{cell}</mtd>")
            lines.append(f"<mtr>{''.join(line)}</mtr>")
        table = f'<mtable class="{look}"{shown}>{"".join(lines)}</mtable>'
        opening, closing = FENCES.get(name, ("", ""))
        if not opening:
            return [Atom("ord", table)]
        body = f"{fence(opening, 'prefix')}{table}{fence(closing, 'postfix')}"
        return [Atom("inner", f"<mrow>{body}</mrow>")]


def fence(mark: str, form: str) -> str:
    """A delimiter as high as what it holds; nothing for none."""
    if not mark:
        return ""
    return mo(
        mark, form=form, fence="true", stretchy="true", symmetric="true",
        lspace="0", rspace="0",
    )  # fmt: skip


def upright(text: str) -> str:
    """A name stands upright; one of a single letter must be told to."""
    plain = ' mathvariant="normal"' if len(text) == 1 else ""
    return f"<mi{plain}>{html.escape(text)}</mi>"


def styled(text: str, starts: tuple[int, int, int]) -> str:
    """Letters and digits of another alphabet."""
    found = []
    for letter in text:
        begin, first = next(
            (
                (begin, first)
                for begin, first, last in zip(starts, "Aa0", "Zz9", strict=True)
                if first <= letter <= last and begin
            ),
            (0, ""),
        )
        if not begin:
            raise FormulaError(f"no {letter!r} in that alphabet")
        code = begin + ord(letter) - ord(first)
        found.append(HOLES.get(code, chr(code)))
    return f"<mi>{''.join(found)}</mi>"


def symbol(name: str) -> Atom | None:
    """The symbol called so."""
    for kind, known in (
        ("bin", BINARY),
        ("rel", RELATIONS),
        ("open", OPENING),
        ("close", CLOSING),
        ("punct", PUNCTUATION),
        ("ord", PLAIN),
    ):
        if name in known:
            return sign(kind, known[name])
    if name in GREEK:
        return Atom("ord", f"<mi>{GREEK[name]}</mi>")
    if name in CAPITALS or name in LETTERS:
        text = html.escape(CAPITALS.get(name) or LETTERS[name])
        kind = "inner" if name in ("dots", "ldots", "cdots") else "ord"
        italic = name in ("partial", "ell")
        return Atom(
            kind,
            f"<mi>{text}</mi>" if italic else f'<mi mathvariant="normal">{text}</mi>',
        )
    if name in LARGE:
        body = mo(LARGE[name], movablelimits="true", lspace="0", rspace="0")
        return Atom("op", body, limits=name != "int")
    if name in LIMITS:
        body = mo(name, movablelimits="true", lspace="0", rspace="0")
        return Atom("op", body, limits=True)
    if name in FUNCTIONS:
        return Atom("op", upright(name))
    return None


def mathml(tex: str, display: bool = False) -> str:
    """A formula in LaTeX as a `<math>` element.

    Raises:
        FormulaError: for a command that is not known here, or unbalanced groups.
    """
    return Formula(tex, display).mathml()


def written(node: nodes.Element, display: bool) -> str:
    """The formula of a node; one that cannot be typeset is a warning, and stays TeX."""
    try:
        return mathml(node.astext(), display)
    except FormulaError as error:
        logger.warning("formula: %s in %s", error, node.astext(), location=node)
        return f"<code>{html.escape(node.astext())}</code>"


def visit_math(self: Any, node: nodes.math) -> None:
    """A formula in a line of text."""
    self.body.append(written(node, display=False))
    raise nodes.SkipNode


def visit_displaymath(self: Any, node: nodes.math_block) -> None:
    """A formula of its own, with its number."""
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(written(node, display=True))
    if node["number"]:
        number = get_node_equation_number(self, node)
        self.body.append(f'<span class="eqno">({number})')
        self.add_permalink_ref(node, "Link to this equation")
        self.body.append("</span>")
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
