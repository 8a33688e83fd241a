# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Level 6 · Distributed long-horizon systems
#
# Until now one process sampled, judged and learned, in this order. Long episodes do not fit into that: one task waits minutes for a tool while another is done. So many workers sample at once, rewards come
# when they come, and the learner goes on meanwhile. Each of these steps can lose a sample, take one twice, mix up two policies, or forget a cost. The policies, the tasks and the records are those of level 4; in this level the round becomes a distributed system that loses nothing and can prove it: what was
# sampled by whom, what it was worth, what was learned from it, and what it cost.
#
# Statements about what others have built carry a mark: **[D]** disclosed in a source, **[I]** inferred by us, **[U]** unknown.
#
# **You will be able to**
# - correct for samples that an older policy made, and say how old they are and how much is left of them;
# - batch long tasks fairly, and see in simulated time what waiting costs;
# - name an executable policy by its content, and keep records that no later look changes;
# - reject an update so that nothing but the bill is left, and keep a ledger in which no past round can be altered unseen;
# - keep a budget by construction;
# - find out which of five things that were changed together made a system better.
#
# **You need** levels 0 to 5. **Time** about 9 hours: five for the exercises, the rest for the experiments and the questions. {{measured}}

# %% tags=["parameters"]
SEED = 0
DEVICE = "cpu"
FAST = False

# %% ng="locked:setup"
import hashlib
import json
import math
import random
import statistics
from dataclasses import fields, replace
from itertools import combinations, product

import torch

from autograder import check, statement
from course.accounting.budget import Cost
from course.accounting.ledger import GENESIS, Entry, Round
from course.language.stamp import PARTS
from course.rollout.attempts import Annotation, CurrentPolicy
from course.systems.ablation import FACTORS, Effect, FactorRun
from course.systems.batching import Waiting
from course.systems.staleness import Aged, Staleness

# %% [markdown]
# ## Part A · Samples that are late
#
# Workers sample with the weights that they have; the learner moves on. (In the literature of such systems these workers are **actors**, and here, too; the actor of level 2 is one network that they all run.) So a step that arrives was sampled by a **behaviour policy** $\mu$, some updates old, and it is to teach the **target policy** $\pi$ of now. Their **ratio** on the sampled action $a_t$, with $s_t$ all that the policy had read by then,
#
# $$w_t=\frac{\pi(a_t\mid s_t)}{\mu(a_t\mid s_t)}=\exp(\log\pi-\log\mu)$$
#
# says how much more often $\pi$ would have done this. (Level 2 wrote $\rho_t$ for this ratio. Below, $\rho_t$ is the *clipped* one, as in V-trace's paper.) $\log\mu$ is what the sampler wrote down at the time, never what somebody computes later.

# %% [markdown]
# {{card vtrace}}
#
# One way out is to wait for every worker before each update. PPO (level 2) stops the gradient of ratios that have gone too far. The actors of IMPALA, a distributed learner of DeepMind's (2018), don't wait, and its learner corrects the *value targets* with clipped ratios: **V-trace** [D], also used for DeepMind's Playhouse agents [D]. With rewards $r_t$, values $V_t$, discounts $\gamma_t$ and bounds $\bar\rho$, $\bar c$ and $\bar\rho_{\text{pg}}$ (`pg_rho_bar`; $\bar\rho$ unless it is given),
#
# $$\rho_t=\min(\bar\rho,w_t),\qquad c_t=\lambda\min(\bar c,w_t),\qquad \delta_t=\rho_t\,(r_t+\gamma_t V'_t-V_t),$$
#
# $$v_t=V_t+e_t,\qquad e_t=\delta_t+\gamma_t\,c_t\,e_{t+1}\quad(e_T=0),\qquad \hat A_t=\min(\bar\rho_{\text{pg}},w_t)\,\big(r_t+\gamma_t(V'_t+\lambda\,e_{t+1})-V_t\big).$$
#
# $V'_t$ is the value of what came after step $t$: $V_{t+1}$, and `bootstrap` after the last step. $\lambda\in[0,1]$ (`lambda_`) does what it does in GAE. $v_t$ is the target for the value, $\hat A_t$ the advantage for the policy's gradient. Both are constants of the update: nothing is differentiated through them. (With a ratio that is *not* held constant, the gradient of $w\log\pi$ at $\log\pi=-1$ is 0 instead of $w$.)
#
# $\bar\rho$ decides *what* is learned: with $\bar\rho=\infty$ the value of $\pi$, with a small one that of a policy between $\mu$ and $\pi$. $\bar c$ and $\lambda$ decide only how *fast*. The larger they are, the noisier.
#
# A row may hold several episodes, and two kinds of ends:
# - **terminated**: the episode is over; `discounts` is 0 there, and nothing that follows counts;
# - **truncated**: a limit cut it off, and another episode begins in the same row. The world would have gone on, so its value counts: `next_values` holds at that position the value of the observation that the cut took away. It replaces $V_{t+1}$ in $V'_t$, and the trace stops: $e_{t+1}$ counts as 0 there, in both formulas. Everywhere else `next_values` is NaN.

# %% ng="solution:vtrace"
def vtrace(behaviour_logp, target_logp, rewards, values, discounts, bootstrap, rho_bar=1.0, c_bar=1.0, pg_rho_bar=None, lambda_=1.0, next_values=None):
    """V-trace targets and advantages.

    behaviour_logp, target_logp   [B, T] float, nats: log-probability of the action taken, as recorded and as it is now
    rewards, values               [B, T] float, reward units; values[t] before the action at t
    discounts                     [B, T] float in [0, 1]; 0 where the episode ended by itself
    bootstrap                     [B] float: value after the last step
    rho_bar, c_bar, pg_rho_bar    bounds >= 0, math.inf for none; pg_rho_bar None means rho_bar
    lambda_                       in [0, 1]
    next_values                   None, or [B, T] float: the value that was cut away where the episode was truncated, NaN elsewhere
    returns                       (vs, advantages), both [B, T] float in the dtype of values, without gradient
    """
    ### BEGIN SOLUTION
    ratio = (target_logp - behaviour_logp).detach().exp()
    values, bootstrap = values.detach(), bootstrap.detach()
    following = torch.cat([values[:, 1:], bootstrap[:, None]], 1)
    trace = discounts
    if next_values is not None:
        cut = ~torch.isnan(next_values)
        following = torch.where(cut, next_values.detach(), following)
        trace = torch.where(cut, torch.zeros_like(discounts), discounts)
    delta = ratio.clamp(max=rho_bar) * (rewards + discounts * following - values)
    later, errors, afterwards = torch.zeros_like(bootstrap), [], []
    for t in reversed(range(values.shape[1])):
        afterwards.append(later)
        later = delta[:, t] + trace[:, t] * lambda_ * ratio[:, t].clamp(max=c_bar) * later
        errors.append(later)
    errors, afterwards = (torch.stack(rows[::-1], 1) for rows in (errors, afterwards))
    one_step = rewards + discounts * following + trace * lambda_ * afterwards - values
    return values + errors, ratio.clamp(max=rho_bar if pg_rho_bar is None else pg_rho_bar) * one_step
    ### END SOLUTION


# %% ng="test:vtrace"
check(vtrace)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> On equal policies every ratio is 1. Which return of level 2 is $v_t$ then, for $\lambda=1$ and for $\lambda=0$? </details>
# <details><summary>Hint 2: where to look</summary> One loop backwards over the columns with one number per row, $e_{t+1}$. Two things are scaled by it at a cut: the step of the recursion, and the advantage. The value $V'_t$ isn't. </details>
# <details><summary>Hint 3: almost code</summary> <code>following = cat([values[:, 1:], bootstrap[:, None]], 1)</code>, replaced where <code>next_values</code> is a number; <code>trace = discounts</code>, 0 there. Backwards: <code>e = delta[:, t] + trace[:, t] * c[:, t] * e</code>, with the $\lambda$ that is in $c$ already, and keep the <code>e</code> of before for the advantage, which has a $\lambda$ of its own. </details>

# %% [markdown]
# {{card effective_sample_size}}
#
# A batch in which one token has a ratio of 50 and all others hardly any is a batch of one token. How many equally weighted tokens would have the same variance? With weights $w=e^{\text{log ratio}}$ over the tokens that count,
#
# $$\text{ESS}=\frac{\big(\sum_t w_t\big)^2}{\sum_t w_t^2},\qquad 1\le\text{ESS}\le n .$$
#
# $n$ is the number of tokens that count; ESS is $n$ on equal policies. Only ratios of weights enter, so a constant that is added to every log-ratio changes nothing. That is also how it's computed: with log-ratios of 1000 each $w$ is infinite, and ESS isn't.

# %% ng="solution:effective_sample_size"
def effective_sample_size(log_ratio, mask):
    """How many equally weighted tokens these weights are worth.

    log_ratio   [B, T] float, nats: log pi - log mu, -inf where pi no longer allows the token. Where mask is 0 anything, NaN included
    mask        [B, T] bool or 0/1: the tokens that the policy sampled
    returns     scalar float tensor; 0 if no token counts or none has any weight; right for log-ratios of any size
    """
    ### BEGIN SOLUTION
    kept = log_ratio[mask.bool()]
    if not len(kept) or kept.max() == -math.inf:
        return log_ratio.new_zeros(())
    weights = (kept - kept.max()).exp()
    return weights.sum().square() / weights.square().sum()
    ### END SOLUTION


# %% ng="test:effective_sample_size"
check(effective_sample_size)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Multiply all weights by 7. What happens to the fraction? </details>
# <details><summary>Hint 2: where to look</summary> Select by the mask first, then subtract the greatest log-ratio, as in the stable softmax of level 0. </details>
# <details><summary>Hint 3: almost code</summary> <code>w = (kept - kept.max()).exp()</code>; <code>w.sum() ** 2 / (w ** 2).sum()</code>; 0 for an empty selection, and where the greatest is -inf. </details>

# %% [markdown]
# {{card staleness_report}}
#
# The word "asynchronous" says nothing; a number does. Each sample carries the version of the policy that made it, and a long rollout may be made by several: the weights were replaced under it. `Aged` has `first_version` and `last_version`, the log-ratios of its tokens and their mask. Its **lag** counts from the *first*:
#
# $$\text{lag}=\text{current version}-\text{first version}.$$
#
# Counting from the last would call a rollout fresh that is old for the most part. A version that is not there yet is an error in somebody's bookkeeping, and is refused.
#
# Beside the lags the report holds quantiles of the ratios $e^{\text{log ratio}}$, over all tokens that count, of all records together: 5 %, 50 % and 95 %, with linear interpolation between the sorted values (for $n$ values $q_0\le\dots\le q_{n-1}$ the quantile $p$ stands at place $p(n-1)$). And the effective sample size of 6.2, over the same tokens.

# %%
for kind in (Aged, Staleness):
    print(kind.__name__, [f.name for f in fields(kind)])

# %% ng="solution:staleness_report"
def staleness_report(records, current_version):
    """How old these records are, and what that has done to their ratios.

    records           sequence of at least one Aged(first_version, last_version, log_ratio, mask): log_ratio and mask tuples of one length
    current_version   int, the learner's; ValueError if a record's last_version is above it, or there is no record or no token that counts
    returns           Staleness(lags, mean_lag, max_lag, ratio_quantiles, effective_sample_size): lags a tuple in the order of the records,
                      ratio_quantiles {"5%": float, "50%": float, "95%": float}, the others numbers
    """
    ### BEGIN SOLUTION
    if not records or any(record.last_version > current_version for record in records):
        raise ValueError(f"records must be some, and none from a version after {current_version}")
    lags = tuple(current_version - record.first_version for record in records)
    kept = [x for record in records for x, counts in zip(record.log_ratio, record.mask) if counts]
    if not kept:
        raise ValueError("records must have at least one token that counts")
    log_ratio = torch.tensor([kept], dtype=torch.float64)
    at = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    quantiles = dict(zip(("5%", "50%", "95%"), torch.quantile(log_ratio[0].exp(), at).tolist()))
    size = effective_sample_size(log_ratio, torch.ones_like(log_ratio, dtype=torch.bool))
    return Staleness(lags, sum(lags) / len(lags), max(lags), quantiles, float(size))
    ### END SOLUTION


