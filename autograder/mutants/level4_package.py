"""Level 4: mistakes in the package's own functions. Each docstring says what went wrong."""

import json
import os
import random
import time
from dataclasses import dataclass, replace

import torch

from autograder.framework import mutant
from course.credit import hierarchy
from course.credit.returns import discounted_returns
from course.credit.turns import action_sums
from course.envs import code_task, contracts, three_tools as tools
from course.feedback import verifiers
from course.language.stamp import digest
from course.rollout import episodes as rollout
from course.rollout.record import Record, Step, text_hash
from course.tasks import pools as split
from course.training import agents

# ---------------------------------------------------------------- L4.06: what an episode may not depend on


def _runs(world, change, names=("look",)):
    """The world with run(inner, arguments) of these tools followed by change(result, inner, arguments)."""

    def changed(tool):
        return replace(tool, run=lambda inner, arguments: change(tool.run(inner, arguments), inner, arguments))

    return replace(world, tools={name: changed(tool) if name in names else tool for name, tool in world.tools.items()})


@mutant(of="three_tools", kills="L4.06")
def fails_at_random(*, flaky=0.0, **options):
    """This looks like a tool that fails by the process's random numbers: nobody can play the episode again."""

    def change(result, inner, arguments):
        return replace(result, observation="error") if random.random() < flaky else result

    return _runs(tools.three_tools(**options), change)


@mutant(of="three_tools", kills="L4.06")
def tells_the_time(**options):
    """This looks like a wall-clock time among the results: it is recorded beside them, and excluded from what is compared."""
    change = lambda result, inner, arguments: replace(result, facts={**result.facts, "at": time.time()})  # noqa: E731
    return _runs(tools.three_tools(**options), change)


@mutant(of="three_tools", kills="L4.06")
def remembers_earlier_episodes(**options):
    """This looks like a cache that outlives the episode: a look costs nothing if the same was looked up before, in any episode."""
    known = set()

    def change(result, inner, arguments):
        seen = (id(inner.shelf), arguments["key"])
        again = seen in known
        known.add(seen)
        return replace(result, cost=replace(result.cost, price=0)) if again else result

    return _runs(tools.three_tools(**options), change)


@mutant(of="three_tools", kills="L4.06")
def shelf_in_the_order_of_a_set(**options):
    """This looks like values dealt out in the order of a set: texts hash differently in every process."""
    order = list(set(tools.KEYS))

    def change(result, inner, arguments):
        if result.observation == "error":
            return result
        value = inner.shelf[order[tools.KEYS.index(arguments["key"])]]
        return replace(result, observation=str(value), facts={**result.facts, "value": value})

    return _runs(tools.three_tools(**options), change)


@mutant(of="three_tools", kills="L4.06")
def fails_in_the_same_places(*, flaky=0.0, **options):
    """This looks like failures that do not depend on the episode's seed: every episode of a task fails in the same places."""
    world = tools.three_tools(flaky=flaky, **options)

    def start(task, seed):
        return world.start(task, 0)

    return replace(world, start=start)


@mutant(of="three_tools", kills="L4.06")
def reads_the_machine(**options):
    """This looks like a cost that depends on the process it is measured in: logical costs are counted, not measured."""

    def change(result, inner, arguments):
        return replace(result, cost=replace(result.cost, price=0)) if os.environ.get("COURSE_ELSEWHERE") else result

    return _runs(tools.three_tools(**options), change)


# ---------------------------------------------------------------- L4.08: what shows the hidden tests


@dataclass(frozen=True)
class _Knowing(tools.Inner):
    answer: int = 0


def _knowing(**options):
    """A world whose tools know the expected answer."""
    world = tools.three_tools(**options)

    def start(task, seed):
        inner, seen = world.start(task, seed)
        return _Knowing(inner.shelf, inner.price, inner.seed, answer=task.hidden["tests"][0]["equals"]), seen

    return replace(world, start=start)


@mutant(of="three_tools", kills="L4.08")
def prompt_with_the_answer(**options):
    """This looks like a first observation that is made of the whole task, hidden part included."""
    world = tools.three_tools(**options)
    return replace(world, start=lambda task, seed: (world.start(task, seed)[0], f"price {task.hidden['tests'][0]['equals']}"))


