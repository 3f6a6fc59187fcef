"""10.4: a LLaMA in the hands of PyTorch's parallelize_module: what norms work on, and what is sent."""

import warnings
from contextlib import nullcontext

import torch
from course_checks.on_ranks import count, on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

from course_lib.grading.judge import Fact, record
from course_lib.models.llama import Llama, LlamaConfig, RMSNorm
from course_lib.observe.ledgers.traffic import record_traffic

SAME = "Loss and gradients are those of one device"
NORMS = "no norm gets or returns more."
SENT = "no more bytes than g and g-bar around each region, and logits that stay cut."
FACTS = {
    "names": Fact("names", "so that its modules and parameters keep their names.", each="rank"),
    "held": Fact("numbers", "every matrix, the embedding and `lm_head` too, is cut", each="rank"),
    "logits": Fact("logits", "either whole on every rank or as a `DTensor`", each="rank"),
    "loss": Fact("the loss", SAME, tolerance=1e-5, each="rank"),
    "gradients": Fact("the gradient of {}", SAME, tolerance=1e-5, each="rank"),
    "tokens": Fact("tokens that a norm works on beyond a rank's own", NORMS, most=0, beyond=True),
    "bytes": Fact("bytes sent beyond g and g-bar, norms and loss", SENT, most=0, beyond=True),
}
SHAPE, HIDDEN = (2, 12, 60), 24  # batch, seq, words

Case = record("ranks layers heads kv_heads", lambda c: f"{c.ranks} ranks, {count(c.layers, 'layer')}")
CASES = [Case(2, 2, 4, 2), Case(3, 1, 6, 3)]


def drawn(case: Case) -> tuple[Llama, Tensor, Tensor]:
    """The model, tokens and targets."""
    torch.manual_seed(case.seed)
    sizes = {"vocab_size": SHAPE[2], "hidden_size": HIDDEN, "intermediate_size": 2 * HIDDEN}
    heads = {"num_attention_heads": case.heads, "num_key_value_heads": case.kv_heads}
    model = Llama(LlamaConfig.tiny(num_hidden_layers=case.layers, **heads, **sizes))
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    return model.double(), *torch.randint(SHAPE[2], (2, *SHAPE[:2]))


@on_ranks(FACTS, lambda case: {"tp": case.ranks}, quiet=True)
def observe(mesh: DeviceMesh, parallelise, case: Case) -> dict:
    warnings.simplefilter("ignore")
    model, tokens, targets = drawn(case)
    names, worked = [name for name, _ in model.named_parameters()], []  # what norms got and returned
    most = sum(p.numel() // (case.ranks if p.dim() > 1 else 1) for p in model.parameters())
    parallelise(model, mesh)
    if [name for name, _ in model.named_parameters()] != names:
        return {"names": "the names of the parameters have changed"}
    held = sum(local(p).numel() for p in model.parameters())
    said = f"a rank holds {held:,} numbers of parameters, and where every matrix is cut {most:,}"
    found = {"names": "", "held": said if held > most else "", "logits": ""}
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.register_forward_hook(lambda _, given, out: worked.extend((given[0], out)))
    with record_traffic() as log:
        logits = model(tokens)
        if not isinstance(logits, DTensor) and logits.shape != SHAPE:
            return found | {"logits": f"they are an ordinary tensor {tuple(logits.shape)}, and not {SHAPE}"}
        with loss_parallel() if isinstance(logits, DTensor) else nullcontext():
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
            loss.backward()
    by_size = sorted(model.named_parameters(), key=lambda named: named[1].dim())  # norms first
    return found | {
        "loss": float(whole(loss)),
        "gradients": {name: whole(p.grad) for name, p in by_size},
        "tokens": max(local(t).shape[1] for t in worked),
        "bytes": round(log.traffic.sent),
    }


def local(t: Tensor) -> Tensor:
    return t.to_local() if isinstance(t, DTensor) else t


def whole(t: Tensor | None) -> Tensor | None:
    return None if t is None else (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()
