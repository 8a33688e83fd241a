"""Rule-based rewards: propositions that a fixed model grades, linear weights from few labels, added to helpfulness.

response -> grade of each proposition -> b + sum of w_k g_k -> plus helpfulness, and the sum is what PPO is given
"""

import random
from dataclasses import dataclass, field
from math import isfinite
from typing import Callable, Sequence

from jaxtyping import Float
from torch import Tensor, nn
import torch

from course.masks import checked, matched
from course.models.score import evaluating
from course.tasks.records import Batch


@dataclass(frozen=True)
class Proposition:
    """A statement about a response, such as "it apologises". holds(response) -> bool: whether it is true, in this simulated world."""

    name: str
    text: str
    holds: Callable[[str], bool] = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.name or not self.text:
            raise ValueError(f"name and text must not be empty; got {self.name!r} and {self.text!r}")


@dataclass(frozen=True)
class Grader:
    """A simulated language model that grades propositions, with known rates of error. It is fixed: no weight of it ever changes.

    miss: chance of the grade 0 for a proposition that holds; false_alarm: chance of 1 for one that does not. The errors are drawn
    once for each (proposition, response): asked again it says the same, so its errors are something that a policy can learn.
    """

    version: str
    miss: float | int
    false_alarm: float | int
    seed: int

    def __post_init__(self) -> None:
        if not (0 <= self.miss and 0 <= self.false_alarm and self.miss + self.false_alarm < 1):
            got = f"{self.miss} and {self.false_alarm}"
            raise ValueError(f"miss and false_alarm must be at least 0, with a sum below 1 (else grades say nothing); got {got}")

    def grades(self, propositions: Sequence[Proposition], responses: Sequence[str]) -> Float[Tensor, "n k"]:
        """Grades 0 or 1 [N,K], one row per response."""
        if not propositions or not responses:
            got = f"{len(propositions)} and {len(responses)}"
            raise ValueError(f"propositions and responses must not be empty; got {got}")
        return torch.tensor([[self._grade(p, response) for p in propositions] for response in responses])

    def _grade(self, proposition: Proposition, response: str) -> float:
        luck = random.Random(f"{self.seed} {self.version} {proposition.name} {response}").random()
        return float(luck >= self.miss if proposition.holds(response) else luck < self.false_alarm)

    def corrected(self, grades: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """(grades - false_alarm) / (1 - miss - false_alarm): as a mean over responses the share for which the proposition holds.

        Right on average, and further from 0 and 1 one by one. It does not bring back what errors take from fitted weights.
        """
        return (checked(grades, "grades", finite=True) - self.false_alarm) / (1 - self.miss - self.false_alarm)


# ---------------------------------------------------------------- from grades to a reward


def fit_rule_weights(grades: Float[Tensor, "n k"], labels: Float[Tensor, "n"]) -> Float[Tensor, "k"]:
    """Linear weights of the propositions, by least squares with an intercept.

        (b, w) = argmin of  sum over i of (labels_i - b - grades_i . w)^2

    Shapes and units: grades [N,K], one column per proposition; labels [N] in reward units; result w [K] in reward units per grade.
    The intercept is fitted and not returned: a constant in a reward changes no comparison. RuleModel keeps it.
    Reduces to: the weights that made the labels, where labels are exactly linear in the grades; the slope of a line for K = 1.
    Raises: ValueError if shapes differ, an entry is not finite, or the weights are not determined (fewer than K + 1 rows, a
    proposition whose grade never changes, or one that follows from others).
    Source: rule-based rewards, in source A 3.5 (Mu et al. 2024, arXiv 2411.01111), a linear model fitted on a small labelled set.
    """
    return _least_squares(grades, labels)[0]


def _least_squares(grades: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(w [K], b []), solved in float64: sums over few labels should not add errors of their own."""
    if grades.dim() != 2 or 0 in grades.shape or labels.shape != grades.shape[:1]:
        got = f"{tuple(grades.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"grades must be [N,K] and labels [N], N and K at least 1; got {got}")
    x, y = checked(grades, "grades", finite=True), checked(labels, "labels", finite=True)
    wide, target = x.double(), y.double()
    centred = wide - wide.mean(0)
    if torch.linalg.matrix_rank(centred) < x.shape[1]:
        raise ValueError(
            f"grades must determine {x.shape[1]} weights: more rows than propositions, each grade varying, none a sum of others; "
            f"got {len(x)} rows of rank {int(torch.linalg.matrix_rank(centred))}"
        )
    w = torch.linalg.lstsq(centred, (target - target.mean())[:, None]).solution[:, 0]
    return w.to(y.dtype), (target.mean() - wide.mean(0) @ w).to(y.dtype)


def rule_reward(grades: Float[Tensor, "n k"], weights: Float[Tensor, "k"], intercept: float | int = 0.0) -> Float[Tensor, "n"]:
    """One reward per response from the grades of its propositions.

        b + sum over k of weights_k * grades_k

    Shapes and units: grades [N,K]; weights [K] and intercept b in reward units; result [N] in reward units.
    Reduces to: the intercept where no proposition holds.
    Raises: ValueError if shapes do not fit or an entry is not finite.
    Source: the linear form in source A 3.5, which calls it a simplified representation of what was disclosed.
    """
    if grades.dim() != 2 or tuple(weights.shape) != tuple(grades.shape[1:]):
        got = f"{tuple(grades.shape)} and {tuple(weights.shape)}"
        raise ValueError(f"grades must be [N,K] and weights [K]; got {got}")
    if not isfinite(intercept):
        raise ValueError(f"intercept must be finite; got {intercept}")
    g = checked(grades, "grades", finite=True)
    return g @ checked(weights, "weights", finite=True).to(g.dtype) + intercept


def total_reward(
    helpfulness: Float[Tensor, "n"], rules: Float[Tensor, "n"], *, helpfulness_weight: float | int, rule_weight: float | int
) -> Float[Tensor, "n"]:
    """helpfulness_weight * helpfulness + rule_weight * rules: what the policy is trained on.

    Shapes and units: helpfulness, rules [N], each in its reward units; the weights carry both into one unit.
    Reduces to: helpfulness for rule_weight 0. It is a weighted sum, so enough helpfulness outweighs any rule: what must never be
    bought belongs into a gate.
    Raises: ValueError if shapes differ, are empty, or a number is not finite.
    Source: the total reward in source A 3.5.
    """
    h, r = matched(helpfulness=helpfulness, rules=rules)
    if not (isfinite(helpfulness_weight) and isfinite(rule_weight)):
        raise ValueError(f"helpfulness_weight and rule_weight must be finite; got {helpfulness_weight} and {rule_weight}")
    return helpfulness_weight * h + rule_weight * r


@dataclass(frozen=True)
class RuleModel:
    """Propositions, the grader that grades them, and what was fitted: responses -> rule rewards."""

    propositions: tuple[Proposition, ...]
    grader: Grader
    weights: tuple[float, ...]  # reward units per grade, in the order of the propositions
    intercept: float  # the reward of a response for which no proposition holds
    labels: int  # how many labelled responses it was fitted to

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.propositions) or not all(map(isfinite, (*self.weights, self.intercept))):
            got = f"{len(self.weights)} for {len(self.propositions)}"
            raise ValueError(f"weights must be finite, one for each proposition, and so must intercept; got {got}")

    @classmethod
    def fit(
        cls, propositions: Sequence[Proposition], grader: Grader, responses: Sequence[str], labels: Float[Tensor, "n"]
    ) -> "RuleModel":
        """Weights from responses that people gave a label. They see the grader's errors, as the reward will later."""
        weights, intercept = _least_squares(grader.grades(propositions, responses), labels)
        return cls(tuple(propositions), grader, tuple(weights.tolist()), float(intercept), len(labels))

    def __call__(self, responses: Sequence[str]) -> Float[Tensor, "n"]:
        grades = self.grader.grades(self.propositions, responses)
        return rule_reward(grades, torch.tensor(self.weights), self.intercept)


class RuleBasedReward(nn.Module):
    """A reward for a policy loop: Batch -> helpfulness_weight * helpfulness + rule_weight * rules, [B].

    helpfulness: Batch -> [B], a reward model or a function. rules: texts -> [B], a RuleModel or a function. read: the text of one row's
    response, (batch, row) -> text. A module, so that a reward model inside it is switched to evaluation with it.
    """

    def __init__(
        self,
        helpfulness: Callable[[Batch], Tensor],
        rules: Callable[[Sequence[str]], Tensor],
        *,
        read: Callable[[Batch, int], str],
        helpfulness_weight: float | int,
        rule_weight: float | int,
    ):
        super().__init__()
        self.helpfulness, self.rules, self.read = helpfulness, rules, read
        self.helpfulness_weight, self.rule_weight = helpfulness_weight, rule_weight

    def parts(self, batch: Batch) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch"]]:
        """(helpfulness, rules) before any weight: what is worth keeping beside the sum."""
        with evaluating(self):
            helpfulness = self.helpfulness(batch).float()
            rules = self.rules([self.read(batch, row) for row in range(len(batch))])
        return helpfulness, rules.to(helpfulness)

    def forward(self, batch: Batch) -> Float[Tensor, "batch"]:
        helpfulness, rules = self.parts(batch)
        return total_reward(helpfulness, rules, helpfulness_weight=self.helpfulness_weight, rule_weight=self.rule_weight)
