"""What docs/contracts.md and the interfaces promise, as a plain state machine to hold the deployed contracts against.

Here units stand with the submission they were claimed for: with its seat, in a case, revoked or paid; their age follows from the
time of the submission. Bonds at risk follow from the cases that are open, benches from who was seated when. What the
contracts keep as counters, rings, bitmaps and packed words is derived, so that the two agree only if the contracts keep their
books right.

| module | one idea |
|---|---|
| `books` | what there is: accounts, seats, submissions, cases, validators, runs |
| `stake` | deposits, locks and slashes |
| `budgets` | what runs pay with: budgets and pots |
| `weights` | publications, beacons, the trainer's key |
| `seats` | who works for whom, with which key and which stake |
| `bench` | validators: their seats, what they risk, who judges what |
| `work` | submissions and rewards |
| `payroll` | what a vote moves: who loses what, and who gets what of it |
| `verdicts` | what votes amount to, and what verdicts do to a seat |
| `cases` | who may bring, appeal, judge and end a case |

Covers all that parties send but `create`, `locate` and invitations of a gate. Does not cover signatures: the caller says who signed.

A method is one transaction: `by` sends it, `at` is its block time, `block` its number. It raises Refused with the name of the
contract's error, and then whoever called it throws the model away and goes on with the copy from before.
"""

from tests.chain.model.cases import Cases


class Model(Cases):
    """All of it."""
