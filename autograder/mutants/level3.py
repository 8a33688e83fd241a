"""Level 3: mistakes that people make. Each docstring is what a learner is told when their function behaves like it."""

import functools
import itertools
import math
import statistics
from collections import Counter

import torch

from autograder.framework import mutant
from course.search import frontier
from course.search.best_of import best_of_n_kl as right_kl
from course.search.best_of import best_of_n_logprobs

# ---------------------------------------------------------------- 3.1 best_of_n


@mutant(of="best_of_n", kills="L3.01")
def best_of_all(candidates, scores, n):
    """This looks like the best of all candidates: with n samples only the first n have been drawn."""
    return candidates[int(scores.argmax())]


@mutant(of="best_of_n", kills="L3.01")
def last_of_equals(candidates, scores, n):
    """This looks like >= where a later candidate must be higher to win: of equal scores the first is taken."""
    best = 0
    for i in range(n):
        if scores[i] >= scores[best]:
            best = i
    return candidates[best]


@mutant(of="best_of_n", kills="L3.01")
def lowest_score(candidates, scores, n):
    """This looks like the lowest score: a score is not a loss."""
    return candidates[int(scores[:n].argmin())]


@mutant(of="best_of_n", kills="L3.01")
def position_of_the_best(candidates, scores, n):
    """This looks like the position of the best candidate: the candidate itself is asked for."""
    return int(scores[:n].argmax())


@mutant(of="best_of_n", kills="L3.01")
def score_of_the_best(candidates, scores, n):
    """This looks like the highest score in place of the candidate that has it."""
    return scores[:n].max()


@mutant(of="best_of_n", kills="L3.01")
def must_beat_zero(candidates, scores, n):
    """This looks like a search that starts from a best score of 0: scores can all be negative."""
    best, place = 0.0, 0
    for i in range(n):
        if scores[i] > best:
            best, place = scores[i], i
    return candidates[place]


@mutant(of="best_of_n", kills="L3.01")
def one_candidate_more(candidates, scores, n):
    """This looks like n + 1 candidates: off by one."""
    return candidates[int(scores[: n + 1].argmax())]


@mutant(of="best_of_n", kills="L3.01")
def last_n_candidates(candidates, scores, n):
    """This looks like the last n candidates in place of the first n."""
    return candidates[len(scores) - n + int(scores[-n:].argmax())]


# ---------------------------------------------------------------- 3.2 expected_best_of_n


def _weighted(gold, order, weight):
    return torch.tensor(math.fsum(float(gold[i]) * w for i, w in zip(order, weight)), dtype=torch.float64)


def _ascending(scores):
    return sorted(range(len(scores)), key=lambda i: (float(scores[i]), -i))


def _shares(size, n):
    total = math.comb(size, n)
    return [math.comb(k, n - 1) / total for k in range(size)]


@mutant(of="expected_best_of_n", kills="L3.01")
def first_subset_only(scores, gold, n):
    """This looks like the gold of the best of the first n samples: unbiased, but it throws all other subsets away."""
    return gold[int(scores[:n].argmax())]


@mutant(of="expected_best_of_n", kills="L3.01")
def with_replacement(scores, gold, n):
    """This looks like draws with replacement, (i/M)^n - ((i-1)/M)^n: a sample can't be drawn twice, so this is biased."""
    size = len(scores)
    return _weighted(gold, _ascending(scores), [((i + 1) / size) ** n - (i / size) ** n for i in range(size)])


@mutant(of="expected_best_of_n", kills="L3.01")
def the_greatest_gold(scores, gold, n):
    """This looks like selection by gold: the selecting score never enters, and nobody has gold when it is time to choose."""
    return _weighted(gold, _ascending(gold), _shares(len(gold), n))


@mutant(of="expected_best_of_n", kills="L3.01")
def expected_score(scores, gold, n):
    """This looks like the expected score of the selected sample: the score selects, its gold is what counts."""
    return _weighted(scores, _ascending(scores), _shares(len(scores), n))


@mutant(of="expected_best_of_n", kills="L3.01")
def worst_is_selected(scores, gold, n):
    """This looks like weights in the wrong order: the highest score gets the weight of the lowest."""
    return _weighted(gold, _ascending(scores)[::-1], _shares(len(scores), n))


@mutant(of="expected_best_of_n", kills="L3.01")
def samples_as_they_stand(scores, gold, n):
    """This looks like weights by position: the samples must first be ordered by their score."""
    return _weighted(gold, range(len(gold)), _shares(len(gold), n))


@mutant(of="expected_best_of_n", kills="L3.01")
def beats_itself(scores, gold, n):
    """This looks like C(i, n-1) with i counted from 1: the other n - 1 come from those that it beats, itself not among them."""
    size = len(scores)
    weight = [math.comb(k + 1, n - 1) for k in range(size)]
    return _weighted(gold, _ascending(scores), [w / sum(weight) for w in weight])


@mutant(of="expected_best_of_n", kills="L3.01")
def mean_of_the_top(scores, gold, n):
    """This looks like the mean gold of the n best samples: best-of-n answers with one, from a subset that may hold none of these."""
    return gold[scores.topk(n).indices].mean()


