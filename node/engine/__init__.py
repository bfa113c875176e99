"""The engine: generates completions with seeded sampling and proofs, and prefills other people's to check them.

    interface.py      what an engine is              factory.py   engines by name          settings.py  [engine] of every role
    torch_engine.py   the one on transformers        memory.py    how many rows at once    proofs.py    TOPLOC proofs as rows appear
    decoding.py       samples on their way through the rows       kv_cache.py  where keys and values lie
    decoding_step.py  who sees what of them in one step           step_attention.py  attention over that
    row_attention.py  attention of every layer that asks
    sampler.py        drawing and scoring, of what can win        noise.py     Gumbel noise in torch    device.py   what computes
    fused_draw.py     drawing on a GPU, in one kernel              compiled_draw.py    the same on a CPU
    compiled.py       loops that Numba compiles                    compiled_copies.py  of keys and values
    scan.py           scoring a part of the vocabulary at a time, on a CPU          compiled_scan.py  the loop that does
    products.py       products with weights on a CPU               widened.py  those of bfloat16, where the CPU has none
    fixed_rows.py     the same bits in any batch                fixed_attention.py  attention for that    fixed_cache.py  its keys and values
    build.py          what two machines share whose bits are compared
    weights.py        loading a published version safely         tensor_files.py   writing one from front to back     footprint.py  what a model takes of its device
    separate_engine.py  one of them in a process of its own, beside other work       separate_server.py  the same from the inside
    separate_messages.py  what passes between the two                               version_files.py    whether a version is still there
    process.py        a process that computes for a role                serving.py  the same from the inside
    vllm_engine.py    the one on vLLM                vllm_build.py    which vLLM, and for which device
    vllm_process.py   the process that it runs in    vllm_server.py   the same from the inside
    vllm_capture.py   hidden states out of it        vllm_sampling.py the same draw inside it
    vllm_plan.py      what it does with its memory   vllm_check.py    what it has to show before it works
    hardware.py       what the device can do         fit.py       whether a model fits it     int8.py      its product for a challenge
    output.py         logits from hidden states      self_check.py an engine against the plain model       checked_engine.py  one that was
    plain.py          transformers' own, streamed from its folder     features.py   what can be left out of a model
    lengths.py        what begins beyond a length, and a copy in which it begins early
    conversing.py     samples of several turns, whatever the engine
    samples.py        assigned groups through it, and scored             degrade.py   cheaper weights, to measure what rules catch

The trainer evaluates with the same engine as the nodes generate with. What is named here imports no torch; the factory imports
the engine that is asked for.
"""

from node.engine.factory import make_engine
from node.engine.interface import Adjustable, Completion, Engine, Generator, Prompt, Readable, Verifier
from node.engine.settings import EngineSettings

__all__ = [
    "Adjustable",
    "Completion",
    "Engine",
    "EngineSettings",
    "Generator",
    "Prompt",
    "Readable",
    "Verifier",
    "make_engine",
]
