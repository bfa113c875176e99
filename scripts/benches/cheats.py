"""Cheats, in three parts. *Catalogue* (cheats_catalogue.py): how often each that we can name is found in one submission, by which rule,
and whether honest work ever is. *Submissions* (cheats_submissions.py): after how many submissions and tokens of one seat each is found in
bfloat16, across two ways of computing attention, and how often TOPLOC's published thresholds find it. *Seats* (cheats_seats.py): after how many
tokens in float32, of several seats.
"""

from __future__ import annotations

import argparse

from benches import Bench, cheats_catalogue, cheats_seats, cheats_submissions

PARTS = ("catalogue", "submissions", "seats")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all", help="one of the tables (default: all)")
    parser.add_argument(
        "--rows", type=int, default=240, help="of submissions: completions of each cheat (default: 240)"
    )
    parser.add_argument("--seats", type=int, default=5, help="of seats: how many of each cheat (default: 5)")
    parser.add_argument("--only", default="", help="cheats whose name begins so")


def run(part: str = "all", rows: int = 240, seats: int = 5, only: str = "") -> Bench:
    bench = Bench("cheats")
    for name in PARTS if part == "all" else (part,):
        match name:
            case "catalogue":
                bench.rows += cheats_catalogue.rows(only)
            case "submissions":
                bench.rows += cheats_submissions.rows(rows, only)
            case "seats":
                bench.rows += cheats_seats.rows(seats, only)
    return bench
