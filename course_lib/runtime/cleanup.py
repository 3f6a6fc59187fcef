"""Loaded by the fork server, which ends a moment after the process that started it, and then removes that process's
temporary folder: a notebook's kernel often ends without a chance to do so, and a killed process always does.
"""

import atexit
import os
import shutil

VARIABLE = "COURSE_LIB_LAUNCHER_FOLDER"  # set only while the fork server is started

if folder := os.environ.pop(VARIABLE, None):
    os.setsid()  # Jupyter kills a kernel with its whole process group: the fork server must survive that
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # ranks leave by os._exit and do not run this
