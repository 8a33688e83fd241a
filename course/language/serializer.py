"""From a transcript to token ids and back. The layout is part of the data: its digest goes into the policy stamp."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Mapping, NamedTuple, Sequence

from course.language.stamp import digest
from course.language.tokenizer import BOS, END, ROLE_TOKENS, Tokenizer, chat_template
from course.language.transcript import ROLES, StopReason, Transcript, Turn

Kind = Literal["bos", "header", "text", "sampled", "end"]


class Span(NamedTuple):
    """tokens[start:stop] has one origin. "sampled" includes a sampled end token; "end" is one that the serializer put in."""

    start: int
    stop: int
    kind: Kind
    turn_index: int  # -1 for the begin token


@dataclass(frozen=True)
class Encoded:
    """Token ids, where each comes from, and why each turn stopped (None if it was written): all that decoding needs."""

    tokens: tuple[int, ...]
    spans: tuple[Span, ...]
    stops: tuple[StopReason | None, ...]

    def __post_init__(self) -> None:
        ends = [0] + [span.stop for span in self.spans]
        if [span.start for span in self.spans] != ends[:-1] or ends[-1] != len(self.tokens):
            raise ValueError(f"spans must cover the {len(self.tokens)} tokens without gap or overlap; got {self.spans}")
        if any(not -1 <= span.turn_index < len(self.stops) for span in self.spans):
            raise ValueError(f"spans must point to one of the {len(self.stops)} turns; got {self.spans}")


@dataclass(frozen=True)
class ChatSerializer:
    """<bos>, then for each turn: its role token, its content, <end>.

    Sampled ids are copied and never passed through text. A sampled turn that did not stop by itself gets an <end> if another turn
    follows, which nobody sampled, and nothing if it is the last. So the first k turns always encode to a prefix of the whole.
    """

    name: ClassVar[str] = "chat"
    headers: ClassVar[Mapping[str, str]] = ROLE_TOKENS

    def encode(self, transcript: Transcript, tokenizer: Tokenizer) -> Encoded:
        tokens, spans = [tokenizer.bos_id], [Span(0, 1, "bos", -1)]

        def add(ids: Sequence[int], kind: Kind, number: int) -> None:
            spans.append(Span(len(tokens), len(tokens) + len(ids), kind, number))
            tokens.extend(ids)

        for number, turn in enumerate(transcript.turns):
            if number and transcript.turns[number - 1].stop in (StopReason.LENGTH, StopReason.STOP_TEXT):
                add([tokenizer.end_id], "end", number - 1)
            add(self._header(turn.role, tokenizer), "header", number)
            if turn.sampled:
                _check_sampled(turn, number, tokenizer)
                add(turn.ids, "sampled", number)
            else:
                add(tokenizer.encode(turn.text), "text", number)
                add([tokenizer.end_id], "end", number)
        return Encoded(tuple(tokens), tuple(spans), tuple(turn.stop for turn in transcript.turns))

    def prompt(self, transcript: Transcript, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Ids up to and including the header of the assistant's next turn; a turn sampled from here continues these very ids."""
        return self.encode(transcript.then(_OPEN), tokenizer).tokens

    def decode(self, encoded: Encoded, tokenizer: Tokenizer) -> Transcript:
        """The transcript that was encoded. Goes by the spans: a policy can sample a role token, and that opens no turn."""
        turns = []
        for number, stop in enumerate(encoded.stops):
            part = {s.kind: encoded.tokens[s.start : s.stop] for s in encoded.spans if s.turn_index == number}
            if not {"header", "sampled" if stop else "text"} <= set(part):
                raise ValueError(f"spans must hold the header and the content of turn {number}; got {sorted(part)}")
            role = self._role_of(part["header"], tokenizer)
            if stop:
                turns.append(Turn(role, ids=part["sampled"], sampled=True, stop=stop))
            else:
                turns.append(Turn(role, tokenizer.decode(part["text"])))
        return Transcript(tuple(turns))

    def parse(self, tokens: Sequence[int], tokenizer: Tokenizer) -> list[tuple[str, tuple[int, ...]]]:
        """(role, content ids with their end token) of each turn, for ids that come without a record.

        Ids do not say who wrote them: a role token inside a turn is taken as content, an end token always as the end of its turn.
        """
        if not tokens or tokens[0] != tokenizer.bos_id:
            raise ValueError(f"tokens must start with the begin token {tokenizer.bos_id}; got {list(tokens[:4])}")
        turns, start = [], 1
        while start < len(tokens):
            role, begin = self._opening(tokens, start, tokenizer)
            end = next((t + 1 for t in range(begin, len(tokens)) if tokens[t] == tokenizer.end_id), len(tokens))
            turns.append((role, tuple(tokens[begin:end])))
            start = end
        return turns

    def chat_template(self) -> str:
        """The same layout as a jinja template, for Tokenizer.save_pretrained."""
        return chat_template(self.headers)

    def digest(self) -> str:
        layout = {"begin": BOS, "headers": dict(self.headers), "end": END, "end after a cut turn": "if another turn follows"}
        return digest({"name": self.name, **layout})

    def _header(self, role: str, tokenizer: Tokenizer) -> list[int]:
        return [tokenizer.role_id(role)] if self.headers[role] else []

    def _role_of(self, header: Sequence[int], tokenizer: Tokenizer) -> str:
        for role in ROLES:
            if list(header) == self._header(role, tokenizer):
                return role
        raise ValueError(f"tokens must hold the header of a role where a turn begins; got {list(header)}")

    def _opening(self, tokens: Sequence[int], start: int, tokenizer: Tokenizer) -> tuple[str, int]:
        for role in ROLES:
            if self.headers[role] and tokens[start] == tokenizer.role_id(role):
                return role, start + 1
        return self._role_of((), tokenizer), start


class CompactSerializer(ChatSerializer):
    """The same without a role token for the user: a turn that opens with none is the user's. One token less per exchange."""

    name = "compact"
    headers = {**ROLE_TOKENS, "user": ""}


LAYOUTS = {layout.name: layout for layout in (ChatSerializer, CompactSerializer)}  # by the name that is kept of each

_OPEN = Turn("assistant", ids=(), sampled=True, stop=StopReason.LENGTH)  # a turn of which nothing has been sampled yet


def _check_sampled(turn: Turn, number: int, tokenizer: Tokenizer) -> None:
    if any(i >= tokenizer.vocab_size for i in turn.ids):
        raise ValueError(f"ids of turn {number} must be below the vocabulary size {tokenizer.vocab_size}; got {max(turn.ids)}")
    expected = 1 if turn.stop is StopReason.END else 0
    if turn.ids.count(tokenizer.end_id) != expected or (expected and turn.ids[-1] != tokenizer.end_id):
        rule = "end in the end token and hold no other" if expected else "hold no end token"
        raise ValueError(f"ids of turn {number} must {rule}, since it stopped by {turn.stop.name}; got {turn.ids}")
