"""Level 3: the checks that students do not see before they submit."""

import math

import torch

from autograder.checks import level3 as visible
from autograder.checks.level3 import first_best, mean, scalar
from autograder.framework import expect, invariant

# ---------------------------------------------------------------- best of N


@invariant("L3.01", points=1, hidden=True)
def later_candidates_are_not_looked_at(best_of_n, draw):
    """Whatever stands after the first n candidates, better scores too, changes nothing."""
    scores = visible.distinct(draw, 10)
    candidates = [f"answer {i}" for i in range(10)]
    for n in (1, 5):
        spoiled = scores.clone()
        spoiled[n:] += 5.0
        spoiled[n] = float("inf")
        got = best_of_n(candidates, spoiled, n)
        expect(got, f"the best of the first {n}").equals(candidates[first_best(scores[:n].tolist())])


@invariant("L3.01", points=1, hidden=True)
def impossible_and_negative_scores(best_of_n, draw):
    """Scores may all be far below 0 or minus infinity: the highest is still the highest, and of equal ones the first."""
    candidates = [(i, 7 - i) for i in range(8)]
    low = visible.distinct(draw, 8) * 100 - 1e6
    impossible = torch.full((8,), float("-inf"), dtype=torch.float64)
    one = impossible.clone()
    one[draw.number(1, 8)] = -1e30
    for scores in (low, impossible, one):
        expect(best_of_n(candidates, scores, 8), "the best of 8").equals(candidates[first_best(scores.tolist())])


@invariant("L3.01", points=1, hidden=True)
def thousands_of_samples(expected_best_of_n, draw):
    """With 1500 samples the counts of subsets have hundreds of digits, and the estimate is still exact."""
    scores = visible.distinct(draw, 1500)
    gold = scores * 2 + draw.normal(1500)
    for n in (3, 64, 600):
        wanted = visible.mean_by_counting(scores, gold, n)
        expect(expected_best_of_n(scores, gold, n), f"the expected gold of best of {n} of 1500").close_to(wanted)


@invariant("L3.01", points=1, hidden=True)
def only_the_order_of_scores_matters(expected_best_of_n, draw):
    """Shuffling the samples or stretching the scores leaves the estimate; one sample alone is worth its gold."""
    scores, gold, order = visible.distinct(draw, 30), draw.normal(30), draw.permutation(30)
    wanted = visible.mean_by_counting(scores, gold, 6)
    expect(expected_best_of_n(scores[order], gold[order], 6), "the estimate of shuffled samples").close_to(wanted)
    expect(expected_best_of_n((5 * scores).exp() - 90, gold, 6), "the estimate of stretched scores").close_to(wanted)
    expect(expected_best_of_n(scores[:1], gold[:1], 1), "the estimate from one sample").close_to(gold[0])


# ---------------------------------------------------------------- planted faults of the bug hunt


def assumes_sorted_samples(scores, gold, n):
    golds = gold.tolist()
    total = math.comb(len(golds), n)
    return torch.tensor(sum(g * (math.comb(k, n - 1) / total) for k, g in enumerate(golds)), dtype=torch.float64)


def counts_itself_as_beaten(scores, gold, n):
    golds = gold.tolist()
    order = scores.argsort(stable=True).tolist()
    weight = [math.comb(k + 1, n - 1) for k in range(len(golds))]
    return torch.tensor(sum(golds[i] * (w / sum(weight)) for i, w in zip(order, weight)), dtype=torch.float64)


def last_of_equals(scores, gold, n):
    values, golds = scores.tolist(), gold.tolist()
    order = sorted(range(len(values)), key=lambda i: (values[i], i))
    total = math.comb(len(values), n)
    return torch.tensor(sum(golds[i] * (math.comb(k, n - 1) / total) for k, i in enumerate(order)), dtype=torch.float64)


