"""One iteration of each training loop against TRL's trainer for it, with equal weights and the same work.

Equal are the model, the tokens that are sampled and trained on, and the optimiser's steps. TRL's callback hands the turn over
after each of its iterations, so that both see the same machine. Times are the processor's, medians over turns of one thread.
What TRL builds before its first step (tokenised data, trainers) is not counted; what our loops build in a call is.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import ModuleType
from typing import Any, Callable, Iterable

import tokenizers
import torch
import transformers
from torch import Tensor, nn
from transformers import TrainerCallback

from course.credit.groups import group_relative_advantages, leave_one_out_advantages
from course.credit.returns import generalized_advantage_estimation, shaped_token_rewards, whiten
from course.feedback.reward_model import RewardModel, last_token_score
from course.models.decoder import Decoder, DecoderConfig
from course.models.heads import ScalarHead
from course.objectives.aggregation import aggregate
from course.objectives.direct import dpo_loss
from course.objectives.policy_gradient import policy_gradient_loss, ppo_actor_loss
from course.objectives.preference import pairwise_reward_loss
from course.objectives.supervised import sft_loss
from course.objectives.value import critic_loss
from course.rollout.collect import Sampling
from course.tasks.records import Batch, Comparison, PreferenceLabel, Provenance
from course.training.direct_alignment import PairLogprobs, direct_alignment
from course.training.grpo import GrpoConfig, grpo
from course.training.learner import Learner
from course.training.policy_gradient import PolicyGradientConfig, policy_gradient
from course.training.ppo import PpoConfig, PpoOperators, ppo
from course.training.reward_model import reward_model
from course.training.sft import sft

PROMPT, RESPONSE, PAD, END = 16, 32, 0, 2
CONFIG = DecoderConfig(vocab_size=64, layers=2, width=64, heads=2, max_length=PROMPT + RESPONSE)
SEQUENCES, GROUP, STEPS = 128, 8, 4  # sampled per iteration; optimiser steps of one pass over them
ROWS, PAIRS = 64, 32  # per optimiser step of supervised fine-tuning, and of the two that learn from pairs
EPOCHS = 4  # of PPO
LR, BETA = 1e-4, 0.04
WARM, ROUNDS = 2, 10
SAMPLING = Sampling(RESPONSE, (), PAD)  # no end token: both sides sample every position

NO_TRL = (
    "`course bench step` needs TRL, which is not installed here: it belongs into an environment of its own. Make one with "
    "`python -m venv .venv-bench && .venv-bench/bin/pip install -e '.[bench]'` and run `.venv-bench/bin/course bench step`; "
    "for PPO, which TRL dropped after 1.12.0, install '.[bench-ppo]' into another one"
)

PLAIN = {  # of TRL's settings: float32 training on the processor, nothing logged, saved or evaluated
    "learning_rate": LR, "lr_scheduler_type": "constant", "max_grad_norm": 1.0, "seed": 0, "use_cpu": True, "bf16": False,
    "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False,
}  # fmt: skip


@dataclass(frozen=True)
class Kit:
    """What all cases share: TRL, a tokenizer for our ids, a folder for what TRL writes, and the decoder both sides begin with."""

    trl: ModuleType
    tokenizer: Any
    folder: str
    decoder: Decoder

    def llama(self, kind: str = "LlamaForCausalLM") -> nn.Module:
        """The decoder's twin, read from the folder, where TRL finds its frozen reference too."""
        more = {} if kind == "LlamaForCausalLM" else {"num_labels": 1}
        return getattr(transformers, kind).from_pretrained(self.folder, dtype=torch.float32, **more)

    def config(self, name: str, **options: Any) -> Any:
        return getattr(self.trl, name)(**PLAIN, output_dir=self.folder, logging_strategy="no", **options)

    def trainer(self, name: str, args: Any, data: Any, turns: "Turns", model: nn.Module | None = None, **more: Any) -> Any:
        return getattr(self.trl, name)(
            model=model or self.llama(), args=args, train_dataset=data, processing_class=self.tokenizer, callbacks=[turns], **more
        )


