"""A module of yours for the simulator: ``vit.py:make`` names a function that returns ``(model, inputs)``."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from torch import Tensor, nn

from course_lib.observe.from_module import from_module, samples_in
from simulator.inputs.traced import Traces


def traces_of(name: str) -> Traces:
    """The module that ``FILE.py:FUNCTION`` names, traced in microbatches of every size that is asked for.

    The function takes no arguments. Its inputs are a tensor, a tuple, or a dict by name, as many samples as they like.

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
    pair = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    model, inputs = pair
    if not isinstance(model, nn.Module) or not isinstance(inputs, Tensor | tuple | list | Mapping):
        kinds = f"({type(model).__name__}, {type(inputs).__name__})" if pair is made else type(made).__name__
        raise ValueError(
            f"{name} must return (model, inputs): a module, and a tensor, a tuple or a dict; not {kinds}"
        )
    named = inputs if isinstance(inputs, Mapping) else {}
    given = () if named else (inputs,) if isinstance(inputs, Tensor) else inputs
    trace = partial(from_module, model, *given, **named)
    return Traces(lambda samples: trace(samples=samples), samples_in((given, named)))
