"""Entailment against all worlds of a small range, the ways in which finding words goes wrong, and pages that changed."""

import re

from hypothesis import given, settings, strategies as st
import pytest

from course.feedback.citations import PageArchive, Snapshot, Statement, cited, entails, index_drift, sentences, statements

PAGE = "Printed by atlas. The people of malta is 31. the ships of malta is 4. the people of gozo is 12.\nthe hills of malta is not 3."


# ---------------------------------------------------------------- entailment


@pytest.mark.parametrize(
    "claim",
    [
        "the people of malta is 31",
        "The people of  Malta is 31.",
        "the people of malta is more than 30",
        "the people of malta is less than 32",
        "the people of malta is not less than 31",
        "the people of malta is not more than 31",
        "the people of malta is not 3",
        "the people of malta is not 310",
        "the people of malta is 31 and the people of gozo is 12",
        "the people of malta is more than 9 and the people of malta is less than 40 and the ships of malta is not 5",
        "the hills of malta is not 3",
    ],
)
def test_what_the_page_supports(claim):
    assert entails(claim, PAGE)


@pytest.mark.parametrize(
    ("claim", "page"),
    [
        ("the people of malta is 31", "the people of malta is not 31."),  # negation on the page
        ("the people of malta is not 31", PAGE),  # negation in the claim
        ("the people of malta is 3", PAGE),  # a number inside a longer one
        ("the people of malta is 1", PAGE),
        ("the people of malta is 31", "the people of malta is 310."),
        ("the people of malta is 3", "the people of malta is 3.5."),
        ("the people of malta is 12", PAGE),  # another subject has this number
        ("the hills of malta is 4", PAGE),  # another property has this number
        ("the people of alta is 31", PAGE),  # a name inside a longer one
        ("the people of malta is more than 31", PAGE),
        ("the people of malta is less than 31", PAGE),
        ("the people of malta is not more than 30", PAGE),
        ("the people of malta is 31 and the ships of malta is 5", PAGE),  # half of it
        ("the ships of malta is 5 and the people of malta is 31", PAGE),
        ("the hills of malta is 5", PAGE),  # not 3 is not 5
        ("the people of malta is 31", "some say that the people of malta is 31."),
        ("the people of malta is 31", "the people of malta is 31 by night."),
        ("the people of malta is 31", "the people of malta is more than 30."),  # more than 30 is not 31
        ("the people of malta is 31", "the people of malta is 31. the people of malta is 32."),  # contradiction
        ("the people of malta is not 31", "the people of malta is 31. the people of malta is 32."),
        ("the people of malta is not 31", ""),
        ("", PAGE),
        ("printed by atlas", PAGE),  # the page's own words, but no claim
        ("the people of malta is 31. the ships of malta is 4.", PAGE),  # two sentences are no claim
        ("the people of malta is 31 and", PAGE),
        ("the people of malta is " + "9" * 5000, PAGE),
        ("the people of malta is", PAGE),
        ("people of malta is 31", PAGE),
    ],
)
def test_what_it_does_not(claim, page):
    assert not entails(claim, page)


def test_comparisons_on_the_page_bound_the_number():
    page = "the people of malta is more than 30 and the people of malta is not more than 32. the people of malta is not 32."
    assert entails("the people of malta is 31", page) and entails("the people of malta is less than 32", page)
    assert not entails("the people of malta is 30", page) and not entails("the people of malta is more than 31", page)
    assert entails("the people of malta is more than 5", "the people of malta is more than 9.")
    assert not entails("the people of malta is more than 9", "the people of malta is more than 5.")


def test_a_contradiction_spoils_its_own_subject_only():
    page = "the people of malta is 31. the people of malta is more than 40. the ships of malta is 4."
    assert entails("the ships of malta is 4", page) and not entails("the people of malta is more than 1", page)


# A world gives each of two things a number; entailment is truth in all worlds in which the page is true.
THINGS = ("people of malta", "ships of malta")
parts = st.builds(
    lambda about, no, how, n: f"the {about} is {no}{how}{n}",
    st.sampled_from(THINGS), st.sampled_from(("", "not ")), st.sampled_from(("", "more than ", "less than ")), st.integers(2, 6),
)  # fmt: skip
conjunctions = st.lists(parts, min_size=1, max_size=3).map(" and ".join)


