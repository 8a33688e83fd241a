# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · InstructGPT, small
#
# Demonstrations, rankings, PPO: the recipe that most later ones vary. It is also the best disclosed one. Here are its three stages with the package's own
# parts, its ratios kept where they have no unit, and everything else a laptop's size. A miniature, no reproduction.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** what PPO against a learned reward costs in text that nobody asked about, and what rehearsal buys back. **You need** the lab of this level.
# There is nothing to hand in.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
from dataclasses import fields, replace

from course.cases import instructgpt as case
from course.evidence.measure import operators
from course.exercises import ppo_ptx_loss
from course.feedback.capability import suite
from course.figures import say
from course.figures.learning import curves
from course.tasks import reviews
from course.training.metering import metered

# %% [markdown]
# ## The system, as published, and what stands for it here
#
# | InstructGPT | here |
# |---|---|
# | pretrained GPT-3, 1.3 to 175 billion weights **[D]** | a decoder of a tenth of a million weights, trained on reviews of every tone |
# | SFT on about 12 700 prompts answered by labellers **[D]** | SFT on 800 reviews by a writer who likes most films |
# | labellers rank 4 to 9 samples of a prompt; all pairs of a ranking stay in one batch element; ties are left out **[D]** | the same, ranked by a gold formula |
# | a 6-billion reward model, whatever the size of the policy **[D]** | a reward model as large as the policy |
# | PPO: batches of 512 episodes in 8 minibatches, one epoch, clip 0.2, price of KL 0.02, no discount, warm-up of 10 iterations, average of the weights with decay 0.992 **[D]** | the same ratios, batches of 64 |
# | PPO-ptx adds 27.8 times a language-model gradient, on about 8 times as many pretraining examples as episodes **[D]** | 8 times as many; the weight is ours, because how the two losses were scaled is not disclosed **[U]** |
# | people compare the results **[D]** | a gold formula, and a fixed suite of things the pretrained model could do |

# %%
recipe = replace(case.Recipe(), iterations=2, sft_steps=2, reward_steps=2) if FAST else case.Recipe()
say("**The recipe:** " + ", ".join(f"{f.name} {getattr(recipe, f.name)}" for f in fields(recipe)) + ".")

# %% [markdown]
# ## From demonstrations to a judge
#
# One ranking of $K$ answers has $K(K-1)/2$ pairs. They come from one prompt and one sitting, so they share their noise; as independent examples a
# ranking of nine would count six times as much as one of four.

# %% tags=["experiment"]
start = case.prepare(SEED, recipe)
ranked = case.rankings(start.policy, 3, recipe.ranking_sizes, SEED + 2)
say(
    "Three rankings that the labellers could have written:\n\n"
    + "\n".join(
        f"- *the {r.family}*: " + "; ".join(f"{rank} `{reviews.text(a)}`" for rank, a in sorted(zip(r.ranks, r.responses))[:4]) + " ..."
        for r in ranked
    )
)

# %% [markdown]
# ## PPO, with and without rehearsal
#
# Both runs start at the SFT policy, follow the same reward with the same seed, and pay the same price of KL. PPO-ptx also sees pretraining text at every step.
#
# **Predict before you run:** (1) Which run ends with the higher reward? (2) What happens to the loss on held-out pretraining text in the run without rehearsal, although KL is
# priced? (3) Will the average of the weights be better or worse than the last weights?

# %%
prediction_ptx = ""

# %% tags=["experiment"]
from tqdm.auto import tqdm

parts = replace(operators(), ptx_loss=ppo_ptx_loss, rehearsal_loss=case.token_nll)
abilities = suite(0)
table = [case.measure(name, p, start, abilities, SEED) for name, p in (("pretrained", start.pretrained), ("SFT", start.policy))]
watched, bills = {}, {}
for name, rehearse in (("PPO", False), ("PPO-ptx", True)):
    learner = case.learner_of(start, recipe)
    run = case.run(start, learner, operators=parts, rehearse=rehearse, recipe=recipe)
    counted = metered(run, learner, reference=start.policy, reward=start.reward, prompt_length=reviews.PROMPT_LENGTH)
    rows = list(tqdm(counted, total=recipe.iterations, desc=name))
    watched[name], bills[name] = [step for step, _ in rows], rows[-1][1]
    table.append(case.measure(name, learner["actor"], start, abilities, SEED))
    table.append(case.measure(f"{name}, averaged weights", learner.averaged["actor"], start, abilities, SEED))

# %% tags=["experiment"]
by_name = {row.name: row for row in table}
gap = by_name["PPO-ptx"].reward - by_name["PPO"].reward
curves(
    {name: ([s.step for s in steps], [s.reward for s in steps]) for name, steps in watched.items()},
    title=f"With rehearsal the reward ends {'where it ends without' if abs(gap) < 0.15 else f'{abs(gap):.1f} ' + ('higher' if gap > 0 else 'lower')}",
    x="PPO iteration", y="reward, z units of the SFT policy",
)  # fmt: skip

# %% tags=["experiment"]
curves(
    {name: ([s.step for s in steps], [s.kl for s in steps]) for name, steps in watched.items()},
    title=f"Without rehearsal the policy ends {by_name['PPO'].kl:.1f} nats from the SFT policy, with it {by_name['PPO-ptx'].kl:.1f}",
    x="PPO iteration", y="KL to the SFT policy, nats per response",
)  # fmt: skip

# %% tags=["experiment"]
say(
    "| policy | reward | gold | KL, nats | pretraining text, nats per token | capability suite |\n|---|---|---|---|---|---|\n"
    + "\n".join(f"| {r.name} | {r.reward:.2f} | {r.gold:.2f} | {r.kl:.1f} | {r.nll:.2f} | {r.capability:.2f} |" for r in table)
    + f"\n\nYou predicted: {prediction_ptx or 'nothing'}. The average of the weights lags behind: for PPO its reward is "
    f"{by_name['PPO, averaged weights'].reward - by_name['PPO'].reward:+.2f} and its distance {by_name['PPO, averaged weights'].kl - by_name['PPO'].kl:+.1f} nats from the last weights'.\n\n"
    "**The bill** of the reinforcement learning, without the rehearsal text:\n\n| run | sampled tokens | trained | judged | scored | operations | bytes held | seconds |\n|---|---|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| {name} | {b.sampled_tokens:,} | {b.trained_tokens:,} | {b.judged_tokens:,} | {b.scored_tokens:,} | {b.flops:.1e} | {b.bytes / 1e6:.1f} MB | {b.seconds:.0f} |"
        for name, b in bills.items()
    )
)

# %% [markdown]
# **How to read it.** The price of KL holds the policy near the SFT policy *on the policy's own responses*. It says nothing about text that the policy no longer
# writes: a review that dislikes a film has become improbable, and with it the ability to write one. Rehearsal looks at exactly that text. A larger weight on it would
# leave less of each step for the reward (try `rehearsal_weight` 1); at the weight used here, look at the two reward curves for what it costs.
#
# **What this cannot show:** that rehearsal is worth its price, which depends on who needs the lost ability; how large the effect is in a large model, where one prompt
# in a thousand may be about anything; or that 27.8 was a good weight. It is one seed of one tiny language. The report measured the same direction, regressions on public
# benchmarks that pretraining text reduced **[D]**; what the amount of text did, apart from the weight, is not separated **[U]**.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
