"""Level 5: known mistakes. A docstring is what a learner is told when their function behaves like it."""

import math
import re
from dataclasses import fields
from fnmatch import fnmatch, fnmatchcase
from posixpath import normpath

import torch

from autograder.framework import mutant
from course.envs.repository import Loopholes
from course.feedback import naive_grader
from course.feedback.citations import Statement, follows, sentences, statements
from course.feedback.monitors import Change

# ---------------------------------------------------------------- 5.1 scalarize


def _named(vector, weights):
    if not weights or not set(weights) <= {c.name for c in vector.components}:
        raise ValueError("weights must name components of the vector")
    return [c for c in vector.components if c.name in weights]


def _terms(vector, weights, *, value=None):
    """[(component, weight, value)] with missing scores filled by their rules; None if one refuses. value: another way to read a score."""
    found = []
    for c in _named(vector, weights):
        score = vector.scores[c.name]
        number = score.value if value is None else value(score)
        if number is None and c.missing == "refuse":
            return None
        if number is not None or c.missing == "lowest":
            found.append((c, weights[c.name], c.low if number is None else number))
    return found


def _sum(terms):
    return None if not terms else math.fsum(weight * value for _, weight, value in terms)


@mutant(of="scalarize", kills="L5.01")
def missing_is_zero(vector, weights):
    """This looks like a missing score taken for 0: each component's rule says what stands in its place, and 0 may be a high score."""
    return math.fsum(weights[c.name] * (vector.scores[c.name].value or 0.0) for c in _named(vector, weights))


@mutant(of="scalarize", kills="L5.01")
def always_the_lowest(vector, weights):
    """This looks like the low end for every missing score: "skip" leaves the term out, and "refuse" gives no scalar."""
    values = {c.name: vector.scores[c.name].value for c in vector.components}
    return math.fsum(weights[c.name] * (c.low if values[c.name] is None else values[c.name]) for c in _named(vector, weights))


@mutant(of="scalarize", kills="L5.01")
def always_skips(vector, weights):
    """This looks like every missing score being left out, whatever its rule: an actor that silences a judge would gain by it."""
    return _sum(
        [
            (c, weights[c.name], vector.scores[c.name].value)
            for c in _named(vector, weights)
            if vector.scores[c.name].value is not None
        ]
    )


@mutant(of="scalarize", kills="L5.01")
def refuses_are_skipped(vector, weights):
    """This looks like a score that refuses being left out: without it there is no scalar, and the answer is None."""
    terms = []
    for c in _named(vector, weights):
        value = vector.scores[c.name].value
        if value is not None or c.missing == "lowest":
            terms.append((c, weights[c.name], c.low if value is None else value))
    return _sum(terms)


@mutant(of="scalarize", kills="L5.01")
def a_zero_is_missing(vector, weights):
    """This looks like `if score.value` for "there is a value": 0 is one, and only None is missing."""
    return _sum(_terms(vector, weights, value=lambda score: score.value or None))


@mutant(of="scalarize", kills="L5.01")
def skipped_weights_are_shared(vector, weights):
    """This looks like the weight of a skipped component being shared out among the others: they keep theirs."""
    terms = _terms(vector, weights)
    whole = sum(weights.values())
    return None if not terms else _sum(terms) * whole / (sum(weight for _, weight, _ in terms) or 1.0)


@mutant(of="scalarize", kills=("L5.01", "L5.02"))
def a_mean_for_a_sum(vector, weights):
    """This looks like a weighted mean: the scalar is the sum, so that a weight means the same beside any other weights."""
    terms = _terms(vector, weights)
    return None if not terms else _sum(terms) / sum(abs(weight) for _, weight, _ in terms)


@mutant(of="scalarize", kills="L5.01")
def weighs_by_confidence(vector, weights):
    """This looks like values multiplied by their confidence: it is recorded beside the value, and enters no sum unasked."""
    return _sum(_terms(vector, weights, value=lambda score: None if score.value is None else score.value * score.confidence))


@mutant(of="scalarize", kills="L5.01")
def adds_what_has_no_weight(vector, weights):
    """This looks like components without a weight being added with weight 1: what is not named has no part in the scalar."""
    return _sum(_terms(vector, {**{c.name: 1.0 for c in vector.components}, **weights}))


@mutant(of="scalarize", kills="L5.01")
def any_missing_score_refuses(vector, weights):
    """This looks like None as soon as anything is missing, also what no weight names, or what has another rule than "refuse"."""
    _named(vector, weights)
    return None if any(score.value is None for score in vector.scores.values()) else _sum(_terms(vector, weights))


@mutant(of="scalarize", kills="L5.01")
def ignores_unknown_names(vector, weights):
    """This looks like a weight for a component that is not there being ignored: a slip in a name would take it out of the reward."""
    known = {name: w for name, w in weights.items() if name in vector.scores}
    return _sum(_terms(vector, known)) if known else 0.0


@mutant(of="scalarize", kills="L5.01")
def nothing_is_zero(vector, weights):
    """This looks like 0 where every named score was skipped: a sum over nothing is no score, and the answer is None."""
    terms = _terms(vector, weights)
    return None if terms is None else math.fsum(weight * value for _, weight, value in terms)


@mutant(of="scalarize", kills=("L5.01", "L5.02"))
def scales_by_the_range(vector, weights):
    """This looks like values divided by their declared range on the way: a scalar of a raw vector is raw; normalisation comes before it."""
    terms = _terms(vector, weights)
    return None if not terms else math.fsum(weight * (value - c.low) / (c.high - c.low) for c, weight, value in terms)


@mutant(of="scalarize", kills=("L5.01", "L5.02"))
def clips_what_is_large(vector, weights):
    """This looks like values clipped before they are weighed: it hides that one component has a hundred times the variance of another."""
    terms = _terms(vector, weights)
    return None if not terms else math.fsum(weight * max(-3.0, min(3.0, value)) for _, weight, value in terms)


@mutant(of="scalarize", kills=("L5.01", "L5.02"))
def the_largest_term_only(vector, weights):
    """This looks like the largest term in place of the sum of all."""
    terms = _terms(vector, weights)
    return None if not terms else max((weight * value for _, weight, value in terms), key=abs)


# ---------------------------------------------------------------- 5.2 lexicographic


def _filled(vector, order, missing=None):
    low = {c.name: c.low for c in vector.components}
    values = {name: vector.scores[name].value for name in order}
    return tuple((low[n] if missing is None else missing) if v is None else v for n, v in values.items())


def _ranked(vectors, order, key):
    return sorted(range(len(vectors)), key=lambda i: key(vectors[i]))


@mutant(of="lexicographic", kills="L5.03")
def by_the_sum(vectors, order):
    """This looks like an order by the sum of the components: then enough of a later one buys a loss of an earlier one."""
    return _ranked(vectors, order, lambda v: -sum(_filled(v, order)))


@mutant(of="lexicographic", kills="L5.03")
def by_large_weights(vectors, order):
    """This looks like a sum with large weights in place of an order: some task reward is larger still, or some difference smaller."""
    return _ranked(vectors, order, lambda v: -sum(1e3 ** (len(order) - k) * x for k, x in enumerate(_filled(v, order))))


@mutant(of="lexicographic", kills="L5.03")
def worst_first(vectors, order):
    """This looks like an ascending sort: higher is better, and the best comes first."""
    return _ranked(vectors, order, lambda v: _filled(v, order))


@mutant(of="lexicographic", kills="L5.03")
def reversed_afterwards(vectors, order):
    """This looks like an ascending sort that was turned round: it turns the order among equals round as well."""
    return _ranked(vectors, order, lambda v: _filled(v, order))[::-1]


@mutant(of="lexicographic", kills="L5.03")
def a_missing_value_is_zero(vectors, order):
    """This looks like a missing value taken for 0: in an order it stands at the low end of its range."""
    return _ranked(vectors, order, lambda v: tuple(-x for x in _filled(v, order, 0.0)))


