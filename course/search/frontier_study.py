"""Best-of-N against PPO at equal sampled tokens, on the bandit of level 2: one seed at a time, raw numbers kept.

One pool of samples serves every N. PPO then trains a copy of the same policy on the same reward until it has sampled as many tokens as
best-of-N did for all prompts, is measured there, and goes on to the next N.
"""

from dataclasses import dataclass
from typing import Callable, Iterator, Sequence

from torch import Tensor

from course.search.pool import Pool, draw_pool, stack_pools, stack_trained
from course.tasks import reviews
from course.training.bandit import Bandit
from course.training.learner import Learner
from course.training.ppo import PpoConfig, PpoOperators, PpoStep, ppo

SIZES, PROMPTS, BETA, LR = (1, 4, 16, 64), 128, 0.1, 3e-4


@dataclass(frozen=True)
class Trained:
    """A policy that training has reached after the sampled tokens of best-of-`matches`, and one response of it to each prompt."""

    matches: int
    steps: int
    sampled: int  # tokens, while training
    trained: int
    judged: int
    pool: Pool


@dataclass(frozen=True)
class FrontierSeed:
    seed: int
    pool: Pool
    trained: tuple[Trained, ...]  # one per size above 1


def frontier_seed(
    bandit: Bandit, *, operators: PpoOperators, sizes: Sequence[int] = SIZES, prompts: int = PROMPTS, beta: float = BETA,
    watch: Callable[[PpoStep], object] = lambda step: None,
) -> FrontierSeed:  # fmt: skip
    """The pool of one seed and PPO measured at the sampled tokens of every size above 1. `watch` sees each training step."""
    asked = reviews.prompts(prompts, 900_000 + bandit.seed)
    pool = draw_pool(bandit.policy, asked, max(sizes), reward=bandit.reward, sampling=bandit.sampling, seed=bandit.seed)
    learner = Learner({"actor": bandit.actor(), "critic": bandit.critic()}, lr=LR)
    steps = ppo(
        learner, bandit.policy, bandit.reward, bandit.prompts(bandit.prompts_per_step), operators=operators,
        config=PpoConfig(beta=beta), sampling=bandit.sampling, steps=100_000, seed=bandit.seed,
    )  # fmt: skip
    return FrontierSeed(bandit.seed, pool, tuple(_matched(learner, steps, pool, asked, bandit, sizes, watch)))


def _matched(
    learner: Learner, steps: Iterator[PpoStep], pool: Pool, asked: Tensor, bandit: Bandit, sizes: Sequence[int],
    watch: Callable[[PpoStep], object],
) -> Iterator[Trained]:  # fmt: skip
    sampled = trained = judged = 0
    last = float(pool.tokens.float().mean()) * bandit.prompts_per_step
    for size in sorted(n for n in sizes if n > 1):
        # What best-of-size samples, less the one answer per prompt that the trained policy will give. A step is not divided: it is
        # taken if more than half of it, at the length of the last one, still fits.
        allowed = int(pool.tokens[:, :size].sum()) - last * len(asked) / bandit.prompts_per_step
        while sampled + last / 2 < allowed:
            step = next(steps)
            last = step.sampled
            watch(step)
            sampled, trained, judged = sampled + step.sampled, trained + step.trained, judged + step.judged
        final = draw_pool(
            learner["actor"], asked, 1, reward=bandit.reward, sampling=bandit.sampling, seed=bandit.seed + 500_000 + size
        )
        yield Trained(size, learner.step, sampled, trained, judged, final)


def tables_of(seeds: Sequence[FrontierSeed]) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    """The pool [S,P,M], and PPO's tensors by the size whose tokens they match, as frontier_table reads them."""
    trained = {}
    for place, first in enumerate(seeds[0].trained):
        here = [seed.trained[place] for seed in seeds]
        spent = {name: [getattr(t, name) for t in here] for name in ("sampled", "trained", "judged")}
        trained[first.matches] = stack_trained([t.pool for t in here], **spent)
    return stack_pools([seed.pool for seed in seeds]), trained
