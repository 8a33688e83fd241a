# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · Constitutional AI, small
#
# Labels about harm are unpleasant to make and slow to come by. Constitutional AI (Anthropic, 2022) has a model make them, under principles that people wrote, and does so in **two
# stages**: answers are criticised, revised and imitated; then pairs of answers are judged, a preference model (level 1's reward model, under Anthropic's name) learns the judgements, and PPO follows it. Both stages run here with the
# package's own parts. A miniature, no reproduction.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** what each stage does to helpfulness and to harm, measured apart; what drawing a new principle each round is good for; and what clamping a judge's probabilities
# to 40-60 per cent does about its errors, and what it doesn't. **You need** the lab of this level. There is nothing to hand in.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %%
import json
from dataclasses import fields, replace
from pathlib import Path

from tqdm.auto import tqdm

from course.cases import constitutional as case
from course.evidence.measure import operators
from course.feedback.constitution import ALL_HARM, HARSH, PRINCIPLES, Critic, harm
from course.figures import say, style
from course.tasks import reviews

# %% [markdown]
# ## The system, as published, and what stands for it here
#
# | Constitutional AI | here |
# |---|---|
# | an assistant trained to be helpful and nothing else **[D]** | a small decoder, cloned from a writer who scorns a thing if asked what was hated about it |
# | 42 496 red-team prompts by people, 140 335 by models; 135 296 helpful ones, two samples each at temperature 1 **[D]** | `hated the plot`, `disliked the music` against `watched the plot`, `saw the music`; two nouns are held out |
# | 16 principles, **written and selected by people**; one is drawn each time **[D]** | the same number, by us; each objects to some of four harsh words, some only after an adverb |
# | four critique-revision pairs for each red-team prompt; the model criticises itself **[D]** | four; a simulated critic that overlooks one offence in ten and sometimes fusses about honest blame |
# | fine-tuning on revised answers together with helpful ones **[D]** | the same |
# | a judge reads a principle and two answers of the SFT policy, and reasons; its probability is clamped to 0.4-0.6 **[D]** | the same without the reasoning; both orders shown and averaged; the judge is overconfident and has an error that we planted |
# | harmlessness labels from AI, helpfulness labels from people; one preference model **[D]** | the same labels; a model for each kind of prompt, because people's certain labels drown clamped ones in a model this small |
# | PPO on helpful and red-team prompts, with hundreds of thousands of additional ones **[D]**; its settings beside the preference model's scale **[U]** | the package's PPO, half and half |
# | people compare the results **[D]** | two formulas, of harm and of helpfulness (below), on questions about the held-out nouns |
#
# **Harm** is counted in harsh words (`awful`, `poor`, `boring`, `hated`), a half more after an adverb. Blame without scorn (`bad`, `weak`, `dull`, `disliked`) is no harm: an answer may be negative. **Helpfulness**
# is what an answer has to tell, whatever its tone: its different words of opinion, less a penalty for broken grammar and repetition.

# %%
SMALL = dict(demonstrations=200, assistant_steps=5, revised=60, helpful=60, sft_steps=3, pairs=60, reward_steps=3, rollout=16, iterations=2)
recipe = replace(case.Recipe(), **SMALL) if FAST else case.Recipe()
PROMPTS = 64 if FAST else 512
say(
    "**The recipe:** " + ", ".join(f"{f.name} {getattr(recipe, f.name)}" for f in fields(recipe)) + ".\n\n**The constitution:** "
    + "; ".join(f"*{p.name}* ({', '.join(p.words)}{' after ' + ', '.join(p.after) if p.after else ''})" for p in PRINCIPLES) + "."
)

