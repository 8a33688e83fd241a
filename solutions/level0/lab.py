# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Level 0 · Probability and masks
#
# A language model gives a **law** (a probability distribution) over the next token: a probability for each entry of the vocabulary. Most of
# this course is arithmetic on that law: which tokens did the **policy** (the model that acts) choose, how likely were they, how far did the
# law move. Many bugs in
# training code are small: a shift by one, a mask that is off by a role, a mean over the wrong denominator. Here you meet each of them.
#
# **You will be able to**
# - turn logits into log-probabilities that survive huge logits, impossible tokens and half precision;
# - measure entropy and Kullback-Leibler divergence exactly and from samples, and know which estimator to trust when;
# - say of every token of a chat with tools whether the policy chose it, and train on exactly those tokens;
# - see why low loss on demonstrations does not mean good behaviour on one's own samples.
#
# **You need** Python, tensors in PyTorch, and the idea of a probability distribution. No reinforcement learning yet.
#
# **Time** about 5 hours: four for the exercises, one for the experiments and the questions. {{measured}}
#
# **How an exercise works.** A card says how long it takes, what it is worth and which statements its checks test: L0.01 is one, and
# `statement("L0.01")` says it in words. Replace the line `raise NotImplementedError()` by your code, run the cell, then run the check
# below it. A check tells you what it expected, what it got and, if your answer behaves like a mistake we know, which one. Gradients are
# checked too, so compute with tensors all the way. Stuck? Three hints are folded under each check: a question, a pointer, almost code.
# When your notebook is graded, the same checks run again on other numbers, with a few more. A card's "not allowed here" names functions, of
# the package or of a library, that would solve the exercise for you.
#
# **Shapes and units, in all levels.** `[B, T, V]` is a tensor of $B$ rows (the batch), $T$ positions in time and $V$ entries of the
# vocabulary; `[...]` stands for any dimensions. Logarithms are natural, so log-probabilities are in **nats**. A mask is bool or 0/1, and what
# stands where it is 0 never counts.

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
# ## Part A · The law over the next token
#
# The model's last layer gives one real number per vocabulary entry, the **logits** $z_1,\dots,z_V$. The law is
# $p_i = e^{z_i} / \sum_j e^{z_j}$. We nearly always want $\log p_i$: sequences multiply probabilities, and a product of a hundred small
# numbers is zero in floating point, while a sum of a hundred logarithms is not.

# %% [markdown]
# {{card log_softmax}}
#
# $$\log p_i = z_i - \log\sum_j e^{z_j}$$
#
# Written like this it fails: $e^{z}$ overflows for $z$ above 709 in double precision and above 88 in single precision. Adding a
# constant to all logits changes no probability, so you may subtract one first, and the right one makes the largest term $e^0=1$.
# A logit of $-\infty$ is legal and means "impossible". In half precision (`float16`, `bfloat16`) the sum loses so many digits that the
# reduction must run in `float32`; the result is then `float32`.
#
# **Before you write code, decide:** which constant do you subtract, and what happens if you subtract it from logits that are all equal?

# %% ng="solution:log_softmax"
def log_softmax(logits):
    """Logarithms of the softmax along the last dimension.

    logits    [..., V] float; -inf marks an impossible entry (at least one entry is finite)
    returns   [..., V] natural logarithms of probabilities; float32 for float16 and bfloat16 input, else the dtype of logits
    """
    ### BEGIN SOLUTION
    x = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    shifted = x - x.amax(dim=-1, keepdim=True).detach()
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()
    ### END SOLUTION


# %% ng="test:log_softmax"
check(log_softmax)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For logits 1000, 1000, 999: what are the three probabilities? Which intermediate number
# of the formula can't be stored, and which constant makes it harmless? </details>
# <details><summary>Hint 2: where to look</summary> <code>x.amax(dim=-1, keepdim=True)</code>. Keep the dimension, or the subtraction
# broadcasts along the wrong one. Cast half precision with <code>.float()</code> before any sum. </details>
# <details><summary>Hint 3: almost code</summary> <code>shifted = x - max</code>; the answer is <code>shifted - log(sum(exp(shifted)))</code>.
# With -inf the exponential is 0 and nothing else happens. </details>

# %% [markdown]
# {{card token_logprobs}}
#
# A causal model reads tokens $y_0,\dots,y_{T-1}$ and puts out logits at every position. The logits at position $t$ are its opinion about
# token $t+1$, because they were computed from tokens $0..t$. So a row of $T$ tokens has $T-1$ scored tokens:
#
# $$\ell_t = \log p(y_{t+1}\mid y_{\le t}),\qquad t = 0,\dots,T-2,\qquad \log p(y_{1..T-1}\mid y_0)=\sum_t \ell_t .$$
#
# To get this shift wrong is a common bug, and it never crashes: the wrong version scores token $t$ with logits that have already seen it,
# and the loss falls to almost nothing.

