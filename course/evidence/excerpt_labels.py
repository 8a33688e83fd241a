"""How the claims about the excerpt are to be labelled, and why.

It is the answer to 7.6; so the students' edition is made without this file.
"""

from typing import Mapping

from course.evidence.claims import Claim, Label
from course.evidence.excerpt import CLAIMED


def _as(name: str, label: Label, place: str = "", premises: tuple[str, ...] = ()) -> Claim:
    return Claim(*CLAIMED[name], label, place, premises)


TRUTH: Mapping[str, tuple[Claim, str]] = {  # claim -> (as it should be labelled, why)
    "c01": (_as("c01", "D", "excerpt e2"), "e2 names the algorithm"),
    "c02": (_as("c02", "I", premises=("e3", "e4")), "it is e3 divided by e4, and stands in neither"),
    "c03": (_as("c03", "U"), "e3 and e4 give a mean and nothing about its spread"),
    "c04": (_as("c04", "U"), "e5 says reinforcement learning, which is the name of no algorithm"),
    "c05": (_as("c05", "D", "excerpt e5"), "e5 says it in these words"),
    "c06": (_as("c06", "D", "excerpt e6"), "e6 says it with the same budget"),
    "c07": (_as("c07", "D", "excerpt e7"), "e7 says what it controls"),
    "c08": (_as("c08", "U"), "e9 gives results; which tasks were trained on is said nowhere"),
    "c09": (_as("c09", "I", premises=("e10", "e11")), "it is e10 divided by e11, and stands in neither"),
    "c10": (_as("c10", "U"), "e12 says that programs are selected; of weights it says nothing"),
    "c11": (_as("c11", "U"), "e7 and e8 name both kinds of training and count neither"),
    "c12": (_as("c12", "I", premises=("e1",)), "nine answers make 9 * 8 / 2 pairs: computed from e1, which does not say it"),
}
