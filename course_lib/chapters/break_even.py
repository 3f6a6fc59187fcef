"""Chapter 13: what a slow helper can add, from which link on and from how many sequences on it does, in pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from course_lib.chapters.refused import Refused
from simulator.inputs.checks import at_least, positive
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH, plain_axes
from simulator.predict.overlap import ddp_timeline

LINES = ("#23614a", "#143f70", "#cc6a26")  # of the faster way first
BESIDE = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": TEXT}


def plot_ceiling(fast: float, slow: float) -> Picture:
    """How many times as fast as one device two are, over the slow one's share of the work; messages take no time.

    Args:
        fast, slow: tokens a second of each alone.
    """
    from matplotlib.figure import Figure

    if not fast >= slow > 0:
        raise Refused(f"give the fast device first, and speeds above 0, not {fast} and {slow}")
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


def deal_sequences(step: int, fast: float, slow: float) -> list[int]:
    """How many sequences of a step each device gets, so that both end as early as they can."""
    given = int(step * slow / (fast + slow))
    deals = ([step - own, own] for own in (given, given + 1))
    return min(deals, key=lambda deal: max(deal[0] / fast, deal[1] / slow))


@dataclass(frozen=True)
class Pair:
    """Two devices that deal sequences and send gradients of 32 bits, as DDP does.

    Args:
        fast, slow: tokens a second of each alone.
        parameters: of the model.
        link: bytes a second.
        embeddings: of the parameters, those whose gradients come last, when nothing is left to hide them.
        layers: they share the other parameters evenly.
        tokens: of a sequence.
        overlap: a layer's gradients are sent as soon as its backward has ended; False: after the whole backward.
        microbatches: of each device's share; messages overlap with the backward of the last one.
    """

    fast: float
    slow: float
    parameters: float
    link: float
    embeddings: float = 0
    layers: int = 12
    tokens: int = 512
    overlap: bool = True
    microbatches: int = 1

    def __post_init__(self) -> None:
        positive(slow=self.slow, parameters=self.parameters, link=self.link)
        at_least(1, layers=self.layers, microbatches=self.microbatches)
        if self.fast < self.slow:
            raise Refused(f"give the fast device first, not {self.fast:,} and {self.slow:,}")
        if not 0 <= self.embeddings <= self.parameters:
            raise ValueError(f"give from 0 to {self.parameters:,} embeddings, not {self.embeddings:,}")

    def deal(self, step: int) -> list[int]:
        """Shares of a step by speed; each device cuts its own into as many equal microbatches."""
        if step % self.microbatches:
            raise ValueError(f"{step} sequences a step are not {self.microbatches} equal microbatches")
        return [
            self.microbatches * n for n in deal_sequences(step // self.microbatches, self.fast, self.slow)
        ]

    def computing(self, deal: Sequence[float]) -> list[float]:
        """Seconds that each device computes."""
        return [self.tokens * n / speed for n, speed in zip(deal, (self.fast, self.slow), strict=True)]

    def seconds(self, deal: Sequence[float]) -> float:
        """Of a step that is dealt so; backward takes twice as long as forward."""
        own = self.computing(deal)
        longest, layer = max(own), max(own) / self.microbatches / self.layers / 3
        return ddp_timeline(
            [longest * (1 - 1 / self.microbatches), *[layer] * self.layers],
            [0, *[2 * layer] * self.layers],
            [4 * self.embeddings, *[4 * (self.parameters - self.embeddings) / self.layers] * self.layers],
            ranks=2,
            bandwidth=self.link,
            overlap=self.overlap,
            speeds=[longest / max(seconds, 1e-9) for seconds in own],
        ).makespan

    def exposed(self, deal: Sequence[float]) -> float:
        """Seconds of messages after both devices have computed."""
        return self.seconds(deal) - max(self.computing(deal))

    def times(self, deal: Sequence[float]) -> float:
        """How many times as fast as the fast device alone."""
        return self.tokens * sum(deal) / self.fast / self.seconds(deal)

    def smallest(self, gain: float = 1) -> list[int]:
        """The deal of the smallest step that is more than so many times as fast as the fast device alone."""
        most = 1 + self.slow / self.fast
        if gain >= most:
            raise ValueError(f"the pair is less than {most:.2f} times as fast in every step, so not {gain}")
        # No step is smaller: here the link is busy from the end of forward on, and both devices end together.
        ideal = 4 * self.parameters / self.link * self.fast / self.tokens
        ideal /= 1 / gain - 1 / most / (3 if self.overlap else 1)
        least = max(2, int(ideal / self.microbatches))
        deals = (self.deal(n * self.microbatches) for n in count(least))
        return next(deal for deal in deals if self.times(deal) > gain + 1e-9)  # of rounding


def plan_pair(pair: Pair, step: int) -> str:
    """What a pair gains, in two lines: shares of a step, and the smallest step that is faster."""
    at_least(2, step=step)
    own = pair.deal(step)
    return (
        f"shares = {own}: {pair.times(own):.3f} times as fast as one alone\n"
        f"smallest step that is faster: {pair.smallest()}"
    )


def tell_step(pair: Pair, shares: Sequence[int], wanted: float) -> str:
    """What a dealt step takes, from what its messages come, and whether the pair gains as much as wanted."""
    fast, slow = pair.computing(shares)
    late, last = pair.exposed(shares), 4 * pair.embeddings / pair.link
    lowest = 4 * (pair.parameters - pair.embeddings) / pair.layers / pair.link
    of = {"embeddings": last, "lowest layer": lowest, "layers above": late - last - lowest}
    parts = ", ".join(f"{name} {1e3 * own:.1f}" for name, own in of.items() if own > 5e-5)
    gain, said = pair.times(shares), "not yet"
    if gain >= wanted:
        fewer = sum(shares) > sum(pair.smallest(wanted))
        said = "enough, but fewer do" if fewer else "enough, with the fewest"
    return (
        f"computing: {1e3 * fast:.1f} ms, {1e3 * slow:.1f} ms\n"
        f"messages that backward does not hide: {1e3 * late:.1f} ms ({parts})\n"
        f"{gain:.3f} times as fast as one alone: {said}"
    )


def plot_over_sequences(pair: Pair) -> Picture:
    """Milliseconds for each sequence over the sequences of a step, with messages after backward and during it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axis, least, most = figure.subplots(), 3, 1000
    one, share = 1e3 * pair.tokens / pair.fast, pair.fast / (pair.fast + pair.slow)
    steps, said = [least * (most / least) ** (k / 200) for k in range(201)], []
    axis.axhline(one, color="#444444", linestyle="--", linewidth=1.2)
    for colour, overlap in zip(LINES, (True, False), strict=False):
        way, name = replace(pair, overlap=overlap), "during backward" if overlap else "after backward"
        curve = [1e3 * way.seconds([n * share, n * (1 - share)]) / n for n in steps]
        axis.plot(steps, curve, color=colour, linewidth=2)
        deal = way.smallest()
        at, how = (sum(deal), 1e3 * way.seconds(deal) / sum(deal)), {**BESIDE, "color": colour}
        axis.plot(*at, "o", color=colour, markersize=7, zorder=3)
        where = {"xytext": (-6, -12), "ha": "right"} if overlap else {"xytext": (5, 12)}
        axis.annotate(f"from {at[0]:,} on", at, **{**how, **where})
        label = f"sent {name}".replace(" b", "\nb") if overlap else f"sent {name}"
        high = next(i for i, ms in enumerate(curve) if ms < 1.7 * one)
        where = {"xytext": (-10, 0), "ha": "right"} if overlap else {"xytext": (8, 4)}
        axis.annotate(label, (steps[high], curve[high]), **{**how, **where})
        said.append(f"with messages {name} from {at[0]:,} sequences a step on")
    axis.annotate("the fast one alone", (most, one), **{**BESIDE, "xytext": (0, 8), "ha": "right"})
    axis.axhline(share * one, color="#444444", linestyle=":", linewidth=1.2)
    axis.annotate("without messages", (most, share * one), **{**BESIDE, "xytext": (0, -9), "ha": "right"})
    axis.set_title("predicted", loc="left", fontsize=TITLE)
    axis.set(xscale="log", xlim=(least, most), ylim=(0, 2 * one))
    ticks = [least, 10, 100, most]
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("sequences a step (log scale)", fontsize=TEXT, loc="right")
    axis.set_ylabel("ms for each sequence", fontsize=TEXT)
    plain_axes(axis)
    told = f"The pair is faster {', '.join(said)}."
    return render(figure, f"Milliseconds for each sequence over the sequences of a step. {told}")
