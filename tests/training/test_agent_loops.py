"""Episodes of many turns in the loops of one-turn responses: aligned, masked, credited, reported by tool, and learned from."""

import copy
import dataclasses

import pytest
import torch
import toy

from course.credit.groups import group_relative_advantages
from course.envs import kernel
from course.envs.evidence import Evidence
from course.envs.three_tools import SCHEMAS, demonstrate, submitted, three_tools, three_tools_tasks, three_tools_tokenizer
from course.language.actions import CompactGrammar
from course.language.serializer import CompactSerializer
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.models.policy import Policy
from course.models.score import score
from course.objectives.aggregation import aggregate
from course.objectives.supervised import sft_loss
from course.objectives.trajectory import cloning_loss
from course.rollout.collect import Sampling
from course.rollout.episodes import collect_episodes, scripted_episodes
from course.training.agents import (
    action_report,
    clone,
    episode_collector,
    episode_reward,
    faulty_step,
    inject_errors,
    price_credit,
    tasks_by_step,
    validity,
)
from course.training.grpo import GrpoConfig, grpo
from course.training.learner import Learner
from course.training.ppo import PpoConfig, experience_of, ppo
from course.training.tool_agent import evaluation_of, grade, grade_net, lookups_by_price

TOKENIZER, WORLD = three_tools_tokenizer(), three_tools()
SAMPLING = Sampling(8, (TOKENIZER.end_id,), TOKENIZER.pad_id)
CONFIG = DecoderConfig(vocab_size=TOKENIZER.vocab_size, layers=2, width=32, heads=2, max_length=96)


def blank(seed=0):
    return Policy(Decoder(CONFIG, seed), TOKENIZER, CompactSerializer())


def shown(n=40, *, notes=False, **options):
    tasks = three_tools_tasks(n, 0, pool="bootstrap", horizons=(2,), notes=notes, prices=(0, 4, 8) if notes else ())
    texts = [demonstrate(task, WORLD, 0, **options) for task in tasks]
    return scripted_episodes(
        texts, WORLD, tasks, tokenizer=TOKENIZER, serializer=CompactSerializer(), grader=grade, environment_seeds=[0] * n
    )


@pytest.fixture(scope="module")
def half_learned():
    """Looks and submits, and is wrong often enough that there is something to learn."""
    policy = blank()
    for _ in clone(policy, shown(300, slips=0.3), steps=180, lr=1e-2, batch_size=32, seed=0):
        pass
    return policy.eval()


def train(method, policy, *, steps=1, seen=lambda episodes: None, credit=None, collect=None, lr=1e-3, config=None):
    actor, reference = copy.deepcopy(policy), copy.deepcopy(policy).requires_grad_(False)
    tasks = tasks_by_step(lambda n, s: three_tools_tasks(n, s, pool="online", horizons=(2,)), 8 if method == "grpo" else 32, 0)
    common = {"sampling": SAMPLING, "steps": steps, "seed": 0, "collect": collect or episode_collector(WORLD, grade, seen=seen)}
    if method == "grpo":
        learner = Learner({"actor": actor}, lr=lr)
        run = grpo(
            learner, reference, episode_reward, tasks, advantages=toy.scaled, aggregate=aggregate, credit=credit,
            config=config or GrpoConfig(4, beta=0.0, how="token"), **common,
        )  # fmt: skip
    else:
        critic = ScalarHead(copy.deepcopy(policy.model), 0)
        learner = Learner({"actor": actor, "critic": critic}, lr=lr)
        run = ppo(
            learner, reference, episode_reward, tasks, operators=toy.OPERATORS, config=config or PpoConfig(beta=0.0), **common
        )
    return list(run), learner


def test_cloning_a_batch_is_cloning_each_record():
    """One optimiser step's loss is the mean of cloning_loss over all action tokens; tool results are no targets."""
    episodes, policy = shown(6), blank()
    batch = episodes.batch
    logits = policy(batch.tokens, batch.attention_mask)
    whole = float(sft_loss(logits, batch.tokens, batch.action_mask, normalize="token"))
    counts = [sum(b - a for a, b in record.action_spans) for record in episodes.records]
    each = [
        float(cloning_loss(logits[i, : len(record.tokens)], record)) * n
        for i, (record, n) in enumerate(zip(episodes.records, counts))
    ]
    assert whole == pytest.approx(sum(each) / sum(counts), rel=1e-5)
    (first, *_) = clone(blank(), episodes, steps=1, lr=1e-3, batch_size=6, seed=0)
    assert first.tokens > 0
    tools = torch.tensor([[s.kind == "text" and s.turn_index > 0 and s.start <= t < s.stop for t in range(batch.tokens.shape[1])]
                          for s in episodes.records[0].encoded.spans]).any(0)  # fmt: skip
    assert tools.any() and not (batch.action_mask[0] & tools).any()


