"""A run's card: the one file that a run's owner hands out, with all that `node join` and the `init` of node, validator and relay must be told. JSON, made by `murmur run card`.

    {"chain_id": 84532, "contract": "0x…", "run": 1, "rpc": ["https://…"], "bootnodes": ["/dns4/…"], "first_block": 7, "faucet": "0x…", "vouchers": "0x…"}

It holds no secret and proves nothing: who takes it believes whoever gave it, as with addresses that are typed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

from protocol import canonical
from protocol.chain import networks
from protocol.errors import ConfigError, Malformed, UsageError, WrongChain
from protocol.http_url import without_secrets
from protocol.settings import Settings, checked
from protocol.shell.cli import parse_address
from protocol.shell.home import write_json

if TYPE_CHECKING:
    from protocol.chain import Chain
    from protocol.chain.types import Policy

_BYTES_MAX = 1 << 16
_KEPT = "card.json"
_ENDPOINTS_MAX, _BOOTNODES_MAX = 16, 64


class RunCard(Settings):
    chain_id: int = Field(ge=1, lt=1 << 63)
    contract: str
    """Address of the Runs contract."""
    run: int = Field(ge=1, lt=1 << 63)
    rpc: tuple[str, ...] = Field(min_length=1, max_length=_ENDPOINTS_MAX)
    """Endpoints that anybody may ask."""
    bootnodes: tuple[str, ...] = Field(min_length=1, max_length=_BOOTNODES_MAX)
    first_block: int = Field(default=0, ge=0, lt=1 << 63)
    faucet: str = ""
    """Address of a faucet of the run's tokens; empty: there is none."""
    vouchers: str = ""
    """Address of the Vouchers contract, from which validators are paid; empty: not known."""

    @field_validator("contract", "faucet", "vouchers")
    @classmethod
    def _is_address(cls, text: str) -> str:
        if text:
            try:
                parse_address(text)
            except UsageError as error:
                raise ValueError(str(error)) from error
        return text

    @property
    def text(self) -> str:
        return json.dumps(self.model_dump(exclude_defaults=True), indent=1)


def chain_table(card: RunCard, rpc: str | None = None) -> dict[str, Any]:
    """[chain] of a role's settings; `rpc`: asked in place of the card's endpoints."""
    urls = list(card.rpc) if rpc is None else [rpc]
    return {
        "rpc": urls[0] if len(urls) == 1 else urls, "contract": card.contract, "chain_id": card.chain_id, "run": card.run,
        "first_block": card.first_block,
    }  # fmt: skip


def read(file: Path) -> RunCard:
    """Raises UsageError where there is no file, ConfigError where it is no card."""
    hint = "the run's owner makes a card with `murmur run card`"
    try:
        with file.open("rb") as opened:
            found = canonical.parse(opened.read(_BYTES_MAX), "the card")
    except OSError as error:
        raise UsageError(f"cannot read the card {file}: {error.strerror}", hint=hint) from error
    except Malformed:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is no run's card", hint=hint)
    return checked(RunCard, found)


def path_in(home: Path) -> Path:
    """Where a home keeps the card that it was made from."""
    return home / _KEPT


def keep(home: Path, card: RunCard) -> None:
    """Raises PreflightError where the disk is full."""
    write_json(path_in(home), card.model_dump())


def kept(home: Path) -> RunCard | None:
    """The card that a home was made from; None where there was none, or it cannot be read any more."""
    try:
        return read(path_in(home))
    except (UsageError, ConfigError):
        return None


def run_told(
    card: Path | None, *, rpc: str | None, contract: str | None, run: int | None, bootnodes: list[str] | None, first_block: int = 0
) -> tuple[dict[str, Any], list[str]]:  # fmt: skip
    """[chain] of a role's settings and the bootnodes, from a card or from what was typed; of a card, endpoints and bootnodes may be others.

    Raises UsageError where something is missing, or said twice; else as `read`.
    """
    if card is None:
        asked = {"rpc": rpc, "contract": contract, "run": run}
        needed = {**asked, "bootnode": bootnodes}
        missing = [f"--{name}" for name, value in needed.items() if not value]
        if missing:
            raise UsageError(
                f"which run? {', '.join(missing)} is missing",
                hint="give the run's card, a file that its owner hands out",
            )
        return asked | {"first_block": first_block}, list(bootnodes or ())
    twice = [f"--{name}" for name, value in (("contract", contract), ("run", run)) if value is not None]
    if twice:
        raise UsageError(f"{twice[0]} stands in the card", hint=f"leave {' and '.join(twice)} away, or the card")
    told = read(card)
    table = chain_table(told, rpc) | ({"first_block": first_block} if first_block else {})
    return table, bootnodes or list(told.bootnodes)


def open_run(asked: dict[str, Any], card: Path | None) -> tuple[Chain, Policy]:
    """The run that [chain] of new settings names, with its policy. Raises WrongChain where chain or contract are others, ConfigError where
    there is no such run; the hint names the card, where one said so."""
    from protocol.chain import Chain

    chain = Chain(asked["rpc"], asked["contract"])
    try:
        chain.check(asked.get("chain_id"))
        return chain, chain.policy(asked["run"])
    except (WrongChain, ConfigError) as error:
        if card is not None and "--" in error.hint:  # options that nobody typed
            is_told = asked["rpc"] == chain_table(read(card))["rpc"]
            others = "; ask the run's owner for a newer card" if is_told else ", and --rpc another's endpoint"
            error.hint = f"{card} names chain, contract and run{others}"
        raise


def public_endpoints(given: list[str], chain_id: int, own: str | tuple[str, ...]) -> tuple[str, ...]:
    """The endpoints that a card names: `given`, else the named network's public one, else the owner's `own`, unless they hold a key.

    Raises UsageError where none is left.
    """
    if given:
        return tuple(given)
    name = networks.Name.of(chain_id)
    if name is not None and name.network.is_public:
        return (name.network.rpc,)
    urls = (own,) if isinstance(own, str) else own
    open_to_all = tuple(url for url in urls if not without_secrets(url).endswith("/…"))
    if not open_to_all:
        raise UsageError("which endpoint may others ask?", hint="give --rpc; that of run.toml may hold a key of yours")
    return open_to_all
