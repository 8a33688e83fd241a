# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Level 2 · Contextual-bandit RLHF
#
# A prompt comes in, the policy writes a response, the reward model of level 1 scores it once, and the score must change the policy. One
# prompt, one decision, one reward: a *contextual bandit* whose single action is a whole response. The response is made of tokens,
# though, and the optimiser works on tokens. In this level you write every operator between the score and the gradient: which
# token gets which reward, what counts as credit, how far one batch may push, what the sum is divided by. Then you train with
# them, push too hard, and build the alarm that notices.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]**
# unknown.
#
# **You will be able to**
# - carry a score at the end of a response back to its tokens, through gaps, time limits and episode ends;
# - write PPO's actor and critic losses, read its diagnostics, and say what its clip does and doesn't bound;
# - replace the critic by groups of samples, and say which normalisation keeps the gradient unbiased;
# - test a training stack on problems with a known solution before you train anything;
# - notice that a reward is being exploited without looking at the reward.
#
# **You need** levels 0 and 1. **Time** about 9 hours of work. {{measured}}

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
# ## Part A · From one score to the credit of a token
#
# The objective is that of level 1: reward minus a penalty for leaving the reference policy. For a prompt $x$ and responses $y$,
#
# $$J(\pi)=\mathbb E_{y\sim\pi(\cdot|x)}\big[r(x,y)\big]
# -\beta\,\mathrm{KL}\big(\pi(\cdot|x)\,\|\,\pi_{\text{ref}}(\cdot|x)\big).$$
#
# $\beta$ is the price of KL, in units of reward per nat. Four networks take part, and each has one role: the **actor** $\pi$ (the policy
# in training) and the **critic** $V$ (what reward to expect) are trained; the **reference** $\pi_{\text{ref}}$ and the **reward model**
# $r$ are frozen. In this level all tensors of log-probabilities, rewards, values and
# masks are `[B, T]`, row by response and column by token: entry $t$ of each belongs to the same token. The **action mask** is 1
# on tokens that the policy chose. Prompt and padding have 0, and so has what a tool wrote into the middle of a response.

# %% [markdown]
# {{card shaped_token_rewards}}
#
# The log-probability of a response is a sum over its tokens, and so is the KL penalty's sample:
#
# $$r-\beta\log\frac{\pi(y|x)}{\pi_{\text{ref}}(y|x)}=r-\beta\sum_t\big[\log\pi(y_t|\cdot)-\log\pi_{\text{ref}}(y_t|\cdot)\big].$$
#
# So every action token pays for its own part, its **KL cost**, at once, and the score $r$ is added at the **last action**: the greatest index
# whose mask is 1, not the number of actions minus one. A token that is no action gets exactly 0, whatever the log-probabilities
# hold there, NaN included. A row without an action has no place for its score and must be refused: a score that is dropped
# quietly never reaches the policy.
#
# **Decide first:** the score is 0.8, $\beta=0.1$, and the policy gives the response twice the reference's probability. What do
# the token rewards sum to?

# %% ng="solution:shaped_token_rewards"
def shaped_token_rewards(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    """Reward of every token: the KL cost at each action, the score of the response at the last one.

    logp_actor        [B, T] float: log-probability of each token under the policy that wrote it; anything where the mask is 0
    logp_reference    [B, T] float: the same tokens under the frozen reference; anything where the mask is 0
    action_mask       [B, T] bool or 0/1: 1 on tokens that the policy chose; may start late, have gaps and end early
    terminal_reward   [B] float: the score of each response
    beta              >= 0, in reward units per nat
    returns           [B, T] float: -beta (log pi - log pi_ref) at actions, plus the score at the last action; 0 elsewhere
    raises            ValueError if a row has no action
    """
    ### BEGIN SOLUTION
    actions = action_mask.bool()
    if not bool(actions.any(dim=1).all()):
        raise ValueError("action_mask has a row without an action: its score has no place to go")
    width = actions.shape[1]
    last = width - 1 - actions.flip(1).int().argmax(dim=1)  # the first action from behind
    cost = torch.where(actions, logp_actor - logp_reference, 0.0)
    return F.one_hot(last, width) * terminal_reward[:, None] - beta * cost
    ### END SOLUTION


# %% ng="test:shaped_token_rewards"
check(shaped_token_rewards)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For the mask 0 1 1 0 0 1 0, at which index does the score belong? What does the
# number of actions minus one say? </details>
# <details><summary>Hint 2: where to look</summary> Select with <code>torch.where</code>; multiplying NaN by a mask of 0 gives
# NaN. The greatest of "index where the mask is 1, else -1" is the last action, and -1 is the row to refuse. </details>
# <details><summary>Hint 3: almost code</summary> <code>rewards = where(mask, -beta * (actor - reference), 0)</code>; <code>last =
# where(mask, arange(T), -1).amax(1)</code>; add <code>terminal_reward</code> at <code>[arange(B), last]</code>. </details>

# %% [markdown]
# {{card test_shaped_token_rewards}}
#
# **Bug hunt.** This function looks too simple to get wrong. Still, the KL term of a widely used trainer once had the wrong sign
# ([D], verl pull request 179), and another's PPO put the score one position after the end token ([D], TRL issue 3750). Neither
# crashes. Training runs, the loss moves, and the policy learns something else.
#
# Write a test that gets *some* implementation of `shaped_token_rewards(logp_actor, logp_reference, action_mask, terminal_reward,
# beta)` and raises if it is wrong. It will meet right and wrong implementations in a secret order. Rejecting a right one scores
# 0: run it on your own first, with inputs that keep the docstring's promises. Wrong ones turn the direction of the KL cost, add
# the score at a wrong place (the first action, the last column, the number of actions minus one, after the last action, at every
# action), write it over the last action's own KL cost instead of adding it, charge tokens that are no actions, let what stands at
# masked positions through, never pay back (a cost that can't be negative), or let a row without an action pass.

# %% ng="solution:test_shaped_token_rewards"
def test_shaped_token_rewards(shaped):
    """Raise if `shaped` is not a right shaped_token_rewards(logp_actor, logp_reference, action_mask, terminal_reward, beta)."""
    ### BEGIN SOLUTION
    mask = torch.tensor(
        [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0], [0, 1, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 1]]
    )
    generator = torch.Generator().manual_seed(3)
    actor = -3 * torch.rand(6, 6, generator=generator, dtype=torch.float64)
    reference = -3 * torch.rand(6, 6, generator=generator, dtype=torch.float64)
    score = torch.tensor([0.8, -1.5, 0.0, 2.0, 0.25, -0.5], dtype=torch.float64)
    spoiled_actor = torch.where(mask.bool(), actor, math.nan)
    spoiled_reference = torch.where(mask.bool(), reference, math.inf)

    def expected(beta):
        rewards = torch.zeros(6, 6, dtype=torch.float64)
        for row in range(6):
            places = [t for t in range(6) if mask[row, t]]
            for t in places:
                rewards[row, t] = -beta * (actor[row, t] - reference[row, t])
            rewards[row, places[-1]] += score[row]
        return rewards

    for beta in (0.1, 0.7, 0.0):
        for form in (mask, mask.bool(), mask.double()):
            for given in ((actor, reference), (spoiled_actor, spoiled_reference)):
                got = shaped(*(x.clone() for x in given), form.clone(), score.clone(), beta)
                assert got.shape == (6, 6)
                assert torch.allclose(got.double(), expected(beta), rtol=1e-6, atol=1e-9)
    for row in range(6):  # no row depends on its neighbours
        one = slice(row, row + 1)
        got = shaped(actor[one].clone(), reference[one].clone(), mask[one].clone(), score[one].clone(), 0.3)
        assert torch.allclose(got.double(), expected(0.3)[one], rtol=1e-6, atol=1e-9)
    empty = mask.clone()
    empty[2] = 0
    try:
        shaped(actor.clone(), reference.clone(), empty, score.clone(), 0.1)
    except Exception:
        return
    raise AssertionError("a row without an action was accepted")
    ### END SOLUTION


# %% ng="test:test_shaped_token_rewards"
check(test_shaped_token_rewards)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which rows must a batch hold so that "the last column", "the number of actions
# minus one" and "the last action" are three different places? </details>
# <details><summary>Hint 2: where to look</summary> A late start, a gap, an early end, a single action; a score of 0 and a
# negative one; two values of beta; NaN where the mask is 0; a mask of bool and one of integers. </details>
# <details><summary>Hint 3: almost code</summary> Build the expected rewards with two plain loops over rows and positions, then
# <code>assert torch.allclose(shaped(...), expected)</code>. For the row without an action use <code>try</code>. </details>

# %% [markdown]
# {{card discounted_returns}}
#
# The **return** of a step is what is still to come:
#
# $$G_t=\sum_{k\ge t}\gamma^{\,k-t}\,r_k ,\qquad G_t=r_t+\gamma\,G_{t+1}.$$
#
# $r_k$ is the reward of step $k$, and the **discount** $\gamma\in[0,1]$ says how much a reward one step later is worth. For rewards 0, 1, 2
# and $\gamma=\tfrac12$ the first return is $0+\tfrac12+\tfrac24=1$; if a critic expected 0.4 there, the **advantage** is 0.6: the action
# turned out better than expected. InstructGPT and Google's RLAIF work discount nothing,
# $\gamma=1$ [D].
#
# $k-t$ counts **actions**. Where the mask is 0 no time passes: tokens that a tool inserted between two actions change no return.
# Such a position gets 0, and a reward that somebody left there is an error. To skip it quietly would lose it.

# %% ng="solution:discounted_returns"
def discounted_returns(rewards, gamma, mask=None):
    """Discounted sum of the rewards from each step on.

    rewards   [B, T] float; 0 wherever the mask is 0
    gamma     in [0, 1]
    mask      [B, T] bool or 0/1, or None for all ones: positions with 0 are skipped, they are no time step
    returns   [B, T]: the return of each step, 0 where the mask is 0
    raises    ValueError if there is a reward where the mask is 0
    """
    ### BEGIN SOLUTION
    steps = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask.bool()
    if bool((rewards[~steps].nan_to_num(0.0) != 0).any()):
        raise ValueError("rewards has a reward where the mask is 0: it would be lost")
    following, columns = torch.zeros_like(rewards[:, 0]), []
    for reward, step in zip(rewards.unbind(1)[::-1], steps.unbind(1)[::-1]):
        following = torch.where(step, reward + gamma * following, following)
        columns.append(torch.where(step, following, 0.0))
    return torch.stack(columns[::-1], dim=1)
    ### END SOLUTION


