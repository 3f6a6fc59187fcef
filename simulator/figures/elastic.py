"""How often to save (chapter 20)."""

from __future__ import annotations

from simulator.figures.figure import Figure, Slider

MINUTES = (10, 30, 60, 120, 300, 600, 1200, 1800, 2700, 3600, 7200, 14400, 43200, 86400)  # in seconds


def explore_interval(
    failures: float = 8, cost: float = 60, restart: float = 900, interval: float = 7200
) -> Figure:
    """The useful time over the time between two saves, with Young's interval, and what is lost with which.

    The curve is ``useful_share``; it and the parts of the loss add up to the whole time.

    Args:
        failures: a day, 0.1 to 100; Llama 3's 16,384 GPUs had 8.
        cost: seconds for which a save stops the computing, 1 to 600.
        restart: seconds from a failure until steps go on, 10 to 3,600.
        interval: seconds between two saves, 10 to 86,400.
    """
    return Figure(
        "interval",
        "How often to save",
        [
            Slider("interval", interval, MINUTES, "time between two saves", "s"),
            Slider("failures", failures, (0.1, 0.5, 1, 2, 4, 8, 16, 32, 64, 100), "failures a day"),
            Slider("cost", cost, (1, 2, 5, 10, 20, 30, 60, 120, 300, 600), "a save stops for", "s"),
            Slider("restart", restart, (10, 30, 60, 300, 900, 1800, 3600), "a restart takes", "s"),
        ],
    )
