"""A program that burns and sleeps in spans on a processor that another process burns too, and notes how long it took.

    python run_queue.py --spans 20 --server file:///folder --records records.json
    python run_queue.py --spans 20 --server file:///folder --records records.json --calls
    python run_queue.py --spans 20 --server file:///folder --records records.json --threads
    python run_queue.py --spans 150 --server file:///folder --records records.json --turns burns

With `--calls` a span burns its CPU time in short calls that may wait, of which none does, and then waits in short ones. With `--threads` each span
has a thread of its own, as requests have in some servers, and burns `--burn` seconds. With `--turns` two spans take turns, and the other process runs
during one of them alone, `starved`, that burns a few milliseconds. What the other, `quiet`, does is the option's value:

    burns      the same
    unseen     it waits in a function that nobody measures
    reads      it copies a large file from the kernel's memory within one call
    coroutine  it is a coroutine that ends after `starved`, of another coroutine of this thread
    loop       it is the thread's own, and runs a loop to whose end a coroutine is `starved`
    context    it is current in a context of its own, and has a child span that does nothing; `starved` in another one
"""

import argparse
import asyncio
import contextvars
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyroscope
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor

BURNT, SLEPT = 0.05, 0.01
BURNT_IN_TURNS = 0.004
LARGE = 40 << 20
#: Finding it takes 20 microseconds of CPU time.
FAR = "/" + "./" * 1_000
LIBC = ctypes.CDLL(None)


def burn(seconds: float = BURNT) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def burn_in_calls(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        for _ in range(20):
            os.stat(FAR)  # noqa: PTH116 - pathlib would shorten it


def rest() -> int:
    """Waits for half a millisecond a few times. Returns how many nanoseconds that took."""
    began = time.perf_counter_ns()
    for _ in range(15):
        select.select([], [], [], 0.0006)
    return time.perf_counter_ns() - began


def queued_ns() -> int:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--spans", type=int, default=20)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--threads", action="store_true")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--turns", choices=("burns", "unseen", "reads", "coroutine", "loop", "context"))
    parser.add_argument("--burn", type=float, default=BURNT)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pyroscope.configure(application_name="run_queue", server_address=options.server, sample_rate=250, wall_time=True)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
    tracer = provider.get_tracer("run_queue")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        # The first expiry says from when on a thread's time is known, and under load this may be half a second later than asked.
        while pyroscope.stats()["taken"]["samples"] == 0:
            burn()
        taken = {"wall": 0, "cpu": 0, "queued": 0, "rested": 0}

        def request() -> None:
            wall, cpu, queued = time.perf_counter_ns(), time.thread_time_ns(), queued_ns()
            with tracer.start_as_current_span("request"):
                (burn_in_calls if options.calls else burn)(options.burn)
                awake = queued_ns()
                if options.calls:
                    taken["rested"] += rest()
                else:
                    time.sleep(SLEPT)
                # The end of a sleep is in the sleep, and in the kernel's number too.
                slept = queued_ns() - awake
            taken["wall"] += time.perf_counter_ns() - wall
            taken["cpu"] += time.thread_time_ns() - cpu
            taken["queued"] += queued_ns() - queued - slept

        def add(name: str, queued: int) -> None:
            taken[name] = taken.get(name, 0) + queued_ns() - queued

        def let_run(name: str) -> None:
            other.send_signal(signal.SIGSTOP if name == "quiet" else signal.SIGCONT)

        def turn(name: str, work: Callable[[], object]) -> None:
            let_run(name)
            time.sleep(SLEPT)
            queued = queued_ns()
            with tracer.start_as_current_span(name):
                work()
            add(name, queued)

        async def wait_in_quiet(go: asyncio.Event) -> None:
            with tracer.start_as_current_span("quiet"):
                await go.wait()

        async def starve() -> None:
            with tracer.start_as_current_span("starved"):
                let_run("starved")
                queued = queued_ns()
                burn(BURNT_IN_TURNS)
                add("starved", queued)
                let_run("quiet")

        async def turn_of_coroutines() -> None:
            for _ in range(options.spans):
                go = asyncio.Event()
                quiet = asyncio.create_task(wait_in_quiet(go))
                await asyncio.sleep(SLEPT)
                await starve()
                go.set()
                queued = queued_ns()
                await quiet
                add("quiet", queued)

        def turns_of_a_loop() -> None:
            loop = asyncio.new_event_loop()
            for _ in range(options.spans):
                let_run("quiet")
                queued, of_starved = queued_ns(), taken.get("starved", 0)
                with tracer.start_as_current_span("quiet"):
                    loop.run_until_complete(starve())
                add("quiet", queued + taken["starved"] - of_starved)
            loop.close()

        def turns_of_contexts() -> None:
            contexts = {name: contextvars.copy_context() for name in ("quiet", "starved")}
            spans = {name: tracer.start_as_current_span(name) for name in contexts}
            for name, context in contexts.items():
                context.run(spans[name].__enter__)

            def act(name: str) -> None:
                let_run(name)
                queued = queued_ns()
                if name == "starved":
                    burn(BURNT_IN_TURNS)
                else:
                    with tracer.start_as_current_span("nothing"):
                        pass
                add(name, queued)

            for _ in range(options.spans):
                for name, context in contexts.items():
                    context.run(act, name)
            for name, context in contexts.items():
                context.run(spans[name].__exit__, None, None, None)

        buffer = bytearray(LARGE if options.turns == "reads" else 0)
        file = options.records.with_suffix(".large")
        file.write_bytes(buffer)

        def read() -> None:
            with file.open("rb", buffering=0) as opened:
                opened.readinto(buffer)

        work = {"burns": lambda: burn(BURNT_IN_TURNS), "unseen": lambda: LIBC.usleep(10_000), "reads": read}
        of_contexts = {
            "coroutine": lambda: asyncio.run(turn_of_coroutines()),
            "loop": turns_of_a_loop,
            "context": turns_of_contexts,
        }
        if turns := of_contexts.get(options.turns):
            turns()
            options.spans = 0
        for _ in range(options.spans):
            if options.turns:
                turn("quiet", work[options.turns])
                turn("starved", work["burns"])
            elif options.threads:
                thread = threading.Thread(target=request)
                thread.start()
                thread.join()
            else:
                request()
        other.kill()
    file.unlink()
    pyroscope.shutdown()
    options.records.write_text(json.dumps(taken))


if __name__ == "__main__":
    main()
