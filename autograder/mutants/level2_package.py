"""Level 2: mistakes in the package's own functions. Each docstring says what went wrong."""

import copy
import math
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from autograder.framework import mutant
from course.accounting import costs
from course.credit import groups, steps
from course.evidence import sqrt_kl
from course.feedback import capability, refresh
from course.objectives import offline, policy_gradient as objectives
from course.rollout import collect as rollouts
from course.training import grpo as grpo_module, offline_q as offline_module, overoptimisation
from course.training import policy_gradient as pg_module, ppo as ppo_module, roles


@contextmanager
def altered(target, **names):
    """Other names in a module, or other entries in a dict, until the end of the block."""
    table = target if isinstance(target, dict) else vars(target)
    before = {name: table[name] for name in names}
    table.update(names)
    try:
        yield
    finally:
        table.update(before)


def rescored(model, rollout, temperature):
    """The rollout with log-probabilities that a model gives at a temperature."""
    from course.models.score import frozen_score

    s = rollout.samples
    logp = frozen_score(model, s.tokens, s.attention_mask, temperature)
    return replace(rollout, samples=replace(s, logprobs=torch.where(s.action_mask[:, 1:], logp, 0.0)))


# ---------------------------------------------------------------- L2.08: old log-probabilities


@mutant(of="collect", kills="L2.08")
def scores_at_temperature_one(model, prompts, *, sampling, **given):
    """This looks like tokens drawn at one temperature and scored at another: the ratio would not be 1 at the first update."""
    return rescored(model, rollouts.collect(model, prompts, sampling=sampling, **given), 1.0)


@mutant(of="collect", kills="L2.08")
def temperature_twice(model, prompts, *, sampling, **given):
    """This looks like a temperature that is applied to logits which it had already divided."""
    return rescored(model, rollouts.collect(model, prompts, sampling=sampling, **given), sampling.temperature**2)


@mutant(of="collect", kills="L2.08")
def one_place_early(model, prompts, **given):
    """This looks like log-probabilities one column beside their tokens."""
    drawn = rollouts.collect(model, prompts, **given)
    s = drawn.samples
    logp = torch.where(s.action_mask[:, 1:], s.logprobs.roll(1, 1), 0.0)
    return replace(drawn, samples=replace(s, logprobs=logp))


@mutant(of="collect", kills="L2.08")
def log_of_a_rounded_probability(model, prompts, **given):
    """This looks like probabilities kept in half precision before the logarithm: the ratio is off by parts in a thousand."""
    drawn = rollouts.collect(model, prompts, **given)
    s = drawn.samples
    logp = torch.where(s.action_mask[:, 1:], s.logprobs.exp().half().float().clamp(min=1e-7).log(), 0.0)
    return replace(drawn, samples=replace(s, logprobs=logp))


@mutant(of="collect", kills="L2.08")
def scored_when_needed(model, prompts, *, sampling, **given):
    """This looks like log-probabilities computed when they are asked for: by then the policy has been updated."""

    class Late(rollouts.Rollout):
        def __getattribute__(self, name):
            if name == "samples":
                plain = rollouts.Rollout(object.__getattribute__(self, "samples"), object.__getattribute__(self, "group_id"))
                return rescored(model, plain, sampling.temperature).samples
            return object.__getattribute__(self, name)

    drawn = rollouts.collect(model, prompts, sampling=sampling, **given)
    return Late(drawn.samples, drawn.group_id)


@mutant(of="ppo", kills="L2.08")
def ratio_to_the_present_policy(*args, operators, **given):
    """This looks like old log-probabilities recomputed before each step: the ratio is always 1 and nothing is ever clipped."""

    def actor_loss(new, old, advantage, mask, clip_eps):
        return operators.actor_loss(new, new.detach(), advantage, mask, clip_eps=clip_eps)

    yield from ppo_module.ppo(*args, operators=replace(operators, actor_loss=actor_loss), **given)


@mutant(of="ppo", kills="L2.08")
def recomputed_every_epoch(learner, *args, operators, config, **given):
    """This looks like old log-probabilities refreshed at the start of each epoch: only the first epoch has the rollout's."""
    state = {"call": 0, "moved": 0.0}

    def actor_loss(new, old, advantage, mask, clip_eps):
        epoch = state["call"] // config.minibatches % config.epochs
        state["call"] += 1
        kept = old if epoch == 0 else torch.where(mask, new.detach(), 0.0)
        return operators.actor_loss(new, kept, advantage, mask, clip_eps=clip_eps)

    yield from ppo_module.ppo(learner, *args, operators=replace(operators, actor_loss=actor_loss), config=config, **given)


def _ppo_with(recorded):
    """ppo on rollouts whose log-probabilities are recorded(learner, reference, model, rollout, sampling)."""

    def loop(learner, reference, *args, sampling, **given):
        def collect(model, prompts, **asked):
            drawn = rollouts.collect(model, prompts, **asked)
            return recorded(learner, reference, model, drawn, sampling)

        yield from ppo_module.ppo(learner, reference, *args, sampling=sampling, collect=collect, **given)

    return loop


@mutant(of="ppo", kills="L2.08")
def sampled_warm_scored_cold(*args, **given):
    """This looks like sampling at one temperature and old log-probabilities at temperature 1."""
    yield from _ppo_with(lambda learner, reference, model, drawn, s: rescored(model, drawn, 1.0))(*args, **given)


@mutant(of="ppo", kills="L2.08")
def reference_for_the_old_policy(*args, **given):
    """This looks like the reference's log-probabilities in place of the sampling policy's: the ratio is taken to the wrong law."""
    yield from _ppo_with(lambda learner, reference, model, drawn, s: rescored(reference, drawn, s.temperature))(*args, **given)


@mutant(of="grpo", kills="L2.08")
def group_ratio_to_the_present_policy(*args, **given):
    """This looks like old log-probabilities recomputed before each step: the ratio is always 1."""
    plain = grpo_module.clipped_token_loss

    def present(new, old, advantage, **bounds):
        return plain(new, new.detach(), advantage, **bounds)

    with altered(grpo_module, clipped_token_loss=present):
        yield from grpo_module.grpo(*args, **given)


@mutant(of="grpo", kills="L2.08")
def group_scored_cold(*args, **given):
    """This looks like old log-probabilities at temperature 1, whatever the temperature of sampling."""

    def collect(model, prompts, **asked):
        return rescored(model, rollouts.collect(model, prompts, **asked), 1.0)

    yield from grpo_module.grpo(*args, collect=collect, **given)


@mutant(of="grpo", kills="L2.08")
def group_trained_cold(*args, sampling, **given):
    """This looks like new log-probabilities at temperature 1 and old ones at the temperature of sampling."""
    plain = grpo_module.score
    with altered(grpo_module, score=lambda model, ids, mask, temperature: plain(model, ids, mask)):
        yield from grpo_module.grpo(*args, sampling=sampling, **given)


# ---------------------------------------------------------------- L2.10: value and entropy terms


class _Moved(nn.Module):
    """A critic whose values stand `by` columns too late."""

    def __init__(self, critic, by):
        super().__init__()
        self.critic, self.by = critic, by

    def forward(self, ids, attention_mask):
        return self.critic(ids, attention_mask).roll(self.by, 1)


