"""What the time of each span went to, as attributes: exact, of its own flow alone, and not there unless somebody asks.

The truth is what the program's own clock says around each wait: it is read a little outside of it, so it is an upper bound. What coroutines
await has a lower one too (`suspensions`).
"""

import asyncio
import contextlib
import contextvars
import functools
import os
import select
import selectors
import socket
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import greenlet
import pytest
from conftest import Recording, burn
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from suspensions import TimedSelector, Truth

import pyroscope
from pyroscope.otel import PyroscopeSpanProcessor, _times

PREFIX = "pyroscope.time."


def nanoseconds(span):
    """By state."""
    found = {name[len(PREFIX) :]: ns for name, ns in span.attributes.items() if name.startswith(PREFIX)}
    assert all(type(ns) is int and ns > 0 for ns in found.values())
    return found


def times(span):
    """Seconds by state."""
    return {state: ns / 1e9 for state, ns in nanoseconds(span).items()}


class Program:
    """Spans that say their time, as an exporter sees them."""

    def __init__(self, folder, scope="all", wall_time=True, limits=None, **arguments):
        assert Recording(folder).start(wall_time=wall_time, sample_rate=100)
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, span_limits=limits)
        self.provider.add_span_processor(PyroscopeSpanProcessor(scope, **arguments))
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def span(self, name):
        return self.tracer.start_as_current_span(name)

    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def times(self, name="span"):
        return times(self.spans()[name])


@pytest.fixture
def program(tmp_path):
    made = []

    def make(**arguments):
        made.append(Program(tmp_path, **{"time_attributes": True, **arguments}))
        return made[-1]

    yield make
    for each in made:
        each.provider.shutdown()


@pytest.fixture
def timed_loops(monkeypatch):
    monkeypatch.setattr(selectors, "DefaultSelector", TimedSelector)


@pytest.fixture(autouse=True)
def without_gevent(monkeypatch):
    """Other tests of this process may have loaded it."""
    monkeypatch.delitem(sys.modules, "gevent", raising=False)


class Clock:
    """Seconds in blocks, by the program's own clock."""

    def __init__(self):
        self.seconds = 0.0

    def __enter__(self):
        self.began = time.perf_counter()
        return self

    def __exit__(self, *_):
        self.seconds += time.perf_counter() - self.began


def in_own_thread(test):
    """One that runs nothing else: greenlets of other tests, which were left in the midst of a coroutine, are on the main thread."""

    @functools.wraps(test)
    def run(**fixtures):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(test, **fixtures).result()

    return run


def sleep(seconds):
    """Within one call of libc. `time.sleep` waits until an instant, which may have come before the call is made."""
    select.select([], [], [], seconds)


#: What of a wait is not within the call that waits, if a signal comes into it.
LEAST = 0.95


def assert_whole(found, clock):
    """All states of a span together are no more than its wall time."""
    waits = sum(seconds for state, seconds in found.items() if state != "cpu")
    assert waits <= clock.seconds * 1.001, (found, clock.seconds)


@pytest.mark.parametrize("value", [None, False, 0, "no"])
def test_they_are_off_by_default_and_where_that_is_said(program, value):
    off = program(time_attributes=value)
    with off.span("span"):
        sleep(0.01)
    assert off.times() == {}


def test_the_environment_asks_for_them(program, monkeypatch):
    monkeypatch.setenv("OTEL_PYROSCOPE_TIME_ATTRIBUTES", "true")
    asked = program(time_attributes=None)
    with asked.span("span"):
        sleep(0.01)
    assert asked.times()["sleep"] >= 0.01 * LEAST
    with pytest.raises(ValueError, match="time_attributes: maybe is not allowed; allowed: true, false, 1, 0, yes, no"):
        PyroscopeSpanProcessor(time_attributes="maybe")


def test_each_short_span_says_its_wait_though_few_become_samples(program):
    short = program()
    clocks = {}
    for number in range(300):
        with short.span(str(number)):
            with Clock() as clocks[str(number)]:
                sleep(0.0001)
    found = {name: times(span)["sleep"] for name, span in short.spans().items()}
    assert all(found[name] <= clock.seconds for name, clock in clocks.items())
    assert len(found) == 300 and sum(seconds >= 0.0001 for seconds in found.values()) > 300 * LEAST
    # One is a sample with the probability 1 - exp(-its seconds / 0.001) at most: on a machine with little to do 50 of them are.
    likely = sum(min(clock.seconds / 0.001, 1) for clock in clocks.values())
    assert pyroscope.stats()["waits_sampled"]["samples"] < likely + 5 * likely**0.5


