import dataclasses

import pytest
import torch

from course.tasks.records import (
    Batch, Comparison, Demonstration, PreferenceLabel, Provenance, Ranking, StepTrace, batch_of, decided, pair_batches,
    statistics_by, step_scores,
)  # fmt: skip

SOURCE = Provenance("policy", "sampled", "random", "all", "ann", "v1")


def comparison(label=PreferenceLabel.FIRST, first=(4, 5), second=(6,), source=SOURCE, family="f"):
    return Comparison((1, 2), first, second, label, source, family)


def test_only_decided_labels_have_a_winner():
    assert (comparison().chosen, comparison().rejected) == ((4, 5), (6,))
    assert (comparison(PreferenceLabel.SECOND).chosen, comparison(PreferenceLabel.SECOND).rejected) == ((6,), (4, 5))
    for label in (PreferenceLabel.TIE, PreferenceLabel.ABSTAIN, PreferenceLabel.INVALID):
        assert not label.decided and label.swapped is label
        with pytest.raises(ValueError, match="label"):
            comparison(label).chosen
    assert PreferenceLabel.FIRST.swapped is PreferenceLabel.SECOND and PreferenceLabel.SECOND.swapped is PreferenceLabel.FIRST
    assert decided([comparison(label) for label in PreferenceLabel]) == [comparison(), comparison(PreferenceLabel.SECOND)]


@pytest.mark.parametrize("label", [0, 1, 0.5, "first", None])
def test_a_label_is_never_a_number(label):
    with pytest.raises(Exception):  # the type check or the record's own
        comparison(label)


@pytest.mark.parametrize("field", ["producer", "procedure", "display_order", "selection_rule"])
def test_provenance_is_required(field):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(SOURCE, **{field: " "})


def test_empty_responses_and_negative_ids_are_refused():
    with pytest.raises(ValueError, match="first"):
        comparison(first=())
    with pytest.raises(ValueError, match="response"):
        Demonstration((1,), (-1,), SOURCE, "f")


def test_a_ranking_of_k_gives_all_pairs_and_keeps_ties():
    ranking = Ranking((1,), ((2,), (3,), (4,), (5,)), (2, 1, 2, 4), SOURCE, "f", "r")
    pairs = ranking.comparisons()
    assert len(pairs) == 6 and {p.ranking_id for p in pairs} == {"r"}
    labels = {(p.first[0], p.second[0]): p.label for p in pairs}
    assert labels[2, 4] is PreferenceLabel.TIE and len(decided(pairs)) == 5
    rank = dict(zip((2, 3, 4, 5), ranking.ranks))
    assert all(rank[p.chosen[0]] < rank[p.rejected[0]] for p in decided(pairs))
    with pytest.raises(ValueError, match="ranks"):
        dataclasses.replace(ranking, ranks=(1, 2))
    with pytest.raises(ValueError, match="ranks"):
        dataclasses.replace(ranking, ranks=(0, 1, 2, 3))


def trace(step_time="after", **changes):
    fields = dict(tokens=tuple(range(10)), step_ends=(1, 4, 6, 9), step_labels=(1, 1, 0, 1), outcome=1, provenance=SOURCE)
    return StepTrace(**(fields | {"step_time": step_time} | changes))


def test_outcome_and_step_labels_are_kept_apart():
    assert trace().step_labels == (1, 1, 0, 1) and trace().outcome == 1  # a wrong step in a trace with a right outcome
    assert trace().visible(4, finished=True) == ((1, 1, 0, 1), 1)


def test_labels_made_afterwards_are_not_there_online():
    assert trace("after").visible(3, finished=False) == ((None,) * 4, None)
    assert trace("online").visible(3, finished=False) == ((1, 1, 0, None), None)
    with pytest.raises(ValueError, match="steps_done"):
        trace().visible(3, finished=True)


def test_a_step_is_scored_at_its_last_token():
    values = torch.arange(10.0)
    assert step_scores(values, trace()).tolist() == [1, 4, 6, 9]
    with pytest.raises(ValueError, match="values"):
        step_scores(values[:-1], trace())


@pytest.mark.parametrize(
    "changes, name",
    [({"step_ends": (1, 1, 6, 9)}, "step_ends"), ({"step_ends": (1, 4, 6, 10)}, "step_ends"),
     ({"step_labels": (1,)}, "step_labels"), ({"outcome": 2}, "outcome")],
)  # fmt: skip
def test_malformed_traces(changes, name):
    with pytest.raises(ValueError, match=name):
        trace(**changes)


def test_statistics_are_split_by_every_field_of_the_provenance():
    other = dataclasses.replace(SOURCE, annotator=None, display_order="long one first", policy_version="v2")
    records = [comparison(), comparison(PreferenceLabel.TIE), comparison(PreferenceLabel.SECOND, source=other)]
    for field in (f.name for f in dataclasses.fields(Provenance)):
        split = statistics_by(records, field)
        assert sum(s.count for s in split.values()) == 3
        assert set(split) == {getattr(r.provenance, field) for r in records}
    by_annotator = statistics_by(records, "annotator")
    assert by_annotator["ann"].labels == {PreferenceLabel.FIRST: 1, PreferenceLabel.TIE: 1}
    assert by_annotator["ann"].first_wins == 1.0 and by_annotator[None].first_wins == 0.0
    assert by_annotator["ann"].longer_wins == 1.0 and by_annotator[None].longer_wins == 0.0
    demonstrations = statistics_by([Demonstration((1,), (2, 3), SOURCE, "f")], "producer")["policy"]
    assert demonstrations.mean_length == 2 and demonstrations.labels == {} and demonstrations.first_wins is None
    with pytest.raises(ValueError, match="field"):
        statistics_by(records, "label")


def test_batches_keep_ids_and_masks_also_if_pad_is_a_real_id():
    batch = batch_of([((1, 2), (3, 0)), ((1,), (0, 0, 0, 7))], pad_id=0)
    assert batch.tokens.tolist() == [[1, 2, 3, 0, 0], [1, 0, 0, 0, 7]]
    assert batch.attention_mask.tolist() == [[True] * 4 + [False], [True] * 5]
    assert batch.action_mask.tolist() == [[False, False, True, True, False], [False, True, True, True, True]]
    assert [batch.response(i) for i in range(2)] == [(3, 0), (0, 0, 0, 7)] and batch.prompt(1) == (1,)
    assert batch[1:].tokens.tolist() == [[1, 0, 0, 0, 7]]
    with pytest.raises(ValueError, match="sequences"):
        batch_of([((1, 2), (3,))], 0, length=2)
    with pytest.raises(ValueError, match="action_mask"):
        Batch(batch.tokens, torch.zeros_like(batch.attention_mask), batch.action_mask)


def test_pair_batches_put_the_winner_first():
    chosen, rejected = pair_batches([comparison(), comparison(PreferenceLabel.SECOND)], pad_id=0)
    assert [chosen.response(0), rejected.response(0)] == [(4, 5), (6,)]
    assert [chosen.response(1), rejected.response(1)] == [(6,), (4, 5)]
    assert chosen.tokens.shape == rejected.tokens.shape
