"""What coroutines await has its time, its chain down to the innermost awaited thing, its span, and is told from a busy event loop.

The truth is what the program knows of each await (`suspensions`). Waits are long beside the mean by which they become samples, so each is
there with its whole time.
"""

import asyncio
import collections
import ctypes
import gc
import os
import selectors
import sys
import textwrap
import threading
import time
import types

import pytest
from children import run, succeeded
from conftest import Recording
from opentelemetry.sdk.trace import TracerProvider
from pprof import read_folder
from suspensions import TimedSelector, Truth, elsewhere

import pyroscope
from pyroscope.otel import PyroscopeSpanProcessor

FUTURE, TASK, BUSY, CONCURRENT = "(await Future)", "(await Task)", "(event loop busy)", "(concurrent task)"

# In CPython's types: where the functions of asynchronous objects are, and which of them continues a coroutine.
TP_AS_ASYNC, AM_SEND = 80, 24


class Awaits:
    """A profiler that measures awaits, and what it measured."""

    def __init__(self, folder):
        self.recording = Recording(folder)
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(PyroscopeSpanProcessor("all"))
        self.tracer = self.provider.get_tracer("test")
        self.start()

    def start(self):
        assert self.recording.start(wall_time=True)

    def span(self, name):
        return self.tracer.start_as_current_span(name)

    def chains(self):
        """Stops; milliseconds by span and chain, the outermost coroutine first, without the loop's own functions."""
        pyroscope.stop()
        found = collections.Counter()
        for profile in read_folder(self.recording.folder):
            for sample in profile.samples:
                if sample.labels.get("state") in ("await", "busy"):
                    names = [name.rpartition(".")[2] for name in sample.names]
                    chain = names[: names.index("_run")] if "_run" in names else names
                    mark = [CONCURRENT] if names[-1] == CONCURRENT else []
                    key = sample.labels.get("span_name"), tuple(mark + [name for name in chain[::-1] if name != CONCURRENT])
                    found[key] += profile.weight(sample) / 1e6
        return found

    def close(self):
        pyroscope.stop()
        self.provider.shutdown()


@pytest.fixture
def awaits(tmp_path, monkeypatch):
    monkeypatch.setattr(selectors, "DefaultSelector", TimedSelector)
    made = Awaits(tmp_path)
    yield made
    made.close()


def time_of(chains, span, *functions, state=None):
    """Time of a span in chains that contain these functions in this order, awaited or busy."""

    def has(chain):
        names = iter(chain)
        return all(function in names for function in functions) and (state is None or chain[-1] == state)

    return sum(ms for (name, chain), ms in chains.items() if name == span and has(chain))


async def leaf(seconds):
    await asyncio.sleep(seconds)


async def service(seconds):
    await leaf(seconds)


def test_a_chain_reaches_from_the_task_to_what_is_awaited(awaits):
    truth = Truth()

    async def handler():
        with awaits.span("request"):
            await truth.of("service", service(0.03))

    asyncio.run(handler())
    chains = awaits.chains()
    assert {chain[:-1] for span, chain in chains if span == "request"} == {("handler", "of", "service", "leaf", "sleep")}
    truth.assert_near(time_of(chains, "request"), "service")
    # Until its timer was due: from then on its loop lets it wait.
    assert 29 - truth.late["service"] < time_of(chains, "request", state=FUTURE) < 32


