"""IMPALA against a loop over records, its stale actors by their stamps, ends of both kinds, and what lag does to a table's policy."""

import copy

import pytest
import torch
from jaxtyping import TypeCheckError

from course.credit.turns import action_logprob
from course.credit.vtrace import vtrace
from course.envs.grid import demonstrate, grade, grid_tasks, grid_tokenizer, grid_world
from course.language.serializer import CompactSerializer
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.models.policy import Policy
from course.rollout.episodes import collect_episodes, scripted_episodes
from course.training import impala as module
from course.training.impala import ImpalaConfig, impala, outcome_reward, state_positions, uncorrected
from course.training.lag_study import lag_study, walk
from course.training.learner import Learner

WORLD, TOKENIZER = grid_world(max_actions=3), grid_tokenizer()


def made(seed=0, lr=1e-2):
    config = DecoderConfig(vocab_size=TOKENIZER.vocab_size, layers=1, width=16, heads=2, max_length=96)
    policy = Policy(Decoder(config, seed), TOKENIZER, CompactSerializer())
    # A blank policy hardly ever hits a word and its end: make both likely, so that episodes have several readable actions.
    with torch.no_grad():
        policy.model.embedding.weight.mul_(0.3)
    return Learner({"actor": policy, "value": ScalarHead(policy.model, seed)}, lr=lr)


def collect(policy, step, count=6):
    tasks = grid_tasks(count, step, pool="online", horizons=(1, 2, 3))
    return collect_episodes(policy, WORLD, tasks, grader=grade, seed=3, max_action_tokens=2, first_episode=step * count)


def expert(count=8, max_actions=3):
    tasks = grid_tasks(count, 0, pool="demonstrations", horizons=(1, 2, 3, 4, 5))
    return scripted_episodes(
        [demonstrate(task, 0, max_actions=max_actions) for task in tasks], WORLD, tasks, tokenizer=TOKENIZER,
        serializer=CompactSerializer(), grader=grade, environment_seeds=[0] * count,
    )  # fmt: skip


def random_reward(episodes):
    exists = state_positions(episodes)[1]
    draw = torch.randn(exists.shape, generator=torch.Generator().manual_seed(len(episodes)))
    return torch.where(exists, draw, 0.0)


# ------------------------------------------------------------------------------------------------------ positions and ends
def test_states_are_read_where_actions_are_decided():
    episodes = expert()
    positions, exists = state_positions(episodes)
    for record, row, there in zip(episodes.records, positions.tolist(), exists.tolist()):
        count = len(record.steps)
        assert there == [True] * count + [False] * (len(there) - count)
        assert row[:count] == [start - 1 for start, _ in record.action_spans]
        assert set(row[count:]) == {len(record.tokens) - 1}


def test_an_end_is_worth_nothing_and_a_cut_is_bootstrapped():
    """What the credit operator is given: discount 0 exactly at `done`, a next value exactly where the limit struck."""
    learner, given = made(), {}
    episodes = expert()
    assert {record.ending for record in episodes.records} == {"terminated", "truncated"}

    def spy(behaviour, target, rewards, values, discounts, bootstrap, **options):
        given.update(discounts=discounts, values=values, **options)
        return vtrace(behaviour, target, rewards, values, discounts, bootstrap, **options)

    list(impala(learner, lambda *_: episodes, outcome_reward, config=ImpalaConfig(gamma=0.5), steps=1, seed=0, credit=spy))
    with torch.no_grad():
        value = ScalarHead.forward(copy.deepcopy(made()["value"]), episodes.batch.tokens, episodes.batch.attention_mask)
    for i, record in enumerate(episodes.records):
        last, ended = len(record.steps) - 1, record.ending == "terminated"
        assert given["discounts"][i, : last + 1].tolist() == [0.5] * last + [0.0 if ended else 0.5]
        cut = given["next_values"][i]
        assert torch.isnan(cut[:last]).all() and torch.isnan(cut[last]) == ended
        if not ended:
            assert float(cut[last]) == pytest.approx(float(value[i, len(record.tokens) - 1]), abs=1e-5)


def test_the_reward_of_an_outcome_is_on_the_last_action():
    episodes = expert()
    for row, record in zip(outcome_reward(episodes), episodes.records):
        assert row.tolist() == [0.0] * (len(record.steps) - 1) + [record.reward] + [0.0] * (len(row) - len(record.steps))


