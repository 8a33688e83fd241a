"""The kernel against Kripke models, and proofs that it must refuse."""

from itertools import product

from hypothesis import given, settings, strategies as st
import pytest

from course.envs.proofs import (
    ATOMS, FALSUM, MAX_HYPOTHESES, TACTICS, VOCAB_SIZE, Goal, check_proof, encode_goal, follows, infix, kernel, parts, problems,
    steps_of, truth,
)  # fmt: skip
from course.search.proofs import solve

formulas = st.recursive(
    st.sampled_from("pqF"), lambda inner: st.tuples(st.sampled_from("&|>"), inner, inner).map("".join), max_leaves=4
)
sequents = st.builds(Goal, st.lists(formulas, max_size=3, unique=True).map(tuple), formulas)

# All persistent valuations of p and q on three frames: one world, two in a row, a fork. above[w] are the worlds w sees.
FRAMES = ([{0}], [{0, 1}, {1}], [{0, 1, 2}, {1}, {2}])


def models():
    for above in FRAMES:
        worlds = range(len(above))
        grown = [
            set(w for w in worlds if bits[w])
            for bits in product((0, 1), repeat=len(above))
            if all(bits[v] >= bits[w] for w in worlds for v in above[w])
        ]
        yield from ((above, {"p": p, "q": q}) for p in grown for q in grown)


def forced(formula, world, above, value):
    connective, *sides = parts(formula)
    if not sides:
        return formula != FALSUM and world in value[formula]
    a, b = ([forced(side, v, above, value) for v in sorted(above[world])] for side in sides)
    here = sorted(above[world]).index(world)
    if connective == ">":
        return all(not x or y for x, y in zip(a, b))
    return (a[here] and b[here]) if connective == "&" else (a[here] or b[here])


def refuted(goal):
    return any(
        all(forced(h, w, above, value) for h in goal.hypotheses) and not forced(goal.target, w, above, value)
        for above, value in models()
        for w in range(len(above))
    )


def test_the_models_know_what_intuitionistic_logic_lacks():
    assert refuted(Goal((), "|p>pF"))
    assert refuted(Goal((), ">>>pFFp"))
    assert refuted(Goal((), ">>>pqpp"))
    assert not refuted(Goal(("p",), ">>pqq"))


@settings(max_examples=60, deadline=None)
@given(sequents)
def test_each_tactic_is_sound(goal):
    """No model refutes a goal all of whose subgoals no model refutes: what the kernel leaves open is enough."""
    for tactic in TACTICS:
        left = kernel(goal, tactic)
        if left is not None and refuted(goal):
            assert any(refuted(sub) for sub in left), (goal, tactic)


@pytest.mark.parametrize(
    ("given_", "target"),
    [((), ">pp"), ((), ">p>qp"), ((), ">&pq&qp"), ((), ">|pq|qp"), ((), ">p>>pFF"), ((), ">|>pq>pr>p|qr"), ((), ">>|p>pFFF"),
     (("|pq", ">pr", ">qr"), "r"), (("F",), "p")],
)  # fmt: skip
def test_theorems_have_proofs(given_, target):
    goal = Goal(given_, target)
    proof = solve(goal, lambda _: TACTICS, kernel, 8)
    assert proof is not None and check_proof(goal, proof)


@pytest.mark.parametrize("target", ["|p>pF", ">>>pFFp", ">>>pqpp", "p", "F"])
def test_others_have_none(target):
    assert solve(Goal((), target), lambda _: TACTICS, kernel, 12) is None


def test_tactics_one_by_one():
    goal = Goal(("&pq", "|pq", ">pq"), "&pq")
    assert kernel(goal, "assumption") == ()
    assert kernel(goal, "split") == (Goal(goal.hypotheses, "p"), Goal(goal.hypotheses, "q"))
    assert kernel(goal, "cases 0") == (Goal(("|pq", ">pq", "p", "q"), "&pq"),)
    assert kernel(goal, "cases 1") == (Goal(("&pq", ">pq", "p"), "&pq"), Goal(("&pq", ">pq", "q"), "&pq"))
    assert kernel(goal, "use 2") == (Goal(goal.hypotheses, "p"), Goal(("&pq", "|pq", "q"), "&pq"))
    assert kernel(Goal((">pq",), "q"), "use 0") == (Goal((">pq",), "p"),)
    assert kernel(Goal((), ">pq"), "intro") == (Goal(("p",), "q"),)
    assert kernel(Goal((), "|pq"), "right") == (Goal((), "q"),)
    for tactic in ("intro", "left", "right", "cases 2", "use 0", "use 1", "cases 5", "use 3"):
        assert kernel(goal, tactic) is None
    assert kernel(Goal((), "p"), "assumption") is None


def test_a_full_list_of_hypotheses_takes_no_more():
    given_ = tuple(">p" + a for a in "qrst") + ("&qr", "s")
    assert len(given_) == MAX_HYPOTHESES
    assert kernel(Goal(given_, ">tp"), "intro") is None
    assert kernel(Goal(given_, "p"), "cases 4") is None


def test_check_proof_refuses_everything_but_a_whole_valid_proof():
    goal = Goal(("p", "q"), "&pq")
    close = ("assumption", ())
    assert check_proof(goal, ("split", (close, close)))
    for wrong in (
        None, (), "split", ("split",), ("split", ()), ("split", (close,)), ("split", (close, close, close)), ("split", [close, close]),
        ("split", (close, None)), ("sorry", ()), ("assumption", ()), ("split", (close, ("intro", ()))),
    ):  # fmt: skip
        assert not check_proof(goal, wrong), wrong
    assert [(t, g.target) for g, t, _ in steps_of(goal, ("split", (close, close)))][0] == ("split", "&pq")


def test_problems_follow_differ_and_depend_on_the_seed_only():
    made = problems(30, 3)
    assert made == problems(30, 3) != problems(30, 4)
    assert len(set(made)) == 30
    assert all(follows(g) and not follows(Goal(g.hypotheses, FALSUM)) and not follows(Goal((), g.target)) for g in made)
    assert all(max(encode_goal(g)) < VOCAB_SIZE and len(encode_goal(g)) <= 96 for g in made)
    assert len({encode_goal(g) for g in made}) == 30


def test_truth_and_text():
    rows = range(32)
    value = {a: [row >> i & 1 for row in rows] for i, a in enumerate(ATOMS)}
    assert truth(">pq") == sum((not value["p"][i] or value["q"][i]) << i for i in rows)
    assert truth("F") == 0
    assert infix(">&pq|r>sF") == "(p ∧ q) → (r ∨ ¬s)"


@pytest.mark.parametrize("text", ["", "pq", "&p", "x", ">", "&pqr"])
def test_what_is_no_formula_is_refused(text):
    with pytest.raises(ValueError, match="formula must be one formula"):
        Goal((), text)


def test_unknown_tactics_and_too_many_hypotheses_are_errors():
    with pytest.raises(ValueError, match="tactic must be one of"):
        kernel(Goal((), "p"), "sorry")
    with pytest.raises(ValueError, match="hypotheses must be at most"):
        Goal(("p",) * 7, "p")
