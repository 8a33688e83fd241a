"""Level 3: right answers, written differently, that every check must accept."""

import functools
import itertools
import math
from collections import Counter

import torch

from autograder.framework import alternative

# ---------------------------------------------------------------- best of N


@alternative(of="best_of_n")
def best_by_argmax(candidates, scores, n):
    return candidates[int(scores[:n].argmax())]


@alternative(of="best_of_n")
def best_by_key(candidates, scores, n):
    return candidates[max(range(n), key=lambda i: scores[i].item())]


@alternative(of="best_of_n")
def best_by_sorting(candidates, scores, n):
    ranked = sorted(zip(scores.tolist()[:n], range(0, -n, -1)), reverse=True)
    return candidates[-ranked[0][1]]


@alternative(of="expected_best_of_n")
def expectation_by_whole_numbers(scores, gold, n):
    order = sorted(range(len(scores)), key=lambda i: (float(scores[i]), -i))
    total = math.comb(len(order), n)
    return sum(float(gold[i]) * (math.comb(beaten, n - 1) / total) for beaten, i in enumerate(order))


@alternative(of="expected_best_of_n")
def expectation_by_log_counts(scores, gold, n):
    size = len(scores)
    ranked = gold[scores.argsort(descending=True, stable=True)]
    left = torch.arange(size - 1, n - 2, -1, dtype=torch.float64)

    def log_choose(a, b):
        return torch.lgamma(a + 1) - math.lgamma(b + 1) - torch.lgamma(a - b + 1)

    weight = log_choose(left, n - 1) - log_choose(torch.tensor(float(size), dtype=torch.float64), n)
    return (weight.exp() * ranked[: len(left)]).sum()


@alternative(of="expected_best_of_n")
def expectation_from_the_top(scores, gold, n):
    """Walk down from the best: the chance that all better ones were left out, times the chance that this one is in."""
    better_out, total, size = 1.0, 0.0, len(scores)
    for k, i in enumerate(sorted(range(size), key=lambda i: -scores[i].item())):
        inside = n / (size - k)
        total += better_out * inside * gold[i].item()
        better_out *= 1 - inside
        if size - k - 1 < n:
            break
    return torch.tensor(total, dtype=torch.float64)


def _close(got, wanted):
    assert math.isclose(float(got), float(wanted), rel_tol=1e-6, abs_tol=1e-9), f"expected {wanted}, got {got}"


@alternative(of="test_expected_best_of_n")
def compares_with_every_subset(fn):
    generator = torch.Generator().manual_seed(0)
    for trial in range(6):
        size = 2 + trial % 5
        scores = torch.randn(size, generator=generator, dtype=torch.float64)
        if trial % 2:
            scores = scores.round()
        gold = torch.randn(size, generator=generator, dtype=torch.float64)
        for n in range(1, size + 1):
            picks = [gold[max(c, key=lambda i: scores[i].item())].item() for c in itertools.combinations(range(size), n)]
            _close(fn(scores, gold, n), sum(picks) / len(picks))
    scores = torch.arange(300, dtype=torch.float64)[torch.randperm(300, generator=generator)]
    _close(fn(scores, scores, 150), sum(i * (math.comb(i, 149) / math.comb(300, 150)) for i in range(300)))


