# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · WebGPT, small
#
# A policy that looks things up. WebGPT (OpenAI, 2021) answered questions with a text browser and quoted its sources; people's demonstrations, people's comparisons
# of answers, a reward model, PPO and best-of-N all had a part in it. Which of them made its best answers is often told wrongly. Here all of them run on the same questions, in a
# browser over a few hundred tiny sites. A miniature, no reproduction.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** what cloning takes over from people in a hurry, what a reward model that reads answers and quotes prefers, and who beats whom: people, the clone, the best
# of 4, 16 or 64 of its episodes, and PPO. **You need** the lab of this level. There is nothing to hand in.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
import json
from dataclasses import fields, replace
from pathlib import Path

from tqdm.auto import tqdm

from course.cases import webgpt as case
from course.envs.browser import browser_tasks
from course.evidence.intervals import bootstrap_mean
from course.evidence.measure import operators
from course.figures import say, style
from course.figures.learning import curves

# %% [markdown]
# ## The system, as published, and what stands for it here
#
# | WebGPT | here |
# |---|---|
# | a text browser: search, click a link, find text, scroll, quote a passage, finish with an answer **[D]** | the same commands |
# | the state holds the question, the page, the history, the quotes and the actions that are left; invalid actions use them up **[D]** | the same, in words that a small vocabulary has |
# | pages and search results of the open web **[D]** | pages drawn from a seed: an atlas, which is right, and a forum, wrong about half of the time; nothing changes between runs |
# | about 6 000 demonstrations and 21 500 comparisons; 92 % and 98 % of their questions from ELI5 **[D]** | demonstrations by scripted people in a hurry, and comparisons of pairs of the clone's episodes: how many of each, the recipe below says |
# | labellers choose between two answers with their sources visible **[D]** | a noisy labeller: 1 point if the answer is right, a half if a quoted passage says it |
# | PPO on the reward model with a price of KL, answer-only episodes mixed in **[D]**; in what mix, its appendix tells, which we have not read **[U]** | the same, one episode in four |
# | the main results select by reward model among the clone's episodes: best-of-4 at 760M weights, 16 at 13B, 64 at 175B **[D]** | best-of-4, 16 and 64 of one small policy |
# | an episode and the selection among episodes are separate programs **[I]** | the same |

# %%
recipe = replace(case.Recipe(), demonstrations=400, opening_steps=150, clone_steps=60, comparisons=150, reward_steps=20, iterations=2) if FAST else case.Recipe()
QUESTIONS, POOL = (4, 4) if FAST else (12, 64)  # this seed alone; the seeds that were recorded answered four times as many
say("**The recipe:** " + ", ".join(f"{f.name} {getattr(recipe, f.name)}" for f in fields(recipe)) + ".")

# %% [markdown]
# ## A person browses
#
# People here open the first link seven times in ten, whichever page it leads to; one in five takes the first passage for the one that was asked for; two in five quote nothing.
# That is a habit and not only noise, so a policy that copies it copies the habit too.

# %% tags=["experiment"]
asked = browser_tasks(400, SEED + 1, sites=case.HELD_OUT_SITES)
people = case.demonstrated(asked, SEED)
shown = next(r for r in people.records if r.reward == 0.5)
say(
    f"Asked: **{shown.task['prompt']}**. This answer has a quote that says it, and is wrong:\n\n| action | answer of the browser |\n|---|---|\n"
    + "\n".join(f"| `{s.text}` | {s.observation} |" for s in shown.steps)
)

# %% tags=["experiment"]
share = lambda records, worth: sum(r.reward == worth for r in records) / len(records)
say(
    f"Of {len(asked)} people's answers {share(people.records, 1.5):.0%} are right and supported, {share(people.records, 1.0):.0%} right without a quote that says so, "
    f"{share(people.records, 0.5):.0%} wrong although a quote says so, {share(people.records, 0.0):.0%} wrong."
)

# %% [markdown]
# ## Cloning, comparisons, a reward model
#
# The clone imitates the actions; what the browser said is read and never imitated. Then two of its episodes per question are compared. The labeller and the reward model see the same
# thing: question, quotes and answer, and nothing of the way there. Truth is hidden from the reward model; it has to infer from the source how far a quote can be trusted.

# %% tags=["experiment"]
start = case.prepare(SEED, recipe)
say(f"On comparisons about sites that neither has seen, the reward model agrees with the labeller in **{start.accuracy:.0%}**.")

# %% tags=["experiment"]
texts = {
    "atlas quoted, answer as quoted": ([["malta", "atlas", "colour", "red"]], "red"),
    "forum quoted, answer as quoted": ([["malta", "forum", "colour", "red"]], "red"),
    "nothing quoted": ([], "red"),
    "atlas quoted, other answer": ([["malta", "atlas", "colour", "blue"]], "red"),
    "quote about something else": ([["malta", "atlas", "food", "rice"]], "red"),
    "no answer": ([], "nothing"),
}
said = case.reward_of(start.reward, "colour malta", list(texts.values()))
figure, (panel,) = style.canvas(1, title=f"The reward model likes best: {list(texts)[max(range(len(said)), key=said.__getitem__)]}")
panel.barh(list(texts)[::-1], said[::-1], color=style.BLUE)
panel.axvline(0, color=style.INK, linewidth=0.8)
style.label(panel, x="score, standard deviations of the clone's episodes", y="")
figure

