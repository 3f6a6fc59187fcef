"""Random models of the course's families, as large as the command line says."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from course_lib.data.denoising import WORD_PIECES
from course_lib.models.bart import Bart, BartConfig
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.deepseek import Deepseek, DeepseekConfig
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masked_words import BertMaskedWords
from course_lib.models.mixtral import Mixtral, MixtralConfig
from course_lib.train.material.samples import BYTES, CLASSES


@dataclass(frozen=True)
class Sizes:
    """``positions``: tokens of the longest text. BART has ``layers`` in the encoder and as many in the decoder."""

    layers: int
    hidden: int
    heads: int
    positions: int

    @property
    def named(self) -> dict[str, int]:
        """As BERT and LLaMA name them."""
        return {
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "hidden_size": self.hidden,
            "max_position_embeddings": self.positions,
        }


def random_model(name: str, task: str, sizes: Sizes) -> nn.Module:
    match name:
        case "gpt":
            own = {"num_layers": sizes.layers, "num_heads": sizes.heads, "hidden_size": sizes.hidden}
            return GPT(GPTConfig.tiny(vocab_size=BYTES, max_length=sizes.positions, **own))
        case "llama":
            inner = 8 * sizes.hidden // 3 // sizes.heads * sizes.heads
            own = sizes.named | {"num_key_value_heads": sizes.heads, "intermediate_size": inner}
            return Llama(LlamaConfig.tiny(vocab_size=BYTES, **own))
        case "mixtral":
            own = sizes.named | {"num_key_value_heads": sizes.heads, "intermediate_size": sizes.hidden}
            return Mixtral(MixtralConfig.tiny(vocab_size=BYTES, num_local_experts=8, **own))
        case "deepseek":
            return _deepseek(sizes)
        case "bart":
            return _bart(sizes)
    config = BertConfig.tiny(vocab_size=WORD_PIECES.words, intermediate_size=4 * sizes.hidden, **sizes.named)
    if task == "words":
        return BertMaskedWords(Bert(config))
    return BertClassifier(Bert(config, pooler=True), CLASSES[task])


def _deepseek(sizes: Sizes) -> Deepseek:
    """Of eight experts in two groups; the first of several layers is dense."""
    head = sizes.hidden // sizes.heads
    latent = {"q_lora_rank": sizes.hidden // 2, "kv_lora_rank": sizes.hidden // 4}
    heads = {"qk_nope_head_dim": head, "qk_rope_head_dim": -(-head // 4) * 2, "v_head_dim": head}
    widths = {"intermediate_size": 2 * sizes.hidden, "moe_intermediate_size": sizes.hidden // 2}
    first = {"first_k_dense_replace": min(1, sizes.layers - 1)}
    return Deepseek(
        DeepseekConfig.tiny(vocab_size=BYTES, **sizes.named, **latent, **heads, **widths, **first)
    )


def _bart(sizes: Sizes) -> Bart:
    one_side = {"layers": sizes.layers, "attention_heads": sizes.heads, "ffn_dim": 4 * sizes.hidden}
    sides = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in one_side.items()}
    tokens = {
        "pad_token_id": WORD_PIECES.padding,
        "bos_token_id": WORD_PIECES.start,
        "eos_token_id": WORD_PIECES.end,
        "decoder_start_token_id": WORD_PIECES.end,
    }
    own = {"d_model": sizes.hidden, "max_position_embeddings": sizes.positions}
    return Bart(
        BartConfig.tiny(vocab_size=WORD_PIECES.words, final_logits_bias=False, **own, **sides, **tokens)
    )