@mutant(of="experience_of", kills="L2.10")
def value_after_the_action(critic, *rest):
    """This looks like the value behind the action: it has seen the token whose advantage it is to measure."""
    return ppo_module.experience_of(_Moved(critic, -1), *rest)


@mutant(of="experience_of", kills="L2.10")
def value_before_the_last_action(critic, *rest):
    """This looks like a value one action too early."""
    return ppo_module.experience_of(_Moved(critic, 1), *rest)


@mutant(of="experience_of", kills="L2.10")
def one_value_for_a_response(critic, *rest):
    """This looks like the value of the prompt for every token: what was said since is not in it."""

    class First(nn.Module):
        def forward(self, ids, attention_mask):
            return critic(ids, attention_mask)[:, 1:2].expand(ids.shape)

    return ppo_module.experience_of(First(), *rest)


def _ppo_entropy(change):
    """ppo with the entropy bonus change(original, logits, mask)."""

    def loop(*args, **given):
        plain = ppo_module.entropy_bonus
        with altered(ppo_module, entropy_bonus=lambda logits, mask: change(plain, logits, mask)):
            yield from ppo_module.ppo(*args, **given)

    return loop


@mutant(of="ppo", kills="L2.10")
def entropy_of_the_prompt_too(*args, **given):
    """This looks like an entropy over prompt and padding as well: the policy is asked to be undecided about what it never says."""
    yield from _ppo_entropy(lambda plain, logits, mask: plain(logits, torch.ones_like(mask)))(*args, **given)


@mutant(of="ppo", kills="L2.10")
def entropy_one_place_late(*args, **given):
    """This looks like the entropy behind each action: the law of the first action is left out and one behind the end is in."""

    def change(plain, logits, mask):
        return plain(logits, torch.nn.functional.pad(mask, (1, 0))[:, :-1])

    yield from _ppo_entropy(change)(*args, **given)


@mutant(of="ppo", kills="L2.10")
def entropy_is_punished(*args, **given):
    """This looks like an entropy bonus with the wrong sign."""
    yield from _ppo_entropy(lambda plain, logits, mask: -plain(logits, mask))(*args, **given)


@mutant(of="ppo", kills="L2.10")
def entropy_at_temperature_one(*args, sampling, **given):
    """This looks like the entropy of another law than the one that is sampled from: the temperature is missing."""

    def change(plain, logits, mask):
        return plain(logits * sampling.temperature, mask)

    yield from _ppo_entropy(change)(*args, sampling=sampling, **given)


@mutant(of="ppo", kills="L2.10")
def fits_the_value_after_the_action(*args, operators, **given):
    """This looks like a critic that is fitted one column late: it learns the return of an action it has already seen."""

    def critic_loss(values, returns, mask):
        return operators.critic_loss(values.roll(-1, 1), returns, mask)

    yield from ppo_module.ppo(*args, operators=replace(operators, critic_loss=critic_loss), **given)


@mutant(of="ppo", kills="L2.10")
def fits_prompt_and_padding(*args, operators, **given):
    """This looks like a critic loss without its mask: values at the prompt are pulled towards 0."""

    def critic_loss(values, returns, mask):
        return operators.critic_loss(values, returns, torch.ones_like(mask))

    yield from ppo_module.ppo(*args, operators=replace(operators, critic_loss=critic_loss), **given)


@mutant(of="ppo", kills="L2.10")
def critic_on_the_actors_trunk(learner, *args, **given):
    """This looks like a critic that reads the actor's trunk and sends its gradient there: the policy is pulled by the value loss."""
    with altered(learner.modules["critic"]._modules, trunk=learner.modules["actor"]):
        yield from ppo_module.ppo(learner, *args, **given)


@mutant(of="entropy_bonus", kills="L2.10")
def entropy_over_all_places(logits, action_mask):
    """This looks like the entropy divided by all places, not by the number of actions."""
    return objectives.entropy_bonus(logits, action_mask) * action_mask.sum() / action_mask.numel()


@mutant(of="entropy_bonus", kills="L2.10")
def entropy_in_bits(logits, action_mask):
    """This looks like entropy in bits; everything else here is in nats."""
    return objectives.entropy_bonus(logits, action_mask) / math.log(2)


@mutant(of="entropy_bonus", kills="L2.10")
def forbidden_tokens_spoil_it(logits, action_mask):
    """This looks like 0 log 0 computed as it stands: one forbidden token makes the loss NaN."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)[action_mask.bool()].mean()


@mutant(of="entropy_bonus", kills="L2.10")
def surprise_of_the_likeliest(logits, action_mask):
    """This looks like minus log p of the most likely token: that is no entropy."""
    return -logits.log_softmax(-1).amax(-1)[action_mask.bool()].mean()


# ---------------------------------------------------------------- L2.12: the policy gradient


@mutant(of="policy_gradient_loss", kills=("L2.12", "L2.13"))
def probability_for_its_logarithm(logp, advantage, action_mask, *, how, denominator=None):
    """This looks like the gradient of p in place of log p: responses count by the square of their probability."""
    return objectives.policy_gradient_loss(logp.exp(), advantage, action_mask, how=how, denominator=denominator)


@mutant(of="policy_gradient_loss", kills=("L2.12", "L2.13"))
def uphill(logp, advantage, action_mask, **given):
    """This looks like a sign error: the loss falls when bad responses become likely."""
    return -objectives.policy_gradient_loss(logp, advantage, action_mask, **given)


@mutant(of="policy_gradient_loss", kills=("L2.12", "L2.13"))
def divides_by_length_again(logp, advantage, action_mask, *, how, denominator=None):
    """This looks like a mean over the tokens of each response where a sum is asked for: long responses count too little."""
    length = action_mask.sum(1, keepdim=True).clamp(min=1)
    return objectives.policy_gradient_loss(logp / length, advantage, action_mask, how=how, denominator=denominator)


@mutant(of="policy_gradient_loss", kills=("L2.12", "L2.13"))
def whitens_in_passing(logp, advantage, action_mask, **given):
    """This looks like advantages divided by their spread inside the loss: the gradient is no longer that of expected reward."""
    inside = advantage[action_mask.bool()]
    scale = inside.std(unbiased=False) if inside.numel() else 1.0
    return objectives.policy_gradient_loss(logp, advantage / (scale + 1e-8), action_mask, **given)


@mutant(of="policy_gradient_loss", kills="L2.12")
def gradient_through_the_advantage(logp, advantage, action_mask, *, how, denominator=None):
    """This looks like an advantage that is not a constant: the critic would be trained to make advantages great."""
    mask = action_mask.bool()
    each = -torch.where(mask, advantage, 0.0) * torch.where(mask, logp, 0.0)
    if how == "token":
        return each.sum() / (denominator or mask.sum())
    return (each.sum(1) / mask.sum(1).clamp(min=1)).sum() / (denominator or mask.any(1).sum())


def _pg_loss(change):
    """policy_gradient with the loss change(loss, logp, advantage, mask, responses)."""

    def loop(*args, loss, **given):
        yield from pg_module.policy_gradient(*args, loss=lambda *of: change(loss, *of), **given)

    return loop


@mutant(of="policy_gradient", kills="L2.12")
def mean_over_each_response(*args, **given):
    """This looks like the mean log-probability of a response in place of the sum: short responses are pushed harder."""

    def change(loss, logp, advantage, mask, responses):
        return loss(logp, advantage / mask.sum(1, keepdim=True), mask, responses)

    yield from _pg_loss(change)(*args, **given)


@mutant(of="policy_gradient", kills="L2.12")
def last_token_only(*args, **given):
    """This looks like credit for the last token alone: the tokens before it earned the reward too."""

    def change(loss, logp, advantage, mask, responses):
        last = mask & ~torch.nn.functional.pad(mask, (0, 1))[:, 1:]
        return loss(logp, advantage, last, responses)

    yield from _pg_loss(change)(*args, **given)


@mutant(of="policy_gradient", kills="L2.12")
def trained_at_temperature_one(*args, **given):
    """This looks like samples of one temperature and the score function of another: their mean is not 0."""
    plain = pg_module.score
    with altered(pg_module, score=lambda model, ids, mask, temperature: plain(model, ids, mask)):
        yield from pg_module.policy_gradient(*args, **given)


@mutant(of="policy_gradient", kills="L2.12")
def baseline_that_knows_the_action(*args, advantages, **given):
    """This looks like a baseline that contains the response's own reward: it takes away half of the gradient."""
    yield from pg_module.policy_gradient(*args, advantages=lambda r, g, v: advantages(r, g, v) - 0.5 * r, **given)


