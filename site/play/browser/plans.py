"""What the page of plans asks Python: the fastest plans for a model and so many devices, and one of them drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from play.browser.pictures import WHOLE, plot_memory, plot_timeline
from simulator.explorer.calculator import MemoryQuestion
from simulator.export import FRAMEWORKS, export
from simulator.inputs.checks import one_of
from simulator.inputs.hardware import Hardware
from simulator.inputs.huggingface import read_config_text
from simulator.inputs.known_devices import GPUS
from simulator.inputs.known_models import MODELS
from simulator.inputs.plan import Plan
from simulator.inputs.shape import ModelShape
from simulator.planner.plan_text import plan_text
from simulator.planner.search import Found, Search, search_plans, what_binds, what_helps, why_slower
from simulator.predict.memory import plan_memory
from simulator.predict.step_timeline import step_timeline

OWN = "my own: its config.json"
MOST_NAMED = 8  # stages whose names have room below their bars


class Html:
    """What the page shows."""

    def __init__(self, html: str) -> None:
        self._html = html

    def _repr_html_(self) -> str:
        return self._html


class Plans:
    """The plans for one question, as the page's form asks it.

    Args:
        asked: ``{"model": "llama-3-8b", "config": "", "gpu": "h100", "gpus": "16", "global_batch": "256"}`` as JSON;
            ``config`` is the text of a ``config.json``, and counts where the model is ``OWN``.

    Raises:
        ValueError: a value that cannot be searched, or no plan fits; in one sentence.
    """

    def __init__(self, asked: str) -> None:
        given: dict[str, str] = json.loads(asked)
        self.model = None if given["model"] == OWN else given["model"]
        one_of("gpu", given["gpu"], GPUS)
        self.shape: ModelShape = asked_shape(given)
        self.hardware: Hardware = GPUS[given["gpu"]]
        gpus, batch = (_whole(name, given[name]) for name in ("gpus", "global_batch"))
        self.found: Search = search_plans(self.shape, self.hardware, gpus, batch, each=_count)
        if not self.found.best:
            raise ValueError(
                f"none of {self.found.tried:,} plans fits: the smallest needs {self.found.least / 1e9:.1f} GB on a "
                f"device, and {self.hardware.name} has {self.hardware.memory / 1e9:.0f} GB; take more devices"
            )

    def table(self) -> Html:
        """The fastest plans, why each loses, and what would help."""
        best = self.found.best[0]
        rows = "".join(self._row(one, best) for one in self.found.best)
        helps = sorted(what_helps(self.shape, self.hardware, self.found).items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {times - 1:.1%} faster" for name, times in helps)
        more = self.found.with_more_memory
        with_more = f" With twice the memory the best is <code>{plan_text(more.plan)}</code>." if more else ""
        return Html(
            f"<p>{self.found.tried:,} plans, {self.found.fitting:,} fit {self.hardware.name}; the fastest first:</p>"
            "<table><thead><tr><th>s a step</th><th>MFU</th><th>GB</th><th>plan</th><th>more than the first</th></tr>"
            f"</thead><tbody>{rows}</tbody></table><p>Beside arithmetic the first spends most on {what_binds(best)}. "
            f"With twice of one thing it would be: {told}.{with_more}</p>"
        )

    def _row(self, one: Found, best: Found) -> str:
        line = plan_text(one.plan)
        slower = "" if one is best else why_slower(one, best)
        return (
            f"<tr><td>{one.seconds:.4g}</td><td>{one.cost.mfu:.1%}</td><td>{one.peak / 1e9:.1f}</td>"
            f'<td><button type="button" class="plan" data-plan="{line}">{line or "one device"}</button></td>'
            f"<td>{slower}</td></tr>"
        )

    def show(self, line: str = "") -> Html:
        """One of the plans, the first where none has this line: its memory, its step, and how it is run."""
        one = next((one for one in self.found.best if plan_text(one.plan) == line), self.found.best[0])
        plan, hardware = one.plan, self.hardware
        shown = plan_text(plan)
        held = plan_memory(self.shape, plan, hardware)
        bars = None if plan.pp > MOST_NAMED else _bars(plan)
        memory = plot_memory(held, bars=bars, capacity=hardware.memory, device=f"one {hardware.name}")
        parts = ", ".join(
            f"{name.replace('_', ' ')} {seconds / one.seconds:.1%}"
            for name, seconds in sorted(one.cost.parts.items(), key=lambda item: -item[1])
            if seconds / one.seconds >= 0.0005
        )
        other = (
            ""
            if line in ("", shown)
            else "<p>The plan asked for is not among the ten. This is the first.</p>"
        )
        who = "each rank" if plan.pp == 1 else "a rank of each stage"
        return Html(
            f'{other}<h2 data-plan="{shown}">{shown or "One device"}</h2>{self._address(plan)}'
            f"<h3>What {who} holds</h3>{memory.svg}<h3>A step of {one.seconds:.4g} s</h3><p>{parts}.</p>"
            f"{self._timeline(plan)}<h3>How it is run</h3>{self._files(plan)}"
        )

    def _timeline(self, plan: Plan) -> str:
        if plan.pp == 1:
            return ""
        step = step_timeline(self.shape, plan, self.hardware).timeline
        if len(step.spans) > WHOLE:
            return f"<p>Its {len(step.spans):,} actions are too many for a picture.</p>"
        return plot_timeline(step, unit="s").svg

    def _files(self, plan: Plan) -> str:
        parts = []
        for framework in FRAMEWORKS:
            try:
                text, notes = export(
                    framework, self.shape, plan, model=self.model, node_size=self.hardware.node_size
                )
            except ValueError as error:
                said = f"<p>{escape(str(error))}</p>"
            else:
                said = f"<pre>{escape(text)}</pre>" + "".join(f"<p>{escape(note)}</p>" for note in notes)
            parts.append(f"<details><summary>{framework}</summary>{said}</details>")
        return "".join(parts)

    def _address(self, plan: Plan) -> str:
        """A link to the memory calculator with this plan, where that knows the model and all of the plan."""
        fields = {name: getattr(plan, name) for name in MemoryQuestion().as_dict() if hasattr(plan, name)}
        try:
            asked = MemoryQuestion.of({"model": self.model, "gpu": self.hardware.name, **fields})
        except ValueError:
            return ""
        if asked.plan != plan:
            return ""
        page = f"../_static/explorer/memory.html#{escape(asked.address())}"
        return f'<p class="in-site"><a href="{page}">Change it in the memory calculator</a></p>'


def find(asked: str) -> Plans | Html:
    """The plans, or the sentence that says why there are none."""
    try:
        return Plans(asked)
    except ValueError as error:
        return refusal(str(error))


def asked_shape(asked: dict[str, str]) -> ModelShape:
    """The known model that the form names, or the one of the config that was pasted."""
    one_of("model", asked["model"], (*MODELS, OWN))
    return (
        MODELS[asked["model"]]
        if asked["model"] != OWN
        else read_config_text(asked["config"], "what you pasted")
    )


def refusal(said: str) -> Html:
    """A sentence that says what is wrong."""
    return Html(f'<p class="error" role="alert">{escape(said[0].upper() + said[1:])}.</p>')


def _whole(name: str, text: Any) -> int:
    if not str(text).isdecimal() or not 1 <= int(text) <= 100_000:
        raise ValueError(
            f"{name.replace('_', ' ')} must be a whole number from 1 to 100000, not {text or 'nothing'}"
        )
    return int(text)


def _bars(plan: Plan) -> list[str]:
    if plan.pp == 1:
        return ["each rank"]
    return [f"stage {rank}" for rank in range(plan.pp)]


def _count(plans: Iterator[Plan]) -> Iterator[Plan]:
    """Tell the page how far it is."""
    for count, plan in enumerate(plans, 1):
        if count % 250 == 0:
            print(f"{count:,} plans priced", flush=True)
        yield plan
