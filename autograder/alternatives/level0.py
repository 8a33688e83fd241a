"""Level 0: right answers, written differently, that every check must accept."""

import itertools
import math

import torch
import torch.nn.functional as F

from autograder.framework import alternative
from course.language import StopReason

# ---------------------------------------------------------------- the law over the next token


@alternative(of="log_softmax")
def by_logsumexp(logits):
    x = logits.float() if logits.element_size() == 2 else logits
    return x - torch.logsumexp(x, dim=-1, keepdim=True)


@alternative(of="log_softmax")
def row_by_row(logits):
    x = logits.to(torch.float32) if logits.dtype in (torch.half, torch.bfloat16) else logits
    rows = []
    for row in x.reshape(-1, x.shape[-1]):
        top = row.max()
        rows.append(row - top - torch.log(torch.exp(row - top).sum()))
    return torch.stack(rows).reshape(x.shape)


@alternative(of="log_softmax")
def in_double(logits):
    wide = logits.double()
    result = (wide - wide.max(-1, keepdim=True)[0]).exp()
    result = wide - wide.max(-1, keepdim=True)[0] - result.sum(-1, keepdim=True).log()
    return result.to(logits.dtype if logits.element_size() > 2 else torch.float32)


@alternative(of="token_logprobs")
def by_cross_entropy(logits, tokens):
    batch, time, size = logits.shape
    flat = F.cross_entropy(logits[:, :-1].reshape(-1, size), tokens[:, 1:].reshape(-1), reduction="none")
    return -flat.view(batch, time - 1)


@alternative(of="token_logprobs")
def position_by_position(logits, tokens):
    logp = F.log_softmax(logits, dim=-1)
    rows = torch.arange(len(tokens))
    return torch.stack([logp[rows, t, tokens[:, t + 1]] for t in range(tokens.shape[1] - 1)], dim=1)


@alternative(of="token_logprobs")
def by_one_hot(logits, tokens):
    hot = F.one_hot(tokens[:, 1:], logits.shape[-1]).bool()
    return F.log_softmax(logits[:, :-1], dim=-1)[hot].view(tokens.shape[0], -1)


@alternative(of="token_logprobs")
def token_in_single_precision(logits, tokens):
    return torch.log_softmax(logits.float(), -1)[:, :-1].gather(2, tokens[:, 1:].unsqueeze(2)).squeeze(2)


@alternative(of="entropy")
def entropy_in_single_precision(logits):
    logp = torch.log_softmax(logits.float(), dim=-1)
    return -(logp.exp() * logp.clamp(min=torch.finfo(torch.float32).min)).sum(-1)


@alternative(of="entropy")
def by_entr(logits):
    everything_possible = bool((logits > -math.inf).all())
    return torch.special.entr(torch.softmax(logits, dim=-1)).sum(-1) if everything_possible else _safe_entropy(logits)


def _safe_entropy(logits):
    possible = logits > -math.inf
    logp = torch.log_softmax(logits, -1).masked_fill(~possible, 0.0)
    return -(logp.exp() * logp).masked_fill(~possible, 0.0).sum(-1)


@alternative(of="entropy")
def logsumexp_minus_mean(logits):
    finite = logits.masked_fill(logits == -math.inf, 0.0)
    return torch.logsumexp(logits, -1) - (torch.softmax(logits, -1) * finite).sum(-1)


@alternative(of="kl_divergence")
def by_rows(p_logits, q_logits):
    size = p_logits.shape[-1]
    out = []
    for p, q in zip(p_logits.reshape(-1, size), q_logits.reshape(-1, size)):
        keep = p > -math.inf
        a, b = torch.log_softmax(p, -1)[keep], torch.log_softmax(q, -1)[keep]
        out.append((a.exp() * (a - b)).sum())
    return torch.stack(out).reshape(p_logits.shape[:-1])


@alternative(of="kl_divergence")
def cross_entropy_minus_entropy(p_logits, q_logits):
    p = torch.softmax(p_logits, -1)
    possible = p_logits > -math.inf
    logp = torch.log_softmax(p_logits, -1).masked_fill(~possible, 0.0)
    logq = torch.log_softmax(q_logits, -1).masked_fill(~possible, 0.0)
    return (p * logp).sum(-1) - (p * logq).sum(-1)


