"""Costs as vectors of named components, and the rule that an action whose worst case would not fit is refused before it runs."""

from collections.abc import Mapping
from sys import float_info
from typing import Iterator


class Cost(Mapping[str, int | float]):
    """Cost(calls=1, compute=3): named, finite, non-negative components; one that is not named is 0.

    Reduces to: Cost() is the zero of addition; two costs are equal if they agree in every component, named or not.
    Raises: ValueError for a component that is negative or not a finite number.
    """

    def __init__(self, /, **components: int | float):
        for name, value in components.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= float_info.max:
                raise ValueError(f"{name} must be a finite number that is not negative; got {value!r}")
        self._components = {name: components[name] for name in sorted(components) if components[name]}

    def __getitem__(self, name: str) -> int | float:
        return self._components.get(name, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._components

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cost) and self._components == other._components

    def __hash__(self) -> int:
        return hash(tuple(self._components.items()))

    def __repr__(self) -> str:
        return f"Cost({', '.join(f'{name}={value}' for name, value in self._components.items())})"

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(**{name: self[name] + other[name] for name in {*self, *other}})

    def fits(self, bound: "Cost") -> bool:
        """No component is above the bound's; a component that the bound does not name must be 0."""
        return all(value <= bound[name] for name, value in self.items())

    def to_json(self) -> dict[str, int | float]:
        return dict(self._components)


def admit(round_cost_bound: Cost, spent: Cost, budget: Cost) -> bool:
    """Whether something of this worst-case cost may start.

        spent + bound <= budget  in every component

    Reduces to: spent.fits(budget) for a bound of 0. Equality is admitted: a budget may be used up.
    Source: a sandbox's componentwise cost bound, and a run's pre-admission rule.
    """
    return all(spent[name] + round_cost_bound[name] <= budget[name] for name in {*spent, *round_cost_bound})
