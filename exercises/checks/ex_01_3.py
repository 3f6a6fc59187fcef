"""01.3: BERT cut into stages; its parts have unlike bytes."""

from itertools import pairwise

import torch
from course_checks.on_ranks import count

from course_lib.grading.judge import Fact, record
from course_lib.models.bert import Bert, BertConfig
from course_lib.observe.networks.placement import size_of

FACTS = {
    "placed": Fact("the plan", "The parts are `embeddings`, every `encoder.layer.i`, and `pooler` where…"),
    "first": Fact("the ranks", "Rank 0 begins with the embeddings."),
    "neighbours": Fact("the ranks", "A rank holds neighbours in…"),
    "used": Fact("the ranks", "Further, every rank holds at least one part."),
    "heaviest": Fact("bytes on the heaviest rank beyond the fewest", "the rank with…", most=0, beyond=True),
}

Case = record("of model ranks", lambda c: f"{c.of}, {count(c.ranks)}")


def cases(seed: int) -> list[Case]:
    words = BertConfig.tiny(vocab_size=4000, num_hidden_layers=8, max_position_embeddings=2000)
    long = BertConfig.tiny(vocab_size=400, num_hidden_layers=5, hidden_size=48, num_attention_heads=3)
    many = BertConfig.tiny(vocab_size=12000, num_hidden_layers=11)
    some = BertConfig.tiny(vocab_size=400, num_hidden_layers=6)
    models = {
        "8 layers, 4,000 words": (Bert(words), (1, 2, 3, 5)),
        "8 layers, 4,000 words, a pooler": (Bert(words, pooler=True), (2, 4, 10)),
        "5 layers, 400 words, a pooler": (Bert(long, pooler=True), (2, 3, 4, 6)),
        "11 layers, 12,000 words": (Bert(many), (4, 7, 12)),
        "8 layers, 4,000 words in bfloat16": (halved := Bert(words, pooler=True), (2, 3)),
        "6 layers, two of them in bfloat16": (mixed := Bert(some), (3, 5)),
    }
    halved.embeddings.to(torch.bfloat16)
    mixed.encoder.layer[2:4].to(torch.bfloat16)
    return [Case(name, model, ranks) for name, (model, counts) in models.items() for ranks in counts]


def observe(balanced_placement, case: Case) -> dict:
    model = case.model
    got = balanced_placement(model, case.ranks)
    if not isinstance(got, dict):
        return {"placed": f"got {type(got).__name__}, expected a dict from module name to rank"}
    parts = ["embeddings", *(f"encoder.layer.{i}" for i in range(len(model.encoder.layer)))]
    parts += ["pooler"] if model.pooler is not None else []
    if odd := [part for part in [*parts, *got] if part not in got or part not in [*parts, ""]]:
        return {"placed": f"{odd[0]!r} is {'no part of this model' if odd[0] in got else 'not placed'}"}
    plan, held = [got[part] for part in parts], {}
    told = f"in the order of computation, the parts are on ranks {plan}"
    if plan[0] != 0:
        return {"first": f"the embeddings are on rank {plan[0]}"}
    if not {after - before for before, after in pairwise(plan)} <= {0, 1}:
        return {"neighbours": told}
    for part, rank in zip(parts, plan, strict=True):
        held[rank] = held.get(rank, 0) + size_of(model.get_submodule(part).parameters())
    if len(held) != case.ranks:
        return {"used": f"{len(held)} of {case.ranks} ranks hold something\n({told})"}
    return {"heaviest": max(held.values())}
