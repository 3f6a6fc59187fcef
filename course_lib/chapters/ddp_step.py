"""Steps of DDP for chapter 05, predicted for GPT-2 on a slow network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from course_lib.chapters.refused import Refused
from course_lib.chapters.speedup_over_tokens import plot_speedup_over_tokens
from course_lib.models.gpt import GPT, GPTConfig
from simulator.inputs.checks import one_of, positive
from simulator.inputs.known_models import MODELS
from simulator.ledgers.timeline import Span, Timeline
from simulator.plots.picture import Picture
from simulator.predict.overlap import ddp_timeline

GPT2 = MODELS["gpt2"]
FLOPS = 100e12  # FLOP/s of a GPU in training
ETHERNET = 1.25e9  # bytes a second of a link of 10 Gbit/s
LATENCY = 50e-6  # seconds that a message takes on it beside its bytes
BATCH = 16_384  # tokens of a step before there were eight GPUs
GOAL = 4  # times as fast as one GPU eight are to be: their computing then takes as long as what is exposed
MEMORY = 16_384  # tokens that a GPU's memory holds at a time: as many as that step has


class Try(NamedTuple):
    """Of ``attempt``: tokens on each GPU, times one GPU, and bits of a gradient's element."""

    tokens: float
    times: float
    bits: int


tries: list[Try] = []


@cache
def gpt2_pieces() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """FLOPs of a token's forward, and elements of the gradient, of each parameter of GPT-2 in the model's order.

    The embedding is read first and writes the logits last: it computes there, and its gradient is complete at the end
    of backward. So the last piece computes and has no gradient, and the first two have gradients and compute nothing.
    """
    with torch.device("meta"):
        embeddings, rest = [], []
        for name, w in GPT(GPTConfig()).named_parameters():
            (embeddings if name.startswith("embedding.") else rest).append(w.numel())
    flops = [0.0] * len(embeddings) + [2.0 * n for n in rest] + [2.0 * sum(embeddings)]
    return tuple(flops), (*embeddings, *rest, 0)


def gpt2_step(
    gpus: int,
    tokens: float,
    itemsize: int = 4,
    overlap: bool = False,
    cap_mb: float = 25,
    link: tuple[float, float] = (LATENCY, ETHERNET),
) -> Timeline:
    """One step of GPT-2 on each of ``gpus``, in milliseconds.

    Args:
        gpus: that share the batch.
        tokens: of the whole batch.
        itemsize: bytes of a gradient's element.
        overlap: send buckets during backward, not after it.
        cap_mb: a bucket is closed once it holds that many MiB; 0: a message for each parameter.
        link: seconds that a message takes beside its bytes, and bytes a second.
    """
    latency, bandwidth = link
    flops, elements = gpt2_pieces()
    forward = [1e3 * one * tokens / gpus / FLOPS for one in flops]
    return ddp_timeline(
        forward,
        [2 * ms for ms in forward],
        [itemsize * n for n in elements],
        ranks=gpus,
        latency=1e3 * latency,
        bandwidth=bandwidth / 1e3,  # bytes a millisecond
        bucket_bytes=max(cap_mb * 2**20, 1),  # the logits have no gradient of their own, and so no bucket
        overlap=overlap,
    )


def rank_0(timeline: Timeline) -> Timeline:
    """Its spans; those of one kind without a pause between them become one, which is seen even where it is thin.

    The last message, which has the embedding's gradient, stays alone.
    """
    joined: list[Span] = []
    last_sent = max((span.end for span in timeline.of(0, "communication")), default=0.0)
    for span in sorted(timeline.of(0), key=lambda s: (s.lane, s.start, s.end)):
        kind = span.name.split()[0] if span.lane == "compute" else "all-reduce"
        if span.lane == "communication" and span.end == last_sent:
            kind = "all-reduce embedding"
        last = joined[-1] if joined else None
        if last and (last.lane, last.name) == (span.lane, kind) and span.start - last.end < 1e-6:
            joined[-1] = last._replace(end=span.end)
        else:
            joined.append(span._replace(name=kind))
    return Timeline(span for span in joined if span.duration)


def one_after_another(timeline: Timeline, count: int) -> Timeline:
    """That many equal microbatches on the same rank."""
    return Timeline(
        span._replace(start=span.start + i * timeline.makespan, end=span.end + i * timeline.makespan)
        for i in range(count)
        for span in timeline.spans
    )


