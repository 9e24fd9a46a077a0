"""Threads, forks and the end of the process."""

import sys
import threading

import pytest
from conftest import burn
from pprof import samples_of

import pyroscope


def short_lived():
    burn(0.004)


def test_threads_that_live_for_milliseconds_are_counted(recording):
    assert recording.start(sample_rate=100)
    for _ in range(60):
        thread = threading.Thread(target=short_lived)
        thread.start()
        thread.join()
    stats = pyroscope.stats()
    assert stats["taken"]["weight"] > 0.12e9, "240 ms of CPU time, of which no thread lived a period"


def test_the_hook_is_not_seen_and_goes_away(recording):
    original = threading.Thread._set_native_id
    recording.start()
    assert threading.Thread._set_native_id is not original
    thread = threading.Thread(target=burn, args=(0.05,))
    thread.start()
    thread.join()
    assert thread.native_id
    # 3.10 has no qualified names.
    plain = [[name.rpartition(".")[2] for name in sample.names] for sample in recording.samples()]
    stacks = [names for names in plain if "burn" in names and "run" in names]
    assert stacks and all(names[-3:] == ["run", "_bootstrap_inner", "_bootstrap"] for names in stacks)
    assert threading.Thread._set_native_id is original


def test_a_daemon_thread_that_starts_the_first_profiler_as_python_ends(python):
    """The self-test runs Python code in native frames, which Python must not unwind: until 3.13 that aborts."""
    python(
        """
        import atexit, contextvars, threading, time
        import pyroscope
        from pyroscope import _lifecycle
        begun, ends = threading.Event(), threading.Event()
        atexit.register(ends.set)  # called after what configure() registers
        Context = contextvars.Context

        def slow():
            contextvars.Context = Context
            begun.set()
            while not _lifecycle.over:
                pass
            until = time.monotonic() + 0.3
            while ends.is_set() or time.monotonic() < until:  # where nobody waits, it wants the GIL when Python ends
                pass
            return Context()

        def work():
            pyroscope.configure(application_name="x", server_address="none")

        contextvars.Context = slow
        threading.Thread(target=work, daemon=True).start()
        assert begun.wait(20)
        """
    )
    # The exit waits for the start, which comes to nothing. Whether its thread gets to say so is a race with the end.
    assert python.stderr in ("", "no profiles are taken, spans go on working: the process is ending\n")


def test_a_hook_over_ours_is_left_alone(recording):
    original = threading.Thread._set_native_id
    recording.start()
    ours = threading.Thread._set_native_id
    theirs = lambda self: ours(self)  # noqa: E731
    threading.Thread._set_native_id = theirs
    try:
        pyroscope.stop()
        assert threading.Thread._set_native_id is theirs
        thread = threading.Thread(target=burn, args=(0.001,))
        thread.start()
        thread.join()
    finally:
        threading.Thread._set_native_id = ours
        recording.start()
        pyroscope.stop()
    assert threading.Thread._set_native_id is original


PRELUDE = """
import os, sys, threading
import pyroscope
from pyroscope import _arguments, _native
from conftest import burn
from pprof import samples_of
folder = sys.argv[1]
def parent(): burn(0.1)
def child(): burn(0.1)
assert _arguments.launch({"application_name": "fork", "server_address": "file://" + folder, "sample_rate": 1000})
"""


def shares(folder):
    """Which of the program's functions `parent` and `child` occur in which process's files."""
    from pprof import read_folder

    found = {}
    for profile in read_folder(folder):
        process = profile.file.split("-")[-2]
        for sample in profile.samples:
            # pathlib has a `parent`, too.
            names = {frame.function for frame in sample.stack if frame.file == "<string>"}
            for name in {"parent", "child"} & names:
                found.setdefault(process, set()).add(name)
    return sorted(map(sorted, found.values()))


def test_a_forked_child_has_a_profiler_of_its_own(python, tmp_path):
    python(
        PRELUDE
        + """
parent()
pid = os.fork()
if pid == 0:
    child()
    thread = threading.Thread(target=child)
    thread.start()
    thread.join()
    assert _native.stats()["taken"]["samples"] > 0
    assert pyroscope.shutdown()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert pyroscope.shutdown()
""",
        args=(tmp_path,),
    )
    assert shares(tmp_path) == [["child"], ["parent"]], "nothing is sent twice"