@mutant(of="three_tools", kills="L4.08")
def submit_says_what_was_expected(**options):
    """This looks like an error text that quotes the failed test: the next episode of the task can copy it."""

    def change(result, inner, arguments):
        right = arguments["answer"] == inner.answer
        return result if right else replace(result, observation=f"error {tools.spaced(inner.answer)}")

    return _runs(_knowing(**options), change, ("submit",))


@mutant(of="three_tools", kills="L4.08")
def wrong_answers_go_on(**options):
    """This looks like a submission that ends the episode only if it is right: then guessing until it ends solves every task."""
    change = lambda result, inner, arguments: replace(result, ends=arguments["answer"] == inner.answer)  # noqa: E731
    return _runs(_knowing(**options), change, ("submit",))


@mutant(of="three_tools", kills="L4.08")
def slower_where_it_fails(**options):
    """This looks like tests that run while the policy waits: how long a submission takes tells whether it was right."""

    def change(result, inner, arguments):
        if arguments["answer"] != inner.answer:
            time.sleep(0.02)
        return result

    return _runs(_knowing(**options), change, ("submit",))


@mutant(of="three_tools", kills="L4.08")
def cheaper_where_it_is_near(**options):
    """This looks like a cost that depends on the hidden tests: the budget that is left is seen, and tells."""

    def change(result, inner, arguments):
        return replace(result, cost=replace(result.cost, price=0)) if inner.answer < 100 else result

    return _runs(_knowing(**{**options, "prices": {"look": 1}}), change)


@mutant(of="three_tools", kills="L4.08")
def status_of_the_task(**options):
    """This looks like a status line made of the whole task: it stands behind every observation."""
    return replace(tools.three_tools(**options), status=lambda state: tools.spaced(state.task.hidden["tests"][0]["equals"]))


def _answer(task):
    return task.hidden["tests"][0]["equals"]


def _each(found, change):
    return replace(found, records=tuple(change(i, record) for i, record in enumerate(found.records)))


def _steps(record, change):
    return replace(record, steps=tuple(change(step) for step in record.steps))


@mutant(of="collect_episodes", kills="L4.08")
def reason_with_the_test(policy, world, tasks, **given):
    """This looks like a reason in the record that quotes the hidden test."""

    def change(i, record):
        return _steps(record, lambda step: replace(step, reason=f"{step.reason} expected {_answer(tasks[i])}".strip()))

    return _each(rollout.collect_episodes(policy, world, tasks, **given), change)


@mutant(of="collect_episodes", kills="L4.08")
def answers_in_the_observations(policy, world, tasks, *, step, **given):
    """This looks like feedback after a failed action that contains the answer: the policy reads it in its next turn."""

    def telling(state, text):
        t = step(state, text)
        return t if t.outcome == "executed" else replace(t, observation=f"{t.observation} {tools.spaced(_answer(state.task))}")

    return rollout.collect_episodes(policy, world, tasks, step=telling, **given)


@mutant(of="collect_episodes", kills="L4.08")
def timing_with_the_test(policy, world, tasks, **given):
    """This looks like a timing field that carries the answer: wherever it is shown, the test is shown."""

    def change(i, record):
        return _steps(record, lambda step: replace(step, latency_ms=float(_answer(tasks[i]))))

    return _each(rollout.collect_episodes(policy, world, tasks, **given), change)


@mutant(of="collect_episodes", kills="L4.08")
def arguments_with_the_test(policy, world, tasks, **given):
    """This looks like a submission that is recorded beside what was expected of it."""

    def with_test(step, answer):
        return replace(step, arguments={**step.arguments, "equals": answer}) if step.tool == "submit" and step.arguments else step

    def change(i, record):
        return _steps(record, lambda step: with_test(step, _answer(tasks[i])))

    return _each(rollout.collect_episodes(policy, world, tasks, **given), change)


def _with_all_tests(world):
    """A coding world whose drafts hold the hidden cases beside the visible ones."""

    def start(task, seed):
        draft, seen = world.start(task, seed)
        cases = [*draft.tests["cases"], *task.hidden["tests"]["cases"]]
        return replace(draft, tests={**draft.tests, "cases": cases}), seen

    return replace(world, start=start)


@mutant(of="code_world", kills="L4.08")
def tests_run_early(sandbox, **options):
    """This looks like hidden tests that run with the visible ones: what a test run says is then about them, too."""
    return _with_all_tests(code_task.code_world(sandbox, **options))


@dataclass(frozen=True)
class _Annotated(code_task.Draft):
    note: str = ""

    @property
    def program(self):
        return f"{super().program.rstrip()}  # {self.note}\n"


