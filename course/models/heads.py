"""One number per token, for reward and value models."""

from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
import torch


class ScalarHead(nn.Module):
    """head(ids [B,T], attention_mask [B,T] or None) -> values [B,T], linear in the hidden states of a trunk.

    The trunk (a Decoder or a CausalLM) is trained along; give a copy if the policy must not move. The weights, drawn from the
    seed, are small, so that a fresh reward model finds every pair about equally good. Values at padded positions mean nothing.
    """

    def __init__(self, trunk: nn.Module, seed: int):
        super().__init__()
        self.trunk = trunk
        like = next(trunk.parameters())
        self.out = nn.Linear(trunk.width, 1)
        nn.init.normal_(self.out.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(self.out.bias)
        self.out.to(like.device, like.dtype)

    def forward(
        self, ids: Int[Tensor, "batch time"], attention_mask: Shaped[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time"]:
        return self.out(self.trunk.hidden(ids, attention_mask))[..., 0]
