"""`checkout`: Flask under gunicorn, with two worker processes forked after the profiler was started.

Each endpoint makes one function hot; `hot.py` says which.
"""

import json
import os
import re
import sqlite3
import tempfile
from typing import Any

import catalogue
import requests
import telemetry
from flask import Flask, Response, jsonify, request
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from opentelemetry.instrumentation.sqlite3 import SQLite3Instrumentor

CART_SIZE = 40
COUPON = re.compile(r"(?:[A-Z0-9]+-?)+")
COUPON_LENGTH = 19  # The expression above doubles its time with each character.

DATABASE = os.path.join(tempfile.mkdtemp(prefix="shop-"), "shop.db")
catalogue.write_database(DATABASE)
ITEMS = catalogue.items()

app = Flask("checkout")
FlaskInstrumentor().instrument_app(app)
SQLite3Instrumentor().instrument()
RequestsInstrumentor().instrument()
tracer = telemetry.start("checkout")


@app.get("/cart/<int:user>")
def cart(user: int) -> Response:
    """N+1 queries: one for each thing in the cart."""
    connection = sqlite3.connect(DATABASE)
    cursor = connection.cursor()
    lines = []
    for position in range(CART_SIZE):
        sku = f"sku-{(user * 37 + position * 11) % catalogue.ITEMS}"
        lines.append(read_item(cursor, sku))
    connection.close()
    return jsonify(lines)


def read_item(cursor: sqlite3.Cursor, sku: str) -> dict[str, Any]:
    """Reads all of the table: the first part until the row is found, the rest when it is fetched."""
    cursor.execute("SELECT name, price, attributes FROM item WHERE sku = ?", (sku,))
    name, price, attributes = cursor.fetchone()
    return {"sku": sku, "name": name, "price": price, **parse_attributes(attributes)}


def parse_attributes(text: str) -> dict[str, Any]:
    """`red=1.5;blue=2` as a dictionary."""
    return {name: float(value) for name, value in (pair.split("=") for pair in text.split(";"))}


@app.post("/coupon")
def coupon() -> Response:
    """A regular expression that backtracks."""
    code = request.get_json()["code"][:COUPON_LENGTH]
    with tracer.start_as_current_span("check coupon"):
        valid = is_coupon(code)
    return jsonify({"code": code, "valid": valid})


def is_coupon(code: str) -> bool:
    """Two repetitions nested in one another: each way to cut the code into groups is tried."""
    return COUPON.fullmatch(code) is not None


@app.get("/export")
def export() -> Response:
    """All goods as JSON, three times."""
    pages = [json.dumps({"page": page, "items": ITEMS}) for page in range(3)]
    return jsonify({"bytes": sum(map(len, pages))})


@app.get("/offer/<int:user>")
def offer(user: int) -> Response:
    """Asks the other service, so that one trace holds spans of both, then sorts what it got."""
    answer = requests.get(f"{os.environ['SEARCH_URL']}/similar/{user}", timeout=10)
    with tracer.start_as_current_span("rank offers"):
        ranked = rank(answer.json()["items"])
    return jsonify(ranked[:10])


def rank(scored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Insertion sort."""
    ranked: list[dict[str, Any]] = []
    for item in scored:
        at = 0
        while at < len(ranked) and ranked[at]["score"] >= item["score"]:
            at += 1
        ranked.insert(at, item)
    return ranked


@app.get("/health")
def health() -> str:
    """Costs next to nothing."""
    return "ok"
