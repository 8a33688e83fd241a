"""Losses on recorded episodes: imitation of their actions, and policy losses with credit for tokens or for whole actions."""

from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor
import torch

from course.credit.turns import acting, action_sums, present_actions, trajectory_mask
from course.masks import selected
from course.objectives.aggregation import aggregate
from course.objectives.policy_gradient import clipped_token_loss
from course.objectives.supervised import sft_loss


def cloning_loss(logits: Float[Tensor, "time vocab"], record: Any) -> Float[Tensor, ""]:
    """Behaviour cloning of one episode.

        L = mean over the action tokens t of -log p(token t | tokens before it)

    Shapes and units: logits [T,V], one row per token of the record; record has `tokens` and `action_spans`; result a scalar in nats.
    An observation is part of what later actions are predicted from, and is itself no target: changing its tokens changes no term of
    its own positions.
    Reduces to: sft_loss of a batch of this one episode, per token; 0 for an episode without actions.
    Raises: ValueError if logits do not have a row per token, or as trajectory_mask and sft_loss.
    Source: behaviour cloning; the loss is restricted to the policy's own actions.
    """
    if logits.dim() != 2 or len(logits) != len(record.tokens):
        raise ValueError(f"logits must be [T,V] with a row for each of {len(record.tokens)} tokens; got {tuple(logits.shape)}")
    tokens = torch.tensor(record.tokens, device=logits.device)[None]
    return sft_loss(logits[None], tokens, trajectory_mask(record).to(logits.device)[None], normalize="token")


def action_credit_loss(
    logp_new: Float[Tensor, "batch time"],
    logp_old: Float[Tensor, "batch time"],
    advantage: Float[Tensor, "batch actions"],
    turn: Int[Tensor, "batch time"],
    *,
    credit: Literal["token", "macro"],
    how: Literal["sum", "mean"] = "sum",
    clip_eps: float = 0.2,
    denominator: int | float | None = None,
) -> Float[Tensor, ""]:
    """Clipped policy loss in which either each token or each whole action is what has a ratio.

        "token":  l_k = sum (or mean) over tokens t of action k of -min(rho_t A_k, clip(rho_t) A_k)
        "macro":  l_k = -min(rho_k A_k, clip(rho_k) A_k),   rho_k = product over the tokens of rho_t
        L = mean of l_k over all actions of the batch,      clip(rho) to [1 - clip_eps, 1 + clip_eps]

    Shapes and units: log-probabilities and turn [B,T] in the same columns (pass the batch's turn[:, 1:] with score()'s columns),
    turn -1 where a token is no action; advantage [B,K], one per action; result a scalar in the advantage's units. how: over the
    terms of one action; macro credit has a single one, whose sum and mean are the same. denominator: in place of the number of
    actions, that of the whole optimiser step.
    At ratio 1 token credit with "sum" and macro credit have one gradient, -A_k grad log P(a_k). With "mean" token credit divides it
    by the action's length: long arguments learn less. Away from 1 they differ anyway: many small steps of the tokens' ratios
    multiply, and the macro-action is clipped where no token is.
    Reduces to: each other for actions of one token.
    Raises: ValueError if shapes do not fit, credit or how is neither of the two, clip_eps or denominator is not above 0, or a
    number that counts is not finite.
    Source: the choice between token and macro credit for structured actions; the clipped term is PPO's.
    """
    if credit not in ("token", "macro"):
        raise ValueError(f'credit must be "token" or "macro"; got {credit!r}')
    if how not in ("sum", "mean"):
        raise ValueError(f'how must be "sum" or "mean"; got {how!r}')
    if not clip_eps > 0:
        raise ValueError(f"clip_eps must be above 0; got {clip_eps}")
    if advantage.dim() != 2:
        raise ValueError(f"advantage must be [B,K], one per action; got {tuple(advantage.shape)}")
    actions = advantage.shape[1]
    counted = acting(turn, actions)
    present = present_actions(turn, actions)
    a = selected(advantage, "advantage", present).detach()
    if credit == "macro":
        new, old = (action_sums(x, turn, actions, n) for x, n in ((logp_new, "logp_new"), (logp_old, "logp_old")))
        per_action = clipped_token_loss(new, old, a, clip_low=clip_eps, clip_high=clip_eps, mask=present)
    else:
        spread = torch.where(counted, a.gather(1, turn.clamp(min=0).long()), 0.0)
        each = clipped_token_loss(logp_new, logp_old, spread, clip_low=clip_eps, clip_high=clip_eps, mask=counted)
        per_action = action_sums(each, turn, actions)
        if how == "mean":
            per_action = per_action / action_sums(torch.ones_like(each), turn, actions).clamp(min=1)
    return aggregate(per_action, present, how="token", denominator=denominator)