@mutant(of="policy_gradient", kills="L2.12")
def good_samples_only(*args, advantages, **given):
    """This looks like bad responses left out: that is imitation of the better half, not the policy gradient."""
    yield from pg_module.policy_gradient(*args, advantages=lambda r, g, v: advantages(r, g, v).clamp(min=0), **given)


# ---------------------------------------------------------------- L2.13: REINFORCE with a baseline is not PPO


@mutant(of="policy_gradient", kills="L2.13")
def a_ratio_creeps_in(learner, reference, *args, loss, **given):
    """This looks like a ratio to the policy that sampled: whole-response A2C has none, and so has the update of RLAIF."""
    first = {}

    def weighed(logp, advantage, mask, responses):
        now = torch.where(mask, logp, 0.0).sum(1, keepdim=True)
        rows = advantage[:, 0].tolist()
        then = [first.get(a) for a in rows]
        old = torch.stack([torch.as_tensor(x) if x is not None else n.detach()[0] for x, n in zip(then, now)])[:, None]
        return loss(logp, advantage * (now - old).detach().exp(), mask, responses)

    def advantages(returns, group_id, values):
        found = given["advantages"](returns, group_id, values)
        first.update(zip(found.tolist(), recorded[-1].tolist()))
        return found

    recorded = []

    def collect(model, prompts, **asked):
        drawn = rollouts.collect(model, prompts, **asked)
        recorded.append(drawn.samples.logprobs.sum(1))
        return drawn

    with altered(pg_module, collect=collect):
        yield from pg_module.policy_gradient(learner, reference, *args, loss=weighed, **{**given, "advantages": advantages})


@mutant(of="policy_gradient", kills="L2.13")
def mean_of_the_batch_for_a_baseline(*args, advantages, **given):
    """This looks like the batch's mean in place of the learned value: the critic is trained and never asked."""

    def change(returns, group_id, values):
        return advantages(returns, group_id, torch.full_like(values, float(returns.mean())))

    yield from pg_module.policy_gradient(*args, advantages=change, **given)


@mutant(of="policy_gradient", kills="L2.13")
def whitened_advantages(*args, advantages, **given):
    """This looks like PPO's whitening: the plain estimator has no such step."""

    def change(returns, group_id, values):
        a = advantages(returns, group_id, values)
        return (a - a.mean()) / (a.std(unbiased=False) + 1e-8)

    yield from pg_module.policy_gradient(*args, advantages=change, **given)


@mutant(of="policy_gradient", kills="L2.13")
def without_the_price_of_kl(*args, config, **given):
    """This looks like an update without its KL term."""
    yield from pg_module.policy_gradient(*args, config=replace(config, beta=0.0), **given)


@mutant(of="policy_gradient", kills="L2.13")
def paid_for_distance(*args, config, **given):
    """This looks like a KL term with the wrong sign: the policy is paid for leaving its reference."""
    yield from pg_module.policy_gradient(*args, config=replace(config, beta=-config.beta), **given)


@mutant(of="policy_gradient", kills="L2.13")
def value_of_the_whole_response(*args, **given):
    """This looks like a baseline read after the response: it depends on the action and biases the gradient."""

    def value(critic, batch):
        last = batch.attention_mask.sum(1) - 1
        return critic(batch.tokens, batch.attention_mask).gather(1, last[:, None])[:, 0]

    with altered(pg_module, _prompt_value=value):
        yield from pg_module.policy_gradient(*args, **given)


@mutant(of="policy_gradient", kills="L2.13")
def the_critic_is_not_trained(*args, config, **given):
    """This looks like a baseline that never learns: its loss does not count."""
    yield from pg_module.policy_gradient(*args, config=replace(config, critic_weight=0.0), **given)


# ---------------------------------------------------------------- L2.15: outcome and process supervision


@mutant(of="outcome_advantages", kills="L2.15")
def shared_out_over_tokens(advantage, mask):
    """This looks like the advantage divided among the tokens: outcome supervision repeats it."""
    return steps.outcome_advantages(advantage / mask.sum(1), mask)


@mutant(of="outcome_advantages", kills="L2.15")
def on_the_last_token(advantage, mask):
    """This looks like the advantage on the last token alone."""
    found = steps.outcome_advantages(advantage, mask)
    later = mask.bool().flip(1).cumsum(1).flip(1)
    return torch.where(later == 1, found, 0.0)


@mutant(of="outcome_advantages", kills="L2.15")
def on_the_prompt_as_well(advantage, mask):
    """This looks like an advantage at every place: prompt and padding take no part."""
    return steps.outcome_advantages(advantage, torch.ones_like(mask))


def _process(step_rewards, step_ends, group_id, mask, scale, *, normalise=None, reach=lambda t, end: end >= t):
    present = step_ends >= 0
    z = torch.zeros_like(step_rewards)
    if normalise is None:
        inside = groups.group_relative_advantages(
            step_rewards[present], group_id[:, None].expand_as(step_ends)[present], scale=scale
        )
        z[present] = inside
    else:
        z = normalise(step_rewards, present)
    out = torch.zeros(mask.shape, dtype=z.dtype)
    for b in range(len(mask)):
        for t in range(mask.shape[1]):
            if mask[b, t]:
                out[b, t] = sum(z[b, k] for k in range(z.shape[1]) if present[b, k] and reach(t, int(step_ends[b, k])))
    return out


@mutant(of="process_advantages", kills="L2.15")
def steps_that_ended_before(step_rewards, step_ends, group_id, mask, *, scale):
    """This looks like tokens that get the steps before them: a token is responsible for what comes after it."""
    return _process(step_rewards, step_ends, group_id, mask, scale, reach=lambda t, end: end <= t)


@mutant(of="process_advantages", kills="L2.15")
def strictly_after(step_rewards, step_ends, group_id, mask, *, scale):
    """This looks like a step whose own last token is left out: "at or after" is asked for."""
    return _process(step_rewards, step_ends, group_id, mask, scale, reach=lambda t, end: end > t)


@mutant(of="process_advantages", kills="L2.15")
def raw_step_rewards(step_rewards, step_ends, group_id, mask, *, scale):
    """This looks like step rewards that are not normalised within the group."""
    return _process(step_rewards, step_ends, group_id, mask, scale, normalise=lambda r, present: torch.where(present, r, 0.0))


