"""``python -m simulator``: see ``simulator.cli``."""

from simulator.cli import main

if __name__ == "__main__":
    main(prog_name="python -m simulator")
