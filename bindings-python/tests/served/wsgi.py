"""A WSGI program: each request burns in the worker that answers it."""

import counted

tracer = counted.configure()


def application(environ, start_response):
    with tracer.start_as_current_span("request"):
        pid = counted.work("worker", 0.05)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(pid).encode()]
