"""What ``course_lib/by_hand/paged_attention.py`` does as a program: a small GPT reads some of Python's documentation,
then it goes on with a few beginnings, several times each. Every rung writes the same texts; what it holds differs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import click
from torch import Tensor

from course_lib.observe.by_hand.run import (
    SEQUENCE,
    WATCHED,
    chosen,
    help_of,
    load_samples,
    new_model,
    one_device,
    run,
)
from course_lib.observe.show.compare import Row, compare
from course_lib.runtime import current_device
from simulator.predict.kv_cache import kv_cache_bytes_per_token
from simulator.predict.serving import blocks_for

PROMPTS = ("Return the ", "This module provides ", "Raise an exception if the ", "A ")
ROOM = SEQUENCE - max(map(len, PROMPTS))


def main(generate: Callable[..., tuple[Tensor, Any]], rungs: Mapping[str, Mapping[str, Any]]) -> None:
    """The command line: ``--ranks`` (1), ``--samples``, ``--tokens``, and ``--pretrain`` for steps before."""

    @click.command(help=help_of(generate), context_settings={"show_default": True})
    @click.option("--ranks", type=click.IntRange(1, 1), default=1, help="One device.")
    @click.option("--samples", type=click.IntRange(1), default=3, help="Continuations of each beginning.")
    @click.option("--tokens", type=click.IntRange(1, ROOM), default=ROOM, help="New tokens in each.")
    @click.option(
        "--pretrain", type=click.IntRange(WATCHED + 2), default=100, help="Steps of training before."
    )
    def command(ranks: int, samples: int, tokens: int, pretrain: int) -> None:
        model = new_model().to(current_device())
        read = run(one_device, chosen(load_samples(), 24, pretrain), pretrain, alone=True, model=model)
        print(f"After {pretrain} steps on Python's documentation, a loss of {read.losses[-1]:.2f}:\n")
        prompts, rows, first = [list(prompt.encode()) for prompt in PROMPTS], [], None
        for name, rung in rungs.items():
            began = time.perf_counter()
            found, cache = generate(model, prompts, samples, tokens, **rung)
            seconds = time.perf_counter() - began
            if first is None:
                first = found
                for i, new in enumerate(found):
                    print(repr(PROMPTS[i // samples] + bytes(new.tolist()).decode(errors="replace")))
                print()
            layers, _, _, places, heads, size = cache.kv.shape
            token = kv_cache_bytes_per_token(layers, heads, size, bytes_per_number=4)
            blocks = blocks_needed([len(prompt) for prompt in prompts], samples, tokens, places)
            held = cache.most * cache.kv[:, :, 0].nbytes
            rows.append(Row(f"{name}: kept", None, blocks * places * token, held, unit="B"))
            rows.append(Row(f"{name}: time", None, None, seconds, unit="s"))
            same = int((found == first).all(1).sum())
            print(f"{name}: {same} of {len(found)} texts are those of the first rung")
        print()
        print(compare(*rows))

    command()


def blocks_needed(lengths: list[int], samples: int, tokens: int, places: int) -> int:
    """Blocks at the end, when full ones of a prompt are shared by its samples; the last new token is not kept.

    A block that holds a whole sequence is never full, so nothing is shared.
    """
    total = 0
    for length in lengths:
        shared, all_of_one = length // places, blocks_for(length + tokens - 1, places)
        total += shared + samples * (all_of_one - shared)
    return total
