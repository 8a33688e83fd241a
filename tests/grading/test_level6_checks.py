"""The proof of level 6: every known mistake is caught, every right alternative passes, and the checks work through plain data."""

import json
import math
import random

import pytest
import torch

from autograder.bans import copies_reference, veto, veto_of_function
from autograder.checks import level6 as visible
from autograder.draw import Draw, anonymous_source
from autograder.framework import Direct
from autograder.hidden import level6 as hidden
from autograder.inside import codec, drivers
from autograder.judge import judge, run_check
from autograder.levels import HERE, load
from course.language.stamp import digest
from promises import (
    check_anchors, check_names, check_proof, check_recognised, check_right_accepted, check_sentences, check_wrong_caught, only,
)  # fmt: skip
from wall import check_through_the_wall

LEVEL = load(6)
EXERCISES = [exercise.function for exercise in LEVEL.exercises]
GRADED = ("L6.01", "L6.02", "L6.03", "L6.04", "L6.05", "L6.06", "L6.07", "L6.08", "L6.17")
POINTS = {
    "vtrace": 12, "effective_sample_size": 4, "staleness_report": 6, "balanced_batch": 6, "policy_stamp": 6, "attempt_annotations": 6,
    "GradientGate": 8, "append_round": 8, "verify_ledger": 6, "admit": 4, "test_vtrace": 8, "attribute": 14,
}  # fmt: skip


@pytest.mark.parametrize("function", EXERCISES)
def test_the_proof_of_the_checks(function):
    check_proof(LEVEL, function)


def test_every_invariant_has_known_mistakes():
    for id in GRADED:
        assert sum(id in mutant.kills for mutant in LEVEL.mutants) >= 6, id
        assert any(check.points for check in LEVEL.checks if check.invariant == id), id
    for function in EXERCISES:
        assert sum(mutant.function == function for mutant in LEVEL.mutants) >= 6, function


def test_names_of_known_mistakes_are_their_own():
    check_names(LEVEL)


@pytest.mark.parametrize("function", EXERCISES)
def test_each_exercise_has_one_anchor_a_hidden_check_and_its_points(function):
    check_anchors(LEVEL, function)
    assert LEVEL.points_of(function) == POINTS[function]


def test_a_learner_is_told_a_sentence():
    check_sentences(LEVEL)


RECOGNISED = (
    "ratio_upside_down", "cut_like_an_end", "counts_the_padding", "lag_of_the_last_token", "filled_up_from_others", "in_the_order_written",
    "stored_over_current", "RejectedEnterTheWindow", "hash_of_the_round_alone", "links_are_believed", "strictly_below", "the_whole_change",
)  # fmt: skip


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_known_mistake_is_recognised(name):
    check_recognised(LEVEL, name)


@pytest.mark.parametrize("function", EXERCISES)
def test_checks_hold_when_only_data_travels(function):
    check_through_the_wall(LEVEL, function)


@pytest.mark.parametrize("function", EXERCISES)
def test_chance_does_not_reject_a_right_answer_nor_spare_a_wrong_one(function):
    check_right_accepted(LEVEL, function, (200, 201))
    check_wrong_caught(LEVEL, function, (200,))


# ---------------------------------------------------------------- the twins of the checks


def test_the_direct_sum_is_the_return_where_nothing_is_clipped():
    draw = Draw(3, "sum")
    behaviour, _, rewards, values, discounts, bootstrap = visible.stale_rows(draw, rows=1, steps=4)
    targets, advantages = visible.direct_sum(behaviour, behaviour, rewards, values, discounts, bootstrap)
    r, g = rewards[0].tolist(), discounts[0].tolist()
    wanted = r[0] + g[0] * (r[1] + g[1] * (r[2] + g[2] * (r[3] + g[3] * float(bootstrap))))
    assert float(targets[0, 0]) == pytest.approx(wanted) and float(advantages[0, 0]) == pytest.approx(
        wanted - float(values[0, 0])
    )


