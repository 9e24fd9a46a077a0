"""What threads of the program of waits do: each kind waits in functions of its own, in a span that is named after it.

`waits_calls.py` has a row for each function here: who calls it, in which spans, and for what it waits.
"""

# First: it registers what a fork does with its lock when it is loaded, which it is when first used. OpenTelemetry's SDK takes that lock in
# the forked child, and would wait for ever where its own TracerProvider was registered before.
import concurrent.futures.thread  # noqa: F401  # isort: skip
import fcntl
import os
import pwd
import random
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyroscope
from opentelemetry.trace import Tracer

SHORT = 0.0001
SHARED = threading.Lock()
MONITOR = threading.Condition()
TRUE = shutil.which("true") or "/bin/true"


@dataclass
class Work:
    """What all threads have in common."""

    tracer: Tracer
    folder: str
    end: float
    modules: list[str]
    """Copies of one library, each a module of its own; none without a C compiler."""

    def is_over(self) -> bool:
        return time.monotonic() > self.end


def sleeps(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("sleeps"):
        for _ in range(20):
            sleep_shortly(3 * SHORT * chance.random())
            sleep_by_select()
        sleep_by_poll()
        sleep_by_signal()


def sleep_shortly(seconds: float) -> None:
    time.sleep(seconds)


def sleep_by_select() -> None:
    select.select([], [], [], SHORT)


def sleep_by_poll() -> None:
    select.poll().poll(1)


def sleep_by_signal() -> None:
    signal.sigtimedwait([], SHORT)


def contends(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("contends"):
        for _ in range(20):
            take_shared()
            sleep_with_shared(SHORT * chance.random())
            give_shared()


def take_shared() -> None:
    SHARED.acquire()


def sleep_with_shared(seconds: float) -> None:
    time.sleep(seconds)


def give_shared() -> None:
    SHARED.release()


def monitors(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("monitors"):
        for _ in range(10):
            wait_in_monitor(5 * SHORT * chance.random())
            wake_in_monitor()


def wait_in_monitor(seconds: float) -> None:
    with MONITOR:
        MONITOR.wait(seconds)


def wake_in_monitor() -> None:
    with MONITOR:
        MONITOR.notify_all()


def files(work: Work, chance: random.Random) -> None:
    path = os.path.join(work.folder, f"file {threading.get_ident()}")
    with work.tracer.start_as_current_span("files"):
        for _ in range(5):
            write_file(path)
            read_file(path)
        sync_file(path)
        lock_file(os.path.join(work.folder, "locked"))
        name_files(path + " names")
        name_files_in(work.folder, f"at {threading.get_ident()}")


def write_file(path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(bytes(20_000))


def read_file(path: str) -> None:
    with open(path, "rb", buffering=0) as file:
        file.read()


def sync_file(path: str) -> None:
    file = os.open(path, os.O_WRONLY)
    os.fsync(file)
    os.close(file)


def lock_file(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    sleep_with_file()
    os.close(file)


def name_files(folder: str) -> None:
    os.mkdir(folder)
    first, second, link = (os.path.join(folder, name) for name in ("first", "second", "link"))
    file = os.open(first, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(file, 0, 100_000)
    os.ftruncate(file, 50_000)
    os.close(file)
    os.rename(first, second)
    os.link(second, first)
    os.symlink(second, link)
    os.truncate(second, 20_000)
    assert sorted(os.listdir(folder)) == ["first", "link", "second"]
    assert os.path.samefile(first, link) and os.lstat(first).st_size == 20_000 and os.access(link, os.R_OK)
    for path in (first, second, link):
        os.unlink(path)
    os.rmdir(folder)


def name_files_in(folder: str, name: str) -> None:
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=place))
    os.rename(name, name + "!", src_dir_fd=place, dst_dir_fd=place)
    assert os.stat(name + "!", dir_fd=place).st_size == 0
    os.unlink(name + "!", dir_fd=place)
    os.close(place)


def sleep_with_file() -> None:
    time.sleep(SHORT)


def joins(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("joins"):
        for _ in range(5):
            join_short(start_short(work))


def start_short(work: Work) -> threading.Thread:
    thread = threading.Thread(target=short_thread, args=(work,))
    thread.start()
    return thread


def join_short(thread: threading.Thread) -> None:
    thread.join()


def short_thread(work: Work) -> None:
    with work.tracer.start_as_current_span("short_thread"):
        for _ in range(3):
            sleep_in_short()


def sleep_in_short() -> None:
    time.sleep(SHORT)


def spawns(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("spawns"):
        run_child()
        wait_for_child(spawn_child())
        run_system()


def run_child() -> None:
    subprocess.run([TRUE], capture_output=True, check=True)


def spawn_child() -> int:
    return os.posix_spawn(TRUE, [TRUE], {})


def wait_for_child(child: int) -> None:
    os.waitpid(child, 0)


def run_system() -> None:
    os.system("true")


def forks(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("forks"):
        for _ in range(2):
            wait_for_fork(fork_child(chance.random() < 0.05))


def fork_child(waits: bool) -> int:
    child = os.fork()
    if child == 0:
        end_child(waits)
    return child


def end_child(waits: bool) -> None:
    """Most end at once, with all that a fork inherits."""
    code = 1
    try:
        if waits:
            for _ in range(20):
                sleep_in_child()
            flush_child()
        code = 0
    finally:
        os._exit(code)


def sleep_in_child() -> None:
    time.sleep(SHORT)


def flush_child() -> None:
    if not pyroscope.flush(60):
        raise RuntimeError("a child's profiles were not written")


def wait_for_fork(child: int) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != 0:
        raise RuntimeError(f"a forked child ended with {code}")


def names(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("names"):
        for _ in range(3):
            find_host()
            find_user()


def find_host() -> None:
    socket.getaddrinfo("localhost", 80)


def find_user() -> None:
    pwd.getpwnam("root")


def nests(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("outer"):
        sleep_in_outer()
        for _ in range(3):
            with work.tracer.start_as_current_span("inner"):
                sleep_in_inner()
                with work.tracer.start_as_current_span("innermost"):
                    sleep_in_innermost()
                sleep_in_inner()
            sleep_in_outer()


def sleep_in_outer() -> None:
    time.sleep(SHORT)


def sleep_in_inner() -> None:
    time.sleep(SHORT)


def sleep_in_innermost() -> None:
    time.sleep(SHORT)


def generates(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("generates"):
        for _ in range(3):
            for number in sleeping_numbers():
                if number == 3:
                    break


def sleeping_numbers() -> Iterator[int]:
    """Closed where it is suspended, and waits then too."""
    try:
        for number in range(10):
            time.sleep(SHORT)
            yield number
    finally:
        time.sleep(SHORT)


def outside(work: Work, chance: random.Random) -> None:
    for _ in range(10):
        sleep_outside()


def sleep_outside() -> None:
    time.sleep(SHORT)


KINDS: tuple[Callable[[Work, random.Random], None], ...] = (
    *3 * (sleeps, contends, monitors, files, nests, generates, outside),
    *2 * (joins, names),
    spawns,
    forks,
)
