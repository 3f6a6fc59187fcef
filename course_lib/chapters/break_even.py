"""Chapter 13: what a slow helper can add, from which link on and from how many sequences on it does, in pictures."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from simulator.inputs.checks import at_least, positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, plain_axes

LINES = ("#23614a", "#143f70", "#cc6a26")  # of the fastest link first
BESIDE = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}


def plot_ceiling(fast: float, slow: float) -> Picture:
    """How many times as fast as one device two are, over the slow one's share of the work; messages take no time.

    Args:
        fast, slow: tokens a second of each alone.
    """
    from matplotlib.figure import Figure

    if not fast >= slow > 0:
        raise ValueError(f"give the fast device first, and speeds above 0, not {fast} and {slow}")
    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    axis, best = figure.subplots(), slow / (fast + slow)

    def times(share: float) -> float:
        return 1 / max(1 - share, share * fast / slow)

    shares = sorted([*(k / 200 for k in range(141)), best])
    axis.plot([100 * s for s in shares], [times(s) for s in shares], color=LINES[1], linewidth=2)
    axis.axhline(1, color="#444444", linestyle="--", linewidth=1.2)
    axis.annotate("the fast one alone", (0, 1), **{**BESIDE, "xytext": (6, -10)})
    said = [f"{100 * s:.0f}% of the work: {times(s):.2f} times" for s in sorted({round(best, 9), 0.5})]
    for share, words in zip(sorted({round(best, 9), 0.5}), said, strict=True):
        axis.plot(100 * share, times(share), "o", color=LINES[1], markersize=7)
        axis.annotate(words, (100 * share, times(share)), **{**BESIDE, "xytext": (10, 5)})
    axis.set_title("predicted, without messages", loc="left", fontsize=TITLE)
    axis.set(xlim=(0, 70), ylim=(0, 2.1))
    axis.set_xticks(range(0, 71, 10), [f"{k}%" for k in range(0, 71, 10)])
    axis.set_yticks([0, 0.5, 1, 1.5, 2])
    axis.set_xlabel("the slow one's share of the work", fontsize=TEXT, loc="right")
    axis.set_ylabel("times as fast", fontsize=TEXT)
    plain_axes(axis)
    return render(figure, f"Without messages, the slow one with {', with '.join(said)} as fast as one alone.")


def enough_sequences(sequence: float, message: float, slowness: int) -> int:
    """The smallest step of sequences that can be dealt ``slowness`` to 1 and takes the pair less time than one device.

    Args:
        sequence: seconds that a sequence takes the fast device.
        message: seconds of the gradients, once a step.
    """
    return (slowness + 1) * (int(message / sequence) + 1)


def deal_sequences(step: int, fast: float, slow: float) -> list[int]:
    """How many sequences of a step each device gets, so that both end as early as they can."""
    given = int(step * slow / (fast + slow))
    deals = ([step - own, own] for own in (given, given + 1))
    return min(deals, key=lambda deal: max(deal[0] / fast, deal[1] / slow))


def plan_pair(fast: float, slow: float, parameters: float, link: float, step: int, tokens: int = 512) -> str:
    """What two devices gain that deal sequences, in two lines: shares of a step, and the smallest step that is faster.

    Args:
        fast, slow: tokens a second of each alone.
        parameters: their gradients have 32 bits, and are sent after backward.
        link: bytes a second.
        step: sequences.
        tokens: of a sequence.
    """
    positive(slow=slow, parameters=parameters, link=link)
    at_least(2, step=step)
    if fast < slow:
        raise ValueError(f"give the fast device first, not {fast:,} and {slow:,}")

    def times(deal: list[int]) -> float:
        seconds = tokens * max(deal[0] / fast, deal[1] / slow) + 4 * parameters / link
        return tokens * sum(deal) / fast / seconds

    # No step is smaller: here each device would get just what its speed says, in parts of sequences.
    ideal = 4 * parameters / link * fast * (fast + slow) / (slow * tokens)
    deals = (deal_sequences(n, fast, slow) for n in count(int(ideal) + 1))
    least, own = next(deal for deal in deals if times(deal) > 1), deal_sequences(step, fast, slow)
    return (
        f"shares = {own}: {times(own):.3f} times as fast as one alone\nsmallest step that is faster: {least}"
    )


def plot_over_sequences(sequence: float, messages: Mapping[str, float], slowness: int) -> Picture:
    """Milliseconds for each sequence over the sequences of a step, where sequences are dealt.

    A dot is where the pair becomes faster; a curve below that of one device from its left end on has none.

    Args:
        sequence, slowness: as ``enough_sequences``.
        messages: link -> seconds of the gradients over it, the shortest first.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axis = figure.subplots()
    least, most, share = slowness + 1, 10_000, slowness / (slowness + 1)
    one, sent = 1e3 * sequence, {link: 1e3 * seconds for link, seconds in messages.items()}
    steps = [least * (most / least) ** (k / 200) for k in range(201)]
    enough = {link: enough_sequences(one, took, slowness) for link, took in sent.items()}
    axis.axhline(one, color="#444444", linestyle="--", linewidth=1.2)
    for colour, (link, took) in zip(LINES, sent.items(), strict=False):
        axis.plot(steps, [share * one + took / n for n in steps], color=colour, linewidth=2)
        at, how = (enough[link], share * one + took / enough[link]), {**BESIDE, "color": colour}
        if enough[link] == least:  # faster from its left end on: no crossing, no dot
            axis.annotate(f"over {link}, from {least} on", at, **{**how, "xytext": (6, -16)})
            continue
        axis.plot(*at, "o", color=colour, markersize=7, zorder=3)
        axis.annotate(f"from {enough[link]:,} on", at, **{**how, "xytext": (5, 12)})
        name_at = max(least, took / (1.7 - share) / one)  # where the line is 1.7 sequences high
        axis.annotate(f"over {link}", (name_at, share * one + took / name_at), **how)
    axis.annotate("the fast one alone", (most, one), **{**BESIDE, "xytext": (0, 8), "ha": "right"})
    axis.axhline(share * one, color="#444444", linestyle=":", linewidth=1.2)
    below = {"xytext": (0, -9), "ha": "right"}
    axis.annotate(f"{slowness}/{least} of it", (most, share * one), **{**BESIDE, **below})
    axis.set_title("predicted", loc="left", fontsize=TITLE)
    axis.set(xscale="log", xlim=(least, most), ylim=(0, 2 * one))
    ticks = [least, 10, 100, 1000, most]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("sequences a step (log scale)", fontsize=TEXT, loc="right")
    axis.set_ylabel("ms for each sequence", fontsize=TEXT)
    plain_axes(axis)
    said = ", ".join(f"over {link} from {n:,} sequences a step on" for link, n in enough.items())
    return render(
        figure, f"Milliseconds for each sequence over the sequences of a step. The pair is faster {said}."
    )
