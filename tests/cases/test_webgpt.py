"""What a labeller sees, what it is worth, who judges the training, and the arithmetic of who beats whom."""

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from course.cases import webgpt as case
from course.envs.browser import VALUES, answer_only, browser_tasks, corpus
from course.evidence.measure import operators
from course.feedback.annotators import Annotator
from course.feedback.normaliser import RewardNormaliser
from course.feedback.reward_model import RewardModel, last_token_score, reward_scores
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.rollout.episodes import scripted_episodes
from course.training.bandit import Reward

RECIPE = case.Recipe(browsing=3, answering=1, iterations=2)
TASKS = browser_tasks(4, 0)


def small_reward(seed=0):
    config = DecoderConfig(case.TOKENIZER.vocab_size, layers=1, width=16, heads=1, max_length=case.LONGEST)
    head = ScalarHead(Decoder(config, seed), seed)
    torch.nn.init.normal_(head.out.weight, generator=torch.Generator().manual_seed(seed))
    return Reward(RewardModel(head, score=last_token_score, over="sequence").eval(), RewardNormaliser(0.0, 1.0, 2, "train"))


@pytest.fixture(scope="module")
def start():
    policy = case.new_policy(1).requires_grad_(False).eval()
    gathered = tuple(answer_only(task, [("malta", "atlas", "food", "rice")]) for task in TASKS)
    return case.Start(1, policy, small_reward(), 0.5, gathered)


def scripted(task, texts, grader=case.gold):
    return scripted_episodes(
        [texts], case.WORLD, [task], tokenizer=case.TOKENIZER, serializer=case.LAYOUT, grader=grader, environment_seeds=[0]
    )  # fmt: skip


def walk(task, source, *last):
    hidden = task.hidden
    link = corpus().ranking[hidden["site"]][hidden["subject"]].index(source) + 1
    return [f"search {hidden['subject']}", f"click {link}", f"find {hidden['attribute']}", *last]


# ---------------------------------------------------------------- what is shown, and what it is worth


@pytest.mark.parametrize(
    ("quoted", "right", "worth"), [(True, True, 1.5), (False, True, 1.0), (False, False, 0.0)], ids=["both", "right", "neither"]
)
def test_gold_adds_the_answer_and_its_support(quoted, right, worth):
    for task in TASKS:
        answer = (
            task.hidden["answer"] if right else next(v for v in VALUES[task.hidden["attribute"]] if v != task.hidden["answer"])
        )
        record = scripted(task, walk(task, "atlas", *["quote"] * quoted, f"finish {answer}")).records[0]
        assert record.reward == worth and (record.evidence.decision == "right") == right


def test_a_wrong_answer_that_a_page_supports_is_worth_a_half():
    task = next(
        t for t in browser_tasks(50, 3)
        if dict(corpus().facts[t.hidden["site"]][t.hidden["subject"]]["forum"])[t.hidden["attribute"]] != t.hidden["answer"]
    )  # fmt: skip
    said = dict(corpus().facts[task.hidden["site"]][task.hidden["subject"]]["forum"])[task.hidden["attribute"]]
    assert scripted(task, walk(task, "forum", "quote", f"finish {said}")).records[0].reward == 0.5


def test_a_card_shows_question_quotes_and_answer_and_nothing_of_the_way():
    task = TASKS[0]
    subject, attribute, answer = (task.hidden[k] for k in ("subject", "attribute", "answer"))
    end = ["quote", f"finish {answer}"]
    short, long = scripted(task, walk(task, "atlas", *end)), scripted(task, [f"search {subject}", *walk(task, "atlas", *end)])
    card = case.cards(short)
    assert case.TOKENIZER.decode(card.prompt(0)[1:-1]) == f"{attribute} {subject}"
    assert case.TOKENIZER.decode(card.response(0)[:-1]) == f"{subject} atlas {attribute} {answer} finish {answer}"
    assert torch.equal(card.tokens, case.cards(long).tokens) and not torch.equal(short.batch.tokens, long.batch.tokens)
    cut = case.cards(scripted(task, walk(task, "atlas")))
    assert case.TOKENIZER.decode(cut.response(0)[:-1]) == "finish nothing"


def test_nobody_has_judged_a_training_episode_before_the_reward_model(start):
    episodes = case.collected(start.policy, TASKS[:2], 2, 5, grader=case.unjudged)
    assert len(episodes.abstained) == 4
    after = case.judged(episodes, start.reward)
    torch.testing.assert_close(after.batch.reward, reward_scores(start.reward, case.cards(episodes)))
    assert [r.tokens for r in after.records] == [r.tokens for r in episodes.records]
    assert {r.evidence.verifier for r in after.records} == {"reward model"}
    withheld = [replace(task, hidden={**task.hidden, "answer": "wind"}) for task in TASKS[:2]]
    other = case.judged(case.collected(start.policy, withheld, 2, 5, grader=case.unjudged), start.reward)
    assert torch.equal(after.batch.reward, other.batch.reward)  # the hidden answer has no part in it


