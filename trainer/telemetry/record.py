"""The numbers of a step's record (report.py), each with its unit and its meaning: the help of `murmur_trainer_NAME` at /metrics.

A name that is not listed here is written like the others, and a test misses it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """`of`: what the parts of a nested number are, "" where it is not nested."""

    name: str
    unit: str
    text: str
    of: str = ""


_ENVIRONMENT = "environment"

NUMBERS = (
    Number("step", "step", "The step that these numbers are of; evaluations come later than their steps."),
    Number("time", "s", "Unix time at which the step ended."),
    Number("loss", "1", "Loss of the policy, without KL and entropy; mean over the step's optimizer steps."),
    Number("entropy", "nats", "Mean entropy of the policy over the tokens learnt from."),
    Number("clipped", "share", "Share of tokens without a gradient because their ratio was clipped."),
    Number("clipped_positive", "share", "Share of tokens that were clipped and have a positive advantage."),
    Number("clipped_negative", "share", "Share of tokens that were clipped and have a negative advantage."),
    Number("log_ratio", "nats", "Mean absolute log-ratio of new to old logprobs."),
    Number("behaviour_gap", "nats", "Mean absolute difference between the trainer's logprobs and those that nodes claimed."),
    Number("kl", "nats", "Estimated divergence from the reference; 0 where it has no weight."),
    Number("gradient_norm", "1", "Largest norm of the gradient among the step's optimizer steps."),
    Number("tokens", "tokens", "Completion tokens that the step learnt from."),
    Number("skipped", "steps", "Optimizer steps left out because their loss or gradient was not finite."),
    Number("learning_rate", "1", "Learning rate of the step's last optimizer step."),
    Number("reward", "1", "Mean reward of what came in since the last step."),
    Number("reward_deviation", "1", "Standard deviation of the reward over those samples."),
    Number("task_reward", "1", "Mean reward for the task alone, without the length penalty."),
    Number("length_penalty", "1", "Mean penalty for answers that are off their length budget."),
    Number("length_error", "tokens", "Mean tokens off the announced budget, as far as they cost."),
    Number("completion_length", "tokens", "Mean length of the answers that came in since the last step."),
    Number("completion_length_max", "tokens", "Length of the longest of them."),
    Number("truncated_share", "share", "Share of those answers that do not end with an end token."),
    Number("reward_by_environment", "1", "Mean reward since the last step, by environment.", _ENVIRONMENT),
    Number("task_reward_by_environment", "1", "Mean reward for the task alone, by environment.", _ENVIRONMENT),
    Number("length_error_by_environment", "tokens", "Mean tokens off the budget, by environment.", _ENVIRONMENT),
    Number("zero_advantage_share", "share", "Share of groups whose samples all got the same task reward."),
    Number("dropped_groups", "groups", "Groups that came in since the last step and no batch will have, by reason.", "reason"),
    Number("zero_advantage_by_environment", "groups", "Groups that the online filter dropped, by environment.", _ENVIRONMENT),
    Number("samples", "samples", "Samples that came in since the training began."),
    Number("generated_tokens", "tokens", "Tokens of the samples that came in since the training began."),
    Number("groups", "groups", "Groups that came in since the training began."),
    Number("zero_advantage_groups", "groups", "Groups since the training began whose samples all got the same task reward."),
    Number("stale_groups", "groups", "Groups since the training began that were too old to be learnt from."),
    Number("duplicate_groups", "groups", "Groups since the training began that were there already."),
    Number("bad_groups", "groups", "Groups since the training began that could not be learnt from."),
    Number("bad_files", "files", "Rollout files since the training began that could not be read."),
    Number("trained_share", "share", "Share of accepted groups with a signal that were learnt from before they were too old."),
    Number("unjudged_submissions", "submissions", "Submissions that became too old before any validator had judged them."),
    Number("staleness", "versions", "Mean age of the batch, in versions."),
    Number("staleness_groups", "groups", "Groups of the batch, by their age in versions.", "age"),
    Number("nodes", "nodes", "Nodes whose work is in the batch."),
    Number("seconds", "s", "Time of the step by phase, all threads together.", "phase"),
    Number("tokens_per_second", "tokens/s", "Tokens through the model, prompts included, per second of training."),
    Number("mfu", "share", "Share of the device's peak that the training used; needs peak_tflops."),
    Number("bytes_broadcast", "bytes", "Bytes of weights that the origin has served."),
    Number("alarms", "alarms", "Alarms of the step: signals that came before every collapse that was seen."),
    Number("held_out_score", "share", "Score of the last evaluation on the held-out problems."),
    Number("held_out_by_environment", "share", "Score of the last evaluation, by environment.", _ENVIRONMENT),
    Number("held_out_length_error", "tokens", "Mean tokens off the budget in the last evaluation."),
)  # fmt: skip

TEXTS = {number.name: number.text for number in NUMBERS}
