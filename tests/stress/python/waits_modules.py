"""Modules that are opened and closed while threads wait in them, and while others look for modules."""

import ctypes
import random
import shutil
import signal
import time

from waits_work import SHORT, Work

COPIES = 4
CLOSE = ctypes.CDLL(None).dlclose
CLOSE.argtypes = (ctypes.c_void_p,)


def copy_modules(library: str, folder: str) -> list[str]:
    """Each is a module of its own, where two threads may meet."""
    return [shutil.copy(library, f"{folder}/module{number}.so") for number in range(COPIES)]


def modules(work: Work, chance: random.Random) -> None:
    with work.tracer.start_as_current_span("modules"):
        for _ in range(3):
            number = chance.randrange(COPIES)
            module = open_module(work.modules[number])
            wait_in_module(module)
            call_back_from_module(module)
            # A signal of its own, as each has its own handler.
            jump_in_module(module, signal.SIGRTMAX - number)
            close_module(module)


def open_module(path: str) -> ctypes.CDLL:
    return ctypes.CDLL(path)


def wait_in_module(module: ctypes.CDLL) -> None:
    check(module.module_sleeps())
    check(module.module_polls())
    check(module.module_waits())
    check(module.module_cancels())


def call_back_from_module(module: ctypes.CDLL) -> None:
    check(module.module_calls_back(CALLED_BACK))


def called_back() -> int:
    sleep_in_callback()
    return 0


def sleep_in_callback() -> None:
    time.sleep(SHORT)


CALLED_BACK = ctypes.CFUNCTYPE(ctypes.c_int)(called_back)


def jump_in_module(module: ctypes.CDLL, number: int) -> None:
    check(module.module_jumps(number))


def close_module(module: ctypes.CDLL) -> None:
    if CLOSE(module._handle) != 0:
        raise OSError("dlclose")


def check(line: int) -> None:
    if line != 0:
        raise RuntimeError(f"waits_modules.c:{line}")
