"""Servers whose modules another thread is just importing, and uvicorn's shutdown where ours goes wrong."""

import asyncio
import sys
import types

import pytest

import pyroscope
from pyroscope import _messages, _native, _server_shutdown

MODULES = ["uvicorn.server", "celery.signals", "multiprocessing.util", "multiprocessing.process"]


@pytest.mark.parametrize("name", MODULES)
def test_a_half_imported_module_is_no_error_and_looked_at_again(monkeypatch, name):
    monkeypatch.setattr(_server_shutdown, "_registered", False)
    monkeypatch.setattr(_messages, "_kept", [])
    for module in ("multiprocessing.util", "multiprocessing.process"):
        __import__(module)
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert pyroscope.configure(application_name="x", server_address="none")
    assert not _messages._kept
    assert _server_shutdown._registered == (not name.startswith("multiprocessing"))
    monkeypatch.undo()


def test_a_watch_that_fails_does_not_make_configure_raise(monkeypatch, caplog):
    class Signal:
        def connect(self, *_, **__):
            raise OSError("no luck")

    module = types.ModuleType("celery.signals")
    module.worker_process_shutdown = Signal()
    monkeypatch.setitem(sys.modules, "celery.signals", module)
    assert pyroscope.configure(application_name="x", server_address="none")
    assert "what a server's process does last may be missing in profiles: no luck" in caplog.text


def test_uvicorns_shutdown_does_not_fail_with_ours(monkeypatch, caplog):
    class Server:
        _captured_signals = (15,)

        async def shutdown(self):
            done.append(True)

    def goes_wrong():
        raise OSError("no luck")

    done = []
    module = types.ModuleType("uvicorn.server")
    module.Server = Server
    monkeypatch.setitem(sys.modules, "uvicorn.server", module)
    monkeypatch.setattr(_server_shutdown, "flush", goes_wrong)
    assert pyroscope.configure(application_name="x", server_address="none") and _native.is_running()
    asyncio.run(Server().shutdown())
    assert done
    _messages.deliver()
    assert "what a server's process does last may be missing in profiles: no luck" in caplog.text
