"""Which function each span's CPU must be found in. The services are written so; `ci/demo --check` asserts it."""

from typing import NamedTuple


class Hot(NamedTuple):
    """The function with the most own CPU in the spans of a name, and where it is."""

    function: str
    file: str


# By service and span name, as the instrumentation packages name spans.
HOT = {
    ("checkout", "GET /cart/<int:user>"): Hot("read_item", "checkout.py"),  # fetches, which reads the rest of the table
    ("checkout", "SELECT"): Hot("traced_execution", "dbapi/__init__.py"),  # calls SQLite, which is C and has no frame of Python
    ("checkout", "check coupon"): Hot("is_coupon", "checkout.py"),  # calls re's matcher, C as well
    ("checkout", "GET /export"): Hot("iterencode", "json/encoder.py"),  # calls the C encoder of json.dumps
    ("checkout", "rank offers"): Hot("rank", "checkout.py"),
    ("search", "GET /suggest"): Hot("edit_distance", "search.py"),
    ("search", "score shard"): Hot("score", "search.py"),
    ("search", "GET /documents"): Hot("tokenize", "search.py"),
}

# Spans without a hot function of their own: they wait, or hand on, or do nothing.
CHEAP = {
    ("checkout", "POST /coupon"),
    ("checkout", "GET /offer/<int:user>"),
    ("checkout", "GET"),  # the request to search
    ("checkout", "GET /health"),
    ("search", "GET /similar/{user}"),
    ("search", "GET /health"),
}

# Spans that compute from start to end, and the least CPU for each second of their wall time. Coroutines take turns with
# those of other requests, and that is wall time too.
CPU_BOUND = {
    ("checkout", "check coupon"): 0.5,
    ("checkout", "GET /export"): 0.5,
    ("search", "GET /suggest"): 0.3,
}
