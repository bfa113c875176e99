"""`scripts/bench [NAME] [--json] [options of that bench]`: without a name, lists what there is."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

NAMES = {
    "asynchrony": "what learning loses to rollouts of older weights, and what a trainer gains by not waiting",
    "attestation": "what proofs and seeded noise cost a worker of Qwen3-0.6B's shape, and how fast they are verified",
    "cheats": "how often each cheat we can name is found, by which rule, and after how many submissions of a seat in bfloat16",
    "length": "whether announced length budgets are learned, and what they cost the task",
    "engine": "our engine at the shape of rollouts against transformers and vLLM: equal and log-normal lengths, grouped heads",
    "decode": "our engine against transformers' generate(), tokens per CPU second on the demo's policy",
    "index": "what following the chain costs, cold and warm, as submissions pile up",
    "delta": "lossless deltas between versions of real GRPO: bytes, bit-exactness, speed; against XOR under Zstandard",
    "env": "answers of mathematics scored, and programs run, a CPU second: against math-verify, and an interpreter without walls",
    "importing": "task files made of 285,000 rows of mathematics and code: CPU time and memory",
    "trainer": "our training step against TRL, generation and memory included, on the same work",
    "growth": "what one turn of validator, trainer, ledger and journals costs as history grows",
    "gas": "our contracts against Prime Intellect's, gas of the common transactions on Anvil",
    "page": "how quickly the hub's page answers at 1,000 nodes and 100,000 submissions, and what a browser does with it",
    "rpc": "what a submission and an idle role ask of an endpoint: HTTP requests and JSON-RPC calls",
    "shardcast": "how fast weights travel: through relays at full speed, and in trees and chains of limited lines",
    "start": "CPU seconds until a command has printed its help, or has read the chain",
    "waste": "how much accepted work is trained on when nodes know what is wanted: a simulation",
    "judging": "what verifying a token costs against generating it, and where that goes",
    "toploc": "our proof codec against toploc 0.1.6, proofs per CPU second",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench", allow_abbrev=False)
    parser.add_argument("name", nargs="?", choices=list(NAMES))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments, rest = parser.parse_known_args()
    if arguments.name is None:
        print("\n".join(f"{name:<12} {what}" for name, what in NAMES.items()))
        return 0
    module = importlib.import_module(f"benches.{arguments.name}")
    own = argparse.ArgumentParser(prog=f"scripts/bench {arguments.name}", allow_abbrev=False)
    if hasattr(module, "options"):
        module.options(own)
    bench = module.run(**vars(own.parse_args(rest)))
    if arguments.json:
        print(json.dumps(bench.as_json()))
        return 0
    for row in bench.rows:
        ratio = "    –" if row.ratio is None else f"{row.ratio:5.2f}"
        peer = "peer          –  ratio     –" if row.peer is None else f"peer {_shown(row.peer)}  ratio {ratio}"
        goal = "" if row.goal is None else f"goal {row.goal:,g} {'met' if row.met else 'NOT met'}"
        print(f"{row.name:<40} ours {_shown(row.ours)} {row.unit}  {peer}  {goal}  {row.remark}".rstrip())
    return 0


def _shown(value: float) -> str:
    return f"{value:10,.{0 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3}f}"


if __name__ == "__main__":
    sys.exit(main())
