"""Which fact refutes which folk claim of lore.py.

It is the answer to 7.5; so the students' edition is made without this file.
"""

from course.evidence.lore import CLAIMS, FACTS, Fact

REFUTES = {  # claim -> fact
    "webgpt": "f12", "prm800k": "f07", "rbr": "f13", "o1": "f06", "tools": "f15", "constitution": "f08", "claude37": "f03",
    "thoughts": "f17", "rlaif": "f04", "sparrow": "f02", "alphaproof": "f18", "alphaevolve": "f05", "robots": "f11",
    "benchmarks": "f01", "weights": "f19", "tampering": "f10", "robot_demo": "f16",
}  # fmt: skip


def correction(claim: str) -> Fact:
    """The fact that refutes a folk claim. Source: A 12; "tampering" and "robot_demo": A 4.6, A 4.7."""
    if claim not in CLAIMS:
        raise ValueError(f"claim must be one of {', '.join(CLAIMS)}; got {claim!r}")
    return FACTS[REFUTES[claim]]
