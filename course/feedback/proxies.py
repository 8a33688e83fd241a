"""Reward proxies fitted to few labels. Each is right for a while; what it gets wrong is what optimisation will find.

Three families: counts of words, a decoder whose values are summed over the response, a decoder read at the last
token. All take a Batch and give [B], all are fitted by one recipe to the same comparisons, and all are measured by gold on pairs
that none of them has seen.
"""

from dataclasses import dataclass
from typing import Callable, Iterable, Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn
import torch

from course.feedback.annotators import Annotator
from course.feedback.outcome import scalar_decoder
from course.feedback.reward_model import RewardModel, last_token_score, reward_scores, sum_score
from course.tasks import reviews
from course.tasks.records import Batch, Comparison, decided, pair_batches

PairLoss = Callable[[Tensor, Tensor], Tensor]  # (chosen scores, rejected scores) -> scalar
ANNOTATOR = Annotator("hurried", temperature=0.5, flip=0.1)


class BagOfWords(nn.Module):
    """A weight per word, summed over the words of the response. It cannot see order, so it cannot see grammar or `not`."""

    def __init__(self, vocab_size: int):
        super().__init__()
        self.word = nn.Embedding(vocab_size, 1)
        nn.init.zeros_(self.word.weight)

    def forward(self, batch: Batch) -> Float[Tensor, "batch"]:
        ids = torch.where(batch.action_mask, batch.tokens, 0)
        return torch.where(batch.action_mask, self.word(ids)[..., 0], 0.0).sum(1)


def fit_pairs(
    model: nn.Module, comparisons: Sequence[Comparison], *, loss: PairLoss, steps: int, lr: float, batch_size: int = 64, seed: int
) -> nn.Module:
    """The model after `steps` steps on the decided comparisons."""
    chosen, rejected = pair_batches(decided(comparisons), reviews.PAD)
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.1, fused=True)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for step in range(steps):
        rows = torch.randint(len(chosen), (min(batch_size, len(chosen)),), generator=generator)
        value = loss(model(chosen[rows]), model(rejected[rows]))
        for group in optimiser.param_groups:
            group["lr"] = lr * max(0.02, 1 - step / steps)
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model.eval()


def bag_of_words(comparisons: Sequence[Comparison], *, loss: PairLoss, seed: int) -> nn.Module:
    return fit_pairs(BagOfWords(reviews.VOCAB_SIZE), comparisons, loss=loss, steps=200, lr=0.05, seed=seed)


def additive(comparisons: Sequence[Comparison], *, loss: PairLoss, seed: int) -> nn.Module:
    """A decoder's values summed over the response: what is said twice counts twice."""
    head = scalar_decoder(reviews.VOCAB_SIZE, reviews.LENGTH, seed, width=32, layers=1)
    model = RewardModel(head, score=sum_score, over="response")
    return fit_pairs(model, comparisons, loss=loss, steps=100, lr=3e-3, seed=seed)


def last_token(comparisons: Sequence[Comparison], *, loss: PairLoss, seed: int) -> nn.Module:
    """A decoder read where the response ends, the usual reward model."""
    head = scalar_decoder(reviews.VOCAB_SIZE, reviews.LENGTH, seed, width=32, layers=1)
    model = RewardModel(head, score=last_token_score, over="sequence")
    return fit_pairs(model, comparisons, loss=loss, steps=100, lr=3e-3, seed=seed)


def gold_accuracy(
    model: nn.Module, batch: Batch, gold: Float[Tensor, "rows"], first: Int[Tensor, "pairs"], second: Int[Tensor, "pairs"]
) -> float:
    """Share of the pairs (rows of the batch) that the model orders as gold does; a tie of scores counts half.

    Pairs of equal gold have no right order and are left out; there must be one of unequal gold.
    """
    differ = gold[first] != gold[second]
    if not differ.any():
        raise ValueError("gold must differ in at least one pair; got none")
    scores = reward_scores(model, batch)
    margin, better = (scores[first] - scores[second])[differ], (gold[first] > gold[second])[differ]
    right = torch.where(better, margin, -margin)
    return float(((right > 0).double() + 0.5 * (right == 0)).mean())


@dataclass(frozen=True)
class ProxyOutcome:
    """One proxy, one number of labels, one seed."""

    proxy: str
    seed: int
    labels: int  # decided comparisons it was fitted to
    accuracy: float  # held-out pairs of the law it was fitted on
    praise_accuracy: float  # pairs of an ordinary response and a run of praise, which hardly occur among its labels


def proxy_study(seed: int, *, loss: PairLoss, sizes: Iterable[int] = (64, 512), held_out: int = 512) -> list[ProxyOutcome]:
    """All three proxies on the same labels, for each number of comparisons."""
    base = 4 * seed + 3_000_000
    pairs = reviews.pool(reviews.prompts(held_out, base), 2, reviews.SLOPPY, base)
    asked = reviews.prompts(held_out // 2, base + 1)
    plain = reviews.responses(asked, reviews.SLOPPY, base + 1)
    praise = reviews.responses(asked, reviews.Writer("praise", slip=0.0, spam=1.0), base + 2)
    both = Batch(*(torch.cat([getattr(plain, f), getattr(praise, f)]) for f in ("tokens", "attention_mask", "action_mask")))
    even, half = torch.arange(0, 2 * held_out, 2), torch.arange(held_out // 2)
    found = []
    for size in sizes:
        comparisons = decided(reviews.comparisons(size, base + 3, ANNOTATOR))
        for recipe in (bag_of_words, additive, last_token):
            model = recipe(comparisons, loss=loss, seed=seed)
            ordinary = gold_accuracy(model, pairs, reviews.gold(pairs), even, even + 1)
            tail = gold_accuracy(model, both, reviews.gold(both), half, half + held_out // 2)
            found.append(ProxyOutcome(recipe.__name__, seed, len(comparisons), ordinary, tail))
    return found