def test_a_span_held_over_a_fork_is_known_on_both_sides(python, tmp_path):
    span_id = python(
        PRELUDE
        + """
from opentelemetry.sdk.trace import TracerProvider
from pyroscope.otel import PyroscopeSpanProcessor
provider = TracerProvider()
provider.add_span_processor(PyroscopeSpanProcessor())
with provider.get_tracer("test").start_as_current_span("held") as span:
    parent()
    if os.fork() == 0:
        child()
        os._exit(0 if pyroscope.shutdown() else 1)
    assert os.wait()[1] == 0
print(format(span.get_span_context().span_id, "016x"))
""",
        args=(tmp_path,),
    ).strip()
    for side in ("parent", "child"):
        found = [sample.labels for sample in samples_of(tmp_path) if side in sample.names]
        assert found
        assert all(labels["span_id"] == span_id and labels["span_name"] == "held" for labels in found), found
        assert all(len(labels["trace_id"]) == 32 for labels in found)


def test_a_fork_in_a_thread_beside_busy_ones(python, tmp_path):
    python(
        PRELUDE
        + """
import warnings
warnings.simplefilter("ignore")
def forks():
    for _ in range(10):
        if os.fork() == 0:
            child()
            os._exit(0 if pyroscope.shutdown() else 1)
        assert os.wait()[1] == 0
    good.append(True)
good = []
threads = [threading.Thread(target=parent), threading.Thread(target=parent), threading.Thread(target=forks)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert good
assert pyroscope.shutdown()
""",
        args=(tmp_path,),
    )
    assert shares(tmp_path) == [["child"]] * 10 + [["parent"]]


def test_a_child_of_a_child(python, tmp_path):
    python(
        PRELUDE
        + """
for generation in range(3):
    if os.fork() == 0:
        child()
        continue
    os.wait()
    break
assert pyroscope.shutdown()
sys.exit(0)
""",
        args=(tmp_path,),
    )
    assert shares(tmp_path) == [["child"]] * 3


def test_forks_while_threads_are_busy(python, tmp_path):
    python(
        PRELUDE
        + """
def busy():
    while not done:
        burn(0.01)
done = []
threads = [threading.Thread(target=busy) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        burn(0.01)
        os._exit(0 if pyroscope.shutdown() else 1)
    assert os.waitpid(pid, 0)[1] == 0
done.append(True)
for thread in threads:
    thread.join()
assert pyroscope.shutdown()
""",
        args=(tmp_path,),
    )


def test_a_child_made_by_the_system_call_itself_waits_for_nobody(python):
    said = python(
        """
        import ctypes, os, sys
        import pyroscope
        from opentelemetry.sdk.trace import TracerProvider
        from pyroscope.otel import PyroscopeSpanProcessor
        assert pyroscope.configure(application_name="x", server_address="none")
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(PyroscopeSpanProcessor())
        tracer = provider.get_tracer("x")
        SYS_FORK = 57
        for end in ("exit", "_exit"):
            if ctypes.PyDLL(None).syscall(SYS_FORK) == 0:
                with tracer.start_as_current_span("a"):
                    # Whoever waited for the parent's threads would do so for ever.
                    assert not pyroscope.flush(10_000)
                    assert pyroscope.stats()["taken"]["samples"] == 0
                assert not pyroscope.configure(application_name="y", server_address="none")
                assert not pyroscope.shutdown()
                (sys.exit if end == "exit" else os._exit)(0)
            print(os.wait()[1])
        assert pyroscope.shutdown()
        """
    )
    assert said.split() == ["0", "0"]


