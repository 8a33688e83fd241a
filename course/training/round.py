"""A round of agentic post-training: sample, roll out, hear feedback, assign credit, propose, account; then accept or reject.

Six operators with versions and seeds of their own. What they were given and what came of it stands in the ledger, a rejected
proposal and its bill too. A run is a function of its start, its operators and its seed.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Callable, Iterator, Literal, Mapping, NamedTuple, Sequence

from jaxtyping import Float
from torch import Tensor
import torch

from course.accounting.budget import Cost, admit
from course.accounting.ledger import OPERATORS, SEEDS, Entry, Round, append_round, total_cost
from course.envs.evidence import Evidence
from course.envs.kernel import State, World
from course.feedback.events import Credit, FeedbackEvent, evidence_event, in_order
from course.language.stamp import digest
from course.models.policy import Policy
from course.objectives.aggregation import aggregate
from course.rollout.episodes import Episodes, collect_episodes
from course.rollout.record import Record
from course.tasks.agent import AgentTask
from course.training import tool_agent
from course.training.grpo import GrpoConfig, grpo_update
from course.training.learner import Learner


@dataclass(frozen=True)
class Proposal:
    """A candidate for the next state, what is to be known of it, and the decision, which is another thing than either.

    candidate: copies of what Learner.tensors names, weights and moments. diagnostics: what the acceptance rule looked at.
    """

    decision: Literal["accept", "reject"]
    candidate: Mapping[str, Tensor]
    diagnostics: Mapping[str, int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.decision not in ("accept", "reject"):
            raise ValueError(f"decision must be 'accept' or 'reject'; got {self.decision!r}")


@dataclass(frozen=True)
class Operators:
    """The maps S, R, F, C, U and A of a round. versions: name@version of each, under the names of accounting.ledger.OPERATORS.

    credit sees the episodes on which feedback did not abstain, and their events; update must leave the learner as it was (propose
    does that). account(episodes, events, advantages, proposal): the round's whole cost, an abstained or rejected one's too.
    """

    law: str  # of the tasks
    sample: Callable[[int], Sequence[AgentTask]]
    rollout: Callable[[Policy, Sequence[AgentTask], int], Episodes]
    feedback: Callable[[Sequence[Record], int], Sequence[FeedbackEvent]]
    credit: Callable[[Episodes, Sequence[FeedbackEvent], int], Float[Tensor, "batch next"]]
    update: Callable[[Learner, Episodes, Tensor, int], Proposal]
    account: Callable[[Episodes, Sequence[FeedbackEvent], Tensor | None, Proposal], Cost]
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        if sorted(self.versions) != list(OPERATORS):
            raise ValueError(
                f"versions must be those of {', '.join(OPERATORS)}; got {', '.join(sorted(self.versions)) or 'none'}"
            )
        for name, version in self.versions.items():
            if not all(version.partition("@")):
                raise ValueError(f"versions[{name!r}] must be name@version; got {version!r}")


class Finished(NamedTuple):
    """All of a round, before anything is committed: for stores and reports. credits: one for each event that is no abstention."""

    entry: Entry
    proposal: Proposal
    episodes: Episodes
    events: tuple[FeedbackEvent, ...]
    credits: tuple[Credit, ...]


def run_rounds(
    learner: Learner,
    operators: Operators,
    *,
    rounds: int,
    seed: int,
    budget: Cost | None = None,
    bound: Cost | None = None,
    ledger: tuple[Entry, ...] = (),
    keep: Callable[[Finished], None] = lambda finished: None,
) -> Iterator[Entry]:
    """Run up to round number `rounds`, and yield each round's entry in the ledger once its decision is carried out.

        X = S(w_task)   Z = R(X, w_rollout)   F = F(Z, w_feedback)   G = C(Z, F, w_credit)   (d, M', s') = U(M, s, G, w_update)
        (M, s) <- (M', s') if d is accept, else as they were, bit for bit        with seeds w of (seed, round, operator) alone

    budget: a round is admitted only if its worst case, bound, fits into what is left in every component; else the run ends there.
    ledger: of a run that goes on, with the learner as it was behind its last round. keep: sees each round whole before the learner
    changes; if it raises, nothing has, and the same call makes the round again. learner.step counts rounds, rejected ones too:
    that is why rejection leads to fresh rollouts.
    Reduces to: grpo() with these seeds where every proposal is accepted; nothing for 0 rounds.
    Raises: ValueError if learner and ledger are not of one run, a budget has no bound, feedback does not answer record by record, an
    update changes the learner, or a round costs more than its bound.
    Source: C ftip-0073, ftip-0074.
    """
    state, spent = _start(learner, ledger, budget, bound), total_cost(ledger)
    for index in range(learner.step, rounds):
        if budget is not None and not admit(bound, spent, budget):
            return
        seeds = round_seeds(seed, index)
        tasks = operators.sample(seeds["task"])
        episodes = operators.rollout(learner["actor"], tasks, seeds["rollout"])
        events = tuple(operators.feedback(episodes.records, seeds["feedback"]))
        in_order(events, [record.content_hash for record in episodes.records])
        heard, said = heard_of(episodes, events)
        advantages, credits = None, ()
        if heard is None:  # nothing to learn from: the state itself is proposed, and not accepted
            proposal = Proposal("reject", copies(learner))
        else:
            advantages = operators.credit(heard, said, seeds["credit"])
            credits = credits_of(heard, said, advantages, operators.versions["credit"])
            proposal = operators.update(learner, heard, advantages, seeds["update"])
        if state_digest(learner) != state:
            raise ValueError(f"update must leave the learner as it was; it changed in round {index}: use propose")
        cost = operators.account(episodes, events, advantages, proposal)
        if bound is not None and not cost.fits(bound):
            raise ValueError(f"bound must be the worst case of a round; round {index} cost {cost}, above {bound}")
        proposed = tensors_digest(proposal.candidate)
        committed = proposed if proposal.decision == "accept" else state
        ledger = append_round(
            ledger, round_of(index, operators, tasks, episodes, events, credits, proposal, proposed, committed, seeds, cost)
        )
        keep(Finished(ledger[-1], proposal, episodes, events, credits))
        if proposal.decision == "accept":
            learner.put(proposal.candidate)
        learner.step, state, spent = index + 1, committed, spent + cost
        yield ledger[-1]


def _start(learner: Learner, ledger: tuple[Entry, ...], budget: Cost | None, bound: Cost | None) -> str:
    """The digest of the state that the run starts or goes on from, after the checks."""
    if budget is not None and bound is None:
        raise ValueError("bound must be a round's worst case where there is a budget; got None")
    if learner.step != len(ledger):
        raise ValueError(f"learner must stand behind the {len(ledger)} rounds of the ledger; got one in step {learner.step}")
    state = state_digest(learner)
    if ledger and ledger[-1].round.committed != state:
        raise ValueError(f"learner must be in the state that round {len(ledger) - 1} committed; got another: load its checkpoint")
    return state


def round_seeds(seed: int, index: int) -> dict[str, int]:
    """One seed for each operator that draws, of (seed, round, operator) alone; below 2^40, so that episodes can be numbered in it."""
    return {name: int(digest([seed, index, name])[:10], 16) for name in SEEDS}


def state_digest(learner: Learner) -> str:
    """SHA-256 of weights, averages and the optimiser's moments. The number of finished rounds is no part of it."""
    return tensors_digest(learner.tensors())


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def copies(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}


