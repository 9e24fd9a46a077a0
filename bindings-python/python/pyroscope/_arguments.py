"""From the arguments of ``configure`` to the settings of the engine."""

from __future__ import annotations

import enum
import functools
import os

from . import _lifecycle, _messages, _native, _thread_labels

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Set


class LineNo(enum.IntEnum):
    """Which line a frame carries."""

    LastInstruction = 0
    """The line that runs."""
    First = 1
    """The function's first line."""
    NoLine = 2
    """None: profiles are smaller."""


class ProfilerImplementation(enum.IntEnum):
    """Kept for code that names one: there is one implementation here."""

    PySpy = 0
    Stack = 1


#: Names that the engine takes as they are.
_ENGINE = frozenset(
    (
        "application_name",
        "server_address",
        "basic_auth_username",
        "basic_auth_password",
        "enable_logging",
        "sample_rate",
        "tags",
        "tenant_id",
        "http_headers",
        "line_no",
        "upload_interval",
        "cpu_enabled",
        "report_pid",
        "report_thread_id",
        "report_thread_name",
        "span_names",
        "trace_id",
        "resource_labels",
        "wall_time",
    )
)

#: What is not there yet, by the value that asks for it.
_NOT_YET = (
    ("oncpu", False, "CPU time is always profiled; wall_time=True adds waiting time"),
    ("native", True, "frames of native code are not shown yet"),
    ("mem_enabled", True, "memory is not profiled yet"),
)

#: Variables that ask for other kinds of profiles. They are often set for programs in all languages, so no warning.
_NOT_YET_VARIABLES = tuple(
    f"PYROSCOPE_PROFILING_{kind}_ENABLED"
    for kind in ("ALLOCATION", "LOCK", "CONTENTION", "EXCEPTION", "HEAP")
)

#: Seconds that a thread waits for another one that starts a profiler, which may stop one before: each 5 s at most.
_START_PATIENCE = 15.0

#: Whether configure() was ever called: then a span processor starts nothing by itself.
configured = False
#: The name and the tags that the running profiler was started with.
application_name = ""
_tags: Set[str] = set()


def given_only(start: Callable[[Dict[str, Any]], bool]) -> Callable[[Callable[..., bool]], Callable[..., bool]]:
    """Makes a function call ``start`` with those of its arguments that were really passed.

    A default in a signature is no argument: where none is passed the environment decides. The function itself, with its
    signature and documentation, stays what people and tools see.
    """

    def decorate(function: Callable[..., bool]) -> Callable[..., bool]:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> bool:
            function(*args, **kwargs)  # raises TypeError for what the signature does not allow
            return start({**dict(zip(names, args)), **kwargs})

        return wrapper

    return decorate


def _line_no(value: Any) -> LineNo:
    try:
        return LineNo(value)
    except ValueError:
        names = ", ".join(f"LineNo.{mode.name}" for mode in LineNo)
        raise ValueError(f"line_no: {value!r} is not allowed; allowed: {names}") from None


def start(given: Dict[str, Any]) -> bool:
    """Starts the profiler with the arguments of ``configure`` that were passed."""
    for name, replacement in (("app_name", "application_name"), ("detect_subprocesses", None), ("log_level", None)):
        if given.get(name) is not None:
            advice = f"use {replacement}" if replacement else "it has no effect"
            _messages.deprecated(f"{name} is deprecated, {advice}", 3)
    settings = {name: value for name, value in given.items() if name in _ENGINE and value is not None}
    if given.get("app_name") is not None:
        settings["application_name"] = given["app_name"]
    if given.get("auth_token"):
        _messages.deprecated("auth_token is deprecated, use http_headers", 3)
        settings["http_headers"] = {
            "Authorization": f"Bearer {given['auth_token']}",
            **settings.get("http_headers", {}),
        }
    if "line_no" in settings:
        settings["line_no"] = int(_line_no(settings["line_no"]))
    running = launch(settings, configures=True)
    for name, asks, text in _NOT_YET:
        if given.get(name) is asks:
            _messages.warn_once("configure(%s=%s): " + text, name, asks)
    return running


def launch(settings: Dict[str, Any], configures: bool = False, for_spans: bool = False) -> bool:
    """Starts the engine and remembers under which name; one thread after the other.

    ``for_spans``: a span processor asks, which leaves all as it is where ``configure`` was called or a profiler runs by now.
    """
    asked = [name for name in _NOT_YET_VARIABLES if _native.flag(name, os.environ.get(name))]
    _lifecycle.make_up()
    try:
        with _lifecycle.Start(functools.partial(launch, settings, configures, for_spans)) as this:
            running = _launch_alone(settings, configures, for_spans, this)
    finally:
        # With nothing held, as loggers run code of the program.
        _messages.deliver()
    # Now that it is known which messages are wanted.
    for name in asked:
        _messages.inform_once(f"{name}: only CPU time is profiled yet")
    if running:
        _check_for_others()
    return running


def _launch_alone(settings: Dict[str, Any], configures: bool, for_spans: bool, this: _lifecycle.Start) -> bool:
    starting = _lifecycle.starting
    alone = starting.acquire(timeout=_START_PATIENCE)
    try:
        this.is_first = not _native.is_running()
        settled = for_spans and (configured or not this.is_first)
        return not settled and _launch(settings, configures)
    finally:
        if alone:
            starting.release()


def _launch(settings: Dict[str, Any], configures: bool) -> bool:
    global configured, application_name, _tags
    # First, as the exit waits for what a start runs.
    _lifecycle.watch_exit()
    running = _native.start(settings)
    configured = configured or configures
    if running:
        _lifecycle.started()
        of_threads = (bool(_native.flag(name, settings.get(name))) for name in ("report_thread_id", "report_thread_name"))
        _thread_labels.report(*of_threads)
        _, application_name, tags = _native.environment()
        application_name = settings.get("application_name", application_name)
        _tags = {*tags, *settings.get("tags", ())}
    return running


def has_tag(name: str) -> bool:
    """Whether the running profiler's profiles have this label."""
    return name in _tags


def _check_for_others() -> None:
    """Grafana's package holds a module of the same name: who installed it after ours has its files in ours.

    Its folder is looked for beside us, as importlib.metadata would take 30 ms to load.
    """
    try:
        beside = os.listdir(os.path.dirname(os.path.dirname(__file__)))
    except OSError:
        return
    if any(name.startswith("pyroscope_io-") for name in beside):
        _messages.warn_once(
            "the package pyroscope-io is installed beside pyroscope-otel and has a module of the same name; "
            "run: pip uninstall pyroscope-io && pip install --force-reinstall --no-deps 'pyroscope-otel>=2'"
        )
