"""SHARDCAST: the weights of a run, from the trainer's origin through relays to every node, trusted by hash alone.

manifest    what a version consists of, and the trainer's signature on it
store       versions on disk: drafts apart, complete ones visible at once, old ones retired
delta       what makes one version's file out of the one before
partial     a draft being filled with verified chunks
http1       the strict little of HTTP/1.1 that is spoken here
opening     a version that its trainer is still writing, signed piece by piece
stream      the origin's side of one: hashed and shown as it grows
opened      one as servers see it
ahead       fetches one, for the version that it may become
arriving    a version on its way, as servers see it
holding     which chunks a party has, as it tells others
server      listens and keeps connections
answers     what a request gets, from a whole version or a growing one
precedence  whom an origin serves first
settings    what whoever serves may set
bucket      the cap on a server's rate
uplink      who is sent what first, and how fast
origin      the trainer's end: takes a folder, signs it, shows it
source      one place to fetch from, and what experience says of it
connection  persistent connections to sources
feed        whether relays bring a version fast enough for the origin to be left alone
promises    what relays say they have, and how long each is taken at its word
schedule    which chunk is asked of which source, and who is blamed
stock       which chunks are here, on their way, free
task        tasks under way, and statistics
inquiry     asks a relay for news of what it holds
crew        the threads that carry the schedule out
client      fetches versions from several sources, and remembers how these did
fetch       one fetch: the manifest, then chunks, each verified before it counts
by_delta    makes a version out of one that is here
rate        how fast one source serves, before there is anything to fetch

Source: arXiv 2505.07291, section on SHARDCAST. No asyncio: threads, `sendfile` and `recv_into` release the interpreter.
"""
