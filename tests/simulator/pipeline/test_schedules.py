"""Schedules against PyTorch's own lists and validator, the papers' counts, and a validator of ours."""

from dataclasses import replace

import pytest
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops
from torch.distributed.pipelining.schedules import _Action, _ComputationType, _validate_schedule

from simulator.pipeline.engine import simulate
from simulator.pipeline.schedules import SCHEDULES, Action, Schedule, make_schedule
from simulator.pipeline.validate import validate_schedule

TORCH = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
KINDS = {
    "F": _ComputationType.FORWARD,
    "B": _ComputationType.BACKWARD_INPUT,
    "W": _ComputationType.BACKWARD_WEIGHT,
    "BW": _ComputationType.FULL_BACKWARD,
}
SIZES = [(1, 1), (1, 5), (2, 1), (2, 5), (3, 3), (3, 7), (4, 3), (4, 8), (5, 12), (4, 11), (8, 16)]


def as_torch(schedule: Schedule) -> dict[int, list[_Action]]:
    return {
        rank: [_Action(stage, KINDS[kind], i) for kind, stage, i in actions]
        for rank, actions in enumerate(schedule.actions)
    }


def torch_lists(name: str, ranks: int, microbatches: int, chunks: int | None) -> list[list[_Action]]:
    """Computation only, pairs taken apart."""
    lists = get_schedule_ops(TORCH[name], ranks, microbatches, chunks)
    flat = [[part for a in actions if a is not None for part in a.sub_actions or [a]] for actions in lists]
    return [[a for a in actions if a.computation_type in KINDS.values()] for actions in flat]


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_any_size_is_valid(name, ranks, microbatches):
    schedule = make_schedule(name, ranks, microbatches)
    validate_schedule(schedule)
    assert len(schedule) == sum(map(len, schedule.actions))


@pytest.mark.parametrize("chunks", [1, 3, 4])
@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_interleaving_takes_any_number_of_chunks(ranks, microbatches, chunks):
    validate_schedule(make_schedule("interleaved-1f1b", ranks, microbatches, chunks))


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
@pytest.mark.parametrize("name", TORCH)
def test_torch_accepts_ours(name, ranks, microbatches):
    schedule = make_schedule(name, ranks, microbatches)
    placement = _validate_schedule(as_torch(schedule), ranks, schedule.stages, microbatches)
    assert placement == {stage: schedule.rank_of(stage) for stage in range(schedule.stages)}


@pytest.mark.parametrize(
    ("name", "ranks", "microbatches", "chunks"),
    [
        ("gpipe", 4, 8, None),
        ("gpipe", 3, 2, None),
        ("interleaved-1f1b", 4, 8, 2),
        ("interleaved-1f1b", 3, 6, 4),
        ("interleaved-1f1b", 4, 10, 3),  # two rounds of five
        ("interleaved-1f1b", 4, 3, 2),
        ("zb-v", 4, 8, None),
        ("zb-v", 5, 3, None),
        ("zb-v", 8, 24, None),
        ("dualpipe-v", 4, 8, None),
        ("dualpipe-v", 3, 11, None),
        ("dualpipe-v", 8, 20, None),
    ],
)
def test_equal_to_torch_action_for_action(name, ranks, microbatches, chunks):
    ours = as_torch(make_schedule(name, ranks, microbatches, chunks))
    assert list(ours.values()) == torch_lists(name, ranks, microbatches, chunks)


def test_1f1b_equals_torch_except_on_the_last_rank_which_torch_itself_refuses():
    ours, theirs = as_torch(make_schedule("1f1b", 4, 8)), torch_lists("1f1b", 4, 8, None)
    assert [ours[rank] for rank in range(3)] == theirs[:3]
    with pytest.raises(AssertionError):
        _validate_schedule(dict(enumerate(theirs)), 4, 4, 8)


def test_overlapped_pairs_are_those_of_torch():
    schedule = make_schedule("dualpipe-v", 4, 10)
    for rank, actions in enumerate(get_schedule_ops("DualPipeV", 4, 10)):
        pairs = {
            tuple((a.stage_index, a.microbatch_index) for a in action.sub_actions)
            for action in actions
            if action is not None and action.sub_actions
        }
        ours = [schedule.actions[rank][at : at + 2] for at in schedule.overlapped[rank]]
        assert {tuple((a.stage, a.microbatch) for a in pair) for pair in ours} == pairs
        assert [[a.kind for a in pair] for pair in ours] == [["F", "BW"]] * len(pairs)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_overlapped_pairs_stay_pairs_where_there_are_fewer_microbatches_than_the_schedule_is_made_for(p):
    for m in range(1, 2 * p + 2):
        schedule = make_schedule("dualpipe-v", p, m)
        for actions, pairs in zip(schedule.actions, schedule.overlapped, strict=True):
            assert all([a.kind for a in actions[at : at + 2]] == ["F", "BW"] for at in pairs)


