"""A program that ends, forks, stops or is stopped while the profiler is busy: in which shape, its first argument says.

    python python.py SHAPE SEED

`shapes.json` says how each must end; `exits.py` runs them. The instants are random, by the seed.
"""

import asyncio
import atexit
import faulthandler
import gc
import importlib
import multiprocessing
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
import weakref
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from opentelemetry import context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

SHAPE, SEED = sys.argv[1], int(sys.argv[2])
chance = random.Random(SEED)
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of each fork beside threads


class ContextOfThePrograms(ContextVarsRuntimeContext):
    """In Python, as those of frameworks are: it calls, and so it lets go of the interpreter's lock."""

    def attach(self, ctx):
        for _ in range(50):
            pass
        return super().attach(ctx)

    def detach(self, token):
        for _ in range(50):
            pass
        super().detach(token)


if "foreign_context" in SHAPE:
    context._RUNTIME_CONTEXT = ContextOfThePrograms()

from opentelemetry.sdk.trace import TracerProvider  # noqa: E402

import pyroscope  # noqa: E402
from pyroscope import _arguments  # noqa: E402
from pyroscope.otel import PyroscopeSpanProcessor  # noqa: E402

wall_time = chance.random() < 0.5
provider = TracerProvider(shutdown_on_exit=False)
scope, time_attributes = chance.choice(["root", "all"]), wall_time and chance.random() < 0.5
provider.add_span_processor(PyroscopeSpanProcessor(scope=scope, time_attributes=time_attributes))
tracer = provider.get_tracer("exits")
SETTINGS: dict = {"application_name": "exits", "server_address": "none", "sample_rate": 1000}
if chance.random() < 0.3:
    SETTINGS["server_address"] = f"{Path.cwd().as_uri()}/profiles"
if wall_time:
    # As many samples of waits as can be, in some.
    SETTINGS.update(wall_time=True, every_wait=chance.random() < 0.5)
elif chance.random() < 0.6:
    # Timers that interrupt a thread anywhere, also where it waits: for tests alone.
    SETTINGS.update(wall_clock=True, sample_rate=2000)
LOCK = threading.Lock()
HUNG, WRONG = 97, 98


def start() -> bool:
    return _arguments.launch(SETTINGS)


def expect(is_so: bool, words: str, code: int = WRONG) -> None:
    if not is_so:
        os.write(2, f"wrong: {words}\n".encode())
        os._exit(code)


def pause(most: float = 0.15) -> None:
    time.sleep(chance.random() * most)


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(100))


def spans() -> None:
    with tracer.start_as_current_span("outer"), tracer.start_as_current_span("inner"):
        burn(0.0005)


def tags() -> None:
    with pyroscope.tag_wrapper({"tenant": str(threading.get_ident() % 7)}), tracer.start_as_current_span("tagged"):
        burn(0.0005)


def compress() -> None:
    zlib.compress(b"spanprof" * 20_000)  # without the interpreter's lock


def waits() -> None:
    # A child may have the lock as another thread held it.
    with tracer.start_as_current_span("waits"):
        if LOCK.acquire(timeout=0.001):
            time.sleep(0.0002)
            LOCK.release()
        reader, writer = socket.socketpair()
        writer.send(b"a")
        select.select([reader], [], [], 0.001)
        reader.recv(1)
        reader.close()
        writer.close()


def garbage() -> None:
    for _ in range(300):
        ring: list = []
        ring.append(ring)


def deep() -> None:
    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
        else:
            burn(0.0002)

    dive(150)


def polls() -> None:
    pyroscope.stats()


def flushes() -> None:
    pyroscope.flush(0.01)


def starts_and_stops() -> None:
    pyroscope.stop()
    start()


def work() -> None:
    chance.choice([spans, tags, waits, compress, garbage, deep])()


def for_ever(*deeds: Callable[[], None], threads: int = 1) -> None:
    """Daemon threads that do this until the process ends."""

    def loop() -> None:
        while True:
            for deed in deeds:
                deed()

    for _ in range(threads):
        threading.Thread(target=loop, daemon=True).start()


def under_load(threads: int = 3) -> None:
    expect(start(), "configure() returned False")
    for_ever(work, threads=threads)
    pause()


def fork(body: Callable[[], None]) -> int:
    """A child that does this and ends as programs do; for the main thread."""
    child = os.fork()
    if not child:
        body()
        sys.exit(0)
    return child


