"""A valid rollout file of any size, and what judging it costs in memory.

    python -m tests.hostile.large FOLDER SHARE    judges what `make` left in FOLDER; prints the verdict and bytes as JSON

At temperature 0 all samples of a group are the same: one long completion is generated and stands in every row. The judge runs
in a process of its own, so that no other work has made room for it. Peaks are Linux's VmHWM, above what the process held
with the model loaded and the sandbox warm.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from swarm.tiny_run import BEACON, CONTRACT

from node.engine import Prompt
from node.engine.torch_engine import TorchEngine
from node.engine.weights import save_weights
from node.judging.candidate import Candidate, Commitment, PrefillPlan, RunContext
from node.judging.judge import judge
from protocol import rollout
from protocol.environments import TaskSet
from protocol.model_files import CONFIG, TOKENIZER, WEIGHTS
from protocol.runspec import RunSpec, from_table
from protocol.sandbox import Sandbox
from protocol.signing import Domain
from protocol.submission import SubmissionRef
from protocol.tokenizer import Tokenizer

NODE = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
END = 1


def make(folder: Path, like: RunSpec, model: Path, *, samples: int, tokens: int) -> Path:
    """A run whose submissions are one group of `samples` completions of `tokens` tokens, and the rollout file of one."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir()
    for name in (CONFIG, TOKENIZER, WEIGHTS):
        (folder / name).write_bytes((model / name).read_bytes())
    config = AutoConfig.from_pretrained(folder)
    config.update({
        "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16,
        "intermediate_size": 32, "max_position_embeddings": 1 << 17, "layer_types": ["full_attention"],
    })  # fmt: skip
    config.save_pretrained(folder)
    torch.manual_seed(0)
    policy = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        policy.get_input_embeddings().weight[END] = 0  # tied: its logit is 0, which is never the largest
    save_weights(policy, folder / WEIGHTS, torch.bfloat16)
    sampling = {"group_size": samples, "groups_per_submission": 1, "temperature": "0", "max_new_tokens": tokens}
    digests = {
        name: hashlib.sha256((folder / f"{name}.json").read_bytes()).hexdigest() for name in ("config", "tokenizer")
    }
    table = like.model_dump(mode="json")
    table |= {
        "sampling": sampling,
        "reward": {},
        "file_bytes_max": samples * tokens * 24,
        "model": table["model"] | digests,
    }
    (folder / "spec.json").write_text(json.dumps(table))
    candidate = _candidate(folder, root=bytes(32), units=0)
    candidate.context.sandbox.close()
    return _write(candidate, folder)


def _write(candidate: Candidate, folder: Path) -> Path:
    spec, (group,) = candidate.spec, candidate.assigned
    prompt = candidate.tokenizer.prompt(spec, group.problem, group.budget)
    ((made,),) = candidate.engine.generate(
        [Prompt(prompt, group.keys[:1])], temperature=0.0, max_new_tokens=spec.sampling.max_new_tokens,
        end_tokens=candidate.tokenizer.end_tokens,
    )  # fmt: skip
    layout = rollout.schema().with_metadata({rollout.METADATA_KEY: candidate.expected_header.encode()})
    row: dict[str, Any] = {
        "group": 0, "problem": group.problem.index, "budget": group.budget, "prompt": np.array(prompt, np.int32),
        "completion": np.array(made.tokens, np.int32), "logprobs": np.array(made.logprobs, np.float32),
        "proofs": made.proofs, "task_reward": 0.0, "length_penalty": 0.0, "reward": 0.0, "turns": [], "answers": [], "given": [],
        "calls": [],
    }  # fmt: skip
    columns = {name: [value] * spec.samples for name, value in row.items()} | {"sample": range(spec.samples)}
    path = folder / "large.parquet"
    # Not compressed: equal rows would vanish, and the file with them.
    pq.write_table(pa.table(columns, schema=layout), path, compression="none", use_dictionary=False)
    return path


def _candidate(folder: Path, *, root: bytes, units: int, share: float = 1.0) -> Candidate:
    spec = from_table(json.loads((folder / "spec.json").read_text()))
    sandbox = Sandbox(spec)
    context = RunContext(spec, Domain(31337, CONTRACT), 1, TaskSet(spec.environments, sandbox), sandbox)  # type: ignore[arg-type]
    engine = TorchEngine("float32")
    engine.load(folder)
    commitment = Commitment(SubmissionRef(NODE, 0, 0, root), units, BEACON, 0, bytes(32))  # type: ignore[arg-type]
    plan = PrefillPlan(share, b"secret")
    return Candidate(context, commitment, folder / "large.parquet", engine, Tokenizer(folder), plan)


def memory(pid: int | str = "self") -> dict[str, int]:
    """Bytes of a process: VmRSS now, VmHWM at its highest."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith(("VmRSS", "VmHWM"))}


def _judge(folder: Path, share: float) -> dict[str, Any]:
    path = folder / "large.parquet"
    with path.open("rb") as file:
        root = hashlib.file_digest(file, "sha256").digest()
    table = json.loads((folder / "spec.json").read_text())["sampling"]
    candidate = _candidate(folder, root=root, units=table["group_size"] * table["max_new_tokens"], share=share)
    candidate.engine.prefill([([2], [3])])
    sandbox = candidate.context.sandbox
    sandbox.require_reader()
    assert sandbox._process
    pid = sandbox._process.pid
    before, child = memory()["VmRSS"], memory(pid)["VmRSS"]
    finding = judge(candidate)
    result = {
        "finding": None if finding is None else [finding.rule, finding.detail],
        "tokens": candidate.checked.tokens,
        "restarts": sandbox.restarts,
        "parent": memory()["VmHWM"] - before,
        "child": memory(pid)["VmHWM"] - child,
    }
    sandbox.close()
    return result


if __name__ == "__main__":
    print(json.dumps(_judge(Path(sys.argv[1]), float(sys.argv[2]))))
