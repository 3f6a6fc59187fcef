"""Chapter 12: the step by hand is one device's; each of the four bugs does what the chapter says; its pictures."""

import json
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import AdamW

from course_lib.chapters import copies_apart, suspects, three_dimensions
from course_lib.chapters.caught import BUGS, first_beyond, plot_caught
from course_lib.chapters.evidence import plot_board
from course_lib.chapters.held import plot_held
from course_lib.chapters.plans import (
    Priced,
    every_plan,
    plot_every_plan,
    plot_spent,
    price,
    read_priced,
    spent_on,
)
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import launch
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.plots.curves import STROKES
from simulator.plots.picture import smallest_text

STEPS = 3
H100, LLAMA = GPUS["h100"], MODELS["llama-2-70b"]


def train_by_hand(sizes):
    torch.manual_seed(0)
    model = GPT(suspects.CONFIG)
    steps = three_dimensions.train(
        model, suspects.text_batches(STEPS), lambda w: AdamW(w, lr=1e-3), sizes, micro=2
    )
    return [(loss.item(), norm.item()) for loss, norm in steps]


@pytest.mark.parametrize(
    "sizes",
    [{"tp": 2, "dp": 2, "pp": 2}, {"tp": 4, "dp": 1, "pp": 1}, {"tp": 1, "dp": 2, "pp": 2}],
    ids=str,
)
def test_three_dimensions_by_hand_are_one_device(sizes):
    ranks = sizes["tp"] * sizes["dp"] * sizes["pp"]
    alone = suspects.one_device(STEPS)
    for steps in launch(train_by_hand, ranks=ranks, args=(sizes,), quiet=True):
        losses, norms = zip(*steps, strict=True)
        assert losses == pytest.approx(alone.losses, rel=1e-5)
        assert norms == pytest.approx(alone.norms, rel=1e-5)


def test_middle_stages_hold_neither_end():
    config = GPTConfig.tiny(hidden_size=16, max_length=8, num_layers=3)

    def names():
        rank = three_dimensions.Rank(GPT(config), {"tp": 1, "dp": 1, "pp": 3})
        return sorted({name.split(".")[0] for name in rank.parameters()}), rank.tied is not None

    first, middle, last = launch(names, ranks=3, quiet=True)
    assert first == (["blocks", "embedding"], True)
    assert middle == (["blocks"], False)
    assert last == (["blocks", "head", "norm"], True)


@pytest.fixture(scope="module")
def runs():
    return suspects.train_runs(4)


def test_each_bug_shows_where_the_chapter_says(runs):
    alone = suspects.one_device(4)

    def is_right(name, which):
        reported = runs[name].losses, runs[name].norms
        return reported[which] == pytest.approx((alone.losses, alone.norms)[which], rel=1e-5)

    first_losses = {
        name: run.losses[0] == pytest.approx(alone.losses[0], rel=1e-5) for name, run in runs.items()
    }
    first_norms = {
        name: run.norms[0] == pytest.approx(alone.norms[0], rel=1e-5) for name, run in runs.items()
    }
    assert first_losses == {"A": True, "B": True, "C": False, "D": True, "E": True}
    assert first_norms == {"A": True, "B": False, "C": False, "D": True, "E": False}
    assert is_right("D", 0)
    assert is_right("D", 1)


def listing(name):
    """A function of "In practice", as it stands there."""
    path = Path(__file__).parents[3] / "notebooks" / "12_three_dimensions.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    source = next(
        code for code in re.findall(r"```python\n(.*?)```", prose, re.DOTALL) if f"def {name}(" in code
    )
    names = {"torch": torch, "dist": dist, "DTensor": DTensor}
    exec(source, names)
    return names[name]


def stage_backward(stage):
    torch.manual_seed(stage)
    x = torch.randn(4, 6)
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))
    return model, lambda: model(x).square().sum().backward()


def checked_in_practice(fsdp):
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    model, backward = stage_backward(mesh["pp"].get_local_rank())
    parallelize_module(model, mesh["tp"], {"1": ColwiseParallel(), "3": RowwiseParallel()})
    if fsdp:
        fully_shard(model, mesh=mesh["dp"])
    backward()
    global_norm, groups = listing("global_norm"), [mesh[axis].get_group() for axis in ("tp", "pp")]
    norm = global_norm(dict(model.named_parameters()), *groups)
    nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, norm, foreach=False)
    assert global_norm(dict(model.named_parameters()), *groups).item() == pytest.approx(1.0, rel=1e-5)
    check, along_tp = listing("check_copies"), mesh["tp"].get_group()
    check({name: w for name, w in model.named_parameters() if name[0] == "0"}, along_tp)
    with pytest.raises(AssertionError, match=r"1\.weight comes apart"):
        check({"1.weight": model[1].weight}, along_tp)  # each tp rank holds another part
    return norm.item()


