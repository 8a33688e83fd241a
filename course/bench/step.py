"""One iteration of each training loop against TRL's trainer for it, with equal weights and the same work.

Equal are the model, the tokens that are sampled and trained on, and the optimiser's steps. TRL's callback hands the turn over after
each of its iterations, so that both see the same machine. Times are the processor's, medians over the turns of one thread.
What TRL builds before its first step (tokenised data, trainers) is not counted; what our loops build in a call is.
"""

import os
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import partial
from statistics import median
from types import ModuleType
from typing import Any, Callable

from torch import Tensor, nn
from transformers import PrinterCallback, TrainerCallback
import torch

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
    "`course bench step` compares with TRL, which is not installed here and is not meant to be: make an environment of its own with "
    "`python -m venv .venv-bench && .venv-bench/bin/pip install -e '.[bench]'` and run `.venv-bench/bin/course bench step` "
    "('.[bench-ppo]' in another one for PPO, which TRL dropped after 1.12.0)"
)


@dataclass(frozen=True)
class Kit:
    """What all cases share: TRL, its tokenizer for our ids, a folder for what it writes, and the weights that both sides begin with."""

    trl: ModuleType
    tokenizer: Any
    folder: str
    decoder: Decoder

    def llama(self, kind: str = "LlamaForCausalLM") -> nn.Module:
        """The decoder's twin, loaded from the folder, since TRL loads its frozen reference from the same place."""
        import transformers

        more = {} if kind == "LlamaForCausalLM" else {"num_labels": 1}
        return getattr(transformers, kind).from_pretrained(self.folder, dtype=torch.float32, **more)

    def config(self, name: str, **options: Any) -> Any:
        """TRL's settings: one thread's plain float32 training, nothing logged, saved or evaluated."""
        plain = dict(
            output_dir=self.folder, learning_rate=LR, lr_scheduler_type="constant", max_grad_norm=1.0, report_to="none", seed=0,
            save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, bf16=False, gradient_checkpointing=False,
        )  # fmt: skip
        return getattr(self.trl, name)(**plain | options)


Case = tuple[Callable[[Any], Any], int, Callable[[], None]]  # callback -> TRL's trainer, its steps per iteration, our iteration


def rows() -> list[dict]:
    """One row per trainer that the installed TRL has: {"case", "ours", "other", "other_name", "ratio"}, milliseconds per iteration."""
    trl = _trl()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_row(trl, name, case) for name, case in _cases(trl).items()]
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
    import transformers

    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    return trl


def _cases(trl: ModuleType) -> dict[str, Callable[[Kit], Case]]:
    cases = {"sft": _sft, "reward model": _reward_model, "dpo": _dpo, "rloo": _rloo, "grpo": _grpo}
    try:
        import trl.experimental.ppo  # noqa: F401
    except ImportError:
        return cases
    return {"ppo": _ppo}


