# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · Google's RLAIF, small
#
# If a model's preferences can stand for people's, labels cost a forward pass. Google's study (Lee et al., 2023) compared the two with everything else equal, then left
# the reward model out. Its update is often called PPO; it is **REINFORCE** with a learned value baseline and a price of KL **[D]**: no ratio, no clipping.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** three teachers of one policy, and whether the accuracy of a reward model is the quality of the policy it makes. **You need** the lab of this
# level. There is nothing to hand in.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
from tqdm.auto import tqdm

from course.cases import rlaif as case
from course.figures import say, style
from course.figures.learning import curves

# %% [markdown]
# ## The system, as published, and what stands for it here
#
# | the study | here |
# |---|---|
# | summaries, helpful and harmless dialogue; PaLM 2 XS **[D]** | film reviews; a decoder of a tenth of a million weights |
# | an off-the-shelf model is asked which of two responses is better; both orders, averaged **[D]** | a simulated judge with noise about each text, a liking for what stands first, and a taste for length |
# | its preference *distribution* trains a reward model **[D]** | the same, with soft labels |
# | REINFORCE with a value baseline, no discount, price of KL 0.05, temperature 0.9, batch 128 **[D]** | the same numbers, other sizes |
# | direct RLAIF: the judge rates each sample, no reward model **[D]** | the same |
# | people judge the policies; length is adjusted afterwards **[D]** | gold judges; raw and length-adjusted win rates side by side |
# | the final checkpoint is chosen among four, by a model's judgement and a look at a dozen examples **[D]** | no choice: the last one |

# %% [markdown]
# ## Three teachers
#
# **Predict before you run:** (1) Which reward orders *people's* held-out pairs best? (2) Will the policies rank in the same order? (3) Which policy writes the longest
# reviews, and how much of its win rate goes with that?

# %%
prediction_rlaif = ""

# %% tags=["experiment"]
STEPS = 2 if FAST else case.STEPS
teachers = case.prepare(SEED)
watched, verdicts = {}, []
for teacher in teachers.rewards:
    learner, run = case.reinforce(teachers, teacher, steps=STEPS)
    watched[teacher] = list(tqdm(run, total=STEPS, desc=teacher))
    verdicts.append(case.verdict(teachers, teacher, learner["actor"], sum(s.sampled for s in watched[teacher])))

# %% tags=["experiment"]
best, first = max(verdicts, key=lambda v: v.reward_accuracy), max(verdicts, key=lambda v: v.gold)
by_accuracy, by_gold = (sorted(verdicts, key=lambda v, key=key: getattr(v, key)) for key in ("reward_accuracy", "gold"))
same = [v.teacher for v in by_accuracy] == [v.teacher for v in by_gold]
figure, (panel,) = style.canvas(
    1, title=f"Accuracy on pairs and gold of the policy put the three teachers in {'the same order' if same else 'different orders'}"
)
for v, colour, marker in zip(verdicts, style.CYCLE, style.MARKERS):
    panel.scatter([v.reward_accuracy], [v.gold], color=colour, marker=marker, s=70, label=v.teacher)
style.label(panel, x="share of people's held-out pairs that the reward orders as they did", y="mean gold of the trained policy")
panel.legend(frameon=False)
figure

# %% tags=["experiment"]
longest = max(verdicts, key=lambda v: v.length)
curves(
    {name: ([s.step for s in steps], [s.length for s in steps]) for name, steps in watched.items()},
    title=f"The policy taught by {longest.teacher} writes the longest reviews, {longest.length:.0f} tokens",
    x="REINFORCE step", y="tokens per review",
)  # fmt: skip

# %% tags=["experiment"]
say(
    "| teacher | reward orders people's pairs | gold | tokens | wins against SFT, raw | at equal length | tokens the judge read |\n|---|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| {v.teacher} | {v.reward_accuracy:.1%} | {v.gold:.2f} | {v.length:.1f} | {v.wins.raw:.1%} | {v.wins.adjusted:.1%} | {v.judge_tokens} |"
        for v in verdicts
    )
    + f"\n\nMost accurate on pairs: {best.teacher}. Highest gold: {first.teacher}. You predicted: {prediction_rlaif or 'nothing'}."
)

# %% [markdown]
# **How to read it.** Accuracy weighs all pairs alike; a policy gathers its probability in a small part of the space of responses and only meets the reward there.
# In the study the AI-labelled reward models were the less accurate ones on every task (for summaries 74.2 against 79.3 per cent **[D]**) and their policies were judged about as
# good as those of people's labels: 71 against 73 per cent wins over SFT, raw; 59 against 61 after lengths were adjusted **[D]**. Both numbers belong in a report.
#
# A direct judge is asked at every step, so its bill grows with training; a reward model is asked once for its labels and then copied. And a direct judge's errors are
# rewarded as they are, while a reward model smooths them and adds its own.
#
# **What this cannot show:** an order of the teachers, for three points of one seed may be luck; or that AI labels are as good as people's. Our judge's faults are ones we built in, our people are a formula with noise, and this is one
# seed. It shows which numbers to ask for: quality of the policies under a judge that nobody trained on, at equal length, with the judge's bill.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
