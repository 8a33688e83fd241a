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
# Nobody can write down what a good answer is, but people can say which of two answers is better. This level turns such choices into a number
# that a policy can be trained on, and spends most of its time on the ways in which that number is wrong: labels are noisy, biased,
# tied or cyclic; the model is read at the wrong token; the split leaks; it is accurate where it does not matter.
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
# Give every response a score $r$. The **Bradley-Terry model** says that a comparison is a noisy reading of the difference:
#
# $$P(w\succ l) = \sigma(r_w-r_l) = \frac{1}{1+e^{-(r_w-r_l)}} .$$
#
# Only differences appear. Add any function of the prompt to all scores of that prompt and no probability changes: a reward model's zero means
# nothing, and rewards of different prompts can't be compared without more assumptions.

# %% [markdown]
# {{card pairwise_reward_loss}}
#
# Maximum likelihood on pairs of a chosen and a rejected response:
#
# $$L = -\frac1B\sum_b \log\sigma\big(r_b^{\text{chosen}}-r_b^{\text{rejected}}\big),\qquad
# \frac{\partial L}{\partial\,\text{margin}_b}=-\frac{\sigma(-\text{margin}_b)}{B}.$$
#
# The gradient says it all: a pair that is already ordered with a wide margin teaches nothing, a pair that is wrong pulls with full strength.
# Computed as $\log$ of $\sigma$, the loss is infinite for a margin of $-1000$. It should be 1000.

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
# may hold anything. Often the pad token *is* the end token, so the ids can't tell you where a row ends. The attention mask can.

# %% ng="solution:last_token_score"
def last_token_score(values, attention_mask):
    """The value at the last real token of each row.

    values           [B, T] float; anything at padded positions
    attention_mask   [B, T] bool or 0/1: 1 on real tokens, padded left, right or both
    returns          [B] float
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
# **Bug hunt.** This line has shipped in real trainers:
#
# ```python
# last = (tokens == pad_id).int().argmax(1) - 1
# ```
#
# **Decide first:** what does it return for a row without padding? For a row padded on the left? For a chat whose earlier turns end with the
# pad token?
#
# Write a test that gets *some* implementation of `last_token_score(values, attention_mask)` and raises if it is wrong. It will meet right and
# wrong implementations in a secret order. Rejecting a right one scores 0. Wrong ones count from the wrong side, assume one kind of padding,
# let padded values in, average instead of reading, or lose the gradient.

# %% ng="solution:test_last_token_score"
def test_last_token_score(score):
    """Raise if `score` is not a right last_token_score(values, attention_mask); return None if it is."""
    ### BEGIN SOLUTION
    values = torch.arange(1.0, 25.0, dtype=torch.float64).view(4, 6) ** 1.5
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
# {{EXPERIMENT_A}}

# %% [markdown]
# ## Part B · Rankings, splits and cycles

# %% [markdown]
# {{card ranking_pairs}}
#
# Labellers often rank $K$ responses to one prompt. A ranking of $K$ gives up to $K(K-1)/2$ ordered pairs; tied ones give no pair. The pairs of one
# ranking are not independent: nine responses give 36 pairs, four give 6. If every pair counts the same, one prompt with nine responses shouts six
# times as loud as one with four. So every ranking that has at least one pair gets **the same total weight**, split equally over its pairs, and all
# weights sum to 1.

# %% ng="solution:ranking_pairs"
def ranking_pairs(ranks, group_id):
    """All ordered pairs inside each ranking, with weights.

    ranks      [N] numbers, 1 is best; equal ranks of one group are ties
    group_id   [N] int, equal for the responses of one ranking, in any order
    returns    (winner [P] int64, loser [P] int64, weight [P] float64): indices into 0..N-1; the weights sum to 1
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
# over the pairs of the last exercise. InstructGPT trained its reward model on all pairs of a ranking as one batch element [D], for the same reason.

# %% ng="solution:grouped_ranking_loss"
def grouped_ranking_loss(scores, ranks, group_id):
    """Weighted Bradley-Terry loss over the pairs of every ranking.

    scores, ranks, group_id   [N]
    returns                   scalar; 0 if there is no pair
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
# Held-out accuracy is only worth something if nothing of the test set was seen in training. Pairs of one ranking share responses. Prompts of one
# **family** are variants of each other (a paraphrase, another name). If any of them lies on both sides of the split, the model is examined on
# what it has learned by heart.
#
# A record here is a dict with `"family"` and `"ranking_id"`; either may be `None`, which means "shared with nobody". Records that share a family *or* a
# ranking belong together, and so do records connected through others. Return **positions**, so that tensors made from the records can be split by
# the same lists.

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
# {{EXPERIMENT_B}}

# %% [markdown]
# ## Part C · Is it calibrated, and on which law?

# %% [markdown]
# {{card expected_calibration_error}}
#
# A reward model's probabilities should mean what they say: of the comparisons to which it gives 0.8, four in five should go that way. Sort the
# predictions into equal bins of $[0,1]$; in each bin compare the mean prediction with the fraction of ones:
#
# $$\mathrm{ECE}=\sum_{b}\frac{n_b}{N}\,\big|\,\overline{\text{label}}_b-\overline{\text{prob}}_b\,\big| .$$
#
# Bin $i$ of $k$ covers $[i/k, (i+1)/k)$; the last one includes 1. Empty bins count nothing.

# %% ng="solution:expected_calibration_error"
def expected_calibration_error(prob, label, bins=10):
    """Mean gap between confidence and frequency over equal-width bins, weighted by count.

    prob      [N] float in [0, 1]
    label     [N] 0 or 1
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
# {{EXPERIMENT_C}}

# %% [markdown]
# ## Part D · Labels from machines, labels worth buying, labels in time

