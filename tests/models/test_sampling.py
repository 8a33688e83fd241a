"""What a sampler writes down is what a scorer finds; every episode can be drawn again alone; ends are ends."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

import tiny
from course.language import StopReason
from course.models import frozen_score, sample, score
from course.models.sampling import left_pad, uniform_noise

NAMES = ["decoder", "llama", "gpt2", "plain"]


def drawn(model, prompts, mask=None, **options):
    return sample(model, prompts, mask, **{"max_new_tokens": 12, "end_ids": (2,), "pad_id": 0, "seed": 5, **options})


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("batch", [1, 9])
@pytest.mark.parametrize("padded", [False, True])
def test_recorded_log_probabilities_are_the_scored_ones(models, name, temperature, batch, padded):
    prompts, mask = tiny.left_padded(1, batch, 6)
    samples = drawn(models[name], prompts, mask if padded else None, temperature=temperature)
    scored = frozen_score(models[name], samples.tokens, samples.attention_mask, temperature)
    actions = samples.action_mask[:, 1:]
    assert actions.any()
    assert torch.allclose(samples.logprobs[actions], scored[actions], atol=1e-5)
    if temperature != 1.0:  # and the temperature is really in them
        assert not torch.allclose(
            samples.logprobs[actions], frozen_score(models[name], samples.tokens, samples.attention_mask)[actions], atol=1e-3
        )


@pytest.mark.parametrize("name", NAMES)
def test_one_episode_of_a_batch_can_be_drawn_again_alone(models, name):
    prompts, mask = tiny.left_padded(2, 7, 5)
    together = drawn(models[name], prompts, mask, episodes=torch.tensor([3, 9, 4, 1, 12, 7, 5]))
    for row in (0, 3, 6):
        alone = drawn(models[name], prompts[row : row + 1][:, mask[row]], episodes=together.episodes[row : row + 1])
        assert alone.response(0) == together.response(row) and alone.stop[0] == together.stop[row]


@pytest.mark.parametrize("name", ["decoder", "llama", "gpt2"])
def test_all_ways_to_decode_draw_the_same(models, name):
    """The cached path against the slow twin that runs the whole model for every token, with rows that end at different times."""
    prompts, mask = tiny.left_padded(3, 16, 6)
    options = {"max_new_tokens": 30, "end_ids": (2, 7, 11), "seed": 8}
    fast, slow = drawn(models[name], prompts, mask, **options), drawn(tiny.Plain(models[name]), prompts, mask, **options)
    assert torch.equal(fast.tokens, slow.tokens) and fast.stop == slow.stop
    assert torch.allclose(fast.logprobs, slow.logprobs, atol=1e-5)
    lengths = fast.action_mask.sum(1)
    assert lengths.min() < 6 and lengths.max() > 12  # rows did end at different times


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_greedy_is_what_transformers_generates(models, name):
    prompts = torch.randint(3, tiny.VOCAB, (5, 6), generator=torch.Generator().manual_seed(4))
    mine = drawn(models[name], prompts, temperature=0.0, max_new_tokens=20)
    theirs = models[name].hf_model.generate(
        prompts, attention_mask=torch.ones_like(prompts), do_sample=False, max_new_tokens=20, eos_token_id=2, pad_token_id=0
    )
    assert torch.equal(mine.tokens[:, : theirs.shape[1]], theirs)


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("padded", [False, True])
def test_the_decoder_generates_greedily_what_transformers_makes_of_its_weights(tmp_path, activation, padded):
    from transformers import AutoModelForCausalLM

    mine = tiny.decoder(7, activation=activation)
    mine.save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    prompts, mask = tiny.left_padded(4, 6, 7)
    mask = mask if padded else torch.ones_like(mask)
    got = drawn(mine, prompts, mask, temperature=0.0, max_new_tokens=25)
    expected = theirs.generate(
        prompts, attention_mask=mask.long(), do_sample=False, max_new_tokens=25, eos_token_id=2, pad_token_id=0
    )
    assert torch.equal(got.tokens[:, : expected.shape[1]], expected)
    assert (got.logprobs == 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_number_formats(dtype):
    model = tiny.decoder().to(dtype)
    prompts, mask = tiny.left_padded(1, 9, 6)
    samples = drawn(model, prompts, mask, temperature=0.8)
    scored = frozen_score(model, samples.tokens, samples.attention_mask, 0.8)
    actions = samples.action_mask[:, 1:]
    tolerance = 1e-5 if dtype == torch.float64 else 0.5  # eight bits of mantissa, logits of size ten
    assert (samples.logprobs - scored)[actions].abs().max() < tolerance


def test_masks_and_stop_reasons_come_from_what_was_sampled(models):
    prompts, mask = tiny.left_padded(6, 40, 5)
    samples = drawn(models["decoder"], prompts, mask, end_ids=(2, 9), pad_id=2, max_new_tokens=10)
    assert set(samples.stop) == {StopReason.END, StopReason.LENGTH}
    for row, stop in enumerate(samples.stop):
        ids = samples.response(row)
        ends = [i for i, token in enumerate(ids) if token in (2, 9)]
        assert ends == ([len(ids) - 1] if stop is StopReason.END else [])
        assert stop is StopReason.END or len(ids) == 10
        assert samples.attention_mask[row].sum() == mask[row].sum() + len(ids)
    assert (samples.tokens[~samples.attention_mask][samples.tokens[~samples.attention_mask].ne(prompts[~mask][0])] >= 0).all()
    assert (samples.logprobs[~samples.action_mask[:, 1:]] == 0).all()


def test_the_drawn_law_is_the_models_law():
    """First tokens of 20 000 episodes against exact probabilities: a chi-square that a right sampler hardly ever exceeds."""
    model, prompt = tiny.decoder(), torch.tensor([[5, 6]])
    exact = torch.softmax(model(prompt)[0, -1].double() / 1.3, -1).detach()
    count = 20_000
    samples = drawn(model, prompt.expand(count, 2), max_new_tokens=1, temperature=1.3)
    observed = torch.bincount(samples.tokens[:, 2], minlength=tiny.VOCAB).double()
    common = exact * count > 5
    statistic = float(((observed - exact * count).square() / (exact * count))[common].sum())
    degrees = int(common.sum()) - 1
    assert degrees > 5 and statistic < degrees + 3.72 * (2 * degrees) ** 0.5 + 10


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(-(2**63), 2**63 - 1), episode=st.integers(0, 2**40), position=st.integers(0, 10**6))
def test_noise_is_a_function_of_seed_episode_and_position(seed, episode, position):
    one = uniform_noise(seed, torch.tensor(episode), torch.tensor(position))
    table = uniform_noise(seed, torch.tensor([[episode], [episode + 1]]), torch.tensor([position, position + 1]))
    assert table[0, 0] == one and 0 < float(one) <= 1
    assert len(set(table.flatten().tolist())) == 4


def test_noise_is_uniform_and_uncorrelated():
    table = uniform_noise(3, torch.arange(400)[:, None], torch.arange(400)).double()
    assert abs(float(table.mean()) - 0.5) < 4 * (1 / 12 / 160_000) ** 0.5
    assert abs(float(table.var()) - 1 / 12) < 1e-3
    for shifted in (table.roll(1, 0), table.roll(1, 1), uniform_noise(4, torch.arange(400)[:, None], torch.arange(400)).double()):
        assert abs(float(torch.corrcoef(torch.stack([table.flatten(), shifted.flatten()]))[0, 1])) < 0.01


def test_episodes_differ_and_seeds_differ():
    prompts = torch.tensor([[5, 6]]).expand(8, 2)
    samples = drawn(tiny.decoder(), prompts)
    assert len({samples.response(row) for row in range(8)}) > 4
    assert not torch.equal(samples.tokens, drawn(tiny.decoder(), prompts, seed=6).tokens)
    assert torch.equal(samples.tokens, drawn(tiny.decoder(), prompts).tokens)


def test_the_mode_is_put_back_and_dropout_is_off(models):
    model = models["gpt2"]
    model.train()
    try:
        prompts = torch.tensor([[5, 6, 7]])
        first, again = drawn(model, prompts), drawn(model, prompts)
        assert torch.equal(first.logprobs, again.logprobs) and model.training and model.hf_model.transformer.drop.training
        one, two = (frozen_score(model, first.tokens, first.attention_mask) for _ in range(2))
        assert torch.equal(one, two) and model.training
        assert not torch.equal(score(model, first.tokens), score(model, first.tokens))  # training scores do have dropout
    finally:
        model.eval()


def test_a_changed_weight_changes_the_next_sample():
    """Nothing that was worked out from old weights survives into the next call."""
    model, prompts = tiny.decoder(), torch.tensor([[5, 6, 7]])
    drawn(model, prompts)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.0 if parameter.dim() == 1 else 0.7)
    samples = drawn(model, prompts)
    scored = frozen_score(model, samples.tokens, samples.attention_mask)
    actions = samples.action_mask[:, 1:]
    assert torch.allclose(samples.logprobs[actions], scored[actions], atol=1e-5)


def test_left_pad():
    ids, mask = left_pad([[5], [6, 7, 8]], pad_id=0)
    assert ids.tolist() == [[0, 0, 5], [6, 7, 8]] and mask.tolist() == [[False, False, True], [True, True, True]]
    with pytest.raises(ValueError, match="sequences must be at least one"):
        left_pad([[5], []], pad_id=0)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"temperature": -1.0}, "temperature must be finite and at least 0"),
        ({"end_ids": (99,)}, "end_ids must be ids in 0..23"),
        ({"max_new_tokens": 60}, "must fit into max_length = 48"),
        ({"seed": 2**63}, "seed must fit into 64 bits"),
        ({"mask": torch.tensor([[1, 0, 1]])}, "prompt_mask must be 0 on the left"),
    ],
)
def test_bad_arguments_are_named(options, words):
    mask = options.pop("mask", None)
    with pytest.raises(ValueError, match=words):
        drawn(tiny.decoder(), torch.tensor([[5, 6, 7]]), mask, **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_are_refused(temperature):
    model = tiny.decoder()
    with torch.no_grad():
        model.norm.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="sampling met NaN"):
        drawn(model, torch.tensor([[5, 6, 7]]), temperature=temperature)
