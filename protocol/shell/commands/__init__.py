"""Command groups of `murmur` that belong to no package above: chain, run, wallet, bootnode, env, net."""
