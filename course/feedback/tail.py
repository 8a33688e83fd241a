"""Better accuracy, worse choice: a reward model is only as good as its top of the list.

The policy has learnt something new: one response in fifty ends in a run of praise that no reader likes. Model A is trained on
many comparisons of an older policy, before there was any such text; model B on a fifth of that, more often mislabelled, in
which it was looked for. Held-out pairs of the new policy are mostly ordinary, so A orders more of them rightly. Best-of-N reads
the top of the list only, and there A puts the praise, word for word more "good" than anything it was trained on.

Gold is known, both models are fitted to labelled pairs by the same recipe, and accuracy and choice are measured on the same law.
"""

from dataclasses import dataclass
from typing import Callable, Iterable

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
import torch

from course.feedback.annotators import Annotator
from course.tasks import reviews
from course.tasks.records import Batch, Comparison, decided, pair_batches

OLD_POLICY = reviews.Writer("old policy", slip=0.01)
NEW_POLICY = reviews.Writer("new policy", slip=0.01, spam=0.02)
AUDIT = reviews.Writer("audit of the new policy", slip=0.01, spam=0.25)
CAREFUL, HASTY = Annotator("careful", temperature=0.2), Annotator("hasty", temperature=0.2, flip=0.1)
PAIRS_A, PAIRS_B = 3000, 600
PROMPTS, CANDIDATES, HELD_OUT_PAIRS = 128, 64, 4000


class PhraseReward(nn.Module):
    """A linear reward over words and neighbouring pairs of words of the response: enough for this language, trained in a second.

    Takes a Batch and gives [B], like RewardModel. The parameters start at 0, so nothing but the comparisons is in the scores.
    """

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(reviews.VOCAB_SIZE, 1)
        self.pair = nn.Embedding(reviews.VOCAB_SIZE**2, 1)
        nn.init.zeros_(self.word.weight)
        nn.init.zeros_(self.pair.weight)

    def forward(self, batch: Batch) -> Float[Tensor, "batch"]:
        ids = torch.where(batch.attention_mask, batch.tokens, reviews.PAD)
        counted = batch.action_mask[:, 1:]
        pair = ids[:, :-1] * reviews.VOCAB_SIZE + ids[:, 1:]
        each = self.word(ids[:, 1:])[..., 0] + self.pair(pair)[..., 0]
        return torch.where(counted, each, 0.0).sum(1)


def fit_phrase_reward(
    comparisons: list[Comparison], *, loss: Callable[[Tensor, Tensor], Tensor], steps: int = 120, batch_size: int = 256, seed: int
) -> PhraseReward:
    """A PhraseReward fitted to the decided comparisons with `loss(chosen_scores, rejected_scores)`."""
    model = PhraseReward()
    chosen, rejected = pair_batches(decided(comparisons), reviews.PAD, reviews.LENGTH)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.03, weight_decay=1.0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randperm(len(chosen), generator=generator)[:batch_size]
        value = loss(model(chosen[rows]), model(rejected[rows]))
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return model


@dataclass(frozen=True)
class Pools:
    """What the two models are judged on. Everything is drawn from the new policy; gold is not given to the models."""

    candidates: Batch  # PROMPTS * CANDIDATES rows, the candidates of one prompt side by side
    gold: Float[Tensor, "prompts candidates"]
    tail: Bool[Tensor, "prompts candidates"]  # the run of praise; for figures, no model or measure uses it
    first: Int[Tensor, "pairs"]  # held-out pairs, as rows of candidates: two candidates of one prompt with different gold
    second: Int[Tensor, "pairs"]


