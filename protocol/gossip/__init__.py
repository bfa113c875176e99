"""What the parties of a run tell each other without a hub: new versions, what the trainer needs, and what validators found.

messages.py   the four kinds; each is a word that its signer has given anyway, under the signature that it has anyway
authority.py  who may give it, as the chain says: trainer, validators, nodes, and what they have at stake
checks.py     what is taken and handed on, and what is refused
heard.py      the newest of each kind, and who wants to be woken
run_gossip.py all of it for one run, over a host (protocol/p2p/gossip.py carries it)

Nothing here decides anything: a node that hears of a new version looks at the chain, and loads what that says. Who hears nothing
asks the hub, as it would without all this.
"""