# ---------------------------------------------------------------------------------------------------------- the loss, slowly
def test_one_update_is_the_loss_of_a_loop_over_records():
    """Scores, values, V-trace and sums record by record, with old weights for the behaviour; then gradients, weight by weight."""
    learner, old = made(0), made(1)["actor"]
    episodes, config = collect(old, 0), ImpalaConfig(gamma=0.8, value_weight=0.7, entropy_weight=0.0)
    rewards = random_reward(episodes)
    twin = copy.deepcopy({"actor": learner["actor"], "value": learner["value"]})
    twin["value"].trunk = twin["actor"].model
    policy_sum, value_sum, count = 0.0, 0.0, 0
    for i, record in enumerate(episodes.records):
        ids = torch.tensor([record.tokens])
        logp = action_logprob(twin["actor"].score(ids)[0], record.action_spans)
        before = action_logprob(old.score(ids)[0].detach(), record.action_spans)
        places = [start - 1 for start, _ in record.action_spans] + [len(record.tokens) - 1]
        v, n = twin["value"](ids)[0, places], len(record.steps)
        discounts = torch.full((1, n), 0.8)
        if record.ending == "terminated":
            discounts[0, -1] = 0
        vs, advantage = vtrace(before[None], logp[None], rewards[i : i + 1, :n], v[None, :-1], discounts, v[-1:])
        policy_sum, value_sum = policy_sum - (advantage[0] * logp).sum(), value_sum + ((v[:-1] - vs[0]) ** 2).sum() / 2
        count += n
    (policy_sum / count + 0.7 * value_sum / count).backward()
    (said,) = impala(learner, lambda *_: episodes, lambda e: rewards, config=config, steps=1, seed=0)
    assert said.policy_loss == pytest.approx(float(policy_sum.detach()) / count, abs=2e-5)
    assert said.value_loss == pytest.approx(float(value_sum.detach()) / count, abs=2e-5)
    assert said.actions == count and said.effective < 1
    # descend has clipped the gradient to norm 1: compare directions
    mine = torch.cat([p.grad.flatten() for p in learner.parameters])
    theirs = torch.cat([p.grad.flatten() for m in twin.values() for p in m.parameters() if p.grad is not None])
    own = {name: p.grad for name, p in learner["actor"].named_parameters()}
    for name, parameter in twin["actor"].named_parameters():
        torch.testing.assert_close(own[name] * max(1.0, said.grad_norm), parameter.grad, rtol=1e-3, atol=2e-5)
    assert len(mine) <= len(theirs)


def test_only_action_tokens_reach_the_policy_head():
    """Observations, the setter's replayed words among them, are never predicted: no loss can be on them."""
    learner = made()
    head, rows = learner["actor"].model.head, []
    learner["actor"].model.head = lambda hidden: rows.append(len(hidden)) or head(hidden)
    episodes = expert()
    list(impala(learner, lambda *_: episodes, outcome_reward, config=ImpalaConfig(), steps=1, seed=0))
    assert rows == [int(episodes.batch.action_mask.sum())] == [sum(len(r.logprobs) for r in episodes.records)]


def test_cloning_beside_it_is_added_with_its_weight():
    shown = expert().batch
    episodes = collect(made()["actor"], 0)
    plain, beside = made(), made()
    (without,) = impala(plain, lambda *_: episodes, random_reward, config=ImpalaConfig(), steps=1, seed=0)
    config = ImpalaConfig(clone_weight=0.5, clone_rows=4)
    (with_it,) = impala(beside, lambda *_: episodes, random_reward, config=config, steps=1, seed=0, demonstrations=shown)
    assert without.clone_loss == 0 and with_it.clone_loss > 1 and with_it.policy_loss == without.policy_loss
    assert with_it.grad_norm != without.grad_norm


# ------------------------------------------------------------------------------------------------------------------- lag
def test_actors_are_as_many_updates_behind_as_they_should_be():
    learner, stamps = made(), []
    stamps.append(learner["actor"].stamp())
    for said in impala(learner, collect, random_reward, config=ImpalaConfig(lag=2), steps=5, seed=0):
        assert said.behind == min(said.step, 2) and said.actor == stamps[said.step - said.behind]
        stamps.append(learner["actor"].stamp())
    assert len(set(stamps)) == 6


def test_a_run_is_a_function_of_its_seeds():
    runs = [list(impala(made(), collect, random_reward, config=ImpalaConfig(lag=1), steps=3, seed=0)) for _ in range(2)]
    assert runs[0] == runs[1]
    other = list(impala(made(), lambda p, s: collect(p, s + 50), random_reward, config=ImpalaConfig(lag=1), steps=3, seed=0))
    assert other[0] != runs[0][0]


