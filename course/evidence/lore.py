"""Folk claims about how systems were trained, and facts: a correction is worth what its fact is worth. Which refutes which: corrections.py."""

from dataclasses import dataclass

CLAIMS = {
    "webgpt": "WebGPT's best model was trained with PPO.",
    "prm800k": "PRM800K is a run of reinforcement learning on a policy.",
    "rbr": "Rule-based rewards are deterministic rules that somebody coded by hand.",
    "o1": "It is known that o1 was trained with PPO or GRPO.",
    "tools": "A model that calls tools was trained on tool use by reinforcement learning, end to end.",
    "constitution": "Constitutional AI works without humans.",
    "claude37": "It was measured that Claude 3.7 cheats in 99 % of real coding tasks.",
    "thoughts": "Who reads a model's visible chain of thought sees every danger.",
    "rlaif": "Google's RLAIF uses PPO.",
    "sparrow": "Sparrow is a reranker and nothing else.",
    "alphaproof": "AlphaProof is one chatbot that does mathematics in words.",
    "alphaevolve": "AlphaEvolve trains Gemini by reinforcement learning.",
    "robots": "RT-2 and SIMA show that policy gradients work on embodied agents.",
    "benchmarks": "The newest benchmark gains show how a model was trained.",
    "weights": "Open weights, or an API, show how a model was trained.",
    "tampering": "The study of reward tampering shows that a deployed Claude secretly edits the service that computes its reward.",
    "robot_demo": "Claude controlled a robot in a demonstration, so it was trained on robots by reinforcement learning.",
}


@dataclass(frozen=True)
class Fact:
    text: str
    place: str


FACTS = {  # some refute one of the claims; five are true as well, and refute none
    "f01": Fact(
        "The gain may come from pretraining, data, architecture, distillation, routing or inference compute as well.", "A 12"
    ),
    "f02": Fact("An update by A2C and self-play trains its policy, beside the choice among eight candidates.", "A 5.2"),
    "f03": Fact("The number is of constructed environments that held an exploit on purpose.", "A 4.3"),
    "f04": Fact("The published update is REINFORCE with a learned baseline and a KL penalty; it has no clipped ratio.", "A 5.3"),
    "f05": Fact(
        "The proposals come from a fixed model in a loop of evaluation and selection; no update of its weights is reported.",
        "A 5.8",
    ),
    "f06": Fact("Large-scale reinforcement learning is disclosed; the optimiser is not.", "A 3.6"),
    "f07": Fact(
        "The study compares labels of steps with labels of outcomes for training verifiers that select; it reports no policy update.",
        "A 3.4",
    ),
    "f08": Fact(
        "People wrote the principles and prompts and judged the results; only the harmlessness pairs were labelled by a model.",
        "A 4.2",
    ),
    "f09": Fact("Comparisons for the reward model are rankings of four to nine answers to one prompt.", "A 3.3"),
    "f10": Fact(
        "The environments of the study were made vulnerable on purpose; it shows that the behaviour can be learned there, and nothing of a deployed model.",
        "A 4.6",
    ),
    "f11": Fact("The disclosed recipes are supervised: robot trajectories, and play recorded from people.", "A 5.9"),
    "f12": Fact(
        "The strongest reported answers came from cloned behaviour and a reward model's choice among 64 samples.", "A 3.2"
    ),
    "f13": Fact("A fixed language model grades propositions, and fitted linear weights combine the grades.", "A 3.5"),
    "f14": Fact("The product asks the user for confirmation before actions of high impact.", "A 3.8"),
    "f15": Fact("Supervised trajectories, prompting, a router and a constrained runtime can each make it do so.", "A 12"),
    "f16": Fact(
        "A language model can plan while a separate controller moves; observations, actions and rewards of a body are nowhere reported.",
        "A 4.7",
    ),
    "f17": Fact(
        "In controlled experiments the behaviour depended on a hint that the text did not mention in most cases.", "A 4.3"
    ),
    "f18": Fact(
        "It puts together formalisation, a specialist network, search in Lean, a kernel that checks, and training on variants at test time.",
        "A 5.7",
    ),
    "f19": Fact("Data lineage, reward services, rollout stack and hidden graders are in neither of them.", "A 12"),
    "f20": Fact("A router chooses between a fast and a slow model of the product.", "A 3.12"),
    "f21": Fact("Preference reward grew about linearly in the square root of the KL divergence.", "A 4.1"),
    "f22": Fact("Device-time is no duration: 80,000 TPU-days may have passed in a month.", "A 5.7"),
}
