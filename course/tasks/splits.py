"""Splits and batches that never take apart what belongs together: pairs of one ranking, prompts of one family."""

from typing import Any, Iterator, Sequence
import random


def _group_of_each(records: Sequence[Any]) -> list[int]:
    """The group number of every record: records that share a family or a ranking, directly or through others, share a group."""
    parent = list(range(len(records)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    seen: dict[tuple[str, Any], int] = {}
    for i, record in enumerate(records):
        for field in ("family", "ranking_id"):
            value = record.get(field) if isinstance(record, dict) else getattr(record, field, None)
            if value is not None:
                parent[root(i)] = root(seen.setdefault((field, value), i))
    return [root(i) for i in range(len(records))]


def split_by_group(records: Sequence[Any], fractions: Sequence[float], seed: int) -> tuple[list[int], ...]:
    """Split records so that no family of prompts and no ranking has members in two parts.

        group = records connected by an equal family or an equal ranking_id (chains count);   whole groups are dealt out,
        in a seeded random order, each to the part that is furthest below its share of the records

    Shapes and units: records: objects or dicts with `family` and `ranking_id` (None or absent: not shared with anyone);
    fractions: positive, sum 1; result: one sorted list of positions in `records` per fraction. Every position is in exactly one.
    Positions and not records, so that tensors made from the records can be split by the same lists.
    Reduces to: an ordinary random split if no two records share anything. With fewer groups than parts a part is empty.
    Raises: ValueError if a fraction is not positive or they do not sum to 1.
    Source: the leak it prevents: InstructGPT (Ouyang et al. 2022, arXiv 2203.02155), section 3.5, on pairs of one ranking.
    """
    if not fractions or any(f <= 0 for f in fractions) or abs(sum(fractions) - 1) > 1e-9:
        raise ValueError(f"fractions must be positive and sum to 1; got {list(fractions)}")
    groups: dict[int, list[int]] = {}
    for i, group in enumerate(_group_of_each(records)):
        groups.setdefault(group, []).append(i)
    order = list(groups.values())
    random.Random(seed).shuffle(order)
    parts: tuple[list[int], ...] = tuple([] for _ in fractions)
    for members in order:
        missing = [f * len(records) - len(part) for f, part in zip(fractions, parts)]
        parts[missing.index(max(missing))].extend(members)
    return tuple(sorted(part) for part in parts)


def group_batches(records: Sequence[Any], batch_size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of positions. Each pass over the records has its own seeded order; a ranking's pairs stay in one batch.

    A batch is closed as soon as it holds at least batch_size records, so a ranking can make it longer, never cut it.
    """
    if batch_size < 1 or not records:
        raise ValueError(f"batch_size must be at least 1 and records not empty; got {batch_size} and {len(records)} records")
    rankings: dict[Any, list[int]] = {}
    for i, record in enumerate(records):
        name = getattr(record, "ranking_id", None)
        rankings.setdefault(("alone", i) if name is None else ("ranking", name), []).append(i)
    rng = random.Random(seed)
    batch: list[int] = []
    while True:
        order = list(rankings.values())
        rng.shuffle(order)
        for members in order:
            batch.extend(members)
            if len(batch) >= batch_size:
                yield batch
                batch = []
