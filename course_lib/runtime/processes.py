"""One rank, seen from the process that started it: its channel, what it printed, and how it ends."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
from typing import Any

import psutil

from course_lib.runtime import progress
from course_lib.runtime import rank as rank_main
from course_lib.runtime.rank import Raised
from course_lib.runtime.stack_inspection import Whereabouts

CLOSES_WITHIN = 1.0  # seconds in which a rank that ends is gone, once its channel is closed
KEEP = 1_000_000  # bytes of output shown per rank and stream, so that an endless print does not fill the notebook


class Output:
    """What one rank writes to stdout or stderr. Lines of rank 0 are shown at once, those of the others at the end."""

    def __init__(self, context: Any, rank: int, name: str, quiet: bool) -> None:
        self.reader, self.writer = context.Pipe(duplex=False)
        self.rank, self.name, self.quiet = rank, name, quiet
        self.text = b""
        self.received = 0
        self.open = True

    def receive(self) -> None:
        """Take in what has arrived, a megabyte at most: a rank that prints without end must meet its time limit."""
        for _ in range(16):
            if not self.open or not self.reader.poll():
                break
            chunk = os.read(self.reader.fileno(), 1 << 16)
            if not chunk:
                self.open = False
            elif self.received < KEEP:
                self.text += chunk
            self.received += len(chunk)
        if self.rank == 0:
            whole, newline, self.text = self.text.rpartition(b"\n")
            self._show(whole + newline)

    def show_rest(self) -> None:
        """Show what has not been shown yet, an unfinished line included."""
        with contextlib.suppress(OSError):
            self.receive()
        self._show(self.text)
        if self.received > KEEP:
            self._show(
                f"… {self.received:,} bytes were printed, only the first {KEEP:,} are shown\n".encode()
            )
        self.text = b""
        self.received = 0

    def close(self) -> None:
        self.open = False
        self.reader.close()

    def _show(self, text: bytes) -> None:
        if text and not self.quiet:
            progress.erase_terminal_line()
            lines = text.decode("utf-8", "replace").removesuffix("\n").split("\n")
            print("\n".join(f"[rank {self.rank}] {line}" for line in lines), file=getattr(sys, self.name))


class RankProcess:
    """A rank, from its start to its certain end."""

    def __init__(self, context: Any, rank: int, quiet: bool) -> None:
        self.rank = rank
        self.returned: bytes | None = None
        self.raised: Raised | None = None
        self.where: Whereabouts | None = None
        self.asked = self._leaving = self.lost = False
        self.channel, theirs = context.Pipe()
        self.outputs = [Output(context, rank, name, quiet) for name in ("stdout", "stderr")]
        writers = [output.writer for output in self.outputs]
        self.process = context.Process(target=rank_main.main, args=(theirs, *writers), name=f"rank {rank}")
        self.process.start()
        for connection in (theirs, *writers):
            connection.close()

    def sources(self) -> list[Any]:
        """What to wait for."""
        streams = [output.reader for output in self.outputs if output.open]
        return [*streams, *([] if self.is_done() else [self.channel, self.process.sentinel])]

    def send(self, kind: str, content: Any = None) -> None:
        with contextlib.suppress(OSError):  # it died already: is_dead() will tell
            self.channel.send_bytes(pickle.dumps((kind, content)))

    def begin(self, kind: str, content: Any) -> None:
        """Give the rank something to do; it answers with ``returned`` or ``raised``."""
        self.returned = self.raised = None
        self.send(kind, content)

    def is_done(self) -> bool:
        """Whether the rank has answered the last ``begin``."""
        return self.returned is not None or self.raised is not None

    def receive(self) -> None:
        """Take in messages and output."""
        for output in self.outputs:
            output.receive()
        try:
            while not self.lost and self.channel.poll():
                kind, content = pickle.loads(self.channel.recv_bytes())
                if kind == "returned":
                    self.returned = content
                elif kind == "raised":
                    self.raised, self.where = content, content.where
                else:
                    self.asked = False
                    if not self.raised:
                        self.where = content
        except (EOFError, OSError):
            self.process.join(timeout=CLOSES_WITHIN)
            self.lost = True

    def ask_where(self, again: bool = False) -> None:
        """Ask what the rank is doing; the answer arrives in ``where``."""
        if again or not self.asked:
            self.asked = True
            self.send("where")

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_dead(self) -> bool:
        """Whether no answer can come any more: it has ended, or its channel is closed, as by ``exec``."""
        return self.lost or self.process.exitcode is not None

    def exit_code(self) -> int | None:
        return self.process.exitcode

    def leave(self) -> None:
        """Let the rank end by itself: every rank has returned."""
        self._leaving = True
        self.send("leave")

    def stop(self) -> bool:
        """Make sure that the process is gone, with its children; whether it has ended by itself, and ended them."""
        if self._leaving:
            self.process.join(timeout=2)
        alone = self.process.exitcode == 0 and self._leaving and sys.platform == "linux"
        if not self._is_somebody_else():
            family: list[psutil.Process] = []
            with contextlib.suppress(psutil.Error):
                family = psutil.Process(self.process.pid).children(recursive=True)
            for kill in (self.process.kill, *(child.kill for child in family), self._kill_group):
                with contextlib.suppress(psutil.Error, OSError):
                    kill()
        self.process.join()
        self.process.close()
        self.channel.close()
        return alone

    def _is_somebody_else(self) -> bool:
        """Whether the rank ended some time ago, and the system has given its number to another process since."""
        return self.process.exitcode is not None and psutil.pid_exists(self.process.pid)

    def _kill_group(self) -> None:
        if hasattr(os, "killpg"):
            os.killpg(self.process.pid, signal.SIGKILL)

    def show_rest(self) -> None:
        for output in self.outputs:
            output.show_rest()

    def close(self) -> None:
        for output in self.outputs:
            output.close()
