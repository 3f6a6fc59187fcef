"""Side tuning (arXiv:1912.13503) of LLaMA, GPT and BART: a narrow decoder beside the frozen one.

    R = α B + (1 - α) S        B the frozen decoder's last hidden states, S those of the narrow one, α = sigmoid(a)

The blend stands before the matrix that makes logits of it. Nothing below is trained, so backward never enters B, and
the model keeps its type and its names: what cuts a plain model over ranks also cuts this one.

Shapes in comments: ``batch``, ``seq``, ``hidden``, ``narrow`` (the side network's own width).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from course_lib.finetuning.narrow.chain import (
    Beside,
    Call,
    Mix,
    begin,
    blend,
    carry,
    change,
    spread,
    without_dropout,
)
from course_lib.models.bart import Bart, BartDecoder, BartDecoderLayer
from course_lib.models.gpt import GPT, Block
from course_lib.models.kv_cache import Cache
from course_lib.models.llama import Llama, LlamaLayer
from course_lib.models.norms import RMSNorm


class LlamaSide(nn.Module):
    """A narrow LLaMA on the frozen one's embeddings: down to ``narrow``, a few layers, and up again."""

    def __init__(self, llama: Llama, layers: int, narrow: int) -> None:
        super().__init__()
        c = llama.config
        heads = {"num_key_value_heads": c.num_attention_heads, "head_dim": None}
        config = replace(c, hidden_size=narrow, intermediate_size=4 * narrow, **heads)
        self.down = nn.Linear(c.hidden_size, narrow, bias=False)
        self.layers = nn.ModuleList(LlamaLayer(config) for _ in range(layers))
        self.norm = RMSNorm(narrow, c.rms_norm_eps)
        self.up = nn.Linear(narrow, c.hidden_size, bias=False)
        self.frozen = c.num_hidden_layers

    def forward(
        self, model: nn.Module, tokens: Tensor, mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        refuse_cache(cache)
        x = self.down(self.embed(model, tokens))  # (batch, seq, narrow)
        for layer in self.layers:
            x = layer(x) if mask is None else layer(x, mask=mask)
        return self.up(self.norm(x))  # (batch, seq, hidden)

    def embed(self, model: nn.Module, tokens: Tensor) -> Tensor:
        return model.embed_tokens(tokens)

    def beside(self, name: str, chain: Mapping[str, Call]) -> dict[str, Call]:
        return beside_text(name, chain, self.frozen, len(self.layers))


class GPTSide(LlamaSide):
    """A narrow GPT, likewise."""

    def __init__(self, gpt: GPT, layers: int, narrow: int) -> None:
        nn.Module.__init__(self)
        c = gpt.config
        self.down = nn.Linear(c.hidden_size, narrow)
        self.layers = nn.ModuleList(Block(replace(c, hidden_size=narrow)) for _ in range(layers))
        self.norm = nn.LayerNorm(narrow)
        self.up = nn.Linear(narrow, c.hidden_size)
        self.frozen = c.num_layers

    def embed(self, model: nn.Module, tokens: Tensor) -> Tensor:
        return model.embedding(tokens)


def beside_text(name: str, chain: Mapping[str, Call], frozen: int, own: int) -> dict[str, Call]:
    """The chain of a causal model with the narrow network's parts, and the blend, between its own."""
    tokens, layers, norm, head = chain
    return {
        tokens: chain[tokens],
        f"{name}.side.down": begin(0),
        layers: Beside(carry(chain[layers]), spread(frozen, own, f"{name}.side.layers", text_side_layer)),
        norm: carry(chain[norm]),
        f"{name}.side.norm": change(-1),
        f"{name}.side.up": change(-1),
        f"{name}.mix": blend(0, 1),
        head: chain[head],
    }


def text_side_layer(layer: nn.Module, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    *mask, s = rest
    return x, *mask, layer(s, **({"mask": mask[0]} if mask else {}))


class BartSide(nn.Module):
    """A narrow decoder of BART on the frozen one's embeddings and memory."""

    def __init__(self, bart: Bart, layers: int, narrow: int) -> None:
        super().__init__()
        c = bart.config
        sizes = c.decoder_attention_heads, 4 * narrow
        config = replace(c, d_model=narrow, encoder_attention_heads=c.decoder_attention_heads)
        self.down = nn.Linear(c.d_model, narrow)
        self.down_memory = nn.Linear(c.d_model, narrow)
        self.layers = nn.ModuleList(BartDecoderLayer(config, *sizes) for _ in range(layers))
        self.up = nn.Linear(narrow, c.d_model)
        self.frozen = c.encoder_layers, c.decoder_layers

    def forward(
        self,
        decoder: BartDecoder,
        tokens: Tensor,
        memory: Tensor,
        memory_mask: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        refuse_cache(cache)
        x, memory = self.down(decoder.embed(tokens)), self.down_memory(memory)  # (batch, seq, narrow)
        for layer in self.layers:
            x = layer(x, memory, memory_mask, mask)
        return self.up(x)  # (batch, seq, hidden)

    def beside(self, name: str, chain: Mapping[str, Call]) -> dict[str, Call]:
        """The same for a BART: its narrow state is made of the target, and later its narrow memory joins it."""
        encoder, decoder = self.frozen
        memory = {encoder - 1: {f"{name}.side.down_memory": begin(0)}}
        layers = spread(decoder, len(self.layers), f"{name}.side.layers", bart_side_layer)
        new: dict[str, Call] = {}
        for pattern, how in chain.items():
            match pattern:
                case "model.encoder.layers.*":
                    new |= {f"{name}.side.down": begin(1), pattern: Beside(carry(how), memory)}
                case "model.decoder.layers.*":
                    new |= {pattern: Beside(carry(how, 2), layers), f"{name}.side.up": change(-2)}
                    new[f"{name}.mix"] = blend(1, 2)
                case _:
                    new[pattern] = how
        return new


def bart_side_layer(layer: nn.Module, x: Tensor, y: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
    *masks, s, memory = rest
    return x, y, *masks, layer(s, memory, *masks), memory


class Blend(nn.Module):
    """S and α, and the hook that makes R of a decoder's result.

    Args:
        side: S, called with the decoder and with what the decoder is called with.
        alpha: where α starts, between 0 and 1.
    """

    def __init__(self, side: nn.Module, alpha: float) -> None:
        super().__init__()
        self.side, self.mix = side, Mix(alpha)
        self.S: Tensor | None = None  # of a GPT, between its first part and its last norm

    @property
    def alpha(self) -> Tensor:
        return self.mix.alpha

    def after_decoder(self, decoder: nn.Module, args: tuple, named: dict, B: Tensor) -> Tensor:
        return self.mix(B, self.side(decoder, *args, **named))

    def before_model(self, gpt: nn.Module, args: tuple, named: dict) -> None:
        """A GPT's layers and head are in one module: S is made before, and blended behind its last norm."""
        self.S = self.side(gpt, *args, **named)

    def after_norm(self, norm: nn.Module, args: tuple, B: Tensor) -> Tensor:
        S, self.S = self.S, None
        return B if S is None else self.mix(B, S)  # a pipeline has parts for both

    def in_chain(self, name: str, chain: Mapping[str, Call]) -> dict[str, Call]:
        return self.side.beside(name, chain)


def add_side_decoder(model: Llama | Bart | GPT, layers: int, hidden_size: int, alpha: float) -> Blend:
    """Put a narrow decoder beside that of ``model``, in place. Dropout of the frozen model is turned off for good.

    Raises:
        ValueError: the model has one already; a depth, width or alpha out of range.
    """
    if layers < 1 or hidden_size < 1:
        raise ValueError(f"{layers} layers of width {hidden_size}: both must be at least 1.")
    if hasattr(model, "blend"):
        raise ValueError(f"this {type(model).__name__} has a side network already; start from a plain model.")
    without_dropout(model)  # before the narrow decoder is there: nothing in B is trained
    kind = next(kind for family, kind in SIDES.items() if isinstance(model, family))
    model.blend = blend = Blend(kind(model, layers, hidden_size), alpha)
    if kind is GPTSide:
        model.register_forward_pre_hook(blend.before_model, with_kwargs=True)
        model.norm.register_forward_hook(blend.after_norm)
    else:
        decoder = model.model if kind is LlamaSide else model.model.decoder
        decoder.register_forward_hook(blend.after_decoder, with_kwargs=True)
    return blend


SIDES: dict[type[nn.Module], type[nn.Module]] = {Llama: LlamaSide, Bart: BartSide, GPT: GPTSide}


def refuse_cache(cache: Cache | None) -> None:
    if cache is not None:
        raise ValueError("the side network keeps no cache; generate with use_cache=False.")
