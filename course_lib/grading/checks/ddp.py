"""Checks of chapter 05: buckets, overlap, unequal parts, accumulation, statistics of a spread batch, a faulty step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from course_lib.grading.checks import ddp_mistakes as mistakes
from course_lib.grading.checks.ddp_buckets import bucket_cases, check_buckets
from course_lib.grading.checks.ddp_faulty_step import mended
from course_lib.grading.checks.ddp_overlap import CASES, check_overlap, overlap
from course_lib.grading.checks.ddp_ranks import (
    accumulated,
    on_ranks,
    report_missing,
    report_samples,
    statistics,
    weighted,
)
from course_lib.grading.compare import rank_differences
from course_lib.grading.report import Report, check
from simulator.predict.collective_traffic import sent_bytes

OWN_SAMPLES = "Each rank's model runs on its own samples only."


def _count(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


@check
def check_05_1(report: Report, assign_buckets: Callable[[list[Tensor], int], list[list[Tensor]]]) -> None:
    """Which tensors share a bucket."""
    for name, (parameters, limit) in bucket_cases().items():
        with report.case(name):
            given = list(parameters)
            check_buckets(report, assign_buckets(given, limit), parameters, limit)
            same = len(given) == len(parameters) and all(
                a is b for a, b in zip(given, parameters, strict=True)
            )
            report.true(
                same,
                "the list is as before",
                "the list `parameters` has changed",
                task="The list `parameters` stays as it is",
            )


# ---- 05.2 the hook ----------------------------------------------------------------------------------------


@check
def check_05_2(report: Report, average_during_backward: Callable[[Tensor, list[list[Tensor]]], None]) -> None:
    """All-reduces that start while backward goes on."""
    for ranks, limit, how in (
        (2, 700, "plain"),
        (2, 864, "crossed"),
        (3, 300, "earlier"),
        (2, 700, "frozen"),
        (2, 10_000, "crossed"),
        (2, 300, "swapped"),
        (1, 700, "plain"),
    ):
        with report.case(f"{_count(ranks)}{CASES[how]}, limit {limit} bytes"):
            arguments = (average_during_backward, limit, how, report.seed())
            check_overlap(report, on_ranks(overlap, ranks, arguments))


# ---- 05.3 unequal parts -----------------------------------------------------------------------------------


@check
def check_05_3(report: Report, whole_batch_gradients: Callable[[nn.Module, Tensor, Tensor], None]) -> None:
    """Parts of unequal size, and a tensor with two names."""
    for sizes, frozen in (
        ((4, 4), False),
        ((5, 2), False),
        ((1, 6, 3), False),
        ((2, 3), True),
        ((0, 3, 1), False),
        ((5,), False),
    ):
        words = ", a frozen layer" if frozen else ""
        with report.case(f"{_count(len(sizes))} with {', '.join(map(str, sizes))} samples{words}"):
            arguments = (whole_batch_gradients, sizes, frozen, report.seed())
            results = on_ranks(weighted, len(sizes), arguments)
            sums, tied = results[0]["sums"], results[0]["tied"]
            task = "every `.grad` is the gradient of the mean loss over all samples of all ranks"
            without = [rank for rank, result in enumerate(results) if result["missing"]]
            empty = without and not any(sizes[rank] for rank in without)
            likely = "a rank without samples does not put what it receives into `.grad`" if empty else None
            report_missing(report, results, task, likely)
            report.on_every_rank(
                "every rank has the gradient of the whole batch",
                [result["gradients"] for result in results],
                mistakes.whole_batch(sums, sizes, tied),
                mistakes=mistakes.WHOLE_BATCH,
                given=(sums, sizes, tied),
                task=task,
            )
            report_samples(report, [result["seen"] for result in results], sizes, OWN_SAMPLES)
            report.true(
                all(result["frozen kept"] for result in results),
                "frozen parameters have no gradient",
                "a frozen parameter has a gradient",
                task="A parameter that does not require a gradient keeps `.grad` None",
            )
            messages = {
                "when each gradient takes a message of its own": results[0]["tensors"] + 1,
                "when the number of samples takes a message of its own": 2,
            }
            most = max(result["messages"] for result in results)
            report.at_most("messages", most, 1, mistakes=messages, task="one all-reduce in all")
            sent = round(max(result["sent"] for result in results))
            gradients = sums[0].nbytes // 2  # the sums are in double precision
            carried = {
                "when the tied tensor is sent under both of its names": gradients + 4 * int(tied.sum()),
                "when the gradients are sent in double precision": 2 * gradients,
            }
            report.at_most(
                "bytes sent by a rank",
                sent,
                round(sent_bytes("all-reduce", gradients + 8, len(sizes))),
                mistakes={text: _with_count(carried[text], len(sizes), sent) for text in carried},
                task="as many bytes as the gradients and at most 8 more",
            )


def _with_count(carried: int, ranks: int, sent: int) -> int | None:
    """``sent``, where an all-reduce of these bytes and of a number in 4 or 8 bytes, or none, sends as much."""
    possible = [round(sent_bytes("all-reduce", carried + more, ranks)) for more in (0, 4, 8)]
    return sent if sent in possible else None


# ---- 05.4 accumulation ------------------------------------------------------------------------------------


@check
def check_05_4(report: Report, accumulate: Callable[[nn.Module, list[tuple[Tensor, Tensor]]], None]) -> None:
    """Several microbatches, one synchronisation, by PyTorch's DDP."""
    for ranks, sizes in (
        (2, ((1, 2), (2, 1))),
        (3, ((2, 1, 1), (1, 2, 1), (1, 1, 2))),
        (2, ((2,), (2,))),
        (1, ((1, 2),)),
    ):
        noun = "microbatch" if len(sizes[0]) == 1 else "microbatches"
        with report.case(f"{_count(ranks)}, {len(sizes[0])} {noun}"):
            results = on_ranks(accumulated, ranks, (accumulate, sizes, report.seed()), timeout=60)
            means = [result["means"] for result in results]
            task = "every `.grad` is the gradient of the mean loss over all sequences of all ranks"
            report_missing(report, results, task)
            report.on_every_rank(
                "gradient of all sequences of all ranks",
                [result["gradient"] for result in results],
                mistakes.accumulated(means, sizes),
                tolerance=1e-4,
                mistakes=mistakes.ACCUMULATED,
                given=(means, sizes),
                task=task,
            )
            own = [sum(each) for each in sizes]
            report_samples(report, [result["seen"] for result in results], own, OWN_SAMPLES)
            report.true(
                all(result["next is right"] for result in results),
                "the next backward pass of `model` averages as usual",
                "after the answer, a backward pass of `model` no longer averages over the ranks",
                "`model.require_backward_grad_sync` was set to False, and not to True again"
                if any(result["left off"] for result in results)
                else None,
                task="Afterwards `model` averages gradients as before",
            )
            sent = max(result["sent"] for result in results)
            once = sent_bytes("all-reduce", means[0][0].nbytes / 2, ranks)
            report.at_most(
                "bytes that a rank sends in all-reduces",
                round(sent),
                round(once),
                mistakes={
                    "when gradients are averaged after every microbatch": round(once * len(sizes[0])),
                },
                task="as many bytes in all-reduces as one synchronisation",
            )


