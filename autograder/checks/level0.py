"""Level 0: what must be true of probability and masks, for everyone to see. Expected values come from slow twins."""

import math

import torch

from autograder.framework import CheckFailed, Exercise, expect, expect_right, invariant, rejection

DETOURS = ("optimal_policy", "select_queries", "pro_loss")  # the package's own, by another door
LIBRARY_LOSSES = ("cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss", "Categorical", "distributions")
EXERCISES = (
    Exercise("log_softmax", "0.1", "Logarithms of probabilities", 15, 1,
             ("log_softmax", "softmax", "softmin", "logsumexp", "logaddexp", "LogSoftmax", "Softmax", "_log_softmax",
              "_softmax", "logcumsumexp", *DETOURS, *LIBRARY_LOSSES)),
    Exercise("token_logprobs", "0.2", "Logits at position t score token t + 1", 15, 2, ("score", "frozen_score", *LIBRARY_LOSSES)),
    Exercise("entropy", "0.3", "Entropy", 20, 2, ("entr", "Categorical", "distributions")),
    Exercise("kl_divergence", "0.4", "Kullback-Leibler divergence", 20, 2,
             ("kl_div", "KLDivLoss", "rel_entr", "Categorical", "distributions")),
    Exercise("kl_estimates", "0.5", "Three estimators from samples", 10, 2),
    Exercise("causal_attention", "0.6", "Attention that can't see the future or the padding", 45, 4,
             ("scaled_dot_product_attention", "_scaled_dot_product_attention_math", "MultiheadAttention",
              "multi_head_attention_forward", "sdpa_attention_forward", "eager_attention_forward", "flex_attention")),
    Exercise("action_mask", "0.7", "Only sampled tokens are actions", 30, 3, ("ChatSerializer", "CompactSerializer")),
    Exercise("masked_mean", "0.8", "A mean that ignores what it masks", 15, 2, ("nanmean", "masked_sum", "masked")),
    Exercise("sft_loss", "0.9", "Normalisation is part of the objective", 25, 3,
             ("ForCausalLMLoss", "score", "frozen_score", *LIBRARY_LOSSES)),
    Exercise("test_sft_loss", "0.10", "Bug hunt: the loss that almost works", 40, 4),
    Exercise("find_actions", "0.11", "Exit: the actions and their log-probability", 20, 3, ("score", "frozen_score")),
)  # fmt: skip

INF = math.inf


# ---------------------------------------------------------------- slow twins: numbers, not tensors


def exact(numbers):
    """Python's numbers as a tensor, none of their digits lost."""
    return torch.tensor(numbers, dtype=torch.float64)


def each_row(function, *tensors):
    """function(list, ...) on the last dimension of every tensor, entry by entry."""
    shape = tensors[0].shape
    rows = [t.double().reshape(-1, shape[-1]).tolist() for t in tensors]
    return [function(*row) for row in zip(*rows)], shape


def slow_log_softmax(z):
    top = max(z)
    total = math.fsum(math.exp(x - top) for x in z)
    return [x - top - math.log(total) for x in z]


def slow_entropy(z):
    return -math.fsum(math.exp(x) * x for x in slow_log_softmax(z) if x > -INF)


def slow_kl(p, q):
    terms = []
    for a, b in zip(slow_log_softmax(p), slow_log_softmax(q)):
        if a > -INF:
            terms.append(INF if b == -INF else math.exp(a) * (a - b))
    return INF if INF in terms else math.fsum(terms)


def twin(function, *tensors):
    """A slow twin as a float64 tensor: [..., V] -> [..., V] or [...]."""
    values, shape = each_row(function, *tensors)
    out = exact(values)
    return out.reshape(shape if out.dim() == 2 else shape[:-1])


def slow_token_logprobs(logits, tokens):
    logp = twin(slow_log_softmax, logits)
    rows = [[float(logp[b, t, tokens[b, t + 1]]) for t in range(tokens.shape[1] - 1)] for b in range(len(tokens))]
    return exact(rows).reshape(len(tokens), -1)


def slow_attention(q, k, v, key_mask):
    out = torch.zeros_like(q)
    batch, heads, time, width = q.shape
    for b in range(batch):
        for h in range(heads):
            for t in range(time):
                seen = [s for s in range(t + 1) if bool(key_mask[b, s])]
                if seen:
                    scores = [float(q[b, h, t] @ k[b, h, s]) / math.sqrt(width) for s in seen]
                    weights = [math.exp(x) for x in slow_log_softmax(scores)]
                    out[b, h, t] = sum(w * v[b, h, s] for w, s in zip(weights, seen))
    return out


def slow_layout(transcript, tokenizer):
    """Ids and mask of a transcript, turn by turn."""
    ids, mask = [tokenizer.bos_id], [0]
    for number, turn in enumerate(transcript.turns):
        ids.append(tokenizer.role_id(turn.role))
        mask.append(0)
        content = list(turn.ids) if turn.sampled else tokenizer.encode(turn.text)
        ids += content
        mask += [int(turn.sampled)] * len(content)
        finished = turn.sampled and turn.stop.value == "end"
        last = number == len(transcript.turns) - 1
        if not turn.sampled or (not finished and not last):
            ids.append(tokenizer.end_id)
            mask.append(0)
    return torch.tensor(ids), torch.tensor(mask)


