"""The syllabus as a folder: each technique in one file that needs no
other, at most 150 lines of code, first the simplest way that works.

Each file is a program, too: ``python -m course_lib.by_hand.ddp``.
"""
