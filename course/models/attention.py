"""Attention: who may look at whom."""

import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor
import torch

from course.masks import boolean_mask


def causal_attention(
    q: Float[Tensor, "batch heads time size"],
    k: Float[Tensor, "batch heads time size"],
    v: Float[Tensor, "batch heads time size"],
    key_mask: Shaped[Tensor, "batch time"],
) -> Float[Tensor, "batch heads time size"]:
    """Scaled dot-product attention over the real positions up to and including one's own.

        o_t = sum over s in S_t of a_ts v_s,   a_t = softmax over s in S_t of q_t . k_s / sqrt(D),   S_t = {s <= t: key s is real}

    Shapes and units: q, k, v [B,H,T,D]; key_mask [B,T] bool or 0/1, 1 for real tokens; result [B,H,T,D]. A query with an empty
    S_t (left of the first real token) gives exactly 0 and sends no gradient.
    Keys and values at padded positions are replaced before any product, so that NaN there reaches neither value nor gradient.
    Reduces to: plain causal attention under a full mask; v_t at a position whose only visible key is its own.
    Raises: ValueError if shapes differ or the mask is not 0/1.
    Source: Vaswani et al. 2017 (arXiv 1706.03762), section 3.2.
    """
    if q.dim() != 4 or not q.shape == k.shape == v.shape:
        raise ValueError(f"q, k and v must share one shape [B,H,T,D]; got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}")
    real = boolean_mask(key_mask, (q.shape[0], q.shape[2]), "key_mask")
    padded = ~real[:, None, :, None]
    k, v = k.masked_fill(padded, 0.0), v.masked_fill(padded, 0.0)
    allowed = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril() & real[:, None, None, :]
    # A softmax over nothing is 0/0: such a query looks at everything instead, and its answer is thrown away.
    lonely = ~allowed.any(-1, keepdim=True)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed | lonely).masked_fill(lonely, 0.0)
