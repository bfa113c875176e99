"""Publications, their beacons, and the trainer's key. A beacon comes from the block after its publication: nobody who publishes or
submits can choose it, and what is submitted names it."""

from __future__ import annotations

from eth_abi import encode
from eth_utils import keccak

from tests.chain.model.books import Hashes, Publication, Run, require
from tests.chain.model.budgets import Budgets


class Weights(Budgets):
    def publish(self, by: str, at: int, block: int, run: int, step: int, manifest: bytes) -> None:
        r = self.runs[run]
        require(by == r.trainer(at), "Denied")
        require(step == len(r.publications), "WrongStep")
        require(r.seated >= r.policy.jury, "TooFewValidators")
        if r.publications:
            r.publications[-1].superseded = at
        r.publications.append(Publication(manifest, block, at, source=block + 1))

    def draw(self, block: int, run: int, step: int, hashes: Hashes) -> None:
        """Where nobody drew in time, the next block is named instead, and it has to be drawn again."""
        r = self.runs[run]
        require(step < len(r.publications), "WrongState")
        p = r.publications[step]
        if any(p.beacon):
            return
        require(block > p.source, "BeaconPending")
        p.beacon = self.beacon_of(run, step, hashes)
        if not any(p.beacon):
            p.source = block + 1

    def beacon_of(self, run: int, step: int, hashes: Hashes) -> bytes:
        """As it was drawn, or as it would be now; zeros where its block is not there yet, or out of reach."""
        p = self.runs[run].publications[step]
        source = hashes(p.source)
        if any(p.beacon) or not any(source):
            return p.beacon
        seed = encode(["bytes32", "uint256", "uint32", "bytes32"], [source, run, step, p.manifest])
        return keccak(seed)[:17] + bytes(15)

    def appoint(self, by: str, at: int, run: int, trainer: str) -> None:
        """After the notice; until then the key of now goes on, and an appointment before that has not come is void."""
        r = self.runs[run]
        require(by == r.policy.owner, "Denied")
        if r.replaced[-1:] != [r.trainer(at)]:
            r.replaced.append(r.trainer(at))
        r.appointed = [(since, key) for since, key in r.appointed if at >= since]
        r.appointed.append((at + r.policy.notice, trainer))

    def _head(self, r: Run, step: int, at: int) -> Publication:
        """Weights that may be worked on: the newest, and for `grace` those before."""
        require(step < len(r.publications), "StaleStep")
        head = r.publications[step]
        require(head.superseded == 0 or at < head.superseded + r.policy.grace, "StaleStep")
        return head