def propose(
    learner: Learner,
    change: Callable[[], Mapping[str, int | float]],
    accept: Callable[[Mapping[str, int | float]], bool] = lambda diagnostics: True,
) -> Proposal:
    """Let change train the learner, keep what came out as the candidate, and put the learner back bit for bit.

    change returns the diagnostics; accept decides on them.
    """
    before = copies(learner)
    try:
        diagnostics = change()
        candidate = copies(learner)
    finally:
        learner.put(before)
    return Proposal("accept" if accept(diagnostics) else "reject", candidate, diagnostics)


def heard_of(
    episodes: Episodes, events: Sequence[FeedbackEvent]
) -> tuple[Episodes, tuple[FeedbackEvent, ...]] | tuple[None, tuple]:
    """The episodes whose feedback is no abstention, with their events; None if there are none. An abstention is not a 0."""
    kept = [i for i, event in enumerate(events) if event.kind != "abstention"]
    if len(kept) == len(events):
        return episodes, tuple(events)
    if not kept:
        return None, ()
    records = tuple(episodes.records[i] for i in kept)
    return Episodes(records, episodes.group_id[kept], episodes.pad_id, episodes.timing), tuple(events[i] for i in kept)


def credits_of(
    episodes: Episodes, events: Sequence[FeedbackEvent], advantages: Float[Tensor, "batch next"], rule: str
) -> tuple[Credit, ...]:
    """What each event became: the advantages of its record's action tokens. rule: name@version."""
    name, _, version = rule.partition("@")
    actions = episodes.batch.action_mask[:, 1:]
    if advantages.shape != actions.shape:
        raise ValueError(f"credit must give advantages {tuple(actions.shape)}; got {tuple(advantages.shape)}")
    return tuple(
        Credit(event.record, event.digest, name, version, tuple(row[mask].tolist()))
        for event, row, mask in zip(events, advantages, actions)
    )


