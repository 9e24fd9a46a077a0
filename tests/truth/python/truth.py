"""A program that knows which span each of its samples belongs to.

CPU time is burnt in functions of which each runs once, in one known span (or outside of all): `truth_17` in a stack
says what the label `span_id` must be. `truth_judge.py` compares the two.

    python truth.py ROW --rate 250 --cpu-seconds 20 --server file:///folder --records records.json

It works with any package that has `pyroscope.configure` and `pyroscope.otel.PyroscopeSpanProcessor`, so that ours and
others are measured by the same program.
"""

import argparse
import importlib
import importlib.util
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import truth_tasks
import truth_threads
from truth_judge import Outcome, judge
from truth_program import Program

__all__ = ["ROWS", "Outcome", "Row", "judge"]


@dataclass(frozen=True)
class Row:
    """One context, with the processor's scope."""

    what: str
    run: Callable[[Program], None]
    scope: str = "root"
    python: tuple[int, int] = (3, 10)
    """The first version that has it."""
    module: str | None = None
    """What must be installed."""
    options: tuple[str, ...] = ()
    """Of the interpreter."""
    prepare: Callable[[], None] = lambda: None
    """What a program does before it imports anything of OpenTelemetry's or ours."""
    follows: bool = True
    """Whether profiler and processor are there before the row begins."""

    def why_not(self) -> str | None:
        """Why this Python has no such context."""
        if sys.version_info < self.python:
            return f"Python {sys.version_info[0]}.{sys.version_info[1]} has none, {self.python[0]}.{self.python[1]} is the first"
        if self.module and importlib.util.find_spec(self.module) is None:
            return f"{self.module} is not installed"
        return None


def patch_all() -> None:
    from gevent import monkey

    monkey.patch_all()


def use_own_context() -> None:
    """A runtime context that is no ContextVar: a stack a thread."""
    import opentelemetry.context
    from opentelemetry.context.context import _RuntimeContext

    class OfThread(_RuntimeContext):
        def __init__(self) -> None:
            self._local = threading.local()

        def _stack(self) -> list:
            if not hasattr(self._local, "stack"):
                self._local.stack = [opentelemetry.context.Context()]
            return self._local.stack

        def attach(self, context):
            self._stack().append(context)
            return len(self._stack())

        def detach(self, token) -> None:
            del self._stack()[token - 1 :]

        def get_current(self):
            return self._stack()[-1]

    opentelemetry.context._RUNTIME_CONTEXT = OfThread()


INHERIT = ("-X", "thread_inherit_context=1")

ROWS = {
    "threads": Row("20 threads, spans of 0.2-6 ms", truth_threads.threads),
    "children": Row("nested children, scope all", truth_threads.children, "all"),
    "children-root": Row("nested children, scope root", truth_threads.children),
    "tasks": Row("50 asyncio tasks, scope all", truth_tasks.tasks, "all"),
    "tasks-root": Row("50 asyncio tasks, scope root", truth_tasks.tasks),
    "pool": Row("pool, context copied and not", truth_threads.pool),
    "outside": Row("code outside of spans", truth_threads.outside),
    "groups": Row("task groups, eager tasks (3.12+)", truth_tasks.groups, "all", python=(3, 11)),
    "executors": Row("to_thread, run_in_executor", truth_tasks.executors),
    "anyio": Row("anyio: groups, threads", truth_tasks.with_anyio, "all", module="anyio"),
    "trio": Row("trio: nurseries, threads", truth_tasks.with_trio, "all", module="trio"),
    "uvloop": Row("50 tasks on uvloop", truth_tasks.uvloop_tasks, "all", module="uvloop"),
    "greenlets": Row("20 greenlets", truth_threads.greenlets, "all", module="greenlet"),
    "gevent": Row("gevent, patched, with its pool", truth_threads.gevent_patched, "all", module="gevent", prepare=patch_all),
    "generators": Row("generators that hold spans open", truth_threads.generators, "all"),
    "async-generators": Row("asynchronous generators", truth_tasks.generators, "all"),
    "travelling": Row("ended on another thread or never", truth_threads.travelling),
    "older": Row("older than processor, profiler", truth_threads.older, follows=False),
    "own-context": Row("a runtime context of one's own", truth_threads.own_context, prepare=use_own_context),
    "subinterpreters": Row("code of subinterpreters", truth_threads.subinterpreters),
    "started": Row("threads started in a span", truth_threads.started),
    "started-inherit": Row("the same, contexts inherited", truth_threads.started, python=(3, 14), options=INHERIT),
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("--rate", type=int, default=250)
    parser.add_argument("--cpu-seconds", type=float, default=2, help="to burn at least")
    parser.add_argument("--samples", type=int, default=0, help="to take at least, from a profiler that counts them")
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)
    row = ROWS[options.row]
    if row.options and not set(row.options[1::2]) <= {f"{name}={value}" for name, value in sys._xoptions.items()}:
        os.execv(sys.executable, [sys.executable, *row.options, __file__, *arguments])
    row.prepare()
    if row.module:
        importlib.import_module(row.module)  # before it is profiled

    import pyroscope
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from pyroscope.otel import PyroscopeSpanProcessor

    counts = hasattr(pyroscope, "stats")
    look = time.process_time() + options.cpu_seconds
    configured = False

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

    def follow(provider: TracerProvider) -> PyroscopeSpanProcessor:
        nonlocal configured
        if not configured:
            configured = True
            pyroscope.configure(application_name="truth", server_address=options.server, sample_rate=options.rate)
        processor = PyroscopeSpanProcessor(scope=row.scope) if counts else PyroscopeSpanProcessor()
        provider.add_span_processor(processor)
        return processor

    program = Program(row.scope, enough, follow)
    if row.follows:
        provider = TracerProvider(resource=Resource({"service.name": "truth"}), shutdown_on_exit=False)
        follow(provider)
        program.tracer = provider.get_tracer("truth")
    row.run(program)
    record: dict[str, object] = {"expected": program.ledger.expected}
    if counts:
        record["flushed"] = pyroscope.flush(30)
        record["stats"] = pyroscope.stats()
    pyroscope.shutdown()
    options.records.write_text(json.dumps(record))


if __name__ == "__main__":
    main(sys.argv[1:])