# %% ng="test:discounted_returns"
check(discounted_returns)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Rewards 1, 0, 1 with the middle position masked and gamma 1/2: is the first
# return 1.5 or 1.25? </details>
# <details><summary>Hint 2: where to look</summary> Go from the last column to the first and carry the return of the next action.
# A masked column hands on the carry as it is. </details>
# <details><summary>Hint 3: almost code</summary> <code>carry = where(mask[:, t], rewards[:, t] + gamma * carry, carry)</code> for
# t from T - 1 down to 0. </details>

# %% [markdown]
# {{card generalized_advantage_estimation}}
#
# A return is unbiased and noisy: it holds the luck of all later tokens. A critic's guess $V_t$, made *before* the action at $t$,
# is calm and biased. Generalised advantage estimation (GAE) goes between the two, by a number $\lambda\in[0,1]$. With the
# temporal-difference residual $\delta_t$,
#
# $$\delta_t=r_t+\gamma V_{t+1}-V_t,\qquad \hat A_t=\delta_t+\gamma\lambda\,\hat A_{t+1},\qquad \text{return}_t=\hat A_t+V_t .$$
#
# $\hat A_t$ estimates the advantage of the action at $t$. $\lambda=0$ gives the residual alone; $\lambda=1$ gives the discounted return (plus the discounted `final_value` where the
# episode was truncated) minus $V_t$. Here $t+1$ is the **next action** of the row: positions with mask 0 take no part and hold 0
# in both results.
#
# An episode can end in two ways, and several episodes may stand in one row. At an end nothing of the next episode may leak in, so
# $\hat A_{t+1}$ is replaced by 0. What replaces $V_{t+1}$ depends on the end:
#
# | the episode was | because | $V_{t+1}$ becomes |
# |---|---|---|
# | **terminated** at $t$ | it is over: the answer is given | 0 |
# | **truncated** at $t$ | we stopped watching: a time limit | `final_value[t]`, the critic's value of what came after |
#
# A timeout is not a failure. If it is treated as one, the policy learns that long episodes are bad, even where they were going
# well. If both flags are set, the episode is over: terminated wins. (In this level's training a review that is cut at 24 words is
# judged as it stands, so its episode is over: terminated. Truncation matters from level 4 on.)

