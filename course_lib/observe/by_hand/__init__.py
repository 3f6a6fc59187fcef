"""What a file of ``course_lib/by_hand`` does as a program: it trains a small GPT on ranks, and prints its ledgers.

``python -m course_lib.by_hand.fsdp --ranks 4`` starts the ranks itself; under ``torchrun`` each process is one already.
Every rung trains the same model from the same seed on the same samples. So does one device, to which losses and norms
are compared. Time, memory and traffic are measured on rank 0 and stand beside the simulator's prediction.
"""

from course_lib.observe.by_hand.command import main

__all__ = ["main"]
