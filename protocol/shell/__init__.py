"""What surrounds the protocol in every program: the command line, homes, and the connection of a role to its run.

cli.py         the command `murmur`, output, errors     home.py     a role's folder, keys and lock
connection.py  chain, peers and hub of a role           money.py    amounts as people write them
runfile.py     run.toml                                 machine.py  what the operating system refuses
run_card.py    what an owner hands to contributors
checkup.py     checks with verdicts and next steps      peers.py    settings of how peers are found
doctor.py      what may be wrong with a chain           role_checks.py  what all roles' doctors look at, in a role_subject.py
bootnode_checks.py  what a bootnode's doctor looks at
role.py        what every `… start` brings up           signals.py  how a signal ends it
gas.py         what its key has left for gas, as a metric
sending.py     the sender of a command             proposal.py    what an owner that is a contract signs
location.py    where a run is, as its owner says on chain
policy_warnings.py  what a policy's numbers make pay, said before it is created
manifest_lookup.py  a version's manifest, by the digest on chain
sentences.py   events as sentences                      watch.py    a run's events for a terminal
notify.py      tells an operator by webhook or command
completion.py  completion in bash and zsh
repeating.py   `--watch`                               log_file.py  `… logs`
spec_file.py   the run's spec, kept in the home for when the hub is away
standpoint.py  from where an operator looks at the network
host_status.py what `murmur relay status` and `murmur bootnode status` tell
reachability.py, acquaintances.py, calling.py, trace.py   what `murmur net status | peers | ping | trace` find out, by lookups.py and
               endpoint_check.py; diagnosis.py says what is wrong, remedy.py what to do about it; net_text.py prints it
commands/      `murmur chain | run | wallet | bootnode | env | net`
environment_package.py  a package with an environment, made of environment_template/
The topmost room of this package: no other imports it.
"""
