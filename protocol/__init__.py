"""What all parties of a run must agree on: formats, seeds, rules of proof, the chain and how weights and peers are found.

Imports neither `node` nor `trainer`, and no torch.
"""

__version__ = "0.1.0"
"""Also of the package: pyproject.toml reads it here."""