def reap(child: int, code: int = 0) -> None:
    until = time.monotonic() + 15
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            expect(os.waitstatus_to_exitcode(status) == code, f"a child ended with {os.waitstatus_to_exitcode(status)}")
            return
        time.sleep(0.005)
    os.kill(child, signal.SIGQUIT)  # so that it leaves a core
    time.sleep(1)
    os.kill(child, signal.SIGKILL)
    expect(False, "a child hung", HUNG)


def expect_samples() -> None:
    """That this process is profiled, through a span and after it."""
    spans()
    until = time.monotonic() + 10
    before = pyroscope.stats()["taken"]["samples"]
    while pyroscope.stats()["taken"]["samples"] == before:
        expect(time.monotonic() < until, f"no samples are taken: {pyroscope.stats()}")
        spans()


# How programs end.


def the_end() -> None:
    under_load()


def daemons_poll_stats() -> None:
    under_load(1)
    for_ever(polls, threads=2)
    pause(0.1)


def daemons_flush() -> None:
    under_load(1)
    for_ever(flushes, threads=2)
    pause(0.1)


def daemons_start_and_stop() -> None:
    under_load(2)
    for_ever(starts_and_stops)
    pause(0.2)


def daemons_do_it_all() -> None:
    under_load(1)
    for_ever(polls, flushes, spans, tags, threads=4)
    pause(0.2)


def sys_exit() -> None:
    under_load()
    sys.exit(3)


def sys_exit_in_spans() -> None:
    under_load()
    with tracer.start_as_current_span("a"), pyroscope.tag_wrapper({"a": "b"}), tracer.start_as_current_span("b"):
        sys.exit(4)


def sys_exit_in_threads() -> None:
    under_load()
    for _ in range(10):
        threading.Thread(target=lambda: (burn(0.002), sys.exit(9))).start()


def os_exit() -> None:
    under_load()
    os._exit(5)


def os_exit_in_a_thread() -> None:
    under_load()
    threading.Thread(target=lambda: (pause(0.05), os._exit(6))).start()
    while True:
        work()


def exception_in_main() -> None:
    under_load()
    with tracer.start_as_current_span("a"):
        raise ValueError("expected")


def exceptions_in_threads() -> None:
    under_load()

    def fail() -> None:
        with tracer.start_as_current_span("a"), pyroscope.tag_wrapper({"a": "b"}):
            burn(0.002)
            raise ValueError("expected")

    threading.excepthook = lambda _: None
    for _ in range(20):
        threading.Thread(target=fail).start()


def endless_recursion() -> None:
    under_load(1)

    def dive() -> None:
        # The SDK would write down each of the thousand tracebacks.
        with tracer.start_as_current_span("a", record_exception=False, set_status_on_exception=False):
            dive()

    dive()


def is_sent_a_signal() -> None:
    under_load()
    print("ready", flush=True)
    while True:
        time.sleep(0.01)


terminated = interrupted = killed = is_sent_a_signal


def signal_handler_exits() -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(7)

    signal.signal(signal.SIGTERM, leave)
    under_load()
    print("ready", flush=True)
    while True:
        time.sleep(0.001)


def starts_late() -> None:
    for_ever(spans, compress, threads=3)
    pause()
    threading.Thread(target=start, daemon=True).start()
    pause(0.004)


def short_threads() -> None:
    under_load(1)

    def churn() -> None:
        while True:
            thread = threading.Thread(target=burn, args=[0.0005], daemon=True)
            thread.start()
            thread.join()

    for _ in range(2):
        threading.Thread(target=churn, daemon=True).start()
    pause(0.2)


def atexit_works() -> None:
    """Handlers before and after the profiler's own: spans, tags, stats."""

    def works() -> None:
        for deed in (spans, tags, polls, flushes, garbage):
            deed()

    atexit.register(works)
    under_load()
    atexit.register(works)


def atexit_starts_again() -> None:
    """By a handler that runs after the profiler's own."""
    atexit.register(start)
    under_load(2)
    for_ever(spans)


def atexit_is_cleared() -> None:
    under_load()
    atexit._clear()


def finalisers_work() -> None:
    under_load(2)

    class Last:
        def __del__(self) -> None:
            spans()
            polls()

    sys.kept = [Last() for _ in range(5)]  # type: ignore[attr-defined]
    globals()["kept"] = Last()
    weakref.finalize(Last, tags)


def foreign_context() -> None:
    under_load(1)
    for_ever(spans, threads=3)
    pause(0.2)


