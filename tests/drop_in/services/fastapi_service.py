"""A service with FastAPI: a coroutine, on asyncio."""

import socket
import threading

import service
import uvicorn
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

service.set_up()
app = FastAPI()


@app.get("/work")
async def work():
    return service.work()


FastAPIInstrumentor.instrument_app(app)

listener = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
thread.start()
service.ask(listener.getsockname()[1])
server.should_exit = True
thread.join()
