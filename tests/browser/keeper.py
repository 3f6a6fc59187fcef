"""Run a command for as long as whoever started this program lives: ``keeper.py FOLDER … -- COMMAND …``.

It reads its input until that ends. The input ends with the starter, also when the starter is killed and can do nothing
any more. Then the command is ended, with all its children, and the folders are deleted. If the starter sent
``KEEP_THE_REST``, only the first of them is.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from contextlib import suppress

import psutil

KEEP_THE_REST = b"done"
PATIENCE = 30  # seconds for JupyterLab to end its kernels


def end(process: subprocess.Popen) -> None:
    """End a process, then whatever of its family is still there."""
    family = []
    with suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE / 3)
    for left in alive:
        with suppress(psutil.NoSuchProcess):
            left.kill()
    process.kill()
    process.wait()


def main(arguments: list[str]) -> None:
    split = arguments.index("--")
    folders, command = arguments[:split], arguments[split + 1 :]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    ended = threading.Event()
    threading.Thread(target=lambda: (process.wait(), ended.set()), daemon=True).start()
    said: list[bytes] = []
    reader = threading.Thread(target=lambda: (said.append(sys.stdin.buffer.read()), ended.set()), daemon=True)
    reader.start()
    ended.wait()
    end(process)
    reader.join()  # a server that ended by itself leaves its log until its starter has read it
    for folder in folders[:1] if said == [KEEP_THE_REST] else folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
