"""What one sample of a 57-frame stack costs.

`warm` and `cold` time the interruption itself, in the thread that is sampled: the thread sends itself the signal that
its timer would send (rt_tgsigqueueinfo lets a process forge SI_TIMER to itself; /proc/self/timers tells signal and
value), so each sample is counted, walked and written into the ring like any other. It sends signal 0, which goes through
the same system call and delivers nothing, in turn with it. The cost is the difference of the medians: raising the
signal, entering and leaving the handler, span, walk and ring are in it; the system call itself and the clock are not.
Every other signal 0 belongs to the control, which by the same formula should be 0. Signals for a generation of the
thread's record that is long gone, which the handler leaves at once, tell what delivery alone takes.

    warm    16 samples in a row from alternating lines, then a pause in which the ring is emptied
    cold    64 MiB are read before each sample, which leaves nothing of the handler's in the first caches

`beside` measures what the profiler's own threads burn for a sample, by the kernel's clock of each thread that is not
Python's main thread, while that burns. For a profiler that samples from a thread of its own, that is all of the cost;
it works with any package.

    python sample_cost.py warm|cold|beside --rate 250 --seconds 10 --server file:///folder
"""

import argparse
import ctypes
import json
import os
import random
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

FRAMES = 57
SYS_RT_TGSIGQUEUEINFO = {"x86_64": 297, "aarch64": 240}
SI_TIMER = -2
BATCH = 16
BUFFER_BYTES = 64 << 20


class TimerSignal(ctypes.Structure):
    """siginfo_t of a timer's signal."""

    _fields_ = [
        ("signo", ctypes.c_int),
        ("errno", ctypes.c_int),
        ("code", ctypes.c_int),
        ("_pad", ctypes.c_int),
        ("timer_id", ctypes.c_int),
        ("overrun", ctypes.c_int),
        ("value", ctypes.c_void_p),
        ("_rest", ctypes.c_char * 96),
    ]


def own_timer() -> tuple[int, int]:
    """Signal and value of the timer that the profiler gave to this thread."""
    tid = threading.get_native_id()
    text = Path("/proc/self/timers").read_text()
    for signal, value, target in re.findall(r"signal: (\d+)/([0-9a-f]+)\nnotify: signal/tid\.(\d+)", text):
        if int(target) == tid:
            return int(signal), int(value, 16)
    raise RuntimeError("the profiler gave this thread no timer")


class Sender:
    """Sends this thread signals, through a system call that is the same for all of them."""

    def __init__(self) -> None:
        self._call = ctypes.PyDLL(None).syscall
        self._call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        self._to = (SYS_RT_TGSIGQUEUEINFO[os.uname().machine], os.getpid(), threading.get_native_id())
        signal, value = own_timer()
        self._infos = [TimerSignal(signo=signal, code=SI_TIMER, value=value ^ stale) for stale in (0, 0xFFFF << 32)]
        sampled, stale = (ctypes.addressof(info) for info in self._infos)
        # What is timed: each kind's list of times, and the two arguments that make the kind.
        self.bare: tuple[list[int], list[int]] = ([], [])
        self.sampled: list[int] = []
        self.delivered: list[int] = []
        self.turns = (
            (self.bare[0], 0, sampled),
            (self.sampled, signal, sampled),
            (self.bare[1], 0, sampled),
            (self.delivered, signal, stale),
        )
        if self._call(*self._to, signal, stale) != 0:
            raise OSError("rt_tgsigqueueinfo was refused")

    def send(self, signal: int, info: int) -> None:
        self._call(*self._to, signal, info)

    def report(self) -> dict[str, float]:
        chance, bare, median = random.Random(1), self.bare[0] + self.bare[1], statistics.median

        def again(times: list[int]) -> float:
            return median(chance.choices(times, k=len(times)))

        costs = sorted(again(self.sampled) - again(bare) for _ in range(200))
        return {
            "ns": median(self.sampled) - median(bare),
            "low_ns": costs[4],
            "high_ns": costs[-5],
            "control_ns": median(self.bare[0]) - median(self.bare[1]),
            "delivery_ns": median(self.delivered) - median(bare),
            "timed": len(self.sampled),
        }


def at_depth(frames: int, body: Callable[[], None]) -> None:
    """Calls `body` so that a function that it calls runs in a stack of this many frames."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back

    def descend(levels: int) -> None:
        if levels == 0:
            body()
        else:
            descend(levels - 1)

    # `descend` counts its last call too, `body` and what it calls come on top.
    descend(frames - depth - 3)


def warm(sender: Sender, seconds: float) -> None:
    clock, send, wait = time.perf_counter_ns, sender.send, threading.Event().wait
    end = clock() + int(seconds * 1e9)
    while clock() < end:
        for times, signal, info in sender.turns:
            for _ in range(BATCH // 2):
                began = clock()
                send(signal, info)
                times.append(clock() - began)
                # The same from another line: a sample like the one before it would be a mere count in the ring.
                began = clock()
                send(signal, info)
                times.append(clock() - began)
            wait(0.002)


def cold(sender: Sender, seconds: float) -> None:
    clock, send, buffer = time.perf_counter_ns, sender.send, bytes(BUFFER_BYTES)
    end = clock() + int(seconds * 1e9)
    while clock() < end:
        for times, signal, info in sender.turns:
            buffer.find(b"\x01")
            began = clock()
            send(signal, info)
            times.append(clock() - began)


def time_samples(pyroscope, mode: str, seconds: float) -> dict[str, float]:
    wait_for_timer(pyroscope)
    sender = Sender()
    before = pyroscope.stats()
    # The signal comes while `send` runs, one frame further down.
    at_depth(FRAMES - 1, lambda: (warm if mode == "warm" else cold)(sender, seconds))
    pyroscope.flush(30)
    after = pyroscope.stats()
    counted = after["taken"]["samples"] - before["taken"]["samples"]
    if counted < len(sender.sampled):
        raise RuntimeError(f"{len(sender.sampled)} samples were timed, but {counted} counted")
    dropped = after["dropped_ring"]["samples"] - before["dropped_ring"]["samples"]
    return {**sender.report(), "counted": counted, "dropped": dropped}


def wait_for_timer(pyroscope) -> None:
    while pyroscope.stats()["taken"]["samples"] == 0:
        burn(0.01)


def burn(seconds: float) -> int:
    clock, number = time.thread_time, 1
    end = clock() + seconds
    while clock() < end:
        for i in range(200):
            number = (number * 31 + i) % 1_000_003
    return number


def cpu_beside() -> int:
    """CPU time of all threads but this one, nanoseconds, as the scheduler counts it."""
    own, total = threading.get_native_id(), 0
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) != own:
            total += int((task / "schedstat").read_text().split()[0])
    return total


def beside(seconds: float) -> dict[str, float]:
    """The judge divides by the samples that it finds in the profiles."""
    before = cpu_beside()
    at_depth(FRAMES - 1, lambda: burn(seconds))
    return {"beside_ns": cpu_beside() - before}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=("warm", "cold", "beside"))
    parser.add_argument("--rate", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    import pyroscope

    pyroscope.configure(application_name="cost", server_address=options.server, sample_rate=options.rate)
    if options.mode == "beside":
        record = beside(options.seconds)
    else:
        record = time_samples(pyroscope, options.mode, options.seconds)
    pyroscope.shutdown()
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
