"""The vocabulary cut over ranks, against ``nn.CrossEntropyLoss`` and ``nn.Embedding`` on one device."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel

from course_lib.observe.ledgers.traffic import record_traffic
from course_lib.runtime import current_device, launch
from course_lib.tensor_parallel.full_tensors import full_logits, full_tensor
from course_lib.tensor_parallel.shard import vocabulary_shard
from course_lib.tensor_parallel.vocab import VocabParallelCrossEntropy, VocabParallelEmbedding
from simulator.predict.vocabulary_traffic import embedding_traffic, loss_traffic

VOCAB = 97  # a prime: no number of ranks divides it
SHAPE = (3, 8)  # batch, seq

SETTINGS = {
    "mean": {},
    "sum": {"reduction": "sum"},
    "each token": {"reduction": "none"},
    "smoothed": {"label_smoothing": 0.1},
    "smoothed sum, another padding": {"label_smoothing": 0.3, "reduction": "sum", "ignore_index": 5},
    "smoothed to nothing": {"label_smoothing": 1.0},
}


def random_logits(scale=1.0, dtype=torch.float64):
    logits = torch.randn(*SHAPE, VOCAB, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (logits * scale).to(current_device(), dtype)


def targets():
    t = torch.randint(VOCAB, SHAPE, generator=torch.Generator().manual_seed(1))
    t[0, 0], t[0, 1], t[1, 2], t[2, 3] = 0, VOCAB - 1, -100, 5
    return t.to(current_device())


def compare_losses(mesh, logits, settings, target=None):
    """How far loss and gradient are from torch's, as a part of the largest."""
    target = targets() if target is None else target
    if settings.get("ignore_index") == 5:
        target = target.where(target != -100, 5)
    whole = logits.clone().requires_grad_()
    weight = torch.rand(target.shape, generator=torch.Generator().manual_seed(2)).to(logits.device)
    expected = F.cross_entropy(whole.flatten(0, 1).to(torch.promote_types(whole.dtype, torch.float32)),
                               target.flatten(), **settings)  # fmt: skip
    (expected.view(target.shape) * weight if expected.dim() else expected).sum().backward()
    shard = vocabulary_shard(VOCAB, mesh)
    own = logits[..., shard.start : shard.start + shard.length].clone().requires_grad_()
    loss = VocabParallelCrossEntropy(VOCAB, mesh, **settings)(own, target)
    (loss * weight if loss.dim() else loss).sum().backward()
    gradient = full_tensor(own.grad.movedim(-1, 0), shard, mesh).movedim(0, -1)
    assert loss.shape == (target.shape if settings.get("reduction") == "none" else ())
    assert own.grad.dtype == logits.dtype
    far = (loss - expected.view(loss.shape)).detach().abs().max() / expected.abs().max()
    return float(far.detach()), float((gradient - whole.grad).detach().abs().max() / whole.grad.abs().max())


def by_torch(mesh):
    """Ours and torch's ``loss_parallel`` on the same parts."""
    logits = random_logits()[..., :96]
    part = logits.chunk(mesh.size(), -1)[mesh.get_local_rank()].contiguous()
    target = targets().clamp(0, 95)
    theirs = part.clone().requires_grad_()
    with loss_parallel():
        whole = DTensor.from_local(theirs, mesh, [Shard(2)]).flatten(0, 1)
        expected = F.cross_entropy(whole, target.flatten())
        expected.backward()
    ours = part.clone().requires_grad_()
    loss = VocabParallelCrossEntropy(96, mesh)(ours, target)
    loss.backward()
    return float((loss - expected).abs().detach()), float((ours.grad - theirs.grad).abs().max())


def embeddings(mesh):
    torch.manual_seed(0)
    whole = nn.Embedding(VOCAB, 6, padding_idx=40).to(current_device(), torch.float64)
    whole.weight.data[40] = 1.5
    ours = VocabParallelEmbedding(whole, mesh)
    tokens = torch.arange(VOCAB, device=current_device()).view(1, -1).expand(2, -1)
    expected, got = whole(tokens), ours(tokens)
    (expected**3).sum().backward()
    (got**3).sum().backward()
    gradient = full_tensor(ours.weight.grad, ours.shards["weight"], mesh)
    return float((got - expected).abs().max().detach()), float((gradient - whole.weight.grad).abs().max())


