"""A program that does to its own process what its argument names; see ../hazards.json."""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

from opentelemetry.sdk.trace import TracerProvider

import pyroscope
from pyroscope.otel import PyroscopeSpanProcessor

messages: list[str] = []
provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(PyroscopeSpanProcessor())
tracer = provider.get_tracer("hazards")
end = threading.Event()


class Keep(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        messages.append(record.getMessage())


def burn(seconds: float) -> None:
    """CPU time of this thread, in a span."""
    with tracer.start_as_current_span("burn"):
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            sum(range(100))


def load(began: threading.Event) -> None:
    burn(0.001)
    began.set()
    while not end.is_set():
        burn(0.001)


def report() -> None:
    """Ends the threads and the profiler, and says what it counted."""
    end.set()
    pyroscope.shutdown()
    print(json.dumps({"stats": pyroscope.stats(), "messages": messages}), flush=True)


def burn_until_told(words: str) -> None:
    until = time.monotonic() + 20
    while not any(words in message for message in messages) and time.monotonic() < until:
        burn(0.02)
        pyroscope.stats()  # asks for messages


def lower(limit: int, soft: int) -> Callable[[], None]:
    """Sets a limit of this process; returns what restores it."""
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (soft, before[1]))
    return lambda: resource.setrlimit(limit, before)


def become_another() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    burn(0.05)
    program = "import signal, sys; signal.pthread_sigmask(signal.SIG_SETMASK, []); sys.exit(7)"
    os.execv(sys.executable, [sys.executable, "-c", program])


def exec() -> None:
    become_another()


def exec_in_a_thread() -> None:
    thread = threading.Thread(target=become_another)
    thread.start()
    thread.join()


def exit() -> None:
    burn(0.03)
    sys.exit(4)


def leave_at_once() -> None:
    burn(0.03)
    os._exit(5)


def exit_from_a_signal_handler() -> None:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(6))
    burn(0.03)
    signal.raise_signal(signal.SIGUSR1)


def abort() -> None:
    burn(0.03)
    os.abort()


def killed_at_once() -> None:
    burn(0.03)
    os.kill(os.getpid(), signal.SIGKILL)


def killed_by_a_signal() -> None:
    burn(0.03)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()


def spawn_and_system() -> None:
    for _ in range(10):
        assert subprocess.run(["true"]).returncode == 0
        assert os.waitstatus_to_exitcode(os.system("exit 3")) == 3
    report()


def has_sample() -> bool:
    """Burns until this process has one."""
    until = time.monotonic() + 20
    while pyroscope.stats()["taken"]["samples"] == 0 and time.monotonic() < until:
        burn(0.005)
    return pyroscope.stats()["taken"]["samples"] > 0


def child_has_sample(generations: int) -> bool:
    child = os.fork()
    if not child:
        seen = has_sample() and (generations == 1 or child_has_sample(generations - 1))
        os._exit(0 if seen else 1)
    return os.waitpid(child, 0)[1] == 0


def fork_in_a_thread() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of each fork beside threads
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.extend(child_has_sample(2) for _ in range(3)))
    thread.start()
    thread.join()
    assert seen == [True] * 3
    report()


def daemonize() -> None:
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of each fork beside threads
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    burn(0.03)
    report()
    os._exit(0)


def late_signals_after_a_stop() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    burn(0.05)
    pyroscope.shutdown()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
    burn(0.03)
    report()


def start_and_stop_again_and_again() -> None:
    end.set()

    def left() -> list[int]:
        timers = open("/proc/self/timers").read().count("ID:")
        return [len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), timers]

    for number in range(50):
        pyroscope.shutdown()
        if number == 10:
            for thread in threads:
                thread.join()
            before = left()
        assert pyroscope.configure()
    pyroscope.shutdown()
    after = left()
    # A thread that was joined is on the list until it is gone.
    until = time.monotonic() + 20
    while any(now > then for now, then in zip(after, before)):
        assert time.monotonic() < until, (before, after)
        time.sleep(0.01)
        after = left()
    report()


def no_files_are_left() -> None:
    restore = lower(resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd")) - 1)
    burn_until_told("/proc/self/task")
    restore()
    burn(0.03)
    report()


def no_pending_signals_are_left() -> None:
    burn_until_told("ulimit -i")
    restore_signals()
    burn(0.03)
    report()


def a_file_may_not_grow() -> None:
    restore = lower(resource.RLIMIT_FSIZE, 64)
    burn(0.03)
    pyroscope.flush(5)
    restore()
    burn(0.03)
    report()


hazard = globals()[sys.argv[1]]
logging.getLogger("pyroscope").addHandler(Keep())
if hazard is no_pending_signals_are_left:
    restore_signals = lower(resource.RLIMIT_SIGPENDING, 0)
assert pyroscope.configure()
threads = []
for _ in range(2):
    began = threading.Event()
    threads.append(threading.Thread(target=load, args=[began], daemon=True))
    threads[-1].start()
    began.wait()
hazard()