def factorials_in_floating_point(scores, gold, n):
    order = sorted(range(len(scores)), key=lambda i: (scores[i].item(), -i))
    size = len(order)
    factorial = torch.cat([torch.ones(1, dtype=torch.float64), torch.arange(1, size + 1, dtype=torch.float64).cumprod(0)])
    total = factorial[size] / factorial[n] / factorial[size - n]
    weights = [factorial[k] / factorial[n - 1] / factorial[k - n + 1] / total for k in range(n - 1, size)]
    return (torch.stack(weights) * gold[order[n - 1 :]].double()).sum()


@invariant("L3.01", points=1, hidden=True)
def the_test_finds_a_missing_sort(test_expected_best_of_n, draw):
    """Your test finds the function that takes the samples to be in the order of their scores."""
    visible.expect_verdicts(test_expected_best_of_n, draw, visible.RIGHT[:2], [assumes_sorted_samples])


@invariant("L3.01", points=1, hidden=True)
def the_test_finds_a_count_off_by_one(test_expected_best_of_n, draw):
    """Your test finds the function that counts a sample among those that it beats."""
    visible.expect_verdicts(test_expected_best_of_n, draw, visible.RIGHT[1:], [counts_itself_as_beaten])


@invariant("L3.01", points=1, hidden=True)
def the_test_finds_ties_to_the_last(test_expected_best_of_n, draw):
    """Your test finds the function that selects the last of equal scores."""
    visible.expect_verdicts(test_expected_best_of_n, draw, visible.RIGHT, [last_of_equals])


@invariant("L3.01", points=1, hidden=True)
def the_test_finds_an_overflow(test_expected_best_of_n, draw):
    """Your test finds the function whose factorials overflow where there are a few hundred samples."""
    visible.expect_verdicts(test_expected_best_of_n, draw, visible.RIGHT[:2], [factorials_in_floating_point])


# ---------------------------------------------------------------- pass@k and the KL of best-of-N


@invariant("L3.02", points=1, hidden=True)
def ten_thousand_samples(pass_at_k, draw):
    """With thousands of samples the counts have thousands of digits, and the estimate is still right."""
    for n, c, k in ((200, 10, 100), (2000, 3, 700), (10_000, 40, 300), (10_000, 5000, 2), (10_000, 1, 5000), (100_000, 20, 3000)):
        c = c + draw.number(0, 3)
        expect(pass_at_k(n, c, k), f"pass@{k} with {c} right of {n}").close_to(visible.passed(n, c, k))


@invariant("L3.02", points=1, hidden=True)
def one_and_all(pass_at_k, draw):
    """pass@1 is the share of right samples, pass@n is 1 as soon as one is right, and more tries never hurt."""
    n = draw.number(15, 25)
    c = draw.number(2, 6)
    expect(pass_at_k(n, c, 1), f"pass@1 with {c} right of {n}").close_to(scalar(c / n))
    expect(pass_at_k(n, 1, n), f"pass@{n} with 1 right").equals(1.0)
    got = torch.stack([torch.as_tensor(pass_at_k(n, c, k)).double() for k in range(1, n + 1)])
    expect(got, "pass@1 to pass@n").close_to(torch.stack([visible.passed(n, c, k) for k in range(1, n + 1)]))
    expect(got.diff(), "what each further try adds").at_least(0.0)


@invariant("L3.03", points=1, hidden=True)
def the_bound_is_a_limit(best_of_n_kl, draw):
    """Below log N - (N-1)/N for every N > 1 and rising with N; with a thousand equally likely outcomes close to it."""
    logprobs, scores = draw.normal(6).log_softmax(-1), visible.distinct(draw, 6)
    wanted = [visible.kl_by_levels(logprobs, scores, n) for n in range(1, 9)]
    got = torch.stack([torch.as_tensor(best_of_n_kl(logprobs, scores, n)).double() for n in range(1, 9)])
    expect(got, "the KL of best of 1 to 8").close_to(torch.stack(wanted))
    expect(got.diff(), "what each further sample adds").at_least(1e-9)
    for n in range(2, 9):
        expect(got[n - 1], f"the KL of best of {n}, against its bound").at_most(visible.bound(n))
    many = torch.full((1000,), -math.log(1000), dtype=torch.float64)
    got = best_of_n_kl(many, visible.distinct(draw, 1000), 4)
    expect(got, "the KL of best of 4 of a thousand outcomes").close_to(scalar(visible.bound(4)), rtol=2e-5)