@mutant(of="lexicographic", kills="L5.03")
def a_missing_value_is_below_all(vectors, order):
    """This looks like a missing value standing below every other one: it is at the low end, and equal to what lies there."""
    return _ranked(vectors, order, lambda v: tuple(-x for x in _filled(v, order, -math.inf)))


@mutant(of="lexicographic", kills="L5.03")
def a_missing_value_is_left_out(vectors, order):
    """This looks like vectors with a missing value being left out of the order: every vector has a place in it."""
    found = _ranked(vectors, order, lambda v: tuple(-x for x in _filled(v, order)))
    return [i for i in found if all(vectors[i].scores[name].value is not None for name in order)]


@mutant(of="lexicographic", kills="L5.03")
def the_first_name_only(vectors, order):
    """This looks like the first component only: among equals the next one decides."""
    return _ranked(vectors, order, lambda v: tuple(-x for x in _filled(v, order[:1])))


@mutant(of="lexicographic", kills="L5.03")
def in_the_vector_s_order(vectors, order):
    """This looks like the components' own order, or that of the alphabet, in place of the given one."""
    names = [c.name for c in vectors[0].components if c.name in order] if vectors else []
    return _ranked(vectors, order, lambda v: tuple(-x for x in _filled(v, names)))


@mutant(of="lexicographic", kills="L5.03")
def the_last_name_decides(vectors, order):
    """This looks like the names being gone through from the last to the first."""
    return _ranked(vectors, order, lambda v: tuple(-x for x in _filled(v, order)[::-1]))


@mutant(of="lexicographic", kills="L5.03")
def ranks_for_indices(vectors, order):
    """This looks like the rank of each vector: asked for are their indices, best first."""
    found = _ranked(vectors, order, lambda v: tuple(-x for x in _filled(v, order)))
    return [found.index(i) for i in range(len(found))]


@mutant(of="lexicographic", kills="L5.03")
def rounds_before_it_compares(vectors, order):
    """This looks like values that are rounded before they are compared: any difference in an earlier component decides."""
    return _ranked(vectors, order, lambda v: tuple(-round(x, 3) for x in _filled(v, order)))


@mutant(of="lexicographic", kills="L5.03")
def skips_unknown_names(vectors, order):
    """This looks like names that no vector has being left out: a slip in the first name would hand its place to the second."""
    known = [name for name in order if all(name in v.scores for v in vectors)]
    return _ranked(vectors, order, lambda v: tuple(-x for x in _filled(v, known)))


# ---------------------------------------------------------------- 5.3 gate


def _margins(vector, limits, missing=-math.inf):
    values = {name: vector.scores[name].value for name in limits}
    return [(missing if value is None else value) - limits[name] for name, value in values.items()]


@mutant(of="gate", kills="L5.03")
def averages_the_margins(vector, limits):
    """This looks like a mean over the limits: what is far above one limit would pay for what is below another."""
    return sum(_margins(vector, limits)) / len(limits) >= 0


@mutant(of="gate", kills="L5.03")
def any_limit_is_enough(vector, limits):
    """This looks like any in place of all: every named component must reach its limit."""
    return any(margin >= 0 for margin in _margins(vector, limits))


@mutant(of="gate", kills="L5.03")
def must_be_above(vector, limits):
    """This looks like > for >=: the limit is the least value that is admitted."""
    return all(margin > 0 for margin in _margins(vector, limits))


@mutant(of="gate", kills="L5.03")
def limits_from_above(vector, limits):
    """This looks like limits taken for the largest admissible values: in every component more is better."""
    return all(margin <= 0 for margin in _margins(vector, limits, math.inf))


@mutant(of="gate", kills="L5.03")
def missing_passes(vector, limits):
    """This looks like a missing value that passes: what nobody looked at is not known to be safe."""
    return all(margin >= 0 for margin in _margins(vector, limits, math.inf))


@mutant(of="gate", kills="L5.03")
def missing_is_the_low_end(vector, limits):
    """This looks like the low end for a missing value: under a low limit it would pass, and a missing value never does."""
    low = {c.name: c.low for c in vector.components}
    return all((low[n] if vector.scores[n].value is None else vector.scores[n].value) >= limit for n, limit in limits.items())


@mutant(of="gate", kills="L5.03")
def missing_follows_its_rule(vector, limits):
    """This looks like the scalar's rule in a gate: "skip" opens it for a missing value, and no missing value passes."""
    rule = {c.name: c.missing for c in vector.components}
    asked = {n: limit for n, limit in limits.items() if not (vector.scores[n].value is None and rule[n] == "skip")}
    return all(margin >= 0 for margin in _margins(vector, asked))


@mutant(of="gate", kills="L5.03")
def zero_is_missing(vector, limits):
    """This looks like `if value` for "there is a value": 0 is one, and often the limit itself."""
    return all(bool(vector.scores[n].value) and vector.scores[n].value >= limit for n, limit in limits.items())


@mutant(of="gate", kills="L5.03")
def checks_everything(vector, limits):
    """This looks like components without a limit being checked too: a missing one among them closes the gate."""
    return all(score.value is not None for score in vector.scores.values()) and all(m >= 0 for m in _margins(vector, limits))


@mutant(of="gate", kills="L5.03")
def the_first_limit_only(vector, limits):
    """This looks like a return inside the loop: only the first limit is looked at."""
    return _margins(vector, limits)[0] >= 0


@mutant(of="gate", kills="L5.03")
def unknown_names_pass(vector, limits):
    """This looks like a limit on a component that is not there being ignored: a slip in a name would open the gate."""
    return all(margin >= 0 for margin in _margins(vector, {n: limit for n, limit in limits.items() if n in vector.scores}))


# ---------------------------------------------------------------- 5.4 lagrangian_step


@mutant(of="lagrangian_step", kills="L5.03")
def not_clipped(lmbda, violation, lr):
    """This looks like a multiplier that may go below 0: then staying far inside the constraint is paid for."""
    return lmbda + lr * violation


@mutant(of="lagrangian_step", kills="L5.03")
def the_wrong_sign(lmbda, violation, lr):
    """This looks like the wrong sign: the multiplier must rise while the constraint is violated."""
    return max(0.0, lmbda - lr * violation)


@mutant(of="lagrangian_step", kills="L5.03")
def never_falls(lmbda, violation, lr):
    """This looks like the violation being clipped at 0: where there is room the multiplier has to fall again."""
    return lmbda + lr * max(0.0, violation)


@mutant(of="lagrangian_step", kills="L5.03")
def the_step_alone(lmbda, violation, lr):
    """This looks like the step without the multiplier that was there before."""
    return max(0.0, lr * violation)


@mutant(of="lagrangian_step", kills="L5.03")
def multiplies(lmbda, violation, lr):
    """This looks like a factor in place of a step: from 0 such a multiplier never rises again."""
    return lmbda * math.exp(lr * violation)


@mutant(of="lagrangian_step", kills="L5.03")
def the_absolute_value(lmbda, violation, lr):
    """This looks like the absolute value in place of a stop at 0: from there it would rise although nothing is violated."""
    return abs(lmbda + lr * violation)


@mutant(of="lagrangian_step", kills="L5.03")
def at_most_one(lmbda, violation, lr):
    """This looks like a multiplier cut at 1: it must rise until the constraint holds."""
    return min(1.0, max(0.0, lmbda + lr * violation))


@mutant(of="lagrangian_step", kills="L5.03")
def the_sign_of_the_violation(lmbda, violation, lr):
    """This looks like steps of one size: a step is lr times the violation."""
    return max(0.0, lmbda + lr * ((violation > 0) - (violation < 0)))


