"""Validated rollouts for training: data.py finds and verifies them, files.py has their files, lines.py which of a node's
submissions count, pool.py keeps the groups that are ready, share.py deals them out fairly, counts.py counts."""
