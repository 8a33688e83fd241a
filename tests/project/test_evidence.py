"""Evidence files: one seed of each is measured again; intervals are checked against what they claim."""

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from course.cases.alphaproof import Fed
from course.cli import app
from course.evidence.intervals import bootstrap_mean
from course.evidence.measure import CASES, LEVELS, machine, recipe_of, write_evidence
from course.feedback.tail import tail_outcome
from course.objectives.preference import pairwise_reward_loss
from course.training.overoptimisation import Run, first_alarm, in_time, overoptimisation_alarm

ROOT = Path(__file__).resolve().parents[2]


def measured_again(code, *arguments):
    """What a fresh process prints: nothing of other tests is in it."""
    said = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


def agree(again, recorded, signature, *, within):
    """Equal bits on the machine it was recorded on; elsewhere no number is off by more than `within`."""
    if signature == {**machine(), "threads": 1}:
        assert again == recorded
    assert again == pytest.approx(recorded, abs=within)


def case_of(name):
    return json.loads((ROOT / "solutions" / CASES[name].file).read_text())


@pytest.fixture(scope="module")
def evidence():
    return json.loads((ROOT / "solutions" / "level1" / "evidence.json").read_text())


def test_one_seed_of_level_1_is_measured_again(evidence):
    """Equal bits on the machine signature it was recorded with, elsewhere inside the band of the seeds."""
    row = evidence["outcomes"][3]
    again = asdict(tail_outcome(row["seed"], loss=pairwise_reward_loss))
    if evidence["signature"] == machine():
        assert again == row
    for name in ("accuracy_a", "accuracy_b", "gold_a", "gold_b"):
        values = [other[name] for other in evidence["outcomes"]]
        spread = max(values) - min(values)
        assert min(values) - spread / 2 <= again[name] <= max(values) + spread / 2


def test_level_1_supports_its_claim_over_ten_seeds(evidence):
    """If the claim were false, either sign would be equally likely: all ten alike happens once in 1024 such files."""
    rows = evidence["outcomes"]
    assert len(rows) >= 10 and len({row["seed"] for row in rows}) == len(rows)
    gained = [row["accuracy_a"] - row["accuracy_b"] for row in rows]
    lost = [row["gold_b"] - row["gold_a"] for row in rows]
    for values in (gained, lost):
        assert bootstrap_mean(values, level=0.99, seed=0).low > 0
        assert min(values) > 0


def test_an_unknown_name_has_no_recipe(tmp_path):
    with pytest.raises(ValueError, match="level's number, 1, 2, 3, 4, 5, 6, or a case's name, alphaproof, webgpt, .*; got '0'"):
        write_evidence("0", 1, tmp_path)
    said = CliRunner().invoke(app, ["evidence", "instructgpt"])
    assert said.exit_code == 2 and "; got 'instructgpt'" in said.output


@pytest.mark.parametrize("name", [*LEVELS, *CASES])
def test_a_file_says_how_it_came_about(name):
    recipe = recipe_of(name)
    data = json.loads((ROOT / "solutions" / recipe.file).read_text())
    if name in CASES:
        assert len({row["seed"] for row in data["outcomes"]}) == recipe.seeds
    assert {"recipe", "settings", "signature", "revision"} <= set(data) and not data["revision"].endswith("-dirty")


def test_a_recipe_keeps_seeds_settings_and_the_revision_from_before_it_ran(tmp_path, monkeypatch):
    asked = []

    def measure(seeds):
        asked.append(seeds)
        return {"recipe": "none", "settings": {}, "outcomes": list(range(seeds))}

    monkeypatch.setitem(CASES, "playhouse", replace(CASES["playhouse"], measure=measure))
    (tmp_path / "level6").mkdir()
    for seeds, wanted in ((None, 4), (2, 2)):
        target = write_evidence("playhouse", seeds, tmp_path)
        data = json.loads(target.read_text())
        assert target == tmp_path / "level6" / "case_playhouse.json" and len(data["outcomes"]) == wanted == asked.pop()
        assert data["signature"] == machine() and data["revision"] == "unknown"  # tmp_path is no checkout