def slow_sft(logits, tokens, mask, normalize):
    scored = slow_token_logprobs(logits, tokens)
    rows = [[-float(scored[b, t]) for t in range(scored.shape[1]) if bool(mask[b, t + 1])] for b in range(len(tokens))]
    rows = [row for row in rows if row]
    count = sum(len(row) for row in rows)
    if not count:
        return 0.0
    if normalize == "record":
        return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)
    total = math.fsum(x for row in rows for x in row)
    return total / count if normalize == "token" else total


def slope(function, x, weight, step=1e-4):
    """Gradient of sum(weight * function(x)) by central differences, entry by entry."""
    out = torch.zeros_like(x)
    for place in range(x.numel()):
        nudge = torch.zeros_like(x).flatten()
        nudge[place] = step
        up, down = (function(x + sign * nudge.view(x.shape)) for sign in (1, -1))
        out.view(-1)[place] = float(((up - down) * weight).sum()) / (2 * step)
    return out


def on_a_grid(draw, *shape):
    """Logits in steps of 1/4: adding a constant up to 1e4 to them is exact in single precision too."""
    return draw.integers(-8, 9, *shape).double() / 4


def toolchat(draw, n=4):
    """Transcripts of the tool-chat task and their tokenizer, at a drawn seed."""
    from course.tasks.toolchat import toolchat_tokenizer, toolchat_transcripts

    return toolchat_transcripts(n, seed=draw.number(0, 10**6)), toolchat_tokenizer()


# ---------------------------------------------------------------- 0.1 log_softmax


@invariant("L0.01", points=1, anchor=True)
def log_softmax_has_the_right_values(log_softmax, draw):
    """log_softmax agrees with a slow, exact computation on random logits"""
    for logits in (draw.normal(3, 5, scale=3), draw.normal(2, 3, 7)):
        expect(log_softmax(logits)).close_to(twin(slow_log_softmax, logits), rtol=1e-6)


@invariant("L0.01", points=0.5)
def a_constant_changes_nothing(log_softmax, draw):
    """adding a constant to the logits changes no log-probability"""
    logits = on_a_grid(draw, 4, 6)
    wanted = twin(slow_log_softmax, logits)
    for constant in (-700.0, 3.5, 1e4):
        expect(log_softmax(logits + constant), f"log_softmax(logits + {constant:g})").close_to(wanted, rtol=1e-6)


@invariant("L0.01", points=1)
def huge_logits_stay_finite(log_softmax, draw):
    """logits of magnitude 1e4 give finite, normalised log-probabilities"""
    for dtype in (torch.float64, torch.float32):
        logits = draw.normal(3, 5, scale=1e4).to(dtype)
        got = log_softmax(logits)
        expect(got, "log_softmax of huge logits").finite()
        expect(got, "log_softmax of huge logits").close_to(twin(slow_log_softmax, logits), rtol=1e-6)


@invariant("L0.01", points=0.5)
def impossible_entries_are_legal(log_softmax, draw):
    """an entry of -inf has log-probability -inf and disturbs no other"""
    logits = draw.normal(4, 6)
    logits[0, 2] = logits[1, 0] = logits[1, 5] = -INF
    expect(log_softmax(logits)).close_to(twin(slow_log_softmax, logits), rtol=1e-6)


# ---------------------------------------------------------------- 0.2 token_logprobs


@invariant("L0.02", points=1.5, anchor=True)
def each_token_is_scored_by_the_logits_before_it(token_logprobs, draw):
    """entry t is the log-probability of token t+1 under the logits at t"""
    logits, tokens = draw.normal(3, 6, 5, scale=2), draw.integers(0, 5, 3, 6)
    expect(token_logprobs(logits, tokens)).close_to(slow_token_logprobs(logits, tokens), rtol=1e-6)


@invariant("L0.02", points=1)
def one_prompt_token_and_one_answer_token(token_logprobs, draw):
    """a row of two tokens has one scored token: the second, given the first"""
    logits, tokens = draw.normal(4, 2, 7), draw.integers(0, 7, 4, 2)
    got = token_logprobs(logits, tokens)
    expect(got).close_to(slow_token_logprobs(logits, tokens), rtol=1e-6)


@invariant("L0.02", points=0.5)
def the_last_logits_are_never_used(token_logprobs, draw):
    """the logits at the last position get no gradient, the others do"""
    logits, tokens = draw.normal(2, 4, 5), draw.integers(0, 5, 2, 4)
    gradient = token_logprobs.gradient(logits, tokens)
    expect(gradient[:, -1], "the gradient at the last position").equals(0.0)
    one_hot = torch.nn.functional.one_hot(tokens[:, 1:], 5)
    expect(gradient[:, :-1], "the gradient").close_to(one_hot - twin(slow_log_softmax, logits[:, :-1]).exp(), rtol=1e-5)


# ---------------------------------------------------------------- 0.3 entropy


@invariant("L0.03", points=1, anchor=True)
def entropy_has_the_right_values(entropy, draw):
    """entropy agrees with a slow, exact computation"""
    for logits in (draw.normal(5, 6, scale=2), draw.normal(2, 3, 4)):
        expect(entropy(logits)).close_to(twin(slow_entropy, logits), rtol=1e-6)


