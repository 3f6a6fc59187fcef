"""Chapter 12: the step by hand is one device's; each of the four bugs does what the chapter says; its pictures."""

import pytest
import torch
from torch.optim import AdamW

from course_lib.chapters import suspects, three_dimensions
from course_lib.chapters.evidence import plot_board, plot_ratios
from course_lib.chapters.held import plot_held
from course_lib.chapters.plans import Priced, every_plan, plot_every_plan, price, read_priced
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import launch
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
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


def test_each_bug_shows_where_the_chapter_says():
    alone, runs = suspects.one_device(2), suspects.train_runs(2)

    def is_right(name, which):
        return runs[name][which] == pytest.approx((alone.losses, alone.norms)[which], rel=1e-5)

    first_losses = {
        name: losses[0] == pytest.approx(alone.losses[0], rel=1e-5) for name, (losses, _) in runs.items()
    }
    first_norms = {
        name: norms[0] == pytest.approx(alone.norms[0], rel=1e-5) for name, (_, norms) in runs.items()
    }
    assert first_losses == {"A": True, "B": True, "C": False, "D": True, "E": True}
    assert first_norms == {"A": True, "B": False, "C": False, "D": True, "E": False}
    assert is_right("D", 0)
    assert is_right("D", 1)


def test_copies_come_apart_in_two_runs():
    def copies_apart(held):
        apart = dict.fromkeys(suspects.SIZES, 0.0)
        for w in held.parameters().values():
            for axis in suspects.axes_of_copies(w, held):
                first = three_dimensions.summed(w.detach() * (held.at[axis] == 0), held.group[axis])
                apart[axis] = max(apart[axis], (w - first).abs().max().item())
        return apart

    found = suspects.ask_runs(copies_apart, steps=3)
    apart = {run: {a for rank in ranks for a, far in rank.items() if far} for run, ranks in found.items()}
    assert apart == {"A": {"tp", "pp"}, "B": set(), "C": set(), "D": set(), "E": {"pp"}}


def test_only_the_untied_run_is_ruined_by_loading_it():
    found = suspects.ask_runs(suspects.weights_of, steps=5)
    loaded = {run: suspects.loss_after_loading(ranks, 5) for run, ranks in found.items()}
    alone = suspects.one_device(5)
    assert loaded["D"] == pytest.approx(alone.losses[4], rel=1e-5)
    assert max(loaded, key=lambda run: loaded[run]) == "E"
    assert all(loaded[run] < loaded["D"] + 0.05 < loaded["E"] for run in "ABC")


def not_near(norm, right):
    return norm != pytest.approx(right, rel=1e-3)


def test_norms_by_name_say_where_the_bug_is():
    alone, found = suspects.one_device(1), suspects.ask_runs(suspects.norms_by_name, steps=1)
    wrong = {
        run: {name for name, norm in alone.by_name.items() if not_near((ranks[4] | ranks[0])[name], norm)}
        for run, ranks in found.items()
    }
    assert wrong["A"] == wrong["D"] == set()
    assert wrong["E"] == {"embedding.tokens.weight"}
    assert min(len(wrong["B"]), len(wrong["C"])) > 20


def test_the_changed_line_must_stand_there_once():
    for change in suspects.RUNS.values():
        assert "Rank" in suspects.changed(change)
    with pytest.raises(ValueError, match="'nothing like it' stands 0 times"):
        suspects.changed(("nothing like it", "x"))
    assert repr(suspects.the_line("C")).endswith("run C   own = nn.Parameter(parts[0].clone())")
    assert repr(suspects.the_line("D")) == "no line differs"


def pictures():
    runs = "ABCDE"
    column = {run: ("131.1 kB", run != "E") for run in runs}
    yield plot_board({f"column\n{i}": column for i in range(6)})
    yield plot_ratios({"run B": {"w": 1.2, "b": 1.0}, "run E": {"w": 0.6, "b": 1.0}})
    yield plot_held({"tp": 2, "dp": 2, "pp": 2})
    plans = [Priced(Plan(tp=tp), 5.0 + tp, 40e9 * tp) for tp in (1, 2, 4)]
    yield plot_every_plan(plans, 80e9, "H100", {"yours": plans[0], "planner's": plans[1]})
    yield plot_every_plan(plans, 80e9, "H100", name_fitting=True)


def test_pictures_can_be_read():  # drawn here, and not in each worker that collects
    assert {picture.alt: size for picture in pictures() if (size := smallest_text(picture.svg)) < 11} == {}


def test_the_board_says_what_is_wrong():
    picture = plot_board({"copies\nalong tp": {"A": ("apart", False), "B": ("equal", True)}})
    assert picture.alt == "copies along tp: run A apart (wrong), run B equal."
    assert "✗ apart" in picture.svg
    with pytest.raises(ValueError, match="the same runs in each"):
        plot_board({"a": {"A": ("x", True)}, "b": {"B": ("x", True)}})


def test_what_a_rank_holds_is_the_digits_of_its_number():
    rank_6 = plot_held({"tp": 2, "dp": 2, "pp": 2}).alt.split("; ")[6]
    assert rank_6 == "rank 6: left half of each matrix, second half of the batch, last half of the layers"
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


def test_plans_that_fit_are_named_and_the_fastest_of_them_comes_first():
    plans = [Priced(Plan(tp=tp, dp=8 // tp), 5.0 - tp, 120e9 / tp) for tp in (1, 2, 4)]
    picture = plot_every_plan(plans, 80e9, "H100", name_fitting=True)
    assert "Those that fit, the fastest first: 4·2·1, 2·4·1." in picture.alt


def test_ratios_are_counted():
    picture = plot_ratios({"run E": {"embedding": 0.56, "norm": 1.0, "bias": 1.0}})
    assert picture.alt == "Gradient norms, parameter by parameter. run E: 1 of 3 wrong."
    with pytest.raises(ValueError, match="at least one parameter"):
        plot_ratios({"run E": {}})