@mutant(of="process_advantages", kills="L2.15")
def normalised_in_each_response(step_rewards, step_ends, group_id, mask, *, scale):
    """This looks like steps compared inside their own response: a bad response with even steps would look average."""
    own = torch.arange(len(mask))
    return steps.process_advantages(step_rewards, step_ends, own, mask, scale=scale)


@mutant(of="process_advantages", kills="L2.15")
def absent_steps_count_as_zero(step_rewards, step_ends, group_id, mask, *, scale):
    """This looks like missing steps with reward 0 in the group's mean."""
    filled = torch.where(step_ends >= 0, step_rewards, 0.0)
    flat_ids = group_id[:, None].expand_as(step_ends).reshape(-1)
    z = groups.group_relative_advantages(filled.reshape(-1), flat_ids, scale=scale).view_as(filled)
    return _process(step_rewards, step_ends, group_id, mask, scale, normalise=lambda r, present: z)


# ---------------------------------------------------------------- L2.16: DAPO's four switches


@mutant(of="grpo", kills="L2.16")
def both_bounds_go_up(*args, config, **given):
    """This looks like a clip that is widened on both sides: clip-higher leaves the lower bound where it was."""
    yield from grpo_module.grpo(*args, config=replace(config, clip_low=config.clip_high), **given)


@mutant(of="grpo", kills="L2.16")
def clip_higher_needs_token_level(*args, config, **given):
    """This looks like clip-higher that works with the token-level loss only: each switch can be turned alone."""
    high = config.clip_high if config.how == "token" else config.clip_low
    yield from grpo_module.grpo(*args, config=replace(config, clip_high=high), **given)


@mutant(of="grpo", kills="L2.16")
def token_level_with_dynamic_sampling(*args, config, **given):
    """This looks like dynamic sampling that turns on the token-level loss as well."""
    how = "token" if config.dynamic_sampling else config.how
    yield from grpo_module.grpo(*args, config=replace(config, how=how), **given)


@mutant(of="grpo", kills="L2.16")
def always_dynamic(*args, config, **given):
    """This looks like dynamic sampling that cannot be turned off."""
    yield from grpo_module.grpo(*args, config=replace(config, dynamic_sampling=True), **given)


@mutant(of="grpo", kills="L2.16")
def overlong_at_full_price(*args, config, **given):
    """This looks like a shaping whose weight is not used."""
    yield from grpo_module.grpo(*args, config=replace(config, overlong_weight=1.0), **given)


@mutant(of="grpo", kills="L2.16")
def overlong_after_credit(*args, overlong=None, config, advantages, **given):
    """This looks like a length penalty in the rewards that reach the group's mean with the wrong sign: long responses are paid."""
    turned = None if overlong is None else lambda *of: -overlong(*of)
    yield from grpo_module.grpo(*args, overlong=turned, config=config, advantages=advantages, **given)


@mutant(of="grpo", kills="L2.16")
def divides_by_the_sampled_batch(*args, aggregate, **given):
    """This looks like a divisor of ten: it must be the number of tokens, or responses, that are trained on."""

    def change(token_loss, mask, *, how, denominator=None):
        return aggregate(token_loss, mask, how=how, denominator=10 * (denominator or 1))

    yield from grpo_module.grpo(*args, aggregate=change, **given)


@mutant(of="grpo", kills="L2.16")
def dropped_groups_off_the_record(*args, **given):
    """This looks like dropped groups that nobody hears of: the success rate seems to be one over all prompts."""
    for record in grpo_module.grpo(*args, **given):
        yield replace(record, dropped_groups=0)


