"""Handwritten digits, real images that come with scikit-learn: 1,797 of 8x8 pixels."""

from __future__ import annotations

from importlib.metadata import distribution

import numpy as np
import torch
from torch import Tensor

TEST_SIZE = 360  # a fifth


def load_digits(split: str = "train") -> tuple[Tensor, Tensor]:
    """Images float32 ``(n, 1, 8, 8)`` from 0 to 1, and labels int64 ``(n,)`` from 0 to 9.

    ``split``: ``"train"`` (1,437), ``"test"`` (360) or ``"all"`` (1,797). The split is always the same. It is drawn at
    random, because the file is sorted by writer and each writer wrote the digits in order.
    """
    if split not in ("train", "test", "all"):
        raise ValueError(f"split is {split!r}; choose 'train', 'test' or 'all'.")
    images, labels = _read()
    if split == "all":
        return images, labels
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))  # a stream NumPy keeps frozen
    chosen = order[:TEST_SIZE] if split == "test" else order[TEST_SIZE:]
    return images[chosen], labels[chosen]


def _read() -> tuple[Tensor, Tensor]:
    """scikit-learn's file. It is not imported for it: that takes a second and a half, on every rank."""
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    rows = np.loadtxt(str(file), np.uint8, delimiter=",")
    images = torch.from_numpy(rows[:, :64]).view(-1, 1, 8, 8).float().div(16)  # 17 grey levels, 0 to 16
    return images, torch.from_numpy(rows[:, 64]).long()
