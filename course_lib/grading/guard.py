"""Runs inside the kernel that grades: what answers write is capped, and what checks rely on stays as it was.

The grader puts three hidden cells around each answer: ``watch()`` before it, ``verify()`` before its check, and
``verify()`` again after it, since an answer also runs while it is checked. Then the names that the answer made are
taken away and torch's and Python's settings are as before, so that the next answer is judged as if it came first.
On ranks, ``ranks.py`` does the same around what runs there.
"""

from __future__ import annotations

import builtins
import re
import sys
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from course_lib.grading import settings

OUTPUT_LIMIT = 1_000_000  # characters a cell may print
THREAD_LIMIT = 16  # threads an answer may leave behind: a library may keep a few, nobody keeps a hundred
WATCHED = ("course_lib", "simulator")  # packages watched whole
INSIDE_WATCHED = tuple(f"{name}." for name in WATCHED)
TORCH = ("nn", "nn.functional", "distributed", "autograd", "linalg", "testing")
ALSO_WATCHED = ("math", "numpy", "numpy.testing", "torch", *(f"torch.{name}" for name in TORCH))
SHELL_NAMES = {"_", "__", "___", "In", "Out", "get_ipython", "exit", "quit", "open", "display"}

FRAMES = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}  # the ways from an object to a running function
WAYS_THERE = {
    "sys._getframe",
    "sys._current_frames",
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
}

_NOTHING = object()
_before: dict[tuple[str, str], Any] = {}
_threads: set[int] = set()
_frames_read: list[str] = []
_names: dict[str, Any] = {}
_looking = threading.local()


class Tampered(Exception):  # noqa: N818 - what happened, in a word
    """An answer changed something that checks rely on."""


class OutputLimit(RuntimeError):  # noqa: N818
    """A cell printed more than its share."""


def begin() -> None:
    """From now on cap what each cell may print, and keep answers out of the frames of running checks."""
    sys.addaudithook(_keep_out)
    written = 0

    def capped(write: Callable[[str], int]) -> Callable[[str], int]:
        def write_capped(text: str) -> int:
            nonlocal written
            written += len(text)
            if written > OUTPUT_LIMIT:
                raise OutputLimit(f"more than {OUTPUT_LIMIT // 1_000_000} MB printed by one cell")
            return write(text)

        write_capped.caps = write
        return write_capped

    def before_cell(*_: Any) -> None:
        nonlocal written
        written = 0
        for stream in (sys.stdout, sys.stderr):  # IPython gives them a fresh `write` for each cell
            stream.write = capped(getattr(stream.write, "caps", stream.write))

    _shell().events.register("pre_run_cell", before_cell)


def _keep_out(event: str, arguments: tuple) -> None:
    """An audit hook: it sees ``tb_frame`` and its like also where the name was put together at run time."""
    if event == "object.__getattr__":
        name = arguments[1]
        if name not in FRAMES:
            return
    elif event in WAYS_THERE:
        name = event
    else:
        return
    if getattr(_looking, "now", False):  # our own call below is an event as well
        return
    _looking.now = True
    try:
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") == "inspect":
            frame = frame.f_back
    finally:
        _looking.now = False
    if (
        frame is not None and frame.f_globals.get("__name__") == "__main__"
    ):  # libraries read them all the time
        _frames_read.append(name)
        raise Tampered(f"it reads `{name}`; an answer needs none of Python's own machinery")


def watch() -> None:
    """Remember how everything is; called before an answer runs."""
    if "torch" in sys.modules:
        import torch._dynamo  # noqa: F401 - it wraps torch.manual_seed when it is first needed: not an answer's doing
    settings.remember()
    _frames_read.clear()
    _before.clear()
    _before.update(_everything())
    _names.clear()
    _names.update(_shell().user_ns)
    _threads.clear()
    _threads.update(thread.ident for thread in threading.enumerate() if thread.ident)


def verify() -> None:
    """Compare with what ``watch`` remembered.

    Raises:
        Tampered: naming what was changed.
    """
    if _frames_read:
        raise Tampered(f"it reads `{_frames_read[0]}`; an answer needs none of Python's own machinery")
    compare(_before, _everything())
    shadowed = sorted(_shadowing() - _before["the notebook", "shadowing"])
    if shadowed:
        raise Tampered(f"it redefines Python's `{shadowed[0]}`; choose another name")
    left = [thread for thread in threading.enumerate() if thread.ident not in _threads]
    if len(left) > THREAD_LIMIT:
        raise Tampered(f"it leaves {len(left)} threads running; an answer ends what it starts")


def compare(before: dict[tuple[str, str], Any], now: dict[tuple[str, str], Any]) -> None:
    """Raise ``Tampered``, naming it, where something that was watched has changed."""
    for place, name in sorted(before.keys() - now.keys()):  # gone, or no longer to be called
        if place.startswith(("Python", "torch", *WATCHED)):
            raise Tampered(f"it changes `{name}` of {place}; an answer leaves what the checks use as it is")
    for (place, name), value in now.items():
        if before.get((place, name), _NOTHING) is value:  # nearly all of them
            continue
        if (place, name) in before and not _alike(before[place, name], value):
            raise Tampered(f"it changes `{name}` of {place}; an answer leaves what the checks use as it is")
        owner, _, member = name.partition(".")
        is_new = (place, name) not in before and (place, owner) in before
        if member and is_new and not re.match("_[^_]", member):  # torch keeps private notes on its classes
            raise Tampered(f"it adds `{name}`; an answer leaves what the checks use as it is")