@mutant(of="grpo", kills="L2.16")
def kept_groups_only_on_the_bill(*args, config, **given):
    """This looks like an account of the groups that were kept: the dropped ones were sampled and judged too."""
    for record in grpo_module.grpo(*args, config=config, **given):
        yield replace(record, sampled=record.trained // config.epochs, judged=record.trained // config.epochs)


@mutant(of="informative_groups", kills="L2.16")
def hard_groups_only(rewards, group_id):
    """This looks like a filter that drops what nobody solved and keeps what everybody solved."""
    found = groups.informative_groups(rewards, group_id)
    keep = found.keep | (rewards > rewards.mean())
    return replace(found, keep=keep, kept=max(found.kept, 1)) if found.kept else found


@mutant(of="informative_groups", kills="L2.16")
def samples_not_groups(rewards, group_id):
    """This looks like single samples dropped from a group: a group stays or goes as a whole."""
    found = groups.informative_groups(rewards, group_id)
    middle = torch.stack([rewards[group_id == g].mean() for g in group_id])
    return replace(found, keep=found.keep & (rewards != middle) & (rewards >= middle))


@mutant(of="informative_groups", kills="L2.16")
def the_law_is_said_to_stay(rewards, group_id):
    """This looks like a report that says nothing has changed: the prompts that are left are other prompts."""
    return replace(groups.informative_groups(rewards, group_id), total_variation=0.0)


@mutant(of="informative_groups", kills="L2.16")
def mean_of_what_is_left(rewards, group_id):
    """This looks like the kept groups' mean reported as that of all."""
    found = groups.informative_groups(rewards, group_id)
    return replace(found, mean_reward=found.mean_reward_kept if found.kept else found.mean_reward)


# ---------------------------------------------------------------- L2.17: four networks, four roles


def _ppo_then(change):
    """ppo that does change(learner, reference, reward) after every step."""

    def loop(learner, reference, reward, *args, **given):
        for record in ppo_module.ppo(learner, reference, reward, *args, **given):
            with torch.no_grad():
                change(learner, reference, reward)
            yield record

    return loop


@mutant(of="ppo", kills="L2.17")
def reference_follows(*args, **given):
    """This looks like a reference that follows the actor: the KL is measured from where the policy was a moment ago."""

    def change(learner, reference, reward):
        for mine, other in zip(reference.parameters(), learner["actor"].parameters()):
            mine.lerp_(other, 0.01)

    yield from _ppo_then(change)(*args, **given)


@mutant(of="ppo", kills="L2.17")
def weight_decay_on_everything(*args, **given):
    """This looks like an optimiser that holds all four networks: its weight decay moves the frozen ones."""

    def change(learner, reference, reward):
        for module in (reference, reward):
            for weight in module.parameters() if isinstance(module, nn.Module) else ():
                weight.mul_(1 - 1e-5)

    yield from _ppo_then(change)(*args, **given)


@mutant(of="ppo", kills="L2.17")
def reward_model_in_training_mode(learner, reference, reward, *args, **given):
    """This looks like a reward model that is left in training mode: dropout and running means are at work in it."""
    read = reward.forward if isinstance(reward, nn.Module) else reward

    def noisy(batch):
        if isinstance(reward, nn.Module):
            reward.train()
        with torch.no_grad():
            return read(batch)

    yield from ppo_module.ppo(learner, reference, noisy, *args, **given)


@mutant(of="ppo", kills="L2.17")
def reference_in_training_mode(*args, **given):
    """This looks like a reference that is read in training mode: with dropout it would be another law each time."""
    from course.models.score import score

    def plain(reference, batch, temperature=1.0):
        with torch.no_grad():
            return torch.where(batch.action_mask[:, 1:], score(reference, batch.tokens, batch.attention_mask, temperature), 0.0)

    with altered(ppo_module, reference_logprobs=plain):
        yield from ppo_module.ppo(*args, **given)


@mutant(of="ppo", kills="L2.17")
def the_critic_stays(*args, config, **given):
    """This looks like a critic that is never trained: it is one of the two that are."""
    yield from ppo_module.ppo(*args, config=replace(config, critic_weight=0.0), **given)


@mutant(of="training_bytes", kills="L2.17")
def without_master_weights(trained, frozen=0):
    """This looks like 16 bytes: the gradient or the master copy is only half there."""
    return 16 * int(trained) + 2 * int(frozen)


@mutant(of="training_bytes", kills="L2.17")
def everything_is_trained(trained, frozen=0):
    """This looks like optimiser states for frozen models: they have none."""
    return 18 * int(trained + frozen)


@mutant(of="training_bytes", kills="L2.17")
def frozen_in_single_precision(trained, frozen=0):
    """This looks like 4 bytes for a frozen parameter: in half precision it takes 2."""
    return 18 * int(trained) + 4 * int(frozen)


@mutant(of="training_bytes", kills="L2.17")
def frozen_models_are_free(trained, frozen=0):
    """This looks like an account without the frozen models: they are in memory too."""
    return costs.training_bytes(trained)


# ---------------------------------------------------------------- L2.18: reward against the square root of KL


def _points(kl, reward):
    return torch.as_tensor(kl, dtype=torch.float64), torch.as_tensor(reward, dtype=torch.float64)


@mutant(of="fit_sqrt_kl", kills="L2.18")
def against_kl_itself(kl, reward):
    """This looks like a line in KL: the observation is about its square root."""
    x, y = _points(kl, reward)
    return sqrt_kl.fit_sqrt_kl(x.square(), y)


@mutant(of="fit_sqrt_kl", kills="L2.18")
def through_the_origin(kl, reward):
    """This looks like a line without an intercept: the reference's own reward is not 0."""
    fit = sqrt_kl.fit_sqrt_kl(kl, reward)
    x, y = _points(kl, reward)
    return replace(fit, a=float((x.sqrt() * y).sum() / x.sum()), b=0.0)


@mutant(of="fit_sqrt_kl", kills="L2.18")
def divides_by_n(kl, reward):
    """This looks like a residual variance divided by n: two degrees of freedom went into the line."""
    fit = sqrt_kl.fit_sqrt_kl(kl, reward)
    small = math.sqrt((fit.points - 2) / fit.points)
    return replace(fit, a_error=fit.a_error * small, b_error=fit.b_error * small, residual=fit.residual * small)


@mutant(of="fit_sqrt_kl", kills="L2.18")
def without_an_error(kl, reward):
    """This looks like a line without its error: it is an observation and needs one."""
    return replace(sqrt_kl.fit_sqrt_kl(kl, reward), a_error=0.0, b_error=0.0)


@mutant(of="fit_sqrt_kl", kills="L2.18")
def kl_on_reward(kl, reward):
    """This looks like the regression turned round: 1 / slope of sqrt(KL) on reward is another line."""
    fit = sqrt_kl.fit_sqrt_kl(kl, reward)
    x, y = _points(kl, reward)
    x = x.sqrt()
    a = float((y - y.mean()).square().sum() / ((x - x.mean()) * (y - y.mean())).sum())
    return replace(fit, a=a, b=float(y.mean() - a * x.mean()))


@mutant(of="fit_sqrt_kl", kills="L2.18")
def takes_what_it_gets(kl, reward):
    """This looks like negative KL pushed up to 0 in silence: the points are then not the run's own."""
    x, y = _points(kl, reward)
    return sqrt_kl.fit_sqrt_kl(x.clamp(min=0), y)


# ---------------------------------------------------------------- L2.19: offline values


@mutant(of="td_target", kills="L2.19")
def bootstraps_for_ever(reward, next_value, terminated, gamma):
    """This looks like a bootstrap past the terminal: what stands behind it is no state of the episode."""
    return (reward + gamma * next_value).detach()


@mutant(of="td_target", kills="L2.19")
def multiplies_by_the_flag(reward, next_value, terminated, gamma):
    """This looks like (1 - done) * next value: where that is NaN, the product is NaN too."""
    return (reward + gamma * (1 - terminated.to(reward.dtype)) * next_value).detach()


@mutant(of="td_target", kills="L2.19")
def flag_the_wrong_way_round(reward, next_value, terminated, gamma):
    """This looks like a flag that is read as "goes on"."""
    return offline.td_target(reward, torch.nan_to_num(next_value), ~terminated.bool(), gamma)


@mutant(of="td_target", kills="L2.19")
def target_with_gradient(reward, next_value, terminated, gamma):
    """This looks like a target that is not a constant: the next value is pulled towards this one."""
    return torch.where(terminated.bool(), reward, reward + gamma * torch.where(terminated.bool(), 0.0, next_value))


@mutant(of="cql_penalty", kills="L2.19")
def lifts_what_is_absent(q, action, mask):
    """This looks like the penalty with the wrong sign: what the data lack is valued higher."""
    return -offline.cql_penalty(q, action, mask)


@mutant(of="cql_penalty", kills="L2.19")
def presses_everything(q, action, mask):
    """This looks like a penalty without the recorded action's own value: all actions are pushed down alike."""
    rows = q[mask.bool()]
    return rows.logsumexp(-1).mean()


@mutant(of="cql_penalty", kills="L2.19")
def greatest_for_log_sum_exp(q, action, mask):
    """This looks like the maximum in place of log-sum-exp: all actions but one have no gradient."""
    rows, taken = q[mask.bool()], action[mask.bool()]
    return (rows.amax(-1) - rows.gather(-1, taken[:, None])[:, 0]).mean()


def _ilql(q, slow, v, after, action, reward, ended, mask, *, gamma, tau, **changed):
    parts = offline.ilql_losses(q, slow, v, after, action, reward, ended, mask, gamma=gamma, tau=tau)
    return replace(parts, **{name: make(parts) for name, make in changed.items()})


@mutant(of="ilql_losses", kills="L2.19")
def expectile_upside_down(q, slow, v, after, action, reward, ended, mask, *, gamma, tau):
    """This looks like an expectile that leans towards the worse actions."""
    return _ilql(q, slow, v, after, action, reward, ended, mask, gamma=gamma, tau=1 - tau)


@mutant(of="ilql_losses", kills="L2.19")
def values_follow_the_fast_copy(q, slow, v, after, action, reward, ended, mask, *, gamma, tau):
    """This looks like a value that is fitted to the Q in training, with a gradient into it, and not to the slow copy."""

    def value(parts):
        taken = q.gather(-1, action[..., None])[..., 0]
        return offline.expectile_loss(taken - v, tau, mask)

    return _ilql(q, slow, v, after, action, reward, ended, mask, gamma=gamma, tau=tau, value=value)


@mutant(of="ilql_losses", kills="L2.19")
def past_the_end(q, slow, v, after, action, reward, ended, mask, *, gamma, tau):
    """This looks like a target that goes on behind the last action."""
    never = torch.zeros_like(ended)
    return _ilql(q, slow, v, torch.nan_to_num(after, nan=1.0), action, reward, never, mask, gamma=gamma, tau=tau)


@mutant(of="offline_q", kills="L2.19")
def penalty_switched_off(*args, config, **given):
    """This looks like a conservative penalty that is computed, reported and not used."""
    yield from offline_module.offline_q(*args, config=replace(config, penalty=0.0), **given)


@mutant(of="offline_q", kills="L2.19")
def penalty_for_caution(*args, **given):
    """This looks like a penalty with the wrong sign: what is absent from the data rises."""
    plain = offline_module.cql_penalty
    with altered(offline_module, cql_penalty=lambda q, action, mask: -plain(q, action, mask).clamp(max=5.0)):
        yield from offline_module.offline_q(*args, **given)


@mutant(of="offline_q", kills="L2.19")
def offline_past_the_end(*args, **given):
    """This looks like a Bellman target that bootstraps past the last token, from the padding behind it."""
    plain = offline_module.td_target

    def on_and_on(reward, after, ended, gamma):
        return plain(reward, after, torch.zeros_like(ended), gamma)

    with altered(offline_module, td_target=on_and_on):
        yield from offline_module.offline_q(*args, **given)


@mutant(of="offline_q", kills="L2.19")
def plain_under_another_name(*args, config, **given):
    """This looks like Q-learning whatever method is asked for."""
    yield from offline_module.offline_q(*args, config=replace(config, method="q"), **given)


# ---------------------------------------------------------------- L2.20: the bookkeeping of the exit


@mutant(of="first_alarm", kills="L2.20")
def shown_the_whole_run(run, alarm):
    """This looks like a detector that sees the whole run at once: an alarm is worth something before the end."""
    from dataclasses import asdict

    entries = [asdict(e) for e in run.history]
    return len(entries) - 1 if alarm(entries) is not None else None


@mutant(of="first_alarm", kills="L2.20")
def last_word_counts(run, alarm):
    """This looks like the last alarm in place of the first: false alarms before it are forgotten."""
    from dataclasses import asdict

    entries = [asdict(e) for e in run.history]
    spoken = [i for i in range(len(entries)) if alarm(entries[: i + 1]) is not None]
    return spoken[-1] if spoken else None


@mutant(of="first_alarm", kills="L2.20")
def gold_among_the_inputs(run, alarm):
    """This looks like a detector that is shown gold: on a real run there is none."""
    from dataclasses import asdict

    entries = [{**asdict(e), "gold": g} for e, g in zip(run.history, run.gold)]
    return next((i for i in range(len(entries)) if alarm(entries[: i + 1]) is not None), None)


@mutant(of="first_alarm", kills="L2.20")
def step_zero_is_silence(run, alarm):
    """This looks like an answer that is tested for truth: step 0 is an alarm too."""
    from dataclasses import asdict

    entries = [asdict(e) for e in run.history]
    return next((i for i in range(len(entries)) if alarm(entries[: i + 1])), None)


@mutant(of="in_time", kills="L2.20")
def any_alarm_will_do(run, alarm):
    """This looks like an alarm at any time: before the peak it is a false one."""
    return overoptimisation.first_alarm(run, alarm) is not None


@mutant(of="in_time", kills="L2.20")
def at_the_end_is_early_enough(run, alarm):
    """This looks like an alarm at the very end that still counts."""
    entry = overoptimisation.first_alarm(run, alarm)
    return entry is not None and run.peak < entry


@mutant(of="in_time", kills="L2.20")
def at_the_peak_is_late_enough(run, alarm):
    """This looks like an alarm at the peak itself: nothing had fallen yet."""
    entry = overoptimisation.first_alarm(run, alarm)
    return entry is not None and run.peak <= entry < len(run.history) - 1


@mutant(of="Witness", kills="L2.20")
class GoldInTheReward(overoptimisation.Witness):
    """This looks like gold that reaches the update: then nothing is ever over-optimised, outside of this experiment."""

    def __call__(self, batch):
        scores = super().__call__(batch)
        return scores + 0.1 * self.said[-1]["gold"]


@mutant(of="Witness", kills="L2.20")
class AuditorIsTheReward(overoptimisation.Witness):
    """This looks like the training reward under the name of the held-out judge: the detector would read what it must not."""

    def __call__(self, batch):
        scores = super().__call__(batch)
        self.said[-1]["heldout_score"] = self.said[-1]["training_reward"]
        return scores


# ---------------------------------------------------------------- L2.21: the reference sees the same tokens


@mutant(of="reference_logprobs", kills="L2.21")
def scored_without_its_mask(reference, batch, temperature=1.0):
    """This looks like a reference that reads padding as text: its laws are about another prompt."""
    everything = torch.ones_like(batch.attention_mask)
    return roles.reference_logprobs(reference, replace(batch, attention_mask=everything), temperature)


@mutant(of="reference_logprobs", kills="L2.21")
def other_action_mask(reference, batch, temperature=1.0):
    """This looks like log-probabilities of prompt tokens too: the KL is over actions."""
    return roles.reference_logprobs(reference, replace(batch, action_mask=batch.attention_mask), temperature)


@mutant(of="reference_logprobs", kills="L2.21")
def action_mask_one_late(reference, batch, temperature=1.0):
    """This looks like a mask one column beside the actions."""
    logp = roles.reference_logprobs(reference, replace(batch, action_mask=batch.attention_mask), temperature)
    return torch.where(batch.action_mask[:, :-1], logp, 0.0)


@mutant(of="reference_logprobs", kills="L2.21")
def reference_at_temperature_one(reference, batch, temperature=1.0):
    """This looks like a reference scored at temperature 1 beside a policy at another: the KL of equal models is not 0."""
    return roles.reference_logprobs(reference, batch, 1.0)


@mutant(of="reference_logprobs", kills="L2.21")
def text_encoded_anew(reference, batch, temperature=1.0):
    """This looks like text that was decoded and encoded again: a merged pair moves all ids behind it."""
    moved = batch.tokens.clone()
    moved[:, 3] = (moved[:, 3] + 1) % 8
    return roles.reference_logprobs(reference, replace(batch, tokens=moved), temperature)


@mutant(of="check_reference", kills="L2.21")
def accepts_shared_parameters(actor, reference):
    """This looks like a reference that may be the actor itself: the KL stays 0 while the policy moves."""
    mine, other = roles._tokens_of(actor), roles._tokens_of(reference)
    if mine is not None and other is not None and mine != other:
        raise ValueError("reference must read the actor's token ids")


@mutant(of="check_reference", kills="L2.21")
def same_object_only(actor, reference):
    """This looks like a check for the very same object: two models that share an embedding are trained together too."""
    if reference is actor:
        raise ValueError("reference must be a copy of the actor")
    roles.check_reference(copy.deepcopy(actor), reference)


@mutant(of="check_reference", kills="L2.21")
def counts_the_words(actor, reference):
    """This looks like a check of the vocabulary's size: the same number of words may be other words."""
    sizes = [getattr(getattr(m, "model", m), "config", None) for m in (actor, reference)]
    if all(sizes) and sizes[0].vocab_size != sizes[1].vocab_size:
        raise ValueError("reference must have the actor's vocabulary")
    if {id(p) for p in actor.parameters()} & {id(p) for p in reference.parameters()}:
        raise ValueError("reference must be a copy of the actor")


@mutant(of="check_reference", kills="L2.21")
def set_of_words(actor, reference):
    """This looks like two tokenizers compared as sets of words: in another order every id means another word."""
    if {id(p) for p in actor.parameters()} & {id(p) for p in reference.parameters()}:
        raise ValueError("reference must be a copy of the actor")
    known = [getattr(m, "tokenizer", None) for m in (actor, reference)]
    if all(t is not None for t in known):
        a, b = (sorted(t.decode([i]) for i in range(t.vocab_size)) for t in known)
        if a != b:
            raise ValueError("reference must read the actor's token ids")
        return
    roles.check_reference(actor, reference)


@mutant(of="check_reference", kills="L2.21")
def dies_of_a_number(actor, reference):
    """This looks like an error that does not say what is wrong."""
    try:
        roles.check_reference(actor, reference)
    except ValueError:
        raise ValueError("39 != 40") from None


@mutant(of="ppo", kills="L2.21")
def asks_nobody(*args, **given):
    """This looks like a loop that never checks its reference."""
    with altered(ppo_module, check_reference=lambda actor, reference: None):
        yield from ppo_module.ppo(*args, **given)


@mutant(of="ppo", kills="L2.21")
def checks_when_it_is_too_late(learner, reference, *args, **given):
    """This looks like a check after training: the run has been paid for by then."""
    with altered(ppo_module, check_reference=lambda actor, other: None):
        yield from ppo_module.ppo(learner, reference, *args, **given)
    roles.check_reference(learner["actor"], reference)


# ---------------------------------------------------------------- L2.22: narrow reward, lost breadth


class _Other:
    """A suite with one thing changed."""

    def __init__(self, made, **changed):
        self.made, self.changed = made, changed

    def __getattr__(self, name):
        if name in self.changed:
            value = self.changed[name]
            return value(self.made) if name == "digest" else lambda model: value(self.made, model)
        return getattr(self.made, name)


@mutant(of="suite", kills="L2.22")
def asks_for_what_is_rewarded(seed=0, *, items=48):
    """This looks like a suite that asks for praise: it rises with the reward and shows no loss."""
    from course.tasks import reviews

    def score(made, model):
        beginnings = tuple(
            capability.Continuation(o.say.beginning, tuple(reviews.ID[w] for w in reviews.POSITIVE), 1.0) for o in made.dislike
        )
        return float(capability._class_probability(model, beginnings).mean().detach())

    return _Other(capability.suite(seed, items=items), score=score)


@mutant(of="suite", kills="L2.22")
def drawn_anew_each_time(seed=0, *, items=48):
    """This looks like a suite that is drawn again for each score: two numbers are about two suites."""
    count = iter(range(1, 10**6))

    def score(made, model):
        return capability.suite(seed + next(count), items=items).score(model)

    return _Other(capability.suite(seed, items=items), score=score)


@mutant(of="suite", kills="L2.22")
def digest_of_the_seed_family(seed=0, *, items=48):
    """This looks like a digest that does not tell suites apart."""
    return _Other(capability.suite(seed, items=items), digest=lambda made: f"suite of {len(made.legal)} items")


@mutant(of="suite", kills="L2.22")
def right_or_wrong_only(seed=0, *, items=48):
    """This looks like a suite that only compares reviews with their spoilt twins: what the policy no longer says is not asked for."""
    return _Other(capability.suite(seed, items=items), score=lambda made, model: made.abilities(model).choice)


@mutant(of="suite", kills="L2.22")
def fine_tunes_on_its_items(seed=0, *, items=48):
    """This looks like a suite that changes the model it measures."""

    def score(made, model):
        value = made.score(model)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.999)
        return value

    return _Other(capability.suite(seed, items=items), score=score)


