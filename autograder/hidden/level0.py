"""Level 0: further cases, run only when a submission is graded. None of them reaches levels/, a release or a feedback page."""

import itertools
import math

import torch

from autograder.checks.level0 import (
    HOW, INF, P, Q, exact, must_catch, on_a_grid, sft_case, shifted_the_wrong_way, slope, slow_attention, slow_entropy,
    slow_find_actions, slow_kl, slow_layout, slow_log_softmax, slow_sft, small_policy, twin,
    slow_token_logprobs,
    toolchat,
)  # fmt: skip
from autograder.framework import CheckFailed, expect, invariant
from autograder.inside.execute import StudentError


@invariant("L0.01", points=0.5, hidden=True)
def half_precision_is_reduced_in_single(log_softmax, draw):
    """half-precision logits are summed in float32, over a vocabulary where half precision would lose the sum"""
    for dtype in (torch.float16, torch.bfloat16):
        logits = draw.normal(2, 4096).to(dtype)
        got = log_softmax(logits)
        if got.dtype != torch.float32:
            raise CheckFailed(f"the result for {dtype}: expected dtype torch.float32, got {got.dtype}")
        expect(got, "log_softmax of half-precision logits").close_to(twin(slow_log_softmax, logits), rtol=1e-5)


@invariant("L0.01", points=0.5, hidden=True)
def the_gradient_of_log_softmax(log_softmax, draw):
    """the gradient of a weighted sum is weight - probability * total weight"""
    logits, weight = draw.normal(3, 5), draw.normal(3, 5)
    probability = twin(slow_log_softmax, logits).exp()
    wanted = weight - probability * weight.sum(-1, keepdim=True)
    expect(log_softmax.gradient(logits, weight=weight), "the gradient").close_to(wanted, rtol=1e-5)


@invariant("L0.02", points=1, hidden=True)
def all_responses_together_have_probability_one(token_logprobs, draw):
    """the probabilities of all responses of a fixed length add up to 1, the logits coming from a law of the prefix"""
    size, length = 3, 3
    table = draw.normal(size, size, size)  # the law of the next token given the last two

    def logits_of(tokens):
        before = torch.cat([torch.zeros_like(tokens[:, :1]), tokens[:, :-1]], dim=1)
        return table[before, tokens]

    responses = torch.cartesian_prod(*[torch.arange(size)] * length)
    tokens = torch.cat([torch.full((len(responses), 1), draw.number(0, size)), responses], dim=1)
    got = token_logprobs(logits_of(tokens), tokens)
    expect(got.sum(-1).exp().sum(), "the probability of all responses together").close_to(exact(1.0), rtol=1e-5)


@invariant("L0.02", points=0.5, hidden=True)
def with_an_end_token_too(token_logprobs, draw):
    """finished responses up to a length and unfinished ones of that length together have probability 1"""
    size, length, end = 3, 3, 2
    table, mass = draw.normal(size, size), 0.0
    for n in range(1, length + 1):
        finished = [[0, *body, end] for body in itertools.product(range(end), repeat=n - 1)]
        cut = [[0, *body] for body in itertools.product(range(end), repeat=n)] if n == length else []
        tokens = torch.tensor(finished + cut)
        mass = mass + token_logprobs(table[tokens], tokens).sum(-1).exp().sum()
    expect(mass, "the probability of all responses together").close_to(exact(1.0), rtol=1e-5)


@invariant("L0.02", points=0.5, hidden=True)
def impossible_neighbours_do_not_matter(token_logprobs, draw):
    """entries of -inf elsewhere in the vocabulary leave a token's log-probability as it is; an impossible token has -inf"""
    logits, tokens = draw.normal(2, 4, 5), draw.integers(0, 5, 2, 4)
    hot = torch.nn.functional.one_hot(tokens.roll(-1, dims=1), 5).bool()
    logits[..., 1] = torch.where(hot[..., 1], logits[..., 1], -INF)
    logits[1, 1, tokens[1, 2]] = -INF
    logits[1, 1, (tokens[1, 2] + 1) % 5] = 0.5
    expect(token_logprobs(logits, tokens)).close_to(slow_token_logprobs(logits, tokens), rtol=1e-6)


@invariant("L0.03", points=0.5, hidden=True)
def the_gradient_of_entropy(entropy, draw):
    """the gradient of the entropy is -p (log p + H)"""
    logits = draw.normal(4, 5)
    logp = twin(slow_log_softmax, logits)
    wanted = -logp.exp() * (logp + twin(slow_entropy, logits)[:, None])
    expect(entropy.gradient(logits), "the gradient").close_to(wanted, rtol=1e-5)


