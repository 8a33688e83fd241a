"""Level 7: known mistakes. A docstring is what a learner is told when their function behaves like it."""

import json
import re
from dataclasses import replace

from autograder.alternatives.level7 import DECLARED, a_run, answer_of, audited
from autograder.framework import mutant
from autograder.hidden.announcements import full_report
from course.accounting.ledger import append_round
from course.evidence.checklist import CHECKLIST, example_run, export, read_export
from course.evidence.claims import Conflict
from course.evidence.claims import conflicts as right_conflicts
from course.evidence.entailment import consequences, read_statements
from course.evidence.entailment import follows as right_follows
from course.evidence.corrections import REFUTES
from course.evidence.numbers import COUNTED, Reported
from course.evidence.numbers import implied_human_rate as right_rate
from course.evidence.numbers import per_unit as right_quotient
from course.evidence.numbers import read_number as right_reading
from course.evidence.reports import COUNT, report_id

# ---------------------------------------------------------------- 7.1 read_number


@mutant(of="read_number", kills="L7.03")
def drops_the_budget(text):
    """This looks like a number without its budget: 93 % of a reranker over 1,000 samples is not 93 % of one sample."""
    return replace(right_reading(text), budget="")


@mutant(of="read_number", kills="L7.03")
def drops_the_adjustment(text):
    """This looks like "adjusted for length" being dropped: 71 % and 59 % of comparisons are both true, of two measurements."""
    return replace(right_reading(text), adjusted=False)


@mutant(of="read_number", kills="L7.03")
def drops_the_comparator(text):
    """This looks like a win rate against nobody: the comparator belongs to the number."""
    number = right_reading(text)
    return number if number.relative_to else replace(number, comparator="")


@mutant(of="read_number", kills="L7.03")
def assumes_one_sample(text):
    """This looks like one sample being assumed where no budget is said: what isn't said is empty."""
    number = right_reading(text)
    return replace(number, budget=number.budget or "1 sample")


@mutant(of="read_number", kills="L7.03")
def first_number_of_the_text(text):
    """This looks like the first number of the sentence being taken: the year in "AIME 2024" is no result."""
    number = right_reading(text)
    first = re.search(r"\d[\d,]*\.?\d*", text)[0].rstrip(".,").replace(",", "")
    return replace(number, value=float(first))


@mutant(of="read_number", kills="L7.03")
def splits_at_every_comma(text):
    """This looks like splitting at every comma: "1,000 samples" has one inside."""
    parts = text.replace(",", ", ").replace(",  ", ", ")
    return right_reading(parts)


@mutant(of="read_number", kills="L7.03")
def reads_anything(text):
    """This looks like text outside the grammar being read all the same: a condition twice or of no kind must raise ValueError."""
    try:
        return right_reading(text)
    except ValueError:
        found = re.search(r"(\d[\d,.]*\d|\d) (% of \w+|\w+)", text)
        return Reported(float(found[1].replace(",", "")), found[2]) if found else Reported(0, "nothing")


@mutant(of="read_number", kills="L7.03")
def commas_as_they_come(text):
    """This looks like 1234,567 being read: commas stand between all thousands or between none."""
    return right_reading(re.sub(r"(\d),(?=\d)", r"\1", text)) if re.search(r"\d{4},\d", text) else right_reading(text)


@mutant(of="read_number", kills="L7.03")
def adjusted_twice(text):
    """This looks like "adjusted for length" being taken twice: each condition stands at most once."""
    return right_reading(re.sub(r"(, adjusted for length)+", ", adjusted for length", text))


@mutant(of="read_number", kills="L7.03")
def conditions_of_nothing(text):
    """This looks like a condition without words being taken for none: "with ." is not of the grammar."""
    return right_reading(re.sub(r", (with|against) (?=[,.])", "", text))


@mutant(of="read_number", kills="L7.03")
def conditions_anywhere(text):
    """This looks like conditions being looked for in the whole sentence: "an agent with tools" is a name, and its tools are no budget."""
    number, budget = right_reading(text), re.search(r"with (.+?)(?:, |\.$)", text)
    return replace(number, budget=budget[1] if budget else "", adjusted="adjusted for length" in text)


@mutant(of="read_number", kills="L7.03")
def a_share_of_nothing(text):
    """This looks like "% of" without the things that it is a share of being read as a unit."""
    return Reported(right_reading(text[:-1] + " tasks.").value, "% of") if text.endswith("% of.") else right_reading(text)


@mutant(of="read_number", kills="L7.03")
def on_begins_a_name(text):
    """This looks like a benchmark being read out of a name that begins with "On": the word is followed by a blank."""
    if text.startswith("On") and not text.startswith("On ") and ", " in text:
        raise ValueError("no verb behind the benchmark")
    return right_reading(text)


@mutant(of="read_number", kills="L7.03")
def no_commas_and_decimals_together(text):
    """This looks like commas and decimals that exclude each other: 1,200.5 is one number, and so is 1,200 thousand."""
    if re.search(r"\d,\d{3}(\.\d| thousand)", text):
        raise ValueError("no number")
    return right_reading(text)


@mutant(of="read_number", kills="L7.03")
def whatever_python_reads(text):
    """This looks like float() reading the number: -3, 1e3 and 1_000 are no numbers of the grammar."""
    found = re.search(r" (?:gains|uses) (-\d+|\d+e\d|\d+_\d+) ", text)
    return replace(right_reading(text.replace(found[1], "7")), value=float(found[1])) if found else right_reading(text)


