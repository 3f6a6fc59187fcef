"""What the rungs of a file of ``course_lib/by_hand`` send in a step, where it is more than a ``Plan`` says."""

from __future__ import annotations

from torch import nn

from course_lib.observe.by_hand.run import SEQUENCE
from simulator.inputs.chunks import proportional_chunks
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.collective_traffic import sent_bytes
from simulator.predict.compression_traffic import (
    averaging_traffic,
    bytegrad_traffic,
    power_sgd_traffic,
    top_k_traffic,
)
from simulator.predict.context_traffic import context_layer_traffic
from simulator.predict.expert_traffic import routed_traffic
from simulator.predict.galaxy_traffic import step_traffic
from simulator.predict.traffic import (
    calls,
    expert_parallel_traffic,
    pipeline_traffic,
    tensor_parallel_traffic,
)
from simulator.predict.vocabulary_traffic import embedding_traffic, head_traffic, loss_traffic


def compressed(rung: str, model: nn.Module, ranks: int, batch: int) -> Traffic:
    """Each parameter by itself; under DiLoCo in a step after which the ranks meet."""
    shapes = [tuple(p.shape) for p in model.parameters()]
    sizes = [p.numel() for p in model.parameters()]
    match rung:
        case "8 bits":
            return bytegrad_traffic(sizes, ranks)
        case "top-k":
            return top_k_traffic(sizes, ranks, density=0.01)
        case "PowerSGD":
            buckets = [[shape] for shape in shapes]
            return power_sgd_traffic(buckets, ranks, matrix_rank=4, min_compression=1)
    return sum((averaging_traffic([size], ranks, every=1, steps=1) for size in sizes), Traffic())


def tensor_parallel(rung: str, model: nn.Module, ranks: int, batch: int) -> Traffic:
    """With the gradient norm, one number."""
    tokens, hidden, layers = batch * SEQUENCE, model.config.hidden_size, model.config.num_layers
    sent = calls("all-reduce", [1], 4, ranks)
    if rung == "every layer":
        # Five matrices are hidden wide and hidden long; up is 4 times wider, down longer.
        widths = [tokens * hidden] * 5 + [4 * tokens * hidden]
        both = calls("all-gather", widths, 4, ranks) + calls("all-reduce", widths, 4, ranks)
        return sum([both] * layers, sent)
    sent += tensor_parallel_traffic(tokens, hidden, ranks, layers, 4)
    if rung == "every region":
        return sent
    ends = embedding_traffic(tokens, hidden, ranks, 4) + head_traffic(tokens, hidden, ranks, 4)
    return sent + ends + loss_traffic(tokens, ranks)


def in_sequence(rung: str, model: nn.Module, ranks: int, batch: int) -> Traffic:
    """With the gradients of what is whole on every rank in one message, and the gradient norm."""
    tokens, hidden, layers = batch * SEQUENCE, model.config.hidden_size, model.config.num_layers
    cut = [p for name, p in model.named_parameters() if name.startswith("blocks") and is_cut(name)]
    whole = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in cut)
    regather = rung == "the shard is saved"
    sent = tensor_parallel_traffic(
        tokens, hidden, ranks, layers, 4, sequence_parallel=True, regather=regather
    )
    return sent + calls("all-reduce", [whole, 1], 4, ranks)


def context_parallel(rung: str, model: nn.Module, ranks: int, batch: int) -> Traffic:
    """With the sum of each gradient, since a rank has seen its tokens only."""
    c = model.config
    own = batch * SEQUENCE // ranks * c.hidden_size
    both = context_layer_traffic(rung.split(",")[0], own, 2 * own, ranks, 4, regather=False)
    gradients = calls("all-reduce", [p.numel() for p in model.parameters()], 4, ranks)
    return sum(both * c.num_layers, gradients)


