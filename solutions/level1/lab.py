# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Level 1 · Preference modelling
#
# Level 0 said which tokens a policy chose and how likely they were. It did not say whether they were any good. Nobody can write down what a
# good answer is, but people can say which of two answers is better. This level turns such choices into a number that a policy can be trained
# on, a **reward**. Most of its time goes into the ways in which that number is wrong: labels are noisy, biased,
# tied or cyclic; the model is read at the wrong token; the split leaks; the model is accurate where it does not matter.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will be able to**
# - derive and implement the losses of reward models from pairs, rankings, soft labels and marks in time;
# - split, select and validate comparisons without fooling yourself;
# - skip the reward model and align a policy directly, and say what that assumes;
# - show a reward model that is *more* accurate and picks *worse* answers.
#
# **You need** level 0. **Time** about 6 hours of work. {{measured}}

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %% ng="locked:setup"
import math

import torch
import torch.nn.functional as F

from autograder import check, statement

# %% [markdown]
# ## Part A · From choices to a number
#
# Give every response a score $r$. The **Bradley-Terry model** says that a comparison is a noisy reading of the difference. That response $w$
# (the winner) is preferred to response $l$ (the loser), written $w\succ l$, has the probability
#
# $$P(w\succ l) = \sigma(r_w-r_l) = \frac{1}{1+e^{-(r_w-r_l)}} .$$
#
# A **reward model** is a network that is fitted to give such scores. Only differences appear. Add any function of the prompt to all scores of that prompt and no probability changes: a reward model's zero means
# nothing, and scores of responses to different prompts can't be compared without more assumptions.

# %% [markdown]
# {{card pairwise_reward_loss}}
#
# Maximum likelihood on $B$ pairs of a chosen and a rejected response, with $m_b=r_b^{\text{chosen}}-r_b^{\text{rejected}}$ the margin of pair $b$:
#
# $$L = -\frac1B\sum_b \log\sigma(m_b),\qquad \frac{\partial L}{\partial m_b}=-\frac{\sigma(-m_b)}{B}.$$
#
# A pair that is already ordered with a wide margin has almost no gradient; a pair that is wrong by a wide margin has almost the full $1/B$.
# For one pair with a margin of $-1000$ the loss is 1000. Computed in two steps, first $\sigma$ and then its logarithm, it comes out infinite.

# %% ng="solution:pairwise_reward_loss"
def pairwise_reward_loss(chosen_reward, rejected_reward):
    """Negative log-likelihood of the choices under Bradley-Terry, averaged over pairs.

    chosen_reward, rejected_reward   [B] float
    returns                          scalar; finite for differences of 1e4
    """
    ### BEGIN SOLUTION
    return F.softplus(rejected_reward - chosen_reward).mean()
    ### END SOLUTION


# %% ng="test:pairwise_reward_loss"
check(pairwise_reward_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What is <code>-log sigmoid(x)</code> for x = -1000, on paper and in floating point?
# </details>
# <details><summary>Hint 2: where to look</summary> torch has a stable function for <code>log(sigmoid(x))</code> and one for
# <code>log(1 + exp(x))</code>. </details>
# <details><summary>Hint 3: almost code</summary> <code>-logsigmoid(chosen - rejected)</code>, then the mean. </details>

# %% [markdown]
# {{card last_token_score}}
#
# A reward model is a language model with one number per position instead of logits. The score of a response is the number at its **last real
# token**, the only position that has read everything. Rows are padded, sometimes on the left and sometimes on the right, and the padding
# may hold anything, NaN and infinity included: neither the score nor its gradient may depend on it. Often the pad token *is* the end token, so
# the ids can't tell you where a row ends. The attention mask can.

# %% ng="solution:last_token_score"
def last_token_score(values, attention_mask):
    """The value at the last real token of each row.

    values           [B, T] float; anything at padded positions, NaN and infinity too
    attention_mask   [B, T] bool or 0/1: 1 on real tokens, padded left, right or both; at least one 1 in each row
    returns          [B] float, also for a batch of one
    """
    ### BEGIN SOLUTION
    mask = attention_mask.bool()
    if not bool(mask.any(1).all()):
        raise ValueError("attention_mask has a row without a real token: there is nothing to score")
    place = torch.arange(values.shape[1], device=values.device)
    last = torch.where(mask, place, -1).amax(1)
    return values.gather(1, last[:, None]).squeeze(1)
    ### END SOLUTION


# %% ng="test:last_token_score"
check(last_token_score)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For which kind of padding is "number of real tokens minus one" the right index, and for
# which is it wrong? </details>
# <details><summary>Hint 2: where to look</summary> You want the greatest index whose mask is 1. </details>
# <details><summary>Hint 3: almost code</summary> <code>where(mask, arange(T), -1).amax(1)</code> is that index; then
# <code>values.gather</code>. </details>

# %% [markdown]
# {{card test_last_token_score}}
#
# **Bug hunt.** Until 2025 a line like this found the last token in classification heads of the transformers library ([D], issue 35909):
#
# ```python
# last = (tokens == pad_id).int().argmax(1) - 1
# ```
#
# **Decide first:** what does it return for a row without padding? For a row padded on the left? For a chat whose earlier turns end with the
# pad token?
#
# Write a test that gets *some* implementation of `last_token_score(values, attention_mask)` and raises if it is wrong. It will meet right and
# wrong implementations in a secret order. Rejecting a right one scores 0: run it on your own `last_token_score` first, with masks that keep the
# docstring's promises. Wrong ones count from the wrong side, assume one kind of padding, read one token too early, let NaN or infinity in from the
# padding, average instead of reading, take a score of exactly 0 for a missing one, or lose the gradient.

# %% ng="solution:test_last_token_score"
def test_last_token_score(score):
    """Raise if `score` is not a right last_token_score(values, attention_mask); return None if it is."""
    ### BEGIN SOLUTION
    values = torch.arange(1.0, 25.0, dtype=torch.float64).view(4, 6) ** 1.5
    values[2, 5] = 0.0  # a score of zero is a score
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0]])
    last = torch.tensor([5, 2, 5, 3])
    expected = values[torch.arange(4), last]
    spoiled = torch.where(mask.bool(), values, torch.tensor(math.nan, dtype=torch.float64))
    for form in (mask, mask.bool(), mask.double()):
        for given in (values, spoiled):
            got = score(given, form)
            assert got.shape == (4,)
            assert torch.allclose(got.double(), expected, rtol=1e-9, atol=0)
    for row in range(4):  # a row's score does not depend on its neighbours
        assert torch.allclose(score(values[row : row + 1], mask[row : row + 1]).double(), expected[row : row + 1], rtol=1e-9, atol=0)
    leaf = values.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(score(leaf, mask).sum(), leaf)
    wanted = torch.zeros(4, 6, dtype=torch.float64)
    wanted[torch.arange(4), last] = 1.0
    assert torch.equal(gradient, wanted)
    ### END SOLUTION


