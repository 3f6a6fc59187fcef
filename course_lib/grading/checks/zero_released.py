"""Exercise 06.2, judged: what each rank kept of three backwards, beside one process that knows all ranks' inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.checks.zero_mistakes import SHARDS, shards
from course_lib.grading.checks.zero_ranks import Tied, loss_of
from course_lib.grading.compare import difference
from course_lib.grading.report import Report
from simulator.predict.collective_traffic import sent_bytes


def check_released(
    report: Report, found: list[dict[str, Any]], model_of: tuple, inputs: list[list[Tensor]]
) -> None:
    ranks, model = len(found), Tied(*model_of)
    names, parameters = zip(*model.named_parameters(), strict=True)
    padded = [_padded_gradients(model, of_ranks, step) for step, of_ranks in enumerate(inputs)]
    for step in range(len(inputs)):
        for i, name in enumerate(names):
            so_far = [gradients[i] for gradients in padded[: step + 1]]
            got, want = [result["after"][step][i] for result in found], shards(so_far)
            if want is None:
                entry = next((one for one in got if one is not None), None)
                if entry is not None:
                    report.fail(
                        f"`{name}` has an entry, though no backward has reached it",
                        task="The first backward that reaches a parameter makes its entry",
                    )
                continue
            if keys := found[0]["keys"]:
                report.fail(
                    f"`means` has keys of type {keys}, and the parameters themselves are wanted",
                    task="`means[parameter]` holds this rank's shard of the gradient",
                )
            _check_entry(report, f"backward {step + 1}, `{name}`", got, want, (so_far, parameters[i].numel()))
    report.ok("after three backwards every rank has its shard of every mean")
    left = max(result["left"] for result in found)
    task = "From then on every backward pass leaves no `.grad` on these parameters"
    report.true(
        not left, "no whole gradient is left", f"{left} whole gradients are left after backward", task=task
    )
    reached = sum(gradient is not None for gradients in padded for gradient, *_ in gradients)
    report.true(
        all(result["watched"] == reached for result in found),
        "other hooks are still called, and see the gradient",
        "a hook that was registered before is not called any more, or sees no gradient",
        task="Hooks that others have registered stay and see the gradient",
    )
    trained = [p for p in parameters if p.requires_grad]
    task = "Never more bytes of whole gradients at once than the two largest parameters have"
    most = sum(sorted(4 * p.numel() for p in trained)[-2:])
    report.at_most("bytes of gradients at once", max(result["peak"] for result in found), most, task=task)
    elements = [
        of_ranks[0].numel() for gradients in padded for of_ranks in gradients if of_ranks[0] is not None
    ]
    limit = int(sent_bytes("reduce-scatter", 4 * sum(elements), ranks))
    task = "no more bytes sent than one reduce-scatter for each gradient"
    report.at_most("bytes sent by a rank", int(found[0]["sent"]), limit, task=task)
    shard_bytes = sum(4 * -(-p.numel() // ranks) for p in trained)
    task = "The tensors in `means` keep no more memory than the shards need"
    report.at_most("bytes kept by `means`", max(r["kept"] for r in found), shard_bytes, task=task)


def _padded_gradients(model: Tied, of_ranks: Sequence[Tensor], step: int) -> list[list[Tensor | None]]:
    """For each parameter, the gradient of each rank: flat and padded, or None where backward does not reach it."""
    ranks, found = len(of_ranks), []
    trained = [p for p in model.parameters() if p.requires_grad]
    for x in of_ranks:
        gradients = torch.autograd.grad(loss_of(model, x, step), trained, allow_unused=True)
        by_parameter = dict(zip(trained, gradients, strict=True))
        found.append([by_parameter.get(p) for p in model.parameters()])
    return [
        [None if g is None else F.pad(g.flatten(), (0, -g.numel() % ranks)) for g in of_one]
        for of_one in zip(*found, strict=True)
    ]


def _check_entry(report: Report, name: str, got: list, want: list[Tensor], given: tuple[Any, ...]) -> None:
    """One entry on every rank; it is stated only where it is wrong, as there are many.

    Args:
        given: of the parameter, its padded gradients so far and how many elements it has.
    """
    if not any(difference(one, w, 1e-4) for one, w in zip(got, want, strict=True)):
        return
    if all(one is None for one in got):
        report.fail(f"{name}: there is no entry", task="holds this rank's shard of the gradient")
    report.on_every_rank(
        f"{name}: every rank has its shard of the mean",
        got,
        want,
        tolerance=1e-4,
        mistakes=SHARDS,
        given=given,
        task="holds this rank's shard of the gradient, averaged over all ranks",
    )
