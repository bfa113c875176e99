"""Cheats, in two parts. *Catalogue* (cheats_catalogue.py): how often each that we can name is found in one submission, by which rule,
and whether honest work ever is. *Submissions* (cheats_submissions.py): after how many submissions and tokens of one seat each is found in
bfloat16, across two ways of computing attention, and how often TOPLOC's published thresholds find it.
"""

from __future__ import annotations

import argparse

from benches import Bench, cheats_catalogue, cheats_submissions

PARTS = ("catalogue", "submissions")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all", help="one of the two tables (default: all)")
    parser.add_argument(
        "--rows", type=int, default=240, help="of submissions: completions of each cheat (default: 240)"
    )
    parser.add_argument("--only", default="", help="cheats whose name begins so")


def run(part: str = "all", rows: int = 240, only: str = "") -> Bench:
    bench = Bench("cheats")
    for name in PARTS if part == "all" else (part,):
        bench.rows += cheats_catalogue.rows(only) if name == "catalogue" else cheats_submissions.rows(rows, only)
    return bench
