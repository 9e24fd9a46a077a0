"""Pairs of threads that hand things to each other, as fast as they can: locks, turns, messages, bytes.

One of a pair says what comes next; each has its own span meanwhile.
"""

import os
import queue
import random
import select
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from waits_work import Work

ROUNDS = 60
# More than a pipe holds.
MUCH = 100_000


def held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass
class Pair:
    kinds: queue.Queue[int | None] = field(default_factory=queue.Queue)
    locks: tuple[threading.Lock, threading.Lock] = field(default_factory=lambda: (held_lock(), held_lock()))
    monitor: threading.Condition = field(default_factory=threading.Condition)
    turn: int = 0
    questions: queue.Queue[int] = field(default_factory=queue.Queue)
    answers: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    there: tuple[int, int] = field(default_factory=os.pipe)
    back: tuple[int, int] = field(default_factory=os.pipe)
    sockets: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)


def lead(work: Work, pair: Pair, chance: random.Random) -> None:
    while not work.is_over():
        for kind in chance.sample(range(len(KINDS)), len(KINDS)):
            pair.kinds.put(kind)
            KINDS[kind][0](work, pair)
    pair.kinds.put(None)


def follow(work: Work, pair: Pair) -> None:
    while (kind := pair.kinds.get()) is not None:
        KINDS[kind][1](work, pair)


def hands_locks(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("hands_locks"):
        for _ in range(ROUNDS):
            give_lock(pair.locks[0])
            take_lock(pair.locks[1])


def takes_locks(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("takes_locks"):
        for _ in range(ROUNDS):
            take_lock(pair.locks[0])
            give_lock(pair.locks[1])


def give_lock(lock: threading.Lock) -> None:
    lock.release()


def take_lock(lock: threading.Lock) -> None:
    lock.acquire()


def leads_turns(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("leads_turns"):
        for _ in range(ROUNDS):
            take_turn(pair, 0)


def follows_turns(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("follows_turns"):
        for _ in range(ROUNDS):
            take_turn(pair, 1)


def take_turn(pair: Pair, turn: int) -> None:
    with pair.monitor:
        while pair.turn != turn:
            pair.monitor.wait()
        pair.turn = 1 - turn
        pair.monitor.notify()


def asks(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("asks"):
        for number in range(ROUNDS):
            put_question(pair, number)
            get_answer(pair)


def answers(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("answers"):
        for _ in range(ROUNDS):
            put_answer(pair, get_question(pair))


def put_question(pair: Pair, number: int) -> None:
    pair.questions.put(number)


def get_question(pair: Pair) -> int:
    return pair.questions.get()


def put_answer(pair: Pair, number: int) -> None:
    pair.answers.put(number)


def get_answer(pair: Pair) -> int:
    return pair.answers.get()


def pipes(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("pipes"):
        for number in range(ROUNDS):
            push(pair.there[1], MUCH if number % 20 == 0 else 1)
            pull(pair.back[0], 1)


def piped(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("piped"):
        for number in range(ROUNDS):
            pull(pair.there[0], MUCH if number % 20 == 0 else 1)
            push(pair.back[1], 1)


def push(pipe: int, size: int) -> None:
    while size:
        size -= os.write(pipe, bytes(size))


def pull(pipe: int, size: int) -> None:
    while size:
        size -= len(os.read(pipe, size))


def sends(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("sends"):
        for number in range(ROUNDS):
            send(pair.sockets[0])
            RECEIVING[number % len(RECEIVING)](pair.sockets[0])


def receives(work: Work, pair: Pair) -> None:
    with work.tracer.start_as_current_span("receives"):
        for number in range(ROUNDS):
            RECEIVING[number % len(RECEIVING)](pair.sockets[1])
            send(pair.sockets[1])


def send(ours: socket.socket) -> None:
    ours.sendall(b"x")


def receive(ours: socket.socket) -> None:
    ours.recv(1)


def receive_by_poll(ours: socket.socket) -> None:
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    poll.poll()
    ours.recv(1)


def receive_by_select(ours: socket.socket) -> None:
    select.select([ours], [], [])
    ours.recv(1)


def receive_by_epoll(ours: socket.socket) -> None:
    with select.epoll() as poll:
        poll.register(ours, select.EPOLLIN)
        poll.poll()
    ours.recv(1)


RECEIVING = (receive, receive_by_poll, receive_by_select, receive_by_epoll)
KINDS: tuple[tuple[Callable[[Work, Pair], None], Callable[[Work, Pair], None]], ...] = (
    (hands_locks, takes_locks),
    (leads_turns, follows_turns),
    (asks, answers),
    (pipes, piped),
    (sends, receives),
)
