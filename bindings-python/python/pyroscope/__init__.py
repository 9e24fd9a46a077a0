"""CPU profiles of a Python program, and of each OpenTelemetry span in it.

Without OpenTelemetry::

    import pyroscope

    pyroscope.configure(application_name="checkout", server_address="http://localhost:4040")

With it, one line more gives every span its own flame graph, see :mod:`pyroscope.otel`.

The functions here keep the names and defaults of the package ``pyroscope-io``. What they cannot do (an interpreter that
is not known, no server) never raises later on: the program goes on, and the logger ``pyroscope`` says why, once.
"""

from __future__ import annotations

import functools
import itertools
import sys

from . import _arguments, _lifecycle, _messages, _native
from ._arguments import LineNo, ProfilerImplementation

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    import logging
    from typing import Any, Callable, Mapping, Optional, TypeVar, Union

    _Function = TypeVar("_Function", bound=Callable[..., Any])
    LOGGER: logging.Logger

__all__ = [
    "LOGGER",
    "LineNo",
    "ProfilerImplementation",
    "add_thread_tag",
    "build_summary",
    "change_name",
    "configure",
    "configure_experimental_stack_profiler",
    "flush",
    "remove_tags",
    "remove_thread_tag",
    "runtime_name",
    "runtime_version",
    "shutdown",
    "stats",
    "stop",
    "tag",
    "tag_wrapper",
    "test_logger",
]


@_arguments.given_only(_arguments.start)
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
    span_names: Optional[bool] = None,
    trace_id: Optional[Union[bool, str]] = None,
    resource_labels: Optional[bool] = None,
    wall_time: Optional[bool] = None,
) -> bool:
    """Starts profiling this process and the processes it forks.

    Arguments that are not passed come from the environment (``PYROSCOPE_SERVER_ADDRESS`` and so on), and only then are
    they what the signature says. A profiler that runs already is stopped first, within 5 s. Takes a few milliseconds,
    with ``wall_time`` some 40 where asyncio is not imported yet, and never waits for the server. Costs 3 to 9 µs of CPU
    time a sample, by the version of Python, and two threads.

    application_name
        What the profiles are filed under; the same as the traces' ``service.name``. ``app_name`` is its old name.
        Else ``PYROSCOPE_APPLICATION_NAME``, ``OTEL_SERVICE_NAME``, ``service.name`` in ``OTEL_RESOURCE_ATTRIBUTES``.
    server_address
        ``http(s)://host[:port][/path]``, ``host:port``, or ``file:///dir`` for a ``.pb.gz`` file a window that
        ``go tool pprof`` reads, or ``none``. ``PYROSCOPE_SERVER_ADDRESS``.
    basic_auth_username, basic_auth_password, tenant_id, http_headers
        Credentials, the ``X-Scope-OrgID`` header, and further headers of each upload, a dict of str.
        ``PYROSCOPE_BASIC_AUTH_USER``, ``…_BASIC_AUTH_PASSWORD``, ``…_TENANT_ID``, ``…_HTTP_HEADERS`` (a JSON object).
    sample_rate
        Samples a second of CPU time and thread, 1 to 1000. The kernel's tick (often 250 Hz) bounds what can be had.
        ``PYROSCOPE_SAMPLE_RATE``, or ``PYROSCOPE_PROFILING_INTERVAL`` (``10ms`` is 100).
    upload_interval
        Seconds between uploads, 1 to 600. ``PYROSCOPE_UPLOAD_INTERVAL`` (``15``, ``15s``, ``1m``).
    tags
        Up to 20 labels of all profiles, added to those of ``PYROSCOPE_LABELS``; a name of both has the value here.
        Names are ``[A-Za-z_][A-Za-z0-9_.]*``; values become str and are cut at 2,048 bytes.
    report_pid, report_thread_id, report_thread_name
        Labels ``pid``, ``thread_id`` and ``thread_name``. Each process, thread or name becomes a **series** of its own,
        which servers bound and bill: not for programs with many or short-lived ones; above 8,192 within two windows some
        go without (``tag_sets_lost`` in :func:`stats`). Threads that ``threading`` knows have its ``ident`` and
        ``name``, others the kernel's. Costs 2 µs a thread.
    line_no
        Whether frames carry the line that runs, the function's first line, or none: a :class:`LineNo`.
    span_names
        False: samples carry no names of spans. ``OTEL_PYROSCOPE_ADD_SPAN_NAME``, else True.
    trace_id
        Whether samples carry ``trace_id``: True, False, or ``"auto"`` for yes unless the server says that it is older
        than Pyroscope 2.1.0, which makes a series of each trace. ``OTEL_PYROSCOPE_ADD_TRACE_ID``, else ``"auto"``.
    resource_labels
        True: ``service.version``, ``deployment.environment.name`` and ``host.name`` of ``OTEL_RESOURCE_ATTRIBUTES``
        become labels (``service_version``, ``deployment_environment``, ``host_name``). ``OTEL_PYROSCOPE_RESOURCE_LABELS``,
        which also makes a span processor that starts the profiler take them from the spans' resource. Else False.
    wall_time
        True: one more profile, ``wall``, has all time of spans by what it went to (label ``state``): CPU time, waits for
        files and sockets, locks, the GIL, sleeps, child processes, names. Waits are measured by the threads that wait: some
        50 ns each call that could wait. ``PYROSCOPE_PROFILING_WALLTIME_ENABLED``, else False.
    auth_token
        Deprecated, for ``http_headers={"Authorization": "Bearer …"}``.
    cpu_enabled
        False: nothing is started. ``PYROSCOPE_PROFILING_CPU_ENABLED``; ``PYROSCOPE_PROFILING_ENABLED`` does the same.
    enable_logging
        True: the logger ``pyroscope`` gets information too, not only warnings. The logger is never configured here.
        ``PYROSCOPE_LOG_LEVEL`` (``info``, ``warn``, or ``error`` for nothing at all).
    gil_only, cpu_implementation, detect_subprocesses, log_level, mem_max_nframe, mem_heap_sample_size, mem_enable_mem_domain
        Without effect: all CPU time of all threads and forked processes is seen, in one way.
    oncpu=False, native=True, mem_enabled=True
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

    :return: Whether a profiler ran and all that it still had was delivered: no profile was refused or dropped meanwhile.
        :func:`stats` says what became of it.
    """
    return _lifecycle.stop()


