"""After a phase of training: label samples of the new policy where its judge is least to be trusted, blind, and fit again.

Chosen are samples of high reward, samples about which two judges disagree, suspicious ones, and random ones, from every task
alike. Nothing is filtered: failures are samples too. The annotator sees prompts and responses and nothing else.
"""

import random
from dataclasses import dataclass
from typing import Callable, Sequence

from jaxtyping import Float, Int
from torch import Tensor, nn
import torch

from course.feedback.annotators import Annotator
from course.feedback.proxies import PairLoss, gold_accuracy
from course.feedback.reward_model import reward_scores
from course.feedback.tail import fit_phrase_reward
from course.tasks import reviews
from course.tasks.records import Batch, Comparison, Ids, PreferenceLabel, Provenance, batch_of, decided

STRATA = ("high reward", "high disagreement", "suspicious", "random")
OLD_POLICY, NEW_POLICY = reviews.Writer("old policy", slip=0.01), reviews.Writer("new policy", slip=0.01, spam=0.1)
CAREFUL = Annotator("careful", temperature=0.2)


@dataclass(frozen=True)
class BlindPair:
    """All that an annotator is given. There is no field for a policy, a reward or a stratum, so none can be looked at."""

    prompt: Ids
    first: Ids
    second: Ids


BlindAnnotator = Callable[[Sequence[BlindPair]], list[PreferenceLabel]]


def simulated(annotator: Annotator, seed: int) -> BlindAnnotator:
    """An annotator who judges the film reviews it is shown by gold, with its own faults."""

    def label(pairs: Sequence[BlindPair]) -> list[PreferenceLabel]:
        both = batch_of([(p.prompt, response) for p in pairs for response in (p.first, p.second)], reviews.PAD)
        same = torch.tensor([p.first == p.second for p in pairs])
        return annotator.label(reviews.gold(both).view(-1, 2), both.action_mask.sum(1).view(-1, 2), same, seed)

    return label


def repetition(batch: Batch) -> Float[Tensor, "batch"]:
    """Share of a response's tokens that are not the first of their kind in it: suspicious in any language.

        1 - (number of different ids in the response) / (number of its tokens);   0 for an empty response

    Shapes and units: result [B] in [0, 1).
    Reduces to: 0 if no token occurs twice; 1 - 1/n for n times the same one.
    Source: repetition as a symptom of over-optimisation, Stiennon et al. 2020 (arXiv 2009.01325), appendix H.
    """
    ids = torch.where(batch.action_mask, batch.tokens, -1)
    ordered = ids.sort(1).values
    new = (ordered[:, 1:] != ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    kinds = new.sum(1) + (ordered[:, 0] >= 0)
    tokens = batch.action_mask.sum(1)
    return torch.where(tokens > 0, 1 - kinds / tokens.clamp(min=1), 0.0)


def disagreement(
    scores_a: Float[Tensor, "rows"], scores_b: Float[Tensor, "rows"], task: Int[Tensor, "rows"]
) -> Float[Tensor, "rows"]:
    """How differently two judges rank a response among the responses to its task.

        d_i = | share of i's task that a scores below i  -  the same for b |      (equal scores count half)

    Shapes and units: scores [N] in each judge's own units; task [N], any integers; result [N] in [0, 1].
    Ranks inside the task: scores of two reward models share neither zero nor unit, nor what they add for a prompt.
    Reduces to: 0 if each is an increasing function of the other within every task.
    Raises: ValueError if shapes differ, there is no row, or a score is not finite.
    Source: ensemble disagreement, Christiano et al. 2017 (arXiv 1706.03741), with ranks in place of pair probabilities.
    """
    if not (scores_a.shape == scores_b.shape == task.shape) or scores_a.dim() != 1 or not len(task):
        shapes = [tuple(x.shape) for x in (scores_a, scores_b, task)]
        raise ValueError(f"scores_a, scores_b and task must all be [N] with N >= 1; got {shapes}")
    if not (torch.isfinite(scores_a).all() and torch.isfinite(scores_b).all()):
        raise ValueError("scores_a and scores_b must be finite; got NaN or infinity")
    place = torch.zeros(2, len(task), dtype=torch.float64, device=task.device)
    for t in task.unique():
        rows = (task == t).nonzero().flatten()
        for k, scores in enumerate((scores_a, scores_b)):
            x = scores[rows]
            place[k, rows] = ((x[:, None] > x).double() + 0.5 * (x[:, None] == x).double()).mean(1)
    return (place[0] - place[1]).abs().to(scores_a.dtype)


@dataclass(frozen=True)
class Frontier:
    """Which rows of a batch go to the annotators, and why each was chosen. The reasons stay here; annotators do not get them."""

    rows: tuple[int, ...]
    strata: tuple[str, ...]  # of each row

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.strata) or len(set(self.rows)) != len(self.rows):
            raise ValueError(f"rows must be different and have one stratum each; got {len(self.rows)} and {len(self.strata)}")
        if set(self.strata) - set(STRATA):
            raise ValueError(f"strata must be among {', '.join(STRATA)}; got {sorted(set(self.strata) - set(STRATA))}")