def test_a_sure_labeller_prefers_what_is_worth_more_and_equal_pairs_are_left_out(start, monkeypatch):
    asked = browser_tasks(3, 8, sites=case.TRAINING_SITES)
    ends = (("quote", True), (None, True)), ((None, False), ("quote", True)), ((None, True), (None, True))
    texts = []
    for task, pair in zip(asked, ends):
        other = next(v for v in VALUES[task.hidden["attribute"]] if v != task.hidden["answer"])
        for quote, right in pair:
            texts.append(walk(task, "atlas", *filter(None, [quote]), f"finish {task.hidden['answer'] if right else other}"))
    scripted_pairs = scripted_episodes(
        texts, case.WORLD, [t for t in asked for _ in range(2)], tokenizer=case.TOKENIZER, serializer=case.LAYOUT,
        grader=case.gold, environment_seeds=[0] * 6,
    )  # fmt: skip
    monkeypatch.setattr(case, "collected", lambda *arguments, **options: scripted_pairs)
    monkeypatch.setattr(case, "LABELLER", Annotator("sure"))
    found = case.comparisons(start.policy, 3, 8, case.TRAINING_SITES)
    shown = case.cards(scripted_pairs)
    assert [(c.chosen, c.rejected) for c in found] == [
        (shown.response(0), shown.response(1)),
        (shown.response(3), shown.response(2)),
    ]
    assert [c.family for c in found] == [t.family for t in asked[:2]]


# ---------------------------------------------------------------- training


def test_an_opening_holds_every_first_action_and_every_answer_from_one_quote():
    asked = browser_tasks(60, 2)
    browsed = case.demonstrated(asked, 2)
    answered = case.demonstrated(case.quoted(browsed, asked), 2)
    assert all(record.steps[0].span[1] <= case.OPENING for record in (*browsed.records, *answered.records))
    assert {len(r.tokens) for r in answered.records if len(r.steps) == 1 and len(r.task["prompt"].split()) == 2} == {case.OPENING}


def test_a_batch_mixes_questions_with_questions_whose_quotes_are_given(start):
    draw = case.questions(start, RECIPE)
    tasks = draw(3)
    assert [t.id for t in tasks] == [t.id for t in draw(3)] != [t.id for t in draw(4)]
    assert [bool(t.hidden.get("quotes")) for t in tasks] == [False] * 3 + [True]
    assert all(t.hidden["site"] in case.TRAINING_SITES for t in tasks[:3])


def test_ppo_trains_a_copy_on_whole_episodes(start):
    before = torch.cat([p.flatten() for p in start.policy.parameters()]).clone()
    learner = case.learner_of(start, RECIPE)
    steps = list(case.run(start, learner, operators=operators(), recipe=RECIPE))
    assert [s.step for s in steps] == [0, 1] and abs(steps[0].kl) < 1e-5 and steps[0].critic_loss > 0
    assert steps[0].sampled > 4 * 4  # several actions in an episode
    assert torch.equal(before, torch.cat([p.flatten() for p in start.policy.parameters()]))
    assert not torch.equal(before, torch.cat([p.detach().flatten() for p in learner["actor"].parameters()]))


# ---------------------------------------------------------------- who beats whom


def some_contender(questions, draws, seed):
    generator = torch.Generator().manual_seed(seed)
    worth = torch.randint(0, 4, (questions, draws), generator=generator) / 2
    return case.Contender(worth, torch.randint(0, 5, (questions, draws), generator=generator).float(), 10.0)


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_best_of_n_keeps_the_first_best_of_each_block(n):
    pool = some_contender(5, 8, 0)
    kept = pool.best_of(n)
    assert kept.tokens == n * 10
    for q, block in itertools.product(range(5), range(8 // n)):
        rows = range(block * n, block * n + n)
        best = max(rows, key=lambda i: (float(pool.score[q, i]), -i))
        assert kept.worth[q, block] == pool.worth[q, best] and kept.score[q, block] == pool.score[q, best]


def test_win_rates_against_counting_pairs():
    a, b = some_contender(6, 4, 1), some_contender(6, 3, 2)
    points = [
        1.0 if x > y else 0.5 if x == y else 0.0
        for q in range(6) for x in a.worth[q].tolist() for y in b.worth[q].tolist()
    ]  # fmt: skip
    assert case.win_rate(a, b) == pytest.approx(sum(points) / len(points), abs=1e-6)
    assert case.win_rate(a, b) + case.win_rate(b, a) == pytest.approx(1.0, abs=1e-6)
    assert case.win_rate(a, replace(a, worth=a.worth + 2)) == 0.0


def test_the_table_has_everybody_on_the_same_questions(start):
    table = case.contenders(start, start.policy, questions=2, pool=4)
    assert list(table) == ["people", "clone", "clone, greedy", "clone, best of 4", "PPO", "PPO, greedy", "PPO, best of 4"]
    assert {len(c.worth) for c in table.values()} == {2}
    assert set(table) - {"PPO, best of 4"} <= set(case.NAMES)
    row = case.outcome(start, table)
    assert row.wins["PPO, greedy"]["clone, greedy"] == 0.5  # one policy, no noise
    assert row.tokens["clone, best of 4"] > 3 * row.tokens["clone"]
    assert row.wins["people"]["clone"] + row.wins["clone"]["people"] == pytest.approx(1.0, abs=1e-6)


def test_the_recorded_seeds_have_everybody_and_selection_raises_the_score():
    """Selection raises the score that it selects by. If PPO did nothing, its sign would be a coin: all five alike is 1 in 32 files."""
    path = Path(__file__).resolve().parents[2] / "solutions" / "level4" / "case_webgpt.json"
    recorded = json.loads(path.read_text())
    assert recorded["settings"] == asdict(case.Recipe())
    outcomes = [case.Outcome(**one) for one in recorded["outcomes"]]
    assert len({o.seed for o in outcomes}) == len(outcomes) >= 5
    for o in outcomes:
        scores = [o.score[name] for name in ("clone", "clone, best of 4", "clone, best of 16", "clone, best of 64")]
        assert scores == sorted(scores) and o.score["PPO"] > o.score["clone"], o.seed
        assert all(o.wins[a][b] + o.wins[b][a] == pytest.approx(1, abs=1e-5) for a in o.wins for b in o.wins[a]), o.seed