def experts(rung: str, model: nn.Module, ranks: int, batch: int, routed: list[list[list[int]]]) -> Traffic:
    """By rank 0. With the sum of each gradient that is no expert's, and the gradient norm."""
    hidden, experts = model.config.hidden_size, len(routed[0][0])
    dense = [p.numel() for name, p in model.named_parameters() if ".mlp." not in name]
    routers = [hidden * experts] * len(model.blocks)
    sent = calls("all-reduce", [*dense, *routers, 1], 4, ranks)
    if rung == "everywhere":  # as if a token had an expert on each rank
        return sent + expert_parallel_traffic(
            batch * SEQUENCE // ranks, hidden, ranks, ranks, len(model.blocks), 4
        )
    return sum((routed_traffic(layer, hidden, 0, 4) for layer in routed), sent)


def muon(rung: str, model: nn.Module, ranks: int, batch: int) -> Traffic:
    """What Adam updates is reduced whole on all ranks. Rows travel in equal parts, padded."""
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    others = {id(p) for p in matrices}
    reduced = [p.numel() for p in model.parameters() if id(p) not in others]
    if rung == "every rank":
        return calls("all-reduce", reduced + [p.numel() for p in matrices], 4, ranks)
    sizes = [-(-len(p) // ranks) * ranks * p.shape[1] for p in matrices]
    sent = calls("all-reduce", [*reduced, 1], 4, ranks)  # and the gradient norm
    sent += calls("reduce-scatter", sizes, 4, ranks) + calls("all-gather", sizes, 4, ranks)
    if rung == "gathered":
        return sent + calls("all-gather", sizes, 4, ranks)
    rows = 4 * sum(sizes)
    both = [
        TrafficRow(kind, ranks, len(sizes), rows, sent_bytes(kind, rows, ranks))
        for kind in ("gather", "scatter")
    ]
    return sent + Traffic(both)


def fp8(rung: str, model: nn.Module, ranks: int, batch: int) -> Traffic:
    """Each gradient by itself, and the largest numbers by which scales are found."""
    linears = [p for name, p in model.blocks.named_parameters() if p.ndim == 2]
    sizes = [p.numel() for p in model.parameters()]
    most = {"current": [1] * 2 * len(linears), "blocks": []}.get(rung, [3 * len(linears)])
    if rung != "weights gathered in 8 bits":
        return calls("all-reduce", sizes + most, 4, ranks)
    rows = [-(-len(p) // ranks) * ranks * p.shape[1] for p in linears]
    others = [
        p.numel() for name, p in model.named_parameters() if not (name.startswith("blocks") and p.ndim == 2)
    ]
    sent = calls("all-reduce", [*others, *most, 1], 4, ranks)  # and the gradient norm
    return sent + calls("all-gather", rows, 1, ranks) + calls("reduce-scatter", rows, 4, ranks)


def galaxy(rung: str, model: nn.Module, ranks: int, batch: int) -> Traffic:
    """By rank 0. With the gradients of what is whole on every rank, each by itself, and the gradient norm."""
    power = [1 if rung == "equal shares" else 2 - rank % 2 for rank in range(ranks)]
    token = batch * model.config.hidden_size * 4
    around = [
        step_traffic(step, proportional_chunks(SEQUENCE, power), token, 0, ring=True)
        for step in ("all-gather", "reduce-scatter")
    ]
    whole = [
        p.numel() for name, p in model.named_parameters() if not (name.startswith("blocks") and is_cut(name))
    ]
    # two regions a layer, of which each gathers and scatters forward, and backward
    return sum(around * 4 * model.config.num_layers, calls("all-reduce", [*whole, 1], 4, ranks))


def is_cut(name: str) -> bool:
    """Of the parameters of a block: by columns, or the matrix of those cut by rows."""
    return "norm" not in name and not name.endswith(("output.bias", "down.bias"))


def pipeline(rung: str, model: nn.Module, ranks: int, batch: int) -> Traffic:
    """By rank 0, under every schedule alike. It and the last rank add up the gradients of the matrix that both have.
    With the gradient norm."""
    sent = pipeline_traffic(batch * SEQUENCE * model.config.hidden_size, 1, ranks, 0, itemsize=4)
    tied = calls("all-reduce", [model.head.weight.numel()], 4, min(ranks, 2))
    return sent + tied + calls("all-reduce", [1], 4, ranks)
