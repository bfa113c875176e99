"""What becomes of a contributor's stake, and of the pay for one submission, along time and by the presets' policy."""

from __future__ import annotations

import inspect
import tomllib

from drawings.canvas import Canvas
from protocol.shell.commands.chain import deploy_contracts
from protocol.shell.money import duration
from protocol.shell.runfile import PolicyTable
from trainer.presets import run_file

_DAY = 86_400
_PER_DAY = 62.0
_LEFT, _STAKE, _PAY = 30.0, 62, 150
"""Where time begins, and the two rows."""


def stake() -> str:
    trainer = "0x" + "0" * 39 + "1"
    policy = PolicyTable.model_validate(
        tomllib.loads(run_file("intellect2-short"))["policy"] | {"trainer": trainer}
    ).policy(trainer)
    leaving = inspect.signature(deploy_contracts).parameters["delay"].default
    span, delay, window = duration(policy.span), duration(leaving), duration(policy.window)
    claimed = f"1.0 to 1.2 windows of {window} after the commitment"
    to = Canvas(
        222,
        "What becomes of stake and pay",
        f"By the presets' policy. node stake locks the stake in the seat for as long as the node works. After node leave it stays locked for {span}. "
        f"Then node unstake, and {delay} later node withdraw. The pay for a submission can be claimed {claimed}.",
    )
    at = _LEFT
    for seconds, command, says, is_faint in (
        (1.5 * _DAY, "node stake", "it works", False), (policy.span, "node leave", f"locked for {span}", False), (leaving, "node unstake", f"leaves for {delay}", True),
    ):  # fmt: skip
        width = seconds / _DAY * _PER_DAY
        to.bar((at, _STAKE), width - 4, "chain", says, faint=is_faint)
        _mark(to, at, _STAKE, command)
        at += width
    _mark(to, at, _STAKE, "node withdraw")
    to.text((_LEFT, 24), "stake", "title")
    submitted, first, last = (
        _LEFT + 0.4 * _PER_DAY,
        policy.window / _DAY * _PER_DAY,
        policy.window * 1.2 / _DAY * _PER_DAY,
    )
    to.text((_LEFT, _PAY - 12), "pay", "title")
    to.bar((submitted, _PAY + 22), first, "node", "")
    to.bar((submitted + first, _PAY + 22), last - first, "node", "", faint=True)
    to.text((submitted, _PAY + 14), "one submission", "quiet")
    to.text((submitted + last + 10, _PAY + 32), f"node claim: {claimed}, also long after leaving")
    to.text(
        (_LEFT, 210), "Times of the presets' policy; each run has its own, and node status says the dates.", "quiet"
    )
    return to.svg()


def _mark(to: Canvas, x: float, y: float, command: str) -> None:
    to.line((x, y - 6), (x, y + 26))
    to.text((x, y + 40), command)
