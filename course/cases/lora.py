"""LoRA-PPO and adapter Q-learning in small: level 2's bandit, learned with all weights and with thin matrices beside them.

The same task, reward and steps for each arm. A miniature, no reproduction: the source names the methods and gives no numbers.
"""

import copy
from dataclasses import asdict, dataclass
from typing import Any, Iterator

from jaxtyping import Float
from torch import Tensor, nn

from course.accounting.costs import held_bytes
from course.models.decoder import Decoder
from course.models.heads import ScalarHead
from course.models.lora import IN_BLOCKS, MATRICES, BasePolicy, add_lora
from course.tasks import reviews
from course.tasks.records import Batch
from course.training.bandit import Bandit, own_samples
from course.training.learner import Learner
from course.training.offline_q import OfflineConfig, OfflineStep, ValueGuided, offline_q, value_learner
from course.training.overoptimisation import HEALTHY
from course.training.ppo import PpoConfig, PpoOperators, PpoStep, ppo
from course.training.roles import judged


@dataclass(frozen=True)
class Arm:
    """matrices: those with an adapter of this rank; none: all weights are trained. lr, q_lr: of PPO and of Q-learning."""

    matrices: tuple[str, ...]
    rank: int
    lr: float
    q_lr: float

    def trunk(self, policy: Decoder, seed: int) -> Decoder:
        """A copy of the policy in which what this arm trains can be trained."""
        made = copy.deepcopy(policy)
        if not self.matrices:
            return made.requires_grad_(True)
        return add_lora(made, matrices=self.matrices, rank=self.rank, alpha=self.rank, seed=seed)


ARMS = {
    "all weights": Arm((), 0, 1e-3, 3e-3),
    "adapters in the blocks": Arm(IN_BLOCKS, 4, 3e-3, 1e-2),
    "blocks and embedding": Arm(MATRICES, 4, 3e-3, 1e-2),
}
STEPS = 40
LOGGED, Q_STEPS, STRENGTH = 2048, 400, 15.0
OFFLINE = OfflineConfig("ilql", tau=0.7, penalty=0.1, target_decay=0.9)
PROMPTS = 512  # fresh ones, on which every policy is measured


@dataclass(frozen=True)
class Run:
    """A learner and its loop. held: what must be in memory to train, by bytes, once a step has been taken."""

    learner: Learner
    reference: nn.Module
    steps: Iterator[PpoStep]

    @property
    def trained(self) -> int:
        return sum(parameter.numel() for parameter in self.learner.parameters)

    @property
    def held(self) -> int:
        return held_bytes([*self.learner.modules.values(), self.reference], self.learner.optimiser)


def lora_ppo(task: Bandit, arm: Arm, *, operators: PpoOperators, steps: int = STEPS) -> Run:
    """PPO at level 2's high price of KL. With adapters the actor, switched off, is the reference."""
    actor = arm.trunk(task.policy, task.seed)
    critic = ScalarHead(arm.trunk(task.policy, task.seed + 1), task.seed)
    reference = BasePolicy(actor) if arm.matrices else task.policy
    learner = Learner({"actor": actor, "critic": critic}, lr=arm.lr)
    loop = ppo(
        learner, reference, task.reward, task.prompts(task.prompts_per_step),
        operators=operators, config=PpoConfig(beta=HEALTHY), sampling=task.sampling, steps=steps, seed=task.seed,
    )  # fmt: skip
    return Run(learner, reference, loop)


def logged(task: Bandit, rows: int = LOGGED) -> tuple[Batch, Float[Tensor, "rows"]]:
    """What the policy wrote before, with the reward of each: all that Q-learning sees."""
    batch = own_samples(task.policy, reviews.prompts(rows, task.seed + 5), task.seed + 5)
    return batch, judged(task.reward, batch)


def adapter_q(
    task: Bandit, arm: Arm, log: tuple[Batch, Float[Tensor, "rows"]], *, steps: int = Q_STEPS
) -> tuple[Learner, Iterator[OfflineStep]]:
    """ILQL on the log; the policy itself stays as it is, whatever the values' trunk trains."""
    learner = value_learner(arm.trunk(task.policy, task.seed), reviews.VOCAB_SIZE, lr=arm.q_lr, seed=task.seed)
    return learner, offline_q(learner, *log, config=OFFLINE, steps=steps, seed=task.seed)


@dataclass(frozen=True)
class Quality:
    reward: float  # what was trained on
    gold: float  # what was not
    length: float


def quality(task: Bandit, policy: nn.Module, prompts: int = PROMPTS) -> Quality:
    """Means over one response to each of these fresh prompts."""
    batch = own_samples(policy, reviews.prompts(prompts, task.seed + 9), task.seed + 9)
    return Quality(
        float(judged(task.reward, batch).mean()),
        float(reviews.gold(batch).mean()),
        float(batch.action_mask.sum(1).double().mean()),
    )


def guided(task: Bandit, learner: Learner) -> ValueGuided:
    return ValueGuided(task.policy, learner["values"], STRENGTH)


@dataclass(frozen=True)
class Outcome:
    """One arm of one seed. trained, held: parameters and bytes of PPO; q_trained: parameters of Q-learning."""

    arm: str
    trained: int
    held: int
    kl: float
    ppo: Quality
    q_trained: int
    q: Quality


def measured(task: Bandit, operators: PpoOperators) -> dict[str, Any]:
    """The policy before, and each arm's outcome, as plain data."""
    log, rows = logged(task), []
    for name, arm in ARMS.items():
        run = lora_ppo(task, arm, operators=operators)
        *_, last = run.steps
        values, loop = adapter_q(task, arm, log)
        for _ in loop:
            pass
        q_trained = sum(p.numel() for p in values.parameters)
        after, steered = quality(task, run.learner["actor"]), quality(task, guided(task, values))
        rows.append(Outcome(name, run.trained, run.held, last.kl, after, q_trained, steered))
    return {"seed": task.seed, "before": asdict(quality(task, task.policy)), "arms": [asdict(row) for row in rows]}
