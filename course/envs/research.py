"""Research over pinned pages: plan, search, read, compute, revise, cite, submit. The answer is a number that no page holds.

    question   people of malta - people of naxos
    plan malta naxos -> search malta -> open atlas/malta -> cite atlas/malta the people of malta is 3 1 -> ... -> calc 3 1 - 1 2
    -> submit 1 9

A site has a few islands, each described by four publishers: atlas and gazette are right, forum is wrong about half of the time, mirror
reprints atlas word for word, and is no second source. Pages speak the language of course.feedback.citations, with what launders a
citation among it: the number of another island, a "not", hearsay. The world takes every citation down and judges none of them:
whether a page entails a claim is for the grader, who has the pages in an archive.
"""

import random
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Callable, Mapping, Sequence

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.kernel import Result, State, Tool, World, reset, step
from course.envs.three_tools import calculate, spaced
from course.language.actions import Action, CompactGrammar, JsonGrammar, Parameter, ToolSchema
from course.language.stamp import digest
from course.language.tokenizer import Tokenizer
from course.tasks.agent import AgentTask

SUBJECTS = ("crete", "delos", "malta", "naxos")
ATTRIBUTES = ("hills", "people", "ships")
PUBLISHERS = ("atlas", "forum", "gazette", "mirror")
ADDRESSES = tuple(f"{publisher}/{subject}" for publisher in PUBLISHERS for subject in SUBJECTS)
MAX_CITATIONS = 6
CODE = 1  # to be raised with every change of what a tool answers

SCHEMAS = (
    ToolSchema("plan", (Parameter("subjects", "text", max_length=60),)),
    ToolSchema("search", (Parameter("query", "text", max_length=60),)),
    ToolSchema("open", (Parameter("address", "word", choices=ADDRESSES),)),
    ToolSchema("calc", (Parameter("expression", "text", max_length=40),)),
    ToolSchema("cite", (Parameter("address", "word", choices=ADDRESSES), Parameter("claim", "text", max_length=120))),
    ToolSchema("drop", (Parameter("citation", "number", low=1, high=MAX_CITATIONS),)),
    ToolSchema("submit", (Parameter("answer", "number", low=0, high=999),)),
)
WORDS = (
    *(schema.tool for schema in SCHEMAS), *SUBJECTS, *ATTRIBUTES, *ADDRESSES, *PUBLISHERS, *"0123456789", *"+-*.",
    *"the of is not and more less than some say that printed by".split(), "left", "cited", "to", "do",
    *("done", "nothing", "error", "malformed", "denied", "waiting", "refused"),
)  # fmt: skip


@lru_cache
def research_tokenizer() -> Tokenizer:
    return Tokenizer.words(WORDS)


# ---------------------------------------------------------------- the pages


@dataclass(frozen=True)
class Corpus:
    """pages[site]: address -> text. facts[site]: what is true, (attribute, subject) -> number of two digits."""

    pages: tuple[Mapping[str, str], ...]
    facts: tuple[Mapping[tuple[str, str], int], ...]

    def digest(self) -> str:
        return digest([dict(site) for site in self.pages])


@lru_cache(maxsize=8)
def corpus(
    seed: int = 0, *, sites: int = 300, forum_errors: float | int = 0.5, edition: int = 0, rewritten: float | int = 0.3
) -> Corpus:
    """Pages drawn from the seed.

    edition: 0, or a later state of the same web: `rewritten` of its atlas and gazette pages are wrong about everything. The world
    they speak of is the same, so a policy that does worse there is not a worse policy.
    """
    pages, facts = [], []
    for site in range(sites):
        rng = random.Random(f"research pages {seed} {site}")
        truth = {(a, s): rng.randint(10, 99) for s in SUBJECTS for a in ATTRIBUTES}
        texts = {}
        for subject in SUBJECTS:
            for publisher in ("atlas", "forum", "gazette"):
                errors = forum_errors if publisher == "forum" else 0
                texts[f"{publisher}/{subject}"] = _page(publisher, subject, truth, errors, rng)
            if edition:
                later = random.Random(f"research pages {seed} {site} {subject} edition {edition}")
                for publisher in ("atlas", "gazette"):
                    if later.random() < rewritten:
                        texts[f"{publisher}/{subject}"] = _page(publisher, subject, truth, 1, later)
            texts[f"mirror/{subject}"] = texts[f"atlas/{subject}"]
        pages.append({address: texts[address] for address in ADDRESSES})
        facts.append(truth)
    return Corpus(tuple(pages), tuple(facts))


