"""Tasksets of the package verifiers as an environment: `environment.py` adapts one, `opened.py` loads it, `scoring.py` asks its rewards and
`tools.py` its tools. What no other machine could repeat is refused by name: `refusals.py`.

The package and whatever it imports are loaded in the sandbox's child alone, and not before a problem is asked for.
"""
