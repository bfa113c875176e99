"""Policies to start from and to take away: tiny.py makes one, pretrained.py imports one, export.py writes one."""
