"""An all-reduce whose messages are compressed: its two halves each send codes (Bagua's ScatterReduce).

A sum of codes is no code: numbers with different scales cannot be added before they are decoded. So a ring is of no
use here. Each rank sends chunk j of its numbers, coded, straight to rank j. Rank j decodes p chunks, adds them up,
codes the sum again and sends it to all (Bagua, arXiv:2107.01499; with error feedback on both sides 1-bit Adam,
arXiv:2102.02888).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.compression.error_feedback import ErrorFeedback
from course_lib.compression.hook import GradBucket
from course_lib.runtime import native


class Codec(Protocol):
    """Turns each row of numbers into a row of bytes, and back."""

    def encode(self, rows: Tensor) -> Tensor:
        """(r, c) float -> (r, bytes) uint8."""

    def decode(self, message: Tensor, columns: int) -> Tensor:
        """(r, bytes) uint8 -> (r, c) float32."""


def compressed_all_reduce(
    bucket: GradBucket,
    codec: Codec,
    sender: ErrorFeedback | None = None,
    reducer: ErrorFeedback | None = None,
) -> Iterator[dist.Work]:
    """Replace the buffer by the sum of all ranks' buffers, up to two errors of ``codec``. A generator for ``Exchange``.

    Args:
        sender: keeps what is lost of this rank's own numbers, (p, c).
        reducer: keeps what is lost of the sums that this rank codes, (1, c).
    """
    p = dist.get_world_size(bucket.group)
    chunks = into_rows(bucket.buffer, p)  # (p, c): row j is for rank j
    columns = chunks.shape[1]
    message = encode(chunks, codec, sender, bucket.name)  # (p, bytes)
    received = torch.empty_like(message)  # row i comes from rank i
    yield dist.all_to_all_single(received, message, group=bucket.group, async_op=True)
    total = codec.decode(received, columns).sum(dim=0, keepdim=True)  # (1, c)
    message = encode(total, codec, reducer, bucket.name)  # (1, bytes)
    totals = message.new_empty(p, message.shape[1])
    yield native.all_gather(totals, message, group=bucket.group, async_op=True)
    bucket.buffer.copy_(codec.decode(totals, columns).flatten()[: bucket.buffer.numel()])


def encode(rows: Tensor, codec: Codec, feedback: ErrorFeedback | None, name: str) -> Tensor:
    """``rows`` in codes; with ``feedback``, what is lost is added to the rows of the next step."""
    if feedback is None:
        return codec.encode(rows)
    wanted = feedback.add(name, rows)
    message = codec.encode(wanted)
    feedback.keep(name, wanted, sent=codec.decode(message, rows.shape[1]))
    return message


def into_rows(buffer: Tensor, rows: int) -> Tensor:
    """Cut (n,) into equal rows of ceil(n / rows) in float32; copies of the last element fill the last rows up.

    Zeros instead could widen the range from the smallest to the largest element.
    """
    columns = -(-buffer.numel() // rows)
    missing = rows * columns - buffer.numel()
    return torch.cat([buffer, buffer[-1:].expand(missing)]).float().view(rows, columns)
