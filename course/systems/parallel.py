"""The learner on several ranks: each has some of the rows, and together they take the step that one learner would take on all.

Every loss is a sum over the rank's own tokens divided by the tokens of all ranks, so gradients are added and never averaged: ranks
may have different numbers of rows and tokens, or none. nccl carries it where each rank has a GPU, and gloo elsewhere.
"""

import tempfile
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, Sequence

from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
import torch
import torch.distributed as dist

from course.masks import boolean_mask, masked_sum
from course.systems.processes import context, end_with_parent
from course.training.learner import Learner

TIMEOUT = 20  # seconds that a rank waits for the others: one that is lost, or comes with another shape, is an error and no hang


class LostRank(RuntimeError):
    """A rank that died, raised or did not come: the step was not taken on any."""


def my_rows(rows: Sequence | Shaped[Tensor, "batch ..."], rank: int, world: int) -> Any:
    """This rank's rows: rank, rank + world, .. The numbers of two ranks differ by at most one; with few rows a rank has none."""
    if not 0 <= rank < world:
        raise ValueError(f"rank must be in 0..world-1; got {rank} of {world}")
    return rows[rank::world]


def global_tokens(mask: Shaped[Tensor, "*shape"]) -> int:
    """The number of 1s in the masks of all ranks: the divisor of a token-mean loss.

        sum over ranks of sum over positions of mask

    A mean over each rank's own tokens, averaged over the ranks, would weigh a token by how few others its rank has.
    """
    count = boolean_mask(mask, tuple(mask.shape)).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
    return int(count)


def token_loss(each: Float[Tensor, "batch next"], mask: Bool[Tensor, "batch next"], tokens: int) -> Float[Tensor, ""]:
    """This rank's part of the loss; the parts add up to the mean over the tokens of all ranks.

    sum over my counted tokens of each_bt / tokens,   tokens = global_tokens(mask)
    """
    return masked_sum(each, mask) / max(1, tokens)


class ParallelLearner(Learner):
    """A Learner whose gradient is the sum over all ranks. Every rank takes every step, also one without rows: descend([]).

    sharded: parameters, gradients and moments are cut up over the ranks (FSDP2). Then every rank must run the same modules forward
    and backward in each step, a rank without rows on a row whose mask is empty.
    Needs an initialised process group; see run_ranks. All ranks begin with rank 0's weights.
    Reduces to: Learner for one rank; on any number of ranks the same step as one learner's on all rows, up to the order of sums.
    Source: PyTorch's all-reduced data parallelism; ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) for the shards.
    """

    def __init__(self, modules: Mapping[str, nn.Module], *, lr: float, sharded: bool = False, **options: Any):
        if not dist.is_initialized():
            raise ValueError("a process group must be initialised before its learner is made; see run_ranks")
        self.sharded = sharded
        if sharded and options.get("average") is not None:
            raise ValueError("average must be None for a sharded learner: nobody holds the whole weights")
        with torch.no_grad():
            for module in modules.values():
                for tensor in module.state_dict().values():
                    dist.broadcast(tensor, 0)
                if sharded:
                    _shard(module)
        super().__init__(modules, lr=lr, **options)

    def gradient(self, losses: Iterable[Float[Tensor, ""]]) -> None:
        """The gradient of the sum of all ranks' losses, on every rank: one collective of one size, whatever the rows."""
        super().gradient(losses)
        if self.sharded:
            return  # reduced in the backward pass
        present = torch.tensor([float(p.grad is not None) for p in self.parameters], device=self.parameters[0].device)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        flat = torch.cat([present, *(g.flatten() for g in grads)])
        dist.all_reduce(flat)
        used, flat = flat[: len(grads)] > 0, flat[len(grads) :]
        for parameter, part, is_used in zip(self.parameters, flat.split([g.numel() for g in grads]), used.tolist()):
            parameter.grad = part.view_as(parameter).clone() if is_used else None

    def apply(self, *, factor: float = 1.0, clip: float = 1.0) -> float:
        if not self.sharded:
            return super().apply(factor=factor, clip=clip)
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]).full_tensor()
        if not norm < float("inf"):
            raise ValueError(f"the loss must have a finite gradient; got a gradient of norm {float(norm)} in step {self.step}")
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.mul_((clip / (norm + 1e-6)).clamp(max=1.0))
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * factor
        self.optimiser.step()
        return float(norm)

    def whole_weights(self) -> dict[str, Tensor]:
        """Copies of all weights, put together again if they are sharded; every rank must ask."""
        weights = self._weights(self.modules)
        return {n: (t.full_tensor() if hasattr(t, "full_tensor") else t).detach().clone() for n, t in weights.items()}


