"""Compile a check of an exercise to JavaScript, so that a page answers as Python does.

A small Python, no larger than the checks need: functions of numbers, text, lists and
dictionaries, without classes, `while`, `try` or tensors. Globals are compiled too where
they are functions, and written out where they are data, whatever computed them. All
that Python's operators and built-in functions mean is in `py`, in
book/_static/answers.js.
"""

import ast
import inspect
import json
import math
import re
import textwrap
from collections.abc import Callable
from types import FunctionType
from typing import Any

from bookkit import exercises

BUILTINS = {
    *("abs", "all", "any", "int", "len", "list", "map", "max", "min", "range", "set"),
    *("sorted", "str", "sum", "tuple", "zip"),
}
READERS = ("right", "wrong", "number", "numbers", "blanks")
RESERVED = {"new", "default", "delete", "function", "this", "var", "let", "typeof"}
ARITHMETIC = {ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
CALLED = {ast.Add: "add", ast.FloorDiv: "floordiv", ast.BitOr: "union"}
ORDER = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
EQUAL = {ast.Eq: "py.eq", ast.NotEq: "!py.eq", ast.In: "py.has", ast.NotIn: "!py.has"}


class Unknown(Exception):  # noqa: N818
    """A check holds Python that is not compiled."""


def name(text: str) -> str:
    """A name that JavaScript takes."""
    return f"{text}_" if text in RESERVED else text


def literal(value: Any) -> str:
    """Data as JavaScript writes it."""
    if isinstance(value, dict):
        pairs = (f"[{literal(k)}, {literal(v)}]" for k, v in value.items())
        return f"py.dict([{', '.join(pairs)}])"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    if value is None or isinstance(value, str | bool | int | float):
        return json.dumps(value, ensure_ascii=False)
    raise Unknown(f"a global that is no data: {value!r}")


class Compiler:
    """One check with all that it calls."""

    def __init__(self, root: Callable[..., Any]) -> None:
        self.parts: dict[str, str] = {}
        self.globals: dict[str, Any] = {}
        self.local: set[str] = set()
        self.root = self.function_of(root)

    def text(self) -> str:
        """The check as an expression: a function of what the fields hold."""
        body = "\n".join([*self.parts.values(), f"return {self.root};"])
        return f"(() => {{\n{textwrap.indent(body, '  ')}\n}})()"

    def function_of(self, function: Callable[..., Any]) -> str:
        """Compile a function of a module, once; its name."""
        plain = inspect.unwrap(function)
        if not isinstance(plain, FunctionType):
            raise Unknown(f"a call of {function!r}")
        if plain.__name__ in self.parts:
            return plain.__name__
        self.parts[plain.__name__] = ""  # before its own calls of itself
        before = self.globals, self.local
        self.globals, self.local = plain.__globals__, set()
        tree = ast.parse(textwrap.dedent(inspect.getsource(plain))).body[0]
        assert isinstance(tree, ast.FunctionDef)
        self.parts[plain.__name__] = self.define(tree)
        self.globals, self.local = before
        return plain.__name__

    # Statements.

    def define(self, node: ast.FunctionDef) -> str:
        """A function, its variables declared at its head."""
        outer = self.local
        given = [each.arg for each in node.args.args]
        stored = {
            n.id
            for part in node.body
            for n in self.own(part)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        inner = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
        self.local = outer | set(given) | stored | inner
        declared = ", ".join(map(name, sorted(stored - set(given))))
        lines = [f"let {declared};"] if declared else []
        lines += [self.statement(part) for part in node.body]
        body = textwrap.indent("\n".join(filter(None, lines)), "  ")
        head = f"function {name(node.name)}({self.parameters(node.args)})"
        self.local = outer
        return f"{head} {{\n{body}\n}}"

    def own(self, node: ast.AST) -> list[ast.AST]:
        """A node and all in it, but for the insides of functions and comprehensions."""
        apart = ast.FunctionDef | ast.Lambda | ast.ListComp | ast.GeneratorExp
        if isinstance(node, apart | ast.SetComp):
            return []
        return [node, *(n for c in ast.iter_child_nodes(node) for n in self.own(c))]

    def parameters(self, args: ast.arguments) -> str:
        """What stands between a function's parentheses."""
        if args.vararg or args.kwarg or args.kwonlyargs:
            raise Unknown("a function of any number of arguments")
        without = len(args.args) - len(args.defaults)
        made = [name(each.arg) for each in args.args]
        for i, value in enumerate(args.defaults, without):
            made[i] += f" = {self.value(value)}"
        return ", ".join(made)

    def block(self, body: list[ast.stmt]) -> str:
        """Statements in braces."""
        inside = "\n".join(filter(None, map(self.statement, body)))
        return f"{{\n{textwrap.indent(inside, '  ')}\n}}"

    def statement(self, node: ast.stmt) -> str:
        """One statement; a docstring is none."""
        match node:
            case ast.Expr(ast.Constant(str())):
                return ""
            case ast.Expr(value):
                return f"{self.value(value)};"
            case ast.FunctionDef():
                return self.define(node)
            case ast.Return(value):
                return f"return {self.value(value) if value else 'null'};"
            case ast.If(test, body, otherwise):
                after = f" else {self.block(otherwise)}" if otherwise else ""
                return f"if ({self.truth(test)}) {self.block(body)}{after}"
            case ast.For(target, series, body, []):
                each = f"const {self.target(target)} of py.list({self.value(series)})"
                return f"for ({each}) {self.block(body)}"
            case ast.Continue():
                return "continue;"
            case ast.Assign([ast.Subscript(held, key)], value):
                parts = ", ".join(map(self.value, (held, key, value)))
                return f"py.put({parts});"
            case ast.Assign([target], value):
                return f"{self.target(target)} = {self.value(value)};"
            case ast.AnnAssign(target, _, value) if value:
                return f"{self.target(target)} = {self.value(value)};"
            case ast.AugAssign(ast.Name() as target, op, value):
                left = ast.copy_location(ast.Name(target.id, ast.Load()), target)
                whole = ast.copy_location(ast.BinOp(left, op, value), target)
                return f"{self.target(target)} = {self.value(whole)};"
        raise Unknown(f"line {node.lineno}: {ast.unparse(node)}")

    def target(self, node: ast.expr) -> str:
        """What is assigned to."""
        match node:
            case ast.Name(id):
                return name(id)
            case ast.Tuple(parts) | ast.List(parts):
                return f"[{', '.join(map(self.target, parts))}]"
        raise Unknown(f"line {node.lineno}: an assignment to {ast.unparse(node)}")

    # Expressions.

    def truth(self, node: ast.expr) -> str:
        """A condition."""
        if isinstance(node, ast.Compare):
            return self.value(node)
        return f"py.truthy({self.value(node)})"

    def value(self, node: ast.expr) -> str:
        """An expression."""
        match node:
            case ast.Constant(value):
                return literal(value)
            case ast.Name():
                return self.named(node)
            case ast.JoinedStr(parts):
                return f"py.join([{', '.join(map(self.value, parts))}])"
            case ast.FormattedValue(value, conversion, spec):
                how = ast.literal_eval(ast.unparse(spec)[1:]) if spec else ""
                how = "!r" if conversion == ord("r") else how
                if not re.fullmatch(r"!r|(\.\d)?g|\.\df|", how):
                    raise Unknown(f"line {node.lineno}: the format {how}")
                return f"py.format({self.value(value)}, {json.dumps(how)})"
            case ast.List(parts) | ast.Tuple(parts):
                return f"[{', '.join(map(self.value, parts))}]"
            case ast.Starred(value):
                return f"...py.list({self.value(value)})"
            case ast.Dict(keys, values) if None not in keys:
                pairs = zip(keys, values, strict=True)
                made = [f"[{self.value(k)}, {self.value(v)}]" for k, v in pairs if k]
                return f"py.dict([{', '.join(made)}])"
            case ast.BinOp(left, op, right):
                a, b = self.value(left), self.value(right)
                if type(op) in ARITHMETIC:
                    return f"(({a}) {ARITHMETIC[type(op)]} ({b}))"
                if type(op) in CALLED:
                    return f"py.{CALLED[type(op)]}({a}, {b})"
            case ast.UnaryOp(ast.Not(), value):
                return f"!{self.truth(value)}"
            case ast.UnaryOp(ast.USub(), value):
                return f"(-({self.value(value)}))"
            case ast.BoolOp(op, parts):
                sign = " && " if isinstance(op, ast.And) else " || "
                return f"({sign.join(map(self.truth, parts))})"
            case ast.Compare():
                return self.comparison(node)
            case ast.IfExp(test, yes, no):
                parts = f"{self.value(yes)} : {self.value(no)}"
                return f"({self.truth(test)} ? {parts})"
            case ast.Subscript(held, ast.Slice(lower, upper, None)):
                ends = [self.value(end) if end else "null" for end in (lower, upper)]
                return f"py.slice({self.value(held)}, {', '.join(ends)})"
            case ast.Subscript(held, key):
                return f"py.at({self.value(held)}, {self.value(key)})"
            case ast.ListComp(made, [loop]) | ast.GeneratorExp(made, [loop]):
                return self.comprehension(made, loop)
            case ast.SetComp(made, [loop]):
                return f"py.set({self.comprehension(made, loop)})"
            case ast.Lambda(args, body):
                outer, self.local = self.local, self.local | {a.arg for a in args.args}
                made = f"(({self.parameters(args)}) => {self.value(body)})"
                self.local = outer
                return made
            case ast.Attribute(ast.Name("math"), "pi"):
                return literal(math.pi)
            case ast.Call(function, args, keywords):
                return self.call(function, args, keywords)
        raise Unknown(f"line {node.lineno}: {ast.unparse(node)}")

    def named(self, node: ast.Name) -> str:
        """A variable, a function of Python's or of this check, or data."""
        text = node.id
        if text in self.local:
            return name(text)
        if text in self.globals:
            value = self.globals[text]
            if text in READERS and value is getattr(exercises, text):
                return f"py.{text}"
            if isinstance(value, FunctionType):
                return self.function_of(value)
            return literal(value)
        if text in BUILTINS:
            return f"py.{text}"
        raise Unknown(f"line {node.lineno}: {text}")

    def call(
        self, function: ast.expr, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> str:
        """A call of a function, of `math` or of a method."""
        given = [self.value(each) for each in args]
        named = [k for k in keywords if k.arg != "strict"]
        match function:
            case ast.Name("isinstance") if ast.unparse(args[1]) == "str":
                return f"(typeof {given[0]} === 'string')"
            case ast.Attribute(ast.Name("math"), attr):
                if named:
                    pairs = (f"{k.arg}: {self.value(k.value)}" for k in named)
                    given.append(f"{{ {', '.join(pairs)} }}")
                return f"py.math.{attr}({', '.join(given)})"
            case ast.Attribute(value, attr) if not named:
                parts = [self.value(value), json.dumps(attr), *given]
                return f"py.method({', '.join(parts)})"
            case _ if not named:
                return f"{self.value(function)}({', '.join(given)})"
        raise Unknown(f"line {function.lineno}: a keyword of {ast.unparse(function)}")

    def comparison(self, node: ast.Compare) -> str:
        """A comparison, or several in a chain."""
        sides = [node.left, *node.comparators]
        made = []
        for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
            a, b = self.value(left), self.value(right)
            if type(op) in EQUAL:
                made.append(f"{EQUAL[type(op)]}({a}, {b})")
            elif type(op) in ORDER:
                made.append(f"({a}) {ORDER[type(op)]} ({b})")
            elif isinstance(op, ast.Is | ast.IsNot) and b == "null":
                made.append(f"{a} {'!' * isinstance(op, ast.IsNot) or '='}== null")
            else:
                raise Unknown(f"line {node.lineno}: {ast.unparse(node)}")
        return f"({' && '.join(made)})"

    def comprehension(self, made: ast.expr, loop: ast.comprehension) -> str:
        """A list of what is made in a loop."""
        if loop.ifs:
            raise Unknown(f"line {made.lineno}: an `if` in a comprehension")
        series = self.value(loop.iter)
        outer = self.local
        targets = [n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)]
        self.local = outer | set(targets)
        each = f"({self.target(loop.target)}) => {self.value(made)}"
        self.local = outer
        return f"py.list({series}).map({each})"


def compiled(check: Callable[..., Any]) -> str:
    """A check's JavaScript, an expression that is a function of the answer.

    Raises:
        Unknown: for Python that is not compiled; the message names the line.
    """
    return Compiler(check).text()
