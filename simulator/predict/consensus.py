"""How fast decentralised averaging makes ranks agree: the second eigenvalue of the mixing matrix.

Let X have one row for each rank, its weights. Mixing makes it W X. If W is symmetric and doubly stochastic, the mean
row stays, and the distance to it shrinks in each mixing at least by the factor lambda, the largest magnitude of W's
eigenvalues but one eigenvalue 1 (D-PSGD, arXiv:1705.09056; Xiao and Boyd, 2004). With other pairs in each step the
mean of the squared distance shrinks by the second eigenvalue of the mean matrix (Boyd et al., 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sqrt

from simulator.inputs.checks import at_least, finite, not_negative, refuse
from simulator.inputs.mixing import Matrix, check_matrix


def second_eigenvalue(matrix: Matrix) -> float:
    """The largest magnitude among the eigenvalues of a symmetric mixing matrix, one eigenvalue 1 left out.

    By Jacobi's rotations: each makes one pair of entries off the diagonal zero, until all are.
    """
    check_matrix(matrix)
    p = len(matrix)
    if any(abs(matrix[i][j] - matrix[j][i]) > 1e-9 for i in range(p) for j in range(i)):
        refuse("the mixing matrix", "symmetric", [list(row) for row in matrix])
    if p == 1:
        return 0.0
    a = [list(row) for row in matrix]
    for _ in range(100):
        if sum(a[i][j] ** 2 for i in range(p) for j in range(i)) < 1e-26:
            break
        for i in range(p):
            for j in range(i):
                _rotate(a, i, j)
    values = sorted((a[i][i] for i in range(p)), key=lambda value: abs(value - 1))
    return max(abs(value) for value in values[1:])


def ring_second_eigenvalue(ranks: int) -> float:
    """Of ``ring_matrix``, in closed form: the largest |1/3 + 2/3 cos(2 pi k / p)| for k = 1 … p - 1.

    It comes close to 1 in a large ring: 1 - 4 pi²/(3 p²), roughly. So the steps to agreement grow with p².
    """
    at_least(1, ranks=ranks)
    if ranks <= 2:
        return 0.0
    return max(abs(1 / 3 + 2 / 3 * cos(2 * pi * k / ranks)) for k in range(1, ranks))


def mixed(matrix: Matrix, rows: Sequence[Sequence[float]]) -> list[list[float]]:
    """W X: every rank's row after one mixing. ``rows``: p rows of equally many numbers."""
    check_matrix(matrix)
    _check_rows(rows, len(matrix))
    return [
        [sum(share * row[c] for share, row in zip(shares, rows, strict=True)) for c in range(len(rows[0]))]
        for shares in matrix
    ]


def distance(rows: Sequence[Sequence[float]]) -> float:
    """The root of the sum over all ranks of |x_i - mean|²."""
    p = len(rows)
    _check_rows(rows, p)
    means = [sum(column) / p for column in zip(*rows, strict=True)]
    return sqrt(sum((x - mean) ** 2 for row in rows for x, mean in zip(row, means, strict=True)))


def consensus_distances(matrices: Sequence[Matrix], rows: Sequence[Sequence[float]]) -> list[float]:
    """The distance at the start and after each mixing, if nothing is learnt in between: exact for these rows."""
    found = [distance(rows)]
    for matrix in matrices:
        rows = mixed(matrix, rows)
        found.append(distance(rows))
    return found


def consensus_bound(start: float, matrix: Matrix, steps: int) -> list[float]:
    """The largest distance that is possible after 0, 1, … ``steps`` mixings with one matrix: start · lambda^k."""
    not_negative(start=start)
    at_least(0, steps=steps)
    shrink = second_eigenvalue(matrix)
    return [start * shrink**k for k in range(steps + 1)]


def steady_distance(disturbance: float, matrix: Matrix) -> float:
    """Where the distance settles when every step also moves the ranks apart by at most ``disturbance``.

    d <= lambda d + disturbance gives disturbance / (1 - lambda). In training the disturbance is the learning rate times
    the distance of the ranks' gradients from their mean.
    """
    not_negative(disturbance=disturbance)
    shrink = second_eigenvalue(matrix)
    if shrink >= 1 - 1e-12:
        refuse("the mixing matrix", "one that joins all ranks (second eigenvalue below 1)", shrink)
    return disturbance / (1 - shrink)


def _check_rows(rows: Sequence[Sequence[float]], p: int) -> None:
    if not hasattr(rows, "__len__") or len(rows) != p or len({len(row) for row in rows}) != 1:
        refuse("rows", f"{p} rows of equal length, at least one", rows)
    for row in rows:
        finite(**{f"element_{i}_of_a_row": x for i, x in enumerate(row)})


def _rotate(a: list[list[float]], i: int, j: int) -> None:
    """Make ``a[i][j]`` zero by a rotation of rows and columns i and j, which keeps the eigenvalues."""
    if a[i][j] == 0:
        return
    theta = (a[j][j] - a[i][i]) / (2 * a[i][j])
    t = (1 if theta >= 0 else -1) / (abs(theta) + sqrt(theta**2 + 1))
    c = 1 / sqrt(t**2 + 1)
    s = t * c
    for k in range(len(a)):
        a[k][i], a[k][j] = c * a[k][i] - s * a[k][j], s * a[k][i] + c * a[k][j]
    for k in range(len(a)):
        a[i][k], a[j][k] = c * a[i][k] - s * a[j][k], s * a[i][k] + c * a[j][k]
