"""Gradient compression by hand: data parallelism over a slow link.

Four ways to send less than DDP's 2 (p-1)/p of the gradient's bytes:

    EightBits   1 byte an element in place of 4
    TopK        only the k largest of n elements, with their places
    PowerSGD    a matrix M (n, m) as P (n, r) times Q (m, r) transposed
    DiLoCo      nothing for H steps, then the weights' average change

The first three lose something in each step. Error feedback adds what
was lost to the next step's gradient, so nothing is lost for good (Seide
et al. 2014; Karimireddy et al., arXiv:1901.09847).
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from course_lib.runtime import trace

# torch 2.13 has renamed it, and warns of its old name.
all_gather = getattr(
    dist, "all_gather_single", dist.all_gather_into_tensor
)


class Compressed:
    """What the methods share. ``exchange(i, wanted)`` takes what this
    rank wants to send of gradient i. It returns the ranks' mean, as far
    as it was sent, and what it sent of this rank's part."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.p = dist.get_world_size()
        self.residuals = [torch.zeros_like(w) for w in parameters]

    def after_backward(self) -> None:
        for i, w in enumerate(self.parameters):
            # Error feedback is these three lines.
            wanted = w.grad + self.residuals[i]
            with trace.span("communication", f"gradient {i}"):
                w.grad, sent = self.exchange(i, wanted)
            self.residuals[i] = wanted - sent

    def after_update(self) -> None:
        pass


class EightBits(Compressed):
    """Codes cannot be added up: each row has a scale of its own. So the
    ring is of no use, and the all-reduce is done in two messages (Bagua,
    arXiv:2107.01499). Rank j decodes and adds up part j of all ranks,
    and sends the sum, in codes again, to all."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters)
        self.sum_residuals = [0.0 for _ in parameters]  # the sum's loss

    def exchange(self, i: int, wanted: Tensor):
        n, p = wanted.numel(), self.p
        last = wanted.flatten()[-1:].expand(-n % p)  # widens no range
        rows = torch.cat([wanted.flatten(), last]).view(p, -1)  # (p, c)
        codes = encode(rows)  # (p, 8 + c) bytes
        received = torch.empty_like(codes)
        dist.all_to_all_single(received, codes)  # row j goes to rank j
        mean = decode(received, wanted.dtype).mean(0, keepdim=True)
        mean = mean + self.sum_residuals[i]  # (1, c)
        code = encode(mean)
        self.sum_residuals[i] = mean - decode(code, wanted.dtype)
        means = torch.empty_like(codes)
        all_gather(means, code)
        result = decode(means, wanted.dtype).flatten()[:n]
        sent = decode(codes, wanted.dtype).flatten()[:n]
        return result.view_as(wanted), sent.view_as(wanted)


def encode(rows: Tensor) -> Tensor:
    """(r, c) -> (r, 8 + c) uint8. 255 equal steps from a row's smallest
    element to its largest; the two stand in front, in fp32."""
    low, high = rows.float().aminmax(dim=1, keepdim=True)  # (r, 1)
    step = ((high - low) / 255).clamp(min=1e-38)
    codes = ((rows.float() - low) / step).round().clamp(0, 255)
    header = torch.cat([low, high], dim=1).view(torch.uint8)
    return torch.cat([header, codes.to(torch.uint8)], dim=1)


def decode(message: Tensor, dtype: torch.dtype) -> Tensor:
    """(r, 8 + c) uint8 -> (r, c)."""
    header = message[:, :8].flatten().clone()  # fp32 lies on 4 bytes
    low, high = header.view(torch.float32).view(-1, 2).split(1, dim=1)
    return (low + message[:, 8:] * ((high - low) / 255)).to(dtype)


class TopK(Compressed):
    """Each rank chooses other places, so an all-gather takes all places
    and values to all (Aji and Heafield, arXiv:1704.05021)."""

    def __init__(self, parameters, density: float = 0.01) -> None:
        super().__init__(parameters)
        self.density = density

    def exchange(self, i: int, wanted: Tensor):
        flat = wanted.flatten()  # (n,)
        k = max(1, round(self.density * len(flat)))
        places = flat.abs().topk(k).indices  # (k,)
        all_places = places.new_empty(self.p * k, dtype=torch.int32)
        all_values = flat.new_empty(self.p * k)
        all_gather(all_places, places.int())
        all_gather(all_values, flat[places])
        mean, sent = torch.zeros_like(flat), torch.zeros_like(flat)
        mean.index_add_(0, all_places.long(), all_values / self.p)
        sent[places] = flat[places]
        return mean.view_as(wanted), sent.view_as(wanted)


class PowerSGD(Compressed):
    """One step of power iteration, which goes on from the last step's Q
    (Vogels et al., arXiv:1905.13727). Both products are linear in M, so
    an all-reduce of them gives those of the mean of all ranks' M."""

    def __init__(self, parameters, r: int = 4) -> None:
        super().__init__(parameters)
        draws = torch.Generator().manual_seed(0)  # alike on all ranks
        self.q = {}  # of the matrices for which (n + m) r < n m
        for i, w in enumerate(parameters):
            n, m = len(w), w[0].numel()
            thin = min(n, m, r)
            if w.dim() > 1 and (n + m) * thin < n * m:
                self.q[i] = torch.randn(m, thin, generator=draws).to(w)

    def exchange(self, i: int, wanted: Tensor):
        if i not in self.q:  # a vector is sent as it is
            mean = self.mean(wanted.clone())
            return mean, wanted
        M = wanted.flatten(1)  # (n, m)
        Q, _ = torch.linalg.qr(self.q[i])
        P, _ = torch.linalg.qr(self.mean(M @ Q))  # (n, r), orthonormal
        self.q[i] = self.mean(M.T @ P)  # (m, r)
        mean = (P @ self.q[i].T).view_as(wanted)
        return mean, mean  # what it misses is everyone's residual

    def mean(self, t: Tensor) -> Tensor:
        dist.all_reduce(t)
        return t / self.p


