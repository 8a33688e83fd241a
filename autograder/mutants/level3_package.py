"""Level 3: mistakes in the package's own functions. Each docstring says what went wrong."""

import math
import statistics
from dataclasses import replace

import torch

from autograder.framework import mutant
from course.accounting import costs
from course.cases import alphaproof
from course.envs import proofs as rules
from course.search import consensus, evolution, frontier, pool, process, proofs, rejection

# ---------------------------------------------------------------- L3.04: selection that trains


def _nudge(model, size=1e-3):
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size)


@mutant(of="draw_pool", kills="L3.04")
def imitates_its_best(policy, prompts, samples, **given):
    """This looks like selection that takes a step towards its own best samples: that is training, and the base policy is gone."""
    drawn = pool.draw_pool(policy, prompts, samples, **given)
    best = drawn.batch[drawn.score.argmax(1) + torch.arange(len(drawn.score)) * samples]
    logp = torch.log_softmax(policy(best.tokens, best.attention_mask)[:, :-1], -1)
    chosen = logp.gather(-1, best.tokens[:, 1:, None])[..., 0]
    loss = -(chosen * best.action_mask[:, 1:]).sum() / best.action_mask.sum()
    slopes = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
    with torch.no_grad():
        for weight, slope in zip(policy.parameters(), slopes):
            if slope is not None:
                weight.sub_(0.01 * slope)
    return drawn


@mutant(of="draw_pool", kills="L3.04")
def decays_the_policy(policy, prompts, samples, **given):
    """This looks like an optimiser that is still attached: its weight decay moves the policy although nothing was learnt."""
    drawn = pool.draw_pool(policy, prompts, samples, **given)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1 - 1e-4)
    return drawn


@mutant(of="draw_pool", kills="L3.04")
def adapts_the_judge(policy, prompts, samples, *, reward, **given):
    """This looks like a judge that learns from the pool: the same response gets another score afterwards."""
    drawn = pool.draw_pool(policy, prompts, samples, reward=reward, **given)
    _nudge(reward)
    return drawn


@mutant(of="draw_pool", kills="L3.04")
def samples_in_half_precision(policy, prompts, samples, **given):
    """This looks like weights rounded for sampling and not restored: the policy that is left is another one."""
    drawn = pool.draw_pool(policy, prompts, samples, **given)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.copy_(weight.half())
    return drawn


@mutant(of="guided_search", kills="L3.04")
def learns_while_it_searches(goals, tactics, kernel, guide, **settings):
    """This looks like a search that trains its prover on the way: with changed weights it is no plain search any more."""
    results = proofs.guided_search(goals, tactics, kernel, guide, **settings)
    if hasattr(guide, "__self__"):
        _nudge(guide.__self__, 1e-4)
    return results


@mutant(of="guided_search", kills="L3.04")
def fits_the_value_head(goals, tactics, kernel, guide, **settings):
    """This looks like a value head fitted to the costs found: one head is a part of the weights too."""
    results = proofs.guided_search(goals, tactics, kernel, guide, **settings)
    if hasattr(guide, "__self__"):
        _nudge(guide.__self__.value.out, 1e-2)
    return results


@mutant(of="evolve", kills="L3.04")
def evaluator_drifts(evaluate, **settings):
    """This looks like an evaluator that is trained between generations: the scores of two generations have no common scale."""
    for generation in evolution.evolve(evaluate, **settings):
        if hasattr(evaluate, "__self__"):
            _nudge(evaluate.__self__)
        yield generation


# ---------------------------------------------------------------- L3.05: accounts


@mutant(of="Account", kills="L3.05")
class ForgetsTheJudge(costs.Account):
    """This looks like a total without judged tokens: they have a column and are paid for."""

    @property
    def tokens(self):
        return self.sampled_tokens + self.trained_tokens + self.scored_tokens


@mutant(of="Account", kills="L3.05")
class CountsTheLargestColumn(costs.Account):
    """This looks like the largest column in place of the sum: sampling, training and judging are all paid for."""

    @property
    def tokens(self):
        return max(self.sampled_tokens, self.trained_tokens, self.judged_tokens, self.scored_tokens)


