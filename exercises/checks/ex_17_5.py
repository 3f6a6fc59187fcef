"""17.5: a fine-tuning with LoRA, step by step, and what it returns."""

import torch
from torch import Tensor

from course_lib.finetuning.lora_apply import lora_layers
from course_lib.grading.judge import Fact, record
from course_lib.models.bert import Bert, BertClassifier, BertConfig

STEP = "A step is one forward in training mode, the mean cross entropy, one backward, and one update by…"
ADAPTED = "fine-tunes a `BertClassifier` with LoRA on the `query` and `value` of every layer"
TRAINED = "Only $A$ and $B$ of every LoRA layer and the `classifier` are trained."
DICT = "Return a dict from the parameters' names in `model` to tensors with their values at the end"
NOTHING = "The dict has nothing but what was trained: its bytes are those of the trained numbers."
FACTS = {
    "sites": Fact("the adapted modules", ADAPTED),
    "taken": Fact("the batches", "take `steps` of them"),
    "applied": Fact("LoRA", "apply LoRA before you take the first one"),
    "mode": Fact("the mode", "A step is one forward in training mode"),
    "frozen": Fact("the frozen parameter {}", TRAINED, tolerance=1e-6),
    "trained": Fact("the parameter {}", STEP, tolerance=1e-6),
    "result": Fact("the result", DICT),
    "names": Fact("the dict", "The dict holds all trained parameters."),
    "values": Fact("the dict", DICT),
    "copies": Fact("the dict", "The tensors are copies, so they stay the same when `model` is trained…"),
    "bytes": Fact("bytes of the dict beyond those of what was trained", NOTHING, most=0),
}

Case = record("name layers classes steps rank alpha", evaluating=False)
CASES = [
    Case("2 layers, 3 steps, rank 2", 2, 3, 3, 2, 4),
    Case("1 layer, 1 step, rank 4", 1, 2, 1, 4, 4),
    Case("2 layers, 4 steps, rank 1, a model in evaluation mode", 2, 4, 4, 1, 8, evaluating=True),
    Case("1 layer, 0 steps, rank 2", 1, 2, 0, 2, 2),
]


class Batches:
    """Counts those taken. When the first is, LoRA's A gets numbers of the case: its own are random."""

    def __init__(self, model: BertClassifier, data: list[tuple[Tensor, Tensor]]) -> None:
        self.model, self.data, self.taken, self.adapted = model, data, 0, True

    def __iter__(self):
        for batch in self.data:
            if not self.taken:
                first = [p for name, p in self.model.named_parameters() if "lora_A" in name]
                self.adapted = bool(first)
                for p in first:
                    p.data.normal_(std=0.3, generator=torch.Generator().manual_seed(p.numel()))
            self.taken += 1
            yield batch


def observe(finetune, case: Case) -> dict:
    torch.manual_seed(case.seed)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32}
    bert = Bert(BertConfig.tiny(num_hidden_layers=case.layers, **sizes), pooler=True)
    model = BertClassifier(bert, case.classes).double().train(not case.evaluating)
    for p in model.parameters():  # so large that some steps are seen in every number
        p.data.normal_(std=0.3) if p.dim() > 1 else None
    data = [(torch.randint(50, (6, 7)), torch.randint(case.classes, (6,))) for _ in range(case.steps + 2)]
    batches, modes, found = Batches(model, data), [], {}
    model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    got = finetune(model, batches, case.steps, case.rank, case.alpha, 0.01)
    loras, right = lora_layers(model), (case.rank, case.alpha)
    if len(loras) != 2 * case.layers:
        found["sites"] = (
            f"{len(loras)} modules have LoRA, and {2 * case.layers} are query or value of a layer"
        )
    elif other := {(x.config.rank, x.config.alpha) for x in loras.values()} - {right}:
        found["sites"] = "a LoRA has rank {} and alpha {}, not {} and {}".format(*other.pop(), *right)
    if not case.steps <= batches.taken <= case.steps + 1:  # a loop may take one more before it ends
        found["taken"] = f"{batches.taken} batches are taken for {case.steps} steps"
    if not batches.adapted:
        found["applied"] = "LoRA is applied after the first batch is taken"
    if not all(modes):
        found["mode"] = f"the model is in evaluation mode in {modes.count(False)} of {len(modes)} forwards"
    after = dict(model.named_parameters())
    names = [name for name in after if "lora_" in name or name.startswith("classifier.")]
    seen = {n: p.detach().clone() for n, p in after.items() if case.steps or "lora_A" not in n}
    found["trained"] = {name: t for name, t in seen.items() if name in names}
    found["frozen"] = {name: t for name, t in seen.items() if name not in names}
    return found | returned(got, {name: after[name].detach() for name in names})


def returned(got: dict[str, Tensor], trained: dict[str, Tensor]) -> dict:
    if not isinstance(got, dict) or not all(isinstance(t, Tensor) for t in got.values()):
        return {"result": f"the result, a {type(got).__name__}, is not a dict of tensors", "bytes": 0}
    if missing := [name for name in trained if name not in got]:
        others = f", but {next(name for name in got if name not in trained)}" if got.keys() - trained else ""
        named = ", ".join(missing[:2]) + " …" * (len(missing) > 2)
        return {"names": f"the dict has no {named}{others}", "bytes": 0}
    found = {"bytes": sum(t.nbytes for t in got.values()) - sum(t.nbytes for t in trained.values())}
    if not all(torch.equal(got[name].detach(), t) for name, t in trained.items()):
        return found | {"values": "a tensor of the dict has other values than the model"}
    for t in trained.values():
        t.add_(1.0)
    shared = [name for name, t in trained.items() if torch.equal(got[name].detach(), t)]
    return found | {"copies": f"{shared[0]} changes when the model is trained further" if shared else ""}
