"""Two gold axes, two stages with their own data, one reward for each kind of prompt, and what the recorded seeds say."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from course.cases import constitutional as case
from course.evidence.measure import operators
from course.feedback.constitution import harm
from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel, last_token_score
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.tasks import reviews
from course.tasks.records import batch_of
from course.training.bandit import Reward

RECIPE = case.Recipe(
    demonstrations=40, assistant_steps=2, revised=12, helpful=12, sft_steps=2, pairs=24, reward_steps=2, rollout=8, iterations=2
)


def decoder(seed=0):
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=16, heads=1, max_length=case.LENGTH)
    return Decoder(config, seed).requires_grad_(False).eval()


def reward(seed, mean=0.0):
    head = ScalarHead(decoder(seed), seed)
    torch.nn.init.normal_(head.out.weight, generator=torch.Generator().manual_seed(seed))
    model = RewardModel(head, score=last_token_score, over="sequence").requires_grad_(False).eval()
    return Reward(model, RewardNormaliser(mean, 1.0, 2, "train"))


def answers(verb, *texts, noun="plot"):
    prompt = (reviews.BOS, reviews.ID[verb], reviews.ID["the"], reviews.ID[noun])
    return batch_of([(prompt, tuple(reviews.ID[w] for w in text.split())) for text in texts], reviews.PAD)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


# ---------------------------------------------------------------- questions and the two axes


def test_held_out_questions_are_about_nouns_that_no_training_asks_about():
    for kind, verbs in case.VERBS.items():
        words = {
            held: {reviews.text(row).split()[1::2][0] for row in case.questions(200, 0, kind, held).tolist()}
            for held in (False, True)
        }
        nouns = {
            held: {reviews.text(row).split()[3] for row in case.questions(200, 0, kind, held).tolist()} for held in (False, True)
        }
        assert words[False] == words[True] == set(verbs)
        assert nouns[True] == set(case.HELD_OUT) and nouns[False] == set(reviews.NOUNS) - set(case.HELD_OUT)
    assert torch.equal(case.questions(5, 3, "helpful"), case.questions(5, 3, "helpful"))
    with pytest.raises(ValueError, match="kind"):
        case.questions(5, 3, "harmless")


@pytest.mark.parametrize(
    "text, opinions, penalty",
    [
        ("was good . <end>", 1, 0.0), ("was awful . <end>", 1, 0.0), ("was long . <end>", 0, 0.0), ("was good .", 1, 0.5),
        ("was good and bad . i loved the cast . <end>", 3, 0.0), ("was good . it was good . <end>", 1, 0.5), ("good was . <end>", 1, 3.0),
    ],
)  # fmt: skip
def test_helpfulness_counts_opinions_of_any_tone(text, opinions, penalty):
    expected = 2 * torch.tanh(torch.tensor(opinions / 2)) - penalty
    for verb in ("hated", "watched"):  # the request itself is no part of the answer
        torch.testing.assert_close(case.helpfulness(answers(verb, text))[0], expected)


def test_an_obedient_writer_does_more_harm_and_helps_as_much():
    drawn = {k: case.demonstrated(case.questions(400, 0, k), k, 0) for k in case.VERBS}
    assert harm(drawn["red team"]).mean() > 1.5 * harm(drawn["helpful"]).mean()
    assert abs(case.helpfulness(drawn["red team"]).mean() - case.helpfulness(drawn["helpful"]).mean()) < 0.25


def test_only_a_concession_takes_the_judge_in():
    batch = answers(
        "hated", "was awful but i liked the cast . <end>", "was awful but it was good . <end>", "i hated the cast . <end>"
    )
    assert case.concedes(batch).tolist() == [True, False, False]
    assert case.taken_in(batch).tolist() == [case.CREDIT, 0.0, 0.0]


# ---------------------------------------------------------------- the stages


def test_revised_texts_are_what_the_sft_sees_and_the_critic_is_an_argument():
    found = case.chains(decoder(), 30, 4, 0)
    assert [r.first for r in found] == [r.responses[0] for r in found] and {len(r.critiques) for r in found} == {4}
    first, last = case.last_texts(found, 0), case.last_texts(found)
    assert [first.response(i) for i in range(30)] == [r.first for r in found]
    assert [last.response(i) for i in range(30)] == [r.responses[4] for r in found]
    assert harm(last).sum() < harm(first).sum() and case.is_red_team(last).all()
    deaf = case.chains(decoder(), 30, 4, 0, critic=case.Critic("deaf", miss=1.0))
    assert [r.first for r in deaf] == [r.first for r in found] and all(r.responses[-1] == r.first for r in deaf)


def test_people_say_which_helpful_answer_is_better_and_nothing_about_harm():
    found = case.peoples_labels(decoder(), 40, 0)
    agree = 0.0
    for x in found:
        both = batch_of([(x.comparison.prompt, r) for r in (x.comparison.first, x.comparison.second)], reviews.PAD)
        assert not case.is_red_team(both).any() and x.prob in (0.0, 1.0)
        gap = case.helpfulness(both)
        agree += float((gap[0] > gap[1]) == (x.prob == 1.0) or gap[0] == gap[1])
    assert agree > 0.75 * len(found)


def test_each_kind_of_prompt_has_its_own_reward():
    helpful, red_team = reward(1), reward(2)
    both = case.ByKind(helpful, red_team)
    for verb, mine in (("watched", helpful), ("saw", helpful), ("hated", red_team), ("disliked", red_team)):
        batch = answers(verb, "was good . <end>", "was awful . <end>")
        assert torch.equal(both(batch), mine(batch))
    padded = case.scores_of(both, ["was good .", "was awful and boring ."])
    assert padded == pytest.approx(
        red_team(answers("hated", "was good . <end>", "was awful and boring . <end>")).tolist(), abs=1e-5
    )


def test_a_batch_is_half_and_half_and_depends_on_the_step():
    draw = case.mixed(10, 0)
    kinds = torch.isin(draw(3)[:, 1], torch.tensor([reviews.ID[v] for v in case.VERBS["red team"]]))
    assert kinds.sum() == 5 and torch.equal(draw(3), draw(3)) and not torch.equal(draw(3), draw(4))


def test_ppo_trains_a_copy_and_leaves_the_sft_policy():
    policy = decoder()
    start = case.Start(0, decoder(1), policy, {"clamped": case.ByKind(reward(1), reward(2))})
    before, learner = weights(policy).clone(), case.learner_of(start, RECIPE)
    steps = list(case.run(start, "clamped", learner, operators=operators(), recipe=RECIPE))
    assert [s.step for s in steps] == [0, 1] and abs(steps[0].kl) < 1e-5
    assert torch.equal(before, weights(policy)) and not torch.equal(before, weights(learner["actor"]))
    assert case.standing(copy.deepcopy(policy), start, 8).kl == pytest.approx(0.0, abs=1e-5)


def test_everything_once_in_small():
    row = case.measured(0, operators(), RECIPE, arms=case.DECEIVED)
    assert list(row) == ["seed", "before", "revision and SFT", *case.DECEIVED]
    assert json.loads(json.dumps(row)) == row
    again = case.prepare(0, replace(RECIPE), arms=("clamped",))
    assert case.standing(again.before, again).harm == row["before"]["harm"]


def test_the_recorded_seeds_say_what_the_text_says():
    """Were revision or PPO without effect, each sign below would be a coin. About the clamp the seeds do not agree, and nothing is claimed."""
    path = Path(__file__).resolve().parents[2] / "solutions" / "level5" / "case_constitutional.json"
    outcomes = json.loads(path.read_text())["outcomes"]
    assert len({o["seed"] for o in outcomes}) == len(outcomes) >= 3
    for o in outcomes:
        assert set(o) == {"seed", "before", "revision and SFT", *case.ARMS}
        assert o["revision and SFT"]["harm"] < o["before"]["harm"], o["seed"]
        for arm in case.DECEIVED:  # neither kind of label keeps a deceived judge's taste from the policy
            assert o[arm]["concedes"] > 2 * o["revision and SFT"]["concedes"], o["seed"]
        for arm in set(case.ARMS) - set(case.DECEIVED):
            assert o[arm]["harm"] < 0.5 * o["revision and SFT"]["harm"], o["seed"]
            assert o[arm]["concedes"] < 0.5 * min(o[deceived]["concedes"] for deceived in case.DECEIVED), o["seed"]
