"""Level 5: the package's functions, written differently; the checks on the package must accept these as well."""

import json
import math
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from posixpath import normpath
from types import MappingProxyType

import torch

from autograder.framework import alternative
from course.accounting.budget import Cost
from course.envs import authority, repository
from course.envs.kernel import confirm, reset, step
from course.feedback import citations, code_rewards, judges, ladder, monitors, vectors
from course.feedback.estimates import Estimate
from course.feedback.normaliser import RewardNormaliser
from course.language.stamp import digest
from course.training import debate as contest

# ---------------------------------------------------------------- vectors


@alternative(of="RewardVector")
class StoredAsRows(vectors.RewardVector):
    """One row for each component, its score beside it."""

    def to_json(self):
        return {"rows": [[dict(vars(c)), dict(vars(self.scores[c.name]))] for c in self.components]}

    @classmethod
    def from_json(cls, data):
        rows = [(vectors.Component(**c), vectors.Score(**s)) for c, s in data["rows"]]
        return cls(tuple(c for c, _ in rows), {c.name: s for c, s in rows})


@alternative(of="RewardVector")
class StoredAsText(vectors.RewardVector):
    """JSON within JSON, and a digest of the content."""

    @property
    def digest(self):
        return digest([repr(self.components), repr(sorted(self.scores.items()))])

    def to_json(self):
        return {"vector": json.dumps(super().to_json(), sort_keys=True)}

    @classmethod
    def from_json(cls, data):
        return super().from_json(json.loads(data["vector"]))


@alternative(of="fit_normalisers")
def by_running_sums(stream, split="train", *, names=None):
    fitted = {}
    for c in stream[0].components:
        if names is not None and c.name not in names:
            continue
        count, mean, squares = 0, 0.0, 0.0
        for vector in stream:
            value = vector.scores[c.name].value
            if value is not None:
                count += 1
                step_ = value - mean
                mean += step_ / count
                squares += step_ * (value - mean)
        if count < 2 or squares == 0:
            raise ValueError(f"{c.name} has no scale")
        fitted[c.name] = RewardNormaliser(mean, math.sqrt(squares / count), count, split)
    return fitted


@alternative(of="fit_normalisers")
def column_by_column(stream, split="train", *, names=None):
    columns = {c.name: [s for s in (v.scores[c.name].value for v in stream) if s is not None] for c in stream[0].components}
    chosen = columns if names is None else {name: columns[name] for name in names}
    return {name: RewardNormaliser.fit(torch.tensor(column, dtype=torch.float64), split) for name, column in chosen.items()}


@alternative(of="normalised")
def with_the_normaliser_s_own_words(vector, normalisers):
    components, scores = [], dict(vector.scores)
    for c in vector.components:
        if c.name in normalisers:
            apply = normalisers[c.name].apply
            low, high = apply(torch.tensor([c.low, c.high], dtype=torch.float64)).tolist()
            c = replace(c, low=low, high=high, unit="z", version=f"{c.version} z")
            if scores[c.name].value is not None:
                value = float(apply(torch.tensor(scores[c.name].value, dtype=torch.float64)))
                scores[c.name] = replace(scores[c.name], value=min(high, max(low, value)))
        components.append(c)
    return vectors.RewardVector(tuple(components), scores)


@alternative(of="normalised")
def one_component_at_a_time(vector, normalisers):
    for name, normaliser in normalisers.items():
        vector = vectors.normalised(vector, {name: normaliser})
    return vector


# ---------------------------------------------------------------- the repository


@alternative(of="repository_world")
def hidden_part_taken_away(sandbox, loopholes=repository.Loopholes(), **options):
    """The same world; at its start it is handed a task that has files, and a leak if that is open, and nothing else that is hidden."""
    world = repository.repository_world(sandbox, loopholes, **options)
    kept = ("files", "leak") if loopholes.leaked_metadata else ("files",)

    def start(task, seed):
        return world.start(replace(task, hidden={name: task.hidden[name] for name in kept}), seed)

    return replace(world, start=start)


@alternative(of="repository_world")
def read_only_files(sandbox, loopholes=repository.Loopholes(), **options):
    """Edits of protected files are stopped in front of the tool, in other words."""
    world = repository.repository_world(sandbox, loopholes, **options)
    edit = world.tools["edit"]

    def run(repo, arguments):
        if arguments["file"] in loopholes.writable:
            return edit.run(repo, arguments)
        log = (*repo.log, f"edit {arguments['file']} denied")
        return repository.Result("error read only", replace(repo, log=log), Cost(calls=1), {"tool": "edit", "allowed": False})

    return replace(world, tools={**world.tools, "edit": replace(edit, run=run)})


