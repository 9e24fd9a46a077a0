"""report_pid, report_thread_id, report_thread_name: labels of processes and of threads, as they come, fork and are renamed."""

import ctypes
import os
import threading
import time

import pytest
from conftest import burn
from pprof import samples_of
from receiver import Receiver

import pyroscope
from pyroscope import _native

REPORTS = {"report_thread_id": True, "report_thread_name": True}


def labels_in(samples, function: str):
    found = {(s.labels.get("thread_id"), s.labels.get("thread_name")) for s in samples if function in s.names}
    assert found, f"{function} was not sampled"
    return found


def in_main() -> None:
    burn(0.05)


def in_thread() -> None:
    burn(0.05)


def in_renamed() -> None:
    burn(0.05)


def in_child() -> None:
    burn(0.1)


def in_foreign() -> None:
    burn(0.3)


def in_older() -> None:
    burn(0.05)


def test_threads_have_the_id_and_the_name_that_log_records_have(recording):
    begun, go, burnt = threading.Event(), threading.Event(), threading.Event()

    def older() -> None:
        begun.set()
        assert go.wait(20)
        in_older()
        burnt.set()

    before = threading.Thread(target=older, name="older")
    before.start()
    assert begun.wait(20)
    recording.start(**REPORTS)
    go.set()

    def renames() -> None:
        # One after the other: who burns looks for a sample, whoever has it.
        assert burnt.wait(20)
        in_thread()
        threading.current_thread().name = "by itself"
        in_renamed()

    thread = threading.Thread(target=renames, name="größe")
    thread.start()
    idents = {"older": str(before.ident), "thread": str(thread.ident), "main": str(threading.get_ident())}
    thread.join()
    before.join()
    in_main()
    samples = recording.samples()
    assert labels_in(samples, "in_main") == {(idents["main"], "MainThread")}
    assert labels_in(samples, "in_thread") == {(idents["thread"], "größe")}
    assert labels_in(samples, "in_renamed") == {(idents["thread"], "by itself")}
    assert labels_in(samples, "in_older") == {(idents["older"], "older")}


def test_renamed_by_another_thread(recording):
    recording.start(report_thread_name=True)
    renamed, go = threading.Event(), threading.Event()

    def work() -> None:
        go.set()
        assert renamed.wait(20)
        in_renamed()

    thread = threading.Thread(target=work, name="before")
    thread.start()
    assert go.wait(20)
    thread.name = "after"
    renamed.set()
    thread.join()
    assert labels_in(recording.samples(), "in_renamed") == {(None, "after")}


class Worker(threading.Thread):
    """Its name comes from what it works at, which is not there yet when it starts."""

    @property
    def name(self):
        return self.job

    @name.setter
    def name(self, name):
        pass

    def run(self) -> None:
        self.job = "job"
        in_thread()


def start(thread: threading.Thread) -> None:
    """Starts it, where that could wait for ever."""
    thread.daemon = True
    starter = threading.Thread(target=thread.start, daemon=True)
    starter.start()
    starter.join(20)
    assert not starter.is_alive(), "the start of a thread waits for ever"
    thread.join(20)


def test_a_name_that_is_code_of_the_program_is_not_asked_for(recording):
    go = threading.Event()
    older = Worker()
    older.run = lambda: go.wait(20)
    older.start()
    assert recording.start(**REPORTS), "with such a thread alive"
    thread = Worker()
    start(thread)
    go.set()
    older.join()
    ((ident, name),) = labels_in(recording.samples(), "in_thread")
    assert ident == str(thread.ident) and name.startswith("Thread-")


def test_a_thread_starts_although_the_profiler_fails_at_it(recording, monkeypatch, caplog):
    recording.start(**REPORTS)

    def fails(*_arguments):
        raise KeyError("for this test")

    for function in ("describe_thread", "thread_started"):
        monkeypatch.setattr(_native, function, fails)
    for _ in range(2):
        thread = threading.Thread(target=in_thread)
        start(thread)
        thread.name = "renamed"
    pyroscope.stats()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("for this test" in text for text in told), told


def test_a_thread_that_threading_does_not_know_has_the_kernels_name(recording):
    """Such as the threads of a library in C that calls back."""
    recording.start(**REPORTS)
    libc = ctypes.CDLL(None)
    tids, known = [], _native.stats()["threads"]

    def run(_argument):
        libc.prctl(15, b"from-c", 0, 0, 0)  # PR_SET_NAME
        tids.append(str(threading.get_native_id()))
        until = time.monotonic() + 20
        while _native.stats()["threads"] == known and time.monotonic() < until:
            time.sleep(0.01)
        in_foreign()
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(run)
    thread = ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, callback, None) == 0
    libc.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
    assert libc.pthread_join(thread.value, None) == 0
    # Until the first look at the list of threads it has no labels.
    assert (tids[0], "from-c") in labels_in(recording.samples(), "in_foreign")


def test_names_are_asked_for(recording):
    original = threading.Thread.__dict__["name"]
    recording.start()
    assert threading.Thread.__dict__["name"] is original
    in_main()
    assert labels_in(recording.samples(), "in_main") == {(None, None)}


def test_thread_is_as_it_was_after_the_end(recording):
    original = threading.Thread.__dict__["name"]
    recording.start(report_thread_name=True)
    assert threading.Thread.__dict__["name"] is not original
    pyroscope.shutdown()
    assert threading.Thread.__dict__["name"] is original


@pytest.mark.parametrize("odd", ["lone \udc80", "", "x" * 5000])
def test_names_of_any_kind(recording, odd):
    recording.start(report_thread_name=True)
    thread = threading.Thread(target=in_thread, name=odd)
    thread.start()
    thread.join()
    ((_, name),) = labels_in(recording.samples(), "in_thread")
    assert name is None or 0 < len(name.encode()) <= 2048


def test_a_forked_child_has_its_own_pid_and_its_threads_name():
    with Receiver() as receiver:
        assert pyroscope.configure(
            application_name="x", server_address=receiver.url, sample_rate=1000, report_pid=True, **REPORTS
        )
        in_main()
        child = os.fork()
        if child == 0:
            try:
                in_child()
                pyroscope.shutdown()
            finally:
                os._exit(0)
        ident = str(threading.get_ident())
        assert os.waitpid(child, 0)[1] == 0
        assert pyroscope.shutdown()
        of = {pid: [s for s in receiver.series if s.labels["pid"] == str(pid)] for pid in (os.getpid(), child)}
        assert len(of[child]) + len(of[os.getpid()]) == len(receiver.series) > 1
        for pid, function in ((os.getpid(), "in_main"), (child, "in_child")):
            samples = [sample for series in of[pid] for sample in series.profile.samples]
            assert labels_in(samples, function) == {(ident, "MainThread")}


def test_without_report_pid_there_is_no_such_label(tmp_path):
    with Receiver() as receiver:
        assert pyroscope.configure(application_name="x", server_address=receiver.url, sample_rate=1000)
        in_main()
        assert pyroscope.shutdown()
        assert receiver.series and not any("pid" in series.labels for series in receiver.series)
    assert samples_of(tmp_path) == []
