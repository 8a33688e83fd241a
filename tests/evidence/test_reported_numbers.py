"""Numbers with their conditions: what is read, what may be averaged, added and divided."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.evidence.numbers import (
    COUNTED,
    Reported,
    average,
    differences,
    implied_human_rate,
    per_unit,
    read_number,
    subject,
    total,
)

WEB = [
    read_number(f"On {name}, CUA reaches {value} % of tasks.")
    for value, name in ((38.1, "OSWorld"), (58.1, "WebArena"), (87, "WebVoyager"))
]


def test_the_win_rates_stay_four_numbers():
    raw = [
        read_number(f"On summaries, {who} wins {value} % of comparisons, against SFT.")
        for who, value in (("RLAIF", 71), ("RLHF", 73))
    ]
    adjusted = [
        read_number(f"On summaries, {who} wins {value} % of comparisons, adjusted for length, against SFT.")
        for who, value in (("RLAIF", 59), ("RLHF", 61))
    ]
    assert [number.value for number in raw + adjusted] == [71, 73, 59, 61]
    assert all(number.comparator == "SFT" and not number.adjusted for number in raw)
    assert all(number.comparator == "SFT" and number.adjusted for number in adjusted)
    with pytest.raises(ValueError, match="adjusted"):
        average([raw[0], adjusted[0]])


def test_three_suites_have_no_average():
    assert [(n.value, n.benchmark) for n in WEB] == [(38.1, "OSWorld"), (58.1, "WebArena"), (87, "WebVoyager")]
    with pytest.raises(ValueError, match="benchmark.*'OSWorld', 'WebArena', 'WebVoyager'"):
        average(WEB)


def test_89_percent_that_are_93_percent_of_the_human_rate():
    absolute = read_number("On Playhouse, the agent reaches 89 % of episodes.")
    relative = read_number("On Playhouse, the agent reaches 93 % of the human rate.")
    assert (absolute.relative_to, relative.relative_to, relative.comparator) == ("", "human", "human")
    assert implied_human_rate(absolute, relative) == pytest.approx(95.7, abs=0.01)
    with pytest.raises(ValueError, match="unit"):
        average([absolute, relative])


def test_episodes_over_prompts():
    episodes, prompts = (read_number(f"The PPO stage uses {text}.") for text in ("256,000 episodes", "31,144 prompts"))
    each = per_unit(episodes, prompts)
    assert (round(each.value, 1), each.unit) == (8.2, "episodes per prompt")
    with pytest.raises(ValueError, match="unit: 'episodes', 'prompts'"):
        total([episodes, prompts])
    assert total([episodes, episodes]).value == 512_000
    for number in (WEB[0], read_number("On WebArena, CUA gains 3 points.")):
        with pytest.raises(ValueError, match="counted"):
            total([number, number])


READ = (
    ("The run uses 256000 episodes.", Reported(256_000, "episodes")),
    ("The corpus uses 5.104 million marks.", Reported(5_104_000, "marks")),
    ("On AIME 2024, o1 solves 93 % of 15 problems, with 1,000 samples and a learned reranker.",
     Reported(93, "% of 15 problems", "AIME 2024", "1,000 samples and a learned reranker")),
    ("On X, it loses 3.5 points, against v2.", Reported(-3.5, "points", "X", "", "v2")),
    ("  It scores 1,234.5 points.  ", Reported(1234.5, "points")),
    ("On Y, GPT-4 of 2023 wins 50 % of comparisons, adjusted for length, with 1 sample.", Reported(50, "% of comparisons", "Y", "1 sample", "", True)),
    ("On Y, it reaches 120 % of the old policy's rate.", Reported(120, "% of the old policy's rate", "Y", "", "old policy's")),
)  # fmt: skip


@pytest.mark.parametrize("text, wanted", READ)
def test_a_sentence_is_read_with_its_conditions(text, wanted):
    assert read_number(text) == wanted


OUTSIDE = (
    "", ".", "The run uses 30 prompts", "The run uses about 30 prompts.", "The run has 30 prompts.", "The run uses 30.", "uses 30 prompts.",
    "The run uses 30 %.", "The run uses 30 % of .", "The run uses 1,00 prompts.", "The run uses 30 prompts, on Mondays.", "The run uses 30 prompts, with .",
    "The run uses 30 prompts, with 1 sample, with 2 samples.", "It reaches 93 % of the human rate, against SFT.", "On X, with 3 samples.",
    "The run uses 3 prompts that each wins 2 marks.", "The run uses 30 prompts, adjusted for length, adjusted for length.",
)  # fmt: skip


@pytest.mark.parametrize("text", OUTSIDE)
def test_what_is_not_in_the_grammar_is_no_number(text):
    with pytest.raises(ValueError):
        read_number(text)


words = st.sampled_from(("SFT", "GPT-3 of 175B", "AIME 2024", "TL;DR", "1,000 samples and a judge", "the 6B model"))
numbers = st.builds(
    Reported, st.integers(0, 10**7) | st.integers(0, 10**4).map(lambda x: x / 8), st.sampled_from(("% of tasks", "points", "episodes", "prompts", "steps")),
    st.just("") | words, st.just("") | words, st.just("") | words, st.booleans(),
)  # fmt: skip


@given(numbers, st.permutations(range(3)), words)
def test_written_and_read_again(number, order, who):
    parts = [f"with {number.budget}", f"against {number.comparator}", "adjusted for length"]
    said = [number.budget, number.comparator, number.adjusted]
    opening = f"On {number.benchmark}, " if number.benchmark else ""
    value = f"{number.value:,}" if isinstance(number.value, int) else str(number.value)
    text = ", ".join([f"{opening}{who} reaches {value} {number.unit}", *(parts[i] for i in order if said[i])]) + "."
    assert read_number(text) == number and subject(text) == who


@given(st.lists(numbers, min_size=2, max_size=4))
def test_a_mean_exists_exactly_where_only_values_differ(several):
    conditions = [replace(number, value=0) for number in several]
    if all(c == conditions[0] for c in conditions):
        assert replace(average(several), value=0) == conditions[0] and differences(several) == ()
    else:
        with pytest.raises(ValueError, match=differences(several)[0]):
            average(several)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.permutations(sorted(COUNTED)))
def test_quotients_are_inverse(x, y, units):
    a, b = Reported(x, units[0]), Reported(y, units[1])
    assert per_unit(a, b).value * per_unit(b, a).value == pytest.approx(1)
    assert per_unit(a, b).unit == f"{units[0]} per {COUNTED[units[1]]}"


def test_what_has_no_quotient():
    episodes, prompts = Reported(8, "episodes"), Reported(2, "prompts")
    for count, per in (
        (episodes, episodes), (Reported(8, "% of tasks"), prompts), (episodes, Reported(2, "points")), (episodes, replace(prompts, value=0)),
        (replace(episodes, budget="1 sample"), prompts), (replace(episodes, value=-1), prompts),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            per_unit(count, per)


def test_numbers_of_two_experiments_imply_nothing():
    absolute, relative = Reported(40, "% of tasks", "X"), Reported(80, "% of the human rate", "X", comparator="human")
    assert implied_human_rate(absolute, relative) == 50
    assert implied_human_rate(absolute, replace(relative, value=100)) == 40
    for a, r in (
        (relative, absolute), (replace(absolute, benchmark="Y"), relative), (replace(absolute, budget="64 samples"), relative),
        (absolute, replace(relative, adjusted=True)), (replace(absolute, value=90), relative), (absolute, replace(relative, value=0)),
        (replace(absolute, unit="points"), relative),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            implied_human_rate(a, r)


@pytest.mark.parametrize("value, unit", [(float("nan"), "points"), (True, "points"), (3, " ")])
def test_a_number_must_be_one(value, unit):
    with pytest.raises(ValueError):
        Reported(value, unit)


def test_nothing_has_no_mean():
    for function in (average, total):
        with pytest.raises(ValueError, match="none"):
            function([])
