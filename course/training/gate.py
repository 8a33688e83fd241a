"""Dynamic gradient gating: use a batch of rollouts again until the gradient of the head jumps, then roll out afresh.

The gate sees the gradient before the optimiser does, so a rejected one leaves weights and moments as they were; its computation is
paid for all the same. It is an empirical rule for stopping, and no test of divergence.
"""

import copy
from dataclasses import asdict, dataclass, replace
from math import isfinite
from statistics import mean, pstdev
from typing import Any, Mapping, Sequence

from torch import Tensor
import torch

from course.accounting.budget import Cost
from course.accounting.ledger import Entry, total_cost
from course.envs.three_tools import demonstrate, three_tools_tasks
from course.feedback.events import FeedbackEvent
from course.language.stamp import digest
from course.models.decoder import Decoder, DecoderConfig
from course.models.policy import Policy
from course.objectives.aggregation import aggregate
from course.rollout.episodes import Episodes, scripted_episodes
from course.rollout.record import Record
from course.tasks.agent import AgentTask
from course.training import tool_agent
from course.training.agents import clone
from course.training.grpo import GrpoConfig, grpo_losses
from course.training.learner import Learner
from course.training.round import Operators, Proposal, propose, run_rounds, tool_round


class GradientGate:
    """decide(increment): whether an update with this increment of gradient energy is committed.

        Z = (x - mean) / sd   of the last `window` committed increments (population sd);  rejected if Z > threshold

    The first `window` increments are committed, since there is nothing to compare them with. With sd 0, Z is infinite above the mean
    and 0 at and below it. A rejected increment does not enter the window: what was refused is no example of the usual.
    Reduces to: no gate for threshold = infinity.
    Raises: ValueError for a window below 1, a threshold that is no number, an increment that is not finite.
    Source: C ftip-005A, ftip-005B, after Miao et al. 2026, section 5 and algorithm 1.
    """

    def __init__(self, window: int, threshold: float | int):
        if window < 1 or threshold != threshold:
            raise ValueError(f"window must be at least 1 and threshold a number; got {window} and {threshold}")
        self.window, self.threshold = window, threshold
        self.committed: tuple[float, ...] = ()  # the last `window`

    def decide(self, norm_increment: float | int) -> bool:
        if not isfinite(norm_increment):
            raise ValueError(f"norm_increment must be finite; got {norm_increment}")
        if len(self.committed) == self.window:
            # statistics works in fractions: the mean of equal numbers is that number, and their sd is 0.
            above, sd = norm_increment - mean(self.committed), pstdev(self.committed)
            z = above / sd if sd else float("inf") if above > 0 else 0.0
            if z > self.threshold:
                return False
        self.committed = (*self.committed, float(norm_increment))[-self.window :]
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"window": self.window, "threshold": self.threshold, "committed": list(self.committed)}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> "GradientGate":
        """What state_dict gave."""
        gate = cls(state["window"], state["threshold"])
        gate.committed = tuple(state["committed"])
        return gate


def head_energy(policy: Policy) -> float:
    """Squared Frobenius norm of the gradient of the matrix that makes logits. Where it is tied, the embedding's part is in it too.

    Raises: ValueError if that matrix is not trained itself: its energy would be 0 for ever, and no use would be rejected.
    """
    model = policy.model
    if isinstance(model, Decoder):
        head = model.embedding if model.unembedding is None else model.unembedding
    else:
        head = model.hf_model.get_output_embeddings()
    if not (head.weight.is_leaf and head.weight.requires_grad):
        raise ValueError(
            "policy must train the matrix that makes logits: frozen or under an adapter it has no gradient for the gate"
        )
    return 0.0 if head.weight.grad is None else float(head.weight.grad.double().square().sum())


