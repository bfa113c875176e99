"""A whole swarm on one machine, for the demo, the devnet and the tests: real processes of the real programs."""
