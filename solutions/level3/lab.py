# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Level 3 · Selection versus optimisation
#
# There are two ways to get better answers out of a score. Level 2 changed the policy. This level leaves it alone, lets it answer many times and
# **chooses**. Choosing needs no gradient and no training run. It is paid for at every question, and whatever the judge (the reward model, or
# whatever else scores) gets wrong is what it finds first. In this level you write the arithmetic of selection, count its bill to the last token, and put it beside PPO at equal cost.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will be able to**
# - say what best-of-N is worth, without bias, from one pool of samples, by the score that selects and by gold;
# - say exactly how far selection moves the law of the answers, and when the formula that everybody quotes is wrong;
# - keep single-sample, consensus and reranked results apart, with the budget of each;
# - search for a proof in an AND-OR tree, and tell search from learning;
# - draw the whole frontier of quality against compute, and read off which methods nothing beats.
#
# **You need** levels 0 to 2. **Time** about 5 hours of work. {{measured}}

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %% ng="locked:setup"
import math

import torch

from autograder import check, statement

# %% [markdown]
# ## Part A · What selection is worth
#
# Five things are often called "RL". Only some of them change weights:
#
# | loop | what changes | samples of the current policy? |
# |---|---|---|
# | supervised fine-tuning | the policy | no |
# | training a reward model | the judge | no, once the data are there |
# | online RL | the policy, usually a critic too | yes |
# | sampling and choosing, search | **no weight** | yes, for every question |
# | orchestration: which tool, which model | possibly nothing | it acts live |
#
# Evidence for one is not evidence for another. WebGPT (OpenAI, 2021) answered questions with a text browser, and its best answerer was not its
# PPO policy: judges preferred the PPO policy to the cloned one 58 %
# of the time, and best-of-64 *from the cloned policy* 68 % of the time [D].

# %% [markdown]
# {{card best_of_n}}
#
# Draw candidates $y_1,\dots,y_M$ for a prompt $x$ and score each with $s_i=s(x,y_i)$. Best-of-$N$ answers with
#
# $$y_{i^*},\qquad i^*=\min\big\{\operatorname*{arg\,max}_{i\le N}\ s_i\big\}.$$
#
# Only the first $N$ candidates count, so that one pool gives best-of-4 and best-of-64. Equal scores are common (a test that passes, a rounded mark),
# and a rule for them belongs to the definition: the first wins.

# %% ng="solution:best_of_n"
def best_of_n(candidates, scores, n):
    """The candidate with the highest score among the first n, the first one among equals.

    candidates   list of M objects of any kind (text, tuples, ...), or a tensor [M, ...], whose rows are the candidates
    scores       [M] float; -inf is a legal score. What stands behind the first n is not looked at
    n            1 <= n <= M
    returns      the candidate itself: neither its position nor its score
    """
    ### BEGIN SOLUTION
    best = 0
    for i in range(1, n):
        if scores[i] > scores[best]:  # strictly: among equals the first stays
            best = i
    return candidates[best]
    ### END SOLUTION


# %% ng="test:best_of_n"
check(best_of_n)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> If the scores of candidates 2 and 5 are equal and highest, which comparison, <code>&gt;</code> or
# <code>&gt;=</code>, keeps candidate 2? </details>
# <details><summary>Hint 2: where to look</summary> Cut the scores to the first n before you look for the greatest. A score of minus infinity is no
# reason to give up. </details>
# <details><summary>Hint 3: almost code</summary> Start with <code>best = 0</code>; for every i below n, replace it if <code>scores[i] >
# scores[best]</code>; return <code>candidates[best]</code>. </details>

# %% [markdown]
# {{card expected_best_of_n}}
#
# What is best-of-$N$ *worth*? You have a pool of $M\ge N$ samples, the score $s_i$ of each and its true quality $g_i$ (**gold**: fresh human labels,
# hidden tests, or in a toy a formula). To take the first $N$ gives one noisy number. Better: the mean over **all** $\binom MN$ subsets of $N$ samples
# of the gold of the sample that the *score* selects. It is unbiased, and it need not be enumerated: sample $i$ is selected by exactly those subsets
# whose other $N-1$ members it beats,
#
# $$\widehat V_N=\sum_{i=1}^{M} g_i\,\frac{\binom{b_i}{N-1}}{\binom MN},\qquad b_i=\#\{\text{samples that } i \text{ beats}\}.$$
#
# Sample $i$ beats those with a lower score, and those with the same score that stand *behind* it.
#
# By the selecting score itself ($g=s$) this can't fall as $N$ grows. By gold it can.
#
# $\binom{4000}{2000}$ has more than a thousand digits, and no `float` holds it. From the best sample downwards the weights are easy: the best gets
# $w=N/M$, and if a sample beats $b$ others, the next one below it gets $w\,\frac{b-(N-1)}{b}$.

# %% ng="solution:expected_best_of_n"
def expected_best_of_n(scores, gold, n):
    """Mean gold of the sample that the score selects, over all subsets of n of the M samples.

    scores    [M] float: selects. Among equals the first in order is selected, in every subset
    gold      [M] float: what the selected sample is worth
    n         1 <= n <= M; n = 1 gives the mean of gold, n = M the gold of best-of-n
    returns   a scalar: a 0-dimensional float64 tensor, on which 3.3 relies; exact (relative error below 1e-6) also for a few thousand
              samples and any n
    """
    ### BEGIN SOLUTION
    order = scores.sort(descending=True, stable=True).indices  # stable: among equals the first in order stays in front
    ordered = gold.double()[order].tolist()
    size = len(ordered)
    value, weight = 0.0, n / size
    for place in range(size - n + 1):  # a sample that beats fewer than n - 1 others is never selected
        value += weight * ordered[place]
        beaten = size - 1 - place
        weight *= (beaten - (n - 1)) / max(beaten, 1)
    return torch.tensor(value, dtype=torch.float64)
    ### END SOLUTION


# %% ng="test:expected_best_of_n"
check(expected_best_of_n)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Scores 1, 2, 3, 5, 8 and n = 2: how many of the ten pairs does 8 win, how many does 5, how many does
# 1? </details>
# <details><summary>Hint 2: where to look</summary> Sort by score, the highest first, with a <em>stable</em> sort. The sample in place p (from 0)
# beats M - 1 - p others. Run down the list with a weight that starts at n / M. </details>
# <details><summary>Hint 3: almost code</summary> For p in range(M - n + 1): add <code>w * gold[order[p]]</code>, then <code>w = w * (b - (n - 1)) /
# b</code> with <code>b = M - 1 - p</code>; mind b = 0. </details>

# %% [markdown]
# {{card test_expected_best_of_n}}
#
# **Bug hunt.** A wrong estimate of best-of-N never crashes. It gives a smooth, rising curve that is a little too high, and a paper gets written.
#
# Write a test that gets *some* implementation of `expected_best_of_n(scores, gold, n)` and raises if it is wrong. It will meet right and wrong
# implementations in a secret order. Rejecting a right one scores 0: run it on your own first. Wrong ones look at other subsets (the first $n$ samples
# only, draws *with* replacement, counts off by one), return something else (the score, or the gold of the sample with the best gold), select by the
# lowest score, take the samples to be sorted, break ties the other way, or lose their digits where the pool is large.
#
# What you may rely on: right ones return a 0-dimensional float64 tensor that is exact to about 1e-6, and cope with a few thousand samples. What they
# may rely on: float64 tensors of finite numbers, $1\le n\le M$. Your test meets many of them, so keep it under a few seconds.
#
# **Decide first:** an implementation that uses only the first $n$ samples is unbiased. In what sense is it wrong here, and would you see it if you
# averaged over many random pools?

# %% ng="solution:test_expected_best_of_n"
def test_expected_best_of_n(estimate):
    """Raise if `estimate` is not a right expected_best_of_n(scores, gold, n); return None if it is."""
    ### BEGIN SOLUTION
    import itertools

    def expected(scores, gold, n):
        values = []
        for subset in itertools.combinations(range(len(scores)), n):
            selected = subset[0]
            for i in subset[1:]:
                if scores[i] > scores[selected]:
                    selected = i
            values.append(float(gold[selected]))
        return math.fsum(values) / len(values)

    pools = [
        ([0.3, -1.2, 2.5, 0.9, -0.4, 1.7], [1.0, 4.0, -3.0, 0.5, 2.5, -0.7]),  # neither sorted, nor with gold in the same order
        ([1.0, 0.0, 1.0, 2.0, 2.0, 0.0, 2.0], [5.0, -1.0, 3.0, 0.25, 7.0, 2.0, -4.0]),  # ties at every level
        ([-7.0, -7.0, -7.0], [1.0, 2.0, 6.0]),
        ([-3.0], [0.75]),
    ]
    for scores, gold in pools:
        s, g = torch.tensor(scores, dtype=torch.float64), torch.tensor(gold, dtype=torch.float64)
        for n in range(1, len(scores) + 1):
            got = float(estimate(s.clone(), g.clone(), n))
            assert abs(got - expected(scores, gold, n)) < 1e-6, f"{scores}, n = {n}"
    # A large pool with a known answer: of the numbers 1..M the greatest of n is n (M + 1) / (n + 1) on average.
    size = 1000
    values = (torch.randperm(size, generator=torch.Generator().manual_seed(1)) + 1).double()
    for n in (2, 30, 700):
        wanted = n * (size + 1) / (n + 1)
        assert abs(float(estimate(values.clone(), 3 - values, n)) / (3 - wanted) - 1) < 1e-6, f"{size} samples, n = {n}"
    ### END SOLUTION


