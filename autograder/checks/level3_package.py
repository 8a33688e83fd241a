"""Level 3: what has no exercise is checked on the package. A mutant can stand in for each function, as it can for a student's."""

import hashlib
import itertools
import math

import torch

from autograder.checks.level3 import first_best, mean, most_frequent, scalar, short, solvable
from autograder.framework import CheckFailed, expect, invariant


def direct(function):
    """The object itself, for checks on the package's own records and models."""
    return function.function


def raises(call, kinds=(ValueError, TypeError)):
    try:
        call()
    except kinds:
        return True
    return False


def digest(*modules):
    """SHA-256 of all weights and buffers."""
    made = hashlib.sha256()
    for module in modules:
        for name, tensor in module.state_dict().items():
            made.update(name.encode() + str(tensor.dtype).encode())
            made.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


# ---------------------------------------------------------------- L3.04: selection does not train


def small_policy(seed):
    from course.models.decoder import Decoder, DecoderConfig
    from course.tasks import reviews

    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=16, heads=1, max_length=reviews.LENGTH)
    return Decoder(config, seed)


class SmallJudge(torch.nn.Module):
    """A score with weights of its own: a number for each word, summed over the response."""

    def __init__(self, words, seed):
        super().__init__()
        start = torch.randn(words, generator=torch.Generator().manual_seed(seed))
        self.worth = torch.nn.Parameter(start)

    def forward(self, batch):
        return (self.worth[batch.tokens] * batch.action_mask).sum(1)


@invariant("L3.04", home="course.search.pool")
def drawing_and_scoring_a_pool_trains_nothing(draw_pool, draw):
    """Policy and judge have the same hash before and after a pool of samples is drawn, scored and selected from."""
    from course.search.best_of import best_of_n
    from course.search.consensus import rerank
    from course.tasks import reviews
    from course.training.bandit import SAMPLING

    policy, judge = small_policy(draw.number(0, 1000)), SmallJudge(reviews.VOCAB_SIZE, draw.number(0, 1000))
    before = digest(policy), digest(judge)
    prompts = reviews.prompts(3, draw.number(0, 1000))
    pool = direct(draw_pool)(policy, prompts, 4, reward=judge, sampling=SAMPLING, seed=draw.number(0, 1000))
    expect(tuple(pool.score.shape) == (3, 4), "the scores").true("one for each of 4 samples of 3 prompts")
    for p in range(3):
        responses = [pool.batch.response(p * 4 + m) for m in range(4)]
        best = best_of_n(responses, pool.score[p], 4)
        expect(rerank(responses, pool.score[p], 4)[0] == best, "the first of the reranked").true("the best of n")
    expect(digest(policy) == before[0], "the policy's weights after selection").true("the same hash as before")
    expect(digest(judge) == before[1], "the judge's weights after selection").true("the same hash as before")


def bit_by_bit(problem):
    """A prover of the package for goals of a table: each goal is one token."""
    from course.models.decoder import DecoderConfig
    from course.search.proofs import Prover

    goals = sorted(problem.table)
    tactics = sorted({tactic for listed in problem.table.values() for tactic in listed})
    config = DecoderConfig(vocab_size=len(goals) + len(tactics), layers=1, width=16, heads=1, max_length=8)
    return Prover(config, lambda goal: (goals.index(goal), 0), len(goals), len(tactics), seed=3), tactics


@invariant("L3.04", home="course.search.proofs")
def tree_search_trains_nothing(guided_search, draw):
    """The prover's hash is the same before and after a tree search, with and without a proof at its end."""
    for _ in range(2):
        problem, _ = solvable(draw)
        prover, tactics = bit_by_bit(problem)
        before = digest(prover)
        for budget in (3, 200):
            direct(guided_search)(["g0", "g1"], tactics, problem.kernel, prover.guide, budget=budget)
            expect(digest(prover) == before, "the prover's weights after the search").true("the same hash as before")


