"""Which flow of awaits is a span's own, where programs start late, start anew, drive coroutines themselves, or start them in herds."""

import asyncio
import contextvars
import ctypes
import mmap
import selectors
import sys
import time
from contextlib import contextmanager

import pytest
from suspensions import TimedSelector, Truth, elsewhere
from test_awaits import CONCURRENT, Awaits, time_of

import pyroscope


@pytest.fixture
def awaits(tmp_path, monkeypatch):
    monkeypatch.setattr(selectors, "DefaultSelector", TimedSelector)
    made = Awaits(tmp_path)
    yield made
    made.close()


class Drive:
    """Awaits a coroutine by hand."""

    def __init__(self, coroutine):
        self.coroutine = coroutine

    def __await__(self):
        while True:
            try:
                awaited = self.coroutine.send(None)
            except StopIteration:
                return
            yield awaited


def own_of(chains, span):
    return sum(ms for (name, chain), ms in chains.items() if name == span and chain[0] != CONCURRENT)


def assert_own(chains, span, truth):
    truth.assert_near(own_of(chains, span), span)


def concurrent_of(chains, span):
    return sum(ms for (name, chain), ms in chains.items() if name == span and chain[0] == CONCURRENT)


def test_the_self_test_stays_out_of_the_programs_loop(awaits):
    """An asynchronous generator tells the loop of itself, and that closes it when it ends."""
    pyroscope.stop()
    seen = []
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=seen.append, finalizer=seen.append)
    try:
        hooks = sys.get_asyncgen_hooks()
        awaits.start()
        assert sys.get_asyncgen_hooks() == hooks
    finally:
        sys.set_asyncgen_hooks(*before)
    assert seen == []


def test_a_start_within_the_step_that_opens_the_span(awaits):
    """Nobody saw that step begin. Tasks that begin later are concurrent, and spans of theirs their own."""
    pyroscope.stop()
    truth = Truth()

    async def child():
        await truth.of("concurrent", asyncio.sleep(0.03))
        with awaits.span("child"):
            await truth.of("child", asyncio.sleep(0.02))

    async def other():
        await truth.of("concurrent", asyncio.sleep(0.02))

    async def main():
        awaits.start()
        with awaits.span("request"):
            await asyncio.sleep(0.01)
            await truth.of("request", asyncio.gather(child(), other()))

    asyncio.run(main())
    chains = awaits.chains()
    assert_own(chains, "request", truth)
    assert_own(chains, "child", truth)
    truth.assert_near(concurrent_of(chains, "request"), "concurrent")


def test_what_is_awaited_after_a_herd_is_all_seen_again(awaits):
    """Thousands of tasks that go on at one instant make samples rare, and some seconds later they are as many as before."""
    truth = Truth()

    async def one():
        with awaits.span("herd"):
            await asyncio.sleep(0.5)

    async def main():
        await asyncio.gather(*(one() for _ in range(3000)))
        end = time.monotonic() + 6
        while time.monotonic() < end:
            await asyncio.sleep(0.02)
        for _ in range(10):
            with awaits.span("later"):
                await truth.of("later", asyncio.sleep(0.04))

    asyncio.run(main())
    assert_own(awaits.chains(), "later", truth)


def test_a_restart_within_a_span(awaits):
    """Who was own and who was concurrent stays so."""
    truth, starts = Truth(), 0

    async def child():
        for number in range(5):
            before = starts
            await truth.of(number, asyncio.sleep(0.02))
            # Of its five the one that was under way is lost.
            if starts == before:
                truth.most["child"] += truth.most[number]
                truth.least["child"] += truth.least[number]

    async def main():
        nonlocal starts
        with awaits.span("request"):
            task = asyncio.create_task(child())
            await truth.of("request", asyncio.sleep(0.03))
            pyroscope.stop()
            awaits.start()
            starts += 1
            await truth.of("request", asyncio.sleep(0.03))
            await truth.of("request", task)

    asyncio.run(main())
    chains = awaits.chains()
    assert_own(chains, "request", truth)
    assert truth.most["child"] > 75
    truth.assert_near(concurrent_of(chains, "request"), "child")


def test_a_span_within_a_coroutine_that_is_driven_by_hand(awaits):
    truth = Truth()

    async def inner():
        with awaits.span("inner"):
            for _ in range(3):
                await truth.of("inner", asyncio.sleep(0.02))

    async def outer():
        with awaits.span("outer"):
            await truth.of("outer", asyncio.sleep(0.01))
            await Drive(inner())

    asyncio.run(outer())
    chains = awaits.chains()
    assert_own(chains, "inner", truth)
    assert concurrent_of(chains, "inner") == 0
    assert_own(chains, "outer", truth)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before 3.12 it is not told from what is awaited")
