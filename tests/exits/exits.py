"""Runs many short processes that end in every way, and tells of each that did not end exactly as its shape says (README.md).

    python exits.py --language python --version 3.11 --count 200 --seed 1 --row FILE -- COMMAND...

COMMAND is given a shape and a seed; shapes.json says which shapes the language has.
"""

import argparse
import ctypes
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "ci"))

import failures  # noqa: E402
# What a client ends with when it has seen a child hang, or something wrong.
HUNG = 97
KINDS = ("signals", "hung", "wrong")
# How long the engine's threads are held: stop() waits for them for 5 s.
HELD = 7.0
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


@dataclass
class Ended:
    kind: str
    """One of KINDS, or nothing if all is as it must be."""
    how: str
    backtrace: str = ""


def main() -> int:
    options = arguments()
    shapes = shapes_of(options.language, options.version, options.shapes)
    if options.count == 0:
        print(len(shapes))
        return 0
    # What runs in the background of a shell ignores it, and so would what this starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A process that dies leaves a core, where the machine lets it.
    most = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (most, most))
    counts = dict.fromkeys(KINDS, 0)
    by_shape: dict[str, int] = {}
    waiting, lock = iter(range(options.count)), threading.Lock()

    def worker() -> None:
        while True:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            seed = options.seed + number
            shape = sorted(shapes)[seed % len(shapes)]
            folder = Path(tempfile.mkdtemp(prefix="exits-"))
            ended = run(options, shape, shapes[shape], seed, folder)
            if ended.kind:
                with lock:
                    counts[ended.kind] += 1
                    by_shape[shape] = by_shape.get(shape, 0) + 1
                    tell(options, shape, seed, folder, ended, by_shape[shape] <= options.told)
            shutil.rmtree(folder, ignore_errors=True)

    workers = [threading.Thread(target=worker) for _ in range(options.jobs)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    for shape, count in sorted(by_shape.items()):
        print(f"  {options.language} {options.version}: {count} of {shape}", flush=True)
    row = [f"{options.language} {options.version}", str(options.count), *(str(counts[kind]) for kind in KINDS)]
    with options.row.open("a") as rows:
        print("|".join(row), file=rows)
    return int(any(counts.values()))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--language", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--count", type=int, required=True, help="0: print how many shapes there are")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shapes", default="", help="names, or parts of them, with commas between")
    parser.add_argument("--jobs", type=one_or_more, default=os.cpu_count() or 2)
    parser.add_argument("--starve", choices=["", "idle", "held"], default="", help="what is done to the engine's threads")
    parser.add_argument("--limit", type=float, default=30, help="seconds until a process counts as hung")
    parser.add_argument("--told", type=int, default=2, help="findings of a shape that are told in full")
    parser.add_argument("--row", type=Path, default=Path(os.devnull))
    parser.add_argument("command", nargs="*")
    return parser.parse_args()


