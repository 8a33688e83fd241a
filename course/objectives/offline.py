"""Value-based offline learning: fit values to recorded transitions, and keep them low for actions that nobody recorded.

Values of all actions are q [..,V]; the recorded action, its reward, its end flag and the mask are [..]. Targets are constants.
"""

from dataclasses import dataclass
import math

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
import torch

from course.credit.returns import next_action_values
from course.masks import boolean_mask, checked, masked_mean, selected


def _recorded(
    q: Float[Tensor, "..."], action: Int[Tensor, "..."], mask: Shaped[Tensor, "..."], name: str = "q"
) -> tuple[Float[Tensor, "n vocab"], Int[Tensor, "n 1"], Bool[Tensor, "..."]]:
    """The counted rows of q, their recorded actions and the mask, after the checks that all losses here share."""
    if q.dim() < 1 or q.shape[:-1] != action.shape:
        raise ValueError(f"{name} must be [..,V] and action [..]; got {tuple(q.shape)} and {tuple(action.shape)}")
    if action.is_floating_point():
        raise ValueError(f"action must be indices, integers; got {action.dtype}")
    counted = boolean_mask(mask, tuple(action.shape))
    rows, chosen = checked(q[counted], name), action[counted].long()
    if ((chosen < 0) | (chosen >= q.shape[-1])).any():
        got = f"{int(chosen.min())} to {int(chosen.max())}"
        raise ValueError(f"action must be an index in 0..{q.shape[-1] - 1} wherever it counts; got {got}")
    return rows, chosen[:, None], counted


def _all(x: Float[Tensor, "*shape"]) -> Bool[Tensor, "*shape"]:
    return torch.ones_like(x, dtype=torch.bool)