class DiLoCo:
    """Each rank trains alone for H steps. How far they went on average
    is taken for a gradient: a second optimizer, outer, applies it to the
    weights from which they began (Douillard et al., arXiv:2311.08105).
    """

    def __init__(self, parameters, H: int = 5, lr=0.7, momentum=0.9):
        self.parameters, self.H, self.steps = parameters, H, 0
        self.outer = [w.detach().clone() for w in parameters]
        self.optimizer = torch.optim.SGD(
            self.outer, lr, momentum, nesterov=momentum > 0
        )

    def after_backward(self) -> None:
        pass

    def after_update(self) -> None:
        self.steps += 1
        if self.steps % self.H:
            return
        for start, w in zip(self.outer, self.parameters, strict=True):
            start.grad = (start - w.detach()) / dist.get_world_size()
            with trace.span("communication", "all-reduce"):
                dist.all_reduce(start.grad)
        self.optimizer.step()
        for start, w in zip(self.outer, self.parameters, strict=True):
            w.detach().copy_(start)


def train(
    model, batches, make_optimizer, loss_fn, method=EightBits, **settings
):
    """Yields each step's loss, of this rank's samples, and the norm of
    the gradient that the optimizer gets."""
    for t in (*model.parameters(), *model.buffers()):
        dist.broadcast(t.detach(), 0)  # all ranks start alike
    parameters = list(model.parameters())
    compress = method(parameters, **settings)
    optimizer = make_optimizer(parameters)
    for inputs, targets in batches:
        loss = loss_fn(model(inputs), targets)
        loss.backward()
        compress.after_backward()
        norm = get_total_norm([w.grad for w in parameters])
        optimizer.step()
        optimizer.zero_grad()
        compress.after_update()
        yield loss.detach(), norm


RUNGS = {
    "8 bits": {"method": EightBits},
    "top-k": {"method": TopK, "density": 0.01},
    "PowerSGD": {"method": PowerSGD, "r": 4},
    "DiLoCo": {"method": DiLoCo, "H": 5},
}

if __name__ == "__main__":
    from course_lib.observe.by_hand import main
    from course_lib.observe.by_hand.traffic import compressed

    main(train, RUNGS, traffic=compressed)
