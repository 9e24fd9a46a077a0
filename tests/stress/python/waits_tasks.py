"""Tasks of asyncio that are suspended, cancelled and late, each in a span of its own; and what their loop's thread waits for."""

import asyncio
import random
import socket
import time
from collections.abc import AsyncIterator

from waits_work import SHORT, Work


def loops(work: Work, chance: random.Random) -> None:
    """In the span of a thread, or in none."""
    while not work.is_over():
        with work.tracer.start_as_current_span("loop"):
            run_tasks(work, chance)
        run_tasks(work, chance)


def run_tasks(work: Work, chance: random.Random) -> None:
    asyncio.run(all_tasks(work, chance))


async def all_tasks(work: Work, chance: random.Random) -> None:
    for _ in range(5):
        await asyncio.gather(*(kind(work) for kind in chance.sample(KINDS, len(KINDS))))


async def task_sleeps(work: Work) -> None:
    with work.tracer.start_as_current_span("task_sleeps"):
        for number in range(10):
            await sleep_in_task(number * SHORT)


async def sleep_in_task(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def task_queues(work: Work) -> None:
    items: asyncio.Queue[int] = asyncio.Queue(2)
    await asyncio.gather(task_puts(work, items), task_gets(work, items))


async def task_puts(work: Work, items: "asyncio.Queue[int]") -> None:
    with work.tracer.start_as_current_span("task_puts"):
        for number in range(20):
            await put_in_task(items, number)


async def put_in_task(items: "asyncio.Queue[int]", number: int) -> None:
    await items.put(number)


async def task_gets(work: Work, items: "asyncio.Queue[int]") -> None:
    with work.tracer.start_as_current_span("task_gets"):
        for _ in range(20):
            await get_in_task(items)


async def get_in_task(items: "asyncio.Queue[int]") -> None:
    await items.get()


async def task_futures(work: Work) -> None:
    with work.tracer.start_as_current_span("task_futures"):
        for number in range(10):
            await wait_for_future(number * SHORT)


async def wait_for_future(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(seconds, future.set_result, None)
    await future


async def task_cancels(work: Work) -> None:
    """Cancels another one where it is suspended, and awaits it."""
    with work.tracer.start_as_current_span("task_cancels"):
        for _ in range(5):
            task = asyncio.create_task(task_cancelled(work))
            await sleep_before_cancel()
            task.cancel()
            await wait_for_cancelled(task)


async def sleep_before_cancel() -> None:
    await asyncio.sleep(5 * SHORT)


async def wait_for_cancelled(task: "asyncio.Task[None]") -> None:
    try:
        await task
    except asyncio.CancelledError:
        pass


async def task_cancelled(work: Work) -> None:
    with work.tracer.start_as_current_span("task_cancelled"):
        await wait_for_ever()


async def wait_for_ever() -> None:
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await clean_up()


async def clean_up() -> None:
    await asyncio.sleep(SHORT)


async def task_times_out(work: Work) -> None:
    with work.tracer.start_as_current_span("task_times_out"):
        for _ in range(5):
            await time_out()


async def time_out() -> None:
    try:
        await asyncio.wait_for(sleep_too_long(), 3 * SHORT)
    except (TimeoutError, asyncio.TimeoutError):
        pass


async def sleep_too_long() -> None:
    await asyncio.sleep(600)


async def task_gathers(work: Work) -> None:
    with work.tracer.start_as_current_span("task_gathers"):
        await gather()


async def gather() -> None:
    await asyncio.gather(*(sleep_beside(number * SHORT) for number in range(5)))


async def sleep_beside(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def task_threads(work: Work) -> None:
    with work.tracer.start_as_current_span("task_threads"):
        for _ in range(5):
            await wait_for_thread()


async def wait_for_thread() -> None:
    await asyncio.to_thread(sleep_in_executor)


def sleep_in_executor() -> None:
    for _ in range(5):
        time.sleep(SHORT)


async def task_nests(work: Work) -> None:
    with work.tracer.start_as_current_span("task_outer"):
        for _ in range(5):
            await sleep_in_task_outer()
            with work.tracer.start_as_current_span("task_inner"):
                await sleep_in_task_inner()


async def sleep_in_task_outer() -> None:
    await asyncio.sleep(SHORT)


async def sleep_in_task_inner() -> None:
    await asyncio.sleep(SHORT)


async def task_blocks(work: Work) -> None:
    """The loop is late for the others meanwhile."""
    with work.tracer.start_as_current_span("task_blocks"):
        for number in range(5):
            block(2 * number * SHORT)
            await give_way()


def block(seconds: float) -> None:
    time.sleep(seconds)


async def give_way() -> None:
    await asyncio.sleep(0)


async def task_generates(work: Work) -> None:
    """The generator is closed where it is suspended."""
    with work.tracer.start_as_current_span("task_generates"):
        await close_numbers()


async def close_numbers() -> None:
    numbers = awaited_numbers()
    async for number in numbers:
        if number == 3:
            break
    await numbers.aclose()


async def awaited_numbers() -> AsyncIterator[int]:
    try:
        for number in range(10):
            await asyncio.sleep(SHORT)
            yield number
    finally:
        await asyncio.sleep(SHORT)


async def task_receives(work: Work) -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with work.tracer.start_as_current_span("task_receives"):
            for _ in range(5):
                loop.call_later(SHORT, theirs.send, b"x")
                await receive_in_task(ours)


async def receive_in_task(ours: socket.socket) -> None:
    await asyncio.get_running_loop().sock_recv(ours, 1)


async def task_locks(work: Work) -> None:
    lock = asyncio.Lock()
    await asyncio.gather(*(task_lock(work, lock) for _ in range(3)))


async def task_lock(work: Work, lock: asyncio.Lock) -> None:
    with work.tracer.start_as_current_span("task_lock"):
        for _ in range(5):
            await sleep_with_lock(lock)


async def sleep_with_lock(lock: asyncio.Lock) -> None:
    async with lock:
        await asyncio.sleep(SHORT)


KINDS = (
    task_sleeps,
    task_queues,
    task_futures,
    task_cancels,
    task_times_out,
    task_gathers,
    task_threads,
    task_nests,
    task_blocks,
    task_generates,
    task_receives,
    task_locks,
)
