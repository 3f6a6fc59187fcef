"""07.5: PyTorch's own ``fully_shard`` on a GPT, under a budget for what is unsharded."""

import warnings

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from course_lib.grading.judge import Fact, record
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.one_device.loop import cross_entropy
from course_lib.runtime.kept import launch
from simulator.predict.collective_traffic import sent_bytes

EACH = "call `fully_shard` on every block of `model.blocks`, and then on `model`"
FACTS = {
    "whole": Fact("parameters that are not sharded", EACH),
    "stored": Fact("the dtype of the shards", "The shards stay in fp32"),
    "dtypes": Fact("the dtype of {} in forward", "Units are gathered and compute in bfloat16."),
    "budget": Fact("bytes", "At no moment may unsharded parameters take more than `budget` bytes"),
    "reduced": Fact("bytes reduced for each number", "gradients are summed over the ranks in fp32"),
    "left": Fact("parameters unsharded after the step", "After backward every parameter is sharded again."),
    "norm": Fact("the norm of the gradient", "The gradients are those of one device", 0.05),
    "gathers": Fact("gathers of blocks beyond the fewest", most=0, beyond=True),
}

# room: blocks that the budget has room for; spare: its bytes beside them; frozen: blocks at the end
Case = record(
    "ranks blocks room spare frozen",
    lambda c: (
        f"{c.ranks} ranks, {c.blocks} blocks{f', {c.frozen} of them frozen' * bool(c.frozen)}, "
        f"room for the root and {c.room}"
    ),
)
# 25,406 bytes are one parameter less than another block needs
CASES = [Case(2, 5, 3, 5000, 0), Case(3, 4, 2, 25_406, 0), Case(2, 4, 1, 0, 2)]


def whole(model: GPT) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if not isinstance(p, DTensor)}


def on_rank(mesh: DeviceMesh, answer, case: Case) -> dict:
    warnings.simplefilter("ignore", FutureWarning)
    torch.manual_seed(case.seed)
    model = GPT(GPTConfig.tiny(vocab_size=64, max_length=16, num_layers=case.blocks, hidden_size=32))
    everything, block = (sum(p.numel() for p in part.parameters()) for part in (model, model.blocks[0]))
    budget = 2 * (everything - block * (case.blocks - case.room)) + case.spare
    model.blocks[case.blocks - case.frozen :].requires_grad_(False)
    data = torch.randint(64, (2, 2 * mesh.size(), 16))
    tokens, targets = (part.chunk(mesh.size())[dist.get_rank()] for part in data)

    answer(model, mesh, budget)
    stored = ", ".join({str(p.dtype).removeprefix("torch.") for p in model.parameters()})
    seen = {"whole": list(whole(model))[:3], "stored": stored, "dtypes": {}, "trace": (held := [])}
    if seen["whole"]:
        return seen

    def look(*_) -> None:  # when a block begins
        held.append(sum(p.nbytes for p in whole(model).values()))
        for name, p in whole(model).items():
            seen["dtypes"]["blocks" if "blocks" in name else "the root"] = str(p.dtype).removeprefix("torch.")

    for each in model.blocks:
        each.register_forward_pre_hook(look)
    with record_traffic() as log:
        try:
            cross_entropy(model(tokens).float(), targets).backward()
        except RuntimeError as error:  # on every rank
            if "dtype" not in str(error) or len(set(seen["dtypes"].values())) < 2:
                raise
            return seen
    reduced = sum(row.payload for row in log.traffic.rows if row.collective == "reduce-scatter")
    gathered = sum(row.sent for row in log.traffic.rows if row.collective == "all-gather")
    trained, most = [p for p in model.parameters() if p.requires_grad], max(held)
    squares = torch.stack([p.grad.to_local().float().square().sum() for p in trained]).sum()
    dist.all_reduce(squares)
    text = f"block {held.index(most)} computes with {most:,} bytes unsharded, and the budget is {budget:,}"
    return seen | {
        "budget": text if most > budget else "",
        "reduced": min(4, reduced // sum(p.numel() for p in trained)),
        "left": list(whole(model))[:3],
        "norm": squares.sqrt(),
        # round: padding, and what is in no block, are less than half a block
        "gathers": round(gathered / sent_bytes("all-gather", 2, mesh.size()) / block),
    }


def observe(shard_model, case: Case) -> dict:
    options = {"mesh": {"dp": case.ranks}, "backend": "gloo", "timeout": 60.0, "quiet": True}
    return launch(on_rank, args=(shard_model, case), **options)[0]
