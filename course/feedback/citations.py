"""Citations that are checked: a claim counts as cited only where the archived page entails it.

Claims and pages share one controlled language, so that entailment is decided and not guessed. Finding the words of a claim on a
page is no check: the page may say "not", speak of another subject, of a longer number, or support half of the claim.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Iterator, Mapping, NamedTuple, Sequence

from course.language.stamp import digest as digest_of

_SENTENCE = re.compile(r"\.(?=\s|$)|\n")
_WORD = r"(?!(?:the|is|not|more|less|than|and)\b)[a-z]+"
_STATEMENT = re.compile(rf"the ((?:{_WORD} )+?of {_WORD}(?: {_WORD})*) is (not )?(more than |less than )?([0-9]{{1,18}})")


class Statement(NamedTuple):
    """`about` is <relation> number, or is not. about: "people of malta". relation: "=", ">" or "<"."""

    about: str
    negated: bool
    relation: str
    number: int

    def holds(self, value: int) -> bool:
        """Whether it is true where the number in question is `value`."""
        true = {"=": value == self.number, ">": value > self.number, "<": value < self.number}[self.relation]
        return true != self.negated


def sentences(text: str) -> list[str]:
    """The sentences of a text in lower case with single blanks. One ends at a full stop before white space, or with its line."""
    found = (" ".join(part.lower().split()) for part in _SENTENCE.split(text))
    return [sentence for sentence in found if sentence]


@lru_cache(maxsize=4096)
def statements(sentence: str) -> tuple[Statement, ...] | None:
    """What a sentence states; None if it, or any part of it, is not of the controlled language."""
    parts = [_STATEMENT.fullmatch(part) for part in sentence.split(" and ")]
    if not all(parts):
        return None
    found = (part.groups() for part in parts)
    relation = {None: "=", "more than ": ">", "less than ": "<"}
    return tuple(Statement(about, bool(negated), relation[compared], int(number)) for about, negated, compared, number in found)


def entails(claim: str, snapshot: str) -> bool:
    """Whether the claim is true in every world in which all that the snapshot states is true.

        sentence   part, or part and part and ...
        part       the X of Y is [not] [more than | less than] N

    X, Y: words of letters, none of them the, is, not, more, less, than, and. N: an integer of at most 18 digits. Capital letters and
    the number of blanks don't count. A sentence ends at a full stop before white space or the end of the text, or with its line.
    claim: one sentence. snapshot: any text; a sentence that is not of this form as a whole states nothing ("some say that the X of
    Y is 3", "the X of Y is 3.5"). "The X of Y" has one value, an integer, and "not more than 3" is at most 3.

        page: the people of malta is 31.
            entails  the people of malta is 31;  is more than 30;  is not 3;  is not more than 31;  is more than 9 and ... less than 40
            does not entail  is 3, is not 31, the people of gozo is 31, the people of malta is 31 and the ships of malta is 4
        page: the people of malta is more than 30. The people of malta is less than 32.
            entails  the people of malta is 31

    Reduces to: equality of subject and number for a claim of one part without "not" and comparison, on a page of such facts.
    False, never an error, for a claim that is not of this language; also for one about something on which the snapshot
    contradicts itself: from a contradiction anything would follow, and a page would gain by it.
    Source: citation laundering, sentence-level entailment against a source snapshot.
    """
    claimed = sentences(claim)
    parts = statements(claimed[0]) if len(claimed) == 1 else None
    stated = [statement for sentence in sentences(snapshot) for statement in statements(sentence) or ()]
    return parts is not None and all(follows(part, stated) for part in parts)


def follows(part: Statement, stated: Sequence[Statement]) -> bool:
    """Whether the part is true wherever all that is stated is true; False if nothing, or a contradiction, is stated about it."""
    known = [statement for statement in stated if statement.about == part.about]
    # Truth changes only at the numbers that are named, so these and their neighbours stand for all integers.
    values = {s.number + step for s in (part, *known) for step in (-1, 0, 1)}
    possible = [value for value in values if all(s.holds(value) for s in known)]
    return bool(possible) and all(part.holds(value) for value in possible)


# ---------------------------------------------------------------- pages that do not change


@dataclass(frozen=True)
class Snapshot:
    """A page as it was: its text under an address, and the SHA-256 of the text. An address alone says nothing durable."""

    address: str
    text: str
    digest: str

    def __post_init__(self) -> None:
        if not self.address or " " in self.address:
            raise ValueError(f"address must be a word; got {self.address!r}")
        if self.digest != _sha(self.text):
            raise ValueError(f"digest of {self.address} must be the SHA-256 of its text, {_sha(self.text)}; got {self.digest!r}")

    @classmethod
    def of(cls, address: str, text: str) -> "Snapshot":
        return cls(address, text, _sha(text))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


class PageArchive(Mapping[str, Snapshot]):
    """The pages of one index, each pinned at one version. version: the digest of all addresses and texts."""

    def __init__(self, snapshots: Sequence[Snapshot]):
        self._pages = {snapshot.address: snapshot for snapshot in snapshots}
        if len(self._pages) != len(snapshots):
            raise ValueError("snapshots must have distinct addresses; got one twice")

    @classmethod
    def of(cls, texts: Mapping[str, str]) -> "PageArchive":
        return cls([Snapshot.of(address, text) for address, text in texts.items()])

    def __getitem__(self, address: str) -> Snapshot:
        return self._pages[address]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pages)

    def __len__(self) -> int:
        return len(self._pages)

    @cached_property
    def version(self) -> str:
        return digest_of({address: snapshot.digest for address, snapshot in self._pages.items()})


def cited(claim: str, address: str, archive: Mapping[str, Snapshot]) -> bool:
    """The archived page at this address entails the claim. False where there is no page, or one that says something else."""
    return address in archive and entails(claim, archive[address].text)


# ---------------------------------------------------------------- an index that did change


@dataclass(frozen=True)
class IndexDrift:
    """What changed between two archives, and which recorded citations (claim, address) are judged otherwise on the second one."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    lost: tuple[tuple[str, str], ...]  # entailed before, no more
    gained: tuple[tuple[str, str], ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


def index_drift(before: PageArchive, after: PageArchive, citations: Sequence[tuple[str, str]] = ()) -> IndexDrift:
    """Replay recorded citations on two archives: the same claims and addresses, so that only the pages can make a difference.

    Reduces to: nothing, for two archives of one version. A score that moved by more than lost and gained explain moved for another
    reason than the index: the policy, or the judge.
    Source: search-index drift, replay of archived snapshots with a paired evaluation.
    """
    both = [address for address in before if address in after]
    was = [cited(claim, address, before) for claim, address in citations]
    now = [cited(claim, address, after) for claim, address in citations]
    return IndexDrift(
        added=tuple(sorted(set(after) - set(before))),
        removed=tuple(sorted(set(before) - set(after))),
        changed=tuple(sorted(address for address in both if before[address].digest != after[address].digest)),
        lost=tuple(citation for citation, a, b in zip(citations, was, now) if a and not b),
        gained=tuple(citation for citation, a, b in zip(citations, was, now) if b and not a),
    )