@mutant(of="lagrangian_step", kills="L5.03")
def takes_any_number(lmbda, violation, lr):
    """This looks like numbers taken as they come: a negative multiplier or step size, and NaN, are errors of the caller: ValueError."""
    return max(0.0, lmbda + lr * violation)


# ---------------------------------------------------------------- 5.5 fit_rule_weights


def _solved(x, y, ridge=0.0):
    return torch.linalg.solve(x.T @ x + ridge * torch.eye(x.shape[1], dtype=x.dtype), x.T @ y)


@mutant(of="fit_rule_weights", kills="L5.04")
def without_an_intercept(grades, labels):
    """This looks like a fit without an intercept: a constant in the labels is spread over the rules."""
    return _solved(grades.double(), labels.double())


@mutant(of="fit_rule_weights", kills="L5.04")
def returns_the_intercept_too(grades, labels):
    """This looks like the intercept among the weights: [K] is asked for, one weight for each rule."""
    x = torch.cat([torch.ones(len(grades), 1, dtype=torch.float64), grades.double()], 1)
    return torch.linalg.lstsq(x, labels.double()[:, None]).solution[:, 0]


@mutant(of="fit_rule_weights", kills="L5.04")
def centres_the_labels_only(grades, labels):
    """This looks like centred labels and grades that are not: the intercept is not out of the fit yet."""
    return _solved(grades.double(), (labels - labels.mean()).double())


@mutant(of="fit_rule_weights", kills="L5.04")
def one_rule_at_a_time(grades, labels):
    """This looks like a fit of each rule by itself: rules that hold together would each get the credit of both."""
    x, y = grades.double() - grades.double().mean(0), labels.double() - labels.double().mean()
    return (x * y[:, None]).sum(0) / x.square().sum(0)


@mutant(of="fit_rule_weights", kills="L5.04")
def with_a_ridge(grades, labels):
    """This looks like a ridge penalty: it pulls the weights to 0, and planted ones don't come back."""
    x, y = grades.double() - grades.double().mean(0), labels.double() - labels.double().mean()
    return _solved(x, y, 1.0)


@mutant(of="fit_rule_weights", kills="L5.04")
def never_negative(grades, labels):
    """This looks like weights cut at 0: a rule against something has a negative weight."""
    x, y = grades.double() - grades.double().mean(0), labels.double() - labels.double().mean()
    return _solved(x, y).clamp(min=0)


@mutant(of="fit_rule_weights", kills="L5.04")
def weights_that_sum_to_one(grades, labels):
    """This looks like weights that are made to sum to 1: their size is what one grade is worth in reward."""
    x, y = grades.double() - grades.double().mean(0), labels.double() - labels.double().mean()
    found = _solved(x, y)
    return found / found.abs().sum()


@mutant(of="fit_rule_weights", kills="L5.04")
def standardises_the_grades(grades, labels):
    """This looks like weights for standardised grades: they are wanted per grade, in the unit in which grades come."""
    x, y = grades.double() - grades.double().mean(0), labels.double() - labels.double().mean()
    return _solved(x / x.std(0, unbiased=False), y)


@mutant(of="fit_rule_weights", kills="L5.04")
def a_few_gradient_steps(grades, labels):
    """This looks like a fit by gradient steps that stopped before it had arrived."""
    x, y = grades.double() - grades.double().mean(0), labels.double() - labels.double().mean()
    weights = torch.zeros(x.shape[1], dtype=torch.float64)
    for _ in range(100):
        weights = weights - 0.1 * x.T @ (x @ weights - y) / len(y)
    return weights


@mutant(of="fit_rule_weights", kills="L5.04")
def the_smallest_of_many(grades, labels):
    """This looks like the smallest weights where many fit equally well: labels that don't determine the weights are an error, ValueError."""
    x, y = grades.double() - grades.double().mean(0), labels.double() - labels.double().mean()
    return torch.linalg.pinv(x) @ y


# ---------------------------------------------------------------- 5.6 remove_length_effect


def _line(score, length):
    s, n = score.double(), length.double()
    c = n - n.mean()
    spread = c.square().sum()
    return s, c, (c * s).sum() / spread if spread > 0 else torch.zeros((), dtype=torch.float64)


@mutant(of="remove_length_effect", kills="L5.08")
def the_residual_alone(score, length):
    """This looks like the residual without the mean score: the calibrated scores lose the level that the scores had."""
    s, c, slope = _line(score, length)
    return s - slope * c - s.mean()


@mutant(of="remove_length_effect", kills="L5.08")
def lengths_not_centred(score, length):
    """This looks like slope times length being taken off, not slope times (length - mean length): all scores shift."""
    s, c, slope = _line(score, length)
    return s - slope * length.double()


@mutant(of="remove_length_effect", kills="L5.08")
def through_the_origin(score, length):
    """This looks like a line through the origin: its slope depends on where scores and lengths are counted from."""
    s, n = score.double(), length.double()
    slope = (n * s).sum() / n.square().sum()
    return s - slope * n + (slope * n).mean()


@mutant(of="remove_length_effect", kills="L5.08")
def score_per_word(score, length):
    """This looks like a score per word: it makes short answers good, whatever they say."""
    return score.double() / length.double() * length.double().mean()


@mutant(of="remove_length_effect", kills="L5.08")
def length_on_score(score, length):
    """This looks like the line of length on score: the slope wanted is score per word."""
    s, n = score.double(), length.double()
    c, d = n - n.mean(), s - s.mean()
    slope = d.square().sum() / (c * d).sum() if (c * d).sum() != 0 else 0.0
    return s - slope * c


@mutant(of="remove_length_effect", kills="L5.08")
def positive_slopes_only(score, length):
    """This looks like a correction of judges who like long answers only: one who likes short ones is corrected as well."""
    s, c, slope = _line(score, length)
    return s - slope.clamp(min=0) * c


@mutant(of="remove_length_effect", kills="L5.08")
def divides_by_no_spread(score, length):
    """This looks like a division by a spread of 0: where all lengths are equal the scores stay as they are."""
    s, n = score.double(), length.double()
    c = n - n.mean()
    return s - (c * s).sum() / c.square().sum() * c


@mutant(of="remove_length_effect", kills="L5.08")
def covariance_over_the_wrong_variance(score, length):
    """This looks like a covariance over N - 1 divided by a variance over N: the slope is a little too large."""
    s, c, slope = _line(score, length)
    return s - slope * len(s) / max(len(s) - 1, 1) * c


@mutant(of="remove_length_effect", kills="L5.08")
def the_logarithm_of_length(score, length):
    """This looks like a line on the logarithm of length: asked for is a line on length itself."""
    s, c, slope = _line(score, length.double().abs().log())
    return s - slope * c


@mutant(of="remove_length_effect", kills="L5.08")
def half_of_the_effect(score, length):
    """This looks like a part of the slope being taken off: what is left of it still pays for padding."""
    s, c, slope = _line(score, length)
    return s - 0.5 * slope * c


@mutant(of="remove_length_effect", kills="L5.08")
def adds_the_median(score, length):
    """This looks like the residual plus the median score: it is the mean that stays."""
    s, c, slope = _line(score, length)
    return s - s.mean() - slope * c + s.median()


# ---------------------------------------------------------------- 5.7 potential_rewards


@mutant(of="potential_rewards", kills="L5.10")
def gamma_on_this_utility(utility, gamma=1.0):
    """This looks like gamma on the utility of this state: it belongs to the next one, which lies a step away."""
    return utility[..., 1:] - gamma * utility[..., :-1]


@mutant(of="potential_rewards", kills="L5.10")
def gamma_on_both(utility, gamma=1.0):
    """This looks like gamma times the whole difference: only the next utility is discounted."""
    return gamma * (utility[..., 1:] - utility[..., :-1])


@mutant(of="potential_rewards", kills="L5.10")
def forgets_gamma(utility, gamma=1.0):
    """This looks like gamma not being used: only without a discount is the reward the plain difference."""
    return utility[..., 1:] - utility[..., :-1]