def td_target(
    reward: Float[Tensor, "*shape"],
    next_value: Float[Tensor, "*shape"],
    terminated: Shaped[Tensor, "*shape"],
    gamma: float | int,
) -> Float[Tensor, "*shape"]:
    """The Bellman target of a transition: its reward, and what the next state is worth unless the episode ended.

        y = r + gamma * next_value  where not terminated;   y = r  where terminated

    Shapes and units: all [any one shape], in reward units; result a constant (no gradient). next_value is not read at a terminal
    and may hold anything there. What next_value is makes the method: the greatest q of the next state is Q-learning, a trained
    value V is ILQL. Cut episodes are not terminated: their next value is that of the observation they stopped at.
    Reduces to: the reward for gamma 0 or at a terminal.
    Raises: ValueError if shapes differ, gamma is outside [0, 1], a flag is neither 0 nor 1, a reward or a next value that is read
    is not finite.
    Source: Watkins and Dayan 1992 (Q-learning).
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1]; got {gamma}")
    if reward.shape != next_value.shape:
        got = f"{tuple(reward.shape)} and {tuple(next_value.shape)}"
        raise ValueError(f"reward and next_value must have one shape; got {got}")
    goes_on = ~boolean_mask(terminated, tuple(reward.shape), "terminated")
    return (checked(reward, "reward", finite=True) + gamma * selected(next_value, "next_value", goes_on)).detach()


def td_loss(
    q: Float[Tensor, "*shape vocab"],
    action: Int[Tensor, "*shape"],
    target: Float[Tensor, "*shape"],
    mask: Shaped[Tensor, "*shape"],
) -> Float[Tensor, ""]:
    """Squared error of the recorded actions' values.

        L = 1/2 * mean over counted transitions of (q[action] - y)^2,   y constant

    Shapes and units: q [..,V], target [..] in reward units; action [..] indices; mask [..]; result in squared reward units.
    Masked transitions may hold anything; the values of other actions are not looked at.
    Reduces to: critic_loss of the recorded actions' values; Q-learning with the target of the next state's greatest q.
    Raises: ValueError if shapes do not fit, a counted action is unknown, its value or target is not finite.
    Source: Watkins and Dayan 1992 (Q-learning), as a regression.
    """
    rows, chosen, counted = _recorded(q, action, mask)
    if target.shape != action.shape:
        raise ValueError(f"target must have the actions' shape {tuple(action.shape)}; got {tuple(target.shape)}")
    value = checked(rows.gather(-1, chosen)[:, 0], "q", finite=True)
    error = value - checked(target[counted], "target", finite=True).detach()
    return masked_mean(error.square() / 2, _all(error))


def expectile(x: Float[Tensor, "*batch n"], tau: float | int) -> Float[Tensor, "*batch"]:
    """The tau-expectile of n numbers: a mean that leans towards the greater ones the more, the closer tau is to 1.

        e such that tau * sum of (x_i - e)+ = (1 - tau) * sum of (e - x_i)+

    Shapes and units: x [..,n]; result [..] in x's units. Exact: for every split of the sorted numbers the weighted mean with
    weight tau above and 1 - tau below is taken, and e is the greatest of them for tau >= 1/2, the least for tau <= 1/2.
    A soft maximum that needs no maximisation: over a vocabulary the greatest of noisy values is mostly noise.
    Reduces to: the mean for tau 1/2; towards the maximum as tau goes to 1. It is the minimiser of expectile_loss(x - e, tau).
    Raises: ValueError if there is no number, one is not finite, or tau is not strictly between 0 and 1.
    Source: Newey and Powell 1987 (Econometrica 55).
    """
    _open_unit("tau", tau)
    if x.dim() < 1 or x.shape[-1] < 1:
        raise ValueError(f"x must be [..,n] with n >= 1; got {tuple(x.shape)}")
    ordered = checked(x, "x", finite=True).sort(dim=-1).values
    n = ordered.shape[-1]
    below, below_count = ordered.cumsum(-1), torch.arange(1, n + 1, dtype=ordered.dtype, device=x.device)
    above, above_count = below[..., -1:] - below, n - below_count
    means = (tau * above + (1 - tau) * below) / (tau * above_count + (1 - tau) * below_count)
    return means.amax(-1) if tau >= 0.5 else means.amin(-1)


def _open_unit(name: str, x: float | int) -> None:
    if not 0 < x < 1:
        raise ValueError(f"{name} must lie strictly between 0 and 1; got {x}")


def expectile_loss(
    diff: Float[Tensor, "*shape"], tau: float | int, mask: Shaped[Tensor, "*shape"] | None = None
) -> Float[Tensor, ""]:
    """Asymmetric squared error: being too low costs tau, being too high 1 - tau.

        L = mean of w * diff^2,   w = tau where diff > 0, 1 - tau elsewhere;   diff = target - prediction

    Shapes and units: diff [any shape]; mask [same], None for all; result in diff's units squared. With diff = Q(s, a) - V(s) the
    prediction V becomes the tau-expectile of Q over the recorded actions, so no action outside the data is ever asked about.
    Reduces to: half the mean square for tau 1/2.
    Raises: ValueError if shapes differ, a counted entry is not finite, or tau is not strictly between 0 and 1.
    Source: Newey and Powell 1987; as a value loss implicit Q-learning (Kostrikov et al. 2021, arXiv 2110.06169).
    """
    _open_unit("tau", tau)
    counted = _all(diff) if mask is None else boolean_mask(mask, tuple(diff.shape))
    d = selected(diff, "diff", counted)
    return masked_mean(torch.where(d > 0, tau * d.square(), (1 - tau) * d.square()), counted)


def cql_penalty(
    q: Float[Tensor, "*shape vocab"], action: Int[Tensor, "*shape"], mask: Shaped[Tensor, "*shape"]
) -> Float[Tensor, ""]:
    """Conservative penalty: pushes down the values of all actions, the greatest hardest, and the recorded action's up.

        P = mean over counted transitions of log sum over a of exp(q[a]) - q[recorded action]

    Shapes and units: q [..,V] in reward units, -inf for an action that is not allowed; action, mask [..]; result in reward units,
    never negative. Masked transitions may hold anything.
    Reduces to: the negative log-likelihood of the recorded actions with q as logits, so a great weight on it is cloning;
    gradient softmax(q) - [recorded action] at each counted transition, divided by their number.
    Raises: ValueError if shapes do not fit, a counted action is unknown or has value -inf, or a counted q is NaN or +inf.
    Source: conservative Q-learning (Kumar et al. 2020, arXiv 2006.04779), the log-sum-exp form CQL(H).
    """
    rows, chosen, _ = _recorded(q, action, mask)
    value = checked(rows.gather(-1, chosen)[:, 0], "q of the recorded action", finite=True)
    gap = torch.logsumexp(rows, dim=-1) - value
    return masked_mean(gap, _all(gap))


@dataclass(frozen=True)
class IlqlLosses:
    """The three parts of ILQL: td fits q, value fits V, penalty keeps unrecorded actions' q low."""

    td: Float[Tensor, ""]
    value: Float[Tensor, ""]
    penalty: Float[Tensor, ""]

    def total(self, alpha: float | int) -> Float[Tensor, ""]:
        """The loss to minimise, with weight alpha on the penalty."""
        if not (alpha >= 0 and math.isfinite(alpha)):
            raise ValueError(f"alpha must be a finite number of at least 0; got {alpha}")
        return self.td + self.value + alpha * self.penalty


