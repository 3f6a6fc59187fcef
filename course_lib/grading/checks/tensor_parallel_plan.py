"""The check of 09.5: a plan for PyTorch's own ``parallelize_module`` on a LLaMA, and what it sends."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.training.loop import cross_entropy
from simulator.predict.traffic import calls, tensor_parallel_traffic
from simulator.predict.vocabulary_traffic import embedding_traffic, head_traffic

TIME_LIMIT = 60.0  # seconds for the ranks of one case
BATCH, SEQ = 2, 6
EMBEDDING = (
    "when the embedding takes each rank's tokens for a part: `input_layouts` is `Shard(-1)` by default"
)

# ranks, layers, query heads, KV heads, tokens of the vocabulary
CASES = [(2, 2, 4, 2, 64), (3, 1, 6, 3, 96)]


def make(layers: int, heads: int, kv_heads: int, vocabulary: int) -> Llama:
    torch.manual_seed(layers)
    sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads}
    more = {"vocab_size": vocabulary, "hidden_size": 8 * heads, "intermediate_size": 16 * heads}
    return Llama(LlamaConfig.tiny(**sizes, **more))


def batch_of(seed: int, vocabulary: int) -> torch.Tensor:
    """Tokens and targets."""
    return torch.randint(vocabulary, (2, BATCH, SEQ), generator=torch.Generator().manual_seed(seed))


def planned_step(
    mesh: DeviceMesh, plan_of: Callable[[Llama], Any], sizes: tuple, seed: int
) -> dict[str, Any]:
    """Forward, loss and backward of the model as the plan has cut it."""
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (mesh.size(),), mesh_dim_names=("tp",))  # also where there is a GPU
    model = make(*sizes)
    plan = plan_of(model)
    if not isinstance(plan, dict) or not all(isinstance(style, ParallelStyle) for style in plan.values()):
        return {"no plan": f"{type(plan).__name__}"}
    if unknown := [name for name in plan if not _matches(model, name)]:
        return {"unknown": unknown}
    parallelize_module(model, mesh, plan)
    held = {n: (p.to_local() if isinstance(p, DTensor) else p).numel() for n, p in model.named_parameters()}
    tokens, targets = batch_of(seed, sizes[-1])
    with loss_parallel(), record_traffic() as log:
        logits = model(tokens)
        own = logits.to_local() if isinstance(logits, DTensor) else logits
        if not isinstance(logits, DTensor) or own.shape[-1] != sizes[-1] // mesh.size():
            kind = "a DTensor" if isinstance(logits, DTensor) else "an ordinary tensor"
            return {"held": held, "logits": f"{kind} with {own.shape[-1]} of {sizes[-1]} words on a rank"}
        if logits.shape[:2] != tokens.shape:
            return {"held": held, "tokens": tuple(logits.shape[:2])}
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
    gradients = {name: _whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    return {
        "held": held,
        "loss": float(_whole(loss)),
        "gradients": gradients,
        "sent": log.traffic.sent,
    }


def _matches(model: Llama, pattern: str) -> bool:
    from fnmatch import fnmatchcase

    wanted = pattern.split(".")
    names = ([*name.split(".")] for name, _ in model.named_modules())
    return pattern == "" or any(
        len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)) for parts in names
    )


def _whole(t: torch.Tensor) -> torch.Tensor:
    return (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()


def least_bytes(ranks: int, layers: int, hidden: int) -> float:
    """One all-reduce in and out of every region, forward and backward together, and three of the loss."""
    tokens = BATCH * SEQ
    blocks = tensor_parallel_traffic(tokens, hidden, ranks, layers, 4)
    ends = embedding_traffic(tokens, hidden, ranks, 4) + head_traffic(tokens, hidden, ranks, 4)
    return (blocks + ends + calls("all-reduce", [tokens] * 3, 4, ranks)).sent


@check
def check_09_5(report: Report, plan_of: Callable[[Llama], Any]) -> None:
    for ranks, *sizes in CASES:
        if report.failures:
            break  # each case takes seconds, and the first tells what is wrong
        layers, heads, _, vocabulary = sizes
        with report.case(f"{ranks} ranks, {layers} layer{'s' if layers > 1 else ''}"):
            seed = report.seed()
            args = (plan_of, tuple(sizes), seed)
            seen = launch(
                planned_step, mesh={"tp": ranks}, args=args, timeout=TIME_LIMIT, quiet=True, backend="gloo"
            )[0]
            report.true(
                "no plan" not in seen,
                "a plan",
                f"the result is {seen.get('no plan')}, not a dict of styles",
                task="Return the plan, which is a dict from names of modules",
            )
            report.true(
                "unknown" not in seen,
                "its names are modules of the model",
                f"the model has no module {', '.join(seen.get('unknown', [])[:1])}",
                task="Return the plan, which is a dict from names of modules",
            )
            model = make(*sizes)
            matrices = {name: p.numel() // ranks for name, p in model.named_parameters() if p.dim() == 2}
            fat = [name for name, size in matrices.items() if seen["held"][name] > size]
            report.true(
                not fat,
                "every matrix is cut",
                f"a rank holds more than its share of {', '.join(fat[:3])}{' and others' * (len(fat) > 3)}",
                task="Every matrix of the model is cut: a rank holds one p-th of each.",
            )
            report.true(
                "logits" not in seen,
                "the logits come out cut by words",
                f"the logits come out as {seen.get('logits')}",
                task="The logits come out cut by words, as a DTensor",
            )
            many = seen.get("tokens", (BATCH, SEQ))
            report.true(
                many == (BATCH, SEQ),
                "as many logits as tokens",
                f"the logits belong to {' × '.join(map(str, many))} tokens; the batch has {BATCH} × {SEQ}",
                got=many,
                mistakes={EMBEDDING: (BATCH, ranks * SEQ)},
                task="the tokens come in whole",
            )
            tokens, targets = batch_of(seed, vocabulary)
            loss = cross_entropy(model(tokens), targets)
            loss.backward()
            task = "The loss and all gradients are those of one device."
            report.close("the loss of one device", seen["loss"], loss.item(), tolerance=1e-4, task=task)
            for name, p in model.named_parameters():
                got = seen["gradients"].get(name)
                problem = (
                    got is None
                    or got.shape != p.shape
                    or not torch.allclose(got, p.grad, rtol=1e-3, atol=1e-5)
                )
                if problem:
                    report.fail(f"the gradient of {name} is not that of one device", task=task)
            report.ok("the gradients of one device")
            limit = round(least_bytes(ranks, layers, 8 * heads))
            sent, one = (
                round(seen["sent"]),
                least_bytes(ranks, 1, 8 * heads) - least_bytes(ranks, 0, 8 * heads),
            )
            extra = round(4 * (sent - limit) / one / layers)  # all-reduces too many in a layer
            report.at_most(
                "bytes sent by a rank",
                sent,
                limit,
                mistakes=_too_many(sent, extra),
                task="no more than four all-reduces of the size of the hidden states in each layer",
            )


def _too_many(sent: int, extra: int) -> dict[str, int]:
    causes = {
        3: "when queries, keys, values, gate and up each send the gradient of their input: five, not two",
        2: "when queries, keys and values each send the gradient of their input",
        1: "when gate and up each send the gradient of their input",
    }
    return {causes[extra]: sent} if extra in causes else {}