def _shard(module: nn.Module) -> None:
    """FSDP2 on the whole module, with sums in place of its means: losses are divided by the global count already."""
    from torch.distributed.fsdp import fully_shard

    sharded = fully_shard(module)
    sharded.set_gradient_divide_factor(1.0)
    sharded.set_force_sum_reduction_for_comms(True)


# ---------------------------------------------------------------- ranks as processes


def device_of_rank(rank: int) -> torch.device:
    """A GPU where there are any, shared if there are fewer than ranks; else the CPU."""
    return torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else torch.device("cpu")


def join(rank: int, world: int, meeting: str, timeout: float | int = TIMEOUT) -> None:
    """Become one of the ranks that meet at this file: over nccl if each sees a GPU of its own here, else over gloo."""
    if torch.cuda.is_available():
        torch.cuda.set_device(device_of_rank(rank))
    backend = "nccl" if torch.cuda.device_count() >= world else "gloo"  # nccl refuses two ranks on one GPU
    dist.init_process_group(
        backend, init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timedelta(seconds=timeout)
    )


def run_ranks(
    task: Callable[..., Any], world: int, *arguments: Any, timeout: float | int = TIMEOUT, limit: float | int = 300
) -> list:
    """task(rank, world, *arguments) in `world` processes that form a group; returns what each gave, by rank.

    task: a function of a module. timeout: seconds that a rank waits for the others in a collective; limit: for everything.
    Raises: ValueError for a world without ranks; LostRank, with the words of the first rank that failed, as soon as one has; the others are ended.
    """
    if world < 1:
        raise ValueError(f"world must be at least 1 rank; got {world}")
    made = context()
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world):
            mine, theirs = made.Pipe()
            given = (theirs, task, rank, world, str(Path(folder, "meeting")), timeout, arguments)
            process = made.Process(target=_rank, args=given, daemon=True, name=f"rank {rank}")
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        try:
            return _results(pipes, limit)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _results(pipes: Sequence[Connection], limit: float | int) -> list:
    found: dict[int, Any] = {}
    until = time.monotonic() + limit
    while len(found) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in found], max(0.0, until - time.monotonic()))
        if not ready:
            raise LostRank(f"all ranks must finish in {limit} s; {sorted(set(range(len(pipes))) - set(found))} did not")
        for pipe in ready:
            rank = pipes.index(pipe)
            try:
                kind, found[rank] = pipe.recv()
            except EOFError:
                kind, found[rank] = "error", "its process died"
            if kind == "error":
                raise LostRank(f"rank {rank} failed, and the others were ended: {found[rank]}")
    return [found[rank] for rank in range(len(pipes))]


def _rank(pipe: Connection, task: Callable, rank: int, world: int, meeting: str, timeout: float, arguments: tuple) -> None:
    """The life of a rank."""
    torch.set_num_threads(1)
    end_with_parent()
    try:
        join(rank, world, meeting, timeout)
        said = "result", task(rank, world, *arguments)
        dist.barrier()  # nobody leaves while another still needs it
    except Exception:
        said = "error", traceback.format_exc(limit=-2)
    pipe.send(said)
    if said[0] == "result":
        dist.destroy_process_group()