@invariant("L3.03", points=1, hidden=True)
def ten_thousand_draws(best_of_n_kl, draw):
    """With 10 000 draws the best outcome is almost sure: the KL is its surprise under the policy, and nothing is NaN."""
    logprobs, scores = draw.normal(7).log_softmax(-1), visible.distinct(draw, 7)
    for n in (300, 10_000):
        got = best_of_n_kl(logprobs, scores, n)
        expect(got, f"the KL of best of {n}").close_to(visible.kl_by_levels(logprobs, scores, n))
    expect(got, "the KL of best of 10 000").close_to(-logprobs[scores.argmax()], rtol=1e-3)


@invariant("L3.03", points=1, hidden=True)
def what_is_never_drawn_does_not_count(best_of_n_kl, draw):
    """An outcome of probability 0 changes nothing, with the best, the worst or a tied score."""
    logprobs = draw.normal(5).log_softmax(-1)
    scores = scalar([1.0, 2.0, 2.0, 3.0, 4.0])[draw.permutation(5)]
    for n in (2, 5):
        wanted = visible.kl_by_levels(logprobs, scores, n)
        for extra in (9.0, -9.0, 2.0):
            more = torch.cat([logprobs, scalar([float("-inf")])])
            got = best_of_n_kl(more, torch.cat([scores, scalar([extra])]), n)
            expect(got, f"the KL of best of {n} with an impossible outcome of score {extra}").close_to(wanted)


# ---------------------------------------------------------------- consensus and steps


@invariant("L3.06", points=1, hidden=True)
def seen_first_and_not_full_first(consensus, draw):
    """Of tied answers the one that appeared first, although another reached its count earlier or came last."""
    a, b, c = draw.shuffled(["3/4", "0.7", "1"])
    for answers in ([a, b, b, c, a], [a, b, c, c, b, a], [c, a, a, b, b]):
        expect(consensus(answers), f"the consensus of {answers}").equals(visible.most_frequent(answers))


@invariant("L3.06", points=1, hidden=True)
def answers_need_no_order(consensus, draw):
    """Numbers, texts and tuples can be answers of one pool, 0, None and the empty text too: they are only compared for equality."""
    for counts in ((2, 2, 4, 3), (3, 5, 2, 5)):
        answers = visible.votes(draw, counts, draw.shuffled([12, "12", (1, 2), "no answer"]))
        expect(consensus(answers), f"the consensus of {answers}").equals(visible.most_frequent(answers))
    for winner in (0, None, ""):
        answers = draw.shuffled([winner] * 4 + ["x"] * 3 + ["0", "None"])
        expect(consensus(answers), f"the consensus of {answers}").equals(winner)


@invariant("L3.07", points=1, hidden=True)
def thousands_of_steps(process_score, draw):
    """After 4000 steps the product is 0 in floating point; the calibrated score is still their geometric mean."""
    p = draw.uniform(4000, low=0.3, high=0.9)
    wanted = visible.geometric_mean(p.tolist())
    expect(process_score(p, calibrate_length=True), "the calibrated score of 4000 steps").close_to(wanted)
    plain = process_score(p)
    expect(plain, "the score of 4000 steps").at_least(0.0)
    expect(plain, "the score of 4000 steps").at_most(1e-300)