@mutant(of="read_number", kills="L7.03")
def nothing_is_no_number(text):
    """This looks like `if not value`: 0 is a number."""
    number = right_reading(text)
    if not number.value:
        raise ValueError("no number")
    return number


@mutant(of="read_number", kills="L7.03")
def more_than_length(text):
    """This looks like every condition that begins with "adjusted for length": "and cost" behind it is another one."""
    return right_reading(re.sub(r"adjusted for length and \w+", "adjusted for length", text))


@mutant(of="read_number", kills="L7.03")
def any_mark_at_the_end(text):
    """This looks like any mark at the end of the sentence: it is a full stop."""
    return right_reading(re.sub(r"[!?]$", ".", text))


@mutant(of="read_number", kills="L7.03")
def verbs_in_any_form(text):
    """This looks like verbs in any form: "reached" is none of VERBS."""
    return right_reading(text.replace(" reached ", " reaches "))


@mutant(of="read_number", kills="L7.03")
def every_the_is_somebodys_rate(text):
    """This looks like "% of the tasks" being compared with the tasks: somebody's rate ends in "rate"."""
    number = right_reading(text)
    if number.relative_to or not number.unit.startswith("% of the "):
        return number
    return replace(number, comparator=number.unit.removeprefix("% of the "))


@mutant(of="read_number", kills="L7.03")
def against_the_same_once_more(text):
    """This looks like "against human" being accepted behind "% of the human rate": no `against` may follow."""
    return right_reading(re.sub(r"(% of the (\S+) rate), against \2(?=[,.])", r"\1", text))


@mutant(of="read_number", kills="L7.04")
def whose_rate_is_lost(text):
    """This looks like a relative number without whose rate it is a share of: that is its comparator."""
    number = right_reading(text)
    return replace(number, comparator="") if number.relative_to else number


@mutant(of="read_number", kills="L7.04")
def a_share_of_a_rate_is_a_rate(text):
    """This looks like "93 % of the human rate" being read as 93 % of tasks."""
    number = right_reading(text)
    return replace(number, unit="% of tasks", comparator="") if number.relative_to else number


@mutant(of="read_number", kills="L7.05")
def thousands_are_decimals(text):
    """This looks like a comma between thousands being read as a decimal point."""
    number = right_reading(text)
    return (
        replace(number, value=number.value / 1000) if re.search(r" \d{1,3},\d{3} \w+", text) and number.value >= 1000 else number
    )


@mutant(of="read_number", kills="L7.05")
def million_is_a_unit(text):
    """This looks like "million" being left in the unit: it belongs to the number."""
    number = right_reading(text)
    for word, factor in (("thousand", 10**3), ("million", 10**6), ("billion", 10**9)):
        if f" {word} " in text:
            return replace(number, value=number.value / factor, unit=f"{word} {number.unit}")
    return number


@mutant(of="read_number", kills="L7.05")
def every_count_is_of_samples(text):
    """This looks like one unit for everything that is counted: prompts, pairs and episodes are three."""
    number = right_reading(text)
    return replace(number, unit="samples") if number.unit in COUNTED else number


# ---------------------------------------------------------------- 7.2 follows


def _with(*extra):
    """The package's follows after sentences have been added: (word in a sentence, phrase that is read out of it)."""

    def mistaken(claim, sentences):
        more = []
        for sentence in sentences:
            for s in read_statements(sentence):
                more += [f"{s.system} {phrase}." for word, phrase in extra if s.said and s.word == word]
        return right_follows(claim, [*sentences, *more])

    return mistaken


@mutant(of="follows", kills="L7.02")
def rl_means_ppo(claim, sentences):
    """This looks like PPO being read out of "reinforcement learning": that is the name of a problem, and of no algorithm."""
    return _with(("RL", "was trained with PPO"), ("tool RL", "was trained with PPO"))(claim, sentences)


@mutant(of="follows", kills="L7.02")
def agentic_means_rl(claim, sentences):
    """This looks like reinforcement learning being read out of "agentic": an agent can be cloned, prompted or routed."""
    return _with(("agentic", "was trained with reinforcement learning"))(claim, sentences)


@mutant(of="follows", kills="L7.02")
def evolution_means_training(claim, sentences):
    """This looks like training being read out of an evolutionary search: the candidates change, and the weights need not."""
    return _with(("evolution", "was trained"))(claim, sentences)


@mutant(of="follows", kills="L7.02")
def tools_mean_tool_rl(claim, sentences):
    """This looks like tool RL being read out of tool use: tools can come from demonstrations, prompts or the runtime."""
    return _with(("tools", "was trained with reinforcement learning over tool calls"))(claim, sentences)


@mutant(of="follows", kills="L7.02")
def rl_and_tools_are_tool_rl(claim, sentences):
    """This looks like "reinforcement learning" and "uses tools" adding up to tool RL: it may have been trained on something else."""
    said = {}
    for sentence in sentences:
        for s in read_statements(sentence):
            if s.said:
                said.setdefault(s.system, set()).add(s.word)
    both = [system for system, words in said.items() if "tools" in words and words & {"RL", "PPO", "A2C", "REINFORCE", "GRPO"}]
    return right_follows(claim, [*sentences, *(f"{s} was trained with reinforcement learning over tool calls." for s in both)])


