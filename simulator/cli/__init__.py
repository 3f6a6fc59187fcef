"""The command line: ``python -m simulator timeline | memory | step | validate``."""

from __future__ import annotations

from importlib import import_module

import click

# A command's module is imported when the command is asked for, so that each starts as fast as it can.
COMMANDS = {
    "timeline": "simulator.cli.timeline",
    "memory": "simulator.cli.plan",
    "step": "simulator.cli.plan",
    "validate": "simulator.cli.plan",
}


class Refused(click.ClickException):
    """A value that makes no sense: one sentence, and the exit code of a wrong option."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group whose commands are functions of the same name in the modules of ``COMMANDS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return getattr(import_module(COMMANDS[name]), name) if name in COMMANDS else None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (ValueError, OSError) as error:
            raise Refused(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Predict the time, memory and traffic of a training plan."""
