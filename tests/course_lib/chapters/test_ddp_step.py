"""The steps of chapter 05: predicted for GPT-2, measured with few and with many messages, and in a wrong order."""

import pytest
import torch

from course_lib.by_hand.ddp import Overlap, PerParameter
from course_lib.chapters.ddp_step import (
    BATCH,
    ETHERNET,
    FLOPS,
    GOAL,
    GPT2,
    LATENCY,
    MEMORY,
    accumulated_ms,
    accumulated_step,
    attempt,
    batches_that_pay,
    even_tokens,
    fewest_in_memory,
    fewest_tokens,
    gpt2_step,
    hiding_tokens,
    last_message_mb,
    one_after_another,
    parts_of_step,
    rank_0,
    times_one_gpu,
    tokens_that_reach,
)
from course_lib.chapters.measured_ddp import (
    TINY,
    OurDDP,
    measured_step,
    named_messages,
    quickest_step,
    tiny_sending,
)
from course_lib.chapters.message_order import four_messages
from course_lib.chapters.refused import Refused
from course_lib.models.gpt import GPT, GPTConfig
from course_lib.runtime import launch


def test_eight_gpus_compute_an_eighth_and_send_the_whole_model():
    one, eight = gpt2_step(1, 16384), gpt2_step(8, 16384, cap_mb=0)
    messages = len(list(GPT(GPTConfig.tiny(num_layers=12)).parameters()))
    computing = 1e3 * 6 * GPT2.parameters * 16384 / FLOPS
    sending = 1e3 * 2 * 7 / 8 * 4 * GPT2.parameters / ETHERNET
    sending += 1e3 * messages * 14 * LATENCY
    assert abs(one.makespan - computing) < 1e-6 * computing
    assert abs(eight.makespan - (computing / 8 + sending)) < 1e-6 * eight.makespan
    assert {span.lane for span in rank_0(one).spans} == {"compute"}
    assert [span.name for span in rank_0(eight).of(0, "compute")] == ["forward", "backward"]
    sent = [span.name for span in rank_0(eight).of(0, "communication")]
    assert sent == ["all-reduce", "all-reduce embedding"]
    assert len(gpt2_step(8, 16384).of(0, "communication")) < messages / 10


def test_more_tokens_pay_and_the_line_bends_where_the_link_first_rests():
    assert times_one_gpu(2048) < 1 < times_one_gpu(16384)
    assert abs(tokens_that_reach(lambda tokens: tokens >= 777) - 777) < 1

    def rests(tokens):
        return len(rank_0(gpt2_step(8, 8 * tokens, overlap=True)).of(0, "communication")) > 2

    bend = 7 / 8 * 2 * FLOPS / ETHERNET
    assert 0.99 < tokens_that_reach(rests) / bend < 1.05


@pytest.mark.parametrize("gpus", [1, 8])
def test_the_parts_of_a_step_are_all_of_it(gpus):
    parts, step = parts_of_step(gpus, 25), gpt2_step(gpus, BATCH)
    assert abs(sum(parts.values()) - step.makespan / 1e3) < 1e-9
    assert abs(parts["bytes"] - 2 * (gpus - 1) / gpus * 4 * GPT2.parameters / ETHERNET) < 1e-6
    messages = len(step.of(0, "communication")) if gpus > 1 else 0
    assert parts["latencies"] == messages * 14 * LATENCY


def test_a_faster_link_shortens_only_the_messages():
    computing, bytes_ = gpt2_step(1, BATCH).makespan / 8, 1e3 * parts_of_step(8, 25)["bytes"]
    step = gpt2_step(8, BATCH, link=(0, 10 * ETHERNET))
    assert abs(step.makespan - (computing + bytes_ / 10)) < 1e-6 * step.makespan


