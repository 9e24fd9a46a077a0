"""What the rows of the ground truth are made of: functions that tell the span they run in, and ways to run them."""

import asyncio
import functools
import itertools
import random
import threading
import time
import types
from collections.abc import Awaitable, Callable

from truth_judge import AWAIT, EDGE, STEP, TRUTH


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
        prefix = AWAIT if template is in_span_awaiting else EDGE
        return functools.partial(self._make(prefix, allowed, template), allowed)

    def step(self, action: Callable, *arguments: object) -> object:
        """Does one thing that may change which span is current."""
        allowed = [current_id()]
        return self._make(STEP, allowed, do_step)(allowed, action, *arguments)

    def name(self, span_id: str | None) -> str:
        """The name of a function that somebody else will make."""
        name = f"{TRUTH}{next(self._numbers)}"
        self.expected[name] = [span_id]
        return name

    def _make(self, prefix: str, allowed: list[str | None], template: Callable) -> Callable:
        name = f"{prefix}{next(self._numbers)}"
        self.expected[name] = allowed
        code = template.__code__
        code = code.replace(**{field: name for field in ("co_name", "co_qualname") if hasattr(code, field)})
        return types.FunctionType(code, template.__globals__, name, template.__defaults__)


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


def do_step(allowed, action, *arguments):
    result = action(*arguments)
    allowed.append(current_id())
    return result


def burn(cpu_ns: int) -> int:
    clock = time.thread_time_ns
    number, end = 1, clock() + cpu_ns
    while clock() < end:
        for i in range(40):
            number = (number * 31 + i) % 1_000_003
    return number


def burn_slice(cpu_ns: int) -> None:
    burn(cpu_ns)


def burn_and_give_way(cpu_ns: int, turns: int, give_way) -> None:
    for _ in range(turns):
        burn_slice(cpu_ns // turns)
        give_way()


async def burn_and_wait(cpu_ns: int, turns: int, sleep=asyncio.sleep) -> None:
    for turn in range(turns):
        burn_slice(cpu_ns // turns)
        await sleep(0 if turn % 2 else 0.001)


class Program:
    """What a row is given. It goes on until it was `enough`."""

    def __init__(self, scope: str, enough: Callable[[], bool], follow: Callable) -> None:
        self.scope = scope
        self.ledger = Ledger()
        self.enough = enough
        #: Adds the processor that is examined to a provider and returns it.
        self.follow = follow
        self.tracer = None

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


def id_of(span) -> str:
    return f"{span.get_span_context().span_id:016x}"


def current_id() -> str | None:
    """The span that OpenTelemetry says is current."""
    from opentelemetry import trace

    span = trace.get_current_span()
    return id_of(span) if span.get_span_context().is_valid else None