# %% ng="test:test_expected_best_of_n"
check(test_expected_best_of_n)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Of how many samples can you write down every subset and let each of them choose? What must the pool
# contain so that every mistake in the list gives another number? </details>
# <details><summary>Hint 2: where to look</summary> <code>itertools.combinations</code> over positions; scores in no order; gold in another order than
# the scores; ties; every n from 1 to M; one pool of thousands. </details>
# <details><summary>Hint 3: almost code</summary> Compare with the mean of <code>gold[first best of subset]</code>. For the large pool take the scores
# 1..M in random order: of n of them the greatest is <code>n (M + 1) / (n + 1)</code> on average. </details>

# %% [markdown]
# ### Experiment A · The same typical error, another tail
#
# Gold is standard normal. Two judges see gold plus an error of the same *typical* size (the same median of its absolute value). The errors of one are
# normal. The other's have fat tails: mostly small, now and then enormous, as when a reward model meets a text that its training never showed it. We
# draw pools of samples, and *your* `expected_best_of_n` says what best-of-$N$ is worth by gold.
#
# **Predict before you run:** what does gold do for each judge as $N$ grows to 256? And how much noisier is the estimate from the first $N$ samples of
# a pool than the mean over all subsets?

# %%
prediction_a = ""  # for example "both rise, the fat-tailed one more slowly; twice as noisy"

# %% tags=["experiment"]
from tqdm.auto import tqdm

from course.figures import say, style

POOLS, POOL = (10, 64) if FAST else (100, 256)
generator = torch.Generator().manual_seed(SEED)


def normal():
    return torch.randn(POOLS, POOL, generator=generator, dtype=torch.float64)


toy_gold = normal()
fat = normal() / ((normal().square() + normal().square()) / 2).sqrt()  # Student's t with two degrees of freedom
JUDGES = {"thin tails": normal(), "fat tails": 0.826 * fat}  # 0.826 makes the medians of the absolute errors equal
steps_of_n = [2**i for i in range(int(math.log2(POOL)) + 1)]
worth = {name: torch.zeros(len(steps_of_n), POOLS) for name in JUDGES}
first_only = torch.zeros(len(steps_of_n), POOLS)
for p in tqdm(range(POOLS), desc="pools"):
    for i, n in enumerate(steps_of_n):
        for name, error in JUDGES.items():
            worth[name][i, p] = float(expected_best_of_n(toy_gold[p] + error[p], toy_gold[p], n))
        first_only[i, p] = float(best_of_n(toy_gold[p], toy_gold[p] + JUDGES["thin tails"][p], n))
mean_worth = {name: w.mean(1).tolist() for name, w in worth.items()}
top = max(range(len(steps_of_n)), key=lambda i: mean_worth["fat tails"][i])
thin_end, fat_top, fat_end = mean_worth["thin tails"][-1], mean_worth["fat tails"][top], mean_worth["fat tails"][-1]
figure, (left, right) = style.canvas(
    2, title=f"Thin tails: gold reaches {thin_end:.2f}. Fat tails: {fat_top:.2f} at N = {steps_of_n[top]}, then {fat_end:.2f}"
)
for (name, values), colour, marker in zip(mean_worth.items(), (style.BLUE, style.ORANGE), style.MARKERS):
    left.plot(steps_of_n, values, color=colour, marker=marker, label=f"errors with {name}")
right.plot(steps_of_n, first_only.std(1), color=style.GREY, marker="s", label="the first N samples")
right.plot(steps_of_n, worth["thin tails"].std(1), color=style.BLUE, marker="o", label="all subsets of the pool")
style.label(left, x="N", y="gold of the selected sample", title=f"mean over {POOLS} pools")
style.label(right, x="N", y="standard deviation over pools", title="noise of the estimate, thin tails")
for panel in (left, right):
    panel.set_xscale("log", base=2)
    panel.legend(frameon=False, fontsize=9)
right.set_ylim(0)
figure

