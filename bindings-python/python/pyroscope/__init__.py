"""CPU profiles of a Python program, and of each OpenTelemetry span in it.

Without OpenTelemetry::

    import pyroscope

    pyroscope.configure(application_name="checkout", server_address="http://localhost:4040")

With it, one line more gives every span its own flame graph, see :mod:`pyroscope.otel`.

The functions here keep the names and defaults of the package ``pyroscope-io``. What they cannot do (an interpreter that
is not known, no server) never raises later on: the program goes on, and the logger ``pyroscope`` says why, once.
"""

from __future__ import annotations

import contextlib
import warnings

from . import _native, _process, _settings
from ._settings import LineNo, ProfilerImplementation

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    from typing import Any, Mapping, Optional

__all__ = [
    "LineNo",
    "ProfilerImplementation",
    "build_summary",
    "change_name",
    "configure",
    "flush",
    "remove_tags",
    "shutdown",
    "stats",
    "stop",
    "tag",
    "tag_wrapper",
    "test_logger",
]


@_settings.given_only(_settings.start)
def configure(
    app_name: Optional[str] = None,
    application_name: Optional[str] = None,
    server_address: str = "http://localhost:4040",
    basic_auth_username: str = "",
    basic_auth_password: str = "",
    enable_logging: bool = False,
    sample_rate: int = 100,
    oncpu: bool = True,
    native: Optional[bool] = None,
    gil_only: bool = True,
    report_pid: bool = False,
    report_thread_id: bool = False,
    report_thread_name: bool = False,
    tags: Optional[Mapping[str, str]] = None,
    tenant_id: str = "",
    http_headers: Optional[Mapping[str, str]] = None,
    line_no: LineNo = LineNo.LastInstruction,
    upload_interval: float = 10,
    mem_enabled: bool = False,
    mem_max_nframe: int = 128,
    mem_heap_sample_size: int = 512 * 1024,
    mem_enable_mem_domain: bool = True,
    cpu_enabled: bool = True,
    cpu_implementation: ProfilerImplementation = ProfilerImplementation.PySpy,
    detect_subprocesses: Optional[bool] = None,
    auth_token: Optional[str] = None,
    log_level: Optional[str] = None,
) -> bool:
    """Starts profiling this process and the processes it forks.

    Arguments that are not passed come from the environment (``PYROSCOPE_SERVER_ADDRESS`` and so on), and only then are
    they what the signature says. A profiler that runs already is stopped first, within 5 s. Takes a few milliseconds
    and never waits for the server. Costs about 3 µs of CPU time a sample, which is 0.03 % at 100 Hz.

    application_name
        What the profiles are filed under; the same as the traces' ``service.name``. ``app_name`` is its old name.
    server_address
        ``http(s)://host[:port][/path]``, ``host:port``, or ``file:///dir`` for a ``.pb.gz`` file a window that
        ``go tool pprof`` reads, or ``none``.
    basic_auth_username, basic_auth_password, tenant_id, http_headers
        Credentials, the ``X-Scope-OrgID`` header, and further headers of each upload.
    sample_rate
        Samples a second of CPU time and thread, 1 to 1000. The kernel's tick (often 250 Hz) bounds what can be had.
    upload_interval
        Seconds between uploads, 1 to 600.
    tags
        Up to 20 labels of all profiles, added to those of ``PYROSCOPE_LABELS``; a name of both has the value here.
    line_no
        Whether frames carry the line that runs, the function's first line, or none.
    cpu_enabled
        False: nothing is started.
    enable_logging
        True: the logger ``pyroscope`` gets information too, not only warnings. The logger is never configured here.
    gil_only, cpu_implementation, detect_subprocesses, mem_max_nframe, mem_heap_sample_size, mem_enable_mem_domain
        Without effect: all CPU time of all threads and forked processes is seen.
    oncpu=False, native=True, mem_enabled=True, report_pid, report_thread_id, report_thread_name
        Not yet: one warning each.

    :return: Whether the profiler runs. If not, the logger says why.
    :raises ValueError: A value is not allowed; the message names the setting, the value and what is allowed. Nothing
        was started or stopped.
    :raises TypeError: An argument of the wrong type, or one that does not exist.
    """
    return _native.is_running()  # the decorator starts it; here only the arguments are checked


def shutdown() -> bool:
    """Ends profiling: uploads what there is and ends the profiler's threads, within 5 s. :func:`configure` works again.

    Called at exit without being asked. Releases the GIL while it waits.

    :return: Whether a profiler ran and nothing was left behind.
    """
    return _process.stop()


def stop() -> bool:
    """The same as :func:`shutdown`."""
    return _process.stop()


def flush(timeout: float = 5.0) -> bool:
    """Uploads what was sampled so far, without waiting for the next interval. Releases the GIL while it waits.

    :param timeout: Seconds to wait at most.
    :return: Whether all of it is settled. False without a profiler.
    """
    return _native.flush(timeout)


def stats() -> dict[str, Any]:
    """What became of every sample, in number and weight (CPU nanoseconds), and the profiler's own CPU time.

    The sums hold at any time: ``taken = dropped_ring + dropped_window + pending + encoded`` and
    ``encoded = queued + uploaded + refused + dropped_queue + dropped_old + discarded``. After :func:`shutdown` they are
    those of the profiler that ended; zeros if there was none yet.
    Takes microseconds.
    """
    return _native.stats()


class tag_wrapper(contextlib.ContextDecorator):
    """Labels the samples of a block of code, and of what it starts in copies of its context::

        with pyroscope.tag_wrapper({"tenant": "acme"}):
            ...

    Tags follow the execution context: a coroutine keeps its own across ``await``, and a nested block adds to the outer
    one's and restores them at its end, whatever the values. Entering and leaving take about 1 µs. Each set of values
    is a series in the server: use values of which there are few. Also a decorator of functions.
    """

    def __init__(self, tags: Mapping[str, str]) -> None:
        self._tags = dict(tags)
        self._tokens: list[Any] = []

    def _recreate_cm(self) -> tag_wrapper:
        return tag_wrapper(self._tags)

    def __enter__(self) -> None:
        self._tokens.append(_native.enter_tags(self._tags))

    def __exit__(self, *_raised: object) -> None:
        _native.leave_tags(self._tokens.pop())


def _without_effect(name: str, instead: str) -> None:
    warnings.warn(f"pyroscope.{name}() has no effect, {instead}", DeprecationWarning, stacklevel=3)


def tag(tags: Mapping[str, str]) -> None:
    """Deprecated, without effect: use :class:`tag_wrapper`."""
    _without_effect("tag", "use tag_wrapper")


def remove_tags(*keys: str) -> None:
    """Deprecated, without effect: use :class:`tag_wrapper`."""
    _without_effect("remove_tags", "use tag_wrapper")


def change_name(name: str) -> None:
    """Deprecated, without effect: call :func:`configure` again."""
    _without_effect("change_name", "call configure() again")


def build_summary() -> None:
    """Deprecated, without effect: see :func:`stats`."""
    _without_effect("build_summary", "see stats()")


def test_logger() -> None:
    """Deprecated, without effect: messages go to the logger ``pyroscope``."""
    _without_effect("test_logger", "messages go to the logger 'pyroscope'")
