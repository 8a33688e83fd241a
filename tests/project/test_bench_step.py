"""The bench's own half: each case trains on the tokens it says, takes turns fairly, and says what is missing where TRL is."""

import sys

import pytest
import torch
from torch import nn

from course.bench import step
from course.models.decoder import Decoder

TOKENS = {  # trained on in one iteration
    "sft": step.STEPS * step.ROWS * 48, "sft without prompts": step.STEPS * step.ROWS * 48,
    "reward model": step.STEPS * 2 * step.PAIRS * 48, "dpo": step.STEPS * 2 * step.PAIRS * 48,
    "rloo": step.SEQUENCES * 48, "grpo": step.SEQUENCES * 48, "ppo": step.EPOCHS * step.SEQUENCES * 48 * 2,  # actor and critic
}  # fmt: skip


@pytest.fixture
def kit(tmp_path, monkeypatch):
    monkeypatch.setattr(step, "WARM", 1)
    monkeypatch.setattr(step, "ROUNDS", 1)
    decoder = Decoder(step.CONFIG, seed=0)
    decoder.save_pretrained(tmp_path, {"pad_token_id": step.PAD, "eos_token_id": step.END})
    # Any module will do for TRL: only the other half of a case looks into it.
    return step.Kit(step, step._tokenizer(), str(tmp_path), decoder)


def other_side(turns: step.Turns, tokens: int) -> None:
    """What TRL's trainer does as far as the turns are concerned."""
    embedding = nn.Embedding(step.CONFIG.vocab_size, 4)
    for _ in range(turns.per * (step.WARM + step.ROUNDS)):
        embedding(torch.zeros(tokens // turns.per, dtype=torch.long))
        with torch.no_grad():
            embedding(torch.zeros(7, dtype=torch.long))  # reference and sampler are not trained
        turns.on_step_end()


@pytest.mark.parametrize("name", step.CASES)
def test_our_half_trains_on_the_tokens_it_says(kit, name):
    before = {key: weight.clone() for key, weight in kit.decoder.state_dict().items()}
    _, per, ours = step.CASES[name](kit)
    assert per == (1 if name == "ppo" else step.STEPS)  # TRL's PPO counts a whole iteration as one step
    turns = step.Turns(per, ours)
    turns.take(lambda: other_side(turns, TOKENS[name]))
    assert len(turns.ours) == len(turns.theirs) == step.ROUNDS and turns.ours[0] > 0
    assert any(not torch.equal(weight, before[key]) for key, weight in kit.decoder.state_dict().items())


def test_unequal_work_is_no_comparison(kit):
    turns = step.Turns(2, lambda: None)
    with pytest.raises(RuntimeError, match="the work differs: 0 tokens are trained on here, 10 there"):
        turns.take(lambda: other_side(turns, 10))
    assert not nn.modules.module._global_forward_hooks  # no hook is left behind


def test_both_sides_begin_with_the_same_law(kit):
    ids = step._ids(4, 48, 0)
    with torch.no_grad():
        torch.testing.assert_close(kit.llama().eval()(ids).logits, kit.decoder(ids), rtol=1e-4, atol=1e-5)
        judge = kit.llama("LlamaForSequenceClassification").eval()
        torch.testing.assert_close(judge.model(ids).last_hidden_state, kit.decoder.hidden(ids), rtol=1e-4, atol=1e-5)
    assert judge.config.num_labels == 1


def test_the_tokenizer_reads_our_ids(kit):
    prompts, chosen, _ = step._pairs()
    assert kit.tokenizer(step._texts(prompts))["input_ids"] == prompts.tolist()
    text = step._texts(chosen[:1, :-1])[0] + kit.tokenizer.eos_token  # what TRL makes of a response
    assert kit.tokenizer(text)["input_ids"] == chosen[0].tolist()
    assert (kit.tokenizer.pad_token_id, kit.tokenizer.eos_token_id) == (step.PAD, step.END)


def test_both_rewards_are_one():
    ids = step._ids(5, 48, 3)
    every = torch.ones_like(ids, dtype=torch.bool)
    ours = step._reward(step.Batch(ids, every, every)).tolist()
    assert ours == pytest.approx(step._their_reward(ids[:, step.PROMPT :].tolist()))


def test_without_trl_a_sentence_says_how_to_get_it(monkeypatch):
    for name in ("trl", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[bench\]'"):
        step.rows()