@alternative(of="kl_divergence")
def kl_in_single_precision(p_logits, q_logits):
    logp, logq = F.log_softmax(p_logits.float(), -1), F.log_softmax(q_logits.float(), -1)
    here = torch.isfinite(logp)
    a, b = logp.masked_fill(~here, 0), logq.masked_fill(~here, 0)
    return (a.exp() * (a - b) * here).sum(-1)


@alternative(of="kl_estimates")
def estimates_in_single_precision(logp, logq):
    k1 = (logp - logq).float()
    return {"k1": k1, "k2": k1**2 / 2, "k3": torch.expm1(-k1) + k1}


@alternative(of="kl_estimates")
def by_ratio(logp, logq):
    k1 = logp - logq
    return dict(k1=k1, k2=0.5 * k1 * k1, k3=torch.special.expm1(logq - logp) - (logq - logp))


@alternative(of="kl_estimates")
def in_double_inside(logp, logq):
    d = logp.double() - logq.double()
    return {"k3": (torch.expm1(-d) + d).to(logp.dtype), "k1": d.to(logp.dtype), "k2": d.pow(2).div(2).to(logp.dtype)}


# ---------------------------------------------------------------- attention and masks


@alternative(of="causal_attention")
def loop_over_queries(q, k, v, key_mask):
    real = key_mask.bool()
    v = torch.where(real[:, None, :, None], v, 0.0)
    k = torch.where(real[:, None, :, None], k, 0.0)
    out = []
    for t in range(q.shape[-2]):
        seen = real[:, None, : t + 1]
        scores = torch.einsum("bhd,bhsd->bhs", q[:, :, t], k[:, :, : t + 1]) / q.shape[-1] ** 0.5
        weights = torch.softmax(torch.where(seen, scores, torch.full_like(scores, -1e30)), -1) * seen
        out.append(torch.einsum("bhs,bhsd->bhd", weights, v[:, :, : t + 1]))
    return torch.stack(out, dim=2)


@alternative(of="causal_attention")
def by_library(q, k, v, key_mask):
    real = key_mask.bool()[:, None, None, :]
    allowed = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril() & real
    lonely = ~allowed.any(-1, keepdim=True)
    k, v = (x.masked_fill(~real.transpose(-1, -2), 0.0) for x in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | lonely).masked_fill(lonely, 0.0)


@alternative(of="causal_attention")
def attention_in_single_precision(q, k, v, key_mask):
    real = key_mask.bool()[:, None, :, None]
    q, k, v = q.float(), torch.where(real, k, 0.0).float(), torch.where(real, v, 0.0).float()
    time = q.size(2)
    blocked = torch.triu(torch.ones(time, time), 1).bool()[None, None] | (key_mask == 0)[:, None, None]
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / q.size(3) ** 0.5
    scores = scores - torch.where(blocked, -math.inf, scores).amax(-1, keepdim=True).nan_to_num(0, 0, 0).detach()
    weights = torch.where(blocked, 0.0, torch.where(blocked, 0.0, scores).exp())
    return (weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)) @ v


@alternative(of="action_mask")
def by_pairs(transcript, tokenizer):
    pairs = [(tokenizer.bos_id, 0)]
    for i, turn in enumerate(transcript.turns):
        pairs.append((tokenizer.role_id(turn.role), 0))
        if turn.sampled:
            pairs.extend((token, 1) for token in turn.ids)
            follows = i + 1 < len(transcript.turns)
            if turn.stop != StopReason.END and follows:
                pairs.append((tokenizer.end_id, 0))
        else:
            pairs.extend((token, 0) for token in tokenizer.encode(turn.text))
            pairs.append((tokenizer.end_id, 0))
    tokens, mask = zip(*pairs)
    return torch.tensor(tokens), torch.tensor(mask)


@alternative(of="action_mask")
def end_of_the_previous_turn(transcript, tokenizer):
    tokens, mask, open_turn = [tokenizer.bos_id], [False], False
    for turn in transcript.turns:
        if open_turn:
            tokens.append(tokenizer.end_id)
            mask.append(False)
        content = turn.ids if turn.sampled else tokenizer.encode(turn.text) + [tokenizer.end_id]
        tokens += [tokenizer.role_id(turn.role), *content]
        mask += [False] + [turn.sampled] * len(content)
        open_turn = turn.sampled and turn.stop is not StopReason.END
    return [torch.LongTensor(tokens), torch.BoolTensor(mask)]


