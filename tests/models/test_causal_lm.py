"""The adapter gives what the transformers model gives, and what a row gives alone when it is padded."""

import pytest
import torch

import tiny
from course.models import CausalLM, ScalarHead


@pytest.mark.parametrize("make", [tiny.llama, tiny.gpt2])
def test_it_calls_the_model_and_makes_positions_from_the_mask(make):
    theirs = make()
    mine = CausalLM(theirs).eval()
    prompts, mask = tiny.left_padded(0, 4, 6)
    with torch.no_grad():
        assert torch.equal(mine(prompts), theirs(prompts).logits)
        padded, hidden = mine(prompts, mask), mine.hidden(prompts, mask)
        for row in range(4):
            alone = prompts[row : row + 1][:, mask[row]]
            assert torch.allclose(padded[row][mask[row]], mine(alone)[0], atol=1e-5)
            assert torch.allclose(hidden[row][mask[row]], mine.hidden(alone)[0], atol=1e-5)
        assert torch.allclose(theirs.get_output_embeddings()(hidden), padded, atol=1e-5)
        assert ScalarHead(mine, seed=0)(prompts, mask).shape == (4, 6)


def test_what_is_no_language_model_and_what_is_too_long_are_refused():
    with pytest.raises(ValueError, match="hf_model must be a transformers model with a language-model head; got Linear"):
        CausalLM(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="hf_model must be"):
        CausalLM(tiny.llama().model)
    with pytest.raises(ValueError, match="at most max_position_embeddings = 48"):
        CausalLM(tiny.gpt2())(torch.zeros(1, 49, dtype=torch.int64))
