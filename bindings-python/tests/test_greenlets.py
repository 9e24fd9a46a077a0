"""What gevent's greenlets wait for has its time, its stack and its span, and is told from a busy loop.

The truth is what the program knows of each wait (`suspensions`). Each test is a process of its own: greenlet calls our function on each
thread for good, and nothing takes it off.
"""

import sys
import textwrap

import pytest
from children import run, succeeded

pytest.importorskip("gevent")

PROGRAM = """
    import gc, os, selectors, sys, threading, time
    import gevent, gevent.event, gevent.hub, gevent.lock, gevent.queue, gevent.socket, greenlet
    import pyroscope
    from suspensions import TimedSelector, Truth, elsewhere, time_hub
    from test_awaits import Awaits, time_of

    BUSY, CONCURRENT = "(event loop busy)", "(concurrent task)"
    selectors.DefaultSelector = TimedSelector
    truth = Truth()
    near = truth.assert_near
    time_hub()

    def timed(name, function, *arguments):
        with truth.around(name):
            return function(*arguments)
"""


def passes(folder, source):
    """Runs it in a process of its own; what that said on stderr."""
    head = f"import sys\nsys.path[:0] = {sys.path!r}\nFOLDER = {str(folder)!r}\n"
    finished = run("-c", head + textwrap.dedent(PROGRAM) + textwrap.dedent(source))
    succeeded(finished)
    return finished.stderr


def test_waits_of_many_have_their_span_and_stack(tmp_path):
    passes(
        tmp_path,
        """
        awaits = Awaits(FOLDER)

        def repository(number):
            timed(number, gevent.sleep, 0.03 + number / 1e3)

        def handler(number):
            with awaits.span(f"request {number}"):
                for _ in range(5):
                    repository(number)

        gevent.joinall([gevent.spawn(handler, number) for number in range(5)])
        chains = awaits.chains()
        for number in range(5):
            own = time_of(chains, f"request {number}", "handler", "repository", "timed", "sleep")
            near(own, number)
            assert own == time_of(chains, f"request {number}")
            assert not time_of(chains, f"request {number}", CONCURRENT)
        """,
    )


def test_events_queues_locks_sockets_and_joins(tmp_path):
    passes(
        tmp_path,
        """
        awaits = Awaits(FOLDER)
        event, queue, lock = gevent.event.Event(), gevent.queue.Queue(), gevent.lock.Semaphore(0)
        near_end, far_end = gevent.socket.socketpair()

        def others():
            for give in (event.set, lambda: queue.put(1), lock.release, lambda: far_end.send(b"1")):
                time.sleep(0)
                gevent.sleep(0.03)
                give()
            gevent.sleep(0.03)

        def request():
            worker = gevent.spawn(others)
            for name, wait in {
                "event": event.wait,
                "queue": queue.get,
                "lock": lock.acquire,
                "socket": lambda: near_end.recv(1),
                "join": worker.join,
            }.items():
                with awaits.span(name):
                    timed(name, wait)

        request()
        chains = awaits.chains()
        for name in truth.most:
            near(time_of(chains, name, "request"), name)
        """,
    )


def test_a_busy_hub_is_told_from_what_is_awaited(tmp_path):
    passes(
        tmp_path,
        """
        awaits = Awaits(FOLDER)

        def hog():
            until = time.perf_counter() + 0.2
            with elsewhere():
                while time.perf_counter() < until:
                    pass

        def request(name):
            with awaits.span(name):
                timed(name, gevent.sleep, 0.05)

        # The hub waits, so what comes after is without a break; and while it waits it is not busy.
        gevent.spawn(request, "awaits").join()
        waits = gevent.spawn(request, "busy")
        gevent.sleep(0)
        gevent.spawn(hog)
        waits.join()
        chains = awaits.chains()
        for name in truth.most:
            near(time_of(chains, name), name)
        assert time_of(chains, "busy", state=BUSY) > 195, chains
        # What the machine held it up for after its 50 ms may be called either.
        assert time_of(chains, "awaits", state=BUSY) < truth.most["awaits"] - 50 + 10, chains
        """,
    )


def test_killed_timed_out_and_dropped_ones(tmp_path):
    passes(
        tmp_path,
        """
        awaits = Awaits(FOLDER)

        def killed():
            with awaits.span("killed"):
                timed("killed", gevent.sleep, 10)

        def late():
            with awaits.span("late"), gevent.Timeout(0.05, False):
                timed("late", gevent.event.Event().wait)

        def dropped():
            with awaits.span("dropped"):
                gevent.hub.get_hub().switch()

        victim, timer = gevent.spawn(killed), gevent.spawn(late)
        raw = greenlet.greenlet(dropped, parent=gevent.hub.get_hub())
        gevent.spawn(raw.switch)
        gevent.sleep(0.04)
        victim.kill()
        timer.join()
        del raw
        gc.collect()
        chains = awaits.chains()
        for name in truth.most:
            near(time_of(chains, name), name)
        """,
    )