def test_ways_in_which_an_await_ends(awaits):
    """By a result, an exception, cancellation, a timeout; a trampoline's inside is no flow of its own."""
    truth = Truth()

    async def cancelled():
        with awaits.span("cancelled"):
            await truth.of("cancelled", leaf(10))

    async def fails():
        future = asyncio.get_running_loop().create_future()
        with awaits.span("fails"), pytest.raises(ValueError), truth.around("fails"):
            asyncio.get_running_loop().call_later(0.02, future.set_exception, ValueError())
            await future

    async def late():
        with awaits.span("late"), pytest.raises(asyncio.TimeoutError):
            await truth.of("late", asyncio.wait_for(leaf(10), 0.02))

    async def generator():
        for _ in range(2):
            await leaf(0.01)
            yield

    async def generates():
        with awaits.span("generates"):
            with truth.around("generates"):
                async for _ in generator():
                    pass

    @types.coroutine
    def trampoline(coroutine):
        while True:
            try:
                awaited = coroutine.send(None)
            except StopIteration:
                return
            yield awaited

    async def bounces():
        with awaits.span("bounces"):
            await truth.of("bounces", trampoline(leaf(0.02)))

    async def python_task():
        with awaits.span("python_task"):
            await truth.of("python_task", leaf(0.02))

    async def main():
        task = asyncio.create_task(cancelled())
        await asyncio.sleep(0.03)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await fails()
        await late()
        await generates()
        await bounces()
        await asyncio.tasks._PyTask(python_task(), loop=asyncio.get_running_loop())

    asyncio.run(main())
    chains = awaits.chains()
    for name in ("cancelled", "fails", "generates", "bounces", "python_task"):
        truth.assert_near(time_of(chains, name), name)
    # The timeout's inside may be a task of its own, which ends with it.
    own = sum(ms for (span, chain), ms in chains.items() if span == "late" and chain[0] != CONCURRENT)
    truth.assert_near(own, "late")
    truth.assert_near(time_of(chains, "generates", "generates", "generator", "leaf", "sleep"), "generates")
    assert not any(chain[0] == "leaf" for span, chain in chains if span == "bounces")
    assert time_of(chains, "fails", "fails", FUTURE) > 19 - truth.late["fails"]


def test_only_a_spans_own_flow_adds_up_to_its_time(awaits):
    truth = Truth()

    async def child(seconds):
        await truth.of("children", asyncio.sleep(seconds))

    async def main():
        with awaits.span("request"):
            await truth.of("own flow", asyncio.gather(child(0.02), child(0.03), child(0.01)))
            await truth.of("own flow", by_itself())

    async def by_itself():
        await truth.of("task", asyncio.create_task(child(0.02)))

    asyncio.run(main())
    chains = awaits.chains()
    own = {chain: ms for (span, chain), ms in chains.items() if span == "request" and chain[0] != CONCURRENT}
    truth.assert_near(sum(own.values()), "own flow")
    assert all(chain[0] == "main" for chain in own)
    # A task that is awaited has its coroutine above it.
    by_itself = {chain: ms for chain, ms in own.items() if "by_itself" in chain}
    truth.assert_near(sum(by_itself.values()), "task")
    assert any(chain[-2:] == ("child", TASK) for chain in by_itself)
    others = sum(ms for (span, chain), ms in chains.items() if span == "request" and chain[0] == CONCURRENT)
    truth.assert_near(others, "children")
    assert all("child" in chain for (span, chain) in chains if chain[0] == CONCURRENT)


def test_a_busy_loop_is_told_from_what_is_awaited(awaits):
    """A timer that is due while another coroutine keeps the loop: awaited until then, busy from then on, and by whom."""
    truth, began, hogged = Truth(), 0.0, 0.0

    async def hog():
        nonlocal hogged
        hogged = time.perf_counter()
        # Longer than what came before, whatever held that up.
        end = hogged + max(0.12, 2 * (hogged - began))
        with elsewhere():
            while time.perf_counter() < end:
                pass

    async def main():
        nonlocal began
        with awaits.span("request"):
            # The loop waits: what comes after is without a break.
            await asyncio.sleep(0.005)
            began = time.perf_counter()
            task = asyncio.create_task(leaf(0.04))
            sleeper = asyncio.create_task(truth.of("slept", leaf(0.04)))
            # Both are suspended, and their timers come after whoever can go on now.
            await asyncio.sleep(0)
            await asyncio.create_task(hog())
            await asyncio.gather(task, sleeper)

    asyncio.run(main())
    chains = awaits.chains()
    awaited = time_of(chains, "request", "of", "leaf", state=FUTURE)
    busy = time_of(chains, "request", "of", "leaf", state=BUSY)
    assert 39 - (hogged - began) * 1e3 < awaited < 42
    truth.assert_near(awaited + busy, "slept")
    assert busy > 70
    assert time_of(chains, "request", "of", "leaf", "sleep", "hog", BUSY) == busy


