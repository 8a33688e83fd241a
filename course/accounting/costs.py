"""The account of a run, and what a method should cost before anybody has run it.

The symbols are those of source B's cost tables: N parameters of the policy, B prompts in a batch, K responses per prompt, E
passes over them, L_p prompt tokens, L_r response tokens, L = L_p + L_r. Forward costs 2N operations per token, backward 4N.
Left out, as there: activations, caches, communication, and for this rule of thumb attention (forward_flops has it).
"""

import math
from dataclasses import astuple, dataclass, fields
from typing import Any, Iterable

from torch import Tensor, nn

from course.models.decoder import DecoderConfig

BYTES_TRAINED, BYTES_FROZEN = 18, 2  # per parameter: AdamW in mixed precision, and half-precision weights alone


@dataclass(frozen=True)
class Account:
    """What was spent. Tokens are response tokens, counted as often as drawn, read or trained on; prompts cost operations only.

    a + b is the account of a followed by b: everything adds up but `bytes`, which two runs in sequence hold one after the other.
    sum(accounts, Account()) adds many.
    """

    sampled_tokens: int = 0  # drawn from a policy
    trained_tokens: int = 0  # in a forward-backward pass, once per pass
    judged_tokens: int = 0  # read by a reward model, judge or verifier
    scored_tokens: int = 0  # read without gradient by reference, critic or earlier policy
    seconds: int | float = 0.0
    flops: int | float = 0.0
    bytes: int = 0  # most state held at one time

    def __post_init__(self) -> None:
        for field, value in zip(fields(self), astuple(self)):
            whole = field.name not in ("seconds", "flops")
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0 or (whole and not isinstance(value, int)):
                kind = "a whole number" if whole else "a finite number"
                raise ValueError(f"{field.name} must be {kind} of at least 0; got {value!r}")

    def __add__(self, other: "Account") -> "Account":
        if not isinstance(other, Account):
            return NotImplemented
        both = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Account(**both | {"bytes": max(self.bytes, other.bytes)})

    @property
    def tokens(self) -> int:
        """The four columns of tokens, summed."""
        return self.sampled_tokens + self.trained_tokens + self.judged_tokens + self.scored_tokens


@dataclass(frozen=True)
class Workload:
    """One batch in the symbols of the tables: B, L_p, L_r, K, E."""

    prompts: int
    prompt_length: int
    response_length: int
    samples: int = 1
    epochs: int = 1

    def __post_init__(self) -> None:
        for field, value in zip(fields(self), astuple(self)):
            least = 0 if field.name == "prompt_length" else 1
            if type(value) is not int or value < least:
                raise ValueError(f"{field.name} must be a whole number of at least {least}; got {value!r}")

    @property
    def tokens(self) -> int:
        """B K (L_p + L_r)"""
        return self.prompts * self.samples * (self.prompt_length + self.response_length)

    @property
    def response_tokens(self) -> int:
        """B K L_r"""
        return self.prompts * self.samples * self.response_length


# ------------------------------------------------------------------ memory


def training_bytes(trained: int | float, frozen: int | float = 0) -> int:
    """Bytes of the parameter states that a run holds.

        18 * trained + 2 * frozen

    Shapes and units: trained, frozen: parameters of all trained and of all frozen models; result in bytes.
    A trained parameter in mixed precision: 2 + 4 for the half-precision weight and its float32 master copy, 4 for the gradient,
    8 for AdamW's two moments. A frozen one: 2, its half-precision weight.
    Reduces to: 126 GB for supervised fine-tuning of 7e9 parameters; 40 N for PPO with four models of N parameters.
    Raises: ValueError if a count is negative or not whole.
    Source: B, table 13 and the text around it; A 3.3 (the four networks).
    """
    return BYTES_TRAINED * _count(trained, "trained") + BYTES_FROZEN * _count(frozen, "frozen")


def held_bytes(modules: Iterable[nn.Module], optimiser: Any = None) -> int:
    """Bytes that these modules hold in truth: weights, buffers and gradients, and the state of the optimiser if it is given.

        sum over tensors of elements * bytes per element

    Shapes and units: modules: each tensor counts once, also where two modules share it; result in bytes.
    Reduces to: 4 bytes a parameter for a frozen float32 module; 16 after a step of AdamW (and a few for its step counts).
    Raises: nothing.
    Source: the definition that training_bytes approximates for mixed precision; this course trains in float32.
    """
    tensors: dict[int, Tensor] = {}
    for module in modules:
        for tensor in [*module.parameters(), *module.buffers()]:
            tensors[id(tensor)] = tensor
            if tensor.grad is not None:
                tensors[id(tensor.grad)] = tensor.grad
    for state in optimiser.state.values() if optimiser is not None else ():
        tensors |= {id(value): value for value in state.values() if isinstance(value, Tensor)}
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


