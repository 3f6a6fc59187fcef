"""How many agents train together, and how long one waits for another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How many agents a round needs, and how long one waits; times in seconds."""

    min_agents: int = 1
    max_agents: int = 64
    last_call: float = 1.0  # how long an open round waits for more agents once it has min_agents
    beat: float = 0.2  # between two heartbeats
    beat_timeout: float = 1.5  # without a heartbeat, after which an agent counts as dead
    give_up: float = 30.0  # without a sealed round, after which the run ends

    @property
    def patience(self) -> float:
        """How long a store may take to answer. An agent that waits for one sends no heartbeat to another."""
        return self.beat_timeout * 2 / 3

    def __post_init__(self) -> None:
        if not 1 <= self.min_agents <= self.max_agents:
            raise ValueError(
                f"min_agents is {self.min_agents} and max_agents {self.max_agents}: at least 1 agent is needed, "
                "and min_agents must not be more than max_agents"
            )
        if not 0 < self.beat < self.beat_timeout < self.give_up or not self.last_call >= 0:
            raise ValueError(
                f"times must be 0 < beat < beat_timeout < give_up, not {self.beat}, {self.beat_timeout} and "
                f"{self.give_up}; and last_call must be 0 or more, not {self.last_call}"
            )
