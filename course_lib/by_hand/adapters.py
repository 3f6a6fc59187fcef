"""Adapters by hand: small trained networks inside a frozen model.

    Houlsby        a bottleneck after attention and one after the MLP;
                   the norms are trained, too (arXiv:1902.00751)
    Pfeiffer       one after the MLP alone (arXiv:2005.00247)
    LLaMA-Adapter  K trained tokens that attention sees through a gate
                   that starts at zero (Zhang et al., arXiv:2303.16199)

A bottleneck of width m turns a vector h of width d into

    h + f(h W_down + b_down) W_up + b_up        2 m d + m + d numbers

It starts near zero, so training starts from the pretrained model. It
stands behind a function f, so unlike LoRA it cannot be merged.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


class Bottleneck(nn.Module):
    def __init__(self, d: int, m: int, f=F.gelu) -> None:
        super().__init__()
        self.down, self.up, self.f = nn.Linear(d, m), nn.Linear(m, d), f
        for linear in (self.down, self.up):
            nn.init.trunc_normal_(
                linear.weight, std=0.01, a=-0.02, b=0.02
            )
            nn.init.zeros_(linear.bias)

    def forward(self, h: Tensor) -> Tensor:  # (..., d) -> (..., d)
        return h + self.up(self.f(self.down(h)))

    def follow(self, module: nn.Module) -> None:
        """Before the residual is added to the module's output."""
        module.register_forward_hook(lambda _, x, h: self(h))


def freeze(model: nn.Module) -> Tensor:
    """Freezes all, and returns a parameter: its dtype and device are
    those of what is added."""
    for w in model.parameters():
        w.requires_grad_(False)
    return next(model.parameters())


def houlsby(model: nn.Module, m: int = 16) -> list[nn.Parameter]:
    """Returns what is trained, as the two others do."""
    like, trained = freeze(model), []
    for block in model.blocks:
        d = block.norm_1.normalized_shape[0]
        pair = nn.ModuleList([Bottleneck(d, m), Bottleneck(d, m)])
        block.adapters = pair.to(like)  # saved with the model
        pair[0].follow(block.attention)
        pair[1].follow(block.mlp)
        for module in (*pair, block.norm_1, block.norm_2):
            trained += module.requires_grad_().parameters()
    return trained


def pfeiffer(model: nn.Module, m: int = 16) -> list[nn.Parameter]:
    """Half of Houlsby's adapters, and frozen norms."""
    like, trained = freeze(model), []
    for block in model.blocks:
        d = block.norm_2.normalized_shape[0]
        block.adapter = Bottleneck(d, m, F.relu).to(like)
        block.adapter.follow(block.mlp)
        trained += block.adapter.parameters()
    return trained


class GatedTokens(nn.Module):
    """K tokens P for one layer. Its attention gains what it sees there:

        attention(Q, K, V) + g softmax(Q (P W_K)^T / sqrt(size)) P W_V

    Two softmaxes, as one over all keys would change the model at once.
    """

    def __init__(self, d: int, K: int) -> None:
        super().__init__()
        self.P = nn.Parameter(torch.randn(K, d))
        self.g = nn.Parameter(torch.zeros(1))

    def join(self, attention: nn.Module) -> None:
        def add(core, inputs, output: Tensor) -> Tensor:
            q = inputs[0]  # (batch, heads, seq, size)
            size = q.shape[-1]
            P_K, P_V = (
                linear(self.P)
                .view(len(self.P), -1, size)
                .transpose(0, 1)
                for linear in (attention.key, attention.value)
            )  # (heads, K, size), the same for every text
            weights = (q @ P_K.mT / size**0.5).softmax(-1)
            return output + self.g * (weights @ P_V)

        attention.core.register_forward_hook(add)


def llama_adapter(model: nn.Module, K: int = 10) -> list[nn.Parameter]:
    like, trained = freeze(model), []
    for block in model.blocks:
        d = block.norm_1.normalized_shape[0]
        block.tokens = GatedTokens(d, K).to(like)
        block.tokens.join(block.attention)
        trained += block.tokens.parameters()
    return trained


def train(
    model, batches, make_optimizer, loss_fn, adapt=houlsby, **settings
):
    """Yields each step's loss and gradient norm."""
    trained = adapt(model, **settings)
    optimizer = make_optimizer(trained)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        norm = get_total_norm([w.grad for w in trained])
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach(), norm


RUNGS = {
    "Houlsby": {"adapt": houlsby},
    "Pfeiffer": {"adapt": pfeiffer},
    "LLaMA-Adapter": {"adapt": llama_adapter},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand.finetune import main

    main(train, RUNGS)
