"""A program that knows which span each of its samples belongs to, and the judge of its profiles.

CPU time is burnt in functions of which each runs once, in one known span (or outside of all): `truth_17` in a stack
says what the label `span_id` must be. Spans are started and ended in functions of their own, `edge_18`: in the SDK's
code below one the span before or the new one is current, and no other may be. Samples with neither are counted apart.

    python truth.py ROW --rate 250 --cpu-seconds 20 --server file:///folder --records records.json

It works with any package that has `pyroscope.configure` and `pyroscope.otel.PyroscopeSpanProcessor`, so that ours and
others are measured by the same program.
"""

import argparse
import asyncio
import concurrent.futures
import contextvars
import functools
import itertools
import json
import random
import sys
import threading
import time
import types
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pprof

TRUTH, EDGE = "truth_", "edge_"
#: A frame that the profiler could not name: it may be one that tells, so those around it do not.
UNKNOWN = "(unknown)"


# The judge.


@dataclass
class Outcome:
    """Samples of a row by what became of them; `samples` is their sum. A sample is a period's worth of time."""

    samples: int = 0
    right: int = 0
    edge: int = 0
    """While a span starts or ends, with the id of that one or of the one before."""
    missing: int = 0
    """Inside a span, without an id."""
    wrong: int = 0
    """Inside a span or at its edge, with another one's id."""
    leaked: int = 0
    """Outside of spans, with an id."""
    untold: int = 0
    """Without a function in the stack that tells."""

    @property
    def mistakes(self) -> int:
        return self.missing + self.wrong + self.leaked


def judge(profiles: Iterable[pprof.Profile], expected: dict[str, list[str | None]]) -> Outcome:
    """Compares each sample's span with the one in which the program says that its function ran."""
    outcome = Outcome()
    parents = {allowed[1]: allowed[0] for name, allowed in expected.items() if name.startswith(EDGE) and len(allowed) == 2}
    for profile in profiles:
        for sample in profile.samples:
            count = max(1, round(profile.weight(sample) / profile.period))
            outcome.samples += count
            names = [last_name(frame) for frame in sample.stack]
            teller = next((name for name in names if name.startswith((TRUTH, EDGE, UNKNOWN))), UNKNOWN)
            if teller.startswith(UNKNOWN):
                outcome.untold += count
                continue
            allowed = expected[teller]
            have = sample.labels.get("span_id") or sample.labels.get("profile_id")
            if have in allowed:
                if teller.startswith(EDGE):
                    outcome.edge += count
                else:
                    outcome.right += count
            elif is_on_its_way(names, teller) and have is not None and parents.get(have) in allowed[1:]:
                outcome.edge += count
            elif have is None:
                outcome.missing += count
            elif allowed == [None]:
                outcome.leaked += count
            else:
                outcome.wrong += count
    return outcome


def is_on_its_way(names: list[str], teller: str) -> bool:
    """Whether a task is being resumed or suspended: its await passes through the frames around the child's coroutine,
    which is not on the stack yet or no more, while the child's span is the task's current one all the time."""
    return teller.startswith(EDGE) and "span_awaiting" in names[: names.index(teller)]


def last_name(frame: pprof.Frame) -> str:
    return frame.function.rpartition(".")[2]


# The program.


class Ledger:
    """Makes functions that run once, and remembers the spans that may be current in each of them."""

    def __init__(self) -> None:
        self.expected: dict[str, list[str | None]] = {}
        self._numbers = itertools.count()

    def function(self, span_id: str | None, template: Callable | None = None) -> Callable:
        """A function that burns CPU time in the span with this id, or outside of spans."""
        return self._make(TRUTH, [span_id], template or burn)

    def edge(self, before: str | None, template: Callable) -> Callable:
        """A function that starts and ends a span, whose id it adds to `before`."""
        allowed = [before]
        return functools.partial(self._make(EDGE, allowed, template), allowed)

    def _make(self, prefix: str, allowed: list[str | None], template: Callable) -> Callable:
        name = f"{prefix}{next(self._numbers)}"
        self.expected[name] = allowed
        code = template.__code__.replace(co_name=name, co_qualname=name)
        return types.FunctionType(code, template.__globals__, name)


def in_span(allowed, start, scope_id, body) -> None:
    with start as span:
        own = scope_id or id_of(span)
        allowed.append(own)
        body(own)


async def in_span_awaiting(allowed, start, scope_id, body) -> None:
    with start as span:
        own = scope_id or id_of(span)
        allowed.append(own)
        await body(own)


def burn(cpu_ns: int) -> int:
    clock = time.thread_time_ns
    number, end = 1, clock() + cpu_ns
    while clock() < end:
        for i in range(40):
            number = (number * 31 + i) % 1_000_003
    return number


