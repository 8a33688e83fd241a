"""Announcements that were never made: invented laboratories and models, and for each what can be known from its text.

A report is a list of numbered sentences and a newsletter's lines about it. The sentences are written from drawn facts, so the right
evidence table is known by construction; some of the lines claim more than the sentences say, and which ones, and why, is known as well.

There are two sets. P-000 to P-199 are for practice: their seeds are their numbers, and the truth comes with them. R-000 to R-199 are the
class's: announcements.json holds their text, and the seeds from which their truth could be made again are the grader's.
"""

import hashlib
import json
import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Callable, Mapping, Sequence

from course.evidence.claims import Claim, EvidenceTable, Label
from course.evidence.entailment import ALGORITHMS
from course.evidence.lint import Finding

COUNT = 200  # of each set
QUESTIONS = {  # what a row of the table answers: D if one sentence does, I if it can be computed from several, else U
    "base_checkpoint": "From which checkpoint does training start?",
    "sft_data": "On how many demonstrations was it cloned?",
    "environment": "What does the policy observe, and what are its actions?",
    "feedback": "Who or what judges an episode of training?",
    "reward": "What is the reward paid for, and when?",
    "optimizer": "Which algorithm trains the policy, by its name?",
    "rollouts": "How many episodes were played?",
    "compute": "How much device-time did a stage take, in accelerator-days?",
    "inference": "How many samples does it draw for one task in use? (What a result's budget says is a condition of that result.)",
    "evaluation": "Which result of the model is given with its benchmark and its budget?",
}
LABORATORIES = ("Halden Works", "Northfield Lab", "Tessera Group", "Orrery Systems", "Lumen Yard", "Quayside Research")
MODELS = ("Vega", "Corvid", "Sable", "Ibis", "Marlin", "Tarn", "Juniper", "Osprey")
BENCHMARKS = ("DeskBench", "LongRepair", "PageQuest", "ShopFloor", "FormFiller", "DeepShelf", "CodeGarden", "TwoBrowsers")


@dataclass(frozen=True)
class Announcement:
    """What is public. sentences[k] is the one at place "s{k+1}", lines[k] is "h{k+1}"."""

    id: str
    laboratory: str
    model: str
    sentences: tuple[str, ...]
    lines: tuple[str, ...]

    def __str__(self) -> str:
        said = [f"s{number:<3} {text}" for number, text in enumerate(self.sentences, 1)]
        told = [f"h{number:<3} {text}" for number, text in enumerate(self.lines, 1)]
        title = f"{self.id} · {self.laboratory} announces {self.model}"
        return "\n".join([title, "", *said, "", "What a newsletter wrote about it:", "", *told])


@dataclass(frozen=True)
class Report(Announcement):
    """An announcement with what a careful reader finds: its evidence table, and the lines that claim too much."""

    truth: EvidenceTable
    planted: Mapping[str, Finding]

    __str__ = Announcement.__str__

    @property
    def rows(self) -> dict[str, tuple[Label, list[str]]]:
        """Field of QUESTIONS -> (label, places), in the form in which 7.9 is answered."""
        found = {}
        for field in QUESTIONS:
            claims, label = self.truth.row(field), self.truth.label(field)
            places = [claim.place for claim in claims] if label == "D" else claims[0].premises
            found[field] = (label, [place.split()[-1] for place in places])
        return found


def report_id(number: int) -> str:
    return f"R-{number:03d}"


def drawn_id(name: str, count: int = COUNT) -> str:
    """The report of a student: of the name alone, the same on every machine."""
    return report_id(int(hashlib.sha256(name.strip().casefold().encode()).hexdigest()[:12], 16) % count)


@cache
def _published() -> dict[str, Announcement]:
    rows = json.loads(files("course.evidence").joinpath("announcements.json").read_text("utf-8"))
    return {
        row["id"]: Announcement(**{**row, "sentences": tuple(row["sentences"]), "lines": tuple(row["lines"])}) for row in rows
    }


