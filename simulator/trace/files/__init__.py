"""The files of a run, read one rank at a time: Chrome traces of any size, and the Flight Recorder's dumps."""
