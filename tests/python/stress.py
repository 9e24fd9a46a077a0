"""A hostile program under 5 kHz wall-clock timers, and the table of calls that it can make.

Wall-clock timers interrupt every thread anywhere, also in system calls and in the interpreter's own bookkeeping, which
CPU timers reach rarely. The test compares each caller and callee seen with `CALLERS`.

    python stress.py --seconds 15 --rate 5000 --server file:///folder --records records.json
"""

import argparse
import asyncio
import contextvars
import functools
import gc
import json
import random
import re
import sys
import threading
import time
import types
import zlib
from collections.abc import Callable, Generator
from pathlib import Path

import greenlet

# A function of this file: the functions of this file that may be the next frame below it. Where CPython itself runs a
# function in between calls (destructors), any may be.
ANYWHERE = frozenset({"*"})
CALLERS: dict[str, frozenset[str]] = {
    name: frozenset(callers.split())
    for name, callers in {
        "Work.generators": "Work.one",
        "outer_generator": "Work.generators",
        "inner_generator": "outer_generator short_thread",
        "Work.recursion": "Work.one",
        "dive": "dive Work.recursion",
        "Work.exceptions": "Work.one",
        "fall": "fall Work.exceptions",
        "Work.coroutines": "Work.one",
        # A coroutine's frame is below its caller's at the moment in which it is made.
        "gather_steps": "Work.coroutines",
        "step": "gather_steps",
        "inner_step": "step",
        "Awaited.__await__": "inner_step",
        "Work.contexts": "Work.one",
        "set_many": "Work.contexts",
        "Work.greenlets": "Work.one",
        "swim": "",
        "swim_deep": "swim_deep swim",
        "Work.garbage": "Work.one",
        "Cyclic.__init__": "Work.garbage",
        "Work.made_code": "Work.one short_thread",
        "Work.callbacks": "Work.one",
        "Work.callbacks.<locals>.<lambda>": "Work.callbacks",
        "compare": "Work.callbacks",
        "replace": "",
        "Key.__hash__": "Work.callbacks",
        "Key.__eq__": "Work.callbacks",
        "Work.native": "Work.one",
        "Work.spans": "Work.one",
        "Work.one": "Work.worker",
        "Work.worker": "",
        "Work.churn": "",
        "short_thread": "",
        "main": "<module>",
        "run": "main",
        "<module>": "Work.made_code",
        "Work.__init__": "run",
    }.items()
}
CALLERS["Cyclic.__del__"] = ANYWHERE
MADE = re.compile(r"(made|leaf)_(\d+)")
MADE_FILE = "<made code>"


def is_allowed(callee: str, caller: str) -> bool:
    """Whether this program has such a call. A made function calls its own leaf, which has the same number."""
    made, maker = MADE.fullmatch(callee), MADE.fullmatch(caller)
    if made and made[1] == "leaf":
        return bool(maker) and maker[1] == "made" and maker[2] == made[2]
    if made:
        return caller == "Work.made_code"
    if callee.endswith(".<locals>.<listcomp>"):
        return callee == f"{caller}.<locals>.<listcomp>"
    callers = CALLERS.get(callee, frozenset())
    return callers is ANYWHERE or caller in callers


def outer_generator(count: int) -> Generator[int, None, None]:
    for _ in range(3):
        yield from inner_generator(count)


def inner_generator(count: int) -> Generator[int, None, None]:
    for number in range(count):
        yield number


def dive(depth: int) -> int:
    return depth if depth == 0 else dive(depth - 1)


def fall(depth: int) -> None:
    try:
        if depth == 0:
            raise KeyError(depth)
        fall(depth - 1)
    finally:
        del depth


class Awaited:
    def __await__(self) -> Generator[None, None, int]:
        yield
        return 1


async def inner_step(number: int) -> int:
    VARIABLE.set(number)
    return await Awaited()


async def step(number: int) -> int:
    return await inner_step(number) + await inner_step(number + 1)


async def gather_steps(count: int) -> None:
    await asyncio.gather(*map(step, range(count)))


VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("number")
MANY = [contextvars.ContextVar(f"variable {number}") for number in range(40)]


def set_many() -> None:
    for variable in MANY:
        variable.set(1)


def swim(depth: int) -> None:
    swim_deep(depth)


def swim_deep(depth: int) -> None:
    if depth:
        swim_deep(depth - 1)
        return
    VARIABLE.set(depth)
    for _ in range(20):
        greenlet.getcurrent().parent.switch()


class Cyclic:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.itself = None


