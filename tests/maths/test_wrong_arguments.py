"""What annotations refuse in tests is refused by name without them too, and no bad number passes in silence.

The calls are made in a process of their own, in which nothing checks types.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course.credit.groups import group_relative_advantages, informative_groups, leave_one_out_advantages
from course.credit.hierarchy import option_rewards, two_level_returns
from course.credit.steps import process_advantages
from course.credit.turns import turn_advantages
from course.credit.vtrace import vtrace
from course.objectives.offline import awac_weight, cql_penalty, td_loss
from course.objectives.policy_gradient import clip_report
from course.objectives.trajectory import action_credit_loss

X, ONES = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
TURN = torch.tensor([[0, 0, 1], [0, -1, 1]])
TWO = torch.zeros(1, 2)


CALLS = [
    (lambda: group_relative_advantages(torch.ones(2), torch.zeros(2), scale="none"), "group_id must be integers"),
    (lambda: leave_one_out_advantages(torch.ones(2), torch.zeros(2)), "group_id must be integers"),
    (lambda: informative_groups(torch.ones(2), torch.tensor([0.0, math.nan])), "group_id must be integers"),
    (
        lambda: process_advantages(torch.ones(2, 1), torch.full((2, 1), 0.5), torch.tensor([0, 0]), ONES, scale="none"),
        "step_ends must be positions",
    ),
    (lambda: turn_advantages(torch.ones(2), TURN, gamma=1.0), "turn_rewards must be [B,K]"),
    (lambda: option_rewards(torch.ones(2, 3).long(), TURN, 2, gamma=1.0), "token_rewards must be a floating-point"),
    (lambda: option_rewards(torch.ones(2, 2), TURN, 2, gamma=1.0), "token_rewards must have the mask's shape"),
    (lambda: two_level_returns(torch.ones(2), X, TURN, ONES, gamma=1.0), "high_rewards must be [B,K]"),
    (lambda: two_level_returns(torch.ones(1, 2), X, TURN, ONES, gamma=1.0), "high_rewards must be [B,K]"),
    (lambda: action_credit_loss(X, X, torch.ones(2), TURN, credit="macro"), "advantage must be [B,K]"),
    (
        lambda: action_credit_loss(X, X, torch.ones(2, 2), TURN, credit="token", clip_eps=-0.1),
        "clip_eps must be above 0; got -0.1",
    ),
    (lambda: td_loss(X, torch.tensor([0.5, 1.0]), torch.zeros(2), torch.ones(2)), "action must be indices"),
    (lambda: cql_penalty(X, torch.tensor([0.5, 1.0]), torch.ones(2)), "action must be indices"),
    (lambda: clip_report(X, X, X, ONES, torch.full((2, 3), 0.5), 0.2), "action_type must be integers"),
    (lambda: awac_weight(torch.tensor([1e3]), torch.zeros(1), 1.0), "beyond exp; set cap"),
    (
        lambda: vtrace(TWO - 100, TWO, TWO, TWO, TWO + 0.9, torch.zeros(1), c_bar=math.inf),
        "beyond exp; set rho_bar, c_bar and pg_rho_bar",
    ),
]


def missed():
    """The calls that are not refused with these words."""
    for number, (call, words) in enumerate(CALLS):
        try:
            call()
            said = "nothing"
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        if not said.startswith("ValueError") or words not in said:
            yield f"call {number}: expected {words!r}, got {said}"


def test_the_argument_is_named():
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and done.stdout.split() == [str(len(CALLS)), "refused"], done.stdout + done.stderr


def test_rewards_of_half_precision_are_discounted_in_single():
    """In bfloat16 0.999 is 1, and a token's place beyond 256 is rounded."""
    turn = torch.zeros(1, 600, dtype=torch.long)
    rewards, lengths = option_rewards(torch.ones(1, 600, dtype=torch.bfloat16), turn, 1, gamma=0.999)
    assert float(rewards) == pytest.approx((1 - 0.999**600) / (1 - 0.999), rel=1e-4) and float(lengths) == 600


if __name__ == "__main__":
    found = list(missed())
    print("\n".join(found) or f"{len(CALLS)} refused")
    sys.exit(bool(found))
