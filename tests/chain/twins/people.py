"""Who there is in the world of the twins, and the policies of its three runs."""

from __future__ import annotations

from eth_utils import keccak

from protocol.chain.types import Policy
from protocol.identity import Key

NOBODY = "0x" + "0" * 40
SINK = "0x" + "51" * 20
DELAY = 4_000
FOREVER = 2**40 - 1
WEALTH = 3_000


def key(name: str) -> Key:
    return Key.from_secret(keccak(text=name))


OWNERS = [key("owner 0"), key("owner 1")]
TRAINERS = [key("trainer"), key("trainer 1")]
OPERATORS = [key("operator 0"), key("operator 1")]
NODES = [key(f"node {i}") for i in range(4)]
VALIDATORS = [key(f"validator {i}") for i in range(5)]
PEOPLE = [*OWNERS, *TRAINERS, *OPERATORS, *NODES, *VALIDATORS]

BENCHES = [VALIDATORS, [*VALIDATORS, NODES[1]], VALIDATORS[:2]]
"""Of each run. In the second a node judges others' work, and never its own."""

POLICIES = [
    # appeals and a second validator; numbers that do not divide evenly, and bonds that grow with what a case withholds
    Policy(
        owner=OWNERS[0].address, fee=3, trainer=TRAINERS[0].address, reward=3, gate=NOBODY,  # type: ignore[arg-type]
        notice=120, grace=60, max_units=25, bond=21, jury_fee=10, bond_bps=5000, finder_bps=3333, co_signers=1, strikes=3,
        leverage=2, window=1000, appeal=300, vote=400, max_per_step=4, node_stake=100, penalty=60, validator_stake=70,
        voucher_cap=50,
    ),
    # appeals, one accuser, a stake that just covers what can be lost, a window that five does not divide
    Policy(
        owner=OWNERS[1].address, fee=7, trainer=TRAINERS[0].address, reward=1, gate=NOBODY,  # type: ignore[arg-type]
        notice=70, grace=70, max_units=40, bond=10, jury_fee=4, bond_bps=0, finder_bps=5000, co_signers=0, strikes=2,
        leverage=3, window=503, appeal=200, vote=150, max_per_step=6, node_stake=54, penalty=30, validator_stake=15,
        voucher_cap=7,
    ),
    # instant verdicts
    Policy(
        owner=OWNERS[0].address, fee=1, trainer=TRAINERS[0].address, reward=2, gate=NOBODY,  # type: ignore[arg-type]
        notice=9, grace=5, max_units=10, bond=5, jury_fee=0, bond_bps=0, finder_bps=2000, co_signers=0, strikes=5,
        leverage=1, window=22, appeal=0, vote=0, max_per_step=8, node_stake=50, penalty=40, validator_stake=5,
        voucher_cap=20,
    ),
]  # fmt: skip
