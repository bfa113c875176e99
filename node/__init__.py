"""A machine's side of a run: the contributor, the validator, the relay, and the engine and judging that they share."""