@mutant(of="follows", kills="L7.02")
def whoever_it_is(claim, sentences):
    """This looks like sentences about another system being counted for this one."""
    system = read_statements(claim)[0].system if read_statements(claim) else ""
    return right_follows(
        claim, [sentence.replace(s[0].system, system) if (s := read_statements(sentence)) else sentence for sentence in sentences]
    )


@mutant(of="follows", kills="L7.02")
def one_part_is_enough(claim, sentences):
    """This looks like a claim with "and" being accepted for one of its parts: each of them must follow."""
    parts = re.split(r" and ", claim.removesuffix("."))
    system = read_statements(claim)[0].system if read_statements(claim) else None
    if system is None or not claim.endswith("."):
        return right_follows(claim, sentences)
    return any(right_follows(f"{part if part.startswith(system) else f'{system} {part}'}.", sentences) for part in parts)


@mutant(of="follows", kills="L7.02")
def only_the_same_words(claim, sentences):
    """This looks like a search for the same words: whoever says PPO has also said reinforcement learning."""
    if not read_statements(claim):
        raise ValueError("not of the grammar")
    known = [s for sentence in sentences for s in read_statements(sentence)]
    return all(s in known for s in read_statements(claim))


@mutant(of="follows", kills="L7.02")
def denial_goes_the_same_way(claim, sentences):
    """This looks like a denial being passed on to what a word implies: "not PPO" leaves A2C, and reinforcement learning, open."""
    more = []
    for sentence in sentences:
        for s in read_statements(sentence):
            if not s.said and s.word in ("PPO", "A2C", "REINFORCE", "GRPO"):
                more.append(f"{s.system} was not trained with reinforcement learning.")
    return right_follows(claim, [*sentences, *more])


@mutant(of="follows", kills="L7.02")
def one_algorithm_excludes_the_others(claim, sentences):
    """This looks like PPO denying A2C: a system may be trained with both, and Sparrow reranks as well."""
    more = []
    for sentence in sentences:
        for s in read_statements(sentence):
            if s.said and s.word in ("PPO", "A2C", "REINFORCE", "GRPO"):
                more += [
                    f"{s.system} was not trained with {name}." for name in ("PPO", "A2C", "REINFORCE", "GRPO") if name != s.word
                ]
    return right_follows(claim, [*sentences, *more])


def _shown(claim, sentences):
    """For each statement of the claim: those of its system, and what they say and deny by their meanings."""
    known = [s for sentence in sentences for s in read_statements(sentence)]
    if not read_statements(claim):
        raise ValueError("not of the grammar")
    for wanted in read_statements(claim):
        mine = [s for s in known if s.system == wanted.system]
        said = any(s.said and wanted.word in consequences(s.word) for s in mine)
        yield wanted, mine, said, any(not s.said and s.word in consequences(wanted.word) for s in mine)


@mutant(of="follows", kills="L7.02")
def contradicted_by_the_same_word_alone(claim, sentences):
    """This looks like a contradiction being seen only between the same words: "PPO" and "not RL" contradict each other as well."""
    return all(
        (said if wanted.said else denied) and replace(wanted, said=not wanted.said) not in mine
        for wanted, mine, said, denied in _shown(claim, sentences)
    )


@mutant(of="follows", kills="L7.02")
def one_contradiction_spoils_all(claim, sentences):
    """This looks like nothing following any more once two sentences contradict each other: what has no part in that still stands."""
    return all(
        (said, denied) == (wanted.said, not wanted.said)
        and not any(a.said and not b.said and b.word in consequences(a.word) for a in mine for b in mine)
        for wanted, mine, said, denied in _shown(claim, sentences)
    )


@mutant(of="follows", kills="L7.02")
def silence_is_denial(claim, sentences):
    """This looks like silence being taken for a denial: what no sentence speaks of is open."""
    return all(said and not denied if wanted.said else denied or not said for wanted, _, said, denied in _shown(claim, sentences))


@mutant(of="follows", kills="L7.02")
def nothing_is_asked_of_nothing(claim, sentences):
    """This looks like an answer before the claim was read: outside the grammar it is a ValueError, whatever the sentences are."""
    return bool(sentences) and right_follows(claim, sentences)


# ---------------------------------------------------------------- 7.3 implied_human_rate, 7.4 per_unit


@mutant(of="implied_human_rate", kills="L7.04")
def the_relative_is_the_rate(absolute, relative):
    """This looks like the relative number being taken for a success rate: 93 % of the human rate is nobody's 93 %."""
    return float(relative.value)


@mutant(of="implied_human_rate", kills="L7.04")
def the_product(absolute, relative):
    """This looks like a product: absolute = relative * human rate, so the human rate is a quotient."""
    return absolute.value * relative.value / 100


@mutant(of="implied_human_rate", kills="L7.04")
def the_quotient_upside_down(absolute, relative):
    """This looks like the relative rate over the absolute one: it is the other way round."""
    return 100 * relative.value / absolute.value if absolute.value else 0.0


@mutant(of="implied_human_rate", kills="L7.04")
def a_share_and_not_percent(absolute, relative):
    """This looks like a rate between 0 and 1: the numbers are in percent, and so is the answer."""
    return absolute.value / relative.value


@mutant(of="implied_human_rate", kills="L7.04")
def any_two_numbers(absolute, relative):
    """This looks like a quotient of any two numbers: they must be a rate and a share of one, of the same experiment."""
    return 100 * absolute.value / relative.value if relative.value else 0.0