@mutant(of="ppo", kills="L2.22")
def rehearsal_and_price_ignored(*args, config, **given):
    """This looks like a run whose KL price and rehearsal are read and not used: it forgets whatever is set."""
    given["rehearsal"] = None
    yield from ppo_module.ppo(*args, config=replace(config, beta=0.0, rehearsal_weight=0.0), **given)


@mutant(of="ppo", kills="L2.22")
def rehearsal_unlearns(*args, operators, **given):
    """This looks like rehearsal with the wrong sign and no price: the old text is unlearnt."""
    given["config"] = replace(given["config"], beta=0.0)
    turned = None if operators.ptx_loss is None else lambda ppo, nll, gamma: -operators.ptx_loss(ppo, nll, gamma)
    yield from ppo_module.ppo(*args, operators=replace(operators, ptx_loss=turned), **given)


@mutant(of="ppo", kills="L2.22")
def nothing_is_learnt(learner, *args, **given):
    """This looks like a policy that does not train at all: then breadth holds and nothing is shown."""
    kept = copy.deepcopy(learner["actor"].state_dict())
    for record in ppo_module.ppo(learner, *args, **given):
        learner["actor"].load_state_dict(kept)
        yield record


# ---------------------------------------------------------------- L2.23: judges are refreshed at the frontier, blind


