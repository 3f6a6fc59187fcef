"""How the course's models are cut: a style for each name. ``apply.py`` says what the styles do."""

from __future__ import annotations

from torch import nn

from course_lib.models.anatomy import ANATOMIES, Anatomy, find_anatomies, known_families
from course_lib.models.names import matching

STYLE_OF = {  # of a module with this role
    "tokens": "vocabulary",
    "positions": "positions",
    "token types": "positions",
    "norm": "sequence",
    "dropout": "sequence",
    "attention": "enter",
    "query": "heads",
    "key": "kv heads",
    "value": "kv heads",
    "query, key and value": "grouped heads",
    "core": "core",
    "output": "row",
    "memory": "enter",
    "mlp": "enter",
    "up": "column",
    "dropout of a part": "core",
    "down": "row",
    "router": "sequence",
    "experts": "sequence",
    "stack": "whole",
    "transform": "sequence",
    "final norm": "sequence",
    "head": "vocabulary head",
    "pooler": "replicated",
}


def styles_of(anatomy: Anatomy) -> dict[str, str]:
    """A style for each name that the anatomy has a role for."""
    return {name: STYLE_OF[role] for name, role in anatomy.roles.items() if role in STYLE_OF}


GPT_TABLE = styles_of(ANATOMIES["gpt.GPT"])


def is_whole(anatomy: Anatomy) -> bool:
    """Whether what comes out is the same on all ranks, or logits: of Llama, not of the LlamaModel in it. Nor of a model
    with latent attention, which no style cuts."""
    return bool(anatomy.names("head", "stack") and anatomy.names("attention"))


def table_of(model: nn.Module) -> dict[str, str]:
    """The table of one of the course's models, or of a module that holds one (``BertClassifier``).

    What the module has besides is replicated.

    Raises:
        ValueError: there is none of the course's models in it, or more than one, or one with options that no table
            knows.
    """
    found = find_anatomies(model, is_whole)
    if len(found) != 1:
        known, kind = known_families(is_whole), type(model).__name__
        raise ValueError(
            f"there is a table for {known}, and {kind} holds {len(found)} of them: give one as table="
        )
    [(prefix, inner, anatomy)] = found
    config = getattr(inner, "config", None)
    for option in (
        "fused_gate_up",
        "qk_norm",
        "final_logits_bias",
    ):  # of LlamaConfig: halves that belong together, weights without a cut; of BartConfig: a row of all words
        if getattr(config, option, False):
            raise ValueError(
                f"the table for {type(inner).__name__} does not fit one with {option}: give one as table="
            )
    dot = f"{prefix}." if prefix else ""
    names = {name for name, _ in inner.named_parameters(prefix=prefix)}
    # What fine-tuning puts between the modules of a layer (adapters) works on each token by itself.
    added = {n.rpartition(".")[0] for n in names if ".adapters." in n}
    # LLaMA-Adapter's tokens and gate are seen by all heads, of which each rank has some.
    seen = {n.rpartition(".")[0] for n in names if ".adaption." in n}
    others = {n.rpartition(".")[0] for n, _ in model.named_parameters() if n not in names}
    others |= {n.rpartition(".")[0] for n in names if ".prefix." in f".{n}"}
    modules = [name for name, _ in inner.named_modules()]
    styles = {dot + name: style for name, style in styles_of(anatomy).items() if matching(name, modules)}
    styles |= dict.fromkeys(sorted(seen), "part") | dict.fromkeys(sorted(added), "sequence")
    return styles | dict.fromkeys(others - {""}, "replicated")