def test_a_cut_in_a_row_is_the_end_of_a_shorter_row():
    draw = Draw(4, "cut")
    b, t, r, v, g, boot = visible.stale_rows(draw, rows=1, steps=7)
    cuts = torch.full_like(v, math.nan)
    cuts[0, 2] = 1.75
    whole = visible.direct_sum(b, t, r, v, g, boot, next_values=cuts)
    first = visible.direct_sum(b[:, :3], t[:, :3], r[:, :3], v[:, :3], g[:, :3], torch.tensor([1.75], dtype=torch.float64))
    second = visible.direct_sum(b[:, 3:], t[:, 3:], r[:, 3:], v[:, 3:], g[:, 3:], boot)
    for got, left, right in zip(whole, first, second):
        assert torch.allclose(got, torch.cat([left, right], 1))


def test_quantiles_and_worth_are_those_of_the_libraries():
    draw = Draw(5, "quantiles")
    values = draw.normal(17)
    for q in (0.05, 0.5, 0.95):
        assert visible.quantile(values.tolist(), q) == pytest.approx(float(values.quantile(q)))
    assert visible.kish([2.0, 1.0, 0.5, 0.5]) == pytest.approx(2.909091, abs=1e-6)
    assert visible.kish([3.0] * 5) == pytest.approx(5) and visible.kish([]) == 0


def test_hashes_of_the_checks_are_the_package_s():
    draw = Draw(6, "rounds")
    for data in (visible.random_parts(draw), visible.a_round(draw, 0), {"a": [1.0, 1e22, 0.1 + 0.2, "é\u2028"], "b": None}):
        assert visible.hashed(data) == digest(data)


def test_rounds_of_the_checks_are_rounds_and_their_ledger_is_whole():
    from course.accounting.ledger import Round, verify_ledger

    rounds = visible.history(Draw(7, "history"), 6, rejected=(0, 2, 3))
    assert [Round.from_json(data).to_json() for data in rounds] == rounds
    ledger = drivers.chain(rounds)
    assert verify_ledger(ledger) is None and [(e.before, e.hash) for e in ledger] == visible.links(rounds)


def test_the_golden_increments():
    assert visible.decisions(2, 2.0, [0.5, 1.5, 1.5]) == [True, True, True]
    assert visible.decisions(2, 2.0, [0.5, 1.5, 2.5, 2.5, 1.9]) == [True, True, False, False, True]
    assert visible.decisions(3, 0.0, [0.7] * 4 + [0.71, 0.69]) == [True] * 4 + [False, True]


def test_a_drawn_interval_is_as_wide_as_the_checks_say():
    """The exact standard deviation against draws of another source, on an experiment with unequal cells."""
    factors, table, outcomes = visible.experiment(Draw(8, "sd"), visible.FACTORS[:3], 4, {"actor": 1.0}, unequal=True)
    cells = {}
    for i, row in enumerate(map(tuple, table.tolist())):
        cells.setdefault(row, []).append(i)
    source, drawn = random.Random(1), []
    for _ in range(3000):
        again = [0] * len(table)
        for mine in cells.values():
            for place in mine:
                again[place] = source.choice(mine)
        drawn.append(visible.least_squares(table, outcomes[again]))
    assert torch.allclose(torch.stack(drawn).std(0), visible.bootstrap_sd(table, outcomes), rtol=0.08)


def test_least_squares_is_half_a_difference_of_means_in_a_balanced_experiment():
    factors, table, outcomes = visible.experiment(Draw(9, "half"), visible.FACTORS[:2], 3, {"actor": 2.0})
    on, off = (outcomes[table[:, 0] == level].mean() for level in (1, -1))
    assert float(visible.least_squares(table, outcomes)[0]) == pytest.approx(float(on - off) / 2)