def test_a_child_that_is_to_execute_another_program_has_one_thread(python):
    said = python(
        """
        import os, pty, subprocess, threading, warnings
        import pyroscope
        from opentelemetry.sdk.trace import TracerProvider
        from pyroscope import _native
        from pyroscope.otel import PyroscopeSpanProcessor
        warnings.simplefilter("ignore")
        assert pyroscope.configure(application_name="x", server_address="none")
        seen, told = os.pipe()
        def name_of(task):
            try:
                return open(f"/proc/self/task/{task}/comm").read()
            except OSError:  # it has just ended
                return ""
        def tell():
            tasks = os.listdir("/proc/self/task")
            ours = [task for task in tasks if name_of(task).startswith("spanprof")]
            os.write(told, f" {len(tasks)}/{len(ours)}".encode())
        os.register_at_fork(after_in_child=tell)
        subprocess.run(["true"], preexec_fn=int)
        os.spawnlp(os.P_WAIT, "true", "true")
        # Its provider starts a thread of its own on each fork.
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(PyroscopeSpanProcessor())
        tracer = provider.get_tracer("x")
        subprocess.run(["true"], preexec_fn=int)
        os.spawnlp(os.P_WAIT, "true", "true")
        def start_a_thread():
            threading.Thread(target=int).start()
        def start_a_span():
            tracer.start_span("a").end()
        def configure():
            pyroscope.configure(application_name="y", server_address="none")
        for deed in (start_a_thread, start_a_span, configure):
            if pty.fork()[0] == 0:
                waited = not _native.is_running() and not pyroscope.flush(0) and pyroscope.stats()["threads"] == 0
                deed()
                os._exit(0 if waited and _native.is_running() and pyroscope.shutdown() else 1)
            print(os.wait()[1])
        if pty.fork()[0] == 0:
            os._exit(1 if pyroscope.shutdown() or _native.is_running() else 0)
        print(os.wait()[1])
        if os.fork() == 0:
            os._exit(0 if _native.is_running() else 1)
        print(os.wait()[1])
        print(os.read(seen, 100).decode())
        """
    )
    said = said.split()
    exits, alone, forks = said[:5], said[5:7], said[7:]
    assert exits == ["0"] * 5
    assert alone == ["1/0"] * 2
    assert [threads.partition("/")[2] for threads in forks[:-1]] == ["0"] * 6, "the last is that of os.fork"


@pytest.mark.filterwarnings("ignore")
def test_multiprocessing_children_upload_their_last_window(python, tmp_path):
    python(
        PRELUDE
        + """
import multiprocessing
context = multiprocessing.get_context("fork")
processes = [context.Process(target=child) for _ in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
    assert process.exitcode == 0
assert pyroscope.shutdown()
""",
        args=(tmp_path,),
    )
    assert shares(tmp_path) == [["child"]] * 2


def test_the_last_window_is_uploaded_at_exit(python, tmp_path):
    python(PRELUDE + "parent()\n", args=(tmp_path,))
    assert shares(tmp_path) == [["parent"]]


@pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="CPython 3.10 itself crashes where daemon threads wait for the GIL of an interpreter that was freed (take_gil)",
)
def test_daemon_threads_at_exit_do_no_harm(python, tmp_path):
    for _ in range(5):
        python(
            """
            import sys, threading, time
            from pyroscope import _arguments
            assert _arguments.launch({"application_name": "x", "server_address": "none", "wall_clock": True, "sample_rate": 5000})
            def numbers(n):
                for i in range(n):
                    yield i
            def body():
                while True:
                    sum(numbers(200))
            for _ in range(4):
                threading.Thread(target=body, daemon=True).start()
            class Late:
                def __del__(self):
                    sum(numbers(20000))
            keep = [Late() for _ in range(20)]
            end = time.monotonic() + 0.1
            while time.monotonic() < end:
                sum(numbers(1000))
            """
        )


def test_stacks_that_shrink_where_generators_are_made_are_not_looked_at(python):
    """3.13 unmaps the end of its stack before the function that made the generator has stopped being the current one."""
    python(
        """
        import time
        import pyroscope
        from pyroscope import _arguments
        assert _arguments.launch({"application_name": "x", "server_address": "none", "wall_clock": True, "sample_rate": 10000})
        def make(count):
            for _ in range(count):
                (number for number in ())
        def dive(depth):
            dive(depth - 1) if depth else make(60)
        end = time.monotonic() + 5
        while time.monotonic() < end:
            # At one of these depths the generator's frame is the first of a piece of the stack.
            for depth in range(300):
                dive(depth)
        assert pyroscope.stats()["taken"]["samples"] > 100, pyroscope.stats()
        """
    )