def ilql_losses(
    q: Float[Tensor, "*shape vocab"],
    target_q: Float[Tensor, "*shape vocab"],
    value: Float[Tensor, "*shape"],
    next_value: Float[Tensor, "*shape"],
    action: Int[Tensor, "*shape"],
    reward: Float[Tensor, "*shape"],
    terminated: Shaped[Tensor, "*shape"],
    mask: Shaped[Tensor, "*shape"],
    *,
    gamma: float | int,
    tau: float | int,
) -> IlqlLosses:
    """Implicit language Q-learning: q learns from V, V leans towards the better recorded actions of a lagging copy of q.

        td = 1/2 mean of (q[a] - y)^2,  y = r + gamma * next_value unless terminated
        value = expectile_loss(target_q[a] - V, tau)          penalty = cql_penalty(q, a)

    Shapes and units: q, target_q [..,V], value, next_value, reward [..] in reward units; action, terminated, mask [..].
    next_value is V after the transition: in rows of tokens next_action_values(value, mask). Gradients: td and penalty reach q
    only, value reaches V only; target_q and next_value are constants. Masked transitions may hold anything.
    Reduces to: fitted evaluation of the recorded policy for tau 1/2; its best recorded action as tau goes to 1; with alpha 0 in
    .total implicit Q-learning.
    Raises: ValueError if shapes do not fit, gamma or tau is out of range, or an entry that is read is not finite.
    Source: Snell et al. 2023 (arXiv 2206.11871); without the penalty Kostrikov et al. 2021 (arXiv 2110.06169).
    """
    if target_q.shape != q.shape or not value.shape == next_value.shape == reward.shape == action.shape:
        shapes = [tuple(x.shape) for x in (q, target_q, value, next_value, reward, action)]
        raise ValueError(f"q, target_q must be [..,V] and value, next_value, reward, action [..]; got {shapes}")
    lagging, chosen, counted = _recorded(target_q, action, mask, "target_q")
    goes_on = counted & ~boolean_mask(terminated, tuple(action.shape), "terminated")
    y = td_target(selected(reward, "reward", counted), selected(next_value, "next_value", goes_on), ~goes_on, gamma)
    diff = lagging.gather(-1, chosen)[:, 0].detach() - checked(value[counted], "value", finite=True)
    return IlqlLosses(td_loss(q, action, y, counted), expectile_loss(diff, tau), cql_penalty(q, action, counted))


def awac_weight(
    q: Float[Tensor, "*shape"], value: Float[Tensor, "*shape"], beta: float | int, cap: float | int = math.inf
) -> Float[Tensor, "*shape"]:
    """How much more a recorded action is to be imitated than an average one.

        w = min(exp(beta * (q - V)), cap)

    Shapes and units: q, the recorded action's value, and value [any one shape] in reward units; beta per reward unit; result a
    constant (no gradient). The cap keeps one transition from outweighing a batch.
    Reduces to: 1 for beta 0 or q = V.
    Raises: ValueError if shapes differ, an entry is not finite, beta is negative, cap is not above 0, or a weight without a cap
    exceeds the dtype.
    Source: Nair et al. 2020 (arXiv 2006.09359, AWAC).
    """
    if not (beta >= 0 and math.isfinite(beta)):
        raise ValueError(f"beta must be a finite number of at least 0; got {beta}")
    if not cap > 0:
        raise ValueError(f"cap must be above 0; got {cap}")
    if q.shape != value.shape:
        raise ValueError(f"q and value must have one shape; got {tuple(q.shape)} and {tuple(value.shape)}")
    advantage = checked(q, "q", finite=True) - checked(value, "value", finite=True)
    weight = (beta * advantage).exp().clamp(max=cap).detach()
    if torch.isinf(weight).any():
        raise ValueError(f"beta * (q - value) of {(beta * advantage).max().item()} is beyond exp; set cap")
    return weight


def awac_loss(
    logp: Float[Tensor, "*shape"],
    q: Float[Tensor, "*shape"],
    value: Float[Tensor, "*shape"],
    mask: Shaped[Tensor, "*shape"],
    *,
    beta: float | int,
    cap: float | int = math.inf,
) -> Float[Tensor, ""]:
    """Imitation of the recorded actions, each weighted by how good its value says it is.

        L = mean over counted transitions of -w log pi(a),   w = awac_weight(q, value, beta, cap)

    Shapes and units: all [any one shape]; logp in nats; result a scalar in nats. Masked transitions may hold anything.
    Reduces to: the token-mean negative log-likelihood for beta 0.
    Raises: ValueError if shapes differ, the mask is not 0/1, or a counted entry is not finite; as awac_weight.
    Source: Nair et al. 2020 (arXiv 2006.09359, AWAC); as the policy step of implicit Q-learning, arXiv 2110.06169.
    """
    counted = boolean_mask(mask, tuple(logp.shape))
    weight = awac_weight(selected(q, "q", counted), selected(value, "value", counted), beta, cap)
    return masked_mean(-weight * selected(logp, "logp", counted), counted)


