"""Rows of the ground truth whose functions are plain ones: threads, pools, greenlets, generators, spans that travel."""

import concurrent.futures
import contextvars
import functools
import random
import sys
import threading
import time

from truth_program import Program, burn_and_give_way, current_id, id_of


def threads(program: Program) -> None:
    """20 threads, each one short span after the other."""

    def body(chance: random.Random) -> None:
        def work(own: str) -> None:
            program.ledger.function(own)(int(chance.uniform(0.2e6, 6e6)))

        while not program.enough():
            program.span("short", None, work)

    program.in_new_threads(20, body)


def children(program: Program) -> None:
    """Trees of spans, three deep, in four threads."""

    def body(chance: random.Random) -> None:
        def tree(own: str, depth: int = 1) -> None:
            program.ledger.function(own)(int(chance.uniform(0.5e6, 4e6)))
            for _ in range(chance.randint(1, 3) if depth < 3 else 0):
                program.span(f"level {depth + 1}", own, functools.partial(tree, depth=depth + 1))
                program.ledger.function(own)(int(chance.uniform(0.5e6, 4e6)))

        while not program.enough():
            program.span("level 1", None, tree)

    program.in_new_threads(4, body)


def pool(program: Program) -> None:
    """A thread pool: work with a copy of the span's context is inside the span, work without is where its thread is."""
    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        # All of its threads begin here, outside of spans, so that they are outside even where threads inherit contexts.
        ready = threading.Barrier(9)
        for _ in range(8):
            executor.submit(ready.wait)
        ready.wait()

        def body(chance: random.Random) -> None:
            def request(own: str) -> None:
                work = []
                for _ in range(3):
                    inside, outside = program.ledger.function(own), program.ledger.function(None)
                    context = contextvars.copy_context()
                    work.append(executor.submit(context.run, inside, int(chance.uniform(1e6, 6e6))))
                    work.append(executor.submit(outside, int(chance.uniform(1e6, 6e6))))
                program.ledger.function(own)(int(chance.uniform(1e6, 6e6)))
                for done in work:
                    done.result()

            while not program.enough():
                program.span("request", None, request)

        program.in_new_threads(4, body)


def outside(program: Program) -> None:
    """Code between spans, also after those that an exception left, in threads that have had spans before."""

    def body(chance: random.Random) -> None:
        def fails(own: str) -> None:
            program.ledger.function(own)(int(chance.uniform(0.5e6, 3e6)))
            raise KeyError("as it must")

        while not program.enough():
            program.ledger.function(None)(int(chance.uniform(1e6, 6e6)))
            try:
                program.span("fails", None, fails, record_exception=False)
            except KeyError:
                program.ledger.function(None)(int(chance.uniform(1e6, 6e6)))

    program.in_new_threads(4, body)


def started(program: Program) -> None:
    """Threads that are started inside a span: outside of it, unless Python starts threads in a copy of the context."""
    inherits = bool(getattr(sys.flags, "thread_inherit_context", False))

    def body(chance: random.Random) -> None:
        def request(own: str) -> None:
            theirs = own if inherits else None
            work = [
                threading.Thread(target=program.ledger.function(theirs), args=(int(chance.uniform(15e6, 40e6)),))
                for _ in range(3)
            ]
            for thread in work:
                thread.start()
            program.ledger.function(own)(int(chance.uniform(15e6, 40e6)))
            for thread in work:
                thread.join()

        while not program.enough():
            program.span("request", None, request)

    program.in_new_threads(2, body)


def greenlets(program: Program) -> None:
    """20 greenlets that give way to each other in the midst of their spans, each with a child."""
    import greenlet

    hub = greenlet.getcurrent()

    def life(chance: random.Random) -> None:
        def burns(own: str | None) -> None:
            program.ledger.function(own, burn_and_give_way)(int(chance.uniform(4e6, 12e6)), 3, hub.switch)

        def parent(own: str) -> None:
            burns(own)
            program.span("child", own, burns)
            burns(own)

        while not program.enough():
            program.span("greenlet", None, parent)
            burns(None)

    alive = [greenlet.greenlet(life) for _ in range(20)]
    for number, one in enumerate(alive):
        one.switch(random.Random(number))
    while alive := [one for one in alive if not one.dead]:
        for one in alive:
            one.switch()