@invariant("L3.07", points=1, hidden=True)
def certain_and_impossible_steps(process_score, draw):
    """A certain step leaves the product and raises the geometric mean; one impossible step makes both 0."""
    p = draw.uniform(4, low=0.3, high=0.8)
    sure = torch.cat([p, torch.ones(2, dtype=torch.float64)])[draw.permutation(6)]
    expect(process_score(sure), "the score with two certain steps").close_to(visible.product(p.tolist()))
    calibrated = process_score(sure, calibrate_length=True)
    expect(calibrated, "the calibrated score with them").close_to(visible.geometric_mean(sure.tolist()))
    broken = torch.cat([p, torch.zeros(1, dtype=torch.float64)])[draw.permutation(5)]
    for calibrate in (False, True):
        got = torch.as_tensor(process_score(broken, calibrate_length=calibrate)).double()
        expect(1 + got, f"1 + the score with an impossible step, calibrate_length={calibrate}").close_to(scalar(1.0))


# ---------------------------------------------------------------- proofs


@invariant("L3.09", points=1, hidden=True)
def the_first_of_equal_tactics(solve, draw):
    """Of tactics that give equally cheap proofs the first in the list is taken, and every part is a cheapest proof of its goal."""
    for _ in range(4):
        problem, cost = visible.solvable(draw, tactics=4, invalid=0.15)
        for budget in (cost, cost + 1):
            answer = solve("g0", problem.tactics, problem.kernel, budget)
            visible.expect_cheapest(problem, answer, "g0", budget)
            expect(visible.tuples(answer), "the proof").equals(problem.proof("g0"))
    table = {"goal": ["both"], "easy": ["scenic", "plain", "again"], "h1": ["on"], "h2": ["on"], "h3": ["done"]}
    results = {("goal", "both"): tuple(draw.shuffled(["h1", "easy"])), ("easy", "scenic"): ("h3",), ("easy", "plain"): ()}
    results |= {("easy", "again"): (), ("h1", "on"): ("h2",), ("h2", "on"): ("h3",), ("h3", "done"): ()}
    problem = visible.Problem(table, results)
    answer = solve("goal", problem.tactics, problem.kernel, 6)
    visible.expect_cheapest(problem, answer, "goal", 6)
    expect(visible.tuples(answer), "a proof with a hard and an easy part").equals(problem.proof("goal"))


@invariant("L3.09", points=1, hidden=True)
def goals_that_lead_back(solve, draw):
    """Tactics that lead a goal back to itself, at once or over others, neither trap the search nor prove anything."""
    ring = draw.shuffled(["p", "q", "r"])
    table = {goal: ["stay", "turn"] for goal in ring}
    results = {(goal, "stay"): (goal,) for goal in ring}
    results |= {(goal, "turn"): (after,) for goal, after in zip(ring, ring[1:] + ring[:1])}
    closed = visible.Problem(table, results)
    for budget in (0, 1, 6):
        visible.expect_cheapest(closed, solve(ring[0], closed.tactics, closed.kernel, budget), ring[0], budget)
    opened = visible.Problem({**table, ring[2]: ["stay", "turn", "out"]}, {**results, (ring[2], "out"): (ring[2] + "'",)})
    opened = visible.Problem({**opened.table, ring[2] + "'": ["done"]}, {**opened.results, (ring[2] + "'", "done"): ()})
    for budget in (3, 4, 5):
        visible.expect_cheapest(opened, solve(ring[0], opened.tactics, opened.kernel, budget), ring[0], budget)


@invariant("L3.09", points=1, hidden=True)
def subgoals_keep_their_order(solve, draw):
    """Subgoals keep the kernel's order, also where one is asked for twice; goals may be numbers, and subgoals stand in a list."""
    table = {1: ["join"], 2: ["two"], 3: ["one"], 0: ["nothing"]}
    subgoals = draw.shuffled([2, 3, 2, 0])
    results = {(1, "join"): subgoals, (2, "two"): [3], (3, "one"): [0], (0, "nothing"): []}
    problem = visible.Problem(table, results)
    answer = solve(1, problem.tactics, problem.kernel, 5)
    visible.expect_cheapest(problem, answer, 1, 5)
    expect(visible.tuples(answer), "the proof").equals(problem.proof(1))


# ---------------------------------------------------------------- the frontier


