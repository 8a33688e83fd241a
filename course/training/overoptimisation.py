"""Pushing a policy against a learned reward until gold falls, and an alarm that sees neither the reward nor gold.

A run is `healthy` at a high price of KL and `pushed` at a low one; nothing else differs. While it trains, its own responses are judged
by the auditor and by gold; neither is ever used for an update. Every EVERY steps they become one entry of the history.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Iterator, Mapping, Sequence

from torch import Tensor

from course.models.score import evaluating
from course.tasks import reviews
from course.tasks.records import Batch
from course.training.bandit import Bandit
from course.training.learner import Learner
from course.training.ppo import PpoConfig, PpoOperators, PpoStep, ppo

STEPS, EVERY, LR = 48, 2, 3e-4
PUSHED, HEALTHY = 0.05, 0.3  # price of KL


@dataclass(frozen=True)
class HistoryEntry:
    """What a monitor may see: means over the responses of the last EVERY steps. Neither gold nor the training reward is in it."""

    step: int
    kl: float  # nats per response
    entropy: float  # nats per token
    length: float  # tokens per response
    repetition: float  # share of a response's tokens that repeat a content word of it
    heldout_score: float  # of a judge that the policy is not trained on


@dataclass(frozen=True)
class Run:
    """One run: what a monitor saw, and beside it what it did not see."""

    seed: int
    healthy: bool
    history: tuple[HistoryEntry, ...]
    gold: tuple[float, ...]
    training_reward: tuple[float, ...]

    @property
    def peak(self) -> int:
        """The entry with the highest gold."""
        return max(range(len(self.gold)), key=lambda i: self.gold[i])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Run":
        history = tuple(HistoryEntry(**entry) for entry in data["history"])
        return cls(data["seed"], data["healthy"], history, tuple(data["gold"]), tuple(data["training_reward"]))


@dataclass
class Witness:
    """Wraps a reward: passes its scores on unchanged and keeps what others think of the same responses."""

    reward: Callable[[Batch], Tensor]
    auditor: Callable[[Batch], Tensor]
    said: list[dict[str, float]] = field(default_factory=list)

    def __call__(self, batch: Batch) -> Tensor:
        with evaluating(self.reward), evaluating(self.auditor):
            scores, audit = self.reward(batch), self.auditor(batch)
        parts = reviews.gold_parts(batch)
        length = batch.action_mask.sum(1)
        self.said.append(
            {
                "training_reward": float(scores.mean()),
                "heldout_score": float(audit.mean()),
                "gold": float(parts.utility.mean()),
                "repetition": float((parts.repeated / length).mean()),
            }
        )
        return scores


def pushed_run(
    bandit: Bandit, *, operators: PpoOperators, beta: float, steps: int = STEPS
) -> Iterator[tuple[PpoStep, dict[str, float]]]:
    """PPO on the bandit's reward; beside each step, what the witness saw of its responses."""
    learner = Learner({"actor": bandit.actor(), "critic": bandit.critic()}, lr=LR)
    witness = Witness(bandit.reward, bandit.auditor)
    run = ppo(
        learner, bandit.policy, witness, bandit.prompts(bandit.prompts_per_step), operators=operators, config=PpoConfig(beta=beta),
        sampling=bandit.sampling, steps=steps, seed=bandit.seed,
    )  # fmt: skip
    for step in run:
        yield step, witness.said[-1]


def run_of(seed: int, healthy: bool, steps: Sequence[tuple[PpoStep, Mapping[str, float]]], every: int = EVERY) -> Run:
    """The steps of a run as entries, each the mean over `every` steps."""
    history, gold, reward = [], [], []
    for end in range(every, len(steps) + 1, every):
        window = steps[end - every : end]

        def mean(values: Iterator[float]) -> float:
            return sum(values) / every

        history.append(
            HistoryEntry(
                step=window[-1][0].step + 1,
                kl=mean(s.kl for s, _ in window),
                entropy=mean(s.entropy for s, _ in window),
                length=mean(s.length for s, _ in window),
                repetition=mean(w["repetition"] for _, w in window),
                heldout_score=mean(w["heldout_score"] for _, w in window),
            )
        )
        gold.append(mean(w["gold"] for _, w in window))
        reward.append(mean(w["training_reward"] for _, w in window))
    return Run(seed, healthy, tuple(history), tuple(gold), tuple(reward))


def recorded_run(bandit: Bandit, *, operators: PpoOperators, healthy: bool) -> Run:
    """A whole run at the high or the low price of KL."""
    beta = HEALTHY if healthy else PUSHED
    return run_of(bandit.seed, healthy, list(pushed_run(bandit, operators=operators, beta=beta)))


WINDOW, MOVED, GAIN = 4, 2.0, 0.02


def overoptimisation_alarm(history: Sequence[Mapping[str, Any]]) -> int | None:
    """The step of a history's last entry, if it and the entry before it show a policy that pays KL for nothing; else None.

        kl_t - kl_(t-4) > 2 nats   and   score_t - score_(t-4) < 0.02 * (kl_t - kl_(t-4)),   at the last entry and the one before

    history: entries of {step, kl, entropy, length, repetition, heldout_score} up to now. While training helps, the judge that is not
    trained on rises steeply with KL; once a policy exploits its own reward, KL grows and that judge no longer follows.
    Shapes and units: kl in nats per response, score in standard deviations of the reference's responses.
    Reduces to: None for a history of at most five entries, and for one whose KL stays within 2 nats.
    Raises: ValueError if an entry lacks kl, heldout_score or step.
    Source: exit test of level 2. The thresholds were chosen on seeds 0 to 8 of the pushed run; other seeds judge them.
    """
    needed = {"step", "kl", "heldout_score"}
    for number, entry in enumerate(history):
        if needed - set(entry):
            raise ValueError(
                f"history must have step, kl and heldout_score everywhere; entry {number} lacks {sorted(needed - set(entry))}"
            )
    if len(history) < WINDOW + 2:
        return None
    return int(history[-1]["step"]) if all(_pays_for_nothing(history[: len(history) - back]) for back in (0, 1)) else None


def _pays_for_nothing(history: Sequence[Mapping[str, Any]]) -> bool:
    now, before = history[-1], history[-1 - WINDOW]
    moved = now["kl"] - before["kl"]
    return moved > MOVED and now["heldout_score"] - before["heldout_score"] < GAIN * moved


def first_alarm(run: Run, alarm: Callable[[list[dict[str, Any]]], int | None]) -> int | None:
    """The entry at which a detector first speaks, shown one prefix after the other."""
    entries = [asdict(entry) for entry in run.history]
    return next((i for i in range(len(entries)) if alarm(entries[: i + 1]) is not None), None)


def in_time(run: Run, alarm: Callable[[list[dict[str, Any]]], int | None]) -> bool:
    """Whether the first alarm of a run comes after gold's peak and before the run's end."""
    entry = first_alarm(run, alarm)
    return entry is not None and run.peak < entry < len(run.history) - 1
