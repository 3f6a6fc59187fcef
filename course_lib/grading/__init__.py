"""Exercises: built from the solutions, checked in the notebook, graded from the command line."""
