"""A flame graph for each OpenTelemetry span::

    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from pyroscope.otel import PyroscopeSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(PyroscopeSpanProcessor())
    trace.set_tracer_provider(provider)

CPU time is counted for the span that is *current* when it is burnt, in threads, asyncio, greenlets and executors with
copied contexts alike. A span that is started and never made current has no samples.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Any, Optional

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor

from .. import _arguments, _context, _lifecycle, _messages, _native, _server_shutdown
from . import _times

__all__ = [
    "PROFILE_ID_PYROSCOPE_TAG_KEY",
    "PROFILE_ID_SPAN_ATTRIBUTE_KEY",
    "PyroscopeSpanProcessor",
    "SPAN_NAME_PYROSCOPE_TAG_KEY",
    "TRACE_ID_PYROSCOPE_TAG_KEY",
]

PROFILE_ID_SPAN_ATTRIBUTE_KEY = "pyroscope.profile.id"
"""The attribute that makes Grafana show a flame graph button: the span's id, 16 hex digits."""

PROFILE_ID_PYROSCOPE_TAG_KEY = "span_id"
SPAN_NAME_PYROSCOPE_TAG_KEY = "span_name"
TRACE_ID_PYROSCOPE_TAG_KEY = "trace_id"
"""The labels of samples that say which span they belong to. They are not for tags: those names are refused."""

_SCOPES = ("root", "all")


