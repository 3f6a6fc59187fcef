"""What the simulator says of a step's memory, before any step is run."""

from __future__ import annotations

from course_lib.comparison.finetuning.methods import METHODS
from course_lib.finetuning.freeze import ParameterCount
from course_lib.models.bert import BertConfig
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.predict.finetuning import kept_activations
from simulator.predict.memory import model_states


def predicted_memory(
    method: str, count: ParameterCount, config: BertConfig, batch: int, length: int, device: str = "cpu"
) -> dict[str, float]:
    """Bytes by category, in fp32: 4 of each parameter; 4 of gradients and 8 of Adam for each one that is trained.

    Activations are what is kept for backward. They are left out where no closed form is at hand: for a method whose
    ``keeps`` is None, and away from the CPU, where attention keeps no scores.

    Args:
        length: tokens in the longest text of the batch.
    """
    plan = Plan(precision="fp32")
    held, trained = model_states(count.total, plan), model_states(count.trainable, plan)
    predicted = {
        "parameters": held.parameters,
        "gradients": trained.gradients,
        "optimizer_states": trained.optimizer_states,
    }
    keeps = METHODS[method].keeps
    if keeps is None or device != "cpu":
        return predicted
    shape = ModelShape(
        *(config.num_hidden_layers, config.hidden_size, config.num_attention_heads, config.vocab_size),
        length + keeps.virtual_tokens,
        ffn=config.intermediate_size,
        dropout=config.hidden_dropout_prob > 0,
    )
    activations = kept_activations(
        *(shape, batch, keeps.matrices),
        rank=keeps.rank,
        embeddings=keeps.embeddings,
        mask_itemsize=4,  # on the CPU a mask is as wide as what it masks
    )
    return predicted | {"activations": activations}