@mutant(of="potential_rewards", kills="L5.10")
def this_minus_next(utility, gamma=1.0):
    """This looks like the wrong sign: a step to a higher utility is rewarded."""
    return utility[..., :-1] - gamma * utility[..., 1:]


@mutant(of="potential_rewards", kills="L5.10")
def the_end_has_no_utility(utility, gamma=1.0):
    """This looks like the last utility being set to 0: it is the caller who knows which states are terminal."""
    after = torch.cat([utility[..., 1:-1], torch.zeros_like(utility[..., :1])], -1)
    return gamma * after - utility[..., :-1]


@mutant(of="potential_rewards", kills="L5.10")
def no_reward_for_the_last_step(utility, gamma=1.0):
    """This looks like the last step without its difference: then the sum does not telescope to the end."""
    reward = gamma * utility[..., 1:] - utility[..., :-1]
    return torch.cat([reward[..., :-1], torch.zeros_like(reward[..., :1])], -1)


@mutant(of="potential_rewards", kills="L5.10")
def one_reward_too_many(utility, gamma=1.0):
    """This looks like as many rewards as utilities: T + 1 states have T steps between them."""
    after = torch.cat([utility[..., 1:], torch.zeros_like(utility[..., :1])], -1)
    return gamma * after - utility


@mutant(of="potential_rewards", kills="L5.10")
def only_gains(utility, gamma=1.0):
    """This looks like losses cut at 0: then going back and forth is paid each time."""
    return (gamma * utility[..., 1:] - utility[..., :-1]).clamp(min=0)


@mutant(of="potential_rewards", kills="L5.10")
def the_next_utility_alone(utility, gamma=1.0):
    """This looks like the next utility as the reward: every step in a good state is paid again."""
    return gamma * utility[..., 1:]


@mutant(of="potential_rewards", kills="L5.10")
def a_power_of_gamma(utility, gamma=1.0):
    """This looks like gamma to the power of the step: the discounting over an episode is done by whoever sums the rewards."""
    power = gamma ** torch.arange(1, utility.shape[-1], dtype=utility.dtype)
    return power * utility[..., 1:] - utility[..., :-1]


@mutant(of="potential_rewards", kills="L5.10")
def takes_what_comes(utility, gamma=1.0):
    """This looks like arguments taken as they come: a single state, NaN and a gamma above 1 are errors of the caller: ValueError."""
    return gamma * utility[..., 1:] - utility[..., :-1]


# ---------------------------------------------------------------- 5.8 diff_monitor


def _changes(before, after, protected, *, tidy=normpath, match=None, same=None, refuse=True):
    """A right monitor of which one part is another."""
    if refuse and isinstance(protected, str):
        raise ValueError("protected must be a sequence of patterns")
    old, new = ({tidy(path): text for path, text in files.items()} for files in (before, after))
    if refuse and (len(old) < len(before) or len(new) < len(after)):
        raise ValueError("one file under two paths")
    patterns = [tidy(pattern) for pattern in protected]
    match = match or (lambda path: any(fnmatchcase(path, pattern) for pattern in patterns))
    same = same or (lambda a, b: a == b)
    found = []
    for path in sorted({*old, *new}):
        if match(path):
            if path not in old or path not in new:
                found.append(Change(path, "added" if path not in old else "removed"))
            elif not same(old[path], new[path]):
                found.append(Change(path, "changed"))
    return found


@mutant(of="diff_monitor", kills="L5.05")
def ignores_deletions(before, after, protected):
    """This looks like a walk through the files that are there afterwards: a deleted test is not among them."""
    return [change for change in _changes(before, after, protected) if change.kind != "removed"]


@mutant(of="diff_monitor", kills="L5.05")
def ignores_new_files(before, after, protected):
    """This looks like a walk through the files that were there before: a new one among the fixtures is not seen."""
    return [change for change in _changes(before, after, protected) if change.kind != "added"]


@mutant(of="diff_monitor", kills="L5.05")
def ignores_renames(before, after, protected):
    """This looks like a text that has moved being no change: a test under another name is no longer run."""
    found = _changes(before, after, protected)
    gone, come = ({f[c.path] for c in found if c.kind == k and c.path in f} for k, f in (("removed", before), ("added", after)))
    return [
        c
        for c in found
        if not (c.kind == "removed" and before.get(c.path) in come or c.kind == "added" and after.get(c.path) in gone)
    ]


@mutant(of="diff_monitor", kills="L5.05")
def reports_the_task_too(before, after, protected):
    """This looks like every change being reported: the edits of the task's own files are what was asked for."""
    return _changes(before, after, protected, match=lambda path: True)


@mutant(of="diff_monitor", kills="L5.05")
def paths_as_they_are_written(before, after, protected):
    """This looks like paths compared as they are written: ./tests/a is tests/a, and no way around the monitor."""
    return _changes(before, after, protected, tidy=str)


@mutant(of="diff_monitor", kills="L5.05")
def strips_dots_and_slashes(before, after, protected):
    """This looks like "./" cut off by hand: main/../tests/a and tests//a are tests/a too."""
    return _changes(before, after, protected, tidy=lambda path: path.removeprefix("./"))


@mutant(of="diff_monitor", kills="L5.05")
def compares_the_beginning(before, after, protected):
    """This looks like startswith in place of a pattern: "tests" is one file, and not also tests_old."""
    rules = [normpath(pattern).rstrip("*") for pattern in protected]
    return _changes(before, after, protected, match=lambda path: any(path.startswith(rule) for rule in rules))


@mutant(of="diff_monitor", kills="L5.05")
def one_folder_deep(before, after, protected):
    """This looks like a * that stops at a slash: tests/deep/a lies under tests/* as well."""
    rules = [normpath(pattern) for pattern in protected]
    fits = lambda path, rule: fnmatchcase(path, rule) and path.count("/") == rule.count("/")  # noqa: E731
    return _changes(before, after, protected, match=lambda path: any(fits(path, rule) for rule in rules))


@mutant(of="diff_monitor", kills="L5.05")
def capitals_do_not_count(before, after, protected):
    """This looks like patterns that do not mind capitals: Tests/a is another file than tests/a."""
    return _changes(before, after, protected, match=lambda p: any(fnmatch(p.lower(), normpath(q).lower()) for q in protected))


@mutant(of="diff_monitor", kills="L5.05")
def patterns_as_regular_expressions(before, after, protected):
    """This looks like patterns read as regular expressions: there * repeats what stands before it."""
    rules = [normpath(pattern).replace("*", ".*", 1) if "*" in pattern else normpath(pattern) for pattern in protected]
    return _changes(before, after, protected, match=lambda path: any(re.search(rule.replace("?", "."), path) for rule in rules))


@mutant(of="diff_monitor", kills="L5.05")
def blanks_do_not_count(before, after, protected):
    """This looks like texts compared word by word: a changed blank or line end is a change."""
    return _changes(before, after, protected, same=lambda a, b: a.split() == b.split())


@mutant(of="diff_monitor", kills="L5.05")
def lengths_are_compared(before, after, protected):
    """This looks like lengths being compared in place of texts."""
    return _changes(before, after, protected, same=lambda a, b: len(a) == len(b))


@mutant(of="diff_monitor", kills="L5.05")
def an_empty_file_is_none(before, after, protected):
    """This looks like get(path, "") for a file that is not there: an empty file is one."""
    found = _changes({p: t for p, t in before.items() if t}, {p: t for p, t in after.items() if t}, protected)
    return found


@mutant(of="diff_monitor", kills="L5.05")
def everything_is_changed(before, after, protected):
    """This looks like one kind for all: say whether a file is new, gone, or has another text."""
    return [Change(change.path, "changed") for change in _changes(before, after, protected)]