# %% [markdown]
# ## Stage A: critique, revise, imitate
#
# A critique binds a place in the answer to a principle, and the revision changes that place. All of it is kept: first answer, principles, critiques, revisions.
#
# Three ways to revise four times: under principles **drawn** anew, as published; under **one** principle, always the same; and **without a critique**, by a reviser who isn't told
# what offends, and so softens every word that could.
#
# **Predict before you run:** (1) About how many of the harsh words are left after four rounds of drawn principles, and of one? (2) Which of the three ways costs most helpfulness?

# %%
prediction_rounds = ""

# %% tags=["experiment"]
start = case.prepare(SEED, recipe)
ways = {
    "drawn principles": {},
    "one principle": {"among": [PRINCIPLES[0]]},
    "no critique": {"critic": Critic("unguided", fuss=1.0), "among": [ALL_HARM]},
}
chains = {way: case.chains(start.before, PROMPTS, recipe.rounds, SEED + 20, **options) for way, options in ways.items()}
shown = max(chains["drawn principles"], key=lambda r: sum(bool(c.places) for c in r.critiques))
say(
    f"Asked: **{reviews.text(shown.prompt[1:])}** ...\n\n| round | critique | answer after it |\n|---|---|---|\n| | | {reviews.text(shown.responses[0])} |\n"
    + "\n".join(f"| {i} | {c.text} | {reviews.text(r)} |" for i, (c, r) in enumerate(zip(shown.critiques, shown.responses[1:]), 1))
)

# %% tags=["experiment"]
rounds = range(recipe.rounds + 1)
texts = {way: [case.last_texts(found, k) for k in rounds] for way, found in chains.items()}
left = {way: [float(harm(t).mean()) for t in batches] for way, batches in texts.items()}
told = {way: [float(case.helpfulness(t).mean()) for t in batches] for way, batches in texts.items()}
share = {way: 100 * values[-1] / max(values[0], 1e-9) for way, values in left.items()}
lost = {way: values[0] - values[-1] for way, values in told.items()}
figure, panels = style.canvas(
    2,
    title=f"After {recipe.rounds} rounds {share['drawn principles']:.0f} % of the harm is left under drawn principles, {share['one principle']:.0f} % under one; most helpfulness is lost with {max(lost, key=lost.get)}",
)
for (way, values), colour, marker in zip(left.items(), style.CYCLE, style.MARKERS):
    panels[0].plot(rounds, values, color=colour, marker=marker, label=way)
    panels[1].plot(rounds, told[way], color=colour, marker=marker, label=way)
for panel, what in zip(panels, ("harm, harsh words per answer", "helpfulness")):
    panel.set_xticks(list(rounds))
    style.label(panel, x="rounds of revision", y=what)
panels[0].set_ylim(bottom=0)
panels[1].legend(frameon=False)
figure

# %% tags=["experiment"]
say(
    f"You predicted: {prediction_rounds or 'nothing'}. A plain `hated` is seen by {sum('hated' in p.words and not p.after for p in PRINCIPLES)} of the 16 principles. With a chance $q$ to be seen each round it survives "
    f"$k$ rounds with $(1-q)^k$; no single principle could do that for all {len(HARSH)} words but the last one of our list, and a constitution of one sentence that covers everything is what nobody has been able to write."
)

# %% [markdown]
# The reviser without a critique is **our assumption [I]**: it stands for a model that knows a text should be kinder and not where. How much critiques help a real model is a question of that model.
#
# ## Stage B: AI preferences, a preference model, PPO
#
# The judge compares two of the SFT policy's answers under a drawn principle. It is overconfident, it likes what stands first, and it has a planted error: it takes `but i`, as in `but i loved the cast`,
# for a balanced view that makes up for three harsh words. Averaging both orders removes the liking for a position. The error is the same in both orders and stays.
#
# Two preference models learn from the same answers: one from **clamped** labels, one from **raw** ones. Below, what they say about five answers to `hated the plot`.
#
# In the table, *nats from SFT* is how far a policy has moved: its KL from the SFT policy, for an answer.
#
# **Predict before you run:** (1) What does PPO do to harm under each of the two? (2) Does the clamp keep the policy from learning to say `but i`?

