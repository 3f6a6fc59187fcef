"""Prefix tuning (Li and Liang, arXiv:2101.00190) and P-tuning v2 (Liu et al., arXiv:2110.07602).

In every layer, n trained keys and values stand before those of the text; the model is frozen:

    attention(Q, [P_K; K], [P_V; V])        P_K, P_V (heads, n, size) for each layer

Prefix tuning computes them from a smaller matrix with an MLP, which made training more stable, and which is folded
away afterwards. P-tuning v2 (deep prompts) trains the keys and values themselves.

Shapes in comments: ``batch``, ``seq`` (of the text), ``n`` virtual tokens, ``heads`` (of keys), ``size`` (of one head).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.attention.drop_in import CAUSAL
from course_lib.finetuning.sites import (
    add_once,
    arguments_of,
    at,
    check_positions,
    root_of,
    train_only,
)
from course_lib.models.bart import Bart
from course_lib.models.masks import causal_mask


class Prefix(nn.Module):
    """Keys and values of n virtual tokens in each of ``layers`` layers.

    Args:
        hidden_size: the width of the MLP that computes them from E, ``(n, heads size)``. None: they are trained
            themselves.
    """

    def __init__(
        self,
        n: int,
        layers: int,
        heads: int,
        size: int,
        hidden_size: int | None = None,
    ) -> None:
        super().__init__()
        self.n, self.heads, self.size = n, heads, size
        d, h = heads * size, hidden_size  # 2d: a key and a value of one virtual token
        if h is None:
            self.P = nn.ParameterList(torch.randn(n, 2 * d) for _ in range(layers))
            self.E = self.mlp = self.out = None
        elif h >= 1:
            self.P = None
            self.E = nn.Parameter(torch.randn(n, d))
            self.mlp = nn.Sequential(nn.Linear(d, h), nn.Tanh())
            self.out = nn.ModuleList(nn.Linear(h, 2 * d) for _ in range(layers))
        else:
            raise ValueError(f"hidden_size is {h}; an MLP needs at least 1, and None means no MLP.")

    @staticmethod
    def enter(x: Tensor) -> Tensor:
        """Tensor parallelism replaces it: each rank then computes a part of the gradient of x."""
        return x

    def own_heads(self, P: Sequence[Tensor], key: nn.Module, k: Tensor) -> list[Tensor]:
        """In k's dtype; under tensor parallelism those of this rank, which has a part of ``key``."""
        P = [one.to(k.dtype) for one in P]
        if not (cut := getattr(key, "shards", None)):
            return P
        first = cut["weight"].start // self.size
        return [self.enter(one)[first : first + k.shape[1]] for one in P]

    def forward(self, layer: int) -> tuple[Tensor, Tensor]:
        """One layer's P_K and P_V, each ``(heads, n, size)``."""
        if self.P is not None:
            P = self.P[layer]  # (n, 2 heads size)
        else:
            P = self.out[layer](self.mlp(self.E))
        P = P.view(self.n, 2, self.heads, self.size)
        P_K, P_V = P.permute(1, 2, 0, 3)
        return P_K, P_V

    @torch.no_grad()
    def fold(self) -> None:
        """After training: compute the keys and values once, and throw the MLP away. Outputs stay the same."""
        if self.P is None:
            h = self.mlp(self.E)
            self.P = nn.ParameterList(out(h) for out in self.out)
            self.E = self.mlp = self.out = None

    def attach(self, root: nn.Module) -> None:
        """Become part of the module that takes tokens. Hooks lengthen keys and values, and move positions by n."""
        _, sites = root_of(root)
        add_once(root, "prefix", self)
        root.register_forward_pre_hook(self._check, with_kwargs=True)
        for module in at(root, sites.positions):
            learned = isinstance(module, nn.Embedding)
            module.register_forward_pre_hook(self._shift if learned else self._turn_further, with_kwargs=True)
        for layer, attention in enumerate(at(root, sites.attention)):
            core = attention.core
            causal = core.causal if hasattr(core, "causal") else CAUSAL[type(core)]
            core.register_forward_pre_hook(partial(self._prepend, layer, causal, attention, sites.key))

        if isinstance(root, Bart):
            root.model.decoder.register_forward_pre_hook(self._refuse_cache, with_kwargs=True)

    def _refuse_cache(self, decoder: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Who writes with a BART calls its decoder, and not what ``_check`` stands before."""
        if kwargs.get("cache") is not None:
            raise ValueError("no cache holds a prefix; generate with use_cache=False.")

    def in_chain(self, name: str, chain: Mapping[str, Any]) -> dict[str, Any]:
        """In a pipeline every stage holds it: its layers read their keys and values there."""
        return {**chain, name: None}

    def _check(self, root: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        arguments_of(root, args, kwargs, self.n)

    def _shift(
        self,
        embedding: nn.Module,
        args: tuple[Tensor],
        kwargs: dict,
    ) -> tuple[tuple, dict]:
        # The prefix has the positions 0 … n - 1.
        return (args[0] + self.n,), kwargs

    def _turn_further(self, rotary: nn.Module, heads: tuple[Tensor, ...], kwargs: dict) -> tuple[tuple, dict]:
        seq = heads[0].shape[-2]
        return heads, {"positions": torch.arange(self.n, self.n + seq, device=heads[0].device)}

    def _prepend(
        self,
        layer: int,
        causal: bool,
        attention: nn.Module,
        key: str,
        core: nn.Module,
        args: tuple,
    ) -> tuple:
        # q, k, v: (batch, heads, seq, size); the mask may be left out
        q, k, v, mask = (*args, None)[:4]
        P_K, P_V = self.own_heads(self(layer), getattr(attention, key), k)  # (heads, n, size)
        if mask is not None:  # all see the prefix
            seen = True if mask.dtype == torch.bool else 0.0
            mask = F.pad(mask, (self.n, 0), value=seen)
        elif causal:
            mask = causal_mask(q.shape[2], self.n + k.shape[2], q.device)
        k = torch.cat((P_K.expand(len(k), -1, -1, -1), k), dim=2)
        v = torch.cat((P_V.expand(len(v), -1, -1, -1), v), dim=2)
        return q, k, v, mask


def add_prefix(
    model: nn.Module,
    n: int,
    hidden_size: int | None = 512,
    start: Sequence[int] | None = None,
    *,
    also: Iterable[str] | None = None,
) -> Prefix:
    """Prefix tuning, in place: the model is frozen, and n keys and values in every layer are trained.

    Args:
        model: a Bert, BertClassifier, GPT, Llama or Bart, whose attentions all have one. It is called as before; the
            text's positions begin at n.
        hidden_size: the width of the MLP (reparametrisation); ``fold()`` the prefix after training. None: no MLP.
        start: token ids; the prefix starts as the keys and values that these n tokens have in the model. Without an
            MLP only, which cannot start from given values.
        also: modules that are trained besides; None: a BertClassifier's classifier.

    Raises:
        ValueError: n is below 1 or leaves no position for text; a start that does not fit; no known family.
    """
    root, sites = root_of(model)
    check_positions(root, n, 1)
    if start is not None and (hidden_size is not None or len(start) != n):
        raise ValueError(f"start has {len(start)} tokens: give {n}, one for each, and hidden_size=None.")
    attentions = at(root, sites.attention)
    if len({attention.head_size for attention in attentions}) > 1:
        raise ValueError("encoder and decoder have heads of different sizes; a prefix needs one size.")
    size, key = attentions[0].head_size, getattr(attentions[0], sites.key)
    linear = next(m for m in key.modules() if isinstance(m, nn.Linear))  # itself, or what LoRA has wrapped
    prefix = Prefix(n, len(attentions), linear.out_features // size, size, hidden_size)
    if start is not None:
        for P, kv in zip(prefix.P, keys_and_values(root, torch.tensor([list(start)])), strict=True):
            P.data = kv
    prefix.attach(root)
    train_only(model, [prefix], also)
    return prefix


def add_deep_prompts(
    model: nn.Module, n: int, start: Sequence[int] | None = None, *, also: Iterable[str] | None = None
) -> Prefix:
    """P-tuning v2, in place: prompts in every layer without an MLP, and a trained classification head."""
    return add_prefix(model, n, hidden_size=None, start=start, also=also)


@torch.no_grad()
def keys_and_values(root: nn.Module, tokens: Tensor) -> list[Tensor]:
    """What each layer's attention computes for ``tokens`` ``(1, n)``: ``(n, 2 heads size)``, keys first."""
    _, sites = root_of(root)
    found: list[Tensor] = []

    def keep(core: nn.Module, args: tuple) -> None:
        k, v = args[1], args[2]  # (1, heads, n, size)
        found.append(torch.stack((k[0], v[0])).permute(2, 0, 1, 3).flatten(1))

    handles = [a.core.register_forward_pre_hook(keep) for a in at(root, sites.attention)]
    modes = [(module, module.training) for module in root.modules()]
    try:
        root.eval()(tokens.to(next(root.parameters()).device))
    finally:
        for module, training in modes:
            module.training = training
        for handle in handles:
            handle.remove()
    return found