async def burn_and_wait(cpu_ns: int, turns: int) -> None:
    for turn in range(turns):
        burn_slice(cpu_ns // turns)
        await asyncio.sleep(0 if turn % 2 else 0.001)


def burn_slice(cpu_ns: int) -> None:
    burn(cpu_ns)


class Program:
    """The rows. Each goes on until it was `enough`."""

    def __init__(self, tracer, scope: str, enough: Callable[[], bool]) -> None:
        self.tracer = tracer
        self.scope = scope
        self.ledger = Ledger()
        self.enough = enough

    def in_new_threads(self, count: int, body: Callable[[random.Random], None]) -> None:
        threads = [threading.Thread(target=body, args=(random.Random(seed),)) for seed in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def span(self, name: str, outer: str | None, body: Callable[[str], None], **options: bool) -> None:
        """Runs `body` with the id that its samples must carry, in a new span inside `outer`."""
        start = self.tracer.start_as_current_span(name, **options)
        self.ledger.edge(outer, in_span)(start, self.inherited(outer), body)

    async def span_awaiting(self, name: str, outer: str | None, body: Callable[[str], Awaitable[None]]) -> None:
        start = self.tracer.start_as_current_span(name)
        await self.ledger.edge(outer, in_span_awaiting)(start, self.inherited(outer), body)

    def inherited(self, outer: str | None) -> str | None:
        """The id that samples of a child carry, if it is not the child's own."""
        return outer if self.scope == "root" else None

    def threads(self) -> None:
        """20 threads, each one short span after the other."""

        def body(chance: random.Random) -> None:
            def work(own: str) -> None:
                self.ledger.function(own)(int(chance.uniform(0.2e6, 6e6)))

            while not self.enough():
                self.span("short", None, work)

        self.in_new_threads(20, body)

    def children(self) -> None:
        """Trees of spans, three deep, in four threads."""

        def body(chance: random.Random) -> None:
            def tree(own: str, depth: int = 1) -> None:
                self.ledger.function(own)(int(chance.uniform(0.5e6, 4e6)))
                for _ in range(chance.randint(1, 3) if depth < 3 else 0):
                    self.span(f"level {depth + 1}", own, functools.partial(tree, depth=depth + 1))
                    self.ledger.function(own)(int(chance.uniform(0.5e6, 4e6)))

            while not self.enough():
                self.span("level 1", None, tree)

        self.in_new_threads(4, body)

    def tasks(self) -> None:
        """50 asyncio tasks that give way to each other in the midst of their spans, each with a child."""

        async def task(chance: random.Random) -> None:
            async def burns(own: str | None, most_ns: float = 15e6) -> None:
                await self.ledger.function(own, burn_and_wait)(int(chance.uniform(5e6, most_ns)), 3)

            async def parent(own: str) -> None:
                await burns(own)
                await self.span_awaiting("child", own, functools.partial(burns, most_ns=30e6))
                await burns(own)

            while not self.enough():
                await self.span_awaiting("task", None, parent)
                await burns(None)

        async def main() -> None:
            await asyncio.gather(*(task(random.Random(seed)) for seed in range(50)))

        asyncio.run(main())

    def pool(self) -> None:
        """A thread pool: work with a copy of the span's context is inside the span, work without is outside."""
        with concurrent.futures.ThreadPoolExecutor(8) as executor:

            def body(chance: random.Random) -> None:
                def request(own: str) -> None:
                    work = []
                    for _ in range(3):
                        inside, outside = self.ledger.function(own), self.ledger.function(None)
                        context = contextvars.copy_context()
                        work.append(executor.submit(context.run, inside, int(chance.uniform(1e6, 6e6))))
                        work.append(executor.submit(outside, int(chance.uniform(1e6, 6e6))))
                    self.ledger.function(own)(int(chance.uniform(1e6, 6e6)))
                    for done in work:
                        done.result()

                while not self.enough():
                    self.span("request", None, request)

            self.in_new_threads(4, body)

    def outside(self) -> None:
        """Code between spans, also after those that failed, in threads that have had spans before."""

        def body(chance: random.Random) -> None:
            def fails(own: str) -> None:
                self.ledger.function(own)(int(chance.uniform(0.5e6, 3e6)))
                raise KeyError("as it must")

            while not self.enough():
                self.ledger.function(None)(int(chance.uniform(1e6, 6e6)))
                try:
                    self.span("fails", None, fails, record_exception=False)
                except KeyError:
                    self.ledger.function(None)(int(chance.uniform(1e6, 6e6)))

        self.in_new_threads(4, body)


# Row: the method that runs it, and the processor's scope.
ROWS = {
    "threads": ("threads", "root"),
    "children": ("children", "all"),
    "children-root": ("children", "root"),
    "tasks": ("tasks", "all"),
    "tasks-root": ("tasks", "root"),
    "pool": ("pool", "root"),
    "outside": ("outside", "root"),
}


def id_of(span) -> str:
    return f"{span.get_span_context().span_id:016x}"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--rate", type=int, default=250)
    parser.add_argument("--cpu-seconds", type=float, default=2, help="to burn at least")
    parser.add_argument("--samples", type=int, default=0, help="to take at least, from a profiler that counts them")
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    import pyroscope
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from pyroscope.otel import PyroscopeSpanProcessor

    method, scope = ROWS[options.row]
    pyroscope.configure(application_name="truth", server_address=options.server, sample_rate=options.rate)
    counts = hasattr(pyroscope, "stats")
    look = time.process_time() + options.cpu_seconds

    def enough() -> bool:
        nonlocal look
        now = time.process_time()
        if now < look:
            return False
        if not counts or pyroscope.stats()["taken"]["samples"] >= options.samples:
            return True
        # Counting is no part of the program, so it is not done all the time.
        look = now + 0.1
        return False

    provider = TracerProvider(resource=Resource({"service.name": "truth"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor(scope=scope) if counts else PyroscopeSpanProcessor())
    program = Program(provider.get_tracer("truth"), scope, enough)
    getattr(program, method)()
    record: dict[str, object] = {"expected": program.ledger.expected}
    if counts:
        record["flushed"] = pyroscope.flush(30)
        record["stats"] = pyroscope.stats()
    pyroscope.shutdown()
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
