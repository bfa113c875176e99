// The curves: what the policy learns, against the base model; how the optimizer fares; how fast it goes.

import { chart, longest, several } from "./charts.js";
import { el, empty, put, section } from "./dom.js";
import { decimal, short } from "./text.js";

const two = (value) => decimal(value, 2);
const three = (value) => decimal(value, 3);
const tiny = (value) => (value === 0 ? "0" : Math.abs(value) < 0.01 ? value.toExponential(1) : three(value));

export function learning() {
  const made = section("learning", "Learning");
  const note = el("p", { class: "note" });
  const drawn = {
    reward: chart("Reward", "mean of a step, by environment", { show: two }),
    held: chart("Held-out accuracy", "against the base model", { show: two, zero: true }),
    loss: chart("Loss", "of the policy, without KL and entropy", { show: three }),
    gradient: chart("Gradient norm", "largest of a step", { show: three, zero: true }),
    kl: chart("KL", "to the reference", { show: tiny, zero: true, optional: true }),
    entropy: chart("Entropy", "nats per token", { show: two, zero: true }),
    completion: chart("Answers", "tokens, mean of a step", { show: short, zero: true }),
    truncated: chart("Cut off", "share of answers without an end", { show: three, zero: true, optional: true }),
    length: chart("Length", "tokens off the announced budget", { show: short, zero: true, optional: true }),
    staleness: chart("Staleness", "steps that rollouts are behind", { show: two, zero: true }),
    rate: chart("Learning rate", "of the last optimizer step", { show: tiny, zero: true, optional: true }),
    speed: chart("Training speed", "tokens per second", { show: short, zero: true, optional: true }),
    seconds: chart("Time of a step", "seconds by phase", { show: short, zero: true }),
  };
  const charts = el("div", { class: "charts" }, ...Object.values(drawn).map((each) => each.outer));
  const state = { said: null, base: null };

  function draw({ said, base }) {
    const { steps, held_out: held } = said;
    if (!steps.length && !held.steps.length) {
      put(made.body, empty("Nothing yet: the curves begin with the first evaluation and the first step."));
      return;
    }
    if (!charts.isConnected) put(made.body, note, charts);
    note.textContent = base ? `The base model got ${three(base.score)} on ${base.problems} held-out problems, before the first step.` : "The base model was not evaluated: there is nothing to compare with.";
    drawn.reward.show(steps, several("all", said.reward, said.reward_by_environment));
    drawn.held.show(held.steps, several("all", held.score, held.by_environment), { "base model": base?.score });
    drawn.loss.show(steps, { loss: said.loss });
    drawn.gradient.show(steps, { norm: said.gradient_norm });
    drawn.kl.show(steps, { kl: said.kl.some((value) => value) ? said.kl : [] });
    drawn.entropy.show(steps, { entropy: said.entropy });
    drawn.completion.show(steps, { length: said.completion_length });
    drawn.truncated.show(steps, { share: said.truncated_share });
    drawn.length.show(steps, several("all", said.length_error, said.length_error_by_environment));
    drawn.staleness.show(steps, { mean: said.staleness });
    drawn.rate.show(steps, { rate: said.learning_rate });
    drawn.speed.show(steps, { speed: said.tokens_per_second });
    drawn.seconds.show(steps, longest(said.seconds));
  }

  return {
    names: ["trainer", "charts"],
    outer: made.outer,
    show(name, value) {
      if (name === "trainer") state.base = value.base;
      else state.said = value;
      if (state.said) draw(state);
    },
  };
}