def one_or_more(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; allowed: numbers from 1 on")
    return int(text)


def shapes_of(language: str, version: str, wanted: str) -> dict[str, dict[str, Any]]:
    known = json.loads((HERE / "shapes.json").read_text())[language]
    names = wanted.split(",")
    chosen = {name: shape for name, shape in known.items() if any(name == want or want in name for want in names)}
    exact = {name: shape for name, shape in chosen.items() if name in names}
    if not chosen:
        sys.exit(f"--shapes: {wanted} is not allowed; allowed: {', '.join(known)}")
    chosen = exact or chosen
    return {name: {**shape, **shape.get("in", {}).get(version, {})} for name, shape in chosen.items()}


def run(options: argparse.Namespace, shape: str, expected: dict[str, Any], seed: int, folder: Path) -> Ended:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYROSCOPE_", "OTEL_"))}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*options.command, shape, str(seed)],
            cwd=folder,
            env={**environment, "OTEL_SERVICE_NAME": "exits", **expected.get("environment", {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    if expected["ends"] == -signal.SIGABRT:
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    deadline = time.monotonic() + options.limit
    if options.starve:
        threading.Thread(target=starve, args=[process, options.starve], daemon=True).start()
    try:
        if "sends" in expected:
            send(process, expected["sends"], random.Random(seed), folder / "output", deadline)
        code = process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        backtrace = backtraces_of(process.pid)
        end_session(process.pid)
        process.wait()
        return Ended("hung", f"did not end within {options.limit:g} s", backtrace)
    left = left_in(process.pid, deadline)
    if left:
        backtrace = backtraces_of(left[0])
        end_session(process.pid)
        return Ended("hung", "left a process behind", backtrace)
    core = next(filter(failures.is_core, folder.glob("*core*")), None)
    if code == expected["ends"] and core is None:
        return Ended("", "")
    backtrace = without_head(failures.backtrace(core)) if core else ""
    if code == HUNG:
        return Ended("hung", "a child hung", backtrace)
    if core is not None or (code < 0 and code != expected["ends"]) or 128 < code < 128 + 65 and code != expected["ends"]:
        how = f"ended by signal {-code}" if code < 0 else f"ended with {code}" + (", and a child left a core" if core else "")
        return Ended("signals", how + f"; expected {expected['ends']}", backtrace)
    return Ended("wrong", f"ended with {code}; expected {expected['ends']}")


def send(process: subprocess.Popen[bytes], name: str, chance: random.Random, output: Path, deadline: float) -> None:
    """Sends the signal some time after the program has said that it is ready."""
    while b"ready" not in output.read_bytes():
        if process.poll() is not None or time.monotonic() > deadline:
            return
        time.sleep(0.002)
    time.sleep(chance.random() * 0.1)
    process.send_signal(signal.Signals[name])


def starve(process: subprocess.Popen[bytes], how: str) -> None:
    """Until the process ends its engine's threads run only where nobody else wants to, or for some seconds not at all."""
    seen: set[int] = set()
    release = time.monotonic() + HELD
    while process.returncode is None:
        for thread in threads_of_the_engine(process.pid) - seen:
            seen.add(thread)
            try:
                if how == "idle":
                    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
                elif libc.ptrace(PTRACE_SEIZE, thread, None, None) == 0:
                    libc.ptrace(PTRACE_INTERRUPT, thread, None, None)
            except OSError:
                pass  # it has ended
        for thread in seen if how == "held" else ():
            try:
                # A thread that ends is there until this asks. What stops, stays.
                os.waitpid(thread, os.WNOHANG | WALL)
            except ChildProcessError:
                pass
            if time.monotonic() > release:
                libc.ptrace(PTRACE_DETACH, thread, None, None)
        if how == "held" and time.monotonic() > release:
            return
        time.sleep(0.002)


def threads_of_the_engine(process: int) -> set[int]:
    found = set()
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            if Path(f"/proc/{process}/task/{thread}/comm").read_text().startswith("spanprof"):
                found.add(int(thread))
    except OSError:
        pass  # it has ended
    return found


def left_in(session: int, deadline: float) -> list[int]:
    """The processes that still run in it, at the deadline at the latest."""
    while True:
        left = []
        for entry in os.listdir("/proc"):
            try:
                stat = Path(f"/proc/{int(entry)}/stat").read_text().rpartition(")")[2].split()
            except (ValueError, OSError):
                continue
            if int(stat[3]) == session and stat[0] not in "ZX":
                left.append(int(entry))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def end_session(session: int) -> None:
    for process in left_in(session, 0):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def backtraces_of(process: int) -> str:
    if not shutil.which("gdb"):
        return "no backtrace: gdb is not installed"
    options = ["-iex", "set debuginfod enabled off", "-iex", "set auto-load no", "-ex", "thread apply all bt 25"]
    return without_head(failures.gdb(*options, "-p", str(process)))


def without_head(said: str) -> str:
    """What gdb says from the first stack on."""
    lines = [line for line in said.splitlines() if line.strip()]
    begin = next((number for number, line in enumerate(lines) if line.startswith(("Program terminated", "Thread "))), 0)
    return "\n".join(lines[begin:])


def tell(options: argparse.Namespace, shape: str, seed: int, folder: Path, ended: Ended, whole: bool) -> None:
    version = f"{options.language} {options.version}"
    print(f"{ended.kind}: {version}{', ' + options.starve if options.starve else ''}, shape {shape}, seed {seed}: {ended.how}")
    if whole:
        command = f"starve --how {options.starve}" if options.starve else "exits"
        again = f"ci/soak {command.split()[0]} {options.language} 1 --versions {options.version} --shapes {shape} --seed {seed}"
        again += " ".join(["", *command.split()[1:]])
        output = (folder / "output").read_text(errors="replace")[-3000:]
        print(f"  again: {again}")
        for line in [*output.splitlines()[-40:], *ended.backtrace.splitlines()[:120]]:
            print(f"  | {line}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
