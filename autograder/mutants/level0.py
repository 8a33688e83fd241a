"""Level 0: known mistakes. The docstring of each is what a learner is told whose function answers alike."""

import math
from dataclasses import replace

import torch

from autograder.checks.level0 import forgets_the_mask, right_by_gather, shifted_the_wrong_way
from autograder.framework import mutant
from autograder.hidden import level0 as hunt
from course import masks, prob
from course.language import ChatSerializer as Chat
from course.language import StopReason, Transcript, Turn
from course.models.decoder import Decoder as RealDecoder
from course.models.policy import Policy as RealPolicy
from course.models.sampling import sample as right_sample
from course.models.score import find_actions as right_find_actions
from course.training.interaction import interaction_record as right_record

# ---------------------------------------------------------------- 0.1 log_softmax


@mutant(of="log_softmax", kills="L0.01")
def no_shift(logits):
    """This looks like the formula as printed: the exponential of a large logit is infinite. Subtract the largest logit first."""
    return logits - logits.exp().sum(-1, keepdim=True).log()


@mutant(of="log_softmax", kills="L0.01")
def log_of_softmax(logits):
    """This looks like log(softmax): a small probability is rounded to 0 and its logarithm to -inf."""
    shifted = (logits - logits.amax(-1, keepdim=True)).exp()
    return (shifted / shifted.sum(-1, keepdim=True)).log()


@mutant(of="log_softmax", kills="L0.01")
def over_the_first_dimension(logits):
    """This looks like a sum over the first dimension: the vocabulary is the last one."""
    return torch.log_softmax(logits, 0)


@mutant(of="log_softmax", kills="L0.01")
def log_with_an_epsilon(logits):
    """This looks like an epsilon inside the logarithm: probabilities no longer add up to 1."""
    return (torch.softmax(logits, -1) + 1e-6).log()


@mutant(of="log_softmax", kills="L0.01")
def shift_by_the_global_maximum(logits):
    """This looks like one maximum for the whole tensor: a row whose logits are far below it underflows."""
    shifted = logits - logits.max()
    return shifted - shifted.exp().sum(-1, keepdim=True).log()


@mutant(of="log_softmax", kills="L0.01")
def stays_in_half_precision(logits):
    """This looks like a sum in the input's own precision: in half precision a long vocabulary loses most of its digits."""
    shifted = logits - logits.amax(-1, keepdim=True)
    return shifted - shifted.exp().cumsum(-1)[..., -1:].log()


@mutant(of="log_softmax", kills="L0.01")
def base_two(logits):
    """This looks like logarithms to base 2: the course uses natural logarithms."""
    return torch.log_softmax(logits, -1) / math.log(2)


@mutant(of="log_softmax", kills="L0.01")
def normaliser_without_gradient(logits):
    """This looks like a normaliser that was detached or computed outside torch: the value is right, the gradient is not."""
    return logits - torch.logsumexp(logits.float() if logits.element_size() == 2 else logits, -1, keepdim=True).detach()


@mutant(of="log_softmax", kills="L0.01")
def all_in_half_precision(logits):
    """This looks like a computation in half precision: three digits are not enough for log-probabilities."""
    return torch.log_softmax(logits.half(), -1).to(logits.dtype)


# ---------------------------------------------------------------- 0.2 token_logprobs


@mutant(of="token_logprobs", kills="L0.02")
def no_shift_of_tokens(logits, tokens):
    """This looks like logits scored against the token at the same position: a model that has already read the token it scores."""
    return prob.log_softmax(logits).gather(-1, tokens[..., None])[:, 1:, 0]


@mutant(of="token_logprobs", kills="L0.02")
def shifted_the_other_way(logits, tokens):
    """This looks like a shift in the wrong direction: the logits after a token can't have predicted it."""
    return prob.log_softmax(logits[:, 1:]).gather(-1, tokens[:, :-1, None])[..., 0]


@mutant(of="token_logprobs", kills="L0.02")
def raw_logits(logits, tokens):
    """This looks like the logits themselves: they are no log-probabilities before they are normalised."""
    return logits[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]


@mutant(of="token_logprobs", kills="L0.02")
def probabilities(logits, tokens):
    """This looks like probabilities instead of their logarithms."""
    return prob.log_softmax(logits[:, :-1]).gather(-1, tokens[:, 1:, None])[..., 0].exp()


@mutant(of="token_logprobs", kills="L0.02")
def negative(logits, tokens):
    """This looks like the negative log-likelihood: here the log-probability itself is asked for, which is never positive."""
    return -prob.log_softmax(logits[:, :-1]).gather(-1, tokens[:, 1:, None])[..., 0]


@mutant(of="token_logprobs", kills="L0.02")
def padded_to_the_full_length(logits, tokens):
    """This looks like T scores with a 0 in front: a row of T tokens has T - 1 scored ones, the first has no prediction."""
    scored = prob.token_logprobs(logits, tokens)
    return torch.cat([torch.zeros_like(scored[:, :1]), scored], 1)


