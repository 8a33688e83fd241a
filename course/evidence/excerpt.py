"""What the sources say about five systems, in short, and claims about them to be labelled: the exercise before the unseen report."""

from typing import Mapping

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

CLAIMED: Mapping[str, tuple[str, str]] = {  # claim -> (field, what is claimed); how each is to be labelled: excerpt_labels.py
    "c01": ("optimizer", "InstructGPT's last stage was trained with PPO."),
    "c02": ("rollouts", "A prompt of InstructGPT's PPO stage was used 8.2 times on average."),
    "c03": ("rollouts", "Every prompt of InstructGPT's PPO stage was used about equally often."),
    "c04": ("optimizer", "o1 was trained with PPO."),
    "c05": ("optimizer", "o1 was trained with reinforcement learning."),
    "c06": ("evaluation", "With a learned reranker over 1,000 samples, o1 is right in 93 % on AIME 2024."),
    "c07": ("environment", "The Computer-Using Agent acts by mouse and keyboard."),
    "c08": ("evaluation", "The Computer-Using Agent is better on WebVoyager because such tasks were in its training."),
    "c09": ("evaluation", "In the Playhouse, people succeed in about 95.7 % of the episodes."),
    "c10": ("optimizer", "In AlphaEvolve's loop the weights of Gemini are updated from the scores."),
    "c11": ("sft_data", "The Computer-Using Agent had more supervised trajectories than episodes of reinforcement learning."),
    "c12": ("feedback", "A ranking for InstructGPT's reward model contains at most 36 pairs."),
}