def test_an_attempt_says_how_it_went(capsys, monkeypatch):
    monkeypatch.setattr("course_lib.chapters.ddp_step.tries", [])
    attempt(1, 16384)
    attempt(8, 13000)
    attempt(4, 15000, 16)
    fewest, cap_mb, count = fewest_tokens(GOAL)
    best = times_one_gpu(fewest, microbatches=count, itemsize=2, cap_mb=cap_mb, overlap=True)
    assert abs(best - GOAL) < 0.01
    alt = attempt(count, fewest * 1.01 / count, 16, cap_mb).alt
    assert alt.count("a try at") == 4
    assert "in 16 bits; hollow dots: in 32: 1: 2.3 at its end" in alt
    said = [line.split(": ")[1] for line in capsys.readouterr().out.splitlines()]
    assert said == [
        "not 4 times yet, because exposed messages, 655 ms, take longer than computing, 122 ms",
        "fast enough, and other settings need fewer tokens",
        "fast enough, and other settings need fewer tokens",
        "fast enough, and no settings need noticeably fewer tokens",
    ]
    with pytest.raises(ValueError, match="bits must be one of 16, 32, not 8"):
        attempt(1, 16384, 8)
    with pytest.raises(ValueError, match="out of memory: a microbatch has at most 16,384 tokens, not 20,000"):
        attempt(1, 20000)


@pytest.mark.parametrize("tokens", [3 * 13_000, 3 * 16_000])
def test_four_times_is_where_computing_takes_as_long_as_what_is_exposed(tokens):
    settings = {"microbatches": 3, "itemsize": 2, "overlap": True}
    computed = gpt2_step(1, tokens).makespan
    exposed = accumulated_ms(tokens, **settings) - computed
    assert (times_one_gpu(tokens, **settings) >= GOAL) == (exposed <= computed)


def test_only_the_last_microbatch_hides_messages():
    whole, parts = (accumulated_ms(16384, microbatches=count, overlap=True) for count in (1, 4))
    hidden = 3 / 4 * gpt2_step(1, 16384).makespan  # that three quarters of the tokens no longer hide
    assert whole < parts < whole + hidden
    assert abs(accumulated_ms(16384, microbatches=4) - accumulated_ms(16384)) < 1e-6
    eight = one_after_another(gpt2_step(1, 2048), 8)
    assert abs(eight.makespan - gpt2_step(1, BATCH).makespan) < 1e-6


def test_only_the_fraction_counts_on_any_network():
    assert hiding_tokens(4e14, 4e10) == 2e4 == 2 * hiding_tokens(4e14, 4e10, bits=16)
    line = batches_that_pay(4e14, {"a link": 4e10}).splitlines()[1]
    assert line.startswith("a link, 40 GB/s ")
    even, *batches = (float(word.replace(",", "")) for word in line.split()[-3:])
    assert even == 13300
    for batch, itemsize in zip(batches, (4, 2), strict=True):
        times = times_one_gpu(batch / 8, overlap=True, itemsize=itemsize, link=(0, 1e10))
        assert abs(times / 4 - 1) < 0.01
    with pytest.raises(ValueError, match="bandwidth"):
        batches_that_pay(4e14, {"none": 0})
    with pytest.raises(Refused, match=r"in GB/s: .* is too slow; 10 Gbit"):
        batches_that_pay(4e14, {"in GB/s": 1.25})


def test_the_fewest_tokens_are_computed_in_microbatches_that_fit():
    fewest, microbatches = fewest_in_memory(4, itemsize=2)
    assert microbatches - 1 < fewest / MEMORY <= microbatches
    found = times_one_gpu(fewest, microbatches=microbatches, itemsize=2, overlap=True)
    assert abs(found - 4) < 0.01


@pytest.mark.parametrize("microbatches", [1, 3])
def test_an_accumulated_step_takes_what_an_attempt_counts(microbatches):
    step = accumulated_step(microbatches, 14_000, bits=16)
    ms = accumulated_ms(microbatches * 14_000, microbatches=microbatches, itemsize=2, overlap=True)
    assert abs(step.makespan - ms) < 1e-6 * ms
    kinds = [span.name for span in rank_0(step).of(0, "compute")]
    assert kinds == ["forward", "backward"] * microbatches


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_the_whole_batch_decides_whether_any_number_pays(gpus):
    tokens = even_tokens() / gpus
    assert abs(times_one_gpu(tokens, gpus, link=(0, ETHERNET)) - 1) < 1e-6


def test_the_last_message_has_the_whole_embedding():
    embedding = 4 * (50304 if GPT2.parameters > 124.46e6 else 50257) * 768 / 1e6
    assert embedding < last_message_mb(0) + 1e-6
    assert last_message_mb(0) <= last_message_mb(25) < last_message_mb(1000)
    assert abs(last_message_mb(1000) - 4 * GPT2.parameters / 1e6) < 1e-6