def test_a_loop_within_a_step(awaits):
    """Its coroutines have contexts of their own, so they are flows from their first step to their last."""
    truth = Truth()

    class Pause:
        def __await__(self):
            yield

    async def inner():
        with awaits.span("inner"):
            await truth.of("inner", Pause())
        with awaits.span("later"):
            await truth.of("later", Pause())

    async def outer():
        with awaits.span("outer"):
            context, coroutine = contextvars.copy_context(), inner()
            for _ in range(2):
                context.run(coroutine.send, None)
                with elsewhere():
                    time.sleep(0.02)
            with pytest.raises(StopIteration):
                context.run(coroutine.send, None)

    asyncio.run(outer())
    chains = awaits.chains()
    assert_own(chains, "inner", truth)
    assert_own(chains, "later", truth)
    assert own_of(chains, "outer") == 0


@contextmanager
def evaluator():
    """Frames are evaluated by a function that is not the interpreter's and calls that: PEP 523."""
    api = ctypes.pythonapi
    default = ctypes.cast(api._PyEval_EvalFrameDefault, ctypes.c_void_p).value
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # movabs rax, default; jmp rax
    page.write(b"\x48\xb8" + default.to_bytes(8, "little") + b"\xff\xe0")
    view = ctypes.c_char.from_buffer(page)
    api.PyInterpreterState_Get.restype = ctypes.c_void_p
    put = api._PyInterpreterState_SetEvalFrameFunc
    put.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    interpreter = api.PyInterpreterState_Get()
    put(interpreter, ctypes.addressof(view))
    try:
        yield
    finally:
        put(interpreter, default)


def test_frames_that_somebody_else_evaluates(awaits):
    """Then the interpreter calls each coroutine that is awaited."""
    truth = Truth()

    async def inner():
        with awaits.span("request"):
            for _ in range(3):
                await truth.of("request", asyncio.sleep(0.02))

    async def outer():
        await inner()

    with evaluator():
        asyncio.run(outer())
    chains = awaits.chains()
    assert_own(chains, "request", truth)
    truth.assert_near(time_of(chains, "request", "outer", "inner", "sleep"), "request")


def test_greenlets_that_switch_within_steps(awaits):
    """In no order of a stack, and one that never comes back."""
    greenlet = pytest.importorskip("greenlet")
    truth = Truth()
    main = greenlet.getcurrent()

    async def switches():
        main.switch()

    def step():
        with pytest.raises(StopIteration):
            switches().send(None)

    async def flow(name):
        with awaits.span(name):
            await truth.of(name, asyncio.sleep(0.02))

    asyncio.run(flow("before"))
    one, other, left = (greenlet.greenlet(step) for _ in range(3))
    for each in (one, other, one, other):
        each.switch()
    asyncio.run(flow("after"))
    left.switch()
    asyncio.run(flow("left"))
    chains = awaits.chains()
    left.switch()
    for name in ("before", "after", "left"):
        assert_own(chains, name, truth)


def test_a_herd_leaves_the_sums_of_others_alone(awaits):
    """Three thousand children that go on at once are samples of a few; another flow's are what they were."""
    truth = Truth()

    async def child():
        await asyncio.sleep(0.05)

    async def burst():
        with awaits.span("burst"):
            await truth.of("burst", asyncio.gather(*[child() for _ in range(3000)]))

    async def steady():
        with awaits.span("steady"):
            for _ in range(20):
                await truth.of("steady", asyncio.sleep(0.01))

    async def main():
        await burst()
        await steady()

    started = time.perf_counter()
    asyncio.run(main())
    took = (time.perf_counter() - started) * 1e3
    chains = awaits.chains()
    # A few of its own are samples that stand for more.
    assert truth.least["steady"] * 0.9 - 1 < own_of(chains, "steady") < truth.most["steady"] * 1.1 + 1
    assert_own(chains, "burst", truth)
    # What the thread's ring had no room for, as the machine was busy, is told.
    lost = pyroscope.stats()["dropped_ring"]["weight"] / 1e6
    found = concurrent_of(chains, "burst")
    assert 3000 * 50 * 0.5 < found + lost and found < 3000 * took, (found, lost)