@invariant("L0.03", points=1)
def uniform_and_certain_laws(entropy, draw):
    """entropy is log V for a uniform law and 0 for a certain one"""
    size = draw.number(20, 60)
    expect(entropy(draw.normal(4, 1).expand(4, size).clone()), "entropy of a uniform law").close_to(exact([math.log(size)] * 4))
    certain = torch.full((3, size), -INF, dtype=torch.float64)
    certain[:, draw.number(0, size)] = 1.5
    got = entropy(certain)
    expect(got, "entropy of a certain law").finite()
    expect(got, "entropy of a certain law").equals(0.0)


@invariant("L0.03", points=1)
def impossible_entries_never_give_nan(entropy, draw):
    """entries of -inf add nothing to the entropy, and neither value nor gradient is NaN"""
    logits = draw.normal(4, 5)
    logits[0, 1] = logits[1, 0] = logits[1, 4] = -INF
    expect(entropy(logits), "entropy with impossible entries").close_to(twin(slow_entropy, logits), rtol=1e-6)
    expect(entropy.gradient(logits), "the gradient with impossible entries").finite()


# ---------------------------------------------------------------- 0.4 kl_divergence


@invariant("L0.04", points=1.5, anchor=True)
def kl_has_the_right_values(kl_divergence, draw):
    """KL(p||q) agrees with a slow, exact computation, in this direction"""
    for shape in ((5, 6), (2, 3, 4)):
        p, q = draw.normal(*shape, scale=1.5), draw.normal(*shape, scale=1.5)
        expect(kl_divergence(p, q)).close_to(twin(slow_kl, p, q), rtol=1e-6)


@invariant("L0.04", points=0.5)
def kl_is_zero_only_for_equal_laws(kl_divergence, draw):
    """KL is 0 for equal laws, however the logits are shifted, and positive for others"""
    p = on_a_grid(draw, 4, 5)
    other = p + draw.uniform(4, 1, low=0.5, high=2.0) * torch.eye(5)[:4]
    expect(kl_divergence(p, p + 7.0).abs(), "KL of a law from itself").at_most(1e-6)
    expect(kl_divergence(p, other), "KL of different laws").at_least(1e-4)


@invariant("L0.04", points=1)
def kl_where_a_law_has_no_mass(kl_divergence, draw):
    """0 log 0 counts 0; mass of p that q lacks makes it +inf"""
    p, q = draw.normal(3, 5), draw.normal(3, 5)
    p[0, 1] = p[1, 2] = q[1, 2] = q[2, 3] = -INF
    expect(kl_divergence(p, q)).close_to(twin(slow_kl, p, q), rtol=1e-6)


# ---------------------------------------------------------------- 0.5 kl_estimates

P, Q = exact([0.99, 0.01]), exact([0.5, 0.5])


@invariant("L0.05", points=1, anchor=True)
def the_three_estimates_have_the_right_values(kl_estimates, draw):
    """k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d, entry by entry"""
    near, far = -draw.uniform(3, 4, low=0.01, high=4), -draw.uniform(3, 4, low=11, high=15)
    for logp, logq in ((near, -draw.uniform(3, 4, low=0.01, high=4)), (near, far), (far, near)):
        d = (logp - logq).flatten().tolist()
        wanted = {"k1": d, "k2": [x * x / 2 for x in d], "k3": [math.exp(-x) - 1 + x for x in d]}
        expect(kl_estimates(logp, logq), "kl_estimates").close_to({k: exact(v).view(3, 4) for k, v in wanted.items()}, rtol=1e-6)


@invariant("L0.05", points=1)
def k1_and_k3_have_the_right_mean_and_k2_does_not(kl_estimates, draw):
    """over the whole law, k1 and k3 average to the exact KL and k2 does not"""
    p, q = (draw.normal(5).log_softmax(-1) for _ in range(2))
    got, kl = kl_estimates(p, q), exact(slow_kl(p.tolist(), q.tolist()))
    mean = {name: (p.exp() * got[name]).sum() for name in ("k1", "k2", "k3")}
    expect(mean["k1"], "the mean of k1").close_to(kl, rtol=1e-5)
    expect(mean["k3"], "the mean of k3").close_to(kl, rtol=1e-5)
    slow_k2 = math.fsum(math.exp(a) * (a - b) ** 2 / 2 for a, b in zip(p.tolist(), q.tolist()))
    expect(mean["k2"], "the mean of k2").close_to(exact(slow_k2), rtol=1e-5)


@invariant("L0.05", points=0.5)
def k3_is_never_negative(kl_estimates, draw):
    """k3 is at least 0 everywhere and keeps its digits for tiny differences in single precision"""
    logp = -draw.uniform(50, low=0.01, high=6)
    expect(kl_estimates(logp, -draw.uniform(50, low=0.01, high=6))["k3"], "k3").at_least(0.0)
    tiny = torch.full((3,), -1e-4, dtype=torch.float32)
    got = kl_estimates(torch.zeros(3), tiny)["k3"]
    expect(got, "k3 at a difference of 1e-4 in float32").close_to(torch.full((3,), 5e-9), rtol=1e-2)


# ---------------------------------------------------------------- 0.6 causal_attention


@invariant("L0.06", points=2, anchor=True)
def attention_has_the_right_values(causal_attention, draw):
    """attention agrees with a slow computation, without padding and with gaps"""
    q, k, v = (draw.normal(2, 2, 5, 4) for _ in range(3))
    for mask in (torch.ones(2, 5, dtype=torch.bool), torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 1, 0]]).bool()):
        expect(causal_attention(q, k, v, mask)).close_to(slow_attention(q, k, v, mask), rtol=1e-6)