@alternative(of="masked_mean")
def by_indexing(x, mask, dim=None):
    keep = mask.bool()
    if dim is None:
        return x[keep].mean() if bool(keep.any()) else x[keep].sum()
    kept = x.masked_fill(~keep, 0.0)
    return kept.sum(dim) / torch.maximum(keep.sum(dim), torch.tensor(1))


@alternative(of="masked_mean")
def unbound(x, mask, dim=None):
    if dim is not None:
        rows = (t.movedim(dim, -1).flatten(0, -2) for t in (x, mask))
        return torch.stack([unbound(a, m) for a, m in zip(*rows)]).view(x.sum(dim).shape)
    total = x[mask > 0]
    return total.sum() / max(1, total.numel())


@alternative(of="masked_mean")
def mean_in_single_precision(x, mask, dim=None):
    clean = torch.where(mask != 0, x, x.new_zeros(())).float()
    total, count = (clean.sum(), mask.sum()) if dim is None else (clean.sum(dim), mask.sum(dim))
    return torch.where(count > 0, total / count.clamp(min=1), torch.zeros_like(total))


# ---------------------------------------------------------------- the loss, its test, the exit


@alternative(of="sft_loss")
def by_ignore_index(logits, tokens, mask, normalize):
    labels = tokens[:, 1:].masked_fill(~mask[:, 1:].bool(), -100)
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels, reduction="none")
    losses = torch.where(labels != -100, losses, 0.0)
    count = (labels != -100).sum(1)
    if normalize == "sum":
        return losses.sum()
    if normalize == "token":
        return losses.sum() / max(1, int(count.sum()))
    return (losses.sum(1) / count.clamp(min=1)).sum() / max(1, int((count > 0).sum()))


@alternative(of="sft_loss")
def one_record_at_a_time(logits, tokens, mask, normalize):
    sums, counts = [], []
    for z, y, m in zip(logits, tokens, mask.bool()):
        keep = m[1:]
        nll = -torch.log_softmax(z[:-1][keep], -1)[torch.arange(int(keep.sum())), y[1:][keep]]
        sums.append(nll.sum())
        counts.append(int(keep.sum()))
    if normalize == "sum":
        return sum(sums)
    if normalize == "token":
        return sum(sums) / max(1, sum(counts))
    means = [s / n for s, n in zip(sums, counts) if n]
    return sum(means) / len(means) if means else sum(sums)


@alternative(of="sft_loss")
def loss_in_single_precision(logits, tokens, mask, normalize):
    flags = (mask[:, 1:] != 0).float()
    logp = torch.log_softmax(logits[:, :-1].float(), -1)
    chosen = F.one_hot(tokens[:, 1:], logits.shape[-1]).bool() & (flags[..., None] > 0)
    picked = torch.where(chosen, logp, 0.0).sum(-1)
    per_row = flags.sum(1)
    if normalize == "sum":
        return -picked.sum()
    if normalize == "token":
        return -(picked / per_row.sum().clamp(min=1)).sum()
    return -(picked / per_row.clamp(min=1)[:, None] / (per_row > 0).sum().clamp(min=1)).sum()


@alternative(of="test_sft_loss")
def against_a_reference(loss):
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    tokens = torch.randint(0, 4, (3, 5), generator=generator)
    mask = torch.tensor([[0, 1, 0, 1, 1], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0]])
    for how in ("token", "record", "sum"):
        leaf, twin = logits.clone().requires_grad_(True), logits.clone().requires_grad_(True)
        got, expected = loss(leaf, tokens, mask, how), one_record_at_a_time(twin, tokens, mask, how)
        assert torch.allclose(got, expected, rtol=1e-9, atol=1e-12)
        got.backward()
        expected.backward()
        assert torch.allclose(leaf.grad, twin.grad, rtol=1e-9, atol=1e-12)
        dirty = logits.clone()
        dirty[0, 1] = float("nan")
        assert torch.allclose(loss(dirty, tokens, mask, how), expected.detach(), rtol=1e-9, atol=1e-12)
        assert loss(logits, tokens, torch.zeros_like(mask), how) == 0


