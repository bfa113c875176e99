"""The engine: generates completions with seeded sampling and proofs, and prefills other people's to check them.

    torch_engine.py  the engine on transformers and torch    noise.py    Gumbel noise in torch
    weights.py       loading a published version safely         degrade.py  cheaper weights, to measure what rules catch
The trainer evaluates with the same engine as the nodes generate with.
"""

from node.engine.torch_engine import Completion, Prompt, TorchEngine

__all__ = ["Completion", "Prompt", "TorchEngine"]
