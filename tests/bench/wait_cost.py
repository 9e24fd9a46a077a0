"""What a call costs more where waits are measured: calls of libc from C, and calls of Python's that end in one.

Blocks of calls with `wall_time` off, on and off again, in turn, in one process. A block's time is the thread's CPU clock over its
number of calls; the cost is the median of the differences between neighbours, and the blocks without are the control.

    python wait_cost.py --server file:///folder --records records.json
"""

import argparse
import ctypes
import gc
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyroscope
import span_cost

CALLS = 20_000


def python_calls() -> Callable[[int], None]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    send, receive = theirs.send, ours.recv

    def calls(times: int) -> None:
        for _ in range(times // 2):
            send(b"x")
            receive(1)

    return calls


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "wait_cost.so")
        source = Path(__file__).with_name("wait_cost.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-pthread", source, "-o", library], check=True)
        native = ctypes.CDLL(str(library))
    if native.prepare() != 0:
        raise OSError("no pair of sockets")
    for name in ("could_wait", "cannot_wait", "mutex"):
        getattr(native, name).argtypes = [ctypes.c_long]
    blocks: dict[str, Callable[[int], None]] = {
        "could": native.could_wait,
        "cannot": native.cannot_wait,
        "mutex": native.mutex,
        "python": python_calls(),
    }

    def round_of(wall_time: bool) -> dict[str, float]:
        pyroscope.configure(application_name="cost", server_address=options.server, wall_time=wall_time)
        found = {}
        for name, block in blocks.items():
            began = time.thread_time_ns()
            block(CALLS)
            found[name] = (time.thread_time_ns() - began) / CALLS
        return found

    gc.freeze()
    round_of(True), round_of(False)
    rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in blocks}
    end = time.process_time() + options.seconds
    while time.process_time() < end:
        before, measured, after = round_of(False), round_of(True), round_of(False)
        for name in blocks:
            rounds[name].append((before[name], measured[name], after[name]))
    pyroscope.shutdown()
    options.records.write_text(json.dumps({name: span_cost.report(of) for name, of in rounds.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
