"""The research world: a walk word for word, what every action costs and changes, pinned pages, replay, people and their habits."""

from collections import Counter
import subprocess
import sys

from hypothesis import given, settings, strategies as st

from course.envs.kernel import reset, step
from course.envs.research import (
    ADDRESSES, ATTRIBUTES, MAX_CITATIONS, PUBLISHERS, SCHEMAS, SUBJECTS, corpus, demonstrate, research, research_tasks,
    research_tokenizer, shown, submitted, together,
)  # fmt: skip
from course.envs.signatures import verify_result
from course.feedback.citations import entails
from course.language.actions import Action

KEY = bytes(range(16))
PAGES = corpus()
WORLD = research()
TASKS = research_tasks(60, 3)
TASK = next(t for t in TASKS if len(t.hidden["operands"]) == 2)


def played(texts, task=TASK, world=WORLD):
    """Transitions, and the last state."""
    state, _ = reset(world, task, 0, KEY)
    seen = []
    for text in texts:
        seen.append(step(state, text))
        state = seen[-1].state
        if state.over:
            break
    return seen, state


def fact(task, place):
    """(attribute, subject, number) of an operand."""
    attribute, _, subject = task.hidden["operands"][place].split(" ")
    return attribute, subject, PAGES.facts[task.hidden["site"]][attribute, subject]


# ---------------------------------------------------------------- the tools


def test_a_walk_word_for_word():
    (a, one, n), (_, two, m) = fact(TASK, 0), fact(TASK, 1)
    pages, sign = PAGES.pages[TASK.hidden["site"]], TASK.prompt.split(" ")[3]
    answer = n + m if sign == "+" else n - m
    claim = f"the {a} of {one} is {n // 10} {n % 10}"
    seen, state = played(
        [f"plan {one} {two} {one}", f"search {one}", f"open atlas/{one}", f"cite atlas/{one} {claim}", f"plan {two}", "drop 2", "drop 1",
         f"calc {n // 10} {n % 10} {sign} {m // 10} {m % 10}", f"submit {' '.join(str(answer))}"]
    )  # fmt: skip
    found = seen[1].observation.split(" . ")[1].split(" ")
    assert sorted(found) == [f"{p}/{one}" for p in PUBLISHERS]
    assert [t.observation for t in seen] == [
        f"left 1 5 cited 0 to do {one} {two} . done",
        f"left 1 4 cited 0 to do {one} {two} . {' '.join(found)}",
        f"left 1 3 cited 0 to do {two} . {shown(pages[f'atlas/{one}'])}",
        f"left 1 2 cited 1 to do {two} . done",
        f"left 1 1 cited 1 to do {two} . done",
        f"left 1 0 cited 1 to do {two} . nothing",
        f"left 9 cited 0 to do {two} . done",
        f"left 8 cited 0 to do {two} . {' '.join(str(answer))}",
        "done",
    ]
    assert state.facts[3] == {"tool": "cite", "claim": together(claim), "address": f"atlas/{one}", "read": True}
    assert submitted(state) == str(answer) == str(TASK.hidden["tests"][0]["equals"]) and state.over
    assert state.spent["requests"] == 2 and state.spent["calls"] == 9


def test_what_does_nothing_says_so_and_costs_an_action():
    cite = "cite atlas/malta the people of malta is 3"
    seen, state = played([cite, cite, "search hills", "calc 1 +", "calc 1 - 2", "open atlas/rome", "plan hills"])
    said = [t.observation.split(" . ")[-1].removeprefix("left 9 cited 1 to do . ") for t in seen]
    assert said == ["done", "nothing", "nothing", "nothing", "- 1", "error malformed", "done"]
    assert state.inner.citations == (("the people of malta is 3", "atlas/malta"),) and state.inner.plan == ()
    assert state.facts[0]["read"] is False and state.spent["calls"] == 7


def test_citations_and_requests_are_bounded():
    seen, state = played([f"cite {address} the people of malta is 3" for address in ADDRESSES[:8]])
    assert len(state.inner.citations) == MAX_CITATIONS and seen[-1].observation.endswith("nothing")
    seen, state = played(["open atlas/malta"] * 12)
    assert [t.outcome for t in seen] == ["executed"] * 9 + ["refused"] * 3 and state.spent["requests"] == 9


word = st.sampled_from((*SUBJECTS, *ATTRIBUTES, *"0123456789+-", "the", "of", "is", "not"))
text = st.lists(word, min_size=1, max_size=6).map(" ".join)
actions = st.one_of(
    *(st.builds(lambda t, tool=tool, name=name: Action(tool, {name: t}), text) for tool, name in (("plan", "subjects"), ("search", "query"), ("calc", "expression"))),
    st.builds(lambda a: Action("open", {"address": a}), st.sampled_from(ADDRESSES)),
    st.builds(lambda a, c: Action("cite", {"address": a, "claim": c}), st.sampled_from(ADDRESSES), text),
    st.builds(lambda n: Action("drop", {"citation": n}), st.integers(1, MAX_CITATIONS)),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(actions.map(WORLD.grammar.encode) | st.text(max_size=20), max_size=18), st.sampled_from(TASKS))
