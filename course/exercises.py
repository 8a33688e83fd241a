"""Every exercise of the labs, from the room it belongs to: `from course.exercises import dpo_loss`."""

# level 0
from course.language.masking import action_mask as action_mask
from course.masks import masked_mean as masked_mean
from course.models.attention import causal_attention as causal_attention
from course.models.score import find_actions as find_actions
from course.objectives.supervised import sft_loss as sft_loss
from course.prob import (
    entropy as entropy,
    kl_divergence as kl_divergence,
    kl_estimates as kl_estimates,
    log_softmax as log_softmax,
    token_logprobs as token_logprobs,
)

# level 1
from course.feedback.calibration import expected_calibration_error as expected_calibration_error
from course.feedback.queries import query_priority as query_priority, select_queries as select_queries
from course.feedback.reward_model import last_token_score as last_token_score
from course.objectives.direct import dpo_loss as dpo_loss, optimal_policy as optimal_policy
from course.objectives.preference import (
    grouped_ranking_loss as grouped_ranking_loss,
    intertemporal_loss as intertemporal_loss,
    pairwise_reward_loss as pairwise_reward_loss,
    ranking_pairs as ranking_pairs,
    soft_label_loss as soft_label_loss,
)
from course.tasks.splits import split_by_group as split_by_group
from course.training.tail import reward_scores as reward_scores

# level 2
from course.credit.groups import (
    group_relative_advantages as group_relative_advantages,
    leave_one_out_advantages as leave_one_out_advantages,
)
from course.credit.returns import (
    discounted_returns as discounted_returns,
    generalized_advantage_estimation as generalized_advantage_estimation,
    shaped_token_rewards as shaped_token_rewards,
    whiten as whiten,
)
from course.objectives.aggregation import aggregate as aggregate
from course.objectives.policy_gradient import (
    clip_report as clip_report,
    overlong_penalty as overlong_penalty,
    ppo_actor_loss as ppo_actor_loss,
    ppo_ptx_loss as ppo_ptx_loss,
)
from course.objectives.value import critic_loss as critic_loss
from course.training.overoptimisation import overoptimisation_alarm as overoptimisation_alarm

# level 3
from course.search.best_of import (
    best_of_n as best_of_n,
    best_of_n_kl as best_of_n_kl,
    expected_best_of_n as expected_best_of_n,
    pass_at_k as pass_at_k,
)
from course.search.consensus import consensus as consensus
from course.search.frontier import frontier_table as frontier_table
from course.search.pareto import pareto_front as pareto_front
from course.search.process import process_score as process_score
from course.search.proofs import solve as solve

# level 4
from course.credit.turns import action_logprob as action_logprob, trajectory_mask as trajectory_mask
from course.envs.authorisation import authorize as authorize
from course.envs.kernel import step as step
from course.envs.signatures import sign_result as sign_result, verify_result as verify_result
from course.envs.three_tools import decode_action as decode_action, encode_action as encode_action
from course.feedback.verifiers import verify_answer as verify_answer
from course.objectives.trajectory import cloning_loss as cloning_loss
from course.rollout.replay import replay as replay

# level 5
from course.credit.potential import potential_rewards as potential_rewards
from course.envs.repository import closed_switches as closed_switches
from course.feedback.citations import entails as entails
from course.feedback.constraints import lagrangian_step as lagrangian_step
from course.feedback.length import remove_length_effect as remove_length_effect
from course.feedback.monitors import audit as audit, diff_monitor as diff_monitor, find_canaries as find_canaries
from course.feedback.naive_grader import forged_submission as forged_submission
from course.feedback.rules import fit_rule_weights as fit_rule_weights
from course.feedback.vectors import gate as gate, lexicographic as lexicographic, scalarize as scalarize

# level 6
from course.accounting.budget import admit as admit
from course.accounting.ledger import append_round as append_round, verify_ledger as verify_ledger
from course.credit.vtrace import vtrace as vtrace
from course.language.stamp import policy_stamp as policy_stamp
from course.rollout.attempts import attempt_annotations as attempt_annotations
from course.systems.ablation import attribute as attribute
from course.systems.batching import balanced_batch as balanced_batch
from course.systems.staleness import effective_sample_size as effective_sample_size, staleness_report as staleness_report
from course.training.gate import GradientGate as GradientGate

# level 7
from course.evidence.claims import conflicts as conflicts
from course.evidence.entailment import follows as follows
from course.evidence.numbers import (
    implied_human_rate as implied_human_rate,
    per_unit as per_unit,
    read_number as read_number,
)
