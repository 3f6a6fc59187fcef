"""What ``parallelize`` refuses of a plan and of what goes with it: each condition beside its sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from course_lib.finetuning.narrow.decoders import Blend
from course_lib.finetuning.prefix import Prefix
from course_lib.finetuning.prompt import SoftPrompt
from course_lib.finetuning.side import SideTuning
from course_lib.models.bart import Bart
from course_lib.models.bert import BertPooler
from course_lib.models.latent_attention import LatentAttention
from course_lib.parallelize.comm_hooks import make_hook
from simulator.export.course_lib import plan_refusals
from simulator.inputs.galaxy import placements_of
from simulator.inputs.plan import Plan


def refuse(
    plan: Plan,
    placement: Mapping[str, Any] | None = None,
    compression: Mapping[str, Any] | None = None,
    model: nn.Module | None = None,
) -> None:
    """Raise a ValueError with the first of the ``refusals``, or if compression cannot be set like this.

    Without a model, what depends on it is not looked at.
    """
    hook = None if make_hook(compression) is None else compression["method"]
    added = {type(module) for module in model.modules()} if model is not None else set()
    placed = placement and placements_of(placement["placement"])["attention"]
    if sentence := next(refusals(plan, added, placed, hook), None):
        raise ValueError(sentence)


def refusals(
    p: Plan, added: set[type] = frozenset(), placed: str | None = None, hook: str | None = None
) -> Iterator[str]:
    """Every reason not to run a plan.

    Args:
        added: the types of the model's modules.
        placed: how attention is placed, where a placement says how layers are cut.
        hook: how DDP's buckets are compressed.
    """
    yield from plan_refusals(p)

    if added & {SideTuning, Blend} and p.sequence_parallel:
        yield "sequence_parallel must be no with side tuning: its network reads whole sequences"
    if SoftPrompt in added and p.sequence_parallel:
        yield "sequence_parallel must be no with a prompt: it stands before whole sequences, and each rank has a part"
    if Prefix in added and placed == "sequence":
        yield "attention must not be placed by sequence with a prefix: each rank would put it before its own keys"

    if p.cp > 1:
        if added & {SideTuning, Blend, SoftPrompt, Prefix}:
            yield f"cp must be 1 with side tuning, a prompt or a prefix, not {p.cp}: they take a text as a whole"
        if added & {Bart, BertPooler}:
            yield f"cp must be 1, not {p.cp}, for a model that reads two texts, or pools one: a rank has a part"
        if placed:
            yield f"cp must be 1 with a placement, not {p.cp}: both would deal out the sequence"

    if LatentAttention in added and p.tp > 1:
        yield f"tp must be 1 for a model with latent attention, not {p.tp}: its heads are not cut"

    if placed and p.pp > 1:
        yield f"pp must be 1 with a placement, not {p.pp}: a stage would not know where its blocks are"
    if placed and p.sequence_parallel:
        yield "sequence_parallel must be no with a placement, which says itself what is cut by the sequence"

    if hook is None:
        return
    if p.zero > 0:
        yield f"zero must be 0 with compression, not {p.zero}: a hook averages whole gradients, and ZeRO sends shards"
    if p.pp > 1:
        yield f"pp must be 1 with compression, not {p.pp}: a pipeline averages at its end, and without buckets"
    if p.tp > 1:
        yield (
            f"tp must be 1 with compression, not {p.tp}: tensor-parallel ranks would lose different digits of the "
            "parameters that they share"
        )
    if p.ep > 1:
        yield f"ep must be 1 with compression, not {p.ep}: experts are averaged among fewer ranks"
    if p.dp == 1:
        yield "dp must be at least 2 with compression, not 1: a single rank sends no gradients"
    if "gradients" not in p.overlap:
        yield "overlap must be gradients with compression, not none: the buckets of DDP call the hook"
    if p.precision == "bf16":
        yield "precision must be fp32 or mixed with compression, not bf16: a residual would lose its digits"
    if hook == "one-bit" and p.optimizer in ("adam", "muon"):
        yield (
            f"optimizer must be sgd or momentum with one-bit, not {p.optimizer}: all gradients of a chunk arrive with "
            "the same size, and Adam divides by the size"
        )
