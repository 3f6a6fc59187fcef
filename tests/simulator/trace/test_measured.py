"""What a trace says is worked out by hand: computing, what is exposed along which axis, and who came late."""

import pytest
from kineto_events import GROUPS, nccl, span

from simulator.trace.clocks import on_one_clock
from simulator.trace.files.flight_recorder import Recorded
from simulator.trace.files.rank import Issued, kind_of, read_rank
from simulator.trace.groups import Axes
from simulator.trace.measured import measure


def read(paths):
    return [read_rank(path, i) for i, path in enumerate(paths)]


def ms(seconds):
    return pytest.approx(seconds * 1e-3, abs=1e-7)


def test_a_step_on_two_gpus(two_ranks):
    found = measure(read(two_ranks))
    assert found.steps == 2
    assert found.seconds == ms(10)
    early, late = found.ranks
    assert (early.computing, early.updating, early.idle) == (ms(4), ms(1), ms(1))
    assert (late.computing, late.updating, late.idle) == (ms(6), ms(1), ms(1))
    assert (early.exposed["dp"], late.exposed["dp"]) == (ms(5), ms(3))
    assert (early.late["dp"], late.late["dp"]) == (ms(1), ms(0))  # from 3, when it has computed, to 4
    assert late.blamed["dp"] == (1.0, ms(1))
    assert found.timeline.busy(0) == ms(4)
    assert found.timeline.busy(1, "communication") == ms(4)


def test_each_moment_counts_for_one_axis(write):
    events = [span("kernel", "gemm", 0, 2), nccl("AllGather", 1, 6), nccl("AllReduce", 4, 5, "mesh_tp")]
    (rank,) = measure(read([write("rank0.json", events)])).ranks
    assert dict(rank.exposed) == {"tp": ms(1), "dp": ms(3)}
    assert rank.seconds == ms(6)  # a trace without steps is one step


@pytest.mark.parametrize(
    ("group", "axis"),
    [
        ("mesh_dp", "dp"),
        ("mesh_dp_shard_cp", "dp"),
        ("fsdp", "dp"),
        ("mesh_tp", "tp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("mesh_ep", "ep"),
    ],
)
def test_names_of_groups(write, group, axis):
    events = [span("kernel", "gemm", 0, 9), nccl("AllReduce", 1, 2, group)]
    assert measure(read([write("rank0.json", events)])).axes == [axis]


@pytest.mark.parametrize(
    ("ranks", "axis"), [("[4, 5]", "tp"), ("[1, 3]", "dp"), ("[2, 6]", "pp"), ("[0, 7]", "all ranks")]
)
def test_a_group_without_a_name_is_known_by_its_ranks(write, ranks, axis):
    events = [span("kernel", "gemm", 0, 9), nccl("AllReduce", 1, 2, "undefined", ranks)]
    assert measure(read([write("rank0.json", events)]), {"pp": 2, "dp": 2, "tp": 2}).axes == [axis]


def test_a_copy_alone_is_no_idle_time(write):
    events = [
        span("kernel", "gemm", 0, 4),
        span("gpu_memcpy", "Memcpy HtoD", 3, 6),
        span("kernel", "gemm", 7, 10),
    ]
    (rank,) = measure(read([write("rank0.json", events)])).ranks
    assert (rank.copying, rank.idle) == (ms(2), ms(1))


def on_a_cpu(write, **more):
    """A program of two operators that waits for a reduce-scatter in between, and not for an all-gather."""
    thread, worker, other = 1, 50, 51
    events = [
        span("user_annotation", "ProfilerStep#3", 0, 20, thread),
        span("cpu_op", "aten::linear", 0, 4, thread),
        span("cpu_op", "c10d::_allgather_base_", 4, 4.1, thread),
        span("user_annotation", "gloo:all_gather", 4, 6, other),
        span("cpu_op", "c10d::_reduce_scatter_base_", 5, 5.1, thread),
        span("user_annotation", "gloo:all_reduce", 5, 9, worker),
        span("cpu_op", "aten::copy_", 8, 9, worker),
        span("cpu_op", "aten::mul", 9.2, 12, thread),
        span("cpu_op", "autograd::engine::evaluate_function: MulBackward0", 12, 18, thread),
        span("cpu_op", "aten::mul", 12, 18, thread),
    ]
    return write("rank0.json", events, **more)


def test_on_a_cpu_a_rank_waits_until_a_collective_ends(write):
    (rank,) = measure(read([on_a_cpu(write, groups=GROUPS[1:2])])).ranks
    assert rank.computing == ms(4 + 2.8 + 6)
    assert rank.exposed["dp"] == ms(9 - 5.1)
    assert rank.calls["dp"] == 2


def test_the_flight_recorder_says_which_group_a_collective_of_gloo_serves(write):
    zero = 1e9 + 4e6  # seconds: the file's base, and the event at 0 ms
    issued = [Issued("all-gather", zero + 4.05e-3, "3"), Issued("all-reduce", zero + 5.05e-3, "1")]
    trace = read_rank(on_a_cpu(write, groups=GROUPS), 0, issued)
    assert [(call.kind, call.group.name) for call in trace.calls] == [
        ("all-gather", "mesh_tp"),
        ("reduce-scatter", "mesh_dp"),
    ]
    assert measure([read_rank(on_a_cpu(write, groups=GROUPS), 0)]).axes == ["unknown group"]


def test_kinds_by_name():
    named = {
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(…)": "reduce-scatter",
        "ncclKernel_SendRecv_RING_SIMPLE": "send and receive",
        "c10d::alltoall_base_": "all-to-all",
        "c10d::recv_": "receive",
        "gloo:all_reduce": "all-reduce",
        "c10d::allreduce_coalesced_": "all-reduce",
        "nccl:_allgather_base": "all-gather",
    }
    assert {name: kind_of(name) for name in named} == named


def test_traces_that_do_not_belong_together(two_ranks, write):
    one, other = read(two_ranks)
    with pytest.raises(ValueError, match="one trace, and these are of ranks 0, 0"):
        measure([one, one])
    other.steps.pop()
    with pytest.raises(ValueError, match="the same steps, and they hold 1, 2"):
        measure([one, other])
    with pytest.raises(ValueError, match="no operator and no kernel"):
        read_rank(write("empty.json", []), 0)


def test_a_dump_alone_has_groups():
    entry = {
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 2 * 10**9,
        "process_group": ("1", "mesh_dp"),
    }
    assert Recorded(0, [entry], {}).issued() == [Issued("all-reduce", 2.0, "1")]


def test_clocks_of_two_machines_differ(two_ranks):
    """The second machine's clock is 7 ms behind: what it says is moved, and the rest is as on one clock."""
    first, second = read(two_ranks)
    before = measure([first, second])
    second.host, first.host = "b", "a"
    behind = on_one_clock([first, second], Axes({}))[1]
    assert (behind.steps, behind.calls) == (second.steps, second.calls)  # the clocks agree
    for name in ("steps", "computing", "updating"):
        setattr(second, name, [(start - 7e-3, end - 7e-3) for start, end in getattr(second, name)])
    second.calls = [c._replace(start=c.start - 7e-3, end=c.end - 7e-3) for c in second.calls]
    after = measure([first, second])
    assert after.ranks[1].blamed["dp"] == pytest.approx(before.ranks[1].blamed["dp"])
    assert after.timeline.makespan == pytest.approx(before.timeline.makespan)
    second.host = "a"
    assert "dp" not in measure([first, second]).ranks[1].blamed
