"""09.5: a LLaMA cut by a plan, with PyTorch's own tool; and what it then sends."""

import warnings
from fnmatch import fnmatchcase

import torch
from course_checks.on_ranks import count, on_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn.functional import cross_entropy

from course_lib.grading.judge import Fact, record
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.observe.ledgers.traffic import record_traffic

BATCH = (2, 6)
PLAN = "Return the plan, which is a dict from names of modules to styles"
SAME = "The loss and all gradients are those of one device."
TARGET = "no more than four all-reduces of the size of the hidden states in each layer"
FACTS = {
    "plan": Fact("the plan", PLAN, each="rank"),
    "held": Fact("matrices", "Every matrix of the model is cut: a rank holds one p-th of each.", each="rank"),
    "logits": Fact("the logits", "The logits come out cut by words, as a DTensor", each="rank"),
    "tokens": Fact("the logits", "the tokens come in whole", each="rank"),
    "loss": Fact("the loss", SAME, tolerance=1e-5, each="rank"),
    "gradients": Fact("the gradient of {}", SAME, tolerance=1e-5, each="rank"),
    "bytes": Fact("bytes sent beyond those of the all-reduces that are needed", TARGET, most=0, beyond=True),
}

Case = record("ranks layers heads kv_heads words", lambda c: f"{c.ranks} ranks, {count(c.layers, 'layer')}")
CASES = [Case(2, 2, 4, 2, 64), Case(3, 1, 6, 3, 96)]


def drawn(case: Case) -> tuple[Llama, Tensor, Tensor]:
    """The model, tokens and targets."""
    torch.manual_seed(case.seed)
    sizes = {"hidden_size": 8 * case.heads, "intermediate_size": 16 * case.heads, "vocab_size": case.words}
    heads = {"num_attention_heads": case.heads, "num_key_value_heads": case.kv_heads}
    model = Llama(LlamaConfig.tiny(num_hidden_layers=case.layers, **heads, **sizes))
    return model, *torch.randint(case.words, (2, *BATCH))


@on_ranks(FACTS, quiet=True)
def observe(plan_of, case: Case) -> dict:
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (case.ranks,), mesh_dim_names=("tp",))  # also where there is a GPU
    model, tokens, targets = drawn(case)
    most = {name: p.numel() // case.ranks for name, p in model.named_parameters() if p.dim() == 2}
    plan, modules = plan_of(model), [name for name, _ in model.named_modules()]
    if not isinstance(plan, dict) or not all(isinstance(style, ParallelStyle) for style in plan.values()):
        return {"plan": f"the result is {type(plan).__name__}, not a dict of styles"}
    if unknown := [name for name in plan if not any(matches(module, name) for module in modules)]:
        return {"plan": f"the model has no module {unknown[0]}"}
    parallelize_module(model, mesh, plan)
    held = {n: (p.to_local() if isinstance(p, DTensor) else p).numel() for n, p in model.named_parameters()}
    if fat := [name for name in most if held[name] > most[name]]:
        return {"held": f"a rank holds more than its share of {', '.join(fat[:3])}"}
    with loss_parallel(), record_traffic() as log:
        logits = model(tokens)
        local = logits.to_local() if isinstance(logits, DTensor) else logits
        if local is logits or local.shape[-1] != case.words // case.ranks:
            kind = f"{'an ordinary tensor' if local is logits else 'a DTensor'} with {local.shape[-1]}"
            return {"logits": f"the logits come out as {kind} of {case.words} words on a rank"}
        if (shape := tuple(logits.shape[:2])) != BATCH:
            return {"tokens": f"the logits belong to tokens of shape {shape}; the batch has {BATCH}"}
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
    gradients = {name: whole(p.grad) for name, p in model.named_parameters()}
    return {"loss": float(whole(loss)), "gradients": gradients, "bytes": round(log.traffic.sent)}


def matches(module: str, pattern: str) -> bool:
    parts, wanted = module.split("."), pattern.split(".")
    return not pattern or (len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)))


def whole(t: Tensor | None) -> Tensor | None:
    return None if t is None else (t.full_tensor() if isinstance(t, DTensor) else t).detach().clone()
