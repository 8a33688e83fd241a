"""What the sources say about five systems, in short, and claims about them to be labelled: the exercise before the unseen report."""

from typing import Mapping

from course.evidence.claims import Claim

EXCERPT: Mapping[str, tuple[str, str]] = {  # line -> (what is said there, where it stands)
    "e1": ("InstructGPT: for the reward model, labelers rank four to nine answers to one prompt.", "A 3.3"),
    "e2": (
        "InstructGPT: the last stage is PPO with a ratio clip of 0.2, in one variant with a pretraining gradient added.",
        "A 3.3",
    ),
    "e3": ("InstructGPT: the PPO stage runs for 256,000 episodes.", "A 3.3"),
    "e4": ("InstructGPT: the PPO stage has 31,144 training prompts.", "A 3.3"),
    "e5": ("o1: it learns a long chain of thought through large-scale reinforcement learning.", "A 3.6"),
    "e6": ("o1: on AIME 2024 one sample is right in 74.4 %, and a learned reranker over 1,000 samples in 93 %.", "A 3.6"),
    "e7": ("Computer-Using Agent: supervised data teach it to read screenshots and to control mouse and keyboard.", "A 3.8"),
    "e8": ("Computer-Using Agent: reinforcement learning teaches it reasoning and recovery.", "A 3.8"),
    "e9": ("Computer-Using Agent: 38.1 on OSWorld, 58.1 on WebArena, 87 on WebVoyager.", "A 3.8"),
    "e10": ("Playhouse agent: it succeeds in 89 % of the episodes.", "A 5.1"),
    "e11": ("Playhouse agent: its success is 93 % of the human rate.", "A 5.1"),
    "e12": (
        "AlphaEvolve: Gemini models propose programs in an evolutionary loop; evaluators score them, and a database selects.",
        "A 5.8",
    ),
}

TRUTH: Mapping[str, tuple[Claim, str]] = {  # claim -> (as it should be labelled, why)
    "c01": (
        Claim("optimizer", "InstructGPT's last stage was trained with PPO.", "D", "excerpt e2"),
        "e2 names the algorithm",
    ),
    "c02": (
        Claim("rollouts", "A prompt of InstructGPT's PPO stage was used 8.2 times on average.", "I", premises=("e3", "e4")),
        "it is e3 divided by e4, and stands in neither",
    ),
    "c03": (
        Claim("rollouts", "Every prompt of InstructGPT's PPO stage was used about equally often.", "U"),
        "e3 and e4 give a mean and nothing about its spread",
    ),
    "c04": (
        Claim("optimizer", "o1 was trained with PPO.", "U"),
        "e5 says reinforcement learning, which is the name of no algorithm",
    ),
    "c05": (
        Claim("optimizer", "o1 was trained with reinforcement learning.", "D", "excerpt e5"),
        "e5 says it in these words",
    ),
    "c06": (
        Claim("evaluation", "With a learned reranker over 1,000 samples, o1 is right in 93 % on AIME 2024.", "D", "excerpt e6"),
        "e6 says it with the same budget",
    ),
    "c07": (
        Claim("environment", "The Computer-Using Agent acts by mouse and keyboard.", "D", "excerpt e7"),
        "e7 says what it controls",
    ),
    "c08": (
        Claim("evaluation", "The Computer-Using Agent is better on WebVoyager because such tasks were in its training.", "U"),
        "e9 gives results; which tasks were trained on is said nowhere",
    ),
    "c09": (
        Claim("evaluation", "In the Playhouse, people succeed in about 95.7 % of the episodes.", "I", premises=("e10", "e11")),
        "it is e10 divided by e11, and stands in neither",
    ),
    "c10": (
        Claim("optimizer", "In AlphaEvolve's loop the weights of Gemini are updated from the scores.", "U"),
        "e12 says that programs are selected; of weights it says nothing",
    ),
    "c11": (
        Claim(
            "sft_data", "The Computer-Using Agent had more supervised trajectories than episodes of reinforcement learning.", "U"
        ),
        "e7 and e8 name both kinds of training and count neither",
    ),
    "c12": (
        Claim("feedback", "A ranking for InstructGPT's reward model contains at most 36 pairs.", "I", premises=("e1",)),
        "nine answers make 9 * 8 / 2 pairs: computed from e1, which does not say it",
    ),
}
CLAIMED: Mapping[str, tuple[str, str]] = {name: (claim.field, claim.text) for name, (claim, _) in TRUTH.items()}
