"""The way of a verdict, from a submission to the validator's pay."""

from __future__ import annotations

from drawings.canvas import Canvas

_SIZE = (196, 106)
_LEFT, _MIDDLE_LEFT, _MIDDLE_RIGHT, _RIGHT = 20, 241, 462, 683


def verdict() -> str:
    to = Canvas(
        302,
        "The way of a verdict",
        "Submissions are assigned to validators by hashing. A validator judges one by the rules, in their order. What it accepts gets a signed receipt, "
        "for which the run's vouchers pay. A soft finding becomes a case. A hard finding waits until a second validator finds the same, then becomes a hard "
        "case. A case that is appealed is decided by a vote of the other validators. What is upheld pays the finder, and vouchers pay for it as well; the vote pays the jury.",
    )
    to.box(
        (_LEFT, 20),
        _SIZE,
        "validators",
        "Assigned",
        ("by hash of submission", "and block; where one is", "silent, the next judges"),
    )
    to.box((_MIDDLE_LEFT, 20), _SIZE, "validators", "Judged", ("one rule after another;", "the first finding decides"))
    to.box(
        (_MIDDLE_RIGHT, 20),
        _SIZE,
        "validators",
        "Accepted",
        ("a signed receipt names", "what was checked, and", "binds who signed it"),
    )
    to.box((_RIGHT, 20), _SIZE, "chain", "Vouchers", ("pay for what was judged:", "murmur validator redeem"))
    to.box(
        (_MIDDLE_LEFT, 176),
        _SIZE,
        "validators",
        "Found false",
        ("soft: at once. Hard: when", "a second one has found", "the same by itself"),
    )
    to.box((_MIDDLE_RIGHT, 176), _SIZE, "chain", "Case", ("puts a bond at risk; the", "node may appeal"))
    to.box(
        (_RIGHT, 176),
        _SIZE,
        "chain",
        "Settled",
        ("upheld: finder's share.", "Appealed: a vote, which", "pays the jury"),
    )
    for left, top in ((_LEFT, 20), (_MIDDLE_LEFT, 20), (_MIDDLE_RIGHT, 20), (_MIDDLE_LEFT, 176), (_MIDDLE_RIGHT, 176)):
        to.arrow((left + 196, top + 53), (left + 219, top + 53))
    to.arrow((_MIDDLE_LEFT + 98, 126), (_MIDDLE_LEFT + 98, 174))
    to.arrow((_RIGHT + 98, 176), (_RIGHT + 98, 128))
    return to.svg()
