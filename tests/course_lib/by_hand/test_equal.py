"""By-hand, production and PyTorch's own implementations alike: equal to one device that sees the whole batch.

Every implementation is a function ``train(model, batches, make_optimizer, loss_fn)`` that yields the loss and the
gradient norm of each step, as in the files of ``course_lib/by_hand``. To add one, add a row to ``IMPLEMENTATIONS``.
The ranks are started once for each number of them, and train everything.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import dense_experts
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor import Shard as DTensorShard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from course_lib.attention.drop_in import use_flash_attention
from course_lib.attention.flash import flash_attention
from course_lib.by_hand import compress, experts, fp8
from course_lib.by_hand import ddp as by_hand_ddp
from course_lib.by_hand import galaxy as by_hand_galaxy
from course_lib.by_hand import muon as by_hand_muon
from course_lib.by_hand import pipeline as by_hand_pipeline
from course_lib.context_parallel.apply import apply_context_parallel
from course_lib.data_parallel.ddp import DDP, FlatDDP, NaiveDDP
from course_lib.data_parallel.fsdp import FSDP
from course_lib.data_parallel.zero import Zero1, Zero2
from course_lib.data_parallel.zero3 import Zero3
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.masked_words import BertMaskedWords
from course_lib.one_device.loop import cross_entropy
from course_lib.one_device.recompute import apply_recompute
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.gradient_norm import grad_norm as pipeline_norm
from course_lib.pipeline.microbatches import cut_batch
from course_lib.pipeline.stages import rank_stages
from course_lib.runtime import current_device, launch
from course_lib.runtime.mesh import make_mesh
from course_lib.tensor_parallel.apply import apply_tensor_parallel
from course_lib.tensor_parallel.full_tensors import full_state_dict
from course_lib.tensor_parallel.galaxy import apply_galaxy
from course_lib.tensor_parallel.gradient_norm import grad_norm
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy
from simulator.inputs.plan import CONTEXT
from simulator.pipeline.schedules import make_schedule

STEPS, BATCH, CLOSE = 2, 12, 1e-9  # two steps: the second shows the first one's update and its states


@dataclass(frozen=True)
class Implementation:
    """One row.

    Args:
        technique: a file of ``by_hand``; ``name`` tells apart those of one technique.
        train: as above; it may change the model. At its end ``model.state_dict()`` is whole, or it has set
            ``model.whole``, a function that returns the whole.
        models: those of ``MODELS`` that it can train.
        same_samples: every rank sees the whole batch.
        ranks: numbers of ranks to try. On three the next rank is not the one before, and a
            shard is padded; test_program.py trains on two.
        norms: False: no rank knows the norm of the whole gradient.
        alone: what one device does.
    """

    technique: str
    name: str
    train: Callable
    models: tuple[str, ...] = ("gpt", "mlp")
    same_samples: bool = False
    ranks: tuple[int, ...] = (1, 3)
    norms: bool = True
    alone: Callable | None = None

    def __str__(self):
        return f"{self.technique}, {self.name}"


def by_hand(technique, rungs=None, **row):
    """All rungs of a file, as it lists them itself."""
    file = importlib.import_module(f"course_lib.by_hand.{technique}")
    for name, settings in file.RUNGS.items():
        if rungs is None or name in rungs:
            yield Implementation(technique, f"by hand: {name}", partial(file.train, **settings), **row)


def loop(wrap):
    """``train`` for what is used in the ordinary loop. ``wrap(model, make_optimizer)`` gives what is called, its
    optimizer, and what follows backward and returns the gradient norm."""

    def train(model, batches, make_optimizer, loss_fn):
        wrapped, optimizer, after_backward = wrap(model, make_optimizer)
        for inputs, targets in batches:
            loss = loss_fn(wrapped(inputs), targets)
            loss.backward()
            norm = after_backward()
            optimizer.step()
            optimizer.zero_grad()
            yield loss.detach(), norm

    return train


def norm_of(model):
    return nn.utils.get_total_norm([p.grad for p in model.parameters()])


def one_device(model, make_optimizer):
    return model, make_optimizer(model.parameters()), lambda: norm_of(model)


def ddp(kind, **settings):
    def wrap(model, make_optimizer):
        wrapped = kind(model, **settings)

        def after_backward():
            if hasattr(wrapped, "average_gradients"):
                wrapped.average_gradients()
            return norm_of(model)

        return wrapped, make_optimizer(model.parameters()), after_backward

    return loop(wrap)


def production_zero(kind):
    def train(model, batches, make_optimizer, loss_fn):
        settings = make_optimizer([nn.Parameter(torch.zeros(1))]).defaults
        zero = kind(
            model, torch.optim.SGD, lr=settings["lr"], momentum=settings["momentum"], bucket_cap_mb=0.01
        )
        model.whole = zero.model_state_dict
        for inputs, targets in batches:
            loss = loss_fn(model(inputs), targets)
            loss.backward()
            zero.step()
            yield loss.detach(), zero.grad_norm

    return train


def torch_zero(model, make_optimizer):
    settings = make_optimizer([nn.Parameter(torch.zeros(1))]).defaults
    given = {key: settings[key] for key in ("lr", "momentum")}
    wrapped = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **given)
    return wrapped, optimizer, lambda: norm_of(model)


def production_fsdp(model, make_optimizer):
    wrapped = FSDP(model, ["blocks.*"], make_mesh({"dp": dist.get_world_size()}))
    model.whole = wrapped.state_dict
    return wrapped, make_optimizer(wrapped.parameters()), wrapped.clip_grad_norm


def torch_fsdp(model, make_optimizer):
    for t in (*model.parameters(), *model.buffers()):
        dist.broadcast(t.detach(), 0)  # it does not do so itself
    for module in (*model.blocks, model):
        fully_shard(module, mesh=make_mesh({"dp": dist.get_world_size()}))
    model.whole = lambda: {name: t.full_tensor() for name, t in model.state_dict().items()}
    return model, make_optimizer(model.parameters()), lambda: norm_of(model).full_tensor()


def production_recompute(what):
    def wrap(model, make_optimizer):
        apply_recompute(model, what)
        return one_device(model, make_optimizer)

    return wrap


def torch_recompute(model, make_optimizer):
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return one_device(model, make_optimizer)


def production_flash(model, make_optimizer):
    use_flash_attention(model, partial(flash_attention, block_q=3, block_k=2))
    return one_device(model, make_optimizer)


def production_tensor_parallel(sequence_parallel):
    def train(model, batches, make_optimizer, loss_fn):
        mesh = make_mesh({"tp": dist.get_world_size()})
        words = model.head.out_features
        apply_tensor_parallel(model, mesh, sequence_parallel=sequence_parallel)
        model.whole = lambda: full_state_dict(model, mesh)
        loss_fn = VocabParallelCrossEntropy(words, mesh)
        yield from loop(
            lambda model, make: (model, make(model.parameters()), lambda: grad_norm(model, mesh))
        )(model, batches, make_optimizer, loss_fn)

    return train


def torch_tensor_parallel(model, make_optimizer, sequence_parallel=False):
    """The layers are cut, embedding and head are whole on every rank."""
    mesh = make_mesh({"tp": dist.get_world_size()})
    own, every = (DTensorShard(1),), (Replicate(),)
    plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
    leave = RowwiseParallel(output_layouts=own[0] if sequence_parallel else every[0])
    plan |= {"mlp.up": ColwiseParallel(), "attention.output": leave, "mlp.down": leave}
    if sequence_parallel:
        enter = PrepareModuleInput(input_layouts=own, desired_input_layouts=every)
        plan |= {"attention": enter, "mlp": enter, "norm_1": SequenceParallel(), "norm_2": SequenceParallel()}
        begin = PrepareModuleOutput(output_layouts=every, desired_output_layouts=own)
        end = PrepareModuleInput(input_layouts=own, desired_input_layouts=every, use_local_output=True)
        parallelize_module(model, mesh, {"embedding": begin, "norm": end})
    parallelize_module(model, mesh, {f"blocks.*.{name}": style for name, style in plan.items()})
    model.whole = lambda: {name: full(t) for name, t in model.state_dict().items()}
    kinds = [[p for p in model.parameters() if isinstance(p, DTensor) is kind] for kind in (False, True)]
    optimizer = make_optimizer([{"params": some} for some in kinds])
    return model, optimizer, lambda: nn.utils.get_total_norm([full(p.grad) for p in model.parameters()])


def production_context_parallel(context):
    def train(model, batches, make_optimizer, loss_fn):
        cut = apply_context_parallel(model, make_mesh({"cp": dist.get_world_size()}), context)
        own = (cut(*batch) for batch in batches)
        yield from ddp(FlatDDP)(model, own, make_optimizer, loss_fn)

    return train


def production_galaxy(**settings):
    def wrap(model, make_optimizer):
        mesh = make_mesh({"tp": dist.get_world_size()})
        share = [2 - rank % 2 for rank in range(mesh.size())]
        apply_galaxy(model, mesh, sequence=share, **settings)
        model.whole = lambda: full_state_dict(model, mesh)
        return model, make_optimizer(model.parameters()), lambda: grad_norm(model, mesh)

    return loop(wrap)


def production_pipeline(name, m=5):
    def train(model, batches, make_optimizer, loss_fn):
        mesh = make_mesh({"pp": dist.get_world_size()})
        schedule = make_schedule(name, mesh.size(), m)
        pipeline = Pipeline(rank_stages(model, schedule, mesh), schedule, mesh)
        model.whole = lambda: from_all_ranks(pipeline.state_dict())
        optimizer = make_optimizer(pipeline.parameters())
        for batch in batches:
            loss = pipeline.step(cut_batch(batch, m))
            norm = pipeline_norm(pipeline)
            optimizer.step()
            optimizer.zero_grad()
            yield loss, norm

    return train


def torch_pipeline(model, batches, make_optimizer, loss_fn):
    """It leaves to us the matrix that two ranks have, and the norm."""
    mesh = make_mesh({"pp": dist.get_world_size()})
    rank, last = dist.get_rank(), mesh.size() - 1
    [module] = rank_stages(model, make_schedule("1f1b", mesh.size(), 4), mesh).values()
    stage = pipelining.PipelineStage(module, rank, mesh.size(), current_device())
    schedule = pipelining.Schedule1F1B(stage, 4, loss_fn=loss_fn)
    ends = dist.new_group([0, last])
    model.whole = lambda: from_all_ranks(module.state_dict())
    optimizer = make_optimizer(module.parameters())
    for inputs, targets in batches:
        losses = []
        told = {"target": targets, "losses": losses} if rank == last else {}
        schedule.step(*[inputs] * (rank == 0), **told)
        counted = list(module.parameters())
        if rank in (0, last):
            dist.all_reduce(model.head.weight.grad, group=ends)
        if rank == last:
            counted = [p for p in counted if p is not model.head.weight]
        square = norm_of(nn.ParameterList(counted)) ** 2
        dist.all_reduce(square)
        optimizer.step()
        optimizer.zero_grad()
        yield torch.stack(losses).mean() if losses else None, square.sqrt()


def from_all_ranks(state):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, state)
    return {name: t for part in parts for name, t in part.items()}


def full(t):
    return t.full_tensor() if isinstance(t, DTensor) else t


IMPLEMENTATIONS = [
    *by_hand("ddp"),
    *(  # a bucket for each two or three parameters
        Implementation("ddp", f"by hand: small {name}", partial(by_hand_ddp.train, rung=rung, cap_mb=0.003))
        for name, rung in {"buckets": by_hand_ddp.Buckets, "overlap": by_hand_ddp.Overlap}.items()
    ),
    Implementation("ddp", "production: naive", ddp(NaiveDDP)),
    Implementation("ddp", "production: flat", ddp(FlatDDP)),
    Implementation("ddp", "production", ddp(DDP, bucket_cap_mb=0.05)),
    Implementation("ddp", "PyTorch", ddp(DistributedDataParallel, bucket_cap_mb=0.05)),
    *by_hand("zero"),
    *(
        Implementation("zero", f"production: {zero.__name__}", production_zero(zero))
        for zero in (Zero1, Zero2, Zero3)
    ),
    Implementation("zero", "PyTorch", loop(torch_zero)),
    # Lossless settings of what loses something otherwise; test_compress.py has the others.
    Implementation(
        "compress", "by hand: all of top-k", partial(compress.train, method=compress.TopK, density=1.0)
    ),
    Implementation(
        "compress",
        "by hand: DiLoCo in every step",
        partial(compress.train, method=compress.DiLoCo, H=1, lr=1.0, momentum=0.0),
        norms=False,
    ),
    *by_hand("fsdp"),
    Implementation("fsdp", "production", loop(production_fsdp)),
    Implementation("fsdp", "PyTorch", loop(torch_fsdp)),
    *by_hand("recompute", rungs=("one operation", "full"), ranks=(1,)),
    *by_hand("recompute", rungs=("selective",), models=("gpt",), ranks=(1,)),
    Implementation("recompute", "production: full", loop(production_recompute("full")), ranks=(1,)),
    Implementation(
        "recompute",
        "production: selective",
        loop(production_recompute("selective")),
        models=("gpt",),
        ranks=(1,),
    ),
    Implementation("recompute", "PyTorch", loop(torch_recompute), ranks=(1,)),
    *by_hand("flash_attention", models=("gpt",), ranks=(1,)),
    Implementation("flash_attention", "production", loop(production_flash), models=("gpt",), ranks=(1,)),
    *by_hand("tensor_parallel", models=("gpt",), same_samples=True),
    Implementation(
        "tensor_parallel", "production", production_tensor_parallel(False), models=("gpt",), same_samples=True
    ),
    Implementation(
        "tensor_parallel", "PyTorch", loop(torch_tensor_parallel), models=("gpt",), same_samples=True
    ),
    *by_hand("sequence_parallel", models=("gpt",), same_samples=True, ranks=(1, 4)),
    Implementation(
        "sequence_parallel",
        "production",
        production_tensor_parallel(True),
        models=("gpt",),
        same_samples=True,
        ranks=(1, 4),
    ),
    Implementation(
        "sequence_parallel",
        "PyTorch",
        loop(partial(torch_tensor_parallel, sequence_parallel=True)),
        models=("gpt",),
        same_samples=True,
        ranks=(1, 4),
    ),
    *by_hand("context_parallel", models=("long gpt",), same_samples=True),
    *(
        Implementation(
            "context_parallel",
            f"production: {context}",
            production_context_parallel(context),
            models=("long gpt",),
            same_samples=True,
        )
        for context in CONTEXT
    ),
    *by_hand("muon", alone=partial(by_hand_muon.train, kind=by_hand_muon.OneDevice)),
    *(
        Implementation(
            "experts",
            f"by hand: {name}, {more.get('E', 'twelve')} experts",
            partial(experts.train, **rung, **more),
            models=("gpt",),
            alone=partial(dense_experts.train, **{k: v for k, v in rung.items() if k != "kind"}, **more),
        )
        for name, rung in experts.RUNGS.items()
        for more in ({}, {"E": 7, "k": 3})  # seven: not as many on each rank
    ),
    *(
        Implementation(
            "fp8",
            f"by hand: {name}",
            partial(fp8.train, **how),
            models=("gpt",) if "block" in how else ("gpt", "mlp"),
            alone=partial(fp8.train, **how, p=1),
        )
        for name, rung in fp8.RUNGS.items()
        for how in (rung | {"block": 8} if "block" in rung else rung,)  # tiles divide the tokens of each rank
    ),
    *by_hand("galaxy", models=("gpt",), same_samples=True),
    Implementation(
        "galaxy",
        "by hand: one device has most",
        partial(by_hand_galaxy.train, power=(1, 6, 1)),
        models=("gpt",),
        same_samples=True,
        ranks=(3,),
    ),
    Implementation("galaxy", "production", production_galaxy(), models=("bert",), same_samples=True),
    Implementation(
        "galaxy", "production: overlap", production_galaxy(overlap=True), models=("bert",), same_samples=True
    ),
    *by_hand("pipeline", models=("deep gpt",), same_samples=True),
    *(  # schedules of the simulator: data that both can run
        Implementation(
            "pipeline",
            f"by hand: the simulator's {name}",
            partial(
                by_hand_pipeline.train, schedule=lambda p, m, n=name: make_schedule(n, p, m).actions, m=5
            ),
            models=("deep gpt",),
            same_samples=True,
        )
        for name in ("interleaved-1f1b", "zb-h2", "zb-v", "dualpipe-v")
    ),
    *(
        Implementation(
            "pipeline",
            f"production: {name}",
            production_pipeline(name),
            models=("deep gpt",),
            same_samples=True,
        )
        for name in ("1f1b", "zb-v")
    ),
    Implementation(
        "pipeline", "PyTorch", torch_pipeline, models=("deep gpt",), same_samples=True, ranks=(3,)
    ),
]


# ---- what is trained --------------------------------------------------------------------------------------


class MLP(nn.Module):
    """Units of 99, 60, 65 and 42 parameters: on three ranks the third has to be padded."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 11)
        self.blocks = nn.ModuleList([nn.Linear(11, 5), nn.Linear(5, 13, bias=False), nn.Linear(13, 3)])

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x.tanh())
        return x