class GatedReuse:
    """Operators of rounds with one optimiser step each, in which a batch of episodes serves until the gate rejects its gradient.

        increment_k = |gradient of the head|^2 in use k of the batch - the same in use k - 1

    The first use is committed as it is; later ones are for the gate. After a rejection, or `limit` uses, the next round samples and
    rolls out; until then tasks, episodes and events are those of the round before, their log-probabilities those of the policy that
    acted. A rejected round proposes the state as it was: the step was never made. base: operators with scores as feedback.
    state_dict() and load(): a run that stops goes on with the same batch; load it too where a round was not kept.
    Reduces to: one optimiser step for each collection for limit 1; reuse of a fixed number for a gate with threshold infinity.
    Source: C ftip-005A; the ratio to the policy that acted: rl-pitfalls 2g.
    """

    def __init__(self, base: Operators, gate: GradientGate, *, limit: int, config: GrpoConfig = tool_agent.CONFIG):
        if limit < 1:
            raise ValueError(f"limit must be at least 1 use of a batch; got {limit}")
        self.base, self.gate, self.limit, self.config = base, gate, limit, config
        self.seed: int | None = None  # of the tasks of the batch in use; None: the next round rolls out
        self.uses, self.energy = 0, 0.0
        self.episodes: Episodes | None = None
        self.events: tuple[FeedbackEvent, ...] = ()

    def operators(self) -> Operators:
        rule = {**vars(self.config), "window": self.gate.window, "threshold": repr(self.gate.threshold), "limit": self.limit}
        return replace(
            self.base, sample=self._sample, rollout=self._rollout, feedback=self._feedback, update=self._update,
            account=self._account, versions={**self.base.versions, "update": f"gated_grpo@{digest(rule)[:16]}"},
        )  # fmt: skip

    def _sample(self, seed: int) -> Sequence[AgentTask]:
        if self.seed is None:
            self.seed, self.uses, self.episodes, self.events = seed, 0, None, ()
        return self.base.sample(self.seed)

    def _rollout(self, policy: Policy, tasks: Sequence[AgentTask], seed: int) -> Episodes:
        self.episodes = self.episodes or self.base.rollout(policy, tasks, seed)
        return self.episodes

    def _feedback(self, records: Sequence[Record], seed: int) -> Sequence[FeedbackEvent]:
        self.events = self.events or tuple(self.base.feedback(records, seed))
        return self.events

    def _update(self, learner: Learner, episodes: Episodes, advantages: Tensor, seed: int) -> Proposal:
        made: dict[str, int | float] = {"fresh": int(self.uses == 0), "trained_tokens": episodes.tokens}

        def change() -> dict[str, int | float]:
            said: list[float] = []
            clipped: list[Tensor] = []
            old, batch = episodes.samples.logprobs, episodes.batch
            learner.train()
            learner.gradient(
                grpo_losses(
                    learner, batch, torch.arange(len(batch)), old, old, advantages, aggregate, self.config,
                    episodes.samples.temperature, said, clipped,
                )
            )  # fmt: skip
            energy = head_energy(learner["actor"])
            made.update(energy=energy, increment=energy - self.energy, clipped=float(clipped[0].float().mean()), loss=said[0])
            commits = self.uses == 0 or self.gate.decide(made["increment"])
            made.update(updates=int(commits), **({"norm": learner.apply(clip=self.config.clip_norm)} if commits else {}))
            self.energy, self.uses = energy, self.uses + 1
            if not commits or self.uses == self.limit:
                self.seed = None
            return made

        return propose(learner, change, lambda diagnostics: diagnostics["updates"] == 1)

    def _account(
        self, episodes: Episodes, events: Sequence[FeedbackEvent], advantages: Tensor | None, proposal: Proposal
    ) -> Cost:
        """What is used again was paid for when it was fresh; each gradient is paid for, also one that is thrown away."""
        if proposal.diagnostics.get("fresh", 1):
            return self.base.account(episodes, events, advantages, proposal)
        return Cost(**{name: proposal.diagnostics[name] for name in ("trained_tokens", "updates")})

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        held = self.episodes if self.seed is not None else None
        return {
            "gate": self.gate.state_dict(), "seed": self.seed, "uses": self.uses, "energy": self.energy,
            "events": [event.to_json() for event in self.events] if held else [],
            "episodes": held and {
                "records": [record.to_json() for record in held.records], "group_id": held.group_id.tolist(), "pad_id": held.pad_id,
            },
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> "GatedReuse":
        """Go on with what state_dict gave."""
        self.gate, held = GradientGate.load(state["gate"]), state["episodes"]
        self.seed, self.uses, self.energy = state["seed"], state["uses"], state["energy"]
        self.events = tuple(FeedbackEvent.from_json(event) for event in state["events"])
        self.episodes = held and Episodes(
            tuple(Record.from_json(record) for record in held["records"]), torch.tensor(held["group_id"]), held["pad_id"]
        )
        return self


# ---------------------------------------------------------------- samples saved against quality

# A hasty clone whose actions are often no actions at all. What it is to learn can be learned in a few dozen updates: to act so that the
# environment runs it, and to come to an end. That is the quality here, and no claim about right answers.
DECODER = DecoderConfig(vocab_size=tool_agent.TOKENIZER.vocab_size, layers=2, width=32, heads=2, max_length=96)
HORIZONS, SHOWN, CLONE_STEPS, CLONE_LR = (2,), 200, 25, 1e-2
GROUPS, GROUP_SIZE, LR, UPDATES, LIMIT, WINDOW, THRESHOLD = 8, 8, 1e-3, 24, 4, 8, 2.0
ARMS = {"fresh": (1, float("inf")), "fixed": (LIMIT, float("inf")), "gated": (LIMIT, THRESHOLD)}  # limit and threshold
EVALUATED = 64


def executed_share(record: Record) -> float:
    """Of the actions, those that were run; 0 for an episode that was cut off."""
    return (record.ending == "terminated") * sum(step.outcome == "executed" for step in record.steps) / len(record.steps)


def _feedback(records: Sequence[Record], seed: int) -> list[FeedbackEvent]:
    return [
        FeedbackEvent(record.content_hash, "score", executed_share(record), ("trajectory",), "executed_share", "1")
        for record in records
    ]  # fmt: skip


@dataclass(frozen=True)
class ReuseRun:
    """One arm of one seed after UPDATES committed updates. rejected: rounds; wasted: trained tokens of those rounds."""

    seed: int
    arm: str
    quality: float  # mean executed_share of sampled episodes on held-out tasks
    before: float  # the clone's
    sampled_tokens: int
    trained_tokens: int
    batches: int  # collections of fresh episodes
    rejected: int
    wasted: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def small_clone(seed: int) -> Policy:
    """The policy that every arm of a seed starts from."""
    policy = Policy(Decoder(DECODER, seed), tool_agent.TOKENIZER, tool_agent.SERIALIZER)
    world, tasks = tool_agent.task_world(), three_tools_tasks(SHOWN, seed, pool="bootstrap", horizons=HORIZONS)
    shown = scripted_episodes(
        [demonstrate(task, world, seed) for task in tasks], world, tasks, tokenizer=tool_agent.TOKENIZER,
        serializer=tool_agent.SERIALIZER, grader=tool_agent.grade, environment_seeds=[seed] * SHOWN,
    )  # fmt: skip
    for _ in clone(policy, shown, steps=CLONE_STEPS, lr=CLONE_LR, batch_size=32, seed=seed):
        pass
    return policy.eval()


def small_tasks(count: int, seed: int) -> list[AgentTask]:
    return three_tools_tasks(count, seed, pool="online", horizons=HORIZONS)


def reuse_run(seed: int, arm: str, start: Policy, *, updates: int = UPDATES) -> tuple[ReuseRun, tuple[Entry, ...]]:
    """Train a copy of start until `updates` optimiser steps are committed, and what it came to."""
    limit, threshold = ARMS[arm]
    policy, config = copy.deepcopy(start), GrpoConfig(GROUP_SIZE, beta=0.0, how="token", minibatches=1)
    base = replace(tool_round(groups=GROUPS, config=config, tasks=small_tasks), feedback=_feedback)
    base = replace(base, versions={**base.versions, "feedback": "executed_share@1"})
    reuse = GatedReuse(base, GradientGate(WINDOW, threshold), limit=limit, config=config)
    learner, ledger = Learner({"actor": policy}, lr=LR), ()
    for entry in run_rounds(learner, reuse.operators(), rounds=2 * updates, seed=seed):  # at most one rejection per batch
        ledger = (*ledger, entry)
        if sum(e.round.decision == "accept" for e in ledger) == updates:
            break
    tasks = tool_agent.held_out(EVALUATED, horizons=HORIZONS)
    found = [tool_agent.attempts(p, tasks).records for p in (start, policy)]
    quality = [sum(map(executed_share, records)) / len(records) for records in found]
    spent, thrown = total_cost(ledger), [e for e in ledger if e.round.decision == "reject"]
    made = ReuseRun(
        seed=seed, arm=arm, quality=quality[1], before=quality[0], sampled_tokens=int(spent["sampled_tokens"]),
        trained_tokens=int(spent["trained_tokens"]), batches=len({e.round.trajectory for e in ledger}), rejected=len(thrown),
        wasted=int(total_cost(thrown)["trained_tokens"]),
    )  # fmt: skip
    return made, ledger
