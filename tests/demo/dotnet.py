"""What `ci/demo dotnet --check` asserts of the running viewer, after examples/dotnet was under load.

SPANPROF_URL is the viewer, SPANPROF_DEMO the directory with the service's log and the SVG files.
"""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from dotnet_report import SERVICE, Viewer, value

VIEWER = Viewer(os.environ["SPANPROF_URL"])
DIRECTORY = Path(os.environ["SPANPROF_DEMO"])
INNER = ("price order", "reserve stock", "validate order", "render order")


@pytest.fixture(scope="module")
def spans() -> dict:
    return VIEWER.spans(SERVICE)


def test_spans_of_the_framework_and_of_the_program_are_there(spans):
    assert {*INNER, "GET /orders/{order:int}", "GET /price/{order:int}", "GET /stock/{item:int}"} <= set(spans)
    assert all(span["count"] > 0 for span in spans.values())


@pytest.mark.parametrize(
    ("kind", "most"),
    [("process_cpu", "price order"), ("memory", "render order"), ("lock", "reserve stock"), ("exception", "validate order")],
)
def test_each_kind_of_profile_is_with_the_span_that_does_it_most(kind, most):
    values = {name: value(VIEWER, kind, name) for name in INNER}
    assert max(values, key=values.get) == most, values
    assert values[most] > 0.8 * sum(values.values()), values


def test_the_hottest_function_is_the_one_that_was_made_hot(spans):
    assert spans["price order"]["hottest"]["function"] == "Orders.Work.Discount"


def test_the_profiler_had_nothing_to_warn_of():
    assert "warn: Pyroscope" not in (DIRECTORY / "orders.log").read_text()


def test_the_flame_graph_names_the_hot_function():
    assert "Orders.Work.Discount" in (DIRECTORY / "orders-price-order.svg").read_text()
