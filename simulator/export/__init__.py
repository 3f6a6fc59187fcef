"""A plan in the words of a framework: the file or the flags that run it there.

``export("deepspeed", shape, plan)`` is one text, and the sentences that its reader must know. What a framework cannot
say is refused in a sentence. Each framework is a file of this folder.
"""

from __future__ import annotations

from importlib import import_module

from simulator.any_module.price import check
from simulator.export.asked import Asked, Export
from simulator.inputs.checks import at_least, one_of
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.inputs.traced import Traces

FRAMEWORKS = ("torchtitan", "megatron", "deepspeed", "accelerate", "course_lib")


def export(
    framework: str, shape: ModelShape | Traces, plan: Plan, *, model: str | None = None, node_size: int = 8
) -> Export:
    """
    Args:
        framework: one of ``FRAMEWORKS``.
        model: the name of a known model, by which a framework may know it, too.
        node_size: devices in a node.

    Raises:
        ValueError: the framework has no word for something in the plan.
    """
    one_of("framework", framework, FRAMEWORKS)
    at_least(1, node_size=node_size)
    check(shape, plan)
    asked = Asked(framework, shape, plan, model, node_size)
    if isinstance(shape, Traces):
        if framework in ("megatron", "course_lib"):
            raise ValueError(
                f"for {framework} the model must be a shape, not a traced module: the flags name its sizes"
            )
        asked.only("tp", 1, because="a traced module is cut by code of its own")
        asked.only("pp", 1, because="a traced module's stages are code of its own")
    return import_module(f"simulator.export.{framework}").write(asked)