@pytest.mark.parametrize(
    ("name", "peaks"),
    [
        ("one-at-a-time", [1, 1, 1, 1]),
        ("gpipe", [8, 8, 8, 8]),
        ("1f1b", [4, 3, 2, 1]),
        ("interleaved-1f1b", [11, 9, 7, 5]),
        ("zb-h1", [4, 3, 2, 1]),  # p - i + 1 for worker i (arXiv:2401.10241, table 2)
        ("zb-h2", [7, 5, 3, 1]),  # 2p - 2i + 1
        ("zb-v", [8, 8, 8, 8]),  # 2p half-stages: as much as 1F1B's first rank
        ("dualpipe-v", [9, 9, 9, 9]),  # PP + 1 (arXiv:2412.19437, table 2), PP = 2p
    ],
)
def test_microbatches_in_flight(name, peaks):
    assert simulate(make_schedule(name, 4, 8)).peak_in_flight == peaks


def test_stages_lie_in_a_loop_or_in_a_v():
    assert make_schedule("interleaved-1f1b", 3, 3).stages_of(1) == [1, 4]
    assert make_schedule("zb-v", 3, 3).stages_of(0) == [0, 5]
    assert make_schedule("zb-v", 3, 3).span_name(Action("BW", 5, 2)) == "B2 stage 5"
    assert make_schedule("1f1b", 3, 3).span_name(Action("BW", 1, 2)) == "B2"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("1f2b", 4, 8), "schedule must be one of one-at-a-time, gpipe, .*, not 1f2b"),
        (("1f1b", 0, 8), "ranks must be a whole number of at least 1, not 0"),
        (("1f1b", 4, -1), "microbatches must be a whole number of at least 1, not -1"),
        (("1f1b", 4, 2.5), "microbatches must be a whole number of at least 1, not 2.5"),
        (("gpipe", 4, 8, 2), "gpipe has 1 chunk a rank, not 2"),
        (("zb-v", 4, 8, 3), "zb-v takes exactly 2 chunks a rank"),
    ],
)
def test_refuses_in_a_sentence(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        make_schedule(*arguments)


F0, F1, B0, B1, W0 = (
    Action("F", 0, 0),
    Action("F", 0, 1),
    Action("BW", 0, 0),
    Action("BW", 0, 1),
    Action("W", 0, 0),
)


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        (([F0, F1, B0],), "rank 0 never does B1 of stage 0"),
        (([F0, B0, B1],), "rank 0 does B1 of stage 0 before F1 of stage 0"),
        (([F0, B0, F0, F1, B1],), "rank 0 does F0 of stage 0 twice"),
        (([F0, B0, W0, F1, B1],), "rank 0 does W0 of stage 0 twice"),
        (([F0, Action("B", 0, 0), B0, F1, B1],), "rank 0 does B0 of stage 0 twice"),
        (([F0, Action("B", 0, 0), F1, B1],), "rank 0 never does W0 of stage 0"),
        (([F0, W0, Action("B", 0, 0), F1, B1],), "rank 0 does W0 of stage 0 before B0 of stage 0"),
        (([F0, Action("X", 0, 0)],), "rank 0 has an action 'X': the kinds are F, B, W, BW"),
        (([F0, Action("F", 1, 0)],), "rank 0 has F0 of stage 1: there are 1 stages"),
    ],
)
def test_validator_explains(actions, sentence):
    with pytest.raises(ValueError, match=sentence):
        validate_schedule(Schedule("own", 1, 2, 1, tuple(map(tuple, actions))))


def test_validator_finds_the_wrong_rank():
    schedule = make_schedule("gpipe", 2, 1)
    with pytest.raises(ValueError, match="rank 0 does F0 of stage 1, but stage 1 lives on rank 1"):
        validate_schedule(replace(schedule, actions=schedule.actions[::-1]))


def test_validator_finds_ranks_that_wait_for_one_another():
    schedule = make_schedule("1f1b", 2, 2)
    first = (Action("F", 0, 0), Action("BW", 0, 0), Action("F", 0, 1), Action("BW", 0, 1))
    last = (Action("F", 1, 0), Action("F", 1, 1), Action("BW", 1, 0), Action("BW", 1, 1))
    with pytest.raises(ValueError) as refusal:
        validate_schedule(replace(schedule, actions=(first, last)))
    assert "rank 0 cannot do B0 of stage 0: it waits for B0 of stage 1, which rank 1 has not done" in str(
        refusal.value
    )
    assert "rank 1 cannot do F1 of stage 1: it waits for F1 of stage 0, which rank 0 has not done" in str(
        refusal.value
    )


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
@pytest.mark.parametrize("name", ["one-at-a-time", "gpipe", "1f1b", "zb-h1"])
def test_these_never_need_buffered_transfers(name, ranks, microbatches):
    validate_schedule(make_schedule(name, ranks, microbatches), transfers="blocking")


def test_a_v_needs_buffered_transfers():
    with pytest.raises(ValueError, match="zb-v cannot run with blocking transfers: rank 0 waits to send"):
        validate_schedule(make_schedule("zb-v", 4, 8), transfers="blocking")
    with pytest.raises(ValueError, match="transfers must be one of buffered, blocking, not 'none'"):
        validate_schedule(make_schedule("zb-v", 4, 8), transfers="none")