@invariant("L0.03", points=0.5, hidden=True)
def entropy_ignores_a_shift(entropy, draw):
    """huge logits and shifted logits have the entropy of their law"""
    logits = on_a_grid(draw, 3, 4)
    expect(entropy(logits + 1e4), "entropy of shifted logits").close_to(twin(slow_entropy, logits), rtol=1e-6)


@invariant("L0.04", points=0.5, hidden=True)
def kl_is_not_symmetric(kl_divergence, draw):
    """the two directions differ as they should, on laws where they are far apart"""
    p, q = exact([[4.0, 0.0, 0.0]]) + draw.normal(1, 3, scale=0.1), draw.normal(1, 3, scale=0.1)
    expect(kl_divergence(p, q), "KL(p||q)").close_to(twin(slow_kl, p, q), rtol=1e-6)
    expect(kl_divergence(q, p), "KL(q||p)").close_to(twin(slow_kl, q, p), rtol=1e-6)


@invariant("L0.04", points=0.5, hidden=True)
def the_gradient_of_kl(kl_divergence, draw):
    """the gradient of q is q - p, that of p is p (log p/q - KL); neither is NaN beside impossible entries"""
    p, q = draw.normal(3, 4), draw.normal(3, 4)
    logp, logq = twin(slow_log_softmax, p), twin(slow_log_softmax, q)
    expect(kl_divergence.gradient(p, q, wrt=1), "the gradient with respect to q").close_to(logq.exp() - logp.exp(), rtol=1e-5)
    wanted = logp.exp() * (logp - logq - twin(slow_kl, p, q)[:, None])
    expect(kl_divergence.gradient(p, q, wrt=0), "the gradient with respect to p").close_to(wanted, rtol=1e-5)
    p, q = p.clone(), q.clone()  # what an earlier call was given must stay as it was
    p[0, 1] = q[0, 1] = p[1, 2] = -INF
    for which, name in ((0, "p"), (1, "q")):
        expect(kl_divergence.gradient(p, q, wrt=which), f"the gradient with respect to {name} beside impossible entries").finite()


@invariant("L0.05", points=1, hidden=True)
def the_spread_of_k1_and_k3(kl_estimates, draw):
    """for p = (.99, .01), q = (.5, .5) the variance of k1 is 0.21 and of k3 19.96; for near laws k3 is the quieter one"""

    def spread(p, q):
        got = kl_estimates(p.log(), q.log())
        return [(p * got[name].square()).sum() - (p * got[name]).sum() ** 2 for name in ("k1", "k3")]

    far = spread(P, Q)
    d = [math.log(a / b) for a, b in zip(P.tolist(), Q.tolist())]
    k3 = [math.exp(-x) - 1 + x for x in d]
    for got, values, golden in ((far[0], d, 0.21), (far[1], k3, 19.96)):
        mean = sum(a * x for a, x in zip(P.tolist(), values))
        variance = sum(a * (x - mean) ** 2 for a, x in zip(P.tolist(), values))
        expect(got, "the variance").close_to(exact(variance), rtol=1e-5)
        expect(got, "the variance").close_to(golden, rtol=0.01)
    base = draw.normal(5)
    near = spread(base.softmax(-1), (base + draw.normal(5, scale=0.02)).softmax(-1))
    expect(near[1], "the variance of k3 for near laws").at_most(float(near[0]) * 0.2 + 1e-12)


@invariant("L0.05", points=1, hidden=True)
def what_each_estimate_teaches_as_a_loss(kl_estimates, draw):
    """expected gradients: of k1 zero, of k2 that of KL(p||q), of k3 that of KL(q||p)"""
    p_logits, q_logits = draw.normal(4), draw.normal(4)
    p, q = p_logits.softmax(-1), q_logits.softmax(-1)
    logp, logq = p.log(), q.log()
    kl = float((p * (logp - logq)).sum())
    wanted = {"k1": torch.zeros(4, dtype=torch.float64), "k2": p * (logp - logq - kl), "k3": p - q}
    for name, gradient in wanted.items():
        # d/dlogp of the estimate at each outcome, weighted by p, then through the softmax: sum_y p_y g_y (1[y = i] - p_i)
        weighted = kl_estimates.gradient(logp, logq, wrt=0, pick=name, weight=p)
        through = weighted - p * weighted.sum()
        expect(through, f"the expected gradient of {name} as a loss").close_to(gradient, rtol=1e-5)


