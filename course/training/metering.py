"""The account of a run, kept while it runs: tokens from its records, time from the clock, operations and bytes from its modules."""

import time
from typing import Any, Iterable, Iterator

from torch import nn

from course.accounting.costs import Account, held_bytes
from course.training.learner import Learner


def metered(
    steps: Iterable[Any], learner: Learner, *, reference: nn.Module, reward: nn.Module, prompt_length: int
) -> Iterator[tuple[Any, Account]]:
    """Each record of an online loop beside the account of the run so far.

        operations of a step = 2 N_actor sampled + 2 (N_reference + N_reward + N_critic) sampled + 6 (N_actor + N_critic) trained

    with N the parameters of a network and tokens counted with their prompts. steps: records with sampled, trained and judged response
    tokens and their mean length. A critic's pass over fresh responses counts as scored, as the reference's does. Rehearsal is not in
    the records and so not in the account. bytes: what learner, reference and reward hold.
    """
    sizes = {role: _parameters(module) for role, module in learner.modules.items()}
    critic = sizes.get("critic", 0)
    frozen = _parameters(reference) + _parameters(reward)
    spent, began = Account(), time.perf_counter()
    for record in steps:
        now = time.perf_counter()
        whole = (record.length + prompt_length) / record.length  # tokens with their prompts, per response token
        forward = 2 * (sizes["actor"] + frozen + critic) * record.sampled
        spent = spent + Account(
            sampled_tokens=record.sampled,
            trained_tokens=record.trained,
            judged_tokens=record.judged,
            scored_tokens=record.sampled * (2 if critic else 1),
            seconds=now - began,
            flops=whole * (forward + 6 * (sizes["actor"] + critic) * record.trained),
            bytes=held_bytes([*learner.modules.values(), reference, reward], learner.optimiser),
        )
        yield record, spent
        began = time.perf_counter()  # what the caller does between two steps is not the run's time


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
