"""Flows that await, many at once, a root span each: how long the spans were in all, and how much of it the profiler says was lost.

A flow awaits again and again: a sleep, a future, a queue or a lock, for a random time, through a chain of functions that is as deep as
its span's name says, and whose names say which chain it is. In between it burns a little CPU time.

    python flows.py asyncio --flows 1000 --seconds 30 --mean 12 --server file:///folder --records records.json
"""

import argparse
import asyncio
import contextvars
import heapq
import itertools
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

LOOPS = ("asyncio", "uvloop", "trio")
#: Functions between the handler and what awaits, at most.
DEPTHS = 6
#: How long it takes until all flows are under way, in parts of their length; and by how many groups they start.
START, GROUPS = 0.2, 100

Flow = Callable[[], Awaitable[None]]
Wait = Callable[[float], Awaitable[None]]


def chain(depth: int, wait: str) -> list[str]:
    """The functions of an await, innermost first, of which a function names no more than one chain."""
    return [wait, *(f"chain_{depth}_{level}" for level in range(1, depth + 1)), "handle"]


def chains() -> list[Callable[[Wait, float], Awaitable[None]]]:
    """The outermost function of each chain, by its depth less one."""
    found: dict[str, Callable] = {}
    for depth in range(1, DEPTHS + 1):
        for level in range(1, depth + 1):
            called = f"chain_{depth}_{level - 1}(wait, seconds)" if level > 1 else "wait(seconds)"
            source = f"async def chain_{depth}_{level}(wait, seconds):\n    await {called}\n"
            exec(compile(source, __file__, "exec"), found)
    return [found[f"chain_{depth}_{depth}"] for depth in range(1, DEPTHS + 1)]


class Asyncio:
    """What flows of asyncio await, of its own loop and of uvloop's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, main: Flow) -> None:
        if self._name == "uvloop":
            import uvloop

            uvloop.run(main())
        else:
            asyncio.run(main())

    async def all(self, groups: Iterable[list[Flow]], seconds: float) -> None:
        """Starts a group, and the next one after that time; returns when all have ended."""
        tasks = []
        for flows in groups:
            tasks += [asyncio.create_task(flow()) for flow in flows]
            await asyncio.sleep(seconds)
        await asyncio.gather(*tasks)

    async def sleeps(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def awaits_future(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._later(seconds, future.set_result, None)
        await future

    async def gets_from_queue(self, seconds: float) -> None:
        items: asyncio.Queue[int] = asyncio.Queue()
        self._later(seconds, items.put_nowait, 1)
        await items.get()

    async def takes_lock(self, seconds: float) -> None:
        lock = asyncio.Lock()
        await lock.acquire()
        self._later(seconds, lock.release)
        await lock.acquire()

    def _later(self, seconds: float, action: Callable[..., object], *arguments: object) -> None:
        asyncio.get_running_loop().call_later(seconds, action, *arguments)


class Trio:
    """The same of trio."""

    def __init__(self) -> None:
        #: What is to be done when, by trio's clock; the number makes them differ.
        self._due: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._numbers = itertools.count()

    def run(self, main: Flow) -> None:
        import trio

        self._trio = trio
        trio.run(main)

    async def all(self, groups: Iterable[list[Flow]], seconds: float) -> None:
        self._trio.lowlevel.spawn_system_task(self._act, context=contextvars.Context())
        async with self._trio.open_nursery() as nursery:
            for flows in groups:
                for flow in flows:
                    nursery.start_soon(flow)
                await self._trio.sleep(seconds)

    async def sleeps(self, seconds: float) -> None:
        await self._trio.sleep(seconds)

    async def awaits_future(self, seconds: float) -> None:
        event = self._trio.Event()
        self._later(seconds, event.set)
        await event.wait()

    async def gets_from_queue(self, seconds: float) -> None:
        sender, receiver = self._trio.open_memory_channel(1)
        self._later(seconds, sender.send_nowait, 1)
        await receiver.receive()

    async def takes_lock(self, seconds: float) -> None:
        semaphore = self._trio.Semaphore(0)
        self._later(seconds, semaphore.release)
        await semaphore.acquire()

    def _later(self, seconds: float, action: Callable[..., object], *arguments: object) -> None:
        heapq.heappush(self._due, (self._trio.current_time() + seconds, next(self._numbers), action, arguments))

    async def _act(self) -> None:
        """A task of its own, in no span: one for each wait would take more CPU time than all else."""
        while True:
            await self._trio.sleep(0.005)
            while self._due and self._due[0][0] <= self._trio.current_time():
                _, _, action, arguments = heapq.heappop(self._due)
                action(*arguments)


#: The methods that await, of which each is as likely.
WAITS = ("sleeps", "awaits_future", "gets_from_queue", "takes_lock")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("--flows", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="that a flow lasts at most")
    parser.add_argument("--mean", type=float, required=True, help="seconds of an await")
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args(arguments)

    import pyroscope
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from pyroscope.otel import PyroscopeSpanProcessor

    pyroscope.configure(application_name="flows", server_address=options.server, wall_time=True, sample_rate=1000)
    provider = TracerProvider(resource=Resource({"service.name": "flows"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor())
    tracer = provider.get_tracer("flows")
    loop = Trio() if options.loop == "trio" else Asyncio(options.loop)
    waits = [getattr(loop, name) for name in WAITS]
    outermost = chains()
    chance, wall_ns = random.Random(options.flows), 0

    def flow(depth: int) -> Flow:
        async def handle() -> None:
            nonlocal wall_ns
            with tracer.start_as_current_span(f"depth {depth}"):
                # So that those that begin at one instant do not end at one.
                began, left = time.perf_counter_ns(), options.seconds * chance.uniform(0.8, 1)
                while left > 0:
                    seconds = min(left, options.mean * chance.uniform(0.2, 1.8))
                    left -= seconds
                    await outermost[depth - 1](chance.choice(waits), seconds)
                    sum(range(500))
                wall_ns += time.perf_counter_ns() - began

        return handle

    async def all_flows() -> None:
        flows = [flow(number % DEPTHS + 1) for number in range(options.flows)]
        groups = [flows[number::GROUPS] for number in range(min(GROUPS, len(flows)))]
        await loop.all(groups, START * options.seconds / len(groups))

    loop.run(all_flows)
    pyroscope.shutdown()
    # What the rings had no room for.
    lost_ns = pyroscope.stats()["waits_dropped_ring"]["weight"]
    options.records.write_text(json.dumps({"wall_ns": wall_ns, "lost_ns": lost_ns}))


if __name__ == "__main__":
    main(sys.argv[1:])
