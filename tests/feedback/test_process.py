import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from course.feedback import outcome as O
from course.feedback import process as P
from course.tasks import arithmetic as A
from course.tasks.records import Provenance, StepTrace, batch_of, step_scores

SOURCE = Provenance("p", "sampled", "none", "all")
NAN = float("nan")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def golden(**kw) -> StepTrace:
    data = dict(tokens=tuple(range(1, 10)), step_ends=(1, 3, 5, 8), step_labels=(1, 1, 0, 1), outcome=1, step_time="after")
    return StepTrace(**(data | kw), provenance=SOURCE)


def test_outcome_and_step_labels_are_kept_apart():
    t = golden()
    labels, counted = O.outcome_labels([t], 10)
    assert counted.nonzero().tolist() == [[0, 8]] and labels[0, 8] == 1
    labels, counted = P.step_labels([t], 10)
    assert counted.nonzero()[:, 1].tolist() == [1, 3, 5, 8] and labels[counted].tolist() == [1, 1, 0, 1]
    # No label is not a 0.
    assert not O.outcome_labels([golden(outcome=None)], 10)[1].any()
    assert P.step_labels([golden(step_labels=(1, None, 0, None))], 10)[1].nonzero()[:, 1].tolist() == [1, 5]


def test_label_loss_is_the_mean_cross_entropy_of_the_counted_positions():
    values = torch.tensor([[0.5, NAN, -1.0], [float("inf"), 2.0, NAN]], dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([[1, 7, 0], [7, 0, 7]])
    counted = torch.tensor([[1, 0, 1], [0, 1, 0]])
    loss = O.label_loss(values, labels, counted)
    slow = [math.log(1 + math.exp(-0.5)), math.log(1 + math.exp(-1.0)), math.log(1 + math.exp(2.0))]
    assert loss.item() == pytest.approx(sum(slow) / 3, abs=1e-12)
    loss.backward()
    expected = [(sigmoid(0.5) - 1) / 3, 0, sigmoid(-1) / 3, 0, sigmoid(2.0) / 3, 0]
    assert values.grad.flatten().tolist() == pytest.approx(expected, abs=1e-12)
    assert O.label_loss(torch.zeros(1, 2), torch.ones(1, 2).long(), torch.ones(1, 2)).item() == pytest.approx(math.log(2))


def test_label_loss_refuses_what_is_no_label():
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    with pytest.raises((ValueError, TypeCheckError)):
        O.label_loss(zeros, torch.zeros(1, 3), ones)
    with pytest.raises(ValueError, match="counted must mark"):
        O.label_loss(zeros, zeros, zeros)
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        O.label_loss(zeros, torch.full((1, 2), 0.5), ones)
    with pytest.raises(ValueError, match="values must be finite"):
        O.label_loss(torch.full((1, 2), NAN), zeros, ones)


def test_steps_are_read_at_their_ends_and_a_missing_step_is_certain():
    traces = [golden(), golden(step_ends=(2, 8), step_labels=(1, 0))]
    ends = P.step_positions(traces)
    assert ends.tolist() == [[1, 3, 5, 8], [2, 8, -1, -1]]
    values = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    read = P.read_steps(values, ends)
    for row, t in enumerate(traces):
        assert torch.equal(read[row, : len(t.step_ends)], step_scores(values[row], t))
    slow = [sum(-math.log(1 + math.exp(-values[row, e].item())) for e in t.step_ends) for row, t in enumerate(traces)]
    assert P.log_validity(read).tolist() == pytest.approx(slow, abs=1e-12)
    with pytest.raises(ValueError, match="ends must lie"):
        P.read_steps(values, ends + 8)
    with pytest.raises(ValueError, match="finite"):
        P.read_steps(values.fill_(NAN), ends)
    with pytest.raises(ValueError, match="step_logits"):
        P.log_validity(torch.tensor([[NAN]]))


def test_golden_product_of_step_probabilities():
    logits = torch.logit(torch.tensor([[0.9, 0.8, 0.5]], dtype=torch.float64))
    assert P.log_validity(logits).item() == pytest.approx(-1.021651, abs=1e-6)
    assert P.log_validity(logits).exp().item() == pytest.approx(0.36)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9))
