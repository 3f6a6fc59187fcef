"""The check of 10.4: PyTorch's own ``parallelize_module`` with sequence parallelism on a LLaMA."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel

from course_lib.grading.compare import rank_differences
from course_lib.grading.ranks import launch
from course_lib.grading.report import Report, check
from course_lib.models.llama import Llama, LlamaConfig, RMSNorm
from course_lib.observe.ledgers.traffic import record_traffic
from simulator.predict.collective_traffic import sent_bytes

TIME_LIMIT = 60.0  # seconds for the ranks of one case
CASES = {  # ranks, layers, heads, heads of keys and values
    "2 ranks, 2 layers": (2, 2, 4, 2),
    "3 ranks, 1 layer": (3, 1, 6, 3),
}
BATCH, SEQ, VOCAB, HIDDEN = 2, 12, 60, 24
OWN_WORDS = "each rank returns the logits of its own words as an ordinary tensor: `use_local_output` is True by default"
NOT_SUMMED = (
    "the gradients of this norm are not added up over the ranks: each rank has that of its own tokens"
)


def make(layers: int, heads: int, kv_heads: int) -> Llama:
    torch.manual_seed(layers)
    model = Llama(
        LlamaConfig.tiny(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
        )
    )
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.double()


def batch(seed: int) -> Tensor:
    return torch.randint(VOCAB, (2, BATCH, SEQ), generator=torch.Generator().manual_seed(seed))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def local(x: Any) -> Tensor:
    return x.to_local() if isinstance(x, DTensor) else x


def whole(x: Any) -> Tensor:
    return (x.full_tensor() if isinstance(x, DTensor) else x).detach().clone()


def parallel_step(
    mesh: DeviceMesh, answer: Callable[..., Any], sizes: tuple[int, int, int], seed: int
) -> dict[str, Any]:
    """A step of the model as the answer has parallelised it: loss, gradients, what norms got, what was sent."""
    warnings.simplefilter("ignore")
    model = make(*sizes)
    names = [name for name, _ in model.named_parameters()]
    answer(model, mesh)
    tokens, targets = batch(seed)
    norms: dict[str, int] = {}

    def look(name: str, _module: nn.Module, inputs: tuple, output: Any) -> None:
        norms[name] = max(local(inputs[0]).shape[1], local(output).shape[1])

    for name, module in model.named_modules():
        if isinstance(module, RMSNorm):
            module.register_forward_hook(lambda m, i, o, name=name: look(name, m, i, o))
    held = sum(local(p).numel() for p in model.parameters())
    with record_traffic() as log:
        logits = model(tokens)
        if not isinstance(logits, DTensor) and logits.shape != (BATCH, SEQ, VOCAB):
            return {"logits": tuple(logits.shape)}
        with loss_parallel() if isinstance(logits, DTensor) else nullcontext():
            loss = loss_of(logits, targets)
            loss.backward()
    gradients = {name: None if p.grad is None else whole(p.grad) for name, p in model.named_parameters()}
    return {
        "same names": [name for name, _ in model.named_parameters()] == names,
        "held": held,
        "loss": float(whole(loss)),
        "gradients": gradients,
        "norms": norms,
        "sent": log.traffic.sent,
    }


def on_one_device(sizes: tuple[int, int, int], seed: int) -> tuple[float, dict[str, Tensor]]:
    model = make(*sizes)
    tokens, targets = batch(seed)
    loss = loss_of(model(tokens), targets)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def cut_elements(sizes: tuple[int, int, int], ranks: int) -> int:
    """Elements of a rank where every matrix is cut, and the norms are on every rank."""
    counts = [p.numel() // ranks if p.dim() > 1 else p.numel() for p in make(*sizes).parameters()]
    return sum(counts)


def sent_at_most(layers: int, ranks: int) -> float:
    """g and g-bar of every region, forward and backward; and what the loss of logits that are cut adds."""
    activation = BATCH * SEQ * HIDDEN * 8
    regions = 2 * layers + 1  # and one more: the embedding's end and the output matrix's beginning
    both = sent_bytes("all-gather", activation, ranks) + sent_bytes("reduce-scatter", activation, ranks)
    norms = (2 * layers + 1) * sent_bytes("all-reduce", HIDDEN * 8, ranks)
    loss = 4 * sent_bytes("all-reduce", BATCH * SEQ * 8, ranks)
    return 2 * regions * both + norms + loss


def sent_by_mistakes(layers: int, ranks: int) -> dict[str, int]:
    """What two plans send that give the right loss and gradients."""
    activation, logits = BATCH * SEQ * HIDDEN * 8, BATCH * SEQ * VOCAB * 8
    both = sent_bytes("all-gather", activation, ranks) + sent_bytes("reduce-scatter", activation, ranks)
    loss = 3 * sent_bytes("all-reduce", BATCH * SEQ * 8, ranks)
    regions = 2 * (2 * layers + 1) * both
    return {
        "when the logits are gathered on every rank": round(
            regions + sent_bytes("all-gather", logits, ranks)
        ),
        "when every matrix gathers the input for itself that it has in common with others": round(
            regions + 3 * layers * both + loss
        ),
    }


@check
def check_10_4(report: Report, parallelise: Callable[..., Any]) -> None:
    for name, (ranks, *sizes) in CASES.items():
        with report.case(name):
            seed = report.seed()
            args = (parallelise, tuple(sizes), seed)
            found = launch(
                parallel_step, mesh={"tp": ranks}, args=args, timeout=TIME_LIMIT, quiet=True, backend="gloo"
            )
            _check_step(report, found, tuple(sizes), seed)


def _check_step(report: Report, found: list[dict[str, Any]], sizes: tuple[int, int, int], seed: int) -> None:
    ranks = len(found)
    loss, gradients = on_one_device(sizes, seed)
    odd = next((rank["logits"] for rank in found if "logits" in rank), None)
    if odd is not None:
        report.fail(
            f"the logits are an ordinary tensor of the shape {odd}; whole they have {(BATCH, SEQ, VOCAB)}",
            likely=OWN_WORDS if odd == (BATCH, SEQ, VOCAB // ranks) else None,
            task="It returns the logits, either whole on every rank or as a `DTensor`",
        )
    report.true(
        all(rank["same names"] for rank in found),
        "the names of the parameters are as before",
        "the names of the parameters have changed",
        task="Change `model` in place",
    )
    want = cut_elements(sizes, ranks)
    most = max(rank["held"] for rank in found)
    report.true(
        most <= want,
        "every matrix is cut over the ranks",
        f"a rank holds {most:,} numbers of parameters, and where every matrix is cut {want:,}",
        task="every matrix, the embedding and `lm_head` too, is cut over the ranks",
    )
    report.on_every_rank(
        "the loss",
        [rank["loss"] for rank in found],
        [loss] * ranks,
        task="Loss and gradients are those of one device",
    )
    task = "Loss and gradients are those of one device"
    for name in sorted(gradients, key=lambda name: gradients[name].dim()):  # the norms' first
        got = [rank["gradients"][name] for rank in found]
        if not rank_differences(got, [gradients[name]] * ranks, 1e-5):
            continue
        if "norm" in name and _each_a_part(got, gradients[name]):
            wrong = f"gradient of `{name}`: the ranks have different gradients, which add up to that of one device"
            report.fail(wrong, likely=NOT_SUMMED, task=task)
        fact = f"gradient of `{name}`"
        report.on_every_rank(fact, got, [gradients[name]] * ranks, task=task, thing=fact)
    report.ok("every gradient is that of one device, on every rank")
    tokens = max(max(rank["norms"].values()) for rank in found)
    task = "between the regions a rank has only its own tokens: no norm gets or returns more"
    report.at_most("tokens of a sequence that a norm works on", tokens, SEQ // ranks, task=task)
    limit = round(sent_at_most(sizes[0], ranks))
    task = "no more bytes than g and g-bar around each region, and logits that stay cut"
    report.at_most(
        "bytes sent in forward and backward",
        round(max(rank["sent"] for rank in found)),
        limit,
        mistakes=sent_by_mistakes(sizes[0], ranks),
        task=task,
    )


def _each_a_part(got: list[Tensor | None], want: Tensor) -> bool:
    if any(part is None or part.shape != want.shape for part in got) or torch.equal(got[0], got[1]):
        return False
    return bool(torch.allclose(sum(got), want, atol=1e-8))
