# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Level 7 · Reading frontier reports adversarially
#
# In levels 0 to 6 you have trained policies, attacked rewards and kept ledgers. Others do so at another scale, and what you learn of it is a text: an announcement, a model card, a paper, or somebody's summary of one. This level is about such texts: what they say,
# what they don't, and what is made of them one retelling later. At the end you audit an announcement that you have not seen before, and then a report of your own: the ledger of your run.
#
# Every claim carries a label. It stood as a mark, [D], [I] or [U], beside what earlier levels said of others' systems; here it is the subject.
#
# | label | the claim | is kept with |
# |---|---|---|
# | **D** disclosed | stands in a source | the place where it stands |
# | **I** inferred | follows from what stands there, but does not stand there | its premises |
# | **U** unknown | is not public, or cannot be decided from the sources | nothing. A row that nobody filled is U |
#
# The sources of this course are three. A **place** names one of them and where to look in it: **A** is a survey of OpenAI, Anthropic and Google DeepMind, from preferences to environments ("A 3.3" is a section); **B** a technical survey of reinforcement learning for large language models ("B line 203");
# **C** a chapter of definitions of post-training ("C ftip-002P" is the tag of one). None of the three is a system's own report.
#
# **You will be able to**
# - read a reported number with its benchmark, budget, comparator and adjustment, and say which numbers may be combined;
# - say what follows from the words of a report: no PPO from "reinforcement learning", no reinforcement learning from "agentic", no training from "evolution";
# - correct what is often told about how systems were trained, each time with the fact that refutes it;
# - fill an evidence table with labels, places and premises, and keep both values where sources disagree;
# - audit an announcement with planted over-claims, and your own run against a reproducibility checklist.
#
# **You need** levels 0 to 6, and the ledger that you wrote at the end of level 6. **Time** about 5 hours: nearly four for the exercises, the rest for the experiments and the questions. {{measured}}
#
# Open language is not asked for: numbers, statements and reports come in small grammars that are defined here.

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %% ng="locked:setup"
import math
import re
from dataclasses import replace

from autograder import check
from course.evidence.claims import FIELDS, Claim, Conflict, EvidenceTable
from course.evidence.entailment import PHRASES, read_statements
from course.evidence.numbers import COUNTED, SCALES, VERBS, Reported
from course.figures import say


def table(columns, rows):
    """Rows of cells as a Markdown table."""
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in (columns, ["---"] * len(columns), *rows))


# %% [markdown]
# ## Part A · What a sentence says
#
# "71 %." Of what, on which benchmark, with how many samples, against whom? A number without its conditions is not a smaller piece of information but another one: it will be compared with numbers that it cannot be compared with.

# %% [markdown]
# {{card read_number}}
#
# A reported number here is one sentence that ends in a full stop. What stands in square brackets may be absent; the conditions come in any order, each at most once:
#
# `[On BENCHMARK, ] SYSTEM VERB NUMBER UNIT [, with BUDGET] [, against COMPARATOR] [, adjusted for length].`
#
# | part | what it may be |
# |---|---|
# | VERB | one of `VERBS`, printed below; *loses* makes the number negative |
# | NUMBER | `71`, `38.1`, `256,000` (commas between thousands, all of them or none), perhaps with one of `SCALES` behind it: `1.5 million` |
# | UNIT | words: `% of problems` (a rate), `% of the human rate` (a share of somebody's rate), `points`, `episodes` |
# | BENCHMARK, SYSTEM, BUDGET, COMPARATOR | words, which may contain numbers and the commas inside them (`1,000 samples`), but neither a VERB nor a comma with a blank behind it |
#
# Percent stay percent: 71, not 0.71. A number without a fraction is an `int`, with decimals a `float`. What the sentence does not say stays empty. A share of somebody's rate *is* a comparison: `% of the human rate` has the comparator `human`, and no `against` may follow.
# A `%` that does not say of what is no unit.

# %%
print(VERBS, SCALES, sep="\n")
print(Reported(71, "% of comparisons", benchmark="Reddit summaries", comparator="SFT", adjusted=False))

# %% ng="solution:read_number"
def read_number(text):
    """The number of one sentence, with all its conditions.

    text      str, a sentence of the grammar above
    returns   Reported(value, unit, benchmark="", budget="", comparator="", adjusted=False); ValueError for any other text
    """
    ### BEGIN SOLUTION
    if not text.strip().endswith("."):
        raise ValueError(f"text must be one sentence with a full stop; got {text!r}")
    first, *rest = text.strip()[:-1].split(", ")
    benchmark = ""
    if first.startswith("On ") and rest:
        benchmark, first, *rest = first[3:], *rest
    verb = "|".join(VERBS)
    found = re.fullmatch(rf"\S.*? ({verb}) (\d{{1,3}}(?:,\d{{3}})+|\d+)(\.\d+)?(?: ({'|'.join(SCALES)}))? (\S.*)", first)
    if not found or re.search(rf"(^| )({verb})( |$)", found[5]) or re.match(r"%(?! of \S)", found[5]):
        raise ValueError(f"text must say who reaches, scores, ... how many of what; got {text!r}")
    digits, decimals = found[2].replace(",", ""), found[3]
    value = (float(digits + decimals) if decimals else int(digits)) * SCALES.get(found[4], 1) * (-1 if found[1] == "loses" else 1)
    share = re.fullmatch(r"% of the (.+) rate", found[5])
    said = {"comparator": share[1]} if share else {}
    for condition in rest:
        name, value_of = next(
            ((n, condition[len(start) :] or True) for start, n in (("with ", "budget"), ("against ", "comparator")) if condition.startswith(start)),
            ("adjusted" if condition == "adjusted for length" else "", True),
        )
        if not name or name in said or (value_of is True and name != "adjusted"):
            raise ValueError(f"a condition must be known and given once; got {condition!r} in {text!r}")
        said[name] = value_of
    return Reported(value, found[5], benchmark, **said)
    ### END SOLUTION


# %% ng="test:read_number"
check(read_number)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which character sequence separates the parts, and never stands inside one? What is left of "with 1,000 samples" if you split at the comma alone? </details>
# <details><summary>Hint 2: where to look</summary> <code>text[:-1].split(", ")</code> gives the parts. The one with the verb wants one <code>re.fullmatch</code> with groups for verb, digits, decimals, scale and unit; a lazy <code>.*?</code> before the verb takes the first one. The others begin with
# <code>with </code> or <code>against </code>. </details>
# <details><summary>Hint 3: almost code</summary> Drop the benchmark if the first part begins with <code>On </code>. Match <code>who verb digits[.decimals] [scale] unit</code>; value times scale, minus for <i>loses</i>. If the unit is <code>% of the X rate</code>, start the conditions with comparator X. Then one
# condition after the other, and a <code>ValueError</code> for one that is unknown, empty or there already. </details>

# %% [markdown]
# {{card follows}}
#
# The words of a report are not the names of what was done. A statement is `SYSTEM predicate [and predicate ...].`, with the predicates printed below, each said or denied. Some words contain others as part of their meaning, and **nothing else follows from them**:
#
# | said | says also |
# |---|---|
# | PPO, A2C, REINFORCE, GRPO | reinforcement learning |
# | reinforcement learning over tool calls | reinforcement learning; uses tools |
# | reinforcement learning, or trained on demonstrations | trained |
#
# Let $M(w)$ be the word $w$ and all that is part of its meaning, over one step or several. Then, for one and the same system,
#
# $$\text{"}w\text{" is said}\iff w\in M(v)\text{ for a said }v,\qquad\text{"}w\text{" is denied}\iff v\in M(w)\text{ for a denied }v .$$
#
# So PPO says RL and not the other way round; "not RL" denies PPO; RL and tools together are not RL over tool calls, because the model may have learned the one by RL and the other from demonstrations. What no sentence speaks of is neither said nor denied. A claim follows if *each* of its statements does. Where the sentences both say and deny a statement, neither it nor
# its denial follows: contradictory is unknown. A sentence that is not of the grammar ("Vega may use tools.") states nothing; a *claim* that is not of the grammar is a `ValueError`.
#
# The reading is done for you: `read_statements(text)` gives the `Statement(system, word, said)`s of a sentence, and `()` for a text that is none. What the words mean is your part.