def test_the_fixed_point_is_the_value_of_the_policy_that_the_bound_allows():
    """Clipped corrections have mean 0 at this value, and at no other: the check would see a wrong clip."""
    draw = Draw(10, "fixed point")
    for _ in range(5):
        mu, pi, rewards = hidden.two_step_tree(draw)
        for rho_bar in (0.6, 1.0):
            allowed = [min(rho_bar * m, p) for m, p in zip(mu, pi)]
            value = sum(a / sum(allowed) * r for a, r in zip(allowed, rewards)) / (1 - 0.8)
            mean = sum(m * min(rho_bar, p / m) * (r + 0.8 * value - value) for m, p, r in zip(mu, pi, rewards))
            assert mean == pytest.approx(0.0, abs=1e-12)


# ---------------------------------------------------------------- the bug hunt


@pytest.mark.parametrize("answer", [lambda vtrace: None, lambda vtrace: 1 / 0])
def test_a_bug_hunt_with_one_answer_for_all_earns_nothing(answer):
    verdicts = judge(LEVEL, "test_vtrace", lambda _: Direct("test_vtrace", answer), 3, hidden=True)
    assert sum(v.points for v in verdicts) == 0


FAULTS = (
    visible.corrects_nothing, visible.turns_ratios_over, visible.ends_in_nothing, visible.takes_cuts_for_ends, visible.takes_ends_for_cuts,
    hidden.runs_on_over_cuts, hidden.takes_the_next_episode_s_value, hidden.takes_the_value_a_step_late, hidden.rho_under_c_bar,
    hidden.c_under_rho_bar, hidden.exchanges_bounds, hidden.advantages_at_full_ratio, hidden.one_bound_of_two,
    hidden.one_where_none_is_given, hidden.looks_at_v_only, hidden.looks_at_its_own_target, hidden.carries_without_discount,
    hidden.carries_without_lambda, hidden.lambda_in_targets_only, hidden.learns_through_ratios, hidden.learns_through_values,
    hidden.stops_before_the_first,
)  # fmt: skip


def test_right_candidates_agree_with_the_checks_and_planted_faults_do_not():
    checks = LEVEL.checks_of("vtrace")
    for candidate in visible.RIGHT:
        assert [check.name for check in checks if run_check(check, Direct("vtrace", candidate), 21)] == []
    for fault in FAULTS:
        assert any(run_check(check, Direct("vtrace", fault), 21) for check in checks), fault.__name__


def test_a_candidate_of_the_hunt_travels_as_source():
    """Each planted function is whole in its source, with its defaults, and nothing in it says what its fault is."""
    given = visible.stale_rows(Draw(12, "travels"))
    cuts = torch.full_like(given[3], math.nan)
    cuts[0, 2] = 1.0
    for function in (*visible.RIGHT, *FAULTS):
        source = anonymous_source(function)
        assert "hole" not in source and function.__name__ not in source
        for options in ({}, {"next_values": cuts, "lambda_": 0.5}):
            for got, wanted in zip(codec.Candidate(source)(*given, **options), function(*given, **options)):
                assert torch.equal(got, wanted)


# ---------------------------------------------------------------- drivers: what leaves the sandbox is data, whatever came