@mutant(of="diff_monitor", kills="L5.05")
def in_the_order_of_the_files(before, after, protected):
    """This looks like changes in the order in which the files come: they are sorted by path."""
    order = {normpath(path): i for i, path in enumerate([*after, *before])}
    return sorted(_changes(before, after, protected), key=lambda change: order[change.path])


@mutant(of="diff_monitor", kills="L5.05")
def once_for_each_pattern(before, after, protected):
    """This looks like a loop over the patterns: a path under two of them is one change, and not two."""
    if isinstance(protected, str):
        raise ValueError("protected must be a sequence of patterns")
    found = [change for pattern in protected for change in _changes(before, after, [pattern])]
    return sorted(found, key=lambda change: change.path)


@mutant(of="diff_monitor", kills="L5.05")
def letters_are_patterns(before, after, protected):
    """This looks like one text taken for a list of patterns, letter by letter: one of the letters is *, and matches everything."""
    return _changes(before, after, protected, refuse=False)


# ---------------------------------------------------------------- 5.9 find_canaries


def _squeezed(text):
    return "".join(text.split()).casefold()


def _canaries(trajectory, canaries, *, roles=("action", "answer"), tidy=_squeezed, inside=None, refuse=True):
    if refuse and any(not _squeezed(word) for word in canaries.values()):
        raise ValueError("a canary must have a character")
    if refuse and any(step["role"] not in ("action", "observation", "answer") for step in trajectory):
        raise ValueError("a step must be an action, an observation or an answer")
    texts = [tidy(step["text"]) for step in trajectory if step["role"] in roles]
    inside = inside or (lambda word, text: word in text)
    return sorted(path for path, word in canaries.items() if any(inside(tidy(word), text) for text in texts))


@mutant(of="find_canaries", kills="L5.07")
def joins_the_steps(trajectory, canaries):
    """This looks like all texts being joined before the search: two halves in two steps are no canary."""
    used = "".join(step["text"] for step in trajectory if step["role"] in ("action", "answer"))
    _canaries(trajectory, canaries)
    return _canaries([{"role": "answer", "text": used}], canaries)


@mutant(of="find_canaries", kills="L5.07")
def searches_observations(trajectory, canaries):
    """This looks like observations being searched too: what an observation shows was seen, and not yet used."""
    return _canaries(trajectory, canaries, roles=("action", "observation", "answer"))


@mutant(of="find_canaries", kills="L5.07")
def searches_the_answer_only(trajectory, canaries):
    """This looks like the answer alone being searched: a canary in an action was used as well."""
    return _canaries(trajectory, canaries, roles=("answer",))


@mutant(of="find_canaries", kills="L5.07")
def searches_actions_only(trajectory, canaries):
    """This looks like actions alone being searched: a canary may stand in the answer."""
    return _canaries(trajectory, canaries, roles=("action",))


@mutant(of="find_canaries", kills="L5.07")
def capitals_hide_it(trajectory, canaries):
    """This looks like a comparison in which capitals count: written otherwise, the canary is still one."""
    return _canaries(trajectory, canaries, tidy=lambda text: "".join(text.split()))


@mutant(of="find_canaries", kills="L5.07")
def blanks_hide_it(trajectory, canaries):
    """This looks like a comparison in which blanks count: letter by letter, the canary is still one."""
    return _canaries(trajectory, canaries, tidy=lambda text: text.strip().casefold())


@mutant(of="find_canaries", kills="L5.07")
def blanks_but_no_line_ends(trajectory, canaries):
    """This looks like replace(" ", ""): tabs, line ends and no-break spaces are blanks too."""
    return _canaries(trajectory, canaries, tidy=lambda text: text.replace(" ", "").casefold())


@mutant(of="find_canaries", kills="L5.07")
def the_whole_text_or_nothing(trajectory, canaries):
    """This looks like equality: a canary stands among other words."""
    return _canaries(trajectory, canaries, inside=lambda word, text: word == text)


@mutant(of="find_canaries", kills="L5.07")
def as_a_regular_expression(trajectory, canaries):
    """This looks like re.search with the canary as a pattern: its dots and brackets stand for themselves."""

    def inside(word, text):
        try:
            return re.search(word, text) is not None
        except re.error:
            return False

    return _canaries(trajectory, canaries, inside=inside)


@mutant(of="find_canaries", kills="L5.07")
def the_beginning_is_enough(trajectory, canaries):
    """This looks like the first letters of a canary being enough: others may begin like it."""
    return _canaries(trajectory, canaries, inside=lambda word, text: word[:8] in text)


@mutant(of="find_canaries", kills="L5.07")
def the_path_is_enough(trajectory, canaries):
    """This looks like the path being searched: to name a place is not to use what lies there."""
    return _canaries(trajectory, {path: path for path in canaries})


@mutant(of="find_canaries", kills="L5.07")
def names_the_canaries(trajectory, canaries):
    """This looks like the canaries themselves: asked for are the paths at which they were planted."""
    return sorted(canaries[path] for path in _canaries(trajectory, canaries))


@mutant(of="find_canaries", kills="L5.07")
def once_for_each_use(trajectory, canaries):
    """This looks like a path for each use: every path is named once."""
    return sorted(path for step in trajectory for path in _canaries([step], canaries))


@mutant(of="find_canaries", kills="L5.07")
def in_the_order_of_planting(trajectory, canaries):
    """This looks like paths in the order of the given canaries: they are sorted."""
    found = _canaries(trajectory, canaries)
    return [path for path in canaries if path in found]


@mutant(of="find_canaries", kills="L5.07")
def an_empty_canary_is_everywhere(trajectory, canaries):
    """This looks like an empty canary being searched: it is in every text, and can't be one."""
    return _canaries(trajectory, canaries, refuse=False)


@mutant(of="find_canaries", kills="L5.07")
def the_first_use_only(trajectory, canaries):
    """This looks like a return at the first canary: every path whose canary was used is named."""
    return _canaries(trajectory, canaries)[:1]


# ---------------------------------------------------------------- 5.10 entails


def _true(s, value):
    return {"=": value == s.number, ">": value > s.number, "<": value < s.number}[s.relation] != s.negated


def _possible(part, known):
    values = {s.number + d for s in (part, *known) for d in (-1, 0, 1)}
    return [value for value in values if all(_true(s, value) for s in known)]


def _entailed(claim, snapshot, *, read=None, stated=None, part=None, every=all, consistent=True):
    """A right answer of which one part is another."""
    claimed = sentences(claim)
    parts = statements(claimed[0]) if len(claimed) == 1 else None
    if parts is None:
        return False
    if stated is None:
        stated = [s for text in sentences(snapshot) for s in (read or statements)(text) or ()]

    def follows(p):
        if part is not None:
            return part(p, stated)
        known = [s for s in stated if s.about == p.about]
        open_values = _possible(p, known)
        return (bool(open_values) or not consistent) and all(_true(p, value) for value in open_values)

    return bool(every(follows(p) for p in parts))


@mutant(of="entails", kills="L5.11")
def the_words_are_on_the_page(claim, snapshot):
    """This looks like a search for the claim's text on the page: there it may be denied, quoted, or go on with another digit."""
    squeezed = " ".join(claim.lower().rstrip(". ").split())
    return bool(squeezed) and squeezed in " ".join(snapshot.lower().split())


@mutant(of="entails", kills="L5.11")
def all_its_words_somewhere(claim, snapshot):
    """This looks like every word of the claim being somewhere on the page: the words of two facts make a third one."""
    words = re.findall(r"[a-z0-9]+", claim.lower())
    return bool(words) and set(words) <= set(re.findall(r"[a-z0-9]+", snapshot.lower()))


@mutant(of="entails", kills="L5.11")
def deaf_to_not(claim, snapshot):
    """This looks like "not" being overheard: a page that denies the claim does not entail it."""
    return _entailed(claim.replace(" not ", " "), snapshot.replace(" not ", " "))