# ---- 05.5 statistics --------------------------------------------------------------------------------------


@check
def check_05_5(report: Report, batch_statistics: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
    """Mean and variance of a batch that no rank has whole."""
    for sizes, channels, side, offset in (
        ((4, 4), 6, 4, 0.0),
        ((5, 2, 1), 6, 4, 0.0),
        ((0, 3, 2), 2, 3, 0.0),
        ((1, 0), 3, 1, 0.0),
        ((3, 6), 6, 4, 1000.0),
        ((3,), 1, 2, 0.0),
    ):
        words = f", values around {offset:,.0f}" if offset else ""
        words += ", one pixel each" if side == 1 else ""
        with report.case(f"{_count(len(sizes))} with {', '.join(map(str, sizes))} images{words}"):
            arguments = (batch_statistics, sizes, (channels, side, offset), report.seed())
            results = on_ranks(statistics, len(sizes), arguments)
            parts = results[0]["parts"]
            got = [result["answer"] for result in results]
            if not all(isinstance(answer, tuple) and len(answer) == 2 for answer in got):
                report.fail("the answer is not a pair", task="Return the mean and the variance")
            for which, name in enumerate(("mean", "variance")):
                found, known = [answer[which] for answer in got], dict(mistakes.STATISTICS[name])
                if offset and name == "variance":
                    known[
                        "when two float32 numbers around a million are subtracted, such as the mean of the squares and "
                        "the square of the mean: they are multiples of 1/16, and so is the difference"
                    ] = lambda _, found=found: mistakes.cancelled(found)
                task = "over the images of all ranks"
                if name == "variance" and not rank_differences(found, mistakes.unbiased(parts), 1e-3):
                    task = "The variance divides by n, and not by n − 1"
                elif offset:
                    task = "also where values lie around 1,000 and vary by 1"
                report.on_every_rank(
                    f"the {name} of each channel, on every rank",
                    found,
                    mistakes.statistics(parts, which),
                    tolerance=1e-3,
                    mistakes=known,
                    given=(parts,),
                    task=task,
                )
            report.true(
                all(result["kept"] for result in results),
                "x is as it was",
                "`x` has other values than before",
                task="`x` stays as it is",
            )
            report.at_most(
                "messages",
                max(result["messages"] for result in results),
                2,
                mistakes={
                    "when tensors that could travel together, such as the number of values and their sum, are sent one "
                    "by one": 3
                },
                task="at most 2 messages from each rank",
            )
            report.at_most(
                "bytes sent by a rank",
                round(max(result["sent"] for result in results)),
                8 * (len(sizes) - 1) * (2 * channels + 1),
                task="at most 8 (p − 1)(2 c + 1) bytes for c channels",
            )


# ---- 05.6 a faulty step -----------------------------------------------------------------------------------


@check
def check_05_6(report: Report, mended_step: Callable[..., float]) -> None:
    """Parameters and loss after two steps, beside one device."""
    for ranks, scale, frozen in (
        (2, 30.0, False),
        (3, 30.0, True),
        (3, 0.01, False),
        (2, 1.0, True),
        (1, 30.0, False),
    ):
        words = ", a frozen layer" if frozen else ""
        size = "large" if scale > 1 else "small" if scale < 1 else "middling"
        with report.case(f"{_count(ranks)}, {size} gradients{words}"):
            results = on_ranks(mended, ranks, (mended_step, scale, frozen, report.seed()))
            for step in range(2):
                when = "second" if step else "first"
                found = [result["steps"][step] for result in results]
                losses = found[0]["losses"]
                report.on_every_rank(
                    f"parameters after the {when} step",
                    [one["parameters"] for one in found],
                    [found[0]["right"]] * ranks,
                    mistakes={
                        text: [one["mistakes"][text] for one in found] for text in found[0]["mistakes"]
                    },
                    task="the same parameters as one device that takes the step on the whole batch",
                )
                report.on_every_rank(
                    f"loss of the {when} step",
                    [one["loss"] for one in found],
                    [sum(losses) / ranks] * ranks,
                    mistakes=mistakes.LOSSES,
                    given=(losses,),
                    task="return the mean loss over the whole batch",
                )
            seen = [max(one["seen"] for one in result["steps"]) for result in results]
            report_samples(report, seen, [4] * ranks, OWN_SAMPLES)
            messages = max(one["messages"] for result in results for one in result["steps"])
            each = {"when each gradient takes a message of its own": (2 if frozen else 4) + 1}
            report.at_most(
                "messages of a step", messages, 2, mistakes=each, task="at most 2 messages from each rank"
            )
