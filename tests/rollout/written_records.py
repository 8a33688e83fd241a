"""Records written by hand, without a model: two actions, the second one malformed."""

from course.envs.evidence import Evidence
from course.language.serializer import Encoded, Span
from course.language.transcript import StopReason
from course.rollout.record import Layout, Record, Step, Versions, text_hash

VERSIONS = Versions("p" * 64, "t" * 64, "s" * 64, "toy@" + "e" * 64, "judge@1")


def written_record(i: int = 0, abstains: bool = False, latency: float = 1.5) -> Record:
    steps = (
        Step((3, 6), "look é", "executed", "look", {"key": "é", "n": i}, "7", text_hash("7"), {"calls": 1, "compute": 0.1 * i},
             "a" * 64, latency_ms=latency, result_hash="r" * 64),
        Step((9, 11), "loo", "malformed", None, None, "error malformed", text_hash("error malformed"), {"calls": 1}, "b" * 64,
             "must begin with look", latency_ms=latency / 3),
    )  # fmt: skip
    spans = (
        Span(0, 1, "bos", -1), Span(1, 2, "text", 0), Span(2, 3, "header", 1), Span(3, 6, "sampled", 1),
        Span(6, 7, "header", 2), Span(7, 8, "text", 2), Span(8, 9, "header", 3), Span(9, 11, "sampled", 3),
    )  # fmt: skip
    evidence = (
        Evidence("judge", "1", None, "abstain", None, "timeout") if abstains else Evidence("judge", "1", [i], "right", 10.0)
    )
    return Record(
        task={"id": f"t{i}", "family": f"f{i % 3}", "prompt": "look", "horizon": 1, "created": i}, task_digest="d" * 64,
        episode=f"{i:064d}", environment_seed=i, sampling_seed=4, noise_episode=i, temperature=1.0, max_action_tokens=8,
        layout=Layout(4, i % 4, 5), versions=VERSIONS,
        encoded=Encoded(tuple(range(11)), spans, (None, StopReason.END, None, StopReason.LENGTH)),
        logprobs=(-0.1, -1 / 3, -1e-30 * i, -2.0, -0.5), steps=steps, ending="truncated", evidence=evidence,
    )  # fmt: skip