def select_frontier(
    reward: Float[Tensor, "rows"],
    other: Float[Tensor, "rows"],
    suspicion: Float[Tensor, "rows"],
    task: Int[Tensor, "rows"],
    *,
    per_stratum: int,
    seed: int,
) -> Frontier:
    """per_stratum rows of each stratum, from all tasks alike, none twice.

        high reward: the largest of reward;  high disagreement: of disagreement(reward, other, task);
        suspicious: of suspicion;  random: of uniform noise.  Tasks take turns; each gives its next best row not yet taken.

    Shapes and units: reward, other, suspicion [N], compared within a task only; task [N], any integers. Ties are broken by the
    seed. No row is left out beforehand, whatever its outcome: what is filtered is missing from the law the judge learns.
    Reduces to: a random sample that is balanced over tasks if reward, other and suspicion are constant.
    Raises: ValueError if shapes differ, a value is not finite, or there are fewer than 4 * per_stratum rows.
    Source: stratified labelling at the frontier of a policy; Bai et al. 2022 (arXiv 2204.05862), section 4.5 on online data.
    """
    apart = disagreement(reward, other, task)
    if suspicion.shape != task.shape or not torch.isfinite(suspicion).all():
        raise ValueError(f"suspicion must be finite and {tuple(task.shape)}; got {tuple(suspicion.shape)}")
    if per_stratum < 1 or len(STRATA) * per_stratum > len(task):
        raise ValueError(f"per_stratum must be at least 1 and at most a quarter of {len(task)} rows; got {per_stratum}")
    generator = torch.Generator().manual_seed(seed)
    shuffle = torch.randperm(len(task), generator=generator).tolist()
    tasks = task.tolist()
    kinds = sorted(set(tasks))
    taken: dict[int, str] = {}
    noise = torch.rand(len(task), generator=generator)
    for stratum, values in zip(STRATA, (reward, apart, suspicion, noise)):
        value = values.tolist()
        best_first = sorted(shuffle, key=lambda row: -value[row])  # stable: the shuffle breaks ties
        queues = {kind: [row for row in best_first if tasks[row] == kind and row not in taken] for kind in kinds}
        count, turn = 0, 0
        while count < per_stratum:
            queue = queues[kinds[turn % len(kinds)]]
            turn += 1
            if queue:
                taken[queue.pop(0)] = stratum
                count += 1
    return Frontier(tuple(taken), tuple(taken.values()))


def task_of(batch: Batch) -> Int[Tensor, "batch"]:
    """A number per different prompt: the task strata of a batch."""
    numbers: dict[Ids, int] = {}
    return torch.tensor([numbers.setdefault(batch.prompt(i), len(numbers)) for i in range(len(batch))])


@dataclass(frozen=True)
class FrontierLabel:
    """One labelled pair with the reason why it was chosen. All labels are kept, ties, abstentions and failures too."""

    comparison: Comparison
    stratum: str
    row: int  # the row that was chosen; its partner is a random other response to the same prompt
    partner: int


def label_blind(
    batch: Batch, frontier: Frontier, annotate: BlindAnnotator, *, version: str, annotator: str, seed: int
) -> list[FrontierLabel]:
    """Pair each chosen row with a random other response to its prompt, and have the pairs labelled blind.

    The annotator gets the pairs in random order, with random sides, as BlindPair. Where a pair came from is written to the record
    only after the label has been given.
    """
    rng = random.Random(f"blind {seed}")
    by_task: dict[int, list[int]] = {}
    for row, kind in enumerate(task := task_of(batch).tolist()):
        by_task.setdefault(kind, []).append(row)
    shown = list(zip(frontier.rows, frontier.strata))
    rng.shuffle(shown)
    chosen = []
    for row, stratum in shown:
        others = [other for other in by_task[task[row]] if other != row]
        if not others:
            raise ValueError(f"batch must hold at least two responses to every chosen prompt; row {row} stands alone")
        partner = rng.choice(others)
        first, second = (row, partner) if rng.random() < 0.5 else (partner, row)
        chosen.append((stratum, row, partner, BlindPair(batch.prompt(row), batch.response(first), batch.response(second))))
    labels = annotate([pair for *_, pair in chosen])
    if len(labels) != len(chosen):
        raise ValueError(f"annotate must give one label per pair, {len(chosen)}; got {len(labels)}")
    return [
        FrontierLabel(
            Comparison(
                pair.prompt, pair.first, pair.second, label,
                Provenance(version, "sampled", "random order, random sides, blind", f"frontier: {stratum}", annotator, version),
                family=reviews.text(pair.prompt[-1:]),
            ),
            stratum, row, partner,
        )
        for (stratum, row, partner, pair), label in zip(chosen, labels)
    ]  # fmt: skip


@dataclass(frozen=True)
class RefreshOutcome:
    """Held-out accuracy, against gold, on samples of the new policy, of judges that were fitted to equally many labels."""

    seed: int
    labels: int  # comparisons with a winner behind each of the three judges
    static: float  # all of them from the old policy
    refreshed: float  # the last of them from the frontier of the new policy
    random: float  # the last of them from random samples of the new policy
    static_choice: float  # mean gold of the response that the judge likes best among those to a prompt
    refreshed_choice: float
    random_choice: float
    strata: tuple[tuple[str, int], ...]  # labels with a winner by reason

    @property
    def gain(self) -> float:
        return self.refreshed - self.static


