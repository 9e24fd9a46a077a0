"""A program that waits in each known way, a span a way, and notes how long: to be compared with what its profiles show.

    python waits.py --times 10 --server file:///folder --records records.json
"""

import argparse
import fcntl
import json
import os
import queue
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyroscope
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor

#: What each wait takes at least, in seconds, and those of which the machine has a part: that of a child until it runs, of the others
#: that want the GIL all along.
LEAST, LONG = 0.03, 0.1

folder = tempfile.TemporaryDirectory()
#: When the last wait was about to begin, and when what it waits for came.
ready = came = 0.0


def later(action: Callable[[], object]) -> None:
    """Does something in another thread, once the calling one has waited."""
    global ready

    def act() -> None:
        global came
        came = time.perf_counter()
        action()

    threading.Timer(LEAST, act).start()
    ready = time.perf_counter()


def queued_ns() -> int:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def with_pair(wait: Callable[[socket.socket], object]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        later(lambda: theirs.send(b"x"))
        wait(ours)


def sleep() -> None:
    time.sleep(LEAST)


def receive() -> None:
    with_pair(lambda ours: ours.recv(1))


def wait_by_select() -> None:
    with_pair(lambda ours: select.select([ours], [], []))


def wait_by_poll() -> None:
    def wait(ours: socket.socket) -> None:
        poll = select.poll()
        poll.register(ours, select.POLLIN)
        poll.poll()

    with_pair(wait)


def wait_by_epoll() -> None:
    def wait(ours: socket.socket) -> None:
        with select.epoll() as poll:
            poll.register(ours, select.EPOLLIN)
            poll.poll()

    with_pair(wait)


def accept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        later(lambda: socket.create_connection(address).close())
        server.accept()[0].close()


def read_pipe() -> None:
    reader, writer = os.pipe()
    later(lambda: os.write(writer, b"x"))
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)


def write_full_pipe() -> None:
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    os.write(writer, bytes(size))
    later(lambda: os.read(reader, size))
    os.write(writer, b"x")
    os.close(reader)
    os.close(writer)


def lock_file() -> None:
    path = os.path.join(folder.name, "lock")
    with open(path, "w") as theirs, open(path, "w") as ours:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        later(lambda: fcntl.flock(theirs, fcntl.LOCK_UN))
        fcntl.flock(ours, fcntl.LOCK_EX)


def with_lease(wait: Callable[[str], object]) -> None:
    """Who wants a file that somebody has a lease on waits until it is given up."""
    # A file of its own each time: who gives up a lease has the file open until its call returns, be that after ours.
    holder, path = tempfile.mkstemp(dir=folder.name)
    fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    later(lambda: fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK))
    wait(path)
    os.close(holder)


def has_leases() -> bool:
    """Whether the file system of temporary files has any."""
    with tempfile.TemporaryFile(dir=folder.name) as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            return False
    return True


def truncate_leased_file() -> None:
    with_lease(lambda path: os.truncate(path, 0))


def open_leased_file_in_its_folder() -> None:
    place = os.open(folder.name, os.O_RDONLY | os.O_DIRECTORY)
    with_lease(lambda path: os.close(os.open(os.path.basename(path), os.O_RDONLY, dir_fd=place)))
    os.close(place)


def lock() -> None:
    held = threading.Lock()
    held.acquire()
    later(held.release)
    held.acquire()


def wait_for_event() -> None:
    event = threading.Event()
    later(event.set)
    event.wait()


def get_from_queue() -> None:
    items: queue.Queue[int] = queue.Queue()
    later(lambda: items.put(1))
    items.get()


def join_thread() -> None:
    global ready

    def sleeps() -> None:
        global came
        time.sleep(LEAST)
        came = time.perf_counter()

    thread = threading.Thread(target=sleeps)
    thread.start()
    ready = time.perf_counter()
    thread.join()


def wait_for_signal() -> None:
    signal.sigtimedwait([], LEAST)


def wait_for_child() -> None:
    global ready, came
    came = time.perf_counter() + LONG
    child = subprocess.Popen(["sleep", str(LONG)])
    ready = time.perf_counter()
    child.wait()


def run_system() -> None:
    os.system(f"sleep {LEAST}")


def wait_for_database() -> None:
    """SQLite sleeps by itself, with the GIL released, as long as another connection writes."""
    path = os.path.join(folder.name, "database")
    theirs = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    ours = sqlite3.connect(path, timeout=LEAST)
    theirs.execute("BEGIN EXCLUSIVE")
    try:
        ours.execute("CREATE TABLE t (a)")
    except sqlite3.OperationalError:
        pass
    theirs.execute("ROLLBACK")
    theirs.close()
    ours.close()


def wait_for_gil() -> None:
    """Four others burn: of each five switch intervals this thread has one."""
    end = time.perf_counter() + LONG
    while time.perf_counter() < end:
        sum(range(200))


#: By way: the function, and the state that it is in.
WAYS: dict[Callable[[], None], str] = {
    sleep: "sleep",
    receive: "io",
    wait_by_select: "io",
    wait_by_poll: "io",
    wait_by_epoll: "io",
    accept: "io",
    read_pipe: "io",
    write_full_pipe: "io",
    truncate_leased_file: "io",
    open_leased_file_in_its_folder: "io",
    lock_file: "lock",
    lock: "lock",
    wait_for_event: "lock",
    get_from_queue: "lock",
    join_thread: "lock",
    wait_for_signal: "sleep",
    wait_for_child: "child",
    run_system: "child",
    wait_for_database: "sleep",
    wait_for_gil: "gil",
}


def main() -> None:
    global ready, came
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    # Tells the holder of a lease that somebody waits, which ends a program that does not want to know.
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    pyroscope.configure(application_name="waits", server_address=options.server, wall_time=True)
    provider = TracerProvider(resource=Resource({"service.name": "waits"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
    tracer = provider.get_tracer("waits")

    #: By way: how long it took, how much of that was CPU time, and how long it waited at least.
    taken: dict[str, tuple[int, int, int]] = {}
    #: How long its thread did not run. From being woken until it runs it still waits.
    off_cpu: dict[str, int] = {}

    def burn(is_over: threading.Event) -> None:
        while not is_over.is_set():
            sum(range(200))

    left_out = [] if has_leases() else [truncate_leased_file, open_leased_file_in_its_folder]
    for way in WAYS:
        if way in left_out:
            continue
        is_over = threading.Event()
        others = [threading.Thread(target=burn, args=(is_over,)) for _ in range(4 if way is wait_for_gil else 0)]
        for thread in others:
            thread.start()
        wall, cpu, least, away = 0, 0, 0, 0
        for _ in range(options.times):
            ready, came, queued = 0.0, LEAST, queued_ns()
            with tracer.start_as_current_span(way.__name__):
                began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
                way()
                took, took_cpu = time.perf_counter_ns() - began, time.thread_time_ns() - began_cpu
            blocked = max(took - took_cpu - (queued_ns() - queued), 0)
            least += blocked if way is wait_for_gil else int(max(came - ready, 0) * 1e9)
            wall += took
            cpu += took_cpu
            away += took - took_cpu
        is_over.set()
        for thread in others:
            thread.join()
        taken[way.__name__], off_cpu[way.__name__] = (wall, cpu, least), away
    pyroscope.shutdown()
    stats = pyroscope.stats()
    states = {way.__name__: state for way, state in WAYS.items() if way not in left_out}
    options.records.write_text(json.dumps({"taken": taken, "off_cpu": off_cpu, "states": states, "stats": stats}))


if __name__ == "__main__":
    sys.exit(main())