def find_report(id: str) -> Announcement:
    """The text of a report of the class. Raises ValueError for an id that is not of the class's set."""
    if id not in (known := _published()):
        raise ValueError(f"id must be one of the class's set, {report_id(0)} to {report_id(COUNT - 1)}; got {id!r}")
    return known[id]


@cache
def practice(number: int) -> Report:
    """Report P-000 to P-199, with its truth: to practise on, and for experiments."""
    if number not in range(COUNT):
        raise ValueError(f"number must be 0 to {COUNT - 1}; got {number!r}")
    return written_report(f"practice {number}", f"P-{number:03d}")


@dataclass(frozen=True)
class Tally:
    """What readers found in the newsletter's lines, by reason."""

    planted: Mapping[str, int]  # reason -> how many lines, the most frequent first
    caught: Mapping[str, Mapping[str, int]]  # reader -> reason -> how many of them did not pass
    honest: int  # lines that claim no more than the report says
    alarms: Mapping[str, int]  # reader -> how many of these did not pass


def tally(reports: Sequence[Report], readers: Mapping[str, Callable[[str, Sequence[str]], bool]]) -> Tally:
    """Each reader(line, sentences) says whether a line passes; counted over all lines of the reports."""
    planted: Counter[str | None] = Counter()  # None: a line that is right
    caught: dict[str, Counter[str | None]] = {name: Counter() for name in readers}
    for one in reports:
        for place, line in enumerate(one.lines, 1):
            why = one.planted[f"h{place}"].why if f"h{place}" in one.planted else None
            planted[why] += 1
            for name, reader in readers.items():
                caught[name][why] += not reader(line, one.sentences)
    honest = planted.pop(None, 0)
    alarms = {name: found.pop(None, 0) for name, found in caught.items()}
    order = dict(planted.most_common())
    return Tally(order, {name: {why: found[why] for why in order} for name, found in caught.items()}, honest, alarms)


def written_report(seed: str, id: str) -> Report:
    """The report that a seed gives: at least twelve sentences, and six lines, of which three or four claim too much.

    Its table has at least three D, one I and three U. Sentences that say nothing to the question of a row stand among the others.
    """
    draw = random.Random(f"report {seed}")
    made = _facts(draw)
    while not made.balanced:
        made = _facts(draw)
    sentences = draw.sample(made.sentences, len(made.sentences))
    place = {text: f"s{number}" for number, text in enumerate(sentences, 1)}
    claims = []
    for field, (label, texts) in made.rows.items():
        places = tuple(f"{id} {place[text]}" for text in texts)
        if label == "D":
            claims += [Claim(field, text, "D", where) for text, where in zip(texts, places)]
        else:
            claims.append(Claim(field, " ".join(texts), label, premises=places))
    several = draw.sample(made.beyond, min(len(made.beyond), draw.choice((3, 4))))
    lines = [line for line, _, _ in several] + draw.sample(made.within, 6 - len(several))
    draw.shuffle(lines)
    planted = {f"h{lines.index(line) + 1}": Finding("", line, why, place[less]) for line, why, less in several}
    truth = EvidenceTable((*claims, Claim("unknowns", ", ".join(f for f, (label, _) in made.rows.items() if label == "U"), "U")))
    return Report(id, made.laboratory, made.model, tuple(sentences), tuple(lines), truth, dict(sorted(planted.items())))


@dataclass(frozen=True)
class _Facts:
    laboratory: str
    model: str
    sentences: list[str]
    rows: dict[str, tuple[Label, tuple[str, ...]]]  # field -> label, and the sentences that it rests on
    beyond: list[tuple[str, str, str]]  # line, reason, the sentence that says less
    within: list[str]

    @property
    def balanced(self) -> bool:
        labels = [label for label, _ in self.rows.values()]
        enough = labels.count("D") >= 3 and labels.count("I") >= 1 and labels.count("U") >= 3
        return enough and len(self.sentences) >= 12 and len(self.beyond) >= 4 and len(self.within) >= 3


