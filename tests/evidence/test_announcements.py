"""Both sets of reports: each is a reader's exercise with one right answer, which a linter finds without knowing how it was made."""

import json
import re
import zipfile
from collections import Counter

import pytest

from autograder.hidden.announcements import SEEDS, TEXTS, full_report, public_part
from course.evidence.claims import Claim, EvidenceTable
from course.evidence.lint import REASONS, Finding, strong_words
from course.evidence.numbers import read_number
from course.evidence.over_claims import over_claims
from course.evidence.reports import (
    COUNT,
    QUESTIONS,
    Announcement,
    drawn_id,
    find_report,
    practice,
    report_id,
    tally,
    written_report,
)

PRACTICE = [practice(number) for number in range(COUNT)]
CLASS = [full_report(report_id(number)) for number in range(COUNT)]
ALL = PRACTICE + CLASS


def test_no_two_reports_are_alike():
    assert len({(r.sentences, r.lines) for r in ALL}) == 2 * COUNT
    for a, b in zip(ALL, ALL[1:]):
        assert len(set(a.sentences) & set(b.sentences)) <= len(a.sentences) / 2


def test_the_text_of_the_class_is_what_the_secret_seeds_give():
    seeds, rows = json.loads(SEEDS.read_text()), json.loads(TEXTS.read_text("utf-8"))
    assert list(seeds) == [row["id"] for row in rows] == [report_id(number) for number in range(COUNT)]
    assert len(set(seeds.values())) == COUNT and min(map(int, seeds.values())) > 10**12
    for row, (id, seed) in zip(rows, seeds.items()):
        assert row == json.loads(json.dumps(public_part(written_report(seed, id))))


def test_the_students_package_holds_the_text_and_not_the_truth(tmp_path, monkeypatch):
    """What find_report gives has no truth, and no seed stands in any file of the students' zip."""
    from autograder import release, seal
    from autograder.levels import load

    report = find_report("R-017")
    assert type(report) is Announcement and not hasattr(report, "truth") and not hasattr(report, "planted")
    monkeypatch.setattr(release, "known_mistakes", dict)  # slow, and hashes only
    release.write_release(tmp_path / "student.zip")
    with zipfile.ZipFile(tmp_path / "student.zip") as archive:
        names = archive.namelist()
        text = b"\n".join(map(archive.read, names))
    assert f"course-student/course/evidence/{TEXTS.name}" in names and not [n for n in names if "hidden" in n]
    assert report.sentences[0].encode() in text and b"def over_claims" not in text
    assert [id for id, seed in json.loads(SEEDS.read_text()).items() if seed.encode() in text] == []
    seal.write_site(tmp_path / "site", load(7), sealed=True)  # what a submission sees
    assert (
        not list((tmp_path / "site").rglob("over_claims*")) and (tmp_path / "site" / "course" / "evidence" / TEXTS.name).exists()
    )


def test_a_report_is_a_function_of_its_seed():
    assert [practice(number).id for number in (0, 7, 199)] == ["P-000", "P-007", "P-199"]
    assert written_report("practice 7", "P-007") == PRACTICE[7] and find_report("R-017").sentences == CLASS[17].sentences
    for bad in ("R-200", "R-17", "", "r-017", "P-003"):
        with pytest.raises(ValueError, match="R-000 to R-199"):
            find_report(bad)
    for bad in (-1, 200):
        with pytest.raises(ValueError, match="0 to 199"):
            practice(bad)


def test_students_draw_different_reports():
    ids = [drawn_id(f"student {n}") for n in range(1000)]
    assert len(set(ids)) > 190 and max(Counter(ids).values()) < 20
    assert drawn_id(" Ada Lovelace") == drawn_id("ada lovelace ")


def test_every_table_is_full_and_balanced():
    """Each report has rows of all three labels, and each row is told in all the ways that it can be."""
    ways = Counter()
    for r in ALL:
        labels = [r.truth.label(field) for field in QUESTIONS]
        assert labels.count("D") >= 3 and labels.count("I") >= 1 and labels.count("U") >= 3, r.id
        ways.update(zip(QUESTIONS, labels))
        unknown = [field for field, label in zip(QUESTIONS, labels) if label == "U"]
        assert r.truth.row("unknowns") == (Claim("unknowns", ", ".join(unknown), "U"),)
    computed = {"sft_data", "rollouts", "compute", "inference"}
    assert set(ways) == {(field, label) for field in QUESTIONS for label in ("DIU" if field in computed else "DU")}
    assert min(ways.values()) >= 30


def test_places_are_where_the_text_stands():
    for r in ALL:
        assert len(set(r.sentences)) == len(r.sentences) >= 12
        for claim in r.truth.claims:
            if claim.label == "D":
                assert r.sentences[int(re.fullmatch(rf"{r.id} s(\d+)", claim.place)[1]) - 1] == claim.text
            if claim.label == "I":
                assert len(claim.premises) == 2
                assert all(r.sentences[int(p.split("s")[-1]) - 1] in claim.text for p in claim.premises)


def counts(texts):
    return [int(n.replace(",", "")) for text in texts for n in re.findall(r"(?<![\w-])\d[\d,]*(?![\w-])", text)]


