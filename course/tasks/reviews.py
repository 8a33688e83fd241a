"""Very short film reviews in a language of 42 words, with a known gold utility.

A prompt is `<bos> the NOUN`; the response goes on to `<end>`. Everything a lesson needs is cheap here: a grammar writes
demonstrations, a sloppy writer makes pools and comparisons without a trained model, and gold is a formula, so that gold and a
learned proxy can be drawn on one axis.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, Sequence, runtime_checkable

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.tasks.records import Batch, Comparison, PreferenceLabel, Provenance, Ranking, batch_of

SPECIAL = ("<pad>", "<bos>", "<end>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
NOUNS = ("movie", "film", "plot", "acting", "ending", "music", "cast", "script")
POSITIVE, NEGATIVE = ("good", "great", "fun", "superb", "moving", "funny"), ("bad", "dull", "poor", "awful", "boring", "weak")
NEUTRAL = ("long", "short", "new", "old")
LIKED, DISLIKED, NEUTRAL_VERBS = ("loved", "liked", "enjoyed"), ("hated", "disliked"), ("watched", "saw")
ADVERBS = ("very", "really", "quite")
FUNCTION_WORDS = (".", "the", "i", "it", "was", "not", "and", "but")
WORDS = FUNCTION_WORDS + NOUNS + POSITIVE + NEGATIVE + NEUTRAL + LIKED + DISLIKED + NEUTRAL_VERBS + ADVERBS

ID = {word: i for i, word in enumerate(SPECIAL + WORDS)}
VOCAB_SIZE = len(ID)
PAD, BOS, END = ID["<pad>"], ID["<bos>"], ID["<end>"]
PROMPT_LENGTH, MAX_NEW_TOKENS = 3, 24
LENGTH = PROMPT_LENGTH + MAX_NEW_TOKENS
PENALTY_FLOOR = -3.0  # penalties add up without end; below this a plot of gold shows nothing but the collapse


def tokenizer():
    """The word-level tokenizer whose ids are the ids of this file."""
    from course.language.tokenizer import Tokenizer

    return Tokenizer.words(WORDS)


def text(ids: Sequence[int]) -> str:
    """Words of the ids, for reading only: records keep the ids."""
    names = SPECIAL + WORDS
    return " ".join(names[i] for i in ids if i != PAD)


@dataclass(frozen=True)
class Writer:
    """A cheap stand-in for a policy: the grammar, with slips.

    tones: chances that an opinion is positive, one is drawn per review. slip: chance per word to write a random other word in its
    place. spam: chance per review to end in a run of praise without grammar, the sort of text that an optimised policy finds.
    """

    version: str
    slip: float
    spam: float = 0.0
    tones: tuple[float, ...] = (0.2, 0.5, 0.8)

    def __post_init__(self) -> None:
        if not (0 <= self.slip <= 1 and 0 <= self.spam <= 1 and self.tones and all(0 <= t <= 1 for t in self.tones)):
            raise ValueError(f"slip, spam and tones must be probabilities; got {self.slip}, {self.spam}, {self.tones}")

    def write(self, noun: str, rng: random.Random) -> list[str]:
        """A response to the prompt `<bos> the noun`: at most MAX_NEW_TOKENS words, the last one `<end>` unless it was cut off."""
        spam = rng.random() < self.spam
        words = _review(noun, rng.choice(self.tones), rng, MAX_NEW_TOKENS - 1)
        if spam:
            keep = words[: rng.randrange(2, 7)]
            words = keep + [rng.choice(POSITIVE) for _ in range(rng.randrange(12, 17))] + ["."]
        return [rng.choice(WORDS) if rng.random() < self.slip else word for word in words] + ["<end>"]


CLEAN = Writer("grammar", slip=0.0)
SLOPPY = Writer("sloppy", slip=0.01)


def _adjective(tone: float, rng: random.Random) -> list[str]:
    kind = NEUTRAL if rng.random() < 0.15 else POSITIVE if rng.random() < tone else NEGATIVE
    negation = ["not"] if rng.random() < 0.15 else []
    return negation + ([rng.choice(ADVERBS)] if rng.random() < 0.3 else []) + [rng.choice(kind)]


def _clause(tone: float, subject: list[str], rng: random.Random) -> list[str]:
    if rng.random() < 0.3:
        kind = NEUTRAL_VERBS if rng.random() < 0.2 else LIKED if rng.random() < tone else DISLIKED
        return ["i", rng.choice(kind), "the", rng.choice(NOUNS)]
    more = ["and"] + _adjective(tone, rng) if rng.random() < 0.3 else []
    return subject + ["was"] + _adjective(tone, rng) + more


def _review(noun: str, tone: float, rng: random.Random, longest: int) -> list[str]:
    """What follows `the noun`, as whole sentences of at most `longest` words together."""
    while True:
        words: list[str] = []
        for sentence in range(rng.choice((1, 2, 2, 3))):
            subject = rng.choice((["it"], ["the", rng.choice(NOUNS)]))
            words += ["was"] + _adjective(tone, rng) if sentence == 0 else _clause(tone, subject, rng)
            words += (["but"] + _clause(1 - tone, ["it"], rng) if rng.random() < 0.15 else []) + ["."]
        if len(words) <= longest:
            return words


def prompts(n: int, seed: int) -> Int[Tensor, "n 3"]:
    """`<bos> the NOUN`, nouns drawn uniformly."""
    nouns = torch.randint(ID[NOUNS[0]], ID[NOUNS[-1]] + 1, (n,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([torch.full_like(nouns, BOS), torch.full_like(nouns, ID["the"]), nouns], dim=1)


def responses(prompt: Int[Tensor, "n 3"], writer: Writer, seed: int) -> Batch:
    """One response of the writer to each prompt. Row i depends on (seed, i) only, not on the rows beside it."""
    names = SPECIAL + WORDS
    rows = []
    for i, row in enumerate(prompt.tolist()):
        written = writer.write(names[row[-1]], random.Random(f"{seed} {i}"))
        rows.append((tuple(row), tuple(ID[word] for word in written)))
    return batch_of(rows, PAD, LENGTH)


def corpus(n: int, seed: int) -> Batch:
    """Demonstrations without a slip."""
    return responses(prompts(n, seed), CLEAN, seed)


def pool(prompt: Int[Tensor, "n 3"], candidates: int, writer: Writer, seed: int) -> Batch:
    """`candidates` responses per prompt; row p * candidates + c is candidate c of prompt p."""
    return responses(prompt.repeat_interleave(candidates, 0), writer, seed)


@lru_cache
def legal_bigrams() -> Bool[Tensor, "vocab vocab"]:
    """Which word may follow which, read off the grammar by word classes."""
    adjectives, verbs = POSITIVE + NEGATIVE + NEUTRAL, LIKED + DISLIKED + NEUTRAL_VERBS
    opinion = ("not",) + ADVERBS + adjectives
    follows = {
        ("<bos>",): ("the",), ("the",): NOUNS, NOUNS: ("was", ".", "but"), ("it",): ("was",), ("i",): verbs, verbs: ("the",),
        ("was", "and"): opinion, ("not",): ADVERBS + adjectives, ADVERBS: adjectives, adjectives: (".", "and", "but"),
        (".",): ("the", "it", "i", "<end>"), ("but",): ("it", "i"),
    }  # fmt: skip
    legal = torch.zeros(VOCAB_SIZE, VOCAB_SIZE, dtype=torch.bool)
    for before, after in follows.items():
        legal[torch.tensor([ID[w] for w in before])[:, None], torch.tensor([ID[w] for w in after])] = True
    return legal


def _marked(words: Sequence[str], value: float = 1.0) -> Tensor:
    return torch.zeros(VOCAB_SIZE).index_fill_(0, torch.tensor([ID[w] for w in words]), value)


_POLARITY = _marked(POSITIVE + LIKED) + _marked(NEGATIVE + DISLIKED, -1.0)
_ADVERB, _NEGATION, _CONTENT = _marked(ADVERBS).bool(), _marked(("not",)).bool(), _marked(WORDS[len(FUNCTION_WORDS) :])


@dataclass(frozen=True)
class GoldParts:
    sentiment: Float[Tensor, "batch"]
    illegal: Float[Tensor, "batch"]  # neighbouring words that the grammar never puts side by side
    repeated: Float[Tensor, "batch"]  # content words beyond their first use
    unfinished: Float[Tensor, "batch"]  # 1 if `<end>` is missing

    @property
    def utility(self) -> Float[Tensor, "batch"]:
        penalty = self.illegal + 0.5 * self.repeated + 0.5 * self.unfinished
        return 2 * torch.tanh(self.sentiment / 2) - penalty.clamp(max=-PENALTY_FLOOR)


def gold_parts(batch: Batch) -> GoldParts:
    """What gold is made of. Opinion words count +1 or -1, half as much again after an adverb, with the sign turned by `not`."""
    real = batch.attention_mask
    ids = torch.where(real, batch.tokens, PAD)
    before = torch.nn.functional.pad(ids, (1, 0), value=PAD)[:, :-1]
    before2 = torch.nn.functional.pad(ids, (2, 0), value=PAD)[:, :-2]
    words = (_POLARITY, _ADVERB, _NEGATION, _CONTENT, legal_bigrams())
    polarity, adverbs, negation, content, legal = (table.to(ids.device) for table in words)
    adverb = adverbs[before]
    negated = negation[before] | (adverb & negation[before2])
    opinion = polarity[ids] * (1 + 0.5 * adverb) * torch.where(negated, -1.0, 1.0)
    both_real = real[:, 1:] & real[:, :-1]
    illegal = ~legal[ids[:, :-1], ids[:, 1:]] & both_real
    counts = torch.nn.functional.one_hot(ids, VOCAB_SIZE).sum(1)
    return GoldParts(
        sentiment=opinion.sum(1),
        illegal=illegal.sum(1).float(),
        repeated=((counts - 1).clamp(min=0) * content).sum(1),
        unfinished=(~((ids == END) & batch.action_mask).any(1)).float(),
    )


def gold(batch: Batch) -> Float[Tensor, "batch"]:
    """Gold utility of each response, between PENALTY_FLOOR - 2 and 2.

    2 tanh(sentiment / 2) - min(-PENALTY_FLOOR, illegal bigrams + repeated content words / 2 + 1/2 if unfinished)
    """
    return gold_parts(batch).utility


@runtime_checkable
class Labels(Protocol):
    """What comparisons() asks of an annotator (course/feedback/annotators.py has some)."""

    name: str

    def label(
        self, utility: Float[Tensor, "n 2"], length: Int[Tensor, "n 2"], same: Bool[Tensor, "n"], seed: int
    ) -> list[PreferenceLabel]: ...


def comparisons(n: int, seed: int, annotator: Labels, writer: Writer = SLOPPY) -> list[Comparison]:
    """n comparisons of two responses of the writer to one prompt, labelled by the annotator, with their provenance."""
    asked = prompts(n, seed)
    both = pool(asked, 2, writer, seed)
    return labelled(both, annotator, seed, version=writer.version)


def labelled(both: Batch, annotator: Labels, seed: int, version: str) -> list[Comparison]:
    """Comparisons of rows 2i and 2i+1 of a batch, as a policy's own samples come out of pool() or sample()."""
    if len(both) % 2:
        raise ValueError(f"both must hold two responses per prompt in neighbouring rows; got {len(both)} rows")
    ids = [(both.prompt(i), both.response(i)) for i in range(len(both))]
    if any(ids[i][0] != ids[i + 1][0] for i in range(0, len(ids), 2)):
        raise ValueError("both must hold two responses to one prompt in rows 2i and 2i+1; got two prompts")
    same = torch.tensor([ids[i][1] == ids[i + 1][1] for i in range(0, len(ids), 2)])
    length = both.action_mask.sum(1).view(-1, 2)
    said = annotator.label(gold(both).view(-1, 2), length, same, seed)
    source = Provenance(version, "sampled", "as sampled", "all pairs of the batch", annotator.name, version)
    return [
        Comparison(ids[2 * i][0], ids[2 * i][1], ids[2 * i + 1][1], label, source, family=text(ids[2 * i][0][-1:]))
        for i, label in enumerate(said)
    ]


def rankings(n: int, k: int, seed: int, writer: Writer = SLOPPY) -> list[Ranking]:
    """n rankings of k responses by gold itself; equal gold is a tie."""
    rows = pool(prompts(n, seed), k, writer, seed)
    source = Provenance(writer.version, "sampled", "as sampled", "all prompts of the batch", "gold", writer.version)
    found = []
    for i, utility in enumerate(gold(rows).view(n, k).tolist()):
        prompt = rows.prompt(i * k)
        ranks = tuple(1 + sum(other > u for other in utility) for u in utility)
        answers = tuple(rows.response(i * k + j) for j in range(k))
        found.append(Ranking(prompt, answers, ranks, source, text(prompt[-1:]), f"reviews-{seed}-{i}"))
    return found
