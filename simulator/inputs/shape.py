"""The first input of every prediction: a transformer, by the numbers that decide what it costs.

The papers' letters stand in comments: ``l`` layers, ``h`` hidden, ``a`` heads, ``s`` sequence, ``V`` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.inputs.checks import at_least, one_of, yes_or_no
from simulator.inputs.chunks import chunk_sizes

ACTIVATIONS = ("gelu", "swiglu")


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

    def __post_init__(self) -> None:
        at_least(1, layers=self.layers, hidden=self.hidden, heads=self.heads, vocab=self.vocab)
        object.__setattr__(self, "kv_heads", self.heads if self.kv_heads is None else self.kv_heads)
        object.__setattr__(self, "ffn", 4 * self.hidden if self.ffn is None else self.ffn)
        at_least(1, sequence=self.sequence, kv_heads=self.kv_heads, ffn=self.ffn, experts=self.experts)
        at_least(1, experts_per_token=self.experts_per_token)
        at_least(0, other_parameters=self.other_parameters)
        one_of("activation", self.activation, ACTIVATIONS)
        yes_or_no(tied=self.tied, learned_positions=self.learned_positions)
        yes_or_no(biases=self.biases, dropout=self.dropout)
        if self.head_dim is not None:
            at_least(1, head_dim=self.head_dim)
        elif self.hidden % self.heads:
            raise ValueError(
                f"hidden must be a multiple of the {self.heads} heads, not {self.hidden}, or give a head dim"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"kv heads must divide the {self.heads} heads, not {self.kv_heads}")
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"experts per token must be at most the {self.experts} experts, not {self.experts_per_token}"
            )

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden // self.heads

    @property
    def attention_width(self) -> int:
        """Columns of all query heads together: h, unless ``head_dim`` says otherwise."""
        return self.heads * self.head_size

    @property
    def norm_parameters(self) -> int:
        """One norm: weight, and bias where there are biases."""
        return (2 if self.biases else 1) * self.hidden

    def attention_parameters(self, tp: int = 1) -> int:
        """Of one layer, on one tensor-parallel rank: q, k, v by columns, the projection by rows."""
        at_least(1, tp=tp)
        h, d = self.hidden, self.head_size
        heads, kv_heads = self.heads // tp, max(1, self.kv_heads // tp)  # fewer kv heads than ranks: copies
        columns = (heads + 2 * kv_heads) * d
        bias = columns + h if self.biases else 0  # the bias of a row-parallel layer is not split
        return h * columns + heads * d * h + bias

    def expert_parameters(self, tp: int = 1) -> int:
        """One MLP, or one expert, on one tensor-parallel rank."""
        at_least(1, tp=tp)
        f = self.ffn // tp
        matrices = 3 if self.activation == "swiglu" else 2
        bias = (matrices - 1) * f + self.hidden if self.biases else 0
        return matrices * self.hidden * f + bias

    @property
    def router_parameters(self) -> int:
        return self.hidden * self.experts if self.experts > 1 else 0

    def layer_parameters(self, tp: int = 1, ep: int = 1) -> int:
        """Of one layer on one rank: attention, MLP or experts, router, two norms."""
        at_least(1, ep=ep)
        mlp = self.expert_parameters(tp) * (self.experts // ep) + self.router_parameters
        return self.attention_parameters(tp) + mlp + 2 * self.norm_parameters

    def embedding_parameters(self, tp: int = 1) -> int:
        """Token embedding (split by vocabulary, the longest part) and positions (not split)."""
        at_least(1, tp=tp)
        positions = self.sequence * self.hidden if self.learned_positions else 0
        return chunk_sizes(self.vocab, tp)[0] * self.hidden + positions

    def head_parameters(self, tp: int = 1, *, own_copy: bool = False) -> int:
        """Final norm and output matrix; a tied matrix counts only where a stage needs its ``own_copy``."""
        at_least(1, tp=tp)
        matrix = 0 if self.tied and not own_copy else chunk_sizes(self.vocab, tp)[0] * self.hidden
        return self.norm_parameters + matrix + self.other_parameters

    @property
    def parameters(self) -> int:
        """Every parameter of the model, counted once.

        For a GPT with biases this is 12 l h^2 + 13 l h + (V + s) h (arXiv:2104.04473, equation 2) and the
        2 h of the final norm, which that equation leaves out.
        """
        return self.layers * self.layer_parameters() + self.embedding_parameters() + self.head_parameters()

    @property
    def active_parameters(self) -> int:
        """Those that one token meets: all of a dense model, k of E experts in a mixture."""
        idle = self.experts - self.experts_per_token
        return self.parameters - self.layers * idle * self.expert_parameters()


def _llama(
    layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, sequence: int, **more
) -> ModelShape:
    """Rotary positions, RMSNorm, SwiGLU, no biases, no dropout, an output matrix of its own."""
    return ModelShape(
        layers,
        hidden,
        heads,
        vocab,
        sequence,
        kv_heads,
        ffn,
        activation="swiglu",
        tied=False,
        learned_positions=False,
        biases=False,
        dropout=False,
        **more,
    )


MODELS = {
    # arXiv:2005.14165, with the padded vocabulary of arXiv:2104.04473 and arXiv:2205.05198
    "gpt3-175b": ModelShape(96, 12288, 96, 51200, 2048),
    # arXiv:2205.05198, table 3
    "gpt-22b": ModelShape(48, 6144, 64, 51200, 2048),
    "gpt-530b": ModelShape(105, 20480, 128, 51200, 2048),
    "gpt-1t": ModelShape(128, 25600, 160, 51200, 2048),
    # Radford et al. 2019
    "gpt2": ModelShape(12, 768, 12, 50257, 1024),
    "gpt2-xl": ModelShape(48, 1600, 25, 50257, 1024),
    # arXiv:1810.04805; others: two token types, the pooler (its one norm is that of the embedding)
    "bert-base": ModelShape(12, 768, 12, 30522, 512, other_parameters=2 * 768 + 768 * 769),
    "bert-large": ModelShape(24, 1024, 16, 30522, 512, other_parameters=2 * 1024 + 1024 * 1025),
    # arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783
    "llama-65b": _llama(80, 8192, 64, 64, 22016, 32000, 2048),
    "llama-2-7b": _llama(32, 4096, 32, 32, 11008, 32000, 4096),
    "llama-2-13b": _llama(40, 5120, 40, 40, 13824, 32000, 4096),
    "llama-2-70b": _llama(80, 8192, 64, 8, 28672, 32000, 4096),
    "llama-3-8b": _llama(32, 4096, 32, 8, 14336, 128256, 8192),
    "llama-3-70b": _llama(80, 8192, 64, 8, 28672, 128256, 8192),
    "llama-3-405b": _llama(126, 16384, 128, 8, 53248, 128256, 8192),
    # arXiv:2401.04088
    "mixtral-8x7b": _llama(32, 4096, 32, 8, 14336, 32000, 4096, experts=8, experts_per_token=2),
}

# Networks that are no transformers: their model states follow from the parameters alone (torchvision's counts).
PARAMETERS_ONLY = {"resnet18": 11_689_512, "resnet50": 25_557_032, "resnet152": 60_192_808}