class Turns(TrainerCallback):
    """After each iteration of TRL's trainer one of ours. The first WARM are not timed; in them the trained tokens are counted."""

    def __init__(self, per: int, run_ours: Callable[[], Any]) -> None:
        self.per, self.run_ours = per, run_ours
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.steps, self.begin, self.our_turn = 0, 0.0, False
        self.tokens = {False: 0, True: 0}  # by our_turn

    def take(self, train: Callable[[], Any]) -> None:
        """Run TRL's `train` with this callback in it, counting tokens at every embedding with a gradient, whoever's it is."""
        self.hook = nn.modules.module.register_module_forward_hook(self._count)
        try:
            train()
        finally:
            self.hook.remove()

    def _count(self, module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(module, nn.Embedding) and output.requires_grad:
            self.tokens[self.our_turn] += output.shape[:-1].numel()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps += 1
        if self.steps % self.per:
            return
        end = time.process_time()
        self.our_turn = True
        self.run_ours()
        self.our_turn = False
        after = time.process_time()
        if self.steps > WARM * self.per:
            self.theirs.append(end - self.begin)
            self.ours.append(after - end)
        elif self.steps == WARM * self.per:
            self.hook.remove()
            if self.tokens[True] != self.tokens[False]:
                raise RuntimeError(
                    f"the work differs: {self.tokens[True]} tokens are trained on here, {self.tokens[False]} there"
                )
        self.begin = time.process_time()


Case = tuple[Callable[[Turns], Any], int, Callable[[], Any]]  # TRL's trainer, its steps per iteration, one iteration of ours


def rows() -> list[dict]:
    """A row for each trainer that the installed TRL has: {"case", "ours", "other", "other_name", "ratio"}, in milliseconds."""
    trl = _trl()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(trl, name) for name in CASES if _offers_ppo() == (name == "ppo")]
    finally:
        torch.set_num_threads(threads)


def _trl() -> ModuleType:
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
    os.environ.update({name: value for name, value in quiet.items() if name not in os.environ})
    try:
        import datasets
        import trl
    except ImportError as error:
        raise ImportError(NO_TRL) from error
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    return trl


def _offers_ppo() -> bool:
    """An environment has one TRL: 1.12.0 for PPO, a later one for the others."""
    try:
        return importlib.util.find_spec("trl.experimental.ppo") is not None
    except ModuleNotFoundError:
        return False


