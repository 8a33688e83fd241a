"""Where tensors live. The only place that looks for an accelerator."""

from typing import Any

import torch
from torch import nn


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """ "auto" is the first that exists of CUDA, MPS and CPU; a name is taken as it is, if the machine has it."""
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        picked = torch.device(device)
    except RuntimeError:
        raise ValueError(f'device must be "auto" or a torch device such as "cpu" or "cuda:0"; got {device!r}') from None
    if (picked.type == "cuda" and not cuda) or (picked.type == "mps" and not mps):
        raise ValueError(f'device must be on this machine; got {device!r}, and torch sees none (use "auto")')
    return picked


def device_of(model: Any) -> torch.device:
    """Where a module's weights are; a function without weights is taken to be on the CPU."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if first is None else first.device