# %% tags=["experiment"]
sixteen = steps_of_n.index(16)
say(
    f"**What came out.** From N = 1 to N = {POOL} gold changed by {thin_end - mean_worth['thin tails'][0]:+.2f} with thin tails and by "
    f"{fat_end - mean_worth['fat tails'][0]:+.2f} with fat ones, whose maximum is {fat_top:.2f} at N = {steps_of_n[top]}. At N = 16 an estimate from the "
    f"first samples has a standard deviation of {float(first_only[sixteen].std()):.2f}, one from all subsets of the same pool "
    f"{float(worth['thin tails'][sixteen].std()):.2f}. You predicted: {prediction_a or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** which tail your judge has. Both judges would pass the same validation on ordinary pairs, and the difference is in
# events that a sample of a few hundred labels hardly contains. The noise of the mean over all subsets grows with $N$, because large subsets overlap
# more and more. At the largest $N$ there is one subset, and the two estimates are the same number.

# %% [markdown]
# ## Part B · Counting successes

# %% [markdown]
# {{card pass_at_k}}
#
# For tasks with a checker the question is: how likely is it that *at least one* of $k$ samples is right? Say $c$ of $n$ samples are right. Then,
# over all choices of $k$ of the $n$,
#
# $$\text{pass@}k=1-\binom{n-c}{k}\Big/\binom nk=1-\prod_{j=0}^{c-1}\Big(1-\frac{k}{n-j}\Big).$$
#
# It is `expected_best_of_n` for a score and a gold that are 1 or 0, with a judge that never errs. That judge is the point: pass@$k$ says what a
# *perfect* selector could reach, and no user gets it without one. The tempting $1-(1-c/n)^k$ draws with replacement and is biased downwards: 0.83 in
# place of 0.92 for $n=10$, $c=3$, $k=5$.

# %% ng="solution:pass_at_k"
def pass_at_k(n, c, k):
    """Share of all choices of k from n samples, c of them right, that contain at least one right sample.

    n, c, k   integers, 0 <= c <= n and 1 <= k <= n
    returns   float: exactly 0 where c = 0, exactly 1 where fewer than k samples are wrong; absolute error below 1e-6 for n up to 100 000
    """
    ### BEGIN SOLUTION
    all_wrong = 1.0
    for j in range(c):
        all_wrong *= 1 - k / (n - j)  # exactly 0 at j = n - k, which is reached if fewer than k samples are wrong
    return 1 - all_wrong
    ### END SOLUTION


# %% ng="test:pass_at_k"
check(pass_at_k)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> With 3 wrong samples and k = 5, can a choice of 5 be all wrong? Which factor of the product says so?
# </details>
# <details><summary>Hint 2: where to look</summary> The product form needs no binomial coefficient, so nothing can overflow. </details>
# <details><summary>Hint 3: almost code</summary> Multiply <code>1 - k / (n - j)</code> for j in range(c), and subtract from 1. Where fewer than k
# samples are wrong a factor is exactly 0, so the product form needs no case of its own. </details>

# %% [markdown]
# ## Part C · What selection costs in KL

# %% [markdown]
# {{card best_of_n_kl}}
#
# Best-of-$N$ changes no weight, but it changes the law of the answers. How far? If the policy has a finite list of answers with $p_y=\pi(y)$, this
# can be computed exactly. Let $F(y)$ be the policy's probability of a score **at most** $s_y$, $F_<(y)$ of a score **below** $s_y$, and
# $P(y)=F(y)-F_<(y)$ of that very score. The best of $N$ draws has that score with probability $F^N-F_<^N$. The first drawn wins a tie, so inside a
# class of equal scores the answers share as the policy does (a class of probability 0 is never given and adds nothing):
#
# $$q_y=p_y\,\frac{F(y)^N-F_<(y)^N}{P(y)},\qquad \mathrm{KL}(q\,\|\,\pi)=\sum_y q_y\log\frac{q_y}{p_y}.$$
#
# Papers write $\mathrm{KL}=\log N-\frac{N-1}N$. That is an **upper bound** of the exact value for $N>1$. It is reached only in the limit of a law
# without ties and without heavy atoms. With two equally likely answers best-of-16 is 0.693 nats away, and the formula says 1.835.

# %% ng="solution:best_of_n_kl"
def best_of_n_kl(logprobs, scores, n):
    """Exact KL divergence of best-of-n from the policy, in nats.

    logprobs   [Y] float64 log-probabilities of all answers of the policy, normalised; -inf (never given) is legal and adds nothing, whatever
               its score
    scores     [Y] float; among equal scores the first one drawn is selected
    n          1 to 10 000
    returns    scalar; 0 for n = 1 and where all scores are equal. Right to 1e-6, so work in float64
    """
    ### BEGIN SOLUTION
    levels, level = scores.unique(return_inverse=True)  # ascending
    mass = torch.zeros(len(levels), dtype=torch.float64).index_add(0, level, logprobs.double().exp())
    mass = mass / mass.sum()
    upto = mass.cumsum(0).clamp(max=1)
    chosen = upto**n - torch.cat([torch.zeros(1, dtype=torch.float64), upto[:-1]]) ** n
    counted = chosen > 0  # what is never selected is 0 log 0
    return (chosen[counted] * (chosen[counted] / mass[counted]).log()).sum()
    ### END SOLUTION


# %% ng="test:best_of_n_kl"
check(best_of_n_kl)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Two answers of equal score have probabilities 0.3 and 0.1. If best-of-n selects that score with
# probability 0.8, how often does it give each of them, and what is q / p for both? </details>
# <details><summary>Hint 2: where to look</summary> q / p is the same for all answers of one score: sum over the different scores
# (<code>unique(return_inverse=True)</code>, ascending), with the cumulative sum of their masses as F. </details>
# <details><summary>Hint 3: almost code</summary> <code>upto = cumsum(mass)</code>, <code>below</code> the same shifted by one with 0 in front,
# <code>Q = upto**n - below**n</code>; the sum of <code>Q * log(Q / mass)</code> where Q is positive. </details>

# %% [markdown]
# ### Experiment B · The formula and the truth
#
# Five policies whose answers can be listed: two, ten and a thousand equally likely answers with different scores; a *confident* policy that gives one
# mediocre answer in 90 % of cases and shares the rest among 99 others; and a thousand answers that the judge marks from 0 to 4 only. *Your*
# `best_of_n_kl` gives the exact divergence.
#
# **Predict before you run:** for which of the five is $\log N-\frac{N-1}N$ nearly right? At $N=64$, by what factor is it off for the two equally
# likely answers?

# %%
prediction_b = ""

# %% tags=["experiment"]
generator = torch.Generator().manual_seed(SEED + 1)


def uniform(count):
    return torch.full((count,), -math.log(count), dtype=torch.float64)


confident = torch.full((100,), 0.1 / 99, dtype=torch.float64)
confident[50] = 0.9
LAWS = {
    "2 answers": (uniform(2), torch.arange(2.0)),
    "10 answers": (uniform(10), torch.arange(10.0)),
    "1000 answers": (uniform(1000), torch.arange(1000.0)),
    "confident policy": (confident.log(), torch.arange(100.0)),
    "1000 answers, marks 0 to 4": (uniform(1000), torch.randint(0, 5, (1000,), generator=generator).double()),
}
draws = [2**i for i in range(11)]
exact = {name: [float(best_of_n_kl(*law, n)) for n in draws] for name, law in tqdm(LAWS.items(), desc="laws")}
quoted = [math.log(n) - (n - 1) / n for n in draws]
four, at = draws.index(4), draws.index(64)
low, high = (extreme(values[at] for values in exact.values()) for extreme in (min, max))
figure, (panel,) = style.canvas(1, title=f"At N = 64 the formula says {quoted[at]:.2f} nats; exact: {low:.2f} to {high:.2f}")
panel.plot(draws, quoted, color=style.INK, linestyle="--", label="log N - (N - 1)/N")
for (name, values), colour, marker in zip(exact.items(), style.CYCLE, style.MARKERS):
    panel.plot(draws, values, color=colour, marker=marker, markersize=5, label=name)
panel.set_xscale("log", base=2)
style.label(panel, x="N", y="KL from the policy, nats")
panel.legend(frameon=False, fontsize=9)
figure

# %% tags=["experiment"]
say(
    "**What came out.**\n\n| law | exact, N = 4 | formula / exact | exact, N = 64 | formula / exact |\n|---|---|---|---|---|\n"
    + "\n".join(
        f"| {name} | {values[four]:.3f} | {quoted[four] / values[four]:.2f} | {values[at]:.3f} | {quoted[at] / values[at]:.2f} |"
        for name, values in exact.items()
    )
    + f"\n\nThe formula says {quoted[four]:.3f} and {quoted[at]:.3f} nats. You predicted: {prediction_b or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** the KL of a language model's best-of-$N$, whose answers nobody can list. There the formula is an upper bound and no
# measurement. Long free texts are close to the limit, short answers and coarse marks are not. So a plot that puts best-of-$N$ and a trained policy on
# one KL axis compares a bound with an estimate, unless it says otherwise.

# %% [markdown]
# ## Part D · Three budgets

# %% [markdown]
# {{card consensus}}
#
# If answers can be compared, no judge is needed: draw $k$ samples and give the answer that most of them give. Among equally frequent answers take the
# one that was **seen first**: whose first appearance comes earliest.

# %% ng="solution:consensus"
def consensus(answers):
    """The most frequent answer; among equally frequent ones the one whose first appearance comes earliest.

    answers   non-empty list of hashable objects
    returns   the answer itself
    """
    ### BEGIN SOLUTION
    votes = {}
    for answer in answers:
        votes[answer] = votes.get(answer, 0) + 1
    return max(votes, key=votes.get)  # a dict keeps the order of first appearance, and max keeps the first of equals
    ### END SOLUTION


# %% ng="test:consensus"
check(consensus)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For a, b, b, a, c: who has most votes, and who was seen first? </details>
# <details><summary>Hint 2: where to look</summary> A dict of counts keeps the order in which its keys first appeared. </details>
# <details><summary>Hint 3: almost code</summary> Count into a dict, then <code>max(votes, key=votes.get)</code>. </details>

# %% [markdown]
# {{card process_score}}
#
# An **outcome** reward model looks at a whole solution. A **process** reward model gives every step $t=1,\dots,K$ of a solution the probability
# $p_t$ that it is valid. A solution is valid if all its steps are, and its score is
#
# $$S=\prod_{t=1}^{K}p_t,\qquad \log S=\sum_t\log p_t .$$
#
# Every step that is not certain lowers $S$, so long solutions are punished for being long. The length-calibrated score is the geometric mean
# $S^{1/K}$: it doesn't change when a step is added whose probability is the score itself.
#
# "Let's Verify Step by Step" trained such a model on about 800 000 step labels and used it to *choose* among solutions; it reports no training of the
# policy by RL [D].

# %% ng="solution:process_score"
def process_score(step_probs, calibrate_length=False):
    """The probability that all steps are valid, or the geometric mean of the steps' probabilities.

    step_probs         tensor [K] of floats in [0, 1], K >= 1
    calibrate_length   False: the product; True: its K-th root, right also for thousands of steps, whose product is 0 in floating point
    returns            scalar in [0, 1]; 0 in both cases if a step has probability 0
    """
    ### BEGIN SOLUTION
    if calibrate_length:
        return step_probs.log().mean().exp()
    return step_probs.prod()
    ### END SOLUTION


# %% ng="test:process_score"
check(process_score)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What is 0.5 to the power of 5000 in floating point, and what is its 5000th root? </details>
# <details><summary>Hint 2: where to look</summary> The logarithm of a geometric mean is a mean of logarithms. </details>
# <details><summary>Hint 3: almost code</summary> <code>step_probs.prod()</code>, or <code>step_probs.log().mean().exp()</code>; log 0 is -inf, and
# exp(-inf) is 0. </details>

# %% [markdown]
# ### Experiment C · Right for the wrong reasons
#
# Sums in steps: `2 + 1 = 3 ; 3 + 2 = 5 ;`. A hurried solver slips in one step out of four, and sometimes a second slip happens to repair the first:
# the total is then right and two steps are wrong. An outcome model learns from "the total is right", a process model from a label on every step, both
# from the same traces, with the same decoder and the same number of optimiser steps. Both choose among the same candidates. There are only 56
# different problems (three to five terms, each 1 or 2), so the candidates are new solutions of problems that training has seen. The oracle knows
# everything.
#
# **Predict before you run:** which model chooses more right *totals* among 16? Which chooses more solutions whose *steps* are all right? Can either
# of them get worse as $N$ grows?

# %%
prediction_c = ""

# %% tags=["experiment"]
from course.feedback.process import compare_selection

with tqdm(total=1, desc="decoder, outcome model, process model") as bar:
    compared = compare_selection(SEED, training_traces=200 if FAST else 2000, problems=16 if FAST else 128, steps=20 if FAST else 300)
    bar.update()
share = {(row.method, row.n): row for row in compared}
sizes_c = sorted({row.n for row in compared})
last = sizes_c[-1]
figure, (left, right) = style.canvas(
    2, title=f"Best of {last}, all steps right: {share['outcome', last].validity:.0%} by outcome, {share['process', last].validity:.0%} by process"
)
for method, colour, marker in zip(("random", "outcome", "process", "oracle"), (style.GREY, style.ORANGE, style.BLUE, style.GREEN), style.MARKERS):
    for panel, field in ((left, "accuracy"), (right, "validity")):
        panel.plot(sizes_c, [getattr(share[method, n], field) for n in sizes_c], color=colour, marker=marker, label=method)
style.label(left, x="N", y="share of selected solutions", title="total right")
style.label(right, x="N", y="share of selected solutions", title="every step right")
for panel in (left, right):
    panel.set_xscale("log", base=2)
    panel.set_xticks(sizes_c, [str(n) for n in sizes_c])
    panel.set_ylim(0, 1.05)
left.legend(frameon=False, fontsize=9)
figure

# %% tags=["experiment"]
say(
    "**What came out.**\n\n| chosen by | labels | "
    + " | ".join(f"total right, N = {n}" for n in sizes_c) + " | " + " | ".join(f"steps right, N = {n}" for n in sizes_c)
    + " |\n|---" + "|---" * (2 * len(sizes_c) + 1) + "|\n"
    + "\n".join(
        f"| {method} | {share[method, last].labels} | " + " | ".join(f"{share[method, n].accuracy:.2f}" for n in sizes_c)
        + " | " + " | ".join(f"{share[method, n].validity:.2f}" for n in sizes_c) + " |"
        for method in ("random", "outcome", "process", "oracle")
    )
    + f"\n\nYou predicted: {prediction_c or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# **What the figure cannot show:** that step labels are worth their price. The two models saw the same traces and not the same number of labels (the
# table has both), and a person who marks steps takes longer than one who checks a total. Nor does it show that outcome labels as such mislead: with a
# third of the labels the outcome model learns more slowly and is less converged after equal steps, so the gap mixes denser labels with slower learning.
# And it says nothing about new problems. It is one seed, and a task in which every step can be checked.

# %% [markdown]
# ### Experiment D · One pool, three budgets
#
# "Our system solves 93 % of the problems." OpenAI's report on o1 gives three numbers for AIME 2024: 74.4 % with one sample, 83.3 % by consensus of
# 64, 93 % with a learned reranker over 1000 samples [D]. They are three systems, which differ up to a thousandfold in the samples behind one answer;
# how the reranker was trained is not disclosed [U].
#
# We add up numbers again, with the solver of Experiment C. One pool of samples, read in three ways: the first sample; *your* `consensus` over the first $k$; the best
# of the first $N$ by *your* `process_score` of a learned process model. *Your* `pass_at_k` says what a perfect selector would reach. As in Experiment C
# the questions are new samples of sums that the process model has seen.
#
# **Predict before you run:** what gains more from 1 to 32 samples, consensus or the reranker? For which kind of mistake is a vote no help, however many
# samples it gets?

# %%
prediction_d = ""

# %% tags=["experiment"]
from course.feedback.outcome import language_decoder
from course.feedback.process import fit_process_model
from course.models.heads import ScalarHead
from course.search.consensus import three_budgets
from course.tasks import arithmetic

QUESTIONS, DRAWN, VOTES, FIT = (8, 8, 2, (10, 10)) if FAST else (128, 32, 8, (400, 300))
solver = arithmetic.SLOPPY
asked = arithmetic.problems(QUESTIONS, SEED + 1)
written = arithmetic.responses(arithmetic.problems(200 if FAST else 2000, SEED + 2), solver, SEED + 2)
drawn_answers = arithmetic.pool(asked, DRAWN, solver, SEED + 3)
with tqdm(total=2, desc="decoder, process model") as bar:
    trunk = language_decoder(written, arithmetic.VOCAB_SIZE, steps=FIT[0], seed=SEED)
    bar.update()
    judge = fit_process_model(
        ScalarHead(trunk, SEED), arithmetic.traces(written, solver.version), pad_id=arithmetic.PAD, step_end_id=arithmetic.STOP, steps=FIT[1],
        seed=SEED,
    )  # fmt: skip
    bar.update()
with torch.no_grad():
    step_logits = judge.step_logits(drawn_answers)  # +inf where a solution has no further step
step_scores = torch.stack([process_score(row[row < math.inf].sigmoid()) for row in step_logits]).view(QUESTIONS, DRAWN)
totals = [[drawn_answers.response(q * DRAWN + i)[-3] - arithmetic.ZERO for i in range(DRAWN)] for q in range(QUESTIONS)]  # total ; <end>
right_totals = [problem.answer for problem in asked]


def solved(choose, n):
    return sum(choose(q, n) == right_totals[q] for q in range(QUESTIONS)) / QUESTIONS


draws_d = [2**i for i in range(int(math.log2(DRAWN)) + 1)]
by_votes = [solved(lambda q, n: consensus(totals[q][:n]), n) for n in draws_d]
by_judge = [solved(lambda q, n: best_of_n(totals[q], step_scores[q], n), n) for n in draws_d]
counts = [row.count(answer) for row, answer in zip(totals, right_totals)]
perfect = [sum(pass_at_k(DRAWN, c, n) for c in counts) / QUESTIONS for n in draws_d]
figure, (panel,) = style.canvas(
    1,
    title=f"One sample {by_votes[0]:.0%}, consensus of {VOTES} {by_votes[draws_d.index(VOTES)]:.0%}, reranker over {DRAWN} {by_judge[-1]:.0%}: "
    "three systems",
)
for name, values, colour, marker in (
    ("pass@N: a perfect selector", perfect, style.GREY, "D"),
    ("best of N by the process model", by_judge, style.BLUE, "o"),
    ("consensus of N", by_votes, style.ORANGE, "s"),
):
    panel.plot(draws_d, values, color=colour, marker=marker, label=name)
panel.set_xscale("log", base=2)
panel.set_xticks(draws_d, [str(n) for n in draws_d])
panel.set_ylim(0, 1.05)
style.label(panel, x="samples per question", y="share of totals right")
panel.legend(frameon=False, loc="lower right")
figure

# %% tags=["experiment"]
lengths = drawn_answers.action_mask.sum(1).view(QUESTIONS, DRAWN)
budgets = three_budgets(totals, right_totals, step_scores, lengths, k=VOTES, n=DRAWN)
peak_d = draws_d[by_judge.index(max(by_judge))]
stuck = sum(c > 0 and consensus(row) != answer for c, row, answer in zip(counts, totals, right_totals))
say(
    "**What came out.** The three numbers, each with its budget:\n\n"
    + "\n".join(f"- {row}; the user waits for {row.latency:.0f} tokens" for row in budgets)
    + f"\n\nThe reranker does best at N = {peak_d} with {max(by_judge):.0%} and has {by_judge[-1]:.0%} at N = {DRAWN}. "
    f"In {stuck} of {QUESTIONS} questions the right total is in the pool and the consensus of all {DRAWN} is another. "
    f"You predicted: {prediction_d or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** which of the three to use. This solver's slips are independent, which is when a vote is at its best; a mistake that most
# samples share survives every vote, and a judge might catch it. At the same number of samples the reranker also reads every one of them, and its labels
# had to be bought first. Consensus needs answers that can be compared at all: nobody takes a vote over essays. And pass@$N$ is not a method but a
# ceiling: it belongs to whoever already knows the answer.

# %% [markdown]
# ## Part E · Search

# %% [markdown]
# {{card solve}}
#
# Best-of-$N$ draws whole answers. Where an exact checker accepts or refuses every *step*, search can do better: it keeps what is done and branches
# where a choice is open. A proof search alternates two kinds of nodes. At a **goal** one **tactic**, a step of proof, has to work (OR). A tactic
# turns its goal into subgoals, and **all** of them must be proved (AND). With $\text{cost}(g)$ for a goal,
#
# $$\text{cost}(g)=1+\min_{t}\ \max_{g'\in\,\text{kernel}(g,t)}\text{cost}(g'),$$
#
# where the minimum runs over the tactics $t$ that apply, and the maximum over no subgoals is 0: an AND node costs its hardest goal, every tactic
# costs 1. AlphaProof (Google DeepMind, 2024) charges 1 for each tactic and backs up the hardest subgoal [D].
#
# The **kernel** alone decides what a tactic does: it returns the subgoals, or `None` for a tactic that doesn't apply. That costs nothing and changes
# nothing. Goals may repeat and lead back to themselves; the budget, the greatest cost allowed, ends the search.
#
# A proof is `(tactic, (proof of the first subgoal, proof of the second, ...))`, in tuples. For example, a proof by a tactic `done` that closes its goal
# at once is `("done", ())`; a tactic `split` with two such subgoals is `("split", (("done", ()), ("done", ())))`.

# %% ng="solution:solve"
def solve(goal, tactics, kernel, budget):
    """A cheapest proof of a goal, if there is one that costs at most `budget`.

    goal      hashable
    tactics   tactics(goal) -> list of tactics in order of preference, possibly empty
    kernel    kernel(goal, tactic) -> list or tuple of subgoals (empty: the goal is closed), or None: the tactic does not apply.
              Both functions may be called as often as you like, and change nothing
    budget    integer >= 0: the greatest cost allowed. 0 allows no proof
    returns   None, or (tactic, (proof of each subgoal, in the kernel's order)) as tuples.
              Every part is a cheapest proof of its own goal, also where a dearer one would do, and where several tactics give a
              cheapest proof it uses the one that comes first in tactics(goal)
    """
    ### BEGIN SOLUTION
    known = {}

    def cheapest(goal, limit):
        """(cost, proof) of a cheapest proof that costs at most limit, or None."""
        if limit < 1:
            return None
        if (goal, limit) not in known:
            best = None
            for tactic in tactics(goal):
                subgoals = kernel(goal, tactic)
                if subgoals is None:
                    continue
                parts = [cheapest(subgoal, limit - 1) for subgoal in subgoals]
                if None in parts:  # an AND needs all of its goals
                    continue
                cost = 1 + max((part[0] for part in parts), default=0)
                if best is None or cost < best[0]:  # strictly: among equals the first tactic stays
                    best = (cost, (tactic, tuple(part[1] for part in parts)))
            known[goal, limit] = best
        return known[goal, limit]

    found = cheapest(goal, budget)
    return None if found is None else found[1]
    ### END SOLUTION


# %% ng="test:solve"
check(solve)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> If a proof of the goal may cost 4, what may each of the subgoals of its first tactic cost? </details>
# <details><summary>Hint 2: where to look</summary> A function of (goal, limit) that calls itself with limit - 1 ends whatever the goals do. Let it
# return the cost together with the proof. </details>
# <details><summary>Hint 3: almost code</summary> For every tactic that applies: solve all subgoals within limit - 1, skip the tactic if one has no
# proof, cost = 1 + max; keep the tactic only if it is <em>strictly</em> cheaper than the best so far. </details>

# %% [markdown]
# ### Experiment E · Whole answers or search?
#
# Small theorems of propositional logic: `p → q, p ⊢ q`. The kernel of `course.envs.proofs` knows 17 tactics and accepts nothing false. Two ways to
# prove with it, neither of which learns anything:
#
# - *your* `solve`, with a budget of 1, 2, 3 and 4;
# - independent **whole attempts**, as in best-of-N with a perfect checker: at every open goal a tactic is drawn at random, and if one does not apply
#   the attempt has failed.
#
# Both are billed in kernel calls. The search's bill is that of *your* `solve`: one that remembers what it has tried pays less, and the whole attempts
# then get less too. Every proof is checked once more by `check_proof`, which trusts nobody.
#
# **Predict before you run:** given as many kernel calls as the search used, what share of the theorems do whole attempts prove? Does the gap grow
# with the length of the proof?

# %%
prediction_e = ""

# %% tags=["experiment"]
import random

from course.envs.proofs import TACTICS, check_proof, kernel, problems
from course.search.proofs import proof_cost

theorems = problems(6 if FAST else 40, SEED, hypotheses=(2, 3))
calls = 0


def counted_kernel(goal, tactic):
    global calls
    calls += 1
    return kernel(goal, tactic)


def whole_attempt(goal, rng, left):
    """A random proof of depth at most `left`, or None at the first tactic that does not apply."""
    tactic = rng.choice(TACTICS)
    subgoals = counted_kernel(goal, tactic) if left else None
    if subgoals is None:
        return None
    parts = []
    for subgoal in subgoals:
        parts.append(whole_attempt(subgoal, rng, left - 1))
        if parts[-1] is None:
            return None
    return tactic, tuple(parts)


DEPTH = 4
search_calls = {budget: [] for budget in range(1, DEPTH + 1)}
proofs, sampled_at = {}, {}
rng = random.Random(SEED)
for place, goal in enumerate(tqdm(theorems, desc="theorems")):
    for budget in search_calls:
        calls = 0
        proof = solve(goal, lambda g: TACTICS, counted_kernel, budget)
        search_calls[budget].append(calls)
        if proof is not None:
            assert check_proof(goal, proof)
            proofs.setdefault(place, (budget, proof))
    calls = 0
    while calls < search_calls[DEPTH][-1]:
        proof = whole_attempt(goal, rng, DEPTH)
        if proof is not None and check_proof(goal, proof):
            sampled_at[place] = calls
            break
found_by = [sum(b <= budget for b, _ in proofs.values()) / len(theorems) for budget in search_calls]
mean_calls = [sum(c) / len(theorems) for c in search_calls.values()]
ticks = [10 ** (i / 4) for i in range(4, 1 + math.ceil(4 * math.log10(max(search_calls[DEPTH]))))]
by_attempts = [sum(c <= t for c in sampled_at.values()) / len(theorems) for t in ticks]
figure, (panel,) = style.canvas(
    1, title=f"Search proves {found_by[-1]:.0%} of {len(theorems)} theorems, whole attempts {by_attempts[-1]:.0%} with as many kernel calls"
)
panel.plot(mean_calls, found_by, color=style.BLUE, marker="o", label="search, budget 1 to 4")
panel.plot(ticks, by_attempts, color=style.ORANGE, marker="s", markersize=4, label="independent whole attempts")
panel.set_xscale("log")
panel.set_ylim(0, 1.05)
style.label(panel, x="kernel calls per theorem (search: mean)", y="share of theorems proved")
panel.legend(frameon=False)
figure

# %% tags=["experiment"]
hardest = max(proofs, key=lambda i: proof_cost(proofs[i][1]))
rates = []
for cost in sorted({proof_cost(proof) for _, proof in proofs.values()}):
    of_cost = [i for i, (_, proof) in proofs.items() if proof_cost(proof) == cost]
    rates.append(f"cost {cost}: {sum(i in sampled_at for i in of_cost)} of {len(of_cost)}")
say(
    f"**What came out.** Search proved {len(proofs)} of {len(theorems)} theorems with {sum(search_calls[DEPTH])} kernel calls at budget {DEPTH}. Of those, "
    f"whole attempts with as many calls proved: {'; '.join(rates)}. A hardest one: **{theorems[hardest]}**, whose proof costs "
    f"{proof_cost(proofs[hardest][1])}: `{proofs[hardest][1]}`. You predicted: {prediction_e or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** how search does with a policy worth the name. The attempts are blind; a trained network would draw tactics that
# apply, and would also tell the search where to look first. The case notebook `case_alphaproof` does both, and feeds what the kernel accepted back
# into training. There weights change, and what was search becomes RL.

# %% [markdown]
# ### Experiment F · Evolution is search
#
# DeepMind's AlphaCode and its successors draw many programs, filter, group and choose. Google DeepMind's AlphaEvolve lets a language model propose changes to programs, an executable
# evaluator scores them, and the best become the material of later prompts [D]. Its proposals get better during a run, and yet no weight changes: what
# improves is the list of ancestors.
#
# Here the proposals are random changes and crossings of small formulas, and the evaluator is the squared error on eleven points of
# $\max(x^2-2x,\;3-x)$. The comparison draws as many fresh formulas and keeps the best.
#
# **Predict before you run:** how many of five runs come below an error of 0.001? How many of blind sampling? Can the best error ever rise from one
# generation to the next?

# %%
prediction_f = ""

# %% tags=["experiment"]
from course.search.evolution import ancestors, error_score, evolve

GENERATIONS, OFFSPRING, RUNS = (3, 10, 2) if FAST else (50, 60, 5)
evaluate = error_score([((float(v),), float(max(v * v - 2 * v, 3 - v))) for v in range(-5, 6)])
evolved, blind = [], []
for run in tqdm(range(RUNS), desc="runs"):
    evolved.append(list(evolve(evaluate, inputs=1, generations=GENERATIONS, survivors=12, offspring=OFFSPRING, seed=SEED + run)))
    spent = evolved[-1][-1].evaluations
    (only,) = evolve(evaluate, inputs=1, generations=0, survivors=1, offspring=spent, seed=SEED + 100 + run)
    best_so_far, errors = -math.inf, []
    for candidate in only.proposed:
        best_so_far = max(best_so_far, candidate.score)
        errors.append(-best_so_far)
    blind.append(errors)
exact_runs = sum(-history[-1].best.score < 1e-3 for history in evolved)
figure, (panel,) = style.canvas(
    1, title=f"Error below 0.001: {exact_runs} of {RUNS} runs of evolution, {sum(e[-1] < 1e-3 for e in blind)} of blind sampling"
)
for run in range(RUNS):
    panel.plot([g.evaluations for g in evolved[run]], [-g.best.score for g in evolved[run]], color=style.BLUE, label=None if run else "evolution")
    panel.plot(range(1, len(blind[run]) + 1), blind[run], color=style.ORANGE, linestyle="--", label=None if run else "fresh formulas, keep the best")
panel.set_yscale("symlog", linthresh=1e-3)
panel.set_xscale("log")
panel.set_ylim(bottom=0)
style.label(panel, x="programs executed", y="error of the best program so far", title=f"{RUNS} runs each")
panel.legend(frameon=False)
figure

# %% tags=["experiment"]
history = max(evolved, key=lambda h: h[-1].best.score)
line = [*ancestors(history[-1].best.id, history), history[-1].best]
shown = [c for i, c in enumerate(line) if c.score > max((a.score for a in line[:i]), default=-math.inf)]
fell = sum(b.best.score < a.best.score for h in evolved for a, b in zip(h, h[1:]))
say(
    f"**What came out.** {exact_runs} of {RUNS} runs found a formula with an error below 0.001; the best score fell in {fell} of {RUNS * GENERATIONS} steps to a next "
    f"generation. The best program has {len(line) - 1} recorded ancestors. Those that were better than all before them:\n\n"
    "| number | made by | program | error |\n|---|---|---|---|\n"
    + "\n".join(f"| {c.id} | {c.proposal} | `{c.program}` | {0.0 - c.score:.3g} |" for c in shown[-8:])
    + f"\n\nYou predicted: {prediction_f or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** learning. Start the program again and it knows nothing: no weight exists that could have changed. That automated
# scores drive a loop does not make it RL of a model. For that a report must say that parameters were updated from returns. And the evaluator decides
# everything here: eleven points are eleven tests, and a program that is right on them may be wrong elsewhere.

# %% [markdown]
# ## Part F · The frontier

# %% [markdown]
# {{card pareto_front}}
#
# Methods differ in two things at once, cost and quality, and no weight between the two is right for everybody. Point $a$ **dominates** $b$ if it
# costs no more and is no worse, and is strictly better in at least one of the two. What no other point dominates is the **front**: the only methods
# worth discussing. Two equal points don't dominate each other, so both stay.

# %% ng="solution:pareto_front"
def pareto_front(points):
    """Positions of the points that no other point dominates.

    points    [N, 2] float: column 0 is a cost (less is better), column 1 a quality (more is better)
    returns   [F] integers, ascending; all copies of a point on the front are on it
    """
    ### BEGIN SOLUTION
    rows = points.tolist()

    def dominates(a, b):
        return a[0] <= b[0] and a[1] >= b[1] and a != b

    return torch.tensor([i for i, row in enumerate(rows) if not any(dominates(other, row) for other in rows)], dtype=torch.long)
    ### END SOLUTION


# %% ng="test:pareto_front"
check(pareto_front)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Two methods cost the same and one is better. Is the other on the front? And if they are equally good?
# </details>
# <details><summary>Hint 2: where to look</summary> Compare every point with every other one; tables have a dozen rows. </details>
# <details><summary>Hint 3: almost code</summary> a dominates b if <code>a[0] &lt;= b[0] and a[1] &gt;= b[1] and a != b</code>; keep the positions
# that nothing dominates. </details>

# %% [markdown]
# {{card frontier_table}}
#
# **Exit test.** One table in which selection and optimisation stand side by side, nothing is hidden in a sum, and every number carries the
# uncertainty that it has. One row for each $N$ in `sizes`, in that order, then one for PPO:
#
# | column | best-of-$n$ | ppo |
# |---|---|---|
# | `method`, `n` | `"best-of-4"`, 4 | `"ppo"`, 1 |
# | `sampled` | tokens of the first $n$ samples of every prompt | tokens sampled in training, plus those of its final samples |
# | `trained` | 0 | as given |
# | `judged` | the judge reads what was sampled; for $n=1$ nothing is judged: 0 | as given |
# | `total` | sampled + trained + judged | the same |
# | `latency` | tokens a user waits for if the $n$ samples are drawn side by side: the longest of them | tokens of the final sample |
# | `score`, `gold` | of the response that the score selects among the first $n$, first among equals | of the final sample |
# | `gold_low`, `gold_high` | $\text{gold}\mp t_{S-1}\cdot\text{sd}/\sqrt S$ over the $S$ **seeds**' means | the same |
# | `diversity` | number of different selected responses / number of prompts | the same, of the final samples |
# | `front` | whether no other row dominates this one in (`total`, `gold`) | the same |
#
# Costs are those of answering all $P$ prompts once, averaged over seeds; `latency`, `score` and `gold` are means over seeds and prompts; `diversity`
# is taken within a seed and averaged over seeds. The interval is over seeds and nothing else: the prompts of one seed share a policy and a reward
# model, and are no independent repetitions of the experiment. sd is the sample standard deviation (divisor $S-1$); $t$ is Student's, below. With one
# seed there is no interval: both ends are NaN.
#
# **Decide first:** PPO's training is paid once, and every later question costs one sample. Best-of-64 pays for every question. After how many
# questions would the order of the two totals change? The table answers for $P$ prompts, and only for those.

# %% ng="locked:student_t"
T95 = {1: 12.706205, 2: 4.302653, 3: 3.182446, 4: 2.776445, 5: 2.570582, 6: 2.446912, 7: 2.364624, 8: 2.306004, 9: 2.262157}
# T95[S - 1]: 95 % of a Student variable with S - 1 degrees of freedom lies within plus or minus this.

# %% ng="solution:frontier_table"
def frontier_table(pool, ppo, sizes=(1, 4, 16, 64)):
    """Rows of best-of-n for every size, in their order, and of PPO; S seeds, P prompts, M samples of each prompt.

    pool      dict: "score" (selects), "gold" [S, P, M] float; "tokens" [S, P, M] int, the length of each response; "response" [S, P, M]
              int, equal numbers for equal texts
    ppo       dict: the same four, [S, P], of its final samples; "sampled", "trained", "judged" [S], tokens of the whole training. The
              final samples are in none of the three
    sizes     numbers n, 1 <= n <= M;  S is 1 to 10
    returns   list of dicts with exactly the keys method (text), n (int), sampled, trained, judged, total, latency, score, gold,
              gold_low, gold_high, diversity (numbers) and front (bool), as in the table above
    """
    ### BEGIN SOLUTION
    def row(method, n, sampled, trained, judged, wait, score, gold, response):
        """From costs [S], and tensors [S, P] of what a user gets."""
        seeds = len(gold)
        means = gold.double().mean(1)
        half = T95[seeds - 1] * float(means.std()) / math.sqrt(seeds) if seeds > 1 else math.nan
        costs = {"sampled": sampled, "trained": trained, "judged": judged}
        costs = {name: float(torch.as_tensor(tokens).double().mean()) for name, tokens in costs.items()}
        center = float(means.mean())
        return {
            "method": method, "n": n, **costs, "total": sum(costs.values()), "latency": float(wait.double().mean()),
            "score": float(score.double().mean()), "gold": center, "gold_low": center - half, "gold_high": center + half,
            "diversity": sum(len(set(texts)) / len(texts) for texts in response.tolist()) / seeds,
        }  # fmt: skip

    rows = []
    for n in sizes:
        first = {name: x[:, :, :n] for name, x in pool.items()}
        best = first["score"].argmax(2, keepdim=True)  # the first of equals
        sampled = first["tokens"].sum((1, 2))
        selected = [first[name].gather(2, best)[:, :, 0] for name in ("score", "gold", "response")]
        rows.append(row(f"best-of-{n}", n, sampled, 0, sampled if n > 1 else 0, first["tokens"].amax(2), *selected))
    final = [ppo[name] for name in ("tokens", "score", "gold", "response")]
    rows.append(row("ppo", 1, ppo["sampled"] + ppo["tokens"].sum(1), ppo["trained"], ppo["judged"], *final))
    front = set(pareto_front(torch.tensor([[r["total"], r["gold"]] for r in rows], dtype=torch.float64)).tolist())
    return [{**r, "front": i in front} for i, r in enumerate(rows)]
    ### END SOLUTION


# %% ng="test:frontier_table"
check(frontier_table)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which of these are means over seeds of one number per seed, and which need the prompts of a seed
# together? </details>
# <details><summary>Hint 2: where to look</summary> Cut all four tensors of the pool to the first n, take <code>argmax</code> of the score over the
# last dimension, <code>gather</code> the others with it. One helper function for a row serves best-of-n and PPO. <code>front</code> comes last, when
# all rows are there. </details>
# <details><summary>Hint 3: almost code</summary> <code>best = score[:, :, :n].argmax(2, keepdim=True)</code>; <code>sampled = tokens[:, :,
# :n].sum((1, 2))</code>; <code>means = gold.mean(1)</code>; half width <code>T95[S - 1] * means.std() / S ** 0.5</code>; <code>len(set(...)) /
# P</code> for each seed; <code>pareto_front</code> on (total, gold). </details>

# %% [markdown]
# ### Experiment G · Best-of-N and PPO at the same sampled tokens
#
# The task, the fine-tuned policy and the reward model of level 2. One pool of 64 samples for each of 128 prompts (eight nouns, each asked about sixteen
# times) gives best-of-1, 4, 16 and 64. PPO trains a copy of the same policy on the same reward model. It stops when it has sampled, its final answers
# included, as nearly as many tokens as best-of-4 did for all prompts as whole steps allow (a step is a quarter of that budget), and is measured with one
# sample per prompt (*PPO at 4*); then again at the tokens of best-of-16 and of best-of-64. The operators of PPO are the package's: yours of level 2
# should give the same. The table is *your* `frontier_table`.
#
# **Predict before you run:** which of the seven rows has the best gold, which the best selecting score? Which rows are on the front of gold against
# *all* tokens (sampled, trained and judged)? At the tokens of best-of-64, is PPO past its peak?

# %%
prediction_g = ""  # for example "best-of-16; PPO at 64; all best-of-N; yes"

# %% tags=["experiment"]
from course.evidence.measure import operators
from course.figures import frontier as pictures
from course.search.frontier_study import SIZES, frontier_seed, tables_of
from course.training.bandit import prepare

sizes, prompts = ((1, 4), 8) if FAST else (SIZES, 128)
with tqdm(total=1, desc="policy, reward model") as bar:
    bandit = prepare(SEED)
    bar.update()
kept = {name: weight.clone() for name, weight in bandit.policy.state_dict().items()}
with tqdm(desc="PPO steps") as bar:
    live = frontier_seed(bandit, operators=operators(), sizes=sizes, prompts=prompts, watch=lambda step: bar.update())
unchanged = all(torch.equal(kept[name], weight) for name, weight in bandit.policy.state_dict().items())


def with_every_ppo(tables):
    """The rows of best-of-N, then PPO at the tokens of each size, with one front over all of them."""
    every = [dict(r) for r in next(iter(tables.values())) if r["method"] != "ppo"]
    every += [{**rows[-1], "method": f"PPO at {size}"} for size, rows in tables.items()]
    front = set(pareto_front(torch.tensor([[r["total"], r["gold"]] for r in every], dtype=torch.float64)).tolist())
    return [{**r, "front": i in front} for i, r in enumerate(every)]


pool, trained = tables_of([live])
rows = with_every_ppo({size: frontier_table(pool, ppo, sizes) for size, ppo in trained.items()})
best_gold, best_score = (max(range(len(rows)), key=lambda i: rows[i][key]) for key in ("gold", "score"))
pictures.frontier(
    rows,
    title=f"One seed: best gold {rows[best_gold]['gold']:.2f} by {rows[best_gold]['method']}, "
    f"best score {rows[best_score]['score']:.2f} by {rows[best_score]['method']}",
)

# %% tags=["experiment"]
def as_text(rows):
    head = "| method | sampled | trained | judged | total | latency | score | gold | diversity | front |\n|" + "---|" * 10 + "\n"
    return head + "\n".join(
        f"| {r['method']} | {r['sampled']:.0f} | {r['trained']:.0f} | {r['judged']:.0f} | {r['total']:.0f} | {r['latency']:.1f} | {r['score']:.2f} "
        f"| {r['gold']:.2f} | {r['diversity']:.2f} | {'yes' if r['front'] else ''} |"
        for r in rows
    )


largest, most_trained = rows[len(sizes) - 1], rows[-1]
one_round = float(trained[max(trained)]["tokens"].sum())  # PPO answering all prompts once more, after its training
training = most_trained["total"] - one_round
rounds = training / (largest["total"] - one_round)
say(
    f"**What came out.**\n\n{as_text(rows)}\n\n"
    f"The weights of the policy that selection drew from are the same before and after: **{unchanged}**. "
    f"PPO's training to the end cost {training:.0f} tokens. After {rounds:.1f} rounds of {prompts} questions it has been cheaper than {largest['method']}, "
    f"whatever its answers are worth. You predicted: {prediction_g or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** an interval, with one seed (more follow below). Tokens are not seconds: a trained token takes a backward pass too,
# samples drawn side by side wait for the longest only, and the critic's and the reward model's own training is in no column. Nor does it show PPO at
# its best: one $\beta$ and one learning rate, and stopped where the budget ends and not where your alarm of level 2 would have rung.

# %% [markdown]
# ### Experiment H · Choosing, then training on what was chosen
#
# Best-of-N is often called *rejection sampling*. The word has another meaning, too: keep the best samples and **fine-tune on them**. The choice then
# becomes part of the weights, and afterwards one sample is enough. Chosen samples are trained on as demonstrations whose provenance says which policy wrote them, which judge chose them and by which
# rule. The rejected ones stay in the log: without it nobody can say later what the policy's law was, or which prompts gave nothing.
#
# **Predict before you run:** a copy of the policy is fine-tuned on the best of 16 for each prompt, and measured on the prompts whose best samples it was
# trained on. Where between best-of-1 and best-of-16 does a *single* sample of it land?

# %%
prediction_h = ""

# %% tags=["experiment"]
from course.objectives.supervised import sft_loss
from course.search.pool import draw_pool, stack_trained
from course.search.rejection import select
from course.tasks import reviews
from course.tasks.records import batch_of
from course.training.sft import sft

GROUP, SFT_STEPS = (4, 2) if FAST else (16, 40)
place = (torch.arange(prompts)[:, None] * max(sizes) + torch.arange(GROUP)).flatten()  # the first 16 samples of each prompt
selection = select(
    live.pool.batch[place], live.pool.score[:, :GROUP].flatten(), torch.arange(prompts).repeat_interleave(GROUP), policy_version="after SFT",
    judge="reward model", family=reviews.text,
)  # fmt: skip
chosen = batch_of([(d.prompt, d.response) for d in selection.chosen], reviews.PAD, reviews.LENGTH)
student = bandit.actor()
trained_tokens = 0
for step in tqdm(
    sft(
        student, chosen, loss=lambda logits, tokens, mask: sft_loss(logits, tokens, mask, normalize="token"), steps=SFT_STEPS, lr=1e-3,
        batch_size=min(64, prompts), seed=SEED,
    ),
    total=SFT_STEPS, desc="fine-tuning",
):  # fmt: skip
    trained_tokens += min(64, prompts) * float(chosen.attention_mask.sum(1).float().mean())
asked = reviews.prompts(prompts, 900_000 + SEED)
after_sft = draw_pool(student, asked, 1, reward=bandit.reward, sampling=bandit.sampling, seed=SEED + 700_000)
spent = int(live.pool.tokens[:, :GROUP].sum())
once = frontier_table(pool, stack_trained([after_sft], sampled=[spent], trained=[round(trained_tokens)], judged=[spent]), sizes)[-1]
once["method"] = f"best-of-{GROUP}, SFT, one sample"
rows_h = rows[: len(sizes)] + [once]
figure, (panel,) = style.canvas(1, title=f"One sample after fine-tuning on the best of {GROUP}: gold {once['gold']:.2f}; best-of-1 before: {rows[0]['gold']:.2f}")
for key, colour, hatch, shift in (("score", style.ORANGE, "", -0.2), ("gold", style.GREEN, "//", 0.2)):
    name = {"score": "selecting score"}.get(key, key)
    places, heights = [i + shift for i in range(len(rows_h))], [r[key] for r in rows_h]
    panel.bar(places, heights, width=0.38, color=colour, hatch=hatch, edgecolor="white", label=name)
panel.axhline(0, color=style.GREY, linewidth=0.8)
panel.set_xticks(range(len(rows_h)), [r["method"] for r in rows[: len(sizes)]] + [f"best-of-{GROUP},\nthen SFT"])
style.label(panel, x="", y="score: z units; gold: utility")
panel.legend(frameon=False)
figure

# %% tags=["experiment"]
first = selection.chosen[0]
say(
    f"**What came out.**\n\n{as_text([once])}\n\nThe log holds {len(selection.log)} samples, {len(selection.rejected)} of "
    f"them rejected. The first demonstration: `{reviews.text(first.prompt + first.response)}`, with the provenance `{first.provenance}`. "
    f"You predicted: {prediction_h or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** how the fine-tuned policy does on other prompts: here they are the same eight nouns. Nor what a second round would do. Each
# round samples from the policy that the last one made, so the selecting score is pushed on and its errors with it. It is the same frontier as PPO's,
# reached in larger steps.
#
# So selection and optimisation are two ways to spend on one score. Selection pays per question, stops anywhere and leaves no trace. Training pays
# once, is cheap per question afterwards, and what it has learned from the judge's errors stays.

# %% [markdown]
# ### The evidence, over several seeds
#
# Experiment G for several seeds (`course evidence 3`), each with its own policy, reward model, prompts and PPO run.

# %% tags=["experiment"]
import json
from pathlib import Path

evidence = json.loads(Path("evidence.json").read_text())

tables = {size: evidence["tables"][str(size)] for size in sorted(int(name) for name in evidence["tables"])}
measured = with_every_ppo(tables)
on_front = [r["method"] for r in measured if r["front"]]
seeds = evidence["outcomes"]
of_ppo = sum("PPO" in name for name in on_front)
pictures.frontier(measured, title=f"{len(seeds)} seeds: {len(on_front)} of {len(measured)} rows are on the front, {of_ppo} of them PPO")

# %% tags=["experiment"]
final = tables[64]
pictures.score_against_gold(
    measured,
    title=f"From N = 16 to 64 the score gains {final[3]['score'] - final[2]['score']:.2f}, gold {final[3]['gold'] - final[2]['gold']:.2f}; "
    f"PPO ends at score {final[4]['score']:.2f}, gold {final[4]['gold']:.2f}",
    unit="selecting score: z units; gold: utility",
)

# %% tags=["experiment"]
waits = [f"{final[i]['latency']:.0f} tokens with {name}" for i, name in ((0, "best-of-1"), (3, "best-of-64"), (4, "PPO at 64"))]
pictures.diversity_and_latency(measured, title=f"Waiting: {', '.join(waits)}")

# %% [markdown]
# *PPO at 16* is PPO at the sampled tokens of best-of-16. Diversity is the share of different *texts*: one more adjective makes a text different. From
# N = 4 on it rises here with length, and it can't show collapse of another kind.

# %% tags=["experiment"]
def gold_of(outcome, method):
    return next(r["gold"] for r in outcome["rows"]["64"] if r["method"] == method)


def over_seeds(values):
    """Mean and ends of the 95 % Student interval, as in 3.10."""
    values = torch.tensor(values, dtype=torch.float64)
    center, half = float(values.mean()), T95[len(values) - 1] * float(values.std()) / math.sqrt(len(values))
    return center, center - half, center + half


ahead, ahead_low, ahead_high = over_seeds([gold_of(o, "best-of-64") - gold_of(o, "ppo") for o in seeds])
ends = [(o["rows"]["16"][-1], o["rows"]["64"][-1]) for o in seeds]  # PPO at the tokens of best-of-16 and of best-of-64
past_peak = sum(late["gold"] < early["gold"] and late["score"] > early["score"] for early, late in ends)
gain, gain_low, gain_high = over_seeds([o["curve"]["gold"][-1] - o["curve"]["gold"][-2] for o in seeds])  # from N = 32 to 64
if gain_high < 0:
    turn = "it has turned, by more than the noise"
elif gain_low > 0:
    turn = "it was still rising"
else:
    turn = "a turn can't be told from noise"
say(
    f"**What was measured.**\n\n{as_text(measured)}\n\nIntervals are 95 % Student intervals over {len(seeds)} seeds. At the sampled tokens of best-of-64, the gold "
    f"of best-of-64 is ahead of PPO's by {ahead:.2f}, {ahead_low:.2f} to {ahead_high:.2f}. From the tokens of best-of-16 to those of best-of-64 PPO's score rose and "
    f"its gold fell in {past_peak} of {len(seeds)} seeds. Best-of-N's own gold, estimated from all subsets of the pool (at N = 64 there is one), changed from N = 32 "
    f"to 64 by {gain:+.3f}, {gain_low:+.3f} to {gain_high:+.3f}: {turn}. On the front: {', '.join(on_front)}."
)

# %% [markdown]
# **What it cannot show:** that selection beats optimisation. It shows one task, one reward model of a thousand comparisons, one setting of PPO, and a
# bill for 128 questions. Ask a hundred times as many, and PPO's training is divided among them while best-of-64 pays for each; take a better reward
# model, and PPO goes further before it turns; more than 64 samples were not tried. What carries over is the form of the comparison: equal
# sampled tokens, every cost in its own column, gold beside the score, intervals over seeds, and no row left out.

# %% [markdown]
# ## Questions, marked by a person

# %% [markdown]
# **Q1.** A product page says: "Our new model solves 93 % of olympiad problems, the old one 74 %." In a footnote: "93 %: 1000 samples, learned
# reranker; 74 %: single sample." What can be concluded about the two *models*? Name the two further numbers that you would ask for, and what each
# could show.

# %% [markdown] ng="manual:question_budgets:3"
# About the models, next to nothing: two budgets are compared, and the old model with 1000 samples and the same reranker might reach the same or more.
# Ask for (1) both models with a single sample, and (2) both at the same budget with the same selector, consensus or reranker; pass@1000 of both would
# add what a perfect selector could reach, and so how much of the 93 % is due to the reranker. Beside each: sampled and judged tokens per problem,
# latency, and an interval, for there are few problems. *(Full marks: budgets confounded with models; two comparisons at equal budget; each number
# with what it could show either way.)*

# %% [markdown]
# **Q2.** A colleague plots gold against KL for PPO and for best-of-N on one axis, best-of-N at $\log N-\frac{N-1}N$, and finds that best-of-N "buys
# more gold per nat". What is wrong with the axis, in which direction does it err, and which comparison would you make in its place?

# %% [markdown] ng="manual:question_kl:3"
# The formula is an upper bound of best-of-N's KL, and PPO's KL is an estimate from samples of its own policy: a bound and an estimate on one axis.
# Best-of-N stands too far to the right, so its true gold per nat is even higher than plotted; the colleague's conclusion survives *this* error, but
# not with a number, and with ties or short answers the bound can be off by a large factor. Besides, nats are not what anybody pays. Compare at equal
# sampled tokens with training, inference and judge in separate columns, and gold with an interval over seeds. *(Full marks: bound against estimate,
# the direction, a comparison at equal cost.)*

# %% [markdown]
# **Q3.** A report says: "Our system proposes programs, runs them, keeps the best and improves by itself over weeks. This is reinforcement learning of
# the language model." Which evidence in the report would convince you, and which observation would speak against it? Give an example of a system
# where search and learning both happen.

# %% [markdown] ng="manual:question_search:3"
# Convincing: a statement that parameters were updated from the scores, with the objective, and different weight hashes before and after; or a fresh
# run *without* the archive of ancestors that starts better than the first one did. Against: equal hashes, or a fresh run without the archive that
# starts from nothing again. Then what improved is the context and the archive: evolutionary search with a model as the source of proposals, as in
# AlphaEvolve. Both happen in AlphaProof: tree search with the network fixed, and then training on the proofs that the kernel has verified. *(Full
# marks: update of weights as the criterion, an observation that decides, an example with both parts told apart.)*

# %% [markdown]
# ## What to read next
#
# - Nakano et al. (2021), WebGPT: best-of-64 against PPO, and the estimator of 3.2.
# - Gao, Schulman and Hilton (2022), over-optimisation by selection and by RL; Beirami et al. (2024), what the KL of best-of-N is and is not.
# - Chen et al. (2021), pass@k; Wang et al. (2022), self-consistency; Lightman et al. (2023), process supervision for selection.
# - AlphaProof (2024) and AlphaEvolve (2025), search with and without learning; the case notebook `case_alphaproof` rebuilds the first in small.
# - In this package, after handing in: `course/search`. Next: level 4, where an answer is no longer the end but an action with consequences.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