@pytest.mark.parametrize(
    "field, unit",
    [("sft_data", "demonstrations"), ("rollouts", "episodes"), ("compute", "accelerator-days"), ("inference", "samples")],
)
def test_an_inference_is_arithmetic_on_two_sentences(field, unit):
    """Two numbers stand there, and the answer is in no sentence."""
    for r in ALL:
        if r.truth.label(field) == "I":
            a, b = counts(r.sentences[int(p.split("s")[-1]) - 1] for p in r.truth.row(field)[0].premises)
            answer = max(a, b) // min(a, b) if field == "inference" else a * b
            assert not any(f"{answer:,} {unit}" in text for text in r.sentences), r.id


def test_the_linter_finds_what_was_planted_and_nothing_else():
    """Two independent ways to one answer: how a line was made, and what the sentences say about it."""
    found = Counter()
    for r in ALL:
        assert 3 <= len(r.planted) <= 4 and len(set(r.lines)) == len(r.lines) == 6
        assert sorted(over_claims(r.lines, r.sentences), key=lambda f: f.claim) == sorted(
            r.planted.values(), key=lambda f: f.claim
        ), r.id
        assert all(r.lines[int(line[1:]) - 1] == finding.claim for line, finding in r.planted.items())
        found.update(finding.why for finding in r.planted.values())
    assert set(found) == set(REASONS) - {"not_said"} and min(found.values()) >= 30


def test_sentences_support_themselves():
    for r in ALL:
        assert over_claims(r.sentences, r.sentences) == () and over_claims(r.truth, r.sentences) == ()


def test_a_table_must_cite_the_sentence_that_says_it():
    r = next(r for r in ALL if r.truth.label("optimizer") == "D")
    claim = r.truth.row("optimizer")[0]
    other = next(n for n, text in enumerate(r.sentences, 1) if text != claim.text and "trained" not in text)
    moved = EvidenceTable((Claim("optimizer", claim.text, "D", f"{r.id} s{other}"),))
    assert [(f.field, f.claim, f.place) for f in over_claims(moved, r.sentences)] == [("optimizer", claim.text, f"s{other}")]
    with pytest.raises(ValueError, match="s99"):
        over_claims(EvidenceTable((Claim("optimizer", claim.text, "D", f"{r.id} s99"),)), r.sentences)


SENTENCES = (
    "Vega-3 was trained with reinforcement learning.",
    "On DeskBench, Vega-3 reaches 61 % of tasks, with 64 samples.",
    "Vega-3 uses tools.",
)


@pytest.mark.parametrize("line, why, place", [
    ("Vega-3 was trained with GRPO.", "optimizer_from_rl", "s1"),
    ("Vega-3 was trained with reinforcement learning over tool calls.", "tool_rl_from_tools", "s3"),
    ("On DeskBench, Vega-3 reaches 61 % of tasks.", "condition_dropped", "s2"),
    ("On DeskBench, Vega-3 reaches 62 % of tasks, with 64 samples.", "not_said", ""),
    ("Vega-3 is agentic.", "not_said", ""),
    ("Vega-3 is wonderful.", "not_said", ""),
])  # fmt: skip
def test_one_line_at_a_time(line, why, place):
    assert over_claims([line], SENTENCES) == (Finding("", line, why, place),)


@pytest.mark.parametrize(
    "line",
    [
        "On DeskBench, Vega-3 reaches 61.0 % of tasks, with 64 samples.",
        "Vega-3 was trained.",
        "Vega-3 was trained and uses tools.",
    ],
)
def test_another_wording_of_what_is_said(line):
    assert over_claims([line], SENTENCES) == ()


def test_strong_words_are_told_with_their_sentence():
    text = "It reaches 61 %. This proves that RL works, thanks to our data. We measured it."
    assert [(f.claim, f.why, f.place) for f in strong_words(text)] == [
        ("thanks to", "cause_not_said", "s2"),
        ("proves that", "not_said", "s2"),
    ]
    assert strong_words("Our policy reaches 61 % with one sample [D].") == ()


def test_results_answer_only_with_their_budget():
    for r in ALL:
        for claim in r.truth.row("evaluation"):
            if claim.label == "D":
                assert read_number(claim.text).budget and read_number(claim.text).benchmark
                assert f" {r.model} " in claim.text


def test_a_report_prints_with_its_places():
    for text, id in ((str(practice(3)), "P-003"), (str(find_report("R-003")), "R-003")):
        assert text.startswith(f"{id} · ") and "\ns1 " in text and "\nh6 " in text


@pytest.mark.parametrize("words", ["sample", "judge", "episode", "token"])
def test_no_budget_answers_the_question_of_another_row(words):
    for r in ALL:
        for text in r.sentences:
            if text.startswith("On "):
                assert words not in text, (r.id, text)


def test_readers_are_counted_by_reason():
    found = tally(PRACTICE[:20], {"all pass": lambda line, sentences: True, "none": lambda line, sentences: False})
    assert found.planted == Counter(f.why for r in PRACTICE[:20] for f in r.planted.values())
    assert list(found.planted.values()) == sorted(found.planted.values(), reverse=True)
    assert set(found.caught["all pass"].values()) == {0} and found.caught["none"] == found.planted
    assert found.honest == 120 - sum(found.planted.values()) and found.alarms == {"all pass": 0, "none": found.honest}