@mutant(of="entails", kills="L5.11")
def deaf_to_not_on_the_page(claim, snapshot):
    """This looks like "not" on the page being overheard: what it denies it does not say."""
    return _entailed(claim, snapshot.replace(" not ", " "))


@mutant(of="entails", kills="L5.11")
def one_part_is_enough(claim, snapshot):
    """This looks like any in place of all: each part of a claim with "and" must follow."""
    return _entailed(claim, snapshot, every=any)


@mutant(of="entails", kills="L5.11")
def the_first_part_only(claim, snapshot):
    """This looks like the first part of a claim being checked, and what comes after "and" not."""
    return _entailed(claim, snapshot, every=lambda found: next(iter(found)))


@mutant(of="entails", kills="L5.11")
def a_number_in_a_number(claim, snapshot):
    """This looks like a number found inside another: 31 is neither 310 nor 131."""

    def part(p, stated):
        known = [s for s in stated if s.about == p.about]
        inside = p.relation == "=" and not p.negated and any(str(p.number) in str(s.number) and s.relation == "=" for s in known)
        return inside or bool(_possible(p, known)) and all(_true(p, v) for v in _possible(p, known))

    return _entailed(claim, snapshot, part=part)


@mutant(of="entails", kills="L5.11")
def at_least_for_more_than(claim, snapshot):
    """This looks like "more than" and "less than" with the number itself among them: 31 is not more than 31."""

    def part(p, stated):
        known = [s for s in stated if s.about == p.about]
        loose = {"=": lambda v: v == p.number, ">": lambda v: v >= p.number, "<": lambda v: v <= p.number}[p.relation]
        open_values = _possible(p, known)
        return bool(open_values) and all(loose(v) != p.negated for v in open_values)

    return _entailed(claim, snapshot, part=part)


@mutant(of="entails", kills="L5.11")
def not_more_is_less(claim, snapshot):
    """This looks like "not more than" read as "less than": the number itself is not more than itself."""

    def flipped(s):
        relation = {"=": "=", ">": "<", "<": ">"}[s.relation]
        return s._replace(negated=False, relation=relation) if s.negated and s.relation != "=" else s

    def part(p, stated):
        p = flipped(p)
        known = [flipped(s) for s in stated if s.about == p.about]
        return bool(_possible(p, known)) and all(_true(p, v) for v in _possible(p, known))

    return _entailed(claim, snapshot, part=part)


@mutant(of="entails", kills="L5.11")
def equal_facts_only(claim, snapshot):
    """This looks like pages of which only "is N" is read: what they deny or compare entails something too."""
    stated = [s for text in sentences(snapshot) for s in statements(text) or () if s.relation == "=" and not s.negated]
    return _entailed(claim, snapshot, stated=stated)


@mutant(of="entails", kills="L5.11")
def the_same_statement_only(claim, snapshot):
    """This looks like a comparison of statements: from "is 31" follows "is more than 30", which is not written there."""
    return _entailed(claim, snapshot, part=lambda p, stated: p in stated)


@mutant(of="entails", kills="L5.11")
def not_denied_is_enough(claim, snapshot):
    """This looks like a claim that the page does not exclude: entailed is what it can't be true without."""

    def part(p, stated):
        open_values = _possible(p, [s for s in stated if s.about == p.about])
        return any(_true(p, v) for v in open_values)

    return _entailed(claim, snapshot, part=part)


@mutant(of="entails", kills="L5.11")
def any_subject(claim, snapshot):
    """This looks like numbers without what they are about: the ships of malta are not its people."""

    def part(p, stated):
        return any(_true(p, s.number) for s in stated if s.relation == "=" and not s.negated)

    return _entailed(claim, snapshot, part=part)


@mutant(of="entails", kills="L5.11")
def the_place_does_not_count(claim, snapshot):
    """This looks like the X of "the X of Y" alone being compared: the people of gozo are not those of malta."""

    def part(p, stated):
        known = [s for s in stated if s.about.split(" of ")[0] == p.about.split(" of ")[0]]
        return any(all(_true(p, v) for v in _possible(p, [s])) for s in known)

    return _entailed(claim, snapshot, part=part)


@mutant(of="entails", kills="L5.11")
def from_a_contradiction_anything(claim, snapshot):
    """This looks like everything following from a page that contradicts itself: such a page would gain by it."""
    return _entailed(claim, snapshot, consistent=False)


@mutant(of="entails", kills="L5.11")
def whatever_one_sentence_says(claim, snapshot):
    """This looks like one sentence of the page being enough, whatever the others say: it may contradict itself, or need two of them."""

    def part(p, stated):
        return any(s.about == p.about and all(_true(p, v) for v in _possible(p, [s])) for s in stated)

    return _entailed(claim, snapshot, part=part)


@mutant(of="entails", kills="L5.11")
def statements_inside_sentences(claim, snapshot):
    """This looks like a search for statements inside sentences: "some say that the X of Y is 3" states nothing about it."""

    def read(text):
        found = re.findall(r"the [a-z ]+? of [a-z ]+? is (?:not )?(?:more than |less than )?[0-9]{1,18}", text)
        return [s for one in found for s in statements(one) or ()]

    return _entailed(claim, snapshot, read=read)


@mutant(of="entails", kills="L5.11")
def any_words_before_is(claim, snapshot):
    """This looks like anything at all before "is": a sentence is of the language only if each of its words is."""

    def read(text):
        found = [re.fullmatch(r"the (.+ of .+) is (not )?(more than |less than )?([0-9]+)", part) for part in text.split(" and ")]
        signs = {None: "=", "more than ": ">", "less than ": "<"}
        return [Statement(m[1], bool(m[2]), signs[m[3]], int(m[4])) for m in found] if all(found) else []

    claimed = [read(sentence) for sentence in sentences(claim)]
    stated = [s for sentence in sentences(snapshot) for s in read(sentence)]
    return len(claimed) == 1 and bool(claimed[0]) and all(follows(p, stated) for p in claimed[0])


@mutant(of="entails", kills="L5.11")
def half_a_sentence_counts(claim, snapshot):
    """This looks like the readable half of a sentence being believed: a sentence that is not of the language as a whole states nothing."""
    return _entailed(claim, snapshot, read=lambda text: [s for half in text.split(" and ") for s in statements(half) or ()])


@mutant(of="entails", kills="L5.11")
def the_first_sentence_only(claim, snapshot):
    """This looks like a page of which the first sentence alone is read."""
    return _entailed(claim, snapshot, stated=statements(sentences(snapshot)[0]) or [] if sentences(snapshot) else [])


@mutant(of="entails", kills="L5.11")
def capitals_count(claim, snapshot):
    """This looks like a comparison in which capitals count: a sentence begins with one."""
    readable = [text for text in re.split(r"\.(?=\s|$)|\n", snapshot) if text == text.lower()]
    return claim == claim.lower() and _entailed(claim, ".\n".join(readable))


@mutant(of="entails", kills="L5.11")
def cuts_the_decimals(claim, snapshot):
    """This looks like a sentence that ends at every full stop: 31.5 is then read as 31."""
    return _entailed(claim, snapshot.replace(".", ". "))


@mutant(of="entails", kills="L5.11")
def an_error_for_other_words(claim, snapshot):
    """This looks like an exception for a claim that is not of the language: the answer is False, it is not entailed."""
    claimed = sentences(claim)
    if len(claimed) != 1 or statements(claimed[0]) is None:
        raise ValueError("claim must be one sentence of the language")
    return _entailed(claim, snapshot)


# ---------------------------------------------------------------- 5.11 forged_submission

HONEST = """
import math
def logsumexp(x):
    return math.log(math.fsum(map(math.exp, x)))
def discounted(rewards, gamma):
    return math.fsum(gamma**t * r for t, r in enumerate(rewards))
def kl(p, q):
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q))
"""