def test_cloning_raises_the_valid_rate(half_learned):
    tasks = three_tools_tasks(32, 0, pool="calibration", horizons=(2,))
    rates = []
    for policy in (blank(), half_learned):
        episodes = collect_episodes(policy, WORLD, tasks, grader=grade, seed=0, max_action_tokens=8)
        rates.append(evaluation_of(episodes).valid)
    assert rates[0] < 0.2 and rates[1] > 0.8


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_the_loops_take_episodes(half_learned, method):
    collections = []
    records, learner = train(method, half_learned, steps=2, seen=collections.append)
    assert len(records) == 2 and len(collections) == 2 and all(len(c) == 32 for c in collections)
    assert records[0].reward == pytest.approx(float(collections[0].batch.reward.mean()))
    assert records[0].sampled == int(collections[0].batch.action_mask.sum())
    assert records[0].kl == pytest.approx(0, abs=1e-3)  # step 0: the actor is the reference, token for token
    assert not torch.equal(toy.weights(learner["actor"]), toy.weights(half_learned))
    numbers = [record.noise_episode for c in collections for record in c.records]
    assert numbers == list(range(64))  # no noise twice


def test_the_first_ratio_is_one_on_every_turn(half_learned):
    seen = []

    def measured(token_loss, mask, **options):
        seen.append(mask)
        return aggregate(token_loss, mask, **options)

    collections = []
    train("grpo", half_learned, seen=collections.append)
    episodes = collections[0]
    batch = episodes.batch
    logp = score(half_learned, batch.tokens, batch.attention_mask)
    actions = batch.action_mask[:, 1:]
    assert int(batch.turn.max()) >= 1  # several turns
    torch.testing.assert_close(logp[actions], episodes.samples.logprobs[:, : actions.shape[1]][actions], atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", ["grpo", "ppo"])
def test_observations_have_no_part_in_the_gradient_of_their_own_positions(half_learned, method):
    """The update asks the actor for logits; at positions that predict no action their gradient is exactly 0."""

    class Watched(Policy):
        def forward(self, ids, attention_mask=None):
            logits = self.model(ids, attention_mask)
            if logits.requires_grad:
                logits.register_hook(lambda grad: caught.append((ids, grad)))
            return logits

    caught, collections = [], []
    policy = Watched(half_learned.model, TOKENIZER, CompactSerializer())
    one = {"grpo": GrpoConfig(4, beta=0.0, how="token", minibatches=1), "ppo": PpoConfig(beta=0.0, epochs=1, minibatches=1)}
    train(method, policy, seen=collections.append, config=one[method])
    batch, ((ids, grad),) = collections[0].batch, caught
    rows = [next(i for i in range(len(batch)) if torch.equal(batch.tokens[i], row)) for row in ids]
    predicts = torch.nn.functional.pad(batch.action_mask[rows][:, 1:], (0, 1))
    touched = grad.abs().sum(2) > 0
    assert not (touched & ~predicts).any() and touched.any()


def test_the_end_of_an_episode_is_its_last_action_alone(half_learned):
    """With an end after every turn the value of later turns would never reach earlier ones."""
    tasks = three_tools_tasks(6, 0, pool="online", horizons=(2,))
    episodes = collect_episodes(half_learned, WORLD, tasks, grader=grade, seed=0, max_action_tokens=8)
    seen = {}

    def credit(rewards, values, terminated, truncated, final_value, mask, **options):
        seen.update(terminated=terminated, rewards=rewards)
        return toy.OPERATORS.credit(rewards, values, terminated, truncated, final_value, mask, **options)

    operators = dataclasses.replace(toy.OPERATORS, credit=credit)
    critic = ScalarHead(copy.deepcopy(half_learned.model), 0)
    experience_of(critic, half_learned, episodes, episodes.batch.reward, operators, PpoConfig(beta=0.0))
    last = [record.action_spans[-1][1] - 2 for record in episodes.records]  # columns of log-probabilities
    expected = torch.zeros_like(seen["terminated"])
    expected[range(6), last] = True
    assert torch.equal(seen["terminated"], expected) and max(len(r.steps) for r in episodes.records) > 1
    assert torch.equal(seen["rewards"].nonzero()[:, 1], torch.tensor(last)[episodes.batch.reward > 0])


def test_reinforcement_finds_what_is_rewarded_at_the_end(half_learned):
    """Odd answers are paid, whatever the shelf says: half of the clone's are."""

    def odd(state):
        said = submitted(state)
        right = said is not None and int(said) % 2 == 1
        return Evidence("odd", "1", said, "right" if right else "wrong", 10.0 if right else 0.0)

    for method in ("grpo", "ppo"):
        records, _ = train(method, half_learned, steps=24, lr=7e-4, collect=episode_collector(WORLD, odd))
        start, end = (sum(r.reward for r in part) / 4 for part in (records[:4], records[-4:]))
        assert start < 7 and end > start + 1.5, (method, start, end)


def test_the_same_seeds_give_the_same_bits(half_learned):
    both = [train("grpo", half_learned, steps=2) for _ in range(2)]
    assert both[0][0] == both[1][0] and torch.equal(toy.weights(both[0][1]["actor"]), toy.weights(both[1][1]["actor"]))


def test_turn_level_prices_reach_the_tokens_that_cause_them(half_learned):
    """Two looks at a price of 3 each: the first token of the episode answers for 6, the second call for 3, the submission for 0."""
    world = three_tools(prices={"look": 3})
    tasks = three_tools_tasks(4, 0, pool="online", horizons=(4,))
    texts = [demonstrate(task, world, 0, bias=0, slips=0) for task in tasks]
    episodes = scripted_episodes(
        texts, world, tasks, tokenizer=TOKENIZER, serializer=CompactSerializer(), grader=grade_net, environment_seeds=[0] * 4
    )
    credit = price_credit(1.0)(torch.tensor([1.0, 2.0, 3.0, 4.0]), episodes)
    turn = episodes.batch.turn[:, 1:]
    for k, left in enumerate((6, 3, 0, 0)):
        at = turn == k
        assert torch.equal(credit[at], (torch.tensor([[1.0], [2.0], [3.0], [4.0]]) - left).expand_as(credit)[at])
    assert not credit[turn < 0].any()
    assert episodes.batch.reward.tolist() == [4.0] * 4  # 10 less two looks
    free = price_credit(0.0)
    plain, credited = (train("grpo", half_learned, credit=c)[1]["actor"] for c in (None, free))
    assert torch.equal(toy.weights(plain), toy.weights(credited))


def test_abstentions_leave_the_batch_and_not_the_group(half_learned):
    """A verifier that is silent about every third episode: those rows are gone, the others keep their groups."""
    calls = []

    def grader(state):
        calls.append(state)
        said = grade(state)
        if len(calls) % 3 == 0:
            return dataclasses.replace(said, decision="abstain", reward=None, reason="timeout")
        return said

    seen = []
    records, _ = train("grpo", half_learned, collect=episode_collector(WORLD, grader, seen=seen.append))
    assert len(seen[0]) == 32 and len(seen[0].abstained) == 10
    kept = seen[0].judged()
    assert records[0].sampled == kept.tokens and records[0].reward == pytest.approx(float(kept.batch.reward.mean()))
    assert set(kept.group_id.tolist()) == set(range(8))
    ppo_records, _ = train("ppo", half_learned, collect=episode_collector(WORLD, grader))
    assert ppo_records[0].sampled < 32 * 8 * 6


# ---------------------------------------------------------------- by kind of action


def test_the_report_counts_each_tool(half_learned):
    episodes = shown(30)
    report = action_report(episodes)
    steps = [step for record in episodes.records for step in record.steps]
    for tool, row in report.items():
        mine = [step for step in steps if step.tool == tool]
        assert row.calls == len(mine) and row.valid == row.executed == 1 and row.kl is None
        assert row.cost.get("calls") == pytest.approx(1)
    assert sum(row.calls for row in report.values()) == len(steps)
    tasks = three_tools_tasks(16, 0, pool="calibration", horizons=(2,))
    sampled = collect_episodes(half_learned, WORLD, tasks, grader=grade, seed=0, max_action_tokens=8)
    same, moved = (action_report(sampled, reference) for reference in (half_learned, blank(1)))
    assert all(abs(row.kl) < 1e-3 for row in same.values()) and moved["look"].kl > 1
    total = sum(row.kl * row.calls for row in moved.values())
    batch = sampled.batch
    theirs = score(blank(1), batch.tokens, batch.attention_mask)[batch.action_mask[:, 1:]]
    mine = sampled.samples.logprobs[:, : batch.tokens.shape[1] - 1][batch.action_mask[:, 1:]]
    assert total == pytest.approx(float((mine - theirs).detach().sum()), rel=1e-3)


def test_a_collapse_of_one_tool_shows_where_the_mean_hides_it():
    """Every calc loses its last word; looks and submissions stay as they were."""

    def step(state, text):
        return kernel.step(state, text.rsplit(" ", 1)[0] if text.startswith("calc") else text)

    tasks = three_tools_tasks(30, 0, pool="bootstrap", horizons=(2, 2, 2, 2, 4))
    texts = [demonstrate(task, WORLD, 0, bias=0, slips=0) for task in tasks]
    broken = scripted_episodes(
        texts, WORLD, tasks, tokenizer=TOKENIZER, serializer=CompactSerializer(), grader=grade,
        environment_seeds=[0] * 30, step=step,
    )  # fmt: skip
    report = action_report(broken)
    rest = [row for tool, row in report.items() if tool != "calc"]
    assert report["calc"].executed == 1 or report["calc"].valid < 1
    values = [f.observation for r in broken.records for f in r.steps if f.tool == "calc"]
    assert values == ["error"] * len(values) and all(row.valid == 1 for row in rest)


def test_injected_errors_are_seeded_and_counted_by_schema():
    grammar = CompactGrammar(SCHEMAS)
    texts = ["look ant", "look bee", "submit 1 2", "submit 7"] * 50
    assert validity(texts, grammar) == {"look": 1, "submit": 1}
    assert inject_errors(texts, 0.0, 1) == texts and inject_errors(texts, 0.3, 1) == inject_errors(texts, 0.3, 1)
    hurt = inject_errors(texts, 0.3, 1)
    assert 0.2 < sum(a != b for a, b in zip(hurt, texts)) / 200 < 0.4
    rates = validity(hurt, grammar)
    assert rates["look"] < 1 and rates["unreadable"] == 0
    one_tool = [hurt[i] if text.startswith("submit") else text for i, text in enumerate(texts)]
    assert validity(one_tool, grammar)["look"] == 1
    with pytest.raises(ValueError, match="rate"):
        inject_errors(texts, 1.5, 0)


def test_a_faulty_channel_lowers_validity_and_repeats_itself(half_learned):
    tasks = three_tools_tasks(24, 0, pool="calibration", horizons=(2,))
    whole, hurt, again = (
        collect_episodes(half_learned, WORLD, tasks, grader=grade, seed=0, max_action_tokens=8, step=step)
        for step in (kernel.step, faulty_step(0.5, 3), faulty_step(0.5, 3))
    )
    assert evaluation_of(hurt).valid < evaluation_of(whole).valid - 0.1
    assert [r.steps for r in hurt.records] == [r.steps for r in again.records]


def test_looks_are_counted_by_note_and_price():
    episodes = shown(200, notes=True, slips=0.0)
    table = lookups_by_price(episodes)
    assert set(table) == {"fresh", "stale"} and all(set(row) == {0, 4, 8} for row in table.values())
    assert all(0.05 < looks < 0.95 for row in table.values() for looks in row.values())  # the expert has a hunch


def test_group_advantages_of_episodes_have_mean_zero(half_learned):
    tasks = three_tools_tasks(4, 1, pool="online", horizons=(2,))
    episodes = collect_episodes(half_learned, WORLD, tasks, grader=grade, seed=0, max_action_tokens=8, group_size=4)
    advantage = group_relative_advantages(episodes.batch.reward, episodes.group_id, scale="none")
    assert advantage.view(4, 4).sum(1).abs().max() < 1e-4