@invariant("L0.05", points=0.5, hidden=True)
def truncated_sampling_breaks_the_agreement(kl_estimates, draw):
    """with top-p sampling the sampled law is another one: the mean of k1 over it is not the KL"""
    p = exact([0.6, 0.25, 0.1, 0.05])
    q = draw.normal(4, scale=0.3).softmax(-1)
    kept = exact([1.0, 1.0, 0.0, 0.0]) * p
    kept = kept / kept.sum()
    got = kl_estimates(p.log(), q.log())["k1"]
    sampled, kl = (kept * got).sum(), slow_kl(p.log().tolist(), q.log().tolist())
    slow = sum(a * math.log(b / c) for a, b, c in zip(kept.tolist(), p.tolist(), q.tolist()) if a > 0)
    expect(sampled, "the mean of k1 under top-p sampling").close_to(exact(slow), rtol=1e-5)
    expect(sampled, "the mean of k1 under top-p sampling").differs_from(kl, by=1e-3)


@invariant("L0.06", points=1, hidden=True)
def padding_may_hold_anything(causal_attention, draw):
    """NaN, infinity and huge numbers in padded keys and values reach no output, and no gradient of a real query"""
    q, k, v = (draw.normal(2, 2, 4, 3) for _ in range(3))
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]]).bool()
    real = mask[:, None, :, None]
    clean = slow_attention(q, k, v, mask)
    k = torch.where(real, k, exact([1e6, math.nan])[:, None, None, None])
    v = torch.where(real, v, exact([math.nan, INF])[:, None, None, None])
    got = causal_attention(q, k, v, mask)
    expect(torch.where(real, got, 0.0), "the output beside spoiled padding").close_to(torch.where(real, clean, 0.0), rtol=1e-6)
    weight = real.double().expand(2, 2, 4, 3).clone()
    gradient = causal_attention.gradient(q, k, v, mask, wrt=0, weight=weight)
    expect(gradient, "the gradient of q beside spoiled padding").finite()


@invariant("L0.06", points=0.5, hidden=True)
def the_gradient_of_attention(causal_attention, draw):
    """the gradients of q, k and v are the slopes of the output, padding included"""
    inputs, weight = [draw.normal(1, 1, 3, 2) for _ in range(3)], draw.normal(1, 1, 3, 2)
    mask = torch.tensor([[draw.number(0, 2), 1, 1]])
    for which, name in enumerate("qkv"):

        def moved(x):
            return slow_attention(*[x if i == which else y for i, y in enumerate(inputs)], mask)

        gradient = causal_attention.gradient(*inputs, mask, wrt=which, weight=weight)
        expect(gradient, f"the gradient of {name}").close_to(slope(moved, inputs[which], weight), rtol=1e-4)


@invariant("L0.06", points=0.5, hidden=True)
def huge_scores_are_no_problem(causal_attention, draw):
    """scores of magnitude 1e5, of either sign, give the value of the best visible key"""
    # the first query sees one key, and that one scores very low; scores far apart leave single precision no doubt which is best
    q, v = torch.full((1, 1, 3, 2), 400.0, dtype=torch.float64), draw.normal(1, 1, 3, 2)
    k = exact([-400.0, -100.0, draw.choice([-300.0, 300.0])])[None, None, :, None].repeat(1, 1, 1, 2)
    mask = torch.ones(1, 3).long()
    expect(causal_attention(q, k, v, mask)).close_to(slow_attention(q, k, v, mask), rtol=1e-6)


@invariant("L0.07", points=1, hidden=True)
def many_turns_and_the_shared_end_token(action_mask, draw):
    """any number of turns, and a tokenizer whose pad token is its end token"""
    from course.language import StopReason, Tokenizer, Transcript, Turn

    tokenizer = Tokenizer.words(["yes", "no", "why", "because"], pad_is_end=True)
    turns = [Turn("system", "yes no")]
    for _ in range(draw.number(4, 9)):
        ids = tuple(tokenizer.encode("because yes")[: draw.number(1, 3)])
        stop = draw.choice([StopReason.END, StopReason.LENGTH])
        ids = (*ids, tokenizer.end_id) if stop is StopReason.END else ids
        turns.append(Turn(draw.choice(["user", "tool"]), draw.choice(["why", "no"])))
        turns.append(Turn("assistant", ids=ids, sampled=True, stop=stop))
    transcript = Transcript(tuple(turns))
    tokens, mask = slow_layout(transcript, tokenizer)
    got = action_mask(transcript, tokenizer)
    expect(got[0], "the tokens").close_to(tokens)
    expect(got[1] * 1, "the mask").close_to(mask)