def forget() -> None:
    """Make names and settings what they were at ``watch``: the next answer is judged as if this had not been there."""
    settings.restore()
    names = _shell().user_ns
    for name in [name for name in names if not name.startswith("_") and name not in SHELL_NAMES]:
        if name not in _names:
            del names[name]
        elif names[name] is not _names[name]:
            names[name] = _names[name]


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()


def _shadowing() -> set[str]:
    return {name for name in _shell().user_ns if hasattr(builtins, name)} - SHELL_NAMES


def _everything() -> dict[tuple[str, str], Any]:
    """All that is watched: (where, name) -> value."""
    shell = _shell()
    modules = {name: value for name, value in shell.user_ns.items() if isinstance(value, types.ModuleType)}
    found = definitions({module.__name__ for module in modules.values()})
    transforms = shell.input_transformer_manager
    hooks = {
        "ast_transformers": shell.ast_transformers,
        "input_transformers_post": shell.input_transformers_post,
        "cleanup_transforms": transforms.cleanup_transforms,
        "line_transforms": transforms.line_transforms,
        "token_transformers": transforms.token_transformers,
    }
    found.update({("IPython", name): list(value) for name, value in hooks.items()})
    for event, callbacks in shell.events.callbacks.items():
        found["IPython", f"events {event}"] = list(callbacks)
    for name in ("displayhook", "stdout", "stderr"):
        found["sys", name] = getattr(sys, name)
    found["sys", "settrace"], found["sys", "setprofile"] = sys.gettrace(), sys.getprofile()
    found.update({("the notebook", name): module for name, module in modules.items()})
    found["the notebook", "shadowing"] = _shadowing()
    return found


def definitions(more: Collection[str] = (), without: Collection[str] = ()) -> dict[tuple[str, str], Any]:
    """Functions and classes of Python, of the course, of what checks use of torch, and of ``more`` modules.

    The modules named in ``without`` are passed over.
    """
    found = {("Python", name): value for name, value in vars(builtins).items() if name not in SHELL_NAMES}
    for module in _modules(more):
        if module.__name__ not in without:
            found.update({(module.__name__, name): value for name, value in _definitions(module)})
    return found


def marks(without: Collection[str] = ()) -> dict[str, list]:
    """For each watched module, the names and the addresses of what ``definitions`` looks at.

    Takes milliseconds. While the objects of ``definitions`` are kept, equal marks mean that nothing was exchanged.
    """
    modules = (builtins, *_modules(()))
    return {module.__name__: _mark(module) for module in modules if module.__name__ not in without}


def _mark(module: types.ModuleType) -> list:
    named = {name: value for name, value in vars(module).items() if callable(value)}
    mark = [*named, *map(id, named.values()), *_addresses_of_code(named.values())]
    for name, value in named.items():
        if isinstance(value, type) and _is_own(name, value, module):
            members = vars(value)
            mark += [*members, *map(id, members.values()), *_addresses_of_code(members.values())]
    return mark


def _addresses_of_code(values: Iterable[Any]) -> list[int]:
    functions = [value for value in values if type(value) is types.FunctionType]
    return [address for f in functions for address in (id(f.__code__), id(f.__defaults__))]


def _modules(names: Collection[str]) -> Iterator[types.ModuleType]:
    watched = [
        name
        for name in list(sys.modules)
        if name.startswith(INSIDE_WATCHED) or name in WATCHED or name in ALSO_WATCHED or name in names
    ]
    for name in watched:
        module = sys.modules.get(name)
        if name not in (__name__, "sys") and isinstance(module, types.ModuleType):
            yield module


def _definitions(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions and classes of a module, the code of the functions, and the methods of its own classes."""
    for name, value in list(vars(module).items()):
        if not callable(value) or (name.startswith("_") and getattr(value, "__name__", None) != name):
            continue
        yield name, value
        yield from _code(name, value)
        if isinstance(value, type) and _is_own(name, value, module):
            for method, function in list(vars(value).items()):
                if callable(function):
                    yield f"{name}.{method}", function
                    yield from _code(f"{name}.{method}", function)


def _is_own(name: str, value: type, module: types.ModuleType) -> bool:
    return getattr(value, "__module__", None) == module.__name__ or name in ("Tensor", "Module")


def _code(name: str, function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, types.FunctionType):
        yield f"{name}.__code__", function.__code__
        yield f"{name}.__defaults__", function.__defaults__


def _alike(before: Any, now: Any) -> bool:
    if isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(a is b for a, b in zip(before, now, strict=True))
    if isinstance(before, types.MethodType):  # made anew each time it is looked up
        return before == now
    return isinstance(before, set) or before is now
