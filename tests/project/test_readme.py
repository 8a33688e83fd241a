"""What the README shows is run: its code on a small checkpoint made here, its commands against the command line."""

import json
import re
from pathlib import Path

import pytest
import torch

from course.evidence.intervals import Interval, bootstrap_mean
from course.models import Policy

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("checkpoint")
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_the_code_runs_on_a_checkpoint_of_transformers(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    namespace: dict = {}
    exec(code.replace("/path/to/any/causal-lm", str(checkpoint)), namespace)
    assert namespace["learner"].step == 2 and (tmp_path / "checkpoint.safetensors").exists()
    assert isinstance(namespace["policy"], Policy)
    assert namespace["logprobs"].dtype == torch.float32
    recorded, actions = namespace["samples"].logprobs, namespace["samples"].action_mask[:, 1:]
    assert torch.allclose(recorded[actions], namespace["logprobs"][actions], atol=0.05)  # bfloat16, with and without a cache


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_every_command_in_the_pages_exists():
    from course.cli import app

    known = {c.name or c.callback.__name__ for c in app.registered_commands}
    for page in PAGES:
        code = re.findall(r"`[^`]+`|    \.venv/bin/course [^\n]+", page.read_text())
        named = set(re.findall(r"course ([a-z][a-z-]+)", " ".join(code).replace("\n", " ")))
        assert named <= known and (named or page.stem == "GLOSSARY"), (page.name, named - known)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_its_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


LABS = sorted((ROOT / "solutions").glob("level*/lab.py"))


@pytest.mark.parametrize("lab", LABS, ids=[lab.parent.name for lab in LABS])
def test_every_page_gives_a_level_the_same_hours_and_its_measured_time(lab):
    name, text = lab.parent.name, lab.read_text()
    hours = re.search(r"\*\*Time\*\* about (\d+) hours", text)[1]
    measured = json.loads(lab.with_name("measured.json").read_text())["notebooks"]["lab"]
    row = next(line for line in README.splitlines() if line.startswith("| [") and f"{name}/lab.ipynb" in line)
    assert row.endswith(f"| {hours} | {measured['seconds']} s | {measured['megabytes'] / 1000:.1f} GB |")
    start, term = (ROOT / "solutions/start/start.py").read_text(), (ROOT / "docs/INSTRUCTORS.md").read_text()
    assert re.search(rf"\(\.\./{name}/lab\.ipynb\).*\| {hours} \|$", start, re.MULTILINE)
    assert re.search(rf"\(\.\./levels/{name}/lab\.ipynb\) \| {hours} \|", term)


def test_every_lab_and_case_is_linked_from_the_start():
    start = ROOT / "levels" / "start" / "start.ipynb"
    links = re.findall(r"\]\(([^)#]+)", "".join("".join(cell["source"]) for cell in json.loads(start.read_text())["cells"]))
    assert {(start.parent / link).resolve() for link in links} == set((ROOT / "levels").glob("level*/*.ipynb"))


def test_every_term_of_the_glossary_is_implemented_where_it_says():
    found = re.findall(r"\[`(\w+)`\]\(\.\./(course/[^)]+)\)", (ROOT / "docs" / "GLOSSARY.md").read_text())
    assert len(found) > 40
    for name, path in found:
        source = ROOT / path
        assert source.stem == name or re.search(rf"^(def|class) {name}\b", source.read_text(), re.MULTILINE), (name, path)


# ------------------------------------------------------------------ numbers that stand in recordings


def recorded(path: str) -> list:
    return json.loads((ROOT / "solutions" / path).read_text())["outcomes"]


def over_seeds(values: list) -> Interval:
    return bootstrap_mean([float(value) for value in values], level=0.95, seed=0)


def percent(values: list) -> str:
    found = over_seeds(values)
    return f"{found.mean:.0%} [{100 * found.low:.0f}, {100 * found.high:.0f}]".replace("%", " %")


def test_recorded_numbers_are_those_of_the_recordings():
    tail, webgpt = recorded("level1/evidence.json"), recorded("level4/case_webgpt.json")
    gained, lost = (
        over_seeds([row[a] - row[b] for row in tail]) for a, b in (("accuracy_a", "accuracy_b"), ("gold_b", "gold_a"))
    )
    wins = [percent([row["wins"][name]["clone"] for row in webgpt]) for name in ("clone, best of 64", "PPO")]
    proofs = recorded("level3/case_alphaproof.json")
    above = sum(row["loop"] > row["control"] for row in proofs)
    for row in (
        f"| {gained.mean:.3f} [{gained.low:.3f}, {gained.high:.3f}]; {lost.mean:.3f} [{lost.low:.3f}, {lost.high:.3f}] |",
        f"WebGPT case over {len(webgpt)} seeds, wins against the plain clone: best-of-64; PPO | {wins[0]}; {wins[1]} |",
        f"AlphaProof case over {len(proofs)} fresh seeds: loop above its control | {above} of {len(proofs)} |",
    ):
        assert row in README, row