@mutant(of="code_world", kills="L4.08")
def program_with_its_tests(sandbox, **options):
    """This looks like a program that is sent out together with the hidden tests: it can read its own file."""
    world = code_task.code_world(sandbox, **options)
    return replace(
        world, start=lambda task, seed: (_Annotated(task.hidden["visible"], note=str(task.hidden["tests"]["cases"])), "")
    )


@mutant(of="code_world", kills="L4.08")
def says_how_many_are_hidden(sandbox, **options):
    """This looks like a first observation that lists the hidden arguments: the policy can answer those alone."""
    world = code_task.code_world(sandbox, **options)
    return replace(
        world, start=lambda task, seed: (world.start(task, seed)[0], str([a for a, _ in task.hidden["tests"]["cases"]]))
    )


# ---------------------------------------------------------------- L4.07: what a record lacks


def _versions(name, value):
    def collect(policy, world, tasks, **given):
        found = rollout.collect_episodes(policy, world, tasks, **given)
        return _each(found, lambda i, r: replace(r, versions=replace(r.versions, **{name: value(policy, world)})))

    return collect


@mutant(of="collect_episodes", kills="L4.07")
def stamp_without_the_temperature(policy, world, tasks, **given):
    """This looks like a policy stamp that forgets how it was sampled: at another temperature it is another law."""
    return _versions("policy", lambda p, w: p.stamp(1.0))(policy, world, tasks, **given)


@mutant(of="collect_episodes", kills="L4.07")
def version_by_hand(policy, world, tasks, **given):
    """This looks like an environment version that somebody counts by hand: a changed price or corpus keeps it."""
    return _versions("environment", lambda p, w: f"{w.name}@1")(policy, world, tasks, **given)


@mutant(of="collect_episodes", kills="L4.07")
def tokenizer_by_name(policy, world, tasks, **given):
    """This looks like a tokenizer's name in place of its digest: two vocabularies of one name give other tokens."""
    return _versions("tokenizer", lambda p, w: "words")(policy, world, tasks, **given)


@mutant(of="collect_episodes", kills="L4.07")
def digest_of_the_public_part(policy, world, tasks, **given):
    """This looks like a digest of what the policy is told: a task with other hidden tests passes for the same."""
    found = rollout.collect_episodes(policy, world, tasks, **given)
    return _each(found, lambda i, record: replace(record, task_digest=digest(dict(record.task))))


@mutant(of="collect_episodes", kills="L4.07")
def invalid_actions_pass_for_refused(policy, world, tasks, **given):
    """This looks like a record in which every action can be read: validity is lost, and with it what the policy is bad at."""

    def change(step):
        return replace(step, outcome="refused", arguments={}) if step.outcome == "malformed" else step

    found = rollout.collect_episodes(policy, world, tasks, **given)
    return _each(found, lambda i, record: _steps(record, change))


@mutant(of="collect_episodes", kills="L4.07")
def latency_not_measured(policy, world, tasks, **given):
    """This looks like a latency field that nobody fills."""
    found = rollout.collect_episodes(policy, world, tasks, **given)
    return _each(found, lambda i, record: _steps(record, lambda step: replace(step, latency_ms=0.0)))


@mutant(of="collect_episodes", kills="L4.07")
def invalid_actions_cost_nothing(policy, world, tasks, **given):
    """This looks like costs of executed actions only: the others have been paid for as well."""

    def change(step):
        return step if step.outcome == "executed" else replace(step, cost={name: 0 for name in step.cost})

    found = rollout.collect_episodes(policy, world, tasks, **given)
    return _each(found, lambda i, record: _steps(record, change))


@mutant(of="collect_episodes", kills="L4.07")
def result_is_the_observation(policy, world, tasks, **given):
    """This looks like one hash for two things: what the policy saw and what the tool gave the grader are not the same."""

    def change(step):
        return replace(step, result_hash=text_hash(step.observation)) if step.outcome == "executed" else step

    found = rollout.collect_episodes(policy, world, tasks, **given)
    return _each(found, lambda i, record: _steps(record, change))


@mutant(of="collect_episodes", kills="L4.07")
def everything_ended_well(policy, world, tasks, **given):
    """This looks like episodes that all came to their end: one that was cut off has another terminal state."""
    found = rollout.collect_episodes(policy, world, tasks, **given)
    return _each(found, lambda i, record: replace(record, ending="terminated"))