@mutant(of="expected_best_of_n", kills="L3.01")
def tied_to_the_last(scores, gold, n):
    """This looks like ties that go to the last sample: of equal scores the first in order is selected."""
    order = sorted(range(len(scores)), key=lambda i: (float(scores[i]), i))
    return _weighted(gold, order, _shares(len(scores), n))


@mutant(of="expected_best_of_n", kills="L3.01")
def factorials_overflow(scores, gold, n):
    """This looks like factorials in floating point: 171! is infinite, and infinite divided by infinite is NaN."""
    size = len(scores)
    factorial = torch.cat([torch.ones(1).double(), torch.arange(1, size + 1).double().cumprod(0)])

    def choose(a, b):
        return factorial[a] / factorial[b] / factorial[a - b]

    weight = [float(choose(k, n - 1) / choose(size, n)) if k >= n - 1 else 0.0 for k in range(size)]
    return sum(float(gold[i]) * w for i, w in zip(_ascending(scores), weight))


# ---------------------------------------------------------------- 3.3 test_expected_best_of_n: tests that do not test


def _differs(fn, scores, gold, n, wanted):
    got = fn(torch.tensor(scores).double(), torch.tensor(gold).double(), n)
    assert abs(float(got) - wanted) < 1e-6, f"expected {wanted}, got {got}"


@mutant(of="test_expected_best_of_n", kills="L3.01")
def checks_that_it_is_a_number(fn):
    """This looks like a test that the result is a number: every wrong function here returns one."""
    assert math.isfinite(float(fn(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]), 2)))


@mutant(of="test_expected_best_of_n", kills="L3.01")
def compares_nothing(fn):
    """This looks like a test that cannot fail: what it computes is never compared with anything."""
    fn(torch.tensor([3.0, 1.0, 2.0]).double(), torch.tensor([1.0, 2.0, 3.0]).double(), 2)


@mutant(of="test_expected_best_of_n", kills="L3.01")
def rejects_everything(fn):
    """This looks like a test that rejects everything: a right function must pass it."""
    assert fn is None


@mutant(of="test_expected_best_of_n", kills="L3.01")
def whole_pool_only(fn):
    """This looks like a test with n = M only: there is one subset then, and every function looks at it."""
    _differs(fn, [3.0, 1.0, 2.0], [5.0, 6.0, 9.0], 3, 5.0)


@mutant(of="test_expected_best_of_n", kills="L3.01")
def gold_is_the_score(fn):
    """This looks like a test whose gold is the score: it cannot tell which of the two selects."""
    _differs(fn, [2.0, 8.0, 1.0, 5.0, 3.0], [2.0, 8.0, 1.0, 5.0, 3.0], 2, 5.5)
    up = torch.arange(500).flip(0).double()
    assert abs(float(fn(up, up, 250)) - 249.99800796812749 * 2 + 1) < 1.0


@mutant(of="test_expected_best_of_n", kills="L3.01")
def one_sample_at_a_time(fn):
    """This looks like a test with n = 1 only: the mean of gold is right for every way of selecting."""
    _differs(fn, [3.0, 1.0, 2.0], [5.0, 6.0, 10.0], 1, 7.0)


@mutant(of="test_expected_best_of_n", kills="L3.01")
def in_order_and_without_ties(fn):
    """This looks like a test on a few sorted scores without ties: order, ties and large pools are never tried."""
    _differs(fn, [1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 0.0, 2.0], 2, (1 * 1 + 2 * 0 + 3 * 2) / 6)


@mutant(of="test_expected_best_of_n", kills="L3.01")
def expects_draws_with_replacement(fn):
    """This looks like a test that expects draws with replacement: it rejects the right functions."""
    _differs(fn, [1.0, 2.0], [0.0, 1.0], 2, 0.75)


# ---------------------------------------------------------------- 3.4 pass_at_k


@mutant(of="pass_at_k", kills="L3.02")
def with_replacement_too(n, c, k):
    """This looks like 1 - (1 - c/n)^k: k different samples are drawn, not the same ones again, so this is biased downwards."""
    return 1 - (1 - c / n) ** k


@mutant(of="pass_at_k", kills="L3.02")
def every_one_right(n, c, k):
    """This looks like the chance that all k are right: one right sample is enough."""
    return math.comb(c, k) / math.comb(n, k)


@mutant(of="pass_at_k", kills="L3.02")
def k_times_the_share(n, c, k):
    """This looks like k times the share of right samples: chances of different tries don't add up."""
    return min(1.0, k * c / n)


@mutant(of="pass_at_k", kills="L3.02")
def chance_of_failure(n, c, k):
    """This looks like the chance that all k are wrong: one minus it is asked for."""
    return math.comb(n - c, k) / math.comb(n, k)


@mutant(of="pass_at_k", kills="L3.02")
def right_and_wrong_exchanged(n, c, k):
    """This looks like right and wrong exchanged: C(c, k) counts choices without a wrong sample."""
    return 1 - math.comb(c, k) / math.comb(n, k)


@mutant(of="pass_at_k", kills="L3.02")
def zero_for_too_few_wrong(n, c, k):
    """This looks like 0 where fewer than k samples are wrong: then some right one is always among the k, and the answer is 1."""
    return 0.0 if n - c < k else 1 - math.comb(n - c, k) / math.comb(n, k)


