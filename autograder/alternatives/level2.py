"""Level 2: right answers in other styles. Each must pass every check of its function."""

import math

import torch
import torch.nn.functional as F

from autograder.framework import alternative

# ---------------------------------------------------------------- token rewards


@alternative(of="shaped_token_rewards")
def shaped_with_lists(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    rows = []
    for actor, reference, marks, reward in zip(
        logp_actor.tolist(), logp_reference.tolist(), action_mask.tolist(), terminal_reward.tolist()
    ):
        if not any(marks):
            raise ValueError("every response needs an action")
        row = [beta * (r - a) if on else 0.0 for a, r, on in zip(actor, reference, marks)]
        end = len(marks) - 1 - [bool(on) for on in marks][::-1].index(True)
        row[end] += reward
        rows.append(row)
    return torch.tensor(rows)


@alternative(of="shaped_token_rewards")
def shaped_by_nonzero(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    row, column = action_mask.nonzero(as_tuple=True)
    if len(row.unique()) < len(action_mask):
        raise ValueError("action_mask: a row has no action")
    rewards = torch.zeros_like(logp_actor)
    rewards[row, column] = beta * (logp_reference[row, column] - logp_actor[row, column])
    is_last = torch.cat([row[1:] != row[:-1], torch.ones(1, dtype=torch.bool)])
    rewards[row[is_last], column[is_last]] += terminal_reward
    return rewards


@alternative(of="shaped_token_rewards")
def shaped_by_one_hot(logp_actor, logp_reference, action_mask, terminal_reward, beta):
    on = action_mask.bool()
    if not on.any(dim=1).all():
        raise ValueError("a row has no action")
    ratio = (logp_actor - logp_reference).masked_fill(~on, 0.0)
    position = torch.arange(1, on.shape[1] + 1) * on
    return F.one_hot(position.argmax(1), on.shape[1]) * terminal_reward.unsqueeze(1) - beta * ratio


def _spoil(x, mask, fill):
    return x.masked_fill(~mask, fill)


@alternative(of="test_shaped_token_rewards")
def shaped_against_hand_made_cases(fn):
    mask = torch.tensor(
        [[0, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0], [0, 0, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
    ).bool()
    generator = torch.Generator().manual_seed(3)
    actor, reference = (-3 * torch.rand(5, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    reward = torch.tensor([1.0, -2.0, 0.5, 3.0, -0.25], dtype=torch.float64)
    wanted = torch.where(mask, -0.3 * (actor - reference), 0.0)
    for b, t in enumerate((3, 4, 5, 0, 5)):
        wanted[b, t] += reward[b]
    assert torch.allclose(fn(actor, reference, mask, reward, 0.3), wanted)
    for fill in (math.nan, math.inf):
        assert torch.allclose(fn(_spoil(actor, mask, fill), _spoil(reference, mask, fill), mask, reward, 0.3), wanted)
    try:
        fn(actor, reference, mask & torch.tensor([True, True, False, True, True])[:, None], reward, 0.3)
    except ValueError:
        return
    raise AssertionError("a row without an action must raise")


@alternative(of="test_shaped_token_rewards")
def shaped_against_an_own_solution(fn):
    generator = torch.Generator().manual_seed(0)
    for _ in range(25):
        mask = torch.rand(3, 7, generator=generator) < 0.5
        mask[:, 2] |= ~mask.any(1)
        actor, reference = (-4 * torch.rand(3, 7, generator=generator) for _ in range(2))
        reward = torch.randn(3, generator=generator)
        wanted = shaped_with_lists(actor, reference, mask, reward, 0.5)
        got = fn(_spoil(actor, mask, math.nan), _spoil(reference, mask, 0.0), mask.long(), reward, 0.5)
        assert got.shape == (3, 7) and (got - wanted).abs().max() < 1e-5, (got, wanted)
        for beta in (0.0, 0.8):
            got = fn(actor, reference, mask.float(), reward, beta)
            assert (got - shaped_with_lists(actor, reference, mask, reward, beta)).abs().max() < 1e-5
    raised = False
    try:
        fn(torch.zeros(1, 3), torch.zeros(1, 3), torch.zeros(1, 3), torch.ones(1), 0.1)
    except ValueError:
        raised = True
    assert raised


# ---------------------------------------------------------------- returns and advantages


@alternative(of="discounted_returns")
def returns_by_matrix(rewards, gamma, mask=None):
    on = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask.bool()
    if (rewards[~on] != 0).any():
        raise ValueError("a reward at a masked position")
    number = on.long().cumsum(1)
    later = number[:, None, :] - number[:, :, None]
    ahead = (torch.arange(on.shape[1])[None, :] >= torch.arange(on.shape[1])[:, None]) & on[:, None, :] & on[:, :, None]
    weight = torch.where(ahead, float(gamma) ** later.clamp(min=0).to(rewards.dtype), 0.0)
    return (weight * rewards[:, None, :]).sum(-1)


@alternative(of="discounted_returns")
def returns_by_compacting(rewards, gamma, mask=None):
    out = torch.zeros_like(rewards)
    for b, row in enumerate(rewards):
        on = torch.ones(len(row), dtype=torch.bool) if mask is None else mask[b] == 1
        if row[~on].count_nonzero():
            raise ValueError("rewards outside the mask")
        total, found = 0.0, []
        for r in reversed(row[on].tolist()):
            total = r + gamma * total
            found.insert(0, total)
        out[b, on] = torch.tensor(found, dtype=rewards.dtype)
    return out


@alternative(of="generalized_advantage_estimation")
def gae_with_lists(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for b in range(len(rewards)):
        carried = following = 0.0
        for t in range(rewards.shape[1] - 1, -1, -1):
            if not mask[b, t]:
                if rewards[b, t] != 0:
                    raise ValueError("a reward at a position without an action")
                continue
            if terminated[b, t]:
                carried = following = 0.0
            elif truncated[b, t]:
                carried, following = 0.0, float(final_value[b, t])
            value = float(values[b, t])
            carried = float(rewards[b, t]) + gamma * following - value + gamma * gae_lambda * carried
            advantages[b, t], returns[b, t], following = carried, carried + value, value
    return advantages, returns


@alternative(of="generalized_advantage_estimation")
def gae_by_episodes(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """Each episode is compacted, and its advantages are a triangular matrix times its residuals."""
    if (rewards.masked_fill(mask == 1, 0.0) != 0).any():
        raise ValueError("rewards must be 0 off the mask")
    advantages = rewards.new_zeros(rewards.shape)
    for b in range(len(rewards)):
        episode = []
        for t in (mask[b] == 1).nonzero().flatten().tolist():
            episode.append(t)
            if terminated[b, t] or truncated[b, t]:
                after = 0.0 if terminated[b, t] else float(final_value[b, t])
                v = torch.cat([values[b, episode], values.new_tensor([after])])
                delta = rewards[b, episode] + gamma * v[1:] - v[:-1]
                step = torch.arange(len(episode))
                power = (step[None, :] - step[:, None]).clamp(min=0).to(delta.dtype)
                advantages[b, episode] = ((float(gamma * gae_lambda) ** power).triu() @ delta).to(advantages.dtype)
                episode = []
    return advantages, advantages + values.masked_fill(mask == 0, 0.0)


@alternative(of="generalized_advantage_estimation")
def gae_as_lambda_returns(rewards, values, terminated, truncated, final_value, mask, gamma=1.0, gae_lambda=0.95):
    """First the lambda-returns G_t = r_t + gamma ((1 - lambda) V_next + lambda G_next), then the values off."""
    on, over, cut = mask == 1, terminated == 1, truncated == 1
    if bool(rewards[~on].any()):
        raise ValueError("a reward at a skipped position")
    v = torch.where(on, values, torch.zeros_like(values))
    target, following, columns = torch.zeros_like(v[:, 0]), torch.zeros_like(v[:, 0]), []
    for t in reversed(range(v.shape[1])):
        boot = torch.where(over[:, t], torch.zeros_like(target), final_value[:, t])
        ended = over[:, t] | cut[:, t]
        mixed = torch.where(ended, boot, (1 - gae_lambda) * following + gae_lambda * target)
        target = torch.where(on[:, t], rewards[:, t] + gamma * mixed, target)
        following = torch.where(on[:, t], v[:, t], following)
        columns.append(torch.where(on[:, t], target, torch.zeros_like(target)))
    returns = torch.stack(list(reversed(columns)), dim=1)
    return returns - v, returns


def _gae_cases():
    generator = torch.Generator().manual_seed(8)
    for _ in range(6):
        rows, width = 3, 9
        mask = torch.rand(rows, width, generator=generator) < 0.7
        mask[:, 4] = True
        rewards, values, final = (torch.randn(rows, width, generator=generator, dtype=torch.float64) for _ in range(3))
        kind = torch.randint(0, 8, (rows, width), generator=generator)
        terminated, truncated = mask & ((kind == 0) | (kind == 2)), mask & ((kind == 1) | (kind == 2))
        for b in range(rows):
            (terminated if b % 2 else truncated)[b, int(mask[b].nonzero()[-1])] = True
        yield [torch.where(mask, rewards, 0.0), values, terminated, truncated, final, mask]


@alternative(of="test_generalized_advantage_estimation")
def gae_against_an_own_solution(fn):
    for case in _gae_cases():
        for gamma, gae_lambda in ((0.9, 0.7), (1.0, 1.0), (0.6, 0.0)):
            wanted = gae_with_lists(*case, gamma, gae_lambda)
            spoilt = list(case)
            spoilt[1], spoilt[4] = case[1].masked_fill(~case[5], math.nan), case[4].masked_fill(~case[3], math.nan)
            for given in (case, spoilt):
                for got, value in zip(fn(*given, gamma, gae_lambda), wanted):
                    assert torch.allclose(got, value)


@alternative(of="test_generalized_advantage_estimation")
def gae_against_numbers_and_identities(fn):
    def case(
        ended, cut, final=(9.0, 0.9, 9.0, 0.4), mask=(1, 1, 1, 1), values=(0.5, 0.6, 0.2, 0.3), rewards=(1.0, 1.0, 1.0, 1.0)
    ):
        rows = [torch.tensor([x], dtype=torch.float64) for x in (rewards, values)]
        flags = [torch.tensor([x]).bool() for x in (ended, cut)]
        return [*rows, *flags, torch.tensor([final], dtype=torch.float64), torch.tensor([mask]).bool()]

    def same(got, wanted):
        assert torch.allclose(got, torch.tensor([wanted], dtype=torch.float64), rtol=1e-4), (got, wanted)

    v = torch.tensor([[0.5, 0.6, 0.2, 0.3]], dtype=torch.float64)
    for ended, cut, wanted in (
        ((0, 0, 0, 0), (0, 1, 0, 1), (2.07455, 1.21, 1.9763, 1.06)),
        ((0, 1, 0, 0), (0, 0, 0, 1), (1.382, 0.4, 1.9763, 1.06)),
        ((0, 1, 0, 0), (0, 1, 0, 1), (1.382, 0.4, 1.9763, 1.06)),
    ):
        advantages, returns = fn(*case(ended, cut), 0.9, 0.95)
        same(advantages, wanted)
        assert torch.allclose(returns, advantages + v)
    nan = math.nan
    wide = case(
        (0, 0, 0, 1, 0, 0), (0, 0, 0, 0, 0, 1), (nan, nan, nan, nan, nan, 0.4), (1, 0, 0, 1, 1, 1),
        (0.5, nan, nan, 0.6, 0.2, 0.3), (1.0, 0.0, 0.0, 1.0, 1.0, 1.0),
    )  # fmt: skip
    advantages, _ = fn(*wide, 0.9, 0.95)
    same(advantages, (1.382, 0.0, 0.0, 0.4, 1.9763, 1.06))
    wide[1] = torch.tensor([[0.5, 7.0, 8.0, 0.6, 0.2, 0.3]], dtype=torch.float64)
    same(fn(*wide, 0.9, 0.95)[0], (1.382, 0.0, 0.0, 0.4, 1.9763, 1.06))
    same(fn(*case((0, 0, 0, 1), (0, 0, 0, 0)), 0.5, 1.0)[1], (1.875, 1.75, 1.5, 1.0))


@alternative(of="whiten")
def whiten_by_layer_norm(x, mask):
    out = torch.zeros_like(x)
    counted = x[mask == 1]
    if len(counted) and bool((counted != counted[0]).any()):
        scaled = (counted - counted.min()) / (counted.max() - counted.min())
        out[mask == 1] = F.layer_norm(scaled, scaled.shape, eps=0.0)
    return out


@alternative(of="whiten")
def whiten_with_numbers(x, mask):
    counted = [v for v, on in zip(x.flatten().tolist(), mask.flatten().tolist()) if on]
    if not counted or max(counted) == min(counted):
        return torch.zeros(x.shape)
    middle = math.fsum(counted) / len(counted)
    spread = math.sqrt(math.fsum((v - middle) ** 2 for v in counted) / len(counted))
    rows = [[(v - middle) / spread if on else 0.0 for v, on in zip(r, m)] for r, m in zip(x.tolist(), mask.tolist())]
    return torch.tensor(rows, dtype=torch.float64)


@alternative(of="whiten")
def whiten_by_where(x, mask):
    on = mask.bool()
    kept = torch.where(on, x, torch.zeros_like(x))
    count = on.sum().clamp(min=1)
    middle = kept.sum() / count
    away = torch.where(on, kept - middle, torch.zeros_like(x))
    low, high = x.masked_fill(~on, math.inf).min(), x.masked_fill(~on, -math.inf).max()
    return away / (away.square().sum() / count).sqrt() if low < high else away * 0


# ---------------------------------------------------------------- actor and critic


@alternative(of="ppo_actor_loss")
def actor_by_selection(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    on = action_mask == 1
    a = advantage.detach()[on]
    ratio = torch.exp(logp_new[on] - logp_old.detach()[on])
    limit = torch.where(a > 0, 1 + clip_eps, 1 - clip_eps)
    return torch.maximum(-ratio * a, -limit * a).sum() / on.sum().clamp(min=1)


@alternative(of="ppo_actor_loss")
def actor_by_loop(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    total, count = 0.0, 0
    for b, t in action_mask.nonzero().tolist():
        ratio = (logp_new[b, t] - logp_old[b, t].detach()).exp()
        a = advantage[b, t].detach()
        inside = ratio.clamp(1 - clip_eps, 1 + clip_eps)
        total = total - (ratio * a if bool(ratio * a <= inside * a) else inside * a)
        count += 1
    return total / max(1, count)


@alternative(of="ppo_actor_loss")
def actor_by_double_where(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    on, zero = action_mask.bool(), torch.zeros_like(logp_new)
    with torch.no_grad():
        old, a = torch.where(on, logp_old, zero), torch.where(on, advantage, zero)
    ratio = torch.exp(torch.where(on, logp_new, zero) - old)
    both = torch.stack([ratio * a, torch.clip(ratio, 1 - clip_eps, 1 + clip_eps) * a])
    return -both.amin(0).masked_fill(~on, 0.0).sum() / on.sum().clamp(min=1)


@alternative(of="clip_report")
def report_with_lists(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    rows = {"all": []}
    for b, t in action_mask.nonzero().tolist():
        ratio, a = math.exp(logp_new[b, t] - logp_old[b, t]), float(advantage[b, t])
        hit = ratio > 1 + clip_eps if a > 0 else ratio < 1 - clip_eps if a < 0 else False
        for key in ("all", int(action_type[b, t])):
            rows.setdefault(key, []).append((ratio, hit))
    report = {}
    for key, found in rows.items():
        ratios = torch.tensor([r for r, _ in found], dtype=torch.float64)
        q50, q90, q99 = ratios.quantile(torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)).tolist()
        report[key] = {
            "tokens": len(found), "ratio_max": max(ratios).item(), "ratio_q50": q50, "ratio_q90": q90, "ratio_q99": q99,
            "clip_fraction": sum(hit for _, hit in found) / len(found),
        }  # fmt: skip
    return report


@alternative(of="clip_report")
def report_of_tensors(logp_new, logp_old, advantage, action_mask, action_type, clip_eps):
    """Entries are 0-dimensional tensors; whether a token is clipped is asked of autograd."""
    on = action_mask == 1
    log_ratio = (logp_new - logp_old)[on].detach().requires_grad_(True)
    a, kinds, ratio = advantage[on], action_type[on], log_ratio.exp()
    held = torch.minimum(ratio * a, ratio.clamp(1 - clip_eps, 1 + clip_eps) * a)
    (slope,) = torch.autograd.grad(held.sum(), log_ratio)
    ratio, clipped = ratio.detach(), (slope == 0) & (a != 0)

    def row(some):
        names = {"ratio_q50": 0.5, "ratio_q90": 0.9, "ratio_q99": 0.99, "ratio_max": 1.0}
        return {k: torch.quantile(ratio[some], q) for k, q in names.items()} | {
            "clip_fraction": clipped[some].double().mean(), "tokens": some.sum(),
        }  # fmt: skip

    return {"all": row(torch.ones_like(clipped))} | {k: row(kinds == k) for k in kinds.unique().tolist()}


@alternative(of="critic_loss")
def critic_by_selection(values, returns, mask):
    gap = values[mask == 1] - returns[mask == 1].detach()
    return gap @ gap / (2 * max(1, len(gap)))


@alternative(of="critic_loss")
def critic_by_loop(values, returns, mask):
    terms = [0.5 * (values[b, t] - returns[b, t].detach()) ** 2 for b, t in mask.nonzero().tolist()]
    return torch.stack(terms).mean() if terms else torch.zeros(())


@alternative(of="critic_loss")
def critic_by_where(values, returns, mask):
    on, zero = mask.bool(), torch.zeros_like(values)
    gap = torch.where(on, values, zero) - torch.where(on, returns, zero).detach()
    return gap.square().sum() / on.sum().clamp(min=1) / 2


@alternative(of="ppo_ptx_loss")
def rehearsal_by_add(ppo, pretrain_nll, gamma):
    return torch.add(ppo, pretrain_nll, alpha=gamma)


@alternative(of="ppo_ptx_loss")
def rehearsal_by_dot(ppo, pretrain_nll, gamma):
    return torch.stack([ppo, pretrain_nll]) @ torch.tensor([1.0, gamma], dtype=ppo.dtype)


# ---------------------------------------------------------------- groups


def _known(option, options):
    if option not in options:
        raise ValueError(f"expected one of {options}; got {option!r}")


@alternative(of="group_relative_advantages")
def groups_by_scatter(rewards, group_id, *, scale):
    _known(scale, ("none", "std"))
    _, index, size = group_id.unique(return_inverse=True, return_counts=True)
    empty = torch.zeros(len(size), dtype=rewards.dtype)
    low, high = (empty.scatter_reduce(0, index, rewards, how, include_self=False) for how in ("amin", "amax"))
    unit = torch.where(high > low, high - low, 1.0)[index]
    x = (rewards - low[index]) / unit  # in [0, 1] within every group
    x = x - (empty.index_add(0, index, x) / size)[index]
    if scale == "std":
        variance = empty.index_add(0, index, x * x) / size
        x, unit = x / torch.where(variance > 0, variance, 1.0).sqrt()[index], torch.ones_like(unit)
    return torch.where((high == low)[index], torch.zeros_like(x), x * unit)


@alternative(of="group_relative_advantages")
def groups_with_numbers(rewards, group_id, *, scale):
    _known(scale, ("none", "std"))
    members = {}
    for i, g in enumerate(group_id.tolist()):
        members.setdefault(g, []).append(i)
    out = [0.0] * len(rewards)
    for places in members.values():
        mine = [float(rewards[i]) for i in places]
        if max(mine) == min(mine):
            continue
        middle = sum(mine) / len(mine)
        spread = math.sqrt(sum((x - middle) ** 2 for x in mine) / len(mine)) if scale == "std" else 1
        for i, x in zip(places, mine):
            out[i] = (x - middle) / spread
    return torch.tensor(out, dtype=torch.float64)


@alternative(of="group_relative_advantages")
def groups_by_pairs(rewards, group_id, *, scale):
    """Centred: the mean difference to the group's members. The variance: half the mean square of all differences."""
    _known(scale, ("none", "std"))
    same = group_id[:, None] == group_id[None, :]
    gap = torch.where(same, rewards[:, None] - rewards[None, :], torch.zeros((), dtype=rewards.dtype))
    size = same.sum(1)
    centred = gap.sum(1) / size
    if scale == "none":
        return centred
    inside = torch.stack([gap[mine][:, mine].square().mean() / 2 for mine in same])
    return torch.where(inside > 0, centred / torch.where(inside > 0, inside, 1.0).sqrt(), torch.zeros_like(centred))


def _no_one_alone(group_id):
    if (group_id[:, None] == group_id[None, :]).sum(1).min() < 2:
        raise ValueError("a group with one member")


@alternative(of="leave_one_out_advantages")
def others_by_matrix(rewards, group_id):
    _no_one_alone(group_id)
    other = (group_id[:, None] == group_id[None, :]).fill_diagonal_(False)
    gap = torch.where(other, rewards[:, None] - rewards[None, :], torch.zeros((), dtype=rewards.dtype))
    return gap.sum(1) / other.sum(1)


@alternative(of="leave_one_out_advantages")
def others_by_loop(rewards, group_id):
    _no_one_alone(group_id)
    out = []
    for i in range(len(rewards)):
        others = [j for j in range(len(rewards)) if j != i and group_id[j] == group_id[i]]
        out.append(sum(rewards[i] - rewards[j] for j in others) / len(others))
    return torch.stack(out)


@alternative(of="leave_one_out_advantages")
def others_by_rescaling(rewards, group_id):
    _no_one_alone(group_id)
    out = rewards.double().clone()
    for g in group_id.unique():
        mine = out[group_id == g]
        flat = bool((mine == mine[0]).all())
        out[group_id == g] = 0.0 if flat else (mine - mine.mean()) * len(mine) / (len(mine) - 1)
    return out


@alternative(of="test_group_relative_advantages")
def groups_against_hand_made_cases(fn):
    groups = torch.tensor([7, -3, 7, 500, -3, 7, 500, 500, 500])
    rewards = torch.tensor([1.0, 10.0, 0.0, 2e-3, 30.0, 1.0, 1e-3, 1e-3, 0.0], dtype=torch.float64)
    parts = {7: ([1, -2, 1], 3, math.sqrt(2)), -3: ([-1, 1], 0.1, 1), 500: ([1, 0, 0, -1], 1000, math.sqrt(0.5))}
    for scale in ("none", "std"):
        got = fn(rewards, groups, scale=scale)
        assert got.shape == (9,)
        for g, (units, by, root) in parts.items():
            wanted = torch.tensor(units, dtype=torch.float64) / (by if scale == "none" else root)
            assert torch.allclose(got[groups == g], wanted, rtol=1e-9), (scale, g, got)
    for value in (0.7, 0.1, 1.0):
        for size in (2, 3, 8, 64):
            same = torch.full((size,), value, dtype=torch.float32)
            for scale in ("none", "std"):
                assert bool((fn(same, torch.full((size,), 5), scale=scale) == 0).all())


@alternative(of="test_group_relative_advantages")
def groups_against_an_own_solution(fn):
    generator = torch.Generator().manual_seed(4)
    for _ in range(20):
        groups = torch.randint(-2, 3, (14,), generator=generator) * 1000
        level = torch.randn(5, generator=generator, dtype=torch.float64)[groups // 1000 + 2]
        rewards = level + torch.randn(14, generator=generator, dtype=torch.float64) * 0.01
        rewards[groups == 0] = 0.7
        for scale in ("none", "std"):
            got, wanted = fn(rewards, groups, scale=scale), groups_with_numbers(rewards, groups, scale=scale)
            if bool((got - wanted).abs().max() > 1e-9):
                raise ValueError(f"{scale}: {got} is not {wanted}")
            low = torch.full((8,), 0.7)
            if bool(fn(low, groups[:8] * 0, scale=scale).any()):
                raise ValueError("noise")


# ---------------------------------------------------------------- aggregation and length


@alternative(of="aggregate")
def aggregate_by_weights(token_loss, mask, *, how, denominator=None):
    _known(how, ("token", "response"))
    on = mask.to(token_loss.dtype)
    if how == "token":
        weight, count = on, on.sum()
    else:
        weight, count = on / on.sum(1, keepdim=True).clamp(min=1), (on.sum(1) > 0).sum()
    count = count.clamp(min=1) if denominator is None else denominator
    return (torch.where(on == 1, token_loss, torch.zeros_like(token_loss)) * weight).sum() / count


@alternative(of="aggregate")
def aggregate_by_rows(token_loss, mask, *, how, denominator=None):
    _known(how, ("token", "response"))
    rows = [row[on.bool()] for row, on in zip(token_loss, mask) if on.any()]
    if not rows:
        return token_loss.masked_fill(mask == 0, 0.0).sum()
    if how == "token":
        active = torch.cat(rows)
        return active.sum() / (denominator or len(active))
    return torch.stack([row.mean() for row in rows]).sum() / (denominator or len(rows))


@alternative(of="aggregate")
def aggregate_by_nested_means(token_loss, mask, *, how, denominator=None):
    _known(how, ("token", "response"))
    on = mask == 1
    kept = token_loss.masked_fill(~on, 0.0)
    per_row, tokens = kept.sum(-1), on.sum(-1)
    if how == "response":
        per_row, tokens = per_row / tokens.clamp(min=1), (tokens > 0).long()
    return per_row.sum() / max(1, int(tokens.sum())) if denominator is None else per_row.sum() / denominator


@alternative(of="overlong_penalty")
def penalty_by_where(length, max_length, buffer):
    length, start = torch.as_tensor(length), max_length - buffer
    slope = (start - length) / buffer
    return torch.where(length <= start, 0.0, torch.where(length <= max_length, slope, -1.0))


@alternative(of="overlong_penalty")
def penalty_with_numbers(length, max_length, buffer):
    def one(n):
        over = n - (max_length - buffer)
        return 0.0 if over <= 0 else -1.0 if over >= buffer else -over / buffer

    if not isinstance(length, torch.Tensor):
        return one(length)
    return torch.tensor([one(n) for n in length.flatten().tolist()], dtype=torch.float64).view(length.shape)


@alternative(of="overlong_penalty")
def penalty_by_relu(length, max_length, buffer):
    over = F.relu(torch.as_tensor(length).double() - max_length + buffer)
    return -torch.minimum(over, torch.full_like(over, float(buffer))) / buffer


# ---------------------------------------------------------------- exit


@alternative(of="overoptimisation_alarm")
def alarm_by_the_price_of_a_point(history):
    """The last nats of KL bought a fifth, or less, of what the first ones bought of the held-out score."""
    if len(history) < 5:
        return None
    kl, score = ([row[name] for row in history] for name in ("kl", "heldout_score"))
    near = [i for i in range(len(history)) if kl[i] < kl[-1] / 2]
    if kl[-1] < 8 or not near:
        return None
    first, last = score[near[-1]] - score[0], score[-1] - score[near[-1]]
    return history[-1]["step"] if last / (kl[-1] - kl[near[-1]]) < 0.2 * first / max(kl[near[-1]] - kl[0], 1e-6) else None


@alternative(of="overoptimisation_alarm")
def alarm_by_the_text_itself(history):
    """The responses have become much longer than at the start and repeat themselves: nothing is asked of a judge."""
    now, start = history[-2:], history[0]
    length = sum(row["length"] for row in now) / len(now)
    repetition = sum(row["repetition"] for row in now) / len(now)
    return now[-1]["step"] if length > 1.5 * start["length"] and repetition > start["repetition"] + 0.05 else None