@mutant(of="implied_human_rate", kills="L7.04")
def all_is_too_much(absolute, relative):
    """This looks like an implied rate of exactly 100 % being refused: it is possible, above it nothing is."""
    if absolute.value == relative.value:
        raise ValueError("all of them")
    return right_rate(absolute, relative)


@mutant(of="implied_human_rate", kills="L7.04")
def a_share_below_nothing(absolute, relative):
    """This looks like 0 alone being refused: a share below 0 implies no rate either."""
    return 100 * absolute.value / relative.value if relative.value < 0 else right_rate(absolute, relative)


@mutant(of="implied_human_rate", kills="L7.04")
def a_comparator_is_refused(absolute, relative):
    """This looks like an absolute number with a comparator being refused: whom else it was compared with is not looked at."""
    if absolute.comparator:
        raise ValueError("against whom?")
    return right_rate(absolute, relative)


@mutant(of="implied_human_rate", kills="L7.04")
def every_the_is_a_share(absolute, relative):
    """This looks like "% of the tasks" being taken for a share of a rate: the unit ends in "rate" then."""
    if absolute.unit.startswith("% of the "):
        raise ValueError("a share of a rate")
    return right_rate(absolute, relative)


@mutant(of="implied_human_rate", kills="L7.04")
def nobody_succeeds(absolute, relative):
    """This looks like `if not absolute.value`: 0 % is a rate, and implies one of 0 %."""
    if not absolute.value:
        raise ValueError("no rate")
    return right_rate(absolute, relative)


@mutant(of="implied_human_rate", kills="L7.04")
def whose_rate_is_one_word(absolute, relative):
    """This looks like whose rate it is being one word: "% of the old policy's rate" is a share as well."""
    if not re.fullmatch(r"% of the \w+ rate", relative.unit):
        raise ValueError("no share of a rate")
    return right_rate(absolute, relative)


@mutant(of="implied_human_rate", kills="L7.04")
def rates_of_episodes_and_tasks(absolute, relative):
    """This looks like a list of units that are rates: "% of" any things is one."""
    if absolute.unit not in ("% of episodes", "% of tasks", "% of the tasks"):
        raise ValueError("no rate")
    return right_rate(absolute, relative)


def _quotient(count, per):
    return count.value / per.value if per.value else 0.0


@mutant(of="per_unit", kills="L7.05")
def added_up(count, per):
    """This looks like two units being added: episodes and prompts have no sum."""
    return replace(count, value=count.value + per.value)


@mutant(of="per_unit", kills="L7.05")
def the_unit_of_the_first(count, per):
    """This looks like a quotient with the unit of the first number: it is of so many per one of the others."""
    return replace(count, value=_quotient(count, per))


@mutant(of="per_unit", kills="L7.05")
def per_many(count, per):
    """This looks like "per prompts": the second unit is one of its kind, in the singular."""
    return replace(count, value=_quotient(count, per), unit=f"{count.unit} per {per.unit}")


@mutant(of="per_unit", kills="L7.05")
def upside_down(count, per):
    """This looks like the quotient upside down: the first number is divided by the second."""
    return replace(count, value=_quotient(per, count), unit=f"{count.unit} per {COUNTED.get(per.unit, per.unit)}")


@mutant(of="per_unit", kills="L7.05")
def whole_numbers(count, per):
    """This looks like whole numbers only: 8.2 episodes per prompt is a mean."""
    return replace(count, value=int(_quotient(count, per)), unit=f"{count.unit} per {COUNTED.get(per.unit, per.unit)}")


@mutant(of="per_unit", kills="L7.05")
def any_units(count, per):
    """This looks like a quotient of anything: rates and points are no counts, and the same unit twice makes a share."""
    return replace(count, value=_quotient(count, per), unit=f"{count.unit} per {COUNTED.get(per.unit, per.unit)}")


@mutant(of="per_unit", kills="L7.05")
def conditions_forgotten(count, per):
    """This looks like a quotient without what both counts were reported with."""
    return Reported(_quotient(count, per), f"{count.unit} per {COUNTED.get(per.unit, per.unit)}")


@mutant(of="per_unit", kills="L7.05")
def against_whom_is_forgotten(count, per):
    """This looks like the conditions of one experiment without the comparator: here it has to be the same as well."""
    return replace(right_quotient(count, replace(per, comparator=count.comparator)), comparator=count.comparator)


@mutant(of="per_unit", kills="L7.05")
def per_less_than_nothing(count, per):
    """This looks like 0 alone being refused: there are no counts below 0."""
    return replace(right_quotient(count, replace(per, value=abs(per.value))), value=_quotient(count, per))


@mutant(of="per_unit", kills="L7.05")
def the_units_of_the_text(count, per):
    """This looks like the units of the text alone: COUNTED has more."""
    known = ("prompts", "comparisons", "rankings", "pairs", "episodes", "steps", "tokens", "labels")
    if count.unit not in known or per.unit not in known:
        raise ValueError("no unit that can be counted")
    return right_quotient(count, per)


# ---------------------------------------------------------------- 7.5 lore