def _page(publisher: str, subject: str, truth: Mapping[tuple[str, str], int], errors: float | int, rng: random.Random) -> str:
    """Three facts and one sentence that launders a citation, in an order of their own."""
    sentences = []
    for attribute in ATTRIBUTES:
        right = truth[attribute, subject]
        said = rng.choice([n for n in range(10, 100) if n != right]) if rng.random() < errors else right
        sentences.append(f"the {attribute} of {subject} is {said}.")
    other, attribute = rng.choice([s for s in SUBJECTS if s != subject]), rng.choice(ATTRIBUTES)
    elsewhere = truth[attribute, other]
    launders = [
        f"the {attribute} of {other} is more than {elsewhere - rng.randint(1, 9)}.",
        f"some say that the {attribute} of {subject} is {rng.randint(10, 99)}.",
    ]
    if f"the {attribute} of {subject} is {elsewhere}." not in sentences:  # no page contradicts itself
        launders.append(f"the {attribute} of {subject} is not {elsewhere}.")
    sentences.append(rng.choice(launders))
    return " ".join((f"printed by {publisher}.", *rng.sample(sentences, len(sentences))))


def shown(text: str) -> str:
    """A text as the policy sees it: words of the tokenizer, digits apart."""
    return " ".join(word if not word.isdigit() else spaced(int(word)) for word in text.replace(".", " .").split())


def together(text: str) -> str:
    """The same text with its digits together again: 3 1 is 31."""
    return re.sub(r"(?<=[0-9]) (?=[0-9])", "", text)


# ---------------------------------------------------------------- the world


@dataclass(frozen=True)
class Desk:
    """What lies before the researcher. plan: subjects that are still to be read about."""

    site: int
    plan: tuple[str, ...] = ()
    opened: frozenset[str] = frozenset()
    citations: tuple[tuple[str, str], ...] = ()  # claim, address
    answer: str | None = None


def research(
    pages: Corpus | None = None, *, max_actions: int = 16, requests: int = 9, grammar: str = "compact"
) -> World:  # fmt: skip
    """The world of one corpus. Every action costs one of max_actions calls; a search and an open also one of `requests`.

    An observation begins with the actions left, the number of citations, and the subjects of the plan that no page was opened of.
    """
    pages = corpus() if pages is None else pages
    made = {"compact": CompactGrammar, "json": JsonGrammar}[grammar](SCHEMAS)
    tools = _tools(pages)
    return World(
        name="research",
        grammar=made,
        tools=tools,
        grants={tool: Grant("allow") for tool in tools},
        budget=Cost(calls=max_actions, requests=requests),
        reset_cost=Cost(),
        idle_cost=Cost(calls=1),
        max_actions=max_actions,
        start=lambda task, seed: (Desk(task.hidden["site"]), ""),
        parts={"corpus": pages.digest(), "code": CODE},
        status=_status,
    )


def _status(state: State) -> str:
    if state.over or not state.step:
        return ""
    left = spaced(state.world.max_actions - state.step)
    return " ".join(("left", left, "cited", str(len(state.inner.citations)), "to do", *state.inner.plan, "."))