def foreign_context_sys_exit() -> None:
    foreign_context()
    sys.exit(3)


def gc_callbacks() -> None:
    def told(phase: str, info: dict) -> None:
        for _ in range(20):
            pass

    gc.callbacks.append(told)
    gc.set_threshold(20)
    under_load(1)
    for_ever(spans, threads=3)
    pause(0.1)


def finalisers_in_garbage() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            sum(range(20))

    gc.set_threshold(10)
    under_load(1)
    for_ever(Cycle, spans, tags, threads=3)
    pause(0.1)


def faulthandler_is_on() -> None:
    under_load()
    faulthandler.enable()
    pause(0.1)
    if chance.random() < 0.5:
        faulthandler.disable()


def tasks_are_left() -> None:
    async def task() -> None:
        while True:
            with tracer.start_as_current_span("task"):
                await asyncio.sleep(0)
            work()

    async def main() -> None:
        tasks = [asyncio.create_task(task()) for _ in range(5)]
        await asyncio.sleep(chance.random() * 0.1)
        del tasks

    under_load(1)
    threading.Thread(target=lambda: asyncio.run(task()), daemon=True).start()
    asyncio.run(main())


def executors() -> None:
    under_load(1)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(40):
            pool.submit(work)
        pause(0.02)


def reloads() -> None:
    Path("reloaded.py").write_text("def work(burn):\n    burn(0.001)\n")
    sys.path.insert(0, os.getcwd())
    module = importlib.import_module("reloaded")
    under_load(1)
    for_ever(lambda: module.work(burn))
    for number in range(10):
        Path("reloaded.py").write_text("def work(burn):\n    " + "burn(0);" * number + "burn(0.001)\n")
        importlib.reload(module)
        module.work(burn)


# Forks, and programs that become others.


def forks() -> None:
    under_load()
    for _ in range(3):
        pause(0.02)
        reap(fork(expect_samples))


def forks_at_once() -> None:
    under_load()
    for child in [fork(spans) for _ in range(5)]:
        reap(child)


def forks_in_threads() -> None:
    under_load(1)

    def storm() -> None:
        for _ in range(4):
            child = os.fork()
            if not child:
                spans()
                os._exit(0)
            reap(child)

    threads = [threading.Thread(target=storm) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def stop_fork_configure() -> None:
    under_load()
    pyroscope.shutdown()

    def child() -> None:
        expect(start(), "configure() returned False in the child")
        expect_samples()
        pyroscope.shutdown()
        expect(start(), "configure() returned False in the child, the second time")
        expect_samples()

    reap(fork(child))
    expect(start(), "configure() returned False after the fork")
    expect_samples()


def fork_while(change: Callable[[], object]) -> None:
    """Forks while another thread makes the change; the child's profiler works."""
    changing = threading.Thread(target=change)
    changing.start()
    pause(0.003)

    def child() -> None:
        pyroscope.shutdown()
        expect(start(), "configure() returned False in the child")
        expect_samples()

    reap(fork(child))
    changing.join()


def fork_during_shutdown() -> None:
    under_load(2)
    fork_while(pyroscope.shutdown)


def fork_during_configure() -> None:
    expect(start(), "configure() returned False")
    pyroscope.shutdown()
    fork_while(start)


def configure_during_shutdown() -> None:
    under_load(1)
    for _ in range(10):
        stopping = threading.Thread(target=pyroscope.shutdown)
        stopping.start()
        pause(0.002)
        start()
        stopping.join()
    pyroscope.shutdown()
    expect(start(), "configure() returned False after all of them")
    expect_samples()


def pools() -> None:
    under_load(1)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        pool.map(burn, [0.002] * 12)
        # Leaving terminates the workers at any instant.


def execs() -> None:
    under_load()
    os.execv(sys.executable, [sys.executable, "-S", "-c", "import time, os; time.sleep(0.02); os._exit(7)"])


def execs_in_a_thread() -> None:
    under_load()
    threading.Thread(target=execs).start()
    while True:
        work()


def spawns() -> None:
    under_load(2)
    for number in range(4):
        ended = subprocess.run(["sh", "-c", f"exit {number}"], preexec_fn=(lambda: None) if number % 2 else None)
        expect(ended.returncode == number, f"sh ended with {ended.returncode}")


def spawns_while_it_ends() -> None:
    under_load(1)
    for_ever(lambda: subprocess.run(["true"]), threads=2)
    pause(0.1)


if __name__ == "__main__":
    globals()[SHAPE]()
