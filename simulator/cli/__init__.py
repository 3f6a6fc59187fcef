"""The command line: ``python -m simulator COMMAND``, whose commands are the files of this folder."""

from __future__ import annotations

from importlib import import_module

import click

# A command's module is imported when the command is asked for, so that each starts as fast as it can.
COMMANDS = {
    "memory": "What each rank must hold, and whether it fits.",
    "step": "How long a training step takes, and why.",
    "plan": "The fastest plans for a model on so many devices.",
    "timeline": "A pipeline schedule: who is busy when; traces for Perfetto.",
    "compare": "A recorded step beside its prediction: PyTorch's traces.",
    "validate": "Published figures beside their predictions.",
    "calibrate": "Measure this machine; a hardware file for --gpu.",
}


class Refused(click.ClickException):
    """A value that makes no sense: one sentence, and the exit code of a wrong option."""

    exit_code = 2


class LazyGroup(click.Group):
    """A group whose commands are functions of the same name in modules of the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return getattr(import_module(f"simulator.cli.{name}"), name) if name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader has read enough (| head -1): click ends without a word
        except (ValueError, OSError) as error:
            raise Refused(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Predict the time, memory and traffic of a training plan.

    \b
    python -m simulator memory --model llama-3-8b --dp 8 --zero 3 --gpu h100
    python -m simulator step --model gpt2-xl --gpu h100 --global-batch 8

    Every command prints JSON with --json: simulator/cli/answers.schema.json describes it.
    """