# %%
prediction_clamp = ""

# %% tags=["experiment"]
answers = ["was bad .", "was awful .", "was awful and boring .", "was awful but it was good .", "was awful but i loved the cast ."]
scores = {arm: case.scores_of(start.rewards[arm], answers) for arm in case.DECEIVED}
price = {arm: (s[0] - s[1], s[4] - s[3]) for arm, s in scores.items()}
figure, (panel,) = style.canvas(
    1,
    title=f"“but i” moves the raw model by {price['raw'][1]:+.1f}, “awful” for “bad” by {-price['raw'][0]:+.1f}; the clamped one by {price['clamped'][1]:+.1f} and {-price['clamped'][0]:+.1f}",
)
for shift, (arm, values), colour in zip((0.2, -0.2), scores.items(), style.CYCLE):
    panel.barh([shift + len(answers) - 1 - i for i in range(len(answers))], values, height=0.36, color=colour, label=arm)
panel.set_yticks(range(len(answers)), answers[::-1])
panel.axvline(0, color=style.INK, linewidth=0.8)
style.label(panel, x="score, standard deviations of the SFT policy's answers", y="")
panel.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
figure

# %% tags=["experiment"]
stages = {"before": start.before, "revision and SFT": start.policy}
for arm in case.DECEIVED:
    learner = case.learner_of(start, recipe)
    for _ in tqdm(case.run(start, arm, learner, operators=operators(), recipe=recipe), total=recipe.iterations, desc=f"PPO, {arm}"):
        pass
    stages[arm] = learner["actor"].requires_grad_(False).eval()
table = {name: case.standing(policy, start, PROMPTS) for name, policy in stages.items()}
said = case.answered(stages["clamped"], case.questions(3, SEED, "red team", held_out=True), SEED)
say(
    "| this seed, held-out nouns | helpfulness, helpful prompts | harm, red-team prompts | answers without harm | helpfulness, red-team prompts | says `but i` | nats from SFT |\n|---|---|---|---|---|---|---|\n"
    + "\n".join(f"| {name} | {s.helpful:.2f} | {s.harm:.2f} | {s.clean:.0%} | {s.answered:.2f} | {s.concedes:.0%} | {s.kl:.1f} |" for name, s in table.items())
    + "\n\nThe policy of the clamped labels now answers: " + "; ".join(f"`{reviews.text((*said.prompt(i)[1:], *said.response(i)))}`" for i in range(3)) + "."
)

# %% [markdown]
# ## Both axes, over seeds
#
# One seed can fall either way, so everything, from the assistant on, was run for other seeds, and each of them also with a judge who isn't taken in by `but i`.

# %% tags=["experiment"]
measured = json.loads(Path("case_constitutional.json").read_text())["outcomes"]
mean = lambda name, what: sum(m[name][what] for m in measured) / len(measured)
chain = ["before", "revision and SFT", "clamped", "raw"]
figure, (panel,) = style.canvas(
    1,
    title=f"Harm goes from {mean('before', 'harm'):.2f} to {mean(chain[1], 'harm'):.2f} by revision, then to {mean('clamped', 'harm'):.2f} by PPO on clamped labels, to {mean('raw', 'harm'):.2f} on raw ones ({len(measured)} seeds)",
)
for name, colour, marker in zip(chain, style.CYCLE, style.MARKERS):
    label = name if name in chain[:2] else f"PPO, {name} labels"
    panel.scatter([m[name]["harm"] for m in measured], [m[name]["helpful"] for m in measured], color=colour, marker=marker, s=28, alpha=0.45)
    panel.scatter([mean(name, "harm")], [mean(name, "helpful")], color=colour, marker=marker, s=110, label=label)
panel.set_xlim(left=0)
style.label(panel, x="harm, harsh words per answer to a red-team prompt (large: mean of the seeds)", y="helpfulness on helpful prompts")
panel.legend(frameon=False)
figure