@invariant("L0.06", points=1)
def the_future_does_not_matter(causal_attention, draw):
    """no output depends on a later position"""
    q, k, v = (draw.normal(1, 2, 6, 3) for _ in range(3))
    mask = torch.ones(1, 6, dtype=torch.bool)
    weight = torch.zeros(1, 2, 6, 3, dtype=torch.float64)
    weight[:, :, 2] = draw.normal(3)
    for which, name in ((1, "k"), (2, "v")):
        gradient = causal_attention.gradient(q, k, v, mask, wrt=which, weight=weight)
        expect(gradient[:, :, 3:], f"the gradient of output 2 with respect to later {name}").equals(0.0)
        expect(gradient[:, :, :3].abs().sum(), f"the gradient with respect to earlier {name}").at_least(1e-6)


@invariant("L0.06", points=1)
def a_padded_row_is_the_row_alone(causal_attention, draw):
    """a row padded on the left or the right comes out as it does alone"""
    q, k, v = (draw.normal(1, 2, 3, 4) for _ in range(3))
    alone = slow_attention(q, k, v, torch.ones(1, 3))
    for left, right in ((2, 0), (0, 2), (1, 1)):
        padded = [torch.cat([draw.normal(1, 2, left, 4), x, draw.normal(1, 2, right, 4)], dim=2) for x in (q, k, v)]
        mask = torch.tensor([[0] * left + [1] * 3 + [0] * right])
        got = causal_attention(*padded, mask)[:, :, left : left + 3]
        expect(got, f"a row with {left} pads on the left and {right} on the right").close_to(alone, rtol=1e-6)


@invariant("L0.06", points=1)
def a_query_that_sees_nothing_gives_zero(causal_attention, draw):
    """a query without any key gives exactly 0, and no gradient is NaN"""
    q, k, v = (draw.normal(2, 1, 4, 3) for _ in range(3))
    mask = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]]).bool()
    got = causal_attention(q, k, v, mask)
    expect(got[0, :, :2], "the output where nothing may be seen").equals(0.0)
    expect(got[1], "the output of a row of padding").equals(0.0)
    for which in (0, 1, 2):
        expect(causal_attention.gradient(q, k, v, mask, wrt=which), "the gradient").finite()


# ---------------------------------------------------------------- 0.7 action_mask


@invariant("L0.07", points=2, anchor=True)
def tokens_and_mask_of_conversations(action_mask, draw):
    """tokens and mask agree with the layout, turn by turn, for conversations of every kind"""
    transcripts, tokenizer = toolchat(draw, 4)
    for transcript in transcripts:
        tokens, mask = slow_layout(transcript, tokenizer)
        got = action_mask(transcript, tokenizer)
        expect(got[0], "the tokens").close_to(tokens)
        expect(got[1] * 1, "the mask").close_to(mask)


@invariant("L0.07", points=1)
def somebody_elses_assistant_turn_is_no_action(action_mask, draw):
    """an assistant turn that was not sampled is context"""
    from course.language import StopReason, Transcript, Turn

    _, tokenizer = toolchat(draw)
    words = draw.choice(["it is 3 .", "it is rome .", "hello ."])
    sampled = Turn("assistant", ids=(*tokenizer.encode("it is 4 ."), tokenizer.end_id), sampled=True, stop=StopReason.END)
    question = Turn("user", "what is 2 plus 2 ?")
    transcript = Transcript((question, Turn("assistant", words), question, sampled))
    tokens, mask = slow_layout(transcript, tokenizer)
    expect(action_mask(transcript, tokenizer)[1] * 1, "the mask").close_to(mask)


@invariant("L0.07", points=1)
def an_end_token_counts_only_if_it_was_sampled(action_mask, draw):
    """the end token of a finished turn is an action; the one put in after a cut turn is not; a cut last turn has none"""
    from course.language import StopReason, Transcript, Turn

    _, tokenizer = toolchat(draw)
    cut_ids = tuple(tokenizer.encode("call clock"))
    asked, result = Turn("user", "what is 2 plus 2 ?"), Turn("tool", "5 hours")
    for stop in (StopReason.LENGTH, StopReason.STOP_TEXT):
        cut = Turn("assistant", ids=cut_ids, sampled=True, stop=stop)
        for turns in ((asked, cut, result, cut), (asked, cut)):
            tokens, mask = slow_layout(Transcript(turns), tokenizer)
            got = action_mask(Transcript(turns), tokenizer)
            expect(got[0], "the tokens").close_to(tokens)
            expect(got[1] * 1, "the mask").close_to(mask)


@invariant("L0.11", points=1)
def sampled_ids_are_copied(action_mask, draw):
    """sampled ids are kept as they are, never decoded and encoded again"""
    from course.language import StopReason, Transcript, Turn

    _, tokenizer = toolchat(draw)
    odd = tokenizer.role_id("user")  # a special token that the policy happened to sample: its text is empty
    ids = (*tokenizer.encode("it is"), odd, *tokenizer.encode("7 ."), tokenizer.end_id)
    transcript = Transcript((Turn("user", "what is 2 plus 5 ?"), Turn("assistant", ids=ids, sampled=True, stop=StopReason.END)))
    tokens, mask = slow_layout(transcript, tokenizer)
    got = action_mask(transcript, tokenizer)
    expect(got[0], "the tokens").close_to(tokens)
    expect(got[1] * 1, "the mask").close_to(mask)


