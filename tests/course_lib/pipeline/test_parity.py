"""Every schedule of the simulator on real ranks, against the one-device loop and ``torch.distributed.pipelining``."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.timeline import record_timeline
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.pipeline.executor import Pipeline
from course_lib.pipeline.gradient_norm import clip_grad_norm_
from course_lib.pipeline.stages import rank_stages
from course_lib.runtime import current_device, launch
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import SCHEDULES, make_schedule
from simulator.predict.traffic import schedule_traffic

HIDDEN, SEQ, VOCABULARY = 16, 8, 32
STEPS = 2


def gpt(layers=8, **changes):
    torch.manual_seed(0)
    settings = {"num_layers": layers, "hidden_size": HIDDEN, "num_heads": 2, "vocab_size": VOCABULARY}
    return GPT(GPTConfig.tiny(max_length=SEQ, **(settings | changes))).double().to(current_device())


def batch(rows, seed=1):
    """Token batches in which the rows have different numbers of targets."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (rows, SEQ + 1), generator=generator)
    targets = tokens[:, 1:].clone()
    for row in range(rows):
        targets[row, : row % SEQ] = -100
    return tokens[:, :-1].to(current_device()), targets.to(current_device())


def cut(tensors, sizes):
    return list(zip(*(tensor.split(sizes) for tensor in tensors), strict=True))


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def one_device(model, rows, max_norm, loss_of=None):
    """Losses, gradient norms, and gradients and parameters after the last step, by all names."""
    loss_of = loss_of or (lambda *data: F.cross_entropy(model(*data[:-1]).flatten(0, -2), data[-1].flatten()))
    optimizer = optimizer_of(model.parameters())
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(*batch(rows, step))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
        losses.append(loss.item())
    named = dict(model.named_parameters(remove_duplicate=False))
    return losses, norms, {n: p.grad for n, p in named.items()}, {n: p.detach() for n, p in named.items()}


def largest(found, expected):
    """The largest difference, as a share of the largest of all values. (Some gradients are zero but for rounding.)"""
    difference = max((tensor - expected[n]).abs().max() for n, tensor in found.items())
    return (difference / max(tensor.abs().max() for tensor in expected.values())).item()


def compare(pipeline, oracle, sizes, max_norm):
    """Train the pipeline as the oracle was trained; the differences, and the ledgers of the last step."""
    losses, norms, gradients, parameters = oracle
    optimizer = optimizer_of(pipeline.parameters())
    worst = {"loss": 0.0, "norm": 0.0}
    for step in range(STEPS):
        optimizer.zero_grad()
        with record_traffic() as traffic, record_timeline() as log:
            loss = pipeline.step(cut(batch(sum(sizes), step), sizes))
        norm = clip_grad_norm_(pipeline, max_norm)
        worst["norm"] = max(worst["norm"], abs(norm.item() / norms[step] - 1))
        optimizer.step()
        if loss is not None:
            worst["loss"] = max(worst["loss"], abs(loss.item() / losses[step] - 1))
    named = dict(pipeline.named_parameters())
    worst["gradients"] = largest({n: p.grad for n, p in named.items()}, gradients)
    worst["parameters"] = largest({n: p.detach() for n, p in named.items()}, parameters)
    return worst, sorted(named), traffic.traffic, log


def closed_form(schedule, sizes, rank):
    """What a rank sends: messages as large as each microbatch, and the tied weight's gradient."""
    total = Traffic()
    for i, rows in enumerate(sizes):
        lists = tuple(tuple(a for a in actions if a.microbatch == i) for actions in schedule.actions)
        one = replace(schedule, actions=lists, overlapped=())
        total += schedule_traffic(one, rows * SEQ * HIDDEN, rank, itemsize=8)
    tied = {schedule.rank_of(0), schedule.rank_of(schedule.stages - 1)}
    if len(tied) == 2 and rank in tied:
        size = VOCABULARY * HIDDEN * 8
        total += Traffic([TrafficRow("send", 2, 1, size, size)])
    return total


def all_schedules(mesh, names, sizes, layers):
    """Every schedule: parity and ledgers."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    oracle = one_device(gpt(layers), sum(sizes), max_norm=0.5)
    found = {}
    for name, chunks in names:
        schedule = make_schedule(name, ranks, len(sizes), chunks)
        pipeline = Pipeline(rank_stages(gpt(layers), schedule, mesh), schedule, mesh)
        worst, parameters, traffic, log = compare(pipeline, oracle, sizes, max_norm=0.5)
        order = [mark.name for mark in log.marks if mark.lane == "compute"]
        found[name, chunks] = {
            "differences": worst,
            "parameters": parameters,
            "executed": order == [schedule.span_name(a) for a in schedule.actions[rank]],
            "in flight": (pipeline.peak_in_flight, simulate(schedule).peak_in_flight[rank]),
            "traffic": (traffic, closed_form(schedule, sizes, rank)),
            "left": len(pipeline.kept) + len(pipeline.split) + len(pipeline.messages.here),
        }
    return found


EVERY = [(name, None) for name in SCHEDULES] + [("interleaved-1f1b", 3)]
SOME = [("1f1b", None), ("interleaved-1f1b", 2), ("zb-v", None), ("dualpipe-v", None), ("zb-h2", None)]


@pytest.mark.parametrize(
    ("ranks", "names", "sizes", "layers"),
    [
        (4, EVERY, [3, 3, 3, 3, 3, 1], 12),
        (3, SOME, [2, 2, 2, 2, 1], 7),
        (1, SOME, [2, 1], 2),
    ],
)
def test_every_schedule_equals_one_device(ranks, names, sizes, layers):
    """Losses, gradient norms, gradients and parameters, the last microbatch smaller, with tied embeddings."""
    results = launch(all_schedules, mesh={"pp": ranks}, args=(names, sizes, layers))
    whole = sorted(n for n, _ in gpt(layers).named_parameters(remove_duplicate=False))
    for case in results[0]:
        of_ranks = [result[case] for result in results]
        for found in of_ranks:
            for what, difference in found["differences"].items():
                assert difference < 1e-10, (case, what)
            assert found["executed"], case
            assert found["in flight"][0] == found["in flight"][1], case
            assert found["traffic"][0] == found["traffic"][1], case
            assert found["left"] == 0, case
        names_held = {name for found in of_ranks for name in found["parameters"]}
        tied_twice = {"head.weight"} if case[0] in ("zb-v", "dualpipe-v") or ranks == 1 else set()
        assert names_held | tied_twice == set(whole)