# %%
print("\n".join(f"{phrase:62} {'says' if said else 'denies'} {word}" for phrase, (word, said) in PHRASES.items()))
print(*read_statements("Vega-3 was trained with PPO and does not use tools."), sep="\n")
print(read_statements("Vega-3 may use tools."))

# %% ng="solution:follows"
def follows(claim, sentences):
    """Whether the sentences say the claim.

    claim       str, one sentence of the grammar (ValueError otherwise)
    sentences   list of str, those of a report; what is not of the grammar states nothing
    returns     True or False
    """
    ### BEGIN SOLUTION
    parts = dict.fromkeys(("PPO", "A2C", "REINFORCE", "GRPO"), ["RL"]) | {"tool RL": ["RL", "tools"], "RL": ["training"], "demonstrations": ["training"]}

    def meaning(word):
        return {word}.union(*map(meaning, parts.get(word, ())))

    asked, known = read_statements(claim), [statement for sentence in sentences for statement in read_statements(sentence)]
    if not asked:
        raise ValueError(f"claim must be a statement of the grammar; got {claim!r}")
    for wanted in asked:
        mine = [other for other in known if other.system == wanted.system]
        said = any(other.said and wanted.word in meaning(other.word) for other in mine)
        denied = any(not other.said and other.word in meaning(wanted.word) for other in mine)
        if (said, denied) != (wanted.said, not wanted.said):
            return False
    return True
    ### END SOLUTION


# %% ng="test:follows"
check(follows)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Which way does a denial run: does "not PPO" deny RL, or "not RL" deny PPO? And what do you know of RL over tool calls after "uses tools" and "was trained with PPO"? </details>
# <details><summary>Hint 2: where to look</summary> A dict from a word to its parts, from the table above, and a set of all that a word means, by recursion. All statements of all sentences in one list. </details>
# <details><summary>Hint 3: almost code</summary> For each statement of the claim, over the statements of the same system: <code>said = any(s.said and word in meaning(s.word))</code>; <code>denied = any(not s.said and s.word in meaning(word))</code>; it follows if exactly the one that it wants is true. </details>

# %% [markdown]
# ### Experiment A · Two hundred newsletters
#
# Your two functions make a reader. For this course a program wrote 200 announcements of invented laboratories for practice, P-000 to P-199, each with six lines in which a newsletter retells it; three or four of the six are **over-claims**, which say more than the announcement. (7.9 draws yours from 200 others.) A line passes your reader if it stands in the announcement word for word, if it *follows*, or if a sentence reports
# *exactly the same number under the same conditions*. Beside it reads somebody in a hurry, who lets a line pass if all its words and numbers occur somewhere in the announcement.
#
# **Predict before you run:** which kinds of over-claims does the hurried reader miss? Which kind gets past *your* reader, and why can't your two functions see it?

# %%
prediction_a = ""

# %% tags=["experiment"]
from course.evidence import reports
from course.evidence.lint import REASONS
from course.figures import evidence as pictures


def stands(line, sentences):
    """Your reader: whether a line says no more than the sentences."""
    if line in sentences:
        return True
    try:
        return follows(line, sentences)
    except ValueError:
        pass  # no statement; perhaps a number
    try:
        number = read_number(line)
    except ValueError:
        return False
    return number in filter(None, map(number_or_none, sentences))


def number_or_none(sentence):
    try:
        return read_number(sentence)
    except ValueError:
        return None


def in_a_hurry(line, sentences):
    words = re.findall(r"[\w.%-]*\w|%", line)
    return set(words) <= set(re.findall(r"[\w.%-]*\w|%", " ".join(sentences)))


READERS = {"your reader": stands, "the hurried one": in_a_hurry}
found = reports.tally([reports.practice(number) for number in range(20 if FAST else reports.COUNT)], READERS)
SHORT = {why: why.replace("_", " ").replace("rl", "RL") for why in found.planted}
caught = {name: sum(by_reason.values()) for name, by_reason in found.caught.items()}
pictures.found_by_readers(
    {SHORT[why]: n for why, n in found.planted.items()},
    {name: {SHORT[why]: n for why, n in by_reason.items()} for name, by_reason in found.caught.items()},
    title=f"Your reader finds {caught['your reader']} of {sum(found.planted.values())} over-claims, the hurried one {caught['the hurried one']}",
)

# %% tags=["experiment"]
missed = {name: [SHORT[why] for why, n in found.planted.items() if 2 * by_reason[why] < n] for name, by_reason in found.caught.items()}
say(
    "**What came out.**\n\n"
    + table(
        ("over-claim", "what it is", "planted", *READERS),
        [(SHORT[why], REASONS[why], n, *(by_reason[why] for by_reason in found.caught.values())) for why, n in found.planted.items()],
    )
    + f"\n\nFalse alarms on the {found.honest} lines that say no more than the announcement: {found.alarms['your reader']} and {found.alarms['the hurried one']}. "
    + " ".join(f"More than half missed by {name}: {', '.join(kinds) or 'no kind'}." for name, kinds in missed.items())
    + f" You predicted: {prediction_a or 'nothing'}."
)

# %% [markdown]
# A number that is right and belongs to *another* model gets past your reader: `Reported` keeps the conditions of a number, and whose number it is is none of them. A reader that compares the system, too, finds those; but there will be a next kind that it can't see, and that nobody has planted here.
#
# **What the figure cannot show:** how good a reader is on real announcements. The lines were made by the same hands as the grammar, so what passes here passes by construction, and false alarms are rare for the same reason. Real reports paraphrase; there a rule that wants the same words would reject nearly everything, and a
# model that judges entailment has the weaknesses of all judges (level 5).

# %% [markdown]
# ## Part B · What may be computed
#
# What is not in a report can sometimes be computed from it. The result is **I**, with the numbers that it was computed from as premises, and it is worth no more than the assumption that they belong to one experiment.

# %% [markdown]
# {{card implied_human_rate}}
#
# The Playhouse agent, whose case stands beside level 6, reaches 89 % success, which is 93 % of the human rate [D]. The 93 % are relative, and are often retold as success. But the two numbers together say something that neither says alone:
#
# $$\text{implied rate}=100\cdot\frac{\text{absolute}}{\text{relative}}\qquad\text{[I], in \%.}$$
#
# The absolute number is a rate, `% of` some things; the relative one a share of somebody's rate, `% of the human rate`. They must be of one experiment: same benchmark, budget and adjustment. (The comparator is not looked at: the relative number has one by its unit, and whether the absolute one has one too makes no difference.) A relative number that is not above 0 implies nothing; an implied rate above 100 % says that the two numbers don't
# belong together.

# %% ng="solution:implied_human_rate"
def implied_human_rate(absolute, relative):
    """The rate that the relative number is a share of.

    absolute   Reported with the unit "% of ...", a rate
    relative   Reported with the unit "% of the ... rate"
    returns    float, in %. ValueError if the units are others, the two are not of one experiment, or the implied rate is not possible
    """
    ### BEGIN SOLUTION
    shares = [re.fullmatch(r"% of the .+ rate", number.unit) for number in (absolute, relative)]
    if not absolute.unit.startswith("% of ") or shares[0] or not shares[1]:
        raise ValueError(f"units must be '% of ...' and '% of the ... rate'; got {absolute.unit!r} and {relative.unit!r}")
    if any(getattr(absolute, name) != getattr(relative, name) for name in ("benchmark", "budget", "adjusted")):
        raise ValueError(f"both numbers must be of one experiment; got {absolute} and {relative}")
    if relative.value <= 0 or 100 * absolute.value / relative.value > 100:
        raise ValueError(f"no rate is implied by {absolute.value} and {relative.value}")
    return 100 * absolute.value / relative.value
    ### END SOLUTION


