"""What may be wrong on this machine and between here and the contracts, checked one by one: sandbox, endpoints, chain, code, run,
jury, gas money.

A check that cannot run, because one before it failed, is skipped and says so: it is never a pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eth_utils import is_address, to_checksum_address

from protocol.chain import gas
from protocol.chain.client import Chain
from protocol.chain.deploy import Deployment
from protocol.chain.endpoints import HEAD_SECONDS, EndpointsDisagree
from protocol.chain.networks import SETTLED_BLOCKS
from protocol.errors import ConfigError, InsufficientFunds, WrongChain
from protocol.http_url import without_secrets
from protocol.sandbox.confinement import Kernel
from protocol.shell.checkup import Answer, CheckOutcome, CheckResult, ran
from protocol.shell.gas import SUBMISSION_GAS, SUBMISSIONS_LOW
from protocol.shell.money import duration


@dataclass(frozen=True)
class Subject:
    """What is examined. Without a contract or addresses file only the endpoints are."""

    endpoints: Sequence[str]
    chain_id: int
    is_public: bool
    contract: str | None = None
    deployment: Deployment | None = None
    run: int | None = None
    address: str | None = None
    """Whose gas money is looked at."""
    timeout: float = 10.0


def examine(subject: Subject) -> Iterator[CheckResult]:
    """Runs the checks, in order, and tells of each as it ends."""
    yield ran("sandbox", look_at_sandbox)
    alive: list[Chain] = []
    for url in subject.endpoints:
        chain = Chain(url, None, timeout=subject.timeout)
        check = ran(f"endpoint {without_secrets(url)}", look_at_endpoint, chain, subject)
        yield check
        if check.health != CheckOutcome.FAILED:
            alive.append(chain)
    rest = _rest(subject)
    if not alive:
        yield from _skipped(rest, "no endpoint can be used")
        return
    yield ran("head", _head, alive, subject)
    if len(subject.endpoints) > 1:
        check = ran("endpoints agree", look_at_agreement, alive)
        yield check
        if check.health == CheckOutcome.FAILED:
            yield from _skipped(rest[2:], "nobody knows whom to believe")
            return
    chain = Chain([url for one in alive for url in one.endpoints], _runs(subject), timeout=subject.timeout)
    yield from _contracts(chain, subject)
    if subject.address is not None:
        yield ran("gas money", look_at_gas_money, chain, subject.address)


def _rest(subject: Subject) -> list[str]:
    """The checks after those of the endpoints."""
    names = ["head"]
    names += ["endpoints agree"] * (len(subject.endpoints) > 1)
    names += _contract_checks(subject)
    return names + ["gas money"] * (subject.address is not None)


def _contract_checks(subject: Subject) -> list[str]:
    if _runs(subject) is None:
        return []
    names = [*_CODE]
    names += ["code of Vouchers", "addresses file"] * (subject.deployment is not None)
    return names + ["run", "jury"] * (subject.run is not None)


_CODE = ("code of Runs", "code of Bonds", "code of Court", "code of Policies, Bench, Weights")
"""Where one is not as shipped, nothing else is looked at."""


def _runs(subject: Subject) -> str | None:
    return subject.deployment.runs if subject.deployment else subject.contract


def _contracts(chain: Chain, subject: Subject) -> Iterator[CheckResult]:
    """What needs the contracts; the first broken one ends it, for it is the one that names the others."""
    left = _contract_checks(subject)
    for name in list(left):
        check = ran(name, _CHECKS[name], chain, subject)
        yield check
        left.remove(name)
        if check.health == CheckOutcome.FAILED and name in (*_CODE, "run"):
            yield from _skipped(left, f"{name} comes first")
            return


def _skipped(names: Sequence[str], why: str) -> Iterator[CheckResult]:
    for name in names:
        yield CheckResult(name, CheckOutcome.SKIPPED, f"not checked: {why}")


# ---- the checks: each returns an answer or raises what is wrong --------------------------------------------------------


def look_at_sandbox() -> Answer:
    if missing := Kernel.here().missing:
        hint = "a newer kernel, with Landlock on, holds them; until then run only environments you trust (docs/environments.md)"
        return "this kernel lets environments of strangers " + "; ".join(missing), hint
    return "this kernel holds environments of strangers to all that it should"


def look_at_endpoint(chain: Chain, subject: Subject) -> Answer:
    started = time.monotonic()
    if chain.chain_id != subject.chain_id:
        raise WrongChain(
            f"is of chain {chain.chain_id}, not {subject.chain_id}",
            hint="give another --rpc, or the --network it belongs to",
        )
    return f"answers, chain {chain.chain_id}, {1000 * (time.monotonic() - started):.0f} ms"


def _head(chains: Sequence[Chain], subject: Subject) -> Answer:
    blocks = {chain.rpc: chain.block() for chain in chains}
    number, newest = max((block.number, block.time) for block in blocks.values())
    if not subject.is_public:
        return f"block {number}; the clock of a development chain may be anywhere"
    late = {url: time.time() - block.time for url, block in blocks.items() if time.time() - block.time > HEAD_SECONDS}
    if late:
        said = ", ".join(f"{url} is {duration(int(age))} behind" for url, age in late.items())
        return said, "use another endpoint; if all are late, check this machine's clock, or the chain stands still"
    return f"block {number}, {max(0, int(time.time() - newest))} s old"


def look_at_agreement(chains: Sequence[Chain]) -> Answer:
    if len(chains) < 2:
        return "only one endpoint can be used: nothing to compare", "repair the others, or add one with --rpc"
    depth = max(0, min(chain.block_number() for chain in chains) - SETTLED_BLOCKS)
    hashes = {chain.rpc: chain.block_hash(depth) or b"" for chain in chains}
    if len(set(hashes.values())) > 1:
        said = ", ".join(f"{url} says 0x{found.hex()[:12]}…" for url, found in hashes.items())
        raise EndpointsDisagree(
            f"they hold different blocks at {depth}: {said}", hint="one of them lies or is on another fork; remove it"
        )
    return f"the same block {depth}"


def _code_of_runs(chain: Chain, subject: Subject) -> Answer:
    chain.check_code("Runs", chain.runs.address)
    return f"{chain.runs.address} as shipped"


def _code_of_bonds(chain: Chain, subject: Subject) -> Answer:
    chain.check_code("Bonds", chain.bonds.address)
    return f"{chain.bonds.address} as shipped"


def _code_of_court(chain: Chain, subject: Subject) -> Answer:
    chain.check_code("Court", chain.court.address)
    return f"{chain.court.address} as shipped"


def _code_of_what_they_brought(chain: Chain, subject: Subject) -> Answer:
    found = {"Policies": chain.policies, "Bench": chain.bench, "Weights": chain.weights}
    for name, contract in found.items():
        chain.check_code(name, contract.address)
    return f"{', '.join(found)} as shipped"


def _code_of_vouchers(chain: Chain, subject: Subject) -> Answer:
    assert subject.deployment is not None
    chain.check_code("Vouchers", subject.deployment.vouchers)
    return f"{subject.deployment.vouchers} as shipped"


def _addresses(chain: Chain, subject: Subject) -> Answer:
    """That the file names the contracts Runs knows: the code alone could be another deployment's."""
    assert subject.deployment is not None
    on_chain = {
        "bonds": chain.bonds.address, "court": chain.court.address, "token": chain.token.address,
        "runs of Vouchers": chain.runs_of_vouchers(subject.deployment.vouchers),
    }  # fmt: skip
    said = subject.deployment
    named = {"bonds": said.bonds, "court": said.court, "token": said.token, "runs of Vouchers": said.runs}
    wrong = [f"{name} is {on_chain[name]}, not {named[name]}" for name in named if on_chain[name] != named[name]]
    if wrong:
        raise WrongChain("; ".join(wrong), hint="the file was changed, or mixes deployments; get it anew")
    return "names what belongs together"