@mutant(of="lore", kills="L7.06")
def true_and_beside_the_point():
    """This looks like facts that are true and refute nothing: labelers rank answers, whatever WebGPT's best model was."""
    return {
        **REFUTES,
        "webgpt": "f09",
        "o1": "f20",
        "constitution": "f21",
        "tampering": "f14",
        "alphaproof": "f22",
        "benchmarks": "f22",
    }


@mutant(of="lore", kills="L7.06")
def the_general_correction_everywhere():
    """This looks like one correction for everything: that gains have many causes refutes no claim about WebGPT."""
    return dict.fromkeys(REFUTES, "f01")


@mutant(of="lore", kills="L7.06")
def exchanged_within_a_laboratory():
    """This looks like two corrections of one laboratory exchanged: each fact is about one system."""
    swapped = {
        "prm800k": "rbr",
        "rbr": "prm800k",
        "rlaif": "sparrow",
        "sparrow": "rlaif",
        "tampering": "claude37",
        "claude37": "tampering",
    }
    return {claim: REFUTES[swapped.get(claim, claim)] for claim in REFUTES}


@mutant(of="lore", kills="L7.06")
def only_half_of_them():
    """This looks like claims without a fact: each of the seventeen has one."""
    return dict(list(REFUTES.items())[::2])


# ---------------------------------------------------------------- 7.6 claims_table


def _claims(**changed):
    from autograder.alternatives.level7 import every_claim_with_its_lines

    return {**every_claim_with_its_lines(), **changed}


@mutant(of="claims_table", kills="L7.01")
def disclosed_without_a_place():
    """This looks like D without the line that says it: a claim without a place can't be looked up."""
    return _claims(c01=("D", []), c06=("D", []))


@mutant(of="claims_table", kills="L7.01")
def inferences_are_disclosures():
    """This looks like D for what is computed: 8.2 stands in no line, so it is I, with both numbers as its premises."""
    return _claims(c02=("D", ["e3"]), c09=("D", ["e11"]), c12=("D", ["e1"]))


@mutant(of="claims_table", kills="L7.01")
def half_of_the_premises():
    """This looks like an inference with one of its premises: from the episodes alone no mean per prompt follows."""
    return _claims(c02=("I", ["e3"]), c09=("I", ["e10"]))


@mutant(of="claims_table", kills="L7.01")
def everything_unknown():
    """This looks like U for everything: what stands there is disclosed."""
    return {}


@mutant(of="claims_table", kills="L7.01")
def a_cause_is_inferred():
    """This looks like a guess being called an inference: that results differ between suites says nothing about why."""
    return _claims(c03=("I", ["e3", "e4"]), c08=("I", ["e9"]), c11=("I", ["e7", "e8"]))


@mutant(of="claims_table", kills="L7.01")
def another_line():
    """This looks like places that say something else: the line must say the claim."""
    return _claims(c05=("D", ["e6"]), c06=("D", ["e5"]), c07=("D", ["e8"]))


@mutant(of="claims_table", kills="L7.02")
def o1_by_ppo():
    """This looks like PPO being read out of "reinforcement learning": the excerpt names no algorithm of o1."""
    return _claims(c04=("D", ["e5"]))


@mutant(of="claims_table", kills="L7.02")
def evolution_updates_weights():
    """This looks like training being read out of an evolutionary loop: programs are selected there, and of weights nothing is said."""
    return _claims(c10=("I", ["e12"]))


@mutant(of="claims_table", kills="L7.01")
def one_row_for_all():
    """This looks like one row for all claims: what one of them needs says nothing of the others."""
    return dict.fromkeys(_claims(), ("D", ["e5"]))


@mutant(of="claims_table", kills="L7.01")
def two_rows_and_no_more():
    """This looks like a table that stops after the first rows: it holds little of what the excerpt says, so its U are no findings."""
    return {"c01": ("D", ["e2"]), "c05": ("D", ["e5"])}


# ---------------------------------------------------------------- 7.7 conflicts


@mutant(of="conflicts", kills="L7.08")
def the_first_source_wins(table):
    """This looks like the first source being chosen in silence: where two disagree, both stand."""
    return tuple(Conflict(c.field, c.about, c.claims[:1]) for c in right_conflicts(table))


@mutant(of="conflicts", kills="L7.08")
def the_last_source_wins(table):
    """This looks like the last source being chosen in silence: where two disagree, both stand."""
    return tuple(Conflict(c.field, c.about, c.claims[-1:]) for c in right_conflicts(table))


@mutant(of="conflicts", kills="L7.08")
def sees_none(table):
    """This looks like no conflict ever: 0.02 and 0.2 are two values of one coefficient."""
    return ()


@mutant(of="conflicts", kills="L7.08")
def repetition_is_conflict(table):
    """This looks like two places with the same text being called a conflict: they agree."""
    keys = dict.fromkeys((c.field, c.about) for c in table.claims if c.label == "D" and c.about)
    groups = [(key, tuple(c for c in table.claims if c.label == "D" and (c.field, c.about) == key)) for key in keys]
    return tuple(Conflict(*key, claims) for key, claims in groups if len(claims) > 1)


@mutant(of="conflicts", kills="L7.08")
def quantities_of_a_field_conflict(table):
    """This looks like two quantities of one field being called a conflict: a clip and a KL coefficient are two things."""
    found = []
    for field in dict.fromkeys(c.field for c in table.claims if c.label == "D"):
        claims = tuple(c for c in table.claims if c.label == "D" and c.field == field)
        if len({c.text for c in claims}) > 1:
            found.append(Conflict(field, claims[0].about, claims))
    return tuple(found)


