"""`orders`: a Flask service that reads a file of orders and shows a summary of one region.

The spans of a request: `GET /summary/<region>` from the instrumentation of Flask, and in it `read orders`, `summarise`
and `render`, each with a flame graph of its own.
"""

import csv
import io
import os
import random
import statistics
from collections import defaultdict
from decimal import Decimal
from typing import NamedTuple

import pyroscope
from flask import Flask, abort, render_template_string
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyroscope.otel import PyroscopeSpanProcessor

SERVICE = "orders"
REGIONS = ("north", "south", "west")
PAGE = """<!doctype html><title>{{ region }}</title><table>
{% for product, row in summary|dictsort %}
<tr><td>{{ product|title }}</td><td>{{ row.orders }}</td><td>{{ "%.2f"|format(row.turnover) }}</td>
<td>{{ row.median }}</td></tr>
{% endfor %}</table>"""

provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # to OTEL_EXPORTER_OTLP_ENDPOINT
pyroscope.configure(
    application_name=SERVICE,
    server_address=os.environ.get("PYROSCOPE_SERVER_ADDRESS", "http://localhost:4040"),
)
provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer(SERVICE)

app = Flask(__name__)
FlaskInstrumentor().instrument_app(app)


class Order(NamedTuple):
    """One line of the file."""

    region: str
    product: str
    amount: Decimal


class Row(NamedTuple):
    """What the page says of a product."""

    orders: int
    turnover: Decimal
    median: Decimal


def make_file() -> str:
    """The orders as another system exports them: a CSV file."""
    chance = random.Random(1)
    products = [f"product {number}" for number in range(40)]
    lines = [
        f"{chance.choice(REGIONS)},{chance.choice(products)},{chance.randrange(100, 99_999) / 100}"
        for _ in range(20_000)
    ]
    return "region,product,amount\n" + "\n".join(lines)


FILE = make_file()


@app.get("/summary/<region>")
def summary(region: str) -> str:
    """All of it again for each request, as nobody thought of a cache."""
    if region not in REGIONS:
        abort(404)
    with tracer.start_as_current_span("read orders"):
        orders = read_orders(FILE)
    with tracer.start_as_current_span("summarise"):
        rows = summarise(orders, region)
    with tracer.start_as_current_span("render"):
        return render_template_string(PAGE, region=region, summary=rows)


def read_orders(text: str) -> list[Order]:
    """Every line, of whatever region."""
    return [parse(line) for line in csv.DictReader(io.StringIO(text))]


def parse(line: dict[str, str]) -> Order:
    """One line's fields."""
    return Order(line["region"].strip().lower(), line["product"].strip(), Decimal(line["amount"]))


def summarise(orders: list[Order], region: str) -> dict[str, Row]:
    """What was sold of each product in a region."""
    amounts: dict[str, list[Decimal]] = defaultdict(list)
    for order in orders:
        if order.region == region:
            amounts[order.product].append(order.amount)
    return {
        product: Row(len(sold), sum(sold, Decimal()), statistics.median(sold)) for product, sold in amounts.items()
    }