def look_at_run(chain: Chain, subject: Subject) -> Answer:
    assert subject.run is not None
    policy = chain.policy(subject.run)
    head = chain.head(subject.run)
    if chain.paused(subject.run):
        return "paused", "ask its owner, or wait"
    if not chain.available(subject.run):
        return "no budget for submissions is left", "its owner can add to it with `murmur run fund`"
    published = "nothing published yet" if head is None else f"head step {head.step}"
    return f"{published}, owner {policy.owner}"


def look_at_jury(chain: Chain, subject: Subject) -> Answer:
    assert subject.run is not None
    policy, seated = chain.policy(subject.run), chain.seated_validators(subject.run)
    needed = policy.jury
    if seated < needed:
        raise ConfigError(
            f"{seated} validators are seated and {needed} make a jury: nothing can be published",
            hint="approve more with `murmur run approve`; each then runs `murmur validator enlist`",
        )
    if not needed and not seated:
        hint = "approve some with `murmur run approve`; each then runs `murmur validator enlist`"
        return "no validator is seated: nothing is judged, and all work is paid", hint
    if not needed:
        return "verdicts cannot be appealed: none needed"
    if not policy.liars_borne(seated):
        hint = "approve five or more validators, so that one that lies or is silent decides nothing"
        return f"{seated} validators are seated, of whom none may lie; {needed} make a jury", hint
    return f"{seated} validators are seated, of whom {policy.liars_borne(seated)} may lie; {needed} make a jury"


def look_at_gas_money(chain: Chain, address: str) -> Answer:
    if not is_address(address):
        raise ConfigError(f"{address!r} is no address", hint="give --address 0x…")
    has, price = chain.balance(address), gas.price(chain)
    enough = has // max(1, price * SUBMISSION_GAS)
    said = f"{to_checksum_address(address)} has {has / 1e18:.6f} ETH"
    hint = f"send some ETH to {to_checksum_address(address)} on this chain"
    if not enough:
        raise InsufficientFunds(f"{said}, which pays for no transaction", hint=hint)
    if enough < SUBMISSIONS_LOW:
        return f"{said}, about {enough} transactions", hint
    return said


_CHECKS = {
    "code of Runs": _code_of_runs, "code of Bonds": _code_of_bonds, "code of Court": _code_of_court,
    "code of Policies, Bench, Weights": _code_of_what_they_brought,
    "code of Vouchers": _code_of_vouchers, "addresses file": _addresses, "run": look_at_run, "jury": look_at_jury,
}  # fmt: skip
