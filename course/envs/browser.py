"""A text browser over pages that never change: search, click, find, scroll, quote, finish.

A site describes a few islands, each on two pages that need not agree: an atlas, which is right, and a forum, which is wrong about
half of the time. A passage is one fact ("colour red"); one passage is seen at a time. An observation is how many passages are
quoted, how many actions are left, the question, the navigation history, and what is seen:

    quotes 0 left 2 colour malta malta forum atlas colour red
"""

import random
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Mapping, Sequence

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.kernel import Result, State, Tool, World, reset, step
from course.language.actions import Action, CompactGrammar, JsonGrammar, Parameter, ToolSchema
from course.language.stamp import digest
from course.language.tokenizer import Tokenizer
from course.tasks.agent import AgentTask

SUBJECTS = ("capri", "crete", "delos", "malta", "naxos", "samos")
VALUES = {
    "colour": ("blue", "green", "red", "white"),
    "food": ("bread", "fish", "fruit", "rice"),
    "ruler": ("bishop", "council", "king", "queen"),
    "weather": ("rain", "snow", "sun", "wind"),
}
SOURCES = ("atlas", "forum")
MAX_QUOTES = 3
CODE = 1  # to be raised with every change of what a tool answers

SCHEMAS = (
    ToolSchema("search", (Parameter("query", "text", max_length=40),)),
    ToolSchema("click", (Parameter("link", "number", low=1, high=9),)),
    ToolSchema("find", (Parameter("text", "text", max_length=40),)),
    ToolSchema("scroll", (Parameter("direction", "word", choices=("down", "up")),)),
    ToolSchema("quote"),
    ToolSchema("finish", (Parameter("answer", "word", choices=tuple(v for values in VALUES.values() for v in values)),)),
)
OUTCOMES = ("denied", "done", "error", "left", "malformed", "nothing", "quotes", "refused", "waiting")
WORDS = (
    *(schema.tool for schema in SCHEMAS), "down", "up", *OUTCOMES, *"0123456789", *SOURCES, *SUBJECTS, *VALUES,
    *(value for values in VALUES.values() for value in values),
)  # fmt: skip


def browser_tokenizer() -> Tokenizer:
    return Tokenizer.words(WORDS)


# ---------------------------------------------------------------- the pages


@dataclass(frozen=True)
class Corpus:
    """facts[site][subject][source]: passages (attribute, value) in order. ranking[site][subject]: sources in a search's order."""

    facts: tuple[Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]], ...]
    ranking: tuple[Mapping[str, tuple[str, ...]], ...]

    def digest(self) -> str:
        lines = [f"{place} {self.ranking[place]} {site}" for place, site in enumerate(self.facts)]
        return digest(lines)

    def truth(self, site: int, subject: str, attribute: str) -> str:
        return dict(self.facts[site][subject]["atlas"])[attribute]


@lru_cache(maxsize=8)
def corpus(seed: int = 0, *, sites: int = 400, forum_errors: float = 0.5) -> Corpus:
    """Pages drawn from the seed: every fact of every page, the order on it, and which page a search names first."""
    rng = random.Random(f"browser pages {seed}")
    facts, ranking = [], []
    for _ in range(sites):
        pages, order = {}, {}
        for subject in SUBJECTS:
            truth = {attribute: rng.choice(values) for attribute, values in VALUES.items()}
            pages[subject] = {source: _page(truth, forum_errors if source == "forum" else 0.0, rng) for source in SOURCES}
            order[subject] = tuple(rng.sample(SOURCES, len(SOURCES)))
        facts.append(pages)
        ranking.append(order)
    return Corpus(tuple(facts), tuple(ranking))


def _page(truth: Mapping[str, str], errors: float, rng: random.Random) -> tuple[tuple[str, str], ...]:
    said = {a: rng.choice([v for v in VALUES[a] if v != t]) if rng.random() < errors else t for a, t in truth.items()}
    return tuple((attribute, said[attribute]) for attribute in rng.sample(sorted(said), len(said)))


# ---------------------------------------------------------------- the browser


@dataclass(frozen=True)
class View:
    """Where the browser is. trail: what was searched for, then the pages opened since, the last one on screen."""

    site: int
    trail: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    passage: int = 0
    quotes: tuple[tuple[str, str, str, str], ...] = ()  # subject, source, attribute, value
    answer: str | None = None
    closed: bool = False  # answer only: nothing can be opened any more

    @property
    def source(self) -> str | None:
        return self.trail[-1] if len(self.trail) > 1 else None