def _relabelled(frontier, **of):
    return replace(frontier, **of)


@mutant(of="select_frontier", kills="L2.23")
def best_of_all_tasks(reward, other, suspicion, task, *, per_stratum, seed):
    """This looks like the best rows of all tasks together: a task with low rewards is never looked at."""
    return refresh.select_frontier(reward, other, suspicion, torch.zeros_like(task), per_stratum=per_stratum, seed=seed)


@mutant(of="select_frontier", kills="L2.23")
def reward_in_every_stratum(reward, other, suspicion, task, *, per_stratum, seed):
    """This looks like four strata of high reward under four names."""
    found = refresh.select_frontier(reward, other, reward, task, per_stratum=per_stratum, seed=seed)
    return found


@mutant(of="select_frontier", kills="L2.23")
def lowest_rewards(reward, other, suspicion, task, *, per_stratum, seed):
    """This looks like the worst rows in place of the best: the judge is wrong where it is enthusiastic."""
    return refresh.select_frontier(-reward, -other, suspicion, task, per_stratum=per_stratum, seed=seed)


@mutant(of="select_frontier", kills="L2.23")
def disagreement_in_raw_scores(reward, other, suspicion, task, *, per_stratum, seed):
    """This looks like disagreement in raw scores: two reward models have neither unit nor zero in common."""
    with altered(refresh, disagreement=lambda a, b, t: (a - b).abs()):
        return refresh.select_frontier(reward, other, suspicion, task, per_stratum=per_stratum, seed=seed)


@mutant(of="select_frontier", kills="L2.23")
def failures_filtered_out(reward, other, suspicion, task, *, per_stratum, seed):
    """This looks like suspicious rows that are swept away first: what is filtered is missing from what the judge learns."""
    return refresh.select_frontier(reward, other, -suspicion, task, per_stratum=per_stratum, seed=seed)


@mutant(of="label_blind", kills="L2.23")
def labels_with_a_winner_only(*args, **given):
    """This looks like ties and abstentions thrown away: how often nobody can tell is a finding."""
    return [x for x in refresh.label_blind(*args, **given) if x.comparison.label.decided]


@mutant(of="label_blind", kills="L2.23")
def stratum_by_stratum(batch, frontier, annotate, **given):
    """This looks like pairs shown stratum by stratum: an annotator soon knows what is expected of them."""

    def sorted_first(pairs):
        return annotate(pairs)

    class Still:
        def __init__(self, seed):
            self.rng = _RANDOM(seed)

        def shuffle(self, rows):
            return None

        def __getattr__(self, name):
            return getattr(self.rng, name)

    _RANDOM = refresh.random.Random
    with altered(refresh, random=type("random", (), {"Random": Still})):
        return refresh.label_blind(batch, frontier, sorted_first, **given)


