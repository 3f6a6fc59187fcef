"""How fast decentralised averaging makes ranks agree: the second eigenvalue of the mixing matrix.

Let X have one row for each rank, its weights. Mixing makes it W X. If W is symmetric and doubly stochastic, the mean
row stays, and the distance to it shrinks in each mixing at least by the factor lambda, the largest magnitude of W's
eigenvalues but one eigenvalue 1 (D-PSGD, arXiv:1705.09056; Xiao and Boyd, 2004).
"""

from __future__ import annotations

from math import sqrt

from simulator.inputs.checks import at_least, not_negative, refuse
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


def consensus_bound(start: float, matrix: Matrix, steps: int) -> list[float]:
    """The largest distance that is possible after 0, 1, … ``steps`` mixings with one matrix: start · lambda^k."""
    not_negative(start=start)
    at_least(0, steps=steps)
    shrink = second_eigenvalue(matrix)
    return [start * shrink**k for k in range(steps + 1)]


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
