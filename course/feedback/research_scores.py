"""Scores of a research episode, each by itself: answer, entailment, source diversity, validity; and three kinds of reward in one vector.

A right answer may be badly supported, a claim that its page entails may be wrong, three addresses may be one source: no score stands
for another, so none of them is a sum.
"""

from typing import Callable, Mapping, Sequence

from course.envs.evidence import Evidence
from course.envs.kernel import State
from course.envs.research import Corpus, submitted
from course.feedback.citations import PageArchive, cited, sentences, statements
from course.feedback.critic import Critic
from course.feedback.normaliser import RewardNormaliser
from course.feedback.vectors import Component, RewardVector, Score, gate, normalised, scalarize
from course.feedback.verifiers import ALPHA, verify_answer

SOURCES = 2  # independent sources for each thing, as many as pay
ANSWER = Component("answer", 0, 1, "right answers", "verify_answer 1", "lowest")
VALIDITY = Component("validity", 0, 1, "share of actions", "1", "refuse")
COMPONENTS = (
    ANSWER,
    Component("entailment", 0, 1, "share of citations", "1", "lowest", actor_can="see"),
    Component("diversity", 0, SOURCES, "sources for each thing asked", "1", "lowest", actor_can="see"),
    VALIDITY,
)


def archives(pages: Corpus) -> tuple[PageArchive, ...]:
    """The pages of each site, pinned."""
    return tuple(PageArchive.of(site) for site in pages.pages)


def research_vector(state: State, archive: PageArchive) -> RewardVector:
    """The four scores of an episode, read from its state and from the archived pages of its site.

        answer       1 if the submitted number passes the hidden tests, else 0
        entailment   citations that count / max(citations, things asked); missing without a citation
        diversity    min over things asked of the most sources that give it one and the same number, at most SOURCES
        validity     (actions that ran - citations of pages that were not opened) / actions; missing without an action

    A citation counts if it states the number of one thing that was asked ("is 31", not "is not 7") and its archived page entails it:
    true trifles raise nothing. Sources are texts: a reprint under another address is no second one.
    Source: the dimensions of evaluation that source A 3.9 infers; the report does not disclose its own.
    """
    asked = list(state.task.hidden["operands"])
    citations = state.inner.citations
    counted = [
        (thing, archive[address].digest)
        for claim, address in citations
        if (thing := _states(claim, asked)) and cited(claim, address, archive)
    ]
    sources: dict[tuple[str, int], set[str]] = {}
    for thing, text in counted:
        sources.setdefault(thing, set()).add(text)
    diversity = min(max((len(texts) for (about, _), texts in sources.items() if about == thing), default=0) for thing in asked)
    scores = {
        "answer": _answer(state),
        "entailment": Score(len(counted) / max(len(citations), len(asked))) if citations else Score(None, reason="nothing was cited"),
        "diversity": Score(min(diversity, SOURCES)) if citations else Score(None, reason="nothing was cited"),
        "validity": _validity(state),
    }  # fmt: skip
    return RewardVector(COMPONENTS, scores)


def _states(claim: str, asked: Sequence[str]) -> tuple[str, int] | None:
    """(thing, number), if the claim is that one thing that was asked is that number."""
    parts = statements(sentences(claim)[0]) if len(sentences(claim)) == 1 else None
    if parts is None or len(parts) > 1 or parts[0].negated or parts[0].relation != "=" or parts[0].about not in asked:
        return None
    return parts[0].about, parts[0].number


def _answer(state: State) -> Score:
    evidence = verify_answer(state.task, submitted(state))
    return Score(evidence.reward / ALPHA, reason=evidence.reason)


def _validity(state: State) -> Score:
    if not state.step:
        return Score(None, reason="there was no action")
    unread = sum(facts.get("read") is False for facts in state.facts)
    return Score((len(state.facts) - unread) / state.step, reason=f"{unread} citations of pages that were not opened")


def research_grader(pages: Corpus, weights: Mapping[str, float | int]) -> Callable[[State], Evidence]:
    """A grader for training: the weighted sum of the scores, with all of them in the evidence."""
    archived = archives(pages)

    def grade(state: State) -> Evidence:
        vector = research_vector(state, archived[state.task.hidden["site"]])
        right = vector.scores["answer"].value == 1
        return Evidence("research", "1", vector.to_json(), "right" if right else "wrong", scalarize(vector, weights))

    return grade


# ---------------------------------------------------------------- verifier, critic and human-data reward model


def sourced_vector(
    state: State, archive: PageArchive, critic: Critic, human: Callable[[State], float], *, bound: float | int = 20
) -> RewardVector:
    """Three rewards of different kinds, and the share of valid actions for a gate.

        answer     the verifier's, 0 or 1
        critique   the critic's mean score over the citations, each judged against its archived page; missing without one
        human      a reward model's, fitted to people's data, cut to [-bound, bound]
        validity   as in research_vector

    The critic's version is part of the component's, so scores of two revisions are never normalised or compared as one.
    Source: verifiable, generative and human-data rewards, source A 5.5. Coefficients and gating there are undisclosed.
    """
    components = (
        ANSWER,
        Component("critique", 0, 1, "share of claims", f"critic {critic.version}", "lowest", actor_can="see"),
        Component("human", -bound, bound, "logits", "1", "skip"),
        VALIDITY,
    )
    said = [critic(claim, archive[address].text).score if address in archive else 0.0 for claim, address in state.inner.citations]
    scores = {
        "answer": _answer(state),
        "critique": Score(sum(said) / len(said)) if said else Score(None, reason="nothing was cited"),
        "human": Score(max(-bound, min(bound, human(state)))),
        "validity": _validity(state),
    }
    return RewardVector(components, scores)


def gated_reward(
    vector: RewardVector,
    normalisers: Mapping[str, RewardNormaliser],
    weights: Mapping[str, float | int],
    limits: Mapping[str, float | int],
) -> float:
    """The weighted sum of the normalised scores where the gate is passed; where it is not, the least such a sum can be.

        sum of weight * (value - mean) / std   if every limit is reached,   else   sum of weight * (low - mean) / std

    Weights are positive, in reward units per standard deviation of the training stream. Limits are on the raw scores.
    Raises: ValueError for a weight that is not positive: the lowest score would then not be the least reward.
    """
    if not all(weight > 0 for weight in weights.values()):
        raise ValueError(f"weights must be positive; got {dict(weights)}")
    scaled = normalised(vector, normalisers)
    least = sum(weights[c.name] * c.low for c in scaled.components if c.name in weights)
    reward = scalarize(scaled, weights) if gate(vector, limits) else None
    return least if reward is None else reward