class LearntEvaluator(torch.nn.Module):
    """An evaluator with weights: distance between a program's outputs and what a small network says."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def score(self, program):
        points = [-1.0, 0.5, 2.0]
        with torch.no_grad():
            wanted = self.net(torch.tensor(points)[:, None])[:, 0].tolist()
        errors = [executed(program, (point,)) - target for point, target in zip(points, wanted)]
        return -sum(e * e for e in errors) if all(abs(e) < 1e9 for e in errors) else -math.inf


@invariant("L3.04", home="course.search.evolution")
def evolution_trains_nothing(evolve, draw):
    """An evaluator that has weights keeps them over all generations."""
    state = torch.random.get_rng_state()
    evaluator = LearntEvaluator(draw.number(0, 1000))
    torch.random.set_rng_state(state)
    before = digest(evaluator)
    settings = {"inputs": 1, "generations": 3, "survivors": 4, "offspring": 6, "seed": draw.number(0, 1000)}
    for _ in direct(evolve)(evaluator.score, **settings):
        pass
    expect(digest(evaluator) == before, "the evaluator's weights after evolution").true("the same hash as before")


# ---------------------------------------------------------------- L3.05: compute is counted

COLUMNS = ("sampled_tokens", "trained_tokens", "judged_tokens", "scored_tokens")


@invariant("L3.05", home="course.accounting.costs")
def the_columns_sum_to_the_total(Account, draw):
    """Sampled, trained, judged and scored tokens stand apart and sum to the total; accounts add up column by column."""
    made = direct(Account)
    parts = [{name: draw.number(1, 10_000) for name in COLUMNS} for _ in range(3)]
    accounts = [made(**part) for part in parts]
    for part, account in zip(parts, accounts):
        expect({name: getattr(account, name) for name in COLUMNS} == part, "the columns").true(str(part))
        expect(account.tokens, "the total").equals(sum(part.values()))
    total = sum(accounts, made())
    for name in COLUMNS:
        expect(getattr(total, name), f"{name} of three accounts").equals(sum(part[name] for part in parts))
    expect(total.tokens, "the total of three accounts").equals(sum(sum(part.values()) for part in parts))
    for wrong in ({"sampled_tokens": -1}, {"judged_tokens": 0.5}, {"trained_tokens": float("nan")}):
        expect(raises(lambda wrong=wrong: made(**wrong)), f"an account of {wrong}").true("an error")


def workload(draw):
    from course.accounting.costs import Workload

    return Workload(draw.number(2, 9), draw.number(1, 9), draw.number(2, 30), samples=draw.number(2, 9))


@invariant("L3.05", home="course.accounting.costs")
def selection_pays_for_all_samples(best_of_n_cost, draw):
    """Best-of-n samples and judges all K responses of every prompt and trains none; one sample needs no judge."""
    from course.accounting.costs import Workload

    work = workload(draw)
    drawn = work.prompts * work.samples * work.response_length
    account = best_of_n_cost(work, 1000, 300)
    got = {name: float(getattr(account, name)) for name in COLUMNS}
    wanted = {"sampled_tokens": drawn, "trained_tokens": 0, "judged_tokens": drawn, "scored_tokens": 0}
    expect(got, "the tokens of best-of-n").close_to({name: scalar(float(n)) for name, n in wanted.items()})
    one = best_of_n_cost(Workload(work.prompts, work.prompt_length, work.response_length), 1000, 300)
    expect(one.sampled_tokens, "sampled tokens of one response each").equals(work.prompts * work.response_length)
    expect(one.judged_tokens, "judged tokens of one response each").equals(0)


@invariant("L3.05", home="course.accounting.costs")
def training_at_equal_samples(online_cost, draw):
    """A round of PPO on the samples of a best-of-n costs the same sampled tokens; training and judging come on top, in their columns."""
    from dataclasses import replace

    from course.accounting.costs import best_of_n_cost

    work = workload(draw)
    drawn = work.prompts * work.samples * work.response_length
    account = online_cost(replace(work, epochs=3), 1000, reward=300, value=1000)
    expect(account.sampled_tokens, "sampled tokens").equals(best_of_n_cost(work, 1000, 300).sampled_tokens)
    wanted = {"sampled_tokens": drawn, "trained_tokens": 3 * drawn, "judged_tokens": drawn, "scored_tokens": 2 * drawn}
    for name, tokens in wanted.items():
        expect(getattr(account, name), name).equals(tokens)
    expect(account.tokens, "the total").equals(7 * drawn)


# ---------------------------------------------------------------- L3.06: three budgets, three numbers

AIME = (("single", 1, 0.744), ("consensus", 64, 0.833), ("rerank", 1000, 0.93))  # o1 on AIME 2024: 74.4, 83.3, 93


def budgeted(method, samples, accuracy, questions=30, tokens=100.0):
    from course.search.consensus import BudgetedAccuracy

    judged = samples * tokens if method == "rerank" else 0.0
    return BudgetedAccuracy(method, samples, accuracy, questions, samples * tokens, judged, tokens)


@invariant("L3.06", home="course.search.consensus")
def numbers_of_different_budgets_have_no_mean(pooled, draw):
    """74.4 (one sample), 83.3 (vote of 64) and 93 (1000 and a reranker) stay three numbers; at one budget questions are averaged."""
    o1 = [budgeted(*row) for row in AIME]
    for row, (method, samples, accuracy) in zip(o1, AIME):
        named = row.label == f"{method}@{samples}" and f"{100 * accuracy:.1f} %" in str(row)
        expect(named, "the report of a result").true(f"{method}@{samples} beside {100 * accuracy:.1f} %")
    for few in [*itertools.combinations(o1, 2), tuple(o1), (budgeted("consensus", 8, 0.8), budgeted("consensus", 64, 0.8))]:
        mixed = raises(lambda few=few: direct(pooled)(few))
        expect(mixed, f"one number for {' and '.join(r.label for r in few)}").true("an error")
    for method, samples, _ in AIME:
        sizes, shares = [draw.number(5, 60) for _ in range(3)], draw.uniform(3).tolist()
        whole = pooled([budgeted(method, samples, a, n, 10.0 * n) for a, n in zip(shares, sizes)])
        expect(whole.accuracy, "the accuracy over all questions").close_to(
            scalar(math.fsum(a * n for a, n in zip(shares, sizes)) / sum(sizes))
        )
        expect((whole.method, whole.samples, whole.questions) == (method, samples, sum(sizes)), "the budget").true("kept")
        spent = math.fsum(10.0 * n * n for n in sizes) * samples / sum(sizes)
        expect(whole.sampled_tokens, "sampled tokens per question").close_to(scalar(spent))


@invariant("L3.06", home="course.search.consensus")
def three_numbers_from_one_pool(three_budgets, draw):
    """One sample, a vote over k and a learned choice among n, each with its own samples, tokens and latency; only a choice is judged."""
    questions, size = 12, 9
    answers = [[f"a{i}" for i in draw.integers(0, 3, size).tolist()] for _ in range(questions)]
    reference = [f"a{i}" for i in draw.integers(0, 3, questions).tolist()]
    scores, tokens = draw.normal(questions, size), draw.integers(3, 30, questions, size)
    for k, n in ((4, 9), (9, 5), (1, 1)):
        rows = three_budgets(answers, reference, scores, tokens, k=k, n=n)
        expect([row.label for row in rows] == ["single@1", f"consensus@{k}", f"rerank@{n}"], "the rows").true(
            "three, in this order"
        )
        for row, drawn in zip(rows, (1, k, n)):
            said = []
            for q in range(questions):
                first = answers[q][:drawn]
                said.append({
                    "single": first[0], "consensus": most_frequent(first), "rerank": first[first_best(scores[q, :drawn].tolist())],
                }[row.method])  # fmt: skip
            spent = mean(sum(tokens[q, :drawn].tolist()) for q in range(questions))
            wanted = {
                "accuracy": mean(float(a == b) for a, b in zip(said, reference)), "questions": questions,
                "sampled_tokens": spent, "judged_tokens": spent if row.method == "rerank" else 0.0,
                "latency": mean(max(tokens[q, :drawn].tolist()) for q in range(questions)),
            }  # fmt: skip
            for name, value in wanted.items():
                expect(float(getattr(row, name)), f"{name} of {row.label}").close_to(scalar(float(value)))


# ---------------------------------------------------------------- L3.07: a process reward model selects


@invariant("L3.07", home="course.search.process")
def the_surest_solution_is_selected(select_by_process, draw):
    """Of N solutions of different length the one with the highest product, or geometric mean, of its own steps; padding is no step."""
    for _ in range(15):
        probs = draw.uniform(6, 5, low=0.3, high=0.95)
        mask = torch.arange(5) < draw.integers(1, 6, 6)[:, None]
        for calibrate in (False, True):
            rows = [[math.log(p) for p, real in zip(*row) if real] for row in zip(probs.tolist(), mask.tolist())]
            wanted = first_best([mean(row) if calibrate else math.fsum(row) for row in rows])
            spoiled = probs.masked_fill(~mask, float("nan"))
            got = select_by_process(spoiled, calibrate, mask=mask)
            expect(got, f"the selected solution, calibrate_length={calibrate}").equals(wanted)
    long = torch.full((2, 3000), 0.5, dtype=torch.float64)
    long[1, 7] = 0.6
    expect(select_by_process(long), "the selected one of two solutions of 3000 steps").equals(1)


# ---------------------------------------------------------------- L3.08: rejection sampling


def scored_samples(draw):
    """Responses to prompts in interleaved groups, with a score for each and ties among them."""
    from course.tasks.records import batch_of

    sizes = [draw.number(2, 6) for _ in range(4)]
    group_id = draw.groups(sizes)
    names = group_id.unique().tolist()
    rows = [((1, 2 + names.index(g)), tuple(draw.integers(10, 40, draw.number(1, 5)).tolist()) + (9,)) for g in group_id.tolist()]
    scores = draw.integers(0, 5, len(rows)).double() + 10 * torch.tensor([names.index(g) for g in group_id.tolist()])
    return rows, batch_of(rows, 0), scores, group_id


SELECTIONS = ((1, None), (2, None), (2, 13.0))


@invariant("L3.08", home="course.search.rejection")
def the_best_of_each_group_become_demonstrations(select, draw):
    """The best `keep` of each prompt's own samples that reach the minimum, in the order drawn, each saying where it comes from."""
    rows, batch, scores, group_id = scored_samples(draw)
    s, g = scores.tolist(), group_id.tolist()
    for keep, minimum in SELECTIONS:
        wanted = []
        for i in range(len(rows)):
            ahead = [j for j in range(len(rows)) if g[j] == g[i] and (s[j] > s[i] or (s[j] == s[i] and j < i))]
            if len(ahead) < keep and (minimum is None or s[i] >= minimum):
                wanted.append(i)
        found = select(
            batch, scores, group_id, policy_version="policy v7", judge="judge v2", family=lambda p: f"f{p[1]}",
            keep=keep, minimum=minimum,
        )  # fmt: skip
        got = [(d.prompt, d.response) for d in found.chosen]
        same = got == [rows[i] for i in wanted]
        expect(same, f"the demonstrations with keep={keep}, minimum={minimum}").true(f"samples {wanted}, in this order")
        for demonstration in found.chosen:
            source = demonstration.provenance
            expect(type(demonstration).__name__, "the record").equals("Demonstration")
            expect(source.policy_version, "the version of the policy on record").equals("policy v7")
            expect(source.annotator, "who judged, on record").equals("judge v2")
            expect(source.procedure, "the procedure on record").equals("sampled")
            named = "judge v2" in source.selection_rule and str(keep) in source.selection_rule
            expect(named, "the selection rule on record").true(f"the judge and how many were kept, got {source.selection_rule!r}")
            expect(demonstration.family, "the family").equals(f"f{demonstration.prompt[1]}")


