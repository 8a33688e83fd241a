"""The layout: exact there and back, sampled ids untouched, prefixes kept, one begin token, and a digest of its own."""

from hypothesis import given, settings, strategies as st
import pytest

from conversations import QUIET, TOKENIZERS, WORDS, conversations, sampled_turns, slow_layout
from course.language import ChatSerializer, CompactSerializer, Encoded, Span, policy_stamp
from course.language import StopReason, Tokenizer, Transcript, Turn

pytestmark = QUIET

CHAT, COMPACT = ChatSerializer(), CompactSerializer()
serializers = st.sampled_from([CHAT, COMPACT])
WORDS_TOKENIZER = TOKENIZERS[0]


def test_the_layout_is_this():
    transcript = Transcript(
        (
            Turn("system", "a ."),
            Turn("user", "b"),
            Turn("assistant", ids=(9,), sampled=True, stop=StopReason.LENGTH),
            Turn("user", ""),
            Turn("assistant", ids=(8, 2), sampled=True, stop=StopReason.END),
            Turn("assistant", ids=(7,), sampled=True, stop=StopReason.STOP_TEXT),
        )
    )
    encoded = CHAT.encode(transcript, WORDS_TOKENIZER)
    assert encoded.tokens == (1, 3, 7, 11, 2, 4, 8, 2, 5, 9, 2, 4, 2, 5, 8, 2, 5, 7)
    assert [span for span in encoded.spans if span.kind in ("sampled", "end")] == [
        (4, 5, "end", 0), (7, 8, "end", 1), (9, 10, "sampled", 2), (10, 11, "end", 2), (12, 13, "end", 3), (14, 16, "sampled", 4),
        (17, 18, "sampled", 5),
    ]  # fmt: skip
    assert COMPACT.encode(transcript, WORDS_TOKENIZER).tokens == (1, 3, 7, 11, 2, 8, 2, 5, 9, 2, 2, 5, 8, 2, 5, 7)


@settings(deadline=None, max_examples=40)
@given(conversations())
def test_the_tokens_are_those_of_the_slow_twin(case):
    tokenizer, transcript = case
    assert list(CHAT.encode(transcript, tokenizer).tokens) == [i for i, _ in slow_layout(transcript, tokenizer)]


@settings(deadline=None, max_examples=40)
@given(conversations(), serializers)
def test_decoding_gives_the_transcript_back(case, serializer):
    tokenizer, transcript = case
    assert serializer.decode(serializer.encode(transcript, tokenizer), tokenizer) == transcript


@settings(deadline=None, max_examples=40)
@given(conversations(), serializers)
def test_the_first_turns_encode_to_a_prefix(case, serializer):
    tokenizer, transcript = case
    whole = serializer.encode(transcript, tokenizer)
    for k in range(len(transcript.turns) + 1):
        part = serializer.encode(Transcript(transcript.turns[:k]), tokenizer)
        assert part.tokens == whole.tokens[: len(part.tokens)] and part.spans == whole.spans[: len(part.spans)]


@settings(deadline=None, max_examples=40)
@given(conversations(), serializers, st.data())
def test_a_turn_sampled_from_the_prompt_continues_exactly_its_ids(case, serializer, data):
    tokenizer, transcript = case
    turn = data.draw(sampled_turns(tokenizer))
    assert serializer.prompt(transcript, tokenizer) + turn.ids == serializer.encode(transcript.then(turn), tokenizer).tokens


@settings(deadline=None, max_examples=40)
@given(conversations(only_written=True), serializers)
def test_one_begin_token_and_no_end_token_twice(case, serializer):
    tokenizer, transcript = case
    tokens = serializer.encode(transcript, tokenizer).tokens
    assert tokens.count(tokenizer.bos_id) == 1 and tokens[0] == tokenizer.bos_id
    assert tokens.count(tokenizer.end_id) == len(transcript.turns)
    if serializer == CHAT:
        assert tokens[-2:] != (tokenizer.end_id, tokenizer.end_id)


@settings(deadline=None, max_examples=40)
@given(conversations(), serializers)
def test_spans_tile_the_tokens_and_the_sampled_ones_hold_the_record(case, serializer):
    tokenizer, transcript = case
    encoded = serializer.encode(transcript, tokenizer)
    assert [t for span in encoded.spans for t in range(span.start, span.stop)] == list(range(len(encoded.tokens)))
    found = [(s.turn_index, encoded.tokens[s.start : s.stop]) for s in encoded.spans if s.kind == "sampled"]
    assert found == [(k, turn.ids) for k, turn in enumerate(transcript.turns) if turn.sampled]


class Pieces(Tokenizer):
    """A tokenizer with merges in which "he" + "llo" and "hello" are one text; it writes down what it was asked to encode."""

    asked: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.asked.append(text)
        ids = []
        while text:
            piece = max((word for word in self.vocabulary if text.startswith(word)), key=len)
            ids.append(7 + self.vocabulary.index(piece))
            text = text[len(piece) :]
        return ids

    def decode(self, ids) -> str:
        return "".join(self.vocabulary[i - 7] for i in ids)


