"""Credit over the turns of an episode: which tokens are actions, how probable a whole action was, and what each of its tokens gets.

An action is a span (start, stop) of token positions. The log-probability of the token at t stands at t-1 (models.score), so a table
`turn` of action numbers over tokens goes with log-probabilities as turn[:, 1:].
"""

from typing import Any, Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor
import torch

from course.credit.returns import discounted_returns
from course.masks import checked, selected

Spans = Sequence[tuple[int, int]]


def check_spans(action_spans: Spans, length: int) -> None:
    """Refuse spans that overlap, go backwards, hold the first token (which nothing predicts) or leave the episode."""
    before = 1
    for number, (start, stop) in enumerate(action_spans):
        if not before <= start <= stop <= length:
            raise ValueError(
                f"action_spans must follow one another within tokens 1..{length - 1}; got ({start}, {stop}) as number {number}"
            )
        before = stop


def trajectory_mask(record: Any) -> Bool[Tensor, "time"]:
    """Which tokens of a recorded episode are the policy's own: its action spans, and nothing else.

        mask_t = 1 if start <= t < stop for one of the record's action_spans;  0 for prompts, headers, observations and ends put in

    Shapes and units: record has `tokens` (T ids) and `action_spans`; result [T] bool. With log-probabilities [T-1] use mask[1:].
    Why spans and not ids: a tool's answer may repeat an action token for token, and a sampled end token has the id of a written one.
    Reduces to: language.masking.action_mask of the episode's transcript.
    Raises: ValueError if spans overlap or leave the episode.
    Source: credit belongs to sampled actions; observations are inputs. A common fault: training on tool results.
    """
    mask = torch.zeros(len(record.tokens), dtype=torch.bool)
    check_spans(record.action_spans, len(mask))
    for start, stop in record.action_spans:
        mask[start:stop] = True
    return mask


def action_logprob(token_logprobs: Float[Tensor, "next"], action_spans: Spans) -> Float[Tensor, "actions"]:
    """Log-probability of each action as one macro-action: the product of its tokens' probabilities.

        log P(a_k) = sum over t with start_k <= t < stop_k of log p(token t | tokens before it)

    Shapes and units: token_logprobs [T-1] in nats, that of token t at t-1; action_spans A pairs of token positions; result [A] in
    nats. What stands outside the spans is not read, in the gradient either. The product has the observations between two actions
    as given: it is not the probability of the episode.
    Reduces to: 0 for an action without tokens; token_logprobs itself for actions of one token each.
    Raises: ValueError if spans overlap or leave the episode, or a log-probability inside one is NaN or +inf.
    Source: the chain rule of probability.
    """
    check_spans(action_spans, len(token_logprobs) + 1)
    parts = [checked(token_logprobs[start - 1 : stop - 1], "token_logprobs").sum() for start, stop in action_spans]
    return torch.stack(parts) if parts else token_logprobs[:0]


def action_sums(
    x: Float[Tensor, "batch time"], turn: Int[Tensor, "batch time"], actions: int, name: str = "x"
) -> Float[Tensor, "batch actions"]:
    """Sum of x over the tokens of each action; what stands at positions of turn -1 is not read.

        result_bk = sum over t with turn_bt = k of x_bt

    Shapes and units: x, turn [B,T]; turn holds 0..actions-1, or -1 where a token is no action; result [B,actions] in x's units, 0
    where a row has no such action. `name` is what an error calls x.
    Reduces to: action_logprob row by row, for log-probabilities and turn[:, 1:].
    Raises: ValueError if the shapes differ, a number is out of range, or x is not finite where it counts.
    Source: bookkeeping.
    """
    counted = acting(turn, actions)
    kept = selected(x, name, counted)
    return torch.zeros(len(kept), actions, dtype=kept.dtype, device=kept.device).scatter_add(1, turn.clamp(min=0).long(), kept)


def turn_advantages(
    turn_rewards: Float[Tensor, "batch actions"],
    turn: Int[Tensor, "batch time"],
    *,
    gamma: float | int,
    baseline: Float[Tensor, "batch actions"] | None = None,
) -> Float[Tensor, "batch time"]:
    """Turn-level credit: every token of an action gets what was earned from that action on, above a baseline.

        A_bt = sum over j >= k of gamma^(j - k) r_bj  -  baseline_bk,   k = turn_bt;    0 where turn_bt = -1

    Shapes and units: turn_rewards [B,K], that of action k after its observation; turn [B,T], the action each token belongs to or
    -1; baseline [B,K], None for 0; result [B,T] in reward units, without gradient into the baseline. Time goes from action to
    action, however many tokens each has. Rewards and baselines of actions that a row lacks are not read.
    Reduces to: outcome_advantages of R if gamma is 1 and R stands on the last action; a turn's own reward with gamma 0.
    Raises: ValueError if shapes do not fit, an action number is out of range, gamma is outside [0, 1], or a reward or baseline
    that counts is not finite.
    Source: turn-level credit assignment for agents (Zeng et al. 2025, arXiv 2505.11821), as a reward-to-go.
    """
    if turn_rewards.dim() != 2:
        raise ValueError(f"turn_rewards must be [B,K], one per action; got {tuple(turn_rewards.shape)}")
    actions = turn_rewards.shape[1]
    counted = acting(turn, actions)
    present = present_actions(turn, actions)
    returns = discounted_returns(selected(turn_rewards, "turn_rewards", present), gamma, present)
    if baseline is not None:
        returns = returns - selected(baseline, "baseline", present).detach()
    return torch.where(counted, returns.gather(1, turn.clamp(min=0).long()), 0.0)


def acting(turn: Int[Tensor, "batch time"], actions: int) -> Bool[Tensor, "batch time"]:
    """Which tokens belong to an action, after checking the numbers of the actions."""
    if turn.dim() != 2 or turn.is_floating_point() or ((turn < -1) | (turn >= actions)).any():
        raise ValueError(f"turn must be [B,T] with numbers from -1 (no action) to {actions - 1}; got {_range(turn)}")
    return turn >= 0


def _range(turn: Tensor) -> str:
    ends = f" from {turn.min().item()} to {turn.max().item()}" if turn.numel() else ""
    return f"{turn.dtype} {tuple(turn.shape)}{ends}"


def present_actions(turn: Int[Tensor, "batch time"], actions: int) -> Bool[Tensor, "batch actions"]:
    """Which actions each row has: those with a token."""
    hits = torch.zeros(len(turn), actions + 1, dtype=torch.bool, device=turn.device)
    return hits.scatter(1, torch.where(acting(turn, actions), turn, actions).long(), True)[:, :actions]