def gpt(layers=3, length=8):
    return GPT(
        GPTConfig.tiny(vocab_size=29, max_length=length, num_layers=layers, num_heads=12, hidden_size=24)
    )


def bert():
    sizes = {"hidden_size": 24, "num_attention_heads": 12, "num_hidden_layers": 3, "intermediate_size": 96}
    return BertMaskedWords(
        Bert(BertConfig.tiny(vocab_size=29, max_position_embeddings=8, **sizes), pooler=False)
    )


MODELS = {"gpt": gpt, "deep gpt": partial(gpt, 8), "long gpt": partial(gpt, 2, 24), "bert": bert, "mlp": MLP}


def new_model(name, seed=0):
    """In fp64. Only rank 0 has these weights: all others must take them from it."""
    torch.manual_seed(seed)
    return MODELS[name]().double().to(current_device())


def batches(name, rank=0, ranks=1):
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        if name != "mlp":
            length = 24 if name == "long gpt" else 8
            tokens = torch.randint(29, (BATCH, length + 1), generator=generator)
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
        else:
            inputs = torch.randn(BATCH, 8, generator=generator, dtype=torch.float64)
            targets = torch.randint(3, (BATCH,), generator=generator)
        yield tuple(t.chunk(ranks)[rank].to(current_device()) for t in (inputs, targets))