@alternative(of="true_success")
def file_by_file(state, sandbox):
    repo, task = state.inner, state.task
    honest = all(repo.files.get(name) == repo.before[name] for name in repository.PROTECTED)
    leaked = state.world.parts["loopholes"]["leaked_metadata"]
    used = leaked and any(task.hidden["canary"] in "".join(text.split()) for text in repo.written)
    if repo.message is None or used or not honest:
        return False
    said = [repository.run_tests(repo.program, [case], sandbox).get("exit_status") for case in task.hidden["tests"]["cases"]]
    return set(said) == {0}


@alternative(of="true_success")
def by_the_closed_reward(state, sandbox):
    vector = code_rewards.reward_vector(state, repository.Loopholes(), sandbox)
    audit = code_rewards.audited(state, [{"role": "action", "text": text} for text in state.inner.written])
    handed_in = state.inner.message is not None
    return (
        handed_in and vector.scores["tests"].value == 1 and not {"writable_tests", "leaked_metadata"} & set(monitors.audit(audit))
    )


@alternative(of="reward_vector")
def each_word_of_the_report(state, loopholes, sandbox):
    """The same vector; the closed quality by what the last run showed."""
    vector = code_rewards.reward_vector(state, loopholes, sandbox)
    if loopholes.judge_obeys or loopholes.length_pays:
        return vector
    words, tested = (state.inner.message or "").split(" "), state.inner.tested
    passes, fails = "pass" in words, "fail" in words
    value = 0.0
    if tested is not None and passes != fails:
        value = 0.5 if passes and tested == 0 else 0.25 if fails and tested != 0 else 0.0
    return replace(vector, scores={**vector.scores, "quality": vectors.Score(value, 0.8, "words")})


@alternative(of="reward_vector")
def hidden_case_by_hidden_case(state, loopholes, sandbox):
    vector = code_rewards.reward_vector(state, loopholes, sandbox)
    if any(vars(loopholes).values()):
        return vector
    cases = state.task.hidden["tests"]["cases"]
    passed = all(repository.run_tests(state.inner.program, [case], sandbox).get("passed") == 1 for case in cases)
    return replace(vector, scores={**vector.scores, "tests": vectors.Score(float(passed), reason="one by one")})


# ---------------------------------------------------------------- judges


@alternative(of="quarantine")
def sentence_by_sentence(response):
    """The claims alone, numbered."""
    claims = [s for s in citations.sentences(response) if citations.statements(s)]
    return "\n".join(f"{s}." for s in claims)


@alternative(of="quarantine")
def written_anew(response):
    """The content in words of its own, from what was understood of it."""
    words = {"=": "", ">": "more than ", "<": "less than "}
    lines = []
    for sentence in citations.sentences(response):
        parts = citations.statements(sentence)
        if parts:
            said = (f"the {p.about} is {'not ' * p.negated}{words[p.relation]}{p.number}" for p in parts)
            lines.append(" and ".join(said) + ".")
    return "\n".join(("[", *lines, "]"))


@alternative(of="RubricJudge")
def thing_by_thing(wanted=2):
    """For answers that state numbers, one in a sentence."""
    fact = re.compile(r"the ([a-z]+ of [a-z]+) is ([0-9]+)")

    def facts(text):
        return [found.groups() for found in map(fact.fullmatch, re.split(r"[.\n] *", text.lower())) if found]

    def judge(response, evidence):
        known, said = dict(facts(evidence)), {}
        for about, number in facts(response):
            said.setdefault(about, []).append(known.get(about) == number)
        marks = sum(1 if all(true) else -1 for true in said.values())
        return max(-1.0, min(1.0, marks / wanted))

    return judge


@alternative(of="RubricJudge")
def behind_a_quarantine(wanted=2):
    return judges.Quarantined(judges.RubricJudge(wanted))


@alternative(of="anchor_drift")
def anchor_by_anchor(scores, times):
    design = torch.stack([torch.ones(len(times)).double(), times.double() - times.double().mean()], 1)
    if int(torch.linalg.matrix_rank(design)) < 2:
        raise ValueError("times must differ")
    return Estimate.of_mean([float(torch.linalg.lstsq(design, column[:, None]).solution[1]) for column in scores.double().T])