@mutant(of="collect_episodes", kills="L4.07")
def logprobs_one_place_late(policy, world, tasks, **given):
    """This looks like log-probabilities that stand one token too late."""
    found = rollout.collect_episodes(policy, world, tasks, **given)
    return _each(found, lambda i, record: replace(record, logprobs=(0.0, *record.logprobs[:-1])))


class _Hasty(Record):
    @property
    def content_hash(self):
        return digest(self.to_json())


class _Lenient(Record):
    @classmethod
    def from_json(cls, data):
        known = {name: value for name, value in data.items() if name in Record.__dataclass_fields__}
        return super().from_json({**known, "schema": 1})


def _as(kind, record):
    return kind(**{name: getattr(record, name) for name in Record.__dataclass_fields__})


@mutant(of="collect_episodes", kills="L4.07")
def hash_with_the_latency(policy, world, tasks, **given):
    """This looks like a content hash over wall-clock times: the same episode never has the same hash again."""
    return _each(rollout.collect_episodes(policy, world, tasks, **given), lambda i, record: _as(_Hasty, record))


@mutant(of="collect_episodes", kills="L4.07")
def reads_any_schema(policy, world, tasks, **given):
    """This looks like a reader that takes what it knows and drops the rest: another schema is read as if it were this one."""
    return _each(rollout.collect_episodes(policy, world, tasks, **given), lambda i, record: _as(_Lenient, record))


# ---------------------------------------------------------------- L4.13: two levels of control


@mutant(of="semi_markov_advantages", kills="L4.13")
def one_discount_for_any_length(rewards, values, lengths, mask, **rates):
    """This looks like gamma once between two choices: a sub-trajectory of n steps is discounted by gamma to the n."""
    return hierarchy.semi_markov_advantages(rewards, values, torch.ones_like(lengths), mask, **rates)


@mutant(of="semi_markov_advantages", kills="L4.13")
def length_of_the_next_choice(rewards, values, lengths, mask, **rates):
    """This looks like the length of the next choice in the discount: what lies between two choices is the first one's."""
    return hierarchy.semi_markov_advantages(rewards, values, lengths.roll(-1, 1), mask, **rates)


@mutant(of="semi_markov_advantages", kills="L4.13")
def skipped_places_take_time(rewards, values, lengths, mask, **rates):
    """This looks like time that passes where nothing was chosen: padding has no length."""
    filled = torch.where(mask, rewards, 0.0)
    longer = lengths.clone()
    for k in range(lengths.shape[1] - 1):
        longer[:, k] += torch.where(mask[:, k + 1], 0.0, lengths[:, k + 1])
    return hierarchy.semi_markov_advantages(filled, values, longer, mask, **rates)


@mutant(of="semi_markov_advantages", kills="L4.13")
def lambda_fades_by_steps(rewards, values, lengths, mask, *, gamma, gae_lambda):
    """This looks like lambda to the power of the length: lambda fades by choices, the discount alone by steps."""
    advantages = torch.zeros_like(values)
    for b in range(len(values)):
        carry, after = 0.0, 0.0
        for k in reversed(mask[b].nonzero()[:, 0].tolist()):
            rate = gamma ** lengths[b, k]
            carry = rewards[b, k] + rate * after - values[b, k] + rate * gae_lambda ** lengths[b, k] * carry
            advantages[b, k], after = carry, values[b, k]
    return advantages, torch.where(mask, advantages + values, 0.0)


def _levels(high, low, turn, chooses, lengths, gamma, own):
    """two_level_returns with other lengths of the choices and other returns of the low level."""
    returns = hierarchy.semi_markov_returns(high, lengths, lengths > 0, gamma=gamma)
    low = torch.where(turn >= 0, own, 0.0)
    return torch.where((chooses > 0) & (turn >= 0), returns.gather(1, turn.clamp(min=0)), low)


@mutant(of="two_level_returns", kills="L4.13")
def low_returns_run_on(high_rewards, low_rewards, turn, chooses, *, gamma):
    """This looks like arguments that are paid for later actions: a low return stops where its own action does."""
    low = torch.where(turn >= 0, low_rewards, 0.0)
    lengths = action_sums(torch.ones_like(low), turn, high_rewards.shape[1])
    return _levels(high_rewards, low, turn, chooses, lengths, gamma, discounted_returns(low, gamma, turn >= 0))


