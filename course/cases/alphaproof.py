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
    ATOMS, FALSUM, FIRST_COST, FIRST_TACTIC, MAX_COST, MAX_HYPOTHESES, TACTICS, VOCAB_SIZE, Goal, check_proof, encode_goal, kernel, problems,
    parts, steps_of, truth,
)  # fmt: skip
from course.models.decoder import DecoderConfig
from course.objectives.supervised import sft_loss
from course.search.proofs import ProofCompute, Prover, SearchResult, guided_search, proof_cost, solve
from course.tasks.records import Batch, batch_of
from course.training.sft import sft

Proved = dict[Goal, tuple]  # goal -> proof: verified, the cheapest seen


def new_prover(seed: int) -> Prover:
    config = DecoderConfig(vocab_size=VOCAB_SIZE, layers=2, width=48, heads=2, max_length=96)
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


def renamed(goal: Goal, names: Sequence[str]) -> Goal:
    """The goal with its atoms renamed. Its proofs are the same tactics."""
    table = str.maketrans(ATOMS, "".join(names))
    return Goal(tuple(h.translate(table) for h in goal.hypotheses), goal.target.translate(table))


def demonstrations(proved: Proved, seed: int, copies: int = 4) -> Batch:
    """(goal, first tactic, cost) of each proof, under several namings of the atoms: names carry no meaning.

    The tactic is to be imitated, the cost is carried along for the value network.
    """
    draw, rows = random.Random(seed), []
    for goal, proof in proved.items():
        answer = (FIRST_TACTIC + TACTICS.index(proof[0]), FIRST_COST + min(MAX_COST, proof_cost(proof)))
        rows += [(encode_goal(renamed(goal, draw.sample(ATOMS, len(ATOMS)))), answer) for _ in range(copies)]
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


def train(prover: Prover, proved: Proved, *, steps: int, seed: int, lr: float = 5e-3, batch_size: int = 32) -> ProofCompute:
    """Supervised training of these weights on verified proofs; the tokens that went through it."""
    data = demonstrations(proved, seed)
    mean_length = float(data.attention_mask.sum(1).float().mean())
    for _ in sft(prover, data, loss=prover_loss, steps=steps, lr=lr, batch_size=batch_size, seed=seed):
        pass
    return ProofCompute(trained_tokens=round(steps * batch_size * mean_length))


def library(n: int, seed: int, *, bound: int = 4) -> Proved:
    """Proofs of easy goals, and of all goals inside them, by exhaustive search: what stands for proofs that people have written."""
    proved: Proved = {}
    for goal in problems(n, seed, hypotheses=(2, 3)):
        proof = solve(goal, lambda _: TACTICS, kernel, bound)
        proved |= {g: p for g, _, p in steps_of(goal, proof)} if proof else {}
    return proved


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
    prover: Prover, written: Proved, training: Sequence[Goal], held_out: Sequence[Goal],
    *, rounds: int, budget: int, steps: int, seed: int, feed_back: bool = True,
) -> Iterator[tuple[Round, Proved]]:  # fmt: skip
    """Search the training problems, keep verified proofs, train, again. Yields once before each training, and after the last.

    feed_back=False is the control: the same training steps, on the written proofs alone.
    """
    proved = dict(written)
    for turn in range(rounds + 1):
        results = search(prover, training, budget)
        if feed_back:
            proved = keep_verified(results, proved)
        measured = search(prover, held_out, budget)
        valid = valid_share(prover, held_out)
        spent = sum((r.compute for r in results), ProofCompute())
        if turn < rounds:
            spent = spent + train(prover, proved, steps=steps, seed=seed * 1000 + turn)
        calls = sum(r.compute.kernel_calls for r in measured) / len(measured)
        yield Round(turn, solved_share(results), solved_share(measured), calls, valid, len(proved), spent), proved


@dataclass(frozen=True)
class Fed:
    """One seed of the comparison: share of held-out problems proved after imitation, by the loop, and by its control."""

    seed: int
    start: float
    loop: float
    control: float


