"""17.2: merging and unmerging two layers; the weights are looked at after every call."""

import torch
from torch import Tensor, nn

from course_lib.grading.judge import Fact, record
from course_lib.observe.ledgers.alive import Alive

NOTHING = "`merge` of a merged layer and `unmerge` of a layer that is not merged change nothing."
SUM = "After `merge(layer)`, `layer.weight` is $W_0$ + scaling · $B A$."
SAME = "`layer.weight` stays the same `Parameter`, because an optimizer may have it, and it still requires a gradient."
AGAIN = "$W_0$ is what `layer.weight` is when `merge` is called."
BACK = "After `unmerge(layer)`, `layer.weight` is $W_0$ again, to the last bit."
FACTS = {
    "idle": Fact("", NOTHING, each="layer"),
    "same": Fact("the kind of weight", SAME, each="layer"),
    "merged": Fact("the merged weight", SUM, tolerance=1e-2, each="layer"),
    "rounded": Fact("the sum", "Compute the sum in float32 and round once.", each="layer"),
    "back": Fact("the weight after unmerging", BACK, tolerance=5e-2, each="layer"),
    "bits": Fact("the weight after unmerging", BACK, each="layer"),
    "kept": Fact("bytes kept by merged layers beyond the size of their weights",
                 "a merged layer holds at…", most=0),
    "free": Fact("bytes kept by layers that are not merged", "a layer that is not merged holds none.", most=0),
}  # fmt: skip

# task: with one, A, B and the weight have changed since an earlier merge
Case = record("name scaling", dtype=torch.float32, task=None)
CASES = [
    Case("float32", 2.0),
    Case("weights in bf16", 0.25, torch.bfloat16),
    Case("merged, unmerged, changed, and merged again", 0.5, task=AGAIN),
]


def observe(answers, case: Case) -> dict:
    merge, unmerge = answers
    torch.manual_seed(case.seed)
    layers = nn.ModuleList(nn.Linear(24, 40, dtype=case.dtype) for _ in range(2))
    for layer in layers:
        layer.A, layer.B = nn.Parameter(torch.randn(4, 24)), nn.Parameter(torch.randn(40, 4))
        layer.scaling = case.scaling
        if case.task:
            merge(layer)
            unmerge(layer)
            for p in layer.parameters():
                p.data *= 0.5
    given, seen, sizes = [layer.weight for layer in layers], [now(layers)], []
    alive = Alive(*seen[0], *layers.parameters())
    raised = AttributeError, KeyError, TypeError
    for function, idle in (unmerge, raised), (merge, ()), (merge, raised), (unmerge, ()), (unmerge, raised):
        try:
            with alive:
                for layer in layers:
                    function(layer)
        except idle as error:
            said = f"a call of `{function.__name__}` that is too many raises {type(error).__name__}"
            return {"idle": [said, said]}
        seen.append(now(layers))
        sizes.append(held(alive, *seen[0], *layers.parameters()))
    found = [look_at(*each) for each in zip(layers, given, *seen, strict=True)]
    beside = {"kept": max(0, sizes[1] - sum(W.nbytes for W in seen[0])), "free": sizes[3]}
    return beside | {key: [one[key] for one in found] for key in found[0]}


def look_at(layer, given, W0, begun, merged, again, back, ended) -> dict:
    many = ["merge"] * (not torch.equal(merged, again))
    many += ["unmerge"] * (not (torch.equal(W0, begun) and torch.equal(back, ended)))
    exact = (W0 + layer.scaling * (layer.B.double() @ layer.A.double())).detach()
    far = (merged - exact).abs() > exact.abs() * torch.finfo(W0.dtype).eps * 0.501 + 1e-5
    kind = "the same" if layer.weight is given else "another"
    return {
        "idle": f"a call of `{many[0]}` that is too many changes the weight" if many else "",
        "same": f"{kind}, {merged.dtype}, {'trained' if layer.weight.requires_grad else 'frozen'}",
        "merged": merged,
        "rounded": "the merged weight is further from the sum than one rounding takes it" * bool(far.any()),
        "back": back,
        "bits": "after unmerging, the weight is not W0 to the last bit" * (not torch.equal(back, W0)),
    }


def now(layers: nn.ModuleList) -> list[Tensor]:
    return [layer.weight.detach().clone() for layer in layers]


def held(alive: Alive, *own: Tensor) -> int:
    known = {t.untyped_storage().data_ptr() for t in own}
    found = {s.data_ptr(): s.nbytes() for s in (*alive.known, *alive.made)}
    return sum(size for place, size in found.items() if place not in known)
