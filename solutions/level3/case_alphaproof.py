# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Case · AlphaProof, small
#
# A verifier that can't be talked into anything changes what training can do: whatever a search finds and the verifier accepts is true, so it may be
# trained on. AlphaProof (Google DeepMind, announced 2024) did this for mathematics in Lean. Here is the same loop in a logic that fits on a page, with a network
# of some fifty thousand weights.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will see** a proof kernel and AND-OR search; verified proofs fed back into training, against a control without them; a copy of the weights
# adapted to one target, with its bill; translations accepted by proof of equivalence. **You need** `solve` from the lab of this level.
# There is nothing to hand in.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %% [markdown]
# ## The system, as published, and what stands for it here
#
# | AlphaProof | here |
# |---|---|
# | Lean; a proof counts when the kernel accepts it **[D]** | intuitionistic propositional logic, 17 tactics, a kernel of forty lines |
# | an encoder-decoder of about 3 billion weights writes a tactic as text **[D]** | a decoder with two layers; a tactic is one token |
# | pretraining on about 300 billion tokens of code and mathematics **[D]** | none |
# | supervised on about 300 000 pairs of state and tactic from Mathlib **[D]** | supervised on proofs of easy goals that exhaustive search wrote |
# | each tactic costs 1; an AND node costs as much as its hardest goal **[D]** | the same |
# | search guided by a policy and a value network (level 2's critic, over goals), then training, then search; its PUCT rule, which weighs what the policy recommends and what a branch has been worth so far against how often it was visited, has more parts than ours **[D]** | the same; PUCT with a form of our own |
# | about 1 million problems in words became about 80 million formal ones **[D]** | some hundred goals drawn at random; a translation experiment at the end |
# | of the order of 80 000 TPU-days for the main RL run **[D]** | about a minute on one core |
# | how the compute at test time was divided for each olympiad problem: unknown in detail **[U]** | every target gets the same allowance |

# %%
import torch

from course.cases import alphaproof as case
from course.cases.alphaproof import fingerprint, library, new_prover, search, solved_share, train, translations, variants
from course.envs.proofs import TACTICS, Goal, check_proof, infix, kernel, problems
from course.figures import style
from course.figures.words import say
from course.search.proofs import ProofCompute, proof_cost, solve

# %% [markdown]
# ## Part A · Goals, tactics, kernel
#
# A goal is a list of hypotheses and a target. A tactic changes it into the goals that remain: none (done), one, or two, of which **all** must be shown.
# That is an AND node; the choice between tactics is an OR node. A tactic that does not apply changes nothing.

# %%
goal = Goal(("|pq", ">pr", ">qr"), "&rr")
shown = [(t, kernel(goal, t)) for t in TACTICS]
say(
    f"At the goal **{goal}** these {sum(left is not None for _, left in shown)} of {len(TACTICS)} tactics apply:\n\n| tactic | leaves |\n|---|---|\n"
    + "\n".join(f"| `{t}` | {'; '.join(map(str, left)) or 'nothing'} |" for t, left in shown if left is not None)
)

# %% [markdown]
# `solve` is exact and asks every tactic everywhere. Its proof is checked by another function, which runs every tactic again and trusts nobody.

# %%
proof = solve(goal, lambda g: TACTICS, kernel, budget=6)
forged = ("split", (("assumption", ()), ("assumption", ())))
say(
    f"A cheapest proof costs **{proof_cost(proof)}**; the kernel accepts it: **{check_proof(goal, proof)}**. "
    f"A shorter one that somebody made up: **{check_proof(goal, forged)}**."
)

# %% [markdown]
# ## Part B · Verified proofs become training data
#
# The network first imitates the written proofs of twenty easy goals. Then it searches harder ones, 32 kernel calls for each; the proofs that the kernel accepts
# join the training data; it trains and searches again. The control trains as many steps from the same weights on the written proofs alone.
#
# **Predict before you run:** (1) Will the loop solve more held-out problems than the control, and from which round on? (2) What does the policy learn first, which
# tactics *apply* or which *help*? (3) Can a wrong proof enter the training data?