def test_whatever_is_said_an_episode_is_answered_signed_repeatable_and_ends(texts, task):
    seen, state = played(texts, task)
    again, other = played(texts, task)
    assert [t.signature for t in seen] == [t.signature for t in again] and state.inner == other.inner
    for number, transition in enumerate(seen):
        assert verify_result(KEY, transition.state.episode, number, transition.payload, transition.signature)
        research_tokenizer().encode(transition.observation)  # every word that can be shown is in the vocabulary
    assert state.spent.fits(WORLD.budget) and state.over == (len(texts) >= 16)


def test_json_and_compact_take_the_same_actions():
    world = research(grammar="json")
    for action in (
        Action("cite", {"address": "atlas/malta", "claim": "the people of malta is 31"}),
        Action("submit", {"answer": 31}),
    ):
        seen, state = played([world.grammar.encode(action)], world=world)
        assert seen[0].outcome == "executed"
    seen, state = played(["cite atlas/malta the people of malta is 3 1"])
    assert state.inner.citations == (("the people of malta is 31", "atlas/malta"),)
    assert [s.tool for s in SCHEMAS] == ["plan", "search", "open", "calc", "cite", "drop", "submit"]


# ---------------------------------------------------------------- the pages


def test_the_pages_are_pinned():
    assert corpus() is PAGES and corpus(0).digest() == PAGES.digest() != corpus(1).digest()
    program = "from course.envs.research import corpus, research; print(corpus().digest(), research().version)"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert other == [PAGES.digest(), WORLD.version]
    later = corpus(0, edition=1)
    assert research(later).version != WORLD.version != research(max_actions=5).version and later.facts == PAGES.facts


def test_atlas_and_gazette_are_right_the_forum_about_half_of_the_time_and_the_mirror_is_the_atlas():
    right = Counter()
    for pages, facts in zip(PAGES.pages[:40], PAGES.facts):
        for (attribute, subject), n in facts.items():
            for publisher in PUBLISHERS:
                right[publisher] += entails(f"the {attribute} of {subject} is {n}", pages[f"{publisher}/{subject}"])
            assert pages[f"mirror/{subject}"] == pages[f"atlas/{subject}"] != pages[f"gazette/{subject}"]
    total = 40 * len(SUBJECTS) * len(ATTRIBUTES)
    assert right["atlas"] == right["gazette"] == right["mirror"] == total
    assert abs(right["forum"] / total - 0.5) < 4 * (0.25 / total) ** 0.5


def test_a_later_edition_has_rewritten_pages_about_the_same_world():
    later = corpus(0, edition=1)
    pairs = [
        (a[address], b[address])
        for a, b in zip(PAGES.pages, later.pages)
        for address in ADDRESSES
        if not address.startswith("mirror")
    ]
    changed = sum(a != b for a, b in pairs) / len(pairs)
    assert abs(changed - 0.2) < 0.03  # three in ten of two publishers out of three
    assert corpus(0, edition=2).digest() != later.digest()


def test_numbers_lose_and_find_their_digits():
    assert shown("the hills of malta is 31.") == "the hills of malta is 3 1 ."
    assert (
        together("the hills of malta is 3 1 and the ships of malta is 4")
        == "the hills of malta is 31 and the ships of malta is 4"
    )


def test_questions_hold_no_answer_and_the_hidden_test_does():
    for task in TASKS:
        numbers = [fact(task, i)[2] for i in range(len(task.hidden["operands"]))]
        sign = 1 if "+" in task.prompt else -1
        assert task.hidden["tests"] == [{"equals": numbers[0] + sign * sum(numbers[1:])}]
        assert not any(ch.isdigit() for ch in task.prompt) and task.family == f"site-{task.hidden['site']}"
        research_tokenizer().encode(task.prompt)
    assert research_tasks(5, 3) == TASKS[:5] and {len(t.hidden["operands"]) for t in TASKS} == {1, 2}
    held = research_tasks(50, 3, sites=range(200, 300))
    assert not {t.family for t in held} & {t.family for t in TASKS}


# ---------------------------------------------------------------- people


def test_a_careful_researcher_is_right_and_keeps_to_the_horizon():
    for task in TASKS[:12]:
        texts = demonstrate(task, WORLD, 0, first_found=0.0, careless=0.0, single=0.0, unread=0.0)
        seen, state = played(texts, task)
        assert submitted(state) == str(task.hidden["tests"][0]["equals"]) and len(texts) == task.horizon
        assert all(t.outcome == "executed" for t in seen) and len(state.inner.citations) == 2 * len(task.hidden["operands"])


def test_people_have_habits_and_revise_when_sources_disagree():
    right, revised, cited, longest = 0, 0, Counter(), 0
    for task in TASKS:
        texts = demonstrate(task, WORLD, 1)
        seen, state = played(texts, task)
        assert submitted(state) is not None and demonstrate(task, WORLD, 1) == texts
        right += submitted(state) == str(task.hidden["tests"][0]["equals"])
        revised += any(t.startswith("drop") for t in texts)
        cited[min(len(state.inner.citations), 3)] += 1
        words = " ".join([task.prompt, *texts, *(t.observation for t in seen)]).split()
        longest = max(longest, 2 + len(words) + 4 * len(texts))
    assert 0.6 < right / len(TASKS) < 0.95 and revised > 0 and len(cited) == 3
    assert longest <= 560