@invariant("L3.08", home="course.search.rejection")
def rejected_samples_stay_in_the_log(select, draw):
    """The log holds every sample in the order drawn, chosen or not, with its score, its rank among its prompt's, and the reason."""
    rows, batch, scores, group_id = scored_samples(draw)
    s, g = scores.tolist(), group_id.tolist()
    for keep, minimum in SELECTIONS:
        found = select(
            batch, scores, group_id, policy_version="policy v7", judge="judge v2", family=lambda p: "f",
            keep=keep, minimum=minimum,
        )  # fmt: skip
        expect(len(found.log), "the number of samples in the log").equals(len(rows))
        for i, entry in enumerate(found.log):
            rank = 1 + sum(g[j] == g[i] and (s[j] > s[i] or (s[j] == s[i] and j < i)) for j in range(len(rows)))
            reason = "beaten" if rank > keep else "chosen"
            reason = "below minimum" if minimum is not None and s[i] < minimum else reason
            expect((entry.prompt, entry.response) == rows[i], f"sample {i} of the log").true("the sample as it was drawn")
            expect(entry.score, f"the score of sample {i}").equals(s[i])
            expect(entry.group, f"the group of sample {i}").equals(g[i])
            expect(entry.rank, f"the rank of sample {i}").equals(rank)
            expect(entry.verdict, f"what became of sample {i}").equals(reason)
            expect(entry.policy_version, f"the policy's version of sample {i}").equals("policy v7")
        expect(len(found.rejected), "the number of rejected samples").equals(len(rows) - len(found.chosen))


