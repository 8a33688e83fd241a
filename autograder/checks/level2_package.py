"""Level 2: what has no exercise is checked on the package: loops, roles, accounts. A mutant can stand in for each function."""

import copy
import hashlib
import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from autograder.framework import CheckFailed, expect, invariant


def direct(function):
    """The object itself, for checks that give it models and operators."""
    return function.function


def refuses(call, kinds=(ValueError,)):
    try:
        call()
    except kinds:
        return True
    return False


def scalar(value):
    return torch.as_tensor(value, dtype=torch.float64)


def digest(*modules):
    """SHA-256 of all weights and buffers."""
    made = hashlib.sha256()
    for module in modules:
        for name, tensor in module.state_dict().items():
            made.update(name.encode() + str(tensor.dtype).encode())
            made.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


# ---------------------------------------------------------------- a loop, seen from outside

VOCAB, PAD, END, LIKED = 8, 0, 2, 5
CLOSE = 1e-4  # log-probabilities of one model, computed in two ways in float32


def tiny(seed, vocab=VOCAB):
    """A decoder of one layer. Its output is scaled up, so that laws are far from uniform and temperatures show."""
    from course.models.decoder import Decoder, DecoderConfig

    model = Decoder(DecoderConfig(vocab_size=vocab, layers=1, width=8, heads=1, max_length=12), seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.mul_(3.0)
    return model


def law(model, batch, temperature):
    """log p of every token that could follow, [B,T,V]; row t is the law of token t+1."""
    return (model(batch.tokens, batch.attention_mask).double() / temperature).log_softmax(-1)


def token_law(model, batch, temperature=1.0):
    """log p of the tokens that did follow, [B,T-1], 0 where they are no actions."""
    logp = law(model, batch, temperature)[:, :-1].gather(-1, batch.tokens[:, 1:, None])[..., 0]
    return torch.where(batch.action_mask[:, 1:], logp, 0.0)


def liked(batch):
    """The share of a response that is the liked word, and a little for length, so that rewards of responses differ."""
    length = batch.action_mask.sum(1)
    return ((batch.tokens == LIKED) & batch.action_mask).sum(1) / length + 0.05 * length


@dataclass
class Watched:
    """A learner with a reference, and everything that a training loop shows to its prompts, reward and operators.

    prompts(step) is asked before a rollout: the actor and the critic are copied then. reward(batch) is given what was sampled.
    """

    seed: int
    temperature: float = 0.7
    asked: int = 6
    lr: float = 0.03
    critic: bool = True
    new_tokens: int = 5
    worth: Any = staticmethod(liked)
    actors: list = field(default_factory=list)
    critics: list = field(default_factory=list)
    batches: list = field(default_factory=list)
    rewards: list = field(default_factory=list)
    calls: list = field(default_factory=list)

    def __post_init__(self):
        from course.models.heads import ScalarHead
        from course.rollout.collect import Sampling
        from course.training.learner import Learner

        modules = {"actor": tiny(self.seed)}
        if self.critic:
            modules["critic"] = ScalarHead(tiny(self.seed + 1), self.seed)
            with torch.no_grad():
                modules["critic"].out.weight.mul_(20)  # so that values differ from place to place
        self.learner = Learner(modules, lr=self.lr)
        self.reference = tiny(self.seed + 2).requires_grad_(False)
        self.sampling = Sampling(self.new_tokens, (END,), PAD, self.temperature)

    def prompts(self, step):
        self.actors.append(copy.deepcopy(self.learner["actor"]))
        if self.critic:
            self.critics.append(copy.deepcopy(self.learner["critic"]))
        return torch.randint(3, VOCAB, (self.asked, 2), generator=torch.Generator().manual_seed(97 * self.seed + step))

    def reward(self, batch):
        self.batches.append(batch)
        self.rewards.append(self.worth(batch).float())
        return self.rewards[-1]

    def operators(self, **changed):
        from course.credit.returns import generalized_advantage_estimation, shaped_token_rewards, whiten
        from course.objectives.policy_gradient import ppo_actor_loss
        from course.objectives.value import critic_loss
        from course.training.ppo import PpoOperators

        plain = PpoOperators(shaped_token_rewards, generalized_advantage_estimation, whiten, ppo_actor_loss, critic_loss)
        return replace(plain, **changed)

    def ppo(self, run, config, steps=1, **given):
        given.setdefault("operators", self.operators())
        loop = run(
            self.learner, self.reference, given.pop("reward", self.reward), self.prompts, config=config, sampling=self.sampling,
            steps=steps, seed=self.seed, **given,
        )  # fmt: skip
        return list(loop)

    def policy_gradient(self, run, config, steps=1, **given):
        loop = run(
            self.learner, self.reference, self.reward, self.prompts, config=config, sampling=self.sampling, steps=steps,
            seed=self.seed, **given,
        )  # fmt: skip
        return list(loop)

    grpo = policy_gradient

    def gradient(self, role):
        """The gradient that the last optimiser step went down."""
        return flat([p.grad if p.grad is not None else torch.zeros_like(p) for p in self.learner[role].parameters()])


def flat(tensors):
    return torch.cat([t.detach().flatten().double() for t in tensors])


def slope(value, module):
    """d value / d parameters of the module, as one vector."""
    found = torch.autograd.grad(value, list(module.parameters()), allow_unused=True)
    return flat([torch.zeros_like(p) if g is None else g for p, g in zip(module.parameters(), found)])


def same_rows(got, wanted, times, what, tolerance=CLOSE):
    """Every row of `got` is a row of `wanted`, and each of those occurs `times` times."""
    apart = torch.cdist(got.double(), wanted.double(), p=math.inf)
    expect(apart.min(1).values.max(), f"{what}: the greatest distance from what was recorded").at_most(tolerance)
    if times:
        alike = torch.cdist(wanted.double(), wanted.double(), p=math.inf) < tolerance
        expect((apart < tolerance).sum(0), f"{what}: how often each response was used").equals(times * alike.sum(1))


# ---------------------------------------------------------------- L2.08: old log-probabilities


@invariant("L2.08", home="course.rollout.collect")
def log_probabilities_are_recorded_while_sampling(collect, draw):
    """What is recorded is log p of the drawn tokens under the law they were drawn from, its temperature included; a later update changes nothing."""
    from course.rollout.collect import Sampling

    for temperature in (0.6, 1.0, 1.7):
        model = tiny(draw.number(0, 1000))
        before = copy.deepcopy(model)
        rollout = direct(collect)(
            model, draw.integers(3, VOCAB, 4, 2), group_size=2, sampling=Sampling(5, (END,), PAD, temperature),
            seed=draw.number(0, 1000), first_episode=draw.number(0, 50),
        )  # fmt: skip
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.2)  # the policy has been updated
        expect(rollout.group_id, "the groups").equals(torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        batch = rollout.batch
        recorded = rollout.samples.logprobs[:, : batch.tokens.shape[1] - 1]
        wanted = token_law(before, batch, temperature).detach()
        expect(recorded.double(), f"recorded log-probabilities at temperature {temperature}").close_to(wanted, rtol=CLOSE)


@invariant("L2.08", home="course.training.ppo")
def ppo_keeps_the_log_probabilities_of_the_rollout(ppo, draw):
    """In every epoch the old log-probabilities are those of the policy and temperature that sampled; only the new ones move."""
    from course.objectives.policy_gradient import ppo_actor_loss
    from course.training.ppo import PpoConfig

    for temperature in (0.7, 1.4):
        run = Watched(draw.number(0, 1000), temperature=temperature)

        def spy(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
            rows = [torch.where(action_mask, x.detach(), 0.0) for x in (logp_new, logp_old)]
            run.calls.append((len(run.batches) - 1, *rows, action_mask))
            return ppo_actor_loss(logp_new, logp_old, advantage, action_mask, clip_eps=clip_eps)

        run.ppo(direct(ppo), PpoConfig(beta=0.1, epochs=3, minibatches=2), steps=2, operators=run.operators(actor_loss=spy))
        for step in range(2):
            calls = [call for call in run.calls if call[0] == step]
            wanted = token_law(run.actors[step], run.batches[step], temperature).detach()
            old = torch.cat([call[2] for call in calls])
            same_rows(old, wanted, 3, f"old log-probabilities of step {step} at temperature {temperature}")
            first = (calls[0][1] - calls[0][2]).abs().max()
            expect(first, "the greatest difference of new and old before the first update").at_most(CLOSE)
            moved = max(float((call[1] - call[2]).abs().max()) for call in calls[1:])
            expect(moved, "the greatest difference of new and old after updates").at_least(1e-3)


@invariant("L2.08", home="course.training.grpo")
def grpo_keeps_the_log_probabilities_of_the_rollout(grpo, draw):
    """Whatever the epoch, the ratio is taken to the policy and temperature that sampled."""
    from course.objectives.aggregation import aggregate
    from course.training.grpo import GrpoConfig

    for temperature in (0.7, 1.4):
        run = Watched(draw.number(0, 1000), temperature=temperature, asked=4, critic=False)

        def spy(token_loss, mask, *, how, denominator=None):
            batch, sampled_by = run.batches[-1], run.actors[-1]
            now, then = (token_law(m, batch, temperature).detach() for m in (run.learner["actor"], sampled_by))
            wanted = torch.where(batch.action_mask[:, 1:], -(now - then).exp(), 0.0)
            run.calls.append((len(run.batches) - 1, torch.where(mask, token_loss.detach(), 0.0), wanted))
            return aggregate(token_loss, mask, how=how, denominator=denominator)

        # With advantage 1 and hardly a clip, a token's loss is minus its ratio.
        config = GrpoConfig(group_size=2, beta=0.0, how="token", clip_high=1e6, epochs=3, minibatches=2)
        ones = lambda rewards, group_id: torch.ones_like(rewards)  # noqa: E731
        run.grpo(direct(grpo), config, steps=2, advantages=ones, aggregate=spy)
        expect(len(run.calls), "optimiser steps").at_least(12)
        for number, (step, got, wanted) in enumerate(run.calls):
            same_rows(got, wanted, 0, f"minus the ratio, optimiser step {number}", tolerance=1e-3)
        spread = max(float((wanted[wanted != 0] + 1).abs().max()) for *_, wanted in run.calls)
        expect(spread, "the greatest distance of a ratio from 1 after updates").at_least(1e-2)


# ---------------------------------------------------------------- L2.10: value and entropy terms


class Prefix(nn.Module):
    """A critic that is a known function of all it has read: a value that stands one place off is another number."""

    def forward(self, ids, attention_mask):
        place = torch.arange(1, ids.shape[1] + 1)
        return ((ids + 1).double() * attention_mask * place.sqrt()).cumsum(1) / 50


@invariant("L2.10", home="course.training.ppo")
def the_value_is_read_before_the_action(experience_of, draw):
    """The value of an action is what the critic says of the tokens before it; with lambda 1 the advantage is the reward minus that."""
    from course.rollout.collect import Sampling, collect
    from course.training.ppo import PpoConfig

    seed = draw.number(0, 1000)
    run = Watched(seed)
    rollout = collect(run.learner["actor"], run.prompts(0), group_size=1, sampling=Sampling(5, (END,), PAD), seed=seed)
    rewards = draw.normal(run.asked, dtype=torch.float32)
    operators = run.operators(whiten=lambda x, mask: x)
    experience, _ = direct(experience_of)(
        Prefix(), run.reference, rollout, rewards, operators, PpoConfig(beta=0.0, gae_lambda=1.0)
    )
    batch = rollout.batch
    for row in range(run.asked):
        for t in batch.action_mask[row].nonzero().flatten().tolist():
            read = batch.tokens[row : row + 1, :t], batch.attention_mask[row : row + 1, :t]
            before = float(Prefix()(*read)[0, -1])
            expect(float(experience.values[row, t - 1]), f"the value before token {t}").close_to(before, rtol=1e-5)
            wanted = float(rewards[row]) - before
            expect(float(experience.advantages[row, t - 1]), f"the advantage of token {t}").close_to(wanted, rtol=1e-4)
            expect(float(experience.returns[row, t - 1]), f"the return of token {t}").close_to(float(rewards[row]), rtol=1e-4)


def no_actor_loss(logp_new, logp_old, advantage, action_mask, clip_eps=0.2):
    return 0.0 * torch.where(action_mask, logp_new, 0.0).sum()


@invariant("L2.10", home="course.training.ppo")
def entropy_and_value_terms_reach_their_own_parameters(ppo, draw):
    """The actor's gradient is that of the mean entropy of the laws its actions were drawn from, the critic's that of the squared error before each action."""
    from course.training.ppo import PpoConfig

    run = Watched(draw.number(0, 1000), temperature=draw.choice([0.7, 1.5]))
    config = PpoConfig(
        beta=0.0, epochs=1, minibatches=1, gae_lambda=1.0, critic_weight=0.7, entropy_weight=0.3, clip_norm=1e9,
        micro_batches=draw.number(1, 3),
    )  # fmt: skip
    run.ppo(direct(ppo), config, operators=run.operators(actor_loss=no_actor_loss))
    batch, actor, critic = run.batches[0], run.actors[0], run.critics[0]
    actions = batch.action_mask[:, 1:]
    logp = law(actor, batch, run.temperature)[:, :-1][actions]
    entropy = -(logp.exp() * logp).sum(-1).mean()
    expect(run.gradient("actor"), "the actor's gradient").close_to(slope(-0.3 * entropy, actor), rtol=1e-3)
    values = critic(batch.tokens, batch.attention_mask)[:, :-1]
    error = (values - run.rewards[0][:, None])[actions].double()
    expect(run.gradient("critic"), "the critic's gradient").close_to(slope(0.35 * error.square().mean(), critic), rtol=1e-3)


@invariant("L2.10", home="course.training.ppo")
def a_value_loss_alone_leaves_the_actor_alone(ppo, draw):
    """Without entropy and actor loss the actor keeps its bits while the critic moves; without a value loss it is the other way round."""
    from course.training.ppo import PpoConfig

    run = Watched(draw.number(0, 1000))
    operators = run.operators(actor_loss=no_actor_loss)
    run.ppo(direct(ppo), PpoConfig(beta=0.0, minibatches=1), steps=2, operators=operators)
    expect(digest(run.learner["actor"]) == digest(run.actors[0]), "the actor after a value loss").true("the same bits")
    expect(digest(run.learner["critic"]) != digest(run.critics[0]), "the critic after a value loss").true("moved")
    other = Watched(draw.number(0, 1000))
    silent = other.operators(critic_loss=lambda values, returns, mask: 0.0 * torch.where(mask, values, 0.0).sum())
    other.ppo(direct(ppo), PpoConfig(beta=0.0, minibatches=1, entropy_weight=0.1), steps=2, operators=silent)
    expect(digest(other.learner["critic"]) == digest(other.critics[0]), "the critic without a value loss").true("the same bits")
    expect(digest(other.learner["actor"]) != digest(other.actors[0]), "the actor with an entropy bonus").true("moved")


def mean_entropy(logits, mask):
    total = []
    for row, counted in zip(logits.reshape(-1, logits.shape[-1]).tolist(), mask.flatten().tolist()):
        if counted:
            top = max(row)
            weights = [math.exp(x - top) for x in row]
            whole = math.fsum(weights)
            total.append(-math.fsum(w / whole * math.log(w / whole) for w in weights if w > 0))
    return math.fsum(total) / len(total)


@invariant("L2.10", home="course.objectives.policy_gradient")
def the_entropy_is_over_actions_only(entropy_bonus, draw):
    """The mean over actions of -sum p log p in nats, whatever stands elsewhere, also with forbidden tokens."""
    logits, mask = draw.normal(4, 5, 6, scale=2), draw.mask(4, 5)
    logits[..., 1] = torch.where(draw.mask(4, 5), -math.inf, logits[..., 1])
    dirty = torch.where(mask[..., None], logits, math.nan)
    expect(entropy_bonus(dirty, mask), "the mean entropy").close_to(mean_entropy(logits, mask))
    expect(entropy_bonus(torch.zeros(2, 3, 7, dtype=torch.float64), draw.mask(2, 3)), "equal logits").close_to(math.log(7))


@invariant("L2.10", home="course.objectives.policy_gradient")
def the_entropy_has_a_gradient_at_actions(entropy_bonus, draw):
    """d/dz_v of an entropy H is -p_v (log p_v + H), divided by the number of actions; 0 elsewhere, finite at forbidden tokens."""
    logits, mask = draw.normal(3, 4, 5), draw.mask(3, 4)
    logits[0, :, 2] = -math.inf
    logp = logits.log_softmax(-1)
    p = logp.exp()
    inner = torch.where(p > 0, p * logp, 0.0)
    wanted = -(inner - p * inner.sum(-1, keepdim=True)) / mask.sum()
    wanted = torch.where(mask[..., None], wanted, 0.0)
    got = entropy_bonus.gradient(logits, mask)
    expect(got, "the gradient for the logits").finite()
    expect(got, "the gradient for the logits").close_to(wanted)


# ---------------------------------------------------------------- L2.12: the policy gradient


def two_step_policy(draw):
    """Tables of a policy over nine responses of two tokens, the log-probabilities of their tokens [9,2], and rewards [9]."""
    tables = [draw.normal(3).requires_grad_(True), draw.normal(3, 3).requires_grad_(True)]
    first, second = torch.arange(9) // 3, torch.arange(9) % 3
    logp = torch.stack([tables[0].log_softmax(0)[first], tables[1].log_softmax(1)[first, second]], 1)
    return tables, logp, draw.normal(9), first


@invariant("L2.12", home="course.objectives.policy_gradient")
def the_score_function_gradient_is_exact(policy_gradient_loss, draw):
    """Over all responses, each with its probability, the gradient is that of the enumerated expected reward; baselines that ignore the action change its variance only."""
    tables, logp, reward, first = two_step_policy(draw)
    chance = logp.detach().sum(1).exp()
    exact = torch.autograd.grad((logp.sum(1).exp() * reward).sum(), tables, retain_graph=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    by_prefix = draw.normal(3)[first]
    baselines = {
        "none": torch.zeros(9, 2, dtype=torch.float64),
        "a constant": torch.full((9, 2), 3.0, dtype=torch.float64),
        "another one for each prefix": torch.stack([torch.full((9,), 0.5, dtype=torch.float64), by_prefix], 1),
    }
    variances = {}
    for name, baseline in baselines.items():
        each = []
        for y in range(9):
            advantage = (reward[y] - baseline[y])[None]
            weight = policy_gradient_loss.gradient(logp[y : y + 1].detach(), advantage, mask, how="token", denominator=1)
            each.append(flat(torch.autograd.grad((logp[y : y + 1] * weight).sum(), tables, retain_graph=True)))
        gradients = torch.stack(each)
        mean = (chance[:, None] * gradients).sum(0)
        expect(-mean, f"the expected gradient, baseline: {name}").close_to(flat(exact), rtol=1e-6)
        variances[name] = float((chance[:, None] * (gradients - mean).square()).sum())
    expect(variances["a constant"] / variances["none"], "variance with a bad baseline over variance without").differs_from(
        1.0, by=0.05
    )


@invariant("L2.12", home="course.objectives.policy_gradient")
def advantages_are_constants_of_the_loss(policy_gradient_loss, draw):
    """The gradient reaches log-probabilities of actions only: none for the advantage, none where the mask is 0, whatever stands there."""
    logp, advantage, mask = -draw.uniform(3, 5), draw.normal(3, 5), draw.mask(3, 5)
    for how, count in (("token", mask.sum()), ("response", mask.sum(1, keepdim=True) * 3)):
        dirty = torch.where(mask, logp, math.nan), torch.where(mask, advantage, math.inf)
        got = policy_gradient_loss.gradient(*dirty, mask, how=how, wrt=(0, 1))
        expect(got[0], f"the gradient for logp ({how})").close_to(torch.where(mask, -advantage / count, 0.0))
        expect(got[1], f"the gradient for the advantage ({how})").equals(0.0)


SHARP = 3  # an actor whose gradient is long compared with its noise


def enumerated(actor, prompt, temperature, worth, vocab=VOCAB):
    """All responses of at most two tokens to a prompt: their log-probabilities [N] (with gradient) and rewards [N]."""
    from course.tasks.records import batch_of

    words = range(vocab)
    responses = [(END,)] + [(a, b) for a in words if a != END for b in words]
    batch = batch_of([(tuple(prompt.tolist()), r) for r in responses], PAD)
    return token_law(actor, batch, temperature).sum(1), worth(batch).double()


@invariant("L2.12", home="course.training.policy_gradient")
def the_sampled_gradient_is_the_enumerated_one(policy_gradient, draw):
    """Averaged over 8192 samples the update goes down the enumerated gradient, with and without a baseline, within five standard errors: a right loop fails once in a million draws."""
    from course.objectives.policy_gradient import policy_gradient_loss
    from course.training.policy_gradient import PolicyGradientConfig

    def loss(logp, advantage, mask, responses):
        return policy_gradient_loss(logp, advantage, mask, how="token", denominator=responses)

    def worth(batch):
        return ((batch.tokens * batch.action_mask).sum(1) - 6) / 3

    samples = 8192
    for baseline in (0.0, 1.0):
        # One actor, so that the power is known; only the noise is drawn.
        run = Watched(SHARP, temperature=1.3, asked=1, new_tokens=2, critic=False, worth=worth)
        run.seed = draw.number(0, 1000)
        config = PolicyGradientConfig(beta=0.0, group_size=samples, clip_norm=1e9)
        run.policy_gradient(direct(policy_gradient), config, advantages=lambda r, g, v: r - baseline, loss=loss)
        actor = run.actors[0]
        logp, reward = enumerated(actor, run.batches[0].tokens[0, :2], run.temperature, worth)
        chance = logp.detach().exp()
        expect(chance.sum(), "the sum of all responses' probabilities").close_to(1.0, rtol=1e-4)
        scores = torch.stack([flat(torch.autograd.grad(x, list(actor.parameters()), retain_graph=True)) for x in logp])
        each = (reward - baseline)[:, None] * scores
        exact = (chance[:, None] * each).sum(0)
        expect(exact, "the enumerated gradient with a baseline").close_to((chance * reward) @ scores, rtol=1e-3)
        error = ((chance[:, None] * (each - exact).square()).sum() / samples).sqrt()
        distance = (-run.gradient("actor") - exact).norm() / error
        expect(distance, f"distance from the enumerated gradient in standard errors, baseline {baseline}").at_most(5.0)
        expect(exact.norm() / error, "length of the enumerated gradient in standard errors").at_least(15.0)


# ---------------------------------------------------------------- L2.13: REINFORCE with a baseline is not PPO


def sum_over_tokens(logp, advantage, mask, responses):
    """REINFORCE for whole responses: minus the mean over responses of advantage times the log-probability of all tokens."""
    return -torch.where(mask, advantage * logp, 0.0).sum() / responses


def half_square(values, returns, mask):
    return (0.5 * (values - returns).square() * mask).sum() / mask.sum()


def first_values(critic, batch):
    """What the critic says of the prompt, before anything was sampled."""
    found = []
    for row in range(len(batch)):
        start = int(batch.action_mask[row].nonzero()[0])
        found.append(critic(batch.tokens[row : row + 1, :start], batch.attention_mask[row : row + 1, :start])[0, -1])
    return torch.stack(found)


def priced(run, beta, step=0):
    """Reward minus beta times the log-ratio to the reference over the whole response."""
    batch = run.batches[step]
    actor, reference = (token_law(m, batch, run.temperature).detach() for m in (run.actors[step], run.reference))
    return run.rewards[step] - beta * (actor - reference).sum(1)


@invariant("L2.13", home="course.training.policy_gradient")
def the_update_has_a_learned_baseline_and_a_price_of_kl(policy_gradient, draw):
    """The actor goes down -(reward - beta KL - V(prompt)) grad log p(response), the critic down its squared error at the prompt: A2C with one statement as one action."""
    from course.training.policy_gradient import PolicyGradientConfig

    beta, run = 0.2, Watched(draw.number(0, 1000), temperature=draw.choice([0.7, 1.4]))
    told = []

    def advantages(returns, group_id, values):
        told.append((returns, values))
        return returns - values

    config = PolicyGradientConfig(beta=beta, group_size=2, critic_weight=0.6, clip_norm=1e9)
    run.policy_gradient(
        direct(policy_gradient), config, advantages=advantages, loss=sum_over_tokens, critic_loss=half_square
    )
    batch, actor, critic = run.batches[0], run.actors[0], run.critics[0]
    returns, values = priced(run, beta), first_values(critic, batch)
    expect(told[0][0].double(), "the returns").close_to(returns.double(), rtol=CLOSE)
    expect(told[0][1].double(), "the baseline").close_to(values.detach().double(), rtol=CLOSE)
    whole = token_law(actor, batch, run.temperature).sum(1)  # one response is one action
    wanted = slope(-((returns - values.detach()) * whole).mean(), actor)
    expect(run.gradient("actor"), "the actor's gradient").close_to(wanted, rtol=1e-3)
    wanted = slope(0.6 * 0.5 * (first_values(critic, batch) - returns).square().mean(), critic)
    expect(run.gradient("critic"), "the critic's gradient").close_to(wanted, rtol=1e-3)


@invariant("L2.13", home="course.training.policy_gradient")
def there_is_no_ratio(policy_gradient, draw):
    """Also after updates on the same batch each response weighs its advantage and nothing else: no ratio to the policy that sampled, no clip."""
    from course.training.policy_gradient import PolicyGradientConfig

    run = Watched(draw.number(0, 1000), asked=9, lr=0.05)
    seen = []

    def loss(logp, advantage, mask, responses):
        seen.append((copy.deepcopy(run.learner["actor"]), advantage[:, 0].detach(), responses))
        return sum_over_tokens(logp, advantage, mask, responses)

    config = PolicyGradientConfig(beta=0.1, group_size=2, minibatches=3, clip_norm=1e9)
    run.policy_gradient(
        direct(policy_gradient), config, advantages=lambda r, g, v: r - v, loss=loss, critic_loss=half_square
    )
    batch = run.batches[0]
    credit = priced(run, 0.1) - first_values(run.critics[0], batch).detach()
    actor, given, responses = seen[-1]
    expect(len(seen), "optimiser steps").equals(3)
    expect(responses, "responses in the last step").equals(len(given))
    apart = (given[:, None].double() - credit[None]).abs()
    expect(apart.min(1).values.max(), "advantages in the last step, distance from those of the rollout").at_most(1e-3)
    rows = apart.argmin(1)
    now = token_law(actor, batch[rows], run.temperature).sum(1)
    then = token_law(run.actors[0], batch[rows], run.temperature).sum(1)
    expect((now - then).abs().max(), "how far the policy has moved (nats)").at_least(0.05)
    wanted = slope(-(credit[rows] * now).mean(), actor)
    expect(run.gradient("actor"), "the gradient of the last step").close_to(wanted, rtol=2e-3)


@invariant("L2.13", home="course.training.policy_gradient")
def the_baseline_learns(policy_gradient, draw):
    """With a constant reward and no price the critic's value of the prompt comes near that reward within 25 steps, in two seeds: an untrained one stays where it was."""
    from course.training.policy_gradient import PolicyGradientConfig

    for number in range(2):
        run = Watched(draw.number(0, 1000), lr=0.05, new_tokens=2, asked=4, worth=lambda batch: torch.full((len(batch),), 2.0))
        values = []

        def advantages(returns, group_id, values_now):
            values.append(values_now)
            return returns - values_now

        config = PolicyGradientConfig(beta=0.0, group_size=1)
        run.policy_gradient(
            direct(policy_gradient), config, steps=25, advantages=advantages, loss=sum_over_tokens, critic_loss=half_square
        )
        start, end = (float((2.0 - v).square().mean().sqrt()) for v in (values[0], values[-1]))
        expect(end / start, f"error of the baseline at the end over that at the start, run {number}").at_most(0.35)


@invariant("L2.13", home="course.objectives.policy_gradient")
def a_statement_may_be_one_action(policy_gradient_loss, draw):
    """Summed over tokens and divided by responses, the loss is that of a single action with the response's log-probability, value and gradient."""
    logp, mask, credit = -draw.uniform(4, 6, high=3.0), draw.mask(4, 6), draw.normal(4)
    whole = torch.where(mask, logp, 0.0).sum(1, keepdim=True)
    by_token = policy_gradient_loss(logp, credit[:, None].expand(4, 6), mask, how="token", denominator=4)
    by_statement = policy_gradient_loss(whole, credit[:, None], torch.ones(4, 1, dtype=torch.bool), how="token")
    wanted = -(credit * whole[:, 0]).mean()
    expect(by_token, "the loss over tokens").close_to(wanted)
    expect(by_statement, "the loss over statements").close_to(wanted)
    got = policy_gradient_loss.gradient(logp, credit[:, None].expand(4, 6).contiguous(), mask, how="token", denominator=4)
    expect(got, "the gradient for the tokens").close_to(torch.where(mask, -credit[:, None] / 4, 0.0))
    far = policy_gradient_loss(20 * whole, credit[:, None], torch.ones(4, 1, dtype=torch.bool), how="token")
    expect(far, "the loss of improbable statements: linear in log p").close_to(20 * wanted)
