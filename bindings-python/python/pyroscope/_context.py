"""What stands in for OpenTelemetry's runtime context while a span processor is at work.

For OpenTelemetry's own class that is native, and sets the very ContextVar that it would set. One of somebody else is called
from Python, as no native frame of ours may lie below Python code, see :mod:`pyroscope._lifecycle`.
"""

from __future__ import annotations

import os
import threading
from contextvars import ContextVar
from typing import Any, Union

from opentelemetry.context.context import Context, _RuntimeContext
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from . import _lifecycle, _native


class Around(_RuntimeContext):
    """Stands in for a runtime context that is not OpenTelemetry's own."""

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def attach(self, context: Context) -> Any:
        token = self.previous.attach(context)
        _native.publish(context)
        return token

    def detach(self, token: Any) -> None:
        self.previous.detach(token)
        _native.publish(self.previous.get_current())

    def get_current(self) -> Context:
        current: Context = self.previous.get_current()
        return current

    @property
    def _current_context(self) -> Any:
        """What code that knows OpenTelemetry's own class may look for."""
        return self.previous._current_context


_RuntimeContext.register(_native.RuntimeContext)
_OURS = (_native.RuntimeContext, Around)


def stand_in(previous: Any) -> Union[_native.RuntimeContext, Around]:
    """Follows spans from the first processor on; until then it is as ``previous``."""
    if type(previous) is ContextVarsRuntimeContext:
        variable = getattr(previous, "_current_context", None)
        if isinstance(variable, ContextVar):
            return _native.RuntimeContext(previous, variable)
    return Around(previous)


#: Held while processors come and go.
_changing = threading.Lock()


def _renew() -> None:
    """In a forked child, where the one who holds it may not be."""
    global _changing
    _changing = threading.Lock()


os.register_at_fork(after_in_child=_renew)


def install() -> None:
    """A processor begins: puts ours in place, unless one is there, and publishes what is current already."""
    with _changing:
        _install()


def _install() -> None:
    import opentelemetry.context
    from opentelemetry.trace import NonRecordingSpan
    from opentelemetry.trace.propagation import _SPAN_KEY

    _lifecycle.watch_exit(restore)
    module: Any = opentelemetry.context
    if not _lifecycle.over and not isinstance(module._RUNTIME_CONTEXT, _OURS):
        module._RUNTIME_CONTEXT = stand_in(module._RUNTIME_CONTEXT)
    _native.follow(_SPAN_KEY, NonRecordingSpan, _adopt)
    _native.publish(module._RUNTIME_CONTEXT.get_current())


def uninstall() -> None:
    """A processor ended. With the last one the runtime context comes back that was there before, unless ours is gone."""
    with _changing:
        if _native.unfollow():
            restore()


def restore() -> None:
    """Puts the runtime context back that was there before, if ours is still in its place."""
    import opentelemetry.context

    module: Any = opentelemetry.context
    if isinstance(module._RUNTIME_CONTEXT, _OURS):
        module._RUNTIME_CONTEXT = module._RUNTIME_CONTEXT.previous


def _adopt(span: Any) -> None:
    """Gives a span that began before the processor its place in samples, if it still records."""
    from opentelemetry.sdk.trace import Span

    if isinstance(span, Span) and span.is_recording():
        profile_id = _native.adopt(span)
        if profile_id is not None:
            span.set_attribute("pyroscope.profile.id", profile_id)
