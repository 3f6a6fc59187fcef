"""The drawings of the three ledgers: the same functions for what was predicted and what was measured.

Each returns a ``Picture``. Colours are told apart by lightness too, so that a drawing survives a black-and-white
printer and every kind of colour blindness. matplotlib is imported when something is drawn, not before.
"""

from simulator.plots.bytes_over_time import plot_bytes_over_time
from simulator.plots.curves import plot_curves
from simulator.plots.groups import plot_groups
from simulator.plots.memory_bars import plot_memory
from simulator.plots.picture import Picture
from simulator.plots.plans import plot_plans
from simulator.plots.timeline import plot_timeline

__all__ = [
    "Picture",
    "plot_bytes_over_time",
    "plot_curves",
    "plot_groups",
    "plot_memory",
    "plot_plans",
    "plot_timeline",
]