@invariant("L0.07", points=0.5, hidden=True)
def a_turn_cut_before_its_first_token(action_mask, draw):
    """a sampled turn that was cut off before its first token has no action"""
    from course.language import StopReason, Transcript, Turn

    _, tokenizer = toolchat(draw)
    empty = Turn("assistant", ids=(), sampled=True, stop=StopReason.LENGTH)
    for turns in ((Turn("user", "hello ?"), empty), (Turn("user", "hello ?"), empty, Turn("user", "hello ?"), empty)):
        tokens, mask = slow_layout(Transcript(turns), tokenizer)
        got = action_mask(Transcript(turns), tokenizer)
        expect(got[0], "the tokens").close_to(tokens)
        expect(got[1] * 1, "the mask").close_to(mask)


@invariant("L0.08", points=0.5, hidden=True)
def a_nan_that_counts_is_not_hidden(masked_mean, draw):
    """a NaN at a counted position shows: the mean is NaN, or an error says so"""
    x, mask = draw.normal(3, 4), torch.ones(3, 4, dtype=torch.bool)
    x[1, 2] = math.nan
    try:
        got = masked_mean(x, mask)
    except StudentError as error:
        if error.kind in ("NotImplementedError", "NoAnswer", "TimeoutError", "Malformed"):
            raise  # no answer is not an answer
        return
    if bool(torch.as_tensor(got).isfinite()):
        raise CheckFailed("the mean with a NaN that counts: expected NaN or an error, got a finite number")


@invariant("L0.08", points=1, hidden=True)
def the_gradient_of_a_masked_mean(masked_mean, draw):
    """the gradient is 1/count on kept entries and exactly 0 elsewhere, per row too, with empty rows and NaN behind the mask"""
    x, mask = draw.normal(4, 5), draw.mask(4, 5)
    mask[2] = False
    x[2, 1] = math.nan
    gradient = masked_mean.gradient(x, mask, 1)
    expect(gradient, "the gradient").close_to(mask.double() / mask.sum(1, keepdim=True).clamp_min(1), rtol=1e-6)
    expect(gradient[~mask], "the gradient at masked entries").equals(0.0)


@invariant("L0.09", points=1, hidden=True)
def splitting_a_batch_adds_up(sft_loss, draw):
    """the sum over a batch is the sum over its parts; padding a batch on the right changes nothing"""
    logits, tokens, mask = sft_case(draw, rows=5)
    parts = [sft_loss(logits[i:j], tokens[i:j], mask[i:j], normalize="sum") for i, j in ((0, 2), (2, 5))]
    expect(parts[0] + parts[1], "the sum over two parts").close_to(exact(slow_sft(logits, tokens, mask, "sum")), rtol=1e-6)
    padded = [torch.cat([x, draw.normal(5, 3, 5)], 1) for x in (logits,)] + [torch.cat([tokens, draw.integers(0, 5, 5, 3)], 1)]
    longer = torch.cat([mask, torch.zeros(5, 3, dtype=torch.bool)], 1)
    for how in HOW:
        got = sft_loss(*padded, longer, normalize=how)
        expect(got, f'"{how}" with padding').close_to(exact(slow_sft(logits, tokens, mask, how)), rtol=1e-6)


# ---------------------------------------------------------------- bug hunt: faults that the students have not seen


def token_mean_for_all(logits, tokens, mask, normalize):
    counted = mask[:, 1:].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    wanted = torch.where(counted, tokens[:, 1:], 0)
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    return losses.sum() if normalize == "sum" else losses.sum() / counted.sum().clamp_min(1)


def record_mean_for_all(logits, tokens, mask, normalize):
    counted = mask[:, 1:].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    wanted = torch.where(counted, tokens[:, 1:], 0)
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    if normalize == "sum":
        return losses.sum()
    return (losses.sum(1) / counted.sum(1).clamp_min(1)).sum() / counted.any(1).sum().clamp_min(1)


def mean_over_all_positions(logits, tokens, mask, normalize):
    counted = mask[:, 1:].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    wanted = torch.where(counted, tokens[:, 1:], 0)
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    if normalize == "sum":
        return losses.sum()
    if normalize == "token":
        return losses.mean()
    return (losses.sum(1) / counted.sum(1).clamp_min(1)).sum() / counted.any(1).sum().clamp_min(1)


def empty_records_count(logits, tokens, mask, normalize):
    counted = mask[:, 1:].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    wanted = torch.where(counted, tokens[:, 1:], 0)
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    if normalize == "sum":
        return losses.sum()
    if normalize == "token":
        return losses.sum() / counted.sum().clamp_min(1)
    return (losses.sum(1) / counted.sum(1).clamp_min(1)).mean()


