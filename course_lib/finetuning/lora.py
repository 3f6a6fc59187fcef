"""LoRA, low-rank adaptation (Hu et al., arXiv:2106.09685): a layer around a pretrained matrix.

The pretrained matrix W0 ``(d, k)`` stays as it is. What is trained is a change of rank r, two narrow matrices
B ``(d, r)`` and A ``(r, k)``:

    h = W0 x + ΔW x = W0 x + (alpha / r) B A x

A starts with random values and B with zeros, so that training starts from the pretrained model. Gradients and
optimizer states exist for r (d + k) elements in place of d k. For inference W0 + (alpha / r) B A is one matrix of
W0's shape: a merged layer is as fast as the plain one.

``lora_apply.py`` puts such layers into a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from course_lib.finetuning.lora_styles import lora_styles


@dataclass(frozen=True)
class LoRAConfig:
    """How one module is adapted.

    Attributes:
        rank, alpha: r, and the numerator of the scaling alpha / r. With a fixed alpha the learning rate need not change
            much when r does.
        dropout: probability with which an element of the input of A is zeroed in training.
        rslora: scale by alpha / sqrt(r) (Kalajdzievski, arXiv:2312.03732), for large r.
        fan_in_fan_out: the module keeps its weight as ``(in, out)``, as GPT-2's ``Conv1D`` does.
        parts: for a matrix that is several side by side along its outputs (query, key and value in one): which of
            the equal parts get an A and a B of their own, such as ``(True, False, True)``.
        merge_on_eval: ``model.eval()`` merges; ``model.train()`` always unmerges.
    """

    rank: int = 8
    alpha: float = 16
    dropout: float = 0.0
    rslora: bool = False
    fan_in_fan_out: bool = False
    parts: tuple[bool, ...] | None = None
    merge_on_eval: bool = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, not {self.rank}")
        if not 0 < self.alpha < math.inf:
            raise ValueError(f"alpha must be a positive number, not {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.parts is not None:  # a list, if it comes from a file
            object.__setattr__(self, "parts", tuple(self.parts))
        if self.parts is not None and not any(self.parts):
            raise ValueError(f"parts must have at least one True, not {self.parts}: else nothing is adapted")

    @property
    def scaling(self) -> float:
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


SIZES = ("in_features", "out_features", "num_embeddings", "embedding_dim", "padding_idx")  # models read them


class LoRALinear(nn.Module):
    """h = W0 x + (alpha / r) B A x: ``(…, in)`` to ``(…, out)``.

    The merged matrix is kept beside W0, not in its place. So unmerging gives W0 back to the last bit, and a checkpoint
    holds W0, A and B whether the layer is merged or not. ``merge_and_unload`` frees the memory of both.

    Args:
        base_layer: the module that has W0. It is kept, and its parameters are not changed.
    """

    def __init__(self, base_layer: nn.Module, config: LoRAConfig) -> None:
        super().__init__()
        self.base_layer, self.config, self.scaling = base_layer, config, config.scaling
        self.dropout = nn.Dropout(config.dropout) if config.dropout else nn.Identity()
        weight = base_layer.weight
        self.make_a_and_b(
            weight, {"device": None if weight.is_meta else weight.device, "dtype": weight.dtype}
        )
        self.register_buffer("merged_weight", None, persistent=False)
        self.merged_from: list[int] = []
        self.training = base_layer.training

    def make_a_and_b(self, weight: Tensor, like: dict[str, Any]) -> None:
        out, inputs = weight.T.shape if self.config.fan_in_fan_out else weight.shape
        self.lora_A = nn.Linear(inputs, self.config.rank, bias=False, **like)  # (r, in), random
        self.lora_B = nn.Linear(self.config.rank, out, bias=False, **like)  # (out, r)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        if self.uses_merged():
            return functional_call(self.base_layer, {"weight": self.merged_weight}, x)
        return self.base_layer(x) + self.change(x)

    def change(self, x: Tensor) -> Tensor:
        """(alpha / r) B A x, scaled where it is narrowest: ``(…, r)``."""
        return self.lora_B(self.scaling * self.lora_A(self.dropout(x)))

    def delta(self) -> Tensor:
        """ΔW = (alpha / r) B A, in the shape of W0."""
        change = self.scaling * (self.lora_B.weight @ self.lora_A.weight)  # (out, r) (r, in)
        return change.T if self.config.fan_in_fan_out else change

    # ---- merging ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def merge(self) -> None:
        """Compute W0 + ΔW, with which forward works from now on; a second call changes nothing.

        Raises:
            ValueError: this rank has only shards of the matrices.
        """
        if self.merged_weight is None:
            if self.is_sharded():
                raise ValueError(
                    "FSDP has sharded this layer: merge the model of a whole state, on one device"
                )
            self.merged_weight = self.base_layer.weight + self.delta()
            self.merged_from = self.versions()

    def unmerge(self) -> None:
        self.merged_weight = None

    def uses_merged(self) -> bool:
        """Not where A and B are to get gradients. What was merged before an update is merged anew."""
        if self.merged_weight is None or (torch.is_grad_enabled() and self.trains()):
            return False
        if self.merged_from != self.versions():
            self.unmerge()
            self.merge()
        return True

    def trains(self) -> bool:
        return any(p.requires_grad for p in self.parameters())

    def versions(self) -> list[int]:
        """PyTorch counts the changes of a tensor in place, but not those that ZeRO makes through its flat buffer: after
        training with ZeRO in eval mode, call ``model.eval()`` once more."""
        return [p._version for p in self.parameters()]

    def is_sharded(self) -> bool:
        """``fully_shard`` keeps DTensors, and the course's FSDP keeps shards of the shape ``(1, n)``."""
        *_, b = self.lora_B.parameters()
        return type(b) is not nn.Parameter or b.shape[1] != self.config.rank

    def train(self, mode: bool = True) -> LoRALinear:
        super().train(mode)
        self.unmerge()
        if not mode and self.config.merge_on_eval and not self.is_sharded():
            self.merge()
        return self

    def tensor_parallel_styles(self, style: str) -> dict[str, str]:
        """For a table in which the plain module has ``style``, the styles of this layer's parts."""
        return lora_styles(style)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base_layer, name) if name in SIZES else super().__getattr__(name)

    def extra_repr(self) -> str:
        return (
            f"r={self.config.rank}, scaling={self.scaling:g}{', merged' * (self.merged_weight is not None)}"
        )


