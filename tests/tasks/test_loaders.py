import gzip
import json

import pytest

from course.tasks.loaders import PreferenceRow, read_hh, read_preference_rows, to_comparison
from course.tasks.records import PreferenceLabel

HH = {
    "chosen": "\n\nHuman: What is 2 + 2?\n\nAssistant: Do you mean integers?\n\nHuman: Yes.\n\nAssistant: 4",
    "rejected": "\n\nHuman: What is 2 + 2?\n\nAssistant: Do you mean integers?\n\nHuman: Yes.\n\nAssistant: 5, I think.",
}


def write(path, rows, compressed=False):
    text = "\n".join(json.dumps(row) if not isinstance(row, str) else row for row in rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_hh_dialogues_are_cut_at_the_last_assistant_turn(tmp_path, compressed):
    path = write(tmp_path / ("x.jsonl.gz" if compressed else "x.jsonl"), [HH, HH], compressed)
    rows = read_hh(path)
    assert len(rows) == 2 and (rows[0].chosen, rows[0].rejected) == ("4", "5, I think.")
    assert rows[0].prompt == (("user", "What is 2 + 2?"), ("assistant", "Do you mean integers?"), ("user", "Yes."))
    assert rows[1].where == f"{path}, row 2"


@pytest.mark.parametrize(
    "row, field",
    [({"chosen": HH["chosen"]}, "rejected"), ({"chosen": "hello", "rejected": HH["rejected"]}, "chosen"),
     ({"chosen": HH["chosen"], "rejected": "\n\nHuman: Other?\n\nAssistant: 5"}, "rejected"),
     ({"chosen": HH["chosen"] + "\n\nHuman: Thanks.", "rejected": HH["rejected"]}, "chosen"),
     ({"chosen": 3, "rejected": HH["rejected"]}, "chosen"), ("{not json", "not JSON"), ("[1]", "JSON object")],
)  # fmt: skip
def test_malformed_hh_rows_say_where_and_what(tmp_path, row, field):
    path = write(tmp_path / "x.jsonl", [HH, row])
    with pytest.raises(ValueError) as error:
        read_hh(path)
    assert str(path) in str(error.value) and "row 2" in str(error.value) and field in str(error.value)


def test_an_empty_file_is_an_error(tmp_path):
    (tmp_path / "x.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="no rows"):
        read_hh(tmp_path / "x.jsonl")


def test_plain_rows_and_message_rows_mean_the_same(tmp_path):
    user, good, bad = ({"role": r, "content": c} for r, c in (("user", "q"), ("assistant", "a"), ("assistant", "b")))
    rows = [
        {"prompt": "q", "chosen": "a", "rejected": "b"},
        {"prompt": [user], "chosen": [good], "rejected": [bad]},
        {"chosen": [user, good], "rejected": [user, bad]},
    ]
    read = read_preference_rows(write(tmp_path / "x.jsonl", rows))
    assert {(r.prompt, r.chosen, r.rejected) for r in read} == {((("user", "q"),), "a", "b")}


@pytest.mark.parametrize(
    "row, field",
    [({"chosen": "a", "rejected": "b"}, "prompt"), ({"prompt": "q", "chosen": "", "rejected": "b"}, "chosen"),
     ({"prompt": "q", "chosen": [{"role": "robot", "content": "a"}], "rejected": "b"}, "chosen"),
     ({"prompt": "q", "chosen": [{"role": "user", "content": "a"}], "rejected": "b"}, "chosen"),
     ({"prompt": "q", "chosen": "a", "rejected": []}, "rejected")],
)  # fmt: skip
def test_malformed_preference_rows(tmp_path, row, field):
    with pytest.raises(ValueError, match=f"row 1: {field}"):
        read_preference_rows(write(tmp_path / "x.jsonl", [row]))


def test_rows_become_records_of_ids():
    row = PreferenceRow((("user", "q"),), "a", "bc", "file, row 1")
    codes = dict(encode_prompt=lambda p: tuple(map(ord, p[0][1])), encode_response=lambda t: tuple(map(ord, t)))
    plain, swapped = (to_comparison(row, swap=s, **codes) for s in (False, True))
    assert plain.chosen == swapped.chosen == (97,) and plain.rejected == swapped.rejected == (98, 99)
    assert swapped.label is PreferenceLabel.SECOND and "row 1" in plain.provenance.procedure
    same = PreferenceRow((("user", "q"),), "a", "a", "file, row 2")
    assert to_comparison(same, swap=False, **codes).label is PreferenceLabel.INVALID