def browser(
    pages: Corpus | None = None, *, max_actions: int = 6, requests: int = 3, grammar: str = "compact",
    grants: Sequence[str] | None = None,
) -> World:  # fmt: skip
    """The world of one corpus. Every action costs one of `max_actions` calls; a search or a click also one of `requests`."""
    if grammar not in ("compact", "json"):
        raise ValueError(f"grammar must be 'compact' or 'json'; got {grammar!r}")
    pages = corpus() if pages is None else pages
    tools = _tools(pages)
    granted = tools if grants is None else grants
    if unknown := sorted(set(granted) - set(tools)):
        raise ValueError(f"grants must be of {', '.join(tools)}; got {', '.join(unknown)}")
    return World(
        name="browser",
        grammar={"compact": CompactGrammar, "json": JsonGrammar}[grammar](SCHEMAS),
        tools=tools,
        grants={tool: Grant("allow") for tool in granted},
        budget=Cost(calls=max_actions, requests=requests),
        reset_cost=Cost(),
        idle_cost=Cost(calls=1),
        max_actions=max_actions,
        start=_start,
        parts={"corpus": pages.digest(), "code": CODE},
        status=_status,
    )  # fmt: skip


def _status(state: State) -> str:
    view = state.inner
    if view.answer is not None or not state.step and not view.quotes:
        return ""  # an empty browser, or a closed one: the question stands alone
    left = " ".join(str(state.world.max_actions - state.step))
    return f"quotes {len(view.quotes)} left {left} {state.task.prompt}"


def _start(task: AgentTask, seed: int) -> tuple[View, str]:
    """A task with quotes of an earlier episode is to be answered from those alone: they are shown, and the browser is closed."""
    site, quotes = task.hidden.get("site"), tuple(map(tuple, task.hidden.get("quotes", ())))
    if type(site) is not int or site < 0:
        raise ValueError(f"hidden of task {task.id} must name a site by its number, from 0 on; got {site!r}")
    return View(site, quotes=quotes, closed=bool(quotes)), " ".join(word for quote in quotes for word in quote)


def _tools(pages: Corpus) -> dict[str, Tool]:
    call, request = Cost(calls=1), Cost(calls=1, requests=1)

    def passages(view: View) -> tuple[tuple[str, str], ...]:
        return pages.facts[view.site][view.trail[0]][view.source] if view.source else ()

    def shown(view: View, cost: Cost, **facts: Any) -> Result:
        return Result(" ".join((*view.trail, *passages(view)[view.passage])), view, cost, facts)

    def nothing(view: View, cost: Cost) -> Result:
        return Result("nothing", view, cost)

    def search(view: View, arguments: Mapping[str, Any]) -> Result:
        subject = next((word for word in arguments["query"].split(" ") if word in SUBJECTS), None)
        if view.closed or subject is None:
            return nothing(view, request)
        links = pages.ranking[view.site][subject]
        after = replace(view, trail=(subject,), links=links, passage=0)
        listed = (f"{number} {source}" for number, source in enumerate(links, 1))
        return Result(" ".join((subject, *listed)), after, request, {"links": list(links)})

    def click(view: View, arguments: Mapping[str, Any]) -> Result:
        if arguments["link"] > len(view.links):
            return nothing(view, request)
        source = view.links[arguments["link"] - 1]
        return shown(replace(view, trail=(*view.trail, source), passage=0), request, page=[view.trail[0], source])

    def find(view: View, arguments: Mapping[str, Any]) -> Result:
        words = arguments["text"].split(" ")
        place = next((i for i, passage in enumerate(passages(view)) if set(words) <= set(passage)), None)
        return nothing(view, call) if place is None else shown(replace(view, passage=place), call)

    def scroll(view: View, arguments: Mapping[str, Any]) -> Result:
        place = view.passage + (1 if arguments["direction"] == "down" else -1)
        return shown(replace(view, passage=place), call) if 0 <= place < len(passages(view)) else nothing(view, call)

    def quote(view: View, arguments: Mapping[str, Any]) -> Result:
        if view.source is None or len(view.quotes) == MAX_QUOTES:
            return nothing(view, call)
        taken = (view.trail[0], view.source, *passages(view)[view.passage])
        after = view if taken in view.quotes else replace(view, quotes=(*view.quotes, taken))
        return shown(after, call, quote=list(taken))

    def finish(view: View, arguments: Mapping[str, Any]) -> Result:
        after = replace(view, answer=arguments["answer"])
        return Result("done", after, call, {"answer": after.answer, "quotes": [list(q) for q in after.quotes]}, ends=True)

    runs = {"search": search, "click": click, "find": find, "scroll": scroll, "quote": quote, "finish": finish}
    costs = {"search": request, "click": request}
    return {s.tool: Tool(s, runs[s.tool], lambda view, arguments, c=costs.get(s.tool, call): c) for s in SCHEMAS}


