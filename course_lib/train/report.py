"""What a user sees of a run: a line a step, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from course_lib.observe.ledgers.expert_load import busiest, dropped_share, of_all_ranks
from course_lib.train.config import TASKS
from course_lib.train.job import Job
from simulator.planner.plan_text import plan_text


class Report:
    """Prints the run's first line, its steps, and what every rank held and sent.

    Args:
        log_every: steps between two lines; None: about twenty lines in all. JSON has all steps.
    """

    def __init__(self, job: Job, as_json: bool, log_every: int | None = None) -> None:
        self.job, self.as_json = job, as_json
        self.log_every = log_every or max(1, job.steps // 20)
        self.seconds = self.tokens = 0.0
        self.begun = False

    def begin(self, priced: str | None) -> None:
        if not self.as_json:
            plan = self.job.plan
            if self.job.weights is None and self.job.tuning["method"] != "full":
                click.echo(
                    f"{self.job.tuning['method']} freezes a model with random weights, which learns little: --weights "
                    "starts from pretrained ones",
                    err=True,
                )
            click.echo(f"{self._what()} on {ranks_of(plan.ranks)}: --plan {plan_text(plan, ['precision'])}")
            if priced:
                click.echo(f"the same, priced: {priced}")
            elif (self.job.capacity_factor or 1) < 1:
                click.echo(
                    "not priced: with a capacity factor below 1 experts always drop tokens, and the simulator's none",
                    err=True,
                )

    def _what(self) -> str:
        """``bart, denoising, lora``: what is not the model's usual task or all of its parameters is named."""
        method = self.job.tuning["method"]
        words = {self.job.model: True, self.job.task: self.job.task != TASKS[self.job.model][0]}
        words |= {f"from {self.job.weights}": self.job.weights is not None}
        words |= {method: method != "full", self._way(): self.job.placement is not None}
        words |= {self._sent(): self.job.compression is not None}
        return ", ".join(word for word, said in words.items() if said)

    def _way(self) -> str:
        way = (self.job.placement or {}).get("placement")
        return way if isinstance(way, str) else "own placement"

    def _sent(self) -> str:
        return (self.job.compression or {"method": "none"})["method"]

    def step(self, told: dict[str, Any]) -> None:
        if "note" in told:
            return click.echo(told["note"], err=True)
        if told["seconds"] is not None and self.begun:  # the first step makes what later ones use again
            self.seconds += told["seconds"]
            self.tokens += told["tokens"]
        self.begun = True
        if self.as_json:
            click.echo(json.dumps({key: told[key] for key in ("step", "loss", "grad_norm", "tokens")}))
        elif told["step"] % self.log_every == 0 or told["step"] in (1, self.job.steps):
            click.echo(self._line(told))

    def _line(self, told: dict[str, Any]) -> str:
        words = [f"step {told['step']:>{len(str(self.job.steps))}}/{self.job.steps}"]
        words += [f"loss {told['loss']:.4f}", f"gradient norm {told['grad_norm']:.4f}"]
        if told["seconds"] is not None:
            words.append(f"{told['tokens'] / told['seconds']:,.0f} tokens/s")
            if self.job.peak_flops and told["flops"]:
                words.append(f"MFU {told['flops'] / told['seconds'] / self.job.peak_flops:.2%}")
        return "  ".join([*words, f"memory {told['memory'] / 1e6:,.0f} MB"])

    def end(self, ranks: Sequence[dict[str, Any]]) -> None:
        """The last line: of every rank the peak memory, and the traffic of one step."""
        rate = self.tokens / self.seconds if self.seconds else None
        loads = of_all_ranks(ranks)
        if self.as_json:
            plan = plan_text(self.job.plan, ["precision"])
            told = {"plan": plan, "tokens_per_second": rate}
            told |= {"dropped": dropped_share(ranks)} if loads else {}
            click.echo(json.dumps(told | {"ranks": list(ranks)}))
        elif any("sent" in rank for rank in ranks):
            click.echo("in the last step:")
            for rank in ranks:
                where = " ".join(f"{axis} {rank[axis]}" for axis in ("pp", "dp", "cp", "tp") if axis in rank)
                click.echo(
                    f"  rank {rank['rank']:<3} {where}   at most {rank['peak_memory'] / 1e6:,.1f} MB held, "
                    f"{rank['sent'] / 1e6:,.2f} MB sent"
                )
            if loads:
                expert, rank = busiest(loads, self.job.plan.ep)
                click.echo(
                    f"of all layers the busiest expert had {expert:.2f} of the mean, the busiest rank {rank:.2f}"
                )
            if self.job.capacity_factor is not None:
                click.echo(
                    f"experts dropped {dropped_share(ranks):.1%} of the copies of tokens that they were sent"
                )
            if "accuracy" in ranks[0]:
                click.echo(f"accuracy on samples that were not trained on: {ranks[0]['accuracy']:.1%}")
            if rate:
                click.echo(f"{rate:,.0f} tokens/s on average, without the first step and the last")


def ranks_of(number: int) -> str:
    return f"{number} rank" + "s" * (number > 1)