# %% ng="test:implied_human_rate"
check(implied_human_rate)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> If people succeed in 100 % of cases, what are absolute and relative number to each other? </details>
# <details><summary>Hint 2: where to look</summary> <code>Reported.unit</code>, and three fields that must be equal. <code>"% of the human rate"</code> begins with <code>"% of "</code> as well. </details>
# <details><summary>Hint 3: almost code</summary> Three refusals: units, conditions, an impossible result; then <code>100 * absolute.value / relative.value</code>. </details>

# %% [markdown]
# {{card per_unit}}
#
# InstructGPT's last stage: 256,000 episodes over 31,144 prompts [D]. Prompts, comparisons, rankings, pairs, episodes, steps and tokens are different things. They are never added, and one is no measure of another; but how many of one there are for each of another is a number:
#
# $$\frac{256{,}000\ \text{episodes}}{31{,}144\ \text{prompts}}\approx 8.2\ \text{episodes per prompt}\qquad\text{[I]}$$
#
# on average. That every prompt had as many is *not* said. The units must be in `COUNTED` (printed below: plural and singular) and differ; all other conditions must be equal. The result is a `Reported` with those conditions, and its unit reads "episodes per prompt".

# %%
print(COUNTED)

# %% ng="solution:per_unit"
def per_unit(count, per):
    """How many of one thing there are for each of another.

    count     Reported, a count of things in COUNTED, not negative
    per       Reported, a count of other things in COUNTED, above 0, under the same conditions
    returns   Reported: the mean, its unit "<things> per <other thing>", conditions as they were; ValueError otherwise
    """
    ### BEGIN SOLUTION
    if count.unit not in COUNTED or per.unit not in COUNTED or count.unit == per.unit:
        raise ValueError(f"units must be two different ones of {', '.join(COUNTED)}; got {count.unit!r} and {per.unit!r}")
    if replace(count, value=0, unit="x") != replace(per, value=0, unit="x"):
        raise ValueError(f"both counts must have the same conditions; got {count} and {per}")
    if count.value < 0 or per.value <= 0:
        raise ValueError(f"count must not be negative and per be above 0; got {count.value} and {per.value}")
    return replace(count, value=count.value / per.value, unit=f"{count.unit} per {COUNTED[per.unit]}")
    ### END SOLUTION


# %% ng="test:per_unit"
check(per_unit)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> What would 200 comparisons per comparison be? </details>
# <details><summary>Hint 2: where to look</summary> <code>dataclasses.replace</code> keeps all fields that you don't name, and two records are equal if all their fields are. A <code>Reported</code> without a unit cannot be made: give both the same unit, not an empty one. </details>
# <details><summary>Hint 3: almost code</summary> Refuse units that are not in <code>COUNTED</code> or the same, conditions that differ, numbers out of range; then <code>replace(count, value=..., unit=f"{count.unit} per {COUNTED[per.unit]}")</code>. </details>

# %% [markdown]
# ### Experiment B · The same comparison under two conditions
#
# Google's RLAIF study compared policies that were trained on labels of people (RLHF) and of a model (RLAIF) with the supervised policy they came from [D]. Its appendix adjusts the numbers for length, afterwards and imperfectly, as our source says; how, it doesn't say. Below stand its numbers as sentences; your `read_number` reads them.
#
# And three numbers of OpenAI's Computer-Using Agent (CUA). The package's `average` takes the mean of numbers that may be averaged.
#
# **Predict before you run:** the numbers adjusted for length: which way does each kind move, and does RLAIF keep its place beside RLHF? What does `average` say to the three numbers of the agent?

# %%
prediction_b = ""

# %% tags=["experiment"]
from course.evidence.numbers import average

RLAIF = """
On summaries, RLAIF wins 71 % of comparisons, against SFT.
On summaries, RLHF wins 73 % of comparisons, against SFT.
On helpful dialogue, RLAIF wins 63 % of comparisons, against SFT.
On helpful dialogue, RLHF wins 64 % of comparisons, against SFT.
On harmless dialogue, RLAIF reaches 88 % of harmless responses.
On harmless dialogue, RLHF reaches 76 % of harmless responses.
On harmless dialogue, SFT reaches 64 % of harmless responses.
On summaries, RLAIF wins 59 % of comparisons, against SFT, adjusted for length.
On summaries, RLHF wins 61 % of comparisons, against SFT, adjusted for length.
On helpful dialogue, RLAIF wins 61 % of comparisons, against SFT, adjusted for length.
On helpful dialogue, RLHF wins 61 % of comparisons, against SFT, adjusted for length.
On harmless dialogue, RLAIF reaches 91 % of harmless responses, adjusted for length.
On harmless dialogue, RLHF reaches 78 % of harmless responses, adjusted for length.
On harmless dialogue, SFT reaches 64 % of harmless responses, adjusted for length.
""".strip().splitlines()  # A 5.3
read = [(re.search(r", (\w+) (?:wins|reaches)", line)[1], read_number(line)) for line in RLAIF]
raw, adjusted = ({(n.benchmark, who): n.value for who, n in read if n.adjusted is after} for after in (False, True))
groups = {"% won against SFT": {}, "% harmless": {}}
for (benchmark, who), value in raw.items():
    groups["% harmless" if benchmark.startswith("harmless") else "% won against SFT"][f"{benchmark}: {who}"] = (value, adjusted[benchmark, who])
moved = {kind: {name: after - before for name, (before, after) in rows.items()} for kind, rows in groups.items()}
pictures.with_and_without(
    groups, before="as reported", after="adjusted for length afterwards", x="% of comparisons, % of responses",
    title=f"Adjusted for length, win rates fall by {-max(moved['% won against SFT'].values())} to {-min(moved['% won against SFT'].values())} points; harmlessness rises by up to {max(moved['% harmless'].values())}",
)  # fmt: skip

# %% tags=["experiment"]
AGENT = ("On OSWorld, CUA reaches 38.1 % of tasks.", "On WebArena, CUA reaches 58.1 % of tasks.", "On WebVoyager, CUA reaches 87 % of tasks.")
refused = []
for what, numbers in {
    "the agent's three suites": [read_number(line) for line in AGENT],
    "RLAIF on summaries, as reported and adjusted": [n for who, n in read if (n.benchmark, who) == ("summaries", "RLAIF")],
    "RLAIF and RLHF on summaries, adjusted": [n for who, n in read if n.benchmark == "summaries" and n.adjusted],
}.items():
    try:
        refused.append((what, f"{average(numbers).value:g}"))
    except ValueError as error:
        refused.append((what, f"refused: {error}"))