def rungs():
    """Local classes, which are sent to the ranks whole."""

    class Eager(Overlap):
        def gradient_is_ready(self, bucket):
            bucket.missing -= 1
            if bucket.missing == 0:
                self.waiting.remove(bucket)
                bucket.start()

    class Never(Overlap):
        def gradient_is_ready(self, bucket):
            bucket.missing -= 1

    class One(Overlap):
        def gradient_is_ready(self, bucket):
            bucket.missing -= 1
            if self.waiting[0].missing == 0:
                self.waiting.pop(0).start()

    return {"eager": Eager, "never": Never, "one": One, "in order": Overlap}


@pytest.mark.parametrize(
    ("rung", "rank_1", "gradients"),
    [
        ("eager", "3 1 0 2", "right wrong wrong wrong"),
        ("in order", "3 2 1 0", "right right right right"),
        ("never", "nothing nothing nothing nothing", "never comes never comes never comes never comes"),
        ("one", "3 2 nothing nothing", "right right never comes never comes"),
    ],
)
def test_what_comes_of_the_order_of_messages(rung, rank_1, gradients):
    lines = str(four_messages(rungs()[rung])).replace("layer ", "").splitlines()
    words = {line.split("  ")[0]: " ".join(line.split()) for line in lines}
    assert words["rank 1 sends"].endswith(rank_1)
    assert words["that gradient on rank 0"].endswith(gradients)


def both():
    x, y = torch.zeros(2, 2, 8, dtype=torch.long)
    counts = []
    for rung, options, sent in (
        (PerParameter, {}, {"all-reduce"}),
        (Overlap, {"cap_mb": 1e-6}, {"all-reduce norm", "all-reduce e"}),
    ):
        timeline, messages = measured_step(rung, x, y, **options)
        names = {span.name for span in timeline.spans}
        counts.append((messages, {"F block 0", "B block 3", *sent} <= names))
    return counts


def test_a_measured_step_counts_its_messages():
    parameters = len(list(GPT(GPTConfig.tiny()).parameters()))
    assert launch(both, 2)[0] == [(parameters, True), (parameters, True)]


def hooks():
    class Never(OurDDP):
        def gradient_is_ready(self, bucket):
            bucket.missing -= 1

    class Sends(Never):
        def gradient_is_ready(self, bucket):
            super().gradient_is_ready(bucket)
            if bucket.missing == 0:
                bucket.start()

    x, y = torch.zeros(2, 2, 8, dtype=torch.long)
    found = []
    for rung in (Never, Sends):
        timeline, messages = measured_step(rung, x, y, cap_mb=0.5)
        first = min(span.start for span in timeline.of(lane="communication"))
        found.append((messages, first > max(span.end for span in timeline.of(lane="compute"))))
    return found


def test_a_hook_sends_during_backward_once_it_is_written():
    (unwritten, after), (written, late) = launch(hooks, 2)[0]
    assert unwritten == written
    assert (after, late) == (True, False)


@pytest.mark.parametrize("missing", [1, 2, None])
def test_a_bucket_that_starts_too_early_is_told_in_a_sentence(missing):
    class Early(OurDDP):
        def gradient_is_ready(self, bucket):
            bucket.missing -= 1
            if missing is None or bucket.missing == missing:
                bucket.start()

    x, y = torch.zeros(2, 4, 8, dtype=torch.long)
    with pytest.raises(Refused, match="one of its gradients is not there yet") as told:
        quickest_step(Early, x, y, cap_mb=0.5)
    assert told.value._render_traceback_() == [str(told.value)]


def test_the_price_of_a_measured_step():
    size = sum(w.nbytes for w in GPT(GPTConfig.tiny()).parameters())
    bytes_, latencies = tiny_sending(4)
    assert abs(bytes_ / 1e3 * TINY["bandwidth"] - 1.5 * size) < 1e-3
    assert abs(latencies - 6e3 * TINY["latency"]) < 1e-9


def test_messages_are_named_in_the_order_of_sending():
    step = rank_0(gpt2_step(8, BATCH, overlap=True))
    names = [span.name for span in named_messages(step, ["3+2", "e"]).of(0, "communication")]
    assert names == ["all-reduce 3+2", "all-reduce embedding e"]