@mutant(of="two_level_returns", kills="L4.13")
def everybody_gets_the_high_return(high_rewards, low_rewards, turn, chooses, *, gamma):
    """This looks like one reward for both levels: the arguments have their own."""
    return hierarchy.two_level_returns(high_rewards, low_rewards, turn, torch.ones_like(chooses), gamma=gamma)


@mutant(of="two_level_returns", kills="L4.13")
def choices_without_duration(high_rewards, low_rewards, turn, chooses, *, gamma):
    """This looks like a high level that is discounted once per action, however many tokens the action has."""
    right = hierarchy.two_level_returns(high_rewards, low_rewards, turn, chooses, gamma=gamma)
    ones = torch.ones_like(high_rewards)
    return _levels(high_rewards, low_rewards, turn, chooses, ones, gamma, right)


@mutant(of="two_level_returns", kills="L4.13")
def rewards_added_up(high_rewards, low_rewards, turn, chooses, *, gamma):
    """This looks like low rewards that are added to the choice's: then a wrong choice with a well-formed call looks good."""
    right = hierarchy.two_level_returns(high_rewards, low_rewards, turn, chooses, gamma=gamma)
    low = hierarchy.two_level_returns(high_rewards, low_rewards, turn, torch.zeros_like(chooses), gamma=gamma)
    return torch.where(chooses > 0, right + low, right)


# ---------------------------------------------------------------- L4.15: differences that are not listed


@mutant(of="contract_differences", kills="L4.15")
def first_difference_only(training, evaluation):
    """This looks like a comparison that stops at the first difference: any of them is to be listed."""
    return contracts.contract_differences(training, evaluation)[:1]


@mutant(of="contract_differences", kills="L4.15")
def fields_of_training_only(training, evaluation):
    """This looks like a loop over training's fields: a file that is visible in evaluation alone is the worst difference."""
    found = contracts.contract_differences(training, evaluation)
    return [difference for difference in found if difference.training != contracts.ABSENT]


@mutant(of="contract_differences", kills="L4.15")
def names_and_not_contents(training, evaluation):
    """This looks like a comparison of names: a visible file may bear its name and hold something else."""
    found = contracts.contract_differences(training, evaluation)
    return [d for d in found if not d.field.startswith("visible_files.") or contracts.ABSENT in (d.training, d.evaluation)]


@mutant(of="contract_differences", kills="L4.15")
def hidden_is_nobodys_business(training, evaluation):
    """This looks like a comparison without hidden information: what is hidden in training and shown in evaluation changes the task."""
    return [d for d in contracts.contract_differences(training, evaluation) if not d.field.startswith("hidden")]


@mutant(of="contract_differences", kills="L4.15")
def missing_is_equal(training, evaluation):
    """This looks like fields that neither side states and that pass for equal: what is not stated can't be compared."""
    blank = {name: {} for name in contracts.REQUIRED}
    return contracts.contract_differences({**blank, **training}, {**blank, **evaluation})


@mutant(of="contract_differences", kills="L4.15")
def only_what_the_environment_is(training, evaluation):
    """This looks like a comparison of the environment's version: observations, files and graders are outside it."""
    found = contracts.contract_differences(training, evaluation)
    return [d for d in found if not d.field.startswith(("observations", "visible_files", "versions.grader"))]


@mutant(of="contract_differences", kills="L4.15")
def sides_exchanged(training, evaluation):
    """This looks like training and evaluation exchanged."""
    return contracts.contract_differences(evaluation, training)


# ---------------------------------------------------------------- L4.16: splits that leak


def _cut(tasks, fractions, left_out=()):
    ends = [0, *(round(sum(fractions[: i + 1]) * len(tasks)) for i in range(4))]
    return split.Pools(*(tuple(tasks[a:b]) for a, b in zip(ends, ends[1:])), tuple(left_out))


@mutant(of="pools", kills="L4.16")
def random_rows(tasks, fractions=(0.4, 0.3, 0.1, 0.2), seed=0):
    """This looks like a split of single tasks: each family ends up in every pool."""
    return split.random_row_split(tasks, fractions, seed)


@mutant(of="pools", kills="L4.16")
def families_in_any_order(tasks, fractions=(0.4, 0.3, 0.1, 0.2), seed=0):
    """This looks like whole families dealt out at random: training then knows what came after the evaluation."""
    families = sorted({task.family for task in tasks})
    random.Random(seed).shuffle(families)
    return _cut(sorted(tasks, key=lambda task: families.index(task.family)), fractions)