# %% ng="solution:token_logprobs"
def token_logprobs(logits, tokens):
    """Log-probability of each token given the ones before it.

    logits    [B, T, V] float: logits[:, t] were computed from tokens 0..t
    tokens    [B, T] int
    returns   [B, T-1]: entry t is log p(tokens[:, t+1] | tokens[:, :t+1])
    """
    ### BEGIN SOLUTION
    return log_softmax(logits[:, :-1]).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    ### END SOLUTION


# %% ng="test:token_logprobs"
check(token_logprobs)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which logits are never used? Which token is never scored? </details>
# <details><summary>Hint 2: where to look</summary> <code>torch.gather</code> along the vocabulary needs an index with as many dimensions
# as the logits. </details>
# <details><summary>Hint 3: almost code</summary> <code>log_softmax(logits without the last position)</code>, then gather at
# <code>tokens without the first, with one more dimension</code>, then squeeze. </details>

# %% [markdown]
# {{card entropy}}
#
# The surprise of a token is $-\log p_i$, and entropy is the mean surprise of a law, in nats:
#
# $$H(p) = -\sum_i p_i\log p_i,\qquad 0\log 0 := 0 .$$
#
# It is $\log V$ when all $V$ tokens are equally likely and 0 when one is certain. During RL it is the first curve to watch: a policy that
# stops exploring shows it here. With an impossible token the formula as printed computes $0\cdot(-\infty)$, which is NaN, and NaN spreads: one
# impossible entry can turn every weight of the model into NaN.

# %% ng="solution:entropy"
def entropy(logits):
    """Entropy of the softmax along the last dimension, in nats.

    logits    [..., V] float; -inf marks an impossible entry
    returns   [...] float, never NaN; gradients are finite too
    """
    ### BEGIN SOLUTION
    logp = log_softmax(logits)
    possible = logp > -math.inf
    safe = torch.where(possible, logp, torch.zeros_like(logp))  # replaced before the product: 0 * inf never happens, not even in a gradient
    return -torch.where(possible, safe.exp() * safe, torch.zeros_like(safe)).sum(dim=-1)
    ### END SOLUTION


# %% ng="test:entropy"
check(entropy)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What should an impossible token contribute? What does your formula compute for it? </details>
# <details><summary>Hint 2: where to look</summary> <code>torch.where(good, value, 0)</code> hides a NaN in the value but not in the
# gradient. Replace the bad <i>input</i> first, compute, then select. </details>
# <details><summary>Hint 3: almost code</summary> <code>safe = where(possible, logp, 0)</code>; the terms are
# <code>where(possible, exp(safe) * safe, 0)</code>; minus their sum. </details>

# %% [markdown]
# {{card kl_divergence}}
#
# How far is law $q$ from law $p$, as seen by someone who samples from $p$?
#
# $$\mathrm{KL}(p\,\|\,q)=\sum_i p_i\,(\log p_i-\log q_i).$$
#
# It is never negative, is zero only for equal laws, and is **not symmetric**. An entry with $p_i=0$ adds nothing, whatever $q_i$ is. An
# entry with $p_i>0$ and $q_i=0$ makes it $+\infty$. In RLHF (reinforcement learning from human feedback) $p$ is the policy and $q$ the
# **reference policy**, a frozen one that $p$ is kept near: if it calls a token impossible that the policy may choose, the penalty is infinite.

# %% ng="solution:kl_divergence"
def kl_divergence(p_logits, q_logits):
    """KL(p || q) of two softmax laws along the last dimension, in nats.

    p_logits, q_logits   [..., V] float; -inf marks an impossible entry
    returns              [...] float >= 0; +inf where p has mass that q lacks; elsewhere the gradients of both are finite
    """
    ### BEGIN SOLUTION
    logp, logq = log_softmax(p_logits), log_softmax(q_logits)
    possible = logp > -math.inf
    zero = torch.zeros_like(logp)
    safe_p = torch.where(possible, logp, zero)
    safe_q = torch.where(possible, logq, zero)
    return torch.where(possible, safe_p.exp() * (safe_p - safe_q), zero).sum(dim=-1)
    ### END SOLUTION


# %% ng="test:kl_divergence"
check(kl_divergence)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What are the two impossible cases, and what must each give? </details>
# <details><summary>Hint 2: where to look</summary> Treat <code>p = 0</code> as in the entropy. The other case needs no special treatment if
# you let infinity through. </details>
# <details><summary>Hint 3: almost code</summary> Replace both log-probabilities by 0 where p is impossible, then sum
# <code>exp(logp) * (logp - logq)</code>. </details>

