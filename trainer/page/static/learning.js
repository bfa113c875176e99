// The curves: what the policy learns, how old its rollouts are, how fast they come.

import { chart, longest, several } from "./charts.js";
import { el, empty, put, section } from "./dom.js";
import { decimal, short } from "./text.js";

const two = (value) => decimal(value, 2);

export function learning() {
  const made = section("learning", "Learning and pace");
  const drawn = {
    reward: chart("Reward", "mean of a step, by environment", { show: two }),
    held: chart("Held-out accuracy", "by environment", { show: two, zero: true }),
    length: chart("Length", "tokens off the announced budget", { show: short, zero: true, optional: true }), // where budgets are announced
    staleness: chart("Staleness", "steps that rollouts are behind", { show: two, zero: true }),
    rollouts: chart("Rollouts", "per minute, as submitted", { show: short, time: true, zero: true }),
    tokens: chart("Tokens", "per minute, as submitted", { show: short, time: true, zero: true }),
    seconds: chart("Time of a step", "seconds by phase", { show: short, zero: true }),
    completion: chart("Answers", "tokens, mean of a step", { show: short, zero: true }),
    entropy: chart("Entropy", "nats per token", { show: two, zero: true }),
  };
  const charts = el("div", { class: "charts" }, ...Object.values(drawn).map((each) => each.outer));
  return {
    names: ["charts"],
    outer: made.outer,
    show(said) {
      const { steps, held_out: held, pace } = said;
      if (!steps.length && !held.steps.length && !pace.minutes.length) {
        put(made.body, empty("Nothing yet: the curves begin with the first submission and the first step."));
        return;
      }
      if (!charts.isConnected) put(made.body, charts);
      drawn.reward.show(steps, several("all", said.reward, said.reward_by_environment));
      drawn.held.show(held.steps, several("all", held.score, held.by_environment));
      drawn.length.show(steps, several("all", said.length_error, said.length_error_by_environment));
      drawn.staleness.show(steps, { mean: said.staleness });
      drawn.rollouts.show(pace.minutes, { rollouts: pace.rollouts });
      drawn.tokens.show(pace.minutes, { tokens: pace.tokens });
      drawn.seconds.show(steps, longest(said.seconds));
      drawn.completion.show(steps, { length: said.completion_length });
      drawn.entropy.show(steps, { entropy: said.entropy });
    },
  };
}