@mutant(of="Account", kills="L3.05")
class KeepsTheLast(costs.Account):
    """This looks like accounts that replace each other: tokens of one run after another add up."""

    def __add__(self, other):
        return other if isinstance(other, costs.Account) else NotImplemented


@mutant(of="Account", kills="L3.05")
class TakesTheMost(costs.Account):
    """This looks like the larger of two accounts: that is right for memory held at one time, and for nothing else."""

    def __add__(self, other):
        pairs = {f: max(getattr(self, f), getattr(other, f)) for f in self.__dataclass_fields__}
        return type(self)(**pairs)


@mutant(of="best_of_n_cost", kills="L3.05")
def chosen_sample_only(work, policy, reward):
    """This looks like the price of one sample per prompt: the K - 1 that were not chosen have been sampled and judged as well."""
    account = costs.best_of_n_cost(work, policy, reward)
    one = work.prompts * work.response_length
    return replace(account, sampled_tokens=one, judged_tokens=one if work.samples > 1 else 0)


@mutant(of="best_of_n_cost", kills="L3.05")
def choosing_is_free(work, policy, reward):
    """This looks like best-of-n without the judge's reading: selection is paid in judged tokens."""
    return replace(costs.best_of_n_cost(work, policy, reward), judged_tokens=0)


@mutant(of="best_of_n_cost", kills="L3.05")
def single_samples_are_judged(work, policy, reward):
    """This looks like a judge for single samples: where there is one there is nothing to choose."""
    return replace(costs.best_of_n_cost(work, policy, reward), judged_tokens=work.response_tokens)


@mutant(of="online_cost", kills="L3.05")
def epochs_are_free(work, policy, **given):
    """This looks like training tokens counted once: every epoch passes over them again."""
    return replace(costs.online_cost(work, policy, **given), trained_tokens=work.response_tokens)


@mutant(of="online_cost", kills="L3.05")
def samples_counted_as_training(work, policy, **given):
    """This looks like sampled and trained tokens in one column: then nothing can be compared at equal samples."""
    account = costs.online_cost(work, policy, **given)
    return replace(account, sampled_tokens=account.sampled_tokens + account.trained_tokens, trained_tokens=0)


# ---------------------------------------------------------------- L3.06: budgets


@mutant(of="pooled", kills="L3.06")
def mixes_budgets(results):
    """This looks like a mean over results of different budgets: 74.4 of one sample and 93 of a thousand have no mean."""
    if len({r.label for r in results}) == 1:
        return consensus.pooled(results)
    return consensus.pooled([replace(r, method="consensus", samples=8, judged_tokens=0.0) for r in results])


@mutant(of="pooled", kills="L3.06")
def reports_the_best(results):
    """This looks like the best number of all budgets: with a thousand samples and a reranker in it, it is no single answer's."""
    return max(results, key=lambda r: r.accuracy)


@mutant(of="pooled", kills="L3.06")
def same_method_is_enough(results):
    """This looks like a check of the method alone: a vote over 8 and a vote over 64 are two budgets."""
    if len({r.method for r in results}) > 1:
        raise ValueError("results must be of one method")
    return consensus.pooled([replace(r, samples=results[0].samples) for r in results])


@mutant(of="pooled", kills="L3.06")
def sets_count_alike(results):
    """This looks like a mean over sets: a set of 60 questions says more than one of 5."""
    whole = consensus.pooled(results)
    return replace(whole, accuracy=statistics.fmean(r.accuracy for r in results))


@mutant(of="three_budgets", kills="L3.06")
def votes_of_everybody(answers, reference, scores, tokens, *, k, n):
    """This looks like a vote over the whole pool under the name of k: the number belongs to another budget."""
    size = scores.shape[1]
    one, _, reranked = consensus.three_budgets(answers, reference, scores, tokens, k=k, n=n)
    _, vote, _ = consensus.three_budgets(answers, reference, scores, tokens, k=size, n=n)
    return one, replace(vote, samples=k), reranked


@mutant(of="three_budgets", kills="L3.06")
def choice_without_a_judge(answers, reference, scores, tokens, *, k, n):
    """This looks like a reranker that costs nothing: it reads all n answers."""
    one, vote, reranked = consensus.three_budgets(answers, reference, scores, tokens, k=k, n=n)
    return one, vote, replace(reranked, judged_tokens=0.0)


