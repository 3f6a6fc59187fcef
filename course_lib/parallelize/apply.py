"""``parallelize(model, plan, mesh)``: the techniques of the course on one plain model, in the one order that works.

1. All ranks take the values of rank 0, so that a model starts alike under every plan.
2. Tensor and sequence parallelism cut each layer: they replace modules, so they come before what wraps them. Experts
   stay whole, and work on this rank's part of the sequence.
3. Context parallelism replaces the core of attention, which is left of each layer's work on whole texts.
4. Expert parallelism deals out the experts of each layer among ranks that have other tokens.
5. Recomputation wraps the layers as they are now: what it repeats includes their messages.
6. The pipeline keeps this rank's layers, and the others are freed.
7. Data parallelism shards or averages what is left, among the ranks that hold the same: those that have other tokens
   of the same texts are among them. Of experts those that have the same ones.
8. Optimizers are made last, because each step before it may have made new parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import SGD, AdamW, Optimizer

from course_lib.context_parallel.apply import apply_context_parallel, with_context_in_dp
from course_lib.data_parallel.first_values import FirstValues, Read, start
from course_lib.expert_parallel.apply import DealtExperts, apply_expert_parallel, mesh_of_experts
from course_lib.models.experts import balance, sparse_layers
from course_lib.one_device.activation_offload import apply_activation_offload
from course_lib.one_device.fp8 import apply_fp8
from course_lib.one_device.muon import MuonWithAdamW
from course_lib.one_device.recompute import apply_recompute
from course_lib.parallelize.checks import check_fits, check_loss
from course_lib.parallelize.comm_hooks import make_hook
from course_lib.parallelize.data_parallel import FullySharded, Replicated, ZeroSharded
from course_lib.parallelize.forward_backward import Accumulation, PipelineRun, Stages
from course_lib.parallelize.meaning import meaning_of
from course_lib.parallelize.parallel_model import ParallelModel
from course_lib.parallelize.whole_state import Whole
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.microbatches import LossFunction, sum_cross_entropy
from course_lib.pipeline.stages import Stage, rank_stages
from course_lib.runtime import current_device
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.full_tensors import full_logits
from course_lib.tensor_parallel.galaxy import apply_galaxy
from course_lib.tensor_parallel.sequence import work_on_shard
from course_lib.tensor_parallel.tables import table_of
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy
from simulator.inputs.plan import Plan
from simulator.pipeline.actions import Schedule
from simulator.pipeline.schedules import make_schedule

OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "adam": (AdamW, {}),
    "momentum": (SGD, {"momentum": 0.9}),
    "sgd": (SGD, {}),
    "muon": (MuonWithAdamW, {}),
}


def parallelize(
    model: nn.Module,
    plan: Plan,
    mesh: DeviceMesh,
    optimizer_class: type[Optimizer] | None = None,
    *,
    loss_fn: LossFunction | None = None,
    placement: Mapping[str, Any] | None = None,
    compression: Mapping[str, Any] | None = None,
    read: Read | None = None,
    **settings: Any,
) -> tuple[ParallelModel, Optimizer]:
    """Spread a plain model over the ranks of ``mesh`` as ``plan`` says. All ranks call it, with a model made alike.

    >>> model, optimizer = parallelize(GPT(config), plan, mesh, AdamW, lr=3e-4)      # doctest: +SKIP

    ``ParallelModel`` shows the loop. The same plan is priced by the simulator. What a plan says of kernels
    (``attention``, ``loss``) changes nothing here; ``schedule``, ``chunks`` and ``stage_layers`` need a pipeline.

    Args:
        model: the course's GPT, BertClassifier or Llama, or, without tp and pp, any module. It is changed in place;
            use what is returned.
        plan: ``precision`` fp32 leaves the model's dtype as it is, bf16 converts it, mixed computes in bf16 with
            parameters of the model's dtype, and fp8 besides multiplies in 8 bits in the layers' linear layers, scaled
            as ``scaling`` says. ``zero`` 0 is DDP, 1 and 2 are ZeRO, 3 is FSDP with a unit for each block.
        mesh: of all ranks, as ``mesh_axes`` names it.
        optimizer_class: None: by ``plan.optimizer`` AdamW, SGD with or without momentum, or ``MuonWithAdamW``.
        loss_fn: of outputs and targets, the **sum** over the targets that are not -100; None: cross entropy. With tp
            the logits are gathered for it, unless it is a ``VocabParallelCrossEntropy``, which takes them as they are.
        placement: the arguments of ``tensor_parallel.galaxy.apply_galaxy``, which then cuts the layers over the axis
            tp: ``{"placement": "galaxy", "heads": [5, 3]}``. None: tensor parallelism does.
        compression: how DDP sends gradients: ``{"method": "powersgd", "matrix_rank": 4}``. None: as they are.
        read: gives values to parameters that are on the meta device; see ``data_parallel/first_values.py``.
        settings: for the optimizer (``lr=…``); with zero 1 and 2 also ``max_norm``, which clips in ``step``.

    Raises:
        ValueError: the plan does not fit the model, the mesh or the ranks, or is not run yet; one sentence says why,
            and the model is as it was.
    """
    check_fits(model, plan, mesh, placement, compression)
    check_loss(loss_fn)
    start(model, current_device(), torch.bfloat16 if plan.precision == "bf16" else None)
    meaning = meaning_of(model)
    if placement is not None:
        apply_galaxy(model, mesh["tp"], **placement)
    elif plan.tp > 1:
        loss_fn = loss_of_cut_logits(model, mesh["tp"], loss_fn)
        table = pipelined_table(model) if plan.pp > 1 else None
        apply_tensor_parallel(model, mesh["tp"], table, sequence_parallel=plan.sequence_parallel)
    loss_fn = loss_fn or cross_entropy_in_fp32
    cut = None
    if plan.cp > 1:
        cut = apply_context_parallel(
            model, mesh_of_context(mesh, plan.head_ranks), plan.context, zigzag=plan.zigzag
        )
        mesh = with_context_in_dp(mesh)
    linears = apply_fp8(model, plan.scaling) if plan.precision == "fp8" else []
    experts = mesh_of_experts(mesh, plan.ep) if plan.ep > 1 else None
    if experts is not None:
        apply_expert_parallel(model, experts["ep"], plan.dispatch, beside="experts" in plan.overlap)
    dealt = [module for module in model.modules() if isinstance(module, DealtExperts)]
    for one in dealt if plan.tp > 1 else ():  # they took the place of experts that did so
        work_on_shard(one, mesh["tp"])
    host = apply_activation_offload(model) if plan.recompute == "offload" else None
    if plan.recompute in ("selective", "full"):
        apply_recompute(model, plan.recompute)
    whole = Whole(model, mesh, meaning, experts)
    first = FirstValues(model, read, whole.first_name, whole.shards)
    stages = {0: model}
    if plan.pp > 1:
        schedule = make_schedule(plan.schedule, plan.pp, plan.microbatches, plan.chunks)
        stages = rank_stages(model, schedule, mesh["pp"], plan.stage_layers)
        model = Stages(stages)
        whole.tied = tied_copies(stages, schedule, whole)
    first.fill(stages.values(), current_device(), parameters=plan.zero != 3)
    for stage in stages.values() if plan.precision in ("mixed", "fp8") and plan.zero != 3 else ():
        cast = torch.autocast(mesh.device_type, torch.bfloat16)
        stage.forward = cast(stage.forward)
    dealt = [one for one in model.modules() if isinstance(one, DealtExperts)]  # of this rank's stages
    groups = {p: experts["dp"].get_group() for one in dealt for p in one.parameters()} if experts else {}
    if plan.zero == 0:
        data = Replicated(model, plan, mesh["dp"], groups, make_hook(compression))
    elif plan.zero == 3:
        data = FullySharded(model, plan, sharding_mesh(plan, mesh), dealt, experts and experts["dp"])
        first.fill_shards(data.fsdp.flats)
    else:
        data = ZeroSharded(model, plan, mesh["dp"], groups, whole.holders)
    counts = mesh["tp"].get_local_rank() == 0
    if plan.pp > 1:
        tied = [p for name, p in model.named_parameters() if whole.first_name[name] in whole.tied]
        pipeline = Pipeline(stages, schedule, mesh["pp"], loss_fn, together="experts" in plan.overlap)
        run = PipelineRun(pipeline, tied, counts)
    else:
        run = Accumulation(data, loss_fn, plan.microbatches, counts)
    if optimizer_class is None:
        optimizer_class, defaults = OPTIMIZERS[plan.optimizer]
        settings = defaults | settings
    optimizer = data.make_optimizer(optimizer_class, settings)
    if linears:
        optimizer.register_step_post_hook(lambda *_: [linear.next_step() for linear in linears])
    parallel = ParallelModel(plan, mesh, run, data, whole, cut)
    parallel.host = host
    if plan.zero in (1, 2):
        optimizer.clip_whole = parallel.clip_grad_norm
    if any(layer.speed for layer in sparse_layers(model)):
        optimizer.register_step_post_hook(lambda *_: balance(model, partial(on_all_ranks, mesh["dp"])))
    seed_ranks(mesh)
    return parallel.train(), optimizer


def mesh_of_context(mesh: DeviceMesh, heads: int) -> DeviceMesh:
    """The two axes of which cp consists: parts of a text, and ranks that deal out a part's heads."""
    pp, dp, cp, tp = mesh.shape
    ranks = mesh.mesh.view(pp, dp, cp // heads, heads, tp)
    whole = DeviceMesh(mesh.device_type, ranks, mesh_dim_names=("pp", "dp", "parts", "heads", "tp"))
    return whole["parts", "heads"]


def on_all_ranks(mesh: DeviceMesh, load: Tensor) -> Tensor:
    dist.all_reduce(load, group=mesh.get_group())
    return load


def seed_ranks(mesh: DeviceMesh) -> None:
    """Different dropout masks for different data and different layers, and the same on tensor-parallel ranks.

    Where tensor-parallel ranks must draw different masks, they do so from a common state (``random_state.py``).
    """
    dist.broadcast(seed := torch.randint(2**62, ()).to(mesh.device_type), src=0)
    stage, data_rank = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    torch.manual_seed(int(seed) + stage * mesh["dp"].size() + data_rank)


def tied_copies(stages: Mapping[int, Stage], schedule: Schedule, whole: Whole) -> dict[str, int]:
    """For the first name of each parameter of this rank that other pipeline ranks have, too, how many have it."""
    holders = {
        whole.first_name[name]: len({schedule.rank_of(index) for index in indices})
        for stage in stages.values()
        for name, indices in stage.tied.items()
    }
    return {name: ranks for name, ranks in holders.items() if ranks > 1}


def loss_of_cut_logits(
    model: nn.Module, mesh: DeviceMesh, loss_fn: LossFunction | None
) -> LossFunction | None:
    """For logits that are cut by words. A loss of the user's own gets all of them.

    Where the table cuts none, it is what was given.
    """
    for name, style in table_of(model).items():
        if style == "vocabulary head" and not isinstance(loss_fn, VocabParallelCrossEntropy):
            words = model.get_submodule(name).out_features
            if loss_fn is None:
                return VocabParallelCrossEntropy(words, mesh, reduction="sum")
            return lambda logits, targets: loss_fn(full_logits(logits, words, mesh), targets)
    return loss_fn


def cross_entropy_in_fp32(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum over the targets, in at least fp32, as the vocabulary-parallel loss computes it."""
    return sum_cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)


def pipelined_table(model: nn.Module) -> dict[str, str]:
    """The table where a pipeline calls the layers one by one, and never the module that holds them."""
    table = table_of(model)
    for name in [name for name, style in table.items() if style == "whole"]:
        last = [inner for inner, _ in model.get_submodule(name).named_modules() if inner.count(".") == 1][-1]
        table = {key: style for key, style in table.items() if key != name} | {f"{name}.{last}": "whole"}
    return table


def sharding_mesh(plan: Plan, mesh: DeviceMesh) -> DeviceMesh:
    """The data axis; with hybrid sharding in two axes, copies and the neighbours that share one."""
    if plan.shard == (ranks := mesh["dp"].size()):
        return mesh["dp"]
    ranks = mesh.mesh.view(plan.pp, ranks // plan.shard, plan.shard, plan.tp)
    whole = DeviceMesh(mesh.device_type, ranks, mesh_dim_names=("pp", "copies", "shards", "tp"))
    return whole["copies", "shards"]