def test_padding_moves_no_score(seed, more):
    asked = A.problems(6, seed)
    rows = A.responses(asked, A.SLOPPY, seed)
    head = O.scalar_decoder(A.VOCAB_SIZE, A.LENGTH + 9, 0, width=16, layers=1)
    longer = batch_of([(rows.prompt(i), rows.response(i)) for i in range(6)], A.STOP, A.LENGTH + more)  # padded with `;`
    for model in (O.OutcomeModel(head), P.ProcessModel(head, A.STOP)):
        a, b = model(rows), model(longer)
        assert torch.allclose(a, b, atol=1e-5) and torch.isfinite(a).all()
        order = torch.tensor([3, 1, 5, 0, 2, 4])
        assert torch.allclose(model(rows[order]), a[order], atol=1e-5)


def test_step_ends_of_a_batch_are_those_of_its_traces_and_of_the_response_only():
    rows = A.responses(A.problems(20, 1), A.SLOPPY, 1)
    model = P.ProcessModel(O.scalar_decoder(A.VOCAB_SIZE, A.LENGTH, 0, width=16, layers=1), A.STOP)
    assert torch.equal(model.ends(rows), P.step_positions(A.traces(rows, "x")))
    # a `;` in the prompt ends no step; a response without any is one step
    odd = batch_of([((A.BOS, A.STOP, A.EQUALS), (A.ZERO, A.END))], A.PAD, 8)
    assert model.ends(odd).tolist() == [[4]]


def test_selection_by_blocks_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    scores, quality = torch.rand(3, 8, generator=generator).round(decimals=1), torch.rand(3, 8, generator=generator)
    for n in (1, 2, 4, 8):
        slow = []
        for p in range(3):
            for j in range(0, 8, n):
                block = scores[p, j : j + n].tolist()
                slow.append(quality[p, j + block.index(max(block))].item())
        assert P.select_by(scores, quality, n).item() == pytest.approx(sum(slow) / len(slow), abs=1e-6)
    with pytest.raises(ValueError, match="n divide M"):
        P.select_by(scores, quality, 3)
    with pytest.raises(ValueError, match="NaN"):
        P.select_by(scores * NAN, quality, 2)


def test_each_model_is_trained_by_its_own_labels():
    """Relabelling the outcomes leaves a process model as it is, and relabelling steps an outcome model."""
    rows = A.responses(A.problems(16, 2), A.SLOPPY, 2)
    traces = A.traces(rows, "x")
    other = [
        StepTrace(t.tokens, t.step_ends, tuple(1 - x for x in t.step_labels), t.outcome, t.step_time, t.provenance)
        for t in traces
    ]
    third = [StepTrace(t.tokens, t.step_ends, t.step_labels, 1 - t.outcome, t.step_time, t.provenance) for t in traces]

    def outcome(data):
        head = O.scalar_decoder(A.VOCAB_SIZE, A.LENGTH, 0, width=16, layers=1)
        return O.fit_outcome_model(head, data, pad_id=A.PAD, steps=3, seed=0)(rows)

    def process(data):
        head = O.scalar_decoder(A.VOCAB_SIZE, A.LENGTH, 0, width=16, layers=1)
        return P.fit_process_model(head, data, pad_id=A.PAD, step_end_id=A.STOP, steps=3, seed=0)(rows)

    assert torch.equal(outcome(traces), outcome(other)) and not torch.equal(outcome(traces), outcome(third))
    assert torch.equal(process(traces), process(third)) and not torch.equal(process(traces), process(other))


def test_the_comparison_is_at_equal_candidates_and_counts_labels():
    """Structure only: what training makes of it is the experiment of level 3."""
    found = P.compare_selection(3, sizes=(1, 4), training_traces=40, problems=12, trunk_steps=2, steps=2)
    by = {(x.method, x.n): x for x in found}
    assert set(by) == {(m, n) for m in ("random", "outcome", "process", "oracle") for n in (1, 4)}
    single = {(by[m, 1].accuracy, by[m, 1].validity) for m in ("random", "outcome", "process", "oracle")}
    assert len(single) == 1  # one candidate leaves no choice
    for x in found:
        assert 0 <= x.validity <= x.accuracy <= by["oracle", 4].accuracy
    assert by["outcome", 4].labels == 40 and by["process", 4].labels > 80 and by["oracle", 4].labels == 0
