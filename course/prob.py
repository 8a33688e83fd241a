"""Laws over a vocabulary: log-probabilities, entropy, Kullback-Leibler divergence and its sampled estimators."""

from jaxtyping import Float, Int
from torch import Tensor
import torch

from course.masks import checked


def log_softmax(logits: Float[Tensor, "*batch vocab"], name: str = "logits") -> Float[Tensor, "*batch vocab"]:
    """Logarithm of the probabilities that the logits stand for.

        log p_v = z_v - m - log sum over u of exp(z_u - m),   m = max over u of z_u

    Shapes and units: logits [.., V], any real numbers, -inf for a forbidden token; result [.., V] in nats, -inf where forbidden.
    `name` is what an error message calls the logits. float16 and bfloat16 logits are reduced, and returned, in float32.
    Reduces to: -log V for equal logits; unchanged when a constant is added to all logits of a row.
    Raises: ValueError if a logit is NaN or +inf, or a row allows no token at all (all -inf).
    Source: Bridle 1990 (softmax); subtracting the maximum is standard numerical practice.
    """
    if logits.dim() < 1 or logits.shape[-1] < 1:
        raise ValueError(f"{name} must be [.., V] with V >= 1; got {tuple(logits.shape)}")
    # A row's maximum is NaN or +inf if an entry is, and -inf if all are: one look finds every fault, which `checked` then names.
    if not logits.is_floating_point() or not torch.isfinite(logits.detach().amax(-1)).all():
        checked(logits, name)
        raise ValueError(f"{name} has a row whose every entry is -inf; a law needs at least one possible token")
    return torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def token_logprobs(logits: Float[Tensor, "batch time vocab"], tokens: Int[Tensor, "batch time"]) -> Float[Tensor, "batch next"]:
    """Log-probability of each token after the first, given the tokens before it.

        result[b, t] = log softmax(logits[b, t])[tokens[b, t+1]],   t = 0 .. T-2

    Shapes and units: logits [B,T,V], where position t was computed from tokens 0..t; tokens [B,T] ids; result [B,T-1] in nats.
    Result column t belongs to token t+1, so a mask over tokens goes with it as mask[:, 1:]. The last position's logits score
    nothing and are not looked at, and neither is the first token.
    Reduces to: the log-probability of a whole response when summed over its tokens; over all responses of one length the
    probabilities sum to 1.
    Raises: ValueError if shapes do not fit, a scoring logit is NaN or +inf, or a scored id is not in 0..V-1.
    Source: the chain rule of probability; Bengio et al. 2003 (neural language model).
    """
    if logits.dim() != 3 or tuple(tokens.shape) != tuple(logits.shape[:2]) or tokens.shape[1] < 1:
        raise ValueError(
            f"logits must be [B,T,V] and tokens [B,T] with T >= 1; got {tuple(logits.shape)} and {tuple(tokens.shape)}"
        )
    scored = tokens[:, 1:].long()
    if ((scored < 0) | (scored >= logits.shape[-1])).any():
        low, high = int(scored.min()), int(scored.max())
        raise ValueError(f"tokens must be ids in 0..{logits.shape[-1] - 1}; got ids from {low} to {high}")
    return log_softmax(logits[:, :-1]).gather(-1, scored[..., None])[..., 0]


def entropy(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Shannon entropy of the law that the logits stand for.

        H = - sum over v of p_v log p_v,   with 0 log 0 = 0

    Shapes and units: logits [.., V]; result [..] in nats, between 0 and log V.
    Forbidden tokens (-inf) are taken out before the product, so that neither the value nor the gradient sees 0 * inf.
    Reduces to: log V for equal logits; 0 for a one-hot law.
    Raises: ValueError if a logit is NaN or +inf, or a row allows no token.
    Source: Shannon 1948.
    """
    logp = log_softmax(logits)
    return -(logp.exp() * torch.where(logp == float("-inf"), 0.0, logp)).sum(-1)


def kl_divergence(p_logits: Float[Tensor, "*batch vocab"], q_logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch"]:
    """Kullback-Leibler divergence KL(p || q) of two laws given by logits.

        KL = sum over v of p_v (log p_v - log q_v),   with 0 log 0 = 0

    Shapes and units: both logits [.., V]; result [..] in nats, never negative; +inf where p allows a token that q forbids
    (such a row sends no gradient). Not symmetric.
    Reduces to: 0 for equal laws; log V - H(p) for a uniform q.
    Raises: ValueError if shapes differ, a logit is NaN or +inf, or a row allows no token.
    Source: Kullback and Leibler 1951.
    """
    if p_logits.shape != q_logits.shape:
        raise ValueError(f"p_logits and q_logits must have one shape; got {tuple(p_logits.shape)} and {tuple(q_logits.shape)}")
    logp, logq = log_softmax(p_logits, "p_logits"), log_softmax(q_logits, "q_logits")
    p_allows, q_allows = logp != float("-inf"), logq != float("-inf")
    gap = torch.where(p_allows & q_allows, logp, 0.0) - torch.where(p_allows & q_allows, logq, 0.0)
    # Rounding can leave a sum of -1e-9 for nearly equal laws; there the gradient is as small, so clamping costs nothing.
    total = (logp.exp() * gap).sum(-1).clamp(min=0)
    return torch.where((p_allows & ~q_allows).any(-1), float("inf"), total)


def kl_estimates(logp: Float[Tensor, "*shape"], logq: Float[Tensor, "*shape"]) -> dict[str, Float[Tensor, "*shape"]]:
    """Three estimates of KL(p || q), one per sample drawn from p.

        k1 = log p - log q        k2 = k1^2 / 2        k3 = exp(-k1) - 1 + k1

    Shapes and units: logp, logq [any one shape], the two log-probabilities of tokens sampled from p; results in nats.
    k1 and k3 are unbiased where q supports every sampled token, k2 is biased. None is clipped: a clip would bias the value and
    kill the gradient. As a loss: k1 has expected gradient 0, k2 gives the gradient of KL(p||q), k3 that of KL(q||p).
    expm1 keeps k3 exact near 0, where exp(-k1) - 1 + k1 loses all its digits in float32.
    Reduces to: 0, 0, 0 where logp = logq.
    Raises: ValueError if shapes differ, logp is not finite (a sample of p has positive probability), or logq is NaN or +inf.
    Source: Schulman 2020, "Approximating KL divergence" (blog). The gradients: the score of p has mean 0.
    """
    if logp.shape != logq.shape:
        raise ValueError(f"logp and logq must have one shape; got {tuple(logp.shape)} and {tuple(logq.shape)}")
    k1 = checked(logp, "logp", finite=True) - checked(logq, "logq")
    return {"k1": k1, "k2": k1.square() / 2, "k3": torch.expm1(-k1) + k1}