@alternative(of="test_expected_best_of_n")
def compares_with_known_values(fn):
    five = torch.tensor([3.0, 8.0, 1.0, 5.0, 2.0], dtype=torch.float64)
    _close(fn(five, five, 2), 5.5)
    _close(fn(five, -five, 2), -5.5)
    _close(fn(five, five.flip(0), 5), 5.0)
    _close(fn(five, five, 1), 3.8)
    ties, gold = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64), torch.tensor([10.0, 20.0, 40.0], dtype=torch.float64)
    _close(fn(ties, gold, 2), (10 + 10 + 20) / 3)
    for size in (200, 900):
        up = torch.arange(1, size + 1, dtype=torch.float64)  # the expected maximum of n of 1..M is n (M + 1) / (n + 1)
        for n in (2, size // 2, size):
            _close(fn(up.flip(0), up.flip(0), n), n * (size + 1) / (n + 1))


# ---------------------------------------------------------------- pass@k and the KL of best-of-N


@alternative(of="pass_at_k")
def passed_by_whole_numbers(n, c, k):
    return 1 - math.comb(n - c, k) / math.comb(n, k)


@alternative(of="pass_at_k")
def passed_by_factors(n, c, k):
    """The chance that k draws without replacement are all wrong, one factor per draw."""
    wrong = 1.0
    for i in range(k):
        wrong *= max(n - c - i, 0) / (n - i)
    return 1.0 - wrong


@alternative(of="pass_at_k")
def passed_by_a_tensor(n, c, k):
    if n - c < k:
        return torch.ones((), dtype=torch.float64)
    return 1 - (1 - k / torch.arange(n - c + 1, n + 1, dtype=torch.float64)).prod()


@alternative(of="best_of_n_kl")
def kl_by_levels(logprobs, scores, n):
    p, total, below = logprobs.exp(), 0.0, 0.0
    for level in scores.unique().tolist():
        mass = p[scores == level].sum().item()
        chance = min(below + mass, 1.0) ** n - below**n
        if chance > 0:
            total += chance * math.log(chance / mass)
        below += mass
    return total


@alternative(of="best_of_n_kl")
def kl_by_matrices(logprobs, scores, n):
    p = logprobs.exp()
    below = ((scores[None, :] < scores[:, None]) * p).sum(1)
    upto = ((scores[None, :] <= scores[:, None]) * p).sum(1).clamp(max=1.0)
    level = ((scores[None, :] == scores[:, None]) * p).sum(1)
    law = torch.where(p > 0, p * (upto**n - below**n) / level.clamp(min=1e-300), torch.zeros_like(p))
    return torch.special.xlogy(law, law / p.clamp(min=1e-300)).sum()


@alternative(of="best_of_n_kl")
def kl_in_logarithms(logprobs, scores, n):
    names, index = scores.unique(return_inverse=True)
    kept = logprobs > -math.inf
    mass = torch.zeros(len(names), dtype=torch.float64).index_add_(0, index[kept], logprobs[kept].double().exp())
    mass = mass[mass > 0]
    upto = (mass.cumsum(0) / mass.sum()).clamp(max=1.0)
    below = torch.cat([torch.zeros(1, dtype=torch.float64), upto[:-1]])
    log_chance = n * upto.log() + torch.log1p(-((below / upto) ** n))
    return (log_chance.exp() * (log_chance - mass.log())).sum()


# ---------------------------------------------------------------- consensus and steps


@alternative(of="consensus")
def consensus_by_counter(answers):
    return Counter(answers).most_common(1)[0][0]


@alternative(of="consensus")
def consensus_by_max(answers):
    return max(answers, key=answers.count)


@alternative(of="consensus")
def consensus_by_sorting(answers):
    return min(answers, key=lambda answer: (-answers.count(answer), answers.index(answer)))


@alternative(of="process_score")
def score_by_logs(step_probs, calibrate_length=False):
    logs = torch.log(step_probs)
    return torch.exp(logs.mean() if calibrate_length else logs.sum())


@alternative(of="process_score")
def score_by_loop(step_probs, calibrate_length=False):
    total = 0.0
    for p in step_probs.tolist():
        if p == 0:
            return 0.0
        total += math.log(p)
    return math.exp(total / len(step_probs) if calibrate_length else total)


@alternative(of="process_score")
def score_by_roots(step_probs, calibrate_length=False):
    """Each step's own root first, so that nothing underflows."""
    return (step_probs ** (1 / len(step_probs)) if calibrate_length else step_probs).prod()


# ---------------------------------------------------------------- proofs


@alternative(of="solve")
def by_deepening(goal, tactics, kernel, budget):
    """Allow cost 1, then 2, and so on; a proof of a goal is looked for at its own least cost."""

    @functools.cache
    def within(goal, cost):
        for limit in range(1, cost + 1):
            for tactic in tactics(goal):
                subgoals = kernel(goal, tactic)
                if subgoals is None:
                    continue
                parts = [within(s, limit - 1) for s in subgoals]
                if all(part is not None for part in parts):
                    return (tactic, tuple(parts))
        return None

    return within(goal, budget)


@alternative(of="solve")
def from_the_leaves(goal, tactics, kernel, budget):
    """Collect every goal within reach, then let proofs grow from those that close at once."""
    found, frontier = {goal}, [goal]
    moves = {}
    for _ in range(budget):
        coming = []
        for g in frontier:
            moves[g] = [(t, tuple(s)) for t in tactics(g) if (s := kernel(g, t)) is not None]
            coming += [x for _, s in moves[g] for x in s]
        frontier = [g for g in dict.fromkeys(coming) if g not in found]
        found.update(frontier)
    proofs = {}
    for _ in range(budget):
        new = {}
        for g, options in moves.items():
            if g not in proofs:
                for tactic, subgoals in options:
                    if all(s in proofs for s in subgoals):
                        new[g] = (tactic, tuple(proofs[s] for s in subgoals))
                        break
        proofs.update(new)
    return proofs.get(goal)


@alternative(of="solve")
def by_plain_recursion(goal, tactics, kernel, budget):
    def best(goal, budget):
        cost, proof = budget + 1, None
        for tactic in tactics(goal) if budget > 0 else []:
            subgoals = kernel(goal, tactic)
            if subgoals is None:
                continue
            parts, hardest = [], 0
            for subgoal in subgoals:
                part_cost, part = best(subgoal, budget - 1)
                if part is None:
                    break
                parts.append(part)
                hardest = max(hardest, part_cost)
            else:
                if 1 + hardest < cost:
                    cost, proof = 1 + hardest, (tactic, tuple(parts))
        return cost, proof

    return best(goal, budget)[1]


# ---------------------------------------------------------------- the frontier


@alternative(of="pareto_front")
def front_by_comparison(points):
    cost, quality = points[:, 0], points[:, 1]
    no_worse = (cost[:, None] <= cost[None, :]) & (quality[:, None] >= quality[None, :])
    better = (cost[:, None] < cost[None, :]) | (quality[:, None] > quality[None, :])
    return (~(no_worse & better).any(0)).nonzero().flatten()


@alternative(of="pareto_front")
def front_by_sweep(points):
    rows = points.tolist()
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1]))
    kept, best, at = [], -math.inf, None
    for i in order:
        if rows[i][1] > best:
            best, at = rows[i][1], rows[i][0]
            kept.append(i)
        elif rows[i][1] == best and rows[i][0] == at:
            kept.append(i)
    return sorted(kept)


