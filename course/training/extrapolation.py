"""A jump along the path of the weights: a low-rank forecast from checkpoints, taken as a proposal, corrected by measured updates.

A forecast is a guess: nothing new was sampled or verified for it. It is a round of its own in the ledger, with the storage of its
checkpoints and the fit in its bill, and recovery is what the rounds behind it cost and come to.
"""

import copy
from dataclasses import asdict, dataclass, replace
from typing import Any, Callable, Literal, Mapping, NamedTuple, Sequence

from jaxtyping import Float
from torch import Tensor
import torch

from course.accounting.budget import Cost
from course.accounting.ledger import total_cost
from course.models.policy import Policy
from course.rollout.episodes import Episodes
from course.training.learner import Learner
from course.training.round import Operators, Proposal, propose, run_rounds

Form = Literal["projector", "signed"]


@dataclass(frozen=True)
class Path:
    """Checkpoints at equal distances, of the matrices that a learner trains (names of Learner.tensors)."""

    checkpoints: tuple[Mapping[str, Tensor], ...] = ()

    def add(self, learner: Learner) -> "Path":
        """The path with the learner's matrices as they are now."""
        now = {
            name: tensor.detach().clone()
            for name, tensor in learner.tensors().items()
            if name.startswith("modules.") and tensor.dim() == 2 and tensor.is_floating_point()
        }
        return Path((*self.checkpoints, now))

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for checkpoint in self.checkpoints for t in checkpoint.values())


class Factors(NamedTuple):
    """Leading singular triples: delta is about the sum over i of s_i u_i v_i^T."""

    u: Float[Tensor, "rows rank"]
    s: Float[Tensor, "rank"]
    v: Float[Tensor, "columns rank"]


