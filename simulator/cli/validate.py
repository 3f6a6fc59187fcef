"""``python -m simulator validate``: published figures beside their predictions."""

from __future__ import annotations

import click

from simulator.cli.answer import print_json
from simulator.cli.options import JSON, Command, options

UNITS = {
    "printed": "as the row's quantity says: seconds, bytes, TFLOP/s or a part",
    "predicted": "the unit of printed",
    "error": "part of the printed time or size",
    "mean": "part",
    "worst": "part",
}


@click.command(cls=Command)
@options({"Options": [JSON]})
def validate(as_json: bool) -> None:
    """Every published row beside its prediction; exit code 1 if the errors are above their targets.

    Numbers of a device were fitted to the rows marked "fitted", and only compared with the others.
    """
    from simulator.published import TARGETS, misses, published_rows, summary

    found = [(row, row.predicted(), row.error()) for row in published_rows()]
    groups = summary([(row, error) for row, _, error in found])
    missed = misses(groups)
    if as_json:
        rows = [
            {
                "group": row.group,
                "source": row.source,
                "name": row.name,
                "gpu": row.gpu,
                "fitted": row.fitted,
                "kind": row.kind,
                "quantity": row.quantity,
                "printed": row.printed,
                "predicted": predicted,
                "error": error,
            }
            for row, predicted, error in found
        ]
        targets = {
            group: dict(zip(("mean", "worst"), TARGETS.get(group, (None, None)), strict=True))
            for group in groups
        }
        summaries = {group: parts | {"target": targets[group]} for group, parts in groups.items()}
        print_json("validate", UNITS, {"rows": rows, "summary": summaries, "missed": missed})
    else:
        for group in groups:
            click.echo(f"{group}")
            for row, predicted, error in found:
                if row.group == group:
                    click.echo(
                        f"  {row.source:30} {row.name:40} {row.quantity:21}{row.printed:>10.4g}"
                        f"{predicted:>10.4g}{error:>+8.1%}  {'fitted' if row.fitted else 'held out'}"
                    )
        click.echo(f"\n{'absolute errors':20}{'rows':>6}{'mean':>8}{'worst':>8}   target")
        for group, parts in groups.items():
            mean, worst = TARGETS.get(group, (None, None))
            target = "none" if mean is None else f"mean {mean:.1%}, worst {worst:.1%}"
            for part, numbers in parts.items():
                if numbers["rows"]:
                    label = group if part == "all" else f"  {part.replace('_', ' ')}"
                    click.echo(
                        f"{label:20}{numbers['rows']:>6}{numbers['mean']:>8.1%}{numbers['worst']:>8.1%}"
                        + (f"   {target}" if part == "all" else "")
                    )
        click.echo(f"above target: {'; '.join(missed)}" if missed else "all targets are met")
    if missed:
        raise SystemExit(1)