def compare_refresh(
    seed: int,
    new: Batch,
    held_out: Batch,
    *,
    loss: PairLoss,
    version: str = NEW_POLICY.version,
    annotator: Annotator = CAREFUL,
    old_labels: int = 600,
    per_stratum: int = 50,
) -> RefreshOutcome:
    """Does a judge that is refreshed at the frontier know the new policy better than one that is given as many old labels?

    new, held_out: samples of the new policy, several to each prompt (the same few prompts may come back); held_out is only
    measured on. The judge and the second opinion are phrase rewards fitted to two sets of comparisons of the old policy.
    """
    base = 4 * seed + 5_000_000
    old = decided(reviews.comparisons(old_labels, base, annotator, OLD_POLICY))
    more = decided(reviews.comparisons(2 * len(STRATA) * per_stratum, base + 1, annotator, OLD_POLICY))

    def fit(comparisons: list[Comparison], seed: int) -> nn.Module:
        return fit_phrase_reward(comparisons, loss=loss, seed=seed)

    judge = fit(old, seed)
    second = fit(decided(reviews.comparisons(old_labels, base + 2, annotator, OLD_POLICY)), seed + 1)
    task = task_of(new)
    frontier = select_frontier(
        reward_scores(judge, new), reward_scores(second, new), repetition(new), task, per_stratum=per_stratum, seed=seed
    )
    plain = torch.zeros(len(new))
    drawn = select_frontier(plain, plain, plain, task, per_stratum=per_stratum, seed=seed + 1)
    fresh, blank = (
        [x for x in label_blind(new, f, simulated(annotator, s), version=version, annotator=annotator.name, seed=s)
         if x.comparison.label.decided]
        for f, s in ((frontier, base + 3), (drawn, base + 4))
    )  # fmt: skip
    equal = min(len(fresh), len(blank), len(more))
    judges = {
        "static": fit(old + more[:equal], seed),
        "refreshed": fit(old + [x.comparison for x in fresh[:equal]], seed),
        "random": fit(old + [x.comparison for x in blank[:equal]], seed),
    }
    numbers = {}
    gold, kind = reviews.gold(held_out), task_of(held_out)
    first, other = random_pairs(kind, 4000, base + 5)
    for name, model in judges.items():
        numbers[name] = gold_accuracy(model, held_out, gold, first, other)
        numbers[f"{name}_choice"] = best_of_blocks(reward_scores(model, held_out), gold, kind, 16)
    strata = tuple((name, sum(x.stratum == name for x in fresh[:equal])) for name in STRATA)
    return RefreshOutcome(seed=seed, labels=len(old) + equal, strata=strata, **numbers)


def random_pairs(task: Int[Tensor, "rows"], n: int, seed: int) -> tuple[Int[Tensor, "pairs"], Int[Tensor, "pairs"]]:
    """n random pairs of different rows of one task, a task being drawn in proportion to its rows."""
    rng = random.Random(f"pairs {seed}")
    members: dict[int, list[int]] = {}
    for row, kind in enumerate(kinds := task.tolist()):
        members.setdefault(kind, []).append(row)
    usable = [row for row, kind in enumerate(kinds) if len(members[kind]) > 1]
    if not usable:
        raise ValueError("task must hold one that has two rows; got none")
    first = [rng.choice(usable) for _ in range(n)]
    second = []
    for row in first:
        group = members[kinds[row]]
        pick = rng.choice(group)
        while pick == row:
            pick = rng.choice(group)
        second.append(pick)
    return torch.tensor(first), torch.tensor(second)


def best_of_blocks(scores: Float[Tensor, "rows"], gold: Float[Tensor, "rows"], task: Int[Tensor, "rows"], size: int) -> float:
    """Mean gold of the highest-scored row in blocks of `size` rows of one task; rows that fill no block are left out."""
    found = []
    for kind in task.unique():
        rows = (task == kind).nonzero().flatten()
        rows = rows[: len(rows) // size * size].view(-1, size)
        if len(rows):
            found.append(gold[rows.gather(1, scores[rows].argmax(1, keepdim=True))[:, 0]])
    if not found:
        raise ValueError(f"task must have at least {size} rows of one kind; got none")
    return float(torch.cat(found).double().mean())


def refresh_recipe(seed: int, *, loss: PairLoss, samples: int = 1024) -> RefreshOutcome:
    """The named recipe "refresh at the frontier", with a writer who has learnt to praise as the new policy."""
    new = reviews.responses(reviews.prompts(samples, 2 * seed + 6_000_000), NEW_POLICY, 2 * seed + 6_000_000)
    held_out = reviews.responses(reviews.prompts(2 * samples, 2 * seed + 6_000_001), NEW_POLICY, 2 * seed + 6_000_001)
    return compare_refresh(seed, new, held_out, loss=loss)
