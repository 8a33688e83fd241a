"""Masked sums and means, and the argument checks that every loss shares. All reductions over part of a tensor go through here."""

from jaxtyping import Bool, Float, Shaped
from torch import Tensor
import torch


def boolean_mask(mask: Shaped[Tensor, "..."], shape: tuple[int, ...], name: str = "mask") -> Bool[Tensor, "..."]:
    """The mask as bool, after checking that it has this shape and holds only 0 and 1.

        result_i = (mask_i == 1)

    Shapes and units: mask of any dtype; result bool of the same shape. `name` is what an error message calls it.
    Reduces to: the mask itself if it is already bool.
    Raises: ValueError if the shape differs, or an entry is neither 0 nor 1 (a mask of weights or of token ids is a mix-up).
    Source: a common fault: two tensors of one shape that changed places, so that ids or weights arrive as the mask.
    """
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}; got {tuple(mask.shape)}")
    if mask.dtype == torch.bool:
        return mask
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"{name} must be bool or hold only 0 and 1; got other values, dtype {mask.dtype}")
    return mask == 1


def checked(
    x: Shaped[Tensor, "..."], name: str, counted: Bool[Tensor, "..."] | None = None, finite: bool = False
) -> Float[Tensor, "..."]:
    """x, at least in float32, after refusing NaN and +inf (with finite=True also -inf) at the counted positions.

        result = x in float32 if x is float16 or bfloat16, else x

    Shapes and units: x any shape; counted [same shape] or None for "all positions"; result in x's units.
    Why float32: a bfloat16 log-softmax errs by several per cent in a probability ratio before any update has been made.
    Reduces to: the identity on float32 and float64 input without NaN and +inf.
    Raises: ValueError naming the argument if x is not floating point, or a counted entry is NaN or +inf (or -inf, if finite).
    Source: two common faults: importance ratios of half-precision log-probabilities, and a NaN that a mean turns into the loss.
    """
    if not x.is_floating_point():
        raise ValueError(f"{name} must be a floating-point tensor; got {x.dtype}")
    bad = ~torch.isfinite(x) if finite else torch.isnan(x) | (x == float("inf"))
    if counted is not None:
        bad = bad & counted
    if bad.any():
        allowed = "finite" if finite else "finite or -inf"
        raise ValueError(f"{name} must be {allowed} wherever it counts; got {x[bad][0].item()} at {int(bad.sum())} position(s)")
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def matched(**tensors: Shaped[Tensor, "..."]) -> tuple[Float[Tensor, "..."], ...]:
    """The tensors, at least in float32, after refusing different shapes, empty ones and entries that are not finite.

        result = each argument, in the order given

    Shapes and units: all of one shape with at least one element; results in the arguments' units.
    For losses without a mask: the mean over no element is not defined, and infinity minus infinity is not a margin.
    Reduces to: the identity on finite float32 and float64 tensors of one shape.
    Raises: ValueError that names every argument, or the one that is not finite.
    Source: two common faults: the mean over an empty batch, and shapes that broadcast into pairs nobody compared.
    """
    shapes = {name: tuple(x.shape) for name, x in tensors.items()}
    if len(set(shapes.values())) > 1 or 0 in next(iter(shapes.values())):
        raise ValueError(f"{', '.join(shapes)} must have one shape and at least one element; got {shapes}")
    return tuple(checked(x, name, finite=True) for name, x in tensors.items())


def selected(x: Float[Tensor, "..."], name: str, counted: Bool[Tensor, "..."]) -> Float[Tensor, "..."]:
    """x where it counts and 0 elsewhere, so that nothing a masked position holds enters the arithmetic that follows.

        result_i = x_i where counted_i;  0 elsewhere

    Shapes and units: x and counted [same shape]; result in x's units, at least in float32. `name` is what an error calls x.
    Why before the arithmetic and not after it: 0 * NaN is NaN, in the gradient too, which selecting the result alone lets
    through.
    Reduces to: x under a full mask.
    Raises: ValueError if the shapes differ, or x is not finite where it counts.
    Source: a common fault: torch.where around a NaN, whose value is clean and whose gradient is not.
    """
    if x.shape != counted.shape:
        raise ValueError(f"{name} must have the mask's shape {tuple(counted.shape)}; got {tuple(x.shape)}")
    return torch.where(counted, checked(x, name, counted, finite=True), 0.0)


def masked_sum(
    x: Float[Tensor, "*shape"], mask: Shaped[Tensor, "*shape"], dim: int | tuple[int, ...] | None = None, *, name: str = "x"
) -> Float[Tensor, "*rest"]:
    """Sum of x over the positions where the mask is 1.

        sum over i with mask_i = 1 of x_i

    Shapes and units: x and mask [same shape]; dim: what to sum over, None for everything; result in x's units. `name` is what an
    error calls x.
    Why a selection and not a product: 0 * NaN is NaN, so multiplying by the mask would let a padded position through.
    Reduces to: x.sum(dim) under a full mask; 0, with gradient 0, under an empty one.
    Raises: ValueError if the shapes differ, the mask is not 0/1, or x is NaN or +inf where the mask is 1.
    Source: a common fault: x * mask, which keeps the NaN of a padded position. Half-precision input is summed in float32.
    """
    counted = boolean_mask(mask, tuple(x.shape))
    kept = torch.where(counted, checked(x, name, counted), 0.0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(
    x: Float[Tensor, "*shape"], mask: Shaped[Tensor, "*shape"], dim: int | tuple[int, ...] | None = None, *, name: str = "x"
) -> Float[Tensor, "*rest"]:
    """Mean of x over the positions where the mask is 1; the mean of nothing is 0.

        (sum over i with mask_i = 1 of x_i) / max(1, number of i with mask_i = 1)

    Shapes and units: x and mask [same shape]; dim: what to average over, None for everything; result in x's units. `name` is what
    an error calls x.
    Why 0 and not NaN: a fully masked row must add nothing to a loss, and must not stop the rows beside it.
    Reduces to: x.mean(dim) under a full mask; 0, with gradient 0, under an empty one.
    Raises: ValueError if the shapes differ, the mask is not 0/1, or x is NaN or +inf where the mask is 1.
    Source: the masked mean of PPO implementations, with selection in place of multiplication.
    """
    total = masked_sum(x, mask, dim, name=name)
    counted = boolean_mask(mask, tuple(x.shape))
    count = counted.sum() if dim is None else counted.sum(dim)
    return total / count.clamp(min=1)
