"""Prompt and prefix tuning by hand: the model is frozen, and vectors in
front of the text are trained.

Prompt tuning (Lester et al., arXiv:2104.08691) puts n trained vectors P
where the embeddings of n virtual tokens would be:

    [P_1 ... P_n; E(x_1) ... E(x_seq)]        n d numbers

Prefix tuning (Li and Liang, arXiv:2101.00190) puts n trained keys and
values in front of those of the text, in each of l layers:

    attention(Q, [P_K; K], [P_V; V])        2 l n d numbers

Third rung: an MLP computes them from a smaller matrix while training,
which made it more stable, and is thrown away afterwards.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


class Prompt(nn.Module):
    """First rung: n virtual tokens of width d."""

    def __init__(self, model: nn.Module, n: int) -> None:
        super().__init__()
        self.n, d = n, model.norm.normalized_shape[0]
        self.P = nn.Parameter(torch.rand(n, d) - 0.5)

    def attach(self, model: nn.Module) -> None:
        model.register_forward_pre_hook(self.make_room)
        model.embedding.tokens.register_forward_hook(self.insert)
        model.norm.register_forward_pre_hook(self.cut_off)

    def make_room(self, model: nn.Module, inputs: tuple) -> tuple:
        return (F.pad(inputs[0], (self.n, 0)),)  # (batch, n + seq)

    def insert(self, _, inputs, embedded: Tensor) -> Tensor:
        text = embedded[:, self.n :]  # (batch, seq, d)
        P = self.P.expand(len(text), -1, -1)
        return torch.cat((P, text), dim=1)

    def cut_off(self, _, inputs: tuple) -> tuple:
        return (inputs[0][:, self.n :],)  # the head reads only text

    def fold(self) -> None:
        """It is what it will be."""


class Prefix(nn.Module):
    """Second rung: a key and a value of each virtual token, for each
    layer and head. The text's positions begin at n."""

    def __init__(self, model: nn.Module, n: int) -> None:
        super().__init__()
        self.n, self.layers = n, len(model.blocks)
        self.size = model.blocks[0].attention.head_size
        self.d = model.norm.normalized_shape[0]
        self.P = nn.Parameter(torch.randn(self.layers, n, 2 * self.d))

    def vectors(self) -> Tensor:
        return self.P  # (layers, n, 2 d)

    def attach(self, model: nn.Module) -> None:
        model.embedding.positions.register_forward_pre_hook(
            lambda _, inputs: (inputs[0] + self.n,)
        )
        for layer, block in enumerate(model.blocks):
            block.attention.core.register_forward_pre_hook(
                lambda _, qkv, layer=layer: self.prepend(layer, *qkv)
            )

    def prepend(self, layer: int, q: Tensor, k: Tensor, v: Tensor):
        P = self.vectors()[layer].view(self.n, 2, -1, self.size)
        P_K, P_V = (
            part.expand(len(k), -1, -1, -1)
            for part in P.permute(1, 2, 0, 3)  # (heads, n, size) each
        )
        # All see the prefix; of the text, what is not later.
        seq = q.shape[2]
        seen = q.new_ones(seq, self.n + seq, dtype=torch.bool)
        seen = seen.tril(self.n)
        return q, torch.cat((P_K, k), 2), torch.cat((P_V, v), 2), seen

    def fold(self) -> None:
        """It is what it will be."""


class PrefixOfMLP(Prefix):
    """Third rung: the vectors of all layers are made of n of width d."""

    def __init__(self, model, n: int, hidden: int = 64) -> None:
        super().__init__(model, n)
        wide = self.layers * 2 * self.d
        self.P = None
        self.E = nn.Parameter(torch.randn(n, self.d))
        self.mlp = nn.Sequential(
            nn.Linear(self.d, hidden), nn.Tanh(), nn.Linear(hidden, wide)
        )

    def vectors(self) -> Tensor | None:
        if self.mlp is None:
            return self.P
        made = self.mlp(self.E).view(self.n, self.layers, 2 * self.d)
        return made.transpose(0, 1)

    def fold(self) -> None:
        """After training: the vectors stay, what made them goes."""
        self.P = nn.Parameter(self.vectors().detach().contiguous())
        self.E = self.mlp = None


def add(model: nn.Module, kind=Prompt, n: int = 8, **settings):
    """Freezes the model, and puts the virtual tokens into it."""
    for w in model.parameters():
        w.requires_grad_(False)
    like = next(model.parameters())
    model.prompt = kind(model, n, **settings).to(like)
    model.prompt.attach(model)
    return model.prompt


def train(
    model, batches, make_optimizer, loss_fn, adapt=add, **settings
):
    """Yields each step's loss and gradient norm."""
    prompt = adapt(model, **settings)
    trained = list(prompt.parameters())
    optimizer = make_optimizer(trained)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = get_total_norm([w.grad for w in trained])
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm
    prompt.fold()


RUNGS = {
    "prompt": {"kind": Prompt},
    "prefix": {"kind": Prefix},
    "prefix of an MLP": {"kind": PrefixOfMLP},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand.finetune import main

    main(train, RUNGS)