@mutant(of="three_budgets", kills="L3.06")
def any_right_answer_counts(answers, reference, scores, tokens, *, k, n):
    """This looks like "some answer of n was right" as the accuracy of a choice: that is pass@n, and nobody has chosen yet."""
    one, vote, reranked = consensus.three_budgets(answers, reference, scores, tokens, k=k, n=n)
    return one, vote, replace(reranked, accuracy=statistics.fmean(r in row[:n] for row, r in zip(answers, reference)))


@mutant(of="three_budgets", kills="L3.06")
def one_budget_for_all(answers, reference, scores, tokens, *, k, n):
    """This looks like the tokens of the largest budget beside every number: each has its own."""
    most = max(k, n)
    one, vote, reranked = consensus.three_budgets(answers, reference, scores, tokens, k=k, n=n)
    spent = float(tokens[:, :most].double().sum(1).mean())
    return tuple(replace(row, sampled_tokens=spent) for row in (one, vote, reranked))


@mutant(of="three_budgets", kills="L3.06")
def single_is_the_average(answers, reference, scores, tokens, *, k, n):
    """This looks like the mean accuracy of all samples at the price of one: what one user got is the first sample."""
    one, vote, reranked = consensus.three_budgets(answers, reference, scores, tokens, k=k, n=n)
    share = statistics.fmean(a == r for row, r in zip(answers, reference) for a in row)
    return replace(one, accuracy=share), vote, reranked


# ---------------------------------------------------------------- L3.07: selection by steps


def _place(scores):
    return int(torch.as_tensor(scores).argmax())


@mutant(of="select_by_process", kills="L3.07")
def products_underflow(step_probs, calibrate_length=False, *, mask=None):
    """This looks like products compared as numbers: after thousands of steps all are 0, and the first one wins."""
    return _place(process.process_score(step_probs, calibrate_length, mask=mask))


@mutant(of="select_by_process", kills="L3.07")
def padding_is_certain_to_be_wrong(step_probs, calibrate_length=False, *, mask=None):
    """This looks like padded steps that take part: with probability 0 they rule out every shorter solution."""
    real = torch.ones_like(step_probs, dtype=torch.bool) if mask is None else mask
    return _place(torch.where(real, step_probs, 0.01).log().sum(1))


@mutant(of="select_by_process", kills="L3.07")
def longest_divides_all(step_probs, calibrate_length=False, *, mask=None):
    """This looks like one length for all: each solution is calibrated by the number of its own steps."""
    return _place(process.process_log_score(step_probs, False, mask=mask))


# ---------------------------------------------------------------- L3.08: rejection sampling


def _rebuilt(log):
    """A selection whose demonstrations fit the changed log."""

    def of(entry):
        source = rejection.Provenance(
            entry.policy_version, "sampled", "not shown", "best 1 by judge v2, best 2", "judge v2", "policy v7"
        )
        return rejection.Demonstration(entry.prompt, entry.response, source, f"f{entry.prompt[1]}")

    return rejection.Selection(tuple(of(entry) for entry in log if entry.verdict == "chosen"), tuple(log))


@mutant(of="select", kills="L3.08")
def forgets_what_it_rejected(samples, scores, group_id, **given):
    """This looks like a log of the chosen samples only: what the policy really does, hard prompts above all, can't be seen any more."""
    found = rejection.select(samples, scores, group_id, **given)
    return rejection.Selection(found.chosen, tuple(entry for entry in found.log if entry.verdict == "chosen"))


@mutant(of="select", kills="L3.08")
def provenance_of_people(samples, scores, group_id, **given):
    """This looks like chosen samples filed as written by people: a model's own words come back as somebody else's."""
    found = rejection.select(samples, scores, group_id, **given)
    source = rejection.Provenance("people", "written", "not shown", "all")
    return rejection.Selection(tuple(replace(d, provenance=source) for d in found.chosen), found.log)


@mutant(of="select", kills="L3.08")
def best_of_all_prompts(samples, scores, group_id, **given):
    """This looks like the best samples of the whole batch: easy prompts take all the places of the hard ones."""
    found = rejection.select(samples, scores, group_id, **given)
    best = scores.argmax()
    log = [replace(e, verdict="chosen" if i == int(best) else "beaten") for i, e in enumerate(found.log)]
    return _rebuilt(log)


