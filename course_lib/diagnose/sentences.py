"""What a cause is called, in a sentence, and what mends it."""

from __future__ import annotations

from course_lib.diagnose.judge import Cause
from course_lib.diagnose.record import AFTER, FLOWING, GRADIENT, OUTPUT, UNCLIPPED, WEIGHT

WEIGHTS = {
    "unlike": "{is_} not one device's on {ranks} before the step: {it} with other values. Build every rank's model "
    "from the same seed, or broadcast it from rank 0.",
    "missing": "{is_} not whole: parts of one device's values are on no rank, others are on several. Each rank must "
    "take its own part.",
    "repeated": "{is_} cut so that some values are on more ranks than others.",
    "permuted": "{is_} on {ranks} in another order than on one device.",
    "zero": "{is_} zero on {ranks} before the step.",
    "factor": "{is_} {factor} times one device's before the step.",
    "sum": "{is_} an addend on each rank before the step: the values of {axis} add up to one device's.",
}
OUTPUTS = {
    "bias": "has a bias once for each rank: it is added before the sum over {axis}. Add it once, after the sum.",
    "sum used": "is an addend of a sum on each rank, and what follows ({near}) uses it as if it were whole: the "
    "values of {axis} add up to one device's. Sum it over {axis} first.",
    "mixes": "is wrong, although what it is given is a right part of one device's, along dim {dims}: it computes "
    "over that dim, and each rank sees only its own part. It must communicate, or be given another part (of a "
    "packed matrix, a part of each piece).",
    "order": "is wrong: its weight on a rank is not for the part of the input that the rank is given. Cut both alike.",
    "inside": "is wrong, although what it is given is right: the fault is inside it.",
    "between": "is wrong, although the last module that ran inside it ({near}) is right{cut}: the fault is after it.",
    "given": "is wrong because what it is given is. What ran just before ({near}) is right{cut}: the fault is "
    "between the two.",
    "missing": "covers only a part of one device's: some of it is on no rank. Do the ranks take the same part of the "
    "batch or the same positions, or are rows dropped?",
    "repeated": "has some positions on more ranks than others: they count more than on one device.",
    "permuted": "is on {ranks} in another order than on one device.",
    "factor": "is {factor} times one device's, but for a bias. Is it summed twice, or averaged?",
    "zero": "is zero on {ranks}.",
}
GRADIENTS = {
    "sum": "{is_} an addend on each rank: the values of {axis} add up to one device's. Sum over {axis} before the "
    "{user}.",
    "average": "{is_} each rank's own: the values of {axis} average to one device's. Average over {axis} before the "
    "{user}.",
    "factor": "{is_} {factor} times one device's, on every rank.",
    "by rank": "{is_} one device's times another number on each rank ({factors}). Is it clipped or scaled by a number "
    "that each rank computes alone?",
    "zero": "{is_} zero on {ranks}, and not on one device. Was the graph cut (detach, requires_grad, a collective "
    "without a backward)?",
    "none": "{is_} missing: no rank computes it. Was the graph cut (detach, no_grad, a collective without a "
    "backward)?",
    "another rank's": "{is_} that of another rank's part, on {ranks}.",
    "permuted": "{is_} on {ranks} in another order than on one device.",
    "stale": "{is_} that of the step before, on {ranks}.",
    "kept": "{is_} added to that of the step before, on {ranks}: set it to None after the optimizer's step.",
    "unlike": "{is_} wrong on {ranks}, although the gradient of the module's output is right.",
}
FLOWS = {
    "weights": "has another weight on each rank ({factors} times one device's): the ranks' losses are means of unequal "
    "numbers of samples or tokens. Divide each sum by the number on all ranks.",
    "sum": "is an addend on each rank in backward: the values of {axis} add up to one device's. What reads the output "
    "must sum its gradient over {axis} (Megatron's f).",
    "unlike": "is wrong, and all that backward computed before it is right: the fault is in {reader}.",
}
AFTERS = {
    "zero": "{has} not moved on {ranks}, and {has} on one device. Send the new values to every rank.",
    "thawed": "{has} moved on {ranks}, and {has} not on one device, where it is frozen.",
    "factor": "{has} moved {factor} times as far as on one device, with a right gradient.",
    "by rank": "{has} moved another number of times as far on each rank ({factors}), with a right gradient.",
}
TEXTS = {
    WEIGHT: WEIGHTS,
    OUTPUT: OUTPUTS,
    UNCLIPPED: GRADIENTS,
    GRADIENT: GRADIENTS,
    FLOWING: FLOWS,
    AFTER: AFTERS,
}
ELSE = {AFTER: "{has} moved elsewhere on {ranks} than on one device.", OUTPUT: "is wrong."}


def sentence(cause: Cause) -> str:
    """What is wrong and how, and where that is known, what mends it."""
    text = TEXTS[cause.kind].get(cause.verdict, ELSE.get(cause.kind, "{is_} wrong on {ranks}."))
    place, many = cause.placement, len(cause.names) > 1
    factors, wrong = list(place.factors.values()), place.ranks
    dims = " and ".join(map(str, place.dims))
    said = text.format(
        is_="are" if many else "is",
        has="have" if many else "has",
        it="they begin" if many else "it begins",
        ranks=(f"rank{'s' * (len(wrong) > 1)} " + ", ".join(map(str, wrong))) if wrong else "every rank",
        axis=place.axis,
        near=f"`{cause.near}`",
        cut=f", each rank with its part of dim {dims}" if dims else "",
        dims=dims,
        factor=f"{factors[0]:.6g}" if factors else "",
        factors=", ".join(f"{k:.3g} on rank {r}" for r, k in place.factors.items()),
        user="clipping" if cause.kind == UNCLIPPED else "optimizer",
        reader=cause.near or "the backward of what reads the output",
    )
    return f"{_subject(cause)} {said}"


def _subject(cause: Cause) -> str:
    end = ".grad" if cause.kind in (GRADIENT, UNCLIPPED) else ""
    first, more = f"`{cause.names[0]}{end}`", len(cause.names) - 1
    if cause.kind == FLOWING:
        return f"The gradient of the output of {first}"
    if cause.kind == OUTPUT:
        return f"The output of {first}"
    return first if not more else f"{first} and {more} more"