def factors(delta: Float[Tensor, "rows columns"], rank: int) -> Factors:
    """The leading singular triples of a difference of weights.

        sign convention: in each u_i the entry of largest magnitude is positive; v_i goes with it

    Shapes and units: delta [m,n] in units of the weights, rank at most min(m,n). A decomposition fixes u_i and v_i only up to one
    common sign; without a convention two libraries may give two answers.
    Raises: ValueError for a rank that the matrix can't have.
    Source: C ftip-0069, ftip-006B.
    """
    if not 1 <= rank <= min(delta.shape):
        raise ValueError(f"rank must lie in 1..{min(delta.shape)}; got {rank}")
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    u, s, v = u[:, :rank], s[:rank], vh[:rank].T
    sign = torch.where(u.gather(0, u.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0).to(u.dtype)
    return Factors(u * sign, s, v * sign)


def projector_change(
    deltas: Sequence[Float[Tensor, "rows columns"]], found: Factors, horizon: int | float
) -> Float[Tensor, "rows columns"]:
    """How the weights would change over `horizon` more steps if each direction went on along its least-squares line.

        a_ti = u_i^T D_t v_i,   b_i = slope of a_i over t,   change = horizon * sum over i of b_i u_i v_i^T
             = horizon * slope over t of the sum of P_ui D_t P_vi,   P_u = u u^T

    Shapes and units: deltas: D_0 .. D_T, differences from the first checkpoint (D_0 = 0), at least two; found: of D_T. Only P_u and P_v
    count, so the signs of u_i and v_i have no part in it, not even one by one.
    Reduces to: horizon * G for a path W_0 + t G with G of the rank of found; 0 for a path that stands still.
    Raises: ValueError for fewer than two differences.
    Source: C ftip-006B.
    """
    aligned = torch.stack([torch.einsum("mr,mn,nr->r", found.u, delta, found.v) for delta in deltas])
    return horizon * torch.einsum("r,mr,nr->mn", _slope(aligned, "deltas"), found.u, found.v)


def signed_change(steps: Sequence[Factors], horizon: int) -> Float[Tensor, "rows columns"]:
    """The same by the factors themselves: each entry of x = sqrt(s) u and y = sqrt(s) v goes on along its line.

        change = sum over j = 1..horizon, i of  x_i(T + j) y_i(T + j)^T

    Shapes and units: steps: factors of the differences between neighbouring checkpoints, at least two. A sign that is chosen
    otherwise at one checkpoint changes the forecast: it means what it means under one declared convention, that of factors(), and
    where the largest entry changes place along the path the lines break.
    Reduces to: horizon * G for a path of equal steps G.
    Raises: ValueError for fewer than two steps.
    Source: C ftip-0069.
    """
    x, y = (torch.stack([f.s.sqrt() * part for f, part in zip(steps, parts)]) for parts in zip(*((f.u, f.v) for f in steps)))
    total = torch.zeros(len(steps[0].u), len(steps[0].v), dtype=x.dtype, device=x.device)
    slopes, means = [_slope(z, "steps") for z in (x, y)], [z.mean(0) for z in (x, y)]
    for j in range(1, horizon + 1):
        ahead = (len(steps) - 1) / 2 + j  # from the middle of the path
        left, right = (mean + ahead * slope for mean, slope in zip(means, slopes))
        total = total + left @ right.T
    return total


def _slope(values: Float[Tensor, "time *shape"], name: str) -> Float[Tensor, "*shape"]:
    """Of the least-squares line over 0, 1, 2, .."""
    if len(values) < 2:
        raise ValueError(f"{name} must be at least two, or there is no line through them; got {len(values)}")
    t = torch.arange(len(values), dtype=values.dtype, device=values.device)
    t = t - t.mean()
    return torch.tensordot(t, values, dims=1) / t.square().sum()


def forecast(path: Path, *, horizon: int, rank: int, form: Form) -> dict[str, Tensor]:
    """The predicted change of each matrix over `horizon` more distances between checkpoints. form: projector or signed factors.

    The rank is cut to what a matrix can have. Raises: ValueError for fewer than two (projector) or three (signed) checkpoints.
    """
    changes = {}
    least = 2 if form == "projector" else 3
    if len(path.checkpoints) < least:
        raise ValueError(f"path must hold at least {least} checkpoints for a {form} forecast; got {len(path.checkpoints)}")
    for name, first in path.checkpoints[0].items():
        weights, cut = [checkpoint[name] for checkpoint in path.checkpoints], min(rank, *first.shape)
        if form == "projector":
            deltas = [w - first for w in weights]
            changes[name] = projector_change(deltas, factors(deltas[-1], cut), horizon)
        else:
            changes[name] = signed_change([factors(b - a, cut) for a, b in zip(weights, weights[1:])], horizon)
    return changes


def forecast_cost(path: Path, *, rank: int, form: Form) -> Cost:
    """What a forecast costs besides the training that made its path: bytes stored, operations of decomposition and fit.

        4 m^2 n + 8 m n^2 + 9 n^3 for each decomposition (m >= n), one for each matrix or one for each step of it
        2 m n r T for the alignment (projector);  4 (m + n) r T for the lines of the factors (signed)

    Source: Golub and Van Loan, Matrix Computations, on the cost of singular value decompositions; C ftip-006A.
    """
    operations, steps = 0, len(path.checkpoints) - 1
    for matrix in path.checkpoints[-1].values():
        n, m = sorted(matrix.shape)
        once, r = 4 * m**2 * n + 8 * m * n**2 + 9 * n**3, min(rank, n)
        operations += once + 2 * m * n * r * steps if form == "projector" else steps * (once + 4 * (m + n) * r)
    return Cost(stored_bytes=path.bytes, fit_flops=operations)


def jump_round(
    base: Operators, path: Path, *, horizon: int, rank: int, form: Form = "projector", scale: float | int = 1.0,
    accept: Callable[[Mapping[str, int | float]], bool] = lambda diagnostics: True,
) -> Operators:  # fmt: skip
    """Operators of a round whose proposal is the forecast: the last weights plus scale times the predicted change.

    Its episodes measure the policy that jumps; they train nothing. The optimiser's moments stay: they are those of the old place, and
    recovery has to live with that. accept sees by how much the weights would move ("moved", the norm of all changes).
    Raises: ValueError in the round if the path does not end where the learner stands.
    """

    def update(learner: Learner, episodes: Episodes, advantages: Tensor, seed: int) -> Proposal:
        now = Path().add(learner).checkpoints[0]
        if not all(torch.equal(now[name], last) for name, last in path.checkpoints[-1].items()):
            raise ValueError("path must end at the learner's weights; it ends elsewhere: add the learner behind its last round")
        changes = forecast(path, horizon=horizon, rank=rank, form=form)

        def change() -> dict[str, int | float]:
            tensors = learner.tensors()
            with torch.no_grad():
                for name, moved in changes.items():
                    tensors[name].add_(moved, alpha=scale)
            return {"moved": float(sum(moved.double().square().sum() for moved in changes.values()) ** 0.5) * abs(scale)}

        return propose(learner, change, accept)

    def account(*parts: Any) -> Cost:
        return base.account(*parts) + forecast_cost(path, rank=rank, form=form)

    version = f"low_rank_{form}@horizon {horizon} rank {rank} scale {scale}"
    return replace(base, update=update, account=account, versions={**base.versions, "update": version})


@dataclass(frozen=True)
class JumpRun:
    """Three runs from one start. quality by name: start, trained (where the jump begins), jumped, recovered; short and long: plain
    training of as many rounds as the jumping run made, and of those it replaced besides. cost: whole bills, jumping, short and long.
    """

    seed: int
    quality: dict[str, float]
    cost: dict[str, dict[str, int | float]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def jump_run(
    seed: int, start: Policy, operators: Operators, measure: Callable[[Policy], float], *, lr: float, trained: int, every: int,
    horizon: int, recovery: int, rank: int, form: Form = "projector", scale: float | int = 1.0,
) -> JumpRun:  # fmt: skip
    """Train, jump `horizon` distances of `every` rounds ahead, recover; and train plainly from the same start with the same seeds.

    Rounds: trained + 1 + recovery in the jumping run; trained + recovery (short) and trained + horizon * every + recovery (long).
    """
    if trained % every:
        raise ValueError(f"trained must be a multiple of every, so that the path ends at the jump; got {trained} and {every}")
    learner, ledger, path = Learner({"actor": copy.deepcopy(start)}, lr=lr), (), Path()
    path = path.add(learner)
    quality = {"start": measure(start)}
    for entry in run_rounds(learner, operators, rounds=trained, seed=seed):
        ledger = (*ledger, entry)
        if learner.step % every == 0:
            path = path.add(learner)
    quality["trained"] = measure(learner["actor"])
    jump = jump_round(operators, path, horizon=horizon, rank=rank, form=form, scale=scale)
    ledger += tuple(run_rounds(learner, jump, rounds=trained + 1, seed=seed, ledger=ledger))
    quality["jumped"] = measure(learner["actor"])
    ledger += tuple(run_rounds(learner, operators, rounds=trained + 1 + recovery, seed=seed, ledger=ledger))
    quality["recovered"] = measure(learner["actor"])
    cost = {"jumping": total_cost(ledger).to_json()}
    plain, bill = Learner({"actor": copy.deepcopy(start)}, lr=lr), ()
    for name, rounds in (("short", trained + recovery), ("long", trained + horizon * every + recovery)):
        bill += tuple(run_rounds(plain, operators, rounds=rounds, seed=seed, ledger=bill))
        quality[name], cost[name] = measure(plain["actor"]), total_cost(bill).to_json()
    return JumpRun(seed, quality, cost)
