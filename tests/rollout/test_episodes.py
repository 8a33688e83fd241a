"""Episodes in a batch: what each is, that none depends on its neighbours, and that the recorded law is the sampled one."""

from dataclasses import replace

import pytest
import torch
import toy_world as toy
from hypothesis import given, settings, strategies as st

from course.envs import kernel
from course.envs.evidence import Evidence
from course.language.serializer import ChatSerializer, CompactSerializer
from course.language.transcript import StopReason, Transcript, Turn
from course.models.policy import Policy
from course.models.sampling import uniform_noise
from course.models.score import frozen_score
from course.rollout.record import attempt_of
from course.rollout.episodes import KEY, Episodes, Play, collect_episodes, episode_seed, play_episodes, scripted_episodes

ALLOWANCE = 3  # tokens, "look a" and its end; so some actions are cut
SETTINGS = {"grader": toy.grade, "max_action_tokens": ALLOWANCE}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return toy.taught()


def collected(policy, n=8, seed=0, **options) -> Episodes:
    world = options.pop("world", None) or toy.world()
    return collect_episodes(policy, world, toy.tasks(n), seed=seed, **{**SETTINGS, **options})


def slow_twin(policy: Policy, world, task, seed: int, number: int, temperature: float = 1.0, allowance: int = ALLOWANCE):
    """One episode alone: the whole transcript is written anew and passed through the model for every single token."""
    tokenizer, environment_seed = policy.tokenizer, episode_seed(seed, number)
    attempt = attempt_of(policy.stamp(temperature), seed, number)
    state, seen = kernel.reset(world, task, environment_seed, kernel.runtime_key(KEY, environment_seed), attempt)
    transcript = Transcript((Turn("user", " ".join(filter(None, (task.prompt, seen)))),))
    logprobs, made = [], []
    while True:
        ids = list(policy.serializer.prompt(transcript, tokenizer))
        said = []
        while len(said) < allowance and tokenizer.end_id not in said:
            with torch.no_grad():
                logits = policy(torch.tensor([ids + said]))[0, -1].double()
            if temperature == 0:
                said.append(int(logits.argmax()))
                logprobs.append(0.0)
                continue
            law = torch.softmax(logits / temperature, -1)
            level = float(uniform_noise(seed, torch.tensor(number), torch.tensor(len(ids) + len(said))))
            said.append(int((law.cumsum(0) >= level).int().argmax()))
            logprobs.append(float(law[said[-1]].log()))
        stop = StopReason.END if said[-1] == tokenizer.end_id else StopReason.LENGTH
        transcript = transcript.then(Turn("assistant", ids=tuple(said), sampled=True, stop=stop))
        made.append(kernel.step(state, tokenizer.decode([i for i in said if i != tokenizer.end_id])))
        observations = [made[-1].observation]
        if made[-1].outcome == "waiting" and not made[-1].state.over:
            made.append(kernel.confirm(made[-1].state, False))
            observations.append(made[-1].observation)
        state = made[-1].state
        if made[-1].terminated or made[-1].truncated:
            return policy.serializer.encode(transcript, tokenizer), logprobs, made, state
        transcript = transcript.then(*(Turn("tool", text) for text in observations))


@pytest.mark.parametrize("layout", [CompactSerializer(), ChatSerializer()], ids=["compact", "chat"])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_against_the_slow_twin(policy, temperature, layout):
    policy = Policy(policy.model, policy.tokenizer, layout)
    made = collected(policy, n=6, seed=3, temperature=temperature, first_episode=40)
    for i, (record, task) in enumerate(zip(made.records, toy.tasks(6))):
        encoded, logprobs, transitions, state = slow_twin(policy, toy.world(), task, 3, 40 + i, temperature)
        assert record.encoded == encoded
        assert record.logprobs == pytest.approx(logprobs, abs=1e-5)
        assert [step.observation for step in record.steps] == [t.observation for t in transitions]
        assert [step.signature for step in record.steps] == [t.signature for t in transitions]
        assert record.episode == state.episode and record.evidence == toy.grade(state)


