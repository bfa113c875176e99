"""`scripts/bench [NAME] [--json]`: without a name, lists what there is."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

NAMES = {
    "attestation": "what proofs and seeded noise cost a worker of Qwen3-0.6B's shape, and how fast they are verified",
    "cheats": "how often each cheat we can name is found, by which rule, and whether honest work ever is",
    "decode": "our engine against transformers' generate(), tokens per CPU second on the demo's policy",
    "trainer": "our training step against TRL, generation and memory included, on the same work",
    "gas": "our contracts against Prime Intellect's, gas of the common transactions on Anvil",
    "toploc": "our proof codec against toploc 0.1.6, proofs per CPU second",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench")
    parser.add_argument("name", nargs="?", choices=list(NAMES))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    if arguments.name is None:
        print("\n".join(f"{name:<12} {what}" for name, what in NAMES.items()))
        return 0
    bench = importlib.import_module(f"benches.{arguments.name}").run()
    if arguments.json:
        print(json.dumps(bench.as_json()))
        return 0
    for row in bench.rows:
        places = ".2f" if row.unit.startswith("share") else ".0f"
        ratio = "    –" if row.ratio is None else f"{row.ratio:5.2f}"
        peer = "peer          –  ratio     –" if row.peer is None else f"peer {row.peer:10,{places}}  ratio {ratio}"
        goal = "" if row.goal is None else f"goal {row.goal:,g} {'met' if row.met else 'NOT met'}"
        print(f"{row.name:<40} ours {row.ours:10,{places}} {row.unit}  {peer}  {goal}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