# %% [markdown]
# {{card soft_label_loss}}
#
# An AI judge gives a probability, not a choice. Judges are overconfident, so Constitutional AI clamped the judge's probabilities to 40-60 % before
# training on them [D]. With $m$ the margin $r_A-r_B$ and $q$ the judge's clamped probability that A is better, the loss is the cross-entropy
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
    returns   scalar
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
# {{card query_priority}}
#
# Labels cost money. Which pairs are worth asking about? Train an **ensemble** of $E$ reward models; where they disagree, a label teaches most. With scores
# $s^{(e)}_{n,0}, s^{(e)}_{n,1}$ of the two responses of pair $n$:
#
# $$\text{priority}_n=\operatorname{Var}_e\,\sigma\!\big(s^{(e)}_{n,1}-s^{(e)}_{n,0}\big),$$
#
# the variance over the ensemble, with divisor $E$. The probabilities disagree, not the scores: two models that are both sure of the same answer do not
# disagree, however far apart their scores are.

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
# Always asking about the top $k$ would make the labelled set a biased sample of nothing in particular. Draw instead: with
# $\pi = \operatorname{softmax}(\text{priority}/\tau)$ draw $k$ pairs **without replacement**, and record the propensity $\pi_n$ of *every* pair. It is above 0 for
# all, so a mean over the selected ones can be corrected by weights $1/\pi_n$.

# %% ng="solution:select_queries"
def select_queries(priority, k, temperature, seed):
    """Draw k pairs to be labelled, and say how likely each pair of the pool was.

    priority      [N] float
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
# {{EXPERIMENT_D}}

# %% [markdown]
# {{card intertemporal_loss}}
#
# Long episodes can't be compared as wholes; people can say "between here and there it got better". DeepMind's Playhouse agents were trained from such
# marks [D]. Let a utility $U_t$ be read at every prefix of an episode. A mark $+1$ between times $e<l$ says that $U_l>U_e$, a mark $-1$ the opposite:
#
# $$L=-\frac1M\sum_m \log\sigma\big(\text{mark}_m\,(U_{b_m,l_m}-U_{b_m,e_m})\big).$$
#
# An episode with somebody else's instruction is a natural negative: its marks are turned around.

# %% ng="solution:intertemporal_loss"
def intertemporal_loss(utility, earlier, later, mark):
    """Bradley-Terry between two prefixes of the same episode.

    utility         [B, T] float: utility after each step
    earlier, later  [B] int: time indices, one mark per episode
    mark            [B] +1 (it got better) or -1 (it got worse)
    returns         scalar, the mean over marks
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
# RLHF maximises reward minus a leash: $J(\pi)=\mathbb E_\pi[r]-\beta\,\mathrm{KL}(\pi\,\|\,\pi_{\text{ref}})$. Over a list of responses the best law is known in closed
# form:
#
# $$\pi^*(y)=\frac{1}{Z}\,\pi_{\text{ref}}(y)\,e^{r(y)/\beta}.$$
#
# Read backwards, $r(y)=\beta\log\frac{\pi^*(y)}{\pi_{\text{ref}}(y)}+\beta\log Z$: a policy *is* a reward model, up to a constant. That is the whole idea of DPO.

# %% ng="solution:optimal_policy"
def optimal_policy(ref_logprobs, reward, beta):
    """The maximiser of E[r] - beta KL(pi || ref) over all laws on the listed responses.

    ref_logprobs   [..., Y] log-probabilities of the reference (-inf: the reference never says it)
    reward         [..., Y]
    beta           > 0, in reward units per nat
    returns        [..., Y] log-probabilities
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
# Put the implicit reward $\beta\log\frac{\pi(y)}{\pi_{\text{ref}}(y)}$ into Bradley-Terry; the constant $\log Z$ cancels, because both responses answer the same
# prompt:
#
# $$L=-\frac1B\sum\log\sigma\Big(\beta\big[(\log\pi(y_w)-\log\pi_{\text{ref}}(y_w))-(\log\pi(y_l)-\log\pi_{\text{ref}}(y_l))\big]\Big).$$
#
# Here $\log\pi(y)$ is the **sum** of the response's token log-probabilities. An average would be another model of choice, and training on it is known to
# fall apart. Where policy and reference agree the loss is $\log 2$: if your training does not start there, the reference is not what you think.

# %% ng="solution:dpo_loss"
def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    """Direct preference optimisation on summed log-probabilities.

    policy_*, ref_*   [B] float: log-probability of the whole response
    beta              > 0
    returns           scalar, the mean over pairs; no gradient flows into the reference
    """
    ### BEGIN SOLUTION
    margin = (policy_chosen - ref_chosen.detach()) - (policy_rejected - ref_rejected.detach())
    return F.softplus(-beta * margin).mean()
    ### END SOLUTION


# %% ng="test:dpo_loss"
check(dpo_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> If both policies raise the chosen response by one nat, what changes? </details>
# <details><summary>Hint 2: where to look</summary> The reference is frozen: detach it. Use the stable log-sigmoid again. </details>
# <details><summary>Hint 3: almost code</summary> <code>softplus(-beta * ((pc - rc) - (pr - rr))).mean()</code> </details>

# %% [markdown]
# ### Experiment E · Five ways to skip the reward model
#
# {{EXPERIMENT_E}}

# %% [markdown]
# ## Part F · Exit test: better accuracy, worse choice

# %% [markdown]
# {{card reward_scores}}
#
# {{EXIT}}

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
# - Ouyang et al. (2022), rankings as one batch element; Bai et al. (2022), AI labels.
# - Rafailov et al. (2023), DPO; Azar et al. (2023), what it assumes.
# - Gao, Schulman and Hilton (2022), what happens when a proxy is optimised: that is level 2.

# %%
import resource

print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000:.0f} MB")
