"""What differs between the environment a policy was trained in and the one it is evaluated in: a list, which should be empty."""

from dataclasses import dataclass
from typing import Any, Mapping, Sequence

from course.envs.kernel import World
from course.language.stamp import canonical_json, digest


@dataclass(frozen=True)
class Difference:
    """field: where, as a path with dots. A value that one of the two lacks is ABSENT."""

    field: str
    training: Any
    evaluation: Any

    def __str__(self) -> str:
        return f"{self.field}: {self.training} in training, {self.evaluation} in evaluation"


ABSENT = "(absent)"
# Parts that every contract must state: what isn't stated can't be compared, and would pass as equal.
REQUIRED = ("reset", "observations", "actions", "budgets", "visible_files", "hidden", "versions")


def task_contract(
    world: World,
    *,
    observations: Mapping[str, Any],
    hidden: Sequence[str],
    visible_files: Mapping[str, str] = {},
    versions: Mapping[str, str] = {},
) -> dict[str, Any]:
    """The contract of a task law in a world, as plain JSON.

    observations: how the policy is shown things, for example {"serializer": digest, "tokenizer": digest}. hidden: the names of
    what is kept from it. visible_files: path -> digest of its content. versions: of grader, task law and whatever else counts.
    """
    told = world.contract()
    return {
        "reset": {"cost": told["reset_cost"], "parts": told["parts"]},
        "observations": dict(observations),
        "actions": {"grammar": told["grammar"], "grants": told["grants"]},
        "budgets": {"budget": told["budget"], "idle_cost": told["idle_cost"], "max_actions": told["max_actions"]},
        "visible_files": dict(visible_files),
        "hidden": sorted(hidden),
        "versions": {"environment": f"{world.name}@{digest(told)}", **versions},
    }


def contract_differences(training: Mapping[str, Any], evaluation: Mapping[str, Any]) -> list[Difference]:
    """Every field in which two contracts differ, sorted by name.

        fields of a mapping are compared one by one, to any depth;  everything else by its canonical JSON

    Shapes and units: plain JSON data; each has at least the fields of REQUIRED. Lists are compared as a whole and in order; 1 and
    1.0 differ, and so do true and 1.
    Reduces to: the empty list if and only if the canonical JSON of both is the same text.
    Raises: ValueError if a required field is missing from both or one, or a value has no JSON text.
    Source: source A, section 7.1: any item that changes between training and evaluation is reported.
    """
    for name, contract in (("training", training), ("evaluation", evaluation)):
        if missing := [field for field in REQUIRED if field not in contract]:
            raise ValueError(f"{name} must state {', '.join(REQUIRED)}; got nothing for {', '.join(missing)}")
        canonical_json(_plain(contract))
    return sorted(_compare("", training, evaluation), key=lambda difference: difference.field)


def _compare(path: str, training: Any, evaluation: Any) -> list[Difference]:
    if isinstance(training, Mapping) and isinstance(evaluation, Mapping):
        found = []
        for name in {*training, *evaluation}:
            below = f"{path}.{name}" if path else name
            if name in training and name in evaluation:
                found += _compare(below, training[name], evaluation[name])
            else:
                found.append(Difference(below, training.get(name, ABSENT), evaluation.get(name, ABSENT)))
        return found
    if canonical_json(_plain(training)) == canonical_json(_plain(evaluation)):
        return []
    return [Difference(path, training, evaluation)]


def _plain(value: Any) -> Any:
    return {name: _plain(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value