# %% ng="solution:generalized_advantage_estimation"
def generalized_advantage_estimation(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """Advantages and value targets of every action.

    rewards       [B, T] float; 0 wherever the mask is 0
    values        [B, T] float: the critic's value before the action at t; anything where the mask is 0
    terminated    [B, T] bool or 0/1: the episode is over after the action at t; read at actions only
    truncated     [B, T] bool or 0/1: it was cut off after the action at t; read at actions only. Both set: terminated wins
    final_value   [B, T] float: the critic's value of the observation after step t; anything where the episode isn't truncated
    mask          [B, T] bool or 0/1: positions with 0 are skipped. The last action of a row ends an episode, one way or the other
    gamma         in [0, 1]
    gae_lambda    in [0, 1]
    returns       (advantages [B, T], returns [B, T]), returns = advantages + values; both 0 where the mask is 0
    raises        ValueError if there is a reward where the mask is 0
    """
    ### BEGIN SOLUTION
    actions, over, cut = mask.bool(), terminated.bool(), truncated.bool()
    if bool((rewards[~actions].nan_to_num(0.0) != 0).any()):
        raise ValueError("rewards has a reward where the mask is 0: no action would get it")
    zero = torch.zeros_like(values[:, 0])
    next_value, next_advantage, columns = zero, zero, []
    for t in range(values.shape[1] - 1, -1, -1):
        bootstrap = torch.where(over[:, t], zero, torch.where(cut[:, t], final_value[:, t], next_value))
        carried = torch.where(over[:, t] | cut[:, t], zero, next_advantage)
        here = rewards[:, t] + gamma * bootstrap - values[:, t] + gamma * gae_lambda * carried
        next_advantage = torch.where(actions[:, t], here, next_advantage)
        next_value = torch.where(actions[:, t], values[:, t], next_value)
        columns.insert(0, torch.where(actions[:, t], here, zero))
    advantages = torch.stack(columns, dim=1)
    return advantages, advantages + torch.where(actions, values, 0.0)
    ### END SOLUTION


# %% ng="test:generalized_advantage_estimation"
check(generalized_advantage_estimation)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Two things are carried from the next action to this one. Which of them does a
# termination cut, which does a truncation cut, and what replaces it? </details>
# <details><summary>Hint 2: where to look</summary> One loop from behind. At a masked column both carries pass through unchanged.
# Choose with <code>torch.where</code>; a product with a flag lets NaN through. </details>
# <details><summary>Hint 3: almost code</summary> <code>after = where(terminated, 0, where(truncated, final_value,
# next_value))</code>; <code>delta = r + gamma * after - v</code>; <code>adv = delta + gamma * lam * where(terminated | truncated,
# 0, next_adv)</code>; then update <code>next_value</code> and <code>next_adv</code> where the mask is 1. </details>

# %% [markdown]
# {{card test_generalized_advantage_estimation}}
#
# **Bug hunt.** In a popular one-file implementation of PPO a time limit still counted as an end when we last looked ([D], cleanrl
# issues 198 and 448). The curves look fine; only long episodes pay.
#
# Write a test for some `generalized_advantage_estimation` with the arguments above, all eight given. Wrong ones let value or
# advantage leak across an end, treat a timeout as a failure, or bootstrap from the wrong place, count observation tokens as time
# or drop what lies beyond them, forget $\gamma$ or $\lambda$ somewhere, swap the two results, or let what stands at masked
# positions through.

# %% ng="solution:test_generalized_advantage_estimation"
def test_generalized_advantage_estimation(gae):
    """Raise if `gae` is not a right generalized_advantage_estimation; return None if it is."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(11)
    mask = torch.tensor(
        [
            [1, 1, 1, 1, 1, 1, 1, 1],
            [0, 1, 1, 0, 0, 1, 1, 0],
            [1, 1, 0, 1, 1, 0, 1, 1],
            [0, 0, 1, 0, 0, 0, 0, 0],
            [1, 0, 1, 1, 0, 1, 0, 0],
        ]
    ).bool()
    ends = {  # (row, step) -> terminated, truncated
        (0, 2): (1, 0), (0, 5): (0, 1), (0, 7): (1, 0), (1, 2): (0, 1), (1, 6): (0, 1),
        (2, 1): (1, 0), (2, 4): (0, 1), (2, 7): (0, 1), (3, 2): (0, 1), (4, 5): (1, 1),
    }  # fmt: skip
    terminated, truncated = torch.zeros_like(mask), torch.zeros_like(mask)
    for (row, step), (over, cut) in ends.items():
        terminated[row, step], truncated[row, step] = bool(over), bool(cut)
    draw = torch.randn(3, 5, 8, generator=generator, dtype=torch.float64)
    rewards, values, final = torch.where(mask, draw[0], 0.0), draw[1], draw[2]

    def expected(gamma, lam):
        advantages = torch.zeros(5, 8, dtype=torch.float64)
        for row in range(5):
            episode = []
            for t in [t for t in range(8) if mask[row, t]]:
                episode.append(t)
                if (row, t) not in ends:
                    continue
                beyond = 0.0 if terminated[row, t] else float(final[row, t])
                value = [float(values[row, i]) for i in episode] + [beyond]
                delta = [float(rewards[row, i]) + gamma * value[n + 1] - value[n] for n, i in enumerate(episode)]
                for n, i in enumerate(episode):
                    advantages[row, i] = sum((gamma * lam) ** (k - n) * delta[k] for k in range(n, len(delta)))
                episode = []
        return advantages, advantages + torch.where(mask, values, 0.0)

    spoiled_values = torch.where(mask, values, math.nan)
    spoiled_final = torch.where(truncated, final, math.nan)
    for gamma, lam in ((0.9, 0.8), (1.0, 0.95), (0.5, 1.0), (0.7, 0.0)):
        wanted = expected(gamma, lam)
        for v, f in ((values, final), (spoiled_values, spoiled_final)):
            given = (x.clone() for x in (rewards, v, terminated, truncated, f, mask))
            got = gae(*given, gamma=gamma, gae_lambda=lam)
            for one, other in zip(got, wanted, strict=True):
                assert one.shape == (5, 8)
                assert torch.allclose(one.double(), other, rtol=1e-6, atol=1e-9)
    ### END SOLUTION


# %% ng="test:test_generalized_advantage_estimation"
check(test_generalized_advantage_estimation)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For which inputs do "terminated" and "truncated" give the same numbers, so that a
# test with them proves nothing? </details>
# <details><summary>Hint 2: where to look</summary> Two episodes in one row, one end of each kind in the middle, a gap of masked
# tokens, values and final values that are not 0, gamma and lambda both below 1 and different. </details>
# <details><summary>Hint 3: almost code</summary> Cut each row into episodes by hand; within one, compute the residuals and the
# direct sum <code>sum((gamma * lam) ** (k - n) * delta[k] for k in range(n, len(delta)))</code>. </details>

# %% [markdown]
# How far does a reward reach back? Move $\gamma$ and $\lambda$; with `truncated` at 1 the first of the two episodes was cut off.

# %% tags=["experiment"]
from course.figures import training as figures
from course.figures.widgets import sliders

sliders(
    lambda gamma, lam, truncated: figures.gae_explorer(
        generalized_advantage_estimation, gamma=gamma, gae_lambda=lam, truncated=truncated
    ),
    gamma=(0.5, 1.0, 0.05, 1.0),
    lam=(0.0, 1.0, 0.05, 0.8),
    truncated=(0, 1, 1, 0),
)

# %% [markdown]
# {{card whiten}}
#
# Advantages come in the units of the reward. PPO implementations usually bring them to mean 0 and variance 1 before the update,
# so that one learning rate does for all scales:
#
# $$\hat x_i=\frac{x_i-\mu}{\sigma},\qquad \mu,\sigma \text{ over all positions of the batch with mask 1.}$$
#
# $\sigma$ is the population standard deviation (divide by the number of positions), without an epsilon. Positions with mask 0
# hold anything before and 0 afterwards. If all masked values are equal there is nothing to tell apart, and the result is
# exactly 0. In floating point "all equal" does not mean that the computed $\sigma$ is 0: in `float32` the mean of eight numbers
# 0.7 is not 0.7.

# %% ng="solution:whiten"
def whiten(x, mask):
    """Mean 0 and variance 1 over the positions of the batch where the mask is 1.

    x         [B, T] float; anything where the mask is 0
    mask      [B, T] bool or 0/1
    returns   [B, T]: (x - mean) / population standard deviation; 0 where the mask is 0; all 0 if the counted values are equal,
              or if the mask is 0 everywhere
    """
    ### BEGIN SOLUTION
    counted = mask.bool()
    values = x[counted]
    result = torch.zeros_like(x)
    if len(values) and bool(values.max() > values.min()):
        result[counted] = (values - values.mean()) / values.std(unbiased=False)
    return result
    ### END SOLUTION


# %% ng="test:whiten"
check(whiten)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> If the padding held zeros and you averaged over everything, would the mean over
# actions be 0? </details>
# <details><summary>Hint 2: where to look</summary> <code>x[mask]</code> picks the counted values; torch's standard deviation
# divides by n - 1 unless told otherwise; compare the greatest and the smallest value before you divide. </details>
# <details><summary>Hint 3: almost code</summary> <code>v = x[mask]</code>; if <code>v.max() &gt; v.min()</code> then <code>(v -
# v.mean()) / v.std(unbiased=False)</code> goes back to where the mask is 1. </details>

# %% [markdown]
# ## Part B · PPO's losses
#
# The policy gradient is $\nabla J=\mathbb E_\pi\big[\sum_t\nabla\log\pi(y_t)\,\hat A_t\big]$, for responses that *this* policy
# wrote. With fresh samples for every step, and the return in place of $\hat A_t$, this is **REINFORCE**; with a critic's value subtracted,
# REINFORCE with a learned baseline; with GAE's $\hat A_t$, which also bootstraps from the critic, **A2C** (advantage actor-critic). After one step the policy is another one and the batch is old. Proximal policy
# optimisation (PPO) reuses it for a few steps, through the ratio $\rho_t=\pi(y_t)/\pi_{\text{old}}(y_t)$ to the policy that wrote it.
# Three policies must not be confused: the **current** one has the gradient; the **old** one, also called **behaviour policy**, wrote the
# batch, and its log-probabilities were recorded while it wrote; the **reference** never changes.

# %% [markdown]
# {{card ppo_actor_loss}}
#
# $$L=-\frac{1}{N}\sum_{t}\min\big(\rho_t\hat A_t,\;\mathrm{clip}(\rho_t,1-\epsilon,1+\epsilon)\,\hat A_t\big),
# \qquad N=\text{number of actions in the batch.}$$
#
# The smaller of the two terms is the pessimistic one, for both signs of the advantage. Once a good action has gained a factor
# $1+\epsilon$, or a bad one has fallen below a factor $1-\epsilon$, it gets no further gradient. In the other direction nothing
# is clipped: a good action that has become rarer is pulled back, with weight $\rho$, and never cut off.
#
# | | $\rho=0.6$ | $\rho=1$ | $\rho=1.4$ |
# |---|---|---|---|
# | $\hat A=+2$ | 1.2, gradient | 2, gradient | **2.4, no gradient** |
# | $\hat A=-2$ | **-1.6, no gradient** | -2, gradient | -2.8, gradient |
#
# (the minimum for $\epsilon=0.2$, a value that InstructGPT used [D]). At $\rho=1$ the gradient is that of the policy gradient.
# The clip limits what *one sampled action* can gain; it doesn't bound the KL of the policy as a whole.
#
# The advantage is a number to follow, not to train: no gradient may flow into it, nor into the old log-probabilities. Masked
# positions may hold anything, and neither the loss nor its gradient may notice.

# %% ng="solution:ppo_actor_loss"
def ppo_actor_loss(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    """PPO's clipped surrogate, as a loss to minimise.

    logp_new      [B, T] float: the current policy's log-probability of each token; gradients flow here and nowhere else
    logp_old      [B, T] float: as recorded when the response was sampled
    advantage     [B, T] float
    action_mask   [B, T] bool or 0/1; where it is 0 the others may hold anything, NaN and infinity too
    clip_eps      in (0, 1)
    returns       scalar: minus the mean over the batch's actions of min(ratio A, clip(ratio) A); 0 if there is no action
    """
    ### BEGIN SOLUTION
    actions = action_mask.bool()
    credit = torch.where(actions, advantage.detach(), 0.0)
    ratio = torch.where(actions, logp_new - logp_old.detach(), 0.0).exp()  # 1 at masked positions, before anything can overflow
    free, held = ratio * credit, ratio.clamp(1 - clip_eps, 1 + clip_eps) * credit
    return -torch.minimum(free, held).sum() / max(1, int(actions.sum()))
    ### END SOLUTION


# %% ng="test:ppo_actor_loss"
check(ppo_actor_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> In which two of the six cases of the table is the clipped term the smaller one?
# </details>
# <details><summary>Hint 2: where to look</summary> Replace the log-ratio by 0 where the mask is 0 <i>before</i> the exponential:
# a NaN that is only hidden afterwards comes back in the gradient. Divide by the number of actions, not by B times T. </details>
# <details><summary>Hint 3: almost code</summary> <code>ratio = exp(where(mask, new - old.detach(), 0))</code>;
# <code>-minimum(ratio * A, clamp(ratio, 1 - eps, 1 + eps) * A)</code>, summed over actions, divided by their number. </details>

# %% [markdown]
# {{card clip_report}}
#
# A mean hides what you need to know. A thousand tokens with ratio 1 and one with ratio 50 have a small mean KL, and that one may
# be the token that starts a tool call. So look at quantiles, and split by **action type** (an integer per token: here content
# word, function word, end; in an agent also tool call).
#
# A token counts as **clipped** when the clipped term is the one in use and has no gradient: $\hat A>0$ and $\rho>1+\epsilon$, or
# $\hat A<0$ and $\rho<1-\epsilon$. Being outside the interval is not enough.
#
# Return `{"all": row, type: row, ...}` with one entry for each type that some action of the batch has, and in each row
#
# | key | over the actions of that type |
# |---|---|
# | `clip_fraction` | clipped actions / actions |
# | `ratio_q50`, `ratio_q90`, `ratio_q99` | quantiles of $\rho$, linear interpolation (`torch.quantile`'s) |
# | `ratio_max` | the greatest $\rho$ |
# | `tokens` | number of actions, an `int` |

# %% ng="solution:clip_report"
def clip_report(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """Clip fraction and ratio quantiles over actions, for all of them and by type.

    logp_new, logp_old   [B, T] float; anything where the mask is 0
    advantage            [B, T] float; anything where the mask is 0
    action_mask          [B, T] bool or 0/1, with at least one 1
    action_type          [B, T] int; anything where the mask is 0
    clip_eps             in (0, 1)
    returns              dict: "all" and every type (int) that an action has -> dict with clip_fraction, ratio_q50, ratio_q90,
                         ratio_q99, ratio_max (float) and tokens (int)
    """
    ### BEGIN SOLUTION
    actions = action_mask.bool()
    ratio = (logp_new.detach() - logp_old.detach())[actions].double().exp()
    credit, kind = advantage.detach()[actions], action_type[actions]
    stopped = ((credit > 0) & (ratio > 1 + clip_eps)) | ((credit < 0) & (ratio < 1 - clip_eps))

    def row(chosen):
        r = ratio[chosen]
        entry = {"clip_fraction": float(stopped[chosen].double().mean())}
        for percent in (50, 90, 99):
            entry[f"ratio_q{percent}"] = float(torch.quantile(r, percent / 100))
        return entry | {"ratio_max": float(r.max()), "tokens": len(r)}

    report = {"all": row(torch.ones_like(stopped))}
    for number in sorted(set(kind.tolist())):
        report[number] = row(kind == number)
    return report
    ### END SOLUTION


# %% ng="test:clip_report"
check(clip_report)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> A token has ratio 3 and advantage -1. Is it clipped? </details>
# <details><summary>Hint 2: where to look</summary> Select the actions first, <code>x[mask]</code>, and everything after that is
# one-dimensional. </details>
# <details><summary>Hint 3: almost code</summary> <code>clipped = ((A &gt; 0) &amp; (ratio &gt; 1 + eps)) | ((A &lt; 0) &amp;
# (ratio &lt; 1 - eps))</code>; one helper <code>row(chosen)</code>, called for all and for each <code>kind == type</code>.
# </details>

# %% [markdown]
# Move advantage and $\epsilon$: the flat side of the surrogate is where a token stops teaching.

# %% tags=["experiment"]
sliders(
    lambda advantage, eps: figures.ppo_clip_explorer(ppo_actor_loss, advantage=advantage, eps=eps),
    advantage=(-2.0, 2.0, 0.25, 1.0),
    eps=(0.05, 0.5, 0.05, 0.2),
)

# %% [markdown]
# {{card critic_loss}}
#
# The critic learns what to expect *before* each action: the value at position $t$ is read before the token at $t$ is known. Its
# target is the return of that step, a number that was computed once and is not trained:
#
# $$L_V=\frac{1}{2N}\sum_{t}\,(V_t-\text{return}_t)^2 .$$
#
# Only actions count: a critic that also learns to predict padding spends itself on it, and a bootstrap from such a value then
# feeds it back.

# %% ng="solution:critic_loss"
def critic_loss(values, returns, mask):
    """Half the mean squared error of the critic over actions.

    values    [B, T] float: gradients flow here; anything where the mask is 0
    returns   [B, T] float: targets, no gradient; anything where the mask is 0
    mask      [B, T] bool or 0/1
    returns   scalar; 0 if there is no action
    """
    ### BEGIN SOLUTION
    actions = mask.bool()
    error = torch.where(actions, values - returns.detach(), 0.0)
    return 0.5 * (error * error).sum() / max(1, int(actions.sum()))
    ### END SOLUTION


# %% ng="test:critic_loss"
check(critic_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> V = 1 everywhere, returns 0: is the loss 1 or 1/2? And with half of the positions
# masked? </details>
# <details><summary>Hint 2: where to look</summary> Select with <code>where</code> before you square: the square of NaN is NaN,
# times 0 too. </details>
# <details><summary>Hint 3: almost code</summary> <code>error = where(mask, values - returns.detach(), 0)</code>; half the sum of
# squares over the number of actions. </details>

# %% [markdown]
# {{card ppo_ptx_loss}}
#
# A reward model knows little of what the language model could do before. InstructGPT mixed language-model gradients on
# pretraining text into PPO, with a coefficient of 27.8 and about eight times as many pretraining examples as episodes [D], and
# called the result PPO-ptx ($\gamma$ is another gamma than the discount):
#
# $$\nabla L=\nabla L_{\text{PPO}}+\gamma\,\nabla L_{\text{pretrain}},
# \qquad L_{\text{pretrain}}=\text{mean negative log-likelihood of pretraining tokens.}$$
#
# This is not a KL penalty. KL holds the policy to the reference *on the responses it samples*; rehearsal keeps it able to write
# text *that it no longer samples*.

# %% ng="solution:ppo_ptx_loss"
def ppo_ptx_loss(ppo, pretrain_nll, gamma):
    """PPO with rehearsal of pretraining text.

    ppo            scalar: PPO's loss, to minimise
    pretrain_nll   scalar: mean negative log-likelihood per pretraining token
    gamma          >= 0: weight of the rehearsal
    returns        scalar, to minimise; gradients flow into both
    """
    ### BEGIN SOLUTION
    return ppo + gamma * pretrain_nll
    ### END SOLUTION


# %% ng="test:ppo_ptx_loss"
check(ppo_ptx_loss)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> The negative log-likelihood falls when the pretraining text gets likelier. Which
# sign must it have in a loss? </details>
# <details><summary>Hint 2: where to look</summary> The gradient of a sum is the sum of the gradients. Nothing is detached.
# </details>
# <details><summary>Hint 3: almost code</summary> One line, one plus, one times. </details>

# %% [markdown]
# ## Part C · Groups in place of a critic
#
# A critic is a second network of the actor's size, and at the start it knows nothing. If responses are cheap, sample $G$ of them
# for every prompt and compare each with its siblings. GRPO (group relative policy optimisation) and RLOO (REINFORCE leave-one-out) do
# this. The siblings give the **baseline**, the number that is subtracted from a reward before it becomes credit. ($G$ without an index is
# the size of a group; $G_t$ was a return.)

# %% [markdown]
# {{card group_relative_advantages}}
#
# $$\hat A_i=\frac{r_i-\bar r}{s}
# \qquad\text{over the group of responses to one prompt, with } s=1 \text{ or } s=\operatorname{std}(r).$$
#
# GRPO divides by the standard deviation; its authors don't say which divisor it has and whether anything is added to it [U]. This
# course declares: population standard deviation (divisor $G$), no epsilon, and **exactly 0** for a group whose rewards are all
# equal, a group of one included. With rewards 1, 0, 1 the centred advantages are $\tfrac13,-\tfrac23,\tfrac13$.
#
# The usual $s+10^{-8}$ is no protection. Eight rewards of 0.7 in `float32` have a computed standard deviation of about
# $6\cdot10^{-8}$, and the "advantage" comes out as about 0.9 where there is nothing to learn.
#
# Dividing by $s$ gives every prompt the same say, whether its responses differ by a hair or by a mile. Without it prompts with a
# wide spread dominate. Dr. GRPO leaves the division out [D].

# %% ng="solution:group_relative_advantages"
def group_relative_advantages(rewards, group_id, *, scale):
    """Rewards centred, and if asked scaled, within the group of each prompt.

    rewards    [B] float
    group_id   [B] int of any size or sign: equal for responses to one prompt, in any order; groups may differ in size
    scale      "none": subtract the group's mean; "std": then also divide by the group's population standard deviation
    returns    [B]; exactly 0 in a group whose rewards are all equal
    raises     ValueError for any other scale
    """
    ### BEGIN SOLUTION
    if scale not in ("none", "std"):
        raise ValueError(f'scale must be "none" or "std"; got {scale!r}')
    advantages = torch.zeros_like(rewards)
    for group in group_id.unique():
        members = group_id == group
        inside = rewards[members]
        if bool(inside.max() > inside.min()):
            divisor = inside.std(unbiased=False) if scale == "std" else 1.0
            advantages[members] = (inside - inside.mean()) / divisor
    return advantages
    ### END SOLUTION


# %% ng="test:group_relative_advantages"
check(group_relative_advantages)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What are the advantages of eight responses with reward 0.7 each, on paper and in
# your code? </details>
# <details><summary>Hint 2: where to look</summary> A loop over <code>group_id.unique()</code> is fine. Decide "all equal" by
# comparing the greatest with the smallest reward, not by the standard deviation. </details>
# <details><summary>Hint 3: almost code</summary> <code>r = rewards[group_id == g]</code>; if <code>r.max() &gt; r.min()</code>:
# <code>d = r - r.mean(); out[group_id == g] = d / r.std(unbiased=False) if scale == "std" else d</code>. </details>

# %% [markdown]
# {{card leave_one_out_advantages}}
#
# The mean $\bar r$ contains $r_i$ itself, so response $i$ is compared with a baseline that it has moved. Leave it out:
#
# $$\hat A_i=r_i-\frac{1}{G-1}\sum_{j\ne i}r_j=\frac{G}{G-1}\,(r_i-\bar r).$$
#
# This baseline does not depend on response $i$, so the expected gradient is exact, whatever $G$. With $\bar r$ it is
# $\tfrac{G-1}{G}$ of the exact one: the direction is right and the step is shorter. After dividing by the standard deviation,
# even the direction differs. Three arms with probabilities 0.5, 0.3, 0.2 that pay 1, -0.5, 2 have the exact gradient (0.125,
# -0.375, 0.25) with respect to their logits. Over all groups of three the others as baseline give the same; $\bar r$ gives
# (0.083, -0.25, 0.167), two thirds of each; with the division (0.080, -0.290, 0.210), 64, 77 and 84 percent.
# (The probe *groups* below checks the first two by enumeration.)

# %% ng="solution:leave_one_out_advantages"
def leave_one_out_advantages(rewards, group_id):
    """Each reward minus the mean of the other rewards of its group.

    rewards    [B] float
    group_id   [B] int of any size or sign: equal for responses to one prompt, in any order; groups may differ in size
    returns    [B]; exactly 0 in a group whose rewards are all equal
    raises     ValueError if a group has one member: there is nothing to compare it with
    """
    ### BEGIN SOLUTION
    same = group_id[:, None] == group_id[None, :]
    others = same & ~torch.eye(len(rewards), dtype=torch.bool, device=rewards.device)
    if not bool(others.any(dim=1).all()):
        raise ValueError("group_id has a group of one: there is nothing to compare it with")
    gaps = torch.where(others, rewards[:, None] - rewards[None, :], 0.0)
    return gaps.sum(dim=1) / others.sum(dim=1)  # the mean gap to the others: exactly 0 if all are equal
    ### END SOLUTION


# %% ng="test:leave_one_out_advantages"
check(leave_one_out_advantages)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Rewards 6 and 3 in one group: what are the two advantages? </details>
# <details><summary>Hint 2: where to look</summary> A B by B comparison of group ids, without its diagonal, says who is compared
# with whom. </details>
# <details><summary>Hint 3: almost code</summary> Average the differences <code>r_i - r_j</code> over the others j of the group.
# They are exactly 0 when all are equal. </details>

# %% [markdown]
# {{card test_group_relative_advantages}}
#
# **Bug hunt.** Released trainers have divided before subtracting, `r - r.mean() / (r.std() + eps)` ([D], prime-rl pull request
# 390), exchanged the branches of the scaling option ([D], TRL pull request 3992), and differ to this day in the divisor of the
# standard deviation.
#
# Write a test for some `group_relative_advantages(rewards, group_id, scale=...)`. Wrong ones have the wrong precedence, divisor
# or epsilon, group by position or over the whole batch, exchange "none" and "std", mistreat groups without variation, or forget
# to give the results back in the order of the input.

# %% ng="solution:test_group_relative_advantages"
def test_group_relative_advantages(advantages):
    """Raise if `advantages` is not a right group_relative_advantages(rewards, group_id, *, scale); return None if it is."""
    ### BEGIN SOLUTION
    group = torch.tensor([7, -3, 7, 10**9, -3, 7, 2, 10**9, 7, -3, 5, 5, 5, 4, 4])
    reward = torch.tensor(
        [1.0, 250.0, 0.0, 0.5, -50.0, 1.0, 3.0, 0.5, -0.25, 10.0, 1e-4, 3e-4, 2e-4, -8.0, 6.0], dtype=torch.float64
    )

    def expected(scale):
        wanted = []
        for r, g in zip(reward.tolist(), group.tolist()):
            inside = [other for other, h in zip(reward.tolist(), group.tolist()) if h == g]
            mean = sum(inside) / len(inside)
            spread = math.sqrt(sum((x - mean) ** 2 for x in inside) / len(inside)) if scale == "std" else 1.0
            wanted.append(0.0 if max(inside) == min(inside) else (r - mean) / spread)
        return torch.tensor(wanted, dtype=torch.float64)

    order = torch.randperm(15, generator=torch.Generator().manual_seed(2))
    for scale in ("none", "std"):
        for places in (torch.arange(15), order):
            got = advantages(reward[places].clone(), group[places].clone(), scale=scale)
            assert got.shape == (15,)
            assert torch.allclose(got.double(), expected(scale)[places], rtol=1e-6, atol=1e-12)
        for size in (2, 3, 7, 8):  # equal rewards whose computed mean is not quite themselves
            for value in (0.7, 0.1, 1 / 3):
                for dtype in (torch.float32, torch.float64):
                    same = torch.full((size,), value, dtype=dtype)
                    got = advantages(same.clone(), torch.full((size,), 4), scale=scale)
                    assert bool((got == 0).all())
    ### END SOLUTION


# %% ng="test:test_group_relative_advantages"
check(test_group_relative_advantages)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which batch tells "per group" from "over the whole batch", and "divided by 3"
# from "divided by 2"? </details>
# <details><summary>Hint 2: where to look</summary> Interleaved groups of different sizes, means and spreads, one with a very
# small spread; ids that are negative or huge; groups of equal rewards such as 0.7 in float32; both scales. </details>
# <details><summary>Hint 3: almost code</summary> Write the expected values with a plain loop, or by hand: rewards 1, 0, 1 give
# 1/3, -2/3, 1/3, and with "std" 0.7071, -1.4142, 0.7071. Demand <code>== 0</code>, not "close to 0", for equal rewards.
# </details>

# %% [markdown]
# ## Part D · One denominator
#
# Every loss above is a sum of token terms divided by something. What it is divided by is part of the algorithm. Of the published fixes
# to RL trainers that we collected, more concern this one number than anything else.

# %% [markdown]
# {{card aggregate}}
#
# With $L_{it}$ the loss of token $t$ of response $i$, and $m_{it}$ its mask,
#
# $$\text{token: } \frac{\sum_{i,t} m_{it}\,L_{it}}{\sum_{i,t} m_{it}}
# \qquad\qquad \text{response: } \frac1B\sum_i\frac{\sum_t m_{it}\,L_{it}}{\sum_t m_{it}} .$$
#
# With token losses $(1,2)$, $(3,4,5)$ and $(7)$ the first gives $22/6=3.67$, the second $(1.5+4+7)/3=4.17$. Under "token" every
# token counts the same and a long response weighs more; under "response" every response counts the same and a token of a long one
# weighs less. GRPO was published with the second, DAPO changed it to the first [D].
#
# A batch that doesn't fit into memory is cut into micro-batches whose gradients are added. **Means of parts don't add up to the
# mean of the whole.** So the optimiser step's count, tokens or responses of *all* micro-batches, is passed to each as
# `denominator`, and the parts then add up to the whole, whatever the cut.
#
# A response without a token adds nothing and doesn't count: $B$ is the number of responses with at least one token.

# %% ng="solution:aggregate"
def aggregate(token_loss, mask, *, how, denominator=None):
    """One number from token losses.

    token_loss    [B, T] float; anything where the mask is 0
    mask          [B, T] bool or 0/1
    how           "token": sum over tokens / number of tokens; "response": sum of the responses' token means / number of responses
                  that have a token
    denominator   None: count in this batch; a number > 0: the count of the whole optimiser step, in its place
    returns       scalar; 0 (with gradient 0) if the mask is empty
    raises        ValueError for any other how
    """
    ### BEGIN SOLUTION
    active = mask.bool()
    kept, tokens = torch.where(active, token_loss, 0.0), active.sum(dim=1)
    if how == "token":
        total, count = kept.sum(), int(tokens.sum())
    elif how == "response":
        total, count = (kept.sum(dim=1) / tokens.clamp(min=1)).sum(), int((tokens > 0).sum())
    else:
        raise ValueError(f'how must be "token" or "response"; got {how!r}')
    return total / (max(1, count) if denominator is None else denominator)
    ### END SOLUTION


# %% ng="test:aggregate"
check(aggregate)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Two micro-batches, one with 1 token of loss 9, one with 9 tokens of loss 1. What
# is the mean over all tokens, and what is the mean of the two means? </details>
# <details><summary>Hint 2: where to look</summary> Compute the total first, then divide once: by the count of this batch, or by
# the denominator you were given. </details>
# <details><summary>Hint 3: almost code</summary> token: <code>kept.sum() / count</code>; response: <code>(kept.sum(1) /
# tokens.clamp(min=1)).sum() / count</code>, with count the tokens, or the rows that have one. </details>

# %% [markdown]
# {{card overlong_penalty}}
#
# A response that runs into the length limit is cut, and a reward of "wrong" for the cut hits good and bad reasoning alike. DAPO
# (decoupled clip and dynamic sampling policy optimisation), a variant of GRPO, lets the penalty grow over the last tokens before the
# limit [D]. With limit $L$ (here a length, not a loss) and buffer $b$, a response of length $n$ gets
#
# $$\begin{cases}0 & n\le L-b\\ \dfrac{(L-b)-n}{b} & L-b<n\le L\\ -1 & n>L\end{cases}$$
#
# For $L=20$ and $b=4$: 16 tokens cost nothing, 17 cost 0.25, 18 cost 0.5, 20 and more cost 1. It is added to the reward.
#
# DAPO has four switches. Two you have written: the **token-level loss** and this one. Two are new here: **clip-higher** takes
# another $\epsilon$ above than below, and **dynamic sampling** replaces groups without variation by new ones. Our `grpo` does
# half of the second: it leaves such groups out and draws no others, which changes the law of the prompts just the same. Each
# switch can be thrown alone, and only then can an effect be put down to one of them.

# %% ng="solution:overlong_penalty"
def overlong_penalty(length, max_length, buffer):
    """DAPO's soft penalty for long responses.

    length       number or tensor of any shape: tokens of each response
    max_length   L, the limit
    buffer       b, in 1..L: the number of tokens before the limit over which the penalty grows
    returns      float tensor of length's shape: 0 up to L - b, then linear down to -1 at L, -1 beyond
    """
    ### BEGIN SOLUTION
    beyond = torch.as_tensor(length).to(torch.get_default_dtype()) - (max_length - buffer)
    return -(beyond / buffer).clamp(0.0, 1.0)
    ### END SOLUTION


# %% ng="test:overlong_penalty"
check(overlong_penalty)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What does a response of exactly L - b tokens cost, and one of L tokens?
# </details>
# <details><summary>Hint 2: where to look</summary> One straight line, clamped at both ends. </details>
# <details><summary>Hint 3: almost code</summary> <code>-((torch.as_tensor(length) - (L - b)) / b).clamp(0, 1)</code> </details>

# %% [markdown]
# ## KL in the reward, KL in the loss
#
# PPO and RLOO charge KL **in the reward** (2.1): the cost is a number, and the policy gradient does the rest. GRPO puts it **in the
# loss**, as $\beta$ times an estimate at each token [D]. There its gradient counts, and level 0 warned that value and gradient of an
# estimator are two questions. Write $d=\log\pi(y)-\log\pi_{\text{ref}}(y)$ for a sampled token and differentiate; for samples of $\pi$
#
# | estimator as a loss | its expected gradient is that of |
# |---|---|
# | $k_1=d$ | nothing: $\mathbb E_\pi[\nabla\log\pi]=\nabla\sum_y\pi(y)=0$ |
# | $k_2=\tfrac12d^2$ | $\mathrm{KL}(\pi\,\|\,\pi_{\text{ref}})$, although its value is biased |
# | $k_3=e^{-d}-1+d$, GRPO's | $\mathrm{KL}(\pi_{\text{ref}}\,\|\,\pi)$, the other direction, although its value is right |
#
# So $k_1$ is right in a reward and useless as a loss, and the same $\beta$ does not mean the same in both places. `course/objectives/kl.py`
# has all three, and a correction of the third.

# %% [markdown]
# ## Before you train: probes
#
# A training curve that rises proves little. A wrong sign in the KL cost, a baseline that contains its own sample, a critic
# trained on padding: each of these learns *something*. So before any training, solve problems whose answer you know. The package
# has eight (`course/training/probes.py`). Most of them take the noise out: a batch that holds every outcome in proportion to its
# probability makes the sample mean equal to the expectation, and what is left is right to many digits or wrong. Two probes train
# for some steps and need only come near: *clip* to within 0.03, and the last one to within 0.002. That one is the whole chain:
# nine possible responses of two tokens, KL in the reward, exact gradient steps. You know from level 1 where it must end: at
# $\pi_{\text{ref}}\,e^{r/\beta}/Z$.

# %% tags=["experiment"]
from course.figures import bandit as pictures, say
from course.training.probes import run_probes

mine = {
    "shaped_token_rewards": shaped_token_rewards,
    "generalized_advantage_estimation": generalized_advantage_estimation,
    "whiten": whiten,
    "ppo_actor_loss": ppo_actor_loss,
    "critic_loss": critic_loss,
    "group_relative_advantages": group_relative_advantages,
    "leave_one_out_advantages": leave_one_out_advantages,
    "aggregate": aggregate,
}
probed = run_probes(mine)


def some(numbers):
    return ", ".join(f"{round(x, 6) + 0.0:.3g}" for x in numbers[:3]) + (" ..." if len(numbers) > 3 else "")


rows = ["| probe | the problem | should be | is | | if this one fails, look here |", "|---|---|---|---|---|---|"]
for p in probed:
    mark = "✓" if p.passed else "✗"
    rows.append(f"| **{p.name}** | {p.problem} | {some(p.expected)} | {some(p.got)} | {mark} | {p.look} |")
say("\n".join(rows))

# %% [markdown]
# ### Experiment A · Which probe rings?
#
# A smoke detector is tested with smoke. We break one of your functions at a time, in nine ways, and run all probes on each.
#
# **Predict before you run:** in most rows exactly one probe rings. In one row several do, and in one row none. Which?

# %%
prediction_a = ""  # for example "several: ...; none: ..."

# %% tags=["experiment"]
from tqdm.auto import tqdm

FAULTS = {
    "KL turned round": {"shaped_token_rewards": lambda p, q, m, s, beta: shaped_token_rewards(q, p, m, s, beta)},
    "score at every action": {
        "shaped_token_rewards": lambda p, q, m, s, beta: shaped_token_rewards(p, q, m, 0 * s, beta) + m * s[:, None]
    },
    "timeout = failure": {
        "generalized_advantage_estimation": lambda r, v, over, cut, f, m, **rest: generalized_advantage_estimation(
            r, v, over | cut, cut & ~cut, f, m, **rest
        )
    },
    "the larger term": {"ppo_actor_loss": lambda n, o, a, m, clip_eps=0.2: -ppo_actor_loss(n, o, -a, m, clip_eps)},
    "wrong sign": {"ppo_actor_loss": lambda n, o, a, m, clip_eps=0.2: -ppo_actor_loss(n, o, a, m, clip_eps)},
    "old = new, recomputed": {"ppo_actor_loss": lambda n, o, a, m, clip_eps=0.2: ppo_actor_loss(n, n.detach(), a, m, clip_eps)},
    "eps is 0.2 whatever you say": {"ppo_actor_loss": lambda n, o, a, m, clip_eps=0.2: ppo_actor_loss(n, o, a, m, 0.2)},
    "itself in the baseline": {"leave_one_out_advantages": lambda r, g: group_relative_advantages(r, g, scale="none")},
    "mean of means": {"aggregate": lambda x, m, how, denominator=None: aggregate(x, m, how=how)},
}
matrix = {"yours": probed}
for name, fault in tqdm(FAULTS.items(), desc="faults"):
    matrix[name] = run_probes(mine | fault)
rings = {name: [p.name for p in row if not p.passed] for name, row in matrix.items()}
silent = [name for name in FAULTS if not rings[name]]
pictures.probe_matrix(
    matrix, title=f"{len(FAULTS) - len(silent)} of {len(FAULTS)} faults ring; not noticed: {', '.join(silent) or 'none'}"
)

# %% tags=["experiment"]
loud = [f"{name} ({', '.join(found)})" for name, found in rings.items() if len(found) > 1]
say(
    f"**What came out.** Your own functions ring {len(rings['yours'])} probes. More than one rings for: "
    f"{'; '.join(loud) or 'no fault'}. None rings for: {', '.join(silent) or 'no fault'}. "
    f"You predicted: {prediction_a or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** that an operator is right. A probe is one problem, and what its problem doesn't vary it can't
# see: all of these use one clip width. Where a fault rings nothing, write the probe that would ring. Where one rings several,
# start with the simplest problem that rings. The checks of the exercises vary more than the probes do, and know nothing of how
# the pieces are put together.

# %% [markdown]
# ## Part E · Training
#
# The task is the film reviews of level 1: a prompt `the movie`, a response of at most 24 words. A small decoder was fine-tuned on
# clean reviews; it is the actor's start and the frozen reference. A reward model was trained on 1024 comparisons of its samples
# by an annotator *who never errs*. A second judge, the **auditor**, was trained on other comparisons and reads scores in another
# way; nobody trains on it. **Gold** is a formula, known to us and to nobody in the experiment. Reward and auditor are in **z units**: over
# the reference's samples each has mean 0 and standard deviation 1.
#
# All the mathematics of a step is yours: `shaped_token_rewards`, `generalized_advantage_estimation`, `whiten`, `ppo_actor_loss`,
# `critic_loss`. Before you go on, read three functions of `course/training/ppo.py`: the loop `ppo`, `experience_of`, which turns
# scores into advantages, and `_update`, one optimiser step. Note where the old log-probabilities come from: they were recorded
# while the responses were sampled, and no update recomputes them.
#
# At scale the four networks are a matter of memory: with 16-bit weights and Adam a trained parameter takes 18 bytes and a frozen
# one 2, so that an actor of 7 billion parameters takes 126 GB before the first activation, and a critic as much again. [I:
# arithmetic, not a report.]

# %% tags=["experiment"]
import dataclasses

from course.tasks import reviews
from course.training.bandit import prepare
from course.training.overoptimisation import PUSHED, STEPS, pushed_run, run_of
from course.training.ppo import PpoOperators

with tqdm(total=1, desc="policy, reward model, auditor") as bar:
    bandit = prepare(SEED)
    bar.update()

# %% [markdown]
# ### Experiment B · Push until it breaks
#
# PPO with a low price of KL (a small $\beta$) and more steps than it should have. Beside each step we ask the auditor and gold what they think of the
# same responses, and draw all three on one axis. *Your* `clip_report` reads the ratios before the last of the optimiser steps that
# each batch is used for, for two types of action: words inside a response, and its last token.
#
# **Predict before you run:** the training reward will rise. What does gold do, and roughly from which step on? Does the auditor,
# who was never trained on, see it? What will the reviews look like?

# %%
prediction_b = ""  # for example "gold ..., from step ... on; the auditor ...; the reviews ..."

# %% tags=["experiment"]
reports, texts = [], []


def watched_actor_loss(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    last = action_mask & ~F.pad(action_mask, (0, 1))[:, 1:]
    reports.append(clip_report(logp_new, logp_old, advantage, action_mask, last.int(), clip_eps))
    return ppo_actor_loss(logp_new, logp_old, advantage, action_mask, clip_eps)


def watched_reward(batch):
    texts.append(reviews.text(batch.response(0)))
    return bandit.reward(batch)


operators = PpoOperators(shaped_token_rewards, generalized_advantage_estimation, whiten, watched_actor_loss, critic_loss)
watched = dataclasses.replace(bandit, reward=watched_reward)
seen = list(tqdm(pushed_run(watched, operators=operators, beta=PUSHED), total=STEPS, desc="PPO, pushed"))
run = run_of(SEED, False, seen)
peak, end = run.history[run.peak], run.history[-1]
gold_at_peak, gold_at_end, reward_at_end = run.gold[run.peak], run.gold[-1], run.training_reward[-1]
figures.overoptimisation(
    [run.to_json()],
    title=f"Reward ends at {reward_at_end:.1f}; gold peaks at {gold_at_peak:.2f} in step {peak.step}, ends at {gold_at_end:.2f}",
    unit="reward, auditor: z units; gold: utility",
)

# %% tags=["experiment"]
per_step = len(reports) // len(seen)
medians, greatest = [r["all"]["ratio_q50"] for r in reports], max(r["all"]["ratio_max"] for r in reports)
figures.ratio_diagnostics(
    [step.step + 1 for step, _ in seen],
    reports[per_step - 1 :: per_step],
    title=f"Median ratio between {min(medians):.2f} and {max(medians):.2f}; the greatest ratio is {greatest:.1f}",
    clip_eps=0.2,
    names={0: "inside the response", 1: "its last token"},
)

# %% tags=["experiment"]
shown = sorted({0, peak.step - 1, len(texts) - 1})
say(
    f"**What came out.** From the peak of gold to the end, gold changed by {gold_at_end - gold_at_peak:+.2f}, the training "
    f"reward by {reward_at_end - run.training_reward[run.peak]:+.2f}, the auditor's score by "
    f"{end.heldout_score - peak.heldout_score:+.2f} and KL by {end.kl - peak.kl:+.1f} nats. "
    f"You predicted: {prediction_b or 'nothing'}.\n\n"
    "| step | the first response of the batch |\n|---|---|\n"
    + "\n".join(f"| {i + 1} | `{texts[i]}` |" for i in shown)
)

# %% [markdown]
# **What the figure cannot show:** when to stop, if you don't have gold. Outside a toy task nobody has it. It is one seed, and where
# the peak lies differs between seeds (the exit test has ten). Nor can it show that the labels were at fault: they were right, all
# of them. The reward model was right about the reviews that it was shown, and nobody had shown it what it was then asked about.
# Whether the auditor follows gold down, stays flat or goes on rising depends on what *its* training had seen.

# %% [markdown]
# ### Experiment C · A law with a range
#
# Anthropic's report on a helpful and harmless assistant observed that preference reward grows about linearly with
# $\sqrt{\mathrm{KL}}$ over much of a run [D]. It is an observation, not a theorem. In one case it is exact: with a normal
# reference and a linear reward of variance 1 under it, the optimum at distance KL earns $\sqrt{2\,\mathrm{KL}}$ more than the reference.
# We fit $r\approx a\sqrt{\mathrm{KL}}+b$ to the run you have just made, to its training reward and, up to the peak and over the whole run, to gold.
#
# **Predict before you run:** is the training reward a straight line in $\sqrt{\mathrm{KL}}$? Is gold, before its peak? If you fit
# a line to gold before the peak, by how much does it miss the end?

# %%
prediction_c = ""

# %% tags=["experiment"]
from course.evidence.sqrt_kl import fit_sqrt_kl

usable = [i for i, row in enumerate(run.history) if row.kl > 0]  # an estimate from samples can be negative near 0
kl = torch.tensor([run.history[i].kl for i in usable], dtype=torch.float64)
earned = torch.tensor([run.training_reward[i] for i in usable], dtype=torch.float64)
worth = torch.tensor([run.gold[i] for i in usable], dtype=torch.float64)
reward_fit = fit_sqrt_kl(kl, earned)
figures.sqrt_kl_fit(
    kl, earned, reward_fit, title=f"The training reward grows by {reward_fit.a:.2f} ± {reward_fit.a_error:.2f} per sqrt(nat)"
)

# %% tags=["experiment"]
rising = [n for n, i in enumerate(usable) if i <= run.peak]
lines = [f"training reward, whole run: {reward_fit}", f"gold, whole run: {fit_sqrt_kl(kl, worth)}"]
missed = ""
if len(rising) >= 3:
    early = fit_sqrt_kl(kl[rising], worth[rising])
    lines.append(f"gold, up to its peak: {early}")
    promised = float(early.predict(kl[-1:]))
    missed = f"The line through gold before its peak promises {promised:.2f} at the end; gold is {float(worth[-1]):.2f} there. "
listed = "\n".join(f"- {line}" for line in lines)
say(f"**What came out.**\n\n{listed}\n\n{missed}You predicted: {prediction_c or 'nothing'}.")

# %% [markdown]
# **What the figure cannot show:** that the line goes on. The errors behind the ± treat neighbouring steps as independent, which
# they are not, so they are too small; a bend in the right panel says more than they do. Nor can a line for the *reward* say
# anything about gold: it says what a unit of reward cost in distance, not what it was worth.

# %% [markdown]
# ### Experiment D · What the reward does not ask for
#
# The reward likes praise. A policy trained on it may forget how to write anything else, and no curve so far would show it. A
# frozen **capability suite** asks for what the reward does not: legal next words, words of dislike, neutral words, and an
# unfavourable review preferred to its spoilt twin. It is made once and scored by likelihood; nothing is sampled.
#
# Two remedies, on and off: KL in the reward ($\beta$) and rehearsal of the fine-tuning text through *your* `ppo_ptx_loss`.
#
# **Predict before you run:** which remedy keeps the suite's score higher, and what does each do to gold?

# %%
prediction_d = ""

# %% tags=["experiment"]
from course.feedback.capability import suite
from course.objectives.supervised import sft_loss
from course.training.bandit import own_samples
from course.training.learner import Learner
from course.training.ppo import PpoConfig, ppo

frozen_suite = suite(SEED)
rehearsal_text = reviews.corpus(1000, SEED + 400)
fresh_prompts = reviews.prompts(128, SEED + 500)


def rehearsal_loss(logits, tokens, mask):
    return sft_loss(logits, tokens, mask, normalize="token")


def mean_gold(actor):
    return float(reviews.gold(own_samples(actor, fresh_prompts, SEED + 501)).mean())


def measure(actor):
    return {"capability": frozen_suite.score(actor), "gold": mean_gold(actor)}


operators = PpoOperators(
    shaped_token_rewards, generalized_advantage_estimation, whiten, ppo_actor_loss, critic_loss, ppo_ptx_loss, rehearsal_loss
)
BREADTH_STEPS, ARMS = 24, {"neither": (0.0, 0.0), "KL": (0.2, 0.0), "rehearsal": (0.0, 0.3), "KL and rehearsal": (0.2, 0.3)}
breadth = {}
with tqdm(total=BREADTH_STEPS * len(ARMS), desc="PPO and PPO-ptx") as bar:
    for name, (beta, weight) in ARMS.items():
        learner = Learner({"actor": bandit.actor(), "critic": bandit.critic()}, lr=5e-4)
        curve = {"step": [], "capability": [], "gold": []}
        for step in ppo(
            learner, bandit.policy, bandit.reward, bandit.prompts(64), operators=operators,
            config=PpoConfig(beta=beta, rehearsal_weight=weight, rehearsal_rows=32 if weight else 0),
            sampling=bandit.sampling, steps=BREADTH_STEPS, seed=SEED, rehearsal=rehearsal_text,
        ):  # fmt: skip
            bar.update()
            if (step.step + 1) % 4 == 0:
                for key, value in {"step": step.step + 1, **measure(learner["actor"])}.items():
                    curve[key].append(value)
        breadth[name] = curve
before = measure(bandit.policy)
neither, both = (breadth[name]["capability"][-1] for name in ("neither", "KL and rehearsal"))
pictures.breadth(
    breadth, before, title=f"Suite: {before['capability']:.2f} before, {neither:.2f} with neither remedy, {both:.2f} with both"
)

# %% tags=["experiment"]
after = "; ".join(f"{name}: suite {c['capability'][-1]:.2f}, gold {c['gold'][-1]:.2f}" for name, c in breadth.items())
say(
    f"**What came out.** Before training the suite gives {before['capability']:.2f} and gold is {before['gold']:.2f}. After "
    f"{BREADTH_STEPS} steps: {after}. The suite's digest is {frozen_suite.digest[:8]}; with another, numbers can't be compared. "
    f"You predicted: {prediction_d or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** that these two are the remedies to have. The suite asks about the very text that is rehearsed,
# which flatters rehearsal: an ability that neither the suite nor the rehearsal text contains can be lost without a trace. One
# seed, one strength of each remedy. And gold is measured on few samples, so differences of a tenth are luck.

# %% [markdown]
# ### Experiment E · Three methods, four switches, one budget
#
# PPO with a critic; RLOO with *your* `leave_one_out_advantages` and no ratio at all; GRPO with *your* `group_relative_advantages`
# and `aggregate`; and GRPO with each of DAPO's four switches thrown alone, then with all four. The reward is a thumb: 1 if the
# reward model's score is above 0.5, else 0, so that groups without variation exist. All runs start from the same policy and have
# the same budget of **sampled tokens**: each stops at the first step past it.
#
# **Predict before you run:** which is ahead at equal sampled tokens? Which of the four switches changes the length of the
# reviews, and which changes *who is in the batch*?

# %%
prediction_e = ""

# %% tags=["experiment"]
from course.training.grpo import GrpoConfig, grpo
from course.training.policy_gradient import PolicyGradientConfig, policy_gradient

BUDGET, GROUP, PROMPTS, BETA, RATE = 12_000, 8, 16, 0.02, 1e-3
RLOO_RATE = 5e-4  # it has no ratio and no clip: at 1e-3 it ran off to 10 nats and gold fell below 0


def thumb(batch):
    return (bandit.reward(batch) > 0.5).float()


def scaled(rewards, group_id):
    return group_relative_advantages(rewards, group_id, scale="std")


def response_loss(logp, advantage, action_mask, responses):
    return -torch.where(action_mask, logp * advantage, 0.0).sum() / responses


def grpo_run(learner, **switches):
    config = GrpoConfig(**{"group_size": GROUP, "beta": BETA, "how": "response"} | switches)
    penalty = overlong_penalty if config.overlong_buffer else None
    return grpo(
        learner, bandit.policy, thumb, bandit.prompts(PROMPTS), advantages=scaled, aggregate=aggregate, overlong=penalty,
        config=config, sampling=bandit.sampling, steps=200, seed=SEED,
    )  # fmt: skip


SWITCHES = {
    "clip-higher": {"clip_high": 0.28},
    "dynamic sampling": {"dynamic_sampling": True},
    "token-level loss": {"how": "token"},
    "overlong shaping": {"overlong_buffer": 12},
}
RUNS = {
    "PPO": lambda learner: ppo(
        learner, bandit.policy, thumb, bandit.prompts(PROMPTS * GROUP), operators=operators,
        config=PpoConfig(beta=BETA, epochs=1), sampling=bandit.sampling, steps=200, seed=SEED,
    ),
    "RLOO": lambda learner: policy_gradient(
        learner, bandit.policy, thumb, bandit.prompts(PROMPTS), advantages=lambda r, g, v: leave_one_out_advantages(r, g),
        loss=response_loss, config=PolicyGradientConfig(beta=BETA, group_size=GROUP, minibatches=2), sampling=bandit.sampling,
        steps=200, seed=SEED,
    ),
    "GRPO": grpo_run,
    **{f"GRPO, {name}": (lambda learner, switch=switch: grpo_run(learner, **switch)) for name, switch in SWITCHES.items()},
    "all four (DAPO)": lambda learner: grpo_run(learner, **{k: v for switch in SWITCHES.values() for k, v in switch.items()}),
}  # fmt: skip
curves, table = {}, []
with tqdm(total=BUDGET * len(RUNS), desc="sampled tokens", unit="tok") as bar:
    for name, start in RUNS.items():
        modules = {"actor": bandit.actor()} | ({"critic": bandit.critic()} if name == "PPO" else {})
        curve, spent, trained, dropped = {"sampled": [], "reward": [], "kl": []}, 0, 0, []
        for step in start(Learner(modules, lr=RLOO_RATE if name == "RLOO" else RATE)):
            spent, trained = spent + step.sampled, trained + step.trained
            dropped += [step.dropped_groups] if hasattr(step, "dropped_groups") else []
            curve["sampled"].append(spent)
            curve["reward"].append(step.reward)
            curve["kl"].append(step.kl)
            bar.update(step.sampled)
            if spent >= BUDGET:
                break
        curves[name] = curve
        without = sum(dropped) if dropped else "–"  # PPO and RLOO don't count them
        table.append((name, len(curve["reward"]), spent, trained, without, step, mean_gold(modules["actor"])))
shares, distances = ([curve[key][-1] for curve in curves.values()] for key in ("reward", "kl"))
ends = f"{min(shares):.0%} to {max(shares):.0%} thumbs up, {min(distances):.1f} to {max(distances):.1f} nats away"
pictures.methods_at_equal_tokens(curves, title=f"After {BUDGET // 1000} thousand sampled tokens: {ends}", reward="thumbs up")

# %% tags=["experiment"]
columns = ("run", "steps", "sampled", "trained", "groups without variation", "thumbs up", "KL, nats", "tokens per review", "gold")
rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
for name, steps, spent, trained, dropped, last, gold in table:
    numbers = f"{last.reward:.2f} | {last.kl:.1f} | {last.length:.1f} | {gold:.2f}"
    rows.append(f"| {name} | {steps} | {spent} | {trained} | {dropped} | {numbers} |")
say("**What came out.**\n\n" + "\n".join(rows) + f"\n\nYou predicted: {prediction_e or 'nothing'}.")

# %% [markdown]
# **What the figure cannot show:** which method is best. There is one seed, learning rates were set by eye (RLOO got half of the others',
# for nothing in it limits a step), and equal *sampled* tokens are not equal cost: PPO trains a
# second network, dynamic sampling pays for groups that it throws away, and its batches no longer follow the law of the prompts.
# The price of KL does not mean the same in a reward (PPO, RLOO) as in a loss (GRPO). To put a difference down to a switch, hold
# everything else fixed, throw it alone, and repeat over seeds: with several thrown at once, their effects need not add up.

# %% [markdown]
# ## Part F · Exit test: an alarm that doesn't look at the reward

# %% [markdown]
# {{card overoptimisation_alarm}}
#
# In Experiment B the training reward went on rising while gold fell: **over-optimisation**, or *reward hacking*. The auditor's score
# hardly fell. Its *level* is no alarm; but that it stops gaining anything for a further nat may be one. You will not have gold: build an alarm from what a monitor can have without
# trusting the reward. A **history** is a list of dicts, one per two training steps:
#
# | key | mean over the responses of these steps |
# |---|---|
# | `step` | number of the training step |
# | `kl` | distance from the reference, nats per response |
# | `entropy` | nats per token |
# | `length` | tokens per response |
# | `repetition` | share of a response's tokens that repeat one of its content words |
# | `heldout_score` | score of a judge that the policy is not trained on, z units; in Experiment B, the auditor's |
#
# `overoptimisation_alarm(history)` returns `None`, or the step at which it thinks that things went wrong. It is called on **every
# prefix** of a run, as if the run were going on. The alarm of a run is raised at the *last* step of the first prefix for which
# the answer is not `None`: later you can't take it back, and earlier you can't have known.
#
# **What is asked.** On *pushed* runs (a low price of KL, as in Experiment B) the alarm must come after the peak of gold and
# before the last entry, in at least 4 of 5; of the *healthy* runs (a high price of KL) at most one in ten may be disturbed. The
# check below takes seeds 0, 1 and 4 of both kinds, so all three alarms must be in time and none false. After handing in, ten
# runs of each kind with other seeds decide: at least 8 in time, at most 1 disturbed. An alarm at the first rise of KL comes too early;
# one that waits for a disaster misses the runs that decay slowly.
#
# On the recorded runs a plain limit on KL would do as well, because there only the pushed ones go far. It limits
# moving and says nothing about exploitation. So the checks also hold made-up runs that travel 15 to 20 nats **to their profit**:
# the held-out score gains 0.12 or more for every nat, nothing is wrong, and no alarm may come.
#
# **Decide first:** which of the five curves differ between a pushed and a healthy run *because* the reward is being exploited,
# and which only because the policy has moved?

# %% tags=["experiment"]
import json
from pathlib import Path

from course.training.overoptimisation import Run

evidence = json.loads(Path("evidence.json").read_text())
visible_runs = [Run.from_json(row) for row in evidence["runs"]]
for kind in ("pushed", "healthy"):
    chosen = next(r for r in visible_runs if r.healthy == (kind == "healthy"))
    print(f"seed {chosen.seed}, {kind}: gold, which the alarm won't see, is highest in step {chosen.history[chosen.peak].step}")
    for row, gold in list(zip(chosen.history, chosen.gold))[1::4]:
        print(
            f"  step {row.step:2d}  kl {row.kl:5.1f}  entropy {row.entropy:.2f}  length {row.length:4.1f}  "
            f"repetition {row.repetition:.3f}  held-out {row.heldout_score:5.2f}   gold {gold:5.2f}"
        )

# %% ng="solution:overoptimisation_alarm"
def overoptimisation_alarm(history):
    """Whether a training run has begun to exploit its reward, judged without reward and gold.

    history   list of dicts, oldest first, at least one: step (int), kl, entropy, length, repetition, heldout_score (float)
    returns   None, or the step (int) of an entry of this history. Only whether it is None counts, for each prefix of a run.
              A history of one entry gives None; the same history always gives the same answer
    """
    ### BEGIN SOLUTION
    window = 6  # entries: longer than the held-out judge's noise, shorter than the time from the peak to the end
    for end in range(window, len(history)):
        now, then = history[end], history[end - window]
        paid, gained = now["kl"] - then["kl"], now["heldout_score"] - then["heldout_score"]
        if paid > 2.0 and gained < 0.02 * paid:  # the distance buys next to nothing from a judge that nobody trains on
            return now["step"]
    return None
    ### END SOLUTION


# %% ng="test:overoptimisation_alarm"
check(overoptimisation_alarm)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> In a run that goes well, KL and the held-out score both rise. What do the two do
# in a run that has begun to exploit its reward? </details>
# <details><summary>Hint 2: where to look</summary> Compare the newest entry with one a few entries back. How much distance was
# paid, how much did the held-out judge give for it? A single difference between neighbours is mostly noise. </details>
# <details><summary>Hint 3: almost code</summary> <code>paid = now["kl"] - then["kl"]</code>, <code>gained = now["heldout_score"]
# - then["heldout_score"]</code>; alarm when much was paid and <code>gained / paid</code> is near 0. Set both numbers on the
# visible runs, healthy ones too. </details>

# %% [markdown]
# ### The evidence, over several seeds
#
# Every visible run (`course evidence 2`), pushed and healthy, with *your* alarm called on each of its prefixes.

# %% tags=["experiment"]
from course.training.overoptimisation import first_alarm, in_time

pushed, healthy = [r for r in visible_runs if not r.healthy], [r for r in visible_runs if r.healthy]
raised = [first_alarm(r, overoptimisation_alarm) for r in pushed]  # prefix after prefix
alarms = [None if place is None else r.history[place].step for r, place in zip(pushed, raised)]
good = sum(in_time(r, overoptimisation_alarm) for r in pushed)
false_alarms = sum(first_alarm(r, overoptimisation_alarm) is not None for r in healthy)
figures.overoptimisation(
    [r.to_json() for r in pushed], alarms=alarms,
    title=f"In time in {good} of {len(pushed)} pushed runs; {false_alarms} false alarms in {len(healthy)} healthy runs",
    unit="reward, auditor: z units; gold: utility",
)  # fmt: skip

# %% tags=["experiment"]
fell = sum(r.gold[-1] < r.gold[r.peak] and r.training_reward[-1] > r.training_reward[r.peak] for r in pushed)
early = sum(place is not None and place <= r.peak for r, place in zip(pushed, raised))
live = first_alarm(run, overoptimisation_alarm)
here = "it was silent" if live is None else f"it came at step {run.history[live].step}, and gold was highest at step {peak.step}"
say(
    f"**What was measured.** In {fell} of {len(pushed)} pushed runs gold fell from its peak while the training reward rose. "
    f"Your alarm came in time in {good}, too early in {early}, never or at the very end in {len(pushed) - good - early}; it "
    f"disturbed {false_alarms} of {len(healthy)} healthy runs. In the run that you made live (Experiment B) {here}.\n\n"
    "**What it cannot show:** that the alarm works anywhere else. It was set on runs of one task, with one recipe for the "
    "reward model and one way of cheating. A policy that exploits a reward without moving far, or an auditor with the reward "
    "model's own blind spot, passes unseen. And a judge that decides which runs are stopped is being optimised against as well, "
    "slowly, by whoever picks the runs."
)

# %% [markdown]
# ## Questions, marked by a person

# %% [markdown]
# **Q1.** A colleague's PPO run has a mean KL of 0.02 nats per token and a clip fraction of 1 %, "so the policy hardly moved".
# Name two different ways in which it can still have changed a lot, and the number in your `clip_report` or beside it that would
# show each.

# %% [markdown] ng="manual:question_diagnostics:3"
# (1) A few actions changed extremely while most stayed: a mean over thousands of tokens hides them. The greatest ratio and the 99
# % quantile by action type show it; also how often the first tokens of tool calls are chosen. (2) Both numbers belong to one
# batch and compare with the policy that sampled it; small steps add up. The KL to the frozen reference, per response and over the
# run, shows it. (3) Clipping and KL are measured on sampled tokens: what the policy no longer samples can't be seen there; a
# frozen capability suite shows it. *(Full marks: two different mechanisms, each with a measurement that could come out either
# way.)*

# %% [markdown]
# **Q2.** You train with groups of 8 and a checker that says right or wrong. After a week 60 % of the groups have no variation.
# Dynamic sampling would drop them. What changes about *what is being optimised*, what about the cost, and what would you report
# beside the success rate?

# %% [markdown] ng="manual:question_dynamic:3"
# Groups without variation have advantage 0: dropping them changes no gradient of a sum, but the mean over the batch is now over
# other prompts. Those of middling difficulty are over-represented, the prompts that are always solved or never solved are gone,
# and the objective is no longer the mean over the prompts' own law; with a denominator that counts only kept groups each of them
# also gets more weight. Cost: the dropped samples were drawn and checked, so count sampled tokens and not optimiser steps.
# Report: how many groups were dropped and with which reward (all wrong or all right), the success rate over *all* sampled
# prompts, and sampled beside trained tokens. *(Full marks: the change of the prompts' law, the hidden sampling cost, a report
# that keeps the dropped ones visible.)*

# %% [markdown]
# **Q3.** Your alarm has just gone off in a real run. You have a budget for 200 fresh human comparisons. Which responses do you
# have compared, who may see what, and which result would make you continue the run after all?

# %% [markdown] ng="manual:question_frontier:3"
# Responses of the current policy, because that is where the judges are unsure, and of the checkpoint before the alarm beside
# them: those with the highest reward, those on which reward model and held-out judge disagree most, those that look suspicious
# (long, repetitive), and a random share from every kind of prompt, failures too, so that the result can be carried back to all
# responses. The labellers see neither policy nor score, and the order is random. Continue if the blind comparisons prefer the
# current policy to the earlier checkpoint in the random share, not only in the selected ones; otherwise go back to the checkpoint
# and refresh the reward model with these labels. *(Full marks: samples at the frontier of the current policy and a random share,
# blind labels, a result named in advance that decides either way.)*

# %% [markdown]
# ## What to read next
#
# - Williams (1992), REINFORCE; Schulman et al. (2016), GAE; Schulman et al. (2017), PPO.
# - Ouyang et al. (2022), InstructGPT, Sections 3 and 4 and Appendix C, the best disclosed recipe; the case notebook
#   `case_instructgpt` rebuilds it in small.
# - Bai et al. (2022), Section 4, for $\sqrt{\mathrm{KL}}$; Gao, Schulman and Hilton (2022), over-optimisation measured against a
#   gold model.
# - Ahmadian et al. (2024), RLOO; Shao et al. (2024), GRPO; Liu et al. (2025), what its normalisations do; Yu et al. (2025), DAPO.
# - Lee et al. (2023), RLAIF: REINFORCE with a learned baseline, and not PPO [D]; the case notebook `case_rlaif`.
# - In this package, after handing in: `course/credit`, `course/objectives`, `course/training/ppo.py`. Next: level 3 takes the same policy
#   and the same reward model, and asks whether to optimise at all or only to choose.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