def test_the_fixture_has_all_that_can_happen(policy):
    records = collected(policy, n=30).records
    assert {step.outcome for record in records for step in record.steps} >= {"executed", "malformed"}
    assert {record.ending for record in records} == {"terminated", "truncated"}
    stops = {stop for record in records for stop in record.encoded.stops}
    assert stops == {None, StopReason.END, StopReason.LENGTH}
    assert len({len(record.steps) for record in records}) > 2
    assert {record.reward for record in records} == {0.0, 10.0}


def test_same_call_same_bits(policy):
    one, two = collected(policy).records, collected(policy).records
    assert one == two and [r.content_hash for r in one] == [r.content_hash for r in two]
    assert [r.tokens for r in collected(policy, seed=1).records] != [r.tokens for r in one]


@given(st.sets(st.integers(0, 6), min_size=1), st.integers(0, 3))
@settings(max_examples=6, deadline=None)
def test_a_row_depends_on_no_other(chosen, wider):
    """Bit for bit: in its own row of a batch of the same shape, whatever stands in the others."""
    policy, tasks = toy.taught(), toy.tasks(7)
    columns = 6 + wider
    whole = collect_episodes(policy, toy.world(), tasks, seed=2, columns=columns, **SETTINGS).records
    plays = {i: Play(tasks[i], episode_seed(2, i), 2, i) for i in chosen}
    part, _ = play_episodes(policy, toy.world(), plays, rows=7, columns=columns, **SETTINGS)
    assert all(part[i] == whole[i] and part[i].content_hash == whole[i].content_hash for i in chosen)


def test_noise_follows_the_episode_and_not_the_batch(policy):
    whole = collected(policy, n=8, seed=5)
    for start in (3, 5):
        part = collect_episodes(policy, toy.world(), toy.tasks(8)[start : start + 2], seed=5, first_episode=start, **SETTINGS)
        assert [r.tokens for r in part.records] == [r.tokens for r in whole.records[start : start + 2]]
        assert [r.episode for r in part.records] == [r.episode for r in whole.records[start : start + 2]]


def test_number_of_threads_does_not_matter(policy):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        many = collected(policy).records
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert many == collected(policy).records


def test_recorded_logprobs_are_the_scored_ones(policy):
    for temperature in (1.0, 0.6):
        made = collected(policy, n=10, temperature=temperature)
        batch = made.batch
        scored = frozen_score(policy, batch.tokens, batch.attention_mask, temperature)
        scored = torch.where(batch.action_mask[:, 1:], scored, 0.0)
        assert torch.allclose(made.samples.logprobs, scored, atol=1e-5)
        assert made.samples.temperature == temperature
    assert (collected(policy, temperature=0.0).samples.logprobs == 0).all()


def test_groups(policy):
    made = collected(policy, n=4, group_size=3)
    assert made.group_id.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [record.task["id"] for record in made.records] == [f"t{i}" for i in range(4) for _ in range(3)]
    assert [record.noise_episode for record in made.records] == list(range(12))
    assert len({record.episode for record in made.records}) == 12  # a result of one is no result of another of its group
    assert [record.layout.row for record in made.records] == list(range(12))


def test_two_attempts_at_one_task_never_share_an_id(policy):
    task, play = toy.tasks(1)[0], Play(toy.tasks(1)[0], 5, 0, 0)
    made = []
    for who, temperature, changes in [
        (policy, 1.0, {}), (policy, 0.7, {}), (toy.policy(), 1.0, {}), (policy, 1.0, {"sampling_seed": 1}),
        (policy, 1.0, {"noise_episode": 1}),
    ]:  # fmt: skip
        plays = {0: replace(play, **changes)}
        made.append(play_episodes(who, toy.world(), plays, temperature=temperature, columns=6, **SETTINGS)[0][0])
    for producer in ("expert", "other"):
        shown = scripted_episodes(
            [["look a"]] * 2, toy.world(), [task] * 2, tokenizer=toy.TOKENIZER, serializer=CompactSerializer(),
            grader=toy.grade, environment_seeds=[5, 5], producer=producer,
        )  # fmt: skip
        made += shown.records
    assert {record.environment_seed for record in made} == {5} and len({record.episode for record in made}) == 9
    assert all(kernel.reset(toy.world(), task, 5, KEY, record.attempt)[0].episode == record.episode for record in made)


