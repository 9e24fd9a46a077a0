"""A program whose spans hand their context to other threads and tasks, and that notes how long they took by its own clock.

    python handed.py --times 5 --server file:///folder --records records.json
"""

import argparse
import asyncio
import contextlib
import contextvars
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyroscope
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor

#: What a thread burns, and then sleeps, in seconds.
BURNT, SLEPT = 0.05, 0.05

provider = TracerProvider(shutdown_on_exit=False)
tracer = provider.get_tracer("handed")
#: By name, of each span: its id, how long it was current, and for how long its thread had no processor meanwhile, in nanoseconds.
taken: dict[str, list[tuple[str, int, int]]] = {}
#: What threads ran in the span around their own, and before.
ran_before = 0


def queued_ns() -> int:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


@contextlib.contextmanager
def noted(name: str) -> Iterator[None]:
    span_id = format(trace.get_current_span().get_span_context().span_id, "016x")
    began, queued = time.perf_counter_ns(), queued_ns()
    yield
    taken.setdefault(name, []).append((span_id, time.perf_counter_ns() - began, queued_ns() - queued))


@contextlib.contextmanager
def current_span(name: str) -> Iterator[None]:
    with tracer.start_as_current_span(name), noted(name):
        yield


def work() -> None:
    """What is handed on."""
    until = time.thread_time() + BURNT
    while time.thread_time() < until:
        pass
    time.sleep(SLEPT)


def own() -> None:
    """What the span's own flow does, a little that is not to be lost."""
    time.sleep(0.01)


async def to_thread() -> None:
    with current_span("to_thread"):
        await asyncio.to_thread(work)
        await asyncio.sleep(0.01)


async def run_in_executor() -> None:
    with current_span("run_in_executor"):
        copied = contextvars.copy_context()
        await asyncio.get_running_loop().run_in_executor(None, copied.run, work)


async def tasks() -> None:
    """Burn and await in tasks: their CPU time is beside the span's own await of them."""

    async def child() -> None:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        await asyncio.sleep(0.02)

    with current_span("tasks"):
        await asyncio.gather(child(), child(), child())


def around_a_loop() -> None:
    """What coroutines burn is what the thread of their loop does; that they are suspended is not."""

    async def main() -> None:
        work()
        await asyncio.gather(asyncio.sleep(0.02), asyncio.sleep(0.02))

    with current_span("around_a_loop"):
        asyncio.run(main())


def pool() -> None:
    with current_span("pool"), ThreadPoolExecutor(2) as executor:
        futures = [executor.submit(contextvars.copy_context().run, work) for _ in range(2)]
        own()
        for future in futures:
            future.result()


def thread() -> None:
    with current_span("thread"):
        current = context.get_current()

        def attached() -> None:
            token = context.attach(current)
            work()
            context.detach(token)

        other = threading.Thread(target=attached)
        other.start()
        own()
        other.join()


def inner() -> None:
    """A span that begins on the other thread is that one's, whatever it is within."""
    with current_span("inner_outer"), ThreadPoolExecutor(1) as executor:

        def begin() -> None:
            global ran_before
            ran_before += time.thread_time_ns()
            with current_span("inner"):
                work()

        executor.submit(contextvars.copy_context().run, begin).result()


def moved() -> None:
    """A span that is started here and current on another thread alone, which has all of it."""
    span = tracer.start_span("moved")

    def whole() -> None:
        with trace.use_span(span, end_on_exit=True), noted("moved"):
            work()

    other = threading.Thread(target=whole)
    other.start()
    other.join()


def forked() -> None:
    """What a child does goes on in the span that it was forked in, which is its parent's."""
    with current_span("forked"):
        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join()


#: By way: whether anything of its span is beside that one's own time.
WAYS: dict[Callable[[], object], bool] = {
    to_thread: True,
    run_in_executor: True,
    tasks: True,
    around_a_loop: True,
    pool: True,
    thread: True,
    inner: False,
    moved: False,
    forked: True,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    pyroscope.configure(application_name="handed", server_address=options.server, sample_rate=500, wall_time=True)
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
    for way in WAYS:
        for _ in range(options.times):
            if asyncio.iscoroutinefunction(way):
                asyncio.run(way())
            else:
                way()
    pyroscope.shutdown()
    options.records.write_text(json.dumps({"taken": taken, "ran_before": ran_before, "queued": queued_ns()}))


if __name__ == "__main__":
    main()