def _row(trl: ModuleType, name: str, case: Callable[[Kit], Case]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        decoder = Decoder(CONFIG, seed=0)
        decoder.save_pretrained(folder, {"pad_token_id": PAD, "eos_token_id": END})
        kit = Kit(trl, _tokenizer(), folder, decoder)
        make, per, ours = case(kit)
        turns = Turns(per, ours)
        trainer = make(turns)
        trainer.remove_callback(PrinterCallback)  # the rows are all that this prints
        turns.watch()
        try:
            trainer.train()
        finally:
            turns.hook.remove()
    return {
        "case": f"{name}, one iteration", "ours": median(turns.ours) * 1e3, "other": median(turns.theirs) * 1e3,
        "other_name": f"trl {trl.__version__}", "ratio": median(turns.ours) / median(turns.theirs),
    }  # fmt: skip


class Turns(TrainerCallback):
    """After each iteration of TRL's trainer one of ours. The first WARM are not timed; in them the trained tokens are counted."""

    def __init__(self, per: int, ours: Callable[[], None]) -> None:
        self.per, self.run_ours = per, ours
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.steps, self.begin, self.our_turn = 0, 0.0, False
        self.tokens = {False: 0, True: 0}  # by our_turn

    def count(self, module: nn.Module, _: Any, output: Any) -> None:
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
                raise RuntimeError(f"the work differs: {self.tokens[True]} tokens trained on here, {self.tokens[False]} there")
        self.begin = time.process_time()

    def watch(self) -> None:
        """Count the tokens that pass any embedding with a gradient, whoever's it is, until the warm-up is over."""
        self.hook = nn.modules.module.register_module_forward_hook(self.count)


# ------------------------------------------------------------------ data


def _ids(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randint(3, CONFIG.vocab_size, (rows, columns), generator=torch.Generator().manual_seed(seed))


def _texts(ids: Tensor) -> list[str]:
    return [" ".join(f"t{i}" for i in row) for row in ids.tolist()]


def _tokenizer() -> Any:
    """Reads "t17" as id 17, so that TRL trains on the same ids."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PAD, "<bos>": 1, "<eos>": END} | {f"t{i}": i for i in range(3, CONFIG.vocab_size)}
    plain = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )


def _dataset(**columns: list) -> Any:
    from datasets import Dataset

    return Dataset.from_dict(columns)


def _pairs() -> tuple[Tensor, Tensor, Tensor]:
    """Prompts, chosen and rejected responses; responses end with the end token, which TRL appends itself."""
    end = torch.full((PAIRS * STEPS, 1), END)
    chosen, rejected = (torch.cat([_ids(PAIRS * STEPS, RESPONSE - 1, seed), end], 1) for seed in (2, 3))
    return _ids(PAIRS * STEPS, PROMPT, 1), chosen, rejected


def _comparisons() -> list[Comparison]:
    prompts, chosen, rejected = (tuple(map(tuple, part.tolist())) for part in _pairs())
    origin = Provenance("nobody", "random ids", "chosen first", "all")
    return [
        Comparison(prompt=p, first=a, second=b, label=PreferenceLabel.FIRST, provenance=origin, family=str(i))
        for i, (p, a, b) in enumerate(zip(prompts, chosen, rejected))
    ]


def _reward(batch: Batch) -> Tensor:
    """The share of tokens in the lower half of the vocabulary: costs nothing."""
    return (batch.tokens[:, PROMPT:] < CONFIG.vocab_size // 2).float().mean(1)


def _their_reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    return [sum(i < CONFIG.vocab_size // 2 for i in ids) / len(ids) for ids in completion_ids]


# ------------------------------------------------------------------ cases


def _sft(kit: Kit) -> Case:
    ids = _ids(ROWS * STEPS, PROMPT + RESPONSE, 1)
    every = torch.ones_like(ids, dtype=torch.bool)
    batch, learner = Batch(ids, every, every), Learner({"model": kit.decoder}, lr=LR)
    loss = partial(sft_loss, normalize="token")

    def ours() -> None:
        learner.step = 0
        for _ in sft(kit.decoder, batch, loss=loss, steps=STEPS, lr=LR, batch_size=ROWS, seed=0, learner=learner):
            pass

    args = kit.config(
        "SFTConfig", per_device_train_batch_size=ROWS, max_steps=STEPS * (WARM + ROUNDS), max_length=CONFIG.max_length
    )
    return partial(_trainer, kit, "SFTTrainer", kit.llama(), args, _dataset(input_ids=ids.tolist())), STEPS, ours


def _trainer(kit: Kit, name: str, model: nn.Module, args: Any, data: Any, turns: Any, **more: Any) -> Any:
    return getattr(kit.trl, name)(
        model=model, args=args, train_dataset=data, processing_class=kit.tokenizer, callbacks=[turns], **more
    )


def _reward_model(kit: Kit) -> Case:
    prompts, chosen, rejected = _pairs()
    model = RewardModel(ScalarHead(kit.decoder, seed=0), score=last_token_score, over="sequence")
    comparisons, learner = _comparisons(), Learner({"model": model}, lr=LR)

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
        for _ in steps:
            pass

    data = _dataset(chosen_ids=torch.cat([prompts, chosen], 1).tolist(), rejected_ids=torch.cat([prompts, rejected], 1).tolist())
    args = kit.config(
        "RewardConfig", per_device_train_batch_size=PAIRS, max_steps=STEPS * (WARM + ROUNDS), max_length=CONFIG.max_length
    )
    return partial(_trainer, kit, "RewardTrainer", kit.llama("LlamaForSequenceClassification"), args, data), STEPS, ours


def _dpo(kit: Kit) -> Case:
    """Each of our iterations is a call of the loop on its own pairs, so that the reference's pass over them is counted."""
    prompts, chosen, rejected = _pairs()
    comparisons, learner = _comparisons(), Learner({"model": kit.decoder}, lr=LR)
    reference = Decoder(CONFIG, seed=0)

    def loss(p: PairLogprobs) -> Tensor:
        return dpo_loss(p.policy_chosen, p.policy_rejected, p.ref_chosen, p.ref_rejected, beta=0.1)

    def ours() -> None:
        learner.step = 0
        steps = direct_alignment(
            kit.decoder,
            reference,
            comparisons,
            loss=loss,
            steps=STEPS,
            lr=LR,
            batch_size=PAIRS,
            seed=0,
            pad_id=PAD,
            learner=learner,
        )
        for _ in steps:
            pass

    told = dict(prompt=[text + " " for text in _texts(prompts)], chosen=_texts(chosen[:, :-1]), rejected=_texts(rejected[:, :-1]))
    args = kit.config(
        "DPOConfig", per_device_train_batch_size=PAIRS, max_steps=STEPS * (WARM + ROUNDS), max_length=CONFIG.max_length, beta=0.1
    )
    return partial(_trainer, kit, "DPOTrainer", kit.llama(), args, _dataset(**told)), STEPS, ours


def _rloo(kit: Kit) -> Case:
    learner, reference = Learner({"actor": kit.decoder}, lr=LR), Decoder(CONFIG, seed=0)
    steps = policy_gradient(
        learner, reference, _reward, lambda step: _ids(SEQUENCES // GROUP, PROMPT, step),
        advantages=lambda returns, group, values: leave_one_out_advantages(returns, group),
        loss=lambda logp, advantage, mask, count: policy_gradient_loss(logp, advantage, mask, how="token", denominator=count),
        config=PolicyGradientConfig(beta=BETA, group_size=GROUP, minibatches=STEPS), sampling=SAMPLING, steps=WARM + ROUNDS, seed=0,
    )  # fmt: skip
    return partial(_groups, kit, "RLOO"), STEPS, lambda: next(steps)


def _grpo(kit: Kit) -> Case:
    learner, reference = Learner({"actor": kit.decoder}, lr=LR), Decoder(CONFIG, seed=0)
    steps = grpo(
        learner, reference, _reward, lambda step: _ids(SEQUENCES // GROUP, PROMPT, step),
        advantages=partial(group_relative_advantages, scale="std"), aggregate=aggregate,
        config=GrpoConfig(group_size=GROUP, beta=BETA, how="token", minibatches=STEPS),
        sampling=SAMPLING, steps=WARM + ROUNDS, seed=0,
    )  # fmt: skip
    return partial(_groups, kit, "GRPO"), STEPS, lambda: next(steps)


def _groups(kit: Kit, name: str, turns: Any) -> Any:
    """TRL samples all groups of an iteration at once and then makes its steps on parts of them, each sample once."""
    args = kit.config(
        f"{name}Config", num_generations=GROUP, max_completion_length=RESPONSE, beta=BETA, num_iterations=1, steps_per_generation=STEPS,
        per_device_train_batch_size=SEQUENCES // STEPS, temperature=1.0, top_k=0, top_p=1.0, max_steps=STEPS * (WARM + ROUNDS),
        generation_kwargs={"min_new_tokens": RESPONSE}, **({"loss_type": "dapo"} if name == "GRPO" else {}),
    )  # fmt: skip
    prompts = _dataset(prompt=_texts(_ids(SEQUENCES // GROUP * (WARM + ROUNDS), PROMPT, 1)))
    return _trainer(kit, f"{name}Trainer", kit.llama(), args, prompts, turns, reward_funcs=_their_reward)


def _ppo(kit: Kit) -> Case:
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    critic, judge = (ScalarHead(Decoder(CONFIG, seed=0), seed=seed) for seed in (0, 1))
    reward = RewardModel(judge.requires_grad_(False), score=last_token_score, over="sequence")
    operators = PpoOperators(shaped_token_rewards, generalized_advantage_estimation, whiten, ppo_actor_loss, critic_loss)
    steps = ppo(
        Learner({"actor": kit.decoder, "critic": critic}, lr=LR), Decoder(CONFIG, seed=0), reward,
        lambda step: _ids(SEQUENCES, PROMPT, step), operators=operators,
        config=PpoConfig(beta=BETA, epochs=EPOCHS, minibatches=STEPS), sampling=SAMPLING, steps=WARM + ROUNDS, seed=0,
    )  # fmt: skip

    def make(turns: Any) -> Any:
        options = dict(
            num_sample_generations=0, per_device_train_batch_size=SEQUENCES, gradient_accumulation_steps=1, num_mini_batches=STEPS,
            num_ppo_epochs=EPOCHS, local_rollout_forward_batch_size=SEQUENCES, response_length=RESPONSE, kl_coef=BETA, temperature=1.0,
            total_episodes=SEQUENCES * (WARM + ROUNDS), stop_token_id=None, logging_strategy="steps", logging_steps=10**6,
        )  # fmt: skip
        plain = kit.config("SFTConfig")
        names = (
            "output_dir",
            "learning_rate",
            "lr_scheduler_type",
            "max_grad_norm",
            "report_to",
            "seed",
            "disable_tqdm",
            "use_cpu",
        )
        value, judge = (kit.llama("LlamaForSequenceClassification") for _ in range(2))
        data = _dataset(input_ids=_ids(SEQUENCES * (WARM + ROUNDS), PROMPT, 1).tolist())
        return PPOTrainer(
            args=PPOConfig(**{name: getattr(plain, name) for name in names}, save_strategy="no", bf16=False, **options),
            processing_class=kit.tokenizer, model=kit.llama(), ref_model=None, reward_model=judge, value_model=value,
            train_dataset=data, eval_dataset=data.select(range(SEQUENCES)), callbacks=[turns],
        )  # fmt: skip

    return make, 1, lambda: next(steps)
