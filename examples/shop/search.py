"""`search`: FastAPI under uvicorn. Its coroutines take turns on one thread, and each of them has its own span.

Each endpoint makes one function hot; `hot.py` says which.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import catalogue
import telemetry
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

SHARDS = 4
ITEMS = catalogue.items()


@contextlib.asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Sends the last spans and samples: uvicorn ends by the signal that it got, so Python's atexit is not reached."""
    yield
    telemetry.stop()


app = FastAPI(lifespan=lifespan)
tracer = telemetry.start("search")
FastAPIInstrumentor.instrument_app(app, exclude_spans=["receive", "send"])


@app.get("/suggest")
async def suggest(word: str) -> dict[str, Any]:
    """Burns CPU in pieces; between them the event loop runs other requests."""
    best: list[tuple[int, str]] = []
    for known in catalogue.WORDS:
        best.append((edit_distance(word[:16], known), known))
        await asyncio.sleep(0)
    return {"suggestions": [known for _, known in sorted(best)[:3]]}


def edit_distance(a: str, b: str) -> int:
    """Levenshtein's distance by the whole table, sixty times over to be slow."""
    for _ in range(60):
        row = list(range(len(b) + 1))
        for i, x in enumerate(a, 1):
            above, row[0] = row[0], i
            for j, y in enumerate(b, 1):
                change = above if x == y else above + 1
                above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, change)
    return row[-1]


@app.get("/similar/{user}")
async def similar(user: int) -> dict[str, Any]:
    """One task a shard, all at once on the same thread, each inside a span of its own."""
    shards = await asyncio.gather(*(score_shard(user, shard) for shard in range(SHARDS)))
    return {"items": sorted((item for shard in shards for item in shard), key=lambda item: item["id"])}


async def score_shard(user: int, shard: int) -> list[dict[str, Any]]:
    """Scores every fourth of the first 600 goods."""
    with tracer.start_as_current_span("score shard"):
        scored = []
        for item in ITEMS[shard:600:SHARDS]:
            scored.append({"id": item["id"], "score": score(user, item["name"])})
            if len(scored) % 10 == 0:
                await asyncio.sleep(0)
        return scored


def score(user: int, name: str) -> int:
    """A hash in plain Python."""
    value = user + 1
    for character in name * 16:
        value = (value * 31 + ord(character)) % 1_000_003
    return value


@app.get("/documents")
def documents(word: str) -> dict[str, Any]:
    """Not a coroutine: FastAPI runs it on a thread of its pool, with a copy of the request's context."""
    found = sum(1 for item in ITEMS[:1500] if word in tokenize(item["attributes"]))
    return {"found": found}


def tokenize(text: str) -> set[str]:
    """The words of a text, letter by letter."""
    words, word = set(), ""
    for character in text:
        if character.isalpha():
            word = word + character
        elif word:
            words.add(word)
            word = ""
    return words


@app.get("/health")
async def health() -> str:
    """Costs next to nothing."""
    return "ok"
