"""Loaded by the fork server, which ends a moment after the process that started it, and then removes that process's
temporary folder: a notebook's kernel often ends without a chance to do so, and a killed process always does.

So it must not end earlier. Python's fork server ends with an ``EOFError`` when a process connects to it and is killed
before it has sent what to start: an agent, for example, that is killed while it starts a rank. Here it goes on.
"""

import atexit
import errno
import gc
import os
import shutil
from multiprocessing import reduction
from typing import Any

VARIABLE = "COURSE_LIB_LAUNCHER_FOLDER"  # set only while the fork server is started

if folder := os.environ.pop(VARIABLE, None):
    gc.disable()  # until all is loaded: see ``frozen``
    os.setsid()  # Jupyter kills a kernel with its whole process group: the fork server must survive that
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # ranks leave by os._exit and do not run this

    receive = reduction.recvfds

    def receive_or_go_on(*args: Any) -> list[int]:
        try:
            return receive(*args)
        except EOFError:  # the one error after which the fork server goes on is a connection that was aborted
            raise OSError(errno.ECONNABORTED, "a process was gone before it said what to start") from None

    reduction.recvfds = receive_or_go_on
