"""Mutants of a module: one changed expression or statement each. Pure.

Left alone: docstrings, log lines, messages, annotations, imports, assertions, protocols and error classes.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SHOWN_CHARS_MAX = 160

COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
UNCHANGED = frozenset({"log", "dataclass", "field", "cast", "TypeVar", "Annotated"})
"""Calls by these names are left alone with their arguments: log lines, declarations, types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one module.

    Attributes:
        file: path of the module, relative to the repository.
        number: index among the module's mutants.
        line: line of the change, counted from 1.
        statement_line: first line of its statement.
        used: of a constant of the module, the lines that name it.
        before: the expression or statement as it is.
        after: the same as the mutant has it.
        in_function: whether the line runs when a function is called, not when the module is imported.
        tree: the changed module.
    """

    file: str
    number: int
    line: int
    statement_line: int
    used: tuple[int, ...]
    before: str
    after: str
    in_function: bool
    tree: ast.Module

    @property
    def id(self) -> str:
        """Its name: stable as long as the module is unchanged."""
        return f"{self.file}#{self.number}"


def lines(module: ast.Module) -> list[int]:
    """The line of each mutant of a module; its index is the mutant's number."""
    return [getattr(place.node, "lineno", 0) for place in _places(module)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A change that can be made in place.

    Attributes:
        node: what is changed.
        statement: its statement.
        change: makes the change; returns what stands in the place of the statement then.
        in_function: as in `Mutant`.
    """

    node: ast.AST
    statement: ast.stmt
    change: Callable[[], ast.stmt]
    in_function: bool


def mutant(tree: ast.Module, file: str, number: int) -> Mutant:
    """One mutant of a module; the module itself stays as it is."""
    changed = copy.deepcopy(tree)
    place = next(p for at, p in enumerate(_places(changed)) if at == number)
    before = _text(place.statement)
    after = place.change()
    ast.fix_missing_locations(changed)
    return Mutant(
        file=file,
        number=number,
        line=getattr(place.node, "lineno", 0),
        statement_line=getattr(place.statement, "lineno", 0),
        used=_used(tree, place.statement),
        before=before,
        after=_text(after),
        in_function=place.in_function,
        tree=changed,
    )


def _used(tree: ast.Module, statement: ast.stmt) -> tuple[int, ...]:
    """The lines that name the constants that a statement defines."""
    targets = getattr(statement, "targets", [getattr(statement, "target", None)])
    names = {
        part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)
    }
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return tuple(sorted({node.lineno for node in found if node.id in names}))


def _text(node: ast.AST) -> str:
    """A node as source text, cut to its first lines."""
    if isinstance(node, ast.If | ast.While):
        text = f"if {ast.unparse(node.test)}: …"
    elif isinstance(node, ast.For):
        text = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}: …"
    elif isinstance(node, ast.FunctionDef):
        text = f"def {node.name}({ast.unparse(node.args)}): …"
    else:
        text = ast.unparse(node)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"


def _places(tree: ast.Module) -> Iterator[_Place]:
    yield from _of_body(tree.body, in_function=False)


def _of_body(body: list[ast.stmt], *, in_function: bool) -> Iterator[_Place]:
    for index, statement in enumerate(body):
        yield from _of_statement(body, index, statement, in_function=in_function)


def _of_statement(body: list[ast.stmt], index: int, node: ast.stmt, *, in_function: bool) -> Iterator[_Place]:
    if (
        isinstance(node, ast.Import | ast.ImportFrom | ast.Pass | ast.Assert)
        or _is_text(node)
        or _is_log(node)
    ):
        return
    if isinstance(node, ast.ClassDef):
        if not any("Protocol" in ast.unparse(base) or "Error" in ast.unparse(base) for base in node.bases):
            yield from _of_body(node.body, in_function=False)
        return
    if isinstance(node, ast.FunctionDef):
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                yield from _of_expression(default, node, in_function=False)
        yield from _of_body(node.body, in_function=True)
        return
    if in_function:
        yield from _whole(body, index, node)
    for field in ("test", "iter", "value"):
        part = getattr(node, field, None)
        if isinstance(part, ast.expr):
            yield from _of_expression(part, node, in_function=in_function)
    for item in getattr(node, "items", ()):
        yield from _of_expression(item.context_expr, node, in_function=in_function)
    for name in ("body", "orelse", "finalbody"):
        yield from _of_body(getattr(node, name, []), in_function=in_function)
    for handler in getattr(node, "handlers", ()):
        yield from _of_body(handler.body, in_function=in_function)
    for case in getattr(node, "cases", ()):
        yield from _of_body(case.body, in_function=in_function)


def _whole(body: list[ast.stmt], index: int, node: ast.stmt) -> Iterator[_Place]:
    """Changes of a whole statement: left out, `return None`, a loop that ends or goes on, a negated test."""

    def place(new: ast.stmt) -> _Place:
        def change() -> ast.stmt:
            body[index] = ast.copy_location(new, node)
            return new

        return _Place(node=node, statement=node, change=change, in_function=True)

    if _can_be_left_out(node):
        yield place(ast.Pass())
    elif isinstance(node, ast.Continue):
        yield place(ast.Break())
    elif isinstance(node, ast.Break):
        yield place(ast.Continue())
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield place(ast.Return(value=ast.Constant(value=None)))
    elif isinstance(node, ast.If) and not isinstance(node.test, ast.UnaryOp):
        negated = ast.UnaryOp(op=ast.Not(), operand=node.test)
        yield place(ast.If(test=ast.copy_location(negated, node.test), body=node.body, orelse=node.orelse))


def _can_be_left_out(node: ast.stmt) -> bool:
    """A call, a raise, `+=`, or an assignment to an attribute or item, but not of a plain argument."""
    if isinstance(node, ast.Assign):
        targets = any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
        return targets and not isinstance(node.value, ast.Name)
    return isinstance(node, ast.Raise | ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )


def _of_expression(root: ast.expr, statement: ast.stmt, *, in_function: bool) -> Iterator[_Place]:
    if isinstance(root, ast.JoinedStr) or _is_left_alone(root):
        return

    def place(node: ast.AST, field: str, new: object) -> _Place:
        def change() -> ast.stmt:
            setattr(node, field, new)
            return statement

        return _Place(node=root, statement=statement, change=change, in_function=in_function)

    if isinstance(root, ast.Compare):
        for at, operator in enumerate(root.ops):
            yield place(root, "ops", [*root.ops[:at], COMPARE[type(operator)](), *root.ops[at + 1 :]])
    elif isinstance(root, ast.BoolOp):
        yield place(root, "op", ast.Or() if isinstance(root.op, ast.And) else ast.And())
    elif isinstance(root, ast.BinOp) and type(root.op) in ARITHMETIC and not _joins(root):
        yield place(root, "op", ARITHMETIC[type(root.op)]())
    elif isinstance(root, ast.IfExp):
        yield place(root, "body", root.orelse)
    elif isinstance(root, ast.UnaryOp) and isinstance(root.op, ast.Not):
        yield place(root, "operand", ast.UnaryOp(op=ast.Not(), operand=root.operand))
    elif isinstance(root, ast.Constant) and isinstance(root.value, bool):
        yield place(root, "value", not root.value)
    elif isinstance(root, ast.Constant) and isinstance(root.value, int | float):
        yield place(root, "value", root.value + 1 if root.value < 2 else root.value // 2)
    for part in ast.iter_child_nodes(root):
        if isinstance(part, ast.expr):
            yield from _of_expression(part, statement, in_function=in_function)
        elif isinstance(part, ast.keyword):
            yield from _of_expression(part.value, statement, in_function=in_function)
        elif isinstance(part, ast.comprehension):
            for inner in (part.iter, *part.ifs):
                yield from _of_expression(inner, statement, in_function=in_function)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_log(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and _is_left_alone(node.value)


def _is_left_alone(node: ast.expr) -> bool:
    """Whether it is a call of a logger or of something that only declares."""
    if not isinstance(node, ast.Call):
        return False
    first: ast.expr = node.func
    while isinstance(first, ast.Attribute):
        first = first.value
    return isinstance(first, ast.Name) and first.id in UNCHANGED


def _joins(node: ast.BinOp) -> bool:
    """Whether it joins text or lists, where another operator would only be a TypeError."""
    kinds = (ast.JoinedStr, ast.List, ast.ListComp)
    sides = (node.left, node.right)
    return any(
        isinstance(s, kinds) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )
