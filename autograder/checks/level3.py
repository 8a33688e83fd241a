"""Level 3, selection versus optimisation: what a right answer must do. Expected values come from enumeration and plain loops."""

import itertools
import math

import torch

from autograder.framework import CheckFailed, Exercise, expect, expect_verdicts, invariant
from autograder.inside.codec import Candidate

EXERCISES = (
    Exercise("best_of_n", "3.1", "The best of N", 10, 1, ("first_best", "rerank", "select_by_process")),
    Exercise("expected_best_of_n", "3.2", "What best-of-N is worth", 30, 3),
    Exercise("test_expected_best_of_n", "3.3", "Bug hunt: a biased estimate", 25, 3),
    Exercise("pass_at_k", "3.4", "At least one of k", 15, 2),
    Exercise("best_of_n_kl", "3.5", "How far selection moves a law", 25, 3, ("best_of_n_logprobs",)),
    Exercise("consensus", "3.6", "What most samples say", 10, 1, ("mode", "multimode", "three_budgets")),
    Exercise("process_score", "3.7", "A score made of steps", 10, 1, ("geometric_mean", "gmean", "process_log_score")),
    Exercise("solve", "3.8", "A proof is an AND-OR tree", 45, 4, ("guided_search", "_first_proof", "_Tree")),
    Exercise("pareto_front", "3.9", "What no other point beats", 15, 2),
    Exercise("frontier_table", "3.10", "Exit: the whole frontier", 50, 5, ("_row",)),
)


# ---------------------------------------------------------------- slow twins: numbers, not tensors


def scalar(x):
    return torch.tensor(x, dtype=torch.float64)


def mean(numbers):
    numbers = list(numbers)
    return math.fsum(numbers) / len(numbers)


def first_best(scores):
    """Position of the highest score; a later one must be higher to win."""
    best = 0
    for i, score in enumerate(scores):
        if score > scores[best]:
            best = i
    return best


def distinct(draw, n):
    """Scores without ties, in random order, not evenly spaced."""
    return (draw.permutation(n).double() + draw.uniform(n, low=0.1, high=0.9)) / n - 0.4


def mean_over_subsets(scores, gold, n):
    """Gold of the selected one, averaged over every subset of n samples."""
    s, g = scores.tolist(), gold.tolist()
    chosen = (subset[first_best([s[i] for i in subset])] for subset in itertools.combinations(range(len(s)), n))
    return scalar(mean(g[i] for i in chosen))


def mean_by_counting(scores, gold, n):
    """The same by counting, in whole numbers: sample i is selected by as many subsets as there are choices of n - 1 that it beats."""
    s, g = scores.tolist(), gold.tolist()
    order, total = sorted(range(len(s)), key=lambda i: (s[i], -i)), math.comb(len(s), n)
    return scalar(math.fsum(g[i] * (math.comb(beaten, n - 1) / total) for beaten, i in enumerate(order)))


# ---------------------------------------------------------------- 3.1 best_of_n


@invariant("L3.01", points=1, anchor=True)
def the_best_of_the_first_n_rows(best_of_n, draw):
    """Of the first n rows of a tensor of candidates, the one with the highest score."""
    candidates, scores = draw.normal(9, 3), distinct(draw, 9)
    for n in (1, 4, 9):
        wanted = candidates[first_best(scores[:n].tolist())]
        expect(best_of_n(candidates, scores, n), f"the best of the first {n}").close_to(wanted)


@invariant("L3.01", points=1)
def a_candidate_may_be_anything(best_of_n, draw):
    """Texts and tuples come back as they are: the candidate, not its position and not its score."""
    for made in (lambda i: f"answer {i}", lambda i: (i, f"step {i}")):
        candidates, scores = [made(i) for i in draw.permutation(7).tolist()], distinct(draw, 7)
        for n in (3, 7):
            expect(best_of_n(candidates, scores, n), f"the best of the first {n}").equals(
                candidates[first_best(scores[:n].tolist())]
            )


@invariant("L3.01", points=1)
def a_tie_goes_to_the_first(best_of_n, draw):
    """Of several candidates with the highest score, the first is taken."""
    for _ in range(4):
        scores = draw.integers(0, 3, 8).double()
        candidates = [f"answer {i}" for i in range(8)]
        got = best_of_n(candidates, scores, 8)
        expect(got, f"the best of scores {scores.tolist()}").equals(candidates[first_best(scores.tolist())])


# ---------------------------------------------------------------- 3.2 expected_best_of_n


@invariant("L3.01", points=1, anchor=True)
def the_mean_over_all_subsets(expected_best_of_n, draw):
    """The mean gold of the sample that the score selects, over every subset of n samples of M."""
    scores, gold = distinct(draw, 7), draw.normal(7, scale=2)
    for n in (2, 3, 5):
        wanted = mean_over_subsets(scores, gold, n)
        expect(expected_best_of_n(scores, gold, n), f"the expected gold of best of {n}").close_to(wanted)


@invariant("L3.01", points=1)
def five_and_a_half(expected_best_of_n, draw):
    """1, 2, 3, 5, 8 in any order: best of 2 is worth 5.5, best of 1 the mean 3.8, best of 5 the maximum 8."""
    scores = scalar([1.0, 2.0, 3.0, 5.0, 8.0])[draw.permutation(5)]
    for n, wanted in ((2, 5.5), (1, 3.8), (5, 8.0)):
        expect(expected_best_of_n(scores, scores, n), f"the expected maximum of {n}").close_to(scalar(wanted))


@invariant("L3.01", points=1)
def the_score_rises_and_gold_may_fall(expected_best_of_n, draw):
    """Measured by the selecting score, more samples are never worse; measured by gold they can be."""
    order = draw.permutation(8)
    scores = (torch.arange(8).double() + draw.uniform(8, high=0.5))[order]
    gold = (scalar([0.0, 1.0, 2.0, 3.0, 4.0, 3.0, 1.0, -6.0]) + draw.uniform(8, high=0.2))[order]
    by_score, by_gold = [], []
    for n in range(1, 9):
        by_score.append(torch.as_tensor(expected_best_of_n(scores, scores, n)).double())
        by_gold.append(torch.as_tensor(expected_best_of_n(scores, gold, n)).double())
    wanted = [mean_over_subsets(scores, gold, n) for n in range(1, 9)]
    expect(torch.stack(by_score).diff(), "the selecting score gained by each further sample").at_least(1e-9)
    expect(torch.stack(by_gold), "the expected gold of best of 1 to 8").close_to(torch.stack(wanted))
    expect(by_gold[7] - by_gold[2], "gold of best of 8 minus gold of best of 3").at_most(-1.0)


@invariant("L3.01", points=1)
def tied_scores_in_a_subset(expected_best_of_n, draw):
    """Where scores are equal the first in order is selected, in every subset; with n = M that is plain best-of-n."""
    for _ in range(3):
        scores, gold = draw.integers(0, 3, 7).double(), draw.normal(7, scale=2)
        for n in (2, 4, 7):
            wanted = mean_over_subsets(scores, gold, n)
            expect(expected_best_of_n(scores, gold, n), f"the expected gold of best of {n}").close_to(wanted)


# ---------------------------------------------------------------- 3.3 test_expected_best_of_n
# The functions that a student's test is given. Each is self-contained, because only its source travels.


def by_counting(scores, gold, n):
    values, golds = scores.tolist(), gold.tolist()
    order = sorted(range(len(values)), key=lambda i: (values[i], -i))
    count, total, terms = 1, math.comb(len(values), n), []
    for beaten in range(n - 1, len(values)):
        terms.append(golds[order[beaten]] * (count / total))
        count = count * (beaten + 1) // (beaten + 2 - n)
    return torch.tensor(math.fsum(terms), dtype=torch.float64)


def by_ratios(scores, gold, n):
    order = torch.sort(scores, descending=True, stable=True).indices
    size, golds = len(scores), gold.tolist()
    chance, total = n / size, 0.0
    for k, i in enumerate(order.tolist()):
        total = total + chance * golds[i]
        left = size - 1 - k
        if left < n:
            break
        chance = chance * (left - n + 1) / left
    return torch.tensor(total, dtype=torch.float64)


def by_log_counts(scores, gold, n):
    place = (scores[:, None] > scores[None, :]) | (
        (scores[:, None] == scores[None, :]) & (torch.arange(len(scores))[:, None] < torch.arange(len(scores))[None, :])
    )
    beaten = place.sum(1).double()
    size = torch.tensor(float(len(scores)), dtype=torch.float64)
    some = beaten >= n - 1
    k = torch.where(some, beaten, torch.full_like(beaten, n - 1.0))
    log_count = torch.lgamma(k + 1) - math.lgamma(n) - torch.lgamma(k - n + 2)
    log_total = torch.lgamma(size + 1) - math.lgamma(n + 1) - torch.lgamma(size - n + 1)
    return (torch.where(some, (log_count - log_total).exp(), torch.zeros_like(k)) * gold.double()).sum()


RIGHT = (by_counting, by_ratios, by_log_counts)


def always_zero(scores, gold, n):
    return torch.zeros((), dtype=torch.float64)


def one_prefix_only(scores, gold, n):
    return gold[:n][scores[:n].argmax()].double()


def draws_with_replacement(scores, gold, n):
    order = scores.argsort(stable=True)
    rank = torch.arange(1, len(scores) + 1, dtype=torch.float64) / len(scores)
    chance = rank**n - (rank - 1 / len(scores)) ** n
    return (chance * gold[order].double()).sum()


def selects_by_gold(scores, gold, n):
    values = sorted(gold.tolist())
    total = math.comb(len(values), n)
    return torch.tensor(sum(v * (math.comb(k, n - 1) / total) for k, v in enumerate(values)), dtype=torch.float64)


@invariant("L3.01", points=1, anchor=True)
def the_test_accepts_every_right_estimate(test_expected_best_of_n, draw):
    """Right functions, written in different ways, pass your test; one that always says 0 does not."""
    expect_verdicts(test_expected_best_of_n, draw, RIGHT, [always_zero])


@invariant("L3.01", points=1)
def the_test_finds_a_single_subset(test_expected_best_of_n, draw):
    """Your test finds the function that looks at the first n samples only: right on average, wrong on every pool."""
    expect_verdicts(test_expected_best_of_n, draw, RIGHT[:2], [one_prefix_only])


@invariant("L3.01", points=1)
def the_test_finds_draws_with_replacement(test_expected_best_of_n, draw):
    """Your test finds the function that may draw one sample several times: its estimate is biased."""
    expect_verdicts(test_expected_best_of_n, draw, RIGHT[1:], [draws_with_replacement])


@invariant("L3.01", points=1)
def the_test_finds_selection_by_gold(test_expected_best_of_n, draw):
    """Your test finds the function that selects by gold and never looks at the scores."""
    expect_verdicts(test_expected_best_of_n, draw, RIGHT[:2], [selects_by_gold])


# ---------------------------------------------------------------- 3.4 pass_at_k


def passed_by_enumeration(n, c, k):
    """Of all choices of k from n samples of which the first c are right, the share with a right one."""
    choices = list(itertools.combinations(range(n), k))
    return scalar(mean(float(min(choice) < c) for choice in choices))


def passed(n, c, k):
    return scalar((math.comb(n, k) - math.comb(n - c, k)) / math.comb(n, k))


@invariant("L3.02", points=1, anchor=True)
def pass_at_k_equals_brute_force(pass_at_k, draw):
    """The share, over all choices of k of n samples, of those with at least one right sample."""
    for _ in range(6):
        n = draw.number(4, 9)
        c, k = draw.number(1, n - 1), draw.number(1, n)
        expect(pass_at_k(n, c, k), f"pass@{k} with {c} right of {n}").close_to(passed_by_enumeration(n, c, k))


@invariant("L3.02", points=1)
def three_right_of_ten(pass_at_k, draw):
    """3 right of 10: pass@5 is 11/12, not 1 - 0.7^5; 1 right of 5: pass@2 is 0.4."""
    expect(pass_at_k(10, 3, 5), "pass@5 with 3 right of 10").close_to(scalar(11 / 12))
    expect(pass_at_k(5, 1, 2), "pass@2 with 1 right of 5").close_to(scalar(0.4))


@invariant("L3.02", points=1)
def all_or_nothing(pass_at_k, draw):
    """With no right sample the estimate is exactly 0; with fewer than k wrong ones it is exactly 1."""
    for _ in range(3):
        n = draw.number(5, 12)
        k = draw.number(2, n)
        expect(pass_at_k(n, 0, k), f"pass@{k} with 0 right of {n}").equals(0.0)
        expect(pass_at_k(n, n - k + 1, k), f"pass@{k} with {k - 1} wrong of {n}").equals(1.0)
        expect(pass_at_k(n, n, k), f"pass@{k} with all of {n} right").equals(1.0)


# ---------------------------------------------------------------- 3.5 best_of_n_kl


def kl_by_enumeration(logprobs, scores, n):
    """Every sequence of n draws with its probability; the first best of it is what best-of-n answers."""
    p, s = [math.exp(x) for x in logprobs.tolist()], scores.tolist()
    law = [0.0] * len(p)
    for drawn in itertools.product(range(len(p)), repeat=n):
        law[drawn[first_best([s[y] for y in drawn])]] += math.prod(p[y] for y in drawn)
    return scalar(math.fsum(q * math.log(q / a) for q, a in zip(law, p) if q > 0))


def kl_by_levels(logprobs, scores, n):
    """The same for long draws: the best score is at most s with probability P(score <= s)^n."""
    mass = {}
    for x, s in zip(logprobs.tolist(), scores.tolist()):
        mass[s] = mass.get(s, 0.0) + math.exp(x)
    total, below, terms = math.fsum(mass.values()), 0.0, []
    for level in sorted(mass):
        upto = min(below + mass[level] / total, 1.0)
        chance = upto**n - below**n
        if chance > 0:
            terms.append(chance * math.log(chance / (mass[level] / total)))
        below = upto
    return scalar(math.fsum(terms))


def bound(n):
    return math.log(n) - (n - 1) / n


@invariant("L3.03", points=1, anchor=True)
def the_kl_of_every_draw(best_of_n_kl, draw):
    """The exact KL of best-of-n from the policy, as when every sequence of n draws is enumerated."""
    logprobs, scores = draw.normal(5).log_softmax(-1), distinct(draw, 5)
    for n in (2, 3, 4):
        expect(best_of_n_kl(logprobs, scores, n), f"the KL of best of {n}").close_to(kl_by_enumeration(logprobs, scores, n))


@invariant("L3.03", points=1)
def two_outcomes_at_sixteen(best_of_n_kl, draw):
    """Two equally likely outcomes, N = 16: exactly 0.693, where log N - (N-1)/N says 1.835; ten outcomes, N = 4: 0.6288."""
    cases = ((2, 16, 0.6929630), (2, 2, 0.1308120), (2, 4, 0.4593560), (10, 4, 0.6288250))
    for outcomes, n, wanted in cases:
        logprobs, scores = torch.full((outcomes,), -math.log(outcomes), dtype=torch.float64), distinct(draw, outcomes)
        got = best_of_n_kl(logprobs, scores, n)
        expect(got, f"the KL of best of {n} of {outcomes} equally likely outcomes").close_to(scalar(wanted), rtol=1e-5)
        expect(got, f"the KL of best of {n}, against its bound").at_most(bound(n) - 1e-4)
    expect(scalar(bound(16)), "log 16 - 15/16").close_to(scalar(1.8350887), rtol=1e-6)


@invariant("L3.03", points=1)
def equal_scores_share_as_the_policy_does(best_of_n_kl, draw):
    """Outcomes of one score share its probability as the policy does; where all scores are equal nothing moves."""
    logprobs = draw.normal(5).log_softmax(-1)
    scores = scalar([1.0, 2.0, 2.0, 3.0, 3.0])[draw.permutation(5)]
    for n in (2, 4):
        expect(best_of_n_kl(logprobs, scores, n), f"the KL of best of {n}").close_to(kl_by_enumeration(logprobs, scores, n))
    same = torch.as_tensor(best_of_n_kl(logprobs, torch.full((5,), 0.7, dtype=torch.float64), 8))
    expect(1 + same, "1 + the KL where all scores are equal").close_to(scalar(1.0), rtol=1e-9)
    one = torch.as_tensor(best_of_n_kl(logprobs, scores, 1))
    expect(1 + one, "1 + the KL of best of 1").close_to(scalar(1.0), rtol=1e-9)


# ---------------------------------------------------------------- 3.6 consensus


def most_frequent(answers):
    counts = {}
    for answer in answers:
        counts[answer] = counts.get(answer, 0) + 1
    return next(answer for answer in counts if counts[answer] == max(counts.values()))


def votes(draw, counts, names):
    """A shuffled list with the given count of each name."""
    return draw.shuffled([name for name, count in zip(names, counts) for _ in range(count)])


@invariant("L3.06", points=1, anchor=True)
def the_most_frequent_answer(consensus, draw):
    """The answer that most samples give, wherever they stand."""
    for _ in range(4):
        names = draw.shuffled(["12", "7", "35", "-4", "0"])
        answers = votes(draw, (5, 4, 3, 2, 1), names)
        expect(consensus(answers), f"the consensus of {answers}").equals(names[0])


@invariant("L3.06", points=1)
def a_tied_vote_goes_to_the_first_seen(consensus, draw):
    """Of answers that are equally frequent, the one that was seen first."""
    for _ in range(4):
        answers = votes(draw, (3, 3, 3, 1), draw.shuffled(["a", "b", "c", "d"]))
        expect(consensus(answers), f"the consensus of {answers}").equals(most_frequent(answers))


@invariant("L3.06", points=1)
def a_majority_is_not_needed(consensus, draw):
    """The most frequent answer is taken with 3 of 11 votes too, and the only answer of one sample is its consensus."""
    names = draw.shuffled([f"x = {i}" for i in range(9)])
    answers = votes(draw, (3, 1, 1, 1, 1, 1, 1, 1, 1), names)
    expect(consensus(answers), f"the consensus of {answers}").equals(names[0])
    expect(consensus([names[3]]), "the consensus of one sample").equals(names[3])


# ---------------------------------------------------------------- 3.7 process_score


def product(steps):
    return scalar(math.prod(steps))


def geometric_mean(steps):
    return scalar(math.exp(mean(map(math.log, steps))))


@invariant("L3.07", points=1, anchor=True)
def a_product_and_a_geometric_mean(process_score, draw):
    """The score is the product of the step probabilities; calibrated for length, their geometric mean."""
    for steps in (1, 3, 7):
        p = draw.uniform(steps, low=0.2, high=0.99)
        expect(process_score(p), f"the score of {steps} steps").close_to(product(p.tolist()))
        calibrated = process_score(p, calibrate_length=True)
        expect(calibrated, f"the calibrated score of {steps} steps").close_to(geometric_mean(p.tolist()))


@invariant("L3.07", points=1)
def three_steps_by_hand(process_score, draw):
    """Steps 0.9, 0.8, 0.5 in any order score 0.36, calibrated 0.7114; neither the mean 0.7333 nor the weakest 0.5."""
    p = scalar([0.9, 0.8, 0.5])[draw.permutation(3)]
    expect(process_score(p), "the score").close_to(scalar(0.36))
    expect(process_score(p, calibrate_length=False), "the score").close_to(scalar(0.36))
    expect(process_score(p, calibrate_length=True), "the calibrated score").close_to(scalar(0.7113786609))


@invariant("L3.07", points=1)
def one_more_step(process_score, draw):
    """Every further uncertain step lowers the score; a step as likely as the others together leaves the calibrated one as it is."""
    p = draw.uniform(6, low=0.4, high=0.95)
    scores = torch.stack([torch.as_tensor(process_score(p[:k])).double() for k in range(1, 7)])
    expect(-scores.diff(), "what each further step takes off the score").at_least(1e-9)
    expect(scores, "the scores of 1 to 6 steps").close_to(torch.stack([product(p[:k].tolist()) for k in range(1, 7)]))
    typical = geometric_mean(p.tolist())
    longer = process_score(torch.cat([p, typical.repeat(draw.number(1, 5))]), calibrate_length=True)
    expect(longer, "the calibrated score after steps of equal probability").close_to(typical)
    expect(process_score(torch.cat([p, p]), calibrate_length=True), "the calibrated score of the steps twice").close_to(typical)


# ---------------------------------------------------------------- 3.8 solve


class Problem:
    """Tactics and kernel as tables. They travel as source, so that the sandbox can call them."""

    def __init__(self, tactics, kernel):
        self.table, self.results = tactics, kernel
        self.tactics = Candidate(f"TABLE = {tactics!r}\n\ndef candidate(goal):\n    return list(TABLE.get(goal, ()))\n")
        self.kernel = Candidate(f"TABLE = {kernel!r}\n\ndef candidate(goal, tactic):\n    return TABLE.get((goal, tactic))\n")

    def costs(self):
        """Goal -> cost of its cheapest proof, by letting what is proven prove more until nothing changes."""
        known, changed = {}, True
        while changed:
            changed = False
            for (goal, _), subgoals in self.results.items():
                if subgoals is not None and all(s in known for s in subgoals):
                    cost = 1 + max((known[s] for s in subgoals), default=0)
                    if cost < known.get(goal, math.inf):
                        known[goal], changed = cost, True
        return known

    def proof(self, goal):
        """The cheapest proof of a goal that has one: at each goal the first tactic that gives a cheapest one."""
        known = self.costs()

        def build(goal):
            for tactic in self.table.get(goal, ()):
                parts = self.results.get((goal, tactic))
                if parts is None or not all(s in known for s in parts):
                    continue
                if 1 + max((known[s] for s in parts), default=0) == known[goal]:
                    return (tactic, tuple(build(s) for s in parts))
            raise KeyError(goal)

        return build(goal)

    def cost_of(self, proof, goal, path="the proof"):
        """The cost of a proof that the kernel accepts at every step."""
        if not isinstance(proof, (tuple, list)) or len(proof) != 2 or not isinstance(proof[1], (tuple, list)):
            raise CheckFailed(f"{path} of {goal!r}: expected (tactic, (proofs of the subgoals)), got {short(proof)}")
        tactic, parts = proof
        subgoals = self.results.get((goal, tactic)) if isinstance(tactic, (str, int)) else None
        if subgoals is None:
            raise CheckFailed(f"{path} of {goal!r}: expected a tactic that the kernel accepts, got {short(tactic)}")
        if len(parts) != len(subgoals):
            raise CheckFailed(f"{path} of {goal!r}: expected proofs of {len(subgoals)} subgoals, got {len(parts)}")
        return 1 + max((self.cost_of(part, s, "the part") for part, s in zip(parts, subgoals)), default=0)


def short(value):
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def tuples(proof):
    """A proof in tuples, whatever sequences it came in."""
    return (proof[0], tuple(tuples(part) for part in proof[1]))


def expect_cheapest(problem, answer, goal, budget):
    """None where no proof fits the budget, else any proof that the kernel accepts at the least cost."""
    cost = problem.costs().get(goal, math.inf)
    if cost > budget:
        if answer is not None:
            raise CheckFailed(f"the answer at budget {budget}: expected None, no proof costs that little, got {short(answer)}")
        return
    if answer is None:
        raise CheckFailed(f"the answer at budget {budget}: expected a proof of cost {cost}, got None")
    expect(problem.cost_of(answer, goal), "the cost of the proof").equals(cost)


def random_problem(draw, goals=9, tactics=3, invalid=0.25, forward=False):
    """Goals g0, g1, ... each with a few tactics, of which some are invalid. forward: no goal leads back to an earlier one."""
    names = [f"g{i}" for i in range(goals)]
    table, results = {}, {}
    for i, goal in enumerate(names):
        table[goal] = draw.shuffled([f"t{k}" for k in range(tactics)])
        for tactic in table[goal]:
            later = names[i + 1 :] if forward else names
            few = draw.shuffled(later)[: draw.number(1, 3)]
            closes = i >= goals - 3 and draw.number(0, 2) == 0
            valid = float(draw.uniform(1)) >= invalid
            results[goal, tactic] = (() if closes or not few else tuple(few)) if valid else None
    return Problem(table, results)


def solvable(draw, least=3, most=5, **settings):
    """A random problem whose first goal costs between `least` and `most`."""
    for _ in range(2000):
        problem = random_problem(draw, **settings)
        if least <= problem.costs().get("g0", 0) <= most:
            return problem, problem.costs()["g0"]
    raise RuntimeError("no problem of the wanted cost was drawn")


@invariant("L3.09", points=2, anchor=True)
def a_cheapest_proof_or_none(solve, draw):
    """On random problems: a proof that the kernel accepts, at the least cost; None where the budget is too small for one."""
    for _ in range(4):
        problem, cost = solvable(draw)
        for budget in (cost, cost + 1, cost - 1):
            expect_cheapest(problem, solve("g0", problem.tactics, problem.kernel, budget), "g0", budget)


@invariant("L3.09", points=1)
def an_and_costs_its_hardest_goal(solve, draw):
    """Three goals of cost 1, 2 and 3 together cost 4 and beat a chain of 5; an easy part gets its own cheapest proof too."""
    table = {"goal": ["split", "one by one"], "c0": ["trivial"]}
    results = {("goal", "one by one"): ("c3",), ("goal", "split"): tuple(draw.shuffled(["c0", "c1", "c2"]))}
    for k in (1, 2, 3):
        table[f"c{k}"] = ["step"]
        results[f"c{k}", "step"] = (f"c{k - 1}",)
    results["c0", "trivial"] = ()
    problem = Problem(table, results)
    for budget in (3, 4, 5, 6):
        answer = solve("goal", problem.tactics, problem.kernel, budget)
        expect_cheapest(problem, answer, "goal", budget)
    chain = solve("c3", problem.tactics, problem.kernel, 4)
    expect_cheapest(problem, chain, "c3", 4)
    table = {"goal": ["both"], "easy": ["scenic", "plain"], "hard": ["step"], "c1": ["step"], "c0": ["trivial"]}
    results = {("goal", "both"): tuple(draw.shuffled(["hard", "easy"])), ("easy", "scenic"): ("c0",), ("easy", "plain"): ()}
    results |= {("hard", "step"): ("c1",), ("c1", "step"): ("c0",), ("c0", "trivial"): ()}
    problem = Problem(table, results)
    answer = solve("goal", problem.tactics, problem.kernel, 5)
    expect_cheapest(problem, answer, "goal", 5)
    expect(tuples(answer), "a proof with a hard and an easy part, each proved as cheaply as it can be").equals(
        problem.proof("goal")
    )


@invariant("L3.09", points=1)
def an_invalid_tactic_costs_nothing(solve, draw):
    """Tactics that the kernel refuses, however many come first, neither cost anything nor prove anything."""
    bad = [f"bad{k}" for k in range(draw.number(2, 6))]
    table = {"a": [*bad, "cut"], "b": [*bad, "cut"], "c": [*bad, "close", "bad9"], "d": bad}
    results = {("a", "cut"): ("b", "c"), ("b", "cut"): ("c",), ("c", "close"): ()}
    results |= {(goal, tactic): None for goal in table for tactic in [*bad, "bad9"]}
    problem = Problem(table, results)
    for goal, budget in (("c", 1), ("b", 2), ("a", 4), ("a", 3), ("a", 2), ("d", 6)):
        expect_cheapest(problem, solve(goal, problem.tactics, problem.kernel, budget), goal, budget)


@invariant("L3.09", points=1)
def an_and_needs_all_its_goals(solve, draw):
    """A tactic one of whose subgoals has no proof proves nothing, wherever that subgoal stands."""
    subgoals = draw.shuffled(["easy", "easy too", "hopeless"])
    table = {"goal": ["split", "long way"], "easy": ["close"], "easy too": ["close"], "hopeless": ["go round"], "x": ["y"]}
    results = {
        ("goal", "split"): tuple(subgoals), ("goal", "long way"): ("x",), ("x", "y"): ("easy", "easy too"),
        ("easy", "close"): (), ("easy too", "close"): (), ("hopeless", "go round"): ("goal", "hopeless"),
    }  # fmt: skip
    problem = Problem(table, results)
    for goal, budget in (("goal", 5), ("goal", 2), ("hopeless", 6)):
        expect_cheapest(problem, solve(goal, problem.tactics, problem.kernel, budget), goal, budget)


# ---------------------------------------------------------------- 3.9 pareto_front


def not_beaten(points):
    """Positions of the points for which no other is at least as good in both columns and better in one."""
    rows = points.tolist()

    def beats(a, b):
        return a[0] <= b[0] and a[1] >= b[1] and (a[0] < b[0] or a[1] > b[1])

    return [i for i, row in enumerate(rows) if not any(beats(other, row) for other in rows)]


def expect_front(answer, points):
    index = torch.as_tensor(answer)
    if index.dim() != 1 or (len(index) and (index.is_floating_point() or index.dtype == torch.bool)):
        raise CheckFailed(f"the front: expected positions (whole numbers) in one row, got {index.dtype} {tuple(index.shape)}")
    got, wanted = index.tolist(), not_beaten(points)
    missing, extra = sorted(set(wanted) - set(got)), sorted(set(got) - set(wanted))
    if missing or extra:
        raise CheckFailed(f"the front: expected {len(wanted)} points, missing {missing[:5]}, not expected {extra[:5]}")
    if got != wanted:
        raise CheckFailed(f"the front: expected each position once and in ascending order, got {short(got)}")


@invariant("L3.11", points=1, anchor=True)
def the_front_of_random_points(pareto_front, draw):
    """The positions, ascending, of all points that no other point beats: cost down, quality up."""
    for n in (5, 12, 30):
        points = draw.normal(n, 2)
        expect_front(pareto_front(points), points)


@invariant("L3.11", points=1)
def cheap_and_poor_or_dear_and_good(pareto_front, draw):
    """Along rising cost and rising quality all stay; along rising cost and falling quality only the cheapest."""
    order = draw.permutation(6)
    up = torch.arange(6).double() + draw.uniform(6, high=0.5)
    fair = torch.stack([up, 3 * up - 7], 1)[order]
    expect_front(pareto_front(fair), fair)
    unfair = torch.stack([up, -up], 1)[order]
    expect_front(pareto_front(unfair), unfair)


@invariant("L3.11", points=1)
def equal_points_stay_together(pareto_front, draw):
    """A point does not beat its own copy; at equal cost only the best stays, at equal quality only the cheapest."""
    points = scalar([[1, 2], [1, 2], [1, 1], [2, 2], [3, 5], [3, 5], [3, 4], [4, 5], [2, 4]])[draw.permutation(9)]
    expect_front(pareto_front(points), points)
    same = scalar([[2.0, 3.0]]).repeat(4, 1)
    expect_front(pareto_front(same), same)


# ---------------------------------------------------------------- 3.10 frontier_table


T95 = (12.706204736, 4.302652730, 3.182446305, 2.776445105, 2.570581836, 2.446911851, 2.364624252, 2.306004135, 2.262157163)
COSTS = ("sampled", "trained", "judged", "total")
QUALITY = ("score", "gold")


def sample_pool(draw, seeds, prompts, samples, ties=False):
    """Scores that agree with gold in part, responses of different lengths, some of them equal texts."""
    shape = (seeds, prompts, samples)
    gold = draw.normal(*shape)
    score = gold + draw.normal(*shape)
    score = (score * 2).round() / 2 if ties else score
    return {"score": score, "gold": gold, "tokens": draw.integers(3, 20, *shape), "response": draw.integers(0, 40, *shape)}


def trained_policy(draw, seeds, prompts):
    shape = (seeds, prompts)
    return {
        "score": draw.normal(*shape) + 1, "gold": draw.normal(*shape) + 0.5,
        "tokens": draw.integers(3, 20, *shape), "response": draw.integers(0, 4, *shape),
        "sampled": draw.integers(1000, 3000, seeds), "trained": draw.integers(1000, 3000, seeds),
        "judged": draw.integers(1000, 3000, seeds),
    }  # fmt: skip


def table_twin(pool, ppo, sizes):
    """The table, one seed, one prompt and one sample at a time."""
    pool, ppo = ({k: v.tolist() for k, v in given.items()} for given in (pool, ppo))
    seeds, prompts = len(ppo["score"]), len(ppo["score"][0])
    rows = []
    for n in sizes:
        per_seed = []
        for s in range(seeds):
            tokens = [pool["tokens"][s][p][:n] for p in range(prompts)]
            chosen = [first_best(pool["score"][s][p][:n]) for p in range(prompts)]
            picked = {k: [pool[k][s][p][chosen[p]] for p in range(prompts)] for k in ("score", "gold", "response")}
            drawn = sum(map(sum, tokens))
            per_seed.append((drawn, 0, drawn if n > 1 else 0, [max(row) for row in tokens], picked))
        rows.append(row_twin(f"best-of-{n}", n, per_seed))
    final = []
    for s in range(seeds):
        picked = {k: ppo[k][s] for k in ("score", "gold", "response")}
        sampled = ppo["sampled"][s] + sum(ppo["tokens"][s])
        final.append((sampled, ppo["trained"][s], ppo["judged"][s], ppo["tokens"][s], picked))
    rows.append(row_twin("ppo", 1, final))
    front = not_beaten(scalar([[row["total"], row["gold"]] for row in rows]))
    return [{**row, "front": i in front} for i, row in enumerate(rows)]


def row_twin(method, n, per_seed):
    sampled, trained, judged = (mean(one[k] for one in per_seed) for k in range(3))
    gold = [mean(one[4]["gold"]) for one in per_seed]
    half = math.nan
    if len(gold) > 1:
        centre = mean(gold)
        spread = math.sqrt(math.fsum((g - centre) ** 2 for g in gold) / (len(gold) - 1))
        half = T95[len(gold) - 2] * spread / math.sqrt(len(gold))
    return {
        "method": method, "n": n,
        "sampled": sampled, "trained": trained, "judged": judged, "total": sampled + trained + judged,
        "latency": mean(mean(one[3]) for one in per_seed),
        "score": mean(mean(one[4]["score"]) for one in per_seed), "gold": mean(gold),
        "gold_low": mean(gold) - half, "gold_high": mean(gold) + half,
        "diversity": mean(len(set(one[4]["response"])) / len(one[4]["response"]) for one in per_seed),
    }  # fmt: skip


def rows_of(answer, wanted):
    """The rows, in the wanted order and each with every column."""
    if not isinstance(answer, (list, tuple)) or not all(isinstance(row, dict) for row in answer):
        raise CheckFailed(f"the table: expected a list of rows (dicts), got {short(answer)}")
    methods = [row.get("method") for row in answer]
    if methods != [row["method"] for row in wanted]:
        raise CheckFailed(f"the rows: expected {[row['method'] for row in wanted]}, got {short(methods)}")
    for row, twin in zip(answer, wanted):
        missing = [column for column in twin if column not in row]
        if missing:
            raise CheckFailed(f"the row {row['method']}: expected the columns {list(twin)}, missing {missing}")
    return answer


