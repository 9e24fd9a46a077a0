"""How long flows are suspended, as the program itself knows it.

At most as long as its clock says around an await, and at least as long as its thread was elsewhere meanwhile: in the loop's own wait, or in
another flow. Both hold whatever holds the thread up between its clock and the suspension: a collection, other processes, another machine
on the same host.
"""

import collections
import contextlib
import selectors
import threading
import time


class Elsewhere(threading.local):
    """When the calling thread was in no flow that is awaited."""

    def __init__(self):
        self.times = []
        self.watchers = ()


ELSEWHERE = Elsewhere()


@contextlib.contextmanager
def elsewhere():
    """What runs here is no part of a flow that is suspended."""
    began = time.perf_counter()
    try:
        yield
    finally:
        ELSEWHERE.times.append((began, time.perf_counter()))


class TimedSelector(selectors.DefaultSelector):
    """What loops of asyncio wait with, if they find it as `selectors.DefaultSelector`."""

    def select(self, timeout=None):
        with elsewhere():
            return super().select(timeout)


def time_hub():
    """The calling thread's hub of gevent is timed from now on."""
    import gevent

    loop, began = gevent.get_hub().loop, []

    def waits():
        began[:] = [time.perf_counter()]

    def has_waited():
        if began:
            ELSEWHERE.times.append((began.pop(), time.perf_counter()))

    # After the callbacks that are due, and before what the wait was for.
    before, after = loop.prepare(ref=False, priority=loop.MINPRI), loop.check(ref=False, priority=loop.MAXPRI)
    before.start(waits)
    after.start(has_waited)
    ELSEWHERE.watchers = before, after


class Truth:
    """Milliseconds of what is awaited, by name: the most and the least, and how long after the program's clock it was suspended at most."""

    def __init__(self):
        self.most = collections.Counter()
        self.least = collections.Counter()
        self.late = collections.Counter()

    @contextlib.contextmanager
    def around(self, name):
        before = time.perf_counter()
        try:
            yield
        finally:
            now = time.perf_counter()
            meanwhile = [(began, ended) for began, ended in ELSEWHERE.times if before <= began and ended <= now]
            self.most[name] += (now - before) * 1e3
            self.least[name] += sum(ended - began for began, ended in meanwhile) * 1e3
            self.late[name] += ((meanwhile[0][0] if meanwhile else now) - before) * 1e3

    async def of(self, name, awaitable):
        with self.around(name):
            return await awaitable

    def assert_near(self, found, name):
        """So many milliseconds were seen."""
        least, most = self.least[name], self.most[name]
        assert least * 0.97 - 1 < found < most * 1.03 + 1, f"{name}: {found} of {least} to {most} ms"