def test_each_thread_has_its_own_hub(tmp_path):
    passes(
        tmp_path,
        """
        awaits = Awaits(FOLDER)

        def handler(name):
            with awaits.span(name):
                for _ in range(3):
                    timed(name, gevent.sleep, 0.03)

        def loop(number):
            time_hub()
            gevent.joinall([gevent.spawn(handler, f"{number} {each}") for each in range(3)])

        threads = [threading.Thread(target=loop, args=(number,)) for number in range(3)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        chains = awaits.chains()
        for name in truth.most:
            near(time_of(chains, name, "handler"), name)
        """,
    )


def test_a_stop_and_a_start_within_a_span(tmp_path):
    passes(
        tmp_path,
        """
        awaits = Awaits(FOLDER)

        def handler():
            with awaits.span("request"):
                timed("request", gevent.sleep, 0.05)
                pyroscope.stop()
                gevent.sleep(0.05)
                awaits.start()
                timed("request", gevent.sleep, 0.05)

        gevent.spawn(handler).join()
        near(time_of(awaits.chains(), "request"), "request")
        """,
    )


def test_another_trace_function_stays(tmp_path):
    """Whose thread it is keeps it, and is told what is not measured."""
    said = passes(
        tmp_path,
        """
        seen = []
        greenlet.settrace(lambda event, greenlets: seen.append(event))
        awaits = Awaits(FOLDER)

        def handler():
            with awaits.span("request"):
                gevent.sleep(0.05)

        gevent.spawn(handler).join()
        assert seen and not time_of(awaits.chains(), "request")
        """,
    )
    assert "the waits of gevent's greenlets are not measured: greenlet.settrace is another's on this thread" in said


def test_time_attributes_add_up(tmp_path):
    passes(
        tmp_path,
        """
        from conftest import Recording
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        from pyroscope.otel import PyroscopeSpanProcessor

        recording, exporter = Recording(FOLDER), InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(PyroscopeSpanProcessor("root", time_attributes=True))
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        assert recording.start(wall_time=True)

        def handler(number):
            with tracer.start_as_current_span(f"request {number}"):
                for _ in range(10):
                    timed(f"request {number}", gevent.sleep, 0.002 * (number + 1))

        gevent.joinall([gevent.spawn(handler, number) for number in range(8)])
        spans = exporter.get_finished_spans()
        assert len(spans) == 8
        for span in spans:
            told = {name: ns / 1e6 for name, ns in span.attributes.items() if name.startswith("pyroscope.time.")}
            near(told["pyroscope.time.await"] + told.get("pyroscope.time.busy", 0), span.name)
            assert sum(told.values()) <= (span.end_time - span.start_time) / 1e6 * 1.03, (told, span.end_time - span.start_time)
            assert "pyroscope.time.cpu" not in told
        pyroscope.stop()
        """,
    )


def test_a_greenlet_that_is_called_is_no_wait(tmp_path):
    """As SQLAlchemy runs synchronous code in asyncio: the greenlet works for the span of who switched to it."""
    passes(
        tmp_path,
        """
        import asyncio
        awaits = Awaits(FOLDER)

        def burn(seconds):
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass

        def synchronous():
            for _ in range(2):
                burn(0.1)
                greenlet.getcurrent().parent.switch(asyncio.sleep(0.1))

        async def spawn():
            child = greenlet.greenlet(synchronous)
            result = child.switch()
            while not child.dead:
                await truth.of("asyncio", result)
                result = child.switch()

        async def handler():
            with awaits.span("asyncio"):
                await spawn()

        asyncio.run(handler())
        with awaits.span("called"):
            greenlet.greenlet(lambda: burn(0.2)).switch()
        chains = awaits.chains()
        near(time_of(chains, "asyncio"), "asyncio")
        assert not time_of(chains, "called") and not time_of(chains, "asyncio", CONCURRENT), chains
        """,
    )


def test_what_takes_the_trace_function_off_ends_it_for_some_spans(tmp_path):
    passes(
        tmp_path,
        """
        awaits = Awaits(FOLDER)

        def handler(name):
            with awaits.span(name):
                timed(name, gevent.sleep, 0.03)

        gevent.spawn(handler, "before").join()
        greenlet.settrace(None)
        for _ in range(257):
            with awaits.span("many"):
                pass
        gevent.spawn(handler, "after").join()
        chains = awaits.chains()
        near(time_of(chains, "before"), "before")
        near(time_of(chains, "after"), "after")
        """,
    )
