"""FlashAttention in a model of the course: a core of attention that takes the place of the model's own."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from course_lib.attention.flash import flash_attention
from course_lib.models.bert import BertCore
from course_lib.models.gpt import CausalCore
from course_lib.models.llama import LlamaCore

CAUSAL = {CausalCore: True, LlamaCore: True, BertCore: False}  # a model's core: does it hide later keys?


class FlashCore(nn.Module):
    """Attention without weights, as the models' own cores.

    Query and result ``(batch, heads, seq, size)``, key and value ``(batch, kv_heads, seq, size)``. A mask, true where a
    query may look at a key, takes the place of ``causal``, as it does there.

    Args:
        causal: hide later keys, where no mask is given.
        dropout: probability to drop a weight while training.
        attention: ``flash_attention``, or a function that is called in the same way.
    """

    def __init__(
        self, causal: bool, dropout: float = 0.0, attention: Callable[..., Tensor] = flash_attention
    ) -> None:
        super().__init__()
        self.causal, self.dropout, self.attention = causal, dropout, attention

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        dropout_p = self.dropout if self.training else 0.0
        causal = self.causal and mask is None
        return self.attention(q, k, v, mask, causal=causal, dropout_p=dropout_p)

    def extra_repr(self) -> str:
        return f"causal={self.causal}, dropout={self.dropout}"


def use_flash_attention(model: nn.Module, attention: Callable[..., Tensor] = flash_attention) -> list[str]:
    """Replace every core of attention in ``model`` (GPT, BERT, LLaMA, or a part of one), in place.

    Weights and the names of all modules stay as they are.

    Returns:
        The names of the replaced modules.

    Raises:
        ValueError: the model has no such core.
    """
    names = [name for name, module in model.named_modules() if type(module) in CAUSAL]
    if not names:
        cores = " or ".join(kind.__name__ for kind in CAUSAL)
        raise ValueError(f"{type(model).__name__} has no core of attention to replace: no {cores}.")
    for name in names:
        core = model.get_submodule(name)
        flash = FlashCore(CAUSAL[type(core)], getattr(core, "dropout", 0.0), attention)
        model.set_submodule(name, flash.train(core.training))
    return names
