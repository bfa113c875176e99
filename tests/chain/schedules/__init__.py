"""Random people do random things to the contracts and to their model, right or wrong, at random times.

| module | one idea |
|---|---|
| `choices` | what may be done how often, and what there is to choose from |
| `labour` | money, weights, seats, submissions |
| `trials` | the bench and its cases |
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.chain.schedules.choices import ACTIONS, WEIGHTED
from tests.chain.schedules.trials import Trials
from tests.chain.twins import Twins


class Machine(RuleBasedStateMachine, Trials):
    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        """One rule for all: Hypothesis leaves out some of the rules in each example, and a case needs many of them."""
        name = data.draw(st.sampled_from(WEIGHTED), "action")
        action, choices = ACTIONS[name]
        action(self, **data.draw(choices, name))

    @initialize()
    def start_over(self) -> None:
        self.twins.start_over()


def drive(twins: Twins, examples: int, steps: int, *phases: Phase) -> int:
    """Returns how many transactions were tried."""
    twins.done.clear()
    twins.verdicts.clear()
    machine = type("Machine", (Machine,), {"twins": twins})
    options = settings(
        max_examples=examples, stateful_step_count=steps, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), phases=phases or (Phase.generate, Phase.shrink),
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=options)
    for (function, how), times in sorted(twins.done.items()):
        print(f"{function:24} {how:24} {times}")
    for (stage, convicted), times in sorted(twins.verdicts.items()):
        print(f"{stage.name.lower()}{', convicted' if convicted else '':24} {times}")
    return twins.done.total()