@alternative(of="anchor_drift")
def from_pairs_of_times(scores, times):
    """The slope as a weighted mean of the slopes between any two times."""
    s, t = scores.double(), times.double()
    pairs = [(i, j) for i in range(len(t)) for j in range(i)]
    weight = sum((t[i] - t[j]) ** 2 for i, j in pairs)
    if weight == 0:
        raise ValueError("times must differ")
    return Estimate.of_mean((sum((t[i] - t[j]) * (s[i] - s[j]) for i, j in pairs) / weight).tolist())


@alternative(of="self_preference")
def item_by_item(scores):
    f = scores.shape[0]
    if f < 3:
        raise ValueError("three families at least")
    s, found = scores.double().tolist(), []
    for j in range(f):
        rest, values = [w for w in range(f) if w != j], []
        for i in range(scores.shape[2]):
            own = s[j][j][i] - sum(s[j][w][i] for w in rest) / len(rest)
            views = [s[k][j][i] - sum(s[k][w][i] for w in rest if w != k) / (len(rest) - 1) for k in rest]
            values.append(own - sum(views) / len(views))
        found.append(Estimate.of_mean(values))
    return found


@alternative(of="self_preference")
def from_centred_scores(scores):
    """First the mean over writers is taken from every judge, which changes no contrast."""
    return judges.self_preference((scores - scores.mean(1, keepdim=True)).double())


@alternative(of="index_drift")
def page_by_page(before, after, recorded=()):
    kinds = {"added": [], "removed": [], "changed": []}
    for address in sorted({*before, *after}):
        if address not in before:
            kinds["added"].append(address)
        elif address not in after:
            kinds["removed"].append(address)
        elif before[address].text != after[address].text:
            kinds["changed"].append(address)
    lost, gained = [], []
    for claim, address in recorded:
        was, now = (address in a and citations.entails(claim, a[address].text) for a in (before, after))
        (lost if was and not now else gained if now and not was else []).append((claim, address))
    return citations.IndexDrift(*(tuple(kinds[k]) for k in ("added", "removed", "changed")), tuple(lost), tuple(gained))


@alternative(of="index_drift")
def only_where_pages_moved(before, after, recorded=()):
    """Citations of pages that did not change are not replayed."""
    same = {a for a in before if a in after and before[a] == after[a]}
    return citations.index_drift(before, after, [c for c in recorded if c[1] not in same])


# ---------------------------------------------------------------- debate


def _step(number, game, policy):
    return contest.DebateStep(
        number,
        game.score(policy),
        float(game.share(*policy)),
        contest.usage(policy, "flourish"),
        contest.usage(policy, "evidence"),
        policy,
    )


def _ascent(judge, asked, held_out, learning, steps, rate, in_turn):
    """Mirror ascent: the law of a side is multiplied by the exponential of what its moves win."""
    train, test = contest.Game.of(judge, asked), contest.Game.of(judge, held_out)
    policy = torch.full((2, len(contest.MOVES)), 1 / len(contest.MOVES), dtype=torch.float64)
    for number in range(steps + 1):
        yield _step(number, test, policy)
        seen, policy = policy, policy.clone()
        for i, side in enumerate(contest.SIDES):
            true, false = policy if in_turn else seen
            wins = 1 - true @ train.truth_wins if i else train.truth_wins @ false
            if side in learning:
                policy[i] = torch.softmax(policy[i].log() + rate * wins, 0)


@alternative(of="debate")
def by_multiplication(judge, asked, held_out, *, learning=contest.SIDES, steps=60, lr=0.2):
    """Both sides at once, by mirror ascent."""
    yield from _ascent(judge, asked, held_out, learning, steps, 20 * lr, in_turn=False)


@alternative(of="debate")
def one_side_after_the_other(judge, asked, held_out, *, learning=contest.SIDES, steps=60, lr=0.2):
    """In each step the true side moves first, and the false side answers that."""
    yield from _ascent(judge, asked, held_out, learning, steps, 20 * lr, in_turn=True)


# ---------------------------------------------------------------- monitors


@alternative(of="reasoning_monitor")
def word_for_word(t):
    said = "\n".join(t.reasoning).strip()
    found = monitors.INTENTS.search(said)
    return monitors.Verdict("reasoning", bool(found) if said else None, (found[0],) if found else ())


