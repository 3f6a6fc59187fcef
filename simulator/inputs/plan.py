"""The three inputs of every prediction: ``ModelShape``, ``Plan`` and ``Hardware``, checked as they are made.

``Plan.check`` holds a plan against a shape. Units: bytes, seconds, FLOP/s and elements, never mega- or
giga-anything.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import inf, prod
from typing import NamedTuple

from simulator.inputs.checks import at_least, index, is_number, one_of, refuse, yes_or_no
from simulator.inputs.chunks import chunk_sizes
from simulator.inputs.hardware import Hardware, Link
from simulator.inputs.placement import chunks_of, placement_of, rank_of, stages_of
from simulator.inputs.shape import Matrices, ModelShape

__all__ = ["Hardware", "Link", "ModelShape", "Plan"]

RECOMPUTE = ("none", "selective", "full", "offload")
ATTENTION = ("unfused", "flash")
# How many states as large as the parameters; under Muon, of the layers' matrices: all else has AdamW's two.
OPTIMIZERS = {"adam": 2, "momentum": 1, "sgd": 0, "muon": 1}
# Bytes of a parameter as the layers compute with it
PRECISIONS = {"mixed": 2, "bf16": 2, "fp32": 4, "fp8": 2}
OFFLOAD = ("none", "optimizer", "parameters")
GRADIENTS = ("same", "fp32")
OVERLAP = ("gradients", "parameters", "tensor", "pipeline", "experts")
LOSS = ("unfused", "fused")
CONTEXT = ("ring", "all-to-all", "all-gather")
DISPATCH = ("same", "fp8")
SCALING = ("tensor", "delayed", "block", "mx")


@dataclass(frozen=True)
class Plan:
    """How a training step is spread over ranks and over time.

    Args:
        dp, tp, pp, cp: sizes of the data, tensor, pipeline and context axes; their product is the world.
        ep: expert-parallel size; experts are dealt out inside the data axis, so ``ep`` divides ``dp x cp``.
        micro_batch: sequences in one microbatch of one data-parallel rank (b).
        microbatches: microbatches in a step, for one data-parallel rank; None: as many as fill the pipeline.
        schedule: who does what in which order, a name of ``simulator.inputs.placement.SCHEDULES``; None: ``"1f1b"``,
            and ``"interleaved-1f1b"`` where there are several chunks.
        chunks: model chunks a pipeline rank holds (v); None: as many as the schedule has, 1 for most.
        stage_layers: layers of every chunk in the model's order; None: as even as possible, longer ones first.
        sequence_parallel: norms and dropout are split along the sequence (arXiv:2205.05198).
        zero: 0 nothing, 1 optimizer states, 2 and gradients, 3 and parameters are sharded (arXiv:1910.02054).
        shard: ranks that share one copy of the states (hybrid sharding, arXiv:2304.11277); None: all of dp x cp.
        prefetch: FSDP units gathered ahead of the one that computes (ZeRO 3).
        recompute: ``"none"``, ``"selective"`` (the attention core) or ``"full"`` (every layer); ``"offload"``:
            nothing is computed again, and what layers save waits in the host's memory (arXiv:2104.07857).
        attention: ``"unfused"`` keeps the s x s scores, ``"flash"`` does not (arXiv:2205.14135); None: as code for
            the device does (``Hardware.attention``), and unfused where no device is named.
        optimizer: ``"adam"``, ``"momentum"``, ``"sgd"``, or ``"muon"`` for layers' matrices, with AdamW for the rest.
        precision: ``"mixed"`` (16-bit, with fp32 master weights), ``"bf16"`` (no master weights), ``"fp32"``, or
            ``"fp8"``: as mixed, but the layers' linear products run in 8 bits (arXiv:2209.05433); what is kept for
            backward, and the logits, stay in 16 bits.
        gradients: ``"same"`` keeps them in the parameters' precision; ``"fp32"`` keeps, adds up and reduces 4 bytes
            a parameter beside 16-bit parameters, as Megatron-LM does unless told otherwise.
        overlap: what runs beside computation: ``"gradients"`` (reductions beside backward), ``"parameters"``
            (ZeRO 1 and 2 gather the new parameters beside the next forward), ``"tensor"`` (tensor-parallel
            collectives beside the product that they feed, piece by piece), ``"pipeline"`` (messages between
            stages beside another chunk), ``"experts"`` (tokens travel beside another microbatch, arXiv:2412.19437).
            ZeRO 3 gathers ahead by ``prefetch``.
        loss: ``"unfused"`` converts the logits to fp32 and keeps them, ``"fused"`` turns the 16-bit logits into
            their gradients in place.
        context: how context parallelism brings queries and keys together: ``"ring"`` (arXiv:2310.01889),
            ``"all-to-all"``, which splits the heads in place of the sequence (Ulysses, arXiv:2309.14509), or
            ``"all-gather"`` of keys and values (arXiv:2407.21783, section 3.3.2).
        ulysses: so many neighbours of the ``cp`` ranks deal out heads by all-to-all among themselves, and keys go
            around, or are gathered, between such groups (arXiv:2405.07719). The context all-to-all is one group.
        zigzag: a context-parallel rank has two pieces of the sequence, one from either end, so that all have as much to
            do under a causal mask. Otherwise its piece is contiguous, and all wait for the rank of the last one.
        dispatch: how tokens travel to their experts: ``"same"``, as the layers compute, or ``"fp8"``, in 8 bits with a
            scale for every 128 numbers (arXiv:2412.19437). They come back as the layers compute.
        node_limit: most nodes that a token is sent to. It goes to each of them once and on to its experts inside; None:
            every copy travels by itself.
        imbalance: tokens that the busiest expert-parallel rank gets, as a multiple of the mean; a capacity factor of
            1 or more is the most that it can be.
        scaling: what shares one scale in ``"fp8"`` precision: a ``"tensor"`` (``"delayed"``: by its largest number in
            the steps before), a ``"block"`` (1 x 128 of activations, 128 x 128 of weights, arXiv:2412.19437) or 32
            numbers (``"mx"``, OCP Microscaling).
        offload: ``"optimizer"`` keeps gradients and optimizer states in host memory (arXiv:2101.06840),
            ``"parameters"`` the parameters too (arXiv:2104.07857).
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    micro_batch: int = 1
    microbatches: int = None  # pyright: ignore[reportAssignmentType] __post_init__ fills it
    schedule: str = None  # pyright: ignore[reportAssignmentType]
    chunks: int = None  # pyright: ignore[reportAssignmentType]
    stage_layers: tuple[int, ...] | None = None
    sequence_parallel: bool = False
    zero: int = 0
    shard: int = None  # pyright: ignore[reportAssignmentType]
    prefetch: int = 1
    recompute: str = "none"
    attention: str | None = None
    optimizer: str = "adam"
    precision: str = "mixed"
    offload: str = "none"
    gradients: str = "same"
    overlap: tuple[str, ...] = ("gradients",)
    loss: str = "unfused"
    context: str = "ring"
    ulysses: int = 1
    zigzag: bool = True
    dispatch: str = "same"
    node_limit: int | None = None
    imbalance: float = 1.0
    scaling: str = "tensor"

    def __post_init__(self) -> None:
        at_least(1, dp=self.dp, tp=self.tp, pp=self.pp, cp=self.cp, ep=self.ep, ulysses=self.ulysses)
        if self.schedule is None:
            object.__setattr__(self, "schedule", "1f1b" if self.chunks in (None, 1) else "interleaved-1f1b")
        object.__setattr__(self, "chunks", chunks_of(self.schedule, self.chunks))
        if self.microbatches is None:
            # Interleaving needs p - 1 more forwards of its first chunk before the first backward.
            object.__setattr__(self, "microbatches", self.pp if self.chunks == 1 else 2 * self.pp)
        at_least(1, micro_batch=self.micro_batch, microbatches=self.microbatches)
        at_least(0, prefetch=self.prefetch)
        if isinstance(self.stage_layers, str) or not hasattr(self.stage_layers or (), "__len__"):
            refuse("stage_layers", "a tuple of whole numbers, one a stage", self.stage_layers)
        for layers in self.stage_layers or ():
            at_least(1, stage_layers=layers)
        yes_or_no(sequence_parallel=self.sequence_parallel, zigzag=self.zigzag)
        one_of("recompute", self.recompute, RECOMPUTE)
        if self.attention is not None:
            one_of("attention", self.attention, ATTENTION)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        one_of("precision", self.precision, PRECISIONS)
        one_of("offload", self.offload, OFFLOAD)
        one_of("gradients", self.gradients, GRADIENTS)
        one_of("loss", self.loss, LOSS)
        one_of("context", self.context, CONTEXT)
        one_of("dispatch", self.dispatch, DISPATCH)
        one_of("scaling", self.scaling, SCALING)
        if self.node_limit is not None:
            at_least(1, node_limit=self.node_limit)
        if not (is_number(self.imbalance) and 1 <= self.imbalance < inf):
            refuse("imbalance", "a number of at least 1", self.imbalance)
        if isinstance(self.overlap, str) or not hasattr(self.overlap, "__len__"):
            refuse("overlap", f"a tuple of names out of {', '.join(OVERLAP)}", self.overlap)
        for traffic in self.overlap:
            one_of("overlap", traffic, OVERLAP)
        if type(self.zero) is not int or self.zero not in (0, 1, 2, 3):
            refuse("zero", "0, 1, 2 or 3", self.zero)
        everyone = self.dp * self.cp
        if self.shard is None:
            object.__setattr__(self, "shard", everyone)
        at_least(1, shard=self.shard)
        for name, ranks in {"ulysses": self.cp, "ep": everyone, "shard": everyone}.items():
            if ranks % (given := getattr(self, name)):
                axis = "context" if name == "ulysses" else "data"
                raise ValueError(f"{name} must divide the {ranks} {axis}-parallel ranks, not {given}")
        if self.offload == "parameters" and self.zero != 3:
            raise ValueError(f"offload of parameters needs zero 3, not zero {self.zero}")
        if self.sequence_parallel and self.tp == 1:
            object.__setattr__(self, "sequence_parallel", False)  # one rank: nothing to split

    def on(self, hardware: Hardware | None) -> Plan:
        """This plan on that device: what it leaves to the device is decided, and what the device lacks is refused."""
        if self.precision == "fp8" and hardware is not None and not hardware.fp8_flops:
            raise ValueError(f"{hardware.name} has no 8-bit arithmetic: precision must not be fp8 there")
        if self.attention is not None:
            return self
        return replace(self, attention=hardware.attention if hardware else "unfused")

    @property
    def ranks(self) -> int:
        """The world size."""
        return prod((self.dp, self.tp, self.pp, self.cp))

    @property
    def head_ranks(self) -> int:
        """Of the context-parallel ranks, how many deal out heads among themselves; cp / head_ranks share the text."""
        return self.cp if self.context == "all-to-all" else self.ulysses

    @property
    def global_batch(self) -> int:
        """Sequences in one step, over all data-parallel ranks."""
        return self.dp * self.micro_batch * self.microbatches

    @property
    def itemsize(self) -> int:
        """Bytes of a parameter, and of an activation, as the layers compute with it."""
        return PRECISIONS[self.precision]

    @property
    def gradient_itemsize(self) -> int:
        """Bytes of a gradient, as it is kept and as it is sent."""
        return 4 if self.gradients == "fp32" else self.itemsize

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state for one parameter: 12 for Adam with fp32 master weights."""
        master = 4 if self.precision in ("mixed", "fp8") else 0
        return OPTIMIZERS[self.optimizer] * self.state_itemsize + master

    @property
    def state_itemsize(self) -> int:
        return 2 if self.precision == "bf16" else 4

    def layers_by_stage(self, shape: ModelShape) -> list[int]:
        """Layers of every stage (a chunk of a pipeline rank), in the model's order."""
        return list(self.stage_layers or chunk_sizes(shape.layers, self.stages))

    @property
    def stages(self) -> int:
        """How many parts the model is cut into along its depth: p v."""
        return self.pp * self.chunks

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds this stage. In a V, rank 0 holds the first stage and the last."""
        index(self.stages, stage=stage)
        return rank_of(stage, self.pp, placement_of(self.schedule))

    def stages_of(self, rank: int) -> list[int]:
        """The stages that this pipeline rank holds, in the model's order: its chunks."""
        return stages_of(rank, self.pp, self.chunks, placement_of(self.schedule))

    def layers_of(self, shape: ModelShape) -> list[list[int]]:
        """Layers of every chunk, by pipeline rank."""
        layers = self.layers_by_stage(shape)
        return [[layers[stage] for stage in self.stages_of(rank)] for rank in range(self.pp)]

    def layers_on(self, shape: ModelShape, rank: int) -> int:
        """Layers of all chunks of this pipeline rank together."""
        layers = self.layers_by_stage(shape)
        return sum(layers[stage] for stage in self.stages_of(rank))

    def kinds_by_stage(self, shape: ModelShape) -> list[dict[ModelShape, int]]:
        """What layers each stage has: how many of each kind."""
        return self._layout(shape).stages

    def kinds_on(self, shape: ModelShape, rank: int) -> dict[ModelShape, int]:
        """Layers of all chunks of this pipeline rank together, by kind."""
        index(self.pp, rank=rank)
        return self._layout(shape).ranks[rank]

    def alike(self, shape: ModelShape) -> list[int]:
        """For each pipeline rank the first that holds as many layers and the same ends of the model.

        Such ranks work equally long on a microbatch and hold as many parameters, so one stands for all of them.
        """
        return self._layout(shape).alike

    def _layout(self, shape: ModelShape) -> _Layout:
        own = None if self.stage_layers is None else tuple(self.stage_layers)
        return _layout(shape, self.pp, self.schedule, self.chunks, own)

    def check(self, shape: ModelShape) -> None:
        """Raise a ValueError if ``shape`` cannot be split as this plan says."""
        stages = self.stages
        if self.stage_layers and (len(self.stage_layers) != stages or sum(self.stage_layers) != shape.layers):
            raise ValueError(
                f"stage layers must be {stages} numbers that add up to {shape.layers}, not {self.stage_layers}"
            )
        if stages > shape.layers:
            raise ValueError(f"{stages} pipeline stages need as many layers; the model has {shape.layers}")
        if shape.heads % self.tp:
            raise ValueError(f"tp must divide the {shape.heads} heads, not {self.tp}")
        if shape.kv_heads % self.tp and self.tp % shape.kv_heads:
            raise ValueError(f"tp must divide the {shape.kv_heads} kv heads or be a multiple, not {self.tp}")
        if shape.experts > 1 and self.tp > 1 and not self.sequence_parallel:
            refuse("sequence_parallel", f"True with tp {self.tp} for a model with experts", False)
        for width in {kind.mlp_width for kind in shape.kinds() if kind.dense_mlps}:
            if width % self.tp:
                raise ValueError(f"tp must divide the MLP's width of {width}, not {self.tp}")
        pieces = self.cp * (self.tp if self.sequence_parallel else 1)
        if shape.sequence % pieces:
            raise ValueError(f"the sequence of {shape.sequence} cannot be split into {pieces} equal pieces")
        if shape.heads % (groups := self.tp * self.head_ranks):
            raise ValueError(
                f"tp and an all-to-all deal out heads: {groups} ranks cannot share {shape.heads} heads"
            )
        if shape.experts % self.ep:
            raise ValueError(f"ep must divide the {shape.experts} experts, not {self.ep}")

    def parameters_of(self, shape: ModelShape, rank: int) -> tuple[int, int]:
        """Parameters on pipeline rank ``rank`` before any sharding over data: (dense, of experts)."""
        dense, experts = self.root_parameters(shape, rank), 0
        for kind, layers in self.kinds_on(shape, rank).items():
            of_experts = kind.routed_parameters(self.ep)
            dense += layers * (kind.layer_parameters(self.tp, self.ep) - of_experts)
            experts += layers * of_experts
        return dense, experts

    def matrices_on(self, shape: ModelShape, rank: int) -> list[list[Matrices]]:
        """The matrices of layers that Muon turns on pipeline rank ``rank``, and those of routed experts."""
        kinds = [(n, kind.layer_matrices(self.tp, self.ep)) for kind, n in self.kinds_on(shape, rank).items()]
        return [[(r, c, n * count) for n, parts in kinds for r, c, count in parts[i]] for i in (0, 1)]

    @property
    def copies(self) -> tuple[int, int]:
        """Ranks that have the same parameters, and those that have the same experts."""
        return self.dp * self.cp, self.dp * self.cp // self.ep

    def root_parameters(self, shape: ModelShape, rank: int) -> int:
        """Those of pipeline rank ``rank`` that belong to no layer: the embedding, the final norm, the output."""
        index(self.pp, rank=rank)
        last_rank = self.rank_of(self.stages - 1)
        first = shape.embedding_parameters(self.tp) if rank == 0 else 0
        last = shape.head_parameters(self.tp, own_copy=last_rank != 0) if rank == last_rank else 0
        return first + last


