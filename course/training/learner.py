"""What a training run changes: modules, their optimiser, moving averages and the number of finished steps. Saved, it goes on exactly."""

import copy
import json
import os
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence

from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
import torch

from course.models.lora import adapters_of


class Learner:
    """Modules in training by role ("actor", "critic", ..) under one AdamW.

    step counts the finished steps of the loop that trains them; every loop starts at learner.step and draws the randomness of a step
    from (seed, step) alone. So four steps give the same bits as two, save, load into a fresh Learner and two more.
    average: decay of an exponential moving average of the weights, updated after every optimiser step; None keeps none.
    """

    def __init__(self, modules: Mapping[str, nn.Module], *, lr: float, weight_decay: float = 0.0, average: float | None = None):
        if not modules or not lr > 0:
            raise ValueError(f"modules must not be empty and lr must be positive; got {list(modules)} and {lr}")
        if average is not None and not 0 <= average < 1:
            raise ValueError(f"average must be a decay in [0, 1), or None; got {average}")
        self.modules, self.lr, self.average, self.step = dict(modules), lr, average, 0
        self.parameters = list({id(p): p for m in self.modules.values() for p in m.parameters() if p.requires_grad}.values())
        fused = all(p.device.type in ("cpu", "cuda") for p in self.parameters)
        self.optimiser = torch.optim.AdamW(self.parameters, lr=lr, weight_decay=weight_decay, fused=fused)
        self.averaged = {} if average is None else {k: copy.deepcopy(m).requires_grad_(False) for k, m in self.modules.items()}

    def __getitem__(self, role: str) -> nn.Module:
        if role not in self.modules:
            raise ValueError(f"modules must have a {role!r}; got {sorted(self.modules)}")
        return self.modules[role]

    def train(self) -> None:
        for module in self.modules.values():
            module.train()

    def randomness(self, seed: int) -> torch.Generator:
        """The generator of the step that comes next: a function of (seed, step) and nothing else."""
        return torch.Generator().manual_seed(step_seed(seed, self.step))

    def descend(self, losses: Iterable[Float[Tensor, ""]], *, factor: float = 1.0, clip: float = 1.0) -> float:
        """One optimiser step down the sum of the losses, one backward pass each; returns the gradient's norm before clipping.

        factor multiplies the learning rate. The losses of micro-batches must already be divided by the whole step's count.
        """
        self.gradient(losses)
        return self.apply(factor=factor, clip=clip)

    def gradient(self, losses: Iterable[Float[Tensor, ""]]) -> None:
        """The first half of descend: the gradient of the sum of the losses, in the parameters' grad. Nothing has moved yet."""
        self.optimiser.zero_grad()
        for loss in losses:
            loss.backward()

    def apply(self, *, factor: float = 1.0, clip: float = 1.0) -> float:
        """The other half: clip the gradient, move. Returns its norm before clipping.

        Raises: ValueError if clip is not above 0 or factor is negative (both would move up the loss), or the gradient is not finite.
        """
        if not clip > 0 or not factor >= 0:
            raise ValueError(f"clip must be above 0 and factor at least 0; got {clip} and {factor}")
        norm = float(nn.utils.clip_grad_norm_(self.parameters, clip))
        if not norm < float("inf"):
            raise ValueError(f"the loss must have a finite gradient; got a gradient of norm {norm} in step {self.step}")
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * factor
        self.optimiser.step()
        for role, mean in self.averaged.items():
            move_average(mean, self.modules[role], self.average)
        return norm

    def tensors(self) -> dict[str, Tensor]:
        """All that a step changes, by name: weights, averages, the optimiser's moments. Not copied."""
        found = {f"modules.{n}": t for n, t in self._weights(self.modules).items()}
        found |= {f"averaged.{n}": t for n, t in self._weights(self.averaged).items()}
        for number, parameter in enumerate(self.parameters):
            found |= {f"optimiser.{number}.{name}": t for name, t in self.optimiser.state[parameter].items()}
        return found

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the values of what tensors() gave, of this learner or one of the same shape, bit for bit. They are copied."""
        with torch.no_grad():
            for kind, modules in (("modules", self.modules), ("averaged", self.averaged)):
                for name, tensor in self._weights(modules).items():
                    tensor.copy_(tensors[f"{kind}.{name}"])
        for number, parameter in enumerate(self.parameters):
            prefix = f"optimiser.{number}."
            state = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            self.optimiser.state[parameter] = {n: t.to(parameter.device, copy=True) for n, t in state.items()}

    def save(self, path: str | os.PathLike) -> None:
        """Write everything to one safetensors file; a run that dies while writing leaves the file that was there before."""
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        plain = {n: t.detach().cpu().contiguous().clone() for n, t in self.tensors().items()}
        save_file(plain, str(partial), metadata=self._metadata())
        os.replace(partial, target)

    def load(self, path: str | os.PathLike) -> "Learner":
        """Go on from what save wrote, in modules of the same shape."""
        with safe_open(str(path), framework="pt") as file:
            found = json.loads((file.metadata() or {}).get("learner", "{}"))
            mine = json.loads(self._metadata()["learner"])
            if {**found, "step": 0} != {**mine, "step": 0}:
                raise ValueError(
                    f"path must be a checkpoint of this learner; expected {mine}, got {found or 'another kind of file'}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        for kind, modules in (("modules", self.modules), ("averaged", self.averaged)):
            for name, tensor in self._weights(modules).items():
                _fitting(tensors, f"{kind}.{name}", tensor)
        self.put(tensors)
        self.step = found["step"]
        return self

    @staticmethod
    def _weights(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        return {f"{role}.{name}": t for role, module in modules.items() for name, t in module.state_dict().items()}

    def _metadata(self) -> dict[str, str]:
        plain = {"step": self.step, "roles": sorted(self.modules), "average": self.average, "parameters": len(self.parameters)}
        scales = [adapter.scale for module in self.modules.values() for adapter in adapters_of(module)]
        if scales:  # no tensor says them, and others make another policy of the same weights
            plain["adapter_scales"] = scales
        return {"learner": json.dumps(plain)}


def learner_of(model: nn.Module, lr: float, learner: Learner | None) -> Learner:
    """A fresh learner of one model, or the one that a resumed run goes on with, after checking that it trains this model."""
    if learner is None:
        return Learner({"model": model}, lr=lr)
    if not lr > 0:
        raise ValueError(f"lr must be positive; got {lr}")
    if learner["model"] is not model:
        raise ValueError('learner must train this very model as its "model"; got a learner of another one')
    learner.lr = lr
    return learner


def _fitting(tensors: Mapping[str, Tensor], name: str, like: Tensor) -> None:
    if name not in tensors or tensors[name].shape != like.shape:
        got = "nothing" if name not in tensors else tuple(tensors[name].shape)
        raise ValueError(f"path must be a checkpoint of this learner; {name} should have shape {tuple(like.shape)}, got {got}")


def check_config(
    config: Any, *, counts: Sequence[str] = (), weights: Sequence[str] = (), bounds: Sequence[str] = (), rates: Sequence[str] = ()
) -> None:
    """Refuse a configuration with a field out of its range, by name: a negative weight trains the other way and says nothing.

    counts: at least 1. weights: finite, at least 0. bounds: above 0, infinite for none. rates: in [0, 1]. None is no number to check.
    """
    ranges = (
        (counts, lambda x: x >= 1, "at least 1"),
        (weights, lambda x: 0 <= x < float("inf"), "finite and at least 0"),
        (bounds, lambda x: x > 0, "above 0"),
        (rates, lambda x: 0 <= x <= 1, "in [0, 1]"),
    )
    for names, fits, words in ranges:
        for name in names:
            value = getattr(config, name)
            if value is not None and not fits(value):
                raise ValueError(f"{name} must be {words}; got {value}")


def step_seed(seed: int, step: int) -> int:
    """One seed for each (seed, step) of a run: different for any two steps of runs shorter than a million steps."""
    return seed * 1_000_003 + step


@torch.no_grad()
def move_average(mean: nn.Module, module: nn.Module, decay: float) -> None:
    """mean <- decay * mean + (1 - decay) * module, weight by weight."""
    for average, new in zip(mean.parameters(), module.parameters()):
        average.lerp_(new, 1 - decay)
