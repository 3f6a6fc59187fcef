"""The drawings of the three ledgers: the same functions for what was predicted and what was measured.

Each returns a ``Picture``. Colours are told apart by lightness too, so that a drawing survives a black-and-white
printer and every kind of colour blindness. matplotlib is imported when something is drawn, not before.
"""

from simulator.picture import Picture
from simulator.plot_bytes import plot_bytes_over_time, plot_memory, plot_plans
from simulator.plot_curves import plot_curves
from simulator.plot_time import plot_timeline

__all__ = ["Picture", "plot_bytes_over_time", "plot_curves", "plot_memory", "plot_plans", "plot_timeline"]
