"""What must happen when threads start, when the process forks and when it ends.

This is Python on purpose. Until 3.13 the interpreter ends daemon threads at exit by unwinding their C stacks, which
aborts the process where a frame of Rust is among them. So what runs code of the program is called from Python. Where a
native function cannot do without (an attribute may be a property, and in 3.10 and 3.11 any new object may start the garbage
collector) a thread that is to be unwound stays in the call for ever: see ``calls.rs``. A start runs code of Python's in many
ways, so the exit waits until none is under way. At exit the native functions that programs call all the time do nothing any
more, before the interpreter ends.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading

from . import _messages, _native, _server_shutdown, _thread_labels

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional

_original: Optional[Callable[[threading.Thread], None]] = None
_registered = False
#: What gives OpenTelemetry its runtime context back.
_restore: Optional[Callable[[], None]] = None
#: The interpreter is about to end.
over = False
#: Held while a profiler is started. One thread may begin again, as a handler of a signal does.
starting = threading.RLock()
#: Seconds that the exit waits for a start that is under way, which may stop a profiler before.
_EXIT_PATIENCE = 5.0
#: Starts that are under way, in the order in which they began. A dict for its order alone.
_under_way: Dict[Start, None] = {}
#: Those that were under way in other threads when this process was forked: nobody is at them here.
_lost: List[Start] = []
_NOT_IN_CHILD = "no profiles are taken in this forked process: %s"
#: This process was forked to become another program, and has done nothing yet that is worth a profiler.
_waits = False
#: The thread that forked it.
_forker = 0
#: The functions that fork for that, by module.
_FORK_AND_EXECUTE = {
    "subprocess": ("_execute_child",),
    "gevent.subprocess": ("_execute_child",),
    "os": ("_spawnvef",),
    "pty": ("fork", "spawn"),
}


class Start:
    """A start that is under way, for as long as the block runs. A forked child in which nobody is at it does it ``again``."""

    def __init__(self, again: Callable[[], object]) -> None:
        self.thread = threading.get_ident()
        self.again = again
        #: No profiler ran before, so one that runs meanwhile is what this start has come to.
        self.is_first = False

    def __enter__(self) -> Start:
        _under_way[self] = None
        return self

    def __exit__(self, *_raised: object) -> None:
        _under_way.pop(self, None)


def started() -> None:
    """The profiler was started."""
    _hook_threads()
    _native.thread_started()
    _server_shutdown.watch(stop)


def watch_exit(restore: Optional[Callable[[], None]] = None) -> None:
    """Sees to the end of the process. ``restore`` is called at its end. Any number of times."""
    global _registered, _restore
    _restore = restore or _restore
    if not _registered:
        # Before finalisation, in which the frames of daemon threads are freed under them.
        atexit.register(_at_exit)
        _registered = True


def stop() -> bool:
    """Stops the profiler. False: none ran, or not all was delivered."""
    _lost.clear()
    _unhook_threads()
    _thread_labels.report(False, False)
    stopped = _native.stop()
    _messages.deliver()
    return stopped


def _at_exit() -> None:
    """The interpreter is about to end: what runs after this, callbacks of atexit and daemon threads, starts nothing."""
    global over
    over = True
    _native.forbid_start()
    try:
        if starting.acquire(timeout=_EXIT_PATIENCE):
            starting.release()
        stop()
    finally:
        # Also where somebody interrupts the upload: once more, for what was not done then.
        try:
            _native.stop()
        finally:
            if _restore is not None:
                _restore()
            _native.retire()


def _hook_threads() -> None:
    """Makes threads of ``threading`` tell that they begin, so that one of a millisecond is sampled too.

    Threads by other means are found by a sweep, ten times a second.
    """
    global _original
    if _original is not None:
        return
    owner = _thread_labels.owner_of("_set_native_id")
    original = owner._set_native_id

    @functools.wraps(original)
    def _set_native_id(thread: threading.Thread) -> None:
        original(thread)
        # Who starts the thread waits until this is over, and for ever if this raises.
        try:
            # OpenTelemetry's SDK starts threads on a fork, before there is anything else in the child.
            if _waits and not _is_in_fork(sys._current_frames().get(_forker)):
                _restart()
            _thread_labels.describe(thread)
            _native.thread_started()
        except Exception as error:
            _messages.keep_once("a thread could not be announced, so it is sampled a moment later: %s", error)

    owner._set_native_id = _set_native_id
    # Last, as a child that is forked between the two hooks again.
    _original = original


def _unhook_threads() -> None:
    """Takes the hook away, unless somebody else has wrapped it meanwhile: then it stays and does nothing."""
    global _original
    owner = _thread_labels.owner_of("_set_native_id")
    if _original is not None and getattr(owner.__dict__["_set_native_id"], "__wrapped__", None) is _original:
        owner._set_native_id = _original
        _original = None


def _after_fork() -> None:
    """In a forked child: it gets a profiler of its own at once, unless it will be another program in a moment.

    Threads of ours would be in the way of what such a child may do with itself before, such as ``unshare``. Where it does not
    execute anything, the first span, ``configure`` or the start of a thread makes up for it.
    """
    global starting, _waits, _forker
    # Who holds it may not exist here, nor who held messages back.
    starting = threading.RLock()
    _messages.hold(False)
    _forker = threading.get_ident()
    for start in list(_under_way):
        if start.thread != _forker:
            del _under_way[start]
            _lost.append(start)
    _waits = _is_in_fork(sys._getframe())
    if not _waits:
        _restart()
    elif _lost:
        # By another thread's first start it may not have come to that.
        _hook_threads()


# Not at the first start, during which another thread may fork. And before any module of ours that looks at what was lost.
os.register_at_fork(after_in_child=_after_fork)


def is_behind() -> bool:
    """In a forked child: whether a start that another thread was at is still to be done again."""
    return bool(_lost)


def make_up() -> None:
    """Before a start and before a first span, as a forked child may have waited for them with its profiler. Never raises."""
    if _waits:
        _restart()


def _is_in_fork(frame: Any) -> bool:
    """Whether a function that forks to execute another program is among the callers."""
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if isinstance(module, str) and frame.f_code.co_name in _FORK_AND_EXECUTE.get(module, ()):
            return True
        frame = frame.f_back
    return False


def _restart() -> None:
    """In a forked child: a profiler of its own, where the parent had one or another thread was about to start one. Never raises."""
    global _waits
    _waits = False
    # Logging's own locks may not be renewed yet, and who waits for the start of a thread may hold one.
    _messages.hold(True)
    try:
        if any(start.is_first for start in _lost):
            # As it was before that start, which is then done as a whole.
            _native.stop()
        if _native.restart_in_child():
            _server_shutdown.watch(stop)
        _do_again()
        if _native.is_running():
            _thread_labels.describe_this()
    except Exception as error:
        _messages.keep_once(_NOT_IN_CHILD, error)
    finally:
        _lost.clear()
        _messages.hold(False)


def _do_again() -> None:
    done = set()
    while _lost:
        start = _lost.pop(0)
        # The others of a thread are parts of its first one.
        if start.thread not in done:
            done.add(start.thread)
            try:
                start.again()
            except Exception as error:  # as where the parent called it, which says so too
                if not _native.is_running():
                    _messages.keep_once(_NOT_IN_CHILD, error)
