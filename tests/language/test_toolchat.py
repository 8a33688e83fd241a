"""The tool conversations: repeatable, covered by their tokenizer, with every variant, and tools that answer the sampled call."""

import pytest

from course.language import ChatSerializer, StopReason, Transcript
from course.tasks.toolchat import LARGEST, WORDS, answer, question, tool_result, toolchat_tokenizer, toolchat_transcripts

TOKENIZER = toolchat_tokenizer()
MANY = toolchat_transcripts(80, seed=5)


def stops(transcript: Transcript) -> list[StopReason]:
    return [turn.stop for turn in transcript.turns if turn.sampled]


def test_a_conversation_depends_on_the_seed_and_its_own_number_only():
    assert toolchat_transcripts(6, seed=5) == MANY[:6] and toolchat_transcripts(0, seed=5) == []
    assert toolchat_transcripts(6, seed=6) != MANY[:6]
    assert len(set(MANY)) > 70


def test_every_four_hold_every_variant():
    for start in range(0, len(MANY), 4):
        cut, ended, last_cut, stopped = (stops(transcript) for transcript in MANY[start : start + 4])
        assert cut.count(StopReason.LENGTH) == 1 and cut[-1] is StopReason.END
        assert set(ended) == {StopReason.END}
        assert last_cut.count(StopReason.LENGTH) == 1 and last_cut[-1] is StopReason.LENGTH
        assert StopReason.STOP_TEXT in stopped and StopReason.LENGTH not in stopped
    examples = [any(turn.role == "assistant" and not turn.sampled for turn in transcript.turns) for transcript in MANY]
    assert examples == [True, False] * 40
    assert {len(transcript.turns) for transcript in MANY} > {5, 9}


def test_stopped_calls_end_where_the_call_is_complete():
    found = [turn for transcript in MANY for turn in transcript.turns if turn.stop is StopReason.STOP_TEXT]
    assert found and all(TOKENIZER.token(turn.ids[-1]) == ";" for turn in found)


def test_tools_answer_what_was_sampled_and_not_what_was_meant():
    errors = 0
    for transcript in MANY:
        for call, result in zip(transcript.turns, transcript.turns[1:]):
            if result.role == "tool":
                words = TOKENIZER.decode(i for i in call.ids if i != TOKENIZER.end_id) if call.sampled else call.text
                outcomes = {tool_result(words, hour) for hour in range(24)}
                assert result.text in outcomes
                errors += result.text == "error"
    assert errors >= 20  # one cut call in every fourth conversation


def test_the_tokenizer_covers_every_conversation():
    assert TOKENIZER.vocab_size == 7 + len(WORDS) < 128
    lengths = [len(ChatSerializer().encode(transcript, TOKENIZER).tokens) for transcript in MANY]
    assert 25 < min(lengths) and max(lengths) <= 128


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("call calculator 7 plus 5 ;", "12"),
        ("call calculator 7 minus 5 ;", "2"),
        ("call calculator 5 minus 7 ;", "error"),
        (f"call calculator {LARGEST} plus 1 ;", "error"),
        ("call calculator 7 plus 5", "error"),
        ("call calculator 7 of 5 ;", "error"),
        ("call lookup capital france ;", "paris"),
        ("call lookup colour snow ;", "white"),
        ("call lookup capital snow ;", "error"),
        ("call clock 3 ;", "1 hours"),
        ("call clock ;", "error"),
        ("", "error"),
    ],
)
def test_tool_results(call, result):
    assert tool_result(call, hour=22) == result


def test_every_question_has_a_call_that_answers_it():
    import random

    for seed in range(200):
        asked = question(random.Random(seed))
        result = tool_result(asked.call, hour=9)
        assert result != "error" and answer(result) == f"it is {result} ."
        TOKENIZER.encode(f"{asked.text} {asked.call} {answer(result)}")
    assert answer("error") == "i do not know ."


def test_a_negative_number_of_conversations_is_refused():
    with pytest.raises(ValueError, match="n must be"):
        toolchat_transcripts(-1, seed=0)
