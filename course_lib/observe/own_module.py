"""A module of yours for the simulator: ``vit.py:make`` names a function that returns ``(model, inputs)``, and perhaps
how the model is cut over tensor-parallel ranks."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from course_lib.observe.from_module import from_module, samples_in
from simulator.inputs.traced import TracedModel, Traces


def traces_of(name: str) -> Traces:
    """The module that ``FILE.py:FUNCTION`` names, traced in microbatches of every size that is asked for.

    The function takes no arguments. Its inputs are a tensor, a tuple, or a dict by name, as many samples as they like.
    A third value, if there is one, is a function of a model and a mesh, as ``from_module`` takes it as ``cut``.

    Raises:
        ValueError: one sentence, where there is no such file or function, it fails, or returns something else.
    """
    file, _, function = name.rpartition(":")
    if not file.endswith(".py") or not function.isidentifier():
        raise ValueError(f"a module must be FILE.py:FUNCTION, not {name}")
    if not Path(file).is_file():
        raise ValueError(f"there is no file {file}")
    sys.path.insert(0, str(Path(file).resolve().parent))  # for what lies beside it, as Python does
    try:
        make = runpy.run_path(file).get(function)
        made = make() if callable(make) else None
    except (Exception, SystemExit) as error:
        raise ValueError(f"{name} ends with {type(error).__name__}: {error}") from error
    if not callable(make):
        raise ValueError(f"{file} has no function {function}")
    values = made if isinstance(made, tuple) else (made,)
    model, inputs, cut = (*values, None, None, None)[:3]
    right = isinstance(model, nn.Module) and isinstance(inputs, Tensor | tuple | list | Mapping)
    if not right or len(values) > 3 or not (cut is None or callable(cut)):
        kinds = ", ".join(type(value).__name__ for value in values)
        raise ValueError(
            f"{name} must return (model, inputs) or (model, inputs, cut): a module, a tensor, a tuple or a dict, and "
            f"a function; not {f'({kinds})' if values is made else kinds}"
        )
    named = inputs if isinstance(inputs, Mapping) else {}
    given = () if named else (inputs,) if isinstance(inputs, Tensor) else inputs
    return Traces(partial(_traced, name, model, *given, cut=cut, **named), samples_in((given, named)))


def _traced(name: str, /, model: nn.Module, *inputs: Any, **more: Any) -> TracedModel:
    """What the module itself raises is the answer to a wrong input, in one sentence."""
    try:
        return from_module(model, *inputs, **more)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name} fails while it is traced: {type(error).__name__}: {error}") from error