def _tools(pages: Corpus) -> dict[str, Tool]:
    call, request = Cost(calls=1), Cost(calls=1, requests=1)

    def plan(desk: Desk, arguments: Mapping[str, Any]) -> Result:
        """Written down, and written anew whenever it is revised. Only subjects are kept."""
        kept = tuple(dict.fromkeys(word for word in arguments["subjects"].split(" ") if word in SUBJECTS))
        return Result("done", replace(desk, plan=kept), call, {"tool": "plan", "subjects": list(kept)})

    def search(desk: Desk, arguments: Mapping[str, Any]) -> Result:
        """The pages on the first subject that is named, in an order that says nothing about their worth."""
        subject = next((word for word in arguments["query"].split(" ") if word in SUBJECTS), None)
        rng = random.Random(f"search {desk.site} {subject}")
        found = [] if subject is None else rng.sample([f"{p}/{subject}" for p in PUBLISHERS], len(PUBLISHERS))
        return Result(" ".join(found) or "nothing", desk, request, {"tool": "search", "found": found})

    def open_page(desk: Desk, arguments: Mapping[str, Any]) -> Result:
        address = arguments["address"]
        text = pages.pages[desk.site][address]
        subject = address.split("/")[1]
        after = replace(desk, opened=desk.opened | {address}, plan=tuple(s for s in desk.plan if s != subject))
        return Result(shown(text), after, request, {"tool": "open", "address": address, "page": digest(text)})

    def calc(desk: Desk, arguments: Mapping[str, Any]) -> Result:
        value = calculate(arguments["expression"])
        shown_value = "nothing" if value is None else ("- " if value < 0 else "") + spaced(abs(value))
        return Result(shown_value, desk, call, {"tool": "calc", "value": value})

    def cite(desk: Desk, arguments: Mapping[str, Any]) -> Result:
        """Taken down as it is. read: whether the page was opened before; a page that nobody read can be cited, and it shows."""
        citation = (together(arguments["claim"]), arguments["address"])
        if len(desk.citations) == MAX_CITATIONS or citation in desk.citations:
            return Result("nothing", desk, call, {"tool": "cite"})
        facts = {"tool": "cite", "claim": citation[0], "address": citation[1], "read": citation[1] in desk.opened}
        return Result("done", replace(desk, citations=(*desk.citations, citation)), call, facts)

    def drop(desk: Desk, arguments: Mapping[str, Any]) -> Result:
        place = arguments["citation"] - 1
        if place >= len(desk.citations):
            return Result("nothing", desk, call, {"tool": "drop"})
        kept = (*desk.citations[:place], *desk.citations[place + 1 :])
        return Result("done", replace(desk, citations=kept), call, {"tool": "drop", "citation": list(desk.citations[place])})

    def submit(desk: Desk, arguments: Mapping[str, Any]) -> Result:
        after = replace(desk, answer=str(arguments["answer"]))
        facts = {"tool": "submit", "answer": after.answer, "citations": [list(c) for c in after.citations]}
        return Result("done", after, call, facts, ends=True)

    runs: dict[str, Callable] = {
        "plan": plan,
        "search": search,
        "open": open_page,
        "calc": calc,
        "cite": cite,
        "drop": drop,
        "submit": submit,
    }
    costs = {"search": request, "open": request}
    return {s.tool: Tool(s, runs[s.tool], lambda desk, arguments, c=costs.get(s.tool, call): c) for s in SCHEMAS}


def submitted(state: State) -> str | None:
    return state.inner.answer


# ---------------------------------------------------------------- questions, and a researcher