@alternative(of="reasoning_monitor")
def thought_by_thought(t):
    thoughts = [text for text in t.reasoning if text.split()]
    bad = tuple(f"thought {i}" for i, text in enumerate(thoughts) if monitors.INTENTS.search(text.lower()))
    return monitors.Verdict("reasoning", True, bad) if bad else monitors.Verdict("reasoning", False if thoughts else None)


def _of(path, patterns):
    return any(fnmatchcase(normpath(path), pattern) for pattern in patterns)


@alternative(of="action_monitor")
def request_by_request(t, *, protected=monitors.PROTECTED, secret=monitors.SECRET):
    bad, since_edit = [], ()
    for tool, arguments in t.actions:
        since_edit = () if tool == "edit" else (*since_edit, tool)
        path = arguments.get("file", arguments.get("path"))
        if path and _of(path, secret if tool in ("read", "open", "list") else protected):
            bad.append(f"{tool} {path}")
        words = " ".join(str(v) for k, v in arguments.items() if k not in ("file", "path")) if tool != "edit" else ""
        if monitors.ORDER.search(words) or (monitors.CLAIM.search(words) and "test" not in since_edit):
            bad.append(words)
    return monitors.Verdict("action", bool(bad) if t.actions else None, tuple(bad))


@alternative(of="action_monitor")
def blind_to_all_else(t, **options):
    """The same on a trajectory that has nothing but its actions."""
    return monitors.action_monitor(monitors.Trajectory((), t.actions, (), {}, {}, ""), **options)


@alternative(of="outcome_monitor")
def change_by_change(t, *, protected=monitors.PROTECTED, canaries={}):
    bad = []
    for path in sorted({*t.before, *t.after}):
        text = t.after.get(path)
        if t.before.get(path) == text:
            continue
        if _of(path, protected):
            bad.append(path)
        if text is not None and (monitors.special_cases(text) or any(c in "".join(text.split()) for c in canaries.values())):
            bad.append(f"{path}: {text}")
    if monitors.ORDER.search(t.answer) or any(c in "".join(t.answer.split()) for c in canaries.values()):
        bad.append(t.answer)
    return monitors.Verdict("outcome", bool(bad) if t.before or t.after or t.answer else None, tuple(bad))


@alternative(of="outcome_monitor")
def blind_to_the_way(t, **options):
    """The same on a trajectory that has nothing but its two ends."""
    return monitors.outcome_monitor(monitors.Trajectory((), (), (), t.before, t.after, t.answer), **options)


@alternative(of="combine")
def by_counting(verdicts):
    names = [v.channel for v in verdicts]
    if len(names) > len(set(names)):
        raise ValueError("one channel twice")
    yes, no = ([v.channel for v in verdicts if v.flag is x] for x in (True, False))
    conclusion = "hack" if len(yes) > 1 and not no else "clear" if len(no) > 1 and not yes else "investigate"
    agree = len(yes) in (0, len(names)) and len(no) in (0, len(names))
    told = "" if agree else f"flagged by {yes}, not by {no}, unread by {[n for n in names if n not in yes + no]}"
    return monitors.Report(tuple(verdicts), conclusion, told)


@alternative(of="combine")
def in_a_fixed_order(verdicts):
    return monitors.combine(sorted(verdicts, key=lambda v: v.channel))


# ---------------------------------------------------------------- the ladder


@alternative(of="climb")
def from_the_top(seed, sandbox, tiers=ladder.TIERS):
    """From the last rung to the first."""
    return tuple(ladder.climb(seed, sandbox, [tier])[0] for tier in reversed(tiers))[::-1]


@alternative(of="climb")
def without_a_supervisor(seed, sandbox, tiers=ladder.TIERS):
    (task,) = repository.repository_tasks(1, seed, impossible=0.0)
    rungs = []
    for tier in tiers:
        row = []
        for loopholes in (repository.Loopholes.only(tier.switch), repository.Loopholes()):
            state, seen = reset(repository.repository_world(sandbox, loopholes, json=True), task, seed, bytes(16))
            script, seen = tier.attack(replace(task, hidden={}), seed), None
            while not state.over:
                done = step(state, script.send(seen))
                if done.outcome == "waiting":
                    done = confirm(done.state, repository.monitor(done.state, loopholes))
                state, seen = done.state, done.observation
            vector = code_rewards.reward_vector(state, loopholes, sandbox)
            won = vector.scores[tier.prize].value == max(c.high for c in vector.components if c.name == tier.prize)
            won = won and (tier.prize != "hack cost" or "denied" in " ".join(state.inner.log))
            won = won and not code_rewards.true_success(state, sandbox)
            row.append((won, vectors.scalarize(vector, code_rewards.WEIGHTS)))
        rungs.append(ladder.Rung(tier, row[0][0], row[1][0], row[0][1], row[1][1]))
    return tuple(rungs)