def round_of(
    index: int, operators: Operators, tasks: Sequence[AgentTask], episodes: Episodes, events: Sequence[FeedbackEvent],
    credits: Sequence[Credit], proposal: Proposal, proposed: str, committed: str, seeds: Mapping[str, int], cost: Cost,
) -> Round:  # fmt: skip
    """Raises ValueError if the records are not all of one policy and environment: then they are not of this round."""
    acted = {(record.versions.policy, record.versions.environment) for record in episodes.records}
    if len(acted) != 1:
        raise ValueError(f"rollout must give records of one policy and environment; got {len(acted)} pairs in round {index}")
    ((stamp, environment),) = acted
    return Round(
        index=index, task=operators.law, instance=tuple(task.digest() for task in tasks), stamp=stamp, environment=environment,
        trajectory=tuple(record.content_hash for record in episodes.records), feedback=tuple(event.digest for event in events),
        credit=digest([credit.digest for credit in credits]), decision=proposal.decision, proposed=proposed, committed=committed,
        seeds=seeds, operators=operators.versions, cost=cost.to_json(),
    )  # fmt: skip


# ---------------------------------------------------------------- GRPO on the three tools, as six operators


def tool_round(
    *,
    groups: int = tool_agent.GROUPS,
    config: GrpoConfig = tool_agent.CONFIG,
    tasks: tool_agent.Tasks = tool_agent.lookups,
    world: World | None = None,
    grader: Callable[[State], Evidence] = tool_agent.grade,
    advantages: Callable[[Tensor, Tensor], Tensor] = tool_agent.standardised,
    accept: Callable[[Mapping[str, int | float]], bool] = lambda diagnostics: True,
) -> Operators:
    """The operators of a GRPO round on the three tools: tool_agent.online() taken apart. accept sees norm, clipped and loss.

    Replace rollout or feedback (dataclasses.replace) to run them elsewhere. Raises: ValueError for a config with a price of KL,
    which would need a reference, or with dynamic sampling.
    """
    if config.beta or config.dynamic_sampling:
        raise ValueError(f"config must have beta 0 and no dynamic sampling in a tool round; got {config}")
    world = world or tool_agent.task_world()

    def rollout(policy: Policy, asked: Sequence[AgentTask], seed: int) -> Episodes:
        return collect_episodes(
            policy, world, asked, grader=grader, seed=seed, max_action_tokens=tool_agent.MAX_ACTION_TOKENS,
            group_size=config.group_size,
        )  # fmt: skip

    def credit(episodes: Episodes, events: Sequence[FeedbackEvent], seed: int) -> Tensor:
        if odd := {event.kind for event in events} - {"score"}:
            raise ValueError(f"feedback must be scores for this rule of credit; got {', '.join(sorted(odd))}")
        rewards = torch.tensor([float(event.value) for event in events])
        return advantages(rewards, episodes.group_id)[:, None].expand_as(episodes.samples.logprobs)

    def update(learner: Learner, episodes: Episodes, credited: Tensor, seed: int) -> Proposal:
        def change() -> dict[str, int | float]:
            old, rows = episodes.samples.logprobs, torch.arange(len(episodes))
            said, norms, clipped = grpo_update(
                learner, episodes.batch, rows, old, old, credited, aggregate, config, episodes.samples.temperature,
                torch.Generator().manual_seed(seed),
            )  # fmt: skip
            return {
                "norm": max(norms), "clipped": float(torch.cat(clipped).float().mean()), "loss": sum(said[: config.micro_batches]),
                "updates": len(norms) - 1, "trained_tokens": config.epochs * episodes.tokens,
            }  # fmt: skip

        return propose(learner, change, accept)

    return Operators(
        law="three tools, online shelves",
        sample=lambda seed: tasks(groups, seed),
        rollout=rollout,
        feedback=lambda records, seed: [evidence_event(record) for record in records],
        credit=credit,
        update=update,
        account=tool_account,
        versions={
            "sampler": "three_tools_tasks@1", "rollout": "collect_episodes@1", "feedback": "verify_answer@1",
            "credit": f"{advantages.__name__}@1", "update": f"grpo@{digest(vars(config))[:16]}", "accounting": "tool_account@1",
        },
    )  # fmt: skip


def tool_account(episodes: Episodes, events: Sequence[FeedbackEvent], advantages: Tensor | None, proposal: Proposal) -> Cost:
    """Tokens by what was done with them, episodes, optimiser steps (thrown away or not), and what the tools cost."""
    done = proposal.diagnostics
    spent = Cost(
        episodes=len(episodes), sampled_tokens=episodes.tokens, judged_tokens=episodes.tokens,
        trained_tokens=done.get("trained_tokens", 0), updates=done.get("updates", 0),
    )  # fmt: skip
    return sum((record.cost for record in episodes.records), spent)


def tool_bound(*, groups: int = tool_agent.GROUPS, config: GrpoConfig = tool_agent.CONFIG, world: World | None = None) -> Cost:
    """The worst case of a tool_round with these arguments: every episode as long and dear as its world admits."""
    world = world or tool_agent.task_world()
    episodes = groups * config.group_size
    tokens = episodes * world.max_actions * tool_agent.MAX_ACTION_TOKENS
    tools = {name: episodes * value for name, value in world.budget.items()}
    return Cost(
        **tools, episodes=episodes, sampled_tokens=tokens, judged_tokens=tokens, trained_tokens=config.epochs * tokens,
        updates=config.epochs * config.minibatches,
    )  # fmt: skip
