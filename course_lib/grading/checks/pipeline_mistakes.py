"""What learners may write in 11.1 and 11.2 instead of the order that is asked for, as programs."""

from __future__ import annotations

from collections.abc import Callable

Pairs = list[tuple[str, int]]
Orders = list[Pairs]  # one list a rank
Mistakes = dict[str, Callable[[int, int], Orders]]


def in_turn(
    warm_up: Callable[[int, int], int],
    *,
    newest_first: bool = False,
    drained: bool = True,
    backward_first: bool = False,
):
    """Ranks that run ``warm_up(rank, ranks)`` forwards, and then a forward and a backward in turn.

    Args:
        newest_first: a backward is that of the last forward, not of the oldest.
        drained: the backwards that are left when the forwards have ended are done, too.
        backward_first: each turn is a backward and a forward, also on the last rank, which runs none ahead.
    """

    def orders(p: int, m: int) -> Orders:
        ranks = []
        for rank in range(p):
            ahead = min(warm_up(rank, p), m)
            pairs, open_ = [("F", i) for i in range(ahead)], list(range(ahead))
            for i in range(ahead, m):
                open_.append(i)
                turn = [("F", i), ("B", open_.pop(-1 if newest_first else 0))]
                pairs += turn[::-1] if backward_first else turn
            left = open_[::-1] if newest_first else open_
            ranks.append(pairs + [("B", i) for i in left if drained])
        return ranks

    return orders


def all_forwards(p: int, m: int) -> Orders:
    return [[(kind, i) for kind in "FB" for i in range(m)] for _ in range(p)]


def all_forwards_back_in_reverse(p: int, m: int) -> Orders:
    return [[("F", i) for i in range(m)] + [("B", i) for i in reversed(range(m))] for _ in range(p)]


IN_TURN: Mistakes = {
    "when every rank runs all forwards first, as in GPipe": all_forwards,
    "when all forwards run first, and the backwards then in the reverse order": all_forwards_back_in_reverse,
    "when each microbatch goes back before the next one goes forward": in_turn(lambda r, p: 0),
    "when each rank runs one forward too many before its first backward": in_turn(lambda r, p: p - r),
    "when each rank runs one forward too few before its first backward": in_turn(
        lambda r, p: max(p - 2 - r, 0)
    ),
    "when rank r runs r forwards ahead: the ranks are counted from the wrong end": in_turn(lambda r, p: r),
    "when rank r runs r + 1 forwards ahead: the ranks are counted from the wrong end": in_turn(
        lambda r, p: r + 1
    ),
    "when every rank runs as many forwards ahead as rank 0": in_turn(lambda r, p: p - 1),
    "when a backward is that of the newest microbatch, and not of the oldest": in_turn(
        lambda r, p: p - 1 - r, newest_first=True
    ),
    "when the backwards are missing that are left after the last forward": in_turn(
        lambda r, p: p - 1 - r, drained=False
    ),
    "when each turn begins with its backward, for which the last rank has done no forward yet": in_turn(
        lambda r, p: p - 1 - r, backward_first=True
    ),
}


def split(
    warm_up: Callable[[int, int], int],
    postponed: Callable[[int, int], int],
    *,
    weights_at_end: bool = True,
    forward_before_weights: bool = False,
):
    """Ranks that run forwards ahead, then B, W and F in turn, where W stays ``postponed`` microbatches behind B."""

    def orders(p: int, m: int) -> Orders:
        ranks = []
        for rank in range(p):
            late = postponed(rank, p)
            pairs: Pairs = [("F", i) for i in range(min(warm_up(rank, p), m))]
            following = len(pairs)
            for i in range(m):
                pairs.append(("B", i))
                weights = [("W", i - late)] if i >= late else []
                forward = [("F", following)] if following < m else []
                following += 1
                pairs += forward + weights if forward_before_weights else weights + forward
            ranks.append(pairs + [("W", i) for i in range(max(0, m - late), m) if weights_at_end])
        return ranks

    return orders


def all_weights_last(p: int, m: int) -> Orders:
    return [pairs + [("W", i) for i in range(m)] for pairs in in_turn(lambda r, p: p - 1 - r)(p, m)]


def split_forwards_first(p: int, m: int) -> Orders:
    return [[("F", i) for i in range(m)] + [(k, i) for i in range(m) for k in "BW"] for _ in range(p)]


SPLIT: Mistakes = {
    "when each W follows its B directly, so that the order is that of 1F1B": split(
        lambda r, p: p - r, lambda r, p: 0
    ),
    "when all weight parts stand at the end": all_weights_last,
    "when every rank runs `ranks` forwards ahead, and each W follows its B directly": split(
        lambda r, p: p, lambda r, p: 0
    ),
    "when every rank runs all forwards first, as in GPipe": split_forwards_first,
    "when rank r puts off p - 1 - r weight parts: the ranks are counted from the wrong end": split(
        lambda r, p: p - r, lambda r, p: p - 1 - r
    ),
    "when each rank puts off one weight part too many": split(lambda r, p: p - r, lambda r, p: r + 1),
    "when each rank puts off one weight part too few": split(lambda r, p: p - r, lambda r, p: max(r - 1, 0)),
    "when every rank puts off p - 1 weight parts, as the last rank does": split(
        lambda r, p: p - r, lambda r, p: p - 1
    ),
    "when each rank runs one forward too many before its first backward": split(
        lambda r, p: p - r + 1, lambda r, p: r
    ),
    "when each rank runs one forward too few before its first backward": split(
        lambda r, p: max(p - r - 1, 1), lambda r, p: r
    ),
    "when as many forwards run ahead as in ZB-H2": split(lambda r, p: 2 * (p - r) - 1, lambda r, p: 2 * r),
    "when the next forward stands before W: it begins before W has made room for it": split(
        lambda r, p: p - r, lambda r, p: r, forward_before_weights=True
    ),
    "when the weight parts are missing that are put off until the end": split(
        lambda r, p: p - r, lambda r, p: r, weights_at_end=False
    ),
}