# ------------------------------------------------------------------ operations of a decoder


def forward_flops_per_token(config: DecoderConfig, keys: int | float, head: bool = True) -> int:
    """Operations of one token's way through a decoder; a multiplication and its addition are two.

        layers * (2 * (4 d^2 + 3 d m) + 4 d * keys) + 2 d V        d = width, m = mlp_width, V = vocab_size

    Shapes and units: keys: positions that the token attends to, itself included; head: whether its logits are computed; result in
    floating-point operations of the matrix products (norms, activations and softmax are left out: O(d) per token).
    Reduces to: 2 * (weights in matrices) when attention is free (keys = 0).
    Raises: ValueError if keys is negative or not whole.
    Source: Kaplan et al. 2020 (arXiv 2001.08361), section 2.1, with both products of attention; B's C_fwd.
    """
    width, inner = config.width, config.mlp_width
    block = 2 * (4 * width**2 + 3 * width * inner) + 4 * width * _count(keys, "keys")
    return config.layers * block + (2 * width * config.vocab_size if head else 0)


def forward_flops(config: DecoderConfig, length: int | float) -> int:
    """Operations of a forward pass over one row, causal attention at its least: token t sees t + 1 keys.

        sum over t < length of forward_flops_per_token(t + 1)

    Shapes and units: length in tokens; result in floating-point operations.
    Reduces to: forward_flops_per_token(config, 1) for one token. A kernel that computes the masked half of attention too does
    length * forward_flops_per_token(config, length).
    Raises: ValueError if length is negative or not whole.
    Source: forward_flops_per_token, summed.
    """
    length = _count(length, "length")
    pairs = length * (length + 1) // 2
    return length * forward_flops_per_token(config, 0) + config.layers * 4 * config.width * pairs


def training_flops(config: DecoderConfig, length: int | float) -> int:
    """Operations of forward and backward pass over one row.

        3 * forward_flops(config, length)

    Shapes and units: length in tokens; result in floating-point operations.
    Backward makes two products for each of forward's: one for the weights or keys, one for the activations.
    Reduces to: 6 N per token with N weights in matrices when attention is free.
    Raises: ValueError if length is negative or not whole.
    Source: Kaplan et al. 2020, section 2.1; B: "6ND".
    """
    return 3 * forward_flops(config, length)


def sampling_flops(config: DecoderConfig, prompt_length: int, response_length: int | float) -> int:
    """Operations of drawing one response with a cache: each token passes once, and only those that predict one need logits.

        forward_flops(L_p + L_r - 1) - (L_p - 1) * 2 d V

    Shapes and units: lengths in tokens; result in floating-point operations. The last token drawn is never read.
    Reduces to: a forward pass over the prompt with one row of logits when one token is drawn; 0 when none is.
    Raises: ValueError if response_length is negative, prompt_length below 1, or one of them not whole.
    Source: the sampler of this course (course/models/sampling.py), which saves a little more in the last layer of the prompt.
    """
    if _count(prompt_length, "prompt_length") < 1:
        raise ValueError(
            f"prompt_length must be at least 1: the first token needs a position that predicts it; got {prompt_length}"
        )
    if not _count(response_length, "response_length"):
        return 0
    unread = (prompt_length - 1) * 2 * config.width * config.vocab_size
    return forward_flops(config, prompt_length + response_length - 1) - unread


# ------------------------------------------------------------------ methods


def sft_cost(work: Workload, policy: int | float) -> Account:
    """Supervised fine-tuning on given responses: one model, forward and backward.

        flops = 6 N E B K L        bytes = 18 N

    Shapes and units: policy: N, parameters; work.samples: demonstrations per prompt; result an Account without seconds.
    Reduces to: 6 N D for D tokens in one epoch.
    Raises: ValueError if policy is negative or not whole.
    Source: B, tables 11 and 13.
    """
    policy = _count(policy, "policy")
    return Account(
        trained_tokens=work.epochs * work.response_tokens,
        flops=6 * policy * work.epochs * work.tokens,
        bytes=training_bytes(policy),
    )


def reward_model_cost(work: Workload, reward: int | float) -> Account:
    """A reward model on K ranked responses per prompt, each read once for all its pairs.

        flops = 6 N_r E B K L        bytes = 18 N_r

    Shapes and units: reward: N_r, parameters; work.samples: responses per prompt, 2 for comparisons; result an Account.
    Reduces to: sft_cost of the same model on the same responses.
    Raises: ValueError if reward is negative or not whole.
    Source: B, section on cost; A 3.3: the pairs of a ranking share one batch element, so that each response is read once.
    """
    return sft_cost(work, reward)


