"""17.4: LoRA in as many upper layers as fit under a cap."""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from course_lib.finetuning.freeze import mark_only_as_trainable
from course_lib.finetuning.lora_apply import apply_lora, lora_layers, mark_only_lora_as_trainable
from course_lib.grading.judge import Fact, record
from course_lib.models.bert import Bert, BertClassifier, BertConfig

PLACES = "It puts LoRA of rank 4 (with alpha 8) beside the `query` and the `value` of the last $n$ layers"
TRAINED = "Then it trains these $A$ and $B$ and the `classifier`, and freezes everything else."
FACTS = {
    "places": Fact("the adapted layers", PLACES),
    "sites": Fact("the adapted modules", PLACES),
    "trained": Fact("what is trained", TRAINED),
    "values": Fact("the parameters", "The pretrained parameters keep their values."),
    "n": Fact("what is returned", "It returns $n$."),
    "fits": Fact("what training adds", "What training adds may take at most `cap` bytes"),
    "missing": Fact("adapted layers missing", "$n$ is as large as possible.", most=0),
}

# spare: bytes; -1: one byte more would do for another layer; shape: of the tokens
Case = record("name layers fits spare shape", classes=3)
CASES = [  # sizes such that each wrong sum of bytes gives other numbers of layers
    Case("3 layers, room for 2, almost for all", 3, 2, -1, (1, 4)),
    Case("3 layers, room for 1", 3, 1, 0, (1, 1), classes=10),
    Case("3 layers, almost room for one", 3, 0, -1, (4, 12), classes=150),
    Case("2 layers, room for both and much more", 2, 2, 10**9, (2, 20)),
]


def needed(model: BertClassifier, tokens: Tensor) -> int:
    """What training adds, in bytes, by running the model."""
    kept = []
    with saved_tensors_hooks(lambda t: kept.append(t.untyped_storage()) or t, lambda t: t):
        model(tokens)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return 16 * trained + sum({s.data_ptr(): s.nbytes() for s in kept if s.data_ptr() not in own}.values())


def given(case: Case) -> tuple[BertClassifier, Tensor]:
    torch.manual_seed(case.seed)
    sizes = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 128}
    bert = Bert(BertConfig.tiny(num_hidden_layers=case.layers, **sizes), pooler=True)
    return BertClassifier(bert, case.classes).train(), torch.randint(60, case.shape)


def sites(layers: range | list[int]) -> list[str]:
    return [f"bert.encoder.layer.{i}.attention.self.{name}" for i in layers for name in ("query", "value")]


def room(case: Case) -> int:
    model, tokens = given(case)
    mark_only_as_trainable(model, ["classifier"])
    if n := case.fits + (case.spare < 0):
        apply_lora(model, sites(range(case.layers - n, case.layers)), rank=4, alpha=8)
        mark_only_lora_as_trainable(model, also=["classifier"])
    return needed(model, tokens) + case.spare


def observe(adapt, case: Case) -> dict:
    (model, tokens), cap = given(case), room(case)
    before = {p: p.detach().clone() for p in model.parameters()}
    got = adapt(model, tokens, cap)
    loras = {name: (layer.config.rank, layer.config.alpha) for name, layer in lora_layers(model).items()}
    places = sorted({int(name.split("layer.")[1].split(".")[0]) for name in loras})
    n, found = len(places), {}
    if places != list(range(case.layers - n, case.layers)):
        found["places"] = f"the adapted layers are {places}, counted from 0, of {case.layers}"
    if sorted(loras) != sorted(sites(places)):
        found["sites"] = f"there is a LoRA at {', '.join(loras)}"
    elif other := set(loras.values()) - {(4, 8)}:
        found["sites"] = "a LoRA has rank {} and alpha {}".format(*other.pop())
    for name, p in model.named_parameters():
        if p.requires_grad != ("lora_" in name or name.startswith("classifier.")):
            found["trained"] = f"{name} is {'trained' if p.requires_grad else 'frozen'}"
    if not n and all(p.requires_grad for p in model.parameters()):
        found["trained"] = "`model` is as it was: it has no LoRA, and all of its parameters are trained"
    if not all(torch.equal(p, values) for p, values in before.items()):
        found["values"] = "pretrained parameters have other values"
    if got != n:
        found["n"] = f"`adapt` returns {got}, and {n} layers are adapted"
    if (takes := needed(model, tokens)) > cap:
        found["fits"] = f"training adds {takes:,} bytes with {n} layers, and the cap is {cap:,}"
    return found | {"missing": max(0, case.fits - n)}