@alternative(of="test_sft_loss")
def by_hand(loss):
    def close(a, b):
        return math.isclose(float(a.detach()), b, rel_tol=1e-6)

    v = 4
    logits = torch.zeros(3, 4, v, dtype=torch.float64)
    logits[0, 0, 1] = 2.0  # the token at position 1 of row 0 costs less
    tokens = torch.ones(3, 4, dtype=torch.int64)
    mask = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 0], [1, 0, 0, 0]]).bool()
    cheap = -math.log(math.exp(2) / (math.exp(2) + v - 1))
    wanted = {"sum": cheap + 3 * math.log(v), "token": (cheap + 3 * math.log(v)) / 4}
    wanted["record"] = ((cheap + 2 * math.log(v)) / 3 + math.log(v)) / 2
    for how, value in wanted.items():
        assert close(loss(logits, tokens, mask, how), value)
        assert float(loss(logits, tokens, torch.zeros_like(mask), how)) == 0.0
        z = logits.clone().requires_grad_(True)
        loss(z, tokens, mask, how).backward()
        assert float(z.grad[0, 0].abs().sum()) > 0 and float(z.grad[1, 0].abs().sum()) == 0
        z = logits.clone()
        z[2] = math.nan
        assert close(loss(z, tokens, mask, how), value)


@alternative(of="test_sft_loss")
def whatever_is_masked(loss):
    """By laws it must obey, and with the worst that a masked position may hold: unknown ids, NaN, a gradient through both."""
    z = torch.linspace(-2, 2, 3 * 5 * 4).view(3, 5, 4).double().sin() * 3
    y = torch.tensor([[1, 3, 2, 0, 1], [2, 2, 1, 3, 0], [0, 1, 1, 2, 3]])
    m = torch.tensor([[1, 0, 1, 1, 1], [0, 0, 0, 1, 0], [1, 0, 0, 0, 0]])
    price = [[float(torch.logsumexp(z[b, t - 1], 0) - z[b, t - 1, y[b, t]]) for t in range(1, 5) if m[b, t]] for b in range(3)]
    flat = list(itertools.chain(*price))
    wanted = {"sum": sum(flat), "token": sum(flat) / 4, "record": (sum(price[0]) / 3 + price[1][0]) / 2}
    spoiled, unknown = z.clone(), torch.where(m == 1, y, -100)
    spoiled[2], spoiled[:, -1], spoiled[0, 0] = math.nan, math.inf, math.nan
    for how, value in wanted.items():
        assert math.isclose(float(loss(z.half(), y, m, normalize=how)), value, rel_tol=1e-2)
        leaf = spoiled.clone().requires_grad_(True)
        got = loss(leaf, unknown, m.bool(), normalize=how)
        assert got.dim() == 0 and math.isclose(float(got.detach()), value, rel_tol=1e-6)
        got.backward()
        assert bool(leaf.grad.isfinite().all()) and int((leaf.grad.abs().sum(-1) > 0).sum()) == len(flat)
        assert float(loss(z, y, m * 0, normalize=how)) == 0
        assert float(loss(z[:, :1], y[:, :1], m[:, :1], normalize=how)) == 0


@alternative(of="find_actions")
def turn_by_turn(transcript, policy):
    tokens, mask = by_pairs(transcript, policy.tokenizer)
    positions = [t for t in range(len(mask)) if mask[t]]
    with torch.no_grad():
        logp = torch.log_softmax(policy(tokens[None], torch.ones_like(tokens[None])), -1)[0]
    return torch.tensor(positions, dtype=torch.int64), sum((logp[t - 1, tokens[t]] for t in positions), torch.tensor(0.0))


@alternative(of="find_actions")
def with_gradient(transcript, policy):
    tokens, mask = end_of_the_previous_turn(transcript, policy.tokenizer)
    scored = torch.log_softmax(policy(tokens[None], None), -1)[0, :-1].gather(-1, tokens[1:, None])[:, 0]
    return torch.where(mask)[0], (scored * mask[1:]).sum()