# %% ng="test:test_last_token_score"
check(test_last_token_score)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which four kinds of row must a batch hold so that every simple mistake shows? </details>
# <details><summary>Hint 2: where to look</summary> No padding, right, left, both; all values different; NaN in the padding; a batch of one;
# the gradient of the sum. </details>
# <details><summary>Hint 3: almost code</summary> Choose the mask by hand, write down the four last indices, and
# <code>assert torch.allclose(score(values, mask), values[range(4), last])</code>. </details>

# %% [markdown]
# ### Experiment A · How many labels, and how noisy?
#
# The task is tiny film reviews: `the movie was very good . <end>`. Their **gold utility** is a formula (tone, minus penalties for broken grammar and
# repetition), so that we can see what a reward model misses. An **annotator** (in papers also *labeller* or *rater*) compares two reviews of the same
# film; a noisy one writes some answers down the wrong way round. We train a small reward model with *your* `pairwise_reward_loss` and `last_token_score` and ask how well it orders held-out
# reviews. *Accuracy* is the share of held-out pairs with different gold that the scores order as gold does.
#
# **Predict before you run:** which helps more, sixteen times as many labels or no noise? How well does the model fit 64 labels it has seen?

# %%
prediction_a = ""  # for example "labels; it fits them perfectly"

# %% tags=["experiment"]
from tqdm.auto import tqdm

from course.feedback.annotators import Annotator
from course.feedback.reward_model import RewardModel, reward_scores as scores_of
from course.figures import preferences, say
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.tasks import reviews
from course.tasks.records import decided
from course.training.reward_model import reward_model as train_reward_model

PROMPTS, CANDIDATES = 64, 8
held_out = reviews.pool(reviews.prompts(PROMPTS, SEED + 900), CANDIDATES, reviews.SLOPPY, SEED + 900)
held_out_gold = reviews.gold(held_out).view(PROMPTS, CANDIDATES)


def small_reward_model(seed):
    config = DecoderConfig(vocab_size=reviews.VOCAB_SIZE, layers=1, width=32, heads=1, max_length=reviews.LENGTH)
    return RewardModel(ScalarHead(Decoder(config, seed), seed), score=last_token_score, over="sequence")


def accuracy_and_correlation(model):
    scores = scores_of(model, held_out).view(PROMPTS, CANDIDATES)
    i, j = torch.triu_indices(CANDIDATES, CANDIDATES, 1)
    gap, margin = held_out_gold[:, i] - held_out_gold[:, j], scores[:, i] - scores[:, j]
    right = (margin * gap.sign() > 0)[gap != 0].double().mean()
    return float(right), float(torch.corrcoef(torch.stack([scores.flatten(), held_out_gold.flatten()]))[0, 1])


LABELS, RECIPES = (64, 256, 1024), {"careful annotator": 0.0, "30 % written down wrong": 0.3}
outcomes, fitted = {}, {}
with tqdm(total=len(LABELS) * len(RECIPES), desc="reward models") as bar:
    for name, flip in RECIPES.items():
        rows = []
        for labels in LABELS:
            pairs = decided(reviews.comparisons(labels, SEED + 7, Annotator(name, temperature=0.2, flip=flip)))
            model = small_reward_model(SEED)
            history = list(
                train_reward_model(
                    model, pairs, loss=pairwise_reward_loss, steps=150, lr=3e-3, batch_size=64, seed=SEED, pad_id=reviews.PAD
                )
            )
            fitted[name, labels] = sum(step.accuracy for step in history[-10:]) / 10
            rows.append(accuracy_and_correlation(model))
            bar.update()
        outcomes[name] = (LABELS, [r[0] for r in rows], [r[1] for r in rows])
clean, noisy = outcomes["careful annotator"][1], outcomes["30 % written down wrong"][1]
preferences.labels_and_noise(
    outcomes,
    title=f"From {LABELS[0]} to {LABELS[-1]} labels: {clean[0]:.0%} to {clean[-1]:.0%} right with care, {noisy[0]:.0%} to {noisy[-1]:.0%} with noise",
)