def value_guided_logits(
    logits: Float[Tensor, "*shape vocab"],
    q: Float[Tensor, "*shape vocab"],
    value: Float[Tensor, "*shape"],
    beta: float | int,
) -> Float[Tensor, "*shape vocab"]:
    """Logits to decode from: the imitating policy's, shifted towards actions whose value is above the state's.

        z_a = logits_a + beta * (q_a - V)

    Shapes and units: logits, q [..,V], value [..]; beta in nats per reward unit; result [..,V], -inf where the logits or q are.
    V shifts a row as a whole and changes no probability; it keeps the logits in range. No weights of the policy are changed.
    Reduces to: the policy's own law for beta 0; optimal_policy(log pi, q, 1 / beta).
    Raises: ValueError if shapes do not fit, logits or q hold NaN or +inf, value is not finite, or beta is negative.
    Source: Snell et al. 2023 (arXiv 2206.11871), policy extraction.
    """
    if not (beta >= 0 and math.isfinite(beta)):
        raise ValueError(f"beta must be a finite number of at least 0; got {beta}")
    if logits.shape != q.shape or logits.shape[:-1] != value.shape:
        got = f"{tuple(logits.shape)}, {tuple(q.shape)} and {tuple(value.shape)}"
        raise ValueError(f"logits and q must be [..,V] and value [..]; got {got}")
    worth, state = checked(q, "q"), checked(value, "value", finite=True)[..., None]
    ruled_out = worth == float("-inf")  # beta 0 would make NaN of it
    shifted = checked(logits, "logits") + beta * (torch.where(ruled_out, state, worth) - state)
    return shifted.masked_fill(ruled_out, float("-inf"))


def verifier_q_loss(
    logits: Float[Tensor, "batch steps candidates"],
    target_logits: Float[Tensor, "batch steps candidates"],
    chosen: Int[Tensor, "batch steps"],
    reward: Float[Tensor, "batch steps"],
    terminated: Shaped[Tensor, "batch steps"],
    mask: Shaped[Tensor, "batch steps"],
    *,
    gamma: float | int,
    tau: float | int,
    alpha: float | int,
) -> Float[Tensor, ""]:
    """A step verifier trained by offline Q-learning: whole steps are the actions, and values are probabilities of success.

        q = sigmoid(logits);   y_k = r_k + gamma * (tau-expectile of the next candidates' lagging q) unless terminated
        L = 1/2 mean over steps of (q_k[chosen] - y_k)^2 + alpha * cql_penalty(logits, chosen)

    Shapes and units: logits, target_logits [B,K,C], C candidate steps at each of K places of a solution, of which the recorded
    solution took chosen [B,K]; reward, terminated, mask [B,K]; q and rewards in [0, 1], gamma in [0, 1]. Gradients reach logits
    only. The expectile stands for the maximum over steps, of which only C were sampled; the sigmoid bounds the values; the
    penalty lowers steps that no recorded solution took. After the last step without a flag nothing follows, as in GAE.
    Reduces to: squared error of a process reward model on step labels with gamma 0 and alpha 0.
    Raises: ValueError if shapes do not fit, an index is unknown, gamma, tau or alpha is out of range, a counted logit is not
    finite, or a target leaves [0, 1] (rewards of one solution that add up to more than 1).
    Source: in the manner of VerifierQ (Qi et al. 2024, arXiv 2410.08048); its own bounded update and penalty differ in detail.
    """
    if not (alpha >= 0 and math.isfinite(alpha)):
        raise ValueError(f"alpha must be a finite number of at least 0; got {alpha}")
    if logits.shape != target_logits.shape or not reward.shape == chosen.shape == logits.shape[:2]:
        shapes = [tuple(x.shape) for x in (logits, target_logits, chosen, reward)]
        raise ValueError(f"logits, target_logits must be [B,K,C] and chosen, reward [B,K]; got {shapes}")
    counted = boolean_mask(mask, tuple(chosen.shape))
    every = counted[..., None].expand(logits.shape)
    scores, lagging = selected(logits, "logits", every), selected(target_logits, "target_logits", every).detach()
    following = next_action_values(expectile(torch.sigmoid(lagging), tau), counted)
    ends = boolean_mask(terminated, tuple(chosen.shape), "terminated")
    y = td_target(selected(reward, "reward", counted), following, ends, gamma)
    if ((y < 0) | (y > 1)).any():
        got = f"{y.min().item()} to {y.max().item()}"
        raise ValueError(f"reward must keep every target in [0, 1], values are probabilities of success; got targets {got}")
    return td_loss(torch.sigmoid(scores), chosen, y, counted) + alpha * cql_penalty(scores, chosen, counted)
