import pytest
import torch

from course.feedback.cycles import find_cycles, fit_bradley_terry
from course.tasks.records import Comparison, PreferenceLabel, Provenance

SOURCE = Provenance("p", "sampled", "random", "all")


def beats(winner, loser, prompt=0, swap=False, times=1, label=None):
    first, second = (loser, winner) if swap else (winner, loser)
    said = label or (PreferenceLabel.SECOND if swap else PreferenceLabel.FIRST)
    return [Comparison((prompt,), (first,), (second,), said, SOURCE, "f")] * times


def test_a_cycle_is_reported_once_whatever_the_display_order():
    data = beats(1, 2) + beats(2, 3, swap=True) + beats(3, 1, times=2)
    ((prompt, cycle),) = find_cycles(data)
    assert prompt == (0,) and cycle in [((1,), (2,), (3,)), ((2,), (3,), (1,)), ((3,), (1,), (2,))]


def test_no_cycle_in_orders_majorities_ties_or_across_prompts():
    chain = beats(1, 2) + beats(2, 3) + beats(1, 3)
    assert find_cycles(chain) == []
    assert find_cycles(chain + beats(3, 1)) == []  # one against one: no majority either way
    assert find_cycles(beats(1, 2) + beats(2, 3) + beats(3, 1, label=PreferenceLabel.TIE)) == []
    assert find_cycles(beats(1, 2) + beats(2, 3) + beats(3, 1, prompt=9)) == []
    assert find_cycles([]) == []


def test_majority_not_unanimity_and_longer_cycles():
    four = beats(1, 2, times=2) + beats(2, 1) + beats(2, 3) + beats(3, 4) + beats(4, 1)
    ((_, cycle),) = find_cycles(four)
    assert len(cycle) == 4
    two = four + beats(7, 8) + beats(8, 9) + beats(9, 7)
    assert sorted(len(c) for _, c in find_cycles(two)) == [3, 4]


def slow_fit(wins):
    """Gradient ascent, no second derivatives."""
    s = torch.zeros(len(wins), dtype=torch.float64)
    for _ in range(20000):
        p = torch.sigmoid(s[:, None] - s)
        s = s + 0.5 / wins.sum() * (wins - (wins + wins.T) * p).sum(1)
    return s - s.mean()


def test_fit_equals_the_slow_one_and_the_closed_form_for_two():
    torch.manual_seed(0)
    wins = torch.randint(1, 9, (5, 5)).double().fill_diagonal_(0)
    torch.testing.assert_close(fit_bradley_terry(wins), slow_fit(wins), atol=1e-8, rtol=1e-8)
    two = fit_bradley_terry(torch.tensor([[0, 6], [2, 0]]))
    assert abs((two[0] - two[1]).item() - torch.log(torch.tensor(3.0)).item()) < 1e-6 and abs(two.sum().item()) < 1e-12


def test_fit_recovers_the_scores_of_its_own_law_and_follows_a_permutation():
    scores = torch.tensor([1.5, -0.5, 0.0, -1.0], dtype=torch.float64)
    wins = (100 * torch.sigmoid(scores[:, None] - scores)).fill_diagonal_(0)
    torch.testing.assert_close(fit_bradley_terry(wins), scores, atol=1e-10, rtol=0)
    order = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(fit_bradley_terry(wins[order][:, order]), scores[order], atol=1e-10, rtol=0)


@pytest.mark.parametrize("count", [1, 7])
def test_a_cycle_gets_one_half_for_every_pair(count):
    wins = count * torch.tensor([[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    scores = fit_bradley_terry(wins)
    assert scores.abs().max() < 1e-12
    torch.testing.assert_close(torch.sigmoid(scores[:, None] - scores), torch.full((3, 3), 0.5, dtype=torch.float64))


@pytest.mark.parametrize(
    "wins, message",
    [([[0, 3], [0, 0]], "no finite fit"), ([[0, 1, 0], [1, 0, 0], [0, 0, 0]], "no finite fit"), ([[0, -1], [1, 0]], "negative"),
     ([[1, 1], [1, 0]], "diagonal"), ([[0]], "N >= 2")],
)  # fmt: skip
def test_fits_that_do_not_exist(wins, message):
    with pytest.raises(ValueError, match=message):
        fit_bradley_terry(torch.tensor(wins))
