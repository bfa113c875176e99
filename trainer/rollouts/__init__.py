"""Validated rollouts for training: data.py finds and verifies them, share.py deals them out fairly, counts.py counts."""