@mutant(of="token_logprobs", kills="L0.02")
def normalised_over_time(logits, tokens):
    """This looks like a softmax over positions: each position has a law of its own over the vocabulary, the last dimension."""
    return torch.log_softmax(logits, 1)[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]


# ---------------------------------------------------------------- 0.3 entropy


@mutant(of="entropy", kills="L0.03")
def nan_beside_impossible(logits):
    """This looks like p * log p without care for p = 0: zero times minus infinity is NaN."""
    logp = torch.log_softmax(logits, -1)
    return -(logp.exp() * logp).sum(-1)


@mutant(of="entropy", kills="L0.03")
def nan_only_in_the_gradient(logits):
    """This looks like a NaN hidden after the product: the value is right and the gradient is still NaN. Replace it before."""
    logp = torch.log_softmax(logits, -1)
    return -torch.where(logp > -math.inf, logp.exp() * logp, 0.0).sum(-1)


@mutant(of="entropy", kills="L0.03")
def clamps_probabilities(logits):
    """This looks like probabilities clamped away from 0: a certain law then has an entropy above 0."""
    p = torch.softmax(logits, -1).clamp_min(1e-6)
    return -(p * p.log()).sum(-1)


@mutant(of="entropy", kills="L0.03")
def negative_entropy(logits):
    """This looks like the sum without its minus sign: entropy is never negative."""
    return -prob.entropy(logits)


@mutant(of="entropy", kills="L0.03")
def mean_instead_of_sum(logits):
    """This looks like a mean over the vocabulary: entropy is the sum, weighted by the probabilities."""
    return prob.entropy(logits) / logits.shape[-1]


@mutant(of="entropy", kills="L0.03")
def in_bits(logits):
    """This looks like entropy in bits: the course uses nats."""
    return prob.entropy(logits) / math.log(2)


@mutant(of="entropy", kills="L0.03")
def probabilities_without_gradient(logits):
    """This looks like detached probabilities in front of log p: the value is right, but the gradient then is 0 in expectation."""
    logp = prob.log_softmax(logits)
    return -(logp.exp().detach() * torch.where(logp == -math.inf, 0.0, logp)).sum(-1)


# ---------------------------------------------------------------- 0.4 kl_divergence


@mutant(of="kl_divergence", kills="L0.04")
def reversed_direction(p_logits, q_logits):
    """This looks like KL(q||p): the law that is sampled from comes first."""
    return prob.kl_divergence(q_logits, p_logits)


@mutant(of="kl_divergence", kills="L0.04")
def cross_entropy_only(p_logits, q_logits):
    """This looks like the cross-entropy: subtract the entropy of p, so that equal laws give 0."""
    return prob.kl_divergence(p_logits, q_logits) + prob.entropy(p_logits)


@mutant(of="kl_divergence", kills="L0.04")
def nan_where_p_is_zero(p_logits, q_logits):
    """This looks like p * (log p - log q) without care for p = 0: the product is NaN there, and should be 0."""
    p, q = torch.log_softmax(p_logits, -1), torch.log_softmax(q_logits, -1)
    return (p.exp() * (p - q)).sum(-1)


@mutant(of="kl_divergence", kills="L0.04")
def finite_where_q_is_zero(p_logits, q_logits):
    """This looks like an infinite term that is dropped or clamped: mass of p that q lacks makes the divergence infinite."""
    p, q = torch.log_softmax(p_logits, -1), torch.log_softmax(q_logits, -1).clamp_min(-30)
    safe = torch.where(p > -math.inf, p, 0.0)
    return torch.where(p > -math.inf, safe.exp() * (safe - q), 0.0).sum(-1)


@mutant(of="kl_divergence", kills="L0.04")
def symmetric(p_logits, q_logits):
    """This looks like the mean of both directions: KL is not symmetric."""
    return 0.5 * (prob.kl_divergence(p_logits, q_logits) + prob.kl_divergence(q_logits, p_logits))


@mutant(of="kl_divergence", kills="L0.04")
def of_raw_logits(p_logits, q_logits):
    """This looks like logits used as log-probabilities: normalise both laws first."""
    return (torch.softmax(p_logits, -1) * (p_logits - q_logits)).sum(-1)


@mutant(of="kl_divergence", kills="L0.04")
def weights_without_gradient(p_logits, q_logits):
    """This looks like detached probabilities of p: as a loss on p this has gradient 0, since the mean of the score is 0."""
    p, q = prob.log_softmax(p_logits), prob.log_softmax(q_logits)
    both = (p > -math.inf) & (q > -math.inf)
    gap = torch.where(both, p, 0.0) - torch.where(both, q, 0.0)
    return torch.where(((p > -math.inf) & ~both).any(-1), math.inf, (p.exp().detach() * gap).sum(-1))


@mutant(of="kl_divergence", kills="L0.04")
def mean_over_the_vocabulary(p_logits, q_logits):
    """This looks like a mean over the vocabulary: the divergence is the sum, weighted by p."""
    return prob.kl_divergence(p_logits, q_logits) / p_logits.shape[-1]


# ---------------------------------------------------------------- 0.5 kl_estimates


