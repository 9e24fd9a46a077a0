"""Runs the measurements of `ci/bench python` and prints their table.

Every program runs in a process of its own and uploads to a receiver in this one, ours and Grafana's alike. What is
judged by counts and CPU time alone runs two at a time; what is timed runs alone, after it.
"""

import argparse
import concurrent.futures
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import rows as all_rows
import time_rows
from run import Cell, Row, Run, ask, began, say

#: Whether the profiler runs there: it prints why not.
PROBE = """
import logging, pyroscope
class Messages(logging.Handler):
    def emit(self, record): print(record.getMessage())
logging.getLogger("pyroscope").addHandler(Messages())
if not pyroscope.configure(application_name="probe", server_address="none"): print("it does not run")
"""


def planned(options: argparse.Namespace) -> list[all_rows.Planned]:
    """In the order of the table."""
    quick = options.quick
    groups = {
        "truth": lambda: all_rows.truth_rows(quick, options.timed_on),
        "cpu": lambda: all_rows.cpu_rows(quick),
        "threads": lambda: all_rows.thread_rows(quick),
        "sample": lambda: all_rows.sample_rows(quick),
        "overhead": lambda: all_rows.overhead_rows(quick),
        "encode": all_rows.encode_rows,
        "span": lambda: all_rows.span_rows(quick),
        "time": lambda: time_rows.of(quick),
        "memory": lambda: all_rows.memory_rows(quick),
        "import": lambda: all_rows.import_rows(quick),
        "wheel": lambda: all_rows.wheel_rows(options.wheel),
    }
    wanted = options.rows.split(",") if options.rows != "all" else list(groups)
    unknown = set(wanted) - groups.keys()
    if unknown:
        raise SystemExit(f"--rows: {sorted(unknown)} is not allowed; allowed: {', '.join(groups)}")
    return [row for name, make in groups.items() if name in wanted for row in make()]


def runs_of(plan: all_rows.Planned, options: argparse.Namespace, does_not_run: dict[str, str]) -> list[Run]:
    row = plan.row
    if plan.once:
        return [Run(row, Path(), "any", False, plan.ours)]
    runs = []
    for version, python in options.ours:
        if not plan.everywhere and version not in options.timed_on:
            continue
        if version in does_not_run:
            row.ours[version] = Cell("does not run", False, {"why": does_not_run[version]})
        else:
            runs.append(Run(row, python, version, False, plan.ours))
    if plan.peers:
        runs += [Run(row, python, version, True, plan.peers) for version, python in options.peers]
    return runs


def probe(options: argparse.Namespace) -> dict[str, str]:
    """The Pythons on which the profiler does not run, and why."""
    found = {}
    for version, python in options.ours:
        why = ask(python, PROBE)
        if why:
            found[version] = why
            say(f"Python {version}: {why}")
    return found


def table(rows: list[Row], versions: list[str], peers: list[str]) -> str:
    """All rows in columns."""
    head = ["what", "bound", *(f"Python {version}" for version in versions), *(f"Grafana's, {version}" for version in peers)]
    lines = [[*head, ""]]
    for row in rows:
        cells = [cell_of(row.ours, version) for version in versions] + [cell_of(row.peers, version) for version in peers]
        if "any" in row.ours:
            cells[0], cells[1:] = row.ours["any"].text, [""] * (len(cells) - 1)
        lines.append([row.what, row.bound, *cells, row.verdict()])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def cell_of(cells: dict[str, Cell], version: str) -> str:
    return cells[version].text if version in cells else "-"


def interpreter(text: str) -> tuple[str, Path]:
    version, _, path = text.partition("=")
    return version, Path(path)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", type=interpreter, action="append", default=[])
    parser.add_argument("--peers", type=interpreter, action="append", default=[])
    parser.add_argument("--timed-on", action="append", default=[], help="versions on which all rows are measured")
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--target", type=Path, required=True)
    options = parser.parse_args()

    plans = planned(options)
    does_not_run = probe(options)
    together = [run for plan in plans if not plan.alone for run in runs_of(plan, options, does_not_run)]
    alone = [run for plan in plans if plan.alone for run in runs_of(plan, options, does_not_run)]
    deadline = began + options.minutes * 60
    say(f"{len(together)} measurements two at a time, then {len(alone)} alone")
    load_before = os.getloadavg()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(run.make, deadline) for run in together]:
            done.result()
    load_between = os.getloadavg()
    for run in alone:
        run.make(deadline)
    load_after = os.getloadavg()

    rows = [plan.row for plan in plans]
    loads = ", ".join(f"{load[0]:.1f}" for load in (load_before, load_between, load_after))
    text = table(rows, [version for version, _ in options.ours], [version for version, _ in options.peers])
    text += f"\n\n{(time.monotonic() - began) / 60:.0f} minutes; 1-minute load average before, between what runs two at a time"
    text += f" and what runs alone, after: {loads}\n"
    if options.quick:
        text += "--quick: too few samples to judge by\n"
    (options.target / "python.txt").write_text(text)
    result = {"load_average": [load_before, load_between, load_after], "quick": options.quick}
    result["rows"] = [{**asdict(row), "verdict": row.verdict()} for row in rows]
    (options.target / "python.json").write_text(json.dumps(result, indent=1))
    print(f"\n{text}")
    cells = [(row.what, version, cell) for row in rows for found in (row.ours, row.peers) for version, cell in found.items()]
    failures = [(what, version, cell.numbers["failed"]) for what, version, cell in cells if "failed" in cell.numbers]
    for what, version, failure in failures:
        print(f"could not be measured: {what}, {version}: {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
