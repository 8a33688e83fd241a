# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · LoRA-PPO and adapter Q-learning, small
#
# PPO keeps four networks in memory, two of them with gradients and two moments of Adam for every weight. LoRA-PPO (Santacroce et al., 2023) and adapter-based Q-learning (Jin et al., 2023) update only small,
# task-specific matrices, which is said to cut the cost of computing so far that consumer hardware will do **[D]**. How small, beside which matrices, and what it costs in quality, our source does not say **[U]**.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** what adapters save and what they don't, a policy that is its own reference, which matrix was better not left out here, and a policy that gets better although none of its weights moves.
# **You need** levels 2 and 6. There is nothing to hand in. A miniature, no reproduction.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from tqdm.auto import tqdm

from course.accounting.costs import forward_flops_per_token, training_bytes
from course.cases import lora as case
from course.evidence.intervals import bootstrap_mean
from course.figures import say, style
from course.figures.learning import curves
from course.evidence.measure import operators
from course.models import DecoderConfig
from course.models.lora import IN_BLOCKS, MATRICES, lora_size, without_lora
from course.tasks import reviews
from course.training import bandit

# %% [markdown]
# ## Two thin matrices
#
# A matrix $W$ of $m$ rows and $n$ columns stays as it is. Beside it stand $U$ with $m$ rows and $r$ columns and $D$ with $r$ rows and $n$ columns, and the model computes with
#
# $$W' = W + \frac{\alpha}{r}\,U D .$$
#
# $r$ is the **rank**, $\alpha$ a fixed weight. $U$ begins at zero and $D$ at random numbers, so before training $W' = W$ exactly, and $r(m+n)$ numbers are trained in place of $mn$. Only they have a gradient and Adam's two moments.
# Switched off, the policy is the one it was: the reference of the KL price needs no copy.
#
# For a model of common sizes (32 blocks, width 4096, 32,000 tokens), PPO with actor, critic, reference and reward, by level 2's memory model (18 bytes for a trained weight, 2 for a frozen one; nothing for activations, nor for a $W'$ while it is in use):

# %% tags=["experiment"]
large = DecoderConfig(vocab_size=32_000, layers=32, width=4096, heads=32, mlp_width=11_008, max_length=4096, tied=False)
weights = forward_flops_per_token(large, 0) // 2 + large.vocab_size * large.width  # two operations each, and the embedding is looked up
rows = [("all weights", 2 * weights, training_bytes(2 * weights, 2 * weights))]
for rank in (4, 64):
    thin = 2 * lora_size(large, IN_BLOCKS, rank)
    rows.append((f"adapters in the blocks, rank {rank}", thin, training_bytes(thin, 3 * weights)))
say(
    f"{weights / 1e9:.1f} billion weights.\n\n| actor and critic train | numbers trained | parameter states |\n|---|---|---|\n"
    + "\n".join(f"| {name} | {count / 1e6:,.0f} million | {size / 1e9:.0f} GB |" for name, count, size in rows)
    + "\n\nWith adapters three frozen models are left: the actor's base, which is the reference too, the critic's and the reward."
)

# %% [markdown]
# ## PPO on adapters
#
# Level 2's task: film reviews, a learned reward, the high price of KL. Three arms with the same prompts, reward and number of steps: all weights; adapters of rank 4 beside every matrix in the blocks, which is what is usually meant; and these with one more
# beside the embedding, which here is the output layer too. All weights and adapters have a learning rate each, chosen on the seed that is run here.
#
# **Predict before you run:** (1) the order of the three arms in gold; (2) how much time a step takes with adapters, in per cent of one on all weights; (3) the same for memory.

# %%
prediction_ppo = ""

# %% tags=["experiment"]
STEPS = 2 if FAST else 24
task = bandit.prepare(SEED)
before = case.quality(task, task.policy)
runs, watched, seconds, after = {}, {}, {}, {}
for name, arm in case.ARMS.items():
    runs[name] = case.lora_ppo(task, arm, operators=operators(), steps=STEPS)
    clock, watched[name] = [time.process_time()], []
    for step in tqdm(runs[name].steps, total=STEPS, desc=name):
        watched[name].append(step)
        clock.append(time.process_time())
    seconds[name] = median(b - a for a, b in pairwise(clock))
    after[name] = case.quality(task, runs[name].learner["actor"])

