"""What the time of a span went to, as attributes of the span.

The sums are whole when a span ends, and the SDK lets nobody set attributes any more by then, in none of its versions, though it calls
``_on_ending`` for that in newer ones. So they are put where it keeps attributes: into a new dict in place of the old one, as an exporter's
thread may be reading that.
"""

from __future__ import annotations

import sys
from typing import Any

from opentelemetry.sdk.trace import SpanProcessor

from .. import _messages, _native

#: Whether the SDK tells of a span's end before any exporter sees the span.
HAS_ON_ENDING = hasattr(SpanProcessor, "_on_ending")


def remember(span: Any) -> None:
    """A span starts that has sums. Older SDKs show at its end what has nothing in common with it but the attributes."""
    if HAS_ON_ENDING:
        return
    try:
        span._attributes._pyroscope = span._pyroscope
    except Exception as error:  # a span must start, whatever the SDK is like
        _warn(error)


def set_attributes(hooks: _native.SpanHooks, span: Any) -> None:
    """The span has ended."""
    try:
        attributes = span._attributes
        wall_ns = span.end_time - span.start_time
        times = hooks.times(span, span if HAS_ON_ENDING else attributes, wall_ns, _has_own_thread())
        if not times:
            return
        with attributes._lock:
            merged = attributes._dict.copy()
            merged.update(times)
            most = attributes.maxlen
            while most is not None and len(merged) > max(most, len(attributes._dict)):
                # The program's own come first.
                merged.popitem()
                attributes.dropped += 1
            attributes._dict = merged
    except Exception as error:  # a span must end, whatever the SDK is like
        _warn(error)


def _has_own_thread() -> bool:
    """Whether the calling thread runs nothing else meanwhile, as it would other greenlets."""
    greenlet = sys.modules.get("greenlet")
    if greenlet is None:
        return True
    if "gevent" in sys.modules or "eventlet" in sys.modules:
        # Their hub runs others while the main one waits, and nobody tells.
        return False
    return greenlet.getcurrent().parent is None


def _warn(error: Exception) -> None:
    _messages.warn_once("spans have no attributes that say their time: %s", error)
