"""A linter for claims: the reasons for which a line claims more than its source says, and words that nearly always do."""

import re
from dataclasses import dataclass

REASONS = {
    "optimizer_from_rl": "An algorithm is named where the report says reinforcement learning and no more.",
    "rl_from_agentic": "Reinforcement learning is claimed where the report says agentic.",
    "rl_from_evolution": "Reinforcement learning is claimed where the report says evolutionary search.",
    "tool_rl_from_tools": "Learning tools by reinforcement is claimed where the report says that tools are used.",
    "condition_dropped": "A number is told without its budget, its comparator or its adjustment.",
    "relative_as_absolute": "A share of another one's rate is told as a rate.",
    "units_mixed": "A number is told with another unit.",
    "other_model": "A number of another model is told as this one's.",
    "suites_averaged": "Numbers of different benchmarks are told as one average.",
    "cause_not_said": "A cause is told where the report says that something happened.",
    "not_said": "The report says nothing of the kind.",
}
STRONG = {  # pattern -> what it claims
    r"thanks to|because of|owing to|led to|is (?:the )?(?:reason|cause)": "cause_not_said",
    r"prov(?:e|es|ed) that|guarantees?|ensures?|eliminates?": "not_said",
    r"human-level|superhuman|state[- ]of[- ]the[- ]art|unprecedented|breakthrough": "condition_dropped",
    r"understands|wants|decides by itself|learned (?:how )?to": "not_said",
}


@dataclass(frozen=True)
class Finding:
    """One over-claim. why: a key of REASONS; place: the sentence that says less, "s4"; empty if none speaks of it."""

    field: str
    claim: str
    why: str
    place: str = ""


def strong_words(text: str) -> tuple[Finding, ...]:
    """Words of a text, ours or another's, that nearly always claim more than a source says. place: the sentence of the text, "s2".

    A hint and no verdict: what stands in quotation marks or after "not" may be right.
    """
    found = []
    for number, sentence in enumerate(re.split(r"(?<=[.!?])\s+", text.strip()), 1):
        for pattern, why in STRONG.items():
            if word := re.search(rf"\b(?:{pattern})\b", sentence, re.IGNORECASE):
                found.append(Finding("", word[0], why, f"s{number}"))
    return tuple(found)
