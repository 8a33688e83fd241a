"""Level 2: the package's functions, written differently; the checks on the package must accept these as well."""

import copy
import math
from dataclasses import replace

import torch

from autograder.framework import alternative
from course.evidence.sqrt_kl import SqrtKlFit


@alternative(of="collect")
def through_a_slow_model(model, prompts, **given):
    """Without a cache: the sampler sees a plain function."""
    from course.rollout.collect import collect

    return collect(lambda ids, mask: model(ids, mask), prompts, **given)


@alternative(of="ppo")
def ppo_in_micro_batches(*args, config, **given):
    from course.training.ppo import ppo

    yield from ppo(*args, config=replace(config, micro_batches=2), **given)


@alternative(of="ppo")
def ppo_with_a_copied_reference(learner, reference, *args, **given):
    from course.training.ppo import ppo
    from course.training.roles import check_reference

    check_reference(learner["actor"], reference)
    yield from ppo(learner, reference, *args, **given)


@alternative(of="grpo")
def grpo_with_an_inert_price(*args, config, **given):
    from course.training.grpo import grpo

    yield from grpo(*args, config=replace(config, estimator="k2"), **given)


@alternative(of="entropy_bonus")
def entropy_row_by_row(logits, action_mask):
    rows = [z for z, m in zip(logits.reshape(-1, logits.shape[-1]), action_mask.flatten()) if m]
    total = 0.0
    for z in rows:
        allowed = z[z > -math.inf]
        total = total + allowed.logsumexp(0) - (allowed.softmax(0) * allowed).sum()
    return total / len(rows)


@alternative(of="policy_gradient_loss")
def score_function_by_selection(logp, advantage, action_mask, *, how, denominator=None):
    mask = action_mask.bool()
    each = torch.zeros_like(logp).masked_scatter(mask, logp[mask] * advantage[mask].detach())
    if how == "token":
        return -each.sum() / (denominator if denominator is not None else mask.sum())
    some = mask.any(1)
    means = each[some].sum(1) / mask[some].sum(1)
    return -means.sum() / (denominator if denominator is not None else some.sum())


@alternative(of="outcome_advantages")
def outcome_by_multiplication(advantage, mask):
    return advantage[:, None] * mask.to(advantage.dtype)


@alternative(of="process_advantages")
def process_step_by_step(step_rewards, step_ends, group_id, mask, *, scale):
    from course.credit.groups import group_relative_advantages

    there = step_ends >= 0
    z = torch.zeros_like(step_rewards)
    z[there] = group_relative_advantages(step_rewards[there], group_id[:, None].expand_as(there)[there], scale=scale)
    reached = there[:, None, :] & (step_ends[:, None, :] >= torch.arange(mask.shape[1])[None, :, None])
    return (reached * z[:, None, :]).sum(-1) * mask


@alternative(of="training_bytes")
def bytes_item_by_item(trained, frozen=0):
    half, single = 2, 4
    return int(trained) * (half + single + single + 2 * single) + int(frozen) * half


@alternative(of="fit_sqrt_kl")
def by_normal_equations(kl, reward):
    x = torch.as_tensor(kl, dtype=torch.float64)
    y = torch.as_tensor(reward, dtype=torch.float64)
    n = len(x)
    if n < 3 or not bool(x.isfinite().all()) or bool((x < 0).any()) or bool((x == x[0]).all()):
        raise ValueError("kl must be at least three finite numbers that are not all equal and not negative")
    design = torch.stack([x.sqrt(), torch.ones_like(x)], 1)
    a, b = torch.linalg.lstsq(design, y).solution
    s2 = (y - design @ torch.stack([a, b])).square().sum() / (n - 2)
    errors = (s2 * torch.linalg.inv(design.T @ design).diagonal()).sqrt()
    return SqrtKlFit(float(a), float(b), float(errors[0]), float(errors[1]), float(s2.sqrt()), n)


@alternative(of="td_target")
def target_by_index(reward, next_value, terminated, gamma):
    target = reward.detach().clone()
    on = ~terminated.bool()
    target[on] = target[on] + gamma * next_value.detach()[on]
    return target


@alternative(of="cql_penalty")
def penalty_as_cross_entropy(q, action, mask):
    return torch.nn.functional.cross_entropy(q[mask.bool()], action[mask.bool()])


@alternative(of="first_alarm")
def alarm_by_a_loop(run, alarm):
    from dataclasses import asdict

    shown = []
    for i, entry in enumerate(run.history):
        shown.append(asdict(entry))
        if alarm(list(shown)) is not None:
            return i
    return None


@alternative(of="reference_logprobs")
def reference_by_hand(reference, batch, temperature=1.0):
    model = copy.deepcopy(reference).eval() if not hasattr(reference, "seen") else reference
    with torch.no_grad():
        logits = model(batch.tokens, batch.attention_mask) / temperature
        logp = logits.log_softmax(-1)[:, :-1].gather(-1, batch.tokens[:, 1:, None])[..., 0]
    return logp.masked_fill(~batch.action_mask[:, 1:], 0.0)


@alternative(of="repetition")
def repetition_by_sets(batch):
    rows = [batch.response(i) for i in range(len(batch))]
    return torch.tensor([1 - len(set(r)) / len(r) if r else 0.0 for r in rows])


@alternative(of="disagreement")
def disagreement_by_pairs(scores_a, scores_b, task):
    same = task[:, None] == task[None]
    place = []
    for x in (scores_a, scores_b):
        below = (x[:, None] > x[None]).double() + 0.5 * (x[:, None] == x[None]).double()
        place.append((below * same).sum(1) / same.sum(1))
    return (place[0] - place[1]).abs().to(scores_a.dtype)
