"""Labels of threads: ``report_thread_id`` and ``report_thread_name``.

Threads that ``threading`` knows have the id and the name that log records give for them. Of others the engine says the
kernel's id and name.
"""

from __future__ import annotations

import threading

from . import _messages, _native

TYPE_CHECKING = False  # typing itself takes as long to load as all of this
if TYPE_CHECKING:
    from typing import Any, Optional

#: What the running profiler reports.
_id = _name = False
#: ``Thread.name`` as it was, and as it is while names are reported.
_original: Optional[Any] = None
_hooked: Optional[Any] = None


def report(thread_id: bool, thread_name: bool) -> None:
    """A profiler was started: describes all threads, and from now on those that start and that are renamed."""
    global _id, _name
    _id, _name = thread_id, thread_name
    _hook_names(thread_name)
    if thread_id or thread_name:
        for thread in threading.enumerate():
            describe(thread)


def describe(thread: Any, native_id: Optional[int] = None) -> None:
    """Says what describes a thread, if that is reported. Never raises.

    The properties are not asked: subclasses put code of their own there, and while a thread starts such code may fail, or wait
    for the very thread that waits for the start.
    """
    if not (_id or _name):
        return
    try:
        native_id = native_id or thread._native_id
        if native_id is None:
            return
        tags = {}
        if _id:
            tags["thread_id"] = str(thread._ident)
        if _name:
            tags["thread_name"] = thread._name
        _native.describe_thread(native_id, tags)
    except Exception as error:
        _messages.keep_once("a thread is not described in profiles: %s", error)


def describe_this() -> None:
    """The same for the calling thread, of a forked child: until 3.13 its object has the parent's native id."""
    if _id or _name:
        describe(threading.current_thread(), threading.get_native_id())


def owner_of(name: str) -> Any:
    """The class that has an attribute of threads: gevent puts a class of its own above Python's."""
    return next(owner for owner in threading.Thread.__mro__ if name in owner.__dict__)


def _hook_names(wanted: bool) -> None:
    """Makes ``thread.name = …`` tell, and ends that, unless somebody else has replaced the property meanwhile."""
    global _original, _hooked
    owner = owner_of("name")
    now: Any = owner.__dict__["name"]
    if wanted and _original is None:
        original = now

        def rename(thread: threading.Thread, name: str) -> None:
            original.fset(thread, name)
            if _name:
                describe(thread)

        hooked = owner.name = original.setter(rename)
        # Last, as a child that is forked between the two hooks again.
        _original, _hooked = original, hooked
    elif not wanted and _original is not None and now is _hooked:
        owner.name = _original
        _original = _hooked = None
