"""`scripts/record-sums OUT`: parses, calls, prints."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from seats import record, recorded, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/record-sums", description="Records what honest completions add to the sums over a seat's work.")  # fmt: skip
    parser.add_argument("out", type=Path, metavar="OUT", help="OUT.npz and OUT.json are written; with --weigh, read")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default 0)")
    parser.add_argument("--share", type=float, default=1.0, help="of the completions, for a trial (default 1)")
    parser.add_argument("--minutes", type=float, default=120, help="after which no more is begun (default 120)")
    parser.add_argument(
        "--weigh",
        type=int,
        metavar="SEATS",
        help="so many seats of each pair are put together of what OUT holds, and weighed",
    )
    parser.add_argument(
        "--policies",
        type=int,
        nargs="+",
        choices=range(4),
        default=[0, 1, 2, 3],
        help="whose work is recorded (default all: 0 1 2 3)",
    )
    parser.add_argument("--also", choices=["vllm"], help="vLLM makes completions and checks them, too")
    parser.add_argument("--join", type=Path, nargs="+", metavar="PART", help="recordings that OUT is put together of")
    given = parser.parse_args()
    file = given.out.with_suffix(".npz")
    if given.weigh:
        for line in report.weigh(recorded.read(file), given.weigh, given.seed):
            print(line, flush=True)
        return
    if given.join:
        recorded.write(file, recorded.join([recorded.read(part.with_suffix(".npz")) for part in given.join]))
        print(file, recorded.digest(file))
        return
    with tempfile.TemporaryDirectory() as folder:
        made = record.record(
            Path(folder), given.seed, given.share, given.minutes, given.policies, _say, vllm=given.also == "vllm"
        )
    recorded.write(file, made)
    print(file, recorded.digest(file))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
