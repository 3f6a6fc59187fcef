"""Chapter 02: what a learner's step of attention writes: a tune, whose notes show their places, and next tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from simulator.plots.picture import Picture, render
from simulator.plots.style import PARTS, TEXT, TITLE, WIDTH, bare

Cache = tuple[Tensor, Tensor]
Step = Callable[[Tensor, Mapping[str, Tensor], Cache], tuple[Tensor, Cache]]

TUNE, D, BACK = "CAGE", 32, 3
RATES = 10000.0 ** (-torch.arange(0, D, 2) / D)
LIKE, UNLIKE = "#23614a", "#b3261e"


def turned(x: Tensor, places: Tensor) -> Tensor:
    """RoPE, which pairs the numbers i and i + d/2, as Hugging Face's LLaMA does."""
    a, b = x.chunk(2, -1)
    angle = places[:, None] * RATES
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def right_step(places: Callable[[Tensor, Cache], Tensor]) -> Step:
    """A step of one head with a cache that is right if ``places(x, kept)`` gives the places of the new tokens."""

    def step(x: Tensor, W: Mapping[str, Tensor], kept: Cache) -> tuple[Tensor, Cache]:
        q, k, v = ((x @ W[name].T)[None] for name in "qkv")
        at = places(x, kept)
        k, v = torch.cat([kept[0], turned(k, at)], 1), torch.cat([kept[1], v], 1)
        seen = torch.ones(len(x), k.shape[1], dtype=torch.bool).tril(k.shape[1] - len(x))
        met = F.scaled_dot_product_attention(turned(q, at), k, v, attn_mask=seen)
        return met[0] @ W["o"].T, (k, v)

    return step