# ---------------------------------------------------------------- 0.8 masked_mean


def slow_masked_mean(x, mask):
    kept = [float(v) for v, m in zip(x.flatten(), mask.flatten()) if bool(m)]
    return math.fsum(kept) / len(kept) if kept else 0.0


@invariant("L0.08", points=1.5, anchor=True)
def the_mean_of_what_is_kept(masked_mean, draw):
    """the mean over the entries whose mask is 1, over everything and along a dimension"""
    x, mask = draw.normal(4, 6) + 2, draw.mask(4, 6)
    for form in (mask, mask.long(), mask.double()):
        expect(masked_mean(x, form), "masked_mean(x, mask)").close_to(exact(slow_masked_mean(x, mask)), rtol=1e-6)
    for dim in (0, 1, -1):
        pairs = zip(x.unbind(1 - dim % 2), mask.unbind(1 - dim % 2))
        wanted = exact([slow_masked_mean(*pair) for pair in pairs])
        expect(masked_mean(x, mask, dim), f"masked_mean(x, mask, dim={dim})").close_to(wanted, rtol=1e-6)
    x, mask = draw.normal(2, 3, 4), draw.mask(2, 3, 4)
    for dim in (1, -1):
        rows = zip(x.movedim(dim, -1).flatten(0, 1), mask.movedim(dim, -1).flatten(0, 1))
        wanted = exact([slow_masked_mean(*row) for row in rows]).view(2, -1)
        expect(masked_mean(x, mask, dim), f"masked_mean(x, mask, dim={dim}) of three dimensions").close_to(wanted, rtol=1e-6)


@invariant("L0.08", points=0.5)
def a_full_mask_is_the_plain_mean(masked_mean, draw):
    """under a full mask it is the plain mean, in value and gradient"""
    x, full = draw.normal(3, 5), torch.ones(3, 5, dtype=torch.bool)
    expect(masked_mean(x, full)).close_to(exact(math.fsum(x.flatten().tolist()) / 15), rtol=1e-6)
    expect(masked_mean.gradient(x, full), "the gradient").close_to(exact([[1 / 15] * 5] * 3), rtol=1e-6)


@invariant("L0.08", points=1)
def an_empty_mask_gives_zero(masked_mean, draw):
    """an empty mask gives 0 with a finite gradient, also where only one row is empty"""
    x, mask = draw.normal(3, 4), draw.mask(3, 4)
    mask[1] = False
    expect(masked_mean(x, torch.zeros(3, 4).bool()), "the mean of nothing").equals(0.0)
    wanted = exact([slow_masked_mean(a, m) for a, m in zip(x, mask)])
    expect(masked_mean(x, mask, 1), "row means with an empty row").close_to(wanted, rtol=1e-6)
    expect(masked_mean.gradient(x, torch.zeros(3, 4).bool()), "the gradient under an empty mask").equals(0.0)


@invariant("L0.08", points=1)
def what_is_masked_never_arrives(masked_mean, draw):
    """NaN and infinity at masked positions reach neither value nor gradient"""
    x, mask = draw.normal(4, 5), draw.mask(4, 5)
    wanted = slow_masked_mean(x, mask)
    hidden = (~mask).nonzero()
    x[tuple(hidden[0])], x[tuple(hidden[1])], x[tuple(hidden[2])] = math.nan, INF, -INF
    expect(masked_mean(x, mask), "the mean").close_to(exact(wanted), rtol=1e-6)
    gradient = masked_mean.gradient(x, mask)
    expect(gradient, "the gradient").close_to(mask.double() / int(mask.sum()), rtol=1e-6)


# ---------------------------------------------------------------- 0.9 sft_loss

HOW = ("token", "record", "sum")


def sft_case(draw, rows=4, time=7, size=5):
    """Row 0 has many counted tokens and a gap, row 1 none, row 2 one, the others some; the first column is drawn."""
    logits, tokens = draw.normal(rows, time, size, scale=1.5), draw.integers(0, size, rows, time)
    mask = draw.mask(rows, time)
    mask[0, 1:], mask[1:3, 1:] = True, False
    mask[0, 2], mask[2, draw.number(1, time)] = False, True
    return logits, tokens, mask


def slow_sft_gradient(logits, tokens, mask, normalize):
    out, logp = torch.zeros_like(logits), twin(slow_log_softmax, logits)
    counted = [[t for t in range(1, tokens.shape[1]) if bool(mask[b, t])] for b in range(len(tokens))]
    total, records = sum(map(len, counted)), sum(1 for row in counted if row)
    for b, row in enumerate(counted):
        for t in row:
            weight = {"sum": 1.0, "token": 1 / total, "record": 1 / (records * len(row))}[normalize]
            out[b, t - 1] = logp[b, t - 1].exp() * weight
            out[b, t - 1, tokens[b, t]] -= weight
    return out


@invariant("L0.09", points=2, anchor=True)
def the_three_losses_have_the_right_values(sft_loss, draw):
    """ "token", "record" and "sum" agree with a slow computation"""
    logits, tokens, mask = sft_case(draw)
    for how in HOW:
        wanted = exact(slow_sft(logits, tokens, mask, how))
        for form in (mask, mask.long()):
            expect(sft_loss(logits, tokens, form, normalize=how), f'sft_loss(normalize="{how}")').close_to(wanted, rtol=1e-6)