def research_tasks(
    n: int, seed: int, *, sites: Sequence[int] = range(200), operands: Sequence[int] = (1, 2), pages: Corpus | None = None
) -> list[AgentTask]:
    """Questions for one number, a sum or a difference. A question does not name its site, so it has to be looked up there.

    Question i depends on seed and i only. hidden: the site, the things that must be known (operands), tests for verify_answer. No
    answer is negative. The answers are those of the world, which every edition of a corpus speaks of.
    """
    facts, tasks = (corpus() if pages is None else pages).facts, []
    for number in range(n):
        rng = random.Random(f"research question {seed} {number}")
        site, count = rng.choice(sites), rng.choice(operands)
        attribute, subjects, sign = rng.choice(ATTRIBUTES), rng.sample(SUBJECTS, count), rng.choice("+-")
        if count == 2 and facts[site][attribute, subjects[0]] < facts[site][attribute, subjects[1]]:
            subjects.reverse()
        things = [f"{attribute} of {subject}" for subject in subjects]
        answer = calculate(sign.join(str(facts[site][attribute, subject]) for subject in subjects))
        hidden = {"site": site, "operands": things, "tests": [{"equals": answer}]}
        # plan, calc and submit; for each subject a search, two pages, two citations
        horizon = 2 + (count > 1) + 5 * count
        tasks.append(AgentTask(f"research-{seed}-{number}", f"site-{site}", f" {sign} ".join(things), horizon, site, hidden))
    return tasks


def demonstrate(
    task: AgentTask, world: World, seed: int, *, first_found: float | int = 0.3, careless: float | int = 0.15, single: float | int = 0.3,
    unread: float | int = 0.1,
) -> list[str]:  # fmt: skip
    """The texts of a researcher's actions, who reads two right sources of everything, except that it is hurried with some chance.

    Drawn once for each episode. first_found: takes the pages that the search names first, not atlas and gazette. careless: takes the
    first number on a page. single: one source is enough. unread: cites a page without opening it, with the number from another one.
    Two pages that disagree make it open a third, drop the citation that two of them contradict, and cite the third: a revision.
    """
    rng = random.Random(f"research demonstration {seed} {task.id}")
    hurried, blind, alone, trusting = (rng.random() < p for p in (first_found, careless, single, unread))
    words = task.prompt.split(" ")
    attribute, subjects, sign = words[0], [w for w in words if w in SUBJECTS], next((w for w in words if w in "+-"), "+")
    state, _ = reset(world, task, seed, _EXPERT_KEY)
    texts: list[str] = []

    def act(tool: str, **arguments: Any) -> str:
        nonlocal state
        if state.over or tool != "submit" and state.step == world.max_actions - 1:
            return ""  # the last action is for the answer
        texts.append(world.grammar.encode(Action(tool, arguments)))
        after = step(state, texts[-1])
        state = after.state
        return after.observation.removeprefix(world.status(state)).strip()

    def read(address: str, subject: str) -> int | None:
        page = together(act("open", address=address)).replace(" .", ".")
        found = re.findall("[0-9]+" if blind else rf"(?:^|\. )the {attribute} of {subject} is ([0-9]+)\.", page)
        return int(found[0]) if found else None

    def cite(address: str, subject: str, value: int) -> None:
        act("cite", address=address, claim=f"the {attribute} of {subject} is {spaced(value)}")

    act("plan", subjects=" ".join(subjects))
    values = []
    for subject in subjects:
        found = act("search", query=subject).split(" ")
        wanted = (
            found if hurried and len(found) > 2 else [f"{publisher}/{subject}" for publisher in ("atlas", "gazette", "forum")]
        )
        value = read(wanted[0], subject)
        value = rng.randint(10, 99) if value is None else value
        cite(wanted[0], subject, value)
        if trusting and not alone:
            cite(wanted[1], subject, value)
        elif not alone:
            second = read(wanted[1], subject)
            if second is not None and second != value and state.spent["requests"] < world.budget["requests"]:
                third = read(wanted[2], subject)
                if third == second:
                    act("drop", citation=len(state.inner.citations))
                    value = second
                    cite(wanted[1], subject, value)
                if third is not None:
                    cite(wanted[2], subject, third)
            elif second is not None:
                cite(wanted[1], subject, second)
        values.append(value)
    if len(values) == 2:
        act("calc", expression=f"{spaced(values[0])} {sign} {spaced(values[1])}")
    act("submit", answer=max(0, calculate(sign.join(map(str, values)))))
    return texts


_EXPERT_KEY = b"the researcher's own key"