class PyroscopeSpanProcessor(SpanProcessor):
    """Labels profiles with spans and spans with their profile.

    If :func:`pyroscope.configure` was never called, the first span starts the profiler, from the environment and with
    the resource's ``service.name`` as application name; ``OTEL_PYROSCOPE_START_PROFILING=false`` or
    ``PYROSCOPE_PROFILING_ENABLED=false`` prevent that.

    From its construction to its shutdown it stands in for OpenTelemetry's runtime context, so that samples know the
    current span at the very instant. Attaching and detaching take 0.1 to 0.3 µs more for that; starting and ending a
    span takes about 0.5 µs more, and 2 to 3 µs more where the attribute ``pyroscope.profile.id`` is set.

    :param scope: ``"root"``: samples carry the local root span (a span without a parent in this process), which alone
        gets the attribute. ``"all"``: samples carry the innermost span and every span gets the attribute. By default
        ``"root"``, unless ``OTEL_PYROSCOPE_ROOT_SPAN_ONLY=false``.
    :param time_attributes: True: each span that samples carry says at its end what its time went to, in nanoseconds, as
        attributes: ``pyroscope.time.io``, ``pyroscope.time.lock``, ``pyroscope.time.await`` and so on, exactly and not
        sampled, which takes ``wall_time``; a local root that begins and ends on one thread, and in no coroutine, also
        ``pyroscope.time.cpu``. By default what ``OTEL_PYROSCOPE_TIME_ATTRIBUTES`` says, else False.
    :raises ValueError: ``scope`` is neither, or ``time_attributes`` is no boolean. An environment variable that is none is told
        by the logger, and left at its default.
    """

    def __init__(self, scope: Optional[str] = None, time_attributes: Optional[bool] = None) -> None:
        if scope is None:
            scope = "root" if _flag("OTEL_PYROSCOPE_ROOT_SPAN_ONLY", True) else "all"
        if scope not in _SCOPES:
            raise ValueError(f"scope: {scope!r} is not allowed; allowed: 'root', 'all'")
        self._start_profiling = _flag("OTEL_PYROSCOPE_START_PROFILING", True)
        chosen = _native.flag("time_attributes", time_attributes)
        self._time_attributes = _flag("OTEL_PYROSCOPE_TIME_ATTRIBUTES", False) if chosen is None else chosen
        self._forget_first_span()
        self._started_profiler = False
        self._hooks = _native.SpanHooks(scope == "all", self._time_attributes)
        _context.install()
        if type(self).on_end is PyroscopeSpanProcessor.on_end and not self._time_attributes:
            self.on_end = self._hooks.on_end  # type: ignore[method-assign]
        if type(self)._on_ending is PyroscopeSpanProcessor._on_ending and not self._time_attributes:
            self._on_ending = self._hooks._on_ending  # type: ignore[method-assign, assignment]
        _processors[id(self)] = self

    def on_start(self, span: Span, parent_context: Optional[Context] = None) -> None:
        """Called by the SDK when a span starts. Never raises."""
        if not self._began:
            self._begin(span)
        profile_id = self._hooks.start(span, parent_context)
        if profile_id is not None:
            if self._time_attributes:
                _times.remember(span)
            span.set_attribute(PROFILE_ID_SPAN_ATTRIBUTE_KEY, profile_id)
            _messages.deliver_due()

    def on_end(self, span: ReadableSpan) -> None:
        """Called by the SDK when a span has ended. Never raises."""
        if self._time_attributes and not _times.HAS_ON_ENDING:
            _times.set_attributes(self._hooks, span)
        self._hooks.on_end(span)

    def _on_ending(self, span: Span) -> None:
        """Called by newer SDKs before any processor is told that a span has ended. Never raises."""
        if self._time_attributes:
            _times.set_attributes(self._hooks, span)

    def shutdown(self) -> None:
        """Gives OpenTelemetry its runtime context back, and ends the profiler if this processor started it."""
        if self._hooks.close():
            _context.uninstall()
        if self._started_profiler:
            self._started_profiler = False
            _lifecycle.stop()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Uploads what was sampled so far, waiting ``timeout_millis`` at most. True without a profiler."""
        flushed = _native.flush(timeout_millis / 1000)
        _messages.deliver()
        return flushed is not False

    def _begin(self, span: Span) -> None:
        """The first span, whose resource says under which name its traces are filed."""
        _lifecycle.make_up()
        with _lifecycle.Start(functools.partial(self._begin_again, span)):
            # Nobody waits here: a handler of a signal may open a span too, below this very function.
            if not self._first.acquire(blocking=False):
                return
            self._began = True
            # From now on the SDK calls a function that does no more than it must.
            if type(self).on_start is PyroscopeSpanProcessor.on_start:
                self.on_start = _on_start(self._hooks, self._time_attributes)  # type: ignore[method-assign]
            try:
                # By now the server is loaded, if it was not when the profiler was started.
                _server_shutdown.watch(_lifecycle.stop)
                self._meet(span.resource.attributes)
            except Exception as error:  # a span must start, whatever the environment says
                _messages.warn_once("no profiles are taken, spans go on working: %s", error)

    def _begin_again(self, span: Span) -> None:
        """In a forked child, with a span that another thread began with."""
        self._forget_first_span()
        self._begin(span)

    def _forget_first_span(self) -> None:
        """The next span is the first one."""
        #: Taken by the first span, for ever.
        self._first = threading.Lock()
        if type(self).on_start is PyroscopeSpanProcessor.on_start:
            self.__dict__.pop("on_start", None)
        self._began = False

    def _meet(self, resource: Any) -> None:
        name = str(resource.get("service.name") or "")
        namespace = str(resource.get("service.namespace") or "")
        labels = {"service_namespace": namespace} if namespace else {}
        if _flag("OTEL_PYROSCOPE_RESOURCE_LABELS", False):
            labels.update(_native.resource_labels(dict(resource)))
        if not _arguments.configured:
            if self._start_profiling and not _native.is_running():
                settings: dict[str, Any] = {}
                if name and not os.environ.get("PYROSCOPE_APPLICATION_NAME"):
                    settings["application_name"] = name
                if labels:
                    settings["tags"] = labels
                self._started_profiler = _arguments.launch(settings, for_spans=True)
        elif _native.is_running():
            missing = {label: value for label, value in labels.items() if not _arguments.has_tag(label)}
            if missing:
                _messages.warn_once(
                    "the spans' resource has what profiles lack: call configure(tags=%r), or a span's profile is not found",
                    missing,
                )
        if self._time_attributes and _native.is_running() and not _native.has_wall_time():
            _messages.warn_once(
                "spans say no waits as attributes: time_attributes needs wall time, configure(wall_time=True) or "
                "PYROSCOPE_PROFILING_WALLTIME_ENABLED=true"
            )
        if _native.is_running() and name and name != _arguments.application_name:
            _messages.warn_once(
                "profiles are named %r but the spans' resource has service.name %r: "
                "a span's profile is only found if both are the same",
                _arguments.application_name,
                name,
            )


#: All that there are, by their ids: a subclass may be such that it cannot be hashed.
_processors: weakref.WeakValueDictionary[int, PyroscopeSpanProcessor] = weakref.WeakValueDictionary()


def _after_fork() -> None:
    """In a forked child that waits with its profiler: any processor's next span may be what makes up for it."""
    if _lifecycle.is_behind():
        for processor in list(_processors.values()):
            processor._forget_first_span()


os.register_at_fork(after_in_child=_after_fork)


def _on_start(hooks: _native.SpanHooks, time_attributes: bool) -> Any:
    """``on_start`` without ``self``."""
    start, messages_due = hooks.start, _native.messages_due

    def on_start(span: Span, parent_context: Optional[Context] = None) -> None:
        profile_id = start(span, parent_context)
        if profile_id is not None:
            if time_attributes:
                _times.remember(span)
            span.set_attribute("pyroscope.profile.id", profile_id)
            if messages_due():
                _messages.deliver()

    return on_start


def _flag(name: str, default: bool) -> bool:
    """A boolean of the environment. What is none is told once, and spans go on."""
    try:
        flag = _native.flag(name, os.environ.get(name))
    except ValueError as error:
        _messages.warn_once(f"{error}. It is taken for {str(default).lower()}.")
        return default
    return default if flag is None else flag
