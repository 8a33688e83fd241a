"""Speed as ratios: ours and a named alternative take turns in one process, so that a busy machine slows both."""


def row(case: str, ours: float, other: float, other_name: str) -> dict:
    """A comparison as `course bench` shows it: seconds per piece of work in, microseconds and their ratio out."""
    return {"case": case, "ours": ours * 1e6, "other": other * 1e6, "other_name": other_name, "ratio": ours / other}