def test_batch(policy):
    made = collected(policy, n=9)
    batch = made.batch
    assert made.tokens == int(batch.action_mask.sum()) == sum(len(record.logprobs) for record in made.records)
    for row, record in enumerate(made.records):
        length = len(record.tokens)
        assert batch.tokens[row, :length].tolist() == list(record.tokens)
        assert (batch.tokens[row, length:] == toy.TOKENIZER.pad_id).all()
        assert batch.attention_mask[row].tolist() == [True] * length + [False] * (batch.tokens.shape[1] - length)
        spans = {t: number for number, step in enumerate(record.steps) for t in range(*step.span)}
        assert batch.turn[row].tolist() == [spans.get(t, -1) for t in range(batch.tokens.shape[1])]
        assert batch.reward[row] == record.reward
        assert made.samples.logprobs[row][batch.action_mask[row, 1:]].tolist() == list(record.logprobs)
    part = batch[torch.tensor([4, 2])]
    assert part.reward.tolist() == [made.records[4].reward, made.records[2].reward] and (part.turn == batch.turn[[4, 2]]).all()
    assert type(batch.to("cpu")) is type(batch)
    with pytest.raises(ValueError, match="turn must be"):
        replace(batch, turn=torch.zeros_like(batch.turn))
    with pytest.raises(ValueError, match="reward must be one finite number"):
        replace(batch, reward=torch.full((9,), float("nan")))


def test_abstentions_are_reported_and_left_out(policy):
    def shy(state):
        return Evidence("toy", "1", None, "abstain", None, "tired") if state.task.id in ("t1", "t3") else toy.grade(state)

    made = collected(policy, n=5, grader=shy)
    assert made.abstained == (1, 3)
    with pytest.raises(ValueError, match=r"abstained on \(1, 3\): take judged"):
        made.batch
    kept = made.judged()
    assert [record.task["id"] for record in kept.records] == ["t0", "t2", "t4"] and kept.group_id.tolist() == [0, 2, 4]
    assert len(kept.batch) == 3
    with pytest.raises(ValueError, match="abstained on all 2"):
        Episodes(tuple(made.records[i] for i in (1, 3)), torch.tensor([1, 3]), 0).judged()


def test_an_episode_stops_where_no_turn_fits(policy):
    long = toy.world(max_actions=50, budget=100.0)
    made = collected(toy.policy(), n=4, world=long)  # knows no tool and goes on and on
    cut = [record for record in made.records if record.ending == "truncated"]
    assert len(cut) == 4 and min(len(record.steps) for record in cut) > 3
    for record in cut:
        # What would have come next: the last observation, and a whole turn.
        room = 64 - (record.layout.columns - record.action_spans[0][0]) - len(record.tokens)
        between = len(record.steps[-1].observation.split()) + 3 + (record.encoded.stops[-1] is StopReason.LENGTH)
        assert room < between + ALLOWANCE
    with pytest.raises(ValueError, match="columns must be above the longest prompt .* and leave 3 of 64"):
        collected(policy, columns=62)
    with pytest.raises(ValueError, match="columns must be above the longest prompt"):
        collected(policy, columns=3)


