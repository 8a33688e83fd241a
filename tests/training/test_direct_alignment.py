import copy
import math

import pytest
import torch

from course.feedback.annotators import Annotator
from course.models.decoder import Decoder, DecoderConfig
from course.models.score import frozen_score
from course.objectives.direct import dpo_loss
from course.tasks import reviews
from course.tasks.records import decided, pair_batches
from course.training.alignment_study import ANNOTATOR, compare_methods, methods
from course.training.bandit import base_policy, own_comparisons
from course.training.direct_alignment import direct_alignment, response_logprobs


@pytest.fixture(scope="module")
def base():
    return base_policy(0, steps=60)


@pytest.fixture(scope="module")
def pairs():
    return decided(reviews.comparisons(96, 0, Annotator("exact")))


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def train(base, pairs, steps=8, loss=None, **more):
    policy = copy.deepcopy(base)
    loss = loss or methods(dpo_loss)["DPO"].loss
    keyword = dict(steps=steps, lr=1e-3, batch_size=32, seed=0, pad_id=reviews.PAD) | more
    return policy, list(direct_alignment(policy, base, pairs, loss=loss, **keyword))


def test_dpo_starts_at_log_2_and_learns_the_training_pairs(base, pairs):
    policy, steps = train(base, pairs, steps=30)
    assert abs(steps[0].loss - math.log(2)) < 1e-5 and abs(steps[0].margin) < 1e-3
    assert steps[-1].loss < 0.55 and steps[-1].accuracy > 0.7 and steps[-1].margin > 1


def test_the_reference_is_never_moved_and_never_shared(base, pairs):
    before = weights(base)
    train(base, pairs)
    assert torch.equal(weights(base), before)
    with pytest.raises(ValueError, match="reference"):
        loss = methods(dpo_loss)["DPO"].loss
        next(direct_alignment(base, base, pairs, loss=loss, steps=1, lr=1e-3, batch_size=4, seed=0, pad_id=reviews.PAD))


def test_the_reference_is_read_before_training_only(base, pairs):
    reference, policy = copy.deepcopy(base), copy.deepcopy(base)
    run = direct_alignment(
        policy, reference, pairs, loss=methods(dpo_loss)["DPO"].loss, steps=4, lr=1e-3, batch_size=16, seed=0, pad_id=reviews.PAD
    )
    next(run)
    with torch.no_grad():
        for p in reference.parameters():
            p.fill_(float("nan"))
    assert all(math.isfinite(step.loss) for step in run)


def test_runs_repeat_bit_for_bit(base, pairs):
    (a, first), (b, second) = train(base, pairs), train(base, pairs)
    assert first == second and torch.equal(weights(a), weights(b))


@pytest.mark.parametrize("name", ["DPO", "IPO", "KTO", "ORPO", "UNA"])
def test_every_objective_raises_chosen_above_rejected(base, pairs, name):
    method = methods(dpo_loss)[name]
    policy, steps = train(base, pairs, steps=30, loss=method.loss, mismatched=method.mismatched)
    chosen, rejected = pair_batches(pairs, reviews.PAD)
    gap = [response_logprobs(m, chosen, frozen_score) - response_logprobs(m, rejected, frozen_score) for m in (policy, base)]
    assert (gap[0] - gap[1]).mean() > 0.3


def test_log_probabilities_are_of_the_response_alone_and_ignore_padding(base, pairs):
    chosen, _ = pair_batches(pairs[:6], reviews.PAD)
    wide, _ = pair_batches(pairs[:6], reviews.PAD, reviews.LENGTH)
    narrow = response_logprobs(base, chosen, frozen_score)
    torch.testing.assert_close(narrow, response_logprobs(base, wide, frozen_score), atol=1e-4, rtol=1e-5)
    logits = base(chosen.tokens, chosen.attention_mask)
    slow = []
    for b in range(6):
        law = torch.log_softmax(logits[b].detach(), -1)
        real = int(chosen.attention_mask[b].sum())
        slow.append(sum(law[t - 1, chosen.tokens[b, t]] for t in range(reviews.PROMPT_LENGTH, real)))
    torch.testing.assert_close(narrow, torch.stack(slow), atol=1e-4, rtol=1e-5)


def test_dpo_does_not_average_over_tokens(base, pairs):
    seen = []

    def loss(m):
        seen.append(m)
        return methods(dpo_loss)["DPO"].loss(m)

    train(base, pairs, steps=1, loss=loss)
    m = seen[0]
    assert (m.policy_chosen < -1).all() and m.length_chosen.min() >= 4 and m.policy_mismatched is None
    assert not m.ref_chosen.requires_grad and m.policy_chosen.requires_grad


def test_the_study_measures_every_method_on_the_same_data(base):
    comparisons = own_comparisons(base, 64, 0, ANNOTATOR)
    two = {name: methods(dpo_loss)[name] for name in ("DPO", "KTO")}
    outcomes = compare_methods(base, comparisons, two, seed=0, steps=6)
    assert [o.method for o in outcomes] == ["reference", "DPO", "KTO"]
    assert outcomes[0].kl == 0 and outcomes[0].label_accuracy == 0.5
    assert all(math.isfinite(o.gold) and 1 <= o.length <= reviews.MAX_NEW_TOKENS for o in outcomes)


def test_an_untrained_copy_is_the_reference():
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=16, heads=1, max_length=reviews.LENGTH)
    a, b = Decoder(config, 3), Decoder(config, 3)
    rows = reviews.corpus(4, 0)
    assert torch.equal(response_logprobs(a, rows, frozen_score), response_logprobs(b, rows, frozen_score))