def test_ten_thousand_waits_of_one_span_are_all_in_its_sum(program):
    many, clocks = program(), [Clock() for _ in range(10_000)]
    with many.span("span"):
        for clock in clocks:
            with clock:
                sleep(0.00002)
    seconds = [clock.seconds for clock in clocks]
    assert 0.2 * LEAST <= many.times()["sleep"] <= sum(seconds)
    # Beside its wait a call takes what Python's own functions do. On a busy machine much more comes between them now and then.
    assert many.times()["sleep"] + many.times()["cpu"] > 10_000 * statistics.median(seconds) * 0.5


def test_what_burns_within_short_waits_is_cpu_time(program):
    short = program()
    with short.span("span"):
        began = time.thread_time()
        for _ in range(3_000):
            sleep(0.00002)
        burnt = time.thread_time() - began
    span = short.spans()["span"]
    assert times(span)["cpu"] >= LEAST * burnt
    assert sum(nanoseconds(span).values()) <= span.end_time - span.start_time


def test_a_wait_has_the_state_of_its_call(program):
    waits, clock, own = program(), Clock(), {}
    ours, theirs = socket.socketpair()
    lock, go = threading.Lock(), threading.Event()
    lock.acquire()

    def other():
        go.wait()
        sleep(0.05)
        theirs.send(b"x")
        sleep(0.05)
        lock.release()

    thread = threading.Thread(target=other)
    thread.start()
    with clock, waits.span("span"):
        go.set()
        with Clock() as own["io"]:
            ours.recv(1)
        with Clock() as own["lock"]:
            lock.acquire()
        with Clock() as own["sleep"]:
            sleep(0.05)
        child = os.posix_spawn("/bin/sleep", ["sleep", "0.1"], os.environ)
        with Clock() as own["child"]:
            os.waitpid(child, 0)
    thread.join()
    found = waits.times()
    # A thread that comes back waits for the GIL, and for a processor, which is part of its wait. The other one is not ours to time: what is
    # waited for may be there before the wait begins.
    for state, truth in own.items():
        assert truth.seconds * 0.3 - 0.01 < found.get(state, 0) <= truth.seconds, (state, truth.seconds, found)
    assert found["sleep"] >= 0.05 * LEAST
    assert_whole(found, clock)


@in_own_thread
def test_a_span_that_only_another_thread_runs_has_that_ones_time_and_no_cpu_time_of_this_one(program):
    handed = program()
    span = handed.tracer.start_span("span")

    def work():
        with trace.use_span(span):
            sleep(0.05)

    thread = threading.Thread(target=work)
    thread.start()
    burn(0.02)
    thread.join()
    span.end()
    assert handed.times()["sleep"] >= 0.05 * LEAST
    assert "cpu" not in handed.times()


def test_a_second_processor_that_was_not_asked_for_them_takes_none_away(program):
    both = program()
    both.provider.add_span_processor(PyroscopeSpanProcessor("all"))
    with both.span("span"):
        sleep(0.01)
    assert both.times()["sleep"] >= 0.01 * LEAST


@in_own_thread
def test_nested_spans_have_their_own_time_in_the_scope_all(program):
    nested, clock = program(), Clock()
    with clock, nested.span("outer"):
        sleep(0.02)
        with nested.span("inner"):
            sleep(0.05)
    outer, inner = nested.times("outer"), nested.times("inner")
    assert 0.02 * LEAST <= outer["sleep"] <= clock.seconds - inner["sleep"]
    assert 0.05 * LEAST <= inner["sleep"]
    assert "cpu" in outer and "cpu" not in inner, "CPU time is the local root's"


@in_own_thread
def test_a_local_root_has_all_of_it_in_the_scope_root(program):
    nested, clock = program(scope="root"), Clock()
    with clock, nested.span("outer"):
        sleep(0.02)
        with nested.span("inner"):
            sleep(0.05)
    assert 0.07 * LEAST <= nested.times("outer")["sleep"] <= clock.seconds
    assert nested.times("inner") == {}
    assert_whole(nested.times("outer"), clock)