@mutant(of="kl_estimates", kills="L0.05")
def swapped_sign(logp, logq):
    """This looks like log q - log p: with samples from p it is log p - log q, and k3 then estimates another divergence."""
    return prob.kl_estimates(logq, logp)


@mutant(of="kl_estimates", kills="L0.05")
def k3_with_the_ratio_turned(logp, logq):
    """This looks like k3 with exp(d) instead of exp(-d): its mean over p is chi-square minus KL."""
    d = logp - logq
    return {"k1": d, "k2": d**2 / 2, "k3": torch.expm1(d) - d}


@mutant(of="kl_estimates", kills="L0.05")
def k2_without_the_half(logp, logq):
    """This looks like k2 without its factor 1/2."""
    return {**prob.kl_estimates(logp, logq), "k2": (logp - logq) ** 2}


@mutant(of="kl_estimates", kills="L0.05")
def k1_made_positive(logp, logq):
    """This looks like the absolute value of k1: single estimates are negative, and only then is the mean right."""
    return {**prob.kl_estimates(logp, logq), "k1": (logp - logq).abs()}


@mutant(of="kl_estimates", kills="L0.05")
def exp_minus_one(logp, logq):
    """This looks like exp(-d) - 1: for small d single precision loses all digits. torch.expm1 keeps them."""
    d = logp - logq
    return {"k1": d, "k2": d**2 / 2, "k3": (-d).exp() - 1 + d}


@mutant(of="kl_estimates", kills="L0.05")
def clipped(logp, logq):
    """This looks like differences clipped to a range: rare, far samples carry much of the mean, clipped ones no gradient."""
    gap = (logp - logq).clamp(-10, 10)
    return prob.kl_estimates(gap, torch.zeros_like(gap))


@mutant(of="kl_estimates", kills="L0.05")
def averaged(logp, logq):
    """This looks like a mean over the samples: the estimates are asked for entry by entry."""
    return {name: value.mean() for name, value in prob.kl_estimates(logp, logq).items()}


@mutant(of="kl_estimates", kills="L0.05")
def detached(logp, logq):
    """This looks like detached log-probabilities: the estimates must carry a gradient."""
    return prob.kl_estimates(logp.detach(), logq.detach())


# ---------------------------------------------------------------- 0.6 causal_attention


def _attention(q, k, v, allowed, scale=None, fill=-math.inf):
    """Shared by the mistakes below: attention with the given table of allowed pairs, careful about everything else."""
    scores = (q @ k.transpose(-1, -2)) / (math.sqrt(q.shape[-1]) if scale is None else scale)
    lonely = ~allowed.any(-1, keepdim=True)
    scores = scores.masked_fill(~allowed & ~lonely, fill)
    return torch.softmax(scores, -1).masked_fill(~allowed, 0.0) @ v.nan_to_num(0.0, 0.0, 0.0)


def _causal(q):
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()


@mutant(of="causal_attention", kills="L0.06")
def sees_the_future(q, k, v, key_mask):
    """This looks like attention without the causal mask: every token sees the ones after it."""
    return _attention(q, k, v, key_mask.bool()[:, None, None, :] & torch.ones_like(_causal(q)))


@mutant(of="causal_attention", kills="L0.06")
def sees_the_padding(q, k, v, key_mask):
    """This looks like attention without the padding mask: what stands in padded positions changes the result."""
    return _attention(q, k, v, _causal(q).expand(len(q), 1, -1, -1))


@mutant(of="causal_attention", kills="L0.06")
def not_scaled(q, k, v, key_mask):
    """This looks like scores that are not divided by the square root of the width."""
    return _attention(q, k, v, _causal(q) & key_mask.bool()[:, None, None, :], scale=1.0)


@mutant(of="causal_attention", kills="L0.06")
def scaled_by_the_width(q, k, v, key_mask):
    """This looks like scores divided by the width instead of its square root."""
    return _attention(q, k, v, _causal(q) & key_mask.bool()[:, None, None, :], scale=q.shape[-1])


@mutant(of="causal_attention", kills="L0.06")
def strictly_before(q, k, v, key_mask):
    """This looks like a causal mask without its diagonal: a token sees itself too."""
    return _attention(q, k, v, _causal(q).tril(-1) & key_mask.bool()[:, None, None, :])


@mutant(of="causal_attention", kills="L0.06")
def nan_for_lonely_queries(q, k, v, key_mask):
    """This looks like a softmax over nothing: a row of only -inf gives NaN."""
    allowed = _causal(q) & key_mask.bool()[:, None, None, :]
    scores = ((q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])).masked_fill(~allowed, -math.inf)
    return torch.softmax(scores, -1) @ v


@mutant(of="causal_attention", kills="L0.06")
def lonely_queries_average(q, k, v, key_mask):
    """This looks like -1e9 instead of -inf: a query that sees nothing then gets the average of what it must not see."""
    allowed = _causal(q) & key_mask.bool()[:, None, None, :]
    scores = ((q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])).masked_fill(~allowed, -1e9)
    return torch.softmax(scores, -1) @ v


