"""Random compositions of model, tuning and plan: each trains as one device does, or is refused in a sentence.

python benchmarks/random_compositions.py [--runs 100] [--first 0] [--resume]

A seed draws a model, how it is tuned and what of it is frozen, a plan for up to six ranks, an optimizer, a loss, masks,
and two batches of any size. Two steps are trained in fp64, which autocast leaves alone. Losses, gradient norms and
parameters must be those of one device up to 1e-9, or every rank must raise a ValueError of one sentence. In fp8, where
each rank rounds what it has, they must be near those of one device in fp8. With ``--resume`` the state is saved after
the first step, and the second is trained under another plan.

Prints a line for each run, and for one that failed the command that repeats it; then which sentences refused how many.
Ends with exit code 1 if a run was neither equal nor refused. Takes about 3 s a run on two cores.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
import torch.nn.functional as F
from paired import count
from torch import Tensor, nn

from course_lib.data.sharding import split_range
from course_lib.models.bart import Bart, BartConfig, shift_right
from course_lib.models.bert import Bert, BertClassifier, BertConfig
from course_lib.models.deepseek import Deepseek, DeepseekConfig
from course_lib.models.experts import balance, balance_loss
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.models.llama import Llama, LlamaConfig
from course_lib.models.masked_words import BertMaskedWords
from course_lib.models.masks import prefix_mask
from course_lib.models.mixtral import Mixtral, MixtralConfig
from course_lib.one_device.fp8 import SCALING, apply_fp8
from course_lib.parallelize import ParallelModel, load_checkpoint, mesh_axes, parallelize, save_checkpoint
from course_lib.parallelize.apply import OPTIMIZERS
from course_lib.parallelize.data_parallel import param_groups
from course_lib.pipeline.microbatches import sum_cross_entropy
from course_lib.runtime.kept import kept, launch
from course_lib.runtime.mesh import make_mesh
from course_lib.train.tuning import tune
from simulator.inputs.plan import CONTEXT, RECOMPUTE, Plan
from simulator.pipeline.schedules import SCHEDULES

VOCAB, SEQ, CLIP, LR = 31, 12, 0.1, 1e-2
SIZES = {"vocab_size": VOCAB, "hidden_size": 24}


def bert_of(layers: int, heads: int, **options: Any) -> Bert:
    sizes = SIZES | {"num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 36}
    return Bert(BertConfig.tiny(**sizes), **options)


def llama_of(layers: int, heads: int, tied: bool) -> Llama:
    sizes = SIZES | {"num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 36}
    return Llama(LlamaConfig.tiny(**sizes, num_key_value_heads=heads // 3, tie_word_embeddings=tied))


def mixtral_of(layers: int, heads: int, tied: bool) -> Mixtral:
    """What is drawn for every model also says whether it has a balance loss, and whether it drops tokens."""
    sizes = SIZES | {"num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 8}
    own = {"balance_loss": 0.1 * (tied and heads == 12), "capacity_factor": 0.7 if layers == 2 else None}
    experts = {"num_key_value_heads": heads // 3, "num_local_experts": 12}
    return Mixtral(MixtralConfig.tiny(**sizes, **experts, **own, tie_word_embeddings=tied))


def deepseek_of(layers: int, heads: int, balanced: bool) -> Deepseek:
    sizes = SIZES | {"num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 36}
    experts = {"moe_intermediate_size": 8, "n_routed_experts": 12, "bias_update_speed": 0.01}
    return Deepseek(DeepseekConfig.tiny(**sizes, **experts, balance_loss=0.1 * balanced))


def bart_of(layers: int, heads: int, _: bool) -> Bart:
    sides = {"layers": layers, "attention_heads": heads, "ffn_dim": 12}
    sizes = {f"{side}_{key}": size for side in ("encoder", "decoder") for key, size in sides.items()}
    return Bart(BartConfig.tiny(vocab_size=VOCAB, d_model=24, final_logits_bias=False, **sizes))


MODELS: dict[
    str, tuple[Callable[[int, int, bool], nn.Module], list[str]]
] = {  # and what LoRA may adapt in it
    "gpt": (
        lambda n, heads, tied: GPT(
            GPTConfig.tiny(**SIZES, num_layers=n, num_heads=heads, tie_embeddings=tied)
        ),
        ["query", "tokens", "positions", "head", "up", "down"],
    ),
    "llama": (llama_of, ["q_proj", "v_proj", "embed_tokens", "lm_head", "o_proj", "gate_proj"]),
    "mixtral": (mixtral_of, []),
    "deepseek": (deepseek_of, []),
    "bart": (bart_of, ["k_proj", "fc1", "fc2", "out_proj"]),
    "bert": (
        lambda n, heads, _: BertClassifier(bert_of(n, heads, pooler=True), 3),
        ["query", "word_embeddings", "position_embeddings", "dense"],
    ),
    "masked words": (
        lambda n, heads, _: BertMaskedWords(bert_of(n, heads)),
        ["value", "word_embeddings", "decoder"],
    ),
}
EXPERTS = ("mixtral", "deepseek")
TUNINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "bias": {},
    "lora": {"rank": 2},
    "adapter": {"width": 3},
    "llama-adapter": {"length": 3},
    "side": {"layers": 1, "width": 12},
    "prompt": {"tokens": 3},
    "p-tuning": {"tokens": 3, "width": 4},
    "prefix": {"tokens": 3, "width": 4},
}


def draw(seed: int, resume: bool = False) -> dict[str, Any]:
    """What a seed stands for."""
    rng = random.Random(seed)
    name = rng.choice(list(MODELS))
    tuning = rng.choice(["full"] * 6 + ["lora"] * 4 + list(TUNINGS)) if MODELS[name][1] else "full"
    case = {
        "seed": seed,
        "model": name,
        "sizes": (rng.randint(2, 6), rng.choice((6, 6, 12)), rng.random() < 0.5),
    }
    adapted = {"targets": rng.sample(MODELS[name][1], rng.randint(1, 2))} if tuning == "lora" else {}
    case |= {"tuning": (tuning, TUNINGS[tuning] | adapted), "frozen": tuning == "full" and rng.random() < 0.4}
    ranks = rng.choice((1, 2, 2, 3, 4, 4, 4, 6))
    case["plans"] = [draw_plan(rng, ranks, name) for _ in range(1 + resume)]
    case["fp8"] = rng.choice(SCALING) if rng.random() < 0.1 else None
    for plan in case["plans"] if case["fp8"] else ():
        plan |= {"precision": "fp8", "scaling": case["fp8"]}
    least = max(plan["dp"] * plan["microbatches"] for plan in case["plans"])
    case["rows"] = [max(1, least + rng.choice((-1, *range(10)))) for _ in range(2)]
    case |= {"optimizer": rng.choice(list(OPTIMIZERS)), "clips itself": rng.random() < 0.3}
    return case | {"own loss": rng.random() < 0.3, "masks": rng.random() < 0.5}


def draw_plan(rng: random.Random, ranks: int, name: str) -> dict[str, Any]:
    dp = rng.choice([n for n in range(1, ranks + 1) if ranks % n == 0])
    whole = name == "deepseek"  # its attention's matrices are not cut
    tp = rng.choice([n for n in range(1, ranks + 1) if ranks // dp % n == 0 and (n == 1 or not whole)])
    cp = rng.choice([n for n in range(1, ranks + 1) if ranks // dp // tp % n == 0])
    pp = ranks // dp // tp // cp
    plan = {
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "microbatches": rng.randint(1, 4),
        "recompute": rng.choice(RECOMPUTE),
    }
    plan |= {"zero": rng.randint(0, 1 if pp > 1 else 3), "sequence_parallel": tp > 1 and rng.random() < 0.4}
    if name in EXPERTS:  # with tp each rank would do the work of all
        plan["ep"] = rng.choice([n for n in range(1, dp * cp + 1) if dp * cp % n == 0])
        plan["sequence_parallel"] = tp > 1 and rng.random() < 0.9
    if cp > 1:
        plan |= {"context": rng.choice(CONTEXT), "zigzag": rng.random() < 0.7}
        plan["ulysses"] = rng.choice([n for n in range(1, cp + 1) if cp % n == 0])
    if pp > 1:
        plan |= {"schedule": rng.choice(list(SCHEDULES)), "microbatches": rng.randint(1, 2 * pp)}
    if plan["zero"] == 3:
        plan |= {"prefetch": rng.randint(0, 2), "offload": rng.choice(("none", "none", "parameters"))}
        if plan.get("ep", 1) == 1:
            plan["shard"] = rng.choice([n for n in range(1, dp * cp + 1) if dp * cp % n == 0])
    elif rng.random() < 0.3:
        plan["precision"] = "mixed"
    return plan | ({"overlap": ()} if rng.random() < 0.2 else {})


def make(case: dict[str, Any]) -> nn.Module:
    torch.manual_seed(case["seed"])
    model = MODELS[case["model"]][0](*case["sizes"])
    method, settings = case["tuning"]
    tune(model, method, **settings)
    modules, rng = list(model.modules())[1:], random.Random(case["seed"])
    for module in rng.sample(modules, rng.randint(1, len(modules) // 3)) if case["frozen"] else ():
        module.requires_grad_(False)
    for p in model.parameters():  # norms, biases and B of LoRA start trivial: an error in them would not show
        nn.init.normal_(p, std=0.2 if p.dim() > 1 else 0.4)
    return model.to(torch.float32 if case["fp8"] else torch.float64).train()


def batch(case: dict[str, Any], step: int) -> list[Tensor]:
    rows, g = case["rows"][step], torch.Generator().manual_seed(10 * case["seed"] + step)
    tokens, targets = torch.randint(3, VOCAB, (2, rows, SEQ), generator=g)
    lengths = torch.randint(2, SEQ + 1, (rows,), generator=g)
    masks = [(torch.arange(SEQ) < lengths[:, None]).long()] if case["masks"] else []
    if masks and case["model"] in ("gpt", "llama", *EXPERTS):
        masks = [prefix_mask(lengths, SEQ)]
    if case["model"] == "bert":
        return [tokens, *masks, targets[:, 0] % 3]
    targets = targets.masked_fill(torch.rand(targets.shape, generator=g) < 0.2, -100)
    return [tokens, *([shift_right(targets, 2, 1)] if case["model"] == "bart" else []), *masks, targets]


def smoothed(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="sum", label_smoothing=0.1)


def one_device(case: dict[str, Any]) -> dict[str, Any]:
    model, found = make(case), {}
    trained = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ValueError("there is nothing to train")
    kind, settings = OPTIMIZERS[case["optimizer"]]
    optimizer = kind(param_groups(model.named_parameters(), kind), lr=LR, **settings)
    optimizer.register_step_post_hook(lambda *_: balance(model))
    linears = apply_fp8(model, case["fp8"]) if case["fp8"] else []
    for step in range(2):
        *inputs, targets = batch(case, step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(linears)):
            logits = model(*inputs)
        loss = (smoothed if case["own loss"] else sum_cross_entropy)(logits, targets)
        (loss / (targets != -100).sum() + balance_loss(model)).backward()
        for p in trained:  # ZeRO has a gradient of zero where one device has none
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        found[f"loss {step}"] = loss.detach() / (targets != -100).sum()
        found[f"norm {step}"] = nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        for linear in linears:
            linear.next_step()
    return found | model.state_dict()


def on_ranks(case: dict[str, Any], folder: str) -> dict[str, Any] | str:
    """The same under the plans, or the sentence with which this rank refuses it."""
    found: dict[str, Any] = {}
    try:
        for step in range(2):
            if step < len(case["plans"]):
                plan = Plan(**{"precision": "fp32", **case["plans"][step]}, optimizer=case["optimizer"])
                settings = {"max_norm": CLIP} if case["clips itself"] and plan.zero in (1, 2) else {}
                settings |= {"lr": LR, "loss_fn": smoothed if case["own loss"] else None}
                model, optimizer = parallelize(make(case), plan, make_mesh(mesh_axes(plan)), **settings)
            if step and len(case["plans"]) > 1:
                load(folder, model, optimizer)
            optimizer.zero_grad()
            own = split_range(case["rows"][step], model.data_rank, model.data_ranks)
            found[f"loss {step}"] = model.forward_backward(
                *(t[own.start : own.stop] for t in batch(case, step))
            )
            found[f"norm {step}"] = model.clip_grad_norm(*(() if "max_norm" in settings else (CLIP,)))
            optimizer.step()
            if not step and len(case["plans"]) > 1:
                save_checkpoint(folder, model, optimizer)
    except ValueError as error:
        *_, raised = traceback.walk_tb(error.__traceback__)
        if "torch" in Path(raised[0].f_code.co_filename).parts:
            raise RuntimeError(f"PyTorch has refused it, and not the course: {error}") from error
        return str(error)
    return found | model.state_dict()


def load(folder: str, model: ParallelModel, optimizer: torch.optim.Optimizer) -> None:
    """A plan that fits can go on from every checkpoint of the same model: to refuse it is a failure."""
    try:
        load_checkpoint(folder, model, optimizer)
    except ValueError as error:
        raise RuntimeError(f"the checkpoint was refused: {error}") from None


def run(case: dict[str, Any]) -> tuple[str, str]:
    """How it ended, "equal", "refused" or "FAILED", and why."""
    try:
        expected = one_device(case)
    except ValueError as error:
        return "refused", f"on one device: {error}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            ranks = Plan(**case["plans"][0]).ranks
            results = launch(on_ranks, ranks, args=(case, folder), timeout=120, quiet=True)
    except Exception as error:  # a rank that raised something else, or that waited for another
        return "FAILED", " ".join(str(error).split())[:400]
    if all(isinstance(result, str) and "\n" not in result for result in results):
        return "refused", results[0]
    for rank, got in enumerate(results):
        if isinstance(got, str) or got.keys() != expected.keys():
            return "FAILED", f"rank {rank}: {got if isinstance(got, str) else got.keys() ^ expected.keys()}"
        for name, value in expected.items():
            far = float((got[name] - value).abs().max())
            least = 0.3 * float(value) if name.startswith("norm ") else 0.05  # what 8 bits may round
            if not far < (least if case["fp8"] else 1e-9):
                return "FAILED", f"rank {rank}: {name} differs by {far:.3g}"
    return "equal", ""


@click.command(help=__doc__)
@count("--runs", 100, "How many seeds.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="The first seed.")
@click.option("--resume", is_flag=True, help="Train the second step from a checkpoint, under another plan.")
def main(runs: int, first: int, resume: bool) -> None:
    ends, sentences = Counter(), Counter()
    with kept():
        for seed in range(first, first + runs):
            case = draw(seed, resume)
            end, why = run(case)
            ends[end] += 1
            if end == "refused":
                sentences[re.sub(r"\d+", "…", why)] += 1
            print(f"{end:7} {case} {why}", flush=True)
            if end == "FAILED":
                again = " --resume" * resume
                print(
                    f"again: python benchmarks/random_compositions.py --runs 1 --first {seed}{again}",
                    flush=True,
                )
    for sentence, times in sentences.most_common():
        print(f"{times:4} refused: {sentence}")
    print(f"{runs} runs: {ends['equal']} equal, {ends['refused']} refused, {ends['FAILED']} failed")
    sys.exit(ends["FAILED"] > 0)


if __name__ == "__main__":
    main()
