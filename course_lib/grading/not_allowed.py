"""What an exercise's task does not allow, because it would do the work: found in the answer's source."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from course_lib.grading.scan import imported


def uses(source: str, imports: Mapping[str, str], not_allowed: Iterable[str]) -> str | None:
    """In one sentence, where an answer uses something that its task does not allow; None when it does not.

    Names are followed through imports, assignments (``o = torch.optim``) and ``getattr`` with a fixed name.

    Args:
        source: the answer, which is Python.
        imports: what the course's cells import, name -> dotted origin.
        not_allowed: full names, such as ``"torch.optim"``: what is inside it is not allowed either.
    """
    refused = tuple(not_allowed)
    if not refused:
        return None
    tree = ast.parse(source)
    origins = {**imports, **imported(tree)}
    for node in ast.walk(tree):  # a name given to a part of a library stands for that part
        if isinstance(node, ast.Assign) and (dotted := _dotted(node.value, origins)):
            origins.update({target.id: dotted for target in node.targets if isinstance(target, ast.Name)})
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names if alias.asname]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            found = [_dotted(node, origins) or ""]
        for dotted in found:
            name = next((each for each in refused if f"{dotted}.".startswith(f"{each}.")), None)
            if name:
                line = getattr(node, "lineno", "?")
                return (
                    f"line {line} uses `{dotted}`; the task does not allow `{name}`, which would do the work"
                )
    return None


def _dotted(node: ast.AST, origins: Mapping[str, str]) -> str | None:
    """The full name of what an expression refers to, where it leads to something that was imported."""
    if isinstance(node, ast.Name):
        return origins.get(node.id)
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value, origins)
        return base and f"{base}.{node.attr}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        base = _dotted(node.args[0], origins) if len(node.args) > 1 else None
        name = getattr(node.args[1], "value", None) if base else None
        return f"{base}.{name}" if isinstance(name, str) else None
    return None
