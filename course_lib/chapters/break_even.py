"""Chapter 13: what a slow helper can add, from which link on and from how many sequences on it does, in pictures."""

from __future__ import annotations

from collections.abc import Mapping

from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, WIDTH, plain_axes

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
    axis.set(xlim=(0, 70), ylim=(0, 2.1))
    axis.set_xticks(range(0, 71, 10), [f"{k}%" for k in range(0, 71, 10)])
    axis.set_yticks([0, 0.5, 1, 1.5, 2])
    axis.set_xlabel("the slow one's share of the work", fontsize=TEXT, loc="right")
    axis.set_ylabel("times as fast", fontsize=TEXT)
    plain_axes(axis)
    return render(figure, f"Without messages, the slow one with {', with '.join(said)} as fast as one alone.")


def plot_over_width(times: Mapping[int, float]) -> Picture:
    """How many times as fast as one device two are that cut layers, over the width of a layer.

    A dot is where they become faster.

    Args:
        times: width -> how many times as fast, narrow layers first.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    axis, widths = figure.subplots(), list(times)
    axis.plot(widths, list(times.values()), color=LINES[1], linewidth=2)
    axis.axhline(1, color="#444444", linestyle="--", linewidth=1.2)
    axis.annotate("the fast one alone", (widths[0], 1), **{**BESIDE, "xytext": (6, 8)})
    enough = next((width for width in widths if times[width] > 1), None)
    said = "never faster" if enough is None else f"faster from {enough:,} on"
    if enough is not None:
        axis.plot(enough, times[enough], "o", color=LINES[1], markersize=7)
        axis.annotate(said, (enough, times[enough]), **{**BESIDE, "xytext": (6, -12)})
    axis.set(xlim=(0, widths[-1]), ylim=(0, 1.1 * max(1, *times.values())))
    axis.set_xticks(ticks := range(0, widths[-1] + 1, 2000), [f"{t:,}" for t in ticks])
    axis.set_xlabel("width of a layer", fontsize=TEXT, loc="right")
    axis.set_ylabel("times as fast", fontsize=TEXT)
    plain_axes(axis)
    start = f"{times[widths[0]]:.2f} times as fast as one at a width of {widths[0]:,}"
    return render(figure, f"With cut layers two devices are {start}, {said}.")


def enough_sequences(sequence: float, message: float, slowness: int, hidden: bool = False) -> int:
    """The smallest step of sequences that can be dealt ``slowness`` to 1 and takes the pair less time than one device.

    Args:
        sequence: seconds that a sequence takes the fast device.
        message: seconds of the gradients, once a step.
        hidden: they are sent while backward, two thirds of the work, goes on.
    """
    # How many sequences' work the fast device has done before the first gradient is sent.
    before = slowness / 3 if hidden else slowness
    return (slowness + 1) * (int(message / sequence / (slowness + 1 - before)) + 1)


def plot_over_sequences(
    sequence: float, messages: Mapping[str, float], slowness: int, hidden: str | None = None
) -> Picture:
    """Milliseconds for each sequence over the sequences of a step, where sequences are dealt.

    A dot is where the pair becomes faster; a curve below that of one device from its left end on has none.

    Args:
        sequence, slowness: as ``enough_sequences``.
        messages: link -> seconds of the gradients over it, the shortest first.
        hidden: a link whose curve is also drawn, dashed, with gradients that are sent during backward.
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
    if hidden:
        enough[during := f"{hidden} during backward"] = n = enough_sequences(
            one, sent[hidden], slowness, True
        )

        def each(n: float) -> float:
            return share * one / 3 + max(share * one * 2 / 3, sent[hidden] / n)

        colour = LINES[list(sent).index(hidden)]
        axis.plot(steps, [each(n) for n in steps], color=colour, linestyle=(0, (3, 1)), linewidth=2)
        crossing = sent[hidden] / one / (1 - share / 3)
        axis.plot(crossing, one, "o", color=colour, markersize=7, zorder=3)
        axis.annotate(
            f"over {during}:\nfrom {n:,} on, the next multiple of {least}", (crossing, one),
            xytext=(least * 1.15, 0.42 * one), color=colour,
            fontsize=TEXT, va="center", arrowprops={"arrowstyle": "-", "color": colour, "shrinkB": 5},
        )  # fmt: skip
    left, how = {"xytext": (6, 8)}, {"xytext": (0, 8), "ha": "right"}
    axis.annotate(
        "the fast one alone", (most if hidden else least, one), **{**BESIDE, **(how if hidden else left)}
    )
    axis.axhline(share * one, color="#444444", linestyle=":", linewidth=1.2)
    below = {"xytext": (0, -9), "ha": "right"}
    axis.annotate(f"{slowness}/{least} of it", (most, share * one), **{**BESIDE, **below})
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