@mutant(of="select", kills="L3.08")
def keeps_the_worst(samples, scores, group_id, **given):
    """This looks like scores taken for losses: the worst samples become the demonstrations."""
    minimum = given.pop("minimum", None)
    found = rejection.select(samples, -scores, group_id, **given)
    log = [replace(e, score=-e.score) for e in found.log]
    log = [replace(e, verdict="below minimum") if minimum is not None and e.score < minimum else e for e in log]
    return _rebuilt(log)


@mutant(of="select", kills="L3.08")
def no_lower_limit(samples, scores, group_id, *, minimum=None, **given):
    """This looks like the best of each prompt whatever its score: the best of a bad lot is taught."""
    return rejection.select(samples, scores, group_id, **given)


@mutant(of="select", kills="L3.08")
def scores_left_out_of_the_log(samples, scores, group_id, **given):
    """This looks like a log without scores: nobody can say later why a sample was rejected."""
    found = rejection.select(samples, scores, group_id, **given)
    return rejection.Selection(found.chosen, tuple(replace(entry, score=0.0) for entry in found.log))


@mutant(of="select", kills="L3.08")
def version_not_kept(samples, scores, group_id, *, policy_version, **given):
    """This looks like a log that does not say which version of the policy spoke."""
    return rejection.select(samples, scores, group_id, policy_version="latest", **given)


# ---------------------------------------------------------------- L3.09: kernel and search


@mutant(of="kernel", kills="L3.09")
def half_of_a_conjunction(goal, tactic):
    """This looks like `split` that leaves one side only: an AND needs both."""
    left = rules.kernel(goal, tactic)
    return left[:1] if tactic == "split" and left else left


@mutant(of="kernel", kills="L3.09")
def one_case_is_enough(goal, tactic):
    """This looks like `cases` on "A or B" that leaves the first case only: nobody said that it is A."""
    left = rules.kernel(goal, tactic)
    return left[:1] if tactic.startswith("cases") and left else left


@mutant(of="kernel", kills="L3.09")
def premise_for_free(goal, tactic):
    """This looks like `use` that never shows the premise: from "A implies B" alone nothing follows."""
    left = rules.kernel(goal, tactic)
    return left[1:] if tactic.startswith("use") and left else left


@mutant(of="kernel", kills="L3.09")
def assumption_by_resemblance(goal, tactic):
    """This looks like a search for the target inside the text of a hypothesis: "p implies q" is not q."""
    if tactic == "assumption":
        return () if any(goal.target in h for h in goal.hypotheses) or "F" in goal.hypotheses else None
    return rules.kernel(goal, tactic)


@mutant(of="kernel", kills="L3.09")
def refusal_proves(goal, tactic):
    """This looks like no goals left where a tactic does not apply: an invalid tactic fails, it does not prove."""
    return rules.kernel(goal, tactic) or ()


@mutant(of="kernel", kills="L3.09")
def either_side_holds(goal, tactic):
    """This looks like `left` and `right` that close the goal at once: the side that was named is still to be shown."""
    left = rules.kernel(goal, tactic)
    return () if tactic in ("left", "right") and left else left


def _walk(goal, proof, kernel, *, lengths=True, every=all):
    left = kernel(goal, proof[0])
    if left is None or (lengths and len(left) != len(proof[1])):
        return False
    return every(_walk(g, part, kernel, lengths=lengths, every=every) for g, part in zip(left, proof[1])) if left else True


@mutant(of="check_proof", kills="L3.09")
def goals_left_over(goal, proof, kernel=rules.kernel):
    """This looks like zip over goals and subproofs of different number: a goal without a proof is passed over."""
    return _walk(goal, proof, kernel, lengths=False)


@mutant(of="check_proof", kills="L3.09")
def first_step_only(goal, proof, kernel=rules.kernel):
    """This looks like a check of the first tactic: a proof can go wrong at any step."""
    left = kernel(goal, proof[0])
    return left is not None and len(left) == len(proof[1])


@mutant(of="check_proof", kills="L3.09")
def one_branch_is_enough(goal, proof, kernel=rules.kernel):
    """This looks like any() where all() is meant: every branch of a proof must hold."""
    return _walk(goal, proof, kernel, every=any)


