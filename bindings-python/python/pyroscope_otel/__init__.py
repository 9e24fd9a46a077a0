"""What OpenTelemetry's entry points name: how spans are followed without a line of code.

A package of its own, as ``opentelemetry-instrument`` imports it in every program where it is installed: it imports
nothing and does nothing until the environment asks for it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    from typing import Any

__all__ = ["add_span_processor", "runtime_context"]


def add_span_processor() -> None:
    """Gives the SDK's tracer provider a :class:`pyroscope.otel.PyroscopeSpanProcessor`.

    ``opentelemetry-instrument`` calls this in each program, after it has set the provider; it does something only where
    ``OTEL_PYROSCOPE_ADD_SPAN_PROCESSOR`` is true. Never raises: the logger ``pyroscope`` says what is wrong.
    """
    asked = os.environ.get("OTEL_PYROSCOPE_ADD_SPAN_PROCESSOR", "").strip()
    if not asked or asked.lower() in ("false", "0", "no"):
        return
    from pyroscope import _messages

    try:
        from opentelemetry import trace

        from pyroscope import _native
        from pyroscope.otel import PyroscopeSpanProcessor

        if _native.flag("OTEL_PYROSCOPE_ADD_SPAN_PROCESSOR", asked):
            provider = trace.get_tracer_provider()
            if hasattr(provider, "add_span_processor"):
                provider.add_span_processor(PyroscopeSpanProcessor())
            else:
                _messages.warn_once(
                    "no span processor was added: the tracer provider is no SDK's, but %s", type(provider).__name__
                )
    except Exception as error:  # the program must start, whatever the environment says
        _messages.warn_once("no span processor was added: %s", error)


def runtime_context() -> Any:
    """The runtime context that ``OTEL_PYTHON_CONTEXT=pyroscope_context`` names.

    It is OpenTelemetry's own until there is a span processor of ours. Without this setting that processor puts it in
    place; with it, it is there from the start, also for code that keeps a reference to the runtime context.
    """
    from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

    from pyroscope import _context

    return _context.stand_in(ContextVarsRuntimeContext())