@mutant(of="conflicts", kills="L7.08")
def inferences_conflict(table):
    """This looks like an inference or an unknown being set against a disclosure: only what sources say can disagree."""
    keys = dict.fromkeys((c.field, c.about) for c in table.claims if c.about)
    groups = [(key, tuple(c for c in table.claims if (c.field, c.about) == key)) for key in keys]
    return tuple(Conflict(*key, claims) for key, claims in groups if len({c.text for c in claims}) > 1)


@mutant(of="conflicts", kills="L7.08")
def one_place_never_disagrees(table):
    """This looks like a conflict being seen only between two places: one source can say two things, and both stand."""
    return tuple(c for c in right_conflicts(table) if len({claim.place for claim in c.claims}) > 1)


@mutant(of="conflicts", kills="L7.08")
def each_value_once(table):
    """This looks like one claim for each value: who agrees with whom is part of what is known, so every claim stands."""
    return tuple(
        Conflict(c.field, c.about, tuple({x.text: x for x in reversed(c.claims)}.values())[::-1]) for c in right_conflicts(table)
    )


@mutant(of="conflicts", kills="L7.08")
def claims_of_another_field(table):
    """This looks like claims of another field in a conflict: a clip of the reward is not the optimizer's."""
    return [
        Conflict(c.field, c.about, tuple(x for x in table.claims if x.label == "D" and x.about == c.about))
        for c in right_conflicts(table)
    ]


# ---------------------------------------------------------------- 7.8 test_read_number


def _examples(read_number, *texts):
    for text in texts:
        got, wanted = read_number(text), right_reading(text)
        assert abs(got.value - wanted.value) <= 1e-9 * abs(wanted.value) and replace(got, value=0) == replace(wanted, value=0)


def _refusals(read_number, *texts):
    for text in texts:
        try:
            read_number(text)
        except ValueError:
            continue
        raise AssertionError(text)


GOOD = (
    "On OSWorld, CUA reaches 38.1 % of tasks.", "The stage uses 256,000 episodes.", "The stage uses 1.5 million tokens.", "Vega-3 loses 4 points.",
    "RLAIF wins 59 % of comparisons, against SFT, with 1,000 samples, adjusted for length.", "The agent reaches 93 % of the human rate.",
    "On AIME 2024, o1 solves 93 % of problems, adjusted for length, with 1 sample.",
)  # fmt: skip
BAD = (
    "CUA reaches 38 % of tasks", "CUA reaches 38 %.", "The stage uses 1,23 prompts.", "CUA reaches 38 % of tasks, on weekdays.",
    "CUA reaches 38 % of tasks, with 1 sample, with 2 samples.", "CUA reaches 38 % of tasks, with .",
)  # fmt: skip


@mutant(of="test_read_number", kills="L7.03")
def reads_and_compares_nothing(read_number):
    """This looks like a test that calls the function and compares nothing: it accepts whatever comes."""
    for text in GOOD:
        read_number(text)


@mutant(of="test_read_number", kills="L7.03")
def believes_no_reader(read_number):
    """This looks like a test that rejects right functions too."""
    raise AssertionError("nobody can read that")


@mutant(of="test_read_number", kills="L7.03")
def answers_with_its_verdict(read_number):
    """This looks like a verdict that is returned: a test raises where something is wrong."""
    return read_number(GOOD[0]).value == 38.1


@mutant(of="test_read_number", kills="L7.03")
def the_value_alone(read_number):
    """This looks like a test of value and unit alone: the conditions are what makes a number one of something."""
    for text in GOOD:
        got, wanted = read_number(text), right_reading(text)
        assert (round(got.value, 6), got.unit) == (round(wanted.value, 6), wanted.unit)
    _refusals(read_number, *BAD)


@mutant(of="test_read_number", kills="L7.03")
def good_sentences_only(read_number):
    """This looks like sentences of the grammar alone: what lies outside must be refused, and that is not tried."""
    _examples(read_number, *GOOD)


@mutant(of="test_read_number", kills="L7.03")
def one_plain_sentence(read_number):
    """This looks like one plain sentence: commas, scales, losses and conditions are in others."""
    _examples(read_number, GOOD[0])
    _refusals(read_number, *BAD)


@mutant(of="test_read_number", kills="L7.03")
def no_shares_of_a_rate(read_number):
    """This looks like a test without a share of somebody's rate: its comparator stands in the unit."""
    _examples(read_number, *(text for text in GOOD if "rate" not in text))
    _refusals(read_number, *BAD)


@mutant(of="test_read_number", kills="L7.03")
def wants_fractions(read_number):
    """This looks like a test that expects 0.38 for 38 %: percent stay percent, and right functions fail it."""
    assert read_number("CUA reaches 38 % of tasks.").value == 0.38


@mutant(of="test_read_number", kills="L7.03")
def wants_a_word_of_the_message(read_number):
    """This looks like a test of the error's words: right functions raise ValueError and differ in what they say."""
    try:
        read_number(BAD[0])
    except ValueError as error:
        assert "text" in str(error)


@mutant(of="test_read_number", kills="L7.03")
def wants_every_digit(read_number):
    """This looks like equality of floats without a tolerance: 2.3 million differ in the last digit between right functions."""
    _examples(read_number, *GOOD)
    assert read_number("The stage uses 2.3 million tokens.").value == 2.3 * 10**6
    assert read_number("The stage uses 2.3 million tokens.").value == 2_300_000


