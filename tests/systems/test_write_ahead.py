"""A process killed at any token goes on to the same trajectory, from the log of what it had sampled."""

import json
import multiprocessing
import os
import resource
import signal
from dataclasses import replace

import pytest
import torch

from course.envs import kernel
from course.envs.three_tools import three_tools
from course.rollout.episodes import Play, episode_seed, play_episodes
from course.rollout.write_ahead import DamagedLog, Drift, EpisodeLog, OtherEpisode, _line, forget, log_path, play_logged
from course.training.tool_agent import MAX_ACTION_TOKENS, blank_policy, grade, lookups, task_world

ROWS, COLUMNS = 3, 16
OPTIONS = {"grader": grade, "max_action_tokens": MAX_ACTION_TOKENS, "rows": ROWS, "columns": COLUMNS}
PLAYS = {i: Play(task, episode_seed(5, i), 5, i) for i, task in enumerate(lookups(ROWS, 5))}


@pytest.fixture(scope="module")
def policy():
    """Blank, and sharpened, so that its episodes hold tools' answers and not errors alone."""
    made = blank_policy(0)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    return made


@pytest.fixture(scope="module")
def undisturbed(policy):
    return play_episodes(policy, task_world(), PLAYS, **OPTIONS)[0]


def played(policy, folder, plays=PLAYS, **options):
    return play_logged(policy, task_world(), plays, folder=folder, **{**OPTIONS, **options})


def hashes(records):
    return {row: record.content_hash for row, record in records.items()}


def contents(folder):
    return {row: log_path(folder, play).read_bytes() for row, play in PLAYS.items()}


def put(folder, logs):
    for row, data in logs.items():
        log_path(folder, PLAYS[row]).write_bytes(data)


def test_a_log_changes_nothing(policy, undisturbed, tmp_path):
    assert hashes(played(policy, tmp_path)) == hashes(undisturbed)
    lines = [json.loads(line[9:]) for line in contents(tmp_path)[0].splitlines()]
    assert tuple(line[1] for line in lines if line[0] == "token") == tuple(
        t for start, stop in undisturbed[0].action_spans for t in undisturbed[0].tokens[start:stop]
    )
    assert [line[1] for line in lines if line[0] == "step"] == [step.signature for step in undisturbed[0].steps]


def test_killed_at_every_token_it_ends_as_if_nothing_had_been(policy, undisturbed, tmp_path):
    """All rows cut at the same line, as one kill does, and at every byte of a line. Log-probabilities are in the hash."""
    played(policy, tmp_path)
    whole = contents(tmp_path)
    lines = {row: data.splitlines(keepends=True) for row, data in whole.items()}
    longest = max(map(len, lines.values()))
    assert longest > 30
    for count in range(longest):
        torn = {
            row: b"".join(found[:count]) + b"".join(found[count : count + 1])[: (7 * count) % 50] for row, found in lines.items()
        }
        put(tmp_path, torn)
        assert hashes(played(policy, tmp_path)) == hashes(undisturbed), count
        assert contents(tmp_path) == whole


def test_rows_may_have_come_differently_far_and_be_resumed_alone(policy, undisturbed, tmp_path):
    played(policy, tmp_path)
    whole = contents(tmp_path)
    put(tmp_path, {row: b"".join(data.splitlines(keepends=True)[: 11 * row]) for row, data in whole.items()})
    for row in (2, 0, 1):
        assert hashes(played(policy, tmp_path, {row: PLAYS[row]})) == {row: undisturbed[row].content_hash}


def test_logged_tokens_count_more_than_the_noise(policy, undisturbed, tmp_path):
    """The log, and not the seed, says what was sampled: on another machine the noise could choose otherwise."""
    put(tmp_path, {})
    played(policy, tmp_path)
    first = contents(tmp_path)[1].splitlines(keepends=True)
    token = json.loads(first[1][9:])
    other = next(t for t in range(5, 12) if t != token[1])
    put(tmp_path, {1: first[0] + _line(["token", other, 0.25])})
    record = played(policy, tmp_path)[1]
    start = record.action_spans[0][0]
    assert record.tokens[start] == other and record.logprobs[0] == pytest.approx(-1.3862944)
    assert record.content_hash != undisturbed[1].content_hash


