"""Passes on to the logger ``pyroscope`` what a user should know.

This is Python, and called by Python, on purpose: a logger runs code of the program, and no native frame of ours may lie
below that, see :mod:`pyroscope._lifecycle`. So the native module keeps its messages until one of our Python functions
comes by: ``configure``, ``flush``, ``stats``, ``shutdown``, a ``tag_wrapper``, the start of a span that gets its id as an
attribute. Never a thread's start: whoever waits for it may hold a logger's lock.
"""

from __future__ import annotations

from . import _native

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    import logging
    from typing import List, Optional, Set, Tuple

_INFO, _WARNING = 20, 30

_warned: Set[str] = set()
#: A warning that came up where nothing may be logged.
_kept: List[Tuple[str, BaseException]] = []


def logger() -> logging.Logger:
    """The logger; only who has something to say pays for loading ``logging``."""
    import logging

    return logging.getLogger("pyroscope")


def warn_once(text: str, *values: object) -> None:
    """Passes a warning on, the first time that it is given."""
    if text not in _warned:
        _warned.add(text)
        _log(_WARNING, text, *values)


def inform_once(text: str, *values: object) -> None:
    """The same for what is worth knowing and no warning."""
    if text not in _warned:
        _warned.add(text)
        _log(_INFO, text, *values)


def keep_once(text: str, error: BaseException) -> None:
    """Keeps a warning for the next delivery, the first time that it is given. Runs no code of the program."""
    if text not in _warned:
        _warned.add(text)
        _kept.append((text, error.with_traceback(None)))  # a traceback would keep the program's objects


def deliver() -> None:
    """Passes on what the native module has to say, and what was kept here."""
    while _kept:
        _log(_WARNING, *_kept.pop())
    for level, text, error in _native.take_messages() or ():
        if error is None:
            _log(level, "%s", text)
        else:
            _log(level, text, error)


def deliver_due() -> None:
    """The same, once a second at most, unless there is something urgent. About 50 ns mostly."""
    if _native.messages_due():
        deliver()


def deprecated(text: str, stacklevel: int) -> None:
    """Warns of a name of old, as Python does; ``stacklevel`` counts from the caller."""
    import warnings

    warnings.warn(text, DeprecationWarning, stacklevel + 1)


def _log(level: int, text: str, *values: object) -> None:
    if level < _native.log_level():
        return
    try:
        logger().log(level, text, *values)
    except Exception:
        pass  # a logger that raises is not ours to report: there is nowhere left to say it