def _row(trl: ModuleType, name: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        kit = Kit(trl, _tokenizer(), folder, Decoder(CONFIG, seed=0))
        kit.decoder.save_pretrained(folder, {"pad_token_id": PAD, "eos_token_id": END})
        theirs, per, ours = CASES[name](kit)
        turns = Turns(per, ours)
        trainer = theirs(turns)
        trainer.remove_callback(transformers.PrinterCallback)
        with contextlib.redirect_stdout(sys.stderr):  # TRL prints too, and the rows may be read by a program
            turns.take(trainer.train)
    mine, other = median(turns.ours), median(turns.theirs)
    case = f"{name}, one iteration"
    return {"case": case, "ours": mine * 1e3, "other": other * 1e3, "other_name": f"trl {trl.__version__}", "ratio": mine / other}


# ------------------------------------------------------------------ data


def _ids(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randint(3, CONFIG.vocab_size, (rows, columns), generator=torch.Generator().manual_seed(seed))


def _groups(step: int) -> Tensor:
    """Prompts of one iteration, each to be answered by a group."""
    return _ids(SEQUENCES // GROUP, PROMPT, step)


def _pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Prompts, chosen and rejected responses; a response ends with the end token, which TRL appends to texts by itself."""
    end = torch.full((PAIRS * STEPS, 1), END)
    chosen, rejected = (torch.cat([_ids(PAIRS * STEPS, RESPONSE - 1, seed), end], 1) for seed in (2, 3))
    return _ids(PAIRS * STEPS, PROMPT, 1), chosen, rejected


def _comparisons(*pairs: Tensor) -> list[Comparison]:
    origin = Provenance("nobody", "random ids", "chosen first", "all")
    rows = zip(*(map(tuple, part.tolist()) for part in pairs))
    return [Comparison(*ids, PreferenceLabel.FIRST, origin, family=str(i)) for i, ids in enumerate(rows)]


def _texts(ids: Tensor) -> list[str]:
    return [" ".join(f"t{i}" for i in row) for row in ids.tolist()]


def _tokenizer() -> Any:
    """Reads "t17" as id 17, so that TRL, which wants text, trains on the same ids."""
    words = {"<pad>": PAD, "<bos>": 1, "<eos>": END} | {f"t{i}": i for i in range(3, CONFIG.vocab_size)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )


def _dataset(**columns: list) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(columns)


def _until(per: int) -> dict[str, int]:
    return {"max_steps": per * (WARM + ROUNDS), "max_length": CONFIG.max_length}


def _finish(steps: Iterable) -> None:
    for _ in steps:
        pass


def _reward(batch: Batch) -> Tensor:
    """The share of response tokens in the lower half of the vocabulary: a reward that costs nothing."""
    return (batch.tokens[:, PROMPT:] < CONFIG.vocab_size // 2).float().mean(1)


def _their_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [sum(i < CONFIG.vocab_size // 2 for i in ids) / len(ids) for ids in completion_ids]


# ------------------------------------------------------------------ cases


def _sft(kit: Kit, prompt: int = PROMPT) -> Case:
    """Both sides learn the tokens behind the prompt."""
    ids = _ids(ROWS * STEPS, PROMPT + RESPONSE, 1)
    demonstrated = torch.arange(PROMPT + RESPONSE).expand_as(ids) >= prompt
    data = Batch(ids, torch.ones_like(demonstrated), demonstrated)
    learner, loss = Learner({"model": kit.decoder}, lr=LR), partial(sft_loss, normalize="token")

    def theirs(turns: Turns) -> Any:
        args = kit.config("SFTConfig", per_device_train_batch_size=ROWS, completion_only_loss=True, **_until(STEPS))
        both = _dataset(input_ids=ids.tolist(), completion_mask=demonstrated.int().tolist())
        return kit.trainer("SFTTrainer", args, both, turns)

    def ours() -> None:
        learner.step = 0
        _finish(sft(kit.decoder, data, loss=loss, steps=STEPS, lr=LR, batch_size=ROWS, seed=0, learner=learner))

    return theirs, STEPS, ours


def _reward_model(kit: Kit) -> Case:
    prompts, chosen, rejected = _pairs()
    comparisons = _comparisons(prompts, chosen, rejected)
    model = RewardModel(ScalarHead(kit.decoder, seed=0), score=last_token_score, over="sequence")
    learner = Learner({"model": model}, lr=LR)

    def theirs(turns: Turns) -> Any:
        both = {"chosen_ids": torch.cat([prompts, chosen], 1), "rejected_ids": torch.cat([prompts, rejected], 1)}
        args = kit.config("RewardConfig", per_device_train_batch_size=PAIRS, **_until(STEPS))
        data = _dataset(**{name: ids.tolist() for name, ids in both.items()})
        return kit.trainer("RewardTrainer", args, data, turns, model=kit.llama("LlamaForSequenceClassification"))

    def ours() -> None:
        learner.step = 0
        steps = reward_model(
            model,
            comparisons,
            loss=pairwise_reward_loss,
            steps=STEPS,
            lr=LR,
            batch_size=PAIRS,
            seed=0,
            pad_id=PAD,
            learner=learner,
        )
        _finish(steps)

    return theirs, STEPS, ours


def _dpo(kit: Kit) -> Case:
    """Each of our iterations is a call of the loop on its own pairs, so that the reference's pass over them is counted."""
    prompts, chosen, rejected = _pairs()
    comparisons = _comparisons(prompts, chosen, rejected)
    learner, reference = Learner({"model": kit.decoder}, lr=LR), Decoder(CONFIG, seed=0)

    def theirs(turns: Turns) -> Any:
        args = kit.config("DPOConfig", per_device_train_batch_size=PAIRS, beta=0.1, **_until(STEPS))
        data = _dataset(
            prompt=[text + " " for text in _texts(prompts)], chosen=_texts(chosen[:, :-1]), rejected=_texts(rejected[:, :-1])
        )
        return kit.trainer("DPOTrainer", args, data, turns)

    def loss(p: PairLogprobs) -> Tensor:
        return dpo_loss(p.policy_chosen, p.policy_rejected, p.ref_chosen, p.ref_rejected, beta=0.1)

    def ours() -> None:
        learner.step = 0
        steps = direct_alignment(
            kit.decoder, reference, comparisons,
            loss=loss, steps=STEPS, lr=LR, batch_size=PAIRS, seed=0, pad_id=PAD, learner=learner,
        )  # fmt: skip
        _finish(steps)

    return theirs, STEPS, ours


def _rloo(kit: Kit) -> Case:
    steps = policy_gradient(
        Learner({"actor": kit.decoder}, lr=LR), Decoder(CONFIG, seed=0), _reward, _groups,
        advantages=lambda returns, group, values: leave_one_out_advantages(returns, group),
        loss=lambda logp, advantage, mask, responses: policy_gradient_loss(
            logp, advantage, mask, how="token", denominator=responses
        ),
        config=PolicyGradientConfig(beta=BETA, group_size=GROUP, minibatches=STEPS),
        sampling=SAMPLING, steps=WARM + ROUNDS, seed=0,
    )  # fmt: skip
    return partial(_their_groups, kit, "RLOO"), STEPS, partial(next, steps)


def _grpo(kit: Kit) -> Case:
    steps = grpo(
        Learner({"actor": kit.decoder}, lr=LR), Decoder(CONFIG, seed=0), _reward, _groups,
        advantages=partial(group_relative_advantages, scale="std"), aggregate=aggregate,
        config=GrpoConfig(group_size=GROUP, beta=BETA, how="token", minibatches=STEPS),
        sampling=SAMPLING, steps=WARM + ROUNDS, seed=0,
    )  # fmt: skip
    return partial(_their_groups, kit, "GRPO", loss_type="dapo"), STEPS, partial(next, steps)


def _their_groups(kit: Kit, name: str, turns: Turns, **options: Any) -> Any:
    """TRL samples all groups of an iteration at once and then makes its steps on parts of them, each sample once."""
    args = kit.config(
        f"{name}Config", num_generations=GROUP, max_completion_length=RESPONSE, generation_kwargs={"min_new_tokens": RESPONSE},
        temperature=1.0, top_k=0, top_p=1.0, beta=BETA, num_iterations=1, steps_per_generation=STEPS,
        per_device_train_batch_size=SEQUENCES // STEPS, max_steps=STEPS * (WARM + ROUNDS), **options,
    )  # fmt: skip
    prompts = _dataset(prompt=_texts(_ids(SEQUENCES // GROUP * (WARM + ROUNDS), PROMPT, 1)))
    return kit.trainer(f"{name}Trainer", args, prompts, turns, reward_funcs=_their_reward)


def _ppo(kit: Kit) -> Case:
    """Policy, critic, reference and reward model are four separate networks on both sides."""
    critic, judge = (ScalarHead(Decoder(CONFIG, seed=0), seed=seed) for seed in (0, 1))
    steps = ppo(
        Learner({"actor": kit.decoder, "critic": critic}, lr=LR), Decoder(CONFIG, seed=0),
        RewardModel(judge.requires_grad_(False), score=last_token_score, over="sequence"),
        lambda step: _ids(SEQUENCES, PROMPT, step),
        operators=PpoOperators(shaped_token_rewards, generalized_advantage_estimation, whiten, ppo_actor_loss, critic_loss),
        config=PpoConfig(beta=BETA, epochs=EPOCHS, minibatches=STEPS), sampling=SAMPLING, steps=WARM + ROUNDS, seed=0,
    )  # fmt: skip
    return partial(_their_ppo, kit), 1, partial(next, steps)


def _their_ppo(kit: Kit, turns: Turns) -> Any:
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    args = PPOConfig(
        **PLAIN, output_dir=kit.folder, logging_strategy="steps", logging_steps=10**6, num_sample_generations=0,
        per_device_train_batch_size=SEQUENCES, gradient_accumulation_steps=1, local_rollout_forward_batch_size=SEQUENCES,
        num_mini_batches=STEPS, num_ppo_epochs=EPOCHS, total_episodes=SEQUENCES * (WARM + ROUNDS),
        response_length=RESPONSE, temperature=1.0, stop_token_id=None, kl_coef=BETA,
    )  # fmt: skip
    data = _dataset(input_ids=_ids(SEQUENCES * (WARM + ROUNDS), PROMPT, 1).tolist())
    value, judge = (kit.llama("LlamaForSequenceClassification") for _ in range(2))
    return PPOTrainer(
        args=args, processing_class=kit.tokenizer, model=kit.llama(), ref_model=None, reward_model=judge, value_model=value,
        train_dataset=data, eval_dataset=data.select(range(SEQUENCES)), callbacks=[turns],
    )  # fmt: skip


CASES = {
    "sft": _sft, "sft without prompts": partial(_sft, prompt=0), "reward model": _reward_model, "dpo": _dpo, "rloo": _rloo,
    "grpo": _grpo, "ppo": _ppo,
}  # fmt: skip