@mutant(of="check_proof", kills="L3.09")
def believes_the_prover(goal, proof, kernel=rules.kernel):
    """This looks like a proof accepted because somebody found one: the kernel must run it again."""
    return proof is not None


def _each(results, change):
    return [change(result) for result in results]


@mutant(of="guided_search", kills="L3.09")
def one_goal_of_an_and(goals, tactics, kernel, guide, **settings):
    """This looks like a search that proves one goal of an AND node and forgets the others."""

    def first(goal, tactic):
        left = kernel(goal, tactic)
        return left[:1] if left else left

    return proofs.guided_search(goals, tactics, first, guide, **settings)


@mutant(of="guided_search", kills="L3.09")
def invalid_closes_the_branch(goals, tactics, kernel, guide, **settings):
    """This looks like a refused tactic taken for a finished branch."""
    return proofs.guided_search(goals, tactics, lambda goal, tactic: kernel(goal, tactic) or (), guide, **settings)


@mutant(of="guided_search", kills="L3.09")
def gives_up_early(goals, tactics, kernel, guide, *, budget, **settings):
    """This looks like a search that stops after a few kernel calls whatever budget it has."""
    return proofs.guided_search(goals, tactics, kernel, guide, budget=2, **settings)


@mutant(of="guided_search", kills="L3.09")
def invalid_calls_not_counted(goals, tactics, kernel, guide, **settings):
    """This looks like kernel calls counted only where the tactic applied: they are free in a proof, not in the search for it."""
    refused = []

    def counted(goal, tactic):
        left = kernel(goal, tactic)
        refused.append(left is None)
        return left

    results = proofs.guided_search(goals, tactics, counted, guide, **settings)
    return _each(
        results,
        lambda r: replace(r, compute=replace(r.compute, kernel_calls=max(r.compute.kernel_calls - sum(refused), 0))),
    )


@mutant(of="guided_search", kills="L3.09")
def reading_is_free(goals, tactics, kernel, guide, **settings):
    """This looks like a search whose network calls are not on record."""
    results = proofs.guided_search(goals, tactics, kernel, guide, **settings)
    return _each(results, lambda r: replace(r, compute=replace(r.compute, network_calls=0, read_tokens=0)))


@mutant(of="keep_verified", kills="L3.09")
def keeps_whatever_was_found(results, proved):
    """This looks like proofs kept without the kernel's word: the next training imitates mistakes."""
    kept = dict(proved)
    for result in results:
        if result.proof is not None:
            kept[result.goal] = result.proof
    return {**alphaproof.keep_verified(results, proved), **{g: p for g, p in kept.items() if g not in proved}}


@mutant(of="keep_verified", kills="L3.09")
def latest_proof_stays(results, proved):
    """This looks like the latest proof of a goal in place of the cheapest."""
    kept = dict(proved)
    for result in results:
        kept |= alphaproof.keep_verified([result], {})
    return kept


@mutant(of="keep_verified", kills="L3.09")
def forgets_the_subgoals(results, proved):
    """This looks like whole proofs only: each subgoal of a verified proof is proven as well."""
    kept = alphaproof.keep_verified(results, proved)
    return {result.goal: kept[result.goal] for result in results if result.goal in kept}


# ---------------------------------------------------------------- L3.10: evolution


@mutant(of="evolve", kills="L3.10")
def children_replace_parents(evaluate, **settings):
    """This looks like survivors taken from the children alone: the best program can be lost, and the best score falls."""
    for generation in evolution.evolve(evaluate, **settings):
        ranked = sorted(generation.proposed, key=lambda c: (-c.score, c.id))
        yield replace(generation, survivors=tuple(ranked[: settings["survivors"]]))


@mutant(of="evolve", kills="L3.10")
def best_by_luck(evaluate, **settings):
    """This looks like survivors drawn without regard to their score."""
    for generation in evolution.evolve(evaluate, **settings):
        yield replace(generation, survivors=generation.survivors[::-1])


@mutant(of="evolve", kills="L3.10")
def nobodys_children(evaluate, **settings):
    """This looks like proposals without parents on record: nobody can say where a good idea came from."""
    for generation in evolution.evolve(evaluate, **settings):
        yield replace(generation, proposed=tuple(replace(c, parents=()) for c in generation.proposed))