def test_an_interpreter_that_ends_under_armed_timers_is_not_looked_at(python):
    python(
        """
        import atexit, builtins, os, threading, time, zlib
        from pyroscope import _arguments
        assert _arguments.launch({"application_name": "x", "server_address": "none", "wall_clock": True, "sample_rate": 2000})
        atexit._clear()
        data = os.urandom(1 << 22)
        def without_the_gil(depth=0):
            while depth > 30:
                zlib.compress(data, 9)
            without_the_gil(depth + 1)
        for _ in range(3):
            threading.Thread(target=without_the_gil, daemon=True).start()
        class Slow:
            def __del__(self, now=time.monotonic):
                end = now() + 0.4
                while now() < end:
                    pass
        builtins.keep = Slow()
        time.sleep(0.1)
        """,
        env={"PYTHONMALLOC": "malloc_debug"},  # overwrites what is freed
    )


def test_nothing_starts_the_profiler_once_the_interpreter_ends(python):
    said = python(
        """
        import atexit, logging, os, sys
        import pyroscope
        from pyroscope import _native
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        def start():
            return pyroscope.configure(application_name="x", server_address="none")
        def late():
            # What is not written yet, the child would write too.
            print(start(), _native.is_running(), flush=True)
            try:
                pid = os.fork()
            except RuntimeError:
                return print("no forks here")
            if pid == 0:
                os._exit(1 if start() or _native.is_running() else 0)
            print(os.waitpid(pid, 0)[1])
        atexit.register(late)
        assert start()
        """
    )
    reason = "no profiles are taken, spans go on working: the process is ending"
    said = said.splitlines()
    assert said[:2] == [reason, "False False"]
    # 3.12 forks no more at that point.
    assert said[2:] == (["no forks here"] if sys.version_info[:2] == (3, 12) else [reason, "0"])


def test_spans_are_not_followed_once_the_interpreter_ends(python):
    said = python(
        """
        import atexit
        import opentelemetry.context
        from opentelemetry.sdk.trace import TracerProvider
        from pyroscope.otel import PyroscopeSpanProcessor
        def late():
            with provider.get_tracer("x").start_as_current_span("a") as span:
                print(type(opentelemetry.context._RUNTIME_CONTEXT).__name__, dict(span.attributes))
            provider.add_span_processor(PyroscopeSpanProcessor())
            print(type(opentelemetry.context._RUNTIME_CONTEXT).__name__)
        atexit.register(late)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(PyroscopeSpanProcessor())
        print(type(opentelemetry.context._RUNTIME_CONTEXT).__name__)
        """
    )
    assert said.splitlines() == ["RuntimeContext", "ContextVarsRuntimeContext {}", "ContextVarsRuntimeContext"]


def test_daemon_threads_that_are_in_our_functions_at_exit_do_no_harm(python):
    """Sixteen exits of a program whose threads ask for statistics, and change contexts under Python code of its own."""
    python(
        """
        import gc, os, random, sys, threading, time, warnings
        import opentelemetry.context
        from opentelemetry import trace
        from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
        from opentelemetry.sdk.trace import TracerProvider
        import pyroscope
        from pyroscope.otel import PyroscopeSpanProcessor

        def run_python(*_):
            for _ in range(200):
                pass

        class Theirs(ContextVarsRuntimeContext):
            def attach(self, context):
                run_python()
                return super().attach(context)

            def detach(self, token):
                run_python()
                super().detach(token)

        def asks():
            while True:
                pyroscope.stats()
                pyroscope.flush(0.01)

        def starts_spans():
            while True:
                with tracer.start_as_current_span("a"):
                    pass

        def keeps_contexts():
            context = trace.set_span_in_context(tracer.start_span("b"))
            while True:
                tokens = [opentelemetry.context.attach(context) for _ in range(500)]
                for token in reversed(tokens):
                    opentelemetry.context.detach(token)

        for number in range(16):
            pid = os.fork()
            if pid == 0:
                break
            status = os.waitpid(pid, 0)[1]
            if status:
                sys.exit(f"exit {number} ended with {status}")
        else:
            sys.exit()
        if number % 2:
            opentelemetry.context._RUNTIME_CONTEXT = Theirs()
        else:
            gc.callbacks.append(run_python)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
        tracer = provider.get_tracer("x")
        assert pyroscope.configure(application_name="unknown_service:python", server_address="none")
        # CPython 3.10 itself crashes in threads that wait for the GIL when it frees the interpreter (take_gil): they end before.
        class Last:
            def __del__(self, sleep=time.sleep, now=time.monotonic, threads=os.listdir):
                until = now() + 2
                while len(threads("/proc/self/task")) > 1 and now() < until:
                    sleep(0.001)

        if sys.version_info < (3, 11):
            sys.last = Last()
        for body in (asks, starts_spans, starts_spans, keeps_contexts):
            threading.Thread(target=body, daemon=True).start()
        time.sleep(0.03 + random.random() * 0.02)
        """
    )


