"""Answers on ranks: ``launch``, with the guard on every rank.

``guard.py`` watches the notebook's own process. What an answer changes on a rank would go unseen there: a patched
``torch.equal``, a ``send`` that nothing counts. So a check's function travels packed: each rank remembers what the
checks rely on before it unpacks the function, and compares when it has run.

Looking at every function of torch takes a tenth of a second of processor time. The server from which ranks are forked
does it once, when it imports this module, and each rank begins with what the server has seen.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

from course_lib.grading import guard
from course_lib.runtime import launch as _launch
from course_lib.runtime.serialize import pickle_call
from course_lib.runtime.world import preload

preload(__name__)
_AT_START = guard.definitions()
_MODULES_AT_START = {place for place, _ in _AT_START}


@functools.wraps(_launch)
def launch(
    fn: Callable[..., Any], ranks: int | None = None, *, args: tuple = (), **options: Any
) -> list[Any]:
    """As ``course_lib.runtime.launch``; refuses an answer that changes what the checks rely on.

    Raises:
        Tampered: naming what was changed on a rank.
    """
    results = _launch(_watched, ranks, args=(pickle_call(fn, args),), **options)
    for changed, _ in results:
        if changed is not None:
            raise guard.Tampered(changed)
    return [result for _, result in results]


def _watched(*packed: Any) -> tuple[str | None, Any]:
    *mesh, call = packed
    before = {**_AT_START, **guard.definitions(without=_MODULES_AT_START)}
    fn, args = pickle.loads(call)
    loaded = guard.definitions(without={place for place, _ in before})  # what the function needs
    before = {**loaded, **before}  # what was there before is as it was before the function was loaded
    result = fn(*mesh, *args)
    try:
        guard.compare(before, guard.definitions())
    except guard.Tampered as tampered:
        return str(tampered), None
    return None, result
