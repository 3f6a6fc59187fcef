"""Handwritten digits, real images that come with scikit-learn: 1,797 of 8x8 pixels."""

from __future__ import annotations

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
    from sklearn import datasets  # a slow import, which only this function needs

    digits = datasets.load_digits()
    images = torch.from_numpy(digits.images).float().div(16).unsqueeze(1)  # 17 grey levels, 0 to 16
    labels = torch.from_numpy(digits.target).long()
    if split == "all":
        return images, labels
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))  # a stream NumPy keeps frozen
    chosen = order[:TEST_SIZE] if split == "test" else order[TEST_SIZE:]
    return images[chosen], labels[chosen]