def multiplies_by_the_mask(logits, tokens, mask, normalize):
    counted = mask[:, 1:].to(logits.dtype)
    wanted = torch.where(mask[:, 1:].bool(), tokens[:, 1:], 0)
    losses = -torch.log_softmax(logits[:, :-1], -1).gather(-1, wanted[..., None])[..., 0] * counted
    if normalize == "sum":
        return losses.sum()
    if normalize == "token":
        return losses.sum() / counted.sum().clamp_min(1)
    return (losses.sum(1) / counted.sum(1).clamp_min(1)).sum() / (counted.sum(1) > 0).sum().clamp_min(1)


def nothing_to_learn_is_nan(logits, tokens, mask, normalize):
    counted = mask[:, 1:].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    wanted = torch.where(counted, tokens[:, 1:], 0)
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    if normalize == "sum":
        return losses.sum()
    if normalize == "token":
        return losses.sum() / counted.sum()
    rows = counted.any(1)
    return (losses.sum(1)[rows] / counted.sum(1)[rows]).mean()


def cuts_the_gradient(logits, tokens, mask, normalize):
    counted = mask[:, 1:].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    wanted = torch.where(counted, tokens[:, 1:], 0)
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    if normalize == "sum":
        value = losses.sum()
    elif normalize == "token":
        value = losses.sum() / counted.sum().clamp_min(1)
    else:
        value = (losses.sum(1) / counted.sum(1).clamp_min(1)).sum() / counted.any(1).sum().clamp_min(1)
    return value.detach() + 0.0 * z.sum()


def the_sign_is_lost(logits, tokens, mask, normalize):
    counted = mask[:, 1:].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    wanted = torch.where(counted, tokens[:, 1:], 0)
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    if normalize == "sum":
        return -losses.sum()
    if normalize == "token":
        return -losses.sum() / counted.sum().clamp_min(1)
    return -(losses.sum(1) / counted.sum(1).clamp_min(1)).sum() / counted.any(1).sum().clamp_min(1)


@invariant("L0.09", points=1, hidden=True)
def your_test_catches_wrong_denominators(test_sft_loss, draw):
    """your test catches means over the wrong positions and records"""
    must_catch(test_sft_loss, draw, [mean_over_all_positions, empty_records_count])


@invariant("L0.09", points=1, hidden=True)
def your_test_catches_confused_objectives(test_sft_loss, draw):
    """your test catches normalisations that are one and the same, and a sign that is lost"""
    must_catch(test_sft_loss, draw, [token_mean_for_all, record_mean_for_all, the_sign_is_lost])


@invariant("L0.10", points=1, hidden=True)
def your_test_catches_what_leaks(test_sft_loss, draw):
    """your test catches NaN that gets past the mask, and a batch with nothing to learn that gives NaN"""
    must_catch(test_sft_loss, draw, [multiplies_by_the_mask, nothing_to_learn_is_nan])


@invariant("L0.10", points=1, hidden=True)
def your_test_catches_a_lost_gradient(test_sft_loss, draw):
    """your test catches a loss of the right value that teaches nothing"""
    must_catch(test_sft_loss, draw, [cuts_the_gradient, shifted_the_wrong_way])


@invariant("L0.13", points=2, hidden=True)
def a_transcript_that_was_cut_off(find_actions, draw):
    """cut turns, few-shot turns and odd sampled ids: positions and total are still right"""
    from course.language import StopReason, Transcript, Turn

    policy = small_policy(draw)
    encode, tokenizer = policy.tokenizer.encode, policy.tokenizer
    odd = (*encode("it is"), tokenizer.role_id("tool"))
    call = tuple(encode("call calculator 3 plus 4 ;"))
    turns = (
        Turn("user", "what is 2 plus 2 ?"), Turn("assistant", "it is 4 ."), Turn("user", "what is 3 plus 4 ?"),
        Turn("assistant", ids=call, sampled=True, stop=StopReason.STOP_TEXT), Turn("tool", "7"),
        Turn("assistant", ids=odd, sampled=True, stop=StopReason.LENGTH),
    )  # fmt: skip
    for transcript in (Transcript(turns), Transcript(turns[:4]), Transcript((turns[3],))):
        positions, total = slow_find_actions(transcript, policy)
        got = find_actions(transcript, policy)
        expect(got[0], "the positions").close_to(positions)
        expect(got[1], "the total log-probability").close_to(exact(total), rtol=1e-5)
