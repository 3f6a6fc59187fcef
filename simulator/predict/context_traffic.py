"""What context parallelism sends in one layer, by direction: a ring, an all-to-all, or gathered keys.

Sources: ring attention arXiv:2310.01889; Ulysses arXiv:2309.14509; all-gather of keys and values arXiv:2407.21783,
section 3.3.2; an all-to-all inside of a ring arXiv:2405.07719.
"""

from __future__ import annotations

from simulator.inputs.checks import at_least, one_of
from simulator.inputs.plan import CONTEXT
from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.collective_traffic import sent_bytes


def context_layer_traffic(
    context: str,
    queries: int,
    keys: int,
    ranks: int,
    itemsize: int = 2,
    *,
    ulysses: int = 1,
    results: int | None = None,
    regather: bool = True,
) -> tuple[Traffic, Traffic]:
    """One layer on one microbatch, as sent by one rank: (forward, backward). Recomputing the layer, or its attention
    alone, repeats what forward sends.

    A ring passes keys and values on p - 1 times; backward does so again, and their gradient takes one step more, which
    brings it home. The all-to-all takes queries, keys and values to their heads in one message and the result back in
    another; backward does the same with gradients. An all-gather brings all keys and values; backward gathers them
    again, and reduce-scatters their gradient.

    Args:
        context: ``"ring"``, ``"all-to-all"`` or ``"all-gather"``.
        queries: elements of this rank's queries: batch x sequence / p x columns.
        keys: elements of this rank's keys and values together. The all-to-all deals out heads: where p does not divide
            those of the keys, they are repeated first.
        results: elements of what attention returns for them; None: as many.
        ulysses: ranks that deal out heads among themselves; the others' keys come as ``context`` says.
        regather: False: backward still has the keys and values that forward gathered.
    """
    one_of("context", context, CONTEXT)
    results = queries if results is None else results
    at_least(0, queries=queries, keys=keys, results=results)
    at_least(1, ranks=ranks, itemsize=itemsize, ulysses=ulysses)
    by_heads = ranks if context == "all-to-all" else ulysses
    if ranks % by_heads:
        raise ValueError(f"ulysses must divide the {ranks} ranks, not {ulysses}")

    def sent(collective: str, group: int, *elements: int) -> Traffic:
        payload = sum(elements) * itemsize
        row = TrafficRow(collective, group, len(elements), payload, sent_bytes(collective, payload, group))
        return Traffic([row] if group > 1 else [])

    def passed(times: int) -> Traffic:
        return Traffic(
            [TrafficRow("send", 2, times, size, size)] if (size := times * keys * itemsize) else []
        )

    exchanged, around = sent("all-to-all", by_heads, queries + keys, results), ranks // by_heads
    if context == "all-gather":
        gathered = sent("all-gather", around, around * keys)
        reduced = sent("reduce-scatter", around, around * keys)
        return exchanged + gathered, exchanged + (gathered + reduced if regather else reduced)
    if around == 1:
        return exchanged, exchanged
    return exchanged + passed(around - 1), exchanged + passed(2 * around - 1)