# ---------------------------------------------------------------- 7.9 audit_report


def _reports():
    return map(full_report, map(report_id, range(COUNT)))


def _answer(wanted):
    """The right answer for the first report of a kind."""
    return answer_of(next(report.id for report in _reports() if wanted(report)))


def _place(report, start):
    return next((f"s{n}" for n, text in enumerate(report.sentences, 1) if start in text), "")


@mutant(of="audit_report", kills="L7.07")
def an_algorithm_is_guessed():
    """This looks like an optimiser being read out of "reinforcement learning"."""
    answer = _answer(lambda r: any(f.why == "optimizer_from_rl" for f in r.planted.values()))
    report = full_report(answer["report"])
    answer["table"]["optimizer"] = ("D", [_place(report, "with reinforcement learning.")])
    return answer


@mutant(of="audit_report", kills="L7.07")
def a_successor_is_a_checkpoint():
    """This looks like a checkpoint being read out of a product's line: a successor need not start from its predecessor's weights."""
    answer = _answer(lambda r: _place(r, "is the successor of"))
    answer["table"]["base_checkpoint"] = ("D", [_place(full_report(answer["report"]), "is the successor of")])
    return answer


@mutant(of="audit_report", kills="L7.07")
def days_are_compute():
    """This looks like days being taken for device-time, which needs the number of devices as well."""
    answer = _answer(lambda r: _place(r, "The main stage ran for") and not _place(r, "All the time"))
    answer["table"]["compute"] = ("I", [_place(full_report(answer["report"]), "The main stage ran for")])
    return answer


@mutant(of="audit_report", kills="L7.07")
def computed_is_disclosed():
    """This looks like D for what is computed from several sentences: it is I, with all of them."""
    answer = answer_of("R-003")
    return {**answer, "table": {f: ("D", row[1]) if row[0] == "I" else row for f, row in answer["table"].items()}}


@mutant(of="audit_report", kills="L7.07")
def one_premise_is_missing():
    """This looks like an inference that leaves out one of the sentences it rests on."""
    answer = answer_of("R-003")
    return {**answer, "table": {f: ("I", row[1][:1]) if row[0] == "I" else row for f, row in answer["table"].items()}}


@mutant(of="audit_report", kills="L7.07")
def the_newsletter_is_believed():
    """This looks like every line of the newsletter being believed: some of them claim more than the report says."""
    return {**answer_of("R-003"), "over_claims": {}}


@mutant(of="audit_report", kills="L7.07")
def every_line_is_accused():
    """This looks like every line being called an over-claim: some say what the report says."""
    answer = answer_of("R-003")
    return {**answer, "over_claims": {f"h{n}": answer["over_claims"].get(f"h{n}", "not_said") for n in range(1, 7)}}


@mutant(of="audit_report", kills="L7.07")
def one_reason_for_all():
    """This looks like one reason for every over-claim: each adds something of its own."""
    answer = answer_of("R-003")
    return {**answer, "over_claims": dict.fromkeys(answer["over_claims"], "not_said")}


@mutant(of="audit_report", kills="L7.07")
def gaps_are_not_listed():
    """This looks like an empty list of unknowns: what a report doesn't say is a finding."""
    answer = answer_of("R-003")
    return {**answer, "table": {**answer["table"], "unknowns": []}}


@mutant(of="audit_report", kills="L7.07")
def nothing_was_read():
    """This looks like a table in which everything is unknown: some rows are answered in so many words."""
    answer = answer_of("R-003")
    return {**answer, "table": {"unknowns": answer["table"]["unknowns"]}}


@mutant(of="audit_report", kills="L7.07")
def another_report():
    """This looks like the table of another report than the one whose id stands there."""
    return {**answer_of("R-004"), "report": "R-003"}


@mutant(of="audit_report", kills="L7.07")
def no_report_of_the_class():
    """This looks like an id that no report of the class has."""
    return {**answer_of("R-003"), "report": "R-3"}


@mutant(of="audit_report", kills="L7.07")
def a_number_without_budget():
    """This looks like a result without its budget being taken for an answer: it may be of one sample, or of a thousand."""
    answer = _answer(lambda r: r.truth.label("evaluation") == "U" and r.truth.label("optimizer") == "D")
    answer["table"]["evaluation"] = ("D", [_place(full_report(answer["report"]), "% of tasks")])
    return answer


@mutant(of="audit_report", kills="L7.07")
def two_are_enough():
    """This looks like fewer over-claims than every newsletter has: there are three or four."""
    answer = answer_of("R-003")
    return {**answer, "over_claims": dict(list(answer["over_claims"].items())[:2])}


@mutant(of="audit_report", kills="L7.07")
def a_quotation_is_accused():
    """This looks like a line being accused that stands in the announcement word for word."""
    report, answer = full_report("R-003"), answer_of("R-003")
    line = next(n for n, text in enumerate(report.lines, 1) if text in report.sentences)
    return {**answer, "over_claims": {**dict(list(answer["over_claims"].items())[:3]), f"h{line}": "not_said"}}


