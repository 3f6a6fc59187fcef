"""A network as a tree that the reader opens and closes, with the bytes and the FLOPs of every module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from torch import nn

from course_lib.observe.networks.draw import FAILURES, check_names, not_run
from course_lib.observe.networks.module_tree import Cost, TreeModule, module_tree
from course_lib.observe.networks.placement import Placement, colour_of
from course_lib.observe.show.amounts import amount
from simulator.explorer.bundle import PAGE
from simulator.explorer.views import View

NOT_LIVE = "Run this cell in a notebook to move through the tree with the arrow keys."
FIGURES = (("parameters", "B"), ("kept for backward", "B"), ("FLOPs of a step", "FLOP"))
SEPARATOR = "<small> · </small>"  # between columns, where JupyterLab or GitHub leave the style sheet out


def explore_network(
    model: nn.Module,
    *inputs: Any,
    placement: Mapping[str, int | Iterable[int]] | None = None,
    label: str = "rank",
    depth: int = 1,
) -> NetworkExplorer:
    """Show the modules of ``model`` as a tree that opens and closes, with what each adds to a training step.

    >>> explore_network(ResNet18(), torch.zeros(1, 3, 224, 224), placement={"": 0, "layer4": 1})  # doctest: +SKIP

    Each row has a module's class, the shape of its result, the bytes of its parameters, the bytes that it keeps for
    backward, and its FLOPs, forward and backward together. The figures include all that is inside the module. A row
    ``own`` has what is in a module and in none of its submodules, so the rows below a module add up to its figures.
    ``save("network.html")`` writes the tree as one file.

    Args:
        model: any module, in the mode (training or evaluation) that is to be measured; it stays as it is.
        inputs: what ``model(*inputs)`` takes. Only their shapes count, because nothing is computed.
        placement: who holds which modules, as for ``draw``: each row gets the colours and numbers of its ranks.
        label: what the numbers of ``placement`` are: ``"rank"``, ``"stage"`` or ``"shard"``.
        depth: how many levels of modules are open at first.

    Raises:
        ValueError: an unknown module name or wrong rank in ``placement``, a wrong depth, or a model that cannot be run
            on these inputs.
    """
    if not isinstance(depth, int) or depth < 0:
        raise ValueError(f"depth must be a whole number of 0 or more, not {depth!r}")
    check_names(model, placement or ())
    placed = Placement(model, placement, label) if placement else None
    try:
        tree = module_tree(model, *inputs)
    except FAILURES as error:
        raise not_run(model, inputs, error) from error
    return NetworkExplorer(tree, placed, depth)


class NetworkExplorer(View):
    """The tree: HTML that folds by itself; where scripts run, with keys and a line that says all of a module."""

    def __init__(self, tree: TreeModule, placement: Placement | None, depth: int) -> None:
        self.tree, self.placement, self.depth = tree, placement, depth

    def page(self) -> tuple[str, dict[str, Any], str]:
        """What the page is made of: it folds by itself, and nothing has to be computed."""
        return "network", {"html": self.fragment()}, f"Modules of {self.tree.kind}"

    def widget(self) -> Any:
        """The live view alone, as an anywidget."""
        from simulator.explorer.widget import new_widget

        return new_widget("network", {"html": self.fragment()}, not_live=NOT_LIVE)

    def still(self) -> dict[str, str]:
        """The same tree without a script; as text, the model's figures."""
        parameters, saved, flops = _written(self.tree.cost)
        figures = f"{parameters} of parameters, {saved} kept for backward, {flops} a step"
        legend = "".join(f"; {text}" for _, text in self._legend())
        html = f'<div class="explorer-still">{self.fragment()}</div>'
        return {"text/plain": f"Modules of {self.tree.kind}: {figures}{legend}.", "text/html": html}

    def fragment(self) -> str:
        """The tree as HTML. Its style sheet is in it; without one it is a list that folds."""
        css = (PAGE / "network.css").read_text(encoding="utf-8")
        head = SEPARATOR.join(f"<span>{name}</span>" for name in ("module", *(name for name, _ in FIGURES)))
        legend = "".join(
            f"<li>{_swatch(colour, '&nbsp;')} {escape(text)}</li>" for colour, text in self._legend()
        )
        legend = f'<ul class="legend">{legend}</ul>' if legend else ""
        tree = f'<ul class="tree">{"".join(self._items(self.tree, 0))}</ul>'
        return f'<div class="network"><style>{css}</style>{legend}<div class="head">{head}</div>{tree}</div>'

    def _legend(self) -> list[tuple[str, str]]:
        return self.placement.legend() if self.placement else []

    def _items(self, module: TreeModule, level: int) -> Iterator[str]:
        row = self._row(module)
        if not module.inside:
            yield f"<li><div {row}</div></li>"
            return
        yield f"<li><details{' open' if level < self.depth else ''}><summary {row}</summary><ul>"
        for inner in module.inside:
            yield from self._items(inner, level + 1)
        yield "</ul></details></li>"

    def _row(self, module: TreeModule) -> str:
        """A row's element from its attributes on: what can be seen, and as its title all that is known."""
        held, said = self._holders(module)
        name = escape(module.name.rpartition(".")[2] or "model")
        parts = [
            mine / (whole or 1)
            for mine, whole in zip(_three(module.cost), _three(self.tree.cost), strict=True)
        ]
        figures = "".join(
            f'{SEPARATOR}<span style="--part:{part:.0%}">{text}</span>'
            for text, part in zip(_written(module.cost), parts, strict=True)
        )
        title = escape(f"{_sentence(module, parts)}{said}")
        about = escape(f"{module.kind} {module.shape}".strip())
        return f'class="row" title="{title}"><span>{held}<b>{name}</b> {about}</span>{figures}'

    def _holders(self, module: TreeModule) -> tuple[str, str]:
        """Who holds the module: as swatches, and in words."""
        if self.placement is None:
            return "", ""
        lines, _ = self.placement.describe(module.parameters, module.name)
        ranks = {rank for name in module.parameters or [module.name] for rank in self.placement.of(name)}
        said = f" {', '.join(lines)}." if lines else ""
        return "".join(_swatch(colour_of(rank), rank) + " " for rank in sorted(ranks)), said[
            :2
        ].upper() + said[2:]


def _sentence(module: TreeModule, parts: list[float]) -> str:
    cost, (p, s, f) = module.cost, (f"{100 * part:.1f} %" for part in parts)
    output = f" Output {module.shape}." if module.shape else ""
    shared = " Some of its parameters count in a module before it." if module.shared else ""
    return (
        f"{module.name or 'The model'} ({module.kind}).{output} "
        f"Parameters: {cost.parameters:,} bytes, {p} of the model.{shared} "
        f"Kept for backward: {cost.saved:,} bytes, {s}. "
        f"FLOPs: {cost.forward:,} forward and {cost.backward:,} backward, {f}."
    )


def _swatch(colour: str, text: object) -> str:
    return f'<i style="background:{colour}">{text}</i>'


def _three(cost: Cost) -> tuple[int, int, int]:
    return cost.parameters, cost.saved, cost.forward + cost.backward


def _written(cost: Cost) -> list[str]:
    return [amount(size, unit) for size, (_, unit) in zip(_three(cost), FIGURES, strict=True)]
