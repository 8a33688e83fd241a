"""Random conversations for the property tests of this folder, and the layout written down a second time, slowly."""

from hypothesis import strategies as st
import pytest

from course.language import StopReason, Tokenizer, Transcript, Turn

WORDS = ("a", "b", "plus", "7", ".", "|end|")
TOKENIZERS = (
    Tokenizer.words(WORDS),
    Tokenizer.words(WORDS, pad_is_end=True),
    Tokenizer.bytes(),
    Tokenizer.bytes(pad_is_end=True),
)
LOOKS_SPECIAL = ("<end>", "<bos>", "<pad>", "<|user|>", "<|assistant|>", "<\x1bend>", "<\x1b", "<", "<<end>>", "<0x41>")

# The type checker looks at a random element of each tuple; hypothesis sees the draw and warns, though no test depends on it.
QUIET = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


def texts(tokenizer: Tokenizer):
    """Texts the tokenizer accepts; for bytes with much that looks like a special token."""
    if tokenizer.kind == "words":
        return st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
    anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    return st.lists(st.sampled_from(LOOKS_SPECIAL) | anything, max_size=4).map("".join)


def sampled_turns(tokenizer: Tokenizer):
    """Any ids a policy might produce: special tokens other than the end, and bytes that are no text, are among them."""
    content = st.lists(st.integers(0, tokenizer.vocab_size - 1).filter(lambda i: i != tokenizer.end_id), max_size=6)

    def turn(ids: list[int], stop: StopReason) -> Turn:
        ending = (tokenizer.end_id,) if stop is StopReason.END else ()
        return Turn("assistant", ids=tuple(ids) + ending, sampled=True, stop=stop)

    return st.builds(turn, content, st.sampled_from(StopReason))


def written_turns(tokenizer: Tokenizer):
    return st.builds(Turn, st.sampled_from(["system", "user", "assistant", "tool"]), texts(tokenizer))


@st.composite
def conversations(draw, only_written: bool = False):
    """(tokenizer, transcript): any order of turns, none to six of them."""
    tokenizer = draw(st.sampled_from(TOKENIZERS))
    turn = written_turns(tokenizer) if only_written else written_turns(tokenizer) | sampled_turns(tokenizer)
    return tokenizer, Transcript(tuple(draw(st.lists(turn, max_size=6))))


def slow_layout(transcript: Transcript, tokenizer: Tokenizer) -> list[tuple[int, bool]]:
    """(id, was it sampled) for each token of the chat layout."""
    out = [(1, False)]
    for k, turn in enumerate(transcript.turns):
        out.append((3 + ("system", "user", "assistant", "tool").index(turn.role), False))
        if turn.sampled:
            out.extend((i, True) for i in turn.ids)
            ended = len(turn.ids) > 0 and turn.ids[-1] == 2
            if not ended and k + 1 < len(transcript.turns):
                out.append((2, False))
        else:
            if tokenizer.kind == "bytes":
                out.extend((7 + byte, False) for byte in turn.text.encode())
            else:
                out.extend((7 + WORDS.index(word), False) for word in turn.text.split())
            out.append((2, False))
    return out
