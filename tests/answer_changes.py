"""What can be changed in an answer: every small change of what a learner writes, one place at a time.

An operator, a comparison or a constant becomes its neighbour; an argument, a statement, a guard, a branch or a ``with``
is dropped; a call becomes what it is called on, so that ``clone`` or ``detach`` is missing; two arguments or two lines
change places; what is done in place no longer is, and the other way round. ``mutate_answers.py`` grades the results.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator

from mutate import COMPARISONS, NAMES, OPERATORS

OTHER = {  # names and texts that are taken for one another
    **NAMES,
    "sum": "mean",
    "mean": "sum",
    "float64": "float32",
    "float16": "bfloat16",
    "bfloat16": "float16",
    "double": "float",
    "float": "double",
    "numel": "element_size",
    "new_zeros": "new_ones",
    "zeros": "ones",
    "zeros_like": "ones_like",
    "nbytes": "itemsize",
    "parameters": "buffers",
    "modules": "children",
    "append": "extend",
    "forward": "backward",
    "backward": "forward",
    "send": "receive",
    "receive": "send",
    "tree": "ring",
    "ring": "tree",
    "MUST_SAVE": "PREFER_RECOMPUTE",
    "PREFER_RECOMPUTE": "MUST_SAVE",
    "square": "abs",
    "isfinite": "isreal",
    "copy_": "add_",
    "div_": "mul_",
    "discard": "remove",
}
SIMPLE = ast.Expr | ast.Assign | ast.AugAssign | ast.For | ast.While | ast.If | ast.With | ast.Continue


def changed(source: str) -> list[str]:
    """Every change of one answer, the cell as a whole, in the order of its text."""
    tree = ast.parse(source)
    ranges = _solutions(source)
    alike = _siblings(tree, ranges)
    found: dict[str, None] = {}
    for parent, name, index, node in list(_places(tree)):
        if not any(first < getattr(node, "lineno", -1) < last for first, last in ranges):
            continue
        holder = getattr(parent, name)
        for new in _instead(parent, node, alike):
            with _put(parent, name, holder, index, new):
                found[_text(tree)] = None
        if index is not None and isinstance(node, ast.stmt):
            for body in _orders(holder, index):
                with _put(parent, name, holder, None, body):
                    found[_text(tree)] = None
    found.pop(_text(tree), None)
    return [text for text in found if text and _compiles(text)]


def _solutions(source: str) -> list[tuple[int, int]]:
    """First and last line of each part that is to be written; an answer without the marks is one such part."""
    lines = source.splitlines()
    begins = [i for i, line in enumerate(lines, 1) if "# BEGIN SOLUTION" in line]
    ends = [i for i, line in enumerate(lines, 1) if "# END SOLUTION" in line]
    return list(zip(begins, ends, strict=True)) or [(0, len(lines) + 1)]


def _places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """(parent, field, index or None, node) of every node below the tree."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.AST):
                    yield parent, name, index, node


@contextlib.contextmanager
def _put(parent: ast.AST, name: str, holder: object, index: int | None, new: object) -> Iterator[None]:
    """``new`` in the place of a node, or of a list of statements, and everything as it was afterwards."""
    if index is None:
        value = new
    else:
        value = [*holder[:index], *(new if isinstance(new, list) else [new]), *holder[index + 1 :]]
    setattr(parent, name, value)
    try:
        yield
    finally:
        setattr(parent, name, holder)


def _text(tree: ast.AST) -> str:
    try:
        return ast.unparse(tree)
    except (ValueError, AttributeError):  # such as a call without its function
        return ""


def _compiles(text: str) -> bool:
    try:
        compile(text, "<changed>", "exec")
    except SyntaxError:
        return False
    return True