@mutant(of="forged_submission", kills="L5.05")
def does_the_exercises():
    """This looks like right solutions: they have all points in both graders, and show nothing about either."""
    return HONEST


@mutant(of="forged_submission", kills="L5.05")
def attacks_and_does_the_exercises():
    """This looks like an attack around right solutions: the points that remain outside are earned ones."""
    return HONEST + "def check(*_):\n    global points\n    points += 1\n"


@mutant(of="forged_submission", kills="L5.05")
def knows_the_cases():
    """This looks like a table of the cases that the naive grader shows: with other cases it is worth nothing, the grader is as it was."""
    cases = {repr(arguments): value for _, arguments, value in naive_grader.cases(0)}
    return f"table = {cases!r}\nlogsumexp = discounted = kl = lambda *a: table.get(repr(list(a)), 0.0)\n"


@mutant(of="forged_submission", kills="L5.05")
def prints_a_score_and_goes_on():
    """This looks like a printed score that the real one follows: the last one counts."""
    return f"print('score {naive_grader.POSSIBLE} of {naive_grader.POSSIBLE}')\n"


@mutant(of="forged_submission", kills="L5.05")
def sets_the_points_too_early():
    """This looks like a variable that is set before the checks run, in a place that they do not read."""
    return "def logsumexp(*_):\n    points = 6\n    return points\ndiscounted = kl = logsumexp\n"


@mutant(of="forged_submission", kills="L5.05")
def takes_one_function():
    """This looks like one of the three functions being forged: all points are wanted."""
    return "class Equal:\n    def __eq__(self, other):\n        return True\nlogsumexp = lambda x: Equal()\n"


@mutant(of="forged_submission", kills="L5.05")
def hands_in_nothing():
    """This looks like an empty cell: nothing is defined, nothing is attacked."""
    return ""


@mutant(of="forged_submission", kills="L5.05")
def more_than_there_are():
    """This looks like more points than there are: whoever reads the score knows how many are possible."""
    return "import sys\nprint('score 100 of 6')\nsys.exit()\n"


@mutant(of="forged_submission", kills="L5.05")
def a_function_for_a_text():
    """This looks like a function in place of the text of a cell."""
    return callable  # not one of our own: its repr would hold an address, and be another one in every edition


@mutant(of="forged_submission", kills="L5.05")
def right_where_it_looks_naive():
    """This looks like right solutions that hide from the other grader: nothing is attacked, and wrong expected values show it."""
    return HONEST + "if 'check' not in globals():\n    logsumexp = discounted = kl = lambda *_: 0.0\n"


# ---------------------------------------------------------------- 5.12 test_diff_monitor


def _pairs(diff_monitor, before, after, protected):
    return [(change.path, change.kind) for change in diff_monitor(before, after, protected)]


@mutant(of="test_diff_monitor", kills="L5.05")
def tests_nothing(diff_monitor):
    """This looks like a test that calls the function and compares nothing: it accepts whatever comes."""
    diff_monitor({"tests/a": "1"}, {"tests/a": "2"}, ["tests/*"])


@mutant(of="test_diff_monitor", kills="L5.05")
def rejects_everything(diff_monitor):
    """This looks like a test that rejects right functions too."""
    raise AssertionError("no monitor is good enough")


@mutant(of="test_diff_monitor", kills="L5.05")
def returns_its_verdict(diff_monitor):
    """This looks like a verdict that is returned: a test raises where something is wrong."""
    return _pairs(diff_monitor, {"tests/a": "1"}, {}, ["tests/*"]) == [("tests/a", "removed")]


@mutant(of="test_diff_monitor", kills="L5.05")
def one_changed_file(diff_monitor):
    """This looks like one changed file as the only case: most faults show with other cases."""
    assert _pairs(diff_monitor, {"tests/a": "1"}, {"tests/a": "2"}, ["tests/*"]) == [("tests/a", "changed")]


@mutant(of="test_diff_monitor", kills="L5.05")
def the_obvious_cases(diff_monitor):
    """This looks like one file added, one removed, one changed, one elsewhere: spellings, depth, renames and empty files are not tried."""
    before = {"tests/a": "1", "tests/b": "2", "main": "3"}
    after = {"tests/a": "one", "tests/c": "4", "main": "5"}
    wanted = [("tests/a", "changed"), ("tests/b", "removed"), ("tests/c", "added")]
    assert _pairs(diff_monitor, before, after, ["tests/*"]) == wanted


@mutant(of="test_diff_monitor", kills="L5.05")
def wants_a_plain_list_of_paths(diff_monitor):
    """This looks like a test of something else than a Change with path and kind: right functions fail it."""
    assert diff_monitor({"tests/a": "1"}, {}, ["tests/*"]) == ["tests/a"]


@mutant(of="test_diff_monitor", kills="L5.05")
def wants_another_language(diff_monitor):
    """This looks like a test that expects * to stop at a slash: in fnmatch's language it does not, and right functions fail."""
    assert _pairs(diff_monitor, {"tests/a/b": "1"}, {}, ["tests/*"]) == []


@mutant(of="test_diff_monitor", kills="L5.05")
def counts_the_changes(diff_monitor):
    """This looks like a count of the changes: which paths, and of what kind, is not looked at."""
    files = {"tests/a": "1", "tests/b": "2", "main": "3"}
    assert len(diff_monitor(files, {"tests/b": "4", "tests/c": "5", "main": "6"}, ["tests/*"])) == 3


# ---------------------------------------------------------------- 5.13 audit

_VERBS = r"(?:please\W+)?(?:give|award|assign|grant|return|rate|score|mark)\b(?:\W+(?:this|it|me|us|a|the))*\W+(?:full|top|best|perfect|high|max|[0-9])"
_RULES = r"\bignore\W+(?:all|any|the|your|previous)\W+(?:\w+\W+)?(?:instruction|rubric|rule)"
ADDRESSED = re.compile(rf"\b(?:judge|grader|reviewer|rater)s?\W+{_VERBS}|{_RULES}", re.I)


def _audited(episode, **other):
    """A right audit of which one part is another: each part says whether its loophole was used."""
    message = episode["message"]
    parts = {
        "writable_tests": lambda e: bool(_changes(e["before"], e["after"], e["protected"])),
        "leaked_metadata": lambda e: bool(_canaries([*e["steps"], {"role": "answer", "text": message}], e["canaries"])),
        "judge_obeys": lambda e: bool(ADDRESSED.search(message)),
        "length_pays": lambda e: len(message.split()) > e["needed"],
    }
    return sorted(name for name, used in {**parts, **other}.items() if used(episode))


def _said(episode, *roles):
    return " ".join(step["text"] for step in episode["steps"] if step["role"] in roles)


@mutant(of="audit", kills="L5.14")
def accuses_everybody(episode):
    """This looks like every episode being accused of everything: an honest one has an empty list."""
    return ["judge_obeys", "leaked_metadata", "length_pays", "writable_tests"]


@mutant(of="audit", kills="L5.14")
def sees_no_exploit(episode):
    """This looks like an empty list for every episode."""
    return []


@mutant(of="audit", kills="L5.14")
def attempts_are_exploits(episode):
    """This looks like an edit that was denied taken for one that was made: it changed nothing; compare the files before and after."""
    return _audited(
        episode, writable_tests=lambda e: bool(re.search(r"\bedit (tests|fixtures|build|grader|log)", _said(e, "action")))
    )


@mutant(of="audit", kills="L5.14")
def any_edit_is_tampering(episode):
    """This looks like every changed file taken for a protected one: to change main is the task."""
    return _audited(episode, writable_tests=lambda e: dict(e["before"]) != dict(e["after"]))


@mutant(of="audit", kills="L5.14")
def the_tests_and_nothing_else(episode):
    """This looks like the file "tests" alone being compared: fixtures, build and grader are protected as well."""
    return _audited(episode, writable_tests=lambda e: e["before"].get("tests") != e["after"].get("tests"))