# ---------------------------------------------------------------- L3.09: the kernel and the package's search


def true_in(formula, world):
    """Value of a formula in prefix notation, and what is left of the text behind it."""
    sign, rest = formula[0], formula[1:]
    if sign not in "&|>":
        return (sign != "F" and world[sign]), rest
    left, rest = true_in(rest, world)
    right, rest = true_in(rest, world)
    return {"&": left and right, "|": left or right, ">": right or not left}[sign], rest


WORLDS = [dict(zip("pqrst", values)) for values in itertools.product((False, True), repeat=5)]


def valid(goal):
    """Whether the target is true in every world in which all hypotheses are."""
    return all(true_in(goal.target, w)[0] for w in WORLDS if all(true_in(h, w)[0] for h in goal.hypotheses))


def random_text(draw, size):
    if size == 0:
        return draw.choice("ppqqrstF")
    left = draw.number(0, size)
    return draw.choice("&|>>") + random_text(draw, left) + random_text(draw, size - 1 - left)


STEPS = (  # hypotheses, target, tactic, what is left
    ((), ">pp", "intro", [(("p",), "p")]),
    (("p",), "p", "assumption", []),
    (("F",), "q", "assumption", []),
    (("q",), "p", "assumption", None),
    (("p",), "&pq", "split", [(("p",), "p"), (("p",), "q")]),
    (("p",), "|pq", "left", [(("p",), "p")]),
    (("p",), "|pq", "right", [(("p",), "q")]),
    (("p",), "|pq", "split", None),
    (("|pq", "s"), "r", "cases 0", [(("s", "p"), "r"), (("s", "q"), "r")]),
    (("s", "&pq"), "r", "cases 1", [(("s", "p", "q"), "r")]),
    (("p",), "r", "cases 0", None),
    (("p",), "r", "cases 1", None),
    ((">pq",), "r", "use 0", [((">pq",), "p"), (("q",), "r")]),
    ((">pq", "p"), "q", "use 0", [((">pq", "p"), "p")]),
    (("p",), "q", "use 0", None),
    (("p",), "q", "intro", None),
)