def _siblings(tree: ast.AST, ranges: list[tuple[int, int]]) -> dict[str, str]:
    """Names that are assigned side by side, such as ``left, right``: each to the next of them."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Tuple) and all(isinstance(each, ast.Name) for each in target.elts):
                names = [each.id for each in target.elts if each.id != "_"]
                found.update(zip(names, names[1:] + names[:1], strict=True))
    return found


def _instead(parent: ast.AST, node: ast.AST, alike: dict[str, str]) -> Iterator[ast.AST | list[ast.stmt]]:
    """What may stand in the place of a node."""
    match node:
        case ast.stmt():
            yield from _statement(node)
        case ast.BinOp():
            yield node.left
            if isinstance(node.op, ast.Add | ast.Mult):
                yield node.right
            if type(node.op) in OPERATORS:
                yield ast.BinOp(node.left, _operator(OPERATORS[type(node.op)]), node.right)
            if isinstance(node.op, ast.Div):
                yield ast.BinOp(node.left, ast.FloorDiv(), node.right)
        case ast.UnaryOp(op=ast.USub(), operand=ast.BinOp(left=ast.UnaryOp(op=ast.USub()) as left) as inner):
            yield ast.BinOp(left.operand, inner.op, inner.right)  # no longer rounded up
        case ast.UnaryOp():
            yield node.operand
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            for index in range(len(node.values)):
                rest = node.values[:index] + node.values[index + 1 :]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.Compare(ops=[op], comparators=[right]):
            yield ast.Compare(node.left, [_comparison(COMPARISONS[type(op)])], [right])
            if isinstance(op, ast.Eq):
                yield ast.Compare(node.left, [ast.GtE()], [right])
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=float(value)):
            yield ast.Constant(value * 2 or 1.0)
        case ast.Constant(value=str(value)) if value in OTHER:
            yield ast.Constant(OTHER[value])
        case ast.Name(ctx=ast.Load()):
            for name in {OTHER.get(node.id), alike.get(node.id)} - {None}:
                yield ast.Name(name, node.ctx)
        case ast.Attribute() if node.attr in OTHER:
            yield ast.Attribute(node.value, OTHER[node.attr], node.ctx)
        case ast.Call() if not isinstance(parent, ast.Expr) or len(node.args) > 1 or node.keywords:
            yield from _call(node)
        case ast.IfExp():
            yield from (node.body, node.orelse)
        case ast.Subscript(ctx=ast.Load()):
            yield node.value
        case ast.Starred() if isinstance(parent, ast.Call):  # only the first of them
            yield ast.Subscript(node.value, ast.Constant(0), ast.Load())
        case ast.Slice():
            for part in ("lower", "upper", "step"):
                if getattr(node, part) is not None:
                    yield ast.Slice(**{k: getattr(node, k) for k in ("lower", "upper", "step") if k != part})
        case ast.comprehension(ifs=[_, *_]):
            yield ast.comprehension(node.target, node.iter, [], node.is_async)
        case ast.List() | ast.Tuple() if isinstance(node.ctx, ast.Load) and len(node.elts) > 1:
            kind, all_of_them = type(node), node.elts
            for i in range(len(all_of_them)):
                if kind is ast.List:
                    yield ast.List(all_of_them[:i] + all_of_them[i + 1 :], node.ctx)
                if i:
                    swapped = [
                        *all_of_them[: i - 1],
                        all_of_them[i],
                        all_of_them[i - 1],
                        *all_of_them[i + 1 :],
                    ]
                    yield kind(swapped, node.ctx)


def _call(node: ast.Call) -> Iterator[ast.AST]:
    """A call becomes what it is called on, or one of its arguments; arguments are dropped, or change places."""
    if ast.unparse(node.func) in ("zip", "enumerate"):  # these only raise
        return
    if isinstance(node.func, ast.Attribute):
        yield node.func.value
    yield from node.args[:2]
    for index in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, node.keywords[:index] + node.keywords[index + 1 :])
    for index in range(len(node.args)):
        yield ast.Call(node.func, node.args[:index] + node.args[index + 1 :], node.keywords)
        if index:
            pair = [node.args[index], node.args[index - 1]]
            args = [*node.args[: index - 1], *pair, *node.args[index + 1 :]]
            yield ast.Call(node.func, args, node.keywords)


def _statement(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """A statement is left out, or does less, or does it in place, or no longer in place."""
    if isinstance(node, SIMPLE):
        yield [ast.Pass()]
    match node:
        case ast.If():
            yield node.body
            if node.orelse:
                yield node.orelse
        case ast.With():
            yield node.body
            for index in range(len(node.items) if len(node.items) > 1 else 0):
                items = node.items[:index] + node.items[index + 1 :]
                yield [ast.With(items, node.body, lineno=0)]
        case ast.Try():
            yield node.body + node.finalbody
            yield node.body
        case ast.For():
            *rest, last = node.body
            yield [ast.For(node.target, node.iter, [*node.body, ast.Break()], [], lineno=0)]
            if rest:
                yield [ast.For(node.target, node.iter, rest, [], lineno=0), last]
                yield [rest[0], ast.For(node.target, node.iter, [*rest[1:], last], [], lineno=0)]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr="copy_"), args=[value])):
            yield [ast.Assign([_written(target)], value, lineno=0)]
        case ast.AugAssign():
            yield [ast.Assign([node.target], node.value, lineno=0)]
            yield [ast.Assign([node.target], ast.BinOp(_read(node.target), node.op, node.value), lineno=0)]
            if type(node.op) in OPERATORS:
                other = _operator(OPERATORS[type(node.op)])
                yield [ast.AugAssign(node.target, other, node.value)]
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=op, right=right)):
            if ast.unparse(target) == ast.unparse(left):
                yield [ast.AugAssign(target, op, right)]


def _orders(body: list[ast.stmt], index: int) -> Iterator[list[ast.stmt]]:
    """Two neighbours change places."""
    if (
        index
        and isinstance(body[index], SIMPLE)
        and isinstance(body[index - 1], SIMPLE)
        and _runs(body[index - 1])
    ):
        yield [*body[: index - 1], body[index], body[index - 1], *body[index + 1 :]]


def _runs(node: ast.stmt) -> bool:
    return not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))  # a docstring


def _operator(sign: str) -> ast.operator:
    return ast.parse(f"a {sign} b").body[0].value.op


def _comparison(sign: str) -> ast.cmpop:
    return ast.parse(f"a {sign} b").body[0].value.ops[0]


def _read(target: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(target)).body[0].value


def _written(source: ast.expr) -> ast.expr:
    return ast.parse(f"{ast.unparse(source)} = 0").body[0].targets[0]
