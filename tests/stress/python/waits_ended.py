"""Waits that end otherwise than they would: by their time, by exceptions, and by what another thread raises in them."""

import ctypes
import queue
import random
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from waits_work import SHORT, Work


def times_out(work: Work, chance: random.Random) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(SHORT)
    held = threading.Lock()
    held.acquire()
    with ours, theirs, work.tracer.start_as_current_span("times_out"):
        for _ in range(5):
            for nothing in (receive_nothing, poll_nothing, lock_nothing, get_nothing, result_of_nothing):
                try:
                    nothing(ours, held)
                except (TimeoutError, socket.timeout, queue.Empty, FutureTimeout):
                    sleep_after_time()


def receive_nothing(ours: socket.socket, _held: threading.Lock) -> None:
    ours.recv(1)


def poll_nothing(ours: socket.socket, _held: threading.Lock) -> None:
    select.select([ours], [], [], SHORT)


def lock_nothing(_ours: socket.socket, held: threading.Lock) -> None:
    held.acquire(timeout=SHORT)


def get_nothing(_ours: socket.socket, _held: threading.Lock) -> None:
    queue.Queue().get(timeout=SHORT)


def result_of_nothing(_ours: socket.socket, _held: threading.Lock) -> None:
    Future().result(timeout=SHORT)


def sleep_after_time() -> None:
    time.sleep(SHORT)


def falls(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("falls"):
        for _ in range(5):
            try:
                fall_asleep(chance.randrange(1, 6))
            except KeyError:
                pass
    try:
        with work.tracer.start_as_current_span("falls_out"):
            sleep_and_raise()
    except KeyError:
        sleep_after_fall()


def fall_asleep(depth: int) -> None:
    try:
        if depth == 0:
            raise KeyError(depth)
        fall_asleep(depth - 1)
    finally:
        time.sleep(SHORT / 4)


def sleep_and_raise() -> None:
    time.sleep(SHORT)
    raise KeyError


def sleep_after_fall() -> None:
    time.sleep(SHORT)


class Raised(Exception):
    """Into a thread, by another one."""


def raises_into(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("raises_into"):
        is_ready = threading.Event()
        thread = threading.Thread(target=raised_into, args=(work, is_ready))
        start_raised(thread)
        wait_until_ready(is_ready)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Raised))
        join_raised(thread)


def start_raised(thread: threading.Thread) -> None:
    thread.start()


def wait_until_ready(is_ready: threading.Event) -> None:
    is_ready.wait()


def join_raised(thread: threading.Thread) -> None:
    thread.join()


def raised_into(work: Work, is_ready: threading.Event) -> None:
    try:
        with work.tracer.start_as_current_span("raised_into", record_exception=False):
            sleep_till_raised_into(is_ready)
    except Raised:
        sleep_after_raise()


def sleep_till_raised_into(is_ready: threading.Event) -> None:
    is_ready.set()
    while True:
        time.sleep(SHORT)


def sleep_after_raise() -> None:
    time.sleep(SHORT)


KINDS: tuple[Callable[[Work, random.Random], None], ...] = (*3 * (times_out, falls), *2 * (raises_into,))