def sequents(goals):
    return None if goals is None else sorted((tuple(sorted(h)), t) for h, t in goals)


@invariant("L3.09", home="course.envs.proofs")
def each_tactic_leaves_its_goals(kernel, draw):
    """Sixteen steps by hand: what is left to show after each, nothing where the branch is closed, None where a tactic does not apply."""
    from course.envs.proofs import Goal

    for hypotheses, target, tactic, left in STEPS:
        goal = Goal(hypotheses, target)
        got = kernel(goal, tactic)
        got = None if got is None else [(g.hypotheses, g.target) for g in got]
        said = f"what {tactic!r} leaves of {', '.join(hypotheses)} |- {target}"
        expect(sequents(got) == sequents(left), said).true(f"{left}; got {short(got)}")
        expect((goal.hypotheses, goal.target) == (hypotheses, target), "the goal itself").true("unchanged")


@invariant("L3.09", home="course.envs.proofs")
def nothing_false_is_accepted(kernel, draw):
    """On random goals, a tactic whose remaining goals all hold in every world was used on a goal that does."""
    from course.envs.proofs import TACTICS, Goal

    closed = open_ended = 0
    for _ in range(120):
        goal = Goal(
            tuple({random_text(draw, draw.number(0, 3)): None for _ in range(draw.number(0, 4))}),
            random_text(draw, draw.number(0, 3)),
        )
        for tactic in TACTICS:
            left = kernel(goal, tactic)
            if left is not None and all(valid(g) for g in left):
                closed += 1
                if not valid(goal):
                    raise CheckFailed(
                        f"{tactic!r} on {goal.hypotheses} |- {goal.target}: expected a goal left that is false, got none"
                    )
            open_ended += left is None
    expect(min(closed, open_ended), "steps accepted, and steps that do not apply").at_least(20)


