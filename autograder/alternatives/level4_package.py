"""Level 4: the package's functions, written differently; the checks on the package must accept these as well."""

import random
from dataclasses import replace

import torch

from autograder.framework import alternative
from course.envs import three_tools as tools
from course.envs.contracts import ABSENT, REQUIRED, Difference
from course.language.stamp import canonical_json
from course.rollout import episodes as rollout
from course.rollout.record import Step
from course.tasks.pools import Leak, Pools
from course.training.agents import ActionRow


@alternative(of="three_tools")
def calculates_by_steps(**options):
    """The same world; its calculator goes through the words from left to right."""
    world = tools.three_tools(**options)
    calc = world.tools["calc"]

    def run(inner, arguments):
        result = calc.run(inner, arguments)
        if result.observation == "error":
            return result
        total, term, sign, number = 0, 1, 1, ""
        for character in arguments["expression"].replace(" ", "") + "+":
            if character.isdigit():
                number += character
                continue
            term, number = term * int(number), ""
            if character != "*":
                total, term, sign = total + sign * term, 1, -1 if character == "-" else 1
        return replace(result, observation=" ".join(str(total)))

    return replace(world, tools={**world.tools, "calc": replace(calc, run=run)})


@alternative(of="collect_episodes")
def one_at_a_time(policy, world, tasks, **given):
    """Each episode in a batch of its own."""
    found = [rollout.collect_episodes(policy, world, [task], first_episode=i, **given) for i, task in enumerate(tasks)]
    records = tuple(record for one in found for record in one.records)
    return rollout.Episodes(records, torch.arange(len(tasks)), policy.tokenizer.pad_id, found[0].timing)


@alternative(of="semi_markov_advantages")
def sums_over_later_choices(rewards, values, lengths, mask, *, gamma, gae_lambda=0.95):
    advantages = torch.zeros_like(values)
    for b in range(len(values)):
        at = mask[b].nonzero()[:, 0].tolist()
        discount = [gamma ** float(lengths[b, k]) for k in at]
        after = [*(float(values[b, k]) for k in at[1:]), 0.0]
        delta = [float(rewards[b, k]) + d * v - float(values[b, k]) for k, d, v in zip(at, discount, after)]
        for i, k in enumerate(at):
            total, weight = 0.0, 1.0
            for d, rate in zip(delta[i:], discount[i:]):
                total, weight = total + weight * d, weight * rate * gae_lambda
            advantages[b, k] = total
    return advantages, torch.where(mask, advantages + values, 0.0)


@alternative(of="two_level_returns")
def token_by_token(high_rewards, low_rewards, turn, chooses, *, gamma):
    result = torch.zeros_like(low_rewards)
    for b, row in enumerate(turn.tolist()):
        count = [row.count(k) for k in range(high_rewards.shape[1])]
        high = [0.0] * (len(count) + 1)
        for k in reversed(range(len(count))):
            high[k] = float(high_rewards[b, k]) + gamma ** count[k] * high[k + 1]
        for t, k in enumerate(row):
            if k >= 0 and chooses[b, t]:
                result[b, t] = high[k]
            elif k >= 0:
                own = [float(low_rewards[b, i]) for i in range(t, len(row)) if row[i] == k]
                result[b, t] = sum(gamma**i * r for i, r in enumerate(own))
    return result


@alternative(of="contract_differences")
def leaves_side_by_side(training, evaluation):
    for name in REQUIRED:
        if name not in training or name not in evaluation:
            raise ValueError(f"both contracts must state {name}")
    found, left = [], [("", training, evaluation)]
    while left:
        path, a, b = left.pop()
        if hasattr(a, "keys") and hasattr(b, "keys"):
            left += [(f"{path}.{n}".strip("."), a.get(n, ABSENT), b.get(n, ABSENT)) for n in {*a} | {*b}]
        elif canonical_json(a if not hasattr(a, "keys") else dict(a)) != canonical_json(b if not hasattr(b, "keys") else dict(b)):
            found.append(Difference(path, a, b))
    return sorted(found, key=lambda d: d.field)


@alternative(of="pools")
def boundaries_at_quantiles(tasks, fractions=(0.4, 0.3, 0.1, 0.2), seed=0):
    """Time is cut between families where it can be, near the quantiles; a family that is cut is left out."""
    first, last = {}, {}
    for task in tasks:
        first[task.family] = min(first.get(task.family, task.created), task.created)
        last[task.family] = max(last.get(task.family, task.created), task.created)
    times = sorted(task.created for task in tasks)
    starts = sorted(set(times))
    boundaries = []
    for i in range(3):
        wanted = sum(fractions[: i + 1]) * len(times)
        near = sorted(starts, key=lambda c: abs(sum(t < c for t in times) - wanted))[:5]
        boundaries.append(min(near, key=lambda c: sum(first[f] < c <= last[f] for f in first)))
    place = {f: {sum(c >= b for b in boundaries) for c in (first[f], last[f])} for f in first}
    parts = [tuple(t for t in tasks if place[t.family] == {i}) for i in range(4)]
    return Pools(*parts, tuple(t for t in tasks if len(place[t.family]) > 1))


@alternative(of="leaks")
def task_by_task(split):
    parts, found = list(split), []
    for i, (earlier, before) in enumerate(parts):
        for later, after in parts[i + 1 :]:
            families = []
            for task in before:
                if task.family not in families and any(task.family == other.family for other in after):
                    families.append(task.family)
            found += [Leak("family", earlier, later, family) for family in families]
            if any(a.created >= b.created for a in before for b in after):
                found.append(Leak("time", earlier, later, "the order of time is broken"))
    return found


@alternative(of="success_from_evidence")
def forward_through_the_episode(results, *, tool="test"):
    """One pass from the beginning: a test run says yes or no, an edit takes it back."""
    success = False
    for result in getattr(results, "steps", results):
        fact = vars(result) if isinstance(result, Step) else result
        if fact.get("outcome", "executed") != "executed":
            continue
        if fact.get("tool") == "edit":
            success = False
        elif fact.get("tool") == tool and "exit_status" in fact:
            success = fact["exit_status"] == 0 and fact["passed"] > 0
        elif fact.get("tool") == tool:
            words = fact.get("observation", "").split(" ")
            success = words[:3] == ["exit", "status", "0"] and words[-1] == "passed" and words[-2] != "0"
    return success


@alternative(of="action_report")
def tool_by_tool(episodes, reference=None):
    steps = [step for record in episodes.records for step in record.steps]
    rows = {}
    for tool in sorted({step.tool or "unreadable" for step in steps}):
        own = [step for step in steps if (step.tool or "unreadable") == tool]
        names = {name for step in own for name in step.cost}
        cost = {name: sum(step.cost.get(name, 0) for step in own) / len(own) for name in names}
        readable = [step for step in own if step.outcome != "malformed"]
        done = [step for step in readable if step.outcome == "executed"]
        rows[tool] = ActionRow(len(own), len(readable) / len(own), len(done) / len(own), None, cost)
    return rows


@alternative(of="inject_errors")
def drops_a_word(texts, rate, seed):
    """Another way to damage a text, with the same rate."""
    draw, found = random.Random(seed), []
    for text in texts:
        words = text.split(" ")
        if draw.random() < rate:
            del words[draw.randrange(len(words))]
        found.append(" ".join(words))
    return found