# %% tags=["experiment"]
ALL, BLOCKS, WITH = case.ARMS
curves(
    {name: ([s.step for s in steps], [s.reward for s in steps]) for name, steps in watched.items()},
    title=f"After {STEPS} steps adapters in the blocks earn {after[BLOCKS].reward:.1f}, with one at the embedding {after[WITH].reward:.1f}, all weights {after[ALL].reward:.1f}",
    x="PPO step", y="reward (standard deviations)",
)  # fmt: skip

# %% tags=["experiment"]
adapted = runs[WITH].learner["actor"]
ids = reviews.prompts(8, 0)
with torch.no_grad(), without_lora(adapted):
    unmoved = torch.equal(adapted(ids), task.policy(ids))
say(
    "| arm | numbers trained | bytes held | seconds per step | KL | reward | gold |\n|---|---|---|---|---|---|---|\n"
    + f"| before | | | | 0 | {before.reward:.2f} | {before.gold:.2f} |\n"
    + "\n".join(
        f"| {name} | {run.trained:,} | {run.held / runs[ALL].held:.0%} | {seconds[name] / seconds[ALL]:.0%} | {watched[name][-1].kl:.1f} | {after[name].reward:.2f} | {after[name].gold:.2f} |"
        for name, run in runs.items()
    )
    + f"\n\nBytes and seconds in per cent of the first arm's. Switched off, the third arm's actor gives the logits that it began with, to the bit: {'yes' if unmoved else 'NO'}. You predicted: {prediction_ppo or 'nothing'}."
)

# %% [markdown]
# **How to read it.** Memory falls by much more than time. The gradient still runs back through every layer, and here $W'$ is put together in each pass and its whole gradient is made before it is cut down to those of $U$ and $D$: no product is saved, only Adam's work. Libraries
# compute $Wx + U(Dx)$ in place of $W'x$ and save the products that make the gradients of $W$, at most a third **[I]**. The seconds are medians over steps of one run, so a few per cent are noise. "Less computing" and "less memory" are two claims, and only the second follows from the method.
#
# At these rates and this number of steps it matters less how many numbers are trained than *which matrices may move*: one adapter more. Our explanation, which the three arms alone don't prove: a review's words are chosen by the embedding at the output, and adapters in the blocks have to
# turn the hidden states towards it. To test it, run the arm that adapts nothing but the embedding: `case.Arm(("embedding",), 4, 3e-3, 1e-2)`. A large model that has seen everything may need nothing at its output **[U]**; a library's default is still a choice.

# %% [markdown]
# ## Q-learning on adapters
#
# No sampling: the policy's old responses, each with its reward, are all there is. A token is an action $a$, what stands before it the state $s$. $Q(s,a)$ is what the response is going to earn after $a$, $V(s)$ what it is going to earn from $s$ on if good tokens are chosen. **ILQL** (Snell et al., 2023)
# fits both to the log: $Q$ of each logged token to the reward, at the last one, or to $V$ of the state behind it, by a squared difference, the *Bellman error*; and $V$ not to the mean of the logged $Q$ but to their *expectile*, in which values above count more than those below. A price on
# $Q$ of tokens that the log does not contain keeps them from looking good for want of evidence. The trunk begins as the policy and trains what the arm trains; on top are a linear layer for $Q$ and one for $V$.
#
# Then the policy is decoded from the logits $z_a + c\,(Q(s,a) - V(s))$, with $z$ its own logits and $c$ a number in nats per unit of reward. **No weight of the policy moves.**
#
# **Predict before you run:** which share of PPO's gain in gold does it reach?

# %%
prediction_q = ""

