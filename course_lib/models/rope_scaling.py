"""RoPE for texts longer than those of pretraining: four ways to turn more slowly, as a ``config.json`` names them.

- ``linear``: all positions closer together, by the factor (position interpolation, arXiv:2306.15595).
- ``dynamic``: a larger theta, the longer the text beyond the original length (NTK-aware).
- ``llama3``: pairs that turn slowly are interpolated, fast ones stay, and those between are blended (Llama 3.1).
- ``yarn``: such a blend by the turns within the original length, and softer attention (arXiv:2309.00071).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

KINDS = ("linear", "dynamic", "llama3", "yarn")


@dataclass(frozen=True)
class RopeScaling:
    """One of the four ways.

    Attributes:
        factor: how many times longer texts become.
        original_length: tokens of the texts of pretraining.
        low_freq_factor, high_freq_factor: of llama3. A pair that turns less often than the first within the original
            length is interpolated, one that turns more often than the second stays.
        beta_slow, beta_fast: the same two for yarn.
        truncate: of yarn: the blend begins and ends at whole pairs.
        attention_factor: of yarn: sines and cosines are multiplied by it; None: 0.1 ln(factor) + 1.
    """

    kind: str
    factor: float
    original_length: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the kind of RoPE scaling is {self.kind!r}; choose one of {', '.join(KINDS)}.")
        if self.factor < 1 or self.original_length < 1:
            raise ValueError(
                f"factor {self.factor} and original length {self.original_length}: both must be at least 1."
            )

    @property
    def length(self) -> int:
        """Tokens of the longest text."""
        return int(self.factor * self.original_length)

    @property
    def amplitude(self) -> float:
        """By which sines and cosines are multiplied."""
        if self.kind != "yarn":
            return 1.0
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor

    def frequencies(self, theta: float, exponents: Tensor, positions: Tensor) -> Tensor:
        """The angle from one position to the next, for each pair of entries: ``(pairs,)``, as ``exponents``."""
        if self.kind == "dynamic":
            longer = max(int(positions.max()) + 1, self.original_length) / self.original_length
            size = 2 * len(exponents)
            theta = theta * (self.factor * longer - (self.factor - 1)) ** (size / (size - 2))
        periods = theta**exponents
        match self.kind:
            case "linear":
                return 1.0 / periods / self.factor
            case "llama3":
                return self._llama3(1.0 / periods)
            case "yarn":
                return self._yarn(theta, periods)
        return 1.0 / periods

    def _llama3(self, frequencies: Tensor) -> Tensor:
        wavelength = 2 * math.pi / frequencies
        low, high = self.low_freq_factor, self.high_freq_factor
        stays = (self.original_length / wavelength - low) / (high - low)
        blend = (1 - stays) * frequencies / self.factor + stays * frequencies
        slow = wavelength > self.original_length / low
        fast = wavelength < self.original_length / high
        return torch.where(slow, frequencies / self.factor, torch.where(fast, frequencies, blend))

    def _yarn(self, theta: float, periods: Tensor) -> Tensor:
        pairs = len(periods)

        def pair_with(turns: float) -> float:
            """Which pair turns so often within the original length; a fraction lies between two."""
            return pairs * math.log(self.original_length / (turns * 2 * math.pi)) / math.log(theta)

        first, last = pair_with(self.beta_fast), pair_with(self.beta_slow)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * pairs - 1)
        where = torch.arange(pairs, dtype=torch.float32, device=periods.device)
        stays = 1 - ((where - first) / max(last - first, 0.001)).clamp(0, 1)
        return 1.0 / (self.factor * periods) * (1 - stays) + 1.0 / periods * stays