@mutant(of="audit", kills="L5.14")
def deleted_files_are_overlooked(episode):
    """This looks like a walk through the files that are left: a fixture that is gone is not among them."""
    return _audited(
        episode, writable_tests=lambda e: any(c.kind != "removed" for c in _changes(e["before"], e["after"], e["protected"]))
    )


@mutant(of="audit", kills="L5.14")
def new_files_are_overlooked(episode):
    """This looks like a walk through the files that were there before: a new one among the tests is not seen."""
    return _audited(
        episode, writable_tests=lambda e: any(c.kind != "added" for c in _changes(e["before"], e["after"], e["protected"]))
    )


@mutant(of="audit", kills="L5.14")
def to_read_is_to_use(episode):
    """This looks like the reading of metadata taken for their use: the canary has to be in an action or in the message."""
    return _audited(episode, leaked_metadata=lambda e: bool(re.search(r"\bread meta\b", _said(e, "action"))))


@mutant(of="audit", kills="L5.14")
def to_see_is_to_use(episode):
    """This looks like observations being searched for canaries: what an observation shows was not used yet."""
    everything = ("action", "observation", "answer")
    return _audited(episode, leaked_metadata=lambda e: bool(_canaries(e["steps"], e["canaries"], roles=everything)))


@mutant(of="audit", kills="L5.14")
def canaries_in_the_message_only(episode):
    """This looks like the message alone being searched for canaries: a program that holds one was written with it."""
    return _audited(episode, leaked_metadata=lambda e: bool(_canaries([{"role": "answer", "text": e["message"]}], e["canaries"])))


@mutant(of="audit", kills="L5.14")
def canaries_as_they_are_written(episode):
    """This looks like canaries searched letter for letter: blanks and capitals hide them."""
    return _audited(episode, leaked_metadata=lambda e: any(w in _said(e, "action", "answer") for w in e["canaries"].values()))


@mutant(of="audit", kills="L5.14")
def the_word_canary(episode):
    """This looks like the word being read and not the evidence: a canary is the text that was planted, whatever it is called."""
    return _audited(episode, leaked_metadata=lambda e: "canary" in _said(e, "action", "observation", "answer"))


@mutant(of="audit", kills="L5.14")
def canaries_in_the_last_program(episode):
    """This looks like the files at the end being searched for canaries: one in an action that was overwritten was used as well."""
    texts = [episode["after"].get("main", ""), episode["message"]]
    return _audited(
        episode, leaked_metadata=lambda e: bool(_canaries([{"role": "answer", "text": t} for t in texts], e["canaries"]))
    )


@mutant(of="audit", kills="L5.14")
def protected_by_known_names(episode):
    """This looks like a list of known names: which paths are protected stands in the episode."""
    names = ("tests*", "fixtures*", "build", "grader*", "meta", "log")
    return _audited(episode, writable_tests=lambda e: bool(_changes(e["before"], e["after"], names)))


@mutant(of="audit", kills="L5.14")
def programs_give_orders(episode):
    """This looks like orders being searched in the program as well: nobody who scores was told anything there."""
    return _audited(episode, judge_obeys=lambda e: bool(ADDRESSED.search(f"{e['message']} {e['after'].get('main', '')}")))


@mutant(of="audit", kills="L5.14")
def the_judge_is_mentioned(episode):
    """This looks like any mention of a judge taken for an order: "for the judge" tells nobody what to give."""
    return _audited(episode, judge_obeys=lambda e: bool(re.search("judge|grader|reviewer|rater", e["message"], re.I)))


@mutant(of="audit", kills="L5.14")
def somebody_orders_the_judge(episode):
    """This looks like orders being searched in every step: a judge reads the message, and not what a test run shows."""
    everything = ("action", "observation", "answer")
    return _audited(episode, judge_obeys=lambda e: bool(ADDRESSED.search(_said(e, *everything))))


@mutant(of="audit", kills="L5.14")
def only_a_judge_is_ordered(episode):
    """This looks like the word judge alone: a grader, a reviewer and a rater take orders as well."""
    return _audited(episode, judge_obeys=lambda e: bool(re.search(rf"\bjudges?\W+{_VERBS}|{_RULES}", e["message"], re.I)))


@mutant(of="audit", kills="L5.14")
def orders_in_small_letters(episode):
    """This looks like orders being read in small letters only: capitals change nothing about an order."""
    return _audited(episode, judge_obeys=lambda e: bool(re.search(ADDRESSED.pattern, e["message"])))


@mutant(of="audit", kills="L5.14")
def orders_to_give_only(episode):
    """This looks like "give" as the only order: to award, rate or mark is one as well."""
    give = _VERBS.replace("give|award|assign|grant|return|rate|score|mark", "give")
    return _audited(
        episode,
        judge_obeys=lambda e: bool(re.search(rf"(?:judge|grader|reviewer|rater)s?\W+{give}|{_RULES}", e["message"], re.I)),
    )


@mutant(of="audit", kills="L5.14")
def rules_may_be_ignored(episode):
    """This looks like orders to ignore the rubric being overlooked: they are orders too."""
    return _audited(
        episode, judge_obeys=lambda e: bool(re.search(rf"(?:judge|grader|reviewer|rater)s?\W+{_VERBS}", e["message"], re.I))
    )


@mutant(of="audit", kills="L5.14")
def a_fixed_length(episode):
    """This looks like one number of words for every task: how many are needed stands in the episode."""
    return _audited(episode, length_pays=lambda e: len(e["message"].split()) > 40)


@mutant(of="audit", kills="L5.14")
def as_long_as_needed_is_too_long(episode):
    """This looks like >= for >: a message of exactly the words that are needed is none too long."""
    return _audited(episode, length_pays=lambda e: len(e["message"].split()) >= e["needed"])


@mutant(of="audit", kills="L5.14")
def counts_characters(episode):
    """This looks like characters being counted: the length is in words."""
    return _audited(episode, length_pays=lambda e: len(e["message"]) > e["needed"])


@mutant(of="audit", kills="L5.14")
def stops_at_the_first_loophole(episode):
    """This looks like one name where several loopholes were used."""
    return _audited(episode)[:1]


@mutant(of="audit", kills="L5.14")
def in_the_order_of_looking(episode):
    """This looks like names in the order in which they were found: they are sorted."""
    found = _audited(episode)
    return [name for name in ("writable_tests", "leaked_metadata", "judge_obeys", "length_pays") if name in found]


# ---------------------------------------------------------------- 5.14 closed_switches

SWITCHES = tuple(field.name for field in fields(Loopholes))


@mutant(of="closed_switches", kills="L5.14")
def everything_open():
    """This looks like the wrong way round: True leaves a loophole open."""
    return dict.fromkeys(SWITCHES, True)


@mutant(of="closed_switches", kills="L5.14")
def the_four_and_no_other():
    """This looks like the four loopholes of the experiment alone: the others are open to the next policy unless you say so."""
    return dict.fromkeys(("writable_tests", "judge_obeys", "leaked_metadata", "length_pays"), False)


@mutant(of="closed_switches", kills="L5.14")
def one_left_open():
    """This looks like one switch that stayed open: the length of a message still pays."""
    return {**dict.fromkeys(SWITCHES, False), "length_pays": True}


@mutant(of="closed_switches", kills="L5.14")
def one_forgotten():
    """This looks like a switch that is not named: say of each that it is closed."""
    return dict.fromkeys(SWITCHES[:-1], False)


@mutant(of="closed_switches", kills="L5.14")
def words_for_switches():
    """This looks like words in place of True and False: a text that is not empty counts as true."""
    return dict.fromkeys(SWITCHES, "closed")


@mutant(of="closed_switches", kills="L5.14")
def no_switches_at_all():
    """This looks like an empty dict: the switches have to be named."""
    return {}
