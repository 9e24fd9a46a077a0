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
    from typing import Any, List, Set, Tuple

_INFO, _WARNING = 20, 30

_warned: Set[str] = set()
#: What came up where nothing may be logged: level, text and values.
_kept: List[Tuple[Any, ...]] = []
#: Nothing may be logged now, whoever asks.
_held = False


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
        _kept.append((_WARNING, text, error.with_traceback(None)))  # a traceback would keep the program's objects


def hold(held: bool) -> None:
    """True: from now on all is kept for the next delivery. False: no more."""
    global _held
    _held = held


def deliver() -> None:
    """Passes on what the native module has to say, and what was kept here."""
    if _held:
        return
    while _kept and not _held:
        try:
            message = _kept.pop(0)
        except IndexError:
            break  # another thread delivers too
        _log(*message)
    for level, text, error in _native.take_messages() or ():
        if error is None:
            _log(level, "%s", text)
        else:
            _log(level, text, error)


def deliver_due() -> None:
    """The same, once a second at most, unless there is something urgent. About 50 ns mostly."""
    if _kept or _native.messages_due():
        deliver()


def deprecated(text: str, stacklevel: int) -> None:
    """Warns of a name of old, as Python does; ``stacklevel`` counts from the caller."""
    import warnings

    warnings.warn(text, DeprecationWarning, stacklevel + 1)


def _log(level: int, text: str, *values: object) -> None:
    if _held:
        # A traceback would keep the program's objects.
        _kept.append((level, text, *(v.with_traceback(None) if isinstance(v, BaseException) else v for v in values)))
        return
    if level < _native.log_level():
        return
    try:
        logger().log(level, text, *values)
    except Exception:
        pass  # a logger that raises is not ours to report: there is nowhere left to say it
