import copy
import time

import pytest
import torch

from course.feedback import capability as C
from course.models.decoder import Decoder, DecoderConfig
from course.objectives.supervised import sft_loss
from course.tasks import reviews
from course.training.sft import sft


def train(model, batch, steps, lr, seed):
    for _ in sft(
        model,
        batch,
        loss=lambda z, t, m: sft_loss(z, t, m, normalize="token"),
        steps=steps,
        lr=lr,
        batch_size=24,
        seed=seed,
        warmup=5,
    ):
        pass
    return model.eval()


@pytest.fixture(scope="module")
def policy():
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=32, heads=2, max_length=reviews.LENGTH)
    return train(Decoder(config, 0), reviews.corpus(800, 0), 150, 1e-2, 0)


SUITE = C.suite(0)


def test_a_suite_is_a_function_of_its_seed_and_its_digest_says_which():
    assert C.suite(0) == SUITE and C.suite(0).digest == SUITE.digest != C.suite(1).digest
    assert SUITE.digest != C.suite(0, items=12).digest
    with pytest.raises(Exception, match="cannot assign"):
        SUITE.seed = 3


class Oracle(torch.nn.Module):
    """Gives every legal next word the same probability, and no other any."""

    def forward(self, ids, mask=None):
        return torch.where(reviews.legal_bigrams()[ids], 0.0, -50.0)


def test_items_are_what_they_say():
    legal = reviews.legal_bigrams()
    for c in SUITE.choice:
        assert len(c.right) == len(c.wrong) and sum(a != b for a, b in zip(c.right, c.wrong)) == 1
        whole = c.prompt + c.right
        assert legal[list(whole[:-1]), list(whole[1:])].all()
        spoilt = c.prompt + c.wrong
        assert not legal[list(spoilt[:-1]), list(spoilt[1:])].all()
    for item in (*SUITE.dislike, *SUITE.neutral):
        assert item.go_on.beginning[:-1] == item.say.beginning and item.go_on.beginning[-1] in item.say.expected
        assert legal[item.say.beginning[-1], list(item.say.expected)].all()
    oracle = SUITE.abilities(Oracle())
    assert oracle.legal == pytest.approx(1) and oracle.choice == 1 and oracle.dislike > 0.95


def test_shares_are_those_of_the_grammar():
    rows = reviews.corpus(2500, 77)
    follow: dict = {}
    for i in range(len(rows)):
        whole = rows.prompt(i) + rows.response(i)
        if whole[3] == reviews.ID["was"]:
            # only first sentences: later words tell something of the tone
            follow.setdefault((whole[3],), []).append(whole[4])
            follow.setdefault((whole[3], whole[4]), []).append(whole[5])
    for item in (*SUITE.dislike, *SUITE.neutral):
        after = follow.get(item.say.beginning[3:])
        if after and len(after) > 200:
            share = sum(w in item.say.expected for w in after) / len(after)
            assert abs(share - item.say.share) < 4 * (0.25 / len(after)) ** 0.5


def test_untrained_is_unable_and_the_fine_tuned_policy_able(policy):
    fresh = Decoder(policy.config, 1)
    assert SUITE.score(fresh) < 0.35 < 0.9 < SUITE.score(policy) <= 1
    policy.train()
    SUITE.score(policy)
    assert policy.training  # left as it was
    policy.eval()


def test_the_score_falls_when_a_policy_collapses_onto_praise_and_holds_when_it_does_not(policy):
    before = SUITE.score(policy)
    asked = reviews.prompts(200, 9)
    praise = train(copy.deepcopy(policy), reviews.responses(asked, reviews.Writer("praise", 0.0, spam=1.0), 9), 60, 5e-3, 2)
    more = train(copy.deepcopy(policy), reviews.responses(asked, reviews.CLEAN, 9), 60, 5e-3, 2)
    kind = train(copy.deepcopy(policy), reviews.responses(asked, reviews.Writer("kind", 0.0, tones=(1.0,)), 9), 60, 5e-3, 2)
    assert SUITE.score(praise) < before - 0.15 and SUITE.score(more) > before - 0.03
    # praise in good grammar: only the ability to dislike is lost
    lost, had = SUITE.abilities(kind), SUITE.abilities(policy)
    assert lost.dislike < had.dislike - 0.1 and lost.legal > had.legal - 0.05


def test_a_score_is_quick(policy):
    start = time.process_time()
    SUITE.score(policy)
    assert time.process_time() - start < 1.0  # 0.1 s on an idle core


def test_errors():
    with pytest.raises(ValueError, match="share"):
        C.Continuation((1,), (2,), 0.0)
