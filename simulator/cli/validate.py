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
    """Every published row beside its prediction; exit code 1 if the errors are above their targets."""
    from simulator.published import TARGETS, published_rows

    rows = [
        {
            "source": row.source,
            "name": row.name,
            "kind": row.kind,
            "quantity": row.quantity,
            "printed": row.printed,
            "predicted": row.predicted(),
            "error": row.error(),
        }
        for row in published_rows()
    ]
    summary = {}
    for kind in TARGETS:
        errors = [abs(row["error"]) for row in rows if row["kind"] == kind]
        summary[kind] = {"rows": len(errors), "mean": sum(errors) / len(errors), "worst": max(errors)}
    if as_json:
        print_json("validate", UNITS, {"rows": rows, "summary": summary})
    else:
        for row in rows:
            click.echo(
                f"{row['source']:31}{row['name']:37}{row['quantity']:15}"
                f"{row['printed']:>11.4g}{row['predicted']:>11.4g}{row['error']:>+8.1%}"
            )
        for kind, found in summary.items():
            mean, worst = TARGETS[kind]
            click.echo(
                f"{kind}: {found['rows']} rows, mean error {found['mean']:.1%} (at most {mean:.0%}), "
                f"worst {found['worst']:.1%} (at most {worst:.0%})"
            )
    if any(s["mean"] > TARGETS[kind][0] or s["worst"] > TARGETS[kind][1] for kind, s in summary.items()):
        raise SystemExit(1)
