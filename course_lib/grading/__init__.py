"""Exercises: checked in the notebook, graded from the command line."""
