"""What a traced piece sends, as the ledger of a rank writes it."""

from simulator.ledgers.traffic import Traffic, TrafficRow
from simulator.predict.collective_traffic import sent_bytes


def sent_in(piece, tp):
    """Of one rank, forward and backward."""
    return Traffic(
        TrafficRow(collective, tp, n, n * size, n * sent_bytes(collective, size, tp))
        for messages in (piece.sent, piece.sent_back)
        for (collective, size), n in messages.items()
    )