@mutant(of="pools", kills="L4.16")
def quantiles_of_time(tasks, fractions=(0.4, 0.3, 0.1, 0.2), seed=0):
    """This looks like a cut in time that goes through families: those at a boundary are in two pools."""
    return _cut(sorted(tasks, key=lambda task: task.created), fractions)


@mutant(of="pools", kills="L4.16")
def families_by_their_first_task(tasks, fractions=(0.4, 0.3, 0.1, 0.2), seed=0):
    """This looks like families placed by their first task: their later ones reach into the time of the next pool."""
    made = split.pools(tasks, fractions, seed)
    starts = {}
    for task in tasks:
        starts[task.family] = min(starts.get(task.family, task.created), task.created)
    parts = [list(part) for _, part in made]
    begins = [min(task.created for task in part) for part in parts]
    for task in made.left_out:
        parts[max(i for i in range(4) if i == 0 or starts[task.family] >= begins[i])].append(task)
    return split.Pools(*map(tuple, parts))


@mutant(of="pools", kills="L4.16")
def left_out_in_silence(tasks, fractions=(0.4, 0.3, 0.1, 0.2), seed=0):
    """This looks like tasks that are left out and not reported: nobody knows what law is left."""
    return replace(split.pools(tasks, fractions, seed), left_out=())


@mutant(of="pools", kills="L4.16")
def sealed_first(tasks, fractions=(0.4, 0.3, 0.1, 0.2), seed=0):
    """This looks like the order of time reversed: the sealed pool must hold what came last."""
    mirrored = split.pools([replace(task, created=-task.created) for task in tasks], fractions, seed)
    known = {task.id: task for task in tasks}
    parts = (part for _, part in mirrored)
    return split.Pools(*(tuple(known[t.id] for t in part) for part in parts), tuple(known[t.id] for t in mirrored.left_out))


@mutant(of="leaks", kills="L4.16")
def neighbours_only(parts):
    """This looks like a comparison of each pool with the next one: bootstrap and sealed can share a family as well."""
    order = [name for name, _ in parts]
    return [x for x in split.leaks(parts) if order.index(x.later) - order.index(x.earlier) == 1]


@mutant(of="leaks", kills="L4.16")
def families_and_no_time(parts):
    """This looks like a test for shared families alone: the order in time can leak, too."""
    return [x for x in split.leaks(parts) if x.kind == "family"]


@mutant(of="leaks", kills="L4.16")
def same_task_only(parts):
    """This looks like a search for the same task in two pools: a task of the same family tells as much."""
    found, named = [], list(parts)
    for i, (earlier, before) in enumerate(named):
        for later, after in named[i + 1 :]:
            shared = {task.id for task in before} & {task.id for task in after}
            found += [split.Leak("family", earlier, later, name) for name in sorted(shared)]
    return found + [x for x in split.leaks(parts) if x.kind == "time"]


@mutant(of="leaks", kills="L4.16")
def one_family_is_enough(parts):
    """This looks like one shared family named for each pair of pools: all are to be listed."""
    found = {}
    for x in split.leaks(parts):
        found.setdefault((x.kind, x.earlier, x.later), x)
    return list(found.values())


# ---------------------------------------------------------------- L4.17: success by hearsay


def _facts(results):
    facts = [vars(r) if isinstance(r, Step) else r for r in getattr(results, "steps", results)]
    return [f for f in facts if f.get("outcome", "executed") == "executed"]


@mutant(of="success_from_evidence", kills="L4.17")
def any_run_that_passed(results, *, tool="test"):
    """This looks like success as soon as one test run has passed: the last one decides."""
    return any(verifiers.success_from_evidence([fact], tool=tool) for fact in _facts(results))


@mutant(of="success_from_evidence", kills="L4.17")
def first_run_decides(results, *, tool="test"):
    """This looks like the first test run's word: the second edit was made because it failed."""
    return verifiers.success_from_evidence([f for f in _facts(results) if f.get("tool") == tool][:1], tool=tool)


@mutant(of="success_from_evidence", kills="L4.17")
def believes_the_claim(results, *, tool="test"):
    """This looks like success read from the last text, whoever wrote it: the policy can say what it likes."""
    facts = _facts(results)
    if facts and "exit status 0" in str(facts[-1].get("text", "")) + str(facts[-1].get("observation", "")):
        return True
    return verifiers.success_from_evidence(results, tool=tool)


