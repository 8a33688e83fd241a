"""Turns refuse what no record can mean, and transcripts survive JSON."""

import json

from hypothesis import given, settings
import pytest

from conversations import QUIET, conversations
from course.language import StopReason, Transcript, Turn

pytestmark = QUIET


@settings(deadline=None, max_examples=40)
@given(conversations())
def test_json_round_trip(case):
    _, transcript = case
    text = json.dumps(transcript.to_json())
    assert Transcript.from_json(json.loads(text)) == transcript
    for turn in transcript.turns:
        assert Turn.from_json(json.loads(json.dumps(turn.to_json()))) == turn


def test_then_leaves_the_first_part_as_it_is():
    start = Transcript((Turn("system", "a"),))
    longer = start.then(Turn("user", "b"), Turn("tool", "c"))
    assert start.turns == longer.turns[:1] and [turn.role for turn in longer.turns] == ["system", "user", "tool"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"role": "robot"}, "role"),
        ({"role": "user", "text": "\ud800"}, "text"),
        ({"role": "user", "ids": (1,)}, "ids and stop"),
        ({"role": "assistant", "text": "a", "stop": StopReason.END}, "ids and stop"),
        ({"role": "user", "ids": (2,), "sampled": True, "stop": StopReason.END}, "role"),
        ({"role": "tool", "ids": (2,), "sampled": True, "stop": StopReason.END}, "role"),
        ({"role": "assistant", "text": "a", "ids": (2,), "sampled": True, "stop": StopReason.END}, "text"),
        ({"role": "assistant", "sampled": True, "stop": StopReason.END}, "ids"),
        ({"role": "assistant", "ids": (3, -1), "sampled": True, "stop": StopReason.LENGTH}, "ids"),
        ({"role": "assistant", "ids": (3,), "sampled": True}, "stop"),
        ({"role": "assistant", "ids": (), "sampled": True, "stop": StopReason.END}, "end token"),
    ],
)
def test_a_turn_that_contradicts_itself_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Turn(**arguments)


GOOD = {"role": "assistant", "ids": [7, 2], "stop": "end"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "a transcript must be an object with one key, turns"),
        ([], "a transcript must be"),
        ({"turns": {}}, "a transcript must be"),
        ({"turns": [], "more": 1}, "a transcript must be"),
        ({"turns": [GOOD, 3]}, r"turns\[1\]: a turn must be an object"),
        ({"turns": [{"role": "user"}]}, r"turns\[0\]: a turn must be an object with role and text"),
        ({"turns": [{"role": "user", "text": 3}]}, "role and text must be text"),
        ({"turns": [{"role": None, "text": "a"}]}, "role and text must be text"),
        ({"turns": [{"role": "root", "text": "a"}]}, "role must be one of"),
        ({"turns": [{**GOOD, "text": "a"}]}, "a turn must be an object"),
        ({"turns": [{**GOOD, "role": 1}]}, "role must be text"),
        ({"turns": [{**GOOD, "role": "user"}]}, "role must be 'assistant'"),
        ({"turns": [{**GOOD, "ids": "72"}]}, "ids must be a list of integers"),
        ({"turns": [{**GOOD, "ids": [7.0]}]}, "ids must be a list of integers"),
        ({"turns": [{**GOOD, "ids": [True]}]}, "ids must be a list of integers"),
        ({"turns": [{**GOOD, "ids": [-7]}]}, "ids must be a tuple of token ids"),
        ({"turns": [{**GOOD, "stop": "END"}]}, "stop must be one of end, length, stop_text"),
        ({"turns": [{**GOOD, "stop": ["end"]}]}, "stop must be one of"),
        ({"turns": [{**GOOD, "stop": None}]}, "stop must be one of"),
    ],
)
def test_json_that_is_no_transcript_is_refused_with_the_place(data, message):
    with pytest.raises(ValueError, match=message):
        Transcript.from_json(data)
