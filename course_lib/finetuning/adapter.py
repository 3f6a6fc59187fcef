"""Adapters: small trained networks inside a frozen model.

- Houlsby et al., arXiv:1902.00751: two bottlenecks per layer, after attention and after the MLP.
- Pfeiffer et al., arXiv:2005.00247: one bottleneck per layer, after the MLP.
- LLaMA-Adapter, Zhang et al., arXiv:2303.16199: trained tokens that attention sees through a gate that starts at zero.

The first two are ``DoubleSeqBnConfig(non_linearity="gelu")`` and ``SeqBnConfig()`` of the package ``adapters``.

A bottleneck of width m adds to a vector h of width d

    f(h W_down + b_down) W_up + b_up        d x m, m, m x d and d parameters: 2md + d + m

Shapes in comments: ``batch``, ``seq``, ``d`` (hidden), ``m``; ``heads``, ``size`` (of one head), ``K`` tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.finetuning.sites import add_once, at, in_layers, root_of, train_only


class Adapter(nn.Module):
    """The bottleneck: what is added to h, ``(…, d)`` to ``(…, d)``. Almost nothing at first (weights of 0.01)."""

    def __init__(self, d: int, m: int, f: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        if m < 1:
            raise ValueError(f"the bottleneck is {m} wide; at least 1 is needed.")
        self.down, self.up, self.f = nn.Linear(d, m), nn.Linear(m, d), f
        for linear in (self.down, self.up):
            nn.init.trunc_normal_(linear.weight, std=0.01, a=-0.02, b=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, h: Tensor) -> Tensor:
        return self.up(self.f(self.down(h)))

    def after_sublayer(self, module: nn.Module, args: tuple, h: Tensor) -> Tensor:
        """Houlsby's place: h is a sub-layer's output, and the residual is not added yet."""
        return h + self(h)

    def around_norm(self, norm: nn.LayerNorm, args: tuple[Tensor], z: Tensor) -> Tensor:
        """Pfeiffer's place: LN(s + A(LN(s))), where s is the MLP's output plus the residual, and z = LN(s)."""
        return norm.forward(args[0] + self(z))


def add_adapters(
    model: nn.Module,
    m: int = 64,
    kind: Literal["houlsby", "pfeiffer"] = "houlsby",
    *,
    inside: bool = False,
    also: Iterable[str] | None = None,
) -> list[Adapter]:
    """Adapters of width m in every layer, in place. All else is frozen, but Houlsby trains the layers' norms, too.

    Pfeiffer's stands where Houlsby's second does in a pre-norm model (GPT, Llama).

    Args:
        model: a Bert, BertClassifier, GPT, Llama or Bart. BART's decoder has one more after its second attention.
        inside: each layer has a list ``adapters`` of its own, so a stage of a pipeline has those of its layers.
            Otherwise all of them are in one list of the model.
        also: modules that are trained besides; None: a BertClassifier's classifier.

    Raises:
        ValueError: m is below 1, an unknown kind, a model of no known family, or one that has adapters.
    """
    root, sites = root_of(model)
    d = at(root, sites.tokens)[0].embedding_dim
    if kind == "houlsby":
        patterns, f, name = sites.sublayers, F.gelu, "after_sublayer"
    elif kind == "pfeiffer" and sites.post_norm:
        patterns, f, name = sites.norms[-1:], F.relu, "around_norm"
    elif kind == "pfeiffer":
        patterns, f, name = sites.sublayers[-1:], F.relu, "after_sublayer"
    else:
        raise ValueError(f"the kind of adapter is {kind!r}; choose 'houlsby' or 'pfeiffer'.")
    layers = {module: layer for pattern in patterns for layer, module in in_layers(root, pattern)}
    places = [module for module in root.modules() if module in layers]  # layer by layer
    adapters = nn.ModuleList(Adapter(d, m, f) for _ in places)
    for layer in dict.fromkeys(layers.values()) if inside else ():
        own = [adapter for adapter, place in zip(adapters, places, strict=True) if layers[place] is layer]
        add_once(layer, "adapters", nn.ModuleList(own))
    if not inside:
        add_once(root, "adapters", adapters)
    for module, adapter in zip(places, adapters, strict=True):
        module.register_forward_hook(getattr(adapter, name))
    norms = [norm for pattern in sites.norms for norm in at(root, pattern)] if kind == "houlsby" else []
    train_only(model, [adapters, *norms], also)
    return list(adapters)


class LlamaAdapter(nn.Module):
    """K trained tokens P for one layer. Its attention gains what it sees there, times a gate g:

    attention(Q, K, V) + g softmax(Q (P W_K)^T / sqrt(size)) P W_V

    Two softmaxes, because one over all keys would change the model at once; with g = 0 it starts as it was.

    Args:
        projections: what W_K and W_V are called in the attention.
    """

    def __init__(self, K: int, d: int, projections: tuple[str, str] = ("k_proj", "v_proj")) -> None:
        super().__init__()
        self.P = nn.Parameter(torch.randn(K, d))
        self.g = nn.Parameter(torch.zeros(1))
        self.projections = projections

    def forward(self, attention: nn.Module, q: Tensor) -> Tensor:
        """What the queries ``(batch, heads, seq, size)`` see in P, times g."""
        P_K, P_V = (
            F.linear(self.P, W.weight, W.bias).unflatten(-1, (-1, attention.head_size)).transpose(0, 1)
            for W in (getattr(attention, name) for name in self.projections)
        )  # (kv_heads, K, size), not rotated
        if hasattr(attention, "k_norm"):
            P_K = attention.k_norm(P_K)
        P_K, P_V = (P.expand(len(q), -1, -1, -1) for P in (P_K, P_V))  # (batch, kv_heads, K, size)
        seen = F.scaled_dot_product_attention(q, P_K, P_V, enable_gqa=q.shape[1] != P_K.shape[1])
        return self.g * seen

    def attach(self, attention: nn.Module) -> None:
        """Become part of the attention, so that a stage of a pipeline takes it along. A hook adds what it sees."""
        add_once(attention, "adaption", self)
        if "attend" in inspect.signature(type(attention).forward).parameters:
            attention.register_forward_pre_hook(self.before_attention, with_kwargs=True)
        else:
            attention.core.register_forward_hook(partial(self.after_core, [attention]))

    def before_attention(
        self, attention: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict]:
        """Stand in for the layer's core, or for the cache that stands in for it."""
        inner = kwargs.get("attend") or attention.core
        return args, kwargs | {"attend": partial(self.attend, attention, inner)}

    def attend(
        self, attention: nn.Module, inner: Callable[..., Tensor], q: Tensor, *keys_and_values: Any
    ) -> Tensor:
        return inner(q, *keys_and_values) + self(attention, q)  # (batch, heads, seq, size)

    def after_core(
        self, attention: list[nn.Module], core: nn.Module, args: tuple[Tensor, ...], attended: Tensor
    ) -> Tensor:
        return attended + self(attention[0], args[0])


