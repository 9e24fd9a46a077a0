"""What the main thread of the program of waits does: signals interrupt each wait, and their handlers raise out of it or wait themselves."""

import fcntl
import os
import queue
import random
import select
import shutil
import signal
import socket
import subprocess
import threading
import time
import types
from collections.abc import Callable

from waits_work import SHORT, Work

#: Seconds. Nobody waits for so long, and what is left behind ends by itself.
EVER = 120


class Interrupted(Exception):
    """By a signal's handler, out of a wait."""


class Handlers:
    """The program's handlers of signals. They run in the main thread, wherever it is."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.is_in_handler = False
        self.count = 0
        signal.signal(signal.SIGUSR1, self.on_disturbance)
        signal.signal(signal.SIGALRM, self.on_alarm)

    def on_disturbance(self, _number: int, _frame: types.FrameType | None) -> None:
        if self.is_in_handler:
            return
        self.is_in_handler = True
        self.count += 1
        wait_in_handler()
        if self.count % 3 == 0:
            with self.work.tracer.start_as_current_span("handled"):
                wait_in_handled()
        self.is_in_handler = False

    def on_alarm(self, _number: int, _frame: types.FrameType | None) -> None:
        if self.is_in_handler:
            # What this interrupts may be the begin of a span, half done.
            arm()
            return
        raise Interrupted


def wait_in_handler() -> None:
    time.sleep(SHORT / 2)


def wait_in_handled() -> None:
    time.sleep(SHORT / 2)


def arm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 3 * SHORT)


def interrupt(work: Work, chance: random.Random) -> None:
    """Until the end."""
    while not work.is_over():
        for wait in chance.sample(WAITS, len(WAITS)):
            interrupts(work, wait)
        joins_till_raised(work)
        waits_for_child_till_raised(work)


def interrupts(work: Work, wait: Callable[["Things"], None]) -> None:
    things = Things(work.folder)
    with work.tracer.start_as_current_span("interrupts"):
        for _ in range(4):
            # The alarm comes once, and the wait ends by nothing else.
            try:
                wait(things)
            except Interrupted:
                sleep_after_alarm()
    things.close()


def sleep_after_alarm() -> None:
    time.sleep(SHORT)


class Things:
    """To wait for, and nothing comes."""

    def __init__(self, folder: str) -> None:
        self.pipe = os.pipe()
        self.sockets = socket.socketpair()
        self.lock = threading.Lock()
        self.lock.acquire()
        path = os.path.join(folder, "locked for ever")
        self.files = [os.open(path, os.O_WRONLY | os.O_CREAT) for _ in range(2)]
        fcntl.flock(self.files[0], fcntl.LOCK_EX)

    def close(self) -> None:
        for file in (*self.pipe, *self.files):
            os.close(file)
        for one in self.sockets:
            one.close()


def sleep_till_raised(_things: Things) -> None:
    arm()
    while True:
        time.sleep(EVER)


def lock_till_raised(things: Things) -> None:
    arm()
    things.lock.acquire()


def get_till_raised(_things: Things) -> None:
    arm()
    # Not `queue.Queue`, which an exception may leave with a lock that it releases twice.
    queue.SimpleQueue().get()


def select_till_raised(things: Things) -> None:
    arm()
    while True:
        select.select([things.pipe[0]], [], [])


def poll_till_raised(things: Things) -> None:
    poll = select.poll()
    poll.register(things.sockets[0], select.POLLIN)
    arm()
    while True:
        poll.poll()


def read_till_raised(things: Things) -> None:
    arm()
    os.read(things.pipe[0], 1)


def receive_till_raised(things: Things) -> None:
    arm()
    things.sockets[0].recv(1)


def signal_till_raised(_things: Things) -> None:
    arm()
    while True:
        signal.sigtimedwait([], EVER)


def lock_file_till_raised(things: Things) -> None:
    arm()
    fcntl.flock(things.files[1], fcntl.LOCK_EX)


def find_host_till_raised(_things: Things) -> None:
    arm()
    while True:
        socket.getaddrinfo("localhost", 80)


WAITS = (
    sleep_till_raised,
    lock_till_raised,
    get_till_raised,
    select_till_raised,
    poll_till_raised,
    read_till_raised,
    receive_till_raised,
    signal_till_raised,
    lock_file_till_raised,
    find_host_till_raised,
)


def joins_till_raised(work: Work) -> None:
    is_over = threading.Event()
    thread = threading.Thread(target=wait_outside, args=(is_over,))
    thread.start()
    with work.tracer.start_as_current_span("joins_till_raised"):
        try:
            join_till_raised(thread)
        except Interrupted:
            sleep_after_join()
    is_over.set()
    thread.join()


def wait_outside(is_over: threading.Event) -> None:
    is_over.wait()


def join_till_raised(thread: threading.Thread) -> None:
    arm()
    thread.join()


def sleep_after_join() -> None:
    time.sleep(SHORT)


def waits_for_child_till_raised(work: Work) -> None:
    with subprocess.Popen([shutil.which("sleep") or "/bin/sleep", str(EVER)]) as child:
        with work.tracer.start_as_current_span("waits_for_child_till_raised"):
            try:
                child_till_raised(child)
            except Interrupted:
                sleep_after_child()
        child.kill()


def child_till_raised(child: subprocess.Popen[bytes]) -> None:
    arm()
    # Not child.wait(): an exception that a handler raises within it can leave its lock held for ever.
    os.waitpid(child.pid, 0)


def sleep_after_child() -> None:
    time.sleep(SHORT)


def disturb(is_over: threading.Event, threads: list[int], chance: random.Random) -> None:
    """Sends signals to threads, which must be there: to the first one, the main one, as often as to all others.

    An alarm may come just before its wait begins, or to another thread. The main thread sees it when it is sent the next signal, so this
    must go on for as long as that waits.
    """
    while not is_over.is_set():
        time.sleep(2 * SHORT * chance.randrange(1, 20))
        signal.pthread_kill(threads[0] if chance.random() < 0.5 else chance.choice(threads), signal.SIGUSR1)