# %% tags=["experiment"]
Q_STEPS = 2 if FAST else case.Q_STEPS
log = case.logged(task)
values, fit = case.adapter_q(task, case.ARMS[WITH], log, steps=Q_STEPS)
fitted = list(tqdm(fit, total=Q_STEPS, desc="ILQL"))
steered = case.quality(task, case.guided(task, values))
total, thin = sum(p.numel() for p in values.parameters), lora_size(task.policy.config, case.ARMS[WITH].matrices, case.ARMS[WITH].rank)
share = (steered.gold - before.gold) / (after[WITH].gold - before.gold)
say(
    f"{len(log[1]):,} logged responses, an expectile of {case.OFFLINE.tau}, a price of {case.OFFLINE.penalty}, c = {case.STRENGTH:.0f}. {thin:,} numbers trained in adapters, {total - thin:,} in the layers on top. "
    f"The Bellman error goes from {fitted[0].bellman:.2f} to {fitted[-1].bellman:.2f}.\n\n"
    f"| policy | reward | gold | tokens |\n|---|---|---|---|\n| before | {before.reward:.2f} | {before.gold:.2f} | {before.length:.1f} |\n| steered by the values, no weight moved | {steered.reward:.2f} | {steered.gold:.2f} | {steered.length:.1f} |\n"
    f"| PPO, same adapters | {after[WITH].reward:.2f} | {after[WITH].gold:.2f} | {after[WITH].length:.1f} |\n\nThat is {share:.0%} of PPO's gain in gold. You predicted: {prediction_q or 'nothing'}."
)

# %% [markdown]
# ## Several seeds
#
# Measured beforehand with the same code and more steps of PPO, on seeds that chose nothing. Each has its own policy, reward, learners and log.

# %% tags=["experiment"]
found = json.loads(Path("case_lora.json").read_text())["outcomes"]


def of(arm, method):
    """Gold of an arm minus that of the policy before, seed by seed."""
    place = list(case.ARMS).index(arm)
    return [seed["arms"][place][method]["gold"] - seed["before"]["gold"] for seed in found]


METHODS = {"ppo": "PPO", "q": "steered by Q"}
gains = {(method, arm): bootstrap_mean(of(arm, method), level=0.95, seed=0) for method in METHODS for arm in case.ARMS}
part = gains["ppo", BLOCKS].mean / gains["ppo", ALL].mean
figure, (panel,) = style.canvas(1, title=f"In the blocks alone PPO's adapters reach {part:.0%} of its gain on all weights, with the embedding {gains['ppo', WITH].mean / gains['ppo', ALL].mean:.0%}")
for place, (method, arm) in enumerate(gains):
    panel.barh(place, gains[method, arm].mean, height=0.6, color=style.BLUE if method == "ppo" else style.GREY)
    panel.plot(of(arm, method), [place] * len(found), "o", color=style.INK, markersize=3)
panel.set_yticks(range(len(gains)), [f"{METHODS[method]}, {arm}" for method, arm in gains])
panel.invert_yaxis()
style.label(panel, x=f"gain in gold, mean; dots: {len(found)} seeds, {case.STEPS} steps", y="")
figure

# %% tags=["experiment"]
say(
    "| | gain in gold (95 % over seeds) | of the gain on all weights |\n|---|---|---|\n"
    + "\n".join(
        f"| {METHODS[method]}, {arm} | {gain.mean:.2f} ({gain.low:.2f} to {gain.high:.2f}) | {gain.mean / gains[method, ALL].mean:.0%} |" for (method, arm), gain in gains.items()
    )
    + f"\n\nValues on adapters are a gamble: from seed to seed they change gold by {min(of(BLOCKS, 'q')):.2f} to {max(of(BLOCKS, 'q')):.2f} with adapters in the blocks, by {min(of(WITH, 'q')):.2f} to {max(of(WITH, 'q')):.2f} with one at the embedding too, "
    f"and on all weights by {min(of(ALL, 'q')):.2f} to {max(of(ALL, 'q')):.2f}. Whether an adapter more helps them, five seeds don't say."
)

# %% [markdown]
# **What this cannot show:** that a rank of 4 is enough, or that adapters lose nothing, for a model of another size: this one has a tenth of a million weights, one task and a reward that adds up word by word, which is the easiest thing for a change of low rank to learn. Nor which method is
# better: PPO sampled its own responses, Q-learning saw only old ones, and each had settings that were looked at on one seed. It shows what to ask of a report that says "with LoRA": beside which matrices, at which rank, against what at equal steps, and which of memory and time was saved.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