ROUNDS, BUDGET, STEPS, WRITTEN, PROBLEMS, IMITATION = 3, 32, 120, 20, 360, 300


def fed_back(seed: int) -> Fed:
    """Feed verified proofs back, or train as many steps on the written ones: problems, weights and written proofs of this seed."""
    written = library(WRITTEN, seed=seed + 7)
    drawn = problems(PROBLEMS, seed, hypotheses=(3, 5))
    training, held_out = drawn[: -len(drawn) // 3], drawn[-len(drawn) // 3 :]
    ended = {}
    for feed_back in (True, False):
        prover = new_prover(seed)
        train(prover, written, steps=IMITATION, seed=seed)
        loop = alphaproof(
            prover, written, training if feed_back else training[:1], held_out, rounds=ROUNDS, budget=BUDGET, steps=STEPS, seed=seed,
            feed_back=feed_back,
        )  # fmt: skip
        rows = [row for row, _ in loop]
        ended[feed_back] = rows[-1].held_out
    return Fed(seed, rows[0].held_out, ended[True], ended[False])


def solved_share(results: Sequence[SearchResult]) -> float:
    """Proofs that the kernel accepts, as a share of the problems. What a search claims is checked once more here."""
    return sum(r.proof is not None and check_proof(r.goal, r.proof) for r in results) / len(results)


def valid_share(prover: Prover, goals: Sequence[Goal]) -> float:
    priors, _, _ = prover.guide(goals)
    return sum(p for goal, row in zip(goals, priors) for t, p in zip(TACTICS, row) if kernel(goal, t) is not None) / len(goals)


# ---------------------------------------------------------------- test-time RL


def variants(target: Goal, n: int, seed: int) -> list[Goal]:
    """n different goals near the target: a hypothesis dropped, a formula replaced by a part of it, two atoms exchanged, or two of these.

    Nobody has said that they are true: those that the search proves are the ones to learn from. The target itself is never among them.
    """
    draw, found = random.Random(seed), {}
    for _ in range(200 * n):
        goal = target
        for _ in range(draw.randint(1, 2)):
            goal = _changed(goal, draw)
        if goal != target and goal.target not in goal.hypotheses:
            found[goal] = None
        if len(found) == n:
            break
    return list(found)


def _changed(goal: Goal, draw: random.Random) -> Goal:
    given, target = list(goal.hypotheses), goal.target
    kind = draw.choice(("drop", "simpler", "simpler", "exchange", "ask", "assume"))
    if kind == "ask":  # another target: a part of what stands in the goal
        target = draw.choice(parts_within([*given, target]))
    elif kind == "assume" and len(given) < MAX_HYPOTHESES:
        given.append(draw.choice(parts_within([*given, target])))
    elif given:
        place = draw.randrange(len(given))
        if kind == "drop":
            del given[place]
        elif kind == "simpler":
            given[place] = draw.choice(parts_within([given[place]]))
        elif kind == "exchange":
            a, b = draw.sample(ATOMS, 2)
            given[place] = given[place].translate(str.maketrans(a + b, b + a))
    return Goal(tuple(dict.fromkeys(given)), target)


def parts_within(formulas: Sequence[str]) -> list[str]:
    """All different subformulas but falsum, in the order met."""
    found, waiting = {}, list(formulas)
    while waiting:
        formula = waiting.pop()
        found[formula] = None
        waiting.extend(parts(formula)[1:])
    return [f for f in found if f != FALSUM]


@dataclass(frozen=True)
class Adaptation:
    """One target attacked by an adapted copy, and by the base with the same last search and with the same compute in all."""

    target: Goal
    short: SearchResult  # the base with the budget of the adapted copy's last search
    plain: SearchResult
    adapted: SearchResult
    plain_compute: ProofCompute
    adapted_compute: ProofCompute  # variants searched, training, and the last search
    variants_proved: int
    base_before: str  # fingerprints
    base_after: str
    adapted_weights: str


def adapt_to(
    base: Prover, target: Goal, written: Proved, *, variants_n: int, variant_budget: int, steps: int, final_budget: int, seed: int
) -> Adaptation:
    """Prove variants of the target, train a copy of the weights on their verified proofs, then search for the target itself.

    Plain search gets what that cost in tokens of a forward pass (ProofCompute.total) as well. `written`: older proofs that are rehearsed.
    """
    before = fingerprint(base)
    copied = copy.deepcopy(base)
    results = search(copied, variants(target, variants_n, seed), variant_budget)
    proved = keep_verified(results, {})
    spent = sum((r.compute for r in results), ProofCompute())
    # As many old proofs as new ones keep the copy from forgetting what it knew.
    old = random.Random(seed).sample(sorted(written, key=str), min(len(written), max(1, len(proved))))
    spent = spent + train(copied, proved | {g: written[g] for g in old}, steps=steps, seed=seed, lr=3e-3)
    (adapted,) = search(copied, [target], final_budget)
    spent = spent + adapted.compute
    plain = search_for(base, target, spent.total)
    (short,) = search(base, [target], final_budget)
    return Adaptation(
        target, short, plain, adapted, plain.compute, spent, sum(r.proof is not None for r in results),
        before, fingerprint(base), fingerprint(copied),
    )  # fmt: skip


def search_for(prover: Prover, target: Goal, total: int) -> SearchResult:
    """Plain search with this much compute in all, as ProofCompute.total counts it; it may go over by the last goals read."""
    (result,) = guided_search([target], TACTICS, kernel, prover.guide, budget=total, total=total)
    return result


# ---------------------------------------------------------------- from words to formulas

CLAUSES = {"it rains": "p", "the road is wet": "q", "the sun shines": "r", "the fair is on": "s", "the shop is open": "t"}
READINGS = {  # sentence -> formulas that translators have been seen to give; the first is the reference
    "if {0} then {1}": (">{0}{1}", ">{1}{0}", "|>{0}F{1}", "&{0}{1}"),
    "{0} only if {1}": (">{0}{1}", ">{1}{0}", ">>{1}F>{0}F", ">{0}&{1}{0}"),
    "{0} unless {1}": (">>{1}F{0}", "|{1}{0}", ">{1}>{0}F", ">{1}{0}"),
    "neither {0} nor {1}": ("&>{0}F>{1}F", ">|{0}{1}F", ">&{0}{1}F", "&>{1}F>{0}F"),
    "{0} but not {1}": ("&{0}>{1}F", "&>{1}F{0}", "&{0}{1}", ">{0}>{1}F"),
    "if {0} or {1} then {2}": (">|{0}{1}{2}", "&>{0}{2}>{1}{2}", "|{0}>{1}{2}", ">{0}{2}"),
    "if {0} and {1} then {2}": (">&{0}{1}{2}", ">{0}>{1}{2}", "&{0}>{1}{2}", ">{0}{2}"),
}


@dataclass(frozen=True)
class Translation:
    sentence: str
    reference: str  # an expert's formula
    candidate: str
    same_text: bool
    same_table: bool  # equal truth tables
    accepted: bool  # the kernel has a proof of each from the other


def equivalent(a: str, b: str, bound: int = 10) -> bool:
    """Whether the kernel accepts a proof of b from a and one of a from b."""
    both = (Goal((a,), b), Goal((b,), a))
    proofs = [solve(goal, lambda _: TACTICS, kernel, bound) for goal in both]
    return all(proof is not None and check_proof(goal, proof) for goal, proof in zip(both, proofs))


def translations(n: int, seed: int) -> list[Translation]:
    """n sentences of the grammar, each with a candidate drawn from all readings of its template, right or wrong."""
    draw, made = random.Random(seed), []
    for _ in range(n):
        template, readings = draw.choice(list(READINGS.items()))
        chosen = draw.sample(list(CLAUSES), 3)
        reference, candidate = (text.format(*(CLAUSES[c] for c in chosen)) for text in (readings[0], draw.choice(readings)))
        same = truth(reference) == truth(candidate)
        made.append(
            Translation(
                template.format(*chosen), reference, candidate, reference == candidate, same, equivalent(reference, candidate)
            )
        )
    return made
