"""`routes`: a Django service in one file, which finds the way through a city.

The spans of a request: `GET way/<int:start>/<int:goal>` from the instrumentation of Django, and in it `load map` and
`shortest way`.
"""

import heapq
import os
import random

import django
import pyroscope
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.django import DjangoInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyroscope.otel import PyroscopeSpanProcessor

SERVICE = "routes"
SIDE = 60  # Crossings in a row, and rows.

Streets = dict[int, list[tuple[int, float]]]


def make_map() -> str:
    """The city as a text: each line has two crossings and the minutes between them."""
    chance = random.Random(1)
    lines = []
    for crossing in range(SIDE * SIDE):
        if crossing % SIDE + 1 < SIDE:
            lines.append(f"{crossing} {crossing + 1} {chance.uniform(1, 9):.2f}")
        if crossing + SIDE < SIDE * SIDE:
            lines.append(f"{crossing} {crossing + SIDE} {chance.uniform(1, 9):.2f}")
    return "\n".join(lines)


MAP = make_map()


def way(_: HttpRequest, start: int, goal: int) -> JsonResponse:
    """The crossings on the shortest way from one crossing to another."""
    if max(start, goal) >= SIDE * SIDE:
        return JsonResponse({"error": f"crossings are 0 to {SIDE * SIDE - 1}"}, status=404)
    with tracer.start_as_current_span("load map"):
        streets = load_map(MAP)
    with tracer.start_as_current_span("shortest way"):
        return JsonResponse({"way": shortest_way(streets, start, goal)})


def load_map(text: str) -> Streets:
    """Reads the map again for each request."""
    streets: Streets = {}
    for line in text.splitlines():
        one, other, minutes = line.split()
        streets.setdefault(int(one), []).append((int(other), float(minutes)))
        streets.setdefault(int(other), []).append((int(one), float(minutes)))
    return streets


def shortest_way(streets: Streets, start: int, goal: int) -> list[int]:
    """Dijkstra's algorithm."""
    came_from: dict[int, int] = {}
    best = {start: 0.0}
    open_ways = [(0.0, start)]
    while open_ways:
        minutes, crossing = heapq.heappop(open_ways)
        if crossing == goal:
            break
        for neighbour, more in streets[crossing]:
            if minutes + more < best.get(neighbour, float("inf")):
                best[neighbour] = minutes + more
                came_from[neighbour] = crossing
                heapq.heappush(open_ways, (minutes + more, neighbour))
    return walk_back(came_from, start, goal)


def walk_back(came_from: dict[int, int], start: int, goal: int) -> list[int]:
    """The crossings in the order in which one passes them."""
    passed = [goal]
    while passed[-1] != start:
        passed.append(came_from[passed[-1]])
    return passed[::-1]


urlpatterns = [path("way/<int:start>/<int:goal>", way)]

# Where a project has manage.py and wsgi.py, this stands in both, before Django is set up.
provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # to OTEL_EXPORTER_OTLP_ENDPOINT
pyroscope.configure(
    application_name=SERVICE,
    server_address=os.environ.get("PYROSCOPE_SERVER_ADDRESS", "http://localhost:4040"),
)
provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer(SERVICE)

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost", "127.0.0.1"], MIDDLEWARE=[])
DjangoInstrumentor().instrument()
django.setup()
application: WSGIHandler = get_wsgi_application()