# %% [markdown]
# {{card kl_estimates}}
#
# A vocabulary may have a hundred thousand entries and a response hundreds of tokens: nobody sums over all responses. We sample
# $y\sim p$ and look only at $\log p(y)$ and $\log q(y)$. With $d=\log p(y)-\log q(y)$ three estimators are in use:
#
# $$k_1 = d,\qquad k_2=\tfrac12 d^2,\qquad k_3 = e^{-d}-1+d .$$
#
# $k_1$ has the right mean, and so has $k_3$ if $p$ gives mass wherever $q$ does. $k_1$ is often negative although the KL never is; $k_3$
# never is. $k_2$ is biased. And a warning for level 2: an estimator with the right *value* may have a useless *gradient* when you
# minimise it.
#
# For small $d$, $e^{-d}-1$ loses all its digits in single precision; torch has a function for exactly this.

# %% ng="solution:kl_estimates"
def kl_estimates(logp, logq):
    """Three estimates of KL(p || q) at samples drawn from p, entry by entry.

    logp, logq   [...] float: log-probabilities of the sampled values under p and under q
    returns      dict with k1, k2, k3, each of the same shape and with a gradient
    """
    ### BEGIN SOLUTION
    d = logp - logq
    return {"k1": d, "k2": d.square() / 2, "k3": torch.expm1(-d) + d}
    ### END SOLUTION


# %% ng="test:kl_estimates"
check(kl_estimates)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which of the three can be negative? Try d = -1 and d = +1 by hand. </details>
# <details><summary>Hint 2: where to look</summary> The exponent of k3 is <i>minus</i> d: exp(-d) is the ratio q/p. With the sign turned
# k3 estimates another divergence. </details>
# <details><summary>Hint 3: almost code</summary> <code>torch.expm1(-d) + d</code> for k3. </details>

# %% [markdown]
# ### Experiment A · Which estimator would you trust?
#
# Two laws over six tokens: $p$, and $q$ which moves away from $p$ as the distance grows. For each distance we draw many small batches
# from $p$ and look at the mean of $k_1$, $k_2$, $k_3$ in each batch, and at the **spread** of these means, their standard deviation.
#
# **Predict before you run:** for laws that nearly agree, which of the unbiased two, $k_1$ and $k_3$, has the smaller spread? And for laws
# far apart? And does a small spread make $k_2$ a good choice?

# %%
prediction_a = ""  # in your words, for example "near: ..., far: ...": write before you run the next cell

# %% tags=["experiment"]
from course.figures import say
from course.figures.probability import estimator_spread, kl_explorer

spread = estimator_spread(kl_divergence, kl_estimates, distances=torch.linspace(0.2, 4.0, 12), seed=SEED)
spread.figure

