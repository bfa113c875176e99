"""What a run's training takes of a machine's memory, before anything is loaded: `murmur trainer plan`.

passes.py   one forward and backward pass, on tensors without memory
budget.py   bytes of every kind, on each rank and its host, and of a node
search.py   the settings that would fit
report.py   all of it as text
plan.py     a run's, from its file
"""