@invariant("L0.09", points=1)
def the_worked_example(sft_loss, draw):
    """two response tokens of probability 1/2 and 1/4: sum log 8 = 2.0794, mean 1.0397"""
    logits = torch.zeros(1, 3, 4, dtype=torch.float64)
    logits[0, 0, 2:] = -INF  # two equally likely tokens, then four
    tokens, mask = torch.tensor([[3, 1, 2]]), torch.tensor([[0, 1, 1]])
    expect(sft_loss(logits, tokens, mask, normalize="sum"), "the sum").close_to(exact(math.log(8)), rtol=1e-6)
    for how in ("token", "record"):
        expect(sft_loss(logits, tokens, mask, normalize=how), f'the mean ("{how}")').close_to(exact(math.log(8) / 2), rtol=1e-6)


@invariant("L0.09", points=1)
def the_weights_of_both_means_sum_to_one(sft_loss, draw):
    """every counted token costs the same here, so both means must be that cost, whatever the lengths"""
    size = draw.number(3, 8)
    logits, tokens = torch.zeros(3, 6, size, dtype=torch.float64), draw.integers(0, size, 3, 6)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0]])
    for how, weight in (("token", 1), ("record", 1), ("sum", 6)):
        got = sft_loss(logits, tokens, mask, normalize=how)
        expect(got, f'"{how}" with equal costs').close_to(exact(weight * math.log(size)), rtol=1e-6)


@invariant("L0.09", points=1)
def three_objectives_have_three_gradients(sft_loss, draw):
    """each counted token pulls with the weight that the normalisation gives it"""
    logits, tokens, mask = sft_case(draw)
    for how in HOW:
        gradient = sft_loss.gradient(logits, tokens, mask, normalize=how)
        expect(gradient, f'the gradient ("{how}")').close_to(slow_sft_gradient(logits, tokens, mask, how), rtol=1e-5)


@invariant("L0.10", points=1)
def no_gradient_outside_the_mask(sft_loss, draw):
    """logits that predict masked tokens get a gradient of exactly 0, logits that predict counted ones do not"""
    logits, tokens, mask = sft_case(draw)
    counted = torch.cat([mask[:, 1:], torch.zeros(4, 1, dtype=torch.bool)], dim=1)
    for how in HOW:
        gradient = sft_loss.gradient(logits, tokens, mask, normalize=how)
        expect(gradient[~counted], f'the gradient outside the mask ("{how}")').equals(0.0)
        expect(gradient[counted].abs().amax(-1), f'the gradient inside the mask ("{how}")').at_least(1e-4)


@invariant("L0.10", points=1)
def spoiled_logits_behind_the_mask(sft_loss, draw):
    """NaN in logits that predict masked tokens does not reach the loss; a batch with nothing to learn gives 0"""
    logits, tokens, mask = sft_case(draw)
    spoiled = logits.clone()
    spoiled[1] = math.nan
    spoiled[0, 1] = math.nan  # predicts token 2 of row 0, which is masked
    for how in HOW:
        got = sft_loss(spoiled, tokens, mask, normalize=how)
        expect(got, f'"{how}" with NaN behind the mask').close_to(exact(slow_sft(logits, tokens, mask, how)), rtol=1e-6)
        expect(sft_loss(logits, tokens, torch.zeros_like(mask), normalize=how), f'"{how}" of nothing').equals(0.0)


# ---------------------------------------------------------------- 0.10 test_sft_loss: see the line-ups below


def line_up(test, draw, right, wrong):
    """What the student's test says of each wrong candidate that it accepts; a rejected right one fails the check."""
    missed = []
    for candidate, function in draw.lineup(right, wrong):
        rejected, accepted = rejection(test, candidate)
        if function in right:
            expect_right(rejected)
        elif accepted:
            missed.append(accepted)
    return missed


def right_by_gather(logits, tokens, mask, normalize):
    if normalize not in ("token", "record", "sum"):
        raise ValueError("normalize")
    counted = mask[:, 1:].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    z = z.float() if z.element_size() == 2 else z
    wanted = torch.where(counted, tokens[:, 1:], 0).long()
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    if normalize == "sum":
        return losses.sum()
    if normalize == "token":
        return losses.sum() / counted.sum().clamp_min(1)
    return (losses.sum(1) / counted.sum(1).clamp_min(1)).sum() / counted.any(1).sum().clamp_min(1)


def right_by_rows(logits, tokens, mask, normalize):
    if normalize not in ("token", "record", "sum"):
        raise ValueError("normalize")
    logits = logits.float() if logits.element_size() == 2 else logits
    total, count, means = logits.flatten()[:0].sum(), 0, []
    for row in range(len(tokens)):
        keep = [t for t in range(1, tokens.shape[1]) if mask[row, t] != 0]
        terms = [torch.logsumexp(logits[row, t - 1], -1) - logits[row, t - 1, int(tokens[row, t])] for t in keep]
        if terms:
            total, count = total + sum(terms), count + len(terms)
            means.append(sum(terms) / len(terms))
    if normalize == "record":
        return sum(means) / len(means) if means else total
    return total / max(count, 1) if normalize == "token" else total