@mutant(of="pass_at_k", kills="L3.02")
def binomials_overflow(n, c, k):
    """This looks like factorials in floating point: beyond 170! they overflow."""

    def choose(a, b):
        return (
            math.prod(map(float, range(1, a + 1)))
            / math.prod(map(float, range(1, b + 1)))
            / math.prod(map(float, range(1, a - b + 1)))
        )

    return 1.0 if n - c < k else 1 - choose(n - c, k) / choose(n, k)


@mutant(of="pass_at_k", kills="L3.02")
def one_factor_short(n, c, k):
    """This looks like a product with one factor too few: k samples give k factors."""
    return 1.0 if n - c < k else 1 - math.prod((n - c - i) / (n - i) for i in range(k - 1))


# ---------------------------------------------------------------- 3.5 best_of_n_kl


def _kl(q, p):
    return torch.tensor(math.fsum(a * math.log(a / b) for a, b in zip(q, p) if a > 0 and b > 0), dtype=torch.float64)


def _law(logprobs, scores, n):
    return best_of_n_logprobs(logprobs, scores, n).exp().tolist()


@mutant(of="best_of_n_kl", kills="L3.03")
def the_bound_itself(logprobs, scores, n):
    """This looks like log N - (N-1)/N: an upper bound, reached only in the limit of ever more outcomes without ties."""
    return math.log(n) - (n - 1) / n


@mutant(of="best_of_n_kl", kills="L3.03")
def the_bound_as_a_tensor(logprobs, scores, n):
    """This looks like log N - (N-1)/N: an upper bound, reached only in the limit of ever more outcomes without ties."""
    return torch.tensor(math.log(n) - (n - 1) / n, dtype=torch.float64)


@mutant(of="best_of_n_kl", kills="L3.03")
def reversed_kl(logprobs, scores, n):
    """This looks like KL(policy || best-of-n): the expectation is over what best-of-n answers."""
    return _kl(logprobs.exp().tolist(), _law(logprobs, scores, n))


@mutant(of="best_of_n_kl", kills="L3.03")
def ties_shared_equally(logprobs, scores, n):
    """This looks like ties shared in equal parts: which of them is drawn first follows the policy."""
    law, out = _law(logprobs, scores, n), []
    for s in scores.tolist():
        level = [q for q, other in zip(law, scores.tolist()) if other == s]
        out.append(sum(level) / len(level))
    return _kl(out, logprobs.exp().tolist())


@mutant(of="best_of_n_kl", kills="L3.03")
def ties_put_in_order(logprobs, scores, n):
    """This looks like tied outcomes put in some order: none of them beats the other, the first one drawn is taken."""
    ranks = scores.argsort(stable=True).argsort(stable=True).double()
    return right_kl(logprobs, ranks, n)


@mutant(of="best_of_n_kl", kills="L3.03")
def in_bits(logprobs, scores, n):
    """This looks like bits: KL is in nats here, with natural logarithms."""
    return right_kl(logprobs, scores, n) / math.log(2)


@mutant(of="best_of_n_kl", kills="L3.03")
def one_draw_fewer(logprobs, scores, n):
    """This looks like n - 1 draws: the best of n is below a level where all n draws are."""
    return right_kl(logprobs, scores, max(n - 1, 1))


@mutant(of="best_of_n_kl", kills="L3.03")
def zero_times_minus_infinity(logprobs, scores, n):
    """This looks like q log q without a case for q = 0: after many draws the worse outcomes vanish, and 0 times -inf is NaN."""
    p, order = logprobs.exp(), scores.unique()
    mass = torch.stack([p[scores == s].sum() for s in order])
    upto = (mass.cumsum(0)).clamp(max=1)
    chance = upto**n - torch.cat([torch.zeros(1).double(), upto[:-1]]) ** n
    return (chance * (chance.log() - mass.log())).sum()


@mutant(of="best_of_n_kl", kills="L3.03")
def chance_of_being_drawn(logprobs, scores, n):
    """This looks like the law 1 - (1 - p)^n of being drawn at all, normalised: only the best of those drawn is answered."""
    q = [1 - (1 - p) ** n for p in logprobs.exp().tolist()]
    return _kl([x / sum(q) for x in q], logprobs.exp().tolist())


# ---------------------------------------------------------------- 3.6 consensus


@mutant(of="consensus", kills="L3.06")
def first_answer(answers):
    """This looks like the first answer: that is one sample, with the budget of one sample."""
    return answers[0]


@mutant(of="consensus", kills="L3.06")
def tie_to_the_last_seen(answers):
    """This looks like >= between counts: of equally frequent answers the one seen first is taken."""
    best = answers[0]
    for answer in dict.fromkeys(answers):
        if answers.count(answer) >= answers.count(best):
            best = answer
    return best


@mutant(of="consensus", kills="L3.06")
def first_to_get_there(answers):
    """This looks like the answer that reached the highest count first: a tie goes to the one that appeared first."""
    counts, best, top = Counter(), answers[0], 0
    for answer in answers:
        counts[answer] += 1
        if counts[answer] > top:
            best, top = answer, counts[answer]
    return best


@mutant(of="consensus", kills="L3.06")
def absolute_majority(answers):
    """This looks like a majority of more than half: the most frequent answer needs no majority."""
    answer, count = Counter(answers).most_common(1)[0]
    return answer if 2 * count > len(answers) else None