@mutant(of="audit_report", kills="L7.07")
def praise_for_a_number():
    """This looks like a sentence of praise being cited where the question asks how many: what has no number answers none."""
    answer = _answer(lambda r: _place(r, "has practised for longer"))
    answer["table"]["rollouts"] = ("D", [_place(full_report(answer["report"]), "has practised for longer")])
    answer["table"]["unknowns"] = [field for field in answer["table"]["unknowns"] if field != "rollouts"]
    return answer


@mutant(of="audit_report", kills="L7.07")
def form_and_nothing_else():
    """This looks like an answer in form alone: rows and lines that nobody read."""
    report = full_report("R-017")
    accused = [f"h{n}" for n, text in enumerate(report.lines, 1) if text not in report.sentences][:4]
    row = {"environment": ("D", [next(f"s{n}" for n, text in enumerate(report.sentences, 1) if text.startswith("On "))])}
    unknowns = [field for field in report.rows if field not in row]
    return {"report": report.id, "table": {**row, "unknowns": unknowns}, "over_claims": dict.fromkeys(accused, "not_said")}


@mutant(of="audit_report", kills="L7.07")
def whatever_is_no_quotation():
    """This looks like every line being accused that doesn't stand there word for word, for one reason: what follows is no over-claim."""
    answer, report = answer_of("R-017"), full_report("R-017")
    lines = [f"h{n}" for n, text in enumerate(report.lines, 1) if text not in report.sentences]
    return {**answer, "over_claims": dict.fromkeys(lines[:4], "other_model")}


# ---------------------------------------------------------------- 7.10 audit_run


@mutant(of="audit_run", kills="L7.07")
def all_is_met():
    """This looks like "met" for everything: some of it is recorded nowhere."""
    answer = audited(example_run())
    places = {field: ("met", place if "." in place else f"declaration.{field}") for field, (_, place) in answer["items"].items()}
    return {**answer, "items": places}


@mutant(of="audit_run", kills="L7.07")
def the_courses_example():
    """This looks like the course's recorded example: it is read rightly here, and it is not your run."""
    return audited(example_run())


@mutant(of="audit_run", kills="L7.07")
def the_beginning_of_the_example():
    """This looks like the first rounds of the course's recorded example: they are no run of your own either."""
    ledger, declaration = read_export(example_run())
    return audited(export(ledger[:2], declaration))


@mutant(of="audit_run", kills="L7.07")
def a_broken_chain():
    """This looks like a ledger in which something was changed afterwards: its chain is broken."""
    text = export(a_run(), DECLARED)
    data = json.loads(text)
    data["entries"][1]["round"]["cost"]["episodes"] = 1
    return {**audited(text), "export": json.dumps(data)}


@mutant(of="audit_run", kills="L7.07")
def without_the_items():
    """This looks like an export without an audit: each of the fourteen items needs a verdict."""
    return {**audited(export(a_run(), DECLARED)), "items": {}}


@mutant(of="audit_run", kills="L7.07")
def a_single_run():
    """This looks like one seed being called a spread: at least two runs are needed."""
    answer = audited(export(a_run(), {**DECLARED, "runs": {"seeds": [0], "interval": [0.6, 0.6]}}))
    return {**answer, "items": {**answer["items"], "seeds": ("met", "declaration.runs")}}


@mutant(of="audit_run", kills="L7.07")
def statuses_of_its_own():
    """This looks like a status that is none of the three: met, missing, not applicable."""
    answer = audited(example_run())
    items = {
        name: ("absent", place) if status == "missing" else (status, place) for name, (status, place) in answer["items"].items()
    }
    return {**answer, "items": items}


@mutant(of="audit_run", kills="L7.07")
def what_is_not_enough_comes_first():
    """This looks like one seed being named before an interval that is not there at all: what is absent comes first."""
    answer = audited(export(a_run(), {**DECLARED, "runs": {"seeds": [0]}}))
    return {**answer, "items": {**answer["items"], "seeds": ("missing", "declaration.runs.seeds")}}


@mutant(of="audit_run", kills="L7.07")
def the_example_chained_anew():
    """This looks like the course's recorded example, cut and chained anew: its records are the example's all the same."""
    ledger, declaration = read_export(example_run())
    mine = ()
    for index, entry in enumerate(ledger[1:]):
        mine = append_round(mine, replace(entry.round, index=index, task="my shelves"))
    return audited(export(mine, {**DECLARED, "demonstrations": declaration["demonstrations"]}))


@mutant(of="audit_run", kills="L7.07")
def places_that_nothing_has():
    """This looks like places that no ledger has: a part is one of those that are printed, and no index."""
    answer = audited(export(a_run(), DECLARED))
    items = {name: (status, f"{place}.0" if status == "met" else place) for name, (status, place) in answer["items"].items()}
    return {**answer, "items": {**answer["items"], "counts": items["counts"], "optimizer": items["optimizer"]}}


@mutant(of="audit_run", kills="L7.07")
def one_verdict_for_all():
    """This looks like one verdict for all items: each is recorded somewhere else, or nowhere."""
    return {**audited(example_run()), "items": dict.fromkeys(CHECKLIST, ("met", "declaration.source"))}


@mutant(of="audit_run", kills="L7.07")
def seeds_in_a_text():
    """This looks like seeds as one text, and a spread in words: two seeds make a list, and an interval has two ends."""
    answer = audited(export(a_run(), {**DECLARED, "runs": {"seeds": "0, 1", "interval": "narrow"}}))
    return {**answer, "items": {**answer["items"], "seeds": ("met", "declaration.runs")}}