def test_what_waits_is_denied_unless_somebody_confirms(policy):
    asked = []

    def yes(action, task):
        asked.append((action.tool, task.id))
        return True

    def wiping(state, text):  # whatever the policy says, its first action is one that must be confirmed
        return kernel.step(state, "wipe" if state.step == 0 else text)

    no = collected(policy, n=6, step=wiping)
    confirmed = collected(policy, n=6, step=wiping, confirms=yes)
    assert sorted(asked) == [("wipe", f"t{i}") for i in range(6)]
    for refused, ran in zip(no.records, confirmed.records):
        assert [step.outcome for step in refused.steps[:2]] == ["waiting", "denied"]
        assert [step.outcome for step in ran.steps[:2]] == ["waiting", "executed"]
        for record in (refused, ran):
            start, stop = record.steps[1].span
            assert start == stop == record.steps[0].span[1]  # the user's word is no action of the policy's
            assert len(record.action_spans) == len(record.steps) - 1
            turns = record.transcript(policy.tokenizer, policy.serializer).turns
            if len(record.steps) > 2:
                assert [turn.text for turn in turns[2:4]] == [step.observation for step in record.steps[:2]]
    assert {1} not in [set(row) for row in no.batch.turn.tolist()] and (no.batch.turn != 1).all()


def test_the_step_that_is_given_is_the_step_that_is_taken(policy):
    seen = []

    def watched(state, text):
        seen.append(text)
        return kernel.step(state, text)

    made = collected(policy, n=3, step=watched)
    assert sorted(seen) == sorted(step.text for record in made.records for step in record.steps)


def test_timing(policy):
    timing = collected(policy, n=16).timing
    assert 0 < timing.policy and 0 < timing.environment and timing.policy < timing.turns < timing.total
    assert timing.policy_share == timing.policy / timing.turns


def test_the_model_is_left_as_it_was(policy):
    policy.model.train()
    collected(policy, n=2)
    assert policy.model.training and all(p.requires_grad for p in policy.model.parameters())


def test_scripted():
    texts = [["look a", "say 0"], ["look b"]]
    made = scripted_episodes(
        texts, toy.world(), toy.tasks(2), tokenizer=toy.TOKENIZER, serializer=CompactSerializer(), grader=toy.grade,
        environment_seeds=[3, 4], producer="expert",
    )  # fmt: skip
    assert [[step.text for step in record.steps] for record in made.records] == texts
    assert [record.ending for record in made.records] == ["terminated", "truncated"]
    assert [record.reward for record in made.records] == [10.0, 0.0]
    assert [record.versions.policy for record in made.records] == ["expert"] * 2
    assert [record.environment_seed for record in made.records] == [3, 4]
    assert int(made.batch.action_mask.sum()) == 3 + 3 + 3 and (made.samples.logprobs == 0).all()
    tokens = "<bos> a a <end> <|assistant|> look a <end> <|tool|> 0 <end> <|assistant|> say 0 <end>"
    assert toy.TOKENIZER.decode(made.records[0].tokens) == tokens


@pytest.mark.parametrize(
    "texts, seeds, message",
    [([["say 1", "say 1"]], [0], "must end with the episode, after 1 actions; got 2"), ([["say 1"]], [], "equally many")],
)
def test_scripted_errors(texts, seeds, message):
    with pytest.raises(ValueError, match=message):
        scripted_episodes(
            texts, toy.world(), toy.tasks(1), tokenizer=toy.TOKENIZER, serializer=CompactSerializer(), grader=toy.grade,
            environment_seeds=seeds,
        )  # fmt: skip


def test_errors(policy):
    for wrong in ({"group_size": 0}, {"max_action_tokens": 0}, {"temperature": -1.0}, {"temperature": float("nan")}, {"rows": 3}):
        with pytest.raises(ValueError, match="must be"):
            collected(policy, **wrong)
    with pytest.raises(ValueError, match="number of tasks must be at least 1"):
        collect_episodes(policy, toy.world(), [], seed=0, **SETTINGS)
    with pytest.raises(ValueError, match="policy must have a tokenizer"):
        collected(Policy(policy.model, None))
    bigger = toy.policy(vocab_size=toy.TOKENIZER.vocab_size + 3)
    with pytest.raises(ValueError, match="policy must have as many tokens as its tokenizer"):
        collected(bigger)
    broken = toy.policy()
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="met NaN"):
        collected(broken)