@mutant(of="consensus", kills="L3.06")
def count_of_the_winner(answers):
    """This looks like the number of votes in place of the answer."""
    return max(Counter(answers).values())


@mutant(of="consensus", kills="L3.06")
def least_frequent(answers):
    """This looks like the least frequent answer."""
    return min(answers, key=answers.count)


@mutant(of="consensus", kills="L3.06")
def smallest_of_equals(answers):
    """This looks like ties by alphabet: the order in which answers were seen decides."""
    return min(answers, key=lambda answer: (-answers.count(answer), str(answer)))


@mutant(of="consensus", kills="L3.06")
def drops_empty_answers(answers):
    """This looks like a filter that drops 0, None and the empty text: they are answers, and may be the most frequent ones."""
    votes = {}
    for answer in [a for a in answers if a] or answers:
        votes[answer] = votes.get(answer, 0) + 1
    return max(votes, key=votes.get)


@mutant(of="consensus", kills="L3.06")
def middle_of_the_sorted(answers):
    """This looks like the median: answers are compared for equality, they have no order."""
    return sorted(answers, key=str)[len(answers) // 2]


# ---------------------------------------------------------------- 3.7 process_score


def _root(step_probs):
    return step_probs.log().mean().exp()


@mutant(of="process_score", kills="L3.07")
def weakest_step(step_probs, calibrate_length=False):
    """This looks like the weakest step: a good rule elsewhere, but more uncertain steps do not lower it."""
    return step_probs.min()


@mutant(of="process_score", kills="L3.07")
def last_step(step_probs, calibrate_length=False):
    """This looks like the last step alone: that is how an outcome model is read."""
    return step_probs[-1]


@mutant(of="process_score", kills="L3.07")
def arithmetic_mean(step_probs, calibrate_length=False):
    """This looks like the arithmetic mean: a solution needs all of its steps, so their probabilities multiply."""
    return _root(step_probs) if calibrate_length else step_probs.mean()


@mutant(of="process_score", kills="L3.07")
def calibrated_by_the_mean(step_probs, calibrate_length=False):
    """This looks like the arithmetic mean as calibration: the mean of the logs, so the geometric mean, is asked for."""
    return step_probs.mean() if calibrate_length else step_probs.prod()


@mutant(of="process_score", kills="L3.07")
def divided_by_the_length(step_probs, calibrate_length=False):
    """This looks like the product divided by the number of steps: the logs are divided, which is a root."""
    return step_probs.prod() / (len(step_probs) if calibrate_length else 1)


@mutant(of="process_score", kills="L3.07")
def logs_not_undone(step_probs, calibrate_length=False):
    """This looks like the sum of logs as it is: the score is a probability."""
    return step_probs.log().mean() if calibrate_length else step_probs.log().sum()


@mutant(of="process_score", kills="L3.07")
def always_calibrated(step_probs, calibrate_length=False):
    """This looks like the geometric mean in every case: it is asked for only with calibrate_length."""
    return _root(step_probs)


@mutant(of="process_score", kills="L3.07")
def never_calibrated(step_probs, calibrate_length=False):
    """This looks like the product whatever calibrate_length says."""
    return step_probs.prod()


@mutant(of="process_score", kills="L3.07")
def root_of_an_underflow(step_probs, calibrate_length=False):
    """This looks like the root of the product: after thousands of steps the product is 0, and so is its root."""
    return step_probs.prod() ** (1 / len(step_probs)) if calibrate_length else step_probs.prod()


@mutant(of="process_score", kills="L3.07")
def any_step_right(step_probs, calibrate_length=False):
    """This looks like the chance that some step is right: the solution needs all of them."""
    return _root(step_probs) if calibrate_length else 1 - (1 - step_probs).prod()


# ---------------------------------------------------------------- 3.8 solve


def _searched(tactics, kernel, budget, *, combine=max, closes=lambda goal, tactic: None, needs=all, step=1, prefer=min):
    """A bounded recursive search with one of its rules exchanged: (cost, proof) of a goal within what is left, or None."""

    @functools.cache
    def best(goal, left):
        options = []
        for tactic in tactics(goal) if left > 0 else []:
            subgoals = kernel(goal, tactic)
            if subgoals is None:
                subgoals = closes(goal, tactic)
            if subgoals is None:
                continue
            parts = [best(s, left - 1) for s in subgoals]
            if not needs(part is not None for part in parts) and parts:
                continue
            parts = [part for part in parts if part is not None]
            cost = step + combine([cost for cost, _ in parts], default=0) if combine is max else step + sum(c for c, _ in parts)
            if cost <= left:
                options.append((cost, (tactic, tuple(proof for _, proof in parts))))
        return prefer(options, key=lambda option: option[0]) if options else None

    return best


def _proof(found):
    return None if found is None else found[1]


@mutant(of="solve", kills="L3.09")
def goals_add_up(goal, tactics, kernel, budget):
    """This looks like the sum over subgoals: they can be worked on side by side, so an AND costs its hardest goal."""
    return _proof(_searched(tactics, kernel, budget, combine=sum)(goal, budget))


@mutant(of="solve", kills="L3.09")
def goals_add_up_beyond_the_budget(goal, tactics, kernel, budget):
    """This looks like the sum over subgoals: they can be worked on side by side, so an AND costs its hardest goal."""

    @functools.cache
    def best(goal, left):
        found = None
        for tactic in tactics(goal) if left > 0 else []:
            subgoals = kernel(goal, tactic)
            if subgoals is None:
                continue
            parts = [best(s, left - 1) for s in subgoals]
            if all(part is not None for part in parts):
                cost = 1 + sum(c for c, _ in parts)  # only the depth is bounded
                if found is None or cost < found[0]:
                    found = cost, (tactic, tuple(p for _, p in parts))
        return found

    return _proof(best(goal, budget))


@mutant(of="solve", kills="L3.09")
def goals_met_once(goal, tactics, kernel, budget):
    """This looks like a set of goals already seen: a goal may be met twice, with different limits left, and needs its proof each time."""
    seen = set()

    def search(goal, left):
        if left < 1 or goal in seen:
            return None
        seen.add(goal)
        best = None
        for tactic in tactics(goal):
            subgoals = kernel(goal, tactic)
            if subgoals is None:
                continue
            parts = [search(s, left - 1) for s in subgoals]
            if all(part is not None for part in parts):
                cost = 1 + max((c for c, _ in parts), default=0)
                if best is None or cost < best[0]:
                    best = cost, (tactic, tuple(p for _, p in parts))
        return best

    return _proof(search(goal, budget))


@mutant(of="solve", kills="L3.09")
def invalid_proves(goal, tactics, kernel, budget):
    """This looks like `not subgoals` where `subgoals is None` is meant: an invalid tactic is taken for one that leaves no goal."""
    return _proof(_searched(tactics, kernel, budget, closes=lambda goal, tactic: ())(goal, budget))


@mutant(of="solve", kills="L3.09")
def subgoals_must_be_a_tuple(goal, tactics, kernel, budget):
    """This looks like subgoals used as a key of a dict: the kernel may return a list, and lists cannot be hashed."""
    seen = {}
    return _proof(
        _searched(tactics, lambda g, t: seen.setdefault(s, s) if (s := kernel(g, t)) is not None else None, budget)(goal, budget)
    )


@mutant(of="solve", kills="L3.09")
def one_goal_is_enough(goal, tactics, kernel, budget):
    """This looks like an OR over subgoals: an AND node needs all of its goals."""
    return _proof(_searched(tactics, kernel, budget, needs=any)(goal, budget))


@mutant(of="solve", kills="L3.09")
def first_proof_that_fits(goal, tactics, kernel, budget):
    """This looks like the first proof within the budget: a later tactic may give a cheaper one."""
    return _proof(_searched(tactics, kernel, budget, prefer=lambda options, key: options[0])(goal, budget))


@mutant(of="solve", kills="L3.09")
def last_of_equal_tactics(goal, tactics, kernel, budget):
    """This looks like <= between costs: of tactics that are equally cheap the first in the list is taken."""
    return _proof(_searched(tactics, kernel, budget, prefer=lambda options, key: min(options[::-1], key=key))(goal, budget))


@mutant(of="solve", kills="L3.09")
def below_the_budget(goal, tactics, kernel, budget):
    """This looks like < for the budget: a proof that costs exactly the budget is within it."""
    return _proof(_searched(tactics, kernel, budget)(goal, budget - 1)) if budget > 0 else None


@mutant(of="solve", kills="L3.09")
def attempts_cost(goal, tactics, kernel, budget):
    """This looks like a budget spent on attempts: an invalid tactic fails and costs nothing, only tactics of the proof count."""
    spent = 0

    def search(goal, left):
        nonlocal spent
        best = None
        for tactic in tactics(goal) if left > 0 else []:
            subgoals = kernel(goal, tactic)
            spent += subgoals is None
            if subgoals is None or spent > budget:
                continue
            parts = [search(s, left - 1) for s in subgoals]
            if all(part is not None for part in parts):
                cost = 1 + max((c for c, _ in parts), default=0)
                if best is None or cost < best[0]:
                    best = cost, (tactic, tuple(p for _, p in parts))
        return best

    return _proof(search(goal, budget))


@mutant(of="solve", kills="L3.09")
def easy_branch_takes_its_time(goal, tactics, kernel, budget):
    """This looks like a bound passed down as it is: the easy branch takes the first proof that fits, not a cheapest one."""

    def within(goal, cost):
        for tactic in tactics(goal) if cost > 0 else []:
            subgoals = kernel(goal, tactic)
            if subgoals is not None:
                parts = [within(s, cost - 1) for s in subgoals]
                if all(part is not None for part in parts):
                    return (tactic, tuple(parts))
        return None

    return next((proof for cost in range(1, budget + 1) if (proof := within(goal, cost)) is not None), None)


@mutant(of="solve", kills="L3.09")
def failure_is_remembered_for_good(goal, tactics, kernel, budget):
    """This looks like a memo without the budget: a goal that could not be proven with little left may be with more."""
    memo = {}

    def search(goal, left):
        if goal not in memo:
            memo[goal] = None
            best = None
            for tactic in tactics(goal) if left > 0 else []:
                subgoals = kernel(goal, tactic)
                if subgoals is not None:
                    parts = [search(s, left - 1) for s in subgoals]
                    if all(part is not None for part in parts):
                        cost = 1 + max((c for c, _ in parts), default=0)
                        if cost <= left and (best is None or cost < best[0]):
                            best = cost, (tactic, tuple(p for _, p in parts))
            memo[goal] = best
        return memo[goal]

    return _proof(search(goal, budget))


@mutant(of="solve", kills="L3.09")
def never_gives_up(goal, tactics, kernel, budget):
    """This looks like a search without a bound: goals can lead back to themselves, and it never returns."""

    def search(goal, depth=0):
        if depth > 40:
            raise RecursionError("maximum recursion depth exceeded")
        for tactic in tactics(goal):
            subgoals = kernel(goal, tactic)
            if subgoals is not None:
                parts = [search(s, depth + 1) for s in subgoals]
                if all(part is not None for part in parts):
                    return (tactic, tuple(parts))
        return None

    return search(goal)


@mutant(of="solve", kills="L3.09")
def parts_turned_round(goal, tactics, kernel, budget):
    """This looks like subproofs in another order than the kernel's subgoals: then each part is the proof of another goal."""
    proof = _proof(_searched(tactics, kernel, budget)(goal, budget))

    def turned(proof):
        return (proof[0], tuple(turned(part) for part in proof[1][::-1]))

    return None if proof is None else turned(proof)


@mutant(of="solve", kills="L3.09")
def cost_beside_the_proof(goal, tactics, kernel, budget):
    """This looks like (cost, proof): the proof alone is asked for, its cost can be counted."""
    return _searched(tactics, kernel, budget)(goal, budget)


# ---------------------------------------------------------------- 3.9 pareto_front


def _front(points, beats):
    rows = points.tolist()
    return torch.tensor([i for i, row in enumerate(rows) if not any(beats(other, row) for other in rows)]).long()


def _right_front(points):
    return _front(points, lambda a, b: a[0] <= b[0] and a[1] >= b[1] and a != b)


@mutant(of="pareto_front", kills="L3.11")
def better_in_both(points):
    """This looks like domination only where both are strictly better: at equal cost the worse one is beaten too."""
    return _front(points, lambda a, b: a[0] < b[0] and a[1] > b[1])


@mutant(of="pareto_front", kills="L3.11")
def copies_beat_each_other(points):
    """This looks like <= and >= without a strict one: a point then beats its own copy, and itself."""
    rows = points.tolist()
    beaten = {i for i, row in enumerate(rows) for j, o in enumerate(rows) if i != j and o[0] <= row[0] and o[1] >= row[1]}
    return torch.tensor([i for i in range(len(rows)) if i not in beaten]).long()


@mutant(of="pareto_front", kills="L3.11")
def one_of_each(points):
    """This looks like equal points taken once: no point beats an equal one, so all of them stay."""
    seen, kept = set(), []
    for i in _right_front(points).tolist():
        if tuple(points[i].tolist()) not in seen:
            seen.add(tuple(points[i].tolist()))
            kept.append(i)
    return torch.tensor(kept).long()


@mutant(of="pareto_front", kills="L3.11")
def low_quality_wins(points):
    """This looks like both columns to be minimised: more quality is better."""
    return _front(points, lambda a, b: a[0] <= b[0] and a[1] <= b[1] and a != b)


@mutant(of="pareto_front", kills="L3.11")
def high_cost_wins(points):
    """This looks like both columns to be maximised: less cost is better."""
    return _front(points, lambda a, b: a[0] >= b[0] and a[1] >= b[1] and a != b)


@mutant(of="pareto_front", kills="L3.11")
def ordered_by_cost(points):
    """This looks like positions in order of cost: they are asked for in ascending order."""
    index = _right_front(points)
    return index[points[index, 0].argsort(stable=True)]


@mutant(of="pareto_front", kills="L3.11")
def mask_in_place_of_positions(points):
    """This looks like a mask of all points: the positions of those on the front are asked for."""
    mask = torch.zeros(len(points), dtype=torch.bool)
    mask[_right_front(points)] = True
    return mask


@mutant(of="pareto_front", kills="L3.11")
def points_in_place_of_positions(points):
    """This looks like the points of the front: their positions are asked for."""
    return points[_right_front(points)]


@mutant(of="pareto_front", kills="L3.11")
def straight_lines_between_points(points):
    """This looks like the convex hull: a point below a line between two others is not beaten by either of them."""
    rows, kept = points.tolist(), []
    for i in _right_front(points).tolist():
        c, q = rows[i]
        under = False
        for a, b in itertools.combinations(rows, 2):
            left, right = min(a, b), max(a, b)
            if left[0] < c < right[0]:
                under |= q < left[1] + (right[1] - left[1]) * (c - left[0]) / (right[0] - left[0])
        if not under:
            kept.append(i)
    return torch.tensor(kept).long()


@mutant(of="pareto_front", kills="L3.11")
def best_ratio(points):
    """This looks like the single point with most quality per cost: a front keeps every trade-off that is not beaten."""
    return torch.tensor([int((points[:, 1] / points[:, 0]).argmax())])


# ---------------------------------------------------------------- 3.10 frontier_table


def _changed(change, pool, ppo, sizes):
    """The right table with some columns of each row exchanged, and total and front made from what is there."""
    rows = []
    for row in frontier.frontier_table(pool, ppo, sizes):
        rows.append({**row, **change(dict(row), row["n"] if row["method"] != "ppo" else None)})
    return rows


def _summed(rows):
    for row in rows:
        row["total"] = row["sampled"] + row["trained"] + row["judged"]
    return _fronted(rows)


def _fronted(rows, cost="total", quality="gold"):
    front = _right_front(torch.tensor([[row[cost], row[quality]] for row in rows], dtype=torch.float64)).tolist()
    return [{**row, "front": i in front} for i, row in enumerate(rows)]


def _per_seed(pool, ppo, n):
    """Gold of the selected, [S,P]."""
    if n is None:
        return ppo["gold"]
    return pool["gold"].gather(-1, pool["score"][..., :n].argmax(-1, keepdim=True))[..., 0]


@mutant(of="frontier_table", kills="L3.05")
def judging_is_free(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like a table without the judge's tokens: to choose among n, a judge must read all n."""
    return _summed(_changed(lambda row, n: {"judged": 0.0} if n else {}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.05")
def one_sample_is_judged(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like judged tokens for best-of-1: with one sample there is nothing to choose."""
    return _summed(_changed(lambda row, n: {"judged": row["sampled"]} if n == 1 else {}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.05")
def only_the_chosen_is_paid(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like the tokens of the chosen sample: the others have been sampled and judged as well."""

    def change(row, n):
        if n is None:
            return {}
        chosen = pool["tokens"].gather(-1, pool["score"][..., :n].argmax(-1, keepdim=True))
        sampled = float(chosen.sum((1, 2)).double().mean())
        return {"sampled": sampled, "judged": sampled if n > 1 else 0.0}

    return _summed(_changed(change, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.05")
def training_is_free(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like PPO at the price of its final answers: its training sampled, trained and judged before that."""
    last = float(ppo["tokens"].sum(1).double().mean())
    change = {"sampled": last, "trained": 0.0, "judged": 0.0}
    return _summed(_changed(lambda row, n: change if n is None else {}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.05")
def final_answers_are_free(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like PPO's training tokens alone: its final answers are sampled too."""
    last = float(ppo["tokens"].sum(1).double().mean())
    return _summed(_changed(lambda row, n: {"sampled": row["sampled"] - last} if n is None else {}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.05")
def final_answers_are_judged(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like PPO's final answers judged as well: one sample is given as it is, there is nothing to choose."""
    last = float(ppo["tokens"].sum(1).double().mean())
    return _summed(_changed(lambda row, n: {"judged": row["judged"] + last} if n is None else {}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.05")
def total_of_sampled(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like a total of sampled tokens only: trained and judged tokens are in their columns but not in the sum."""
    return _fronted(_changed(lambda row, n: {"total": row["sampled"]}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.05")
def training_counted_twice(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like training tokens counted as sampled ones as well: one token, one column."""
    return _summed(_changed(lambda row, n: {"sampled": row["sampled"] + row["trained"]}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.05")
def tokens_per_prompt(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like tokens per prompt for best-of-n beside tokens for all prompts: the columns must be in one unit."""
    prompts = ppo["score"].shape[1]
    columns = ("sampled", "judged")
    return _summed(_changed(lambda row, n: {c: row[c] / prompts for c in columns} if n else {}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.11")
def selects_by_gold(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like selection by gold: the selecting score chooses, gold only says how good the choice was."""
    return frontier.frontier_table({**pool, "score": pool["gold"]}, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def best_of_the_whole_pool(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like the best of all M samples in every row: best-of-n sees the first n only."""
    whole = frontier.frontier_table(pool, ppo, (pool["score"].shape[-1],))[0]
    keep = {k: whole[k] for k in ("score", "gold", "gold_low", "gold_high", "diversity")}
    return _fronted(_changed(lambda row, n: keep if n else {}, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.11")
def highest_gold_seen(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like the highest gold among the n in place of the gold of the selected one."""

    def change(row, n):
        return {} if n is None else {"gold": float(pool["gold"][..., :n].amax(-1).double().mean())}

    return _fronted(_changed(change, pool, ppo, sizes))


@mutant(of="frontier_table", kills="L3.11")
def one_sample_after_another(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like latency as the sum of all samples: they are drawn in parallel, the longest decides."""

    def change(row, n):
        return {} if n is None else {"latency": float(pool["tokens"][..., :n].sum(-1).double().mean())}

    return _changed(change, pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def waits_for_the_average(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like latency as the mean length: the choice can be made only when the longest sample is done."""

    def change(row, n):
        return {} if n is None else {"latency": float(pool["tokens"][..., :n].double().mean())}

    return _changed(change, pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def waits_for_the_chosen(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like latency as the length of the selected sample: the choice can be made only when the longest of the n is done."""

    def change(row, n):
        chosen = pool["score"][..., :n].argmax(-1, keepdim=True)
        return {} if n is None else {"latency": float(pool["tokens"].gather(-1, chosen).double().mean())}

    return _changed(change, pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def diversity_of_the_pool(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like the diversity of all n samples: what counts is how different the selected responses are."""

    def change(row, n):
        if n is None:
            return {}
        shares = [len(seed[:, :n].unique()) / seed[:, :n].numel() for seed in pool["response"]]
        return {"diversity": statistics.fmean(shares)}

    return _changed(change, pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def seeds_thrown_together(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like distinct responses counted over all seeds at once: each seed has its own diversity."""

    def change(row, n):
        chosen = ppo["response"]
        if n is not None:
            chosen = pool["response"].gather(-1, pool["score"][..., :n].argmax(-1, keepdim=True))[..., 0]
        return {"diversity": len(chosen.unique()) / chosen.numel()}

    return _changed(change, pool, ppo, sizes)


def _with_half(half_of, pool, ppo, sizes):
    def change(row, n):
        gold = _per_seed(pool, ppo, n).double()
        half = float(half_of(gold)) if len(gold) > 1 else math.nan
        return {"gold_low": row["gold"] - half, "gold_high": row["gold"] + half}

    return _changed(change, pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def front_among_sizes(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like a front of best-of-n alone: a PPO that is cheaper and better takes the others off the front."""
    rows = frontier.frontier_table(pool, ppo, sizes)
    return _fronted(rows[:-1]) + [_fronted(rows)[-1]]


@mutant(of="frontier_table", kills="L3.11")
def front_without_the_judge(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like a front without the judge's tokens: it is one of total and gold."""
    rows = [{**row, "unjudged": row["sampled"] + row["trained"]} for row in frontier.frontier_table(pool, ppo, sizes)]
    return [{k: v for k, v in row.items() if k != "unjudged"} for row in _fronted(rows, cost="unjudged")]


@mutant(of="frontier_table", kills="L3.11")
def normal_quantile(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like 1.96 standard errors: with a handful of seeds Student's t is wider."""
    return _with_half(lambda gold: 1.96 * gold.mean(1).std() / math.sqrt(len(gold)), pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def prompts_as_seeds(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like an interval over all prompts of all seeds: prompts of one training are no independent repetitions."""
    return _with_half(lambda gold: 1.96 * gold.std() / math.sqrt(gold.numel()), pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def prompts_as_seeds_with_t(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like an interval over all prompts of all seeds: prompts of one training are no independent repetitions."""

    def half(gold):
        return frontier.student_t95(len(gold) - 1) * gold.std() / math.sqrt(gold.numel())

    return _with_half(half, pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def prompts_spread_as_seeds(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like the spread of all prompts in place of that of the seeds' means: take each seed's mean first."""
    return _with_half(lambda gold: frontier.student_t95(len(gold) - 1) * gold.std() / math.sqrt(len(gold)), pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def one_degree_too_many(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like Student's t with S degrees of freedom: the mean is estimated from the same seeds, so S - 1 are left."""
    return _with_half(lambda gold: frontier.student_t95(len(gold)) * gold.mean(1).std() / math.sqrt(len(gold)), pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def population_deviation(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like the deviation divided by S: with the mean estimated from the same seeds it is S - 1."""

    def half(gold):
        return frontier.student_t95(len(gold) - 1) * gold.mean(1).std(correction=0) / math.sqrt(len(gold))

    return _with_half(half, pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def deviation_in_place_of_error(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like the spread of seeds in place of the error of their mean: it lacks the root of S."""
    return _with_half(lambda gold: frontier.student_t95(len(gold) - 1) * gold.mean(1).std(), pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def front_by_the_selecting_score(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like a front of the selecting score: more samples always win there, whatever gold says."""
    return _fronted(frontier.frontier_table(pool, ppo, sizes), quality="score")


@mutant(of="frontier_table", kills="L3.11")
def front_at_inference_cost(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like a front over the cost of one answer: it leaves out what training and judging took."""
    return _fronted(frontier.frontier_table(pool, ppo, sizes), cost="latency")


@mutant(of="frontier_table", kills="L3.11")
def front_without_ppo(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like a front of the best-of-n rows alone: PPO is one of the points."""
    rows = frontier.frontier_table(pool, ppo, sizes)
    return _fronted(rows[:-1]) + [{**rows[-1], "front": False}]


@mutant(of="frontier_table", kills="L3.11")
def interval_of_one_seed(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like an interval of width 0 for one seed: one run says nothing about others, and the ends are NaN."""
    if len(ppo["score"]) > 1:
        return frontier.frontier_table(pool, ppo, sizes)
    return _changed(lambda row, n: {"gold_low": row["gold"], "gold_high": row["gold"]}, pool, ppo, sizes)


@mutant(of="frontier_table", kills="L3.11")
def sizes_fixed(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like 1, 4, 16 and 64 whatever `sizes` says."""
    most = pool["score"].shape[-1]
    return frontier.frontier_table(pool, ppo, [n for n in (1, 4, 16, 64) if n <= most])


@mutant(of="frontier_table", kills="L3.11")
def tied_scores_to_the_last(pool, ppo, sizes=(1, 4, 16, 64)):
    """This looks like ties that go to the last sample: of equal scores the first is selected."""
    rows = []
    for n in sizes:
        flipped = {k: v[..., :n].flip(-1) for k, v in pool.items()}
        rows.append(frontier.frontier_table(flipped, ppo, (n,))[0])
    return _fronted([*rows, frontier.frontier_table(pool, ppo, sizes)[-1]])
