"""The linear probe: logistic regression on what the frozen model computes, which is computed once.

Look at it before you choose a method: where it is as good as fine-tuning, nothing else is needed.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict

import torch
from torch import Tensor

from course_lib.comparison.finetuning.run import Setting, matmul_precision, trimmed
from course_lib.data.finetuning_tasks import Part, Task
from course_lib.models.bert import Bert

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # C, chosen on the validation part as the learning rates are


@torch.no_grad()
def mean_pooled(bert: Bert, part: Part, device: str = "cpu", batch_size: int = 128) -> Tensor:
    """The mean of the last hidden states over each text's tokens: ``(n, hidden)``, on the CPU."""
    bert = bert.to(device).eval()
    features = torch.empty(len(part.labels), bert.config.hidden_size)
    for chosen in part.mask.sum(1).argsort().split(batch_size):
        tokens, mask, _ = trimmed(tuple(tensor[chosen] for tensor in part), device)
        output = bert(tokens, mask)
        x = output[0] if isinstance(output, tuple) else output  # (batch, seq, hidden)
        weight = mask[..., None].to(x.dtype)
        features[chosen] = ((x * weight).sum(1) / weight.sum(1)).cpu()
    return features


class Probe:
    """Features of a task's three parts, and a regression on them for each C."""

    def __init__(self, bert: Bert, task: Task, device: str = "cpu", matmul: str = "highest") -> None:
        self.task, self.total = task, sum(p.numel() for p in bert.parameters())
        parts = (task.train, task.validation, task.test)
        with matmul_precision(matmul):
            train, *others = [mean_pooled(bert, part, device) for part in parts]
        self.scale = train.mean(0), train.std(0).clamp_min(1e-6)
        self.train, self.validation, self.test = (self._scaled(x) for x in (train, *others))

    def _scaled(self, x: Tensor) -> Tensor:
        return (x - self.scale[0]) / self.scale[1]

    def run(self, setting: Setting) -> dict:
        """The row of ``run.train_one``; without memory and seconds, because there are no steps."""
        from sklearn.linear_model import LogisticRegression  # takes a second to import

        regression = LogisticRegression(C=setting.lr, max_iter=1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged after 1,000 rounds, where C is large
            regression.fit(self.train.numpy(), self.task.train.labels.numpy())
        head = regression.coef_.size + regression.intercept_.size
        return {
            **asdict(setting),
            "validation": float(
                regression.score(self.validation.numpy(), self.task.validation.labels.numpy())
            ),
            "test": float(regression.score(self.test.numpy(), self.task.test.labels.numpy())),
            "last_loss": None,
            "trainable": head,
            "total": self.total + head,
            "memory": None,
            "predicted_memory": None,
            "seconds_per_step": None,
        }
