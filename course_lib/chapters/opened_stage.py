"""One stage of ResNet-18 opened: its boxes from left to right, each with what it keeps for backward (chapter 01)."""

from __future__ import annotations

import copy

import torch

from course_lib.models.resnet import ResNet18
from course_lib.observe.ledgers.saved import saved_tensors
from course_lib.observe.networks.render import PALETTE, PLAIN
from simulator.plots.picture import Picture, render
from simulator.plots.style import TEXT, TITLE, WIDTH

BOXES = ("conv1", "bn1", "relu", "conv2", "bn2", "+", "relu")  # of a block, in the order of forward
DRAWN = {
    "conv1": "conv",
    "conv2": "conv",
    "bn1": "norm",
    "bn2": "norm",
}  # bn1 is also a box of the whole network
STAGE, WIDE = "layer1", 0.82
RESULT = "relu"  # keeps its result; the others that keep something keep their input
COLOURS = {"keeps its input": PALETTE[1], "keeps its result": PALETTE[2]}


def kept_in_stage(resnet: ResNet18, images: int) -> list[list[int]]:
    """For both blocks of ``layer1`` the bytes that each box keeps for backward when all is trained."""
    model = copy.deepcopy(resnet).train().requires_grad_(True)
    kept = [[0] * len(BOXES) for _ in range(2)]
    at = [0, 0]  # forward calls relu twice, so boxes are found in the order of saving
    for tensor in saved_tensors(model, torch.zeros(images, 3, 224, 224)):
        stage, _, rest = tensor.saved_in.partition(".")
        if stage == STAGE:
            block, name = int(rest[0]), rest[2:]
            while BOXES[at[block]] != name or (name == "relu" and kept[block][at[block]]):
                at[block] += 1
            kept[block][at[block]] += tensor.bytes
    return kept


def plot_opened(resnet: ResNet18, images: int = 32) -> Picture:
    """The two blocks of ``layer1`` as two rows of boxes; coloured by what they keep, input or result."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, Rectangle

    kept = kept_in_stage(resnet, images)
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    axis = figure.subplots()
    arrow = {"arrowstyle": "-|>", "mutation_scale": 9, "color": "#333333", "shrinkA": 0, "shrinkB": 0}
    for block, row in enumerate(kept):
        low = -1.5 * block
        axis.text(-0.95, low + 0.42, f"{STAGE}.{block}", fontsize=TEXT, va="bottom")
        for i, (name, size) in enumerate(zip(BOXES, row, strict=True)):
            colour = COLOURS["keeps its result" if name == RESULT else "keeps its input"] if size else PLAIN
            axis.add_patch(Rectangle((i, low - 0.35), WIDE, 0.7, facecolor=colour, edgecolor="#333333"))
            axis.text(
                i + WIDE / 2,
                low + 0.15,
                DRAWN.get(name, name),
                ha="center",
                va="center",
                fontsize=TEXT,
                weight="bold",
            )
            told = f"{size / 1e6:.1f} MB" if size else "–"
            axis.text(i + WIDE / 2, low - 0.15, told, ha="center", va="center", fontsize=TEXT)
            begin = i - 1 + WIDE if i else -0.95
            axis.add_patch(FancyArrowPatch((begin, low), (i, low), **arrow))
        plus = BOXES.index("+") + WIDE / 2
        axis.plot([-0.3, -0.3, plus], [low, low + 0.6, low + 0.6], color="#333333", lw=1)
        axis.add_patch(FancyArrowPatch((plus, low + 0.6), (plus, low + 0.35), **arrow))
    axis.set_title(f"{STAGE}: what its boxes keep of {images} images", loc="left", fontsize=TITLE)
    patches = [
        Rectangle((0, 0), 1, 1, facecolor=colour, edgecolor="#333333", label=what)
        for what, colour in COLOURS.items()
    ]
    axis.legend(
        handles=patches, loc="lower right", bbox_to_anchor=(1, 0.97), ncols=2, frameon=False, fontsize=TEXT
    )
    axis.set(xlim=(-1, len(BOXES) - 0.1), ylim=(-1.95, 0.75))
    axis.set_axis_off()
    said = "; ".join(
        f"{STAGE}.{block}: "
        + ", ".join(
            f"{DRAWN.get(n, n)} its {'result' if n == RESULT else 'input'} {s / 1e6:.1f} MB"
            if s
            else DRAWN.get(n, n)
            for n, s in zip(BOXES, row, strict=True)
        )
        for block, row in enumerate(kept)
    )
    return render(figure, f"The boxes of {STAGE}, with what each keeps of {images} images. {said}.")