class _Layout(NamedTuple):
    """Layers by kind of every stage and of every rank, and ``Plan.alike``; nobody changes them."""

    stages: list[dict[ModelShape, int]]
    ranks: list[dict[ModelShape, int]]
    alike: list[int]


@lru_cache(maxsize=256)
def _layout(
    shape: ModelShape, pp: int, schedule: str, chunks: int, stage_layers: tuple[int, ...] | None
) -> _Layout:
    """Computed once for the many plans of a search that lay out the layers alike."""
    plan = Plan(pp=pp, schedule=schedule, chunks=chunks, stage_layers=stage_layers)
    layers = plan.layers_by_stage(shape)
    firsts = accumulate(layers, initial=0)
    stages = [shape.kinds(first, n) for first, n in zip(firsts, layers, strict=False)]
    ranks = []
    for rank in range(pp):
        total: Counter[ModelShape] = Counter()
        for stage in plan.stages_of(rank):
            total.update(stages[stage])
        ranks.append(dict(total))
    ends, first = {0, pp - 1, plan.rank_of(plan.stages - 1)}, {}
    keys = [(frozenset(kinds.items()), rank if rank in ends else -1) for rank, kinds in enumerate(ranks)]
    return _Layout(stages, ranks, [first.setdefault(key, rank) for rank, key in enumerate(keys)])