class LoRAEmbedding(LoRALinear):
    """Rows of W0 plus rows of ΔW: tokens ``(…)`` to ``(…, hidden)``. Dropout has nothing to work on, and is left out.

    As in the authors' code B is random here and A, of which a row is looked up for each token, starts with zeros.
    """

    def make_a_and_b(self, weight: Tensor, like: dict[str, Any]) -> None:
        (words, hidden), r = weight.shape, self.config.rank
        self.dropout = nn.Identity()
        padding = self.base_layer.padding_idx
        self.lora_A = nn.Embedding(words, r, padding_idx=padding, **like)  # (vocab, r), transposed
        self.lora_B = nn.Linear(r, hidden, bias=False, **like)  # (hidden, r)
        nn.init.zeros_(self.lora_A.weight)
        nn.init.normal_(self.lora_B.weight)

    def delta(self) -> Tensor:
        return self.scaling * (self.lora_A.weight @ self.lora_B.weight.T)  # (vocab, r) (r, hidden)


class LoRAMergedLinear(LoRALinear):
    """Several matrices in one, side by side along the outputs (query, key, value); the chosen parts are adapted."""

    def make_a_and_b(self, weight: Tensor, like: dict[str, Any]) -> None:
        out, inputs = weight.T.shape if self.config.fan_in_fan_out else weight.shape
        parts, r = self.config.parts, self.config.rank
        if out % len(parts):
            raise ValueError(f"{out} outputs cannot be cut into {len(parts)} equal parts")
        self.lora_A = nn.Linear(inputs, r * sum(parts), bias=False, **like)  # (r * adapted parts, in)
        self.lora_B = nn.ModuleList(
            nn.Linear(r, out // len(parts), bias=False, **like) for _ in range(sum(parts))
        )
        for b in self.lora_B:
            nn.init.zeros_(b.weight)

    def side_by_side(self, changes: Iterable[Tensor], dim: int) -> Tensor:
        """The changes of the adapted parts, and zeros where a part is not adapted."""
        changes = list(changes)
        left, zeros = iter(changes), torch.zeros_like(changes[0])
        return torch.cat([next(left) if adapted else zeros for adapted in self.config.parts], dim)

    def change(self, x: Tensor) -> Tensor:
        ax = (self.scaling * self.lora_A(self.dropout(x))).split(self.config.rank, dim=-1)  # each (…, r)
        return self.side_by_side((b(h) for b, h in zip(self.lora_B, ax, strict=True)), dim=-1)

    def delta(self) -> Tensor:
        a = self.lora_A.weight.split(self.config.rank)  # each (r, in)
        change = self.scaling * self.side_by_side(
            (b.weight @ h for b, h in zip(self.lora_B, a, strict=True)), dim=0
        )
        return change.T if self.config.fan_in_fan_out else change

    def tensor_parallel_styles(self, style: str) -> dict[str, str]:
        raise ValueError(
            f"several matrices in one cannot be cut with the style {style!r}: adapt separate ones"
        )