def direct_cost(work: Workload, policy: int | float, reference: bool = True) -> Account:
    """Direct alignment on K given responses per prompt; the reference reads them once, before training.

        flops = (6 N E + 2 N [reference]) B K L        bytes = 18 N + 2 N [reference]

    Shapes and units: DPO and IPO: K = 2; KTO: K = 1; ORPO: K = 2, reference=False. Result an Account without seconds.
    Reduces to: sft_cost without a reference.
    Raises: ValueError if policy is negative or not whole.
    Source: B, tables 11 and 13; Rafailov et al. 2023. KTO's mismatched pairs, which need two forward passes more, are left out.
    """
    policy = _count(policy, "policy")
    frozen = policy if reference else 0
    return sft_cost(work, policy) + Account(
        scored_tokens=work.response_tokens if reference else 0,
        flops=2 * frozen * work.tokens,
        bytes=training_bytes(policy, frozen),
    )


def online_cost(
    work: Workload, policy: int | float, *, reward: int | float = 0, value: int | float = 0, reference: bool = True
) -> Account:
    """One round of a method that trains on its own samples: draw, judge, score, update E times.

        flops = (2 N + 2 N_r + 2 N [reference] + 2 N_v + E (6 N + 6 N_v)) B K L
        bytes = 18 (N + N_v) + 2 (N [reference] + N_r)

    Shapes and units: policy N, reward N_r, value N_v: parameters, 0 = no such model. Result an Account without seconds.
    PPO: value and reward model. GRPO, RLOO, REINFORCE: no value model. RLVR: no reward model either, a verifier costs time and no
    operations, but its tokens are judged all the same. The old log-probabilities are those of the first pass of the update.
    Reduces to: 40 N bytes for PPO with four models of N; 2 N per token more than sft_cost if there is nothing but the policy.
    Raises: ValueError if a count is negative or not whole.
    Source: B, tables 11 and 13; A 3.3 (four networks, four roles).
    """
    policy, reward, value = _count(policy, "policy"), _count(reward, "reward"), _count(value, "value")
    frozen = policy if reference else 0
    readers = int(reference) + int(value > 0)
    once = 2 * (policy + reward + frozen + value)
    return Account(
        sampled_tokens=work.response_tokens,
        trained_tokens=work.epochs * work.response_tokens,
        judged_tokens=work.response_tokens,
        scored_tokens=readers * work.response_tokens,
        flops=(once + 6 * work.epochs * (policy + value)) * work.tokens,
        bytes=training_bytes(policy + value, frozen + reward),
    )


def best_of_n_cost(work: Workload, policy: int | float, reward: int | float) -> Account:
    """Answering B prompts with the best of K samples each: nothing is trained.

        flops = (2 N + 2 N_r [K > 1]) B K L        bytes = 2 N + 2 N_r [K > 1]

    Shapes and units: policy N and reward N_r: parameters. work.epochs has no meaning here. Result an Account without seconds.
    Reduces to: plain sampling for K = 1, where there is nothing to choose and nothing is judged.
    Raises: ValueError if a count is negative or not whole, or work.epochs is not 1.
    Source: L3.05: training, inference and judging in columns of their own.
    """
    if work.epochs != 1:
        raise ValueError(f"work.epochs must be 1, since nothing is trained; got {work.epochs}")
    judge = _count(reward, "reward") if work.samples > 1 else 0
    return Account(
        sampled_tokens=work.response_tokens,
        judged_tokens=work.response_tokens if work.samples > 1 else 0,
        flops=2 * (_count(policy, "policy") + judge) * work.tokens,
        bytes=training_bytes(0, policy + judge),
    )


def method_table(work: Workload, size: int | float) -> dict[str, Account]:
    """name -> Account of one round of each method, with models of one size.

        SFT and KTO: one response per prompt; DPO and ORPO: two; PPO, GRPO, RLVR: work.samples, work.epochs

    Shapes and units: size: parameters of every model; results Accounts without seconds.
    Reduces to: 18 N, 20 N, 40 N and 22 N bytes for SFT, DPO, PPO and GRPO.
    Raises: ValueError if size is negative or not whole.
    Source: B, tables 11 to 13, in this course's rules of counting.
    """
    single, pair = (Workload(work.prompts, work.prompt_length, work.response_length, samples=k) for k in (1, 2))
    return {
        "SFT": sft_cost(single, size),
        "reward model": reward_model_cost(pair, size),
        "DPO": direct_cost(pair, size),
        "KTO": direct_cost(single, size),
        "ORPO": direct_cost(pair, size, reference=False),
        "PPO": online_cost(work, size, reward=size, value=size),
        "GRPO": online_cost(work, size, reward=size),
        "RLVR": online_cost(work, size),
    }


def _count(value: Any, name: str) -> int:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or value != int(value):
        raise ValueError(f"{name} must be a whole number of at least 0; got {value!r}")
    return int(value)
