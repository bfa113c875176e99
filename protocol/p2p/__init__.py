"""How the parties of a run find each other: a libp2p node in a thread of its own, starting from bootnodes only.

    with Host(key, bootnodes=["/dns4/boot.example.org/tcp/4001/p2p/16Uiu2…"]) as host:
        directory = Directory(host)
        directory.announce(service, Endpoint(role="relay", run=3, http="http://192.0.2.7:8100"))
        for provider in directory.find(service, deadline=10): ...

service.py     what is looked for, and what a provider says about itself
directory.py   announce and find: what the rest of the project uses
host.py        the thread, its supervisor and the synchronous face; life.py one life of the thread
bootnode.py    a host that only helps others to meet
discovery.py   what runs inside the thread: the parts below put together, and the endpoint protocol
membership.py  joining the network and staying in it; peers.py what is remembered over restarts
kademlia.py    the DHT: lookups and serving them; wire.py messages, routing.py table, records.py provider records
report.py      what a running host says of itself, in a file; explorer.py asks around as a stranger, for an operator's commands
admission.py   who of those that ask enters the routing table; identify.py what a peer says of itself, and ping
notices.py     signed notices of where a provider is: kept by who follows it, handed on by anybody
node.py        connections and who may have how many; listener.py who is let in; stream.py one question and its answer
transport.py   one connection: TCP, Noise, Yamux; negotiation.py is multistream-select
gossip.py      gossip about one subject over a node's connections; mesh.py to whom what is pushed (GossipSub), gossip_frames.py its messages
subject.py     what is gossiped about and what messages of it are worth: protocol/gossip sets the rules
message_cache.py  what is in memory to be handed out; reputation.py who has misbehaved, by peer and by network
address.py     multiaddrs, strictly;  settings.py  every deadline and cap

A provider is whoever holds the PeerID's key, and the PeerID is a chain address: `find` proves who answers, never that
what is answered is true. Whom to trust, the caller reads from the chain.

Importing this package imports neither trio nor libp2p (0.6 s): the thread does, when it starts.
"""

from protocol.p2p.bootnode import run_bootnode
from protocol.p2p.directory import Directory
from protocol.p2p.host import Host, HostStatus
from protocol.p2p.service import Endpoint, Provider, Service
from protocol.p2p.settings import GossipLimits, HostLimits, Timing
from protocol.p2p.subject import MESSAGE_BYTES_MAX, Fate, GossipSubject, Ruling

__all__ = [
    "MESSAGE_BYTES_MAX",
    "Directory",
    "Endpoint",
    "Fate",
    "GossipLimits",
    "GossipSubject",
    "Host",
    "HostLimits",
    "HostStatus",
    "Provider",
    "Ruling",
    "Service",
    "Timing",
    "run_bootnode",
]  # fmt: skip