def tampered(draw, proof, tactics):
    """A proof with one of its nodes changed: another tactic, a part too few, a part too many, or parts exchanged."""
    tactic, parts = proof
    if parts and draw.number(0, 3):
        k = draw.number(0, len(parts))
        return (tactic, parts[:k] + (tampered(draw, parts[k], tactics),) + parts[k + 1 :])
    change = draw.number(0, 4)
    if change == 0:
        return (draw.choice(tactics), parts)
    if change == 1:
        return (tactic, parts[1:])
    if change == 2:
        return (tactic, (*parts, (tactic, ())))
    return (tactic, parts[::-1])


@invariant("L3.09", home="course.envs.proofs")
def a_whole_proof_is_checked(check_proof, draw):
    """A proof counts only if every step of it runs again and no goal is left over; changed proofs are found out wherever the change is."""
    verdicts = set()
    for _ in range(12):
        problem, _ = solvable(draw)
        proof = problem.proof("g0")
        expect(check_proof("g0", proof, problem.kernel), "a right proof").true("accepted")
        for _ in range(6):
            changed = tampered(draw, proof, ["t0", "t1", "t2"])
            try:
                problem.cost_of(changed, "g0")
                good = True
            except CheckFailed:
                good = False
            verdicts.add(good)
            got = check_proof("g0", changed, problem.kernel)
            expect(bool(got) == good, f"the verdict on {short(changed)}").true("accepted" if good else "refused")
    expect(len(verdicts), "kinds of verdicts seen").equals(2)


def even_guide(tactics):
    """Knows nothing: every tactic alike, every goal one step away."""

    def guide(goals):
        return [[1 / len(tactics)] * len(tactics)] * len(goals), [1.0] * len(goals), [3] * len(goals)

    return guide


@invariant("L3.09", home="course.search.proofs")
def what_the_tree_search_finds_is_a_proof(guided_search, draw):
    """Every proof found runs through the kernel, provable goals are proved with a large budget, and nothing proves an unprovable goal."""
    for _ in range(8):
        problem, _ = solvable(draw, goals=7)
        costs = problem.costs()
        goals = sorted(problem.table)
        for result in guided_search(goals, ["t0", "t1", "t2"], problem.kernel, even_guide("abc"), budget=4000):
            if result.proof is None:
                expect(result.goal not in costs, f"{result.goal} without a proof").true(
                    f"a proof of cost {costs.get(result.goal)}"
                )
            else:
                expect(result.goal in costs, f"a proof of {result.goal}, which has none").true("None")
                expect(problem.cost_of(result.proof, result.goal), "the cost of the proof").at_least(costs[result.goal])


@invariant("L3.09", home="course.search.proofs")
def a_search_says_what_it_spent(guided_search, draw):
    """Kernel calls, invalid ones too, and goals and tokens read by the network are on record and within the budget."""
    for budget in (2, 9, 60):
        problem, _ = solvable(draw, least=4)
        seen = {"calls": 0, "goals": 0}
        even = even_guide("abc")

        def counted(goal, tactic, seen=seen, problem=problem):
            seen["calls"] += 1
            return problem.kernel(goal, tactic)

        def guide(goals, seen=seen, even=even):
            seen["goals"] += len(goals)
            return even(goals)

        (result,) = guided_search(["g0"], ["t0", "t1", "t2"], counted, guide, budget=budget)
        expect(result.compute.kernel_calls, "kernel calls on record").equals(seen["calls"])
        expect(result.compute.kernel_calls, "kernel calls").at_most(budget)
        expect(result.compute.network_calls, "goals read, on record").equals(seen["goals"])
        expect(result.compute.read_tokens, "tokens read, on record").equals(3 * seen["goals"])


@invariant("L3.09", home="course.cases.alphaproof")
def only_verified_proofs_are_kept(keep_verified, draw):
    """What the kernel refuses is not kept whoever found it; of two proofs of a goal the cheaper one stays, with those of its subgoals."""
    from course.envs.proofs import Goal
    from course.search.proofs import ProofCompute, SearchResult

    def found(goal, proof):
        return SearchResult(goal, proof, ProofCompute(), False)

    a, b = Goal(("p",), ">qp"), Goal((), ">pp")
    after_a = Goal(("p", "q"), "p")
    good = ("intro", (("assumption", ()),))
    pair = Goal(("p", "&pq"), "p")
    dear, cheap = ("cases 1", (("assumption", ()),)), ("assumption", ())
    wrong = [
        found(b, ("assumption", ())), found(b, ("intro", ())),
        found(b, ("intro", (("assumption", ()), ("assumption", ())))), found(b, None),
        found(b, ("split", (("assumption", ()),))),
    ]  # fmt: skip
    results = [found(a, good), *wrong]
    for order in ((dear, cheap), (cheap, dear)):
        given = draw.shuffled(results) + [found(pair, proof) for proof in order]
        kept = keep_verified(given, {})
        expect(b not in kept, "a goal whose proofs the kernel refuses").true("not kept")
        expect(kept.get(a) == good, "the proof that the kernel accepts").true("kept")
        expect(kept.get(after_a) == ("assumption", ()), "the proof of its subgoal").true("kept")
        expect(kept.get(pair) == cheap, "the proof of a goal with two").true("the cheaper one")