@mutant(of="success_from_evidence", kills="L4.17")
def exit_status_is_enough(results, *, tool="test"):
    """This looks like exit status 0 without a test that passed: a program that ends early leaves it as well."""
    facts = [{**f, "passed": 1} if f.get("tool") == tool and "exit_status" in f else f for f in _facts(results)]
    return verifiers.success_from_evidence(facts, tool=tool)


@mutant(of="success_from_evidence", kills="L4.17")
def edits_after_the_test(results, *, tool="test"):
    """This looks like a test result that outlives an edit: it is about a program that is no longer there."""
    return verifiers.success_from_evidence([f for f in _facts(results) if f.get("tool") != "edit"], tool=tool)


@mutant(of="success_from_evidence", kills="L4.17")
def runs_that_did_not_happen(results, *, tool="test"):
    """This looks like a refused test run that is read as a result: nothing was run."""
    facts = [vars(r) if isinstance(r, Step) else r for r in getattr(results, "steps", results)]
    return verifiers.success_from_evidence([{k: v for k, v in f.items() if k != "outcome"} for f in facts], tool=tool)


# ---------------------------------------------------------------- L4.18: reports that hide a collapse


@mutant(of="action_report", kills="L4.18")
def one_mean_for_all(episodes, reference=None):
    """This looks like the mean validity in every row: a tool that broke and is rarely called does not show in it."""
    rows = agents.action_report(episodes, reference)
    mean = sum(row.valid * row.calls for row in rows.values()) / sum(row.calls for row in rows.values())
    return {tool: replace(row, valid=mean) for tool, row in rows.items()}


@mutant(of="action_report", kills="L4.18")
def well_formed_calls_only(episodes, reference=None):
    """This looks like a report over calls that could be read: then every tool is always valid."""
    rows = agents.action_report(episodes, reference)
    return {tool: replace(row, calls=round(row.calls * row.valid), valid=1.0) for tool, row in rows.items() if row.valid}


@mutant(of="action_report", kills="L4.18")
def executed_is_valid(episodes, reference=None):
    """This looks like executed counted as valid: what was refused for its price could be read."""
    rows = agents.action_report(episodes, reference)
    return {tool: replace(row, executed=row.valid, valid=row.executed / 2) for tool, row in rows.items()}


@mutant(of="action_report", kills="L4.18")
def malformed_belong_to_nobody(episodes, reference=None):
    """This looks like malformed calls gathered in one row: the tool that broke looks as good as before, and is only called less."""
    steps = [step for record in episodes.records for step in record.steps]
    made = {}
    for step in steps:
        made.setdefault(step.tool if step.outcome != "malformed" else "unreadable", []).append((step, None))
    return {tool: agents._row(rows) for tool, rows in made.items()}


@mutant(of="action_report", kills="L4.18")
def share_of_all_actions(episodes, reference=None):
    """This looks like valid calls of a tool over all actions: a tool that is rarely called looks broken."""
    rows = agents.action_report(episodes, reference)
    total = sum(row.calls for row in rows.values())
    return {tool: replace(row, valid=row.valid * row.calls / total) for tool, row in rows.items()}


@mutant(of="inject_errors", kills="L4.18")
def faults_by_the_clock(texts, rate, seed):
    """This looks like faults that depend on no seed: validity before and after a change is then not comparable."""
    return agents.inject_errors(texts, rate, random.randrange(10**9))


@mutant(of="inject_errors", kills="L4.18")
def first_texts_only(texts, rate, seed):
    """This looks like faults in the first texts alone: the share is right and the tools are not hit alike."""
    count = round(rate * len(texts))
    return [*agents.inject_errors(texts[:count], 1.0, seed), *texts[count:]]


@mutant(of="inject_errors", kills="L4.18")
def rate_for_each_word(texts, rate, seed):
    """This looks like a rate for each word in place of each text: long calls are damaged more often."""
    found = []
    for i, text in enumerate(texts):
        draw = random.Random(f"word {seed} {i}")
        found.append(" ".join(word for word in text.split(" ") if draw.random() >= rate))
    return found


@mutant(of="inject_errors", kills="L4.18")
def swaps_with_nobody(texts, rate, seed):
    """This looks like an exchange of the last word with a neighbour that it does not have: fewer texts are damaged than the rate says."""
    damaged = agents.inject_errors(texts, rate, seed)
    return [text if random.Random(f"{seed} {i}").random() < 0.3 else d for i, (text, d) in enumerate(zip(texts, damaged))]