@alternative(of="pareto_front")
def front_by_loop(points):
    front = []
    for i, (cost, quality) in enumerate(points.tolist()):
        beaten = [c <= cost and q >= quality and (c, q) != (cost, quality) for c, q in points.tolist()]
        if not any(beaten):
            front.append(i)
    return torch.tensor(front)


T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def _interval(by_seed):
    if len(by_seed) < 2:
        return math.nan, math.nan
    half = T95[len(by_seed) - 1] * by_seed.std() / math.sqrt(len(by_seed))
    return by_seed.mean() - half, by_seed.mean() + half


@alternative(of="frontier_table")
def table_in_tensors(pool, ppo, sizes=(1, 4, 16, 64)):
    rows = []
    for n in sizes:
        chosen = pool["score"][..., :n].argmax(-1, keepdim=True)
        picked = {k: pool[k].gather(-1, chosen)[..., 0] for k in ("score", "gold", "response")}
        tokens = pool["tokens"][..., :n].double()
        sampled = tokens.sum((1, 2)).mean()
        costs = (sampled, torch.zeros(()), sampled if n > 1 else torch.zeros(()))
        rows.append((f"best-of-{n}", n, costs, tokens.amax(-1).mean(), picked))
    sampled = ppo["sampled"].double() + ppo["tokens"].sum(1)
    rows.append(("ppo", 1, (sampled.mean(), ppo["trained"].double().mean(), ppo["judged"].double().mean()),
                 ppo["tokens"].double().mean(), ppo))  # fmt: skip
    table = []
    for method, n, costs, latency, picked in rows:
        low, high = _interval(picked["gold"].mean(1))
        different = [len(row.unique()) / len(row) for row in picked["response"]]
        table.append({
            "method": method, "n": n, "sampled": costs[0], "trained": costs[1], "judged": costs[2], "total": sum(costs),
            "latency": latency, "score": picked["score"].mean(), "gold": picked["gold"].mean(), "gold_low": low,
            "gold_high": high, "diversity": sum(different) / len(different),
        })  # fmt: skip
    front = set(front_by_sweep(torch.tensor([[row["total"], row["gold"]] for row in table], dtype=torch.float64)))
    return [dict(row, front=i in front) for i, row in enumerate(table)]


def _row(method, n, counted, waits, picked):
    """counted: (sampled, trained, judged) of each seed; waits: tokens of each seed and prompt; picked: the chosen of each seed."""
    averages = [sum(column) / len(column) for column in zip(*counted)]
    golds = torch.tensor([sum(p["gold"]) / len(p["gold"]) for p in picked], dtype=torch.float64)
    low, high = _interval(golds)
    flat = [w for row in waits for w in row]
    shares = [len(set(p["response"])) / len(p["response"]) for p in picked]
    scores = [s for p in picked for s in p["score"]]
    return {
        "method": method, "n": n, "sampled": averages[0], "trained": averages[1], "judged": averages[2], "total": sum(averages),
        "latency": sum(flat) / len(flat), "score": sum(scores) / len(scores), "gold": float(golds.mean()),
        "gold_low": float(low), "gold_high": float(high), "diversity": sum(shares) / len(shares),
    }  # fmt: skip


@alternative(of="frontier_table")
def table_seed_by_seed(pool, ppo, sizes=(1, 4, 16, 64)):
    seeds, prompts = ppo["score"].shape
    table = []
    for n in sizes:
        counted, waits, picked = [], [], []
        for s in range(seeds):
            tokens = pool["tokens"][s, :, :n].tolist()
            best = [max(range(n), key=lambda i: pool["score"][s, p, i].item()) for p in range(prompts)]
            picked.append({k: [pool[k][s, p, i].item() for p, i in enumerate(best)] for k in ("score", "gold", "response")})
            used = sum(sum(row) for row in tokens)
            counted.append((used, 0, used if n > 1 else 0))
            waits.append([max(row) for row in tokens])
        table.append(_row(f"best-of-{n}", n, counted, waits, picked))
    counted = [
        (int(ppo["sampled"][s]) + int(ppo["tokens"][s].sum()), int(ppo["trained"][s]), int(ppo["judged"][s]))
        for s in range(seeds)
    ]
    picked = [{k: ppo[k][s].tolist() for k in ("score", "gold", "response")} for s in range(seeds)]
    table.append(_row("ppo", 1, counted, ppo["tokens"].tolist(), picked))
    for row in table:
        others = [o for o in table if (o["total"], o["gold"]) != (row["total"], row["gold"])]
        row["front"] = not any(o["total"] <= row["total"] and o["gold"] >= row["gold"] for o in others)
    return table
