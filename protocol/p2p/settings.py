"""Every deadline and every cap of the p2p layer, with the reason for its default. Seconds, bytes and counts.

None of these is part of the protocol: two nodes with different settings understand each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from protocol.p2p.address import Address, PeerAddress

if TYPE_CHECKING:
    from protocol.identity import Key
    from protocol.p2p.subject import GossipSubject


@dataclass(frozen=True)
class Timing:
    """Deadlines and intervals in seconds."""

    start: float = 30.0  # from start() to listening; importing libp2p on a loaded machine takes most of it
    close: float = 5.0  # from close() to the end of the thread
    handshake: float = 5.0  # TCP accepted until Noise and Yamux stand
    dial: float = 3.0  # all addresses of one peer, in parallel, until one has proven its PeerID
    stream: float = 10.0  # an inbound stream from its first byte to its last
    request: float = 3.0  # one question to one peer, dialling included
    write: float = 5.0  # a frame the remote does not read; then its connection is cut
    ping: float = 45.0  # between liveness checks of a connection
    pong: float = 15.0  # until an unanswered check cuts it
    idle: float = 120.0  # an outbound connection nobody uses is closed after this
    retry: float = 0.25  # first wait before joining again; doubles, with jitter
    retry_most: float = 30.0
    dial_back: float = 60.0  # before somebody who could not be dialled back is tried again
    settle: float = (
        10.0  # to the first refresh after joining: others join at the same time; the next come later and later
    )
    refresh: float = 300.0  # between refreshes of a settled routing table
    provide: float = 600.0  # between announcements of the same provider record; a third of `record`
    record: float = 1800.0  # life of a provider record that nobody renews
    stay: float = 60.0  # a bootnode that cuts us sooner is full: it is visited after pauses that grow up to `refresh`
    report: float = 10.0  # between words of a running host about itself (report.py)
    grace: float = 0.5  # how long `find` still waits for others once it has enough


@dataclass(frozen=True)
class HostLimits:
    """Caps. What exceeds one is refused before it is read; who exceeds a budget is disconnected."""

    connections: int = 512  # beyond it, a new one costs the least missed idle one its place
    residents: float = 0.75  # of these, for who came first and stays; the others are for visitors
    connections_per_address: int = 64  # of one IPv4 address or IPv6 /64
    connections_per_peer: int = 2  # both may have dialled at once; a third replaces the oldest
    handshakes: int = 128  # strangers in the middle of a handshake; beyond it, a new one replaces the oldest
    accept_burst: int = 128  # new connections of one address at once …
    accept_rate: float = 16.0  # … and per second after that
    streams_per_connection: int = 32  # inbound and open at the same time
    buffered: int = 1 << 20  # bytes of one connection that no handler has read yet
    frame: int = 256 << 10  # one Yamux frame; our messages are far smaller
    receive_burst: int = 4 << 20  # bytes one connection may send at once …
    receive_rate: float = 256 << 10  # … and per second after that
    frames_burst: int = 8192  # the same for its frames: they cost time, however small
    frames_rate: float = 512.0
    dial_backs: int = 64  # dials back to one IPv4 address or IPv6 /64 that claims to serve, at once …
    dial_back_rate: float = 0.5  # … and per second after that: no dearer than what its own connections cost us
    candidates: int = 64  # providers asked by one `find`
    parallel: int = 8  # questions of one lookup in flight
    keys: int = 16384  # provider keys held for others
    records_per_address: int = (
        512  # provider records from one IPv4 address or IPv6 /64: PeerIDs cost nothing, networks do
    )
    saved_peers: int = 64
    spread: int = (
        16  # peers outside a key's neighbourhood that hold each record of ours, and that each search asks as well
    )
    followed: int = 64  # notices of providers that were looked for here
    notices: int = 4096  # notices held for others, 2 KiB each …
    notices_per_address: int = 64  # … and of one IPv4 address or IPv6 /64


@dataclass(frozen=True)
class GossipLimits:
    """Of gossip.py and the mesh. Seconds, messages and counts."""

    heartbeat: float = 1.0
    degree: int = 6  # peers to whom messages are pushed, and who push theirs …
    degree_least: int = 4  # … fewer, and others are asked …
    degree_most: int = 12  # … more, and some are let go
    outbound: int = (
        2  # of those in the mesh, dialled from here: who comes to us chooses us, whom we dial we have chosen
    )
    history: int = 3  # heartbeats within which all others are told which messages are here
    flooded: int = 32  # peers to whom a message of our own is pushed besides the mesh
    dialled: int = 8  # connections made for gossip
    look: float = 30.0  # between searches for peers while there are too few; ten times as long where there are enough
    neighbours: int = 256  # peers that gossip with us; beyond it, only who has a stake comes in, for one who has none
    neighbours_per_network: int = 64  # of one /24 or /64
    queue: int = 64  # frames that wait for one peer; beyond it, it misses some, and hears of them later
    burst: float = 512.0  # messages and names of one peer at once …
    rate: float = 16.0  # … and per second after that: twice what all of an honest run's are at most
    cached: int = 4096  # messages in memory, 4 KiB each at most …
    cached_per_network: int = 1024  # … and those that came over one /24 or /64
    keep: float = 300.0  # for as long as they are handed out
    seen: int = 16384  # names of messages that are not looked at again
    parked: int = 256  # messages that wait until the chain was asked about who signed them …
    parked_per_network: int = 32
    questions_burst: float = 8.0  # to the chain, that the peers of one /24 or /64 may cause at once …
    questions_rate: float = 0.1  # … and per second after that
    refresh: float = 60.0  # between looks at how far the run is
    prune: float = 60.0  # before who was refused asks again to be in the mesh
    promise: float = 5.0  # for a message that was offered and asked for
    cut: float = 600.0  # for which who has misbehaved is refused


@dataclass(frozen=True)
class Setup:
    """All a host is told at its start. `announce` are addresses to be known by, instead of the one it listens on;
    `report_file` is where it says how it does, for commands in other processes; `subject` what it gossips about."""

    key: Key
    listen: Address | None
    bootnodes: tuple[PeerAddress, ...]
    announce: tuple[Address, ...]
    peers_file: Path | None
    report_file: Path | None
    timing: Timing
    limits: HostLimits
    subject: GossipSubject | None = None