@mutant(of="causal_attention", kills="L0.06")
def hidden_scores_are_not_low_enough(q, k, v, key_mask):
    """This looks like -1e4 in place of -inf: a visible key can score lower than that, and then hidden ones take its weight."""
    allowed = _causal(q) & key_mask.bool()[:, None, None, :]
    return _attention(q, k, torch.where(key_mask.bool()[:, None, :, None], v, 0.0), allowed, fill=-1e4)


@mutant(of="causal_attention", kills="L0.06")
def masked_after_the_softmax(q, k, v, key_mask):
    """This looks like weights set to 0 after the softmax: what is left no longer adds up to 1."""
    allowed = _causal(q) & key_mask.bool()[:, None, None, :]
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1).masked_fill(~allowed, 0.0) @ v


@mutant(of="causal_attention", kills="L0.06")
def queries_without_gradient(q, k, v, key_mask):
    """This looks like attention weights cut off from the graph: where to look can then not be learned."""
    allowed = _causal(q) & key_mask.bool()[:, None, None, :]
    weights = _attention(q, k, torch.eye(q.shape[-2], dtype=q.dtype).expand(*q.shape[:2], -1, -1), allowed)
    live = torch.where(key_mask.bool()[:, None, :, None], v, 0.0)
    return weights.detach() @ live + 0.0 * (q.sum() + torch.where(key_mask.bool()[:, None, :, None], k, 0.0).sum())


@mutant(of="causal_attention", kills="L0.06")
def padding_is_cleaned_too_late(q, k, v, key_mask):
    """This looks like weights of 0 on padded values: 0 times NaN is NaN. Set padded values to 0 before they are multiplied."""
    allowed = _causal(q) & key_mask.bool()[:, None, None, :]
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    lonely = ~allowed.any(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(~allowed & ~lonely, -math.inf), -1).masked_fill(~allowed, 0.0) @ v


@mutant(of="Decoder", kills="L0.06")
class IgnoresThePadding(RealDecoder):
    """This looks like a model that is never told what is padding: on the left it reads it as text."""

    def forward(self, ids, attention_mask=None):
        return super().forward(ids)


@mutant(of="Decoder", kills="L0.06")
class ReadsTheNextToken(RealDecoder):
    """This looks like inputs shifted like labels: each position has already read the token that it predicts."""

    def forward(self, ids, attention_mask=None):
        return super().forward(ids.roll(-1, 1), attention_mask)


@mutant(of="Decoder", kills="L0.06")
class MixesPositions(RealDecoder):
    """This looks like a normalisation over time: a statistic over all positions tells earlier ones about later tokens."""

    def forward(self, ids, attention_mask=None):
        logits = super().forward(ids, attention_mask)
        return logits - logits.mean(1, keepdim=True)


# ---------------------------------------------------------------- 0.7 action_mask


def _spans(transcript, tokenizer):
    encoded = Chat().encode(transcript, tokenizer)
    return encoded.spans, torch.tensor(encoded.tokens)


def _marked(transcript, tokenizer, chosen):
    spans, tokens = _spans(transcript, tokenizer)
    mask = torch.zeros(len(tokens), dtype=torch.bool)
    for span in spans:
        if span.turn_index >= 0 and chosen(span, transcript.turns[span.turn_index]):
            mask[span.start : span.stop] = True
    return tokens, mask


@mutant(of="action_mask", kills="L0.07")
def all_assistant_turns(transcript, tokenizer):
    """This looks like "every assistant turn is an action": an example in the prompt was written by somebody else."""
    return _marked(transcript, tokenizer, lambda s, turn: turn.role == "assistant" and s.kind in ("text", "sampled"))


@mutant(of="action_mask", kills="L0.07")
def tool_results_too(transcript, tokenizer):
    """This looks like tool results inside the mask: the policy did not choose what a tool returned."""
    return _marked(transcript, tokenizer, lambda s, turn: s.kind == "sampled" or (turn.role == "tool" and s.kind == "text"))


@mutant(of="action_mask", kills="L0.07")
def without_the_end_token(transcript, tokenizer):
    """This looks like the end token left out: a policy that is never trained on it never learns to stop."""
    tokens, mask = _marked(transcript, tokenizer, lambda s, turn: s.kind == "sampled")
    return tokens, mask & (tokens != tokenizer.end_id)


@mutant(of="action_mask", kills="L0.07")
def headers_too(transcript, tokenizer):
    """This looks like the role token inside the mask: it was put there by the layout, not sampled."""
    return _marked(transcript, tokenizer, lambda s, turn: turn.sampled and s.kind in ("header", "sampled"))


@mutant(of="action_mask", kills="L0.07")
def inserted_ends_too(transcript, tokenizer):
    """This looks like an end token counted although the turn was cut off: nobody sampled that one."""
    return _marked(transcript, tokenizer, lambda s, turn: turn.sampled and s.kind in ("sampled", "end"))


@mutant(of="action_mask", kills="L0.07")
def only_the_last_turn(transcript, tokenizer):
    """This looks like only the last sampled turn: every turn of the policy holds actions."""
    last = max((i for i, turn in enumerate(transcript.turns) if turn.sampled), default=-1)
    return _marked(transcript, tokenizer, lambda s, turn: s.kind == "sampled" and s.turn_index == last)


