"""Chapter 08: the judge of the reader's policy, and the listing of "In practice" on a tiny Llama."""

import re
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from course_lib.notebooks.build import read_notebook

ROOT = Path(__file__).parents[3]
SOURCES = [cell.source for cell in read_notebook(ROOT / "notebooks" / "08_recomputation.ipynb").cells]
ATTENTION = "_scaled_dot_product_flash_attention_for_cpu.default"


def source_with(text):
    return next(source for source in SOURCES if text in source)


@pytest.fixture(scope="module")
def judged():
    names = {}
    for text in ("import time", "def measure(", "def judge("):
        exec(source_with(text), names)
    return names


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('"attention" in name or width not in (0, MLP_WIDTH)', "22.9 MB at the peak: right"),
        (
            'name == "aten.addmm.default"',
            f"8 run again: aten.{ATTENTION}\nkept without need: aten.addmm.default 512 → 128",
        ),
        ('"attention" in name or "mm" in name', "kept without need: aten.addmm.default 512 → 128"),
        (
            '"attention" in name or "gelu" in name or width not in (0, MLP_WIDTH)',
            "kept without need: aten.gelu.default",
        ),
        ('"attention" in name or width == MLP_WIDTH', "8 run again: aten.addmm.default 128 → 512"),
        (
            '"attention" in name or width != MLP_WIDTH',
            "need: aten.add.Tensor, aten.gelu.default, aten.native_layer_norm.default\n",
        ),
    ],
)
def test_what_runs_again_and_what_is_kept_without_need_is_named(judged, line, told, capsys):
    exec(source_with("# line B\n").replace('"attention" in name or width == MLP_WIDTH:', f"{line}:"), judged)
    assert told in capsys.readouterr().out


def gradients_and_products(model):
    ran = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            ran["products"] += "mm" in str(operation)
            return operation(*args, **(kwargs or {}))

    tokens = torch.arange(32).view(2, 16)
    with Count():
        model(tokens, labels=tokens).loss.backward()
    return [weight.grad for weight in model.parameters()], ran["products"]


@pytest.mark.parametrize(("whole", "again"), [(0, 0), (1, 6)])  # q, k, v, o, gate and up of the first block
def test_the_listing_keeps_the_gradients_of_a_tiny_llama(whole, again):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 3}
    config = transformers.LlamaConfig(vocab_size=64, attn_implementation="sdpa", **sizes)

    def tiny(*_, **options):
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).train()

    (code,) = re.findall(r"```python\n(.*?)```", source_with("## In practice"), re.DOTALL)
    names = {
        "AutoModelForCausalLM": SimpleNamespace(from_pretrained=tiny),
        "CheckpointPolicy": CheckpointPolicy,
        "checkpoint": checkpoint,
        "create_selective_checkpoint_contexts": create_selective_checkpoint_contexts,
        "partial": partial,
    }
    exec(code.replace("WHOLE = 0", f"WHOLE = {whole}"), names)
    plain, once = gradients_and_products(tiny())
    found, ran = gradients_and_products(names["model"])
    assert all(a.equal(b) for a, b in zip(found, plain, strict=True))
    assert ran - once == again
