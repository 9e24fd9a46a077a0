"""What the stress program does: each is hard for a sampler to get right. `stress_calls.py` has the calls it can make."""

import _thread
import asyncio
import contextvars
import functools
import gc
import json
import random
import re
import threading
import time
import types
import zlib
from collections.abc import Callable, Generator

import greenlet
import pyroscope
from stress_calls import MADE_FILE

try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters


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


class Point:
    def __init__(self, x: int, y: int) -> None:
        self.x = x
        self.y = max(x, y)


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
MANY = tuple(map(contextvars.ContextVar, map(str, range(40))))


def set_many() -> None:
    for variable in MANY:
        variable.set(1)


def swim(depth: int) -> None:
    swim_deep(depth)
    # Leaves the greenlet from within a function of C.
    sorted([2, 1, 3], key=compare_in_greenlet)


def swim_deep(depth: int) -> None:
    if depth:
        swim_deep(depth - 1)
        return
    VARIABLE.set(depth)
    for _ in range(20):
        greenlet.getcurrent().parent.switch()


def compare_in_greenlet(number: int) -> int:
    greenlet.getcurrent().parent.switch()
    return number


class Cyclic:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.itself = None


class Last:
    def __del__(self) -> None:
        sum(inner_generator(100))


class Key:
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def compare(left: int, right: int) -> int:
    return left - right


def replace(found: re.Match[str]) -> str:
    return found[0].upper()


LOCAL = threading.local()


def short_thread(work: "Work", seed: int) -> None:
    # Its destructor runs while the thread's state is taken down.
    LOCAL.last = Last()
    sum(inner_generator(500))
    work.made_code(random.Random(seed))


def raw_thread(done: threading.Lock) -> None:
    sum(inner_generator(2_000))
    done.release()


def in_outer() -> int:
    return sum(range(3_000))


def in_inner() -> int:
    return sum(range(3_000))


def in_tags() -> int:
    return sum(range(3_000))


IN_SUBINTERPRETER = """
def in_subinterpreter(depth):
    return sum(range(20_000)) if depth == 0 else in_subinterpreter(depth - 1)
for depth in 5 * tuple(range(20)):
    in_subinterpreter(depth)
"""


class Work:
    """All of it, for as long as it is told."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.parked = threading.Semaphore(0)
        self.daemons = 0

    def start(self, tracer, seconds: float) -> list[threading.Thread]:
        """Starts the threads that end by themselves; a few more run on."""
        self.tracer = tracer
        self.end = time.monotonic() + seconds
        self.kinds: tuple[Callable[[random.Random], object], ...] = (
            self.generators,
            self.recursion,
            self.exceptions,
            self.classes,
            self.coroutines,
            self.contexts,
            self.greenlets,
            self.garbage,
            self.made_code,
            self.callbacks,
            self.libraries,
            self.spans,
            self.tags,
        )
        threads = []
        for seed in range(6):
            threads.append(threading.Thread(target=self.worker, args=(seed, self.end)))
        for kind in (self.churn, self.subinterpreters):
            threads.append(threading.Thread(target=kind))
        # These meet the end of the profiler, in the middle of all that there is.
        for seed in range(2):
            threading.Thread(target=self.daemon, args=(seed,), daemon=True).start()
            self.daemons += 1
        for thread in threads:
            thread.start()
        return threads

    def worker(self, seed: int, end: float) -> None:
        chance = random.Random(seed)
        while time.monotonic() < end and not self.over.is_set():
            self.one(chance)

    def daemon(self, seed: int) -> None:
        self.worker(seed, float("inf"))
        self.parked.release()
        # For ever, and without the GIL.
        nobody = threading.Lock()
        nobody.acquire()
        nobody.acquire()

    def park(self) -> None:
        """Waits until the daemon threads need the GIL no more: call it when the profiler has ended and the interpreter has not.

        CPython itself does not survive threads like these at its end: until 3.13 it unwinds their C stacks, where greenlet's
        destructors change objects without the GIL, and 3.10 may look at the interpreter when it is freed.
        """
        self.over.set()
        for _ in range(self.daemons):
            self.parked.acquire()

    def one(self, chance: random.Random) -> None:
        chance.choice(self.kinds)(chance)

    def churn(self) -> None:
        """Threads of a millisecond, of the module threading and of C alone."""
        seed = 0
        while time.monotonic() < self.end:
            threads = [threading.Thread(target=short_thread, args=(self, seed + number)) for number in range(8)]
            seed += len(threads)
            for thread in threads:
                thread.start()
            done = threading.Lock()
            for _ in range(4):
                done.acquire()
                _thread.start_new_thread(raw_thread, (done,))
            done.acquire()
            for thread in threads:
                thread.join()

    def subinterpreters(self) -> None:
        while time.monotonic() < self.end:
            one = interpreters.create()
            with self.tracer.start_as_current_span("subinterpreter"):
                failed = interpreters.run_string(one, IN_SUBINTERPRETER)
            interpreters.destroy(one)
            if failed is not None:
                raise RuntimeError(failed)

    def generators(self, chance: random.Random) -> None:
        for _ in outer_generator(chance.randrange(300)):
            pass

    def recursion(self, chance: random.Random) -> None:
        # More than is kept of a stack, too.
        dive(chance.randrange(1, 800))

    def exceptions(self, chance: random.Random) -> None:
        try:
            fall(chance.randrange(1, 100))
        except KeyError:
            pass

    def classes(self, chance: random.Random) -> None:
        for number in range(chance.randrange(2_000)):
            Point(number, 7)

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
        numbers = list(map(chance.randrange, range(1, 30)))
        sorted(numbers, key=lambda number: -number)
        sorted(range(200), key=functools.cmp_to_key(compare))
        dict.fromkeys([Key(), Key(), Key(), Key(), Key(), Key()])
        re.sub("a+", replace, "baab" * 20)

    def libraries(self, chance: random.Random) -> None:
        zlib.compress(chance.randbytes(20_000))
        json.loads(json.dumps(list(range(300))))

    def spans(self, chance: random.Random) -> None:
        with self.tracer.start_as_current_span("outer"):
            in_outer()
            with self.tracer.start_as_current_span("before") as span:
                span.update_name("inner")
                in_inner()
            in_outer()

    def tags(self, chance: random.Random) -> None:
        with pyroscope.tag_wrapper({"turn": str(chance.randrange(5))}):
            in_tags()
