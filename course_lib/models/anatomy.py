"""Which module of a model is what. Tensor parallelism, the chains of causal models in pipelines, FSDP,
recomputation and LoRA's default targets derive their names from here.

The keys are the classes' names, so that this table reads without a model. ``*`` stands for each layer (``names.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Anatomy:
    """The role of each module, by its name.

    Attributes:
        causal: without a mask a token sees no later one.
    """

    roles: Mapping[str, str]
    causal: bool = True

    def names(self, *roles: str) -> list[str]:
        """The names with one of the roles, in order."""
        return [name for name, role in self.roles.items() if role in roles]


def inside(prefix: str, roles: Mapping[str, str], leave: tuple[str, ...] = ()) -> dict[str, str]:
    return {f"{prefix}.{name}": role for name, role in roles.items() if role not in leave}


GPT = {
    "embedding": "embedding",
    "embedding.tokens": "tokens",
    "embedding.positions": "positions",
    "embedding.dropout": "dropout",
    "blocks.*": "layer",
    "blocks.*.norm_1": "norm",
    "blocks.*.attention": "attention",
    "blocks.*.attention.query": "query",
    "blocks.*.attention.key": "key",
    "blocks.*.attention.value": "value",
    "blocks.*.attention.core": "core",
    "blocks.*.attention.output": "output",
    "blocks.*.attention.dropout": "dropout",
    "blocks.*.norm_2": "norm",
    "blocks.*.mlp": "mlp",
    "blocks.*.mlp.up": "up",
    "blocks.*.mlp.down": "down",
    "blocks.*.mlp.dropout": "dropout",
    "norm": "final norm",
    "head": "head",
}

BERT = {
    "embeddings": "embedding",
    "embeddings.word_embeddings": "tokens",
    "embeddings.position_embeddings": "positions",
    "embeddings.token_type_embeddings": "token types",
    "embeddings.LayerNorm": "norm",
    "embeddings.dropout": "dropout",
    "encoder": "stack",
    "encoder.layer.*": "layer",
    "encoder.layer.*.attention.self": "attention",
    "encoder.layer.*.attention.self.query": "query",
    "encoder.layer.*.attention.self.key": "key",
    "encoder.layer.*.attention.self.value": "value",
    "encoder.layer.*.attention.self.core": "core",
    "encoder.layer.*.attention.output.dense": "output",
    "encoder.layer.*.attention.output.dropout": "dropout",
    "encoder.layer.*.attention.output.LayerNorm": "norm",
    "encoder.layer.*.intermediate": "mlp",
    "encoder.layer.*.intermediate.dense": "up",
    "encoder.layer.*.output.dense": "down",
    "encoder.layer.*.output.dropout": "dropout",
    "encoder.layer.*.output.LayerNorm": "norm",
    "pooler.dense": "pooler",
}

LLAMA = {
    "embed_tokens": "tokens",
    "layers.*": "layer",
    "layers.*.input_layernorm": "norm",
    "layers.*.self_attn": "attention",
    "layers.*.self_attn.rotary": "rotary",
    "layers.*.self_attn.q_proj": "query",
    "layers.*.self_attn.k_proj": "key",
    "layers.*.self_attn.v_proj": "value",
    "layers.*.self_attn.core": "core",
    "layers.*.self_attn.o_proj": "output",
    "layers.*.post_attention_layernorm": "norm",
    "layers.*.mlp": "mlp",
    "layers.*.mlp.gate_proj": "up",
    "layers.*.mlp.up_proj": "up",
    "layers.*.mlp.down_proj": "down",
    "norm": "final norm",
}

# What each token does with its experts is no matter of heads or columns.
EXPERTS = {name: role for name, role in LLAMA.items() if ".mlp" not in name}
MIXTRAL = EXPERTS | {"layers.*.mlp.gate": "router", "layers.*.mlp.experts": "experts"}

# Of its attention the core alone has a role: tensor parallelism does not cut the others.
LATENT = {name: role for name, role in EXPERTS.items() if "attn" not in name or name.endswith(".core")}

FALCON = {
    "word_embeddings": "tokens",
    "h.*": "layer",
    "h.*.input_layernorm": "norm",
    "h.*.ln_attn": "norm",
    "h.*.ln_mlp": "norm",
    "h.*.self_attention": "attention",
    "h.*.self_attention.rotary": "rotary",
    "h.*.self_attention.query_key_value": "query, key and value",
    "h.*.self_attention.core": "core",
    "h.*.self_attention.dense": "output",
    "h.*.mlp": "mlp",
    "h.*.mlp.dense_h_to_4h": "up",
    "h.*.mlp.dense_4h_to_h": "down",
    "ln_f": "final norm",
}

BART = {
    "model.shared": "tokens",
    "model.*.embed_positions": "positions",
    "model.*.layernorm_embedding": "norm",
    "model.*.dropout": "dropout",
    "model.*.layers.*": "layer",
    "model.*.layers.*.self_attn": "attention",
    "model.*.layers.*.self_attn_dropout": "dropout",
    "model.*.layers.*.self_attn_layer_norm": "norm",
    "model.*.layers.*.encoder_attn": "attention",
    "model.*.layers.*.memory_input": "memory",
    "model.*.layers.*.encoder_attn_dropout": "dropout",
    "model.*.layers.*.encoder_attn_layer_norm": "norm",
    "model.*.layers.*.*.q_proj": "query",
    "model.*.layers.*.*.k_proj": "key",
    "model.*.layers.*.*.v_proj": "value",
    "model.*.layers.*.*.core": "core",
    "model.*.layers.*.*.out_proj": "output",
    "model.*.layers.*.mlp_input": "mlp",
    "model.*.layers.*.fc1": "up",
    "model.*.layers.*.activation_dropout": "dropout of a part",
    "model.*.layers.*.fc2": "down",
    "model.*.layers.*.final_dropout": "dropout",
    "model.*.layers.*.final_layer_norm": "norm",
    "lm_head": "head",
}

# No pooler. The head goes on with each rank's own tokens, so the encoder is no stack whose output must be whole.
MASKED_WORDS = inside("bert", BERT, leave=("stack", "pooler")) | {
    "cls.predictions.transform.dense": "transform",
    "cls.predictions.transform.LayerNorm": "norm",
    "cls.predictions.decoder": "head",
}

ANATOMIES = {
    "gpt.GPT": Anatomy(GPT),
    "bert.Bert": Anatomy(BERT, causal=False),
    "masked_words.BertMaskedWords": Anatomy(MASKED_WORDS, causal=False),
    "llama.Llama": Anatomy(inside("model", LLAMA) | {"lm_head": "head"}),
    "llama.LlamaModel": Anatomy(LLAMA),
    "mixtral.Mixtral": Anatomy(inside("model", MIXTRAL) | {"lm_head": "head"}),
    "deepseek.Deepseek": Anatomy(inside("model", LATENT) | {"lm_head": "head"}),
    "falcon.Falcon": Anatomy(inside("transformer", FALCON) | {"lm_head": "head"}),
    "falcon.FalconModel": Anatomy(FALCON),
    "bart.Bart": Anatomy(BART, causal=False),
}

# What the layers of all families, and of most models besides, are called: ``blocks.*``, ``layer.*``, …
LAYERS = tuple(
    dict.fromkeys(".".join(n.split(".")[-2:]) for a in ANATOMIES.values() for n in a.names("layer"))
)


def anatomy_of(module: nn.Module) -> Anatomy | None:
    """That of the module's class, or of a class from which it inherits; None for a module of no known family."""
    kinds = (f"{kind.__module__}.{kind.__qualname__}" for kind in type(module).__mro__)
    found = (ANATOMIES.get(kind.removeprefix("course_lib.models.")) for kind in kinds)
    return next((anatomy for anatomy in found if anatomy), None)


def known_families(fits: Callable[[Anatomy], bool]) -> str:
    """The names of the models whose anatomy fits, for a message."""
    return ", ".join(key.split(".")[1] for key, anatomy in ANATOMIES.items() if fits(anatomy))


def find_anatomies(model: nn.Module, fits: Callable[[Anatomy], bool]) -> list[tuple[str, nn.Module, Anatomy]]:
    """The modules in ``model`` whose anatomy fits: name, module, anatomy; of some inside each other the outermost."""
    found: list[tuple[str, nn.Module, Anatomy]] = []
    for name, module in model.named_modules():
        anatomy = anatomy_of(module)
        around = any(name.startswith(f"{outer}." if outer else "") for outer, _, _ in found)
        if anatomy is not None and fits(anatomy) and not around:
            found.append((name, module, anatomy))
    return found