# ---------------------------------------------------------------- tasks, and people who show how


def browser_tasks(n: int, seed: int, *, sites: Sequence[int] = range(300), pages: Corpus | None = None) -> list[AgentTask]:
    """Questions about these sites. A question does not name its site, so its answer has to be looked up. One family per site."""
    pages, rng, tasks = corpus() if pages is None else pages, random.Random(f"browser questions {seed}"), []
    for number in range(n):
        site, subject, attribute = rng.choice(sites), rng.choice(SUBJECTS), rng.choice(sorted(VALUES))
        first = pages.facts[site][subject]["atlas"][0][0] == attribute
        hidden = {"site": site, "subject": subject, "attribute": attribute, "answer": pages.truth(site, subject, attribute)}
        name, prompt = f"browser-{seed}-{number}", f"{attribute} {subject}"
        tasks.append(AgentTask(name, f"site-{site}", prompt, horizon=4 if first else 5, created=site, hidden=hidden))
    return tasks


def answer_only(task: AgentTask, quotes: Sequence[Sequence[str]]) -> AgentTask:
    """The same question with the passages that an earlier episode quoted, to be answered without browsing."""
    if not quotes:
        raise ValueError("quotes must hold at least one passage; got none")
    hidden = {**task.hidden, "quotes": [list(q) for q in quotes]}
    return replace(task, id=f"{task.id}-answer", horizon=1, hidden=hidden)


def demonstrate(
    task: AgentTask, world: World, seed: int, *, first_link: float = 0.7, careless: float = 0.2, quoting: float = 0.6,
    slip: float = 0.04,
) -> list[str]:  # fmt: skip
    """The actions of a person in a hurry, as texts.

    first_link: chance to open whatever the search lists first; otherwise the atlas. careless: chance to take the first passage
    seen for the one asked for. quoting: chance to quote. slip: chance, for each action, that it is a random one instead.
    """
    rng = random.Random(f"demonstration {seed} {task.id}")
    hurried, blind, quotes, finds = (rng.random() < p for p in (first_link, careless, quoting, 0.85))
    subject, attribute = task.hidden["subject"], task.hidden["attribute"]
    state, observation = reset(world, task, seed, bytes(16))
    texts, seen = [], None
    while not state.over:
        words, view = observation.removeprefix(world.status(state)).split(), state.inner
        seen = _passage(words) or (seen if view.source else None)
        if (
            view.closed or "error" in words or state.step == world.max_actions - 1
        ):  # nothing more can be learnt, or it is the last action
            action = Action("finish", {"answer": seen[1] if seen else rng.choice(VALUES[attribute])})
        elif view.trail[:1] != (subject,):
            action = Action("search", {"query": subject})
        elif view.source is None:
            action = Action("click", {"link": 1 if hurried else int(words[words.index("atlas") - 1]) if "atlas" in words else 2})
        elif seen[0] != attribute and not blind:
            action = (
                Action("find", {"text": attribute}) if finds or "nothing" in words else Action("scroll", {"direction": "down"})
            )
        elif quotes and not view.quotes:
            action = Action("quote")
        else:
            action = Action("finish", {"answer": seen[1]})
        texts.append(world.grammar.encode(_any_action(rng) if rng.random() < slip else action))
        transition = step(state, texts[-1])
        state, observation = transition.state, transition.observation
    return texts


def _passage(words: Sequence[str]) -> tuple[str, str] | None:
    """The last passage in an observation, if it shows one."""
    here = [i for i, word in enumerate(words) if word in VALUES]
    return (words[here[-1]], words[here[-1] + 1]) if here else None


def _any_action(rng: random.Random) -> Action:
    schema = rng.choice(SCHEMAS[:-1])
    words = {"query": SUBJECTS, "text": tuple(VALUES), "direction": ("down", "up")}
    return Action(
        schema.tool, {p.name: rng.randint(1, 2) if p.kind == "number" else rng.choice(words[p.name]) for p in schema.parameters}
    )


def submitted(state: State) -> str | None:
    return state.inner.answer


def supported(state: State) -> bool:
    """A quoted passage is about what was asked and says what was answered."""
    asked = (state.task.hidden["subject"], state.task.hidden["attribute"], state.inner.answer)
    return any((subject, attribute, value) == asked for subject, _, attribute, value in state.inner.quotes)
