"""C code that does what a wrapper around libc's functions must bear, in one span after the other. Prints what each returned and how long
it took, and the profiles tell what was seen of it.

    python waits_hazards.py LIBRARY PROFILES
"""

import ctypes
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import pyroscope
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyroscope.otel import PyroscopeSpanProcessor

HAZARDS = (
    "waits_through_a_table",
    "waits_through_protected_tables",
    "errno_is_kept",
    "jumps_out",
    "is_interrupted",
    "waits_in_a_handler",
    "is_cancelled",
    "vforks",
    "by_system_call",
    # From here on short waits may have made samples rare.
    "many_short_waits",
    "is_cancelled_where_it_is_free",
    "jumps_out_of_samples",
    "is_ended_by_its_handler",
)


def main(path: str, server: str) -> None:
    pyroscope.configure(application_name="hazards", server_address=server, wall_time=True)
    provider = TracerProvider(resource=Resource({"service.name": "hazards"}), shutdown_on_exit=False)
    provider.add_span_processor(PyroscopeSpanProcessor(scope="all", time_attributes=True))
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("hazards")
    # It comes after the profiler.
    library = ctypes.CDLL(path)
    results: dict[str, int] = {}
    walls: dict[str, int] = {}
    for hazard in HAZARDS:
        began = time.perf_counter_ns()
        with tracer.start_as_current_span(hazard):
            results[hazard] = library[hazard]()
        walls[hazard] = time.perf_counter_ns() - began

    # A thread that was jumped about in is measured as before.
    with tracer.start_as_current_span("after_jumps"):
        for _ in range(3):
            time.sleep(0.4)

    # Modules come and go, under another path each, while others wait and look for modules too.
    def opens(number: int) -> None:
        for attempt in range(20):
            copy = shutil.copy(path, f"{path}.{number}.{attempt}")
            handle = ctypes.CDLL(copy)
            with tracer.start_as_current_span("opened"):
                results[f"opened {number} {attempt}"] = handle.waits_through_a_table()
            close(ctypes.c_void_p(handle._handle))
            os.unlink(copy)

    close = ctypes.CDLL(None).dlclose
    threads = [threading.Thread(target=opens, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    # Stopped and started again under threads that wait.
    def waits() -> None:
        for _ in range(20):
            library.waits_through_a_table()

    threads = [threading.Thread(target=waits) for _ in range(4)]
    for thread in threads:
        thread.start()
    pyroscope.flush(30)
    for _ in range(10):
        pyroscope.shutdown()
        pyroscope.configure(application_name="hazards", server_address="none", wall_time=True)
    for thread in threads:
        thread.join()

    # A child has its own profiler, and one that is forked after the end has none.
    for _ in range(2):
        child = os.fork()
        if child == 0:
            os._exit(library.waits_through_a_table())
        results[f"child {child}"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        pyroscope.shutdown()
    results["after the end"] = library.waits_through_a_table()
    times = {span.name: dict(span.attributes or {}) for span in exporter.get_finished_spans() if span.name in HAZARDS}
    print(json.dumps({"results": results, "walls": walls, "times": times}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).as_uri())
