"""An ASGI program: each request burns in the worker that answers it."""

import counted

tracer = counted.configure()


async def application(scope, receive, send):
    assert scope["type"] == "http"  # what else a server asks for, it asks in vain
    with tracer.start_as_current_span("request"):
        pid = counted.work("worker", 0.05)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(pid).encode()})
