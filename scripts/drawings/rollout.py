"""The life of a rollout: from its seed to its reward or case, and to the weights that it helped to make."""

from __future__ import annotations

from drawings.canvas import Canvas

_SIZE = (196, 106)
_LEFT, _MIDDLE_LEFT, _MIDDLE_RIGHT, _RIGHT = 20, 241, 462, 683
_MAKING, _LEARNING, _PAYING = 20, 176, 332


def rollout() -> str:
    to = Canvas(
        458,
        "The life of a rollout",
        "A seed and a prompt follow from the beacon of the newest version. A node generates the answers with proofs, commits to the file on "
        "chain and uploads it to the hub. Validators recompute it and give a verdict. Accepted work goes into the trainer's step, which makes "
        "a version of the weights, which SHARDCAST brings to the nodes for the next rollout. Accepted work waits for its window and is then "
        "claimed as a reward. False work becomes a case: the other validators may vote; work that they clear is paid, work found false earns "
        "nothing, and cheating costs stake.",
    )
    to.box(
        (_LEFT, _MAKING),
        _SIZE,
        "node",
        "1  Seed and prompt",
        ("follow from beacon, node", "and sequence: nobody", "chooses them"),
    )
    to.box(
        (_MIDDLE_LEFT, _MAKING),
        _SIZE,
        "node",
        "2  Generation",
        ("answers, TOPLOC proofs,", "rewards; the node checks", "its own file"),
    )
    to.box(
        (_MIDDLE_RIGHT, _MAKING), _SIZE, "chain", "3  Commitment", ("binds node and file;", "the reward is reserved")
    )
    to.box((_RIGHT, _MAKING), _SIZE, "hub", "4  Upload", ("keeps the file, and signs", "that it came in time"))
    to.box(
        (_RIGHT, _LEARNING),
        _SIZE,
        "validators",
        "5  Verdict",
        ("apply the rules in order,", "compute some answers", "again; sign what follows"),
    )
    to.box((_MIDDLE_RIGHT, _LEARNING), _SIZE, "trainer", "6  Step", ("learns by GRPO, from", "accepted rollouts alone"))
    to.box((_MIDDLE_LEFT, _LEARNING), _SIZE, "trainer", "7  Version", ("new weights; their hash", "goes on chain"))
    to.box(
        (_LEFT, _LEARNING),
        _SIZE,
        "relays",
        "8  SHARDCAST",
        ("chunks by relay to node,", "each checked against", "the chain"),
    )
    to.box(
        (_MIDDLE_RIGHT, _PAYING),
        _SIZE,
        "chain",
        "9  Window",
        ("from the commitment on,", "1.0 to 1.2 windows;", "then the pay is ripe"),
    )
    to.box((_MIDDLE_LEFT, _PAYING), _SIZE, "chain", "10  Reward", ("node claim pays it", "to the operator"))
    to.box(
        (_RIGHT, _PAYING),
        _SIZE,
        "chain",
        "Case",
        ("appeal, then a vote.", "Cleared: paid. False: no", "pay. Hard: stake lost too"),
    )
    for left in (_LEFT, _MIDDLE_LEFT, _MIDDLE_RIGHT):
        to.arrow((left + 196, _MAKING + 53), (left + 219, _MAKING + 53))
    for right in (_RIGHT, _MIDDLE_RIGHT, _MIDDLE_LEFT):
        to.arrow((right, _LEARNING + 53), (right - 23, _LEARNING + 53))
    to.arrow((_RIGHT + 98, 126), (_RIGHT + 98, 174))
    to.arrow((_LEFT + 98, 176), (_LEFT + 98, 128), label="next rollout", at=(_LEFT + 142, 156))
    to.arrow(
        (_RIGHT + 40, 282),
        (_RIGHT + 40, 307),
        (_MIDDLE_RIGHT + 98, 307),
        (_MIDDLE_RIGHT + 98, 330),
        label="accepted",
        at=(634, 301),
    )
    to.arrow((_RIGHT + 98, 282), (_RIGHT + 98, 330), label="found false", at=(_RIGHT + 138, 311))
    to.arrow((_RIGHT, _PAYING + 53), (_RIGHT - 23, _PAYING + 53))
    to.arrow((_MIDDLE_RIGHT, _PAYING + 53), (_MIDDLE_RIGHT - 23, _PAYING + 53))
    return to.svg()
