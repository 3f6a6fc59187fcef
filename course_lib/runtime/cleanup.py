"""Loaded by the fork server: it outlives its launcher by a moment, and takes the launcher's temporary folder along.

A notebook's kernel ends without a chance to tidy up, and so does a process that is killed.
"""

import atexit
import os
import shutil

VARIABLE = "COURSE_LIB_LAUNCHER_FOLDER"  # set only while the launcher starts its fork server

if folder := os.environ.pop(VARIABLE, None):
    atexit.register(
        shutil.rmtree, folder, ignore_errors=True
    )  # its forks leave by os._exit and do not run this