def right_by_weights(logits, tokens, mask, normalize):
    if normalize not in ("token", "record", "sum"):
        raise ValueError("normalize")
    counted = torch.cat([torch.zeros_like(mask[:, :1]), mask[:, 1:]], 1).bool()
    per_row = counted.sum(1, keepdim=True)
    weight = {"sum": 1.0, "token": 1.0 / max(int(counted.sum()), 1)}.get(normalize)
    if weight is None:
        share = 1.0 / per_row.clamp_min(1).double() / max(int((per_row > 0).sum()), 1)
        weight = share.expand(counted.shape)[counted]
    at = counted.nonzero()
    z = logits[at[:, 0], at[:, 1] - 1]
    z = z.float() if z.element_size() == 2 else z
    losses = -torch.log_softmax(z, -1).gather(-1, tokens[counted].long()[:, None])[:, 0]
    return (weight * losses).sum().to(z.dtype)


def shifted_the_wrong_way(logits, tokens, mask, normalize):
    counted = mask[:, :-1].bool()
    z = torch.where(counted[..., None], logits[:, :-1], 0.0)
    wanted = torch.where(counted, tokens[:, 1:], 0)
    losses = torch.where(counted, -torch.log_softmax(z, -1).gather(-1, wanted[..., None])[..., 0], 0.0)
    if normalize == "sum":
        return losses.sum()
    if normalize == "token":
        return losses.sum() / counted.sum().clamp_min(1)
    return (losses.sum(1) / counted.sum(1).clamp_min(1)).sum() / counted.any(1).sum().clamp_min(1)


def forgets_the_mask(logits, tokens, mask, normalize):
    losses = -torch.log_softmax(logits[:, :-1], -1).gather(-1, tokens[:, 1:, None])[..., 0]
    if normalize == "sum":
        return losses.sum()
    return losses.mean()


RIGHT = (right_by_gather, right_by_rows, right_by_weights)


def must_catch(test, draw, wrong):
    missed = line_up(test, draw, RIGHT, wrong)
    if missed:
        raise CheckFailed(
            f"your test: expected an error for each of {len(wrong)} wrong losses, for {len(missed)} got {missed[0]}"
        )


@invariant("L0.10", points=1, anchor=True)
def your_test_catches_a_wrong_shift_and_a_missing_mask(test_sft_loss, draw):
    """your test accepts right losses and catches a mask shifted the wrong way and a mask that is ignored"""
    must_catch(test_sft_loss, draw, [shifted_the_wrong_way, forgets_the_mask])


# ---------------------------------------------------------------- 0.11 find_actions


def small_policy(draw):
    from course.models.decoder import Decoder, DecoderConfig
    from course.models.policy import Policy
    from course.tasks.toolchat import toolchat_tokenizer

    tokenizer = toolchat_tokenizer()
    config = DecoderConfig(vocab_size=tokenizer.vocab_size, layers=1, width=16, heads=2, max_length=256)
    return Policy(Decoder(config, draw.number(0, 10**6)), tokenizer)


def slow_find_actions(transcript, policy):
    tokens, mask = slow_layout(transcript, policy.tokenizer)
    with torch.no_grad():
        scored = slow_token_logprobs(policy(tokens[None], None).double(), tokens[None])[0]
    positions = mask.nonzero()[:, 0]
    return positions, math.fsum(float(scored[t - 1]) for t in positions.tolist())


@invariant("L0.13", points=3, anchor=True)
def positions_and_total_of_the_actions(find_actions, draw):
    """the positions of the policy's tokens and their total log-probability"""
    transcripts, _ = toolchat(draw, 3)
    policy = small_policy(draw)
    for transcript in transcripts:
        positions, total = slow_find_actions(transcript, policy)
        got = find_actions(transcript, policy)
        expect(got[0], "the positions").close_to(positions)
        expect(got[1], "the total log-probability").close_to(exact(total), rtol=1e-5)


@invariant("L0.13", points=1)
def a_transcript_without_actions(find_actions, draw):
    """no sampled turn: no position, total 0"""
    from course.language import Transcript, Turn

    transcript = Transcript((Turn("system", "answer in one sentence ."), Turn("user", "hello ?"), Turn("assistant", "hello .")))
    got = find_actions(transcript, small_policy(draw))
    expect(got[0], "the positions").close_to(torch.zeros(0, dtype=torch.int64))
    expect(got[1], "the total").equals(0.0)


# ---------------------------------------------------------------- the package, where no exercise carries the statement


@invariant("L0.06", home="course.models.decoder")
def a_token_never_changes_a_logit_before_it(Decoder, draw):
    """changing a token of the input changes logits at its place and after, none before"""
    decoder, ids = small_decoder(Decoder, draw), draw.integers(0, 11, 2, 7)
    before = decoder(ids).detach()
    for place in (2, 6):
        other = ids.clone()
        other[:, place] = (other[:, place] + 1 + draw.number(0, 10)) % 11
        after = decoder(other).detach()
        expect(after[:, :place], f"the logits before token {place}").close_to(before[:, :place], rtol=1e-5)
        expect((after - before)[:, place].abs().amax(-1), f"the change at token {place}").at_least(1e-6)