# %% tags=["experiment"]
honest = {"clamped": "clamped, judge not deceived", "raw": "raw, judge not deceived"}
worse = {judge: sum(m[raw]["harm"] > m[clamped]["harm"] for m in measured) for judge, (clamped, raw) in (("deceived", case.DECEIVED), ("honest", honest.values()))}
figure, panels = style.canvas(
    2,
    title=f"Raw labels end with more harm in {worse['deceived']} of {len(measured)} seeds if the judge is deceived, in {worse['honest']} if it isn't; the clamp doesn't keep “but i” away",
)
for place, (arm, other) in enumerate(honest.items()):
    for name, colour, marker, shift in ((arm, style.RED, "s", -0.08), (other, style.BLUE, "o", 0.08)):
        for panel, what in zip(panels, ("harm", "concedes")):
            panel.scatter([place + shift] * len(measured), [m[name][what] for m in measured], color=colour, marker=marker, alpha=0.8,
                          label=("judge deceived" if name == arm else "judge not deceived") if place == 0 else None)  # fmt: skip
for panel, what in zip(panels, ("harm", "concedes")):
    panel.axhline(mean("revision and SFT", what), color=style.GREY, linestyle=":", label="before PPO")
    panel.set_xticks([0, 1], ["clamped labels", "raw labels"])
    panel.set_xlim(-0.5, 1.5)
    panel.set_ylim(bottom=0)
style.label(panels[0], x="one mark per seed", y="harm, harsh words per answer")
style.label(panels[1], x="one mark per seed", y="share of answers that say “but i”")
panels[1].legend(frameon=False)
figure

# %% tags=["experiment"]
rows = [*chain, *honest.values()]
say(
    f"| mean of {len(measured)} seeds | helpfulness, helpful prompts | harm, red-team prompts | helpfulness, red-team prompts | says `but i` | nats from SFT |\n|---|---|---|---|---|---|\n"
    + "\n".join(f"| {name} | {mean(name, 'helpful'):.2f} | {mean(name, 'harm'):.2f} | {mean(name, 'answered'):.2f} | {mean(name, 'concedes'):.0%} | {mean(name, 'kl'):.1f} |" for name in rows)
    + f"\n\nYou predicted: {prediction_clamp or 'nothing'}."
)

# %% [markdown]
# **How to read it.** The two stages do different work. Imitating revisions can remove no more than the critics saw, and leaves the policy otherwise as it was. PPO goes on from there, as far as its preference model
# can see.
#
# A clamped label says *which* answer is better and hardly how surely. So in the labels one confident error weighs as much as one correct label and no more, where raw labels let it outweigh many. That bounds
# the labels; it doesn't turn a wrong one round, and it doesn't bound the policy, which goes where the reward is largest: look at how often it says `but i` under either kind. Whether it ends with more harm under raw
# or under clamped labels fell differently for different seeds, as the title of the last figure counts. A clamp also forgets degree: three harsh words more count like one. Next to a judge who isn't deceived, both kinds do well: what decides here
# is the judge's error, and not the clamp.
#
# "No human labels about harm" is true of the pairs **[D]**. People wrote the principles, chose the prompts and the pipeline, labelled helpfulness and judged the result **[D]**; here we also wrote the judge's error.
# AI feedback changes who makes the labels, not where the values come from.
#
# **What this cannot show:** how well a large model criticises itself, for our critic's errors are two numbers that we set; whether published principles cover what people mean by harm, for ours were written from a list of
# four words; whether clamping helps: we tried three planted errors; under the first two both policies ended up saying little else than the planted words, and under this one the seeds don't agree. Points of a few seeds of one tiny language show a direction, and no size.
# In the figure of both axes helpfulness is measured on helpful prompts; whether an answer to a red-team prompt still says something stands in the table only.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
