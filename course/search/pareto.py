"""The points that no other point beats on both axes."""

from jaxtyping import Int, Num
from torch import Tensor

from course.masks import checked


def pareto_front(points: Num[Tensor, "n 2"]) -> Int[Tensor, "front"]:
    """Places of the points that no other one dominates, where less cost and more quality are better.

        j dominates i if cost_j <= cost_i and quality_j >= quality_i, and one of the two is strict

    Shapes and units: points [N,2], (cost, quality) in any units; result the places, ascending. Equal points do not dominate each
    other: all copies of a point on the front are on it. Memory is N^2 bools; N is the rows of a table.
    Reduces to: every place if quality rises with cost all along; the single best point if one has least cost and most quality.
    Raises: ValueError if points is not [N,2] or a coordinate is not finite.
    Source: Pareto dominance, as in any text on optimisation with two aims.
    """
    if points.dim() != 2 or points.shape[1] != 2:
        raise ValueError(f"points must be [N,2], (cost, quality); got {tuple(points.shape)}")
    cost, quality = checked(points if points.is_floating_point() else points.double(), "points", finite=True).unbind(1)
    no_worse = (cost[None, :] <= cost[:, None]) & (quality[None, :] >= quality[:, None])
    strict = (cost[None, :] < cost[:, None]) | (quality[None, :] > quality[:, None])
    return (~(no_worse & strict).any(1)).nonzero()[:, 0]