def test_no_collection_begins_where_an_object_of_ours_is_made(python):
    """On 3.10 and 3.11 it would run destructors there, and a daemon thread that must not go on at exit be unwound."""
    assert (
        python(
            """
            import gc
            import pyroscope
            from pyroscope import _native

            def are_there(phase, _):
                if phase == "start":
                    seen.append(any(type(thing).__name__ == "TagSet" for thing in gc.get_objects()))

            seen, tags = [], {"a": "b"}
            gc.collect()
            gc.callbacks.append(are_there)
            gc.set_threshold(max(gc.get_count()[0], 1))
            _native.enter_tags(tags, 1)
            # Nor where a variable is set: the next object makes it begin.
            another = []
            gc.callbacks.clear()
            print(set(seen), gc.isenabled())
            """
        )
        == "{True} True\n"
    )


def test_collections_stay_on_where_an_exception_of_the_programs_is_made(python):
    """One that another thread asked for is an instance of its class, which may run any code, only where it is looked at."""
    assert (
        python(
            """
            import ctypes, gc, threading
            import pyroscope
            from pyroscope import _native
            from pyroscope.otel import PyroscopeSpanProcessor

            made = []

            class Asked(Exception):
                def __init__(self):
                    made.append(gc.isenabled())

            class Span:
                @property
                def _context(self):
                    own = ctypes.c_ulong(threading.get_ident())
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(own, ctypes.py_object(Asked))
                    while True:
                        pass

                _parent = None

            assert pyroscope.configure(application_name="x", server_address="none")
            PyroscopeSpanProcessor(scope="all").on_start(Span())
            print(made, gc.isenabled())
            """
        )
        == "[True] True\n"
    )


def test_a_daemon_thread_that_runs_python_code_below_a_native_function_at_exit_stays_there(python):
    python(
        """
        import threading
        import opentelemetry.context
        from opentelemetry import trace
        from opentelemetry.sdk.trace import Span, TracerProvider
        import pyroscope
        from pyroscope.otel import PyroscopeSpanProcessor

        began = threading.Barrier(3)
        def never_ends(*_):
            began.wait()
            while True:
                pass

        class Value:
            __str__ = never_ends

        def enters_tags():
            with pyroscope.tag_wrapper({"a": Value()}):
                pass

        def adopts_a_span():
            opentelemetry.context.attach(trace.set_span_in_context(older))

        provider = TracerProvider(shutdown_on_exit=False)
        older = provider.get_tracer("x").start_span("older")
        provider.add_span_processor(PyroscopeSpanProcessor())
        Span.set_attribute = never_ends
        for body in (enters_tags, adopts_a_span):
            threading.Thread(target=body, daemon=True).start()
        began.wait()
        """
    )


def test_import_and_fork_without_configure(python):
    assert (
        python(
            """
            import os, pyroscope
            pid = os.fork()
            if pid == 0:
                os._exit(0 if pyroscope.stats()["taken"]["samples"] == 0 else 1)
            print(os.waitpid(pid, 0)[1])
            """
        ).strip()
        == "0"
    )


def test_an_idle_process_uploads_nothing(recording):
    recording.start(upload_interval=600)
    pyroscope.stop()
    assert all("burn" not in sample.names for sample in samples_of(recording.folder))
