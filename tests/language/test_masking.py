"""The mask is 1 exactly on what the policy sampled, whatever the ids are."""

from hypothesis import given, settings
import pytest
import torch

from conversations import QUIET, TOKENIZERS, conversations, slow_layout
from course.language import StopReason, Transcript, Turn, action_mask
from course.tasks.toolchat import toolchat_tokenizer, toolchat_transcripts

pytestmark = QUIET


@settings(deadline=None, max_examples=40)
@given(conversations())
def test_tokens_and_mask_are_those_of_the_slow_twin(case):
    tokenizer, transcript = case
    tokens, mask = action_mask(transcript, tokenizer)
    expected = slow_layout(transcript, tokenizer)
    assert tokens.dtype == torch.int64 and mask.dtype == torch.bool
    assert list(zip(tokens.tolist(), mask.tolist())) == expected


@settings(deadline=None, max_examples=40)
@given(conversations())
def test_reduces_to_the_sampled_ids(case):
    tokenizer, transcript = case
    tokens, mask = action_mask(transcript, tokenizer)
    assert tokens[mask].tolist() == [i for turn in transcript.turns if turn.sampled for i in turn.ids]
    written = Transcript(tuple(turn for turn in transcript.turns if not turn.sampled))
    assert not action_mask(written, tokenizer)[1].any()


@settings(deadline=None, max_examples=40)
@given(conversations())
def test_a_further_turn_changes_no_earlier_position(case):
    tokenizer, transcript = case
    tokens, mask = action_mask(transcript, tokenizer)
    longer_tokens, longer_mask = action_mask(transcript.then(Turn("tool")), tokenizer)
    assert torch.equal(longer_tokens[: len(tokens)], tokens) and torch.equal(longer_mask[: len(mask)], mask)
    assert not longer_mask[len(mask) :].any()


@pytest.mark.parametrize("tokenizer", TOKENIZERS[:2])
def test_four_kinds_of_end_token_in_one_transcript(tokenizer):
    """Written, sampled, put in after a cut turn, and absent after a last cut turn; also where padding has the same id."""
    transcript = Transcript(
        (
            Turn("assistant", "a"),  # an example by someone else
            Turn("user", "b"),
            Turn("assistant", ids=(8, 2), sampled=True, stop=StopReason.END),
            Turn("assistant", ids=(9,), sampled=True, stop=StopReason.STOP_TEXT),
            Turn("tool", "7"),
            Turn("assistant", ids=(7, 7), sampled=True, stop=StopReason.LENGTH),
        )
    )
    tokens, mask = action_mask(transcript, tokenizer)
    assert tokens.tolist() == [1, 5, 7, 2, 4, 8, 2, 5, 8, 2, 5, 9, 2, 6, 10, 2, 5, 7, 7]
    assert mask.int().tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 0, 0, 0, 1, 1]


def test_no_turn_at_all_is_the_begin_token_alone():
    tokens, mask = action_mask(Transcript(), TOKENIZERS[0])
    assert tokens.tolist() == [1] and mask.tolist() == [False]


def test_a_contradicting_record_is_refused():
    cut = Transcript((Turn("assistant", ids=(8, 2), sampled=True, stop=StopReason.LENGTH),))
    with pytest.raises(ValueError, match="hold no end token"):
        action_mask(cut, TOKENIZERS[0])


def test_in_the_tool_conversations_only_the_policys_words_are_actions():
    tokenizer = toolchat_tokenizer()
    for transcript in toolchat_transcripts(8, seed=1):
        tokens, mask = action_mask(transcript, tokenizer)
        assert tokens[mask].tolist() == [i for turn in transcript.turns if turn.sampled for i in turn.ids]
        assert 0 < mask.sum() < len(mask) / 2
