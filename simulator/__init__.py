"""What should happen when a training plan runs: its time, its memory and its traffic, predicted.

The simulator needs neither PyTorch nor ``course_lib``. ``course_lib.observe`` measures the same three
ledgers on real ranks, in the same types, so that one drawing serves both.
"""
