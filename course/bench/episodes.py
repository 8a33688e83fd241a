"""How much of an episode's time is the policy's: what the environment, the tokens of its answers and the records cost beside it.

A cloned policy in the world of three tools, so that the turns are what they are in training. Shares are of the clock's time in
this process: medians over interleaved collections, one thread. Replays are set against the collection that they repeat.
"""

import tempfile
import time
from statistics import median

import torch

from course.bench import row
from course.envs.three_tools import demonstrate, three_tools
from course.models.policy import Policy
from course.rollout.episodes import Episodes, collect_episodes, scripted_episodes
from course.rollout.replay import Archive, replay_many
from course.training.agents import clone
from course.training.tool_agent import MAX_ACTION_TOKENS, SERIALIZER, TOKENIZER, blank_policy, grade, lookups

ROUNDS, DEMONSTRATIONS, STEPS = 9, 256, 120


def rows() -> list[dict]:
    """One row per comparison: {"case", "ours", "other", "other_name", "ratio"}, times in microseconds per decoded token."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        policy = _cloned()
        made = {batch: [_collected(policy, batch, number) for number in range(ROUNDS + 1)][1:] for batch in (64, 256)}
        return [row for batch, found in made.items() for row in _beside_the_policy(batch, found)] + [_replays(policy)]
    finally:
        torch.set_num_threads(threads)


def _cloned() -> Policy:
    world, tasks = three_tools(), lookups(DEMONSTRATIONS, 0)
    texts = [demonstrate(task, world, number) for number, task in enumerate(tasks)]
    shown = scripted_episodes(
        texts, world, tasks, tokenizer=TOKENIZER, serializer=SERIALIZER, grader=grade, environment_seeds=range(len(tasks))
    )
    policy = blank_policy(0)
    for _ in clone(policy, shown.batch, steps=STEPS, lr=3e-3, seed=0):
        pass
    return policy


def _collected(policy: Policy, batch: int, seed: int) -> Episodes:
    tasks = lookups(batch, seed)
    return collect_episodes(policy, three_tools(), tasks, grader=grade, seed=seed, max_action_tokens=MAX_ACTION_TOKENS)


def _beside_the_policy(batch: int, collections: list[Episodes]) -> list[dict]:
    """A ratio of 2/3 means that 60 % of the time is the policy's. Not in the turns: reset, prompt, grade and record."""
    each = [(made.timing, sum(len(record.tokens) for record in made.records)) for made in collections]
    policy = median(timing.policy / tokens for timing, tokens in each)
    turns = median((timing.turns - timing.policy) / tokens for timing, tokens in each)
    everything = median((timing.total - timing.policy) / tokens for timing, tokens in each)
    return [
        row(f"{batch} episodes: the rest of a turn", turns, policy, "the policy's part"),
        row(f"{batch} episodes: all but the policy", everything, policy, "the policy's part"),
    ]


def _replays(policy: Policy) -> dict:
    world, times = three_tools(), ([], [])
    for number in range(ROUNDS):
        began = time.perf_counter()
        made = _collected(policy, 64, number)
        middle = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            archive = Archive(
                folder,
                worlds={f"{world.name}@{world.version}": world},
                graders={made.records[0].versions.grader: grade},
                tasks={task.digest(): task for task in lookups(64, number)},
            )
            archive.keep(policy)
            again = time.perf_counter()
            if not all(report.equal for report in replay_many(made.records, archive)):
                raise RuntimeError("a replay is not equal to its record; its speed would mean nothing")
        tokens = sum(len(record.tokens) for record in made.records)
        times[0].append((time.perf_counter() - again) / tokens)
        times[1].append((middle - began) / tokens)
    return row("64 episodes: replay and comparison", median(times[0]), median(times[1]), "collecting them")