def refusals(mesh):
    loss, far = VocabParallelCrossEntropy(VOCAB, mesh), targets()
    shard = vocabulary_shard(VOCAB, mesh)
    own = random_logits()[..., : shard.length]
    far[1, 1] = VOCAB
    calls = [
        lambda: loss(own, far),
        lambda: loss(random_logits()[..., :7], targets()),
        lambda: loss(own, targets()[:, 1:]),
        lambda: VocabParallelCrossEntropy(mesh.size() - 1, mesh),
        lambda: VocabParallelCrossEntropy(VOCAB, mesh, reduction="median"),
        lambda: VocabParallelCrossEntropy(VOCAB, mesh, label_smoothing=2),
        lambda: VocabParallelEmbedding(nn.Embedding(VOCAB, 4, max_norm=1.0), mesh),
        lambda: VocabParallelEmbedding(nn.Embedding(VOCAB, 4).to(current_device()), mesh)(far),
    ]
    assert VocabParallelCrossEntropy(mesh.size(), mesh).shard.length == 1  # one word a rank is enough
    messages = []
    for call in calls:
        with pytest.raises(ValueError) as error:
            call()
        messages.append(str(error.value))
    return messages


def traffic(mesh):
    shard = vocabulary_shard(VOCAB, mesh)
    own = random_logits(dtype=torch.float32)[..., : shard.length].clone().requires_grad_()
    logs = []
    for smoothing in (0.0, 0.1):
        with record_traffic() as log:
            VocabParallelCrossEntropy(VOCAB, mesh, label_smoothing=smoothing)(own, targets()).backward()
        logs.append(log.traffic)
    embedding = VocabParallelEmbedding(nn.Embedding(VOCAB, 6).to(current_device()), mesh)
    with record_traffic() as log:
        embedding(targets().clamp(min=0)).sum().backward()
    return [*logs, log.traffic]


def everything(mesh):
    bf16 = torch.bfloat16
    all_ignored = torch.full(SHAPE, -100, device=current_device())
    return {
        "loss": {name: compare_losses(mesh, random_logits(), s) for name, s in SETTINGS.items()},
        "huge": compare_losses(mesh, random_logits(1e4), {}),
        "huge in fp32": compare_losses(mesh, random_logits(1e4, torch.float32), {}),
        "bf16": compare_losses(mesh, random_logits(dtype=bf16), {"label_smoothing": 0.1}),
        "nothing counts": float(
            VocabParallelCrossEntropy(VOCAB, mesh)(
                random_logits()[..., : vocabulary_shard(VOCAB, mesh).length], all_ignored
            )
        ),
        "torch": by_torch(mesh) if 96 % mesh.size() == 0 else (0, 0),
        "embedding": embeddings(mesh),
        "refused": refusals(mesh),
        "traffic": traffic(mesh),
        "full": torch.equal(full_logits(own_part(random_logits(), mesh), VOCAB, mesh), random_logits()),
    }


def to_the_byte(traffic):
    """Its rows, with the bytes sent (a mean over the ranks, so not always whole) without the last digits of a float."""
    return [(r.collective, r.group_size, r.calls, r.payload, round(r.sent, 6)) for r in traffic.rows]


def own_part(logits, mesh):
    shard = vocabulary_shard(VOCAB, mesh)
    return logits[..., shard.start : shard.start + shard.length]


@pytest.mark.parametrize("ranks", [2, 3])
def test_cross_entropy_and_embedding_equal_one_device(ranks):
    tokens = SHAPE[0] * SHAPE[1]
    for got in launch(everything, mesh={"tp": ranks}):
        assert len(got["loss"]) == len(SETTINGS)
        for what in (*got["loss"].values(), got["huge"], got["embedding"], got["torch"]):
            assert max(what) < 1e-12
        assert max(got["huge in fp32"]) < 1e-6
        assert got["bf16"][0] < 1e-6  # the loss is computed in fp32
        assert got["bf16"][1] < 1e-2  # the gradient is rounded to bf16
        assert got["nothing counts"] != got["nothing counts"]  # NaN, as in torch
        assert got["full"]
        predicted = [
            loss_traffic(tokens, ranks),
            loss_traffic(tokens, ranks, label_smoothing=True),
            embedding_traffic(tokens, 6, ranks, 4),
        ]
        assert [to_the_byte(t) for t in got["traffic"]] == [to_the_byte(t) for t in predicted]
        for message, words in zip(
            got["refused"],
            [
                "97 is no word: this vocabulary has words 0 to 96",
                "the logits have 7 columns",
                "the targets (3, 7) must have the shape of the logits without the last dimension, (3, 8)",
                f"a vocabulary of {ranks - 1} cannot be dealt to {ranks} ranks",
                "reduction must be mean, sum or none, not 'median'",
                "label_smoothing must be between 0 and 1, not 2",
                "an embedding with max_norm cannot be cut over ranks",
                "97 is no word",
            ],
            strict=True,
        ):
            assert words in message
