"""Notebooks: exercises built from the solutions, chapters executed, links to where else they open."""