@invariant("L3.11", points=1, hidden=True)
def ties_in_one_column(pareto_front, draw):
    """On a grid, where many points share a cost or a quality and some share both, the front is as defined."""
    for n in (10, 40):
        points = draw.integers(0, 5, n, 2).double() - 2
        visible.expect_front(pareto_front(points), points)


@invariant("L3.11", points=1, hidden=True)
def one_point_and_many(pareto_front, draw):
    """A single point is its own front; one point can beat all others; scales and signs of the columns do not matter."""
    alone = draw.normal(1, 2)
    visible.expect_front(pareto_front(alone), alone)
    points = draw.normal(50, 2)
    points[draw.number(0, 50)] = scalar([-9.0, 9.0])
    visible.expect_front(pareto_front(points), points)
    stretched = draw.normal(40, 2) * scalar([1e9, 1e-6]) - scalar([5e9, 1.0])
    visible.expect_front(pareto_front(stretched), stretched)


@invariant("L3.11", points=1, hidden=True)
def only_the_first_n_and_the_first_of_equals(frontier_table, draw):
    """Sizes other than 1, 4, 16 and 64, and scores with many ties: the first n samples, and of equal scores the first."""
    for sizes in ((1, 2, 8), (3,), (5, 2)):
        pool, ppo = visible.sample_pool(draw, 3, 5, 9, ties=True), visible.trained_policy(draw, 3, 5)
        wanted = visible.table_twin(pool, ppo, sizes)
        answer = frontier_table(pool, ppo, sizes=sizes)
        visible.expect_columns(answer, wanted, ("n", *visible.COSTS, "latency", *visible.QUALITY, "diversity"))


@invariant("L3.11", points=1, hidden=True)
def one_seed_has_no_interval(frontier_table, draw):
    """One seed gives a table without an interval: both ends are NaN, the rest is there. Ten seeds use t of 9 degrees, two t of 1."""
    pool, ppo = visible.sample_pool(draw, 1, 4, 8), visible.trained_policy(draw, 1, 4)
    wanted = visible.table_twin(pool, ppo, (1, 8))
    answer = frontier_table(pool, ppo, (1, 8))
    visible.expect_columns(answer, wanted, (*visible.COSTS, *visible.QUALITY))
    visible.expect_no_interval(answer, wanted)
    for seeds in (10, 2):
        pool, ppo = visible.sample_pool(draw, seeds, 2, 4), visible.trained_policy(draw, seeds, 2)
        visible.expect_interval(frontier_table(pool, ppo, (1, 4)), visible.table_twin(pool, ppo, (1, 4)))


@invariant("L3.05", points=1, hidden=True)
def what_the_tokens_are(frontier_table, draw):
    """All n samples of every prompt are sampled and judged, not only the chosen one; PPO's final answers are sampled too."""
    shape = (2, 3, 16)
    pool = visible.sample_pool(draw, *shape)
    pool["tokens"] = torch.full(shape, 7)
    ppo = visible.trained_policy(draw, 2, 3)
    ppo["tokens"] = torch.full((2, 3), 11)
    answer, wanted = frontier_table(pool, ppo, (1, 4, 16)), visible.table_twin(pool, ppo, (1, 4, 16))
    for row, n in zip(visible.rows_of(answer, wanted), (1, 4, 16)):
        expect(row["sampled"], f"sampled tokens of best-of-{n}").close_to(scalar(3.0 * n * 7))
        expect(row["judged"], f"judged tokens of best-of-{n}").close_to(scalar(3.0 * n * 7 if n > 1 else 0.0))
        expect(row["trained"], f"trained tokens of best-of-{n}").close_to(scalar(0.0))
    last = answer[3]
    expect(last["sampled"], "sampled tokens of ppo").close_to(scalar(mean(ppo["sampled"].tolist()) + 33.0))
    expect(last["total"], "the total of ppo").close_to(
        scalar(33.0 + sum(mean(ppo[k].tolist()) for k in ("sampled", "trained", "judged")))
    )