def gevent_patched(program: Program) -> None:
    """gevent with monkey patching: threads are greenlets that give way where they sleep, and there is a pool of real
    threads, whose work is outside of spans."""
    import gevent

    def body(chance: random.Random) -> None:
        def burns(own: str | None) -> None:
            function = program.ledger.function(own, burn_and_give_way)
            function(int(chance.uniform(4e6, 12e6)), 3, lambda: time.sleep(0.0005))

        def parent(own: str) -> None:
            burns(own)
            program.span("child", own, burns)
            real = gevent.get_hub().threadpool.spawn(program.ledger.function(None), int(chance.uniform(2e6, 6e6)))
            burns(own)
            real.get()

        while not program.enough():
            program.span("greenlet", None, parent)

    program.in_new_threads(20, body)


def generators(program: Program) -> None:
    """Generators that hold a span open while they wait: it stays current where they were resumed, and when two of them
    end in the order of their beginning, what is current is what OpenTelemetry makes of that."""
    from opentelemetry import context

    def holds(chance: random.Random):
        with program.tracer.start_as_current_span("held"):
            yield
            burns(chance)
            yield

    def burns(chance: random.Random) -> None:
        program.ledger.function(current_id())(int(chance.uniform(1e6, 4e6)))

    def body(chance: random.Random) -> None:
        while not program.enough():
            first, second = holds(chance), holds(chance)
            for generator in (first, second, first, second):
                program.ledger.step(next, generator)
                burns(chance)
            for ends in (first.close, second.close):
                program.ledger.step(ends)
                burns(chance)
            program.ledger.step(context.attach, context.Context())

    program.in_new_threads(4, body)


def travelling(program: Program) -> None:
    """Spans that one thread starts, another makes current, and a third ends, or nobody."""
    from opentelemetry import context, trace

    with concurrent.futures.ThreadPoolExecutor(4) as works, concurrent.futures.ThreadPoolExecutor(1) as ends:

        def work(span, chance: random.Random, is_ended: bool) -> None:
            own = id_of(span)
            token = program.ledger.step(context.attach, trace.set_span_in_context(span))
            program.ledger.function(own)(int(chance.uniform(1e6, 4e6)))
            if is_ended:
                ends.submit(program.ledger.step, span.end).result()
            program.ledger.function(own)(int(chance.uniform(1e6, 4e6)))
            program.ledger.step(context.detach, token)
            program.ledger.function(None)(int(chance.uniform(1e6, 4e6)))

        def body(chance: random.Random) -> None:
            while not program.enough():
                span = program.tracer.start_span("travels")
                works.submit(work, span, chance, chance.random() < 0.7).result()

        program.in_new_threads(4, body)


def older(program: Program) -> None:
    """Spans and tokens that are older than the processor, and than the profiler: it is started inside the first span."""
    from opentelemetry import context, trace
    from opentelemetry.sdk.trace import TracerProvider

    chance = random.Random(1)

    def burns(own: str | None) -> None:
        program.ledger.function(own)(int(chance.uniform(2e6, 6e6)))

    while True:
        provider = TracerProvider(shutdown_on_exit=False)
        tracer = provider.get_tracer("older")
        old, waiting = tracer.start_span("old"), tracer.start_span("waiting")
        token = context.attach(trace.set_span_in_context(old))
        processor = program.follow(provider)
        burns(id_of(old))
        program.tracer = tracer
        program.span("child", id_of(old), burns)
        with trace.use_span(waiting, end_on_exit=True):
            burns(id_of(waiting))
        program.ledger.step(old.end)
        program.ledger.step(context.detach, token)
        burns(None)
        processor.shutdown()
        if program.enough():
            return


def own_context(program: Program) -> None:
    """Somebody's own runtime context, which knows nothing of contextvars."""
    threads(program)


def subinterpreters(program: Program) -> None:
    """Threads that run code of subinterpreters inside a span. Spans are the main interpreter's, so that code is outside
    of them: its own function says so, or, to 3.11, the one that waits for it, which alone is seen there."""
    try:
        import _interpreters as interpreters
    except ImportError:
        import _xxsubinterpreters as interpreters

    source = """
import time
def {name}(cpu_ns):
    number, end = 1, time.thread_time_ns() + cpu_ns
    while time.thread_time_ns() < end:
        for i in range(40):
            number = (number * 31 + i) % 1_000_003
{name}({cpu_ns})
"""

    def body(chance: random.Random) -> None:
        own_interpreter = interpreters.create()

        def request(own: str) -> None:
            program.ledger.function(own)(int(chance.uniform(2e6, 6e6)))
            script = source.format(name=program.ledger.name(None), cpu_ns=int(chance.uniform(2e6, 6e6)))
            program.ledger.function(own, run)(interpreters, own_interpreter, script)

        while not program.enough():
            program.span("request", None, request)
        interpreters.destroy(own_interpreter)

    program.in_new_threads(2, body)


def run(interpreters, interpreter, script: str) -> None:
    interpreters.run_string(interpreter, script)
