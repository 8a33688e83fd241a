"""Short conversations in which an assistant may call a calculator, look a fact up, or ask a clock: for masks and scores.

A simulated policy "samples" the assistant's turns, with slips; the tools answer what was really called. The ids of those turns
are actions. Nothing else is, the assistant's turns in an example conversation at the beginning included.
"""

import random
from dataclasses import dataclass
from functools import lru_cache

from course.language import StopReason, Tokenizer, Transcript, Turn

LARGEST = 40
NUMBERS = tuple(str(i) for i in range(LARGEST + 1))
CAPITALS = {"france": "paris", "italy": "rome", "spain": "madrid", "greece": "athens", "norway": "oslo", "japan": "tokyo"}
COLOURS = {"grass": "green", "snow": "white", "coal": "black", "blood": "red"}
FACTS = {"capital": CAPITALS, "colour": COLOURS}
SYSTEM = "you may call calculator , lookup or clock . answer in one sentence ."
WORDS = tuple(
    dict.fromkeys(
        f"{SYSTEM} what is time it ? ; plus minus the of in hours i do not know error hello can hear me yes".split()
        + list(NUMBERS)
        + [word for subject, facts in FACTS.items() for pair in facts.items() for word in (subject, *pair)]
    )
)
SLIP = 0.03  # chance per word that the simulated policy writes a random other word
VARIANTS = ("cut call", "all ended", "cut answer", "stopped calls")


@lru_cache
def toolchat_tokenizer() -> Tokenizer:
    return Tokenizer.words(WORDS)


@dataclass(frozen=True)
class Question:
    text: str
    call: str


def question(rng: random.Random) -> Question:
    """A question together with the call that answers it."""
    kind = rng.choice(("calculator", "lookup", "clock"))
    if kind == "calculator":
        a, b = sorted((rng.randrange(LARGEST // 2 + 1), rng.randrange(LARGEST // 2 + 1)), reverse=True)
        sign = rng.choice(("plus", "minus"))
        return Question(f"what is {a} {sign} {b} ?", f"call calculator {a} {sign} {b} ;")
    if kind == "lookup":
        subject = rng.choice(tuple(FACTS))
        about = rng.choice(tuple(FACTS[subject]))
        return Question(f"what is the {subject} of {about} ?", f"call lookup {subject} {about} ;")
    later = rng.randrange(1, 13)
    return Question(f"what time is it in {later} hours ?", f"call clock {later} ;")


def tool_result(call: str, hour: int) -> str:
    """What the tools return for a call at this hour of the day; "error" for anything that is not a whole, known call."""
    match call.split():
        case ["call", "calculator", a, ("plus" | "minus") as sign, b, ";"] if a in NUMBERS and b in NUMBERS:
            value = int(a) + (int(b) if sign == "plus" else -int(b))
            return str(value) if 0 <= value <= LARGEST else "error"
        case ["call", "lookup", subject, about, ";"] if about in FACTS.get(subject, {}):
            return FACTS[subject][about]
        case ["call", "clock", later, ";"] if later in NUMBERS:
            return f"{(hour + int(later)) % 24} hours"
    return "error"


def answer(result: str) -> str:
    return "i do not know ." if result == "error" else f"it is {result} ."


def toolchat_transcripts(n: int, seed: int) -> list[Transcript]:
    """n conversations; conversation i depends on (seed, i) only.

    Every four in a row hold one of each variant: a call that was cut off and tried again, only turns that ended by themselves, a
    last answer that was cut off, and calls that the runtime stopped where they were complete. Every second one begins with an
    example.
    """
    if n < 0:
        raise ValueError(f"n must be at least 0; got {n}")
    return [_conversation(VARIANTS[i % 4], i % 2 == 0, random.Random(f"toolchat {seed} {i}")) for i in range(n)]


def _conversation(variant: str, example: bool, rng: random.Random) -> Transcript:
    hour = rng.randrange(24)
    turns = [Turn("system", SYSTEM)]
    if example:
        shown = question(rng)
        result = tool_result(shown.call, hour)
        turns += [Turn("user", shown.text), Turn("assistant", shown.call)]
        turns += [Turn("tool", result), Turn("assistant", answer(result))]
    if rng.random() < 0.3:
        turns += [Turn("user", "hello , can you hear me ?"), _sampled("yes , hello .", StopReason.END, rng)]
    call_stop = StopReason.STOP_TEXT if variant == "stopped calls" else StopReason.END
    exchanges = rng.choice((1, 2))
    for number in range(exchanges):
        asked = question(rng)
        turns.append(Turn("user", asked.text))
        if variant == "cut call" and number == 0:
            turns.append(_sampled(asked.call, StopReason.LENGTH, rng))
            turns.append(Turn("tool", _result(turns[-1], hour)))
        turns.append(_sampled(asked.call, call_stop, rng))
        result = _result(turns[-1], hour)
        cut = variant == "cut answer" and number == exchanges - 1
        turns += [Turn("tool", result), _sampled(answer(result), StopReason.LENGTH if cut else StopReason.END, rng)]
    return Transcript(tuple(turns))


def _sampled(intended: str, stop: StopReason, rng: random.Random) -> Turn:
    """A turn as the simulated policy samples it: the intended words with slips, without the last ones if LENGTH cut it off."""
    intention = intended.split()
    if stop is StopReason.LENGTH:
        intention = intention[: rng.randrange(1, len(intention))]
    words = [rng.choice(WORDS) if rng.random() < SLIP else word for word in intention]
    if stop is StopReason.STOP_TEXT:
        words[-1] = intention[-1]  # the runtime stopped there because it saw this word
    ids = tuple(toolchat_tokenizer().encode(" ".join(words)))
    if stop is StopReason.END:
        ids += (toolchat_tokenizer().end_id,)
    return Turn("assistant", ids=ids, sampled=True, stop=stop)


def _result(call: Turn, hour: int) -> str:
    tokenizer = toolchat_tokenizer()
    return tool_result(tokenizer.decode(i for i in call.ids if i != tokenizer.end_id), hour)