@invariant("L0.06", home="course.models.decoder")
def a_row_in_a_padded_batch_is_the_row_alone(Decoder, draw):
    """a row padded on the left or the right has the logits that it has alone, whatever ids the padding holds"""
    decoder, row = small_decoder(Decoder, draw), draw.integers(0, 11, 1, 4)
    alone = decoder(row).detach()
    for left, right in ((3, 0), (0, 3), (2, 1)):
        ids = torch.cat([draw.integers(0, 11, 1, left), row, draw.integers(0, 11, 1, right)], 1)
        mask = torch.tensor([[0] * left + [1] * 4 + [0] * right])
        batch = torch.cat([ids, draw.integers(0, 11, 1, 7)]), torch.cat([mask, torch.ones_like(mask)])
        got = decoder(*batch).detach()[:1, left : left + 4]
        expect(got, f"a row with {left} pads on the left and {right} on the right").close_to(alone, rtol=1e-5)


def small_decoder(Decoder, draw):
    from course.models.decoder import DecoderConfig

    return Decoder(DecoderConfig(vocab_size=11, layers=2, width=16, heads=2, max_length=16), draw.number(0, 10**6))


@invariant("L0.07", home="course.models.sampling")
def sampled_tokens_are_the_actions_of_a_batch(sample, draw):
    """in a batch of samples actions end with the first end token of any kind; padding is none, though its id may be an end's"""
    from course.models.decoder import Decoder

    prompts, ends = draw.integers(2, 11, 40, 3), (0, 1)
    prompt_mask = torch.tensor([[0, 1, 1]] * 20 + [[1, 1, 1]] * 20).bool()
    prompts[:20, 0] = prompts[:20, 1] = 0  # padding, and a real token with the same id
    decoder, seed = small_decoder(Decoder, draw), draw.number(0, 10**6)
    drawn = sample(decoder, prompts, prompt_mask, max_new_tokens=9, end_ids=ends, pad_id=0, seed=seed)
    wanted = torch.zeros_like(drawn.tokens)
    for row, ids in enumerate(drawn.tokens.tolist()):
        for t in range(3, len(ids)):
            wanted[row, t] = 1
            if ids[t] in ends:
                break
    expect(drawn.action_mask * 1, "the actions").close_to(wanted)
    real = torch.cat([prompt_mask * 1, wanted[:, 3:]], 1)
    expect(drawn.attention_mask * 1, "the tokens that are no padding").close_to(real)


@invariant("L0.11", home="course.language.serializer")
def decoding_gives_the_transcript_back(ChatSerializer, draw):
    """decode(encode(t)) is t, for conversations of every kind, sampled ids included"""
    from course.language import StopReason, Transcript, Turn

    transcripts, tokenizer = toolchat(draw, 12)
    odd = (*tokenizer.encode("it is"), tokenizer.role_id("user"), tokenizer.end_id)
    transcripts.append(Transcript((Turn("user", "hello ?"), Turn("assistant", ids=odd, sampled=True, stop=StopReason.END))))
    serializer = ChatSerializer()
    for transcript in transcripts:
        encoded = serializer.encode(transcript, tokenizer)
        expect(torch.tensor(encoded.tokens), "the tokens").close_to(slow_layout(transcript, tokenizer)[0])
        expect(serializer.decode(encoded, tokenizer) == transcript, "decode(encode(t)) == t").true("the transcript back")


@invariant("L0.11", home="course.models.policy")
def another_serializer_is_another_policy(Policy, draw):
    """the stamp changes with the serializer, although weights and tokenizer are the same, and only then"""
    from course.language import ChatSerializer, CompactSerializer

    base = small_policy(draw)
    one, again = Policy(base.model, base.tokenizer, ChatSerializer()), Policy(base.model, base.tokenizer, ChatSerializer())
    other = Policy(base.model, base.tokenizer, CompactSerializer())
    expect(one.stamp() == again.stamp(), "the stamp of the same policy").true("the same stamp")
    expect(one.stamp() != other.stamp(), "the stamp with another serializer").true("another stamp")


@invariant("L0.12", home="course.training.interaction")
def scores_while_sampling_are_the_scores_of_the_same_weights(interaction_record, draw):
    """log-probabilities recorded while sampling equal those of a teacher-forced pass at the same temperature"""
    record = interaction_record(0)
    recorded, recomputed, mask = record["recorded"].double(), record["recomputed"].double(), record["action_mask"].bool()
    if recorded.shape != recomputed.shape or recorded.shape != mask.shape or int(mask.sum()) < 500:
        raise CheckFailed("the record: expected at least 500 sampled tokens with both scores, got fewer or other shapes")
    gap = (recorded - recomputed)[mask].abs()
    expect(gap, "the difference between recorded and recomputed").at_most(1e-4)
    expect(recorded[mask].std(), "the spread of the recorded scores").at_least(0.05)
    expect(record["temperature"], "the temperature").differs_from(1.0, by=0.05)


@invariant("L0.12", home="course.training.interaction")
def a_low_loss_is_not_good_behaviour(interaction_record, draw):
    """the loss on demonstrations is not the loss on the policy's own samples, and errors of own samples compound with length"""
    record = interaction_record(0)
    expect(record["own_loss"], "the loss on own samples").differs_from(record["demo_loss"], by=0.02)
    forced, own = record["forced_error"].double(), record["own_error"].double()
    third = len(own) // 3
    gap = float((own - forced)[-third:].mean() - (own - forced)[:third].mean())
    if gap < 0.005:
        raise CheckFailed(f"compounding: expected own prefixes to cost more late than early, got a change of {gap:.4f}")