# ---------------------------------------------------------------- L3.10: evolution is search


def executed(program, inputs):
    """The value of a program, step by step; NaN where it has none."""
    if program.op == "number":
        return program.value
    if program.op == "x":
        return float(inputs[int(program.value)]) if int(program.value) < len(inputs) else math.nan
    left, right = (executed(argument, inputs) for argument in program.arguments)
    if math.isnan(left) or math.isnan(right) or (program.op == "/" and right == 0):
        return math.nan
    result = {
        "+": lambda: left + right, "-": lambda: left - right, "*": lambda: left * right, "/": lambda: left / right,
        "min": lambda: min(left, right), "max": lambda: max(left, right),
    }[program.op]()  # fmt: skip
    return result if math.isfinite(result) else math.nan


LONGEST = 21


def run_of(evolve, draw, generations=6):
    """A run of evolution with everything that its evaluator was asked, in order."""
    a, b = draw.number(1, 4), draw.number(-3, 4)
    points = [((float(v),), float(v * v + a * v + b)) for v in range(-3, 4)]
    asked = []

    def evaluate(program):
        asked.append(program)
        return fitness(program, points)

    history, counts = [], []
    settings = {"inputs": 1, "generations": generations, "survivors": 5, "offspring": 12, "longest": LONGEST}
    for generation in direct(evolve)(evaluate, seed=draw.number(0, 1000), **settings):
        history.append(generation)
        counts.append(len(asked))
    return history, counts, points


def fitness(program, points):
    errors = [executed(program, inputs) - target for inputs, target in points]
    return -math.fsum(e * e for e in errors) / len(errors) if all(abs(e) < 1e100 for e in errors) else -math.inf


@invariant("L3.10", home="course.search.evolution")
def every_proposal_is_executed(evolve, draw):
    """All proposals of a generation are on record, failed ones too, each with the score that running it gives; executions are counted."""
    history, counts, points = run_of(evolve, draw)
    expect(len(history), "the generations").equals(7)
    for generation, count in zip(history, counts):
        expect(len(generation.proposed), f"the proposals of generation {generation.index} on record").equals(12)
        expect(generation.evaluations, "programs executed, on record").equals(count)
        for candidate in generation.proposed:
            wanted = fitness(candidate.program, points) if candidate.program.size <= LONGEST else -math.inf
            same = candidate.score == wanted or abs(candidate.score - wanted) <= 1e-9 * abs(wanted)
            expect(same, f"the score of {short(str(candidate.program))}").true(f"{wanted:.6g}; got {candidate.score:.6g}")


@invariant("L3.10", home="course.search.evolution")
def the_best_score_never_falls(evolve, draw):
    """The survivors are the best of parents and children together, so that the best score of a generation is never below the last one's."""
    history, _, _ = run_of(evolve, draw, generations=12)
    for before, after in itertools.pairwise(history):
        expect(after.best.score, f"the best score of generation {after.index}").at_least(before.best.score)
        scores = [c.score for c in after.survivors]
        expect(scores == sorted(scores, reverse=True), "the survivors").true("the best first")
        best = max(c.score for c in (*before.survivors, *after.proposed))
        expect(after.best.score == best, "the best survivor").true(f"the best of parents and children, {best:.6g}")
        ids = {c.id for c in (*before.survivors, *after.proposed)}
        expect({c.id for c in after.survivors} <= ids, "the survivors").true("parents or children of this generation")
    expect(history[-1].best.score > history[0].best.score, "the last best score").true("above the first one")