class Liar(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


ODD = [
    Liar("x"),
    object(),
    lambda: 0,
    {1: Liar("y")},
    [object()],
    float("nan"),
    10**400,
    {2, 3},
    torch.ones(2),
    [torch.tensor(1)],
    (1, Liar("z")),
]


@pytest.mark.parametrize("answer", ODD)
def test_what_a_driver_answers_is_plain_data(answer):
    draw = Draw(11, "odd")
    rounds, attempt = visible.history(draw, 2), visible.an_attempt(draw)

    class Gate:
        def __init__(self, window, threshold):
            pass

        def decide(self, norm_increment):
            return answer

    say = lambda *_: answer  # noqa: E731
    answers = [
        drivers.staleness(say, [([(0, 0, [0.1], [True])], 1)]), drivers.batches(say, [([(1, "a", 0.0, 1.0)], {"a": 1})]),
        drivers.annotations(say, [attempt]), drivers.gated(Gate, [(2, 1.0, [1.0])]), drivers.interleaved(Gate, [(2, 1.0)], [(0, 1.0)]),
        drivers.appended(say, [(rounds[:1], rounds[1])]), drivers.tampered(say, [(rounds, [])]),
        drivers.admissions(say, [({}, {}, {})]), drivers.attributed(say, [(["a"], torch.tensor([[-1], [1]]), torch.zeros(2))]),
    ]  # fmt: skip
    for got in (*answers, drivers.grown(say, rounds)):
        tensors = {}
        tree = codec.encode(got, tensors)
        json.dumps(tree)
        assert codec.decode(tree, tensors) is not None and not tensors


@pytest.mark.parametrize("function", EXERCISES)
def test_nonsense_is_told_what_was_expected(function):
    for answer in (None, 3, "no"):
        anchor = next(check for check in LEVEL.checks_of(function) if check.anchor)
        reason = run_check(anchor, Direct(function, lambda *_, **__: answer), 4)
        assert "expected" in reason, (function, answer, reason)


def test_an_answer_in_numbers_of_another_library_is_right():
    import numpy

    queue = [([(1, "a", 0.0, 1.0), (2, "b", 0.0, 1.0)], {"b": 1})]
    assert drivers.batches(lambda *_: [numpy.int64(1)], queue) == [[1]] == drivers.batches(lambda *_: torch.tensor([1]), queue)

    class Gate:
        def __init__(self, window, threshold):
            pass

        def decide(self, norm_increment):
            return numpy.bool_(norm_increment < 2)

    assert drivers.gated(Gate, [(1, 1.0, [1.0, 3.0])]) == [[True, False]]


@pytest.mark.parametrize("kind", ["RejectedEnterTheWindow", "GateOfStatistics"])
def test_a_class_is_judged_as_a_function_is(kind):
    """The right one earns all points, the wrong one some, and one that was not begun none, in whichever method it stops."""
    runs = {item.name: item.run for item in (*LEVEL.mutants, *LEVEL.alternatives)}
    verdicts = judge(LEVEL, "GradientGate", lambda _: Direct("GradientGate", runs[kind]), 3, hidden=True)
    assert (sum(v.points for v in verdicts) == 8) is (kind == "GateOfStatistics")

    class GradientGate:
        def __init__(self, window, threshold):
            pass

        def decide(self, norm_increment):
            raise NotImplementedError

    verdicts = judge(LEVEL, "GradientGate", lambda _: Direct("GradientGate", GradientGate), 3, hidden=True)
    assert {v.reason for v in verdicts} == {"not implemented yet"}


# ---------------------------------------------------------------- what students get, what they may use


def test_students_need_none_of_the_modules_that_they_do_not_get():
    for path in (HERE / "checks" / "level6.py", HERE / "inside" / "drivers.py"):
        source = path.read_text()
        assert not any(f"autograder.{name}" in source for name in ("hidden", "mutants", "alternatives"))


def test_a_packages_function_handed_in_is_vetoed():
    gate = "class GradientGate:\n    def __init__(self, w, t):\n        self.inner = {}(w, t)\n    def decide(self, x):\n        return self.inner.decide(x)"
    sources = {
        "vtrace": "from course.credit.vtrace import vtrace as v\ndef vtrace(*a):\n    return v(*a)",
        "effective_sample_size": "import course.systems.staleness as s\ndef effective_sample_size(x, m):\n    return s.effective_sample_size(x, m)",
        "balanced_batch": "from course.systems.batching import completed_first\ndef balanced_batch(q, n):\n    return completed_first(q, 3)",
        "policy_stamp": "from course.language.stamp import digest\ndef policy_stamp(parts):\n    return digest(dict(parts))",
        "GradientGate": "import course.training.gate as g\n" + gate.format("g.GradientGate"),
        "append_round": "import course.accounting.ledger as ledger\ndef append_round(l, r):\n    return ledger.chained('', r)",
        "verify_ledger": "from course.language import stamp\ndef verify_ledger(l):\n    return stamp.digest([l[0].before])",
        "admit": "def admit(b, s, budget):\n    return (b + s).fits(budget)",
        "attribute": "from course.systems.ablation import attribute",
    }
    for function, source in sources.items():
        assert veto(LEVEL.exercise(function), [source]), function
    fair = {
        "policy_stamp": "import hashlib\ndef policy_stamp(parts):\n    return hashlib.sha256(str(parts).encode()).digest().hex()",
        "GradientGate": "class Inner:\n    pass\n" + gate.format("Inner"),
        "append_round": "from course.accounting.ledger import Entry, GENESIS\ndef append_round(l, r):\n    return (*l, Entry(r, GENESIS, ''))",
    }
    for function, source in fair.items():
        assert not veto(LEVEL.exercise(function), [source]), function


def test_a_live_class_is_read_too():
    """A notebook's class has no source of its own; its methods have, and what they call is found."""
    from course.training import gate

    class GradientGate:
        def __init__(self, window, threshold):
            self.inner = gate.GradientGate(window, threshold)

        def decide(self, norm_increment):
            return self.inner.decide(norm_increment)

    GradientGate.__module__ = "__main__"
    exercise = LEVEL.exercise("GradientGate")
    # `gate` is this function's own name for the module: in a notebook it would be an import, which the submission's cells show
    assert veto_of_function(exercise, GradientGate) == ""
    source = "from course.training import gate\nclass GradientGate:\n    def decide(self, x):\n        return gate.GradientGate(2, 1.0).decide(x)"
    assert "GradientGate" in veto(exercise, [source])


def test_a_copied_class_is_noticed_and_another_is_not():
    import inspect

    from course.training.gate import GradientGate

    exercise = LEVEL.exercise("GradientGate")
    copied = inspect.getsource(GradientGate).replace("mean", "m").replace('"""decide', '"""other words')
    assert copies_reference(exercise, GradientGate, [copied])
    assert not copies_reference(
        exercise,
        GradientGate,
        ["class GradientGate:\n    def decide(self, norm_increment):\n        return norm_increment < 1 + 2 + 3 + 4 + 5 + 6 + 7"],
    )


def test_an_answer_taken_from_the_visible_checks_is_flagged():
    import inspect

    from autograder.checks import level6
    from autograder.grade import _shown

    exercise, shown = LEVEL.exercise("vtrace"), _shown(LEVEL)
    assert level6.vtrace_by_sums in shown and not any(hasattr(function, "declared") for function in shown)
    taken = inspect.getsource(level6.vtrace_by_sums).replace("def vtrace_by_sums", "def vtrace")
    own = inspect.getsource(LEVEL.reference("vtrace"))
    assert any(copies_reference(exercise, function, [taken]) for function in shown)
    assert not any(copies_reference(exercise, function, [own]) for function in shown)


@pytest.mark.parametrize("function", EXERCISES)
def test_calls_go_into_the_sandbox_and_answers_come_out(tmp_path, function):
    """As when a submission is graded: a plan in files, the export cell's work on them, and checks judged on what it wrote."""
    from autograder.inside.export import _calls
    from autograder.plan import make_plan, read_answers

    level = only(LEVEL, function)
    plan = make_plan(level, 9)
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    plan.write(tmp_path / "in", call_seconds=60, function_seconds=60)
    _calls({function: level.reference(function)}, function, range(len(plan.calls)), 60, tmp_path / "in", tmp_path / "out")
    answers = read_answers(tmp_path / "out", len(plan.calls), "nothing was written")
    for check in level.checks:
        assert run_check(check, plan.replay(check, answers), 9) == "", check.name