def stop() -> bool:
    """The same as :func:`shutdown`."""
    return _lifecycle.stop()


def flush(timeout: float = 5.0) -> bool:
    """Uploads what was sampled so far, without waiting for the next interval. Releases the GIL while it waits.

    :param timeout: Seconds to wait at most, an hour at most.
    :return: Whether all of it is settled: also what was refused or dropped, as :func:`stats` says. False without a
        profiler.
    """
    flushed = _native.flush(timeout)
    _messages.deliver()
    return bool(flushed)


def stats() -> dict[str, Any]:
    """What became of every sample, in number and weight (CPU nanoseconds), and the profiler's own CPU time.

    The sums hold at any time: ``taken = dropped_ring + dropped_window + pending + encoded`` and
    ``encoded = queued + uploaded + refused + dropped_queue + dropped_old + discarded``, and with ``wall_time``, of waits,
    ``waits_taken = waits_sampled + waits_outside + waits_pending + waits_dropped_ring + waits_dropped_busy +
    waits_dropped_thread``. After :func:`shutdown` they are those of the profiler that ended; zeros if there was none yet.
    Takes microseconds.
    """
    _messages.deliver()
    return _native.stats()


class tag_wrapper:
    """Labels the samples of a block of code, and of what it starts in copies of its context::

        with pyroscope.tag_wrapper({"tenant": "acme"}):
            ...

    Tags follow the execution context: a coroutine keeps its own across ``await``, and a nested block adds to the outer
    one's and restores them at its end, whatever the values. Entering and leaving take about 1 µs. Each set of values
    is a series in the server: use values of which there are few. Also a decorator of functions and of coroutine
    functions. One object may be entered again, also inside itself and by several threads and tasks at a time.

    Values that are not str become it. A name that is not allowed (see ``tags`` of :func:`configure`) is left out, and
    the logger says so once: it is no reason for the block not to run.
    """

    #: Numbers of wrappers: a set of tags knows by whom it was entered.
    _numbers = itertools.count(1)

    def __init__(self, tags: Mapping[str, Any]) -> None:
        try:
            self._tags = dict(tags)
        except (TypeError, ValueError) as error:
            raise TypeError(f"tag_wrapper: {tags!r} is not allowed; allowed: a dict of names and values") from error
        self._number = next(tag_wrapper._numbers)

    def __enter__(self) -> None:
        # First: what the program's logger raises, or a signal's handler while it logs, must not leave tags without an end.
        _messages.deliver_due()
        _native.enter_tags(self._tags, self._number)

    def __exit__(self, *_raised: object) -> None:
        _native.leave_tags(self._number)

    def __call__(self, function: _Function) -> _Function:
        from inspect import iscoroutinefunction

        tags = self._tags
        wrapper: Any
        if iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with tag_wrapper(tags):
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with tag_wrapper(tags):
                    return function(*args, **kwargs)

        decorated: _Function = wrapper
        return decorated


def add_thread_tag(key: str, value: Any) -> bool:
    """Labels the samples of the calling thread until :func:`remove_thread_tag`, whatever code it runs.

    That is wrong for threads that serve several requests in turn, as those of asyncio do: prefer :class:`tag_wrapper`,
    whose tags win over those of the thread. Adding twice takes removing twice; of two values for one name the one added
    last counts. A thread keeps the last 64. Values become str. Takes about 1 µs.

    :return: Whether the tag is there. False without a profiler, or if the name is not allowed (the logger says so once).
    """
    added = _native.add_thread_tag(key, value)
    _messages.deliver_due()
    return added


def remove_thread_tag(key: str, value: Any) -> bool:
    """Takes back the last :func:`add_thread_tag` of the same key and value by the calling thread, if there was one.

    :return: False without a profiler.
    """
    return _native.remove_thread_tag(key, value)


def runtime_name() -> str:
    """The interpreter's name, ``cpython``."""
    return sys.implementation.name


def runtime_version() -> str:
    """The interpreter's version, such as ``3.14.2``."""
    version = sys.implementation.version
    final = version.releaselevel == "final" and not version.serial
    return ".".join(map(str, version[:3] if final else version))


def configure_experimental_stack_profiler(
    max_nframe: int = 128,
    max_threads: int = 25,
    adaptive_sampling: bool = True,
    adaptive_target_overhead: float = 0.01,
    adaptive_max_interval_us: int = 100000,
    adaptive_baseline: float = 0.0,
    adaptive_p_stable_window_s: int = 600,
    adaptive_p_stable_percentile: float = 95.0,
    cpu_timer_enabled: bool = True,
    cpu_timer_interval_ms: int = 10,
) -> bool:
    """Without effect: there is one profiler here, which sees all threads and costs the same whatever they do.

    :return: True.
    """
    return True


def _without_effect(name: str, instead: str) -> None:
    _messages.deprecated(f"pyroscope.{name}() has no effect, {instead}", 3)


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


def __getattr__(name: str) -> Any:
    if name == "LOGGER":
        return _messages.logger()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