@mutant(of="action_mask", kills="L0.07")
def shifted_by_one(transcript, tokenizer):
    """This looks like a mask that is one position early: mask[t] marks token t itself; the shift belongs to the loss."""
    tokens, mask = _marked(transcript, tokenizer, lambda s, turn: s.kind == "sampled")
    return tokens, torch.cat([mask[1:], mask[:1]])


@mutant(of="action_mask", kills="L0.07")
def an_end_after_the_last_cut_turn(transcript, tokenizer):
    """This looks like an end token after a last turn that was cut off: nothing follows, so nothing is added."""
    tokens, mask = _marked(transcript, tokenizer, lambda s, turn: s.kind == "sampled")
    if transcript.turns and transcript.turns[-1].sampled and transcript.turns[-1].stop is not StopReason.END:
        tokens, mask = torch.cat([tokens, torch.tensor([tokenizer.end_id])]), torch.cat([mask, torch.tensor([False])])
    return tokens, mask


def _rewritten(transcript, rewrite):
    turns = [Turn(t.role, ids=rewrite(t), sampled=True, stop=t.stop) if t.sampled else t for t in transcript.turns]
    return Transcript(tuple(turns))


@mutant(of="action_mask", kills="L0.11")
def tokenises_again(transcript, tokenizer):
    """This looks like sampled ids decoded and encoded again: other ids can spell the same text, and special ones vanish."""

    def again(turn):
        end = (tokenizer.end_id,) if turn.stop is StopReason.END else ()
        return (*tokenizer.encode(tokenizer.decode([i for i in turn.ids if i != tokenizer.end_id])), *end)

    return Chat_mask(_rewritten(transcript, again), tokenizer)


@mutant(of="action_mask", kills="L0.11")
def drops_special_ids(transcript, tokenizer):
    """This looks like special tokens filtered out of what was sampled: the record is the ids, whatever they are."""
    special = {tokenizer.role_id(r) for r in ("system", "user", "assistant", "tool")} | {tokenizer.bos_id}
    return Chat_mask(_rewritten(transcript, lambda t: tuple(i for i in t.ids if i not in special)), tokenizer)


@mutant(of="action_mask", kills="L0.11")
def sampled_role_tokens_open_turns(transcript, tokenizer):
    """This looks like a mask read from the ids: a role token that the policy sampled opens no turn."""
    tokens, mask = Chat_mask(transcript, tokenizer)
    special = torch.tensor([tokenizer.role_id(r) for r in ("system", "user", "assistant", "tool")])
    return tokens, mask & ~torch.isin(tokens, special)


def Chat_mask(transcript, tokenizer):
    return _marked(transcript, tokenizer, lambda s, turn: s.kind == "sampled")


@mutant(of="ChatSerializer", kills="L0.11")
class LosesSampledIds(Chat):
    """This looks like a transcript rebuilt from text: what was sampled is lost."""

    def decode(self, encoded, tokenizer):
        turns = super().decode(encoded, tokenizer).turns
        return Transcript(tuple(Turn(t.role, tokenizer.decode(t.ids)) if t.sampled else t for t in turns))


@mutant(of="Policy", kills="L0.11")
class StampWithoutSerializer(RealPolicy):
    """This looks like a stamp over weights and tokenizer only: another layout is another law, with the same stamp."""

    def stamp(self, *args, **kwargs):
        return RealPolicy(self.model, self.tokenizer).stamp(*args, **kwargs)


@mutant(of="ChatSerializer", kills="L0.11")
class StripsWhatItEncodes(Chat):
    """This looks like sampled special tokens dropped while encoding: the record is the ids, whatever they are."""

    def encode(self, transcript, tokenizer):
        role_ids = {tokenizer.role_id(role) for role in ("system", "user", "assistant", "tool")}
        return super().encode(_rewritten(transcript, lambda turn: tuple(i for i in turn.ids if i not in role_ids)), tokenizer)


@mutant(of="ChatSerializer", kills="L0.11")
class ForgetsWhoStopped(Chat):
    """This looks like a stop reason guessed from the last id: a call that the runtime stopped and a cut one look alike."""

    def decode(self, encoded, tokenizer):
        turns = super().decode(encoded, tokenizer).turns
        return Transcript(tuple(replace(t, stop=StopReason.LENGTH) if t.stop is StopReason.STOP_TEXT else t for t in turns))


@mutant(of="Policy", kills="L0.11")
class StampOfEncodedTokens(RealPolicy):
    """This looks like a stamp over the tokens of one transcript: two layouts can agree on that one and differ on the next."""

    def stamp(self, *args, **kwargs):
        transcript = Transcript((Turn("system", "hello ?"), Turn("assistant", "hello .")))
        tokens = self.serializer.encode(transcript, self.tokenizer).tokens
        return RealPolicy(self.model, self.tokenizer).stamp(*args, **kwargs) + "-".join(map(str, tokens))