@mutant(of="evolve", kills="L3.10")
def one_parent_of_two(evaluate, **settings):
    """This looks like one parent on record for a crossover: it has two."""
    for generation in evolution.evolve(evaluate, **settings):
        yield replace(generation, proposed=tuple(replace(c, parents=c.parents[:1]) for c in generation.proposed))


@mutant(of="evolve", kills="L3.10")
def scores_are_inherited(evaluate, **settings):
    """This looks like children with their parents' scores: a proposal counts only when it has been executed."""
    known = {}
    for generation in evolution.evolve(evaluate, **settings):
        proposed = tuple(replace(c, score=known[c.parents[0]]) if c.parents else c for c in generation.proposed)
        known |= {c.id: c.score for c in proposed}
        yield replace(generation, proposed=proposed)


@mutant(of="evolve", kills="L3.10")
def failures_are_swept_away(evaluate, **settings):
    """This looks like a record without the proposals that failed: they were executed and are part of the bill."""
    for generation in evolution.evolve(evaluate, **settings):
        yield replace(
            generation, proposed=tuple(c for c in generation.proposed if c.score > -math.inf and c in generation.survivors)
        )


@mutant(of="evolve", kills="L3.10")
def executions_not_counted(evaluate, **settings):
    """This looks like generations counted in place of executed programs: the compute of a search is what it executes."""
    for generation in evolution.evolve(evaluate, **settings):
        yield replace(generation, evaluations=generation.index + 1)


@mutant(of="ancestors", kills="L3.10")
def parents_only(candidate, history):
    """This looks like the parents alone: their parents are ancestors too."""
    known = {c.id: c for generation in history for c in generation.proposed}
    return tuple(known[i] for i in sorted(known[candidate].parents))


@mutant(of="ancestors", kills="L3.10")
def one_line_of_descent(candidate, history):
    """This looks like the first parent's line: a crossover has two lines behind it."""
    known, line = {c.id: c for generation in history for c in generation.proposed}, []
    while known[candidate].parents:
        candidate = known[candidate].parents[0]
        line.append(known[candidate])
    return tuple(line[::-1])


@mutant(of="ancestors", kills="L3.10")
def everybody_before(candidate, history):
    """This looks like all earlier candidates: most of them have no part in this one."""
    return tuple(c for generation in history for c in generation.proposed if c.id < candidate)


# ---------------------------------------------------------------- L3.12: test-time RL


@mutant(of="adapt_to", kills="L3.12")
def adapts_the_base(base, target, written, *, seed, **settings):
    """This looks like training on the base itself: for the next target it is not the base any more."""
    result = alphaproof.adapt_to(base, target, written, seed=seed, **settings)
    alphaproof.train(base, written, steps=1, seed=seed)
    return replace(result, base_after=alphaproof.fingerprint(base))


@mutant(of="adapt_to", kills="L3.12")
def claims_that_nothing_moved(base, target, written, **settings):
    """This looks like a hash taken once and written down twice: the base did move."""
    result = alphaproof.adapt_to(base, target, written, **settings)
    _nudge(base, 1e-5)
    return replace(result, base_after=result.base_before)


@mutant(of="adapt_to", kills="L3.12")
def nothing_is_adapted(base, target, written, **settings):
    """This looks like a second plain search under the name of adaptation: no weight has changed."""
    result = alphaproof.adapt_to(base, target, written, **settings)
    return replace(result, adapted_weights=result.base_before)


@mutant(of="adapt_to", kills="L3.12")
def last_search_only(base, target, written, **settings):
    """This looks like the bill of the last search: searching the variants and training on them came before it."""
    result = alphaproof.adapt_to(base, target, written, **settings)
    return replace(result, adapted_compute=result.adapted.compute)


@mutant(of="adapt_to", kills="L3.12")
def training_is_on_the_house(base, target, written, **settings):
    """This looks like adaptation without trained tokens on its bill."""
    result = alphaproof.adapt_to(base, target, written, **settings)
    return replace(result, adapted_compute=replace(result.adapted_compute, trained_tokens=0))