def test_without_lag_ratios_are_one_and_correction_changes_nothing():
    first = {}
    for name, credit in (("vtrace", vtrace), ("none", uncorrected)):
        (first[name],) = impala(made(), collect, random_reward, config=ImpalaConfig(), steps=1, seed=0, credit=credit)
        assert first[name].ratio_low == pytest.approx(1, abs=1e-4) and first[name].effective == pytest.approx(1, abs=1e-5)
    assert first["vtrace"].policy_loss == pytest.approx(first["none"].policy_loss, abs=1e-5)


def test_uncorrected_takes_every_ratio_for_one():
    x = [torch.randn(2, 3, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    discounts, bootstrap = torch.full((2, 3), 0.9), torch.zeros(2)
    for one, other in zip(uncorrected(*x, discounts, bootstrap), vtrace(x[0], x[0], *x[2:], discounts, bootstrap)):
        assert torch.equal(one, other)


# ------------------------------------------------------------------------------------------------------------- refusals
def test_refuses():
    learner = made()
    stranger = Learner({"actor": learner["actor"], "value": ScalarHead(copy.deepcopy(learner["actor"].model), 0)}, lr=1e-3)
    with pytest.raises(ValueError, match="on its actor's own model"):
        next(impala(stranger, collect, outcome_reward, config=ImpalaConfig(), steps=1, seed=0))
    with pytest.raises(ValueError, match="demonstrations must be given exactly if"):
        next(impala(learner, collect, outcome_reward, config=ImpalaConfig(clone_weight=1.0), steps=1, seed=0))
    with pytest.raises(ValueError, match="reward must be .* one per action"):
        next(impala(learner, collect, lambda e: outcome_reward(e)[:, :-1], config=ImpalaConfig(), steps=1, seed=0))
    for wrong, message in (({"lag": -1}, "lag"), ({"gamma": 1.5}, "gamma"), ({"clone_rows": 0}, "clone_rows")):
        with pytest.raises(ValueError, match=message):
            ImpalaConfig(**wrong)
    assert module.impala is impala


# ------------------------------------------------------------------------------------------------------- the study of lag
def test_walks_obey_the_room():
    logits = torch.randn(25, 5, generator=torch.Generator().manual_seed(0))
    walks = walk(logits, 0, 200, 3, 4)
    for row in range(200):
        alive = True
        for t in range(4):
            assert bool(walks.alive[row, t]) == alive
            state, action = int(walks.state[row, t]), int(walks.action[row, t])
            assert float(walks.reward[row, t]) == float(alive and action == 4 and state == 12)  # 12: the target is here
            assert bool(walks.ended[row, t]) == (alive and action == 4)
            assert float(walks.logp[row, t]) == pytest.approx(float(logits[state].log_softmax(0)[action]), abs=1e-6)
            x, y = divmod(state, 5)
            dx, dy = ((0, 1), (0, -1), (1, 0), (-1, 0), (0, 0))[action] if alive else (0, 0)
            after = divmod(int(walks.state[row, t + 1]), 5)
            assert after in ((x - dx, y - dy), (x, y))  # a wall may stop a move
            alive = alive and action != 4


@pytest.fixture(scope="module")
def runs():
    return lag_study((0, 48), (0, 1), updates=80)


def test_stale_actors_cost_less_with_the_correction(runs):
    """If V-trace did nothing, corrected and uncorrected runs at lag 48 would learn alike."""
    area = {(r.lag, r.correction, r.seed): sum(r.success) / len(r.success) for r in runs}
    for seed in (0, 1):
        assert area[0, "V-trace", seed] == pytest.approx(area[0, "none", seed], abs=0.02)
        assert area[48, "V-trace", seed] > area[48, "none", seed] + 0.1
        assert area[48, "V-trace", seed] > area[0, "V-trace", seed] - 0.1
    effective = {lag: min(min(r.effective) for r in runs if r.lag == lag) for lag in (0, 48)}
    assert effective[0] > 0.999 > 0.7 > effective[48]


def test_the_study_is_a_function_of_its_seeds_and_takes_any_credit(runs):
    again = lag_study((48,), (1,), updates=80)
    assert again == [r for r in runs if r.lag == 48 and r.seed == 1]
    mine = lag_study((0,), (0,), corrections={"mine": lambda *a, **k: vtrace(*a, **k)}, updates=10)
    assert mine[0].success == runs[0].success[:2] and mine[0].updates == (5, 10) and 0 <= mine[0].final <= 1
    for lags, seeds in (((-1,), (0,)), ((), (0,)), ((0,), ())):
        with pytest.raises((ValueError, TypeCheckError), match="lags must be at least 0"):
            lag_study(lags, seeds)