# %% ng="test:staleness_report"
check(staleness_report)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> A rollout began under version 3 and ended under version 7; the learner is at 8. May it be called one update old? </details>
# <details><summary>Hint 2: where to look</summary> One list of all log-ratios that count; <code>torch.quantile</code> interpolates linearly. Quantiles of the ratio, not of its logarithm. </details>
# <details><summary>Hint 3: almost code</summary> <code>lags = tuple(current - r.first_version for r in records)</code>; <code>torch.quantile(exp(kept), [0.05, 0.5, 0.95])</code> both tensors in double precision; 6.2 on <code>kept</code> as one row. Ratios stay finite here. </details>

# %% [markdown]
# ### Experiment A · Actors that lag
#
# The world is a grid with a target in it. The policy is a table: all it knows is where the target lies from here, and it may move or say *done*. It is paid for *done* at the target. Actors walk with the table of some updates ago, and the learner trains on what they bring. Two learners get samples of the same age: for one every ratio is taken to be 1, the other uses *your* `vtrace`. Your `staleness_report` reads the batches.
#
# **Predict before you run:** from what lag on does the learner without correction fall behind? And what is left of the effective sample size at the largest lag?

# %%
prediction_a = ""  # for example "from 12 on; a third"

# %% tags=["experiment"]
from tqdm.auto import tqdm

from course.figures import say
from course.figures import systems as pictures
from course.training.impala import uncorrected
from course.training.lag_study import lag_study

LAGS, SEEDS, LOOKS = ((0, 8), (SEED,), 10) if FAST else ((0, 12, 24, 48), (SEED, SEED + 1), 80)


class Reported:
    """Your vtrace, with your staleness_report of every batch that it sees."""

    def __init__(self, lag):
        self.lag, self.reports = lag, []

    def __call__(self, behaviour_logp, target_logp, rewards, values, discounts, bootstrap, **options):
        ends = (discounts == 0) | ~torch.isnan(options["next_values"])
        walked = ends.cumsum(1) - ends.long() == 0  # up to the end of each walk
        version = len(self.reports)
        began = max(0, version - self.lag)
        batch = [
            Aged(began, began, tuple(x), tuple(m)) for x, m in zip((target_logp - behaviour_logp).tolist(), walked.tolist())
        ]
        self.reports.append((staleness_report(batch, version), int(walked.sum())))
        return vtrace(behaviour_logp, target_logp, rewards, values, discounts, bootstrap, **options)


learned, quantiles, sizes = {"every ratio taken for 1": {}, "your vtrace": {}}, {}, {}
for lag in tqdm(LAGS, desc="lags"):
    reader = Reported(lag)
    runs = lag_study((lag,), SEEDS, corrections={"every ratio taken for 1": uncorrected}, updates=LOOKS)
    runs += lag_study((lag,), SEEDS[:1], corrections={"your vtrace": reader}, updates=LOOKS)
    if SEEDS[1:]:
        runs += lag_study((lag,), SEEDS[1:], corrections={"your vtrace": vtrace}, updates=LOOKS)
    for name, by_lag in learned.items():
        by_lag[lag] = [statistics.mean(run.success) for run in runs if run.correction == name]
    late = reader.reports[lag:]  # before that, there is no policy so old
    sizes[lag] = statistics.mean(report.effective_sample_size / tokens for report, tokens in late)
    quantiles[lag] = {q: statistics.geometric_mean(report.ratio_quantiles[q] for report, _ in late) for q in ("5%", "50%", "95%")}
far = LAGS[-1]
pictures.stale_actors(
    learned, quantiles, sizes, y="success, mean over the training",
    title=f"A lag of {far} updates: mean success over the training {statistics.mean(learned['every ratio taken for 1'][far]):.0%} without correction, {statistics.mean(learned['your vtrace'][far]):.0%} with yours; the samples are worth {sizes[far]:.0%}",
)  # fmt: skip

