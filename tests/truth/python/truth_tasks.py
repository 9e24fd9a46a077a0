"""Rows of the ground truth whose functions are coroutines: asyncio and what runs beside or instead of it."""

import asyncio
import functools
import random
from collections.abc import Callable

from truth_program import Program, burn_and_wait, current_id


def tasks(program: Program, run: Callable = asyncio.run) -> None:
    """50 tasks that give way to each other in the midst of their spans, each with a child."""

    async def task(chance: random.Random) -> None:
        async def burns(own: str | None, most_ns: float = 15e6) -> None:
            await program.ledger.function(own, burn_and_wait)(int(chance.uniform(5e6, most_ns)), 3)

        async def parent(own: str) -> None:
            await burns(own)
            await program.span_awaiting("child", own, functools.partial(burns, most_ns=30e6))
            await burns(own)

        while not program.enough():
            await program.span_awaiting("task", None, parent)
            await burns(None)

    async def main() -> None:
        await asyncio.gather(*(task(random.Random(seed)) for seed in range(50)))

    run(main())


def uvloop_tasks(program: Program) -> None:
    import uvloop

    tasks(program, uvloop.run)


def groups(program: Program) -> None:
    """Task groups inside spans, whose tasks have children; from 3.12 on every other one starts its tasks eagerly."""
    with_factories = [None, asyncio.eager_task_factory] if hasattr(asyncio, "eager_task_factory") else [None]

    async def request(chance: random.Random) -> None:
        async def burns(own: str) -> None:
            await program.ledger.function(own, burn_and_wait)(int(chance.uniform(2e6, 9e6)), 3)

        async def member(own: str) -> None:
            await burns(own)
            await program.span_awaiting("child", own, burns)
            await burns(own)

        async def parent(own: str) -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(member(own))
                program.ledger.function(own)(int(chance.uniform(1e6, 3e6)))
            await burns(own)

        await program.span_awaiting("parent", None, parent)

    async def main() -> None:
        number = 0
        while not program.enough():
            number += 1
            asyncio.get_running_loop().set_task_factory(with_factories[number % len(with_factories)])
            await asyncio.gather(*(request(random.Random(1000 * number + seed)) for seed in range(8)))

    asyncio.run(main())


def executors(program: Program) -> None:
    """asyncio's threads: to_thread takes the span along, run_in_executor does not."""

    async def request(chance: random.Random) -> None:
        async def parent(own: str) -> None:
            loop = asyncio.get_running_loop()
            ns = functools.partial(chance.uniform, 4e6, 15e6)
            await asyncio.gather(
                asyncio.to_thread(program.ledger.function(own), int(ns())),
                loop.run_in_executor(None, program.ledger.function(None), int(ns())),
                program.ledger.function(own, burn_and_wait)(int(ns()), 2),
            )

        while not program.enough():
            await program.span_awaiting("request", None, parent)

    async def main() -> None:
        await asyncio.gather(*(request(random.Random(seed)) for seed in range(8)))

    asyncio.run(main())


def generators(program: Program) -> None:
    """Asynchronous generators that hold a span open: it stays current in the task that iterates, also after one that
    is left in the middle and closed by the event loop in another context."""

    async def task(chance: random.Random) -> None:
        async def burns() -> None:
            await program.ledger.function(current_id(), burn_and_wait)(int(chance.uniform(2e6, 6e6)), 2)

        async def holds():
            with program.tracer.start_as_current_span("held"):
                for _ in range(3):
                    yield
                    await burns()

        async def through(leave_early: bool) -> None:
            async for _ in holds():
                await burns()
                if leave_early:
                    break
            await burns()

        while not program.enough():
            # In a task of its own, as the span of a generator that is left stays current in it.
            await asyncio.create_task(through(chance.random() < 0.5))

    async def main() -> None:
        await asyncio.gather(*(task(random.Random(seed)) for seed in range(20)))

    asyncio.run(main())


def with_anyio(program: Program) -> None:
    """anyio on asyncio: task groups and threads inside spans."""
    import anyio
    import anyio.to_thread

    in_groups(program, anyio.run, anyio.create_task_group, anyio.sleep, anyio.to_thread.run_sync)


def with_trio(program: Program) -> None:
    """trio: nurseries and threads inside spans."""
    import trio

    in_groups(program, trio.run, trio.open_nursery, trio.sleep, trio.to_thread.run_sync)


def in_groups(program: Program, run: Callable, group_of: Callable, sleep: Callable, to_thread: Callable) -> None:
    async def request(chance: random.Random) -> None:
        async def burns(own: str) -> None:
            await program.ledger.function(own, burn_and_wait)(int(chance.uniform(8e6, 24e6)), 3, sleep)

        async def member(own: str) -> None:
            await program.span_awaiting("child", own, burns)
            await to_thread(program.ledger.function(own), int(chance.uniform(4e6, 12e6)))
            await burns(own)

        async def parent(own: str) -> None:
            async with group_of() as group:
                for _ in range(3):
                    group.start_soon(member, own)
            await burns(own)

        while not program.enough():
            await program.span_awaiting("parent", None, parent)

    async def main() -> None:
        async with group_of() as group:
            for seed in range(8):
                group.start_soon(request, random.Random(seed))

    run(main)
