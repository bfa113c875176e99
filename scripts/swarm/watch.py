"""What can be seen of a swarm from outside: the chain's events, the hub's receipts, and what trainer and relay say they do.

Reads only, as anybody could.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from protocol.chain import Chain
from protocol.chain.events import (
    Abstained,
    Appealed,
    Challenged,
    Claimed,
    Event,
    Joined,
    Left,
    Published,
    Settled,
    Voted,
)
from protocol.chain.sync import Book
from protocol.chain.types import Stage
from protocol.chain.view import Submission
from protocol.errors import MurmurationError
from protocol.hub.client import HubClient
from protocol.settings import read_toml
from protocol.shell.home import REPORT, read_json
from protocol.shell.money import tokens
from protocol.submission import SubmissionRef
from protocol.verdict import Outcome, Receipt
from swarm import mixture
from swarm.swarm import Member, Swarm


@dataclass
class Seen:
    """Everything learned so far. Times are block time."""

    head: int | None = None
    submitted: dict[bytes, Submission] = field(default_factory=dict)
    times: dict[bytes, int] = field(default_factory=dict)
    receipts: dict[bytes, list[Receipt]] = field(default_factory=lambda: defaultdict(list))
    settled: list[Settled] = field(default_factory=list)
    slashed: list[tuple[Event, Settled]] = field(default_factory=list)
    """Cases that cost a seat stake."""
    challenged: list[tuple[Event, Challenged]] = field(default_factory=list)
    claimed: list[Claimed] = field(default_factory=list)
    banned: set[str] = field(default_factory=set)

    def counts(self, node: str) -> Counter[str]:
        """Submissions of a node: how many, and how they were judged."""
        counts: Counter[str] = Counter()
        for submission_id, submitted in self.submitted.items():
            if submitted.node == node:
                counts["submitted"] += 1
                outcome = self.outcome(submission_id)
                if outcome:
                    counts[outcome.name.lower()] += 1
        return counts

    def outcome(self, submission_id: bytes) -> Outcome | None:
        """The gravest verdict on a submission so far."""
        return max((receipt.outcome for receipt in self.receipts.get(submission_id, [])), default=None)


class Watch:
    def __init__(self, swarm: Swarm) -> None:
        self.seen = Seen()
        self.names = {m.address: m.name for m in (*swarm.nodes, *swarm.validators)}
        self.names |= {m.operator: f"operator of {m.name}" for m in swarm.nodes}
        self._swarm = swarm
        self._chain: Chain = swarm.chain
        self._book = Book(self._chain, swarm.run)
        self._read = 0
        self._hub: HubClient | None = None
        self.kinds = mixture.kinds(read_toml(swarm.run_toml)["spec"]["environments"])
        """The package of each environment, by its name."""
        self.rewards: dict[str, float] = {}
        """Mean reward of each environment, of the last step at which something of it came in."""
        self._cursor = 0

    @property
    def trainer(self) -> dict[str, Any]:
        """What the trainer last said."""
        return read_json(self._swarm.folder / "output/status.json") or {}

    @property
    def hub(self) -> dict[str, Any]:
        return read_json(self._swarm.folder / "output/hub/status.json") or {}

    @property
    def page(self) -> str | None:
        """Where the hub shows the run's page; None before it serves."""
        found = self.hub.get("page")
        return None if found is None else str(found)

    @property
    def relays(self) -> dict[str, dict[str, Any]]:
        """What each relay last said, by its name."""
        return {name: read_json(self._swarm.folder / name / "status.json") or {} for name in self._swarm.relays}

    @property
    def served(self) -> dict[str, int]:
        """Bytes of weights that the origin and each relay have sent, the origin first."""
        relays = {name: status.get("bytes_served", 0) for name, status in self.relays.items()}
        return {"origin": self.hub.get("bytes_served", 0), **relays}

    def members(self) -> list[Member]:
        """The nodes, the cheats last."""
        return sorted(self._swarm.nodes, key=lambda member: (member.is_cheat, member.name))

    def validators(self) -> list[Member]:
        return list(self._swarm.validators)

    def runs(self, name: str) -> bool:
        """Whether the process of this name was started and is not ended on purpose."""
        return any(process.name == name for process in self._swarm.processes)

    @property
    def bootnode(self) -> str:
        """What the bootnode says of itself."""
        report = read_json(self._swarm.folder / "bootnode/data" / REPORT) or {}
        return f"{report['known']} peers, {report['records']} records" if report else "starting"

    def doing(self, member: Member) -> str:
        """What a node or validator says it does."""
        status = read_json(member.home / "status.json") or {}
        reason = status.get("reason")
        return str(status.get("state", "starting")) + (f": {reason}" if reason else "")

    @property
    def now(self) -> int:
        return self._book.head.time if self._book.head else 0

    def poll(self) -> list[str]:
        """Learns what is new; returns a line for each event worth telling."""
        self._book.poll()
        lines, more = [], True
        while more:
            changes = self._book.changes_since(self._read)
            for submission in changes.submissions:
                self.seen.submitted[submission.id] = submission
                self.seen.times[submission.id] = self._book.time(submission)
            lines += [line for event in changes.events if (line := self._note(event))]
            self._read, more = changes.cursor, changes.more
        self._follow_receipts()
        by_environment = (self.trainer.get("metrics") or {}).get("reward_by_environment") or {}
        self.rewards |= {name: reward for name, reward in by_environment.items() if reward is not None}
        return lines

    def unjudged(self) -> list[str]:
        """Submissions without any verdict, whose seat is not about to be convicted anyway."""
        accused = {c.node for _, c in self.seen.challenged if c.hard}
        waiting = [
            s
            for submission_id, s in self.seen.submitted.items()
            if not self.seen.receipts.get(submission_id) and s.node not in accused
        ]
        return [self._name_of(s) for s in waiting]

    def submission_name(self, submission_id: bytes) -> str:
        s = self.seen.submitted.get(submission_id)
        return self._name_of(s) if s else submission_id.hex()[:12]

    def _name_of(self, s: Submission) -> str:
        return f"step {s.step}.{s.sequence} of {self.name(s.node)}"

    def name(self, address: str) -> str:
        return self.names.get(address, address[:10])

    def _follow_receipts(self) -> None:
        url = self.hub.get("url")
        if not url:
            return
        if self._hub is None:
            self._hub = HubClient(url, self._swarm.run, self._chain.domain)
        try:
            for cursor, data in self._hub.receipts(self._cursor):
                self._cursor = cursor
                receipt = Receipt.parse(data, self._chain.domain, self._swarm.run)
                self.seen.receipts[receipt.submission].append(receipt)
        except MurmurationError:
            self._hub = None  # it may have restarted elsewhere

    def _note(self, event: Event) -> str | None:
        seen = self.seen
        match event.data:
            case Published() as e:
                seen.head = e.step
                return f"weights of step {e.step} published"
            case Joined() as e:
                return f"{self.name(e.node)} took a seat"
            case Challenged() as e:
                seen.challenged.append((event, e))
                kind = "hard" if e.hard else "soft"
                return f"{self.name(e.challenger)} challenges step {e.step}.{e.sequence} of {self.name(e.node)}: {kind}"
            case Appealed() as e:
                return f"{self.name(e.appellant)} appeals case {e.number} against {self.name(e.seat)}"
            case Voted() as e:
                found = "hard" if e.found_hard else "false" if e.found_false else "good"
                return f"{self.name(e.validator)} votes on case {e.number} against {self.name(e.seat)}: {found}"
            case Abstained() as e:
                return f"{self.name(e.validator)} abstains from case {e.number} against {self.name(e.seat)}: {e.reason}"
            case Settled() as e:
                seen.settled.append(e)
                lost = f"{e.units} units revoked"
                if e.slashed:
                    seen.slashed.append((event, e))
                    lost += f", slashed {tokens(e.slashed)}"
                return f"case {e.number} against {self.name(e.seat)} {Stage(e.stage).name.lower()}: {lost}"
            case Left(role=3) as e:
                seen.banned.add(e.seat)
                return f"{self.name(e.seat)} banned"
            case Claimed() as e:
                seen.claimed.append(e)
                return f"{self.name(e.operator)} was paid {tokens(e.amount)}"
        return None


def submission_of(event: Challenged) -> bytes:
    """The id of the submission that a case names."""
    return SubmissionRef(event.node, event.step, event.sequence, event.root).submission_id(event.run)
