"""A service with Django, in one file, on the standard library's WSGI server."""

import threading
import wsgiref.simple_server

import django
import service
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from opentelemetry.instrumentation.django import DjangoInstrumentor


def work(_request):
    return HttpResponse(service.work())


urlpatterns = [path("work", work)]

service.set_up()
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], MIDDLEWARE=[], SECRET_KEY="none")
DjangoInstrumentor().instrument()
django.setup()


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, format, *args):
        """Nothing: the output belongs to the test."""


server = wsgiref.simple_server.make_server("127.0.0.1", 0, get_wsgi_application(), handler_class=Quiet)
threading.Thread(target=server.serve_forever).start()
service.ask(server.server_port)
server.shutdown()
server.server_close()
