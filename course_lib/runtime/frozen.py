"""The last module that the fork server imports: what it has loaded until here is needed to the end of each rank.

Python's garbage collector looks again and again at all objects, in each rank at some hundred thousand of torch's.
Looking even copies their memory, which ranks otherwise share. Frozen objects are passed over (``gc.freeze``, made for
servers that fork). At its own end the server frees them as usual; libraries complain of objects that are left.
"""

import atexit
import gc

gc.freeze()
gc.enable()  # ``cleanup`` switched it off: while torch is imported, it would take a quarter of the time
atexit.register(gc.unfreeze)
