"""Servers that end their processes past atexit, and what they call before.

uvicorn raises the signal again that asked it to end, multiprocessing and Celery leave by os._exit. Handlers of signals
are the program's own, so the last samples are sent from what these servers call when they are done:

* uvicorn: `Server.shutdown`, which is wrapped. Whoever runs a server as a part of a program goes on afterwards, so this
  only sends, and only if there was a signal.
* Celery: its signal `worker_process_shutdown`.
* multiprocessing: finalizers of its children.
"""

from __future__ import annotations

import functools
import sys

from . import _messages, _native

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    from typing import Any, Callable

#: Seconds that sending may take, as at exit.
TIMEOUT = 5.0

_registered = False


def watch(stop: Callable[[], bool]) -> None:
    """Looks for those servers among the modules that are loaded. ``stop`` ends the profiler. Any number of times. Never raises.

    Another thread may be loading one of them, and what is not there yet is looked for the next time.
    """
    for watch_server in _watch_uvicorn, _watch_celery, _watch_multiprocessing:
        try:
            watch_server(stop)
        except Exception as error:
            _messages.keep_once("what a server's process does last may be missing in profiles: %s", error)


def _watch_uvicorn(_stop: Callable[[], bool]) -> None:
    server = _loaded("uvicorn.server", "Server")
    if server is not None:
        _wrap(server)


def _watch_celery(stop: Callable[[], bool]) -> None:
    signal = _loaded("celery.signals", "worker_process_shutdown")
    if signal is not None:
        signal.connect(lambda **_: stop(), weak=False, dispatch_uid="pyroscope")


def _watch_multiprocessing(stop: Callable[[], bool]) -> None:
    global _registered
    after_fork = _loaded("multiprocessing.util", "register_after_fork")
    finalize = _loaded("multiprocessing.util", "Finalize")
    parent = _loaded("multiprocessing.process", "parent_process")
    if not (_registered or after_fork is None or finalize is None or parent is None):
        # A child forgets the finalizers that are there when it begins, and calls then what is registered for after the
        # fork: so in a forked child, and in a spawned one whose main module has called configure().
        after_fork(stop, lambda stop: finalize(None, stop, exitpriority=0))
        # This is a child, and its own code calls configure() now.
        if parent() is not None:
            finalize(None, stop, exitpriority=0)
        _registered = True


def _loaded(module: str, name: str) -> Any:
    """What a module has under this name, if it is loaded and has come so far."""
    return getattr(sys.modules.get(module), name, None)


def flush() -> bool:
    """Sends what there is."""
    return bool(_native.flush(TIMEOUT))


def _wrap(server: Any) -> None:
    original = server.__dict__.get("shutdown")
    if original is None or hasattr(original, "_pyroscope"):
        return

    @functools.wraps(original)
    async def shutdown(self: Any, *args: Any, **kwargs: Any) -> None:
        await original(self, *args, **kwargs)
        try:
            if getattr(self, "_captured_signals", ()) and _native.is_running():
                import asyncio

                await asyncio.get_running_loop().run_in_executor(None, flush)
        except Exception as error:  # the server's own end goes on
            _messages.keep_once("what a server's process does last may be missing in profiles: %s", error)

    shutdown._pyroscope = True  # type: ignore[attr-defined]
    server.shutdown = shutdown
