"""A program that knows which span each of its samples belongs to, and the judge of its profiles.

CPU time is burnt in functions of which each runs once, in one known span (or outside of all): `truth_17` in a stack
says what the label `span_id` must be. Spans are started and ended outside of these functions, so the few samples of the
SDK's own code have no truth in their stack and are counted apart.

    python truth.py ROW --rate 250 --cpu-seconds 20 --server file:///folder --records records.json

It works with any package that has `pyroscope.configure` and `pyroscope.otel.PyroscopeSpanProcessor`, so that ours and
others are measured by the same program.
"""

import argparse
import asyncio
import concurrent.futures
import contextvars
import itertools
import json
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pprof

MARK = "truth_"


# The judge.


@dataclass
class Outcome:
    """Samples of a row by what became of them; `samples` is their sum. A sample is a period's worth of time."""

    samples: int = 0
    right: int = 0
    missing: int = 0
    """Inside a span, without an id."""
    wrong: int = 0
    """Inside a span, with another one's id."""
    leaked: int = 0
    """Outside of spans, with an id."""
    untold: int = 0
    """Without a truth function in the stack."""

    @property
    def mistakes(self) -> int:
        return self.missing + self.wrong + self.leaked


def judge(profiles: Iterable[pprof.Profile], expected: dict[str, str | None]) -> Outcome:
    """Compares each sample's span with the one in which the program says that its function ran."""
    outcome = Outcome()
    for profile in profiles:
        for sample in profile.samples:
            count = max(1, round(profile.weight(sample) / profile.period))
            outcome.samples += count
            functions = (name for name in map(last_name, sample.stack) if name.startswith(MARK))
            truth = next(functions, None)
            if truth is None:
                outcome.untold += count
                continue
            want = expected[truth]
            have = sample.labels.get("span_id") or sample.labels.get("profile_id")
            if have == want:
                outcome.right += count
            elif have is None:
                outcome.missing += count
            elif want is None:
                outcome.leaked += count
            else:
                outcome.wrong += count
    return outcome


def last_name(frame: pprof.Frame) -> str:
    return frame.function.rpartition(".")[2]


# The program.


class Ledger:
    """Makes functions that burn CPU time, and remembers the span in which each of them runs."""

    def __init__(self) -> None:
        self.expected: dict[str, str | None] = {}
        self._numbers = itertools.count()

    def function(self, span_id: str | None, template: Callable = None) -> Callable:  # type: ignore[assignment]
        """A copy of `template` under a name of its own."""
        template = template or burn
        name = f"{MARK}{next(self._numbers)}"
        self.expected[name] = span_id
        code = template.__code__.replace(co_name=name, co_qualname=name)
        return types.FunctionType(code, template.__globals__, name)


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

    def threads(self) -> None:
        """20 threads, each one short span after the other."""

        def body(chance: random.Random) -> None:
            while not self.enough():
                with self.tracer.start_as_current_span("short") as span:
                    self.ledger.function(id_of(span))(int(chance.uniform(0.2e6, 6e6)))

        self.in_new_threads(20, body)

    def children(self) -> None:
        """Trees of spans, three deep, in four threads."""

        def tree(chance: random.Random, depth: int, root: str | None) -> None:
            with self.tracer.start_as_current_span(f"level {depth}") as span:
                own = id_of(span)
                root = root or own
                expected = own if self.scope == "all" else root
                self.ledger.function(expected)(int(chance.uniform(0.5e6, 4e6)))
                for _ in range(chance.randint(1, 3) if depth < 3 else 0):
                    tree(chance, depth + 1, root)
                    self.ledger.function(expected)(int(chance.uniform(0.5e6, 4e6)))

        def body(chance: random.Random) -> None:
            while not self.enough():
                tree(chance, 1, None)

        self.in_new_threads(4, body)

    def tasks(self) -> None:
        """50 asyncio tasks that give way to each other in the midst of their spans, some with a child."""

        async def spans(chance: random.Random) -> None:
            while not self.enough():
                with self.tracer.start_as_current_span("task") as span:
                    own = id_of(span)
                    await self.ledger.function(own, burn_and_wait)(int(chance.uniform(10e6, 30e6)), 4)
                    with self.tracer.start_as_current_span("child") as child:
                        expected = id_of(child) if self.scope == "all" else own
                        await self.ledger.function(expected, burn_and_wait)(int(chance.uniform(10e6, 30e6)), 4)
                    await self.ledger.function(own, burn_and_wait)(int(chance.uniform(5e6, 15e6)), 2)
                await self.ledger.function(None, burn_and_wait)(int(chance.uniform(5e6, 15e6)), 2)

        async def main() -> None:
            await asyncio.gather(*(spans(random.Random(seed)) for seed in range(50)))

        asyncio.run(main())

    def pool(self) -> None:
        """A thread pool: work with a copy of the span's context is inside the span, work without is outside."""
        with concurrent.futures.ThreadPoolExecutor(8) as executor:

            def body(chance: random.Random) -> None:
                while not self.enough():
                    with self.tracer.start_as_current_span("request") as span:
                        own, work = id_of(span), []
                        for _ in range(3):
                            inside = self.ledger.function(own)
                            outside = self.ledger.function(None)
                            context = contextvars.copy_context()
                            work.append(executor.submit(context.run, inside, int(chance.uniform(1e6, 6e6))))
                            work.append(executor.submit(outside, int(chance.uniform(1e6, 6e6))))
                        self.ledger.function(own)(int(chance.uniform(1e6, 6e6)))
                        concurrent.futures.wait(work)
                    for done in work:
                        done.result()

            self.in_new_threads(4, body)

    def outside(self) -> None:
        """Code between spans, also after those that failed, in threads that have had spans before."""

        def body(chance: random.Random) -> None:
            while not self.enough():
                self.ledger.function(None)(int(chance.uniform(1e6, 6e6)))
                try:
                    with self.tracer.start_as_current_span("fails", record_exception=False) as span:
                        self.ledger.function(id_of(span))(int(chance.uniform(0.5e6, 3e6)))
                        raise KeyError("as it must")
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
    end = time.process_time() + options.cpu_seconds

    def enough() -> bool:
        if time.process_time() < end:
            return False
        return not counts or pyroscope.stats()["taken"]["samples"] >= options.samples

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