class Key:
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def compare(left: int, right: int) -> int:
    return left - right


def replace(found: re.Match[str]) -> str:
    return found[0].upper()


def short_thread(work: "Work", seed: int) -> None:
    sum(inner_generator(500))
    work.made_code(random.Random(seed))


class Work:
    def __init__(self, tracer, seconds: float) -> None:
        self.tracer = tracer
        self.end = time.monotonic() + seconds
        self.kinds: list[Callable[[random.Random], object]] = [
            self.generators,
            self.recursion,
            self.exceptions,
            self.coroutines,
            self.contexts,
            self.greenlets,
            self.garbage,
            self.made_code,
            self.callbacks,
            self.native,
            self.spans,
        ]

    def worker(self, seed: int) -> None:
        chance = random.Random(seed)
        while time.monotonic() < self.end:
            self.one(chance)

    def one(self, chance: random.Random) -> None:
        chance.choice(self.kinds)(chance)

    def churn(self) -> None:
        seed = 0
        while time.monotonic() < self.end:
            threads = [threading.Thread(target=short_thread, args=(self, seed + number)) for number in range(8)]
            seed += len(threads)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def generators(self, chance: random.Random) -> None:
        for _ in outer_generator(chance.randrange(300)):
            pass

    def recursion(self, chance: random.Random) -> None:
        dive(chance.randrange(1, 300))

    def exceptions(self, chance: random.Random) -> None:
        try:
            fall(chance.randrange(1, 100))
        except KeyError:
            pass

    def coroutines(self, chance: random.Random) -> None:
        asyncio.run(gather_steps(chance.randrange(20)))

    def contexts(self, chance: random.Random) -> None:
        contextvars.copy_context().run(set_many)

    def greenlets(self, chance: random.Random) -> None:
        swimmers = [greenlet.greenlet(swim) for _ in range(12)]
        for swimmer in swimmers:
            swimmer.switch(chance.randrange(40))
        while swimmers:
            for swimmer in swimmers:
                swimmer.switch()
            swimmers = list(filter(None, swimmers))

    def garbage(self, chance: random.Random) -> None:
        for _ in range(50):
            Cyclic()
        gc.collect(0)

    def made_code(self, chance: random.Random) -> None:
        number = chance.randrange(10**9)
        source = (
            f"def made_{number}(n):\n"
            f"  def leaf_{number}(n):\n"
            f"    total = 0\n"
            f"    for i in range(n):\n"
            f"      total += i * i\n"
            f"    return total\n"
            f"  leaf_{number}.__code__ = leaf_{number}.__code__.replace(co_qualname='leaf_{number}')\n"
            f"  return leaf_{number}(n)\n"
        )
        namespace: dict[str, Callable[[int], int]] = {}
        exec(compile(source, MADE_FILE, "exec"), namespace)
        made = namespace[f"made_{number}"]
        made(200)
        # One more under the address that the first leaves behind.
        code = made.__code__
        del made, namespace
        again = types.FunctionType(code, {})
        again(100)

    def callbacks(self, chance: random.Random) -> None:
        numbers = [chance.random() for _ in range(30)]
        sorted(numbers, key=lambda number: -number)
        sorted(range(20), key=functools.cmp_to_key(compare))
        dict.fromkeys([Key(), Key(), Key()])
        re.sub("a+", replace, "baab" * 20)

    def native(self, chance: random.Random) -> None:
        zlib.compress(chance.randbytes(20_000))

    def spans(self, chance: random.Random) -> None:
        with self.tracer.start_as_current_span("outer"):
            with self.tracer.start_as_current_span("inner") as span:
                span.update_name("renamed")


def run(seconds: float, rate: int, server: str) -> dict:
    import pyroscope
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from pyroscope import _native
    from pyroscope.otel import PyroscopeSpanProcessor

    settings = {"application_name": "stress", "server_address": server, "sample_rate": rate, "wall_clock": True}
    if not _native.start(settings):
        raise RuntimeError("the profiler did not start")
    provider = TracerProvider(resource=Resource({"service.name": "stress"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
    work = Work(provider.get_tracer("stress"), seconds)
    threads = [threading.Thread(target=work.worker, args=(seed,)) for seed in range(6)]
    threads.append(threading.Thread(target=work.churn))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pyroscope.flush(60)
    stats = pyroscope.stats()
    pyroscope.shutdown()
    return stats


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rate", type=int, default=5000)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    options.records.write_text(json.dumps(run(options.seconds, options.rate, options.server)))


if __name__ == "__main__":
    sys.exit(main())
