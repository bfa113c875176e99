"""The relay: fetches each version as it is published and serves it (service.py); `murmur relay …` (commands.py); what its doctor looks at (checks.py)."""
