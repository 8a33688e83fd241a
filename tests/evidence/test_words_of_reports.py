"""What follows from the words of a report: against all worlds that the words leave open."""

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from course.evidence.entailment import ALGORITHMS, PHRASES, Statement, consequences, follows, read_statements

SAID = {word: phrase for phrase, (word, said) in PHRASES.items() if said}
DENIED = {word: phrase for phrase, (word, said) in PHRASES.items() if not said}
WORDS = tuple(SAID)


def says(word, said=True, system="Vega-3"):
    return f"{system} {(SAID if said else DENIED)[word]}."


FORBIDDEN = [
    *((name, "RL") for name in ALGORITHMS), *((name, "agentic") for name in ALGORITHMS), ("RL", "agentic"), ("training", "evolution"), ("RL", "evolution"),
    ("tool RL", "tools"), ("tool RL", "agentic"), ("RL", "tools"), ("RL", "training"), ("training", "selection"), ("tools", "agentic"), ("RL", "reasoning"),
]  # fmt: skip


@pytest.mark.parametrize("claimed, said", FORBIDDEN)
def test_words_are_not_optimizers(claimed, said):
    assert not follows(says(claimed), [says(said)])


@pytest.mark.parametrize(
    "claimed, said", [("RL", "PPO"), ("training", "PPO"), ("tools", "tool RL"), ("training", "demonstrations"), ("RL", "tool RL")]
)
def test_a_word_says_what_is_part_of_its_meaning(claimed, said):
    assert follows(says(claimed), [says(said)]) and not follows(says(said), [says(claimed)])
    assert follows(says(said, False), [says(claimed, False)])


def test_rl_and_tools_are_not_tool_rl():
    assert not follows(says("tool RL"), [says("PPO"), says("RL"), says("tools")])


def test_one_algorithm_does_not_exclude_another():
    assert not follows(says("A2C", False), [says("PPO")]) and not follows(says("A2C"), [says("PPO")])


def test_a_system_is_its_name():
    assert not follows(says("PPO"), [says("PPO", system="Vega-2"), says("PPO", system="Vega-3 mini")])


@pytest.mark.parametrize("phrase", PHRASES)
def test_each_phrase_is_read_whole(phrase):
    """ "was trained" stands in nine of them."""
    word, said = PHRASES[phrase]
    assert read_statements(f"A model of 2023 {phrase} and is agentic.") == (
        Statement("A model of 2023", word, said),
        Statement("A model of 2023", "agentic", True),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Vega.",
        "Vega was reportedly trained with PPO.",
        "Vega may use tools.",
        "Is Vega agentic?",
        "was trained.",
        "Vega was trained with DPO.",
    ],
)
def test_what_is_outside_the_grammar_states_nothing(text):
    assert read_statements(text) == ()
    with pytest.raises(ValueError, match="claim"):
        follows(text, [says("PPO")])
    assert not follows(says("PPO"), [text])


POSSIBLE = [
    world
    for world in (dict(zip(WORDS, values)) for values in product((False, True), repeat=len(WORDS)))
    if (world["RL"] or not any(world[name] for name in (*ALGORITHMS, "tool RL")))
    and (world["tools"] or not world["tool RL"])
    and (world["training"] or not (world["RL"] or world["demonstrations"]))
]

statements = st.tuples(st.sampled_from(WORDS), st.booleans())


@given(st.lists(st.lists(statements, min_size=1, max_size=2), max_size=4), st.lists(statements, min_size=1, max_size=2))
def test_what_is_true_in_every_world_that_is_left_open(facts, claim):
    left = [world for world in POSSIBLE if all(world[word] is said for fact in facts for word, said in fact)]
    assume(left)
    text = " and ".join((SAID if said else DENIED)[word] for word, said in claim)
    sentences = [f"Vega {' and '.join((SAID if said else DENIED)[word] for word, said in fact)}." for fact in facts]
    assert follows(f"Vega {text}.", sentences) == all(world[word] is said for world in left for word, said in claim)


def test_said_and_denied_is_neither():
    both = [says("PPO"), says("RL", False)]
    for word in ("PPO", "RL"):
        assert not follows(says(word), both) and not follows(says(word, False), both)


def test_meanings_are_closed():
    for word in WORDS:
        assert consequences(word) == frozenset().union(*(consequences(w) for w in consequences(word)))