def _victim(folder, at):
    torch.set_num_threads(1)
    policy, count = blank_policy(0), 0
    real = EpisodeLog.token

    def token(self, *said):
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *said)

    EpisodeLog.token = token
    played(policy, folder)


def test_a_real_kill(tmp_path):
    policy = blank_policy(0)
    expected = hashes(play_episodes(policy, task_world(), PLAYS, **OPTIONS)[0])
    context = multiprocessing.get_context("fork")
    for at in (1, 2, 23, 57):
        process = context.Process(target=_victim, args=(tmp_path, at))
        process.start(), process.join()
        assert process.exitcode == -signal.SIGKILL
        assert log_path(tmp_path, PLAYS[0]).stat().st_size > 0
        assert hashes(played(policy, tmp_path)) == expected
        forget(tmp_path, list(PLAYS.values()))
        assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- bad input


def test_another_policy(policy, tmp_path):
    played(policy, tmp_path)
    with pytest.raises(OtherEpisode, match=r"policy .* expected, .* logged.*go on with what it names"):
        played(blank_policy(1), tmp_path)
    with pytest.raises(OtherEpisode, match="rows 5 expected, 3 logged"):
        played(policy, tmp_path, rows=5)
    with pytest.raises(OtherEpisode, match="environment"):
        play_logged(policy, three_tools(max_actions=4), PLAYS, folder=tmp_path, **OPTIONS)


def test_an_environment_that_answers_otherwise(policy, tmp_path):
    played(policy, tmp_path)

    def moody(state, text):
        made = kernel.step(state, text)
        return replace(made, observation="done", signature="0" * 64)

    with pytest.raises(Drift, match=r"must answer .* as it did before.*restore that environment"):
        played(policy, tmp_path, step=moody)
    before = contents(tmp_path)
    played(policy, tmp_path)
    assert contents(tmp_path) == before


def test_damage_in_the_middle(policy, tmp_path):
    played(policy, tmp_path)
    whole = contents(tmp_path)
    data = bytearray(whole[0])
    data[len(data) // 2] ^= 1
    put(tmp_path, {0: bytes(data)})
    with pytest.raises(DamagedLog, match=r"line \d+ must have its checksum"):
        played(policy, tmp_path)
    lines = whole[0].splitlines(keepends=True)
    put(tmp_path, {0: b"".join([lines[0], *lines[2:]])})
    with pytest.raises(DamagedLog, match="must be a"):
        played(policy, tmp_path)


def test_one_process_writes_a_log(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("course.rollout.write_ahead.PATIENCE", 0.05)
    with EpisodeLog(tmp_path / "a.wal", {"a": 1}):
        with pytest.raises(OSError, match="another process has held it"):
            EpisodeLog(tmp_path / "a.wal", {"a": 1})
    EpisodeLog(tmp_path / "a.wal", {"a": 1}).close()


def _limited(folder, limit, out):
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        played(blank_policy(0), folder)
    except OSError as error:
        out.put(str(error))


def test_a_full_disk(tmp_path):
    policy = blank_policy(0)
    context = multiprocessing.get_context("fork")
    for limit in (100, 700, 1503):
        out = context.Queue()
        process = context.Process(target=_limited, args=(tmp_path, limit, out))
        process.start()
        said = out.get(timeout=20)
        process.join()
        assert "was not logged" in said and "are kept" in said and "play the episode again" in said
        assert max(map(len, contents_of(tmp_path))) <= limit
    assert hashes(played(policy, tmp_path)) == hashes(play_episodes(policy, task_world(), PLAYS, **OPTIONS)[0])


def contents_of(folder):
    return [path.read_bytes() for path in folder.iterdir()]