# %% [markdown]
# ## PPO on whole episodes
#
# The loop is the one of level 2. A response is now an episode, its observations carry no loss, and the reward model speaks at its end. One episode in four is answer-only: the quotes are
# given, the browser is closed.
#
# **Predict before you run:** (1) Who answers best: people, the clone, the best of 64 of the clone's episodes, or PPO? (2) Does best-of-16 on top of PPO add as much as on top of the clone?
# (3) How many tokens does each of them sample for one answer?

# %%
prediction_winner = ""

# %% tags=["experiment"]
learner = case.learner_of(start, recipe)
steps = list(tqdm(case.run(start, learner, operators=operators(), recipe=recipe), total=recipe.iterations, desc="PPO"))
curves(
    {"reward": ([s.step for s in steps], [s.reward for s in steps]), "KL to the clone, nats": ([s.step for s in steps], [s.kl for s in steps])},
    title=f"The reward went from {steps[0].reward:.1f} to {steps[-1].reward:.1f}, {steps[-1].kl:.1f} nats away from the clone",
    x="PPO iteration", y="per episode",
)  # fmt: skip

# %% [markdown]
# ## Who beats whom
#
# Everybody answers the same questions about sites that no training has seen. A beats B on a question if its answer is worth more to gold; equal worth counts half.

# %% tags=["experiment"]
table = case.contenders(start, learner["actor"].requires_grad_(False).eval(), questions=QUESTIONS, pool=POOL)
row = case.outcome(start, table)
lines = []
for name in table:
    tokens = "none" if name == "people" else f"{row.tokens[name]:,.0f}"
    against = "" if name == "clone" else f"{row.wins[name]['clone']:.0%}"
    lines.append(f"| {name} | {row.worth[name]:.2f} | {row.score[name]:.2f} | {tokens} | {against} |")
say("| this seed | worth | reward model's score | tokens sampled per answer | beats the clone |\n|---|---|---|---|---|\n" + "\n".join(lines))

# %% [markdown]
# One seed can fall either way, so the whole chain, from demonstrations to this table, was run for other seeds.

# %% tags=["experiment"]
measured = [case.Outcome(**one) for one in json.loads(Path("case_webgpt.json").read_text())["outcomes"]]
names = [name for name in case.NAMES if name != "clone"]
wins = {name: bootstrap_mean([m.wins[name]["clone"] for m in measured], level=0.95, seed=0) for name in names}
best = max(names, key=lambda name: wins[name].mean)
figure, (panel,) = style.canvas(1, title=f"“{best}” wins most often against the plain clone: {wins[best].mean:.0%}, over {len(measured)} seeds")
for i, name in enumerate(reversed(names)):
    w = wins[name]
    panel.plot([w.low, w.high], [i, i], color=style.GREY, linewidth=2, zorder=1)
    panel.scatter([w.mean], [i], color=style.BLUE, zorder=2)
panel.axvline(0.5, color=style.INK, linestyle=":", linewidth=1)
panel.set_yticks(range(len(names)), list(reversed(names)))
style.label(panel, x="share of questions won (ties half), 95 % interval over seeds", y="")
figure

# %% tags=["experiment"]
pairs = [("clone, best of 64", "PPO"), ("PPO, best of 16", "clone, best of 16"), ("PPO, best of 16", "clone, best of 64"), ("clone, best of 64", "clone, greedy"), ("clone, best of 64", "people"), ("PPO", "people"), ("PPO", "clone, greedy")]
found = {pair: bootstrap_mean([m.wins[pair[0]][pair[1]] for m in measured], level=0.95, seed=0) for pair in pairs}
verdict = lambda w: "beats" if w.low > 0.5 else "loses to" if w.high < 0.5 else "can't be told from"
gain = lambda name, base: sum(m.worth[name] - m.worth[base] for m in measured) / len(measured)
cost = lambda name: sum(m.tokens[name] for m in measured) / len(measured)
say(
    "| | | | wins, 95 % interval over seeds |\n|---|---|---|---|\n"
    + "\n".join(f"| {a} | {verdict(w)} | {b} | {w.mean:.0%} [{w.low:.0%}, {w.high:.0%}] |" for (a, b), w in found.items())
    + f"\n\n**Your predictions.** You named: {prediction_winner or 'nobody'}. (2) Best-of-16 added {gain('clone, best of 16', 'clone'):+.2f} to what the clone's answers are worth and "
    f"{gain('PPO, best of 16', 'PPO'):+.2f} to PPO's. (3) One answer cost the clone {cost('clone'):.0f} sampled tokens, best-of-64 {cost('clone, best of 64'):,.0f}, PPO {cost('PPO'):.0f} once it was trained."
)

# %% [markdown]
# **How to read it.** In the report the 175B PPO policy was preferred to the plain clone in 58 %, best-of-64 of the clone in 68 %; PPO added nothing material to best-of-N and was left out of the main
# evaluation. The strongest system, best-of-64, was preferred to people's demonstrations in 56 % and to the reference answers of ELI5 in 69 % **[D]**. So "PPO made WebGPT's best browser agent"
# is false; selection did, and it pays for 64 episodes to return one. The order in the table above is ours and need not be the report's: a tiny policy, few comparisons,
# few PPO steps, and a clone that is still unsure of itself: compare what its most likely actions are worth with the mean of what it samples.
#
# Selection and training use the same reward model, and both use its errors. Selection can only return what the clone sometimes does; training can make it usual, errors of
# the reward model included. Selecting by that model once more among PPO's episodes then finds little but those errors: compare worth and score in the last row.
#
# **What this cannot show:** which of the two wins at another size, reward model or budget; what people prefer in answers of several paragraphs; what the answer-only episodes did to
# the language of a large model (here they keep one copying skill in practice). Whether the report's PPO would have caught up with more steps or another mix is not disclosed **[U]**.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
