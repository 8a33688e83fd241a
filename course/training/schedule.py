"""The learning rate over time."""


def warmup_then_linear(step: int, steps: int, warmup: int) -> float:
    """Factor on the learning rate: rises over the first `warmup` steps, then falls in a straight line to 2 per cent."""
    return min(1.0, (step + 1) / max(1, warmup)) * max(0.02, 1 - step / steps)
