"""AlphaProof on a small scale: search, keep what the kernel accepts, train on it, search better; then adapt to one target."""

import copy
import hashlib
import random
from dataclasses import dataclass
from typing import Iterator, Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
import torch

from course.envs.proofs import (
    FIRST_COST, FIRST_TACTIC, MAX_COST, TACTICS, VOCAB_SIZE, Goal, check_proof, encode_goal, kernel, steps_of,
)  # fmt: skip
from course.models.decoder import DecoderConfig
from course.objectives.supervised import sft_loss
from course.search.proofs import ProofCompute, Prover, SearchResult, guided_search, proof_cost
from course.tasks.records import Batch, batch_of
from course.training.sft import sft

Proved = dict[Goal, tuple]  # goal -> proof: verified, the cheapest seen


def new_prover(seed: int) -> Prover:
    config = DecoderConfig(vocab_size=VOCAB_SIZE, layers=2, width=64, heads=4, max_length=96)
    return Prover(config, encode_goal, FIRST_TACTIC, len(TACTICS), seed)


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of all weights: equal before and after whatever claims to change none."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def search(prover: Prover, goals: Sequence[Goal], budget: int | Sequence[int]) -> list[SearchResult]:
    return guided_search(goals, TACTICS, kernel, prover.guide, budget=budget)


def keep_verified(results: Sequence[SearchResult], proved: Proved) -> Proved:
    """`proved` with the proofs of all goals inside them, where the kernel accepts the whole. The cheaper proof of a goal stays."""
    kept = dict(proved)
    for result in results:
        if result.proof is None or not check_proof(result.goal, result.proof):
            continue
        for goal, _, proof in steps_of(result.goal, result.proof):
            if goal not in kept or proof_cost(proof) < proof_cost(kept[goal]):
                kept[goal] = proof
    return kept


def demonstrations(proved: Proved) -> Batch:
    """(goal, first tactic, cost) of each proof: the tactic is to be imitated, the cost carried along for the value network."""
    rows = []
    for goal, proof in proved.items():
        tactic, cost = TACTICS.index(proof[0]), min(MAX_COST, proof_cost(proof))
        rows.append((encode_goal(goal), (FIRST_TACTIC + tactic, FIRST_COST + cost)))
    return batch_of(rows, pad_id=0)


def prover_loss(
    outputs: tuple[Float[Tensor, "batch time vocab"], Float[Tensor, "batch time"]],
    tokens: Int[Tensor, "batch time"],
    mask: Bool[Tensor, "batch time"],
) -> Float[Tensor, ""]:
    """Imitation of the tactic, and squared error of the cost, both read at the last token of the goal."""
    logits, costs = outputs
    is_cost = mask & (tokens >= FIRST_COST)
    at_goal = torch.nn.functional.pad(is_cost[:, 2:], (0, 2))  # two before the cost stands the goal's last token
    wanted = (tokens[is_cost] - FIRST_COST).to(costs.dtype)
    return sft_loss(logits, tokens, mask & ~is_cost, normalize="token") + 0.1 * (costs[at_goal] - wanted).square().mean()


def train(prover: Prover, proved: Proved, *, steps: int, seed: int, lr: float = 2e-3, batch_size: int = 64) -> ProofCompute:
    """Supervised training of these weights on verified proofs; the tokens that went through it."""
    data = demonstrations(proved)
    mean_length = float(data.attention_mask.sum(1).float().mean())
    for _ in sft(prover, data, loss=prover_loss, steps=steps, lr=lr, batch_size=batch_size, seed=seed):
        pass
    return ProofCompute(trained_tokens=round(steps * batch_size * mean_length))


@dataclass(frozen=True)
class Round:
    """One turn of the loop. Held-out problems are searched at the same budget each time and are never trained on."""

    round: int
    solved: float  # share of the training problems proved in this round
    held_out: float  # share of the held-out problems
    mean_calls: float  # kernel calls per held-out problem, solved or not
    valid_share: float  # probability that the policy gives to tactics that apply, at held-out goals
    examples: int  # (goal, tactic) pairs that the next training may use
    compute: ProofCompute  # searching the training problems and training, not the measurement


def alphaproof(
    prover: Prover, training: Sequence[Goal], held_out: Sequence[Goal], *, rounds: int, budget: int, steps: int, seed: int
) -> Iterator[tuple[Round, Proved]]:
    """Search the training problems, keep verified proofs, train, again. Yields before each training, and once after the last."""
    proved: Proved = {}
    for turn in range(rounds + 1):
        results = search(prover, training, budget)
        proved = keep_verified(results, proved)
        spent = sum((r.compute for r in results), ProofCompute())
        measured = search(prover, held_out, budget)
        share = sum(r.proof is not None for r in results) / len(results)
        held = sum(r.proof is not None for r in measured) / len(measured)
        calls = sum(r.compute.kernel_calls for r in measured) / len(measured)
        valid = valid_share(prover, held_out)
        if turn < rounds:
            spent = spent + train(prover, proved, steps=steps, seed=seed * 1000 + turn)
        yield Round(turn, share, held, calls, valid, len(proved), spent), proved


def valid_share(prover: Prover, goals: Sequence[Goal]) -> float:
    priors, _, _ = prover.guide(goals)
    return sum(p for goal, row in zip(goals, priors) for t, p in zip(TACTICS, row) if kernel(goal, t) is not None) / len(goals)
