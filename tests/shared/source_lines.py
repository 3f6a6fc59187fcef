"""How many lines of a Python file hold code."""

import ast
import io
import tokenize

WITHOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstrings(tree):
    """The numbers of the lines of all docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield from range(first.lineno, first.end_lineno + 1)


def code_lines(source, tree=None):
    """Without blank lines, comments and docstrings; who has parsed it hands over the tree."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in WITHOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(docstrings(tree or ast.parse(source))))
