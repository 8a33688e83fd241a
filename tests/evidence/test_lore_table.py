"""The folk claims: each with one fact that refutes it, and facts that refute none; the excerpt's claims with their labels."""

import pytest

from course.evidence.claims import FIELDS
from course.evidence.corrections import REFUTES, correction
from course.evidence.excerpt import CLAIMED, EXCERPT
from course.evidence.excerpt_labels import TRUTH
from course.evidence.lore import CLAIMS, FACTS


def test_every_claim_has_a_fact_of_its_own():
    assert len(CLAIMS) == 17 and list(REFUTES) == list(CLAIMS)
    assert len(set(REFUTES.values())) == 17 and set(REFUTES.values()) < set(FACTS) and len(FACTS) == 22
    assert {correction(claim).text for claim in CLAIMS} == {FACTS[fact].text for fact in REFUTES.values()}
    with pytest.raises(ValueError, match="claim"):
        correction("dpo")


def test_facts_have_places_and_tell_nothing_by_their_order():
    assert all(fact.place.startswith("A ") and fact.text.endswith(".") for fact in FACTS.values())
    order = [list(FACTS).index(fact) for fact in REFUTES.values()]
    assert order != sorted(order) and order != sorted(order, reverse=True)


def test_the_excerpt_supports_its_labels():
    labels = [claim.label for claim, _ in TRUTH.values()]
    assert [labels.count(label) for label in "DIU"] == [4, 3, 5] and list(CLAIMED) == list(TRUTH)
    for claim, why in TRUTH.values():
        cited = (claim.place.split()[-1],) if claim.label == "D" else claim.premises
        assert set(cited) <= set(EXCERPT) and why and claim.field in FIELDS


def test_the_inferences_are_right():
    assert 256_000 / 31_144 == pytest.approx(8.2, abs=0.05) and 100 * 89 / 93 == pytest.approx(95.7, abs=0.01)
    assert 9 * 8 // 2 == 36