@in_own_thread
def test_the_cpu_time_of_a_local_root_is_its_threads(program):
    burning = program()
    before = time.thread_time()
    with burning.span("span"):
        began = time.thread_time()
        burn(0.03)
        sleep(0.02)
        burnt = time.thread_time() - began
    assert burnt <= burning.times()["cpu"] <= time.thread_time() - before


class Burnt:
    """CPU time of the calling thread within and around what is measured."""

    def __init__(self):
        self.least = self.most = 0

    @contextlib.contextmanager
    def of(self, current):
        began = time.thread_time()
        with current:
            within = time.thread_time()
            yield
            self.least += time.thread_time() - within
        self.most += time.thread_time() - began


@in_own_thread
def test_cpu_time_is_that_in_which_the_span_was_current(program):
    gaps, burnt = program(), Burnt()
    span = gaps.tracer.start_span("span")
    burn(0.03)
    with burnt.of(trace.use_span(span)):
        burn(0.01)
    burn(0.03)
    with gaps.span("another"):
        burn(0.03)
    with burnt.of(trace.use_span(span)):
        with gaps.span("child"):
            burn(0.01)
        burn(0.01)
    burn(0.03)
    span.end()
    assert burnt.least <= gaps.times("span")["cpu"] <= burnt.most


@in_own_thread
def test_a_new_root_within_a_root_has_its_own_cpu_time(program):
    nested, burnt = program(), Burnt()
    began = time.thread_time()
    with nested.span("outer"):
        burn(0.01)
        with burnt.of(nested.tracer.start_as_current_span("inner", context=Context())):
            burn(0.03)
        burn(0.01)
    most = time.thread_time() - began
    assert burnt.least <= nested.times("inner")["cpu"] <= burnt.most
    assert 0.02 <= nested.times("outer")["cpu"] <= most - burnt.least


@pytest.mark.parametrize("wall_time", [True, False])
@in_own_thread
def test_a_loop_within_a_span_that_serves_others_leaves_its_cpu_time_unknown(program, wall_time):
    within = program(wall_time=wall_time)

    async def serve():
        with within.tracer.start_as_current_span("request", context=Context()):
            burn(0.01)

    async def main():
        await contextvars.Context().run(asyncio.ensure_future, serve())

    with within.span("span"):
        asyncio.run(main())
    # One that the span's own coroutine goes into and comes back from.
    with within.span("around"):
        asyncio.run(serve())
    assert not [span.name for span in within.exporter.get_finished_spans() if "cpu" in times(span)]


@pytest.mark.parametrize("wall_time", [True, False])
@in_own_thread
def test_a_loop_of_another_thread_that_goes_into_a_span_leaves_its_cpu_time_known(program, wall_time):
    beside, burnt = program(wall_time=wall_time), Burnt()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def attach(current):
        token = context.attach(current)
        await asyncio.sleep(0)
        context.detach(token)

    async def serve():
        with beside.tracer.start_as_current_span("request", context=Context()):
            await asyncio.sleep(0)

    def run(coroutine):
        asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    with burnt.of(beside.span("span")):
        burn(0.01)
        contextvars.Context().run(run, attach(context.get_current()))
        run(serve())
        burn(0.01)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert burnt.least <= beside.times()["cpu"] <= burnt.most


def test_a_span_that_ends_on_another_thread_has_no_cpu_time(program):
    from opentelemetry.trace import use_span

    moving = program()
    span = moving.tracer.start_span("span")
    with use_span(span), Clock() as clock:
        sleep(0.02)

    def other():
        with use_span(span):
            sleep(0.05)
        span.end()

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    never_current = moving.tracer.start_span("never current")
    sleep(0.01)
    never_current.end()
    # What another thread does in it is beside its time.
    found = moving.times()
    assert "cpu" not in found and 0.02 * LEAST <= found["sleep"] <= clock.seconds
    assert moving.times("never current") == {}


def test_an_await_counts_once(program, timed_loops):
    awaits, clock, truth = program(), Clock(), Truth()

    async def handler():
        with clock, awaits.span("span"):
            for _ in range(20):
                await truth.of("await", asyncio.sleep(0.005))
            sleep(0.02)

    asyncio.run(handler())
    found = awaits.times()
    assert found["sleep"] >= 0.02 * LEAST and "cpu" not in found
    assert truth.least["await"] * 0.99 <= (found["await"] + found.get("busy", 0)) * 1e3 <= truth.most["await"] * 1.001
    assert_whole(found, clock)


