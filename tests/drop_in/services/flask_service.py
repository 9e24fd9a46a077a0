"""A service with Flask."""

import threading

import service
from flask import Flask
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from werkzeug.serving import make_server

service.set_up()
app = Flask(__name__)
FlaskInstrumentor().instrument_app(app)


@app.get("/work")
def work():
    return service.work()


server = make_server("127.0.0.1", 0, app, threaded=True)
threading.Thread(target=server.serve_forever).start()
service.ask(server.server_port)
server.shutdown()