@mutant(of="label_blind", kills="L2.23")
def suspect_always_first(batch, frontier, annotate, **given):
    """This looks like the chosen row always on the first side: the side gives it away."""

    class First(refresh.random.Random):
        def random(self):
            return 0.0

    with altered(refresh, random=type("random", (), {"Random": _deaf(First)})):
        return refresh.label_blind(batch, frontier, annotate, **given)


def _deaf(kind):
    """A random source whose coin always falls on one side while order and partners stay random."""
    from random import Random

    class Coin:
        def __init__(self, seed):
            self.rng, self.coin = Random(seed), kind(seed)

        def random(self):
            return self.coin.random()

        def __getattr__(self, name):
            return getattr(self.rng, name)

    return Coin


@mutant(of="label_blind", kills="L2.23")
def policy_and_stratum_shown(batch, frontier, annotate, **given):
    """This looks like an annotator who is told where a response comes from: the label is then about the policy's name."""
    from dataclasses import make_dataclass

    shown = make_dataclass("Shown", ["prompt", "first", "second", "policy", "stratum"], frozen=True)

    def told(pairs):
        return annotate([shown(p.prompt, p.first, p.second, given["version"], frontier.strata[0]) for p in pairs])

    return refresh.label_blind(batch, frontier, told, **given)


@mutant(of="repetition", kills="L2.23")
def prompt_words_count(batch):
    """This looks like repetition over prompt and response: the prompt is not the policy's."""
    return refresh.repetition(replace(batch, action_mask=batch.attention_mask))


@mutant(of="disagreement", kills="L2.23")
def ranks_over_all_tasks(scores_a, scores_b, task):
    """This looks like ranks over all tasks together: what a judge adds for a prompt then counts as disagreement."""
    return refresh.disagreement(scores_a, scores_b, torch.zeros_like(task))


@mutant(of="disagreement", kills="L2.23")
def ties_count_as_worse(scores_a, scores_b, task):
    """This looks like equal scores that count as lower ones: a judge that says little seems to disagree."""
    place = []
    for x in (scores_a, scores_b):
        place.append(torch.stack([(x[i] > x[task == task[i]]).double().mean() for i in range(len(x))]))
    return (place[0] - place[1]).abs()


_made: dict = {}


def _outcome(seed, new, held_out, **given):
    """The package's outcome, computed once for each of the three questions of a check: the mistakes below are in what is done with it."""
    key = (seed, new.tokens.numpy().tobytes(), held_out.tokens.numpy().tobytes())
    if key not in _made:
        if len(_made) == 3:
            _made.clear()
        _made[key] = refresh.compare_refresh(seed, new, held_out, **given)
    return _made[key]


@mutant(of="compare_refresh", kills="L2.23")
def the_static_judge_twice(seed, new, held_out, **given):
    """This looks like a refreshed judge that was never fitted again."""
    found = _outcome(seed, new, held_out, **given)
    return replace(found, refreshed=found.static)


@mutant(of="compare_refresh", kills="L2.23")
def high_reward_alone(seed, new, held_out, **given):
    """This looks like labels of the highest rewards only: over all strata is asked for."""
    found = _outcome(seed, new, held_out, **given)
    total = sum(n for _, n in found.strata)
    return replace(found, strata=(("high reward", total), *((name, 0) for name, _ in found.strata[1:])))


# ---------------------------------------------------------------- L2.20 and L2.18: outcomes on record


def _record():
    from autograder.hidden.level2_package import recorded_runs

    return recorded_runs()


def _with_runs(change, keep=lambda run: True):
    """The record with change(run) for every run that is kept."""
    record = _record()
    return {**record, "runs": [change(run) for run in record["runs"] if keep(run)]}


def _entries(run, **made):
    return {**run, "history": [{**e, **{k: f(i, e) for k, f in made.items()}} for i, e in enumerate(run["history"])]}


@mutant(of="recorded_runs", kills="L2.20")
def four_seeds_only():
    """This looks like a record of four seeds: with so few an alarm may be in time by luck."""
    return _with_runs(dict, lambda run: run["seed"] < 4)


@mutant(of="recorded_runs", kills="L2.20")
def one_run_many_times():
    """This looks like one run under ten seeds."""
    first = {run["healthy"]: run for run in reversed(_record()["runs"])}
    return _with_runs(lambda run: {**first[run["healthy"]], "seed": run["seed"]})


@mutant(of="recorded_runs", kills="L2.20")
def gold_never_fell():
    """This looks like runs that were stopped at gold's peak: nothing has been over-optimised."""
    return _with_runs(lambda run: {**run, "gold": sorted(run["gold"])})


@mutant(of="recorded_runs", kills="L2.20")
def the_reward_fell_too():
    """This looks like runs that broke down: the training reward fell with gold, so anybody would have seen it."""

    def change(run):
        reward = list(run["gold"]) if not run["healthy"] else run["training_reward"]
        return {**run, "training_reward": [r + 1e-3 * (i % 3) for i, r in enumerate(reward)]}

    return _with_runs(change)


@mutant(of="recorded_runs", kills="L2.20")
def healthy_runs_hack_too():
    """This looks like healthy runs that were not healthy."""
    return _with_runs(lambda run: {**run, "gold": [g - 0.1 * max(0, i - 8) for i, g in enumerate(run["gold"])]})


@mutant(of="recorded_runs", kills="L2.20")
def reward_as_the_heldout_score():
    """This looks like the training reward in the history, under the name of the held-out judge."""
    return _with_runs(lambda run: _entries(run, heldout_score=lambda i, e: 2.0 * run["training_reward"][i] - 1.0))


@mutant(of="recorded_runs", kills="L2.20")
def gold_in_the_history():
    """This looks like histories with gold in them."""
    return _with_runs(lambda run: _entries(run, gold=lambda i, e: run["gold"][i]))


@mutant(of="recorded_runs", kills="L2.20")
def auditor_led_astray():
    """This looks like a held-out judge that is fooled along with the reward: it keeps rising, and no alarm comes."""
    return _with_runs(lambda run: _entries(run, heldout_score=lambda i, e: 0.2 * e["kl"] + 0.01 * (i % 2)))


@mutant(of="recorded_runs", kills="L2.20")
def jumpy_when_healthy():
    """This looks like healthy runs that drift as far as pushed ones: the detector cries there too."""
    return _with_runs(lambda run: _entries(run, kl=lambda i, e: e["kl"] + 1.5 * i + 0.1 * (i % 2)))


@mutant(of="recorded_runs", kills="L2.18")
def points_of_another_run():
    """This looks like the points of another run: KL and gold do not belong together."""
    return _with_runs(lambda run: {**run, "gold": [(-1.0) ** i for i in range(len(run["gold"]) - 1)] + [1.5]})


@mutant(of="recorded_runs", kills="L2.18")
def kl_forgotten():
    """This looks like a run whose KL was not measured: numbers about 1 that say nothing of the step."""
    return _with_runs(lambda run: _entries(run, kl=lambda i, e: 1.0 + 0.01 * (7 * i % 5)))