# %% tags=["experiment"]
near, far = spread.rows[0], spread.rows[-1]
say(
    f"**What came out.** At distance {near.distance:.1f} the exact KL is {near.exact:.3f} and the spread of k3 is "
    f"{near.sd['k3'] / near.sd['k1']:.2f} times that of k1. At distance {far.distance:.1f} the exact KL is {far.exact:.2f} and the same "
    f"ratio is {far.sd['k3'] / far.sd['k1']:.1f}: where p is much smaller than q, $e^{{-d}}=q/p$ is huge, and such tokens are rarely drawn. "
    f"The spread of k2 is small nearly everywhere, but its mean is off by {abs(far.mean['k2'] - far.exact):.2f} at the far end, and no number "
    f"of samples repairs that.\n\n"
    f"You predicted: {prediction_a or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** anything about gradients. It says which estimator of the *value* is quiet; used as a loss, $k_1$ has an
# expected gradient of exactly zero, which level 2 comes back to. It also assumes that samples really come from $p$. With top-p or top-k
# sampling, which leave improbable tokens out, they come from another law, and then none of the three agrees with the exact KL.
#
# Move the sliders and watch one pair of laws, its exact KL in both directions and the three estimators. At a large distance, look at
# $k_3$: most batches lie below the exact value, and a few far above it (too far to be drawn) bring the mean back.

# %% tags=["experiment"]
from course.figures.widgets import sliders

sliders(
    lambda distance, batch: kl_explorer(kl_divergence, kl_estimates, distance=distance, batch=batch, seed=SEED),
    distance=(0.0, 4.0, 0.1, 1.0),
    batch=(4, 256, 4, 32),
)

# %% [markdown]
# ## Part B · Which tokens did the policy choose?

# %% [markdown]
# {{card causal_attention}}
#
# Attention mixes values of earlier positions: with queries $q_t$, keys $k_s$, values $v_s$ of dimension $D$, in each of $H$ heads by itself,
#
# $$o_t=\sum_{s\in S_t} a_{ts}v_s,\qquad a_{t\cdot}=\operatorname{softmax}_{s\in S_t}\!\left(\frac{q_t\cdot k_s}{\sqrt D}\right),\qquad
# S_t=\{s\le t:\ \text{key } s \text{ is real}\}.$$
#
# Two promises depend on $S_t$. **Causality:** nothing at or before $t$ may depend on a later token, or the log-probabilities of exercise
# 0.2 are not probabilities of anything. **Padding:** rows of a batch have different lengths and are padded, on the left for
# sampling and often on the right for training; a row must come out as if it were alone. A query that may see no key at all (padding on
# the left) gives zeros, never NaN. A padded query behind real keys needs no special case: it is computed like any other, and nobody reads
# it. Padded keys and values may hold anything, NaN included; they must reach neither an output nor a gradient at a real position.

# %% ng="solution:causal_attention"
def causal_attention(q, k, v, key_mask):
    """Scaled dot-product attention over earlier, real positions.

    q, k, v    [B, H, T, D] float
    key_mask   [B, T] bool or 0/1: 1 where the token is real, 0 where it is padding
    returns    [B, H, T, D]; exactly 0 for a query that may see no key
    """
    ### BEGIN SOLUTION
    time = q.shape[-2]
    causal = torch.ones(time, time, dtype=torch.bool, device=q.device).tril()
    allowed = causal & key_mask.bool()[:, None, None, :]
    real = key_mask.bool()[:, None, :, None]
    k, v = k.masked_fill(~real, 0.0), v.masked_fill(~real, 0.0)  # padding may hold anything, also NaN
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    lonely = ~allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(~allowed & ~lonely, -math.inf)  # a lonely query keeps finite scores and is zeroed below
    weights = torch.softmax(scores, dim=-1).masked_fill(~allowed, 0.0)
    return weights @ v
    ### END SOLUTION


# %% ng="test:causal_attention"
check(causal_attention)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which entries of the T by T table of scores are allowed in row t? What does a softmax over
# no entries give? </details>
# <details><summary>Hint 2: where to look</summary> <code>torch.ones(T, T, dtype=torch.bool).tril()</code> for causality,
# <code>key_mask.bool()[:, None, None, :]</code> for padding; forbidden scores become -inf <i>before</i> the softmax. A row of only -inf
# gives NaN: treat it. Padded keys and values may hold NaN, and 0 times NaN is NaN, in the gradient too. </details>
# <details><summary>Hint 3: almost code</summary> <code>allowed = causal &amp; key_mask.bool()[:, None, None, :]</code>;
# set padded keys and values to 0 first; <code>scores.masked_fill(~allowed, -inf)</code> except in rows where nothing is allowed; after the
# softmax set forbidden weights to 0. </details>

# %% [markdown]
# {{card action_mask}}
#
# An **action** is a token that the policy sampled. In a chat with tools most tokens are not: the system text, the user's words, what
# a tool returned, the special tokens that open a turn, padding. Even an assistant turn may be somebody else's (a few-shot example in
# the prompt). Training on those teaches the policy to imitate its environment. On the other hand, the token that *ends* a sampled turn
# is an action: a policy that is never trained on it never learns to stop.
#
# A `Transcript` has `turns`. A `Turn` has a `role`, and either `text` (written by someone else) or, when `turn.sampled` is true, `ids`: the
# token ids exactly as they were sampled, with the end token as the last one if the policy produced it. The layout is: one `bos` token; then
# for each turn its role token, its content, and an end token. A sampled turn that was cut off (`turn.stop` is not `StopReason.END`) has no
# end token of its own: if another turn follows, the serializer puts one in, and nobody chose it. If it is the last turn, nothing is added.
#
# Copy the sampled ids. Never decode and encode them again: two id sequences can spell the same text.

# %%
from course.language import StopReason
from course.tasks.toolchat import toolchat_tokenizer, toolchat_transcripts

tokenizer = toolchat_tokenizer()
example = toolchat_transcripts(n=4, seed=SEED)[0]
for turn in example.turns:
    words = turn.text if not turn.sampled else tokenizer.decode(turn.ids)
    print(f"{turn.role:10} {'sampled' if turn.sampled else '':8} {words}")

# %% ng="solution:action_mask"
def action_mask(transcript, tokenizer):
    """Token ids of a transcript and the mask of the tokens that the policy sampled.

    transcript   .turns, each with .role, .text, .sampled, .ids and .stop
    tokenizer    .bos_id, .end_id, .role_id(role) -> int, .encode(text) -> list of ids
    returns      (tokens [T] int64, mask [T] bool)
    """
    ### BEGIN SOLUTION
    tokens, mask = [tokenizer.bos_id], [False]
    last = len(transcript.turns) - 1
    for number, turn in enumerate(transcript.turns):
        tokens.append(tokenizer.role_id(turn.role))
        mask.append(False)
        content = list(turn.ids) if turn.sampled else list(tokenizer.encode(turn.text))
        tokens += content
        mask += [bool(turn.sampled)] * len(content)
        has_end = turn.sampled and turn.stop == StopReason.END
        if not has_end and not (turn.sampled and number == last):
            tokens.append(tokenizer.end_id)
            mask.append(False)
    return torch.tensor(tokens), torch.tensor(mask)
    ### END SOLUTION


# %% ng="test:action_mask"
check(action_mask)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> An end token can stand after a written turn, at the end of a sampled turn, or after one that
# was cut off. Which of the three did the policy choose? </details>
# <details><summary>Hint 2: where to look</summary> Ask the structure (<code>turn.sampled</code>, <code>turn.stop</code>, whether a turn follows),
# never the ids: an end token's id says nothing about who wrote it. </details>
# <details><summary>Hint 3: almost code</summary> For each turn append the role token with mask 0, then the content with mask
# <code>turn.sampled</code>; then an end token with mask 0, unless the turn was sampled and either stopped with <code>StopReason.END</code>
# (its ids hold the end token) or is the last one. </details>

# %% [markdown]
# ### Experiment B · See the mask
#
# **Predict before you run:** in the transcript above, roughly what fraction of the tokens are actions?

# %%
prediction_b = ""  # a fraction between 0 and 1

# %% tags=["experiment"]
from course.figures.masks import mask_view

shown_tokens, shown_mask = action_mask(example, tokenizer)
mask_view(example, tokenizer, shown_tokens, shown_mask)

# %% tags=["experiment"]
say(
    f"**What came out.** {int(shown_mask.sum())} of {len(shown_mask)} tokens are actions, a fraction of "
    f"{float(shown_mask.double().mean()):.2f}. You predicted: {prediction_b or 'nothing'}. Everything else is context: the policy reads it and "
    "is never trained to produce it.\n\n"
    "**What the figure cannot show:** whether the *right* ids were kept. Two different token sequences can spell the same words; only the "
    "recorded ids say what was sampled."
)

# %% [markdown]
# Four conversations of the same task: with and without an example in the prompt, with a call or an answer that was cut off, with calls that
# the runtime stopped. Find the end tokens that nobody sampled.

# %% tags=["experiment"]
conversations = toolchat_transcripts(n=4, seed=SEED)
sliders(
    lambda number: mask_view(conversations[number], tokenizer, *action_mask(conversations[number], tokenizer)),
    number=(0, 3, 1, 1),
)

# %% [markdown]
# {{card masked_mean}}
#
# $$\operatorname{mean}(x; m)=\frac{\sum_i m_i x_i}{\sum_i m_i},\qquad \text{and } 0 \text{ where the mask is empty.}$$
#
# It looks like one line and has three traps: the denominator is the number of *counted* entries (mask 1); an empty mask must give 0 and
# keep its gradient finite; and a masked-out entry may hold anything, NaN and infinity included, without reaching the value or the
# gradient. Because $0\cdot\mathrm{NaN}=\mathrm{NaN}$, multiplying by the mask is not masking. A NaN at a *counted* entry is a real fault:
# let it through.

# %% ng="solution:masked_mean"
def masked_mean(x, mask, dim=None):
    """Mean of x where mask is 1.

    x         [...] float; anything at masked-out positions
    mask      same shape, bool or 0/1
    dim       dimension to reduce, or None for all
    returns   the mean over `dim` (over everything if None); 0 where the mask is empty
    """
    ### BEGIN SOLUTION
    keep = mask.bool()
    kept = torch.where(keep, x, torch.zeros_like(x))
    count = keep.to(x.dtype)
    if dim is None:
        return kept.sum() / count.sum().clamp_min(1)
    return kept.sum(dim) / count.sum(dim).clamp_min(1)
    ### END SOLUTION


# %% ng="test:masked_mean"
check(masked_mean)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What is <code>float('nan') * 0</code>? </details>
# <details><summary>Hint 2: where to look</summary> <code>torch.where</code> selects without multiplying, and its gradient is 0 on the branch
# that was not taken. Select first and compute with what is left. It wants a bool condition: <code>mask.bool()</code>. </details>
# <details><summary>Hint 3: almost code</summary> <code>where(mask, x, 0).sum(dim) / mask.sum(dim).clamp_min(1)</code> </details>

# %% [markdown]
# {{card sft_loss}}
#
# Supervised fine-tuning minimises the negative log-probability of the counted tokens. With $\ell_{b,t}$ from `token_logprobs` and
# $m_{b,t}$ the mask of the token that is scored (so `mask[:, 1:]`):
#
# $$\text{sum: } -\sum_{b,t} m\,\ell\qquad \text{token: } \frac{-\sum_{b,t} m\,\ell}{\sum_{b,t}m}\qquad
# \text{record: } \frac1{B'}\sum_b \frac{-\sum_t m_{b,t}\,\ell_{b,t}}{\sum_t m_{b,t}}$$
#
# where $B'$ counts the records (rows) that have a counted token, and the outer sum runs over these. They are three different objectives.
# With one answer of 3 tokens and one of 300, the token mean gives the long one a hundred times the weight, the record mean gives both the
# same. Neither is wrong, but you should know which one you use.

# %% ng="solution:sft_loss"
def sft_loss(logits, tokens, mask, normalize):
    """Negative log-likelihood of the masked tokens.

    logits      [B, T, V] float
    tokens      [B, T] int
    mask        [B, T] bool or 0/1: 1 on tokens to learn; mask[:, 0] is never used
    normalize   "token": mean over all counted tokens; "record": mean over records of their token means; "sum": no mean
    returns     scalar; 0 if nothing is counted
    """
    ### BEGIN SOLUTION
    losses = -token_logprobs(logits, tokens)
    counted = mask[:, 1:].bool()
    losses = torch.where(counted, losses, torch.zeros_like(losses))
    if normalize == "sum":
        return losses.sum()
    if normalize == "token":
        return losses.sum() / counted.sum().clamp_min(1)
    if normalize == "record":
        per_record = losses.sum(1) / counted.sum(1).clamp_min(1)
        return per_record.sum() / counted.any(1).sum().clamp_min(1)
    raise ValueError(f'normalize must be "token", "record" or "sum"; got {normalize!r}')
    ### END SOLUTION


# %% ng="test:sft_loss"
check(sft_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> The mask has T entries, the log-probabilities T-1. Which entry of the mask has no partner?
# </details>
# <details><summary>Hint 2: where to look</summary> For "record", take each row's own mean first; rows without a counted token belong neither to
# the sum nor to the count. </details>
# <details><summary>Hint 3: almost code</summary> <code>losses = where(mask[:, 1:], -token_logprobs(...), 0)</code>; then
# <code>losses.sum() / count</code>, or <code>(losses.sum(1) / count_per_row).sum() / rows_with_a_token</code>, every count clamped to at
# least 1. </details>

# %% [markdown]
# ### Experiment C · Low loss, bad behaviour
#
# Clone a writer of tiny film reviews with *your* `sft_loss`: a small decoder (a transformer that reads from left to right) learns from
# **demonstrations** such as `the movie was very good . <end>`. The language has a grammar, so that we can say exactly how much probability
# the policy gives to words that are **wrong** at each place.
#
# Then we ask two questions about the same weights. *Teacher forcing:* after a prefix that the demonstrator wrote, how likely is a wrong
# next word? *Interaction:* and after a prefix that the policy wrote itself?
#
# A policy is sampled at a **temperature** $\tau$: its logits are divided by $\tau$ before the softmax. 1 is the policy as it is, below 1 the
# likely words get likelier, and 0 stands for *greedy*: always the likeliest word.
#
# **Predict before you run:** do the two differ early in a review? And late? Is the loss per token higher on held-out demonstrations or on
# the policy's own samples?

# %%
prediction_c = ""

# %% tags=["experiment"]
from tqdm.auto import tqdm

from course.figures.learning import curves
from course.tasks import reviews
from course.training.interaction import DEMONSTRATIONS, STEPS, measure_interaction, new_policy
from course.training.sft import sft

policy = new_policy(SEED)
demonstrations = reviews.corpus(DEMONSTRATIONS, SEED)


def token_loss(logits, tokens, mask):
    return sft_loss(logits, tokens, mask, normalize="token")


losses = []
training = sft(policy, demonstrations, loss=token_loss, steps=STEPS, lr=3e-3, batch_size=32, seed=SEED)
for step in tqdm(training, total=STEPS, desc="cloning"):
    losses.append(step.loss)
curves(
    {"demonstrations": (range(len(losses)), losses)},
    title="The loss on demonstrations falls",
    x="optimiser step", y="loss of a batch, nats per token",
)  # fmt: skip

# %% tags=["experiment"]
# The temperature is for the scores compared in the last paragraph below; losses and errors are those of the policy at temperature 1.
interaction = measure_interaction(policy, SEED, temperature=0.7)
places = range(1, len(interaction["own_error"]) + 1)
curves(
    {
        "after the demonstrator's words": (places, interaction["forced_error"].tolist()),
        "after its own words": (places, interaction["own_error"].tolist()),
    },
    title="The same weights make more mistakes after their own words",
    x="place after the prompt, tokens", y="chance that the next word is wrong",
)  # fmt: skip

# %% tags=["experiment"]
gap = interaction["own_error"] - interaction["forced_error"]
third = len(gap) // 3
agreement = float((interaction["recorded"] - interaction["recomputed"])[interaction["action_mask"]].abs().max())
say(
    f"**What came out.** The loss is {interaction['demo_loss']:.2f} nats per token on held-out demonstrations and "
    f"{interaction['own_loss']:.2f} on the policy's own samples. After its own words a wrong next word is more likely by "
    f"{float(gap[:third].mean()):.3f} in the first third of the places and by {float(gap[-third:].mean()):.3f} in the last: a mistake leads "
    f"to places that no demonstration shows. You predicted: {prediction_c or 'nothing'}.\n\n"
    f"And a check that should hold in every pipeline: log-probabilities noted *while sampling* at temperature {interaction['temperature']} "
    f"and those of a teacher-forced pass over the same tokens at the same temperature differ by at most {agreement:.0e}. Score the tokens "
    f"at another temperature, or after an update, and you get the log-probabilities of another policy."
)

# %% [markdown]
# **What the figure cannot show:** how large the gap is elsewhere. It shows one seed. The late places are averages over the few reviews that
# are that long, and those of the two curves are not the same reviews. The size of the gap belongs to this small policy, which was stopped
# early on purpose. The policy's own prefixes differ from demonstrated ones whenever it is not a perfect copy; how much that costs, you must measure where it acts.

# %% [markdown]
# ## Part C · Bug hunt
#
# A colleague hands you this loss. It runs, it falls, and the model it trains is a little worse than it should be.
#
# ```python
# def sft_loss(logits, tokens, mask, normalize):
#     nll = -token_logprobs(logits, tokens)      # [B, T-1]
#     keep = mask[:, :-1].bool()                 # [B, T-1]
#     nll = nll.masked_fill(~keep, 0.0)
#     ...
# ```
#
# **Decide first:** which token of each answer does it never train, and which token does it train instead?

# %% [markdown]
# {{card test_sft_loss}}
#
# Reading finds one bug; a test finds the next one too. Write a function that gets *some* implementation of `sft_loss`, **raises** if it is
# wrong (by `assert` or in any other way) and simply returns if it is right. When it is graded it meets several implementations in a secret
# order: right ones, written in different ways, and wrong ones, in groups. A group counts if you catch all of it, and **does not count if
# you reject a right one**. Right ones add in different orders and differ in the last digits: compare in `float64` and with a tolerance.
#
# Faults you may meet: the mask is shifted the wrong way, or ignored; the sign is lost; a mean is taken over the wrong number of tokens or
# of records; two of the three normalisations are the same; a NaN at a position that is masked out gets through; a batch with nothing to
# learn does not give 0; the value is right and the gradient is cut.
#
# Small inputs whose answer you know by hand make the best tests. With logits of zeros every token has probability $1/V$. The visible check
# tries two of these faults, the grader all of them.

# %% ng="solution:test_sft_loss"
def test_sft_loss(loss):
    """Raise if `loss` is not a right sft_loss(logits, tokens, mask, normalize); return None if it is."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(3, 6, 5, generator=generator, dtype=torch.float64)
    tokens = torch.randint(0, 5, (3, 6), generator=generator)
    mask = torch.tensor([[0, 0, 1, 1, 0, 1], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    values = -token_logprobs(logits, tokens)
    m = mask[:, 1:]
    rows = [values[0][m[0]], values[1][m[1]]]
    truth = {
        "sum": torch.cat(rows).sum(),
        "token": torch.cat(rows).mean(),
        "record": (rows[0].mean() + rows[1].mean()) / 2,
    }
    for how, expected in truth.items():
        for form in (mask, mask.long(), mask.double()):
            got = loss(logits, tokens, form, how)
            assert got.shape == () and abs(float(got - expected)) < 1e-9, how
        empty = loss(logits, tokens, torch.zeros_like(mask), how)
        assert float(empty) == 0.0, "a batch with nothing to learn"
        leaf = logits.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(loss(leaf, tokens, mask, how), leaf)
        outside = torch.ones(3, 6, dtype=torch.bool)
        outside[:, :-1] = ~m
        assert bool((gradient[outside] == 0).all()), "gradient outside the mask"
        assert bool((gradient[~outside].abs().sum(-1) > 0).all()), "no gradient inside the mask"
        spoiled = logits.clone()
        spoiled[2] = math.nan
        spoiled[1, 3] = math.nan
        got = loss(spoiled, tokens, mask, how)
        assert abs(float(got - expected)) < 1e-9, "NaN at a position that does not count"
    ### END SOLUTION


# %% ng="test:test_sft_loss"
check(test_sft_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For two records with 1 and 3 counted tokens, what must the three normalisations give if
# every token costs the same? And if they cost differently? </details>
# <details><summary>Hint 2: where to look</summary> Compare with a value you compute yourself from <code>token_logprobs</code>, on a batch with a
# gap in the mask, with rows of different length and one row with no counted token, in <code>float64</code>. Then an empty mask. Then the
# gradient. </details>
# <details><summary>Hint 3: almost code</summary> <code>assert abs(loss(logits, tokens, mask, "record") - mean of row means) &lt; 1e-9</code>, the
# same for "token" and "sum"; <code>assert loss(..., zeros, how) == 0</code>; put NaN into logits that predict masked tokens and ask again;
# <code>torch.autograd.grad(loss(...), logits)</code> must not be 0 where a counted token is predicted. </details>

# %% [markdown]
# ## Part D · Exit test

# %% [markdown]
# {{card find_actions}}
#
# Given a transcript and a policy, return **where** the policy's actions are and **how likely** all of them were.
#
# `policy.tokenizer` is the tokenizer and `policy(ids)` gives logits `[B, T, V]` for ids `[B, T]`. Positions count in the encoded transcript, so
# that `tokens[positions]` are the sampled tokens. The total is $\sum_{t\in\text{positions}} \log p(y_t\mid y_{<t})$, a scalar; the empty sum is 0.
# It needs no gradient.

# %% ng="solution:find_actions"
def find_actions(transcript, policy):
    """Positions of the policy's own tokens in a transcript, and their total log-probability.

    transcript   as in action_mask
    policy       .tokenizer; policy(ids [B, T]) -> logits [B, T, V]
    returns      (positions [N] int64 in increasing order, total log-probability, a scalar)
    """
    ### BEGIN SOLUTION
    tokens, mask = action_mask(transcript, policy.tokenizer)
    with torch.no_grad():
        scored = token_logprobs(policy(tokens[None]), tokens[None])[0]
    total = torch.where(mask[1:], scored, torch.zeros_like(scored)).sum()
    return mask.nonzero().flatten(), total
    ### END SOLUTION


# %% ng="test:find_actions"
check(find_actions)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Token number 7 is an action. Which row of the logits scores it? </details>
# <details><summary>Hint 2: where to look</summary> You have written all the parts: <code>action_mask</code> and <code>token_logprobs</code>. Mind
# the shift between their outputs. </details>
# <details><summary>Hint 3: almost code</summary> <code>positions = mask.nonzero().flatten()</code>; the scores of those tokens are at
# <code>positions - 1</code>. </details>

# %% [markdown]
# ## Questions, marked by a person
#
# A few sentences each. Say what you would measure, not only what you believe.

# %% [markdown]
# **Q1.** Two teams train on the same data, three long answers among a thousand short ones: one with the token mean, one with the record
# mean. Whose model will sound more like the long answers, why, and which plot would show it after one epoch?

# %% [markdown] ng="manual:question_denominator:3"
# The token mean. A token counts the same there wherever it stands, so three very long answers carry as much weight as many short ones; the
# record mean gives every answer weight one over the number of records. After one epoch, plot for both models the mean log-probability per
# token separately for held-out long and held-out short answers: the token-mean model is better on the long ones, the record-mean model on
# the short ones. *(Full marks: right direction, the reason by weights, a plot split by length on held-out data.)*

# %% [markdown]
# **Q2.** A trainer builds its mask as `tokens != pad_id`, and the tokenizer uses the end token for padding. Name two different things that
# go wrong, and a test of at most three lines for each.

# %% [markdown] ng="manual:question_masks:3"
# (1) The real end token of every answer has the pad id and is masked out: the policy is never trained to stop, and runs to the length limit.
# Test: one row `[5, 7, END, PAD, PAD]` with `END == PAD`; the mask must be `[1, 1, 1, 0, 0]`. (2) Everything that is not padding is trained: system
# text, user text and tool results become targets. Test: change a user token; the loss must not change through the mask of that token.
# *(Full marks: two different faults, each with a test that fails on the faulty mask.)*

# %% [markdown]
# **Q3.** In Experiment C training was stopped early. Would more steps on the same demonstrations repair the policy's behaviour on its own
# samples? What would you measure to find out, and what data would you collect if they did not?

# %% [markdown] ng="manual:question_shift:3"
# The loss cannot tell: it measures the next token after prefixes that the demonstrator wrote. The policy's own prefixes contain its own
# mistakes, which the demonstrations never contain, and nothing in the loss says what to do after them. In this small language more steps
# do help, because a policy that hardly ever makes the first mistake hardly ever meets such a prefix; they move the first mistake later and
# do not teach recovery. Measure the error after own prefixes, by place, at several numbers of steps and over seeds. If it stays, collect
# labels or rewards on the policy's own samples: corrections of its prefixes (as in DAgger), preferences between its samples, or a reward
# for the outcome. *(Full marks: names the difference of the two state distributions, a measurement on own samples, and data on own samples.
# A plain yes or no earns nothing by itself.)*

# %% [markdown]
# ## What to read next
#
# - Williams (1992) on score-function estimators, before level 2.
# - Ross and Bagnell (2010) and Ross, Gordon and Bagnell (2011) on why errors compound when a cloned policy acts.
# - Schulman's note "Approximating KL Divergence" (2020), where $k_1$, $k_2$, $k_3$ got their names.
# - In this package, after handing in: `course/prob.py`, `course/masks.py`, `course/language/masking.py`, where the same functions live. Next:
#   level 1. So far nobody has said which of two answers is the better one; there, people's choices become a number to train on.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
