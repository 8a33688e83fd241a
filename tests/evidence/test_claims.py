"""Claims with label and place, tables that drop nothing, and conflicts that stand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course.evidence.claims import FIELDS, Claim, Conflict, EvidenceTable, conflicts

KL = (
    Claim("reward", "0.02", "D", "A 3.3", about="KL coefficient"),
    Claim("reward", "0.2", "D", "B table 2", about="KL coefficient"),
)
START = tuple(
    Claim("reward", text, "D", place, about="reward model's start")
    for text, place in (("a GPT-3 checkpoint", "A 3.3"), ("the SFT model", "B table 2"), ("the SFT model", "C ftip-002P"))
)


@pytest.mark.parametrize("label, place, premises", [("D", "A 3.3", ()), ("I", "", ("two numbers",)), ("U", "", ())])
def test_each_label_comes_with_what_it_needs(label, place, premises):
    claim = Claim("optimizer", "PPO", label, place, premises)
    assert (claim.label, claim.place, claim.premises) == (label, place, premises)


BAD = (
    (dict(label="D"), "place"), (dict(label="D", place="A"), "place"), (dict(label="D", place="A 3.3", premises=("x",)), "premises"),
    (dict(label="I"), "premises"), (dict(label="I", premises=("x",), place="A 3.3"), "place"), (dict(label="I", premises=(" ",)), "premises"),
    (dict(label="U", place="A 3.3"), "place"), (dict(label="U", premises=("x",)), "premises"), (dict(label="D", place="A 3.3", text=" "), "text"),
    (dict(label="U", field="algorithm"), "field"),
)  # fmt: skip


@pytest.mark.parametrize("given, named", BAD)
def test_a_claim_without_its_support_is_refused(given, named):
    with pytest.raises(ValueError, match=rf"^{named}"):
        Claim(**{"field": "optimizer", "text": "PPO", **given})


def test_the_fields_are_the_eleven_rows():
    assert len(FIELDS) == 11 and list(FIELDS)[0] == "base_checkpoint" and list(FIELDS)[-1] == "unknowns"


def test_an_absent_row_is_unknown():
    table = EvidenceTable(KL)
    for field in FIELDS:
        if field != "reward":
            assert table.row(field) == (Claim(field, "", "U"),) and table.label(field) == "U"
    assert table.row("reward") == KL and table.label("reward") == "D"
    with pytest.raises(ValueError, match="field"):
        table.row("algorithm")


def test_the_label_of_a_row_is_its_strongest():
    table = EvidenceTable((Claim("reward", "", "U"), Claim("reward", "about 8", "I", premises=("A 3.3",))))
    assert table.label("reward") == "I" and EvidenceTable((*table.claims, KL[0])).label("reward") == "D"


def test_the_conflicts_of_instructgpt():
    """0.02 against 0.2, and GPT-3 against the SFT model: all five claims stand, with their places."""
    found = conflicts(EvidenceTable((*KL, *START)))
    assert found == (Conflict("reward", "KL coefficient", KL), Conflict("reward", "reward model's start", START))


def test_nobody_chooses_in_silence():
    table = EvidenceTable((*KL, *START[1:]))
    assert table.value("reward", "reward model's start") == START[1]
    for about in ("KL coefficient", "ratio clip"):
        with pytest.raises(ValueError, match=re.escape(about)):
            table.value("reward", about)
    with pytest.raises(ValueError, match=r"0\.02 \(A 3\.3\); 0\.2 \(B table 2\)"):
        table.value("reward", "KL coefficient")


rows = st.tuples(
    st.sampled_from("DDDIU"), st.sampled_from(("reward", "rollouts")), st.sampled_from(("", "clip", "count")), st.sampled_from("12"), st.sampled_from(("A 1", "B 2")),
)  # fmt: skip


@given(st.lists(rows, max_size=8))
def test_a_conflict_is_two_claims_that_cannot_both_be_chosen(drawn):
    """The slow twin: every pair of D claims about one quantity, compared."""
    table = EvidenceTable(
        tuple(
            Claim(field, text, label, place if label == "D" else "", ("p",) if label == "I" else (), about)
            for label, field, about, text, place in drawn
        )
    )
    pairs = {
        (a.field, a.about)
        for a in table.claims for b in table.claims
        if a.label == b.label == "D" and (a.field, a.about) == (b.field, b.about) and a.about and a.text != b.text
    }  # fmt: skip
    found = conflicts(table)
    assert {(c.field, c.about) for c in found} == pairs and len(found) == len(pairs)
    for conflict in found:
        assert conflict.claims == tuple(
            c for c in table.claims if (c.label, c.field, c.about) == ("D", conflict.field, conflict.about)
        )
        with pytest.raises(ValueError):
            table.value(conflict.field, conflict.about)