def add_llama_adapter(
    model: nn.Module, K: int = 10, layers: int | None = None, *, also: Iterable[str] | None = None
) -> list[LlamaAdapter]:
    """LLaMA-Adapter in the last ``layers`` layers (None: all), in place; all else is frozen.

    Args:
        model: a Llama, GPT, Bert, BertClassifier or Bart. Of a Bart, whose encoder's layers come first, each layer
            has one, in its attention to its own text.
        also: modules that are trained besides; None: a BertClassifier's classifier.

    Raises:
        ValueError: a model of no known family; K is below 1; more layers than the model has; it has adapters already.
    """
    root, sites = root_of(model)
    attentions = at(root, sites.attention.replace("*_attn", "self_attn"))
    layers = len(attentions) if layers is None else layers
    if K < 1 or not 1 <= layers <= len(attentions):
        raise ValueError(
            f"{K} tokens in {layers} layers: choose at least 1 token, and 1 to {len(attentions)} layers."
        )
    d = at(root, sites.tokens)[0].embedding_dim
    projections = sites.key, sites.key.replace("key", "value").replace("k_", "v_")
    adapters = [LlamaAdapter(K, d, projections) for _ in range(layers)]
    for attention, adapter in zip(attentions[-layers:], adapters, strict=True):
        adapter.attach(attention)
    train_only(model, adapters, also)
    return adapters