def accumulated_ms(tokens: float, gpus: int = 8, microbatches: float = 1, **settings: Any) -> float:
    """Milliseconds of a step whose gradients are sent once, in the last of some microbatches.

    Args:
        tokens: on each GPU, of all microbatches.
        microbatches: the last one has so many times fewer tokens than all; what comes before it only computes.
        settings: of ``gpt2_step``.
    """
    last = tokens / microbatches
    return gpt2_step(1, tokens - last).makespan + gpt2_step(gpus, gpus * last, **settings).makespan


def times_one_gpu(tokens: float, gpus: int = 8, microbatches: float = 1, **settings: Any) -> float:
    """How many times as fast as one GPU these are, each with that many ``tokens``.

    Args:
        tokens, gpus, microbatches, settings: of ``accumulated_ms``.
    """
    together = accumulated_ms(tokens, gpus, microbatches, **settings)
    return gpt2_step(1, gpus * tokens).makespan / together


def times_of_batch(batch: float, gpus: int = 8) -> float:
    """How many times as fast as one GPU these are with a whole batch, in microbatches that fit, with overlap."""
    each = batch / gpus
    return times_one_gpu(each, gpus, max(1, each / MEMORY), overlap=True)


def hiding_tokens(flops: float = FLOPS, bandwidth: float = ETHERNET, bits: int = 32) -> float:
    """Tokens on each GPU with which backward takes as long as the gradients' bytes on many ranks: 2R/β in 32 bits.

    Args:
        flops: R, FLOP/s of a GPU in training.
        bandwidth: β, bytes a second that it sends.
        bits: of a gradient's element.
    """
    return bits / 16 * flops / bandwidth


def even_tokens(flops: float = FLOPS, bandwidth: float = ETHERNET, bits: int = 32) -> float:
    """Tokens of the whole batch with which any number of GPUs are as fast as one: 4R/3β in 32 bits.

    Without overlap and latencies: one GPU then computes for as long as many send the gradients.

    Args:
        flops, bandwidth, bits: of ``hiding_tokens``.
    """
    return 2 / 3 * hiding_tokens(flops, bandwidth, bits)


def batches_that_pay(flops: float, links: Mapping[str, float]) -> str:
    """A line for each link: 4R/3β, and the batches with which eight GPUs are 4 times as fast, in 32 and 16 bits.

    A microbatch has at most ``MEMORY`` tokens. The latencies are left out, which other networks have in another
    proportion.

    Args:
        flops: R, FLOP/s of a GPU in training.
        links: name -> β, bytes a second that a GPU sends.

    Raises:
        ValueError: an amount is not above 0.
        Refused: the link is slower than 10 MB/s.
    """
    lines = [f"{'':24}{'4R/(3β)':>9}{'4 times':>13}{'4 times in 16 bits':>21}"]
    for name, bandwidth in links.items():
        positive(flops=flops, bandwidth=bandwidth)
        if bandwidth < 1e7:
            raise Refused(f"{name}: {bandwidth:g} bytes a second is too slow; 10 Gbit/s is 1.25e9")
        link = (0, bandwidth * FLOPS / flops)  # with our GPUs it has the same proportion
        fast = [8 * fewest_in_memory(4, itemsize=size, link=link)[0] for size in (4, 2)]
        numbers = [f"{float(f'{tokens:.3g}'):,.0f}" for tokens in (even_tokens(flops, bandwidth), *fast)]
        row = f"{name}, {bandwidth / 1e9:g} GB/s"
        lines.append(f"{row:24}{numbers[0]:>9}{numbers[1]:>13}{numbers[2]:>21}")
    return "\n".join(lines)


def fewest_in_memory(at_least: float, **settings: Any) -> tuple[float, int]:
    """Tokens on each of eight GPUs, with overlap, to be so many times as fast as one, and in how many microbatches.

    Args:
        at_least: times one GPU.
        settings: of ``gpt2_step``.
    """

    def reached(tokens: float, microbatches: int) -> bool:
        return times_one_gpu(tokens, microbatches=microbatches, overlap=True, **settings) >= at_least

    fits = next(n for n in itertools.count(1) if reached(n * MEMORY, n))  # more microbatches hide less
    return tokens_that_reach(lambda tokens: reached(tokens, fits), fits * MEMORY), fits


def last_message_mb(cap_mb: float) -> float:
    """MB of the last message, which has the embedding's gradient."""
    held = [0.0]
    for elements in reversed([n for n in gpt2_pieces()[1] if n]):
        held = [*held, 0.0] if held[-1] >= max(cap_mb * 2**20, 1) else held
        held[-1] += 4 * elements
    return held[-1] / 1e6