people = implied_human_rate(read_number("On Playhouse, the agent reaches 89 % of episodes."), read_number("On Playhouse, the agent reaches 93 % of the human rate."))
each = per_unit(read_number("The PPO stage uses 256,000 episodes."), read_number("The PPO stage uses 31,144 prompts."))
say(
    "**What came out.** "
    + f"Win rates against SFT, adjusted: {', '.join(f'{name} {change:+d}' for name, change in moved['% won against SFT'].items())} points: they fall, most on summaries. "
    + f"Harmless responses: {', '.join(f'{name.split()[-1]} {change:+d}' for name, change in moved['% harmless'].items())}: they rise a little or stay. "
    + f"RLAIF stays beside RLHF: {raw['summaries', 'RLAIF']} and {raw['summaries', 'RLHF']} % become {adjusted['summaries', 'RLAIF']} and {adjusted['summaries', 'RLHF']} % on summaries.\n\n"
    + table(("average of", ""), refused)
    + f"\n\nIn the Playhouse people succeed in about {people:.1f} % [I]. A prompt of InstructGPT's last stage was used {each.value:.1f} times on average [I]. You predicted: {prediction_b or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# Both columns belong in a report: the raw one says what people preferred, the other how much of it is left after an adjustment for length.
#
# The last average is computed: conditions are equal, so nothing forbids it. Whether the mean of two *systems* is a number of anything is a question that no rule of this kind answers. **What the figure cannot show:** that length was the cause. The adjustment was made afterwards, on the answers that there were, and it is
# imperfect; a policy trained with a price on length would be an experiment.

# %% [markdown]
# ## Part C · Lore
#
# Some statements about how systems were trained are repeated until they are known. Here are seventeen, and facts from the sources, with their places. A correction is worth what its fact is worth: "that is wrong" is none.

# %%
from course.evidence.lore import CLAIMS, FACTS

say(table(("id", "it is said that"), CLAIMS.items()))

# %%
say(table(("id", "fact", "place"), [(name, fact.text, fact.place) for name, fact in FACTS.items()]))

# %% [markdown]
# {{card lore}}
#
# For each claim, the id of the fact that refutes it. Each claim has one, no fact serves two, and five of the facts refute none: they are true, about the same systems, and beside the point.

# %% ng="solution:lore"
def lore():
    """What refutes each of the folk claims: {id of the claim: id of the fact}, all seventeen."""
    ### BEGIN SOLUTION
    return {
        "webgpt": "f12", "prm800k": "f07", "rbr": "f13", "o1": "f06", "tools": "f15", "constitution": "f08", "claude37": "f03", "thoughts": "f17",
        "rlaif": "f04", "sparrow": "f02", "alphaproof": "f18", "alphaevolve": "f05", "robots": "f11", "benchmarks": "f01", "weights": "f19",
        "tampering": "f10", "robot_demo": "f16",
    }  # fmt: skip
    ### END SOLUTION


# %% ng="test:lore"
check(lore)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> If the fact were false, could the claim stand? If it could stand either way, and its reason too, the fact does not refute it. </details>
# <details><summary>Hint 2: where to look</summary> The place of a fact is a section about one laboratory's systems (3: OpenAI, 4: Anthropic, 5: Google DeepMind), or 12, which is about inferences in general. </details>
# <details><summary>Hint 3: almost code</summary> Do the systems by name first: fourteen claims have a fact from the sections 3 to 5. The three facts of section 12 answer <code>tools</code>, <code>benchmarks</code> and <code>weights</code>. </details>

# %% [markdown]
# ## Part D · A table of claims
#
# For every announcement the same eleven rows, filled before anybody says how the system was trained:

# %%
say(table(("field", "what is needed before the row can be filled"), FIELDS.items()))

# %% [markdown]
# {{card claims_table}}
#
# The lines of an excerpt, in our words, with the places where the source has them; and twelve claims. Label each claim from these lines alone; what 7.5 told does not count:
#
# - **D** if a line *says* it: give that line;
# - **I** if it can be computed or concluded from lines without a guess, and stands in none: give *all* lines that it rests on;
# - **U** otherwise, with no lines. A claim may be plausible, even probable, and U. A row that is absent is U. A U counts in a table that holds at least half of what the lines do say.
#
# Anything that has to be assumed besides, such as "used about equally often", is a guess. An episode of InstructGPT is one prompt and its answer; `e10` and `e11` are of one experiment.

# %%
from course.evidence.excerpt import CLAIMED, EXCERPT

say(table(("line", "the excerpt", "place"), [(name, *line) for name, line in EXCERPT.items()]))

# %%
say(table(("claim", "field", ""), [(name, *claim) for name, claim in CLAIMED.items()]))

# %% ng="solution:claims_table"
def claims_table():
    """{id of the claim: (label, [lines])}: ("D", ["e7"]), ("I", ["e7", "e8"]) or ("U", [])."""
    ### BEGIN SOLUTION
    return {
        "c01": ("D", ["e2"]),
        "c02": ("I", ["e3", "e4"]),
        "c03": ("U", []),
        "c04": ("U", []),
        "c05": ("D", ["e5"]),
        "c06": ("D", ["e6"]),
        "c07": ("D", ["e7"]),
        "c08": ("U", []),
        "c09": ("I", ["e10", "e11"]),
        "c10": ("U", []),
        "c11": ("U", []),
        "c12": ("I", ["e1"]),
    }
    ### END SOLUTION


# %% ng="test:claims_table"
check(claims_table)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Could the lines all be true and the claim false? Then it is U. </details>
# <details><summary>Hint 2: where to look</summary> Four D, three I, five U. </details>
# <details><summary>Hint 3: almost code</summary> Three claims are arithmetic on one or two lines. Of the others, look for the word that the line does not have, such as "because" or "equally". </details>

# %% [markdown]
# {{card conflicts}}
#
# Sources disagree. Of InstructGPT, one says a KL coefficient of 0.02 and another 0.2 for the same paper; a reward model that starts from GPT-3, and one that starts from the supervised policy. Whoever takes one of them without a word has decided what nobody can check any more. So both stand:
#
# - a `Claim` has a `field`, a `text`, a `label`, a `place` (if D), `premises` (if I), and perhaps `about`: the quantity that it gives, as "KL coefficient";
# - a **conflict** is a field and a quantity of which D claims with *different* texts are in the table. It holds all D claims about that quantity, in the order of the table.
#
# Claims without a quantity add to each other and never conflict; nor do I and U claims; nor do two places that say the same.

# %%
DISAGREEING = EvidenceTable(
    (
        Claim("optimizer", "PPO with a ratio clip of 0.2", "D", "A 3.3"),
        Claim("optimizer", "0.02", "D", "A 3.3", about="KL coefficient"),
        Claim("reward", "a GPT-3 checkpoint", "D", "A 3.3", about="start of the reward model"),
        Claim("optimizer", "0.2", "D", "B line 203", about="KL coefficient"),
        Claim("reward", "the SFT model", "D", "B line 203", about="start of the reward model"),
        Claim("reward", "the SFT model", "D", "C ftip-002P", about="start of the reward model"),
    )
)
print(Conflict.__doc__)
print(*DISAGREEING.claims, sep="\n")

# %% ng="solution:conflicts"
def conflicts(table):
    """Where the sources of a table disagree.

    table     EvidenceTable: .claims, a tuple of Claims
    returns   list of Conflict(field, about, claims), claims a tuple, in the order in which the quantities first appear
    """
    ### BEGIN SOLUTION
    told = {}
    for claim in table.claims:
        if claim.label == "D" and claim.about:
            told.setdefault((claim.field, claim.about), []).append(claim)
    return [Conflict(field, about, tuple(claims)) for (field, about), claims in told.items() if len({c.text for c in claims}) > 1]
    ### END SOLUTION


# %% ng="test:conflicts"
check(conflicts)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Three sources, two of which agree: how many conflicts, with how many claims? </details>
# <details><summary>Hint 2: where to look</summary> Group the D claims that have a quantity by <code>(field, about)</code>; a dict keeps the order of insertion. </details>
# <details><summary>Hint 3: almost code</summary> <code>told.setdefault((c.field, c.about), []).append(c)</code>, then a <code>Conflict</code> for each group with more than one text. </details>

# %% [markdown]
# ## Part E · Fifty-six cards
#
# The sources of this course describe 56 systems and methods. Each has a card: the eleven rows with label, text and place, and where the course does the same in small, or that it doesn't. `course cards` writes them all to one page with filters; open it beside this notebook. Cards of closed releases say what is unknown.
#
# First the question that everybody asks of every system: what kind of loop was it? Five are confused most often (source A, 2.6), and the course has an example of each.
#
# | loop | what changes | fresh samples of the policy? | in this course |
# |---|---|---|---|
# | supervised fine-tuning, cloning | the policy | no | level 0, Experiment C; level 4, Experiment C |
# | reward-model training | the judge | no, once the data are there | level 1, Experiment A |
# | online RL | the policy, usually a critic too | yes | level 2, Experiment B; level 4, Experiment D |
# | sampling and choosing (rejection sampling), search | no weight | yes, at inference or for data | level 3, Experiments D and E |
# | orchestration at run time: which tool, which model | possibly nothing | it acts live | level 6, Experiment G: a router among routes |
#
# One system may use all five, and evidence for one is not evidence for another (level 3).

# %% [markdown]
# ### Experiment C · How deep does disclosure go?
#
# All cards of the three laboratories' systems, counted: in how many of them is the row D, that is, answered at least in part? ("Ten times as much" and "not reported" answer nothing.) One card is left out, which only draws a boundary: computer use and robotics at Anthropic. And *your* `conflicts` on every card.
#
# Three of the cards are families of **closed releases**: GPT-5.2 to 5.6, Claude 4 to 5, Gemini 3 to 3.5. Of these the products and their order are public, and the recipe is not.
#
# **Predict before you run:** which row is disclosed least often? Is there a laboratory that discloses more than the others, or does it depend on something else? How many of the 56 cards have a conflict between our own sources?

# %%
prediction_c = ""

# %% tags=["experiment"]
from course.evidence.cards import label_counts, load_cards

cards = load_cards()
ASKED = [field for field in FIELDS if field != "unknowns"]  # that row is a list of what is U
shown = [field.replace("_", " ").replace("sft", "SFT") for field in ASKED]
laboratories = ("OpenAI", "Anthropic", "Google DeepMind")
NO_SYSTEM = "Computer use and robotics boundary (Anthropic)"  # a card that says where a source's claims end
systems = [card for card in cards if card.laboratory in laboratories and card.name != NO_SYSTEM]
by_laboratory = {name: [card for card in systems if card.laboratory == name] for name in laboratories}
depth = {name: label_counts(found) for name, found in by_laboratory.items()}
together = label_counts(systems)
fewest = min(together[field]["D"] for field in ASKED)
least = " and ".join(field.replace("_", " ") for field in ASKED if together[field]["D"] == fewest)
pictures.shares(
    {f"{name}, {len(by_laboratory[name])} systems": [(depth[name][field]["D"], len(by_laboratory[name])) for field in ASKED] for name in laboratories}
    | {"all three": [(together[field]["D"], len(systems)) for field in ASKED]},
    shown, title=f"Disclosed least often: {least}, {'each ' if ' and ' in least else ''}in {fewest} of {len(systems)} systems",
)  # fmt: skip

# %% tags=["experiment"]
disclosed = {card.name: sum(card.labels[field] == "D" for field in ASKED) for card in systems}
closed = [card.name for card in systems if "closed release" in card.mechanisms]
deepest = max(disclosed, key=disclosed.get)
low, high = min(disclosed[name] for name in closed), max(disclosed[name] for name in closed)
pictures.marks(
    {
        f"{card.name}{' (closed)' if card.name in closed else ''}, {card.year.partition(' (')[0] or 'undated'}": [card.labels[field] for field in ASKED]
        for card in sorted(systems, key=lambda card: card.year or "9")
    },
    shown, pictures.LABELS,
    title=f"In order of time, D in {disclosed[deepest]} of {len(ASKED)} rows for {deepest}, in {f'{low} to ' if low < high else ''}{high} for each closed family",
)  # fmt: skip

# %% tags=["experiment"]
disagreements = [(card.name, conflict) for card in cards for conflict in conflicts(card.table)]


def mean_rows(chosen, without=()):
    """Rows that are D, on average."""
    return sum(sum(card.labels[field] == "D" for field in ASKED if field not in without) for card in chosen) / len(chosen)


def gap(*groups, without=()):
    """How far apart the groups' means are."""
    means = [mean_rows(group, without) for group in groups]
    return max(means) - min(means)


early, late = ([card for card in systems if card.year and (card.year[:4] < "2024") is before] for before in (True, False))
named, unnamed = ([card for card in systems if (card.labels["optimizer"] == "D") is named] for named in (True, False))
say(
    f"**What came out.** Of {len(systems)} systems, the optimiser is disclosed in {together['optimizer']['D']}, the compute in {together['compute']['D']}; of the {len(closed)} closed families, in "
    f"{sum(card.labels['optimizer'] == 'D' for card in systems if card.name in closed)} and {sum(card.labels['compute'] == 'D' for card in systems if card.name in closed)}.\n\n"
    f"Does it depend on the laboratory? Of {len(ASKED)} rows are D on average: "
    + ", ".join(f"{name} {mean_rows(chosen):.1f}" for name, chosen in by_laboratory.items())
    + f"; up to 2023 {mean_rows(early):.1f}, from 2024 on {mean_rows(late):.1f}; in a closed family {mean_rows([card for card in systems if card.name in closed]):.1f}. Of the other {len(ASKED) - 1} rows, where a text names "
    f"the algorithm {mean_rows(named, ('optimizer',)):.1f}, where it doesn't {mean_rows(unnamed, ('optimizer',)):.1f}. The gaps are {gap(named, unnamed, without=('optimizer',)):.1f} between kinds of text, {gap(early, late):.1f} between years, and up to {gap(*by_laboratory.values()):.1f} between laboratories: too near to each other to tell which of the three it is, on {len(systems)} cards that three sources chose.\n\n"
    f"Our own sources disagree in {len(disagreements)} places on {len({name for name, _ in disagreements})} of {len(cards)} cards:\n\n"
    + table(
        ("card", "quantity", "what is said, and where"),
        [(name, conflict.about, "; ".join(f"{claim.text} ({claim.place})" for claim in conflict.claims)) for name, conflict in disagreements],
    )
    + f"\n\nYou predicted: {prediction_c or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# An empty row has no single meaning. A method's card has no compute because a method has none; a paper on preference data has no environment because there is none beyond the prompt; a release has no optimizer because nobody says.
#
# **What the figures cannot show:** what the laboratories have published. They show what our three sources say of it, none of which is a system's own report: a row that is U here may be D in the paper. Before you write "not disclosed" about a system, look in its own report.

# %% [markdown]
# {{card test_read_number}}
#
# **Bug hunt.** A table of numbers shows no trace of the reader that filled it. Where an adjustment was dropped, 71 % and 59 % stand side by side as if one of them were wrong, and whoever reads the table next can't find out.
#
# Write a test that gets *some* implementation of `read_number` and raises if it is wrong. It will meet right and wrong ones in a secret order; rejecting a right one scores 0. Wrong ones stop at the commas between thousands, ignore the words of scale, drop decimals, take a loss for a gain, make a fraction of percent, or take the first number of the sentence for the result; lose
# the adjustment, the benchmark, the comparator of a share of somebody's rate, or what stands behind a comma in a budget; put one sample where no budget is said; or know the conditions in one order only. And some accept what 7.1 refuses: no full stop, a `%` of nothing, commas between the wrong digits, a condition that is unknown, empty or given twice.
#
# Right ones do what 7.1 says. They differ in the words of their errors and in the last digit of a value with decimals (2.3 million): compare it with a tolerance. Some may accept blanks around the sentence and some refuse them: don't test it. Run it on your own first: it must pass.

# %% ng="solution:test_read_number"
def test_read_number(read_number):
    """Raise if `read_number` is not a right read_number(text); return None if it is."""
    ### BEGIN SOLUTION
    examples = [
        ("The run uses 256,000 episodes.", Reported(256_000, "episodes")),
        ("The run uses 1,234,567 tokens.", Reported(1_234_567, "tokens")),
        ("The run costs 31144 labels.", Reported(31_144, "labels")),
        ("The run uses 1.5 million tokens.", Reported(1.5e6, "tokens")),
        ("The run uses 40 thousand prompts, with 8 nodes.", Reported(40_000, "prompts", budget="8 nodes")),
        ("The run uses 2 billion tokens.", Reported(2 * 10**9, "tokens")),
        ("On OSWorld, CUA reaches 38.1 % of tasks.", Reported(38.1, "% of tasks", "OSWorld")),
        ("On Sokoban, Vega-3 loses 4 points, against Vega-2.", Reported(-4, "points", "Sokoban", comparator="Vega-2")),
        ("RLAIF wins 59 % of comparisons, against SFT, adjusted for length.", Reported(59, "% of comparisons", comparator="SFT", adjusted=True)),
        ("RLAIF wins 71 % of comparisons, against SFT.", Reported(71, "% of comparisons", comparator="SFT")),
        ("On a shelf, it reaches 93 % of the human rate, with 1 hour.", Reported(93, "% of the human rate", "a shelf", "1 hour", "human")),
        (
            "On AIME 2024, o1 solves 93 % of 15 problems, adjusted for length, with 1,000 samples and a reranker, against GPT-3 of 175B.",
            Reported(93, "% of 15 problems", "AIME 2024", "1,000 samples and a reranker", "GPT-3 of 175B", True),
        ),
    ]
    for text, expected in examples:
        got = read_number(text)
        assert math.isclose(got.value, expected.value, rel_tol=1e-9) and replace(got, value=0) == replace(expected, value=0), f"{text}: {got}"
    plain = "CUA reaches 38 % of tasks"
    for text in (
        plain, "CUA reaches 38 %.", "CUA reaches 38 % of.", "The run uses 1,23 prompts.", "The run uses 1234,567 prompts.", f"{plain}, on weekdays.", f"{plain}, with .",
        f"{plain}, against .", f"{plain}, with 1 sample, with 2 samples.", f"{plain}, against SFT, against GPT-3.", f"{plain}, adjusted for length, adjusted for length.",
        "CUA reaches 93 % of the human rate, against SFT.", "CUA is good.", "",
    ):  # fmt: skip
        try:
            got = read_number(text)
        except ValueError:
            continue
        raise AssertionError(f"{text!r} must be refused; got {got}")
    ### END SOLUTION


# %% ng="test:test_read_number"
check(test_read_number)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For each fault in the list: what is the shortest sentence that it reads differently from 7.1? </details>
# <details><summary>Hint 2: where to look</summary> One list of sentences with what is in them, one of texts that must be refused. A long sentence with all conditions in an unusual order finds many faults at once, a short one what is invented where nothing is said. </details>
# <details><summary>Hint 3: almost code</summary> <code>assert replace(got, value=0) == replace(expected, value=0)</code> and <code>math.isclose</code> for the value. For the others: <code>try</code>, <code>except ValueError: continue</code>, and an <code>AssertionError</code> behind it. </details>

# %% [markdown]
# ## Part F · Exit test: a report, and your own run

# %% [markdown]
# First a report to practise on. Make its table and its list of over-claims yourself, in the form that 7.9 below asks for; then unfold what a careful reader finds.

# %%
from course.evidence.lint import REASONS
from course.evidence.reports import QUESTIONS, drawn_id, find_report, practice

exercise = practice(7)  # any number below 200
print(exercise)
say(table(("row", "the question"), QUESTIONS.items()))
say(table(("reason", "what it means"), REASONS.items()))

# %%
say(
    f"<details><summary>What a careful reader finds in {exercise.id}</summary>\n\n"
    + table(("row", "label", "places"), [(field, label, ", ".join(places)) for field, (label, places) in exercise.rows.items()])
    + "\n\n"
    + table(("over-claim", "reason", "the sentence that says less"), [(line, finding.why, finding.place) for line, finding in exercise.planted.items()])
    + "\n\n</details>"
)

# %% [markdown]
# {{card audit_report}}
#
# Write your name below. It draws your announcement out of 200, R-000 to R-199: an invented laboratory and model, numbered sentences `s1`, `s2`, ..., and six lines `h1` to `h6`, in which a newsletter retells it. What is right for it is with the grader and not in this package. Hand in three things:
#
# - `"report"`: its id, as in "R-017";
# - `"table"`: for each row, by its question in the table above, label and places. **D**: a sentence that answers it. **I**: *all* sentences it is computed from, two or more, if no sentence gives it and arithmetic does. **U**: none, or leave the row out. A sentence that speaks of the topic and does not
#   answer the question, such as one that praises, leaves the row U. The row `unknowns` is the list of the fields that are U;
# - `"over_claims"`: the lines that claim more than the announcement says, each with its reason, from the list above: three or four of the six. Numbers are worth their conditions, words what they mean (7.2).
#
# Form alone earns nothing: a third of the rows that the announcement answers must be right, or half of the over-claims with their reasons. A U counts beside at least half of what the announcement does say.
#
# **To practise more:** `practice(number)` gives another of the 200 announcements of Experiment A. Put its number into the cell above, write down its table, and only then unfold what a careful reader finds.

# %%
NAME = "the reference solution"  # write your own

# %%
print(find_report(drawn_id(NAME)))

# %% ng="solution:audit_report"
def audit_report():
    """Your audit: {"report": id, "table": {field: (label, [places]), ..., "unknowns": [fields]}, "over_claims": {"h2": reason, ...}}."""
    ### BEGIN SOLUTION
    return {
        "report": "R-077",
        "table": {
            "base_checkpoint": ("U", []),
            "sft_data": ("I", ["s15", "s16"]),
            "environment": ("D", ["s5"]),
            "feedback": ("D", ["s9"]),
            "reward": ("U", []),
            "optimizer": ("U", []),
            "rollouts": ("U", []),
            "compute": ("U", []),
            "inference": ("I", ["s1", "s6"]),
            "evaluation": ("D", ["s12", "s17"]),
            "unknowns": ["base_checkpoint", "reward", "optimizer", "rollouts", "compute"],
        },
        "over_claims": {"h3": "condition_dropped", "h4": "condition_dropped", "h5": "units_mixed"},
    }
    ### END SOLUTION


# %% ng="test:audit_report"
check(audit_report)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> For each row: which sentence would you show to somebody who doubts the answer? If none, is there arithmetic that needs nothing but sentences? </details>
# <details><summary>Hint 2: where to look</summary> Your own <code>follows</code> and <code>read_number</code> on the newsletter's lines, as in Experiment A; then look at the system's name, which they do not compare. </details>
# <details><summary>Hint 3: almost code</summary> First the lines that add words: <i>thanks to ...</i> is a cause, <i>On A and B</i> an average. For any other line with a number, find the sentence with the same value and compare unit, budget, comparator, adjustment and system, in this order: the first that differs is the reason. A unit that was a share of a rate is <code>relative_as_absolute</code>, another count <code>units_mixed</code>. </details>

# %% [markdown]
# {{card audit_run}}
#
# Before a result is called reproduced, source A (section 13) asks for fourteen things. The ledger of level 6 holds some of them in its rounds; others a run must declare once. Paste the text of `my_run.json`, which level 6 wrote at its end into the folder of its notebook, as a raw string, `export = r'''...'''`: files that lie beside the notebook don't come along when you hand in. For each of the fourteen items say:
#
# - `"met"`: all of it is recorded, and one place where;
# - `"missing"`: a part of it is not, and the first place where it should have been recorded (`"declaration.runs.interval"`); what is absent comes before what is there but not enough, so of one seed without an interval the interval is named;
# - `"not applicable"`: the run declares so, with a reason, where that is possible at all; and the place of the declaration.
#
# A place is written as printed below, `"entries.instance"`, without an index; of what a declared object lacks, with its part.
#
# The points are for saying what is so: an honest "missing" is worth as much as "met". Two of the ten are for a run of your own; if you have no ledger, `course.evidence.checklist.example_run()` gives the text of a recorded one, which can earn the other eight.
#
# Can a run that lacks something still pass? The rounds cannot be changed any more, the chain would break; the declaration can be completed: count the horizons in your records, say the inference budget, repeat the run of level 6 with another `SEED` and give the interval. Only you know whether what you add is true.
#
# A long ledger is unwieldy in a cell. The beginning of a chain is a chain: `shortened` below gives an export of the first rounds; count again what the declaration counts.

# %%
from course.evidence import checklist as rules

say(table(("item", "what it asks for", "where it is recorded"), [(name, asks, ", ".join(places)) for name, (asks, places) in rules.CHECKLIST.items()]))
print(rules.__doc__)


def shortened(text, rounds=3):
    """An export of the first rounds of a run."""
    ledger, declaration = rules.read_export(text)
    return rules.export(ledger[:rounds], declaration)


# %% ng="solution:audit_run"
def audit_run():
    """The audit of your own run: {"export": JSON text, "items": {item: (status, place)}}, all fourteen."""
    ### BEGIN SOLUTION
    export = r'''{"declaration":{"demonstrations":200,"evaluation":{"not applicable":"hidden tests decide; nobody's judgement is part of the target"},"failures":{"failed":16,
"filtered":0},"inference":{"router":null,"samples":1,"tokens":30,"tools":"the three tools"},"optimizer":{"batch":8,"clip":0.2,"entropy":null,"kl":null,
"lr":0.001,"name":"AdamW","value":null},"rewards":{"raw":"the records' evidence","scalarization":"10 for the hidden tests, 0 otherwise"},
"rollouts":{"horizons":{"5":16},"lag":0,"temperature":1.0},"runs":{"interval":[0.0,0.015625],"seeds":[0,1]},
"serializer":"5963eb1326d011a23693e6a0eea080b1efd8f85e8431bf74ac29ce1d0efb7877","source":{"license":"MIT","revision":"agentic-rl-course 0.1.0"},
"split":{"by":"pool of shelves","held_out":64,"train":4},"store":"records.sqlite, beside the notebook of level 6",
"tokenizer":"b8c4bc1f73daaf56a12b7790e294c538e41ad5b3d153db4e31228c9b9f295989"},
"entries":[{"before":"0000000000000000000000000000000000000000000000000000000000000000",
"hash":"6e68830d9e7dfcd9a8888939b29111ffdc3438824da6f2a05483290dd6119e93",
"round":{"committed":"60cd182c7835469358447ae3fc27b9dc478505c53f5f77d49bbbbb00435e3577","cost":{"calls":40,"episodes":8,"judged_tokens":167,
"sampled_tokens":167,"trained_tokens":167,"updates":1},"credit":"456800165d78410767ad5f6580b88c00ecfeacf8ecdcf5cfe0383ccbbb02f0ad","decision":"accept",
"environment":"three_tools@672f8268f9a56a158f2bf1566e1e2d29af5ca1e36fd44c33c79d279110d7da50",
"feedback":["10f8d72407551a81c023f6c471f4f9d9614049c0268a9fd1233cb2d543734357","a4fbbec0bc748abdf19ec7228cde9240329dcb79a2f2436bc9ec5313daad3b06",
"d3dcbdaa57a3b3866e0890569bcac3eefd31b478a23fb7c39631f6349b38f132","f02b3a78489db1be49af250a8b7630a8e901f6f40ccd41bdea7620f3fe66ce76",
"af84ec380e1652f2e4741fda90208e673fe3c89fbc783442b0c36057474b3d1f","586b03e9cdd95105634dd11c75dfb8aec2ba72051aeb69d1476027245a55eee9",
"49f4752b9a07e873e88517171abc3467e22a800656d04e3c048a901054ab45ef","a437714cf0f140b02c7b521a6b25b9a1d1db2e0f43e577975a6ab9f7c4ff341d"],"index":0,
"instance":["10ab76dec679e61437cf627e8998cda933370def784fc9021a19561d3dbbae45","5520b8b7bf1b6baecbf7cf91c319c6d6a290d042b5f841792109457e99660d26"],
"operators":{"accounting":"tool_account@1","credit":"standardised@1","feedback":"verify_answer@1","rollout":"collect_episodes@1",
"sampler":"three_tools_tasks@1","update":"grpo@f8ebd42c841ce907"},"proposed":"60cd182c7835469358447ae3fc27b9dc478505c53f5f77d49bbbbb00435e3577",
"seeds":{"credit":490220553578,"feedback":1061397969310,"rollout":50634211287,"task":348506698225,"update":798217956405},
"stamp":"2bc5bb0827c3ed7615c08044bf73937ce327d68c22d4e9b7292592c6e9e6b344","task":"three tools, online shelves",
"trajectory":["4f1f6c19a403cfc73b264bf311f575bba490c515fb9902dea25244c6b7527399","6c08f0dcfc4f1a1531fce8a2165a6425095dc37cc9ba6224b350735bc39744be",
"d1be2fcc7080f84036fa6f444f0ca7b4646e035c1c875269027ee7111190747a","cb9abe342d338c48339c7b23de52b626d74533bd8169ef3f1d56543e77e93c0e",
"53ce9a65eb9708f0a8cc71b1f5a5ea4d8c1b312370c3599ede6d5f0c3115242a","ee49a487fc4535c0ac2be310a97fefe27883f585eaba96e5c4ca2f45bce0539a",
"1222119dcaef1ffb10be58c9cefc3b2c46543a7200e7dc57edfd216c0b123d18","27182d3169d4cd8f89503ce649867e89840408bcc5c3354587f0f81451b86db7"]}},
{"before":"6e68830d9e7dfcd9a8888939b29111ffdc3438824da6f2a05483290dd6119e93","hash":"f55686babd094588623ecfc9f1366e18860461cbbc87410e229ea3f3c3a5a257",
"round":{"committed":"f5d8b149e3399b10eda53eae355770fb02bcaba07231c70176452732d0eb81c5","cost":{"calls":40,"episodes":8,"judged_tokens":178,
"sampled_tokens":178,"trained_tokens":178,"updates":1},"credit":"d46c717991183b6969cc3f9d228bda68912ca30fd09a6e268c4fc819fd2fda7a","decision":"accept",
"environment":"three_tools@672f8268f9a56a158f2bf1566e1e2d29af5ca1e36fd44c33c79d279110d7da50",
"feedback":["cc24e7ebd4f3acf2d3b8ecbe481d8a6610942ce7a7b84ce3be76f608ae885cfa","8adc7a1db22220c7a7d37e3678ec77e328f4a22240c9835d12197f2274f76ca9",
"80880bc85eb65d844413dc4d4cf34a2a0919f873d021eacfbbb94dd9b3c0f26b","4be5868d2d6815789ddc4503a40dc185256b9c5be08f8752c3fe99492af92883",
"269ed2495704f41a1c54cbd79190952b4285ae210b9534a0e1582eb1ee0589b4","2fd76f7992e3103619c36ac6b8c57cd1414260885a5c2828cfd986f631e65392",
"febb23ae30116e3290d4e36e1754972e3c4196f806a601866b7ad1f051d15568","b5d21760162af3e897c1bdd733532b169cc2289702c0804aae3cc12e3ce19243"],"index":1,
"instance":["bbfbe4c0d29d9ca642ec852638ccedbe32e522b3ea2f8bea24e650355848d0f8","40e6603d1672f05b17e4f21f3914827455ecd1d62338aef476e325d5d220ba57"],
"operators":{"accounting":"tool_account@1","credit":"standardised@1","feedback":"verify_answer@1","rollout":"collect_episodes@1",
"sampler":"three_tools_tasks@1","update":"grpo@f8ebd42c841ce907"},"proposed":"f5d8b149e3399b10eda53eae355770fb02bcaba07231c70176452732d0eb81c5",
"seeds":{"credit":531195819656,"feedback":19897420338,"rollout":491924578159,"task":241910040992,"update":518783732489},
"stamp":"2bc5bb0827c3ed7615c08044bf73937ce327d68c22d4e9b7292592c6e9e6b344","task":"three tools, online shelves",
"trajectory":["c9e354a6ac145f684a94bde201b287ef11d37684effd0d58b5125d73740654ca","77db7b4451e7937d0987debe2c788b0f18184c90381c928a7e3cb45ed4eb21d0",
"925aec6db2554a6963dfeb558f5d5b974e9b7b96d484aff1d5facaec4d086448","72813d5fb5cdee5187682ce26eaeb16f4cbf4a9a9bb427195bcd8a4e6ce5de56",
"16f38e099a56db93a5e5db25894a71de72bd70b0d43eb6544a0afa72a4b2fbb1","18bb955bed67dc7919b69383b3f843abb6cb48ab7c05f1fde6e3781e1f71a44d",
"dae4de0675149215cc30c8b9a1dd544e98bb20233cf4405f7e4fc7679bd24625","69017ca67cee24473e52e03493c6a22da7f953d824e4c9c26076fbe30088ece1"]}}]}'''
    items = {
        "source": ("met", "declaration.source"),
        "checkpoint": ("met", "declaration.tokenizer"),
        "serialization": ("met", "declaration.serializer"),
        "split": ("met", "declaration.split"),
        "counts": ("met", "declaration.demonstrations"),
        "optimizer": ("met", "declaration.optimizer"),
        "rollouts": ("met", "declaration.rollouts"),
        "versions": ("met", "entries.operators"),
        "rewards": ("met", "declaration.rewards"),
        "failures": ("met", "declaration.failures"),
        "inference": ("met", "declaration.inference"),
        "seeds": ("met", "declaration.runs"),
        "evaluation": ("not applicable", "declaration.evaluation"),
        "artifacts": ("met", "declaration.store"),
    }
    return {"export": export, "items": items}
    ### END SOLUTION


# %% ng="test:audit_run"
check(audit_run)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Is every part that the list names there, and not empty? Whether what is written there is any good is another question (see Experiment D). </details>
# <details><summary>Hint 2: where to look</summary> <code>data = json.loads(audit_run()["export"])</code>; then <code>data["declaration"]</code> item by item beside the printed list, and <code>data["entries"][0]["round"]</code> for the rest. </details>
# <details><summary>Hint 3: almost code</summary> A declared object must hold *all* its parts; null is allowed only for settings that a recipe need not have. Several seeds of the whole run are two at least. </details>

# %% [markdown]
# ### Experiment D · Two runs on one list
#
# What you said of your run, beside the recorded example as the package reads it; and in how many items the package agrees with you. In which, is for you to find.
#
# **Predict before you run:** in how many of the fourteen items do you and the package agree? Which item would no run of this course meet?

# %%
prediction_d = ""

# %% tags=["experiment"]
mine = audit_run()
MARKS = {"met": "+", "missing": "–", "not applicable": "n"}
LEGEND = {"+": ("met", *pictures.LABELS["D"][1:]), "–": ("missing", *pictures.LABELS["I"][1:]), "n": ("not applicable", *pictures.LABELS["U"][1:]), "?": ("not said", "white", "black")}
statuses = {item: row[0] for item, row in mine["items"].items() if isinstance(row, (tuple, list)) and len(row) == 2}
lacking = sum(status == "missing" for status in statuses.values())
example = rules.checklist(rules.example_run())
pictures.marks(
    {
        "the recorded example": [MARKS[item.status] for item in example],
        "what you say of yours": [MARKS.get(statuses.get(item), "?") for item in rules.CHECKLIST],
    },
    list(rules.CHECKLIST), LEGEND,
    title=f"The recorded example lacks {sum(item.status == 'missing' for item in example)} of {len(example)} items; of yours you say {lacking}",
)  # fmt: skip

# %% tags=["experiment"]
same, placed = rules.agreement(mine["export"], mine["items"])
say(
    f"**What came out.** You and the package agree on {same} statuses and {placed} places of {len(rules.CHECKLIST)}. (A place counts where the status agrees; of what is met any place of the item.) "
    f"No run of this course meets `evaluation`: rules and hidden tests decide here, and the declarations say so. You predicted: {prediction_d or 'nothing'}."
)

# %% [markdown]
# **What it cannot show:** that a run with fourteen marks is right. The list asks whether something is *recorded*. A wrong revision, a split that leaks, and a grader with a hole in it can all be recorded with care; what a record gives is that somebody else can find out.
#
# And a mechanism that is reproduced stays what it is: another model, on other data, in another environment. This course reproduces mechanisms. It is not InstructGPT.

# %% [markdown]
# ## Questions, marked by a person

# %% [markdown]
# **Q1.** "Our new agent was trained end to end with reinforcement learning in 40,000 environments and reaches 71.3 % on LongRepair, up from 55.9 %." Write down the rows of the evidence table that this sentence fills, with label, and name three rows whose emptiness makes the comparison of 71.3 and 55.9 uninterpretable.

# %% [markdown] ng="manual:question_sentence:3"
# Filled: environment in part (D: 40,000 environments; what is observed, acted, reset: U); optimizer: reinforcement learning is disclosed, the algorithm U; rollouts: U (environments are no episodes); evaluation in part (D: benchmark and value; budget, judge, variance U). Interpretable only with: inference (samples, reasoning budget, tools for both
# numbers: a larger budget alone can make the difference), evaluation (same version, contamination, several runs: a difference without spread), base checkpoint (the older number may be of another base model, so the gain need not be the training's). *(Full marks: RL without algorithm is U in the optimizer row; environments are no count of episodes; three rows with a reason each.)*

# %% [markdown]
# **Q2.** Two surveys give InstructGPT's KL coefficient as 0.02 and as 0.2. You want to run the recipe in small. What do you write into your report, what do you run, and what would settle the matter?

# %% [markdown] ng="manual:question_conflict:3"
# Report both values with their places and that they conflict; say which one the run uses, and that this was a choice, with its reason. Run both, because a factor of ten in the KL price changes what is optimised, and report both curves (reward, gold, KL); do not pick the better afterwards without saying so. What would settle it: the primary source (the paper's appendix), and what the coefficient
# multiplies there: per token or per sequence, in the reward or in the loss, reward normalised or not, could make both values right in different units. *(Full marks: both stand with places; the choice is declared or both are run; the primary source, or a difference of convention that explains it.)*

# %% [markdown]
# **Q3.** A colleague fills an evidence table for a closed release and labels "trained with PPO" as I, with the premises "the laboratory trained an earlier model with PPO in 2022" and "the model behaves like a model trained with PPO". Say what is wrong with each premise, which label is right, and what you would accept as I about this release.

# %% [markdown] ng="manual:question_inference:3"
# The first premise is about another system: lineage of a laboratory is no disclosure about a release. The second is behaviour, which many kinds of training produce; it is compatible with PPO and does not imply it (and nobody has measured what "behaves like" means). Both may be true and the claim false, so U. Acceptable as I: what follows from what is said of *this* release without a guess, such as arithmetic on
# its own numbers (a mean per prompt, a rate implied by a relative number), or a bound (at most 36 pairs from rankings of nine), with premises from its report, and said to be inferred. *(Full marks: both premises; U; an example of a bounded inference.)*

# %% [markdown]
# ## What to read next
#
# - The primary sources themselves, one of each kind: Ouyang et al. (2022), InstructGPT, with its appendices; a system card of a closed release; and the announcement of the same release. Fill the eleven rows for each.
# - Mitchell et al. (2019), Model cards for model reporting. Pineau et al. (2021), Improving reproducibility in machine learning research, with a checklist.
# - Lee et al. (2023), RLAIF, with Appendix J on length; Gao, Schulman and Hilton (2022), on what a rising proxy is worth.
# - `course cards`: the fifty-six cards, filtered by the laboratory, mechanism and label that you are about to write about.
# - In this package, after handing in: `course/evidence`, and `autograder/`, whose checks had to prove themselves on mistakes. That was the course. What you build next, somebody will read as you have read here.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
