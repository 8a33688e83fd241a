"""Level 3: the package's functions, written differently; the checks on the package must accept these as well."""

from collections import Counter
from dataclasses import replace

import torch

from autograder.framework import alternative
from course.envs import proofs as rules
from course.search.consensus import BudgetedAccuracy


@alternative(of="ancestors")
def generation_by_generation(candidate, history):
    wanted, found = {candidate}, []
    for generation in reversed(history):
        for c in generation.proposed:
            if c.id in wanted:
                wanted |= set(c.parents)
                found += [c] if c.id != candidate else []
    return tuple(sorted(found, key=lambda c: c.id))


@alternative(of="check_proof")
def by_recursion(goal, proof, kernel=rules.kernel):
    try:
        tactic, parts = proof
        left = kernel(goal, tactic)
    except (TypeError, ValueError):
        return False
    if left is None or len(left) != len(parts):
        return False
    return all(by_recursion(g, part, kernel) for g, part in zip(left, parts))


@alternative(of="pooled")
def right_answers_over_questions(results):
    if len({(r.method, r.samples) for r in results}) != 1:
        raise ValueError("results must be of one budget")
    total = sum(r.questions for r in results)

    def over_all(name):
        return sum(getattr(r, name) * r.questions for r in results) / total

    names = ("accuracy", "sampled_tokens", "judged_tokens", "latency")
    return replace(results[0], questions=total, **{name: over_all(name) for name in names})


@alternative(of="select_by_process")
def loop_over_solutions(step_probs, calibrate_length=False, *, mask=None):
    best, place = None, 0
    for i, row in enumerate(step_probs):
        steps = row if mask is None else row[mask[i]]
        total = steps.log().sum() / (len(steps) if calibrate_length else 1)
        if best is None or total > best:
            best, place = total, i
    return place


@alternative(of="three_budgets")
def question_by_question(answers, reference, scores, tokens, *, k, n):
    rows = []
    for method, drawn in (("single", 1), ("consensus", k), ("rerank", n)):
        right, spent, waited = 0, 0, 0
        for q, row in enumerate(answers):
            first = row[:drawn]
            if method == "rerank":
                said = first[int(scores[q, :drawn].argmax())]
            else:
                said = Counter(first).most_common(1)[0][0]
            right += said == reference[q]
            spent += int(tokens[q, :drawn].sum())
            waited += int(tokens[q, :drawn].max())
        many = len(answers)
        judged = spent / many if method == "rerank" else 0.0
        rows.append(BudgetedAccuracy(method, drawn, right / many, many, spent / many, judged, waited / many))
    return tuple(rows)


@alternative(of="draw_pool")
def pool_on_a_copy(policy, prompts, samples, **given):
    """Samples from a copy: whatever happens to the copy, the policy stays."""
    import copy

    from course.search.pool import draw_pool

    with torch.no_grad():
        return draw_pool(copy.deepcopy(policy), prompts, samples, **given)