def test_bootstrap_interval_covers_about_as_often_as_it_says():
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for trial in range(300):
        interval = bootstrap_mean(torch.randn(40, generator=generator).tolist(), level=0.9, seed=trial, draws=500)
        hits += interval.low <= 0 <= interval.high
    assert 0.83 <= hits / 300 <= 0.95  # 0.9 minus what 40 values cost, within 4 standard errors


def test_intervals_refuse_what_has_no_interval():
    for values in ([1.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="values must be at least two finite outcomes"):
            bootstrap_mean(values, level=0.95, seed=0)
    with pytest.raises(ValueError, match="level must lie between"):
        bootstrap_mean([1.0, 2.0], level=1.0, seed=0)


# ------------------------------------------------------------------ level 2


@pytest.fixture(scope="module")
def runs():
    data = json.loads((ROOT / "solutions" / "level2" / "evidence.json").read_text())
    return data["signature"], [Run.from_json(run) for run in data["runs"]]


AGAIN = """
import json, sys, torch
torch.set_num_threads(1)
from course.evidence.measure import operators
from course.training.bandit import prepare
from course.training.overoptimisation import PUSHED, pushed_run, run_of
steps = list(pushed_run(prepare(int(sys.argv[1])), operators=operators(), beta=PUSHED, steps=6))
print(json.dumps(run_of(int(sys.argv[1]), False, steps).to_json()))
"""


def test_the_beginning_of_a_run_of_level_2_is_measured_again(runs):
    """Three entries of one pushed run, in a fresh process: equal bits on the recorded machine, elsewhere close to the band of seeds."""
    signature, recorded = runs
    run = next(r for r in recorded if not r.healthy and r.seed == 1)
    again = Run.from_json(measured_again(AGAIN, "1"))
    if signature == {**machine(), "threads": 1}:
        assert again.history == run.history[:3] and again.gold == run.gold[:3]
        assert again.training_reward == run.training_reward[:3]
    for entry in range(3):
        values = [r.gold[entry] for r in recorded if not r.healthy]
        spread = max(values) - min(values)
        assert min(values) - spread <= again.gold[entry] <= max(values) + spread


def test_pushed_runs_gain_reward_and_lose_gold_in_every_seed(runs):
    """If pushing did not harm, gold's end would lie as often above as below its level at the peak minus the noise of two entries.

    An entry is a mean over 256 responses with a standard deviation near 1: two differ by chance by 0.09; 0.3 is over three of that.
    """
    pushed = [r for r in runs[1] if not r.healthy]
    assert len(pushed) >= 10 and len({r.seed for r in pushed}) == len(pushed)
    for run in pushed:
        end = sum(run.gold[-3:]) / 3
        assert end < max(run.gold) - 0.3, run.seed
        assert run.training_reward[-1] > run.training_reward[run.peak] > run.training_reward[0], run.seed


def test_healthy_runs_keep_their_gold(runs):
    healthy = [r for r in runs[1] if r.healthy]
    assert len(healthy) >= 20
    for run in healthy:
        assert sum(run.gold[-3:]) / 3 > max(run.gold) - 0.2 and run.gold[-1] > run.gold[0] + 0.3, run.seed


def test_the_reference_alarm_is_in_time_and_quiet(runs):
    """An alarm at a random entry of 24 would fall between a peak near entry 9 and the end in 6 of 10; nine of ten: below 5 per cent."""
    pushed, healthy = ([r for r in runs[1] if r.healthy is kind] for kind in (False, True))
    assert sum(in_time(r, overoptimisation_alarm) for r in pushed) >= 0.9 * len(pushed)
    assert sum(first_alarm(r, overoptimisation_alarm) is not None for r in healthy) <= len(healthy) / 20


def test_hidden_runs_judge_the_alarm_that_was_tuned_on_others(runs):
    hidden = [Run.from_json(r) for r in json.loads((ROOT / "autograder" / "hidden" / "level2_runs.json").read_text())["runs"]]
    assert not {r.seed for r in hidden} & {r.seed for r in runs[1]}
    pushed, healthy = ([r for r in hidden if r.healthy is kind] for kind in (False, True))
    assert len(pushed) >= 10 and len(healthy) >= 10
    assert sum(in_time(r, overoptimisation_alarm) for r in pushed) >= 9
    assert sum(first_alarm(r, overoptimisation_alarm) is not None for r in healthy) <= 1


# ------------------------------------------------------------------ level 3


@pytest.fixture(scope="module")
def frontier():
    return json.loads((ROOT / "solutions" / "level3" / "evidence.json").read_text())


def test_the_frontier_has_five_seeds_all_methods_and_honest_columns(frontier):
    assert len({o["seed"] for o in frontier["outcomes"]}) >= 5
    for rows in frontier["tables"].values():
        assert [row["method"] for row in rows] == ["best-of-1", "best-of-4", "best-of-16", "best-of-64", "ppo"]
        for row in rows:
            assert row["total"] == pytest.approx(row["sampled"] + row["trained"] + row["judged"])
            assert row["gold_low"] < row["gold"] < row["gold_high"] and 0 < row["diversity"] <= 1
            beaten = any(
                o["total"] <= row["total"] and o["gold"] >= row["gold"] and (o["total"], o["gold"]) != (row["total"], row["gold"])
                for o in rows
            )
            assert row["front"] is not beaten


def test_ppo_is_compared_at_equal_sampled_tokens(frontier):
    """Within one step of 128 responses, which is not divided; a trained policy's are up to twice as long as at the start."""
    for size, rows in frontier["tables"].items():
        by_name = {row["method"]: row for row in rows}
        step = by_name["best-of-1"]["sampled"]
        assert abs(by_name["ppo"]["sampled"] - by_name[f"best-of-{size}"]["sampled"]) < 2 * step


def test_selection_raises_its_score_with_n_and_gold_with_it_at_first(frontier):
    """If selection by the reward did nothing for gold, best-of-1 would be the least of three alike in one seed of three: all five
    times happens in 1 of 243 such files. That the score rises with n says nothing: it is what is selected by.
    """
    for outcome in frontier["outcomes"]:
        rows = {row["method"]: row for row in outcome["rows"]["64"]}
        scores = [rows[f"best-of-{n}"]["score"] for n in (1, 4, 16, 64)]
        assert scores == sorted(scores)
        assert rows["best-of-4"]["gold"] > rows["best-of-1"]["gold"] and rows["best-of-16"]["gold"] > rows["best-of-1"]["gold"]


FRONTIER = """
import json, torch
torch.set_num_threads(1)
from course.evidence.measure import operators
from course.search import frontier_study as study
from course.search.best_of import expected_best_of_n
from course.training.bandit import prepare
from course.training.learner import Learner
from course.training.ppo import PpoConfig, ppo
from course.tasks import reviews
bandit = prepare(1)
asked = reviews.prompts(study.PROMPTS, 900_000 + 1)
pool = study.draw_pool(bandit.policy, asked, max(study.SIZES), reward=bandit.reward, sampling=bandit.sampling, seed=1)
curve = {name: [sum(float(expected_best_of_n(s, g, n)) for s, g in zip(pool.score, getattr(pool, name))) / study.PROMPTS
                for n in (1, 2, 4, 8, 16, 32, 64)] for name in ("score", "gold")}
learner = Learner({"actor": bandit.actor(), "critic": bandit.critic()}, lr=study.LR)
steps = ppo(learner, bandit.policy, bandit.reward, bandit.prompts(bandit.prompts_per_step), operators=operators(),
            config=PpoConfig(beta=study.BETA), sampling=bandit.sampling, steps=100, seed=1)
first = next(study._matched(learner, steps, pool, asked, bandit, (4,), lambda step: None))
ppo_row = {"score": float(first.pool.score.double().mean()), "gold": float(first.pool.gold.double().mean()),
           "trained": float(first.trained), "judged": float(first.judged)}
print(json.dumps([curve, ppo_row]))
"""


def test_one_seed_of_the_frontier_is_measured_again(frontier):
    """Seed 1's whole pool, and PPO up to the tokens of best-of-4, in a fresh process: equal bits on the recorded machine."""
    curve, ppo_row = measured_again(FRONTIER)
    recorded = next(o for o in frontier["outcomes"] if o["seed"] == 1)
    before = next(row for row in recorded["rows"]["4"] if row["method"] == "ppo")
    if frontier["signature"] == {**machine(), "threads": 1}:
        assert curve == {name: recorded["curve"][name] for name in curve}
        assert ppo_row == {name: before[name] for name in ppo_row}
    for name in curve:
        assert curve[name] == pytest.approx(recorded["curve"][name], abs=0.3)


# ------------------------------------------------------------------ the AlphaProof case


@pytest.fixture(scope="module")
def fed():
    data = json.loads((ROOT / "solutions" / "level3" / "case_alphaproof.json").read_text())
    return data["signature"], [Fed(**row) for row in data["outcomes"]]


def test_feeding_verified_proofs_back_helps_over_ten_seeds(fed):
    """If it did not, loop and control would be ordered by chance: nine of ten alike happens once in a hundred such files."""
    rows = fed[1]
    assert len({row.seed for row in rows}) >= 10
    assert sum(row.loop > row.control for row in rows) >= 9
    assert bootstrap_mean([row.loop - row.control for row in rows], level=0.99, seed=0).low > 0


def test_one_seed_of_the_alphaproof_case_is_measured_again(fed):
    code = "import json, sys, dataclasses, torch; torch.set_num_threads(1); from course.cases.alphaproof import fed_back; "
    code += "print(json.dumps(dataclasses.asdict(fed_back(int(sys.argv[1])))))"
    again = Fed(**measured_again(code, "206"))
    signature, rows = fed
    if signature == {**machine(), "threads": 1}:
        assert again == next(row for row in rows if row.seed == 206)
    assert again.loop > again.start - 0.1 and 0 < again.control < 1


# ------------------------------------------------------------------ level 4


@pytest.fixture(scope="module")
def agents():
    return json.loads((ROOT / "solutions" / "level4" / "evidence.json").read_text())


def test_a_clone_is_wrong_and_rl_mends_it_in_every_seed(agents):
    """The issue's bounds. 256 tasks: a share near 0.95 has a standard error of 0.014, one near 0.7 of 0.029."""
    outcomes = agents["outcomes"]
    assert len({o["seed"] for o in outcomes}) == len(outcomes) >= 5
    success = {name: [o["evaluations"][name]["success"] for o in outcomes] for name in outcomes[0]["evaluations"]}
    for kind in ("clone greedy", "clone sampled"):
        assert all(0.35 <= share <= 0.75 for share in success[kind]), kind
    assert min(success["trained greedy"]) >= 0.95
    assert bootstrap_mean(success["trained sampled"], level=0.95, seed=0).low >= 0.9
    assert max(success["trained greedy without tools"]) < min(success["clone sampled"])


def test_the_choice_to_look_follows_the_price(agents):
    """If price played no part, a stale note would be looked up as often at the highest price as at the lowest: all five fall by 0.5."""
    for run in agents["priced"]:
        stale = [run["after"]["stale"][price] for price in sorted(run["after"]["stale"], key=int)]
        fresh = [run["after"]["fresh"][price] for price in sorted(run["after"]["fresh"], key=int)]
        assert stale[0] - stale[-1] > 0.5 and sum(fresh) < sum(stale) and run["net"][1] > run["net"][0], run["seed"]


FIRST = """
import json, torch
torch.set_num_threads(1)
from course.training import tool_agent as agent
policy = agent.cloned_policy(0)
def look():
    return [agent.evaluate(policy, agent.held_out(), temperature=t).success for t in (0, 1.0)]
found = look()
tokens = sum(record.sampled for record in agent.online(policy, 0, steps=8))
print(json.dumps([found, look(), tokens]))
"""


def test_one_clone_of_level_4_is_measured_again(agents):
    """Seed 0 and eight of its steps online, in a fresh process: equal bits on the recorded machine, elsewhere inside the issue's bounds."""
    (greedy, sampled), after, tokens = measured_again(FIRST)
    first, eighth = next(o for o in agents["outcomes"] if o["seed"] == 0)["curve"][:2]
    if agents["signature"] == {**machine(), "threads": 1}:
        assert (greedy, sampled) == (first["greedy"], first["sampled"])
        assert (*after, tokens) == (eighth["greedy"], eighth["sampled"], eighth["sampled_tokens"])
    assert 0.35 <= sampled <= greedy + 0.1 <= 0.85 and after[0] > greedy


# ------------------------------------------------------------------ level 5


@pytest.fixture(scope="module")
def hunted():
    return json.loads((ROOT / "solutions" / "level5" / "evidence.json").read_text())


def last(training):
    """The last look at sampled held-out episodes of a training."""
    return training["sampled"][max(training["sampled"], key=int)]


def test_each_loophole_is_found_by_a_policy_in_every_seed(hunted):
    """No demonstration shows an exploit: if training did not pay for it, use would stay where exploration left the clone."""
    assert len({run["seed"] for run in hunted["outcomes"]}) >= 5
    for name in hunted["settings"]["switches"]:
        first = [run["initial"][name]["exploited"][name] for run in hunted["outcomes"]]
        end = [last(run["opened"][name])["exploited"][name] for run in hunted["outcomes"]]
        gained = [b - a for a, b in zip(first, end)]
        assert bootstrap_mean(gained, level=0.99, seed=0).low > 0.1, name
        assert min(gained) > 0.05, (name, gained)


def test_what_an_open_switch_pays_for_is_not_true(hunted):
    """Rewritten tests and a copied leak pass and are no success; under the other switches the reward is above what closed ones would give."""
    for name in hunted["settings"]["switches"]:
        looks = [last(run["opened"][name]) for run in hunted["outcomes"]]
        gaps = [
            look["tests"] - look["true_success"]
            if name in ("writable_tests", "leaked_metadata")
            else look["reward"] - look["gold"]
            for look in looks
        ]
        assert bootstrap_mean(gaps, level=0.99, seed=0).low > 0, name
        for run, gap in zip(hunted["outcomes"], gaps):
            assert gap > 0, (name, run["seed"])


def test_closing_keeps_the_task(hunted):
    """The issue's bound, for each loophole: 95 per cent of the true success of honest policies of the same seeds, as long in the closed world."""
    as_long = str(hunted["settings"]["closed_steps"])
    honest = sum(run["honest"]["sampled"][as_long]["true_success"] for run in hunted["outcomes"])
    kept = {}
    for name in hunted["settings"]["switches"]:
        looks = [last(run["closed"][name]) for run in hunted["outcomes"]]
        kept[name] = sum(look["true_success"] for look in looks) / honest
        if name in ("writable_tests", "leaked_metadata"):
            assert all(look["exploited"][name] == 0 for look in looks)
    assert min(kept.values()) >= 0.95, kept


CLONED = """
import dataclasses, json, torch
torch.set_num_threads(1)
from course.cases import codex1
from course.envs.repository import Loopholes
from course.envs.sandbox import Sandbox
from course.training import loopholes
with Sandbox(warm=1) as sandbox:
    policy = loopholes.cloned_policy(0, sandbox)
    looks = [loopholes.look(policy, loopholes.held_out(), Loopholes(), sandbox, temperature=t) for t in (1, 0)]
    row = codex1.measure(policy, "clone", codex1.ARMS["own tests"], loopholes.held_out(seed=0), sandbox, 0)
print(json.dumps([[[look.reward, look.true_success, look.actions] for look in looks], dataclasses.asdict(row)]))
"""


def test_one_clone_of_level_5_is_measured_again(hunted):
    """Seed 0 up to its training online, in a fresh process: equal bits on the recorded machine, elsewhere near the seeds' band.

    The Codex-1 case begins with the same clone. A share of 192 tasks has a standard error of 0.036, their mean number of actions one
    of 0.1; with other kernels no number was off by more than 0.02.
    """
    looks, row = measured_again(CLONED)
    case = case_of("codex1")
    recorded = next(r for r in case["outcomes"] if r["seed"] == 0 and r["arm"] == "clone")
    assert row.pop("arm") == recorded.pop("arm")
    agree(row, recorded, case.get("signature"), within=0.15)
    again = dict(zip(("sampled", "greedy"), looks))
    clones = [run["clone"] for run in hunted["outcomes"]]
    for name, (reward, true_success, actions) in again.items():
        if hunted["signature"] == {**machine(), "threads": 1}:
            first = next(run["clone"] for run in hunted["outcomes"] if run["seed"] == 0)[name]
            assert (reward, true_success, actions) == (first["reward"], first["true_success"], first["actions"])
        values = [clone[name]["true_success"] for clone in clones]
        assert min(values) - 0.15 <= true_success <= max(values) + 0.15


# ------------------------------------------------------------------ level 6


@pytest.fixture(scope="module")
def lagging():
    return json.loads((ROOT / "solutions" / "level6" / "evidence.json").read_text())


def test_not_waiting_halves_the_idle_time_and_keeps_the_success(lagging):
    """The issue's bounds, at equally many updates. 512 tasks: a share near 0.6 has a standard error of 0.022, a difference 0.03.

    If age broke learning, as it does at a larger rate of learning, seeds would fall back to the clone or below: an interval that
    holds 0 and ends above -0.1 says that no more than that is lost.
    """
    runs = lagging["outcomes"]
    assert len({run["seed"] for run in runs}) == len(runs) >= 6
    assert all(run["idle"]["asynchronous"] < run["idle"]["synchronous"] / 2 for run in runs)
    assert all(run["mean_lag"]["synchronous"] == 0 < run["mean_lag"]["asynchronous"] for run in runs)
    apart = bootstrap_mean([run["success"]["asynchronous"] - run["success"]["synchronous"] for run in runs], level=0.95, seed=0)
    assert -0.1 < apart.low <= 0 <= apart.high
    for mode in ("synchronous", "asynchronous"):
        assert bootstrap_mean([run["success"][mode] - run["clone"] for run in runs], level=0.99, seed=0).low > 0, mode


BOTH = """
import json, torch
torch.set_num_threads(1)
from course.systems.asynchronous import CLONE_STEPS, HELD_OUT, HORIZONS
from course.training.tool_agent import cloned_policy, evaluate, held_out
policy = cloned_policy(0, steps=CLONE_STEPS)
print(json.dumps(evaluate(policy, held_out(HELD_OUT, horizons=HORIZONS), temperature=1.0).success))
"""


def test_one_clone_of_level_6_is_measured_again(lagging):
    """Seed 0 up to its training online, in a fresh process: equal bits on the recorded machine, elsewhere near the seeds' band."""
    again, clones = measured_again(BOTH), [run["clone"] for run in lagging["outcomes"]]
    if lagging["signature"] == {**machine(), "threads": 1}:
        assert again == next(run["clone"] for run in lagging["outcomes"] if run["seed"] == 0)
    assert min(clones) - 0.15 <= again <= max(clones) + 0.15


# ------------------------------------------------------------------ the cases, in so far as no level's test makes them again


ASSISTED = """
import dataclasses, json, torch
torch.set_num_threads(1)
from course.cases import constitutional as case
before = case.assistant(0)
start = case.Start(0, before, case.revised_policy(before, 0), {})
print(json.dumps([dataclasses.asdict(case.standing(policy, start)) for policy in (before, start.policy)]))
"""


def test_one_seed_of_the_constitutional_case_is_measured_again_up_to_its_revision():
    """Means over 512 answers with standard errors up to 0.04: elsewhere within three of a difference's. With other kernels 0.024 was seen."""
    recorded = case_of("constitutional")
    row = next(row for row in recorded["outcomes"] if row["seed"] == 0)
    for again, stage in zip(measured_again(ASSISTED), ("before", "revision and SFT")):
        agree(again, row[stage], recorded["signature"], within=0.15)


SHOWN = """
import json, torch
torch.set_num_threads(1)
from course.cases import playhouse, webgpt
found = {"webgpt": [], "playhouse": []}
for seed in range(5):
    asked = webgpt.browser_tasks(48, seed + 4, sites=webgpt.HELD_OUT_SITES)
    people = webgpt.demonstrated([task for task in asked for _ in range(4)], seed + 5)
    worth = torch.tensor([record.reward for record in people.records])
    found["webgpt"].append([float(worth.mean()), people.tokens / len(people)])
for seed in range(4):
    tasks = playhouse.grid_tasks(playhouse.HELD_OUT, 0, pool="held_out")
    found["playhouse"].append(playhouse.success(playhouse.demonstrated(tasks, seed)))
print(json.dumps(found))
"""


def test_people_of_webgpt_and_the_expert_of_playhouse_are_measured_again():
    """Every seed's tasks, world, grader and those who are imitated. No model has a part in them, so they are equal anywhere.

    One of their clones alone takes 45 seconds.
    """
    found = measured_again(SHOWN)
    webgpt, playhouse = (case_of(name)["outcomes"] for name in ("webgpt", "playhouse"))
    people = [[row[key]["people"] for key in ("worth", "tokens")] for row in webgpt]
    assert found["webgpt"] == [pytest.approx(row, abs=1e-6) for row in people]
    assert found["playhouse"] == pytest.approx([row["success"]["expert"] for row in playhouse], abs=1e-4)


ADAPTED = """
import json, sys, torch
from dataclasses import asdict
torch.set_num_threads(1)
from course.cases import lora as case
from course.evidence.measure import operators
from course.training.bandit import prepare
task, sizes = prepare(int(sys.argv[1])), []
for arm in case.ARMS.values():
    run = case.lora_ppo(task, arm, operators=operators(), steps=1)
    list(run.steps)
    sizes.append([run.trained, run.held])
print(json.dumps({"before": asdict(case.quality(task, task.policy)), "sizes": sizes}))
"""


def test_one_seed_of_the_lora_case_is_measured_again_up_to_its_training():
    """Policy, reward and what they come to on fresh prompts, and what each arm trains and holds. Means over 512 reviews with a standard
    deviation near 1 (of their lengths near 5): elsewhere within four standard errors of a difference."""
    recorded = case_of("lora")
    row = recorded["outcomes"][0]
    again = measured_again(ADAPTED, str(row["seed"]))
    assert again["sizes"] == [[arm["trained"], arm["held"]] for arm in row["arms"]]
    length = again["before"].pop("length"), row["before"].pop("length")
    agree(again["before"], row["before"], recorded["signature"], within=0.3)
    agree(*length, recorded["signature"], within=1.5)


def test_ppo_with_an_adapter_beside_the_embedding_reaches_what_all_weights_reach():
    """In every seed the one adapter more earns more gold by PPO; if it made no difference, five seeds would agree by chance once in 32,
    and the share of the gain on all weights would be equal. Means over 512 reviews have a standard error of 0.05. Of values on adapters
    nothing is claimed: two recordings with other roundings disagree about them. Those on all weights gain in every seed."""
    gold = defaultdict(list)
    for seed in case_of("lora")["outcomes"]:
        for arm in seed["arms"]:
            for method in ("ppo", "q"):
                gold[method, arm["arm"]].append(arm[method]["gold"] - seed["before"]["gold"])
    more, fewer = gold["ppo", "blocks and embedding"], gold["ppo", "adapters in the blocks"]
    assert all(a > b + 0.5 for a, b in zip(more, fewer)) and min(fewer) > 0
    whole, thin, blocks = (sum(gold["ppo", arm]) for arm in ("all weights", "blocks and embedding", "adapters in the blocks"))
    assert thin > 0.8 * whole and blocks < 0.5 * whole
    assert min(gold["q", "all weights"]) > 0.5


STUDIED = """
import json, sys, torch
from dataclasses import asdict
torch.set_num_threads(1)
from course.cases import distillation as case
seed, recipe = int(sys.argv[1]), case.Recipe()
weak = case.cloned(case.Decoder(case.STUDENT, seed), case.written(seed), steps=recipe.students["weak"], lr=case.STUDENT_LR, seed=seed)
after, kept = case.learned(weak, weak, case.Arm("own", "steps"), seed)
print(json.dumps({"before": asdict(case.quality(weak, seed)), "after": asdict(case.quality(after, seed)), "kept": kept}))
"""


def test_one_student_of_the_distillation_case_is_measured_again():
    """It reads the solver and then its own checked traces. Elsewhere sums are rounded otherwise, and a student that has read for a short
    time differs by more than its 500 solutions say: the five recorded ones spread over 0.4 after learning."""
    recorded = case_of("distillation")
    row = recorded["outcomes"][0]
    (arm,) = (a for a in row["arms"] if (a["start"], a["arm"]) == ("weak", "own traces, steps checked"))
    again = measured_again(STUDIED, str(row["seed"]))
    for found, was in ((again["before"], row["before"]["weak"]), (again["after"], arm["after"])):
        agree(found, was, recorded["signature"], within=0.45)
    agree(again["kept"], arm["kept"], recorded["signature"], within=350)


def test_what_is_checked_matters_more_than_who_wrote_it():
    """The claims of the case's table, over its five seeds; 500 solutions each, so a share has a standard error of at most 0.022.

    If an arm were no better than the other, all five seeds would agree on the sign once in 32. A bootstrap over five values is narrower
    than its level says, so bounds leave a margin.
    """
    outcomes = case_of("distillation")["outcomes"]

    def gap(start, one, other):
        found = [{a["arm"]: a["after"]["steps"] for a in seed["arms"] if a["start"] == start} for seed in outcomes]
        return bootstrap_mean([row[one] - row[other] for row in found], level=0.99, seed=0)

    read, rl, own, taught, rl_steps, own_steps, taught_steps = (a["arm"] for a in outcomes[0]["arms"][:7])
    # Answers checked: a teacher helps the weak student.
    assert gap("weak", taught, own).low > 0.1 and gap("weak", taught, rl).low > 0.1
    for start in ("weak", "able"):
        assert gap(start, own_steps, own).low > 0.2  # the same author, the other checker
        assert gap(start, own_steps, taught).mean > 0.05  # a better checker against a teacher
        apart = gap(start, own_steps, taught_steps)  # the same checker, the other author
        assert -0.1 < apart.low <= apart.high < 0.1
        assert gap(start, taught, read).low > 0.1
    assert -0.1 < gap("able", rl, taught).low and gap("able", rl, own).low > 0.1  # RL on answers: level with the teacher's traces
    # The habit is in the likeliest solution, before and after reading on, and is gone where steps are checked.
    for seed in outcomes:
        greedy = {a["arm"]: a["after"]["greedy"] for a in seed["arms"] if a["start"] == "able"}
        assert max(seed["before"]["able"]["greedy"], greedy[read]) < 0.4 < 0.8 < min(greedy[own_steps], greedy[taught_steps])