def expect_columns(answer, wanted, columns):
    for row, twin in zip(rows_of(answer, wanted), wanted):
        for column in columns:
            expect(row[column], f"{column} of {row['method']}").close_to(scalar(float(twin[column])))


def expect_interval(answer, wanted):
    """Middle and half width apart, so that a printed table of Student's t is precise enough."""
    for row, twin in zip(rows_of(answer, wanted), wanted):
        low, high = (torch.as_tensor(row[side]).double() for side in ("gold_low", "gold_high"))
        half = (twin["gold_high"] - twin["gold_low"]) / 2
        expect((high - low) / 2, f"half the width of the interval of {row['method']}").close_to(scalar(half), rtol=1e-3)
        expect((high + low) / 2 - twin["gold"], f"the middle of the interval of {row['method']} minus gold").at_most(1e-6)
        expect((high + low) / 2 - twin["gold"], f"the middle of the interval of {row['method']} minus gold").at_least(-1e-6)


def expect_no_interval(answer, wanted):
    for row in rows_of(answer, wanted):
        for side in ("gold_low", "gold_high"):
            if not math.isnan(float(row[side])):
                raise CheckFailed(f"{side} of {row['method']} from one seed: expected nan, got {float(row[side]):.6g}")


@invariant("L3.11", points=1, anchor=True)
def quality_by_size_and_method(frontier_table, draw):
    """One row for each size and one for PPO, with n, selecting score and gold of what the score selects."""
    pool, ppo = sample_pool(draw, 3, 4, 64), trained_policy(draw, 3, 4)
    answer, wanted = frontier_table(pool, ppo), table_twin(pool, ppo, (1, 4, 16, 64))
    expect_columns(answer, wanted, ("n", *QUALITY))


@invariant("L3.05", points=1)
def every_token_is_in_a_column(frontier_table, draw):
    """Sampled, trained and judged tokens per seed, whose sum is the total: best-of-1 needs no judge, PPO pays for its training."""
    pool, ppo = sample_pool(draw, 3, 4, 64), trained_policy(draw, 3, 4)
    answer, wanted = frontier_table(pool, ppo), table_twin(pool, ppo, (1, 4, 16, 64))
    expect_columns(answer, wanted, COSTS)
    for row in answer:
        parts = sum(float(row[column]) for column in ("sampled", "trained", "judged"))
        expect(row["total"], f"the total of {row['method']}").close_to(scalar(parts))


@invariant("L3.11", points=1)
def latency_and_diversity(frontier_table, draw):
    """The longest of n parallel samples is what a user waits for; diversity is the share of different texts among the selected."""
    pool, ppo = sample_pool(draw, 4, 6, 64), trained_policy(draw, 4, 6)
    answer, wanted = frontier_table(pool, ppo), table_twin(pool, ppo, (1, 4, 16, 64))
    expect_columns(answer, wanted, ("latency", "diversity"))


@invariant("L3.11", points=1)
def the_interval_is_over_seeds(frontier_table, draw):
    """Gold -/+ Student's t times the standard error of the seeds' means; prompts are no seeds, and one seed has no interval: NaN."""
    for seeds in (5, 3):
        pool, ppo = sample_pool(draw, seeds, 4, 64), trained_policy(draw, seeds, 4)
        expect_interval(frontier_table(pool, ppo), table_twin(pool, ppo, (1, 4, 16, 64)))
    pool, ppo = sample_pool(draw, 1, 4, 64), trained_policy(draw, 1, 4)
    expect_no_interval(frontier_table(pool, ppo), table_twin(pool, ppo, (1, 4, 16, 64)))


@invariant("L3.11", points=1)
def the_front_is_of_total_and_gold(frontier_table, draw):
    """front marks the rows that no other beats in total tokens and gold; a costly PPO may be on it or not, a cheap one beats others."""
    pool = sample_pool(draw, 2, 5, 64)
    flags = set()
    for lift, bill in ((-20.0, 1), (20.0, 1), (20.0, 0)):
        ppo = trained_policy(draw, 2, 5)
        ppo["gold"] = ppo["gold"] + lift
        # fewer sampled and trained tokens than best-of-64 samples: it is the judge that makes PPO dear
        ppo["sampled"], ppo["trained"], ppo["judged"] = (
            bill * ppo["sampled"] // 2,
            bill * ppo["trained"] // 2,
            bill * ppo["judged"] * 10,
        )
        for sign in (1.0, -1.0):
            given = {**pool, "score": pool["gold"] * sign}
            wanted = table_twin(given, ppo, (1, 4, 16, 64))
            for row, twin in zip(rows_of(frontier_table(given, ppo), wanted), wanted):
                if bool(row["front"]) != twin["front"]:
                    raise CheckFailed(f"front of {row['method']}: expected {twin['front']}, got {bool(row['front'])}")
                flags.add((row["method"], twin["front"]))
    if len(flags) < 7:
        raise RuntimeError("the drawn cases do not tell fronts apart")