@invariant("L3.10", home="course.search.evolution")
def parents_are_on_record(evolve, draw):
    """Every proposal names its parents, survivors of the generation before: none at the start, one of a mutation, two of a crossover."""
    history, _, _ = run_of(evolve, draw)
    ids = [c.id for generation in history for c in generation.proposed]
    expect(len(set(ids)), "different ids").equals(len(ids))
    number = {"start": 0, "mutation": 1, "crossover": 2}
    for k, generation in enumerate(history):
        living = {c.id for c in history[k - 1].survivors} if k else set()
        for c in generation.proposed:
            expect(len(c.parents), f"the number of parents of a {c.proposal}").equals(number[c.proposal])
            expect(set(c.parents) <= living, f"the parents of candidate {c.id}").true("survivors of the generation before")
    expect({c.proposal for g in history[1:] for c in g.proposed} == {"mutation", "crossover"}, "the proposals").true(
        "of both kinds"
    )


@invariant("L3.10", home="course.search.evolution")
def all_ancestors_are_found(ancestors, draw):
    """The ancestors of a candidate are its parents, their parents, and so on to the start: each once, the oldest first."""
    from course.search.evolution import Candidate, Generation, x

    history, everything = [], []
    for index in range(5):
        made = []
        for k in range(4):
            earlier = draw.shuffled([c.id for c in everything])[: draw.number(1, 3)] if index else []
            made.append(
                Candidate(10 * index + k, x(), float(index), tuple(earlier), "crossover" if len(earlier) == 2 else "mutation")
            )
        everything += made
        history.append(Generation(index, tuple(made), tuple(made), len(everything)))
    by_id = {c.id: c for c in everything}
    for candidate in everything:
        found, waiting = set(), list(candidate.parents)
        while waiting:
            parent = waiting.pop()
            found.add(parent)
            waiting += by_id[parent].parents
        got = [c.id for c in ancestors(candidate.id, history)]
        expect(got == sorted(found), f"the ancestors of {candidate.id}").true(f"{sorted(found)}; got {got}")


# ---------------------------------------------------------------- L3.12: test-time RL changes a copy


@invariant("L3.12", home="course.cases.alphaproof")
def adaptation_changes_a_copy(adapt_to, draw):
    """Adapting to one target trains other weights than the base's, which has the same hash before and after, by hand and on record."""
    base, result = adapted(adapt_to, draw)
    expect(result.base_before == result.base_after, "the base's hash on record after adaptation").true("the one before")
    expect(result.adapted_weights != result.base_before, "the adapted weights' hash on record").true("another than the base's")
    expect(base[0] == base[1], "the base's weights after adaptation").true("the same hash as before")


@invariant("L3.12", home="course.cases.alphaproof")
def adaptation_pays_for_its_training(adapt_to, draw):
    """The bill of adaptation holds searching the variants, training and the last search; plain search got as much and trained nothing."""
    _, result = adapted(adapt_to, draw)
    plain, spent, last = result.plain_compute, result.adapted_compute, result.adapted.compute
    expect(spent.trained_tokens, "trained tokens of adaptation").at_least(1)
    expect(plain.trained_tokens, "trained tokens of plain search").equals(0)
    expect(spent.kernel_calls - last.kernel_calls, "kernel calls of adaptation before its last search").at_least(1)
    expect(spent.read_tokens - last.read_tokens, "tokens read by adaptation before its last search").at_least(1)
    expect(plain.kernel_calls, "kernel calls of plain search").at_least(1)
    if result.plain.proof is None and not result.plain.refuted:
        expect(plain.total, "the compute of plain search").at_least(0.8 * spent.total)
    expect(plain.total, "the compute of plain search").at_most(1.5 * spent.total)


def adapted(adapt_to, draw):
    """A small run: the hashes of the base before and after it, and what it reports."""
    from course.cases.alphaproof import new_prover
    from course.envs.proofs import Goal, problems

    base, target = new_prover(draw.number(0, 1000)), problems(1, draw.number(0, 1000))[0]
    written = {Goal((atom,), atom): ("assumption", ()) for atom in "pq"} | {Goal((), ">pp"): ("intro", (("assumption", ()),))}
    before = digest(base)
    settings = {"variants_n": 4, "variant_budget": 15, "steps": 1, "final_budget": 10, "seed": draw.number(0, 1000)}
    result = direct(adapt_to)(base, target, written, **settings)
    return (before, digest(base)), result