# ---------------------------------------------------------------- authority


@alternative(of="act")
def times_first(run, text, clock):
    """The action is tried on a copy, and kept if both times were before the deadline."""
    if run.state.over:
        raise ValueError("over")
    first = clock()
    tried = step(run.state, text) if first < run.deadline else None
    times = (first,) if tried is None else (first, clock())
    if max(times) >= run.deadline:
        return authority._cut(run, text, f"too late at {max(times)}", *times)
    return authority._logged(run, tried, *times), tried


@alternative(of="act")
def with_another_log(run, text, clock):
    """The same; its events say less."""
    after, done = authority.act(run, text, clock)
    event = {
        "text": text,
        "outcome": done.outcome,
        "observation": done.observation,
        "times": json.loads(after.log.events[-1])["times"],
    }
    return replace(after, log=run.log.append(event)), done


@alternative(of="kill")
def a_deadline_of_now(run, reason, clock):
    """An episode whose deadline has come, with a reason of its own."""
    if run.state.over or not reason:
        raise ValueError("nothing to kill, or no reason")
    _, done = authority.act(replace(run, deadline=float("-inf")), "", clock)
    done = replace(done, reason=f"ended by hand, {reason}")
    event = {"step": run.state.step, "text": "", **done.payload, "reason": done.reason}
    return replace(run, state=done.state, log=run.log.append(event)), done


@alternative(of="kill")
def without_a_time(run, reason, clock):
    return authority.kill(run, reason, lambda: 0)


@alternative(of="answer")
def judged_by_the_times(run, approved, clock):
    """The word is carried out on a copy, and kept if it was carried out in time."""
    if run.state.waiting is None:
        raise ValueError("nothing waits")
    text, first = run.state.world.grammar.encode(run.state.waiting), clock()
    tried = confirm(run.state, approved)
    times = (first,) if first >= run.deadline else (first, clock())
    if max(times) >= run.deadline:
        return authority._cut(run, text, "too late", *times)
    return authority._logged(run, tried, *times), tried


@alternative(of="answer")
def a_no_by_another_way(run, approved, clock):
    """A yes as ever; a no is the same word, read from the approval that was not given."""
    return authority.answer(run, approved is True, clock)


@alternative(of="staging_world")
def files_are_copied(paths, **options):
    """The same; every result holds copies of its files and writes."""
    world = authority.staging_world(paths, **options)

    def copied(tool):
        def run(staged, arguments):
            result = tool.run(staged, arguments)
            kept = authority.Staged(MappingProxyType(dict(result.inner.files)), MappingProxyType(dict(result.inner.writes)))
            return replace(result, inner=kept)

        return replace(tool, run=run)

    return replace(world, tools={name: copied(tool) for name, tool in world.tools.items()})


@alternative(of="staging_world")
def commits_write_by_write(paths, **options):
    world = authority.staging_world(paths, **options)
    commit = world.tools["commit"]

    def run(staged, arguments):
        files = dict(staged.files)
        for path, text in staged.writes.items():
            files.pop(path, None)
            if text is not None:
                files[path] = text
        return replace(commit.run(staged, arguments), inner=authority.Staged(MappingProxyType(files)))

    return replace(world, tools={**world.tools, "commit": replace(commit, run=run)})


@alternative(of="verify_log")
def written_again(log, head=None):
    """The log is made again from its events, and the two are compared."""
    again = authority.AuditLog()
    for i, text in enumerate(log.events):
        again = authority.AuditLog((*again.events, text), (*again.heads, digest([again.head, text])))
        if i >= len(log.heads) or again.heads[i] != log.heads[i]:
            return i
    if len(log.heads) > len(log.events):
        return len(log.events)
    return None if head is None or head in {authority.START, *again.heads} else len(log.events)


@alternative(of="verify_log")
def from_each_place(log, head=None):
    places = range(max(len(log.events), len(log.heads)))

    def broken(i):
        if i >= min(len(log.events), len(log.heads)):
            return True
        return log.heads[i] != digest([log.heads[i - 1] if i else authority.START, log.events[i]])

    first = next((i for i in places if broken(i)), None)
    lost = head is not None and head != authority.START and head not in log.heads
    return first if first is not None or not lost else len(log.events)