# %% tags=["experiment"]
ROUNDS, BUDGET, STEPS, IMITATION = (1, 16, 20, 20) if FAST else (case.ROUNDS, case.BUDGET, case.STEPS, case.IMITATION)
written = library(case.WRITTEN, seed=SEED + 7)
drawn = problems(60 if FAST else case.PROBLEMS, SEED, hypotheses=(3, 5))
training, held_out = drawn[: -len(drawn) // 3], drawn[-len(drawn) // 3 :]
runs, provers = {}, []
for name, feed_back in (("verified proofs fed back", True), ("control: written proofs only", False)):
    prover = new_prover(SEED)
    if feed_back:
        untrained, untrained_valid = solved_share(search(prover, held_out, BUDGET)), case.valid_share(prover, held_out)
        provers.append(prover)
    bill = train(prover, written, steps=IMITATION, seed=SEED)
    loop = case.alphaproof(
        prover, written, training if feed_back else training[:1], held_out, rounds=ROUNDS, budget=BUDGET, steps=STEPS, seed=SEED, feed_back=feed_back,
    )
    rows = list(loop)
    runs[name] = [r for r, _ in rows]
    if feed_back:
        proved = rows[-1][1]

# %% tags=["experiment"]
figure, (left, right) = style.canvas(2, title="The same search budget after each round of training, one seed")
for (name, history), colour, marker in zip(runs.items(), (style.BLUE, style.ORANGE), style.MARKERS):
    for panel, field in ((left, "held_out"), (right, "valid_share")):
        panel.plot(range(ROUNDS + 1), [getattr(r, field) for r in history], color=colour, marker=marker, label=name)
left.axhline(untrained, color=style.GREY, linestyle=":", label="before any training")
style.label(left, x="round of search and training", y="share of held-out problems proved", title=f"{BUDGET} kernel calls each")
style.label(right, x="round of search and training", y="probability of tactics that apply")
for panel in (left, right):
    panel.set_xticks(range(ROUNDS + 1))
right.set_ylim(0, 1)
left.legend(frameon=False, fontsize=8)
figure

# %% [markdown]
# One seed can fall either way. The same comparison was made for ten other seeds, none of which was used to choose its settings; each has its own problems, weights and written
# proofs.

# %% tags=["experiment"]
import json
from pathlib import Path

from course.evidence.intervals import bootstrap_mean

measured = [case.Fed(**row) for row in json.loads(Path("case_alphaproof.json").read_text())["outcomes"]]
gain = bootstrap_mean([m.loop - m.control for m in measured], level=0.95, seed=0)
better = sum(m.loop > m.control for m in measured)
figure, (panel,) = style.canvas(1, title=f"With its own verified proofs the loop ends above its control in {better} of {len(measured)} seeds")
for i, m in enumerate(sorted(measured, key=lambda m: m.loop - m.control)):
    panel.plot([m.control, m.loop], [i, i], color=style.GREY, linewidth=1.5, zorder=1)
    panel.scatter([m.control], [i], color=style.ORANGE, marker="s", zorder=2, label="control" if i == 0 else None)
    panel.scatter([m.loop], [i], color=style.BLUE, marker="o", zorder=2, label="verified proofs fed back" if i == 0 else None)
style.label(panel, x="share of held-out problems proved after the last round", y="seed, sorted by the difference")
panel.set_yticks([])
panel.legend(frameon=False)
figure

# %% tags=["experiment"]
mean = lambda values: sum(values) / len(values)
spent = sum((r.compute for r in runs["verified proofs fed back"]), ProofCompute())
live = {name: history[-1].held_out for name, history in runs.items()}
first, end = (runs["verified proofs fed back"][place] for place in (0, -1))
steps_of = {"apply": (untrained_valid, first.valid_share, end.valid_share), "help": (untrained, first.held_out, end.held_out)}
if all(last > start for start, _, last in steps_of.values()):
    part = {name: (middle - start) / (last - start) for name, (start, middle, last) in steps_of.items()}
    learned_first = f"imitation made {part['apply']:.0%} of the first change and {part['help']:.0%} of the second, so "
    close = abs(part["apply"] - part["help"]) < 0.1
    learned_first += "neither came clearly first" if close else f"which tactics {max(part, key=part.get)} came first"
else:
    learned_first = "one of the two did not rise, and nothing can be said of their order"
wrong = sum(not check_proof(g, p) for g, p in proved.items())
say(
    f"**What was measured.** This seed: {untrained:.0%} untrained, {runs['verified proofs fed back'][0].held_out:.0%} after imitation, "
    + ", ".join(f"{share:.0%} ({name})" for name, share in live.items())
    + f". Over {len(measured)} seeds the loop proves {gain.mean:+.1%} more of the problems than its control, 95 % interval {gain.low:+.1%} to {gain.high:+.1%}.\n\n"
    f"**Your predictions.** (2) Tactics that *apply* had a probability of {untrained_valid:.0%} before any training, {first.valid_share:.0%} after imitation and "
    f"{end.valid_share:.0%} at the end; the share proved, which needs tactics that *help*, went from {untrained:.0%} over {first.held_out:.0%} to {end.held_out:.0%}: "
    f"{learned_first}. (3) {wrong} wrong proofs among the {len(proved)} in the training data: each was checked again.\n\n"
    f"**The bill of this seed's loop:** {spent.kernel_calls:,} kernel calls, {spent.network_calls:,} goals read ({spent.read_tokens:,} tokens), {spent.sampled_tokens:,} sampled "
    f"tokens, {spent.trained_tokens:,} trained tokens.\n\n"
    "**What it cannot show:** that the loop always pays. Where the written proofs already cover what there is to learn, or the network has not finished imitating them, "
    "the control gains as much from the same training steps. Nor does it show how a gain divides between more data and "
    "better data; held-out problems come from the law of the training problems, so nothing is said about others. The value network sees proved goals only and has no idea of "
    "hopeless ones."
)

# %% [markdown]
# ## Part C · Test-time RL: weights that change for one target
#
# Best-of-N, reranking and tree search leave the weights alone. AlphaProof's test-time RL does not: it makes variants of the target, proves some, trains
# on them and then attacks the target **[D]**. We do so on a *copy*. The base must stay as it was, bit for bit, and the bill must stand beside that of plain search
# which may spend as much: everything in tokens of one forward pass, a trained token counting three.
#
# **Predict before you run:** will the adapted copy beat (1) the base with the same last search, (2) the base that may spend the whole bill on searching?

# %% tags=["experiment"]
base = provers[-1]
pool = problems(12 if FAST else 60, SEED + 99, hypotheses=(4, 6))
hard = [r.goal for r in search(base, pool, BUDGET) if r.proof is None and not r.refuted][: 1 if FAST else 6]
say("Three variants of the first target, **" + str(hard[0]) + "**:\n\n" + "\n".join(f"- {v}" for v in variants(hard[0], 3, SEED)))
attacks = [
    case.adapt_to(base, g, proved, variants_n=8 if FAST else 48, variant_budget=BUDGET, steps=5 if FAST else 40, final_budget=2 * BUDGET, seed=SEED + i) for i, g in enumerate(hard)
]

# %% tags=["experiment"]
ways = {
    "base, same last search": ([a.short for a in attacks], [a.short.compute for a in attacks]),
    "adapted copy": ([a.adapted for a in attacks], [a.adapted_compute for a in attacks]),
    "base, same total": ([a.plain for a in attacks], [a.plain_compute for a in attacks]),
}
figure, (left, right) = style.canvas(2, title="One target at a time: what is proved, and what it costs")
for place, ((name, (results, bills)), colour) in enumerate(zip(ways.items(), (style.GREY, style.BLUE, style.ORANGE))):
    count = sum(r.proof is not None for r in results)
    left.bar(place, count, color=colour)
    left.annotate(f"{count} of {len(results)}", (place, count), ha="center", va="bottom")
    parts, bottom = {"read": "read_tokens", "sampled": "sampled_tokens", "trained (times 3)": "trained_tokens"}, 0.0
    for (part, field), shade in zip(parts.items(), (0.35, 0.65, 1.0)):
        height = mean([getattr(b, field) for b in bills]) * (3 if field == "trained_tokens" else 1)
        right.bar(place, height, bottom=bottom, color=colour, alpha=shade, edgecolor="white")
        bottom += height
    right.annotate(f"{bottom:,.0f}", (place, bottom), ha="center", va="bottom")
for panel in (left, right):
    panel.set_xticks(range(3), [n.replace(", ", ",\n") for n in ways])
left.set_ylim(0, len(hard) * 1.12)
style.label(left, x="", y="targets proved")
style.label(right, x="", y="tokens of a forward pass per target", title="pale: read, full: trained")
figure

# %% tags=["experiment"]
table = "| target | variants proved | same last search | adapted copy | same total | bill of adapting | spent by plain search |\n|---|---|---|---|---|---|---|\n"
mark = {True: "proved", False: "no"}
for a in attacks:
    outcome = [mark[r.proof is not None] for r in (a.short, a.adapted, a.plain)]
    table += f"| {a.target} | {a.variants_proved} | " + " | ".join(outcome) + f" | {a.adapted_compute.total:,} | {a.plain_compute.total:,} |\n"
unchanged = all(a.base_before == a.base_after == fingerprint(base) for a in attacks)
moved = all(a.adapted_weights != a.base_after for a in attacks)
short, adapted, plain = (sum(r.proof is not None for r in results) for results, _ in ways.values())
say(
    table + f"\nThe base is the same bit for bit after all attacks: **{unchanged}**; every copy moved: **{moved}**.\n\n"
    f"**What was measured.** Proved: {adapted} by the adapted copies, {short} by the base with the same last search, {plain} by the base with the same total. "
    + (
        "Here both proved as many."
        if plain == adapted
        else "Here the tokens were better spent on plain search. Our goals have few descendants; whether that is why, this experiment does not say **[I]**."
        if plain > adapted
        else "Here the tokens were better spent on adapting."
    )
    + "\n\n**What it cannot show:** which of the two wins where search can't exhaust anything. A handful of targets of one base decides nothing; that AlphaProof's "
    "test-time RL solved problems that its search alone had not is **[D]**, what the same compute would have done otherwise we do not know **[U]**."
)

# %% [markdown]
# ## Part D · From words to formulas
#
# The kernel proves what it is given. Whether that is what the sentence meant is decided before. AlphaProof's translator was grown from 2 500 expert examples to about
# 70 000 by keeping what could be proved equivalent **[D]**. Here a careless translator gives right and wrong readings of sentences such as "it rains unless the sun
# shines", and a translation is accepted if the kernel proves it from the expert's formula and the formula from it.
#
# **Predict before you run:** which right translations will an exact comparison of texts refuse? Will this kernel refuse some that have the same truth table?

# %% tags=["experiment"]
made = translations(40 if FAST else 300, SEED)
groups = {
    "same text": [t for t in made if t.same_text],
    "other text,\nproved equivalent": [t for t in made if t.accepted and not t.same_text],
    "same truth table,\nno proof": [t for t in made if t.same_table and not t.accepted],
    "another meaning": [t for t in made if not t.same_table],
}
figure, (panel,) = style.canvas(title="Proof accepts more than comparing texts, and nothing of another meaning")
for place, (name, group) in enumerate(groups.items()):
    accepted = sum(t.accepted for t in group)
    panel.bar(place, accepted, color=style.BLUE, label="accepted" if place == 0 else None)
    panel.bar(place, len(group) - accepted, bottom=accepted, color=style.ORANGE, hatch="//", label="refused" if place == 0 else None)
panel.set_xticks(range(len(groups)), groups)
style.label(panel, x="", y="translations")
panel.legend(frameon=False)
figure

# %% tags=["experiment"]
examples = [(name.replace("\n", " "), group[0]) for name, group in groups.items() if group]
say(
    "| | sentence | expert | translator | accepted |\n|---|---|---|---|---|\n"
    + "\n".join(f"| {n} | {t.sentence} | {infix(t.reference)} | {infix(t.candidate)} | {t.accepted} |" for n, t in examples)
    + f"\n\nAccepted with another truth table: **{sum(t.accepted and not t.same_table for t in made)}** of {len(made)}. What stands under \"same truth table, no "
    "proof\" holds by truth table only: this kernel finds no proof of it in one direction, so what counts as the same statement depends on the logic. **What it cannot show:** whether the expert's formula says what the sentence means. No kernel can."
)

# %% [markdown]
# ## What to take away
#
# - An exact verifier makes every accepted proof safe to train on. What remains open moves upstream: formalisation, allowed axioms, limits, leakage.
# - Selection leaves the weights alone; test-time RL does not. Only one of the two may be called search, and both have a bill.
# - AlphaProof is no chatbot that does olympiads: translation, a specialist network, search, a kernel and adaptation are parts of it **[D]**, and geometry was
#   left to another system **[D]**.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