def tokens_that_reach(reached: Callable[[float], bool], most: float = 1e6) -> float:
    """The fewest tokens on each GPU with which something is so, and stays so with more; within a thousandth.

    Args:
        reached: whether it is so with these tokens.
        most: with which it surely is.
    """
    low, high = 0.0, most
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def parts_of_step(gpus: int, cap_mb: float) -> dict[str, float]:
    """Seconds of the step of ``BATCH`` tokens without overlap: computing, and what communication takes, in two parts.

    Args:
        gpus, cap_mb: of ``gpt2_step``.
    """
    step = gpt2_step(gpus, BATCH, cap_mb=cap_mb)
    messages = step.of(0, "communication") if gpus > 1 else []
    latencies = len(messages) * 2 * (gpus - 1) * LATENCY
    sent = sum(span.duration for span in messages) / 1e3
    computing = sum(span.duration for span in step.of(0, "compute")) / 1e3
    return {"computing": computing, "bytes": sent - latencies, "latencies": latencies}


def attempt(microbatches: int, tokens: float, bits: int = 32, cap_mb: float = 25) -> Picture:
    """All tries so far, as dots, and a line on the newest: is it fast enough, and do others need fewer tokens?

    Faint curves show other tokens in 1 to 3 microbatches, else as in the newest try. Tries in other bits are hollow.

    Args:
        microbatches: that a GPU computes in a step; gradients are sent in the last one's backward.
        tokens: of one microbatch on each GPU.
        bits: of a gradient's element, 16 or 32.
        cap_mb: MiB at which a bucket is closed.

    Raises:
        ValueError: there are no tokens or no microbatch; gradients of so many bits are not sent.
        Refused: a microbatch does not fit.
    """
    positive(tokens=tokens, microbatches=microbatches)
    one_of("bits", bits, [16, 32])
    if tokens > MEMORY:
        raise Refused(f"out of memory: a microbatch has at most {MEMORY:,} tokens, not {tokens:,}")
    all_, computed = microbatches * tokens, gpt2_step(1, microbatches * tokens).makespan
    settings = {"microbatches": microbatches, "itemsize": bits // 8, "cap_mb": cap_mb, "overlap": True}
    times = times_one_gpu(all_, **settings)
    exposed = accumulated_ms(all_, **settings) - computed
    tries.append(Try(all_, times, bits))
    if times < GOAL:
        why = f"exposed messages, {exposed:.0f} ms, take longer than computing, {computed:.0f} ms"
        verdict = f"not {GOAL} times yet, because {why}"
    elif all_ > 1.03 * fewest_tokens(GOAL)[0]:
        verdict = "fast enough, and other settings need fewer tokens"
    else:
        verdict = "fast enough, and no settings need noticeably fewer tokens"
    size = f"{8 * all_ / BATCH:.1f} times the first batch"
    print(f"{times:.2f} times one GPU, {size}: {verdict}")
    most = max(60_000, 1.2 * max(one.tokens for one in tries))
    same, others = ([one[:2] for one in tries if one.bits == its] for its in (bits, 48 - bits))
    curves, most_parts = {}, max(3, microbatches)
    for n in sorted({1, 2, 3, microbatches}):
        name = f"{n} microbatches" if n == most_parts else str(n)  # a short one fits beside the axis
        curves[name] = n * MEMORY, lambda all_, n=n: times_one_gpu(all_, **{**settings, "microbatches": n})
    along = f"tokens on each GPU, in {bits} bits" + f"; hollow dots: in {48 - bits}" * bool(others)
    highest = max(GOAL + 1, 1.1 * max(one.times for one in tries))
    return plot_speedup_over_tokens(most, highest, curves, same, GOAL, others, along)


@cache
def fewest_tokens(at_least: float) -> tuple[float, float, int]:
    """On each of eight GPUs, to be so many times as fast as one, in 16 bits; its ``cap_mb`` and microbatches."""
    found = []
    for cap in (1, 2, 5, 10, 15, 25, 50):
        fewest, microbatches = fewest_in_memory(at_least, itemsize=2, cap_mb=cap)
        found.append((fewest, cap, microbatches))
    return min(found)


def accumulated_step(microbatches: int, tokens: float, bits: int = 32) -> Timeline:
    """The step of an ``attempt``: the last microbatch sends the gradients of all."""
    one, last = gpt2_step(1, tokens), gpt2_step(8, 8 * tokens, itemsize=bits // 8, overlap=True)
    before = (microbatches - 1) * one.makespan
    late = [span._replace(start=span.start + before, end=span.end + before) for span in last.of(0)]
    return Timeline([*one_after_another(one, microbatches - 1).spans, *late])
