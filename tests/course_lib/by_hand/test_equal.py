"""Every file of ``course_lib/by_hand`` is equal to one device that sees the whole batch.

Each rung is a function ``train(model, batches, make_optimizer, loss_fn)`` that yields the loss and the gradient norm of
each step. To add one, add a row to ``IMPLEMENTATIONS``. The ranks are started once for each number of them, and train
everything. Production, and PyTorch beside it, is held to one device in the folders of its own tests.
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

from course_lib.by_hand import compress, experts, fp8
from course_lib.by_hand import ddp as by_hand_ddp
from course_lib.by_hand import galaxy as by_hand_galaxy
from course_lib.by_hand import muon as by_hand_muon
from course_lib.by_hand import pipeline as by_hand_pipeline
from course_lib.models.bert import Bert, BertConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.masked_words import BertMaskedWords
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime import current_device, launch
from course_lib.runtime.mesh import make_mesh
from course_lib.tensor_parallel.full_tensors import full_state_dict
from course_lib.tensor_parallel.galaxy import apply_galaxy
from course_lib.tensor_parallel.gradient_norm import grad_norm
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


def production_galaxy(**settings):
    def wrap(model, make_optimizer):
        mesh = make_mesh({"tp": dist.get_world_size()})
        share = [2 - rank % 2 for rank in range(mesh.size())]
        apply_galaxy(model, mesh, sequence=share, **settings)
        model.whole = lambda: full_state_dict(model, mesh)
        return model, make_optimizer(model.parameters()), lambda: grad_norm(model, mesh)

    return loop(wrap)


IMPLEMENTATIONS = [
    *by_hand("ddp"),
    *(  # a bucket for each two or three parameters
        Implementation("ddp", f"by hand: small {name}", partial(by_hand_ddp.train, rung=rung, cap_mb=0.003))
        for name, rung in {"buckets": by_hand_ddp.Buckets, "overlap": by_hand_ddp.Overlap}.items()
    ),
    *by_hand("zero"),
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
    *by_hand("recompute", rungs=("one operation", "full"), ranks=(1,)),
    *by_hand("recompute", rungs=("selective",), models=("gpt",), ranks=(1,)),
    *by_hand("flash_attention", models=("gpt",), ranks=(1,)),
    *by_hand("tensor_parallel", models=("gpt",), same_samples=True),
    *by_hand("sequence_parallel", models=("gpt",), same_samples=True),
    *by_hand("context_parallel", models=("long gpt",), same_samples=True),
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


def gpt(layers=2, length=12):
    return GPT(
        GPTConfig.tiny(vocab_size=29, max_length=length, num_layers=layers, num_heads=12, hidden_size=24)
    )


def bert():
    sizes = {"hidden_size": 24, "num_attention_heads": 12, "num_hidden_layers": 2, "intermediate_size": 96}
    return BertMaskedWords(
        Bert(BertConfig.tiny(vocab_size=29, max_position_embeddings=12, **sizes), pooler=False)
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
            length = 24 if name == "long gpt" else 12
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
    for ranks, row in product((1, 3), IMPLEMENTATIONS)
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