@mutant(of="inject_errors", kills="L4.18")
def spares_the_submission(texts, rate, seed):
    """This looks like a channel that never damages a submission: its validity is then reported without having been tried."""
    damaged = agents.inject_errors(texts, rate, seed)
    return [text if text.startswith("submit") else d for text, d in zip(texts, damaged)]


# ---------------------------------------------------------------- L4.11: what a record of agents may not do


def _recorded(change):
    """Every outcome of the record changed by change(outcome), which gets a copy; None leaves it out."""
    from autograder.hidden.level4_package import recorded_agents

    record = recorded_agents()
    outcomes = [change(json.loads(json.dumps(outcome))) for outcome in record["outcomes"]]
    return {**record, "outcomes": [outcome for outcome in outcomes if outcome is not None]}


@mutant(of="recorded_agents", kills="L4.11")
def worst_seed_left_out():
    """This looks like a seed that is not on record: a run that went badly belongs to it too."""
    from autograder.hidden.level4_package import recorded_agents

    first = recorded_agents()["outcomes"][:-1]
    worst = min(first, key=lambda o: o["evaluations"]["trained greedy"]["success"])["seed"]
    return _recorded(lambda outcome: None if outcome["seed"] == worst else outcome)


@mutant(of="recorded_agents", kills="L4.11")
def four_seeds_of_agents():
    """This looks like four seeds: the contract asks for intervals over five or more."""
    return _recorded(lambda outcome: outcome if outcome["seed"] < 4 else None)


@mutant(of="recorded_agents", kills="L4.11")
def one_run_copied():
    """This looks like one run written down for every seed: repeating an outcome is not repeating an experiment."""
    from autograder.hidden.level4_package import recorded_agents

    first = recorded_agents()["outcomes"][0]
    return _recorded(lambda outcome: {**first, "seed": outcome["seed"]})


@mutant(of="recorded_agents", kills="L4.11")
def training_only_sharpens():
    """This looks like RL that only sharpens the clone: sampled success rises to greedy success, and greedy stays where it was."""

    def change(outcome):
        found = outcome["evaluations"]
        found["trained greedy"] = found["trained sampled"] = found["clone greedy"]
        outcome["curve"][-1] |= {way: found["clone greedy"]["success"] for way in ("greedy", "sampled")}
        return outcome

    return _recorded(change)


@mutant(of="recorded_agents", kills="L4.11")
def success_on_training_tasks():
    """This looks like success on the tasks of training: what was learnt by heart counts there as well."""
    from course.training.tool_agent import lookups

    seen = digest([task.digest() for task in lookups(256, 0)])
    return _recorded(lambda outcome: {**outcome, "tasks": seen})


@mutant(of="recorded_agents", kills="L4.11")
def without_the_bare_policy():
    """This looks like a report without the column without tools: nobody can tell what is due to the policy and what to its tools."""

    def change(outcome):
        kept = {name: found for name, found in outcome["evaluations"].items() if not name.endswith("without tools")}
        return {**outcome, "evaluations": kept}

    return _recorded(change)


@mutant(of="recorded_agents", kills="L4.11")
def without_best_of():
    """This looks like a report of single attempts: best of N belongs beside them."""
    return _recorded(lambda outcome: {**outcome, "best_of": {}})


@mutant(of="recorded_agents", kills="L4.11")
def best_of_for_single_attempts():
    """This looks like best of N in the column of single attempts: a selector made that success, not the policy."""

    def change(outcome):
        best = max(outcome["best_of"]["clone"].values())
        outcome["best_of"]["clone"] = {n: best for n in outcome["best_of"]["clone"]}
        return outcome

    return _recorded(change)


@mutant(of="recorded_agents", kills="L4.11")
def blank_policy_not_measured():
    """This looks like validity after cloning with nothing before it: a rise has two ends."""

    def change(outcome):
        del outcome["evaluations"]["blank sampled"]
        return outcome

    return _recorded(change)


@mutant(of="recorded_agents", kills="L4.11")
def best_step_of_the_curve():
    """This looks like the best point of the curve, reported as the end of training: that is a choice by the held-out tasks."""

    def change(outcome):
        best = max(point["greedy"] for point in outcome["curve"])
        found = outcome["evaluations"]["trained greedy"]
        found["success"] = max(best, found["success"]) + 0.003
        return outcome

    return _recorded(change)