@pytest.mark.parametrize("fsdp", [True, False])
def test_the_checks_of_in_practice(fsdp):
    squares = 0.0
    for model, backward in map(stage_backward, range(2)):
        backward()
        squares += nn.utils.clip_grad_norm_(model.parameters(), 1.0).item() ** 2
    norms = launch(checked_in_practice, ranks=8, args=(fsdp,), quiet=True)
    assert norms == pytest.approx([squares**0.5] * 8, rel=1e-5)


def checked_runs():
    """``global_norm`` beside the runs' own, and along which axes ``check_copies`` finds a run's copies apart."""
    global_norm, check = listing("global_norm"), listing("check_copies")
    norms, apart = [], []
    for name, change in suspects.RUNS.items():
        torch.manual_seed(0)
        rank = suspects.changed(change)["Rank"](GPT(suspects.CONFIG), suspects.SIZES)
        optimizer = AdamW(rank.parameters().values(), lr=1e-3)
        for tokens, targets in suspects.text_batches(2):
            rank.step(*([part.chunk(2)[rank.at["dp"]]] for part in (tokens, targets)))
            weights, norm = rank.parameters(), rank.gradient_norm()
            cut = [key for key, w in weights.items() if hasattr(w, "cut")]
            once = {key: w for key, w in weights.items() if key != three_dimensions.TIED[1]}
            listed = global_norm(once, rank.group["tp"], rank.group["pp"], cut)
            norms.append((listed.item(), norm.item()))
            rank.clip(norm, suspects.MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
        whole = {key: w for key, w in weights.items() if key not in cut}
        for axis, compared in {"dp": weights, "tp": whole, "ends": {"embedding": rank.tied}}.items():
            try:
                check(compared, rank.group[axis])
            except AssertionError:
                apart.append((name, axis))
    return norms, apart


def test_the_checks_of_in_practice_on_the_runs():
    for norms, apart in launch(checked_runs, ranks=8, quiet=True):
        listed, own = zip(*norms, strict=True)
        assert listed == pytest.approx(own, rel=1e-6)
        assert apart == [("A", "tp"), ("A", "ends"), ("E", "ends")]


def test_copies_come_apart_in_two_runs(runs):
    saved = {name: run.held for name, run in runs.items()}
    assert copies_apart.runs_apart(saved, copies_apart.COPIES) == {
        "tp": (["LayerNorm", "embedding"], ["A"]),
        "dp": (["matrix", "LayerNorm", "embedding"], []),
        "pp": (["embedding"], ["A", "E"]),
    }
    halves = copies_apart.runs_apart(saved, {"matrix": ["tp", "pp"]})
    assert halves == {
        "tp": (["matrix (halves, not copies)"], []),
        "dp": ([], []),
        "pp": (["matrix (no copies there)"], []),
    }
    weight = "blocks.0.mlp.up.weight"
    equal = [run for run, held in saved.items() if torch.equal(held[0][weight][0], held[1][weight][0])]
    assert equal == ["C"]  # "in one run", says the table above such copies

    said, _, _, *rows = repr(
        copies_apart.show_apart(saved, {"matrix": "tp", "embedding": ["dp"]})
    ).splitlines()
    assert said.startswith("There are more copies along tp and dp and pp. In one run, though, both halves")
    assert [row.split()[-1] for row in rows] == ["?", "none", "?"]
    assert repr(copies_apart.show_apart(saved, copies_apart.COPIES)).startswith("These are all the copies.")


def test_a_line_says_how_much_each_target_counts():
    assert suspects.counts_of_targets("y = loss / of_all") == ["1/320", "1/320"]
    assert suspects.counts_of_targets(suspects.RUNS["B"][1]) == ["1/512", "1/128"]
    for line in ("y = losses / of_all", "y = 1 / of_all", "loss /= of_all"):
        with pytest.raises(ValueError, match="does not run here: divide loss by a number"):
            suspects.counts_of_targets(line)


def test_a_check_of_unknown_copies_is_refused():
    with pytest.raises(ValueError, match="'norm' is none of 'LayerNorm', 'embedding', 'matrix'"):
        copies_apart.runs_apart({}, {"norm": ["dp"]})
    with pytest.raises(ValueError, match="'cp' is none of 'dp', 'pp', 'tp'"):
        copies_apart.runs_apart({}, {"matrix": ["cp"]})


def test_only_the_untied_run_is_ruined_by_loading_it(runs):
    found = {name: run.held for name, run in runs.items()}
    loaded = {run: suspects.loss_after_loading(ranks, 5) for run, ranks in found.items()}
    alone = suspects.one_device(5)
    assert loaded["D"] == pytest.approx(alone.losses[4], rel=1e-5)
    assert max(loaded, key=lambda run: loaded[run]) == "E"
    assert all(loaded[run] < loaded["D"] + 0.05 < loaded["E"] for run in "ABC")
    assert suspects.loss_after_loading(found["E"], 5, tied=False) < loaded["D"] + 0.05


def test_the_changed_line_must_stand_there_once():
    for change in suspects.RUNS.values():
        assert "Rank" in suspects.changed(change)
    with pytest.raises(ValueError, match="'nothing like it' stands 0 times"):
        suspects.changed(("nothing like it", "x"))
    assert repr(suspects.the_line("C")).endswith("run C   held = nn.Parameter(parts[0].clone())")
    assert repr(suspects.the_line("D")) == "no line differs"
    assert suspects.targets_of_dp() == [256, 64]
    asked = repr(suspects.the_bugs(3, yours=3)).splitlines()
    assert asked[1:] == [
        "right   ?",
        'wrong   y = loss / own / self.sizes["dp"]',
        "here    targets: own = 256 on dp 0 and 64 on dp 1, of_all = 320",
    ]
    shown = suspects.the_bugs(3, 4)
    assert repr(shown).startswith("bug 3   backward starts from")
    assert repr(shown).endswith("wrong   held = nn.Parameter(parts[0].clone())")
    assert "run " not in shown.html
    assert BUGS[2][0] in shown.html


SPENT = {"computing": 6.0, "bubble": 0.5, "exposed communication": 1.0}


def pictures():
    column = {f"run {run}": ("131.1 kB", run != "E") for run in "ABCDE"}
    yield plot_board({f"column\n{i}": column for i in range(6)})
    yield plot_caught({f"run {run}": [0.0, 0.002] for run in "ABCDE"}, 1e-3)
    yield plot_held({"tp": 2, "dp": 2, "pp": 2})
    yield plot_spent(
        {"tp 8, dp 2, pp 4": SPENT, "tp 4": SPENT}, {"tp 8, dp 2, pp 4": 40e9, "tp 4": 120e9}, 80e9
    )
    plans = [Priced(Plan(tp=tp), 5.0 + tp, 40e9 * tp) for tp in (1, 2, 4)]
    yield plot_every_plan(plans, 80e9, "H100", {"yours": plans[0], "planner's": plans[1]})


def test_pictures_can_be_read():  # drawn here, and not in each worker that collects
    assert {picture.alt: size for picture in pictures() if (size := smallest_text(picture.svg)) < 11} == {}


def test_the_board_says_what_is_wrong():
    picture = plot_board({"copies\nalong tp": {"A": ("apart", False), "B": ("equal", True)}})
    assert picture.alt == "copies along tp: A apart (✗), B equal."
    assert "✗ apart" in picture.svg
    with pytest.raises(ValueError, match="the same rows in each"):
        plot_board({"a": {"A": ("x", True)}, "b": {"B": ("x", True)}})


def test_a_step_is_spent_on_three_things():
    plan = Plan(tp=4, dp=8, pp=2, microbatches=16, zero=1, sequence_parallel=True)
    spent = spent_on(LLAMA, plan, H100)
    assert sum(spent.values()) == pytest.approx(price(LLAMA, plan, H100).seconds)
    assert min(spent.values()) > 0
    picture = plot_spent({"mine": SPENT}, {"mine": 40e9}, 80e9)
    assert picture.alt == "mine: computing 6.0 s, bubble 0.5 s, exposed communication 1.0 s, 40 GB."
    written = [text.get_text() for text in picture._figure.axes[0].texts]
    assert written == ["6.0", "1.0", "7.5"]  # what is wide enough, and the sum


def test_a_run_is_caught_in_the_first_step_beyond_the_tolerance():
    runs = {"run A": [0.0, -0.002, 0.003], "run D": [0.0, 0.001, 0.0]}
    assert [first_beyond(values, 1e-3) for values in runs.values()] == [2, None]
    picture = plot_caught(runs, 1e-3)
    assert picture.alt == "With a tolerance of 1e-3, the step that catches run A: step 2, run D: never."
    assert "tolerance of 1e-5," in plot_caught(runs, 1e-5).alt
    assert not {colour for colour, *_ in BUGS} & {colour for colour, *_ in STROKES}  # bugs are not runs
    with pytest.raises(ValueError, match="a tolerance is above 0, not 0"):
        plot_caught(runs, 0)


def test_what_a_rank_holds_is_the_digits_of_its_number():
    told = plot_held({"tp": 2, "dp": 2, "pp": 2}).alt.split("; ")
    assert told[6] == (
        "rank 6: the whole embedding, whole LayerNorms, one half of the layers' matrices, second half of the batch, "
        "last half of the layers"
    )
    assert told[8].startswith("tp adds up activations")
    assert len(told) == 10
    with pytest.raises(ValueError, match="tp, dp and pp must be 2"):
        plot_held({"tp": 4, "dp": 2, "pp": 1})


def test_every_plan_takes_all_gpus_and_none_is_better_than_the_best():
    plans = list(every_plan(LLAMA, H100, 64, 128))
    assert {(p.plan.ranks, p.plan.global_batch) for p in plans} == {(64, 128)}
    best = min((p for p in plans if p.memory <= H100.memory), key=lambda p: p.seconds)
    again = read_priced(best.text, LLAMA, H100, 64, 128)
    assert (again.seconds, again.memory) == (best.seconds, best.memory)
    assert price(LLAMA, best.plan, H100) == best
    with pytest.raises(ValueError, match="tp × pp × dp is 16 in this plan; the cluster has 64 GPUs"):
        read_priced("tp=8,dp=2", LLAMA, H100, 64, 128)
