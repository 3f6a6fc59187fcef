"""How the learning rate changes while a model trains."""


def warmed_up(done: int, steps: int) -> float:
    """The part of the learning rate that the step after ``done`` of ``steps`` steps has.

    It rises over the first tenth of the steps, then falls to zero: a factor for ``LambdaLR``.
    """
    rising = max(1, steps // 10)
    return min((done + 1) / rising, (steps - done) / max(1, steps - rising))