@mutant(of="Policy", kills="L0.11")
class StampOfTheObject(RealPolicy):
    """This looks like a stamp made from an object's identity: the same policy, loaded twice, must have one stamp."""

    def stamp(self, *args, **kwargs):
        return super().stamp(*args, **kwargs) + f"{id(self)}"


def _with_mask(samples, mask, attention=None):
    attention = samples.attention_mask if attention is None else attention
    kept = torch.where(mask[:, 1:], samples.logprobs, 0.0)
    return replace(samples, action_mask=mask, attention_mask=attention, logprobs=kept)


@mutant(of="sample", kills="L0.07")
def padding_by_its_id(model, prompts, prompt_mask, **how):
    """This looks like a mask made of "id is not the pad id": where padding uses the end token, the end is never trained."""
    samples = right_sample(model, prompts, prompt_mask, **how)
    return _with_mask(samples, samples.action_mask & (samples.tokens != how["pad_id"]))


@mutant(of="sample", kills="L0.07")
def everything_behind_the_prompt(model, prompts, prompt_mask, **how):
    """This looks like all columns behind the prompt: padding after the end is no action."""
    samples = right_sample(model, prompts, prompt_mask, **how)
    behind = (torch.arange(samples.tokens.shape[1]) >= samples.prompt_length).expand_as(samples.tokens)
    return _with_mask(samples, behind, samples.attention_mask | behind)


@mutant(of="sample", kills="L0.07")
def real_prompt_tokens_by_their_id(model, prompts, prompt_mask, **how):
    """This looks like an attention mask made from ids: a prompt may hold a real token with the id of padding."""
    samples = right_sample(model, prompts, prompt_mask, **how)
    attention = samples.attention_mask.clone()
    attention[:, : samples.prompt_length] &= samples.tokens[:, : samples.prompt_length] != how["pad_id"]
    return _with_mask(samples, samples.action_mask, attention)


# ---------------------------------------------------------------- 0.8 masked_mean


@mutant(of="masked_mean", kills="L0.08")
def divides_by_the_size(x, mask, dim=None):
    """This looks like a mean over all entries: the denominator is the number of counted ones."""
    kept = torch.where(mask.bool(), x, 0.0)
    return kept.mean() if dim is None else kept.mean(dim)


@mutant(of="masked_mean", kills="L0.08")
def zero_times_nan(x, mask, dim=None):
    """This looks like x * mask: 0 times NaN is NaN, so multiplying does not mask."""
    m = mask.to(x.dtype)
    return (x * m).sum() / m.sum().clamp_min(1) if dim is None else (x * m).sum(dim) / m.sum(dim).clamp_min(1)


@mutant(of="masked_mean", kills="L0.08")
def nan_for_nothing(x, mask, dim=None):
    """This looks like 0/0 under an empty mask: the mean of nothing is 0 here."""
    kept, m = torch.where(mask.bool(), x, 0.0), mask.to(x.dtype)
    return kept.sum() / m.sum() if dim is None else kept.sum(dim) / m.sum(dim)


@mutant(of="masked_mean", kills="L0.08")
def an_epsilon_in_the_denominator(x, mask, dim=None):
    """This looks like count + epsilon: the mean of a short row is then a little too small."""
    kept, m = torch.where(mask.bool(), x, 0.0), mask.to(x.dtype)
    return kept.sum() / (m.sum() + 1e-4) if dim is None else kept.sum(dim) / (m.sum(dim) + 1e-4)


@mutant(of="masked_mean", kills="L0.08")
def last_dimension_only(x, mask, dim=None):
    """This looks like the last dimension whatever was asked for."""
    return masks.masked_mean(x, mask, None if dim is None else -1)


@mutant(of="masked_mean", kills="L0.08")
def ignores_dim(x, mask, dim=None):
    """This looks like one mean over everything although a dimension was given."""
    return masks.masked_mean(x, mask)


@mutant(of="masked_mean", kills="L0.08")
def mask_turned_around(x, mask, dim=None):
    """This looks like the mean of what is masked out: 1 means counted."""
    return masks.masked_mean(x, ~mask.bool(), dim)


@mutant(of="masked_mean", kills="L0.08")
def nan_to_num_everywhere(x, mask, dim=None):
    """This looks like NaN replaced by 0 and infinity by a huge number: they must not be seen at all behind the mask."""
    return zero_times_nan(x.nan_to_num(), mask, dim) + 0.0 * x.sum()


# ---------------------------------------------------------------- 0.9 sft_loss


def _losses(logits, tokens, mask):
    scored = torch.log_softmax(logits[:, :-1], -1).gather(-1, tokens[:, 1:, None])[..., 0]
    counted = mask[:, 1:].bool()
    return torch.where(counted, -scored, 0.0), counted


