"""Agents in the loops that train responses: an episode of many turns is one row of a batch, and only its actions are trained.

There is no second trainer. `sft` clones batches of demonstrated episodes; `grpo` and `ppo` take episode_collector(...) as collect=.
"""

import random
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Sequence

from jaxtyping import Float
from torch import Tensor
import torch

from course.credit.turns import action_sums, turn_advantages
from course.envs import kernel
from course.envs.evidence import Evidence
from course.envs.kernel import State, Transition, World
from course.language.actions import Action, Grammar
from course.models.policy import Policy
from course.models.score import frozen_score
from course.objectives.supervised import sft_loss
from course.rollout.collect import Sampling
from course.rollout.episodes import Episodes, collect_episodes
from course.tasks.agent import AgentTask
from course.tasks.records import Batch
from course.training.learner import step_seed
from course.training.sft import SftStep, sft


def clone(
    policy: Policy, episodes: Episodes | Batch, *, steps: int, lr: float, batch_size: int = 64, seed: int, **options: Any
) -> Iterator[SftStep]:
    """Supervised fine-tuning on the action tokens of episodes; options are those of sft()."""
    batch = episodes if isinstance(episodes, Batch) else episodes.batch

    def loss(logits: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        return sft_loss(logits, tokens, mask, normalize="token")

    return sft(policy, batch, loss=loss, steps=steps, lr=lr, batch_size=batch_size, seed=seed, **options)


# ---------------------------------------------------------------- collection, as the training loops ask for it


def episode_collector(
    world: World, grader: Callable[[State], Evidence], *, seen: Callable[[Episodes], None] = lambda episodes: None, **options: Any
) -> Callable[..., Episodes]:
    """collect= for grpo() and ppo(), whose prompts(step) then gives tasks. options are those of collect_episodes().

    seen: is shown each collection whole, for reports and stores. Episodes whose verifier abstained are not trained on.
    sampling.max_new_tokens is the limit of one action.
    """

    def collect(
        actor: Policy, tasks: Sequence[AgentTask], *, group_size: int, sampling: Sampling, seed: int, first_episode: int = 0
    ) -> Episodes:
        episodes = collect_episodes(
            actor, world, tasks, grader=grader, seed=seed, max_action_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature, group_size=group_size, first_episode=first_episode, **options,
        )  # fmt: skip
        seen(episodes)
        return episodes.judged()

    return collect


def episode_reward(batch: Any) -> Float[Tensor, "batch"]:
    """reward= for grpo() and ppo(): what the grader said at the end of each episode."""
    return batch.reward


def tasks_by_step(make: Callable[[int, int], Sequence[AgentTask]], count: int, seed: int) -> Callable[[int], Sequence[AgentTask]]:
    """prompts= for the loops: make(count, seed) with one seed for each (seed, step)."""
    return lambda step: make(count, step_seed(seed, step))


def price_credit(weight: float, component: str = "price", *, gamma: float = 1.0) -> Callable[[Tensor, Episodes], Tensor]:
    """credit= for grpo(): every token gets its episode's advantage, less what its action and the later ones cost.

        A_bt = advantage_b - weight * (discounted sum of the costs of actions k, k+1, ..),   k = turn_bt

    An episode's reward would charge the last action for the price of the first; a charge by turns does not.
    """

    def credit(advantage: Tensor, episodes: Episodes) -> Tensor:
        turn = episodes.batch.turn[:, 1:]
        count = max(1, int(turn.max()) + 1)
        costs = torch.zeros(len(turn), count, dtype=advantage.dtype)
        for row, record in enumerate(episodes.records):
            for k, step in enumerate(record.steps[:count]):
                costs[row, k] = step.cost.get(component, 0.0)
        charge = turn_advantages(costs.to(turn.device), turn, gamma=gamma)
        return torch.where(turn >= 0, advantage[:, None] - weight * charge, 0.0)

    return credit


# ---------------------------------------------------------------- what each kind of action does


@dataclass(frozen=True)
class ActionRow:
    """One tool's actions in a collection. calls counts texts that were about it, well formed or not; means are over those."""

    calls: int
    valid: float  # share that the grammar could read
    executed: float  # share that was run
    kl: float | None  # mean nats per action to the reference, summed over its tokens; None without one
    cost: dict[str, float]  # mean of each component


def action_report(episodes: Episodes, reference: Policy | None = None) -> dict[str, ActionRow]:
    """Validity, KL and cost by tool, and "unreadable" for texts whose tool nobody can tell.

    Why by tool: one that is rarely called can become malformed every time while the mean over all actions hardly moves.
    """
    kl = None if reference is None else _kl_by_action(episodes, reference)
    rows: dict[str, list[tuple[Any, float | None]]] = {}
    for number, record in enumerate(episodes.records):
        for k, step in enumerate(record.steps):
            rows.setdefault(step.tool or "unreadable", []).append((step, None if kl is None else float(kl[number, k])))
    return {tool: _row(actions) for tool, actions in sorted(rows.items())}


def _row(actions: list[tuple[Any, float | None]]) -> ActionRow:
    steps, n = [step for step, _ in actions], len(actions)
    names = sorted({name for step in steps for name in step.cost})
    return ActionRow(
        calls=n,
        valid=sum(step.arguments is not None for step in steps) / n,
        executed=sum(step.outcome == "executed" for step in steps) / n,
        kl=None if actions[0][1] is None else sum(kl for _, kl in actions) / n,
        cost={name: sum(step.cost.get(name, 0.0) for step in steps) / n for name in names},
    )


def _kl_by_action(episodes: Episodes, reference: Policy) -> Float[Tensor, "batch actions"]:
    batch = episodes.batch
    turn = batch.turn[:, 1:]
    theirs = frozen_score(reference, batch.tokens, batch.attention_mask, episodes.samples.temperature)
    mine = episodes.samples.logprobs[:, : turn.shape[1]]
    return action_sums(mine - theirs, turn, max(len(record.steps) for record in episodes.records), "logprobs")


def inject_errors(texts: Sequence[str], rate: float, seed: int) -> list[str]:
    """Texts of which a share `rate` has one fault: a word dropped, doubled, or two neighbours exchanged. The seed decides which."""
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie in [0, 1]; got {rate}")
    return [_faulty(text, rate, random.Random(f"fault {seed} {i}")) for i, text in enumerate(texts)]


def _faulty(text: str, rate: float, draw: random.Random) -> str:
    if draw.random() >= rate:
        return text
    words = text.split(" ")
    unequal = [i for i, (a, b) in enumerate(zip(words, words[1:])) if a != b]  # an exchange of equals would be no fault
    kind = draw.choice(("drop", "double", "swap") if unequal else ("drop", "double"))
    at = draw.choice(unequal) if kind == "swap" else draw.randrange(len(words))
    if kind == "drop":
        del words[at]
    elif kind == "double":
        words.insert(at, words[at])
    else:
        words[at : at + 2] = reversed(words[at : at + 2])
    return " ".join(words)


def faulty_step(rate: float, seed: int) -> Callable[[State, str], Transition]:
    """step= for collect_episodes: a channel that damages a share of the actions on their way to the environment."""

    def step(state: State, text: str) -> Transition:
        draw = random.Random(f"fault {seed} {state.episode} {state.step}")
        return kernel.step(state, _faulty(text, rate, draw))

    return step


def validity(texts: Iterable[str], grammar: Grammar) -> dict[str, float]:
    """Share of texts about each tool that the grammar reads; "unreadable" (always 0) where the tool can't be told."""
    found: dict[str, list[bool]] = {}
    for text in texts:
        action = grammar.decode(text)
        found.setdefault(action.tool or "unreadable", []).append(isinstance(action, Action))
    return {tool: sum(flags) / len(flags) for tool, flags in sorted(found.items())}