@pytest.mark.parametrize("serializer", [CHAT, COMPACT])
def test_sampled_ids_are_never_tokenised_again(serializer):
    pieces = Pieces("words", ("he", "llo", "hello"))
    assert pieces.decode([7, 8]) == pieces.decode([9]) == "hello" and pieces.encode("hello") == [9]
    pieces.asked.clear()
    sampled = Turn("assistant", ids=(7, 8, 2), sampled=True, stop=StopReason.END)
    transcript = Transcript((Turn("user", "hello"), sampled, Turn("tool", "he")))
    encoded = serializer.encode(transcript, pieces)
    assert pieces.asked == ["hello", "he"]
    assert [encoded.tokens[s.start : s.stop] for s in encoded.spans if s.kind == "sampled"] == [(7, 8, 2)]
    assert serializer.decode(encoded, pieces) == transcript


def test_a_sampled_role_token_opens_no_turn():
    spoof = Turn("assistant", ids=(8, 6, 10, 1, 3, 2), sampled=True, stop=StopReason.END)
    transcript = Transcript((Turn("user", "a"), spoof, Turn("tool", "7")))
    for serializer in (CHAT, COMPACT):
        encoded = serializer.encode(transcript, WORDS_TOKENIZER)
        assert serializer.decode(encoded, WORDS_TOKENIZER) == transcript
        assert [role for role, _ in serializer.parse(encoded.tokens, WORDS_TOKENIZER)] == ["user", "assistant", "tool"]


@settings(deadline=None, max_examples=40)
@given(conversations(), serializers)
def test_parsing_bare_ids_finds_roles_and_contents(case, serializer):
    tokenizer, transcript = case
    turns = serializer.parse(serializer.encode(transcript, tokenizer).tokens, tokenizer)
    assert [role for role, _ in turns] == [turn.role for turn in transcript.turns]
    for (_, ids), turn in zip(turns, transcript.turns):
        content = tuple(i for i in ids if i != tokenizer.end_id)
        if turn.sampled:
            assert content == tuple(i for i in turn.ids if i != tokenizer.end_id)
        else:
            assert tokenizer.decode(content) == turn.text and ids[-1] == tokenizer.end_id


def test_parsing_refuses_ids_that_are_no_conversation():
    for bad in ([], [4, 8, 2], [0, 1, 4, 2]):
        with pytest.raises(ValueError, match="begin token"):
            CHAT.parse(bad, WORDS_TOKENIZER)
    with pytest.raises(ValueError, match="header"):
        CHAT.parse([1, 4, 8, 2, 8, 2], WORDS_TOKENIZER)


def test_another_serializer_gives_another_stamp_even_where_the_tokens_agree():
    transcript = Transcript((Turn("system", "a"), Turn("assistant", ids=(8, 2), sampled=True, stop=StopReason.END)))
    assert CHAT.encode(transcript, WORDS_TOKENIZER).tokens == COMPACT.encode(transcript, WORDS_TOKENIZER).tokens
    parts = {"weights": "w", "tokenizer": WORDS_TOKENIZER.digest(), "decoding": {"temperature": 1.0}, "code": "r"}
    chat, compact = (policy_stamp({**parts, "serializer": serializer.digest()}) for serializer in (CHAT, COMPACT))
    assert chat != compact
    assert chat == policy_stamp({**parts, "serializer": ChatSerializer().digest()})


def test_a_new_name_or_a_new_header_is_another_serializer():
    renamed = type("Renamed", (ChatSerializer,), {"name": "chat2"})
    relaid = type("Relaid", (ChatSerializer,), {"headers": COMPACT.headers})
    assert len({serializer.digest() for serializer in (CHAT, COMPACT, renamed(), relaid())}) == 4


@pytest.mark.parametrize(
    ("ids", "stop", "message"),
    [
        ((8,), StopReason.END, "end in the end token"),
        ((2, 8), StopReason.END, "end in the end token"),
        ((8, 2, 2), StopReason.END, "hold no other"),
        ((8, 2), StopReason.LENGTH, "hold no end token"),
        ((2, 8), StopReason.STOP_TEXT, "hold no end token"),
        ((7 + len(WORDS),), StopReason.LENGTH, "below the vocabulary size"),
    ],
)
@pytest.mark.parametrize("tokenizer", TOKENIZERS[:2])
def test_ids_that_contradict_the_stop_reason_are_refused(tokenizer, ids, stop, message):
    transcript = Transcript((Turn("user", "a"), Turn("assistant", ids=ids, sampled=True, stop=stop)))
    with pytest.raises(ValueError, match=f"ids of turn 1 must.*{message}"):
        CHAT.encode(transcript, tokenizer)


def test_an_encoding_that_does_not_fit_its_spans_is_refused():
    with pytest.raises(ValueError, match="without gap"):
        Encoded((1, 4), (Span(0, 1, "bos", -1),), ())
    with pytest.raises(ValueError, match="without gap"):
        Encoded((1, 4), (Span(0, 1, "bos", -1), Span(0, 2, "header", 0)), (None,))
    with pytest.raises(ValueError, match="one of the 1 turns"):
        Encoded((1, 4), (Span(0, 1, "bos", -1), Span(1, 2, "header", 1)), (None,))
    with pytest.raises(ValueError, match="content of turn 0"):
        CHAT.decode(Encoded((1, 4), (Span(0, 1, "bos", -1), Span(1, 2, "header", 0)), (None,)), WORDS_TOKENIZER)
