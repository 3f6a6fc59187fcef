"""Saves that survive a kill and a full disk, for every part of the library that writes checkpoints."""