def pools(seed: int) -> Pools:
    """Candidates of the new policy and random held-out pairs of them."""
    candidates = reviews.pool(reviews.prompts(PROMPTS, seed), CANDIDATES, NEW_POLICY, seed)
    utility = reviews.gold_parts(candidates)
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(PROMPTS, (HELD_OUT_PAIRS,), generator=generator) * CANDIDATES
    first, second = (prompt + torch.randint(CANDIDATES, (HELD_OUT_PAIRS,), generator=generator) for _ in range(2))
    differ = utility.utility[first] != utility.utility[second]
    shape = (PROMPTS, CANDIDATES)
    return Pools(candidates, utility.utility.view(shape), (utility.illegal >= 4).view(shape), first[differ], second[differ])


@dataclass(frozen=True)
class TailOutcome:
    """Raw outcomes of one seed. Gold is the mean, over prompts, of the gold utility of the candidate with the highest score."""

    seed: int
    accuracy_a: float
    accuracy_b: float
    gold_a: float
    gold_b: float
    gold_random: float  # the mean candidate: what no selection at all gives
    gold_best: float  # what selecting by gold itself would give
    tail_share_a: float  # share of prompts for which the chosen candidate is a run of praise
    tail_share_b: float

    @property
    def accuracy_gain(self) -> float:
        """How much more accurate A is."""
        return self.accuracy_a - self.accuracy_b

    @property
    def gold_loss(self) -> float:
        """How much worse the responses are that A chooses."""
        return self.gold_b - self.gold_a


def judge_choice(seed: int, drawn: Pools, scores_a: Float[Tensor, "rows"], scores_b: Float[Tensor, "rows"]) -> TailOutcome:
    """Held-out accuracy and best-of-N choice of two models, from their scores of the pools' candidates."""
    numbers = {}
    for name, scores in (("a", scores_a), ("b", scores_b)):
        if scores.shape != drawn.gold.view(-1).shape or not torch.isfinite(scores).all():
            raise ValueError(f"scores_{name} must be finite, [{drawn.gold.numel()}]; got {tuple(scores.shape)}")
        margin = scores[drawn.first] - scores[drawn.second]
        better = drawn.gold.view(-1)[drawn.first] > drawn.gold.view(-1)[drawn.second]
        right = torch.where(better, margin, -margin)
        pick = scores.view(drawn.gold.shape).argmax(1, keepdim=True)
        numbers[f"accuracy_{name}"] = float(((right > 0).double() + 0.5 * (right == 0)).mean())
        numbers[f"gold_{name}"] = float(drawn.gold.gather(1, pick).double().mean())
        numbers[f"tail_share_{name}"] = float(drawn.tail.gather(1, pick).double().mean())
    return TailOutcome(
        seed=seed, gold_random=float(drawn.gold.double().mean()), gold_best=float(drawn.gold.amax(1).double().mean()), **numbers
    )


def train_both(seed: int, *, loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[PhraseReward, PhraseReward]:
    """Models A and B of one seed. `loss(chosen_scores, rejected_scores)` trains both."""
    many = reviews.comparisons(PAIRS_A, 3 * seed + 1_000_000, CAREFUL, OLD_POLICY)
    few = reviews.comparisons(PAIRS_B, 3 * seed + 1_000_001, HASTY, AUDIT)
    return fit_phrase_reward(many, loss=loss, seed=seed), fit_phrase_reward(few, loss=loss, seed=seed)


@torch.no_grad()
def tail_outcome(seed: int, *, loss: Callable[[Tensor, Tensor], Tensor]) -> TailOutcome:
    """Train both models and judge them on pools they have not seen: one seed of the recipe."""
    with torch.enable_grad():
        a, b = train_both(seed, loss=loss)
    drawn = pools(3 * seed + 1_000_002)
    return judge_choice(seed, drawn, a(drawn.candidates), b(drawn.candidates))


def tail_recipe(seeds: Iterable[int], *, loss: Callable[[Tensor, Tensor], Tensor]) -> list[TailOutcome]:
    """The named recipe "better accuracy, worse choice": raw outcomes, one per seed. Intervals are taken from these."""
    return [tail_outcome(seed, loss=loss) for seed in seeds]