def test_a_coroutine_that_its_loop_lets_wait_is_busy(program):
    loop, clock, blocked = program(), Clock(), 0.0

    async def handler():
        with clock, loop.span("span"):
            await asyncio.sleep(0.02)

    async def main():
        nonlocal blocked
        task = asyncio.create_task(handler())
        await asyncio.sleep(0)
        blocked = time.perf_counter()
        sleep(0.1)
        await task

    asyncio.run(main())
    found = loop.times()
    # It was suspended before the loop was blocked, and ready when its timer was due.
    late = blocked - clock.began
    assert 0.019 - late < found.get("await", 0) < 0.022 and found["busy"] > 0.078, (found, late)
    assert_whole(found, clock)


def test_tasks_at_once_in_one_span_are_beside_its_time(program, timed_loops):
    tasks, clock, truth = program(), Clock(), Truth()

    async def child():
        await asyncio.sleep(0.03)
        await asyncio.to_thread(time.sleep, 0.03)

    async def main():
        with clock, tasks.span("span"):
            await truth.of("gather", asyncio.gather(*(child() for _ in range(10))))

    asyncio.run(main())
    found = tasks.times()
    assert (found["await"] + found.get("busy", 0)) * 1e3 >= truth.least["gather"] * 0.99
    assert_whole(found, clock)


def test_a_loop_within_a_span_is_its_threads_wait(program):
    within, clock = program(), Clock()

    async def main():
        await asyncio.sleep(0.2)

    with clock, within.span("span"):
        asyncio.run(main())
    found = within.times()
    # But for what comes between the timer and the wait for it, on a busy machine.
    assert found["io"] > 0.05 and "await" not in found
    assert_whole(found, clock)


@in_own_thread
def test_a_greenlets_thread_runs_others_too(program):
    switching = program()

    def run():
        with switching.span("span"):
            burn(0.005)
            sleep(0.01)

    greenlet.greenlet(run).switch()
    found = switching.times()
    assert found["sleep"] >= 0.01 * LEAST and "cpu" not in found


@in_own_thread
def test_gevents_main_greenlet_waits_while_others_run(program, monkeypatch):
    switching = program()
    monkeypatch.setitem(sys.modules, "gevent", sys)
    with switching.span("span"):
        burn(0.005)
    assert "cpu" not in switching.times()


def test_a_fork_within_a_span(python):
    python(
        """
        import os, tempfile
        from pathlib import Path
        from conftest import Recording
        from test_time_attributes import LEAST, Clock, Program, sleep

        program = Program(Path(tempfile.mkdtemp()), time_attributes=True)
        with program.span("outer"):
            with Clock() as clock:
                sleep(0.02)
            child = os.fork()
            if child == 0:
                with program.span("inner"):
                    sleep(0.05)
                sleep(0.05)
        found = program.times("outer")
        if child == 0:
            # What goes on here is the parent's span, which has its own time there.
            inner = program.times("inner")
            print(found, inner, flush=True)
            os._exit(0 if found == {} and inner["sleep"] >= 0.05 * LEAST else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert 0.02 * LEAST <= found["sleep"] <= clock.seconds and found["cpu"] > 0, found
        """
    )


@in_own_thread
def test_what_is_missing_without_wall_time_is_said_once(program, caplog):
    without = program(wall_time=False)
    for name in ("a", "b"):
        with without.span(name):
            burn(0.001)
            sleep(0.01)
    assert without.times("a").keys() == without.times("b").keys() == {"cpu"}
    assert [record.getMessage() for record in caplog.records if "time_attributes" in record.getMessage()] == [
        "spans say no waits as attributes: time_attributes needs wall time, configure(wall_time=True) or "
        "PYROSCOPE_PROFILING_WALLTIME_ENABLED=true"
    ]


@pytest.mark.parametrize("scope", ["root", "all"])
@in_own_thread
def test_without_wall_time_a_coroutine_has_no_cpu_time_of_others(program, scope):
    without = program(wall_time=False, scope=scope)

    async def other():
        for _ in range(10):
            burn(0.001)
            await asyncio.sleep(0)

    async def handler():
        others = asyncio.create_task(other())
        with without.span("handler"):
            await asyncio.sleep(0)
            await others

    asyncio.run(handler())
    with without.span("behind"):
        burn(0.001)
    assert without.times("handler") == {} and without.times("behind").keys() == {"cpu"}