def write_tune(step: Step, cache: bool = True, count: int = 8) -> tuple[str, list[int | None]]:
    """The tune and ``count`` notes that ``step`` writes behind it, and the places that the kept keys tell (None: it
    keeps no such key).

    The head's queries look ``BACK`` places before their own, whatever the note, and its values are the notes.

    Args:
        cache: give the tune in one call and then only the last note; otherwise give all notes to each call.

    Raises:
        ValueError: a result or what is kept has the wrong shape.
    """
    W = {name: torch.zeros(D, D) for name in "qk"} | dict.fromkeys("vo", torch.eye(D))
    W["k"][: D // 2, -1] = 1  # the last number of a note's vector is 1
    W["q"][:, -1] = 100 * turned(W["k"][None, :, -1], torch.tensor([-BACK]))[0]
    notes = torch.eye(D)[: len(TUNE)] + torch.eye(D)[-1]
    text = [*range(len(TUNE))]
    empty = torch.empty(1, 0, D), torch.empty(1, 0, D)
    new, kept = text, empty
    for i in range(count + 1):
        result, kept = step(notes[new], W, kept if cache else empty)
        if not isinstance(result, Tensor) or result.shape != (len(new), D):
            raise ValueError(f"step gives {type(result).__name__}; a result for {len(new)} tokens is needed")
        if kept[0].dim() != 3 or kept[0].shape[0] != 1:
            raise ValueError(f"step keeps keys {tuple(kept[0].shape)}; one head's are (1, tokens, {D})")
        if i < count:
            shares = result[-1, : len(TUNE)].round(
                decimals=3
            )  # of equal ones the first wins on every machine
            text = [*text, int(shares.argmax())]
            new = text[-1:] if cache else text
    keys, key = kept[0][0], W["k"][None, :, -1]
    known = {place: turned(key, torch.tensor([place]))[0] for place in range(len(text) + 1)}
    told = [next((p for p, at in known.items() if torch.allclose(one, at, atol=1e-3)), None) for one in keys]
    told = [None] * (len(text) - len(told)) + told[-len(text) :]
    return "".join(TUNE[note] for note in text), told


def play_tune(places: Callable[[Tensor, Cache], Tensor]) -> Picture:
    """What a right step writes behind the tune with a learner's ``places``, the only line that can be wrong.

    Raises:
        ValueError: it does not give a place for each new token.
    """

    def checked(x: Tensor, kept: Cache) -> Tensor:
        at = places(x, kept)
        if not isinstance(at, Tensor) or at.shape != (len(x),):
            got = tuple(at.shape) if isinstance(at, Tensor) else type(at).__name__
            raise ValueError(f"places gives {got}; a tensor of {len(x)} places is needed")
        return at

    return plot_tune({"with your places": write_tune(right_step(checked))})


def plot_tune(ways: Mapping[str, tuple[str, Sequence[int | None]]]) -> Picture:
    """For each way to write the notes in a row, and below each the place that its kept key tells.

    Raises:
        ValueError: there is no way.
    """
    from matplotlib.figure import Figure

    if not ways:
        raise ValueError("give one or more ways to write the tune")
    figure = Figure(figsize=(WIDTH, 1.25 * len(ways)), layout="constrained")
    said = []
    for axis, (name, (text, places)) in zip(
        figure.subplots(len(ways), 1, squeeze=False)[:, 0], ways.items(), strict=True
    ):
        right = [note == TUNE[i % len(TUNE)] for i, note in enumerate(text)]
        good = sum(right[len(TUNE) :])
        title = f"{name}: {good} of {len(text) - len(TUNE)} written notes are right"
        middle = {"ha": "center", "va": "center_baseline", "fontsize": TEXT}
        for i, (note, place) in enumerate(zip(text, places, strict=True)):
            colour = "#777777" if i < len(TUNE) else LIKE if right[i] else UNLIKE
            axis.scatter([i], [1], s=16**2, marker="s", color=colour)
            axis.text(i, 1, note, color="white", **middle)
            axis.text(i, 0.2, "no\nkey" if place is None else str(place), color=PARTS[0], **middle)
        axis.set_title(title, fontsize=TITLE, loc="left")
        axis.set_yticks([1, 0.2], ["note", "place in its key"])
        axis.set(xlim=(-0.6, len(text) - 0.4), ylim=(-0.1, 1.45), xticks=[])
        bare(axis)
        axis.spines["bottom"].set_visible(False)
        at = ", ".join("no key" if place is None else str(place) for place in places)
        said.append(f"{title}: {text}; places {at}")
    return render(figure, f"A tune of {len(TUNE)} notes, and what was written behind it. {'. '.join(said)}.")


def plot_next(theirs: Sequence[int], yours: Sequence[int], kept: int, enough: int) -> Picture:
    """The most likely next token at each place: Hugging Face's above, the learner's below, red where it is another.

    Args:
        kept, enough: bytes that the learner's cache keeps of a token, and those that it needs.

    Raises:
        ValueError: there are no places, or not the same number of both.
    """
    from matplotlib.figure import Figure

    if not len(theirs) or len(theirs) != len(yours):
        raise ValueError(f"give next tokens for the same places, not for {len(theirs)} and {len(yours)}")
    figure = Figure(figsize=(WIDTH, 1.5), layout="constrained")
    axis = figure.subplots()
    equal = [a == b for a, b in zip(theirs, yours, strict=True)]
    for height, name, tokens in ((1, "Hugging Face's Llama-2", theirs), (0, "your step", yours)):
        axis.text(-0.5, height + 0.3, name, fontsize=TEXT, va="bottom")
        for place, (token, good) in enumerate(zip(tokens, equal, strict=True)):
            colour = LIKE if good else "#444444" if height else UNLIKE
            axis.text(place, height, str(token), fontsize=TEXT, ha="center", va="center", color=colour)
    title = f"the same next token at {sum(equal)} of {len(equal)} places"
    axis.set_title(title, fontsize=TITLE, loc="left")
    bytes_ = f"a token leaves {kept:,} bytes (in all layers, 2 a number)" + (
        f", {kept / enough:g} times what is needed" if kept != enough else ""
    )
    axis.text(-0.5, -0.75, bytes_, fontsize=TITLE, va="center", color=LIKE if kept == enough else UNLIKE)
    axis.set(xlim=(-0.6, len(equal) - 0.4), ylim=(-1.1, 1.8), xticks=[], yticks=[])
    bare(axis)
    axis.spines["bottom"].set_visible(False)
    places = ", ".join(str(i) for i, good in enumerate(equal, 1) if good)
    return render(figure, f"{title}{f': {places}' * bool(places)}; {bytes_}.")
