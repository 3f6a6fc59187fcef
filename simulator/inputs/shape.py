"""The first input of every prediction: a transformer, by the numbers that decide what it costs.

The papers' letters stand in comments: ``l`` layers, ``h`` hidden, ``a`` heads, ``s`` sequence, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

from simulator.inputs.checks import at_least, one_of, refuse, yes_or_no
from simulator.inputs.chunks import chunk_sizes

ACTIVATIONS = ("gelu", "swiglu")
Matrices = tuple[int, int, int]  # rows, columns, and how many there are


@dataclass(frozen=True)
class ModelShape:
    """A transformer, by the numbers that decide what it costs.

    Args:
        layers, hidden, heads, vocab, sequence: l, h, a, V and s.
        kv_heads: heads of keys and values (grouped-query attention); None: as many as ``heads``.
        head_dim: width of one head; None: hidden / heads.
        ffn: inner width of the MLP; None: 4 h.
        activation: ``"gelu"`` (two matrices) or ``"swiglu"`` (three).
        tied: the output layer uses the token embedding's weight.
        learned_positions: a position embedding of s x h (otherwise rotary or none: no parameters).
        biases: linear layers have biases and norms have two vectors (LayerNorm), otherwise one (RMSNorm).
        dropout: dropout is on, so its masks are kept.
        experts, experts_per_token: a mixture of experts in every layer; 1 and 1: a dense MLP.
        other_parameters: what no other field describes (BERT's pooler); the last stage holds them.
        decoder_layers: so many of the layers, the last ones, also attend to what the others made of another
            sequence of s tokens (cross attention: T5, BART); 0: all layers are alike.
        dense_layers: the first layers, with a dense MLP where the others have experts.
        expert_ffn: inner width of an expert; None: ``ffn``.
        shared_experts: experts that every token visits, beside those it is sent to.
        q_rank, kv_rank, rope_dim, value_dim: multi-head latent attention (arXiv:2405.04434). Queries are made from
            ``q_rank`` numbers a token (None: from h), keys and values from ``kv_rank``. A head's queries and keys
            have ``rope_dim`` rotated columns beside ``head_dim`` others, its values ``value_dim`` (None: as many).
        norm_biases: norms have two vectors; None: as ``biases``.
        other_layer_parameters: of every layer, what no other field describes (biases of q, k and v alone).
        window: tokens that one attends to, itself among them (arXiv:2004.05150); None: all before it.
        full_layers: layers that attend to all tokens, beside those with a window.
        next_tokens: tokens that are predicted beside the next one, each by one more layer like the last, a product that
            brings 2 h numbers to h, and the output once more (multi-token prediction, arXiv:2412.19437, section 2.2).
    """

    layers: int
    hidden: int
    heads: int
    vocab: int
    sequence: int
    kv_heads: int = None  # pyright: ignore[reportAssignmentType] __post_init__ fills it
    ffn: int = None  # pyright: ignore[reportAssignmentType]
    activation: str = "gelu"
    tied: bool = True
    learned_positions: bool = True
    biases: bool = True
    dropout: bool = True
    experts: int = 1
    experts_per_token: int = 1
    other_parameters: int = 0
    head_dim: int | None = None
    decoder_layers: int = 0
    dense_layers: int = 0
    expert_ffn: int | None = None
    shared_experts: int = 0
    q_rank: int | None = None
    kv_rank: int | None = None
    rope_dim: int = 0
    value_dim: int | None = None
    norm_biases: bool | None = None
    other_layer_parameters: int = 0
    window: int | None = None
    full_layers: int = 0
    next_tokens: int = 0

    def __post_init__(self) -> None:
        at_least(1, layers=self.layers, hidden=self.hidden, heads=self.heads, vocab=self.vocab)
        object.__setattr__(self, "kv_heads", self.heads if self.kv_heads is None else self.kv_heads)
        object.__setattr__(self, "ffn", 4 * self.hidden if self.ffn is None else self.ffn)
        at_least(1, sequence=self.sequence, kv_heads=self.kv_heads, ffn=self.ffn, experts=self.experts)
        at_least(1, experts_per_token=self.experts_per_token)
        at_least(0, other_parameters=self.other_parameters, decoder_layers=self.decoder_layers)
        at_least(0, dense_layers=self.dense_layers, shared_experts=self.shared_experts)
        at_least(0, rope_dim=self.rope_dim, full_layers=self.full_layers, next_tokens=self.next_tokens)
        at_least(0, other_layer_parameters=self.other_layer_parameters)
        one_of("activation", self.activation, ACTIVATIONS)
        yes_or_no(tied=self.tied, learned_positions=self.learned_positions)
        yes_or_no(biases=self.biases, dropout=self.dropout)
        if self.norm_biases is not None:
            yes_or_no(norm_biases=self.norm_biases)
        for name in ("head_dim", "expert_ffn", "q_rank", "kv_rank", "value_dim", "window"):
            if getattr(self, name) is not None:
                at_least(1, **{name: getattr(self, name)})
        if self.head_dim is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of the {self.heads} heads, not {self.hidden}, or give a head dim"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"kv heads must divide the {self.heads} heads, not {self.kv_heads}")
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"experts per token must be at most the {self.experts} experts, not {self.experts_per_token}"
            )
        self._check_kinds()

    def __hash__(self) -> int:
        """Computed once: a shape is the key under which prices are kept."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def _check_kinds(self) -> None:
        if self.full_layers > (self.layers if self.window else 0):
            most = f"at most the {self.layers} layers" if self.window else "0 without a window"
            refuse("full layers", most, self.full_layers)
        if self.decoder_layers > self.layers:
            refuse("decoder layers", f"at most the {self.layers} layers", self.decoder_layers)
        if self.dense_layers > self.layers - 1 and self.dense_layers:
            refuse("dense layers", f"fewer than the {self.layers} layers", self.dense_layers)
        for name, value in (("dense layers", self.dense_layers), ("shared experts", self.shared_experts)):
            if value and self.experts == 1:
                refuse(name, "0 in a model without experts", value)
        if self.expert_ffn is not None and self.experts == 1:
            refuse("expert ffn", "left out in a model without experts", self.expert_ffn)
        if self.kv_rank is None:
            for name in ("q_rank", "value_dim"):
                if getattr(self, name) is not None:
                    refuse(name.replace("_", " "), "left out without a kv rank", getattr(self, name))
            if self.rope_dim:
                refuse("rope dim", "0 without a kv rank", self.rope_dim)
        elif self.kv_heads != self.heads:
            refuse("kv heads", f"the {self.heads} heads where keys come from a kv rank", self.kv_heads)
        if self.decoder_layers and (self.kv_rank or self.experts > 1):
            raise ValueError("a model with decoder layers has neither a kv rank nor experts")

    # ---- which layer is what ------------------------------------------------------------------------------

    def kinds(self, first: int = 0, count: int | None = None) -> dict[ModelShape, int]:
        """``count`` layers from layer ``first`` on, by kind: a model whose layers are all alike, and how many. Behind
        the last layer come those of ``next_tokens``."""
        count = self.layers - first if count is None else count
        at_least(0, first=first, count=count)
        border = self.dense_layers or self.layers - self.decoder_layers
        more = self.next_tokens if count and first + count == self.layers else 0
        if border in (0, self.layers):
            return {self: count + more}
        before = min(max(border - first, 0), count)
        return {
            kind: n for kind, n in zip(self._two_kinds, (before, count - before + more), strict=True) if n
        }

    @cached_property
    def _two_kinds(self) -> tuple[ModelShape, ModelShape]:
        """The kind of the first layers, and that of the others."""
        if self.dense_layers:
            dense = {"experts": 1, "experts_per_token": 1, "shared_experts": 0, "expert_ffn": None}
            return replace(self, dense_layers=0, **dense), replace(self, dense_layers=0)
        return replace(self, decoder_layers=0), replace(self, decoder_layers=self.layers)

    @property
    def crosses(self) -> bool:
        """Every layer has cross attention: true of one kind of layer, not of a whole encoder-decoder."""
        return self.decoder_layers == self.layers

    # ---- widths -------------------------------------------------------------------------------------------

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def key_size(self) -> int:
        """Columns of a head's queries and keys."""
        return self.head_size + self.rope_dim

    @property
    def value_size(self) -> int:
        """Columns of a head's values, and of what it gives."""
        return self.value_dim or self.head_size

    @property
    def attention_width(self) -> int:
        """Columns of all query heads together: h, unless ``head_dim`` says otherwise."""
        return self.heads * self.key_size

    @property
    def attended(self) -> float:
        """Part of what a causal mask leaves that falls into the window: the mean over all layers."""
        if self.window is None:
            return 1
        s, w = self.sequence, min(self.window, self.sequence)
        full = self.full_layers / self.layers
        return full + (1 - full) * w * (2 * s - w + 1) / (s * (s + 1))

    @property
    def mlp_width(self) -> int:
        """Inner width of the MLP, or of one expert."""
        return self.expert_ffn or self.ffn

    @property
    def visits(self) -> int:
        """Experts that a token visits, shared ones included; 1 of a dense MLP."""
        return self.experts_per_token + self.shared_experts

    # ---- parameters ---------------------------------------------------------------------------------------

    @property
    def norms(self) -> int:
        """Norms of h numbers in a layer, each with a residual addition."""
        return 3 if self.crosses else 2

    @property
    def regions(self) -> int:
        """Parts of a layer that tensor parallelism cuts: each attention, and the MLP but for routed experts."""
        return self.norms - (self.dense_mlps == 0)

    @property
    def norm_vectors(self) -> int:
        return 2 if (self.biases if self.norm_biases is None else self.norm_biases) else 1

    @property
    def norm_parameters(self) -> int:
        """One norm: weight, and bias where there are biases."""
        return self.norm_vectors * self.hidden

    def attention_linears(self, tp: int = 1) -> list[tuple[int, int]]:
        """(columns out, columns in) of each linear layer of attention on one rank: q, k, v by columns, the projection
        by rows. What makes latent numbers is whole on every rank; q, k and v of an ordinary layer are one product."""
        at_least(1, tp=tp)
        h, heads = self.hidden, self.heads // tp
        own, values = heads * self.key_size, heads * self.value_size
        if self.kv_rank:
            queries = [(self.q_rank, h), (own, self.q_rank)] if self.q_rank else [(own, h)]
            keys = [
                (self.kv_rank + self.rope_dim, h),
                (heads * (self.head_size + self.value_size), self.kv_rank),
            ]
            return [*queries, *keys, (h, values)]
        kv = self.kv_columns(tp)
        cross = [(own, h), (kv, h), (h, own)] if self.crosses else []
        return [(own + kv, h), (h, own), *cross]

    def kv_heads_on(self, tp: int) -> int:
        """Heads of keys and values on one tensor-parallel rank; fewer heads than ranks: copies."""
        at_least(1, tp=tp)
        return max(1, self.kv_heads // tp)

    def kv_columns(self, tp: int) -> int:
        """Columns of keys and values together on one tensor-parallel rank; latent attention has both for every head."""
        at_least(1, tp=tp)
        if self.kv_rank:
            return self.heads // tp * (self.key_size + self.value_size)
        return 2 * self.kv_heads_on(tp) * self.head_size

    def attention_parameters(self, tp: int = 1) -> int:
        """Of one layer, on one tensor-parallel rank. The bias of a row-parallel layer is not split."""
        linears = self.attention_linears(tp)
        biases = sum(out for out, _ in linears) if self.biases else 0
        latent = (self.q_rank or 0) + (self.kv_rank or 0)  # a norm of its own
        return sum(out * into for out, into in linears) + biases + self.norm_vectors * latent

    def expert_parameters(self, tp: int = 1) -> int:
        """One MLP, or one expert, on one tensor-parallel rank."""
        at_least(1, tp=tp)
        f = self.mlp_width // tp
        matrices = 3 if self.activation == "swiglu" else 2
        bias = (matrices - 1) * f + self.hidden if self.biases else 0
        return matrices * self.hidden * f + bias

    def experts_on(self, ep: int) -> int:
        """Experts of a layer on one expert-parallel rank; a dense MLP is on every rank."""
        at_least(1, ep=ep)
        return max(1, self.experts // ep)

    @property
    def router_parameters(self) -> int:
        return self.hidden * self.experts if self.experts > 1 else 0

    def routed_parameters(self, ep: int = 1) -> int:
        """Of one layer's experts on one rank; not a dense MLP, and no shared experts, which all ranks of ep have.

        Tensor-parallel ranks have them whole, each for its part of the tokens: an expert is too narrow to be cut, as
        in torchtitan, and in Megatron-LM with an expert tensor parallel size of 1.
        """
        return self.expert_parameters() * self.experts_on(ep) * (self.experts > 1)

    @property
    def dense_mlps(self) -> int:
        """MLPs in a layer that tensor parallelism cuts: one, or the shared experts."""
        return self.shared_experts if self.experts > 1 else 1

    def layer_parameters(self, tp: int = 1, ep: int = 1) -> int:
        """Of one layer on one rank: attention, MLP or experts, router, norms. All layers must be of one kind."""
        mlp = (
            self.expert_parameters(tp) * self.dense_mlps + self.routed_parameters(ep) + self.router_parameters
        )
        norms = self.norms * self.norm_parameters
        return self.attention_parameters(tp) + mlp + norms + self.other_layer_parameters

    def layer_matrices(self, tp: int = 1, ep: int = 1) -> tuple[list[Matrices], list[Matrices]]:
        """The matrices of one layer on one rank, and those of its routed experts. Query, key and value are one, and so
        are gate and up projection of an expert."""
        at_least(1, tp=tp, ep=ep)
        h, width, gates = self.hidden, self.mlp_width, 2 if self.activation == "swiglu" else 1
        dense = [(*linear, 1) for linear in self.attention_linears(tp)]
        dense.append((width // tp, h, (1 + gates) * self.dense_mlps))
        if self.experts == 1:
            return dense, []
        n = self.experts_on(ep)
        return [*dense, (self.experts, h, 1)], [(gates * width, h, n), (width, h, n)]

    def embedding_parameters(self, tp: int = 1) -> int:
        """Token embedding (split by vocabulary, the longest part) and positions (not split)."""
        at_least(1, tp=tp)
        positions = self.sequence * self.hidden if self.learned_positions else 0
        return chunk_sizes(self.vocab, tp)[0] * self.hidden + positions

    def head_parameters(self, tp: int = 1, *, own_copy: bool = False) -> int:
        """Final norm and output matrix; a tied matrix counts only where a stage needs its ``own_copy``. A token more
        that is predicted has a product and three norms, and shares the matrices."""
        at_least(1, tp=tp)
        matrix = 0 if self.tied and not own_copy else chunk_sizes(self.vocab, tp)[0] * self.hidden
        more = self.next_tokens * (2 * self.hidden * self.hidden // tp + 3 * self.norm_parameters)
        return self.norm_parameters + matrix + self.other_parameters + more

    @property
    def parameters(self) -> int:
        """Every parameter of the model, counted once.

        For a GPT with biases this is 12 l h^2 + 13 l h + (V + s) h (arXiv:2104.04473, equation 2) and the
        2 h of the final norm, which that equation leaves out.
        """
        layers = sum(n * kind.layer_parameters() for kind, n in self.kinds().items())
        return layers + self.embedding_parameters() + self.head_parameters()

    @property
    def active_parameters(self) -> int:
        """Those that one token meets: all of a dense model, k of E experts in a mixture."""
        idle = sum(
            n * (kind.experts - kind.experts_per_token) * kind.expert_parameters()
            for kind, n in self.kinds().items()
        )
        return self.parameters - idle
