"""A world of one lookup: the value of a letter stands nowhere but in the tool."""

from functools import lru_cache

import torch

from course.accounting.budget import Cost
from course.envs.authorisation import Grant
from course.envs.evidence import Evidence
from course.envs.kernel import Result, State, Tool, World
from course.language.actions import CompactGrammar, Parameter, ToolSchema
from course.language.serializer import CompactSerializer
from course.language.tokenizer import Tokenizer
from course.models.decoder import Decoder, DecoderConfig
from course.models.policy import Policy
from course.models.score import score
from course.rollout.episodes import scripted_episodes
from course.tasks.agent import AgentTask

LETTERS = ("a", "b", "c", "d")
TOKENIZER = Tokenizer.words(
    ["look", "say", "wipe", *LETTERS, *"0123456789", "done", "error", "malformed", "denied", "waiting", "refused"]
)


def world(max_actions: int = 4, budget: float = 3.0, grants: tuple[str, ...] = ("look", "say"), **parts) -> World:
    one = lambda inner, arguments: Cost(calls=1)  # noqa: E731
    schemas = (
        ToolSchema("look", (Parameter("letter", "word", choices=LETTERS),)),
        ToolSchema("say", (Parameter("value", "number", low=0, high=99),)),
        ToolSchema("wipe"),
    )

    def look(inner, arguments):
        value = inner["values"][arguments["letter"]]
        return Result(str(value), inner, Cost(calls=1), {"tool": "look", "value": value})

    def say(inner, arguments):
        return Result("done", {**inner, "said": arguments["value"]}, Cost(calls=1), {"tool": "say"}, ends=True)

    def wipe(inner, arguments):
        return Result("done", {**inner, "values": dict.fromkeys(LETTERS, 0)}, Cost(calls=1), {"tool": "wipe"})

    runs = {"look": look, "say": say, "wipe": wipe}
    return World(
        name="toy",
        grammar=CompactGrammar(schemas),
        tools={schema.tool: Tool(schema, runs[schema.tool], one) for schema in schemas},
        grants={**{tool: Grant("allow") for tool in grants}, "wipe": Grant("ask")},
        budget=Cost(calls=budget),
        reset_cost=Cost(),
        idle_cost=Cost(calls=0.5),
        max_actions=max_actions,
        start=lambda task, seed: ({"values": dict(task.hidden["values"])}, ""),
        parts=parts,
    )


def tasks(n: int) -> list[AgentTask]:
    made = []
    for i in range(n):
        values = {letter: (i * 7 + j * 3) % 10 for j, letter in enumerate(LETTERS)}
        prompt = LETTERS[i % 4] if i % 3 else f"{LETTERS[i % 4]} {LETTERS[i // 4 % 4]}"
        made.append(AgentTask(f"t{i}", f"f{i % 5}", prompt, horizon=2, hidden={"values": values}))
    return made


def grade(state: State) -> Evidence:
    expected, said = state.task.hidden["values"][state.task.prompt[0]], state.inner.get("said")
    right = said == expected
    return Evidence("toy", "1", said, "right" if right else "wrong", 10.0 if right else 0.0)


def policy(seed: int = 0, max_length: int = 64, vocab_size: int = TOKENIZER.vocab_size) -> Policy:
    """Random weights, large enough for a law that is not flat."""
    decoder = Decoder(DecoderConfig(vocab_size, layers=2, width=32, heads=2, max_length=max_length), seed=seed)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return Policy(decoder, TOKENIZER, CompactSerializer())


@lru_cache(maxsize=None)
def taught(first: str = "", steps: int = 22) -> Policy:
    """A policy that has half learned to look and to say what it saw, so that everything happens in its episodes."""
    texts, asked = [], tasks(32)
    for task in asked:
        letter = task.prompt[0]
        texts.append([*filter(None, [first]), f"look {letter}", f"say {task.hidden['values'][letter]}"])
    shown = scripted_episodes(
        texts, world(), asked, tokenizer=TOKENIZER, serializer=CompactSerializer(), grader=grade, environment_seeds=range(32)
    ).batch
    learned = policy()
    optimiser = torch.optim.Adam(learned.parameters(), lr=3e-3)
    for _ in range(steps):
        logp = score(learned, shown.tokens, shown.attention_mask)
        optimiser.zero_grad()
        (-logp[shown.action_mask[:, 1:]].mean()).backward()
        optimiser.step()
    return learned