@mutant(of="sft_loss", kills=("L0.09", "L0.10"))
def mask_one_early(logits, tokens, mask, normalize):
    """This looks like mask[:, :-1]: the first answer token is never trained and the token after the answer is."""
    return shifted_the_wrong_way(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.09")
def record_is_token(logits, tokens, mask, normalize):
    """This looks like the token mean under the name of the record mean: records of different length then weigh differently."""
    return hunt.token_mean_for_all(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.09")
def divides_by_all_positions(logits, tokens, mask, normalize):
    """This looks like a mean over all positions: only counted tokens belong in the denominator."""
    return hunt.mean_over_all_positions(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.09")
def counts_empty_records(logits, tokens, mask, normalize):
    """This looks like records without a counted token in the denominator: they have no mean."""
    return hunt.empty_records_count(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.09")
def sum_is_a_mean(logits, tokens, mask, normalize):
    """This looks like "sum" divided by the number of records: a sum has no denominator."""
    value = right_by_gather(logits, tokens, mask, normalize)
    return value / len(tokens) if normalize == "sum" else value


@mutant(of="sft_loss", kills="L0.09")
def counts_tokens_with_the_first_column(logits, tokens, mask, normalize):
    """This looks like a count over all T entries of the mask: the first token is never scored."""
    losses, counted = _losses(logits, tokens, mask)
    count = mask.bool().sum()
    return losses.sum() / count.clamp_min(1) if normalize == "token" else right_by_gather(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.09")
def token_is_record(logits, tokens, mask, normalize):
    """This looks like the record mean under the name of the token mean: a token of a short record then weighs more."""
    return hunt.record_mean_for_all(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.09")
def gradient_of_the_sum(logits, tokens, mask, normalize):
    """This looks like a mean that is only reported: the value is divided, the gradient is that of the sum."""
    total = right_by_gather(logits, tokens, mask, "sum")
    return right_by_gather(logits, tokens, mask, normalize).detach() + total - total.detach()


@mutant(of="sft_loss", kills="L0.10")
def a_little_of_everything(logits, tokens, mask, normalize):
    """This looks like masked tokens made cheap instead of absent: their gradient must be exactly 0."""
    everywhere = torch.ones_like(mask)
    extra = right_by_gather(logits.nan_to_num(), tokens, everywhere, "sum")
    return right_by_gather(logits, tokens, mask, normalize) + 1e-9 * extra


@mutant(of="sft_loss", kills="L0.10")
def trains_everything(logits, tokens, mask, normalize):
    """This looks like the mask ignored: the policy is trained to produce its prompt."""
    return forgets_the_mask(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.10")
def leaks_nan(logits, tokens, mask, normalize):
    """This looks like losses multiplied by the mask: NaN behind the mask gets through."""
    return hunt.multiplies_by_the_mask(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.10")
def nan_of_nothing(logits, tokens, mask, normalize):
    """This looks like 0/0 where there is nothing to learn: the loss of nothing is 0."""
    return hunt.nothing_to_learn_is_nan(logits, tokens, mask, normalize)


@mutant(of="sft_loss", kills="L0.10")
def no_gradient_at_all(logits, tokens, mask, normalize):
    """This looks like a value cut off from the graph: the loss is right and teaches nothing."""
    return hunt.cuts_the_gradient(logits, tokens, mask, normalize)


# ---------------------------------------------------------------- 0.10 test_sft_loss


@mutant(of="test_sft_loss", kills=("L0.09", "L0.10"))
def accepts_everything(loss):
    """This looks like a test that cannot fail."""


@mutant(of="test_sft_loss", kills=("L0.09", "L0.10"))
def rejects_everything(loss):
    """This looks like a test that always raises: a right implementation must pass."""
    raise AssertionError


@mutant(of="test_sft_loss", kills=("L0.09", "L0.10"))
def only_checks_the_shape(loss):
    """This looks like a test of shape and sign only: wrong values pass."""
    value = loss(torch.zeros(2, 4, 3), torch.zeros(2, 4, dtype=torch.int64), torch.ones(2, 4, dtype=torch.bool), "token")
    assert value.shape == () and value >= 0


@mutant(of="test_sft_loss", kills=("L0.09", "L0.10"))
def only_full_masks(loss):
    """This looks like a test with a full mask only: a shifted mask gives the same there."""
    logits, tokens = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)), torch.ones(2, 4, dtype=torch.int64)
    mask = torch.ones(2, 4, dtype=torch.bool)
    for how in ("token", "record", "sum"):
        assert torch.allclose(loss(logits, tokens, mask, how), right_by_gather(logits, tokens, mask, how))


@mutant(of="test_sft_loss", kills=("L0.09", "L0.10"))
def compares_bit_by_bit(loss):
    """This looks like exact equality of floating-point numbers: another right order of sums differs in the last bit."""
    logits = torch.randn(5, 9, 7, generator=torch.Generator().manual_seed(0))
    tokens, mask = torch.ones(5, 9, dtype=torch.int64), torch.ones(5, 9).tril().bool()
    for how in ("token", "record", "sum"):
        assert torch.equal(loss(logits, tokens, mask, how), right_by_gather(logits, tokens, mask, how))


# ---------------------------------------------------------------- 0.11 find_actions


@mutant(of="find_actions", kills="L0.13")
def total_over_everything(transcript, policy):
    """This looks like the log-probability of the whole transcript: only the policy's own tokens count."""
    positions, _ = right_find_actions(transcript, policy)
    tokens = torch.tensor(Chat().encode(transcript, policy.tokenizer).tokens)[None]
    return positions, prob.token_logprobs(policy(tokens, None), tokens).sum().detach()


@mutant(of="find_actions", kills="L0.13")
def off_by_one_positions(transcript, policy):
    """This looks like positions in the shifted row: they count in the encoded transcript, where token 0 is the begin token."""
    positions, total = right_find_actions(transcript, policy)
    return positions - 1, total


@mutant(of="find_actions", kills="L0.13")
def scored_one_late(transcript, policy):
    """This looks like scores taken at the action's own position: the logits before it are the ones that chose it."""
    positions, _ = right_find_actions(transcript, policy)
    tokens = torch.tensor(Chat().encode(transcript, policy.tokenizer).tokens)[None]
    logp = prob.log_softmax(policy(tokens, None))[0].detach()
    return positions, logp[positions, tokens[0, positions]].sum()


@mutant(of="find_actions", kills="L0.13")
def mean_instead_of_total(transcript, policy):
    """This looks like the mean over the actions: the total is asked for."""
    positions, total = right_find_actions(transcript, policy)
    return positions, total / max(1, len(positions))


@mutant(of="find_actions", kills="L0.13")
def includes_somebody_elses(transcript, policy):
    """This looks like every assistant turn counted as an action: some were written by somebody else."""
    tokens, mask = all_assistant_turns(transcript, policy.tokenizer)
    scored = prob.token_logprobs(policy(tokens[None], None), tokens[None])[0].detach()
    return mask.nonzero()[:, 0], torch.where(mask[1:], scored, 0.0).sum()


@mutant(of="find_actions", kills="L0.13")
def rewrites_what_was_sampled(transcript, policy):
    """This looks like a transcript that was tokenised again from its text: positions and scores are those of other tokens."""
    tokens, mask = tokenises_again(transcript, policy.tokenizer)
    scored = prob.token_logprobs(policy(tokens[None], None), tokens[None])[0].detach()
    return mask.nonzero()[:, 0], torch.where(mask[1:], scored, 0.0).sum()


# ---------------------------------------------------------------- outcomes: what a wrong pipeline would have recorded


@mutant(of="interaction_record", kills="L0.12")
def recorded_at_another_temperature(seed):
    """This looks like log-probabilities recorded at temperature 1 while sampling at another."""
    record = right_record(seed)
    return {**record, "recorded": record["recorded"] * record["temperature"]}


@mutant(of="interaction_record", kills="L0.12")
def recorded_one_late(seed):
    """This looks like recorded scores shifted by one position."""
    record = right_record(seed)
    return {**record, "recorded": record["recorded"].roll(1, dims=-1)}


@mutant(of="interaction_record", kills="L0.12")
def scored_after_an_update(seed):
    """This looks like scores recomputed after the weights had moved."""
    record = right_record(seed)
    return {**record, "recomputed": record["recomputed"] - 0.01}


@mutant(of="interaction_record", kills="L0.12")
def own_samples_never_drawn(seed):
    """This looks like the loss on demonstrations reported twice: nobody looked at the policy's own samples."""
    record = right_record(seed)
    return {**record, "own_loss": record["demo_loss"], "own_error": record["forced_error"]}


# ---------------------------------------------------------------- found by working through the level


@mutant(of="causal_attention", kills="L0.06")
def cleans_the_values_only(q, k, v, key_mask):
    """This looks like padded values set to 0 and padded keys left as they are: a NaN in a key reaches the gradient of the queries."""
    real = key_mask.bool()
    v = v.masked_fill(~real[:, None, :, None], 0.0)
    allowed = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril() & real[:, None, None, :]
    some = allowed.any(-1, keepdim=True)
    scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~allowed & some, -math.inf)
    return torch.softmax(scores, -1).masked_fill(~allowed, 0.0) @ v


@mutant(of="token_logprobs", kills="L0.02")
def picks_by_multiplying(logits, tokens):
    """This looks like log-probabilities times a one-hot table: an impossible entry elsewhere gives 0 times -inf, which is NaN."""
    hot = torch.nn.functional.one_hot(tokens[:, 1:], logits.shape[-1])
    return (torch.log_softmax(logits[:, :-1], -1) * hot).sum(-1)


@mutant(of="masked_mean", kills="L0.08")
def swallows_every_nan(x, mask, dim=None):
    """This looks like nan_to_num on everything: a NaN that counts is a fault upstream, and it must show."""
    m = mask.to(x.dtype)
    kept = torch.nan_to_num(torch.where(mask.bool(), x, 0.0))
    return kept.sum() / m.sum().clamp_min(1) if dim is None else kept.sum(dim) / m.sum(dim).clamp_min(1)


@mutant(of="action_mask", kills="L0.07")
def asks_the_last_id(transcript, tokenizer):
    """This looks like the last sampled id asked whether a turn has ended: a turn may hold no id at all. Ask turn.stop."""
    for turn in transcript.turns:
        if turn.sampled:
            turn.ids[-1]
    from course.language import action_mask

    return action_mask(transcript, tokenizer)