async def child(goes_on):
    await goes_on.wait()
    await asyncio.sleep(0.25)


def test_a_span_in_which_the_profiler_starts_has_each_await_once(program, timed_loops):
    starting, clock = program(wall_time=False), Clock()
    pyroscope.shutdown()

    async def main():
        began = asyncio.Event()
        with clock, starting.span("span"):
            children = [asyncio.create_task(child(began)) for _ in range(10)]
            await asyncio.sleep(0)
            assert pyroscope.configure(application_name="test", server_address="none", wall_time=True)
            began.set()
            await asyncio.gather(*children)

    asyncio.run(main())
    found = starting.times()
    assert found["await"] > 0
    assert_whole(found, clock)


def test_a_span_in_which_the_profiler_starts_again_has_each_await_once(program, timed_loops):
    starting, clock = program(wall_time=False), Clock()
    pyroscope.shutdown()

    def start():
        assert pyroscope.configure(application_name="test", server_address="none", wall_time=True)

    async def main():
        goes_on = asyncio.Event()
        with clock, starting.span("span"):
            # Met while the first one runs, and what begins between the two.
            children = [asyncio.create_task(child(goes_on))]
            await asyncio.sleep(0.01)
            start()
            await asyncio.sleep(0.01)
            pyroscope.shutdown()
            children += [asyncio.create_task(child(goes_on)) for _ in range(5)]
            await asyncio.sleep(0.01)
            start()
            # What is awaited across a start is not seen.
            await asyncio.sleep(0)
            goes_on.set()
            await asyncio.gather(*children)

    asyncio.run(main())
    found = starting.times()
    assert found["await"] > 0
    assert_whole(found, clock)


@in_own_thread
def test_a_span_that_is_full_keeps_the_programs_own_attributes(program):
    full = program(limits=SpanLimits(max_span_attributes=3))
    with full.span("span") as span:
        span.set_attributes({"a": 1, "b": 2})
        sleep(0.001)
    found = full.spans()["span"]
    assert found.attributes.keys() == {"pyroscope.profile.id", "a", "b"}
    assert found.dropped_attributes >= 2


def test_older_sdks_tell_of_the_end_alone(program, monkeypatch):
    monkeypatch.setattr(_times, "HAS_ON_ENDING", False)
    monkeypatch.setattr(PyroscopeSpanProcessor, "_on_ending", lambda self, span: None)
    older = program()
    with older.span("span"):
        sleep(0.01)
    assert older.times()["sleep"] >= 0.01 * LEAST


def test_spans_of_another_sdk_do_no_harm(program, caplog):
    program()
    processor = PyroscopeSpanProcessor(time_attributes=True)
    try:
        processor._on_ending(object())
        processor.on_end(object())
    finally:
        processor.shutdown()
    assert len([record for record in caplog.records if record.name == "pyroscope"]) <= 2


@pytest.mark.parametrize("scope", ["root", "all"])
def test_a_subclass_has_them_too(tmp_path, scope):
    class Own(PyroscopeSpanProcessor):
        ended: list = []

        def on_start(self, span, parent_context=None):
            super().on_start(span, parent_context)

        def on_end(self, span):
            self.ended.append(span)
            super().on_end(span)

    assert Recording(tmp_path).start(wall_time=True)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Own(scope, time_attributes=True))
    with provider.get_tracer("test").start_as_current_span("span"):
        sleep(0.01)
    provider.shutdown()
    assert times(Own.ended[0])["sleep"] >= 0.01 * LEAST


def test_threads_that_end_meanwhile(program):
    """Sums outlive nobody who adds to them."""
    storm, clocks = program(), {}

    def work(number):
        for turn in range(20):
            name = f"{number} {turn}"
            with Clock() as clocks[name], storm.span(name):
                # Not `time.sleep`: until an instant, which has come where the thread had no processor just before.
                select.select([], [], [], 0.0005)

    threads = [threading.Thread(target=work, args=[number]) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {name: times(span) for name, span in storm.spans().items()}
    assert len(found) == 600 and sum(each["sleep"] >= 0.0005 for each in found.values()) > 600 * LEAST
    for name, each in found.items():
        assert_whole(each, clocks[name])