def _facts(draw: random.Random) -> _Facts:
    name, number = draw.choice(MODELS), draw.randint(2, 5)
    model, before = f"{name}-{number}", f"{name}-{number - 1}"
    suites = draw.sample(BENCHMARKS, 4)
    sentences: list[str] = []
    rows: dict[str, tuple[Label, tuple[str, ...]]] = {}
    beyond: list[tuple[str, str, str]] = []
    within: list[str] = []

    def row(field: str, **ways: tuple[str, ...]) -> str:
        """Choose how a field is told: D by one sentence, I by several, U by sentences that do not answer, or by none at all."""
        way = draw.choice([*ways, "U"] if "U" not in ways else list(ways))
        texts = ways.get(way, ())
        sentences.extend(texts)
        rows[field] = (way, () if way == "U" else texts)
        return way

    row(
        "base_checkpoint",
        D=(draw.choice((f"Training starts from the checkpoint of {before}.", f"Training starts from the pretrained checkpoint {name.lower()}-base.")),),
        U=(draw.choice((f"{model} is the successor of {before}.", f"{model} carries on what {before} began.")),),
    )  # fmt: skip
    each, tasks = draw.randint(2, 6), draw.randint(8, 60) * 50
    row(
        "sft_data",
        D=(f"The cloning stage uses {each * tasks:,} demonstrations.",),
        I=(f"The cloning stage uses {tasks:,} tasks.", f"People demonstrated every task of the cloning stage {each} times."),
        U=(draw.choice((f"{model} has learned from the best of our experts.", "Careful people wrote down how they work.")),),
    )
    row(
        "environment",
        D=(draw.choice((
            f"{model} sees screenshots and acts by clicks and keys.", f"{model} sees the text of a page and acts by search, click, quote and finish.",
            f"{model} sees a repository and acts by edits and shell commands.", f"{model} sees a form and acts by filling in one field at a time.",
        )),),
        U=(draw.choice((f"{model} is at home in the tools of your office.", f"{model} works where you work.")),),
    )  # fmt: skip
    row(
        "feedback",
        D=(draw.choice((
            "Contractors compared pairs of training episodes.", f"A fixed language model graded every training episode by {draw.randint(5, 30)} written rules.",
            "Hidden tests judged every training episode.", "People marked progress while they watched a training episode.",
        )),),
        U=(draw.choice(("Early testers loved it.", "We listened to what people told us.")),),
    )  # fmt: skip
    row(
        "reward",
        D=(draw.choice((
            "The reward is 1 at the end of an episode whose task is done, and 0 otherwise.",
            f"At the end of an episode the reward is its score minus {draw.randint(1, 9) / 100} for each action.",
            "Every step is paid for the progress that it makes on the task.",
        )),),
        U=(draw.choice((f"{model} is rewarded for what matters.", "Good work pays off in training.")),),
    )  # fmt: skip

    rl = f"{model} was trained with reinforcement learning."
    way = draw.choice(("named", "unnamed", "unsaid"))
    if way == "named":
        algorithm = draw.choice(ALGORITHMS)
        named = f"{model} was trained with {algorithm}."
        sentences.append(named)
        rows["optimizer"] = ("D", (named,))
        within.append(rl)
    elif way == "unnamed":
        sentences.append(rl)
        rows["optimizer"] = ("U", ())
        beyond.append((f"{model} was trained with {draw.choice(ALGORITHMS)}.", "optimizer_from_rl", rl))
    else:
        words = draw.choice(("is agentic", "is part of an evolutionary search"))
        said = f"{model} {words}."
        sentences.append(said)
        rows["optimizer"] = ("U", ())
        beyond.append((rl, "rl_from_agentic" if words == "is agentic" else "rl_from_evolution", said))
        within.append(said)
    if draw.random() < 0.7:
        tools = f"{model} uses tools."
        sentences.append(tools)
        within.append(tools)
        if way != "unsaid":  # else the same line could be wrong for two reasons
            beyond.append((f"{model} was trained with reinforcement learning over tool calls.", "tool_rl_from_tools", tools))

    batches, size = draw.randint(2, 20) * 50, draw.choice((64, 128, 256, 512))
    told = row(
        "rollouts",
        D=(f"The main stage uses {batches * size:,} episodes.",),
        I=(f"The main stage uses {batches:,} steps.", f"Every step of the main stage plays {size} new episodes."),
        U=(f"{model} has practised for longer than any of our models.",),
    )
    if told == "D":
        within.append(sentences[-1])
    prompts = f"The main stage uses {draw.randint(3_000, 60_000):,} prompts."
    sentences.append(prompts)
    other = draw.choice(("episodes", "comparisons"))
    beyond.append((prompts.replace("prompts", other), "units_mixed", prompts))

    days, accelerators = draw.randint(3, 40), draw.choice((64, 128, 256, 512))
    row(
        "compute",
        D=(f"The main stage costs {days * accelerators:,} accelerator-days.",),
        I=(f"The main stage ran for {days} days.", f"All the time the main stage ran on {accelerators} accelerators."),
        U=(draw.choice((f"The main stage ran for {days} days.", "It was our largest effort so far.")),),
    )
    samples, length = draw.choice((4, 8, 16, 32, 64)), draw.choice((500, 1_500, 2_000))
    told = row(
        "inference",
        D=(f"For one task {model} uses {samples} samples.",),
        I=(f"For one task {model} uses {samples * length:,} tokens.", f"Every sample has {length:,} tokens and is written anew."),
        U=(draw.choice((f"{model} reasons at length.", f"{model} thinks before it answers.")),),
    )
    if told == "D":
        within.append(sentences[-1])

    # Numbers. With a budget they answer the question of the evaluation, without one they don't. No budget speaks of samples or of a judge:
    # that would be an answer, or half of one, to the questions of other rows.
    hours, actions = draw.randint(2, 9), draw.choice((20, 30, 50, 100, 200))
    budget = draw.choice(
        (
            "",
            f", with {hours} hours a task",
            f", with {actions} actions a task",
            f", with {actions} actions and {hours} hours a task",
        )
    )
    rate, other_rate, relative = draw.randint(300, 800) / 10, draw.randint(60, 84), draw.randint(86, 97)
    first = f"On {suites[0]}, {model} reaches {rate} % of tasks{budget}."
    absolute = f"On {suites[1]}, {model} reaches {other_rate} % of tasks{budget}."
    share = f"On {suites[1]}, {model} reaches {relative} % of the human rate{budget}."
    wins = f"On {suites[2]}, {model} wins {draw.randint(52, 79)} % of comparisons, against {before}{{adjusted}}{budget}."
    others = f"On {suites[3]}, {before} reaches {draw.randint(200, 600) / 10} % of tasks{budget}."
    adjusted = draw.choice(("", ", adjusted for length"))
    wins = wins.format(adjusted=adjusted)
    gain = f"On {suites[0]}, {model} gains {draw.randint(3, 19)} points, against {before}."
    results = [first, *draw.sample([absolute + "|" + share, wins, others, gain], 3)]
    results = [text for pair in results for text in pair.split("|")]
    sentences.extend(results)
    mine = [text for text in results if text not in (others, gain)]
    rows["evaluation"] = ("D", tuple(mine)) if budget else ("U", ())
    within += [text for text in (first, wins) if text in results]
    if budget:
        beyond.append((first.replace(budget, ""), "condition_dropped", first))
    if adjusted and wins in results:
        beyond.append((wins.replace(adjusted, ""), "condition_dropped", wins))
    if absolute in results:
        beyond.append((share.replace("the human rate", "tasks"), "relative_as_absolute", share))
        mean = round((rate + other_rate) / 2, 2)
        beyond.append((f"On {suites[0]} and {suites[1]}, {model} reaches {mean} % of tasks{budget}.", "suites_averaged", first))
    if others in results:
        beyond.append((others.replace(f" {before} ", f" {model} "), "other_model", others))
    if gain in results:
        points = gain.partition(" gains ")[2]
        beyond.append((f"On {suites[0]}, thanks to its new training, {model} gains {points}", "cause_not_said", gain))
    return _Facts(draw.choice(LABORATORIES), model, sentences, rows, beyond, within)