def test_loops_in_several_threads(awaits):
    truth = Truth()

    def loop(number):
        async def body():
            with awaits.span(f"loop {number}"):
                await truth.of(number, leaf(0.01 * number))

        asyncio.run(body())

    threads = [threading.Thread(target=loop, args=(number,)) for number in range(2, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    chains = awaits.chains()
    for number in range(2, 6):
        truth.assert_near(time_of(chains, f"loop {number}", "body", "leaf"), number)


def test_outside_of_spans_nothing_is_recorded(awaits):
    asyncio.run(leaf(0.02))
    assert not awaits.chains()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with 3.12")
def test_an_eager_tasks_first_step_is_within_another_ones(awaits):
    truth = Truth()

    async def child():
        await truth.of("child", leaf(0.02))

    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        with awaits.span("request"):
            await truth.of("own", asyncio.create_task(child()))

    asyncio.run(main())
    chains = awaits.chains()
    truth.assert_near(time_of(chains, "request", CONCURRENT, "child", "leaf"), "child")
    own = sum(ms for (span, chain), ms in chains.items() if span == "request" and chain[0] == "main")
    truth.assert_near(own, "own")


def test_tasks_that_are_suspended_over_a_stop_and_a_start(awaits):
    """What was suspended before a start is not seen: nobody noted when."""
    truth = Truth()

    async def until(released):
        await released

    async def main():
        with awaits.span("request"):
            released = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(until(released))
            await asyncio.sleep(0.005)
            pyroscope.stop()
            await asyncio.sleep(0.005)
            awaits.start()
            await asyncio.sleep(0.005)
            released.set_result(None)
            await task
            await truth.of("after", leaf(0.02))

    asyncio.run(main())
    chains = awaits.chains()
    # Where it kept the loop busy it is named alone.
    assert time_of(chains, "request", "until", FUTURE) == 0
    truth.assert_near(time_of(chains, "request", "main", "leaf"), "after")


def test_profilers_without_in_between(awaits, capfd):
    """The next one that measures awaits does, and says nothing of it."""
    pyroscope.stop()
    for _ in range(2):
        assert awaits.recording.start(wall_time=False)
        pyroscope.stop()
    awaits.start()
    truth = Truth()

    async def flow():
        with awaits.span("request"):
            await truth.of("flow", asyncio.sleep(0.02))

    asyncio.run(flow())
    truth.assert_near(time_of(awaits.chains(), "request", "flow"), "flow")
    assert capfd.readouterr() == ("", "")


def test_nothing_of_it_can_be_seen_from_python(awaits):
    coroutine = leaf(0)
    assert repr(type(coroutine).send) == "<method 'send' of 'coroutine' objects>"
    with pytest.raises(TypeError, match="descriptor 'send'"):
        type(coroutine).send(1, 2)
    with pytest.raises(TypeError, match="just-started"):
        coroutine.send(1)
    coroutine.close()
    with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
        coroutine.send(None)
    with pytest.raises(TypeError):
        coroutine.throw()


def test_who_puts_himself_before_us_stays_there(tmp_path):
    """The interpreter's pointer is given back where it is still ours; else our function stays behind the other one and passes on."""
    address = ctypes.c_void_p.from_address(id(types.CoroutineType) + TP_AS_ASYNC).value + AM_SEND
    place = ctypes.c_void_p.from_address(address)
    before = place.value
    awaits = Awaits(tmp_path)
    ours = place.value
    assert ours != before
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    calls = []

    def passes_on(*arguments):
        calls.append(1)
        return function(ours)(*arguments)

    theirs = function(passes_on)
    place.value = ctypes.cast(theirs, ctypes.c_void_p).value
    try:

        async def main(name):
            with awaits.span(name):
                await leaf(0.05)

        asyncio.run(main("first"))
        pyroscope.stop()
        asyncio.run(main("between"))
        awaits.start()
        asyncio.run(main("second"))
    finally:
        place.value = ours
    asyncio.run(main("third"))
    awaits.close()
    assert place.value == before
    assert calls
    found = {span for span, _ in awaits.chains()}
    assert found == {"first", "second", "third"}


def test_a_fork_leaves_suspended_coroutines_whole(awaits, tmp_path):
    """The child goes on with those of its parent, in a profiler of its own."""

    class Pause:
        def __await__(self):
            yield

    async def first():
        await Pause()

    async def second():
        await Pause()

    async def flow():
        with awaits.span("request"):
            await first()
            await second()

    began = time.perf_counter()
    coroutine = flow()
    coroutine.send(None)
    child = os.fork()
    if child == 0:
        try:
            time.sleep(0.02)
            coroutine.send(None)
            time.sleep(0.02)
            coroutine.close()
            pyroscope.stop()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.02)
    coroutine.close()
    most = (time.perf_counter() - began) * 1e3
    chains = awaits.chains()
    # Of both processes, and of the child alone, which slept twice and once; the parent waited for it.
    assert 78 < time_of(chains, "request", "flow", "first") < 2 * most
    assert 19 < time_of(chains, "request", "flow", "second") < most


PROBE_FAILS = """
    import sys, types
    class Odd:
        def __init__(self, *, loop): raise ValueError("odd")
    sys.modules["_asyncio"] = types.SimpleNamespace(Future=Odd, Task=Odd)
    import logging, pyroscope
    logging.basicConfig(format="%(message)s")
    assert pyroscope.configure(application_name="t", server_address="file://{folder}", wall_time=True)
    pyroscope.shutdown()
"""

DAEMONS = """
    import asyncio, threading, time, pyroscope
    from opentelemetry.sdk.trace import TracerProvider
    from pyroscope.otel import PyroscopeSpanProcessor
    provider = TracerProvider()
    provider.add_span_processor(PyroscopeSpanProcessor())
    pyroscope.configure(application_name="t", server_address="file://{folder}", wall_time=True)
    started = []
    async def busy():
        with provider.get_tracer("t").start_as_current_span("busy"):
            started.append(1)
            while True:
                await asyncio.sleep(0)
                sum(range(200))
    for _ in range(3):
        threading.Thread(target=lambda: asyncio.run(busy()), daemon=True).start()
    while len(started) < 3:
        time.sleep(0.001)
"""

SUBINTERPRETERS = """
    import asyncio, threading, pyroscope
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters
    code = '''if True:
        class Pause:
            def __await__(self):
                for _ in range(100): yield
        async def flow(): await Pause()
        for _ in range(200):
            one = flow()
            try:
                while True: one.send(None)
            except StopIteration: pass
            other = flow(); other.send(None); del other
    '''
    pyroscope.configure(application_name="t", server_address="file://{folder}", wall_time=True)
    def work():
        made = interpreters.create()
        (interpreters.exec if hasattr(interpreters, "exec") else interpreters.run_string)(made, code)
        interpreters.destroy(made)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads: thread.start()
    async def main():
        await asyncio.gather(*[asyncio.sleep(0) for _ in range(2000)])
    asyncio.run(main())
    for thread in threads: thread.join()
    pyroscope.shutdown()
    print("whole")
"""


def child_of(program, folder):
    return run("-c", textwrap.dedent(program).replace("{folder}", str(folder)))


def test_where_a_probe_is_not_seen_no_awaits_are_measured_and_one_line_says_so(tmp_path):
    ended = child_of(PROBE_FAILS, tmp_path)
    succeeded(ended)
    (line,) = [line for line in ended.stderr.splitlines() if "awaited" in line]
    assert line.startswith("The time that is awaited is not measured: the self-test raised ")


def test_daemon_threads_that_end_within_a_step(tmp_path):
    """Until 3.13 the interpreter unwinds their stacks, through the functions that stand in its places."""
    for _ in range(5):
        succeeded(child_of(DAEMONS, tmp_path))


@pytest.mark.skipif(sys.version_info < (3, 12), reason="they share the GIL before 3.12")
def test_subinterpreters_with_a_gil_of_their_own_are_passed_by(tmp_path):
    assert succeeded(child_of(SUBINTERPRETERS, tmp_path)).split() == ["whole"]


class Step:
    def __await__(self):
        yield


def test_a_new_coroutine_has_not_waited_for_one_that_was_there_before(awaits):
    """One that its own finalizer kept alive is suspended again, and dies without another finalizer."""
    kept = []

    async def stays(me):
        try:
            await Step()
        finally:
            kept.append(me.pop())
            await Step()
            await Step()

    def old():
        me = []
        me.append(stays(me))
        me[0].send(None)
        del me
        gc.collect()
        kept[0].send(None)
        time.sleep(0.05)
        place = id(kept[0])
        kept.clear()
        return place

    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        met = 0
        for _ in range(50):
            place = old()
            some = [stays([]) for _ in range(5_000)]
            for coroutine in some:
                if id(coroutine) == place:
                    met += 1
                    with awaits.span("new"):
                        coroutine.send(None)
                    with pytest.raises(IndexError):
                        coroutine.close()
                coroutine.close()
            if met == 3:
                break
    finally:
        sys.unraisablehook = hook
    assert met == 3
    assert time_of(awaits.chains(), "new") < 20
