"""`recommend`: a FastAPI service that compares customers with one another.

A request runs several coroutines at once on one thread, and a part of the work in FastAPI's thread pool. Each has its
own span, and each span its own CPU.
"""

import asyncio
import contextlib
import math
import os
import random
from collections.abc import AsyncIterator

import pyroscope
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pyroscope.otel import PyroscopeSpanProcessor

SERVICE = "recommend"
SHARDS = 3
SHOWN = 5

provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))  # to OTEL_EXPORTER_OTLP_ENDPOINT
pyroscope.configure(
    application_name=SERVICE,
    server_address=os.environ.get("PYROSCOPE_SERVER_ADDRESS", "http://localhost:4040"),
)
provider.add_span_processor(PyroscopeSpanProcessor(scope="all"))
trace.set_tracer_provider(provider)
tracer = trace.get_tracer(SERVICE)


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Sends the last spans and samples: uvicorn ends by the signal that it got, so Python's atexit is not reached."""
    yield
    await asyncio.to_thread(provider.shutdown)
    await asyncio.to_thread(pyroscope.shutdown)


app = FastAPI(lifespan=lifespan)
FastAPIInstrumentor.instrument_app(app, exclude_spans=["receive", "send"])

Ratings = dict[int, float]


def make_ratings() -> list[Ratings]:
    """What each customer thinks of some of the goods."""
    chance = random.Random(1)
    return [
        {good: chance.randrange(1, 6) / 5 for good in chance.sample(range(400), 40)} for _ in range(900)
    ]


RATINGS = make_ratings()


@app.get("/recommend/{customer}")
async def recommend(customer: int) -> dict[str, list[int]]:
    """Goods that similar customers like."""
    customer %= len(RATINGS)
    shards = await asyncio.gather(*(compare_shard(customer, shard) for shard in range(SHARDS)))
    neighbours = sorted((pair for shard in shards for pair in shard), reverse=True)[:50]
    goods = await run_in_threadpool(rank_goods, customer, neighbours)
    return {"goods": goods}


async def compare_shard(customer: int, shard: int) -> list[tuple[float, int]]:
    """Every third customer. Lets the event loop run the other shards now and then."""
    with tracer.start_as_current_span("compare shard"):
        found = []
        for other in range(shard, len(RATINGS), SHARDS):
            found.append((similarity(RATINGS[customer], RATINGS[other]), other))
            if len(found) % 50 == 0:
                await asyncio.sleep(0)
        return found


def similarity(one: Ratings, other: Ratings) -> float:
    """The cosine of the angle between two customers."""
    product = sum(rating * other.get(good, 0.0) for good, rating in one.items())
    return product / (length(one) * length(other))


def length(ratings: Ratings) -> float:
    """Computed anew for each pair."""
    return math.sqrt(sum(rating * rating for rating in ratings.values()))


def rank_goods(customer: int, neighbours: list[tuple[float, int]]) -> list[int]:
    """Not a coroutine: runs on a thread of the pool, in a copy of the request's context."""
    with tracer.start_as_current_span("rank goods"):
        scores: dict[int, float] = {}
        for similar, other in neighbours:
            for good, rating in RATINGS[other].items():
                if good not in RATINGS[customer]:
                    scores[good] = scores.get(good, 0.0) + similar * rating
        return sorted(scores, key=lambda good: scores[good], reverse=True)[:SHOWN]
