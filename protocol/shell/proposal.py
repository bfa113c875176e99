"""What an owner that is a contract has to send: the calls of a command, printed for its owners to sign, and sent by nobody here.

A `Proposal` stands where a sender does. It asks the chain what a sender would ask, for the account that is going to send, so a call
that would be refused is refused before anybody signs it: the first of several, for the others rest on it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from protocol.clock import SYSTEM, Clock
from protocol.errors import UsageError

if TYPE_CHECKING:
    from protocol.chain import Chain, Sender
    from protocol.chain.calls import Call


@dataclass(frozen=True)
class Proposer:
    address: str


@dataclass
class Proposal:
    chain: Chain
    key: Proposer
    """Who is going to send; it has no key of ours."""
    calls: list[Call] = field(default_factory=list)

    def is_done(self, call: Call) -> bool:
        return False

    def let_go(self, doing: str) -> None:
        """As Sender's: nothing was sent before."""

    def send(self, call: Call) -> None:
        """Takes a call. Raises what the contract says to the first."""
        from protocol.chain.writing import Writer

        if call.function.address is None:
            raise UsageError(f"{call.doing} is no call of a contract that is there")
        if not self.calls:
            with self.chain.errors(call.doing):
                Writer(self.chain.provider, self.key.address).estimate_gas(call.function)
        self.calls.append(call)

    def show(self, as_json: bool, clock: Clock = SYSTEM) -> None:
        """To stdout: the calls in order; as JSON a file of Safe's Transaction Builder."""
        if as_json:
            typer.echo(json.dumps(self.batch(clock)))
            return
        typer.echo(f"from {self.key.address} on chain {self.chain.chain_id}, in this order:")
        for call in self.calls:
            fields = _fields(call)
            typer.echo(
                f"\n{call.doing}\n  to     {fields['to']}\n  value  {fields['value']}\n  data   {fields['data']}"
            )

    def batch(self, clock: Clock = SYSTEM) -> dict[str, object]:
        return {
            "version": "1.0", "chainId": str(self.chain.chain_id), "createdAt": round(clock.wall() * 1000),
            "meta": {"name": "; ".join(call.doing for call in self.calls), "createdFromSafeAddress": self.key.address},
            "transactions": [_fields(call) for call in self.calls],
        }  # fmt: skip


def is_shown(sender: Sender | Proposal, as_json: bool) -> bool:
    """Whether a command ends here, for nothing was sent; what is to be is printed then."""
    if isinstance(sender, Proposal):
        sender.show(as_json)
        return True
    return False


def _fields(call: Call) -> dict[str, str]:
    return {
        "to": str(call.function.address), "value": str(call.function.value), "data": "0x" + call.function.data.hex(),
    }  # fmt: skip
