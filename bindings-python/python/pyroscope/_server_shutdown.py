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

from . import _native

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    from typing import Any, Callable

#: Seconds that sending may take, as at exit.
TIMEOUT = 5.0

_registered = False


def watch(stop: Callable[[], bool]) -> None:
    """Looks for those servers among the modules that are loaded. ``stop`` ends the profiler. Any number of times."""
    global _registered
    uvicorn: Any = sys.modules.get("uvicorn.server")
    if uvicorn is not None:
        _wrap(uvicorn.Server)
    celery: Any = sys.modules.get("celery.signals")
    if celery is not None:
        celery.worker_process_shutdown.connect(lambda **_: stop(), weak=False, dispatch_uid="pyroscope")
    util: Any = sys.modules.get("multiprocessing.util")
    if util is not None and not _registered:
        _registered = True
        # A child forgets the finalizers that are there when it begins, and calls then what is registered for after the
        # fork: so in a forked child, and in a spawned one whose main module has called configure().
        util.register_after_fork(stop, lambda stop: util.Finalize(None, stop, exitpriority=0))
        # This is a child, and its own code calls configure() now.
        if sys.modules["multiprocessing.process"].parent_process() is not None:
            util.Finalize(None, stop, exitpriority=0)


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
        if getattr(self, "_captured_signals", ()) and _native.is_running():
            import asyncio

            await asyncio.get_running_loop().run_in_executor(None, flush)

    shutdown._pyroscope = True  # type: ignore[attr-defined]
    server.shutdown = shutdown