# %% tags=["experiment"]
say(
    f"**What came out.** With {LABELS[0]} careful labels the model orders {fitted['careful annotator', LABELS[0]]:.0%} of its *training* pairs rightly "
    f"and {clean[0]:.0%} of held-out pairs; with {LABELS[-1]} careful labels, {clean[-1]:.0%} of held-out pairs. With noise the two held-out numbers are "
    f"{noisy[0]:.0%} and {noisy[-1]:.0%}. You predicted: {prediction_a or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** small differences. There is one seed per point, and a few per cent may be luck. Nor does it show a *bias*. The
# noise here is fair, equally likely for every pair, so with enough labels it averages out; a taste for length (Experiment E) does not. And
# pairs of an ordinary writer say nothing about text that only an optimised policy writes (exit test).

# %% [markdown]
# ## Part B · Rankings, splits and cycles

# %% [markdown]
# {{card ranking_pairs}}
#
# An annotator may rank $K$ responses to one prompt. A ranking of $K$ gives up to $K(K-1)/2$ ordered pairs; tied responses give no pair. Nine responses
# give 36 pairs, four give 6, but the pairs of one ranking are not independent: if every pair counts the same, a prompt with nine responses weighs six
# times as much as one with four. So every ranking that has at least one pair gets **the same total weight**, split equally over its pairs, and all
# weights sum to 1.

# %% ng="solution:ranking_pairs"
def ranking_pairs(ranks, group_id):
    """All ordered pairs inside each ranking, with weights.

    ranks      [N] numbers, 1 is best; equal ranks of one group are ties
    group_id   [N] int of any size or sign, equal for the responses of one ranking, in any order
    returns    (winner [P] int64, loser [P] int64, weight [P] float64): positions 0..N-1; the weights sum to 1, or all are empty
    """
    ### BEGIN SOLUTION
    same = group_id[:, None] == group_id[None, :]
    better = ranks[:, None] < ranks[None, :]
    winner, loser = (same & better).nonzero(as_tuple=True)
    _, group = group_id.unique(return_inverse=True)
    of_pair = group[winner]
    pairs_in_group = torch.bincount(of_pair, minlength=int(group.max()) + 1 if len(group) else 0)
    rankings = (pairs_in_group > 0).sum()
    return winner, loser, 1.0 / (pairs_in_group[of_pair].double() * rankings)
    ### END SOLUTION


# %% ng="test:ranking_pairs"
check(ranking_pairs)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Two rankings, of 3 and of 2 responses, no ties: what is each pair's weight? </details>
# <details><summary>Hint 2: where to look</summary> An N by N comparison of ranks, and another of group ids, joined with <code>&amp;</code>;
# <code>nonzero</code> gives both indices. A ranking of ties only has no pair and must not take a share. </details>
# <details><summary>Hint 3: almost code</summary> weight of a pair = 1 / (number of pairs in its group * number of groups that have a pair).
# </details>

# %% [markdown]
# {{card grouped_ranking_loss}}
#
# $$L=\sum_{(w,l)} \text{weight}_{wl}\;\big(-\log\sigma(s_w-s_l)\big)$$
#
# over the pairs $(w,l)$ of the last exercise, with $s$ the scores. InstructGPT (OpenAI, 2022) trained its reward model on all pairs of a ranking as one batch element,
# divided by their number. The reason its authors give is that the model overfitted when the pairs were shuffled [D].

# %% ng="solution:grouped_ranking_loss"
def grouped_ranking_loss(scores, ranks, group_id):
    """Weighted Bradley-Terry loss over the pairs of every ranking.

    scores, ranks, group_id   [N]
    returns                   scalar; finite for differences of 1e4; 0 if there is no pair
    """
    ### BEGIN SOLUTION
    winner, loser, weight = ranking_pairs(ranks, group_id)
    return (weight.to(scores.dtype) * F.softplus(scores[loser] - scores[winner])).sum()
    ### END SOLUTION


# %% ng="test:grouped_ranking_loss"
check(grouped_ranking_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What does the loss become with groups of two? </details>
# <details><summary>Hint 2: where to look</summary> Index the scores with <code>winner</code> and <code>loser</code>. </details>
# <details><summary>Hint 3: almost code</summary> <code>(weight * softplus(scores[loser] - scores[winner])).sum()</code> </details>

# %% [markdown]
# {{card split_by_group}}
#
# Held-out accuracy means something only if nothing of the test set was seen in training. Pairs of one ranking share responses. Prompts of one
# **family** are variants of each other (a paraphrase, another name). If a ranking or a family lies on both sides of the split, the model is examined
# on what it has learned by heart.
#
# A record here is a dict with `"family"` and `"ranking_id"`; either may be `None`, which means "shared with nobody". Records that share a family *or* a
# ranking belong together, and so do records connected through others; a family and a ranking with the same id have nothing to do with each other.
# Return **positions**, so that tensors made from the records can be split by the same lists.

# %% ng="solution:split_by_group"
def split_by_group(records, fractions, seed):
    """Split records so that nothing that belongs together is separated.

    records     list of dicts with "family" and "ranking_id" (None: not shared)
    fractions   positive numbers that sum to 1, one per part
    seed        the same seed gives the same split, another seed another one
    returns     one list of positions in `records` per fraction; every position is in exactly one list, and the sizes
                are as close to the fractions as whole groups allow (off by at most one largest group)
    """
    ### BEGIN SOLUTION
    group_of = list(range(len(records)))
    changed = True
    while changed:  # let the smallest number win until nothing moves: chains of shared keys end in one group
        changed = False
        smallest = {}
        for i, record in enumerate(records):
            for field in ("family", "ranking_id"):
                key = (field, record[field])
                if record[field] is not None:
                    smallest[key] = min(smallest.get(key, group_of[i]), group_of[i])
        for i, record in enumerate(records):
            keys = [(field, record[field]) for field in ("family", "ranking_id") if record[field] is not None]
            lowest = min([group_of[i]] + [smallest[key] for key in keys])
            if lowest != group_of[i]:
                group_of[i], changed = lowest, True
    names = sorted(set(group_of))
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).tolist()
    parts = [[] for _ in fractions]
    for number in order:
        members = [i for i, group in enumerate(group_of) if group == names[number]]
        missing = [fraction * len(records) - len(part) for fraction, part in zip(fractions, parts)]
        parts[missing.index(max(missing))] += members
    return [sorted(part) for part in parts]
    ### END SOLUTION


# %% ng="test:split_by_group"
check(split_by_group)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Record 1 shares a family with record 2, record 2 shares a ranking with record 3. May 1 and 3
# be separated? </details>
# <details><summary>Hint 2: where to look</summary> First give every record a group number (merge until nothing changes), then shuffle whole groups
# with the seed and deal each to the part that is furthest below its share. </details>
# <details><summary>Hint 3: almost code</summary> Repeat: for each key take the smallest group number of its records; give every record the smallest of
# its keys; stop when nothing changed. Then <code>torch.randperm(number_of_groups, generator=...)</code>. </details>

# %% [markdown]
# ### Experiment B · A cycle
#
# Three annotators with three tastes each compare one pair ten times. The first always prefers A to B, the second B to C, the third C to A. We fit one score
# per response with *your* `pairwise_reward_loss`.
#
# **Predict before you run:** which response gets the highest score? "A beats B" was the answer ten times out of ten: what probability does the fit give
# to it?

# %%
prediction_b = ""  # for example "A; 0.9"

# %% tags=["experiment"]
from course.feedback.cycles import find_cycles, fit_bradley_terry
from course.tasks.records import Comparison, PreferenceLabel, Provenance

names = ("A", "B", "C")
wins = torch.zeros(3, 3, dtype=torch.float64)
for winner, loser in ((0, 1), (1, 2), (2, 0)):
    wins[winner, loser] = 10

fitted_scores = torch.tensor([0.5, 0.0, -0.5], dtype=torch.float64, requires_grad=True)
optimiser = torch.optim.SGD([fitted_scores], lr=2.0)
pairs_in_data = wins.nonzero()
for _ in tqdm(range(300), desc="fit"):
    loss = pairwise_reward_loss(fitted_scores[pairs_in_data[:, 0]], fitted_scores[pairs_in_data[:, 1]])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
fitted_scores = fitted_scores.detach()
preferences.cycle_graph(names, wins, fitted_scores, title="Every labeller was sure; the best single score says 1/2")

# %% tags=["experiment"]
provenance = Provenance("example", "written", "as listed", "all pairs", annotator="three tastes")
answers = {name: (10 + i,) for i, name in enumerate(names)}
records = [
    Comparison((1, 2, 3), answers[names[int(w)]], answers[names[int(l)]], PreferenceLabel.FIRST, provenance, family="cycle")
    for w, l in pairs_in_data
    for _ in range(10)
]
found = find_cycles(records)
by_id = {ids: name for name, ids in answers.items()}
say(
    f"**What came out.** The fit gives A over B a probability of {torch.sigmoid(fitted_scores[0] - fitted_scores[1]):.3f}, and its loss is "
    f"{float(loss.detach()):.4f}, which is the logarithm of {math.exp(float(loss.detach())):.3f}: a coin flip. The package's exact fit agrees "
    f"({[round(float(x), 3) for x in fit_bradley_terry(wins)]}), and `find_cycles` reports {' > '.join(by_id[r] for r in found[0][1])} > ... "
    f"You predicted: {prediction_b or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** whether the cycle is one person's confusion or three people's honest tastes. A scalar reward can't tell either: look for cycles
# *before* you fit, split by annotator, and say what fraction of the data no score can explain.

# %% [markdown]
# ## Part C · Is it calibrated, and on which law?

# %% [markdown]
# {{card expected_calibration_error}}
#
# A reward model's probabilities should mean what they say: of the comparisons to which it gives 0.8, four in five should go that way. Sort the
# predictions into bins of equal width on $[0,1]$; in each bin compare the mean prediction with the fraction of ones:
#
# $$\mathrm{ECE}=\sum_{b}\frac{n_b}{N}\,\big|\,\overline{\text{label}}_b-\overline{\text{prob}}_b\,\big| .$$
#
# $N$ is the number of predictions, $n_b$ the number in bin $b$, and a bar is a mean over that bin. Bin $i=0,\dots,k-1$ of $k$ covers $[i/k, (i+1)/k)$;
# the last one includes 1. So predictions of exactly 0 and exactly 1 count. Empty bins add nothing.

# %% ng="solution:expected_calibration_error"
def expected_calibration_error(prob, label, bins=10):
    """Mean gap between confidence and frequency over equal-width bins, weighted by count.

    prob      [N] float in [0, 1], both ends included
    label     [N] 0 or 1, as bool, integer or float
    returns   a scalar in [0, 1]
    """
    ### BEGIN SOLUTION
    which = (prob * bins).long().clamp(0, bins - 1)
    total = torch.zeros((), dtype=prob.dtype)
    for b in range(bins):
        inside = which == b
        if bool(inside.any()):
            total = total + inside.sum() / len(prob) * (label[inside].to(prob.dtype).mean() - prob[inside].mean()).abs()
    return total
    ### END SOLUTION


# %% ng="test:expected_calibration_error"
check(expected_calibration_error)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What is the error of a model that says 0.5 to everything on balanced labels? Is it a good model?
# </details>
# <details><summary>Hint 2: where to look</summary> The bin of a probability is <code>floor(prob * bins)</code>; a probability of exactly 1 needs care.
# </details>
# <details><summary>Hint 3: almost code</summary> For each non-empty bin add <code>count / N * |mean label - mean prob|</code>. </details>

# %% [markdown]
# ### Experiment C · Calibrated for whom?
#
# A reward model is trained on the choices of one annotator, *home*, between one writer's reviews. We then ask it about four held-out sets: new pairs of *home*;
# pairs of a *careless* annotator, who writes one answer in four down the wrong way round; pairs of one who *likes length*; and choices of *home* between reviews
# by a *newer policy* that has found out that praise pays.
#
# **Predict before you run:** on which of the four held-out sets is it best calibrated, and on which is it confidently wrong?

# %%
prediction_c = ""

# %% tags=["experiment"]
from course.feedback.calibration import validation_report
from course.tasks.records import batch_of

SPAMMER = reviews.Writer("newer policy", slip=0.03, spam=0.6)
home = Annotator("home", temperature=0.7)
train_pairs = decided(reviews.comparisons(2000, SEED + 11, home))
judged = small_reward_model(SEED + 1)
for step in tqdm(
    train_reward_model(judged, train_pairs, loss=pairwise_reward_loss, steps=300, lr=3e-3, batch_size=64, seed=SEED, pad_id=reviews.PAD),
    total=300, desc="reward model",
):  # fmt: skip
    pass

others = {
    "home": (home, reviews.SLOPPY),
    "careless": (Annotator("careless", temperature=0.7, flip=0.25), reviews.SLOPPY),
    "likes length": (Annotator("likes length", temperature=0.7, length_bias=0.3), reviews.SLOPPY),
    "newer policy": (home, SPAMMER),
}
curves, rows, every_margin, every_record = {}, [], [], []
for name, (annotator, writer) in others.items():
    records = decided(reviews.comparisons(1500, SEED + 500 + len(rows), annotator, writer))
    batches = [batch_of([(c.prompt, getattr(c, side)) for c in records], reviews.PAD, reviews.LENGTH) for side in ("first", "second")]
    margin = scores_of(judged, batches[0]) - scores_of(judged, batches[1])
    probability = torch.sigmoid(margin.double())
    chosen_first = torch.tensor([c.label is PreferenceLabel.FIRST for c in records])
    curves[name] = (probability, chosen_first)
    rows.append((name, float(expected_calibration_error(probability, chosen_first.double()))))
    every_margin.append(margin)
    every_record += records
preferences.reliability(
    curves, title=f"Calibration error {rows[0][1]:.2f} for its own annotator and writer, up to {max(r[1] for r in rows):.2f} for others"
)

# %% tags=["experiment"]
best, worst = min(rows, key=lambda r: r[1]), max(rows, key=lambda r: r[1])
say(
    "**What came out.** Calibration error (your function): "
    + ", ".join(f"{name} {value:.3f}" for name, value in rows)
    + f". Best on *{best[0]}*, worst on *{worst[0]}*. You predicted: {prediction_c or 'nothing'}. The package's report names the law behind each number:"
)
for row in validation_report(torch.cat(every_margin), every_record):
    print(row)

# %% [markdown]
# **What the figure cannot show:** whether the model is any good. A model that says 0.5 to everything is perfectly calibrated on balanced labels. And each number belongs to
# *a law*: an annotator, a writer, a way of choosing the pairs. "Our reward model has 74 % accuracy" without these says little. And this is one model from one seed.

# %% [markdown]
# ## Part D · Labels from machines, labels worth buying, labels in time

# %% [markdown]
# {{card soft_label_loss}}
#
# An AI judge can give a probability in place of a choice. In Constitutional AI (Anthropic, 2022: a model labels under written principles) a judge that reasoned before it answered gave probabilities near 0 and 1;
# they were clamped to 40-60 % before the training [D]. With $m$ the margin $r_A-r_B$ and $q$ the judge's clamped probability that A is better, the loss is
# the cross-entropy
#
# $$L = -\frac1B\sum_b\big[q_b\log\sigma(m_b)+(1-q_b)\log\sigma(-m_b)\big].$$
#
# With $q=1$ and no clamp this is the pairwise loss. With clamped labels its minimum lies at a *finite* margin.

# %% ng="solution:soft_label_loss"
def soft_label_loss(margin, prob, clamp=(0.4, 0.6)):
    """Cross-entropy of sigmoid(margin) against a clamped soft label, averaged over the batch.

    margin    [B] float: score of A minus score of B
    prob      [B] float in [0, 1]: the judge's probability that A is better
    clamp     (low, high): prob is clamped into this range first; (0, 1) leaves it as it is
    returns   scalar; finite for margins of 1e4
    """
    ### BEGIN SOLUTION
    low, high = clamp
    q = prob.clamp(low, high)
    return (q * F.softplus(-margin) + (1 - q) * F.softplus(margin)).mean()
    ### END SOLUTION


# %% ng="test:soft_label_loss"
check(soft_label_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> At which margin is the loss smallest for q = 0.6? </details>
# <details><summary>Hint 2: where to look</summary> Clamp the label, not the model's probability; stay finite for huge margins. </details>
# <details><summary>Hint 3: almost code</summary> <code>q * softplus(-m) + (1 - q) * softplus(m)</code>, then the mean. </details>

# %% [markdown]
# Move the judge's probability to 1 and the clamp to 0, then raise the clamp: the loss stops asking for an ever larger margin.

# %% tags=["experiment"]
from course.figures.widgets import sliders

sliders(
    lambda prob, low: preferences.soft_label_explorer(soft_label_loss, prob=prob, low=low),
    prob=(0.0, 1.0, 0.05, 0.9),
    low=(0.0, 0.5, 0.05, 0.4),
)

# %% [markdown]
# {{card query_priority}}
#
# Labels cost money. Which pairs are worth asking about? Train an **ensemble** of $E$ reward models; where they disagree, a label may teach more
# (Experiment D asks). With scores $s^{(e)}_{n,0}, s^{(e)}_{n,1}$ of the two responses of pair $n$:
#
# $$\text{priority}_n=\operatorname{Var}_e\,\sigma\!\big(s^{(e)}_{n,1}-s^{(e)}_{n,0}\big),$$
#
# the variance over the ensemble, with divisor $E$. It is taken over probabilities, not over scores: two models that are both sure of the same answer do
# not disagree, however far apart their scores are.

# %% ng="solution:query_priority"
def query_priority(ensemble_scores):
    """Disagreement of an ensemble about each pair.

    ensemble_scores   [E, N, 2] float
    returns           [N]: population variance over the ensemble of sigmoid(score_1 - score_0)
    """
    ### BEGIN SOLUTION
    probability = torch.sigmoid(ensemble_scores[..., 1] - ensemble_scores[..., 0])
    return probability.var(dim=0, unbiased=False)
    ### END SOLUTION


# %% ng="test:query_priority"
check(query_priority)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What happens to the priority if one model adds 5 to all its scores? </details>
# <details><summary>Hint 2: where to look</summary> torch's variance divides by E - 1 unless told otherwise. </details>
# <details><summary>Hint 3: almost code</summary> <code>sigmoid(s[..., 1] - s[..., 0]).var(0, unbiased=False)</code> </details>

# %% [markdown]
# {{card select_queries}}
#
# If you always ask about the top $k$, the other pairs have no chance, and nothing measured on the chosen ones can be carried back to the pool. Draw
# instead: with $\pi = \operatorname{softmax}(\text{priority}/\tau)$ ($\tau$ is the temperature) draw $k$ pairs **without replacement**: each draw
# takes a pair that is left with probability proportional to its $\pi_n$. Record the propensity $\pi_n$ of *every* pair. It is above 0 for all, so
# means over the chosen pairs can be corrected for the choice (Experiment D). The correction reads which pair was drawn first, second and so on: return
# the indices **in the order drawn**, not sorted.

# %% ng="solution:select_queries"
def select_queries(priority, k, temperature, seed):
    """Draw k pairs to be labelled, and say how likely each pair of the pool was.

    priority      [N] float
    k             at most N
    temperature   > 0; large: nearly uniform, small: nearly the top k
    seed          the same seed gives the same draw
    returns       (index [k] int64 without repeats, in the order of the draws; propensity [N]: the law of the first draw)
    """
    ### BEGIN SOLUTION
    propensity = torch.softmax(priority / temperature, dim=0)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(len(priority), generator=generator, dtype=torch.float64)
    keys = priority.double() / temperature - (-noise.log()).log()  # the largest k of log-weights plus Gumbel noise are such a draw
    return keys.topk(k).indices, propensity
    ### END SOLUTION


# %% ng="test:select_queries"
check(select_queries)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> With temperature near 0, which pairs come out? With temperature 1000? </details>
# <details><summary>Hint 2: where to look</summary> <code>torch.multinomial(..., replacement=False, generator=...)</code>, and its generator. </details>
# <details><summary>Hint 3: almost code</summary> <code>propensity = softmax(priority / temperature)</code>;
# <code>multinomial(propensity, k, replacement=False, generator=torch.Generator().manual_seed(seed))</code>. </details>

# %% [markdown]
# ### Experiment D · Buying labels
#
# Labels are expensive. From 100 labelled pairs we train an ensemble of five small reward models. *Your* `query_priority` and `select_queries` choose what to
# ask next, and we compare with choosing at random. Second question: how often do the annotator's labels contradict gold, estimated from the bought labels?
#
# **Predict before you run:** does disagreement beat chance at every budget? Will the plain mean over the chosen pairs over- or underestimate the annotator's errors?

# %%
prediction_d = ""

# %% tags=["experiment"]
from course.feedback.queries import inverse_propensity_estimate
from course.feedback.tail import fit_phrase_reward

BUDGETS, SEEDS, TEMPERATURE = (50, 100, 200, 400), range(5), 0.02
asker = Annotator("asker", temperature=0.4)


def side_scores(model, records):
    with torch.no_grad():
        sides = [batch_of([(c.prompt, getattr(c, side)) for c in records], reviews.PAD, reviews.LENGTH) for side in ("first", "second")]
        return torch.stack([model(side) for side in sides], dim=-1)


def fit(records, seed):
    return fit_phrase_reward(records, loss=pairwise_reward_loss, steps=60, batch_size=64, seed=seed)


gains = {"by disagreement": [], "at random": []}
for seed in tqdm(SEEDS, desc="seeds"):
    everything = decided(reviews.comparisons(1500, 100 + seed, asker))
    start, unlabelled = everything[:100], everything[100:]
    resampling = torch.Generator().manual_seed(seed)
    ensemble = []
    for member in range(5):
        resampled = [start[i] for i in torch.randint(len(start), (len(start),), generator=resampling).tolist()]
        ensemble.append(fit(resampled, 10 * seed + member))
    priority = query_priority(torch.stack([side_scores(model, unlabelled) for model in ensemble]).double())
    for name, temperature in (("by disagreement", TEMPERATURE), ("at random", 1e6)):
        accuracies = []
        for budget in BUDGETS:
            index, _ = select_queries(priority, budget, temperature, seed)
            accuracies.append(accuracy_and_correlation(fit(start + [unlabelled[i] for i in index.tolist()], seed))[0])
        gains[name].append(accuracies)
gains = {name: torch.tensor(values) for name, values in gains.items()}
difference = (gains["by disagreement"] - gains["at random"]).mean(1)
preferences.selection_gain(
    BUDGETS, gains, title=f"Gain over chance {difference.mean():+.3f}, by seed {difference.min():+.3f} to {difference.max():+.3f}"
)

# %% tags=["experiment"]
def contradicts_gold(record):
    both = reviews.gold(batch_of([(record.prompt, record.first), (record.prompt, record.second)], reviews.PAD, reviews.LENGTH))
    return float((both[0] > both[1]) != (record.label is PreferenceLabel.FIRST))


errors = torch.tensor([contradicts_gold(record) for record in unlabelled], dtype=torch.float64)
plain, corrected = [], []
for draw in range(400):
    index, propensity = select_queries(priority, 50, TEMPERATURE, draw)
    plain.append(float(errors[index].mean()))
    corrected.append(float(inverse_propensity_estimate(errors[index], index, propensity)))
plain, corrected = torch.tensor(plain), torch.tensor(corrected)
say(
    f"**What came out.** Disagreement gains {difference.mean():+.3f} in accuracy on average over budgets; over the {len(difference)} seeds this ranges "
    f"from {difference.min():+.3f} to {difference.max():+.3f}. In the last seed's pool the annotator contradicts gold in {errors.mean():.3f} of all pairs. Over "
    f"{len(plain)} draws of 50 pairs the plain mean of the chosen ones says {plain.mean():.3f} (standard error {plain.std() / len(plain) ** 0.5:.3f}), the estimate weighted "
    f"by recorded propensities {corrected.mean():.3f} (standard error {corrected.std() / len(corrected) ** 0.5:.3f}). You predicted: {prediction_d or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** that disagreement is worth it. Five seeds are few and their ranges overlap. The second result is about one pool,
# but its draws are many: if the plain mean lies above the pool's by more than its standard error, the annotator makes more mistakes on the
# pairs that the ensemble finds hard. The recorded propensities lead back to the pool, and the estimate gets noisier. The package's
# estimator is made for draws without replacement: dividing by $\pi_n$ alone is exact only for the first draw.

# %% [markdown]
# {{card intertemporal_loss}}
#
# Sometimes the policy acts in many steps, an *episode* (level 4). Long episodes are hard to compare as wholes; people can say "between here and there it got
# better". DeepMind's Playhouse agents, which follow instructions in a simulated house, were trained from such marks [D]. Let a utility $U_{b,t}$ be read after every step $t$ of episode $b$. A mark $+1$ between times $e_b<l_b$ says that $U_{b,l_b}>U_{b,e_b}$, a mark $-1$
# the opposite:
#
# $$L=-\frac1B\sum_b \log\sigma\big(\text{mark}_b\,(U_{b,l_b}-U_{b,e_b})\big).$$
#
# Utilities that no mark refers to may be NaN or infinite: neither the loss nor its gradient may depend on them. (An episode shown with another episode's
# instruction can give negative examples: its marks $+1$ become $-1$, its marks $-1$ are dropped.)

# %% ng="solution:intertemporal_loss"
def intertemporal_loss(utility, earlier, later, mark):
    """Bradley-Terry between two prefixes of the same episode.

    utility         [B, T] float: utility after each step; anything, NaN and infinity too, where no mark refers to it
    earlier, later  [B] int: time indices, one mark per episode
    mark            [B] +1 (it got better) or -1 (it got worse), int or float
    returns         scalar, the mean over marks; finite for differences of 1e4
    """
    ### BEGIN SOLUTION
    rows = torch.arange(utility.shape[0], device=utility.device)
    gain = utility[rows, later] - utility[rows, earlier]
    return F.softplus(-mark.to(utility.dtype) * gain).mean()
    ### END SOLUTION


# %% ng="test:intertemporal_loss"
check(intertemporal_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which two entries of a row get a gradient, and with which signs for a mark of +1? </details>
# <details><summary>Hint 2: where to look</summary> <code>utility[arange(B), later]</code> picks one entry per row. </details>
# <details><summary>Hint 3: almost code</summary> <code>softplus(-mark * (U_later - U_earlier)).mean()</code> </details>

# %% [markdown]
# ## Part E · Without a reward model

# %% [markdown]
# {{card optimal_policy}}
#
# RLHF maximises the expected reward of a policy $\pi$, minus a penalty for leaving the reference policy $\pi_{\text{ref}}$ (level 0):
# $J(\pi)=\mathbb E_\pi[r]-\beta\,\mathrm{KL}(\pi\,\|\,\pi_{\text{ref}})$. The **price of KL**, $\beta>0$, is in units of reward per nat. Over a list of responses $y$ to
# one prompt the best law $\pi^*$ is known in closed form:
#
# $$\pi^*(y)=\frac{1}{Z}\,\pi_{\text{ref}}(y)\,e^{r(y)/\beta},\qquad Z=\sum_y\pi_{\text{ref}}(y)\,e^{r(y)/\beta}.$$
#
# Read backwards, $r(y)=\beta\log\frac{\pi^*(y)}{\pi_{\text{ref}}(y)}+\beta\log Z$: a policy *is* a reward model,
# up to a number per prompt. Direct preference optimisation (DPO), the next exercise, rests on this.
#
# For a small $\beta$ the exponential overflows although the law is harmless: your result must stay finite there. Only a response that the reference never
# gives keeps its log-probability of $-\infty$, whatever its reward.

# %% ng="solution:optimal_policy"
def optimal_policy(ref_logprobs, reward, beta):
    """The maximiser of E[r] - beta KL(pi || ref) over all laws on the listed responses.

    ref_logprobs   [..., Y] log-probabilities of the reference (-inf: the reference never says it; at least one is finite)
    reward         [..., Y]
    beta           > 0, in reward units per nat
    returns        [..., Y] log-probabilities: -inf where the reference has -inf, finite elsewhere, also for rewards of 1e3 at beta 1e-3
    """
    ### BEGIN SOLUTION
    scores = ref_logprobs + reward / beta
    return scores - torch.logsumexp(scores, dim=-1, keepdim=True)
    ### END SOLUTION


# %% ng="test:optimal_policy"
check(optimal_policy)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What is the optimum for a huge beta? For a tiny one? </details>
# <details><summary>Hint 2: where to look</summary> Work with logarithms throughout; Z is a log-sum-exp over the last dimension. </details>
# <details><summary>Hint 3: almost code</summary> <code>x = ref_logprobs + reward / beta</code>; subtract its <code>logsumexp</code>. </details>

# %% [markdown]
# {{card dpo_loss}}
#
# Put the implicit reward $\beta\log\frac{\pi(y)}{\pi_{\text{ref}}(y)}$ into Bradley-Terry; $\beta\log Z$ cancels, because both responses answer the same
# prompt:
#
# $$L=-\frac1B\sum_b\log\sigma\Big(\beta\big[(\log\pi(y_w)-\log\pi_{\text{ref}}(y_w))-(\log\pi(y_l)-\log\pi_{\text{ref}}(y_l))\big]\Big).$$
#
# Here $\log\pi(y)$ is the **sum** of the response's token log-probabilities; with an average the derivation above no longer holds.
# $y_w$ is the chosen response of pair $b$, $y_l$ its rejected one. Where policy and reference agree the loss is $\log 2$: if your training does not start there, the
# reference is not what you think.

# %% ng="solution:dpo_loss"
def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """Direct preference optimisation on summed log-probabilities.

    policy_*, ref_*   [B] float: log-probability of the whole response
    beta              > 0
    returns           scalar, the mean over pairs; finite for differences of 1e4; no gradient flows into the reference
    """
    ### BEGIN SOLUTION
    margin = (policy_chosen - ref_chosen.detach()) - (policy_rejected - ref_rejected.detach())
    return F.softplus(-beta * margin).mean()
    ### END SOLUTION


# %% ng="test:dpo_loss"
check(dpo_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> If policy and reference both raise the chosen response by one nat, what changes? </details>
# <details><summary>Hint 2: where to look</summary> The reference is frozen: detach it. Use the stable log-sigmoid again. </details>
# <details><summary>Hint 3: almost code</summary> <code>softplus(-beta * ((pc - rc) - (pr - rr))).mean()</code> </details>

# %% [markdown]
# ### Experiment E · Five ways to skip the reward model
#
# One data set, five objectives, one recipe: DPO with *your* loss, and the package's IPO, KTO, ORPO and UNA. A small policy is trained on good reviews; a hurried annotator
# compares its samples, gets one answer in ten wrong, and **likes long reviews**. Gold does not care about length. The other four
# (`course/objectives/direct.py` has their formulas):
#
# - **IPO** (identity preference optimisation) draws the difference of the two log-ratios to a finite target, $1/(2\tau)$, by a squared error;
# - **KTO** (Kahneman-Tversky optimisation) reads a thumb up or down for each response alone, here up for the chosen and down for the rejected one;
# - **ORPO** (odds-ratio preference optimisation) imitates the chosen response and adds, with a weight, a penalty on the odds of the rejected one. It has no reference;
# - **UNA** fits the implicit reward of each response to a score by a squared error, here to one score for chosen responses and its negative for rejected ones.
#
# **Predict before you run:** which methods make the reviews longer? Does any of them escape the annotator's bias?

# %%
prediction_e = ""

# %% tags=["experiment"]
from course.training.alignment_study import ANNOTATOR, compare_methods, methods
from course.training.bandit import base_policy, own_comparisons

base = base_policy(SEED)
study_pairs = own_comparisons(base, 400, SEED + 21, ANNOTATOR)
study = {}
for name, method in tqdm(methods(dpo_loss).items(), desc="methods"):
    reference_row, study[name] = compare_methods(base, study_pairs, {name: method}, seed=SEED)
longer = [name for name, row in study.items() if row.length > reference_row.length + 1]
preferences.methods(
    {name: (row.gold, row.length) for name, row in study.items()},
    (reference_row.gold, reference_row.length),
    title=f"{len(longer)} of {len(study)} methods write longer reviews than the reference, as the annotator liked",
)

# %% tags=["experiment"]
better = [name for name, row in study.items() if row.gold > reference_row.gold]
say(
    f"**What came out.** The reference writes {reference_row.length:.1f} tokens with gold {reference_row.gold:.2f}. Longer by more than a token: "
    f"{', '.join(longer) or 'none'}. Better gold: {', '.join(better) or 'none'}. You predicted: {prediction_e or 'nothing'}.\n\n"
    "| method | gold | length | KL from the reference, nats | agrees with held-out labels | agrees with gold |\n|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| {name} | {row.gold:.2f} | {row.length:.1f} | {row.kl:.1f} | {row.label_accuracy:.2f} | {row.gold_accuracy:.2f} |"
        for name, row in study.items()
    )
)

# %% [markdown]
# **What the figure cannot show:** which method is best. There is one seed and one learning rate, and each method's strength means something else
# ($\beta$, $\tau$, a weight), so they stand at different distances from the reference: to rank them, compare them at equal KL and over seeds. A method whose
# reviews did not grow may only have moved less. Longer reviews are what a taste for length in the labels would lead to, without a reward model too. To show
# that the taste is the cause, repeat the run with an annotator who does not have it.

# %% [markdown]
# ## Part F · Exit test: better accuracy, worse choice

# %% [markdown]
# {{card reward_scores}}
#
# The held-out accuracy of a reward model is a mean over pairs, most of them *ordinary*. Best-of-N (level 3) chooses the candidate with the highest score out of
# $N$, so it reads only the top of the list. Build both kinds of model:
#
# - `"accurate"` has the higher accuracy on held-out pairs, by at least 0.015, and `"careful"` still orders at least 60 % of them rightly;
# - `"careful"` chooses better responses: in best-of-64 the mean gold of its choices is higher by at least 0.03, and at least 0.4 above that of a random choice.
#
# The checks allow for chance in the hidden pools, so these margins are low: a good recipe gives several times as much (the evidence below has the numbers). The gap in
# gold must come from the runs of praise: if they are taken out of the pools, it must shrink by at least 0.2.
#
# You may collect labels from `careful_annotator` and `hasty_annotator`, about reviews by the `old_policy`, by the `new_policy`, or by `audit`: reviews of
# the new policy that were picked because they looked suspicious. The new policy ends one review in fifty in a run of praise that no reader likes; in the
# audit it is one in four.
# `fit_phrase_reward` trains a linear model over words and pairs of words in a second, with *your* loss.
#
# **Decide first:** which labels make a model good at ordering ordinary reviews? Which labels does it need so as not to fall for the praise?
#
# `reward_scores(model, tokens, attention_mask)` is called on hidden pairs and on hidden pools of the new policy, and judged outside your notebook. A response's
# score must depend neither on what stands in its padding nor on the other rows.
# Do not use the formula of gold: outside a toy task nobody has it.

# %% ng="locked:exit_ingredients"
from course.feedback.annotators import Annotator
from course.feedback.tail import fit_phrase_reward
from course.tasks import reviews
from course.tasks.records import Batch

careful_annotator, hasty_annotator = Annotator("careful", temperature=0.2), Annotator("hasty", temperature=0.2, flip=0.1)
old_policy = reviews.Writer("old policy", slip=0.01)
new_policy = reviews.Writer("new policy", slip=0.01, spam=0.02)
audit = reviews.Writer("audit of the new policy", slip=0.01, spam=0.25)
# reviews.comparisons(number, seed, annotator, writer) gives labelled pairs;
# fit_phrase_reward(pairs, loss=pairwise_reward_loss, seed=SEED) gives a model: Batch -> scores [N];
# Batch(tokens, attention_mask, action_mask), bool masks: the action mask marks the real tokens of the review, not the prompt.

# %% ng="solution:reward_scores"
def reward_scores(model, tokens, attention_mask):
    """Scores of reviews by one of two reward models that were trained in this notebook.

    model            "accurate" or "careful"
    tokens           [N, T] int: three prompt tokens, then the review, padded on the right
    attention_mask   [N, T] bool or 0/1
    returns          [N] float
    """
    ### BEGIN SOLUTION
    real = attention_mask.bool()
    response = real & (torch.arange(tokens.shape[1]) >= reviews.PROMPT_LENGTH)
    with torch.no_grad():
        return TRAINED[model](Batch(tokens, real, response))
    ### END SOLUTION


# Train both models here, in this cell: it runs when your notebook is graded, and has 15 seconds. A call of the function has less.
### BEGIN SOLUTION
TRAINED = {
    "accurate": fit_phrase_reward(reviews.comparisons(3000, 31, careful_annotator, old_policy), loss=pairwise_reward_loss, seed=1),
    "careful": fit_phrase_reward(reviews.comparisons(600, 32, hasty_annotator, audit), loss=pairwise_reward_loss, seed=1),
}
### END SOLUTION


# %% ng="test:reward_scores"
check(reward_scores)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> A model that never saw a run of praise has learned that "good" and "great" are good. What will it think of
# eight of them in a row? </details>
# <details><summary>Hint 2: where to look</summary> Many clean labels of ordinary reviews for one model; for the other, labels that include what the new policy has
# found out, even if they are fewer and noisier. </details>
# <details><summary>Hint 3: almost code</summary> <code>reviews.comparisons(3000, seed, careful_annotator, old_policy)</code> against
# <code>reviews.comparisons(600, seed, hasty_annotator, audit)</code>; make a <code>Batch</code> whose action mask is 1 after the three prompt tokens. </details>

# %% [markdown]
# ### The evidence, over several seeds
#
# One success proves little. The recipe of the exit test was run for several seeds (`course evidence 1`); each arrow leads from the careful to the accurate model of one seed.
#
# How far may a mean over so few seeds be off? A **95 % bootstrap interval** says: draw as many results again from those that were measured, with replacement, and take
# their mean; do so thousands of times; the middle 95 % of these means are the interval. All intervals over seeds in this course are made like this, unless they say otherwise.

# %% tags=["experiment"]
import json
from pathlib import Path

from course.evidence.intervals import bootstrap_mean
from course.feedback.tail import TailOutcome

evidence = json.loads(Path("evidence.json").read_text())
measured = [TailOutcome(**row) for row in evidence["outcomes"]]
preferences.accuracy_against_choice(measured, title="Higher accuracy, worse choice, in every seed")

# %% tags=["experiment"]
gain = bootstrap_mean([o.accuracy_gain for o in measured], level=0.95, seed=0)
lost = bootstrap_mean([o.gold_loss for o in measured], level=0.95, seed=0)
tail = sum(o.tail_share_a for o in measured) / len(measured)
say(
    f"**What was measured.** The accurate model is more accurate by {gain}; the gold of its choices is lower by {lost} (means, 95 % bootstrap intervals). In "
    f"{tail:.0%} of prompts its favourite is a run of praise. Both differences have these directions in "
    f"{sum(o.accuracy_gain > 0 and o.gold_loss > 0 for o in measured)} of {len(measured)} seeds.\n\n"
    "**What it cannot show:** how often this happens in practice. We built a tail and left it out of one training set. The number to ask for is the quality of the "
    "*chosen* responses, not the accuracy on average pairs."
)

# %% [markdown]
# ## Questions, marked by a person

# %% [markdown]
# **Q1.** Your held-out accuracy is 0.86 on pairs written by last month's policy. Give two reasons why it may be worth little for best-of-64 with today's
# policy, and for each the measurement that would tell.

# %% [markdown] ng="manual:question_validation:3"
# (1) Another law: today's policy writes responses that last month's did not; measure accuracy and calibration on fresh comparisons of today's responses,
# by policy version. (2) Another part of the law: best-of-64 looks only at the highest scores; measure agreement with gold or with fresh labels among the
# top-scored of many candidates, for instance the gold of the chosen one as N grows. *(Full marks: both the shift between policies and the tail, each with
# a measurement that could come out either way.)*

# %% [markdown]
# **Q2.** Labellers may answer "equal" or "can't tell". A colleague replaces both by a random choice, "because it is unbiased". What is lost, and in which
# statistic of the trained model would you see it?

# %% [markdown] ng="manual:question_ties:3"
# A tie says that the difference is small; a coin flip says that it is large, in a random direction. The fitted margins shrink for pairs that are
# truly different in the same region and the log loss has a floor that looks like noise of the labellers. "Can't tell" is not a statement about quality at all, and
# depends on the item: flipping it mixes hard items into the noise estimate. Seen in: calibration near 0.5, the agreement rate between labellers, the loss on the
# decided pairs when trained with and without the flips. *(Full marks: a tie carries information, abstention is another thing, and a statistic that shows it.)*

# %% [markdown]
# **Q3.** DPO needs no reward model. Name one thing that a separate reward model can do for you that DPO's implicit one cannot do as easily, and one failure
# that they share.

# %% [markdown] ng="manual:question_dpo:3"
# A separate model can score new responses of the current policy, so that labels can be reused on-policy, responses can be reranked, and the model can be validated on
# its own before anything is trained. Shared: both fit the same noisy, biased comparisons of some older policy's responses; a length bias in the labels ends up in
# either. *(Full marks: a use that needs scores of new samples, and a fault of the data that neither method repairs.)*

# %% [markdown]
# ## What to read next
#
# - Bradley and Terry (1952), the model; Christiano et al. (2017), from preferences to a policy.
# - Ouyang et al. (2022), rankings as one batch element; Bai et al. (2022), Constitutional AI: labels by a model; Abramson et al. (2022), marks in time.
# - Rafailov et al. (2023), DPO; Azar et al. (2023), what it assumes.
# - Gao, Schulman and Hilton (2022), what happens when a proxy is optimised.
# - In this package, after handing in: `course/objectives/preference.py`, `course/objectives/direct.py`, `course/feedback`. Next: level 2 trains a
#   policy on such a score, and pushes until the score no longer means what it was fitted to.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
