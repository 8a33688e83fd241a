"""A stamp is a function of its five parts, and of nothing that differs between processes."""

import json
import os
import subprocess
import sys

from hypothesis import given, settings, strategies as st

from course.language.stamp import PARTS, policy_stamp

PLAIN = st.one_of(
    st.text(min_size=1), st.integers(), st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False, allow_infinity=False))
)


@settings(deadline=None, max_examples=100)
@given(st.fixed_dictionaries(dict.fromkeys(PARTS, PLAIN)), st.sampled_from(PARTS), PLAIN)
def test_each_part_changes_the_stamp_and_order_does_not(parts, name, other):
    stamp = policy_stamp(parts)
    assert policy_stamp(dict(reversed(parts.items()))) == stamp
    same = json.dumps(parts[name], sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (policy_stamp({**parts, name: other}) == stamp) == same


def test_another_process_gives_the_same_stamp():
    """Where texts hash otherwise and sets have another order."""
    parts = {name: {"b": 0.1, "a": [1, "é"], name: None} for name in PARTS}
    program = "import json, sys; from course.language.stamp import policy_stamp; print(policy_stamp(json.load(sys.stdin)))"
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", program], input=json.dumps(parts), text=True, capture_output=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.stdout.strip() == policy_stamp(parts)