@mutant(of="adapt_to", kills="L3.12")
def plain_search_without_a_bill(base, target, written, **settings):
    """This looks like adaptation whose compute stands beside nothing: plain search has to get as much, and say so."""
    result = alphaproof.adapt_to(base, target, written, **settings)
    return replace(result, plain_compute=proofs.ProofCompute())


# ---------------------------------------------------------------- L3.11: what a record of a frontier may not do


def _changed(outcomes=lambda rows: rows, table=None):
    """Every comparison of the record with its outcomes changed and the table made from them, or with its table changed alone."""
    from autograder.hidden.level3_package import recorded_frontier, table_of

    found = {}
    for size, record in recorded_frontier().items():
        rows = outcomes(record["outcomes"])
        made = table(record["outcomes"], record["table"]) if table else table_of(rows)
        found[size] = {"outcomes": rows, "table": made}
    return found


def _seeds(outcomes):
    return sorted({o["seed"] for o in outcomes})


@mutant(of="recorded_frontier", kills="L3.11")
def four_seeds():
    """This looks like four seeds: the contract asks for intervals over five or more."""
    return _changed(lambda rows: [o for o in rows if o["seed"] in _seeds(rows)[:4]])


@mutant(of="recorded_frontier", kills="L3.11")
def one_seed_copied():
    """This looks like one seed written down several times: repeating an outcome is not repeating an experiment."""
    return _changed(lambda rows: [{**o, "seed": s} for s in _seeds(rows) for o in rows if o["seed"] == _seeds(rows)[0]])


@mutant(of="recorded_frontier", kills="L3.11")
def failed_run_left_out():
    """This looks like a method that is missing for one seed: a run that went badly belongs to the record too."""

    def change(rows):
        worst = min((o for o in rows if o["method"] == "ppo"), key=lambda o: o["gold"])
        return [o for o in rows if o is not worst]

    return _changed(change)


@mutant(of="recorded_frontier", kills="L3.11")
def without_sixteen():
    """This looks like a frontier without best-of-16: the whole frontier is asked for."""
    return _changed(lambda rows: [o for o in rows if o["method"] != "best-of-16"])


@mutant(of="recorded_frontier", kills="L3.11")
def best_seed_reported():
    """This looks like the best seed in place of the mean: the interval then is not around what is reported."""

    def change(outcomes, table):
        return [{**row, "gold": max(o["gold"] for o in outcomes if o["method"] == row["method"])} for row in table]

    return _changed(table=change)


@mutant(of="recorded_frontier", kills="L3.11")
def one_standard_error():
    """This looks like one standard error on each side: that is no interval of 95 per cent."""

    def change(outcomes, table):
        t = frontier.student_t95(len(_seeds(outcomes)) - 1)
        sides = ("gold_low", "gold_high")
        return [{**row, **{side: row["gold"] + (row[side] - row["gold"]) / t for side in sides}} for row in table]

    return _changed(table=change)


@mutant(of="recorded_frontier", kills="L3.11")
def front_by_hand():
    """This looks like a front that was written by hand: it is what the other columns say."""
    return _changed(table=lambda outcomes, table: [{**row, "front": not row["front"]} for row in table])


@mutant(of="recorded_frontier", kills="L3.11")
def score_for_gold():
    """This looks like the selecting score in the column of gold: the selector is the last one to ask."""
    return _changed(lambda rows: [{**o, "gold": o["score"]} for o in rows])


@mutant(of="recorded_frontier", kills="L3.05")
def judge_not_in_the_total():
    """This looks like totals without the judge's tokens."""
    return _changed(table=lambda outcomes, table: [{**row, "total": row["sampled"] + row["trained"]} for row in table])


@mutant(of="recorded_frontier", kills="L3.05")
def ppo_with_twice_the_samples():
    """This looks like PPO with twice the samples of the best-of-n that it is compared with."""
    return _changed(lambda rows: [{**o, "sampled": o["sampled"] * 2} if o["method"] == "ppo" else o for o in rows])


@mutant(of="recorded_frontier", kills="L3.05")
def training_for_nothing():
    """This looks like PPO without its training tokens: what was spent before the first answer is part of the total."""
    return _changed(lambda rows: [{**o, "trained": 0} for o in rows])