def sgd(parameters):
    """With momentum: the second step shows that the first one's states are right. Not Adam, which makes a step out of
    a gradient that is zero but for rounding, as that of a key's bias."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def trained(train, name, data, seed=0):
    """Losses and norms of all steps, and the parameters after the last."""
    model = new_model(name, seed)
    told = [(loss, float(norm)) for loss, norm in train(model, list(data), sgd, cross_entropy)]
    last = {key: t.detach().cpu().clone() for key, t in getattr(model, "whole", model.state_dict)().items()}
    return [None if loss is None else float(loss) for loss, _ in told], [norm for _, norm in told], last


@cache
def expected(name, alone=None):
    return trained(alone or loop(one_device), name, list(batches(name)))


def train_all(ranks):
    """On a rank: every implementation's losses, norms and parameters."""
    rank, found = dist.get_rank(), {}
    for row in IMPLEMENTATIONS:
        for name in row.models if ranks in row.ranks else ():
            place = (0, 1) if row.same_samples else (rank, ranks)
            data = list(batches(name, *place))
            seed = 0 if row.same_samples else rank
            found[str(row), name] = trained(row.train, name, data, seed)
    return found


@cache
def on_ranks(ranks):
    # Minutes on a busy machine, so no clock: a deadlock is found without one.
    return launch(train_all, ranks, args=(ranks,), timeout=None)


pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []  # the same tests, on what there is

# ---- the tests --------------------------------------------------------------------------------------------

CASES = [
    pytest.param(row, name, ranks, id=f"{row}, {name}, {ranks} ranks")
    for ranks, row in product((1, 3, 4), IMPLEMENTATIONS)
    for name in row.models
    if ranks in row.ranks
]


@pytest.mark.parametrize(("row", "name", "ranks"), CASES)
def test_equals_one_device(row, name, ranks):
    every = [found[str(row), name] for found in on_ranks(ranks)]
    losses, norms, last = expected(name, row.alone)
    for step, loss in enumerate(losses):
        known = [rank[0][step] for rank in every if rank[0][step] is not None]
        assert sum(known) / len(known) == pytest.approx(loss, abs=CLOSE)
    for _, their_norms, theirs in every:
        if row.norms:
            assert their_norms == pytest.approx(norms, abs=CLOSE)
        assert theirs.keys() == last.keys()
        for key, tensor in last.items():
            torch.testing.assert_close(
                theirs[key], tensor, rtol=0, atol=CLOSE, msg=lambda m, k=key: f"{k}: {m}"
            )