# %% tags=["experiment"]
say(
    "**What came out.** Success of the learner's own policy, mean over the training and over seeds:\n\n| lag | " + " | ".join(map(str, LAGS)) + " |\n|---|" + "---|" * len(LAGS) + "\n"
    + "\n".join(f"| {name} | " + " | ".join(f"{statistics.mean(by_lag[lag]):.0%}" for lag in LAGS) + " |" for name, by_lag in learned.items())
    + "\n| effective sample size, share of the tokens | " + " | ".join(f"{sizes[lag]:.0%}" for lag in LAGS) + " |"
    + f"\n\nYou predicted: {prediction_a or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# For the first *lag* updates the actors walk with the untrained table. It tries everything, so V-trace can learn from it as fast as from fresh samples; of a policy that explores little, less would be left to correct. The effective sample size and the quantiles are those of the batches that V-trace's learner saw for the first seed, from the first update on at which a policy so old exists: it is least early, while the policy moves fast, and rises when it stands still.
#
# **What the figures cannot show:** that V-trace is always needed. How old is too old depends on how far an update moves the policy, and not on the clock: with these large steps a few updates are felt already. And no correction brings back what nobody samples any more.

# %% [markdown]
# ## Part B · Who finishes first

# %% [markdown]
# {{card balanced_batch}}
#
# Short episodes finish first. A learner that takes *what is done* gets a batch of short tasks, although long ones were sampled just as often; and as it never waits for the long ones, they come late, old and few. Inside a batch, nothing shows it.
#
# So the batch is filled by **quotas**: for each stratum (a family of tasks, a length) how many episodes a batch has, in proportion to the law that the tasks were sampled from. Finished episodes wait in a queue, in the order in which they arrived. From each stratum the first ones are taken, first come, first served. While any stratum is short there is **no batch**: nothing is taken out, and a gap is never filled up from another stratum, because that is the bias again.

# %%
print([f.name for f in fields(Waiting)])

# %% ng="solution:balanced_batch"
def balanced_batch(queue, quotas):
    """The next batch, or none yet.

    queue     sequence of Waiting(number, stratum, sampled_at, completed_at), in order of arrival; strata without a quota just wait
    quotas    mapping from stratum to the number of episodes of it in a batch, an integer; ValueError if one is negative
    returns   list of indices into queue, ascending: of each stratum the first ones, as many as its quota; None while any is short.
              Quotas that are all 0 are met at once: []
    """
    ### BEGIN SOLUTION
    if any(count < 0 for count in quotas.values()):
        raise ValueError(f"quotas must not be negative; got {dict(quotas)}")
    left, taken = dict(quotas), []
    for place, waiting in enumerate(queue):
        if left.get(waiting.stratum):
            left[waiting.stratum] -= 1
            taken.append(place)
    return None if any(left.values()) else taken
    ### END SOLUTION


# %% ng="test:balanced_batch"
check(balanced_batch)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Nine short episodes wait and one long one; the quotas are two and two. What goes into the batch? </details>
# <details><summary>Hint 2: where to look</summary> Go through the queue once, with a copy of the quotas from which you count down. </details>
# <details><summary>Hint 3: almost code</summary> Take a place while its stratum has something left; at the end <code>None</code> if anything is left of any stratum. </details>

# %% [markdown]
# ### Experiment B · The law that a learner sees
#
# Workers run tasks of three lengths, which are sampled equally often; their times have a heavy tail. What began more than a few updates ago is too old, and left out: the greatest lag that is still used is the **staleness limit** (`LIMIT` in the cell below). In simulated time a learner takes its batches in two ways: those that are **completed first**, and by *your* `balanced_batch`. The strata are counted at four stages: sampling, completion, reward, optimisation.
#
# **Predict before you run:** what share of the batches is long tasks if the first to finish are taken, and at which stage do they disappear? What does balance cost in waiting?

# %%
prediction_b = ""

# %% tags=["experiment"]
import heapq

from course.systems.batching import completed_first, distance, horizon_log

SCALES = {"short": 1.0, "middle": 4.0, "long": 16.0}  # least seconds of an episode; times have a Pareto tail of shape 1.5
WORKERS, BATCH, LIMIT, STEP_SECONDS, UPDATES = 160, 24, 4, 2.0, 20 if FAST else 120
EVEN = {stratum: BATCH // len(SCALES) for stratum in SCALES}


def simulated(choose):
    """Learn in simulated time: (horizon log, share of the time that the learner waits, seconds in all, updates by age)."""
    draw = random.Random(f"level 6 batches {SEED}")
    clock, waited, version = 0.0, 0.0, 0
    strata, born, running, queue = {}, {}, [], []
    completed, rewarded, optimised = [], [], []

    def begin(at):
        number = len(strata)
        strata[number], born[number] = draw.choice(list(SCALES)), version
        heapq.heappush(running, (at + SCALES[strata[number]] * draw.paretovariate(1.5), number, at))

    def complete():
        at, number, since = heapq.heappop(running)
        completed.append(number)
        if draw.random() < 0.97:  # a few rewards never come, whatever the task
            rewarded.append(number)
            queue.append(Waiting(number, strata[number], since, at))
        begin(at)
        return at

    for _ in range(WORKERS):
        begin(0.0)
    while version < UPDATES:
        queue = [waiting for waiting in queue if version - born[waiting.number] <= LIMIT]
        picked = choose(queue)
        if picked is None:
            at = complete()
            waited, clock = waited + max(0.0, at - clock), max(clock, at)
            continue
        taken = {queue[place].number for place in picked}
        optimised += sorted(taken)
        queue = [waiting for waiting in queue if waiting.number not in taken]
        clock, version = clock + STEP_SECONDS, version + 1
        while running[0][0] <= clock:
            complete()
    return horizon_log(strata, completed, rewarded, optimised), waited / clock, clock


WAYS = {"completed first": lambda queue: completed_first(queue, BATCH), "your balanced batches": lambda queue: balanced_batch(queue, EVEN)}
logs, waits, hours = {}, {}, {}
for way, choose in tqdm(WAYS.items(), desc="ways"):
    logs[way], waits[way], hours[way] = simulated(choose)
first = logs["completed first"]
pictures.stages(
    logs, title=f"Long tasks: {first['sampling']['long']:.0%} of what is sampled, {first['optimisation'].get('long', 0.0):.0%} of what is learned from if the first to finish are taken, {logs['your balanced batches']['optimisation']['long']:.0%} balanced",
)  # fmt: skip

# %% tags=["experiment"]
say(
    f"**What came out**, after {UPDATES} updates with a staleness limit of {LIMIT}:\n\n| way | short | middle | long | distance from the sampled law | the learner waits | seconds for an update |\n|---|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| {way} | " + " | ".join(f"{log['optimisation'].get(stratum, 0.0):.0%}" for stratum in SCALES) + f" | {distance(log['sampling'], log['optimisation']):.2f} | {waits[way]:.0%} | {hours[way] / UPDATES:.1f} |"
        for way, log in logs.items()
    )
    + f"\n\nYou predicted: {prediction_b or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# The batches of those that finish first are full sooner, so the learner moves on faster, so long episodes are too old when they come: each of the three steps is reasonable, and together they drop a part of the law. The mean reward of such a batch rises while the policy stays as it is, wherever short tasks are the easier ones [I]. (*Distance* is half the sum of the absolute differences between the shares: the part of the law that would have to be moved.)

# %% [markdown]
# **What the figure cannot show:** that balance is free. A stratum that never finishes stops every batch; so quotas need a time limit, and what a limit cuts off is *truncated*, not failed (6.1). And strata have to be known beforehand: a bias inside a stratum stays.

# %% [markdown]
# ### Experiment C · Thousands of workers, one learner
#
# A simulation of discrete events: nobody waits for real, so that ten thousand workers fit into one process. Their tools have heavy-tailed times. A **synchronous** learner waits for all episodes of its round; an **asynchronous** one takes batches within a staleness limit while the workers go on. A batch is as large as the cluster, an update takes `UPDATE_SECONDS`, and time is counted up to the last update.
#
# **Predict before you run:** what share of the time does each learner wait, with few workers and with many? How far is the 99 % quantile of an episode's latency from the median?

# %%
prediction_c = ""

# %% tags=["experiment"]
from course.systems.simulation import Learning, Stratum, draw_jobs, simulate

KINDS = {  # share of the tasks, turns, seconds of compute and least seconds of waiting per turn, shape of the tail, the tools' time limit
    "short": Stratum(share=0.6, turns=2, compute=0.4, wait=0.5, tail=1.5, longest=300),
    "long": Stratum(share=0.4, turns=12, compute=0.4, wait=0.5, tail=1.2, longest=300),
}
SIZES, BATCHES, UPDATE_SECONDS = ((20, 200), 4, 40.0) if FAST else ((100, 1000, 10_000), 12, 40.0)
LIMITS = {"synchronous": 0, "asynchronous": 4}
lived = {way: [] for way in LIMITS}
for size in tqdm(SIZES, desc="sizes of the cluster"):  # needs simpy, as an ImportError would say
    jobs = draw_jobs(KINDS, BATCHES * size, SEED)
    for way, limit in LIMITS.items():
        lived[way].append(simulate(jobs, workers=size, learning=Learning(batch=size, update=UPDATE_SECONDS, limit=limit)))
sync, free = (runs[-1] for runs in lived.values())
pictures.cluster(
    SIZES, {way: [run.waiting for run in runs] for way, runs in lived.items()}, {kind: sync.tails[kind].quantiles for kind in KINDS},
    title=f"{SIZES[-1]:,} workers: the learner waits {sync.waiting:.0%} of its time in lockstep, {free.waiting:.0%} with a lag of up to {LIMITS['asynchronous']}",
)  # fmt: skip

# %% tags=["experiment"]
say(
    "**What came out.**\n\n| workers | way | the learner waits | of that, the last to come was a long task | mean lag | dropped | long tasks in the batches |\n|---|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| {size:,} | {way} | {run.waiting:.0%} | {run.tails['long'].waiting / max(run.waiting, 1e-9):.0%} | {run.mean_lag:.1f} | {run.dropped} | {run.trained['long']:.0%} |"
        for place, size in enumerate(SIZES) for way, runs in lived.items() for run in [runs[place]]
    )
    + f"\n\nLatency of an episode among {SIZES[-1]:,} synchronous workers, seconds: "
    + "; ".join(f"{kind}: median {sync.tails[kind].quantiles['p50']:.0f}, 99 % {sync.tails[kind].quantiles['p99']:.0f}, slowest {sync.tails[kind].slowest:.0f}" for kind in KINDS)
    + f". You predicted: {prediction_c or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# The median says next to nothing about the waiting: a batch is as slow as its slowest episode, and the slowest of ten thousand comes from far out in the tail. So tails are reported, per kind of task, with the learner's waiting beside them; a mean hides both. The limit drops what is old, and what is old is long: compare the last column with the share of long tasks that are sampled, as in Experiment B.

# %% [markdown]
# **What the figure cannot show:** your cluster. A simulation knows the delays that it was told: calibrated on measured times it predicts what has the same causes, and nothing of a network that is full or a disk that is slow. And no share of waiting says what fresher or older samples are worth for learning: that comes next.

# %% [markdown]
# ### Experiment C, continued · Does it learn as well?
#
# A learner that does not wait makes more updates in an hour, each from older samples. So compare at *equally many updates*: what is lost per update? `course evidence 6` did it with the agent of level 4 and its three tools. Per seed one clone of the expert with a habit, and two copies of it, one per way, trained by GRPO. The tools wait by a heavy-tailed law on a virtual clock, so that who finishes when is a function of the seed. The asynchronous learner takes batches in the sampled proportions (6.3), multiplies every advantage by the truncated importance weight for its age, and drops groups that are older than the limit of Experiment C.
#
# **Predict before you run:** which of the two ends with more success, and by how much?

# %%
prediction_both = ""

# %% tags=["experiment"]
from pathlib import Path

from course.evidence.intervals import bootstrap_mean

evidence = json.loads(Path("evidence.json").read_text())
runs, setting = evidence["outcomes"], evidence["settings"]
success = {"the clone": [run["clone"] for run in runs], **{way: [run["success"][way] for run in runs] for way in LIMITS}}
waited = {way: [run["idle"][way] for run in runs] for way in LIMITS}
apart = bootstrap_mean([run["success"]["asynchronous"] - run["success"]["synchronous"] for run in runs], level=0.95, seed=0)
pictures.paired(
    waited, success, y=("seconds that the learner waits", "success on held-out tasks"),
    title=f"{len(runs)} seeds: waiting falls from {statistics.mean(waited['synchronous']):.1f} to {statistics.mean(waited['asynchronous']):.1f} seconds; "
    f"success differs by {apart.mean:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}]",
)  # fmt: skip

# %% tags=["experiment"]
say(
    f"**What was measured**, means over {len(runs)} seeds, {setting['steps']} updates each on {sum(setting['schedule']['quotas'].values())} groups of {setting['rows']} episodes by {setting['schedule']['ahead']} workers, at a rate of learning of {setting['lr']:g}; success on {setting['held_out']} tasks that no training saw.\n\n"
    "| way | the learner waits, s | it works, s | mean lag, updates | groups dropped | success |\n|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| {way} | {statistics.mean(waited[way]):.1f} | {statistics.mean(run['worked'][way] for run in runs):.1f} | {statistics.mean(run['mean_lag'][way] for run in runs):.1f} "
        f"| {statistics.mean(run['dropped'][way] for run in runs):.1f} | {statistics.mean(success[way]):.1%} |"
        for way in LIMITS
    )
    + f"\n\nThe clone had {statistics.mean(success['the clone']):.1%}. The difference asynchronous less synchronous is {apart.mean:+.1%}, 95 % interval over the seeds {apart.low:+.1%} to {apart.high:+.1%}. You predicted: {prediction_both or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# An interval that holds zero says that these seeds cannot tell the two apart. How far they may still differ, its ends say.
#
# **What the figure cannot show:** that age never costs. It was measured at one learning rate, at which a policy changes little within a few updates; a larger step makes the same lag a larger ratio, as in Experiment A.

# %% [markdown]
# ### Rewards that come late
#
# A reward may come from tests, judges or people: out of order, twice, after a failure and a retry, or never. What has no reward is **missing**, which is not 0: a timeout that counts as 0 teaches that long tasks are bad. And nobody else waits for it.

# %% tags=["experiment"]
import heapq

from course.feedback.events import FeedbackEvent
from course.systems.reward_service import Desk, Retry

desk = Desk("tests", "4", Retry(attempts=3, timeout=8, backoff=1, factor=2))
draw, names = random.Random(f"level 6 late {SEED}"), [f"episode {i}" for i in range(8)]
for name in names:
    desk.ask(name, 0.0)
clock, coming, bars = 0.0, [], {name: [] for name in names}
while clock < math.inf:
    for send in desk.due(clock):
        kind = draw.choices(("answered", "failed", "never answered"), (4, 3, 4))[0]
        takes = {"answered": draw.lognormvariate(0.7, 0.8), "failed": draw.uniform(0.2, 1.5), "never answered": math.inf}[kind]
        ends = min(clock + takes, clock + desk.retry.timeout)
        bars[send.record].append((clock, ends, kind if takes < desk.retry.timeout else "never answered"))
        if takes < desk.retry.timeout:
            heapq.heappush(coming, (clock + takes, send.record, send.attempt, kind))
    clock = min(coming[0][0] if coming else math.inf, desk.next_time())
    desk.expire(clock)
    while coming and coming[0][0] <= clock:
        _, name, attempt, kind = heapq.heappop(coming)
        if kind == "failed":
            desk.fail(name, attempt, "the service is unavailable", clock)
        else:
            desk.answer(name, FeedbackEvent(name, "score", draw.choice((0, 10)), ("trajectory", "hidden tests"), "tests", "4"))
events = [desk.event(name) for name in names]
missing = [event for event in events if event.kind == "abstention"]
settled = [max(end for _, end, _ in bars[name]) for name in names]
came = [at for at, event in zip(settled, events) if event.kind == "score"]
pictures.late_rewards(
    bars, {name: "missing" if event.kind == "abstention" else f"{event.value}" for name, event in zip(names, events)},
    title=f"{len(names) - len(missing)} of {len(names)} rewards came, half of those within {statistics.median(came):.1f} s, the last word after {max(settled):.1f} s; {len(missing)} missing, with no 0 in their place",
)  # fmt: skip

# %% tags=["experiment"]
scores = [event.value for event in events if event.kind == "score"]
say(
    f"The mean over the rewards that are there is {statistics.mean(scores):.2f}; with the missing ones as 0 it would be {sum(scores) / len(names):.2f}, and every baseline of a group with it. "
    + "; ".join(f"{event.record}: `{event.kind}`, value {event.value}, because *{event.reason}*" for event in missing[:2])
)

# %% [markdown]
# ## Part C · Which policy was it?

# %% [markdown]
# {{card policy_stamp}}
#
# "Checkpoint 4000" names a file that somebody may have overwritten, and says nothing about the temperature. What a policy samples follows from five **parts**: weights, tokenizer, serializer (how transcripts and actions become tokens), decoding settings and code revision. A **stamp** names all of them by their content:
#
# $$\text{stamp}(\text{parts})=\text{SHA-256}\big(\text{canonical JSON of parts}\big)\quad\text{in hexadecimal digits}.$$
#
# **Canonical JSON** is the one JSON text of a value: keys sorted at every depth, no spaces, characters as they are (no `\u` escapes), floats as Python's `repr` writes them, tuples as lists. So equal content has equal stamps, in any process and whatever the order of the keys; a change in any part, and in any digit of it, gives another stamp. Two stamps may differ and the policies behave alike; the other way round, one stamp for two policies, must not happen. Three
# ways in which it could are refused:
# - a part that is missing, `None` or `""`. (0, `False` and `{}` are something. Further parts may be added, and count.)
# - NaN and infinities, which have no JSON text;
# - keys that are no text, at any depth: Python's writer turns `{1: 0.5}` into `{"1":0.5}` in silence, and two contents have one text.
#
# (The package has a function for it, and level 4 signed its texts. Here it belongs to the exercise.)

# %%
print(PARTS)

# %% ng="solution:policy_stamp"
def policy_stamp(parts):
    """The name of an executable policy.

    parts     mapping with at least the five names in PARTS, each plain JSON data (a digest, a number, a mapping, ...); ValueError if
              one is missing, None or "", or it holds NaN, an infinity or a key that is no text (other things than JSON data don't come)
    returns   text of 64 lower-case hexadecimal digits
    """
    ### BEGIN SOLUTION
    missing = [name for name in PARTS if parts.get(name) in (None, "")]
    if missing:
        raise ValueError(f"parts must hold {', '.join(PARTS)}; got nothing for {', '.join(missing)}")

    def refuse_odd_keys(value):
        if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
            raise ValueError(f"parts must have text as keys; got {list(value)}")
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            refuse_odd_keys(inner)

    refuse_odd_keys(dict(parts))
    text = json.dumps(dict(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
    ### END SOLUTION


# %% ng="test:policy_stamp"
check(policy_stamp)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Python's <code>hash("a")</code> in two processes: equal? What does <code>json.dumps({1: "a"})</code> give, and <code>json.dumps(float("nan"))</code>? </details>
# <details><summary>Hint 2: where to look</summary> <code>json.dumps</code> has <code>sort_keys</code>, <code>separators</code>, <code>ensure_ascii</code> and <code>allow_nan</code>. Odd keys it does not refuse: go through dicts and lists yourself. <code>hashlib.sha256(...).hexdigest()</code> takes bytes. </details>
# <details><summary>Hint 3: almost code</summary> Refuse what is missing; a function that calls itself on the values of dicts and the items of lists refuses odd keys; then <code>sha256(json.dumps(dict(parts), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode("utf-8"))</code>. </details>

# %% [markdown]
# {{card attempt_annotations}}
#
# A finished record is a fact: task, stamp, tokens, log-probabilities at the time, evidence. When an update *looks* at it again, it computes things that were not true then and won't be true at the next look: how likely the current policy finds the tokens, whether their ratios lie outside the clip range, how old the record is by now, and how often it was used. These belong to the **attempt**. Written into the record they would change its hash with every look, and last week's ratio would be taken for today's.
#
# With the recorded $\log\mu_i$ of the sampled tokens and the current $\log\pi_i$:
#
# $$w_i=e^{\log\pi_i-\log\mu_i},\qquad \text{clipped}_i\iff w_i\notin[1-\epsilon,\,1+\epsilon],\qquad \text{age}=u-u_{\text{inserted}} .$$
#
# $u$ is the number of the current update, $u_{\text{inserted}}$ that of the update at which the record came into the pool, $\epsilon$ the clip of the loss (whether it then cuts the gradient depends on the advantage's sign, level 2). `reuse` is how often the record was used before this attempt. Ages and uses stand in the pool's books, by the record's hash, and not in the record.

# %%
for kind in (CurrentPolicy, Annotation):
    print(kind.__name__, [f.name for f in fields(kind)])

# %% ng="solution:attempt_annotations"
def attempt_annotations(record, current_policy):
    """What this attempt has to know about a record, without a change to it.

    record           has .content_hash (text) and .logprobs (tuple of floats, nats: of the sampled tokens, when they were sampled)
    current_policy   CurrentPolicy: .stamp, .update (int), .clip (float), .logprobs (function of a record: the same tokens' log-
                     probabilities now), .inserted and .uses (mappings from content_hash to int; a record without uses was used 0 times)
    returns          Annotation(stamp, ratios: tuple of floats, clipped: tuple of bools, age: int, reuse: int); ValueError if the record
                     was never inserted, or later than this update, or the two lists of log-probabilities differ in length
    """
    ### BEGIN SOLUTION
    name, now = record.content_hash, tuple(current_policy.logprobs(record))
    if current_policy.inserted.get(name, math.inf) > current_policy.update:
        raise ValueError(f"record must be one that was inserted by now; got {name[:12]}")
    if len(now) != len(record.logprobs):
        raise ValueError(f"logprobs must be {len(record.logprobs)} for this record; got {len(now)}")
    ratios = tuple(math.exp(new - old) for new, old in zip(now, record.logprobs))
    clipped = tuple(not 1 - current_policy.clip <= ratio <= 1 + current_policy.clip for ratio in ratios)
    age = current_policy.update - current_policy.inserted[name]
    return Annotation(current_policy.stamp, ratios, clipped, age, current_policy.uses.get(name, 0))
    ### END SOLUTION


# %% ng="test:attempt_annotations"
check(attempt_annotations)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> The recorded probability is 0.25, now it is 0.50. Which of the two may be called the ratio's denominator, and where is it stored? </details>
# <details><summary>Hint 2: where to look</summary> Everything is by <code>record.content_hash</code>; the current log-probabilities come from <code>current_policy.logprobs(record)</code>. </details>
# <details><summary>Hint 3: almost code</summary> <code>ratios = tuple(exp(new - old) ...)</code>; clipped where a ratio lies outside; age = update - inserted; reuse = uses or 0. Write nothing into the record. </details>

# %% [markdown]
# ### Experiment D · The same run on three engines
#
# One small run of tool episodes and updates is made in this process, on local worker processes, and, if it is installed and starts, on the actors of Ray, a library for distributed programs. Noise is keyed by seed, episode and position, and the rows of a batch are the same everywhere, so *who* sampled an episode can't matter.
#
# **Predict before you run:** will the hashes of records and weights be equal, or equal up to rounding? Which engine is fastest on two cores?

# %%
prediction_d = ""

# %% tags=["experiment"]
import functools
import tempfile
import time
from pathlib import Path

from course.rollout.store import Store
from course.systems.engine import InProcess, tool_workload
from course.systems.processes import Processes
from course.systems.run import CHECKPOINTS, RECORDS, problems, run, tool_plan

SCRATCH = Path(tempfile.mkdtemp(prefix="level6-"))  # a folder for each run below; delete it when you like
ROUNDS = 1 if FAST else 3
PLAN = tool_plan(SEED, tool_workload(rows=4), groups=4, group_size=4)
ENGINES = {"in this process": InProcess, "two processes": functools.partial(Processes, workers=2)}
if not FAST:
    try:
        from course.systems.ray_cluster import RayActors, start_ray

        start_ray(cpus=2)
        ENGINES["two Ray actors"] = functools.partial(RayActors, actors=2)
    except Exception as problem:  # it is not installed, or nothing could be started here
        say(f"*No third row: {problem}. It would have `functools.partial(RayActors, actors=2)` as its engine, and nothing else changed.*")


def digest_of_records(folder):
    with Store(folder / RECORDS) as store:
        return hashlib.sha256("".join(sorted(record.content_hash for record in store.records())).encode()).hexdigest()


def digest_of_weights(folder):
    return hashlib.sha256(max((folder / CHECKPOINTS).iterdir()).read_bytes()).hexdigest()


compared, last_hash = {}, {}
for name, engine in tqdm(ENGINES.items(), desc="engines"):
    folder, began = SCRATCH / name.replace(" ", "-"), time.monotonic()
    entries = list(run(folder, PLAN, ROUNDS, engine=engine))
    assert problems(folder) == []
    last_hash[name] = entries[-1].hash  # of the run's ledger, Part D: it stands for all of its rounds
    compared[name] = {
        "records": digest_of_records(folder)[:12], "weights": digest_of_weights(folder)[:12], "ledger": entries[-1].hash[:12],
        "seconds": f"{time.monotonic() - began:.1f}",
    }  # fmt: skip
if "two Ray actors" in ENGINES:
    import ray

    ray.shutdown()
equal = all(len({row[what] for row in compared.values()}) == 1 for what in ("records", "weights", "ledger"))
pictures.same_hashes(
    compared, ("records", "weights", "ledger"),
    title=f"{len(compared)} engines, {ROUNDS} rounds: {'equal bits in records, weights and ledger' if equal else 'something differs'}",
)  # fmt: skip

# %% tags=["experiment"]
say(
    f"**What came out.** {'Every hash is the same for all engines' if equal else 'Some hashes differ'}. Seconds, the start of the workers included: "
    + "; ".join(f"{name} {row['seconds']}" for name, row in compared.items()) + f". You predicted: {prediction_d or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# **What the figure cannot show:** equal bits on other machines, thread counts or number formats; those are promised nowhere. Across them log-probabilities agree to some decimals, and one flipped token changes the rest of an episode.

# %% [markdown]
# ### Experiment E · Killing workers
#
# The same run on processes, with rewards from a service of its own, and somebody kills workers and services at random moments: in the middle of a token, of a tool call, of an answer. Each worker writes its episode to a **write-ahead log**, token by token, before it acts on it; whoever takes over replays the log, tool calls included, compares, and goes on.
#
# **Predict before you run:** how many episodes are lost or recorded twice? Are the final weights those of the undisturbed run?

# %%
prediction_e = ""

# %% tags=["experiment"]
import contextlib
import os
import signal
import threading

from course.systems.run import tool_service

N_KILLS = 2 if FAST else 8


class Watch(threading.Thread):
    """Notes when records reach the store; kills a worker or a reward service of ours at random moments, as often as it is told."""

    def __init__(self, folder, targets, kills, seed):
        super().__init__(daemon=True)
        self.folder, self.targets, self.kills, self.draw = folder, targets, kills, random.Random(seed)
        self.began, self.stored, self.killed, self.over = time.monotonic(), [], {name: [] for name in targets}, threading.Event()

    def run(self):
        next_kill = self.draw.uniform(0.05, 0.2)  # the whole run takes a second or two
        while not self.over.wait(0.01):
            now = time.monotonic() - self.began
            if (self.folder / RECORDS).exists():
                with Store(self.folder / RECORDS) as store:
                    self.stored += [now] * (len(store) - len(self.stored))
            if self.kills and now >= next_kill:
                name = self.draw.choice([name for name, pids in self.targets.items() if pids()])
                with contextlib.suppress(ProcessLookupError):  # it may just have been replaced
                    os.kill(self.draw.choice(self.targets[name]()), signal.SIGKILL)
                    self.killed[name].append(now)
                    self.kills -= 1
                next_kill = now + self.draw.uniform(0.02, 0.1)


def watched_run(folder, kills):
    """The run of Experiment D on two processes, with rewards from a service in a third, under a watch."""
    engines, service = [], tool_service()

    def engine(workload, logs):
        engines.append(Processes(workload, logs, workers=2))
        return engines[-1]

    folder.mkdir()
    watch = Watch(folder, {"worker": lambda: engines[-1].pids if engines else [], "reward service": lambda: service.pids}, kills, SEED)
    watch.start()
    entries = list(tqdm(run(folder, PLAN, ROUNDS, engine=engine, feedback=service.feedback), total=ROUNDS, desc=f"{kills} kills"))
    watch.over.set()
    watch.join()
    service.close()
    with Store(folder / RECORDS) as store:
        watch.stored += [time.monotonic() - watch.began] * (len(store) - len(watch.stored))
    return entries, watch


calm_entries, calm = watched_run(SCRATCH / "undisturbed", 0)
killed_entries, watch = watched_run(SCRATCH / "killed", N_KILLS)
asked = [name for entry in killed_entries for name in entry.round.trajectory]
with Store(SCRATCH / "killed" / RECORDS) as store:
    found = [record.content_hash for record in store.records()]
lost, twice = len(set(asked) - set(found)), len(found) - len(set(found))
same_weights = digest_of_weights(SCRATCH / "killed") == digest_of_weights(SCRATCH / "undisturbed")
pictures.kills(
    watch.stored, watch.killed, calm.stored,
    title=f"{sum(map(len, watch.killed.values()))} kills: {lost} records lost, {twice} twice, the final weights are {'the same' if same_weights else 'others'}",
)  # fmt: skip

# %% tags=["experiment"]
say(
    f"**What came out.** {len(found)} records of {len(asked)} that were asked for, {lost} lost, {twice} twice. The last hash of the ledger is {'equal to' if killed_entries[-1].hash == last_hash['in this process'] else 'another than'} "
    f"that of Experiment D: it covers every record, reward, decision and weight. The kills cost {watch.stored[-1] - calm.stored[-1]:.1f} seconds. You predicted: {prediction_e or 'nothing'}."
)

# %% [markdown]
# **What the figure cannot show:** kills at moments that were not drawn. Nor is *exactly once* a property of the world outside: an episode that sent a message before it was killed has sent it. What is recorded exactly once is the record; actions that can't be taken back must carry a number by which the other side knows a repetition.

# %% [markdown]
# How does a worker that was killed in the middle of a word go on with it? Below an episode of a trained policy is played with a log. Then the log is cut after every single line, with half of the next one left behind as a kill leaves it, and the episode is played again: it takes the logged tokens in place of new ones, gives them to the model in the shapes of the first time (so that the key-value cache, the keys and values of all earlier tokens that attention looks up again, holds the same bits), makes the tool calls again and
# compares the answers. Then it samples on.

# %% tags=["experiment"]
from course.rollout.write_ahead import log_path, play_logged
from course.systems.product import policy_pair
from course.rollout.episodes import plays_of
from course.training import tool_agent

print("two small policies are trained for this and for the last experiment; that takes a while")
clone_policy, trained_policy = policy_pair(SEED, clone_steps=10, online_steps=1) if FAST else policy_pair(SEED)
(play,) = plays_of(tool_agent.held_out(1, seed=SEED), 1, SEED)
(SCRATCH / "log").mkdir()
log = log_path(SCRATCH / "log", play)


def played_with_log():
    options = {"grader": tool_agent.grade, "max_action_tokens": tool_agent.MAX_ACTION_TOKENS, "rows": 1, "columns": 16}
    return play_logged(trained_policy, tool_agent.task_world(), {0: play}, folder=log.parent, **options)[0]


whole = played_with_log()
lines = log.read_bytes().splitlines(keepends=True)
resumed = []
for kept in tqdm(range(1, len(lines), 4 if FAST else 1), desc="cuts"):
    log.write_bytes(b"".join(lines[:kept]) + lines[kept][:9])
    resumed.append(played_with_log().content_hash == whole.content_hash)
print(*(line.decode().strip()[:110] for line in lines[:9]), sep="\n")
say(f"A line is a checksum and an entry: the plan, a token with its number and probability, or a step of the environment. {len(lines)} lines of log; cut at {len(resumed)} of them, the episode went on to the same record {sum(resumed)} times.")

# %% [markdown]
# ### What a pool may do with its records
#
# A **replay pool** is where records wait for another use: with a declared rule for who comes in, who leaves (the first come of a full part, and what is too old), and how it is divided. A pool holds records and never changes one; *your* `attempt_annotations` says what an attempt has to know about them. Here the clone's episodes come into a pool in four lots, and the policy after RL looks at them.

# %% tags=["experiment"]
from course.rollout.pools import PoolRule, ReplayPool

pool = ReplayPool(PoolRule(capacity=24, max_age=6))
for update in (0, 4, 8, 10):
    lot = tool_agent.attempts(clone_policy, tool_agent.held_out(16, seed=SEED + update), seed=SEED + update)
    pool = pool.insert(lot.records, update)


@torch.no_grad()
def logprobs_now(record):
    """Of the record's sampled tokens, under the policy after RL."""
    tokens = torch.tensor([record.tokens])
    logp = torch.log_softmax(trained_policy(tokens, torch.ones_like(tokens))[0], -1)
    return [float(logp[t - 1, tokens[0, t]]) for start, stop in record.action_spans for t in range(start, stop)]


chosen = pool.select(8, SEED)
pool = pool.used(chosen[:4])
looking = CurrentPolicy(trained_policy.stamp(), 12, 0.2, logprobs_now, pool.inserted, pool.uses)
hashes = [record.content_hash for record in chosen]
notes = [attempt_annotations(record, looking) for record in chosen]
assert [record.content_hash for record in chosen] == hashes
ages = sorted({held.inserted for held in pool.held})
say(
    f"Of 64 records that came in at the updates 0, 4, 8 and 10 the pool holds {len(pool)}, from the updates {', '.join(map(str, ages))}. Eight of them, as the policy after RL sees them at update 12:\n\n"
    "| record | age | uses before | tokens | least ratio | greatest ratio | clipped |\n|---|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| `{name[:8]}` | {note.age} | {note.reuse} | {len(note.ratios)} | {min(note.ratios):.2f} | {max(note.ratios):.2f} | {sum(note.clipped)} |" for name, note in zip(hashes, notes)
    )
    + "\n\nThe hashes are the same before and after."
)

# %% [markdown]
# ## Part D · A round that can be refused

# %% [markdown]
# {{card GradientGate}}
#
# Sampling is dear, so a batch is used for more than one update. At some point its gradient says no longer what a fresh batch would say. **Dynamic gradient gating** watches one number for that, the *increment*: how much the squared norm of the gradient of the language model's head has grown since the last use of the same batch [D]. (The first use of a batch has nothing before it: it is committed and the gate is not asked. The window goes on across batches.) The increment is compared with the last increments that were committed:
#
# $$Z=\frac{x-\bar x}{s},\qquad \bar x=\frac1n\sum_j x_j,\qquad s^2=\frac1n\sum_j(x_j-\bar x)^2,\qquad\text{commit}\iff Z\le z^\star .$$
#
# $x$ is the new increment, $x_1\dots x_n$ the last $n$ = `window` committed ones, $z^\star$ the `threshold`. The first `window` increments are committed unseen: there is nothing to compare with. A rejected increment does **not** enter the window, or a run of bad ones would soon look usual. If $s=0$, an increment of at most $\bar x$ commits and a greater one is rejected.
#
# Example: $\bar x=1$, $s=0.5$, $z^\star=2$: the increment 1.5 commits ($Z=1$), 2.5 is rejected ($Z=3$). It is a rule for reuse, and no proof of safety.

# %% ng="solution:GradientGate"
class GradientGate:
    """Which proposed updates are committed: GradientGate(window, threshold).decide(norm_increment) -> bool.

    window           int >= 1: how many committed increments are remembered; ValueError otherwise
    threshold        finite number >= 0: greatest Z that is committed, in standard deviations; ValueError otherwise
    norm_increment   finite number, units of a squared gradient norm; ValueError otherwise, and the window stays as it is
    """

    def __init__(self, window, threshold):
        ### BEGIN SOLUTION
        if type(window) is not int or window < 1 or not 0 <= threshold < math.inf:
            raise ValueError(f"window must be an integer >= 1 and threshold not negative; got {window} and {threshold}")
        self.window, self.threshold, self.committed = window, threshold, []
        ### END SOLUTION

    def decide(self, norm_increment):
        """True if the proposal is committed; the window then remembers its increment."""
        ### BEGIN SOLUTION
        if not math.isfinite(norm_increment):
            raise ValueError(f"norm_increment must be finite; got {norm_increment}")
        commit = True
        if len(self.committed) == self.window:
            mean, spread = statistics.mean(self.committed), statistics.pstdev(self.committed)
            commit = norm_increment - mean <= self.threshold * spread
        if commit:
            self.committed = [*self.committed, norm_increment][-self.window :]
        return commit
        ### END SOLUTION


# %% ng="test:GradientGate"
check(GradientGate)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Increments 1, 1, 1, then always 5. What does a gate do that lets rejected ones into its window? </details>
# <details><summary>Hint 2: where to look</summary> <code>statistics.pstdev</code> divides by n. Multiplied by s, the condition has no division by 0: $x-\bar x\le z^\star s$. (For $s=0$ compare $x$ with $\bar x$ alone.) Mind rounding: the mean of three times 0.7 must be 0.7, which <code>sum(...) / 3</code> need not give and <code>statistics.mean</code> does. </details>
# <details><summary>Hint 3: almost code</summary> Commit while there are fewer than <code>window</code>; otherwise compare; append and keep the last <code>window</code> only if committed. </details>

# %% [markdown]
# {{card append_round}}
#
# One round of training, written down in full: which tasks (law and digests), which stamp, which environment, the hashes of the records, the digests of feedback and credit, the decision, the state that was proposed and the one that was committed, the seeds, the versions of the operators, the cost. From this a run is a function of its seeds, and anybody can run it again.
#
# The **ledger** is a tuple of entries. Each holds a round, the hash of the entry before, and its own:
#
# $$h_n=\text{SHA-256}\big(\text{canonical JSON (6.5) of }[h_{n-1},\ \text{round}_n]\big),\qquad h_{-1}=\texttt{GENESIS}.$$
#
# So the last hash stands for the whole history. Appending gives a *new* tuple and changes no entry. Two rounds do not fit, and are refused: one whose `index` is not the number of entries, and a **rejected** one whose `committed` state isn't that of the entry before. A rejected update changes nothing but the bill. (In the first round there is no entry before, so only the index is asked for.)

# %%
for kind in (Round, Entry):
    print(kind.__name__, [f.name for f in fields(kind)])

# %% ng="solution:append_round"
def append_round(ledger, round):
    """The ledger with one more entry.

    ledger    tuple of Entry(round, before, hash), perhaps empty; it stays as it is
    round     Round; round.to_json() is its plain data. ValueError if its index is not the next one, or it is a reject that commits
              another state than the last entry
    returns   tuple of Entry, one longer
    """
    ### BEGIN SOLUTION
    if round.index != len(ledger):
        raise ValueError(f"round must have the index {len(ledger)}; got {round.index}")
    if ledger and round.decision == "reject" and round.committed != ledger[-1].round.committed:
        raise ValueError(f"a rejected round must commit the state that was there, {ledger[-1].round.committed[:12]}; got {round.committed[:12]}")
    before = ledger[-1].hash if ledger else GENESIS
    text = json.dumps([before, round.to_json()], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return (*ledger, Entry(round, before, hashlib.sha256(text.encode("utf-8")).hexdigest()))
    ### END SOLUTION


# %% ng="test:append_round"
check(append_round)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> Somebody alters the cost of round 3 of 100. Which hashes change if they are all computed again? </details>
# <details><summary>Hint 2: where to look</summary> 6.5 hashed the canonical JSON of a mapping; here it is that of a list of two. <code>(*ledger, entry)</code> is a new tuple. </details>
# <details><summary>Hint 3: almost code</summary> Check index and reject; <code>before</code> is the last hash or GENESIS; the text is that of <code>[before, round.to_json()]</code>, hashed as in 6.5; <code>Entry(round, before, hash)</code>. </details>

# %% [markdown]
# {{card verify_ledger}}
#
# The other half: does this ledger hold together? Entry $n$ is **bad** if its round's index is not $n$, if `before` is not the hash *stored* in entry $n-1$ (`GENESIS` for the first), or if `hash` isn't what 6.8 gives for its own `before` and round. Return the first bad index.
#
# What this can't see: entries that were cut off at the end, and a ledger that was written anew from some point on. For both the last hash must be kept somewhere else: in the next ledger, with a reviewer, in print.

# %% ng="solution:verify_ledger"
def verify_ledger(ledger):
    """The first index at which a ledger does not hold together.

    ledger    tuple of Entry, perhaps empty
    returns   int, or None if every entry is good
    """
    ### BEGIN SOLUTION
    before = GENESIS
    for place, entry in enumerate(ledger):
        text = json.dumps([entry.before, entry.round.to_json()], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        expected = hashlib.sha256(text.encode("utf-8")).hexdigest()
        if (entry.round.index, entry.before, entry.hash) != (place, before, expected):
            return place
        before = entry.hash
    return None
    ### END SOLUTION


# %% ng="test:verify_ledger"
check(verify_ledger)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> The round of entry 3 was altered and its hash computed again. At which index does it show, and why not at 3? </details>
# <details><summary>Hint 2: where to look</summary> Compare <code>before</code> with the hash that is stored, and the stored hash with the one that you compute: two questions. </details>
# <details><summary>Hint 3: almost code</summary> A loop that carries <code>before</code>; return the place at the first of three inequalities; None at the end. </details>

# %% [markdown]
# {{card admit}}
#
# A run that stops *after* the budget is exceeded has exceeded it. A round's cost is known when it is over; its **bound**, the worst case, before it starts. With cost vectors (`Cost(tokens=..., updates=...)`; a component that is not named is 0),
#
# $$\text{admit}\iff \text{spent}_i+\text{bound}_i\le\text{budget}_i\ \text{ for every component } i .$$
#
# Every component that *any* of the three names: one that the budget does not name has the budget 0 there. Equality is admitted. If no admitted round costs more than its bound, no budget is ever exceeded, in any component: by construction, and without watching.

# %% ng="solution:admit"
def admit(round_cost_bound, spent, budget):
    """Whether a round of this worst-case cost may start.

    round_cost_bound, spent, budget   Cost: mappings from a component's name to a number >= 0; cost["x"] is 0 if x is not named
    returns                           True or False
    """
    ### BEGIN SOLUTION
    return all(spent[name] + round_cost_bound[name] <= budget[name] for name in {*spent, *round_cost_bound})
    ### END SOLUTION


# %% ng="test:admit"
check(admit)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> The bound has a component that the budget doesn't name. Is it free? </details>
# <details><summary>Hint 2: where to look</summary> Which names must be asked about, those of the budget or those of the costs? </details>
# <details><summary>Hint 3: almost code</summary> <code>all(spent[n] + bound[n] <= budget[n] for n in {*spent, *bound})</code>. </details>

# %% [markdown]
# ### Experiment F · Use a batch again until the gate says no
#
# A hasty clone, whose actions often can't even be read, is to learn to act so that the environment runs it; the score of an episode is the share of its actions that were run. The same clone is trained with fresh episodes for every update, with each batch used a fixed number of times (few, many), and with *your* `GradientGate`: at most as many times, but as soon as a proposal is rejected, new episodes are sampled. *Your*
# `append_round` writes every round, rejected ones too, and *your* `admit` decides whether the next may start.
#
# **Predict before you run:** which of the four rules gives the most quality for its sampled tokens? Where does the gate stand between many uses and fresh batches? What share of the cost is for proposals that came to nothing?

# %%
prediction_f = ""

# %% tags=["experiment"]
import copy

from course.accounting.ledger import total_cost
from course.feedback.events import FeedbackEvent
from course.training import gate as reuse
from course.training.grpo import GrpoConfig
from course.training.learner import Learner
from course.training.round import run_rounds, state_digest, tool_bound, tool_round

UPDATES, WINDOW, THRESHOLD, FEW_USES, MOST_USES, LR = (4 if FAST else reuse.UPDATES), 4, 1.0, 3, 8, 3e-3
CONFIG = GrpoConfig(reuse.GROUP_SIZE, beta=0.0, how="token", minibatches=1)
BOUND = tool_bound(groups=reuse.GROUPS, config=CONFIG)
start = reuse.small_clone(SEED)
held_out = tool_agent.held_out(16 if FAST else reuse.EVALUATED, horizons=reuse.HORIZONS)


def said_of(records, seed=0):
    """Feedback of a rule that reads the trajectory: the share of actions that were run, 0 for an episode that was cut off."""
    return [FeedbackEvent(r.content_hash, "score", reuse.executed_share(r), ("trajectory",), "executed_share", "1") for r in records]


def quality(policy):
    """The same on held-out tasks, one sampled episode each."""
    return statistics.mean(event.value for event in said_of(tool_agent.attempts(policy, held_out).records))


PARTS_OF_A_ROUND = tool_round(groups=reuse.GROUPS, config=CONFIG, tasks=reuse.small_tasks)
PARTS_OF_A_ROUND = replace(PARTS_OF_A_ROUND, feedback=said_of, versions={**PARTS_OF_A_ROUND.versions, "feedback": "executed_share@1"})


class Watched:
    """Your gate, or none, with what it was asked and what it said."""

    def __init__(self, own):
        self.window, self.threshold, self.own, self.asked = WINDOW, THRESHOLD if own else math.inf, own, []

    def decide(self, increment):
        said = self.own.decide(increment) if self.own else True
        self.asked.append((increment, said))
        return said


def train(gate, limit, budget, updates=UPDATES):
    """Rounds until `updates` are committed or your admit says no: (ledger by your append_round, [(sampled tokens, quality)])."""
    learner, ledger, curve = Learner({"actor": copy.deepcopy(start)}, lr=LR), (), []
    operators = reuse.GatedReuse(PARTS_OF_A_ROUND, gate, limit=limit, config=CONFIG).operators()
    committed = 0
    with tqdm(total=updates, desc=f"at most {limit} uses") as bar:
        while committed < updates and admit(BOUND, total_cost(ledger), budget):
            before = state_digest(learner)
            (entry,) = run_rounds(learner, operators, rounds=len(ledger) + 1, seed=SEED, ledger=ledger)
            ledger = append_round(ledger, entry.round)
            assert entry.round.decision == "accept" or state_digest(learner) == before  # weights and moments, bit for bit
            if entry.round.decision == "accept":
                committed += 1
                bar.update()
                if committed % max(1, updates // 6) == 0:
                    curve.append((total_cost(ledger)["sampled_tokens"], quality(learner["actor"])))
    return ledger, curve


PLENTY = Cost(**{name: 3 * UPDATES * BOUND[name] for name in BOUND})
yours = Watched(GradientGate(WINDOW, THRESHOLD))
RULES = {
    "fresh for every update": (Watched(None), 1), f"each batch {FEW_USES} times": (Watched(None), FEW_USES), f"each batch {MOST_USES} times": (Watched(None), MOST_USES),
    "until your gate rejects": (yours, MOST_USES),
}  # fmt: skip
made = {rule: train(gate, limit, PLENTY) for rule, (gate, limit) in RULES.items()}
before = quality(start)
tokens = {rule: total_cost(ledger)["sampled_tokens"] for rule, (ledger, _) in made.items()}
at_end = {rule: f"{curve[-1][1]:.0%} for {tokens[rule] / 1000:.0f} thousand tokens" for rule, (_, curve) in made.items()}
pictures.saved(
    {rule: {"x": [0, *(x / 1000 for x, _ in curve)], "y": [before, *(y for _, y in curve)]} for rule, (_, curve) in made.items()},
    x="sampled tokens, thousands", y="share of actions that are run",
    title=f"{UPDATES} updates: fresh batches {at_end['fresh for every update']}, {FEW_USES} uses each {at_end[f'each batch {FEW_USES} times']}, {MOST_USES} uses each {at_end[f'each batch {MOST_USES} times']}, with your gate {at_end['until your gate rejects']}",
)  # fmt: skip

# %% tags=["experiment"]
bounds, window = [], []
for increment, said in yours.asked:
    full = len(window) == WINDOW
    bounds.append(statistics.mean(window) + THRESHOLD * statistics.pstdev(window) if full else None)
    window = [*window, increment][-WINDOW:] if said else window
pictures.gate_log(
    [increment for increment, _ in yours.asked], [said for _, said in yours.asked], bounds, y="growth of the squared gradient norm of the head",
    title=f"Your gate was asked {len(yours.asked)} times and rejected {sum(not said for _, said in yours.asked)} proposals (first uses are not asked)",
)  # fmt: skip

# %% tags=["experiment"]
def bill(ledger, name):
    """(all, for rejected rounds) of one component."""
    return total_cost(ledger)[name], total_cost([entry for entry in ledger if entry.round.decision == "reject"])[name]


say(
    f"**What came out.** Before training {before:.0%}. After {UPDATES} committed updates:\n\n| rule | rounds | rejected | sampled tokens | trained tokens | for rejected ones | quality |\n|---|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| {rule} | {len(ledger)} | {sum(e.round.decision == 'reject' for e in ledger)} | {tokens[rule]:,.0f} | {bill(ledger, 'trained_tokens')[0]:,.0f} | {bill(ledger, 'trained_tokens')[1]:,.0f} ({bill(ledger, 'trained_tokens')[1] / bill(ledger, 'trained_tokens')[0]:.0%}) | {curve[-1][1]:.0%} |"
        for rule, (ledger, curve) in made.items()
    )
    + f"\n\nOne seed, {len(held_out)} held-out episodes. You predicted: {prediction_f or 'nothing'}."
)  # fmt: skip

# %% [markdown]
# Small differences mean nothing here: there are few held-out episodes, and one seed ranks no rules. A gate lets a batch serve until its gradient is unusual, and that can be too often: where a fixed small number of uses does as well for as many tokens, the gate has not earned its place. It rejects what is *unusual*: where the norm falls inside a batch as a rule, a smaller fall is unusual, and some of the crosses lie
# below 0.

# %% [markdown]
# Now the ledger of the gated run is attacked, in four ways, and *your* `verify_ledger` reads it. And the same run is made with a budget: in every component two fifths of what the run with fresh batches spent, and one worst case on top.

# %% tags=["experiment"]
ledger = made["until your gate rejects"][0]
place = len(ledger) // 2
cheaper = replace(ledger[place].round, cost={**ledger[place].round.cost, "trained_tokens": 1})
altered = (*ledger[:place], replace(ledger[place], round=cheaper), *ledger[place + 1 :])
resealed = (*ledger[:place], append_round(ledger[:place], cheaper)[-1], *ledger[place + 1 :])
rewritten = ledger[:place]
for entry in (cheaper, *(entry.round for entry in ledger[place + 1 :])):
    rewritten = append_round(rewritten, entry)
ATTACKS = {
    "untouched": ledger, "a cost altered": altered, "altered and sealed again": resealed, "a round taken out": ledger[:place] + ledger[place + 1 :],
    "all rewritten from there on": rewritten, "the last round cut off": ledger[:-1],
}  # fmt: skip
shown = altered[max(0, place - 3) :][:6]
pictures.chain(
    [{"index": e.round.index, "decision": e.round.decision, "cost": f"{e.round.cost.get('trained_tokens', 0):,} tokens", "hash": e.hash} for e in shown],
    verify_ledger(altered) - shown[0].round.index,
    title=f"A cost was altered in round {place}; your verify_ledger says {verify_ledger(altered)}",
)  # fmt: skip

# %% tags=["experiment"]
budget = Cost(**{name: math.ceil(0.4 * total_cost(made["fresh for every update"][0])[name]) + BOUND[name] for name in BOUND})
within, _ = train(Watched(GradientGate(WINDOW, THRESHOLD)), MOST_USES, budget)
spent = total_cost(within)
assert spent.fits(budget)
say(
    "| the ledger | your verify_ledger | last hash |\n|---|---|---|\n" + "\n".join(f"| {name} | {verify_ledger(attacked)} | `{attacked[-1].hash[:10]}` |" for name, attacked in ATTACKS.items())
    + "\n\nThe last two hold together; only the last hash, kept elsewhere, tells them from the true one.\n\n"
    + f"With the budget your `admit` let {len(within)} rounds start. Spent, of the budget: " + ", ".join(f"{name.replace('_', ' ')} {spent[name] / budget[name]:.0%}" for name in budget if spent[name])
    + f". The next round did not begin, since its worst case would not have fitted into {' and '.join(name.replace('_', ' ') for name in BOUND if spent[name] + BOUND[name] > budget[name]) or 'anything more'}."
)  # fmt: skip

# %% [markdown]
# **What the figures cannot show:** that the gate knows when reuse is harmful. It looks at one norm and compares it with the recent past; a policy that drifts slowly raises no alarm. Its window and threshold have to be found anew on another task. And a valid chain says that nobody altered the rounds, not that they say the truth: who writes lies into a ledger gets well-sealed lies.

# %% [markdown]
# ### Feedback is not credit
#
# "The reward of this token" mixes two things. **Feedback** is what a source said about an episode, of a kind (score, steps, preference, abstention), with what it could see at the time. **Credit** is what a rule made of it: numbers for tokens. The source may be wrong, or the rule; whoever stores only the numbers can't tell. One round of the kind above, in its parts:

# %% tags=["experiment"]
kept = []
learner = Learner({"actor": copy.deepcopy(start)}, lr=LR)
for _ in run_rounds(learner, PARTS_OF_A_ROUND, rounds=1, seed=SEED, keep=kept.append):
    pass
(one,) = kept
by_value = {event.value: (event, credit) for event, credit in zip(one.events, one.credits)}
silent = FeedbackEvent(one.events[0].record, "abstention", None, ("trajectory",), "a judge", "7", reason="the judge timed out")
say(
    "| feedback: kind | value | it saw | source | credit: rule | targets, one per action token |\n|---|---|---|---|---|---|\n"
    + "\n".join(
        f"| {event.kind} | {event.value:.2f} | {', '.join(event.observed)} | {event.source}@{event.version} | {credit.rule}@{credit.version} | {', '.join(f'{x:.2f}' for x in credit.targets[:3])}, ... ({len(credit.targets)}) |"
        for event, credit in list(by_value.values())[:4]
    )
    + f"\n| {silent.kind} | {silent.value} | {', '.join(silent.observed)} | {silent.source}@{silent.version} | none: no rule is asked | none |\n\n"
    + "Every token of an episode has the same target here, whichever of them was the mistake: that is the doing of the rule of credit, and not of the source. This rule standardises within a group of " + f"{reuse.GROUP_SIZE}" + ": a single episode that scored gets the same target whatever it scored, and a group of equal scores gets 0."
)  # fmt: skip

# %% [markdown]
# ### A forecast is a guess
#
# Weights often move along few directions, so one can guess where they will be: NExt fits low-rank factors to differences of checkpoints and jumps ahead [D]. Nothing that was sampled is learned from in the jump, and nothing is verified before it. So it is a *proposal* like any other, a round with a bill (storage, decomposition, fit), and updates behind it, the **recovery**, are measured. And it needs a convention: singular vectors have no sign of their own. A forecast by
# projectors $uu^\top$ doesn't depend on the choice; one by the factors $u$, $v$ does, unless a convention is declared.

# %% tags=["experiment"]
from course.training.extrapolation import factors, jump_run, projector_change, signed_change

draw = torch.Generator().manual_seed(SEED)
walk = [torch.zeros(6, 4, dtype=torch.float64)]
for _ in range(3):
    walk.append(walk[-1] + torch.randn(6, 4, generator=draw, dtype=torch.float64))


def flipped(f):
    """The same matrix, the other sign in both factors."""
    return f._replace(u=-f.u, v=-f.v)


along, steps_apart = factors(walk[-1], 2), [factors(b - a, 2) for a, b in zip(walk, walk[1:])]
moved_projector = float((projector_change(walk, along, 2) - projector_change(walk, flipped(along), 2)).norm())
moved_signed = float((signed_change(steps_apart, 2) - signed_change([flipped(steps_apart[0]), *steps_apart[1:]], 2)).norm())

TRAINED, EVERY, AHEAD, RECOVERY = (2, 1, 1, 1) if FAST else (8, 2, 3, 4)
jump = jump_run(
    SEED, start, PARTS_OF_A_ROUND, quality, lr=LR, trained=TRAINED, every=EVERY, horizon=AHEAD, recovery=RECOVERY, rank=2,
)  # fmt: skip
q, replaced = jump.quality, AHEAD * EVERY
pictures.saved(
    {
        "plain training": {"x": [0, TRAINED, TRAINED + RECOVERY, TRAINED + replaced + RECOVERY], "y": [q["start"], q["trained"], q["short"], q["long"]]},
        f"a jump in place of {replaced} rounds, then recovery": {"x": [TRAINED, TRAINED + 1, TRAINED + 1 + RECOVERY], "y": [q["trained"], q["jumped"], q["recovered"]]},
    },
    x="rounds that were made", y="share of actions that are run",
    title=f"Quality {q['trained']:.0%} before the jump, {q['jumped']:.0%} after it, {q['recovered']:.0%} after recovery; with the {replaced} rounds made instead {q['long']:.0%}",
)  # fmt: skip

# %% tags=["experiment"]
saved_tokens = 1 - jump.cost["jumping"]["sampled_tokens"] / jump.cost["long"]["sampled_tokens"]
say(
    f"The other sign in one decomposition changes the projector forecast by {moved_projector:.1e} and the forecast by factors by {moved_signed:.2f} (norm). The jump saves {saved_tokens:.0%} of the sampled tokens; it needs "
    f"{jump.cost['jumping']['stored_bytes'] / 1e6:.1f} MB of checkpoints and {jump.cost['jumping']['fit_flops'] / 1e6:.0f} million operations. One run of one seed shows how such a jump is booked, not whether it pays."
)

# %% [markdown]
# {{card test_vtrace}}
#
# **Bug hunt.** A wrong V-trace raises no error and stops no training: the policy learns, only something else or slower. So it is held against numbers that are known before.
#
# Write a test that gets *some* implementation of `vtrace` with the arguments of 6.1 and raises if it is wrong. It will meet right and wrong ones in a secret order; rejecting a right one scores 0. Wrong ones turn the ratio over; forget the bootstrap; take a truncation for a termination, or a termination for a truncation; carry the trace over a cut, take the next
# episode's value there, or use `next_values` a step too late; clip $\rho$ at $\bar c$, $c$ at $\bar\rho$, or both; leave the ratios of the advantages unclipped, or clip them at another bound than `pg_rho_bar`; build the advantage on $V_{t+1}$ where $v_{t+1}$ belongs, or take $v_t-V_t$ for it; leave the discount or $\lambda$ out of the trace, or $\lambda$ out of the advantage
# only; let a gradient through the ratios or the values; or stop the loop before the first column.
#
# Right ones do what 6.1 says, for inputs that 6.1 allows, and differ in the last digits: compare with a tolerance. Run it on your own first: it must pass.

# %% ng="solution:test_vtrace"
def test_vtrace(vtrace):
    """Raise if `vtrace` is not a right vtrace(behaviour_logp, target_logp, rewards, values, discounts, bootstrap, ...); return None if it is."""
    ### BEGIN SOLUTION
    generator = torch.Generator().manual_seed(611)
    mu, pi, r, v, g, n = torch.randn(6, 5, 7, generator=generator, dtype=torch.float64)
    mu, pi, g = mu - 3, pi - 3, 0.6 + 0.3 * torch.sigmoid(g)
    last = torch.tensor([1.5, -2.0, 0.7, 3.0, -1.0], dtype=torch.float64)
    for row, step in ((0, 2), (1, 6), (2, 0), (4, 3)):
        g[row, step] = 0.0  # terminated
    cuts = torch.full_like(v, math.nan)
    for row, step in ((0, 4), (1, 1), (2, 6), (3, 0), (3, 3)):
        cuts[row, step] = n[row, step]

    def by_hand(rho_bar=1.0, c_bar=1.0, pg_rho_bar=None, lambda_=1.0, next_values=None):
        targets, advantages = v.clone(), torch.zeros_like(v)
        for row in range(5):
            error, following = 0.0, float(last[row])
            for t in reversed(range(7)):
                cut = next_values is not None and not math.isnan(next_values[row, t])
                if cut:
                    error, following = 0.0, float(next_values[row, t])
                w = math.exp(pi[row, t] - mu[row, t])
                carried = float(g[row, t]) * lambda_ * error
                one_step = float(r[row, t] + g[row, t] * following - v[row, t])
                advantages[row, t] = min(w, rho_bar if pg_rho_bar is None else pg_rho_bar) * (one_step + carried)
                error = min(w, rho_bar) * one_step + min(w, c_bar) * carried
                targets[row, t] += error
                following = float(v[row, t])
        return targets, advantages

    for options in (
        {}, {"next_values": cuts}, {"rho_bar": 2.0, "c_bar": 0.7}, {"rho_bar": 1.5, "c_bar": 0.8, "pg_rho_bar": 0.6, "next_values": cuts},
        {"rho_bar": 1.2, "pg_rho_bar": 2.5, "lambda_": 0.6}, {"lambda_": 0.7, "next_values": cuts}, {"rho_bar": math.inf, "c_bar": 1.5, "lambda_": 0.0},
    ):  # fmt: skip
        got = vtrace(mu.clone(), pi.clone(), r.clone(), v.clone(), g.clone(), last.clone(), **options)
        for name, one, other in zip(("vs", "advantages"), got, by_hand(**options), strict=True):
            assert torch.allclose(one.double(), other, rtol=1e-6, atol=1e-8), f"{name} with {options}"
    leaves = [x.clone().requires_grad_() for x in (mu, pi, v, last)]
    for result in vtrace(leaves[0], leaves[1], r, leaves[2], g, leaves[3], rho_bar=3.0, c_bar=3.0, next_values=cuts):
        assert not result.requires_grad, "targets and advantages are constants"
    ### END SOLUTION


# %% ng="test:test_vtrace"
check(test_vtrace)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> With which inputs does each fault in the list change nothing? With $\gamma=1$ a forgotten discount is invisible, on equal policies every bound. </details>
# <details><summary>Hint 2: where to look</summary> Rows of several episodes, ends and cuts in the middle; ratios on both sides of three different bounds; discounts and lambda below 1 and different; a bootstrap and cut values that are not 0. And leaves with <code>requires_grad_()</code>, for the last kind. </details>
# <details><summary>Hint 3: almost code</summary> Compute both results for small rows with plain loops over floats; compare for half a dozen settings of the options with <code>torch.allclose</code>; then <code>assert not result.requires_grad</code>. </details>

# %% [markdown]
# ## Part E · Exit test: where did the improvement come from?

# %% [markdown]
# {{card attribute}}
#
# A system got better. In the same release the actor was trained further, the environment gave clearer observations, the reward was changed, a router sends hard tasks to a slower policy, and at inference several answers are searched. "The new model is better" is one of thirty-two possible stories. Before and after can't tell them apart; a **factorial** experiment can: all $2^5$ combinations of old ($-1$) and new ($+1$), each run with several seeds.
#
# With levels $x_{ia}\in\{-1,+1\}$ of factor $a$ in run $i$ and outcome $y_i$, fit by least squares
#
# $$y_i=\beta_0+\sum_a\beta_a\,x_{ia}+\sum_{a<b}\beta_{ab}\,x_{ia}x_{ib}+\text{noise}_i .$$
#
# $\beta_a$ is the **main effect**: half of what changing $a$ from old to new changes, averaged over all settings of the others. $\beta_{ab}$ is the **interaction**: whether changing $a$ does more, or less, once $b$ is new. A search that pays only with the new reward raises both main effects, but only the interaction says that it takes the two together. ($\beta$ here is a coefficient of the fit, not the price of KL.)
#
# Each estimate has a 95 % interval by the **percentile bootstrap**: draw the runs again with replacement, *within each cell* (each combination of levels keeps its number of runs), fit again; a thousand times; the interval runs from the 2.5 % to the 97.5 % quantile of the thousand estimates. The draws are seeded inside, so that equal runs give equal effects.

# %%
print(FACTORS)
for kind in (FactorRun, Effect):
    print(kind.__name__, [f.name for f in fields(kind)])

# %% ng="solution:attribute"
def attribute(runs):
    """Main effects and two-way interactions of a factorial experiment.

    runs      sequence of FactorRun(levels: {factor: -1 or +1}, outcome: float, seed: int), in any order: a full factorial of one or more
              factors; ValueError if there are none, factors differ, or a cell has fewer than two runs (no noise to draw from)
    returns   dict of Effect(estimate, low, high), outcome units: first the factors in the order of runs[0].levels, then "a:b" for
              each pair, a before b in that order. 1000 bootstrap draws within cells
    """
    ### BEGIN SOLUTION
    if not runs:
        raise ValueError("runs must not be empty")
    names = tuple(runs[0].levels)
    pairs = list(combinations(range(len(names)), 2))
    if any(set(run.levels) != set(names) for run in runs):
        raise ValueError(f"runs must all have the factors {names}")
    cells = [tuple(run.levels[name] for name in names) for run in runs]
    if any(cells.count(cell) < 2 for cell in product((-1, 1), repeat=len(names))):
        raise ValueError(f"runs must hold at least two of each of {2 ** len(names)} cells")
    design = torch.tensor([[1, *x, *(x[i] * x[j] for i, j in pairs)] for x in cells], dtype=torch.float64)
    solve = torch.linalg.pinv(design)
    outcomes = torch.tensor([float(run.outcome) for run in runs], dtype=torch.float64)
    draw, picked = torch.Generator().manual_seed(0), torch.empty(1000, len(runs), dtype=torch.long)
    for cell in dict.fromkeys(cells):
        members = torch.tensor([i for i, other in enumerate(cells) if other == cell])
        picked[:, members] = members[torch.randint(len(members), (1000, len(members)), generator=draw)]
    ends = torch.quantile(outcomes[picked] @ solve.T, torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    keys = [*names, *(f"{names[i]}:{names[j]}" for i, j in pairs)]
    estimates = (solve @ outcomes).tolist()
    return {key: Effect(estimates[k], float(ends[0, k]), float(ends[1, k])) for k, key in enumerate(keys, 1)}
    ### END SOLUTION


# %% ng="test:attribute"
check(attribute)

# %% [markdown]
# <details><summary>Hint 1: a question</summary> In a full factorial with equally many runs per cell every column of the design is orthogonal to every other. What is $\beta_a$ then, in words? </details>
# <details><summary>Hint 2: where to look</summary> One row per run: a 1, the levels, the products of pairs. <code>torch.linalg.pinv(design) @ outcomes</code>. Within cells the design stays the same in every draw, so one pseudo-inverse serves all. </details>
# <details><summary>Hint 3: almost code</summary> Indices by cell; 1000 rows of indices drawn with replacement from their own cell; <code>outcomes[picked] @ pinv.T</code>; its quantiles 0.025 and 0.975 along the draws. </details>

# %% [markdown]
# ### Experiment G · A mystery system
#
# A product in small: the two policies that were trained above answer the tasks of level 4, and five switches have an old and a new position.
#
# | switch | old | new |
# |---|---|---|
# | actor | the clone | the clone after some steps of RL |
# | environment | tools that fail now and then | reliable tools |
# | reward | attempts are chosen by the policy's own confidence | by a rule that reads the record |
# | router | some tasks, drawn by lot, may take more actions | as many tasks, but those that a learned router picks |
# | search | one attempt | the best of four |
#
# In a **mystery** each switch is connected, or a placebo that does nothing; a seed has decided. All 32 settings are evaluated, `RUNS` times each, on tasks drawn anew from attempts that were made once beforehand, and *your* `attribute` reads the outcomes.
#
# **Predict before you run:** choosing needs something to choose from. Which interaction do you expect, if both its switches are connected? And how many of the effects that are exactly 0 will have an interval without 0 in it?

# %%
prediction_g = ""

# %% tags=["experiment"]
from course.systems import product as shop
from course.systems.ablation import MATTERS, causes, mystery_system
from course.systems.router import learned_routes

N_TASKS, RUNS, N_MYSTERIES = (24, 2, 2) if FAST else (shop.TASKS, 16, 8)
tried = shop.product_attempts((clone_policy, trained_policy), SEED, tasks=N_TASKS, samples=4 if FAST else shop.SAMPLES)
seen, asked = tried.part(slice(0, N_TASKS // 3)), tried.part(slice(N_TASKS // 3, None))
routes = learned_routes(seen, asked, SEED)  # the router is trained on other tasks than it is tried on
mysteries = [mystery_system(asked, routes, SEED + i, runs=RUNS) for i in tqdm(range(N_MYSTERIES), desc="mysteries")]
mystery = mysteries[0]
found = attribute(mystery.runs)
by_cell = {}
for run_of_cell in mystery.runs:
    by_cell.setdefault(tuple(run_of_cell.levels.values()), []).append(run_of_cell.outcome)
old, new = (statistics.mean(by_cell[(level,) * len(FACTORS)]) for level in (-1, 1))
named = causes(found)
large = [name.replace(":", " × ") for name in named if abs(found[name].estimate) >= MATTERS]
pictures.attribution(
    found, mystery.causes, x=f"half of the change in the share right, 95 % interval (star: truly at least {MATTERS:g})",
    title=f"All old {old:.0%}, all new {new:.0%}; largest causes by your attribute: {', '.join(large[:3]) or 'none'}{f' and {len(large) - 3} more' if len(large) > 3 else ''}",
)  # fmt: skip

# %% tags=["experiment"]
rows = []
for number, other in enumerate(mysteries):
    said = set(causes(attribute(other.runs)))
    real = [factor for factor in FACTORS if other.real[factor]]
    rows.append((number, real, set(other.causes) - said, said & set(other.innocent)))
say(
    f"**What came out.** Connected in the first mystery: {', '.join(rows[0][1])}. You predicted: {prediction_g or 'nothing'}. In {len(rows)} mysteries, with effects of at least {MATTERS:g} as causes:\n\n"
    "| mystery | connected | causes missed | named though exactly 0 |\n|---|---|---|---|\n"
    + "\n".join(f"| {number} | {', '.join(real)} | {', '.join(sorted(missed)) or 'none'} | {', '.join(sorted(wrong)) or 'none'} |" for number, real, missed, wrong in rows)
    + f"\n\nWith intervals of 95 %, about {sum(len(other.innocent) for other in mysteries) * 0.05:.0f} false names were to be expected among {sum(len(other.innocent) for other in mysteries)} effects that are exactly 0; there are {sum(len(wrong) for *_, wrong in rows)}."
)  # fmt: skip

# %% [markdown]
# A name without a star is no error unless its true effect is exactly 0: the effect may be real and small. Where reward and search are both connected, look at their interaction: with one attempt there is nothing to choose from, so the reward has no effect of its own; its main effect is half of its effect with four attempts, and the interaction is as large.
#
# "The new model" is the actor alone. Evaluate it by itself (fixed tools, one attempt, no router) and the system as it is used, and report both: a product can get better while its policy stays as it was [I].
#
# **What the figure cannot show:** interactions of three and more, which the model leaves to the noise; factors that nobody varied; and other levels than the two that were tried. With fifteen intervals of 95 % one may exclude 0 by chance, so an effect that nobody expected is measured again before it is believed.

# %% [markdown]
# ## Your ledger
#
# At its end, level 7 audits a run: yours. The next cell writes the ledger of Experiment F, made by your own `append_round`, as JSON, and says where it lies. Keep the file; in level 7 you paste its text.

# %% tags=["experiment"]
import course
from course.evidence.checklist import checklist, export

gated_ledger = made["until your gate rejects"][0]
declaration = {
    "source": {"revision": f"agentic-rl-course {course.__version__}", "license": "MIT"},
    "tokenizer": tool_agent.TOKENIZER.digest(), "serializer": tool_agent.SERIALIZER.digest(),
    "split": {"by": "pool of shelves", "train": len({name for entry in gated_ledger for name in entry.round.instance}), "held_out": len(held_out)},
    "demonstrations": reuse.SHOWN,
    "optimizer": {"name": "AdamW", "lr": LR, "batch": reuse.GROUPS * reuse.GROUP_SIZE, "clip": CONFIG.clip_high, "kl": None, "entropy": None, "value": None},
    "rewards": {"raw": "feedback events by executed_share@1", "scalarization": "the share of actions that were run, 0 if the episode was cut off"},
    "failures": {"failed": 0, "filtered": 0},
    "runs": {"seeds": [SEED]},
    "evaluation": {"not applicable": "a rule counts the actions that were run; nobody's judgement is part of the target"},
}  # fmt: skip
text = export(gated_ledger, declaration)
# In the folder that this notebook is written in nothing is left behind.
target = (SCRATCH if Path("lab.py").exists() else Path.cwd()) / "my_run.json"
target.write_text(text)
items = checklist(text)
say(
    f"Written to `{target}`: {len(gated_ledger)} rounds, {len(text) / 1000:.0f} kB, last hash `{gated_ledger[-1].hash[:12]}`. It begins `{text[:90]}`.\n\n"
    f"The checklist of level 7 finds {sum(item.status == 'met' for item in items)} of {len(items)} items recorded. Not recorded: "
    + ", ".join(f"{item.field} (`{item.place}`)" for item in items if item.status == "missing")
    + ". What a single small run can't say it should not say."
)

# %% [markdown]
# ## Questions, marked by a person

# %% [markdown]
# **Q1.** A report says: "Asynchronous training with a staleness of at most 4 reached the reward of synchronous training in half the time." Name three things that the sentence leaves open and that could reverse its meaning, and say what you would measure for each.

# %% [markdown] ng="manual:question_staleness:3"
# Open: (1) what staleness counts: from the first or the last version of a rollout, a mean or a maximum, and whether older samples were dropped (whole episodes, mostly long ones) or corrected; measure the lags from the first version, the dropped share by stratum, ratio quantiles and effective sample size. (2) Which tasks were in the batches: completed-first batches raise the
# training reward because short tasks are easier; measure strata at sampling, completion, reward and optimisation, and success on a fixed held-out set by horizon. (3) What was equal: wall clock, sampled tokens, updates, machines; the dropped and rejected work belongs to the cost. Also: one run or several, intervals. *(Full marks: three points of which at least two could reverse the finding, each with its measurement.)*

# %% [markdown]
# **Q2.** A reward service times out for 6 % of the episodes, nearly all of them long. One engineer sets their reward to 0, another drops them, a third waits for them. What does each do to what is learned (think of the group baseline, too), and what would you do?

# %% [markdown] ng="manual:question_timeout:3"
# 0: a judgement nobody made; long tasks look bad, the policy learns to be short or to give up, and inside a group the other samples' advantages rise because the mean falls. Dropping: no false value, but long tasks are underrepresented, and if timeouts depend on the episode (long answers), the selection is biased; groups shrink, their baseline must be taken over those that
# have a reward. Waiting: no bias, but one service blocks all, and what comes is old. Instead: missing stays missing (an event of its own kind, no zero), the others go on, retries with a deadline; batches by quota so that long strata are represented; late rewards used within the staleness limit with correction; report missing rates by stratum, mend the service. *(Full marks: zero as a false
# judgement including the baseline; selection by dropping; a design in which missing is recorded and does not block.)*

# %% [markdown]
# **Q3.** A team takes the full system, switches off each of five parts in turn, and reports the drops: they add up to 140 % of the whole improvement. Is there a mistake? What do such one-at-a-time numbers measure, and which experiment would you run on half the budget of a full factorial?

# %% [markdown] ng="manual:question_ablation:3"
# No mistake is needed: with a positive interaction the drop of each of two parts contains it, so it is counted twice (switching off either destroys it); with redundant parts the sum would be below 100 %. Each number is the effect of one part *with all others on*, not an average effect and no share of the improvement; shares exist only without interactions. On half the budget: a fractional factorial
# with 16 of the 32 settings, chosen so that main effects and pairs are not confounded with each other (defining word of five letters), several seeds per setting, intervals; then repeat the decisive settings. Or: fewer factors. *(Full marks: interaction counted twice; what a leave-one-out number means; a design with fewer runs that still separates pairs, or a reasoned choice of factors.)*

# %% [markdown]
# ## What to read next
#
# - Espeholt et al. (2018), IMPALA: V-trace, and the argument for its fixed point. Abramson et al. (2022), Improving multimodal interactive agents with RLHF; the case notebook `case_playhouse`.
# - Miao et al. (2026), When to stop reusing: dynamic gradient gating. Chen et al. (2026), on low-rank forecasts of training.
# - The reports on asynchronous RL of language models: AReaL, PipelineRL, prime-rl; and DeepSeek-V4's on token-level write-ahead logs.
# - Box, Hunter and Hunter, Statistics for Experimenters, on factorial designs.
# - In this package, after handing in: `course/systems`, from the engines to the simulation, and `course/training/round.py`, one round on one screen. Next: level 7, where you read what others say about their systems, and then your own ledger with the same eyes.

# %%
from course.doctor import peak_memory

print(f"peak memory {peak_memory():.0f} MB")