def true_in(sentence, world):
    """A second reading of the language, by evaluation of each part."""
    for part in sentence.split(" and "):
        about, rest = re.fullmatch(r"the (.*?) is (.*)", part).groups()
        words = rest.split()
        no = words[0] == "not"
        words = words[no:]
        value, n = world[about], int(words[-1])
        true = value == n if len(words) == 1 else value > n if words[0] == "more" else value < n
        if true == no:
            return False
    return True


@settings(max_examples=400, deadline=None)
@given(conjunctions, st.lists(conjunctions, max_size=3))
def test_it_is_truth_in_every_world_of_the_page(claim, page):
    worlds = [dict(zip(THINGS, (a, b))) for a in range(9) for b in range(9)]
    text = "".join(f"{sentence}. " for sentence in page)
    # What is said of one thing is judged by what is said of it: the other's contradiction neither helps nor hurts.
    expected = all(
        (mine := [w for w in worlds if all(true_in(p, w) for s in page for p in s.split(" and ") if about(p) == about(part))])
        and all(true_in(part, w) for w in mine)
        for part in claim.split(" and ")
    )  # fmt: skip
    assert entails(claim, text) == bool(expected)


def about(part):
    return part.split(" is ")[0]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_is_an_error(claim, page):
    assert entails(claim, page) in (True, False) and not entails(claim, "")


@pytest.mark.parametrize(
    ("wrong", "claim", "page"),
    [
        (lambda c, p: c in p, "the people of malta is 3", "the people of malta is 31."),
        (lambda c, p: all(w in p.split() for w in c.split()), "the people of gozo is 31", "the people of malta is 31 . the ships of gozo is 4 ."),
        (lambda c, p: any(part in p for part in c.split(" and ")), "the people of malta is 31 and the ships of malta is 5", PAGE.lower()),
        (lambda c, p: set(re.findall("[0-9]+", c)) <= set(re.findall("[0-9]+", p)), "the people of malta is not 31", PAGE),
    ],
)  # fmt: skip
def test_finding_words_is_no_check(wrong, claim, page):
    assert wrong(claim, page) and not entails(claim, page)


def test_statements_and_sentences():
    assert statements("the number of ships of malta is not less than 7") == (Statement("number of ships of malta", True, "<", 7),)
    assert statements("the people of malta is not") is None and statements("the the of malta is 3") is None
    assert sentences("A b.  C 3.5 d\ne .") == ["a b", "c 3.5 d", "e"]


# ---------------------------------------------------------------- archives


def test_a_page_that_exists_and_says_something_else_is_no_citation():
    archive = PageArchive.of({"atlas/malta": PAGE, "forum/malta": "the people of malta is 45."})
    assert cited("the people of malta is 31", "atlas/malta", archive)
    assert not cited("the people of malta is 31", "forum/malta", archive)
    assert not cited("the people of malta is 31", "atlas/gozo", archive)  # no such page


def test_snapshots_carry_the_digest_of_their_text():
    with pytest.raises(ValueError, match="digest of a must be the SHA-256 of its text"):
        Snapshot("a", "the people of malta is 3.", Snapshot.of("a", "the people of malta is 4.").digest)
    with pytest.raises(ValueError, match="address must be a word; got 'a b'"):
        Snapshot.of("a b", "")
    with pytest.raises(ValueError, match="distinct addresses"):
        PageArchive([Snapshot.of("a", "x"), Snapshot.of("a", "y")])
    one, other = PageArchive.of({"a": "x", "b": "y"}), PageArchive.of({"b": "y", "a": "x"})
    assert one.version == other.version != PageArchive.of({"a": "x", "b": "z"}).version


def test_replay_on_archived_pages_reveals_a_changed_index():
    before = PageArchive.of({"a": "the people of malta is 31.", "b": "the ships of malta is 4.", "c": "the hills of malta is 2."})
    after = PageArchive.of({"a": "the people of malta is 32.", "b": "the ships of malta is 4.", "d": "the hills of malta is 2."})
    right = ("the people of malta is 31", "a")
    wrong = ("the people of malta is 32", "a")
    gone = ("the hills of malta is 2", "c")
    kept = ("the ships of malta is 4", "b")
    drift = index_drift(before, after, [right, wrong, gone, kept])
    assert drift and (drift.added, drift.removed, drift.changed) == (("d",), ("c",), ("a",))
    assert drift.lost == (right, gone) and drift.gained == (wrong,)
    assert not index_drift(before, PageArchive(tuple(before.values())), [right, wrong, gone, kept])
