"""The goods of the shop, the same in every run."""

import random
import sqlite3
from typing import Any

ITEMS = 3000
WORDS = (
    "red blue green small large light heavy round flat warm cold dry soft hard old new "
    "lamp chair table shelf cup plate bowl spoon knife coat hat glove boot scarf bag box"
).split()


def items() -> list[dict[str, Any]]:
    """All goods, with their attributes as the text that an older system left behind."""
    chance = random.Random(2)
    goods = []
    for number in range(ITEMS):
        attributes = ";".join(
            f"{word}={chance.randrange(1, 5000) / 100}" for word in chance.sample(WORDS, 12)
        )
        goods.append(
            {
                "id": number,
                "name": " ".join(chance.sample(WORDS, 3)),
                "price": chance.randrange(100, 90_000) / 100,
                "attributes": attributes,
            }
        )
    return goods


def write_database(path: str) -> None:
    """Creates the database. The table has no index on `sku`, so each look-up reads all of it."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE item (sku TEXT, name TEXT, price REAL, attributes TEXT)")
        connection.executemany(
            "INSERT INTO item VALUES (?, ?, ?, ?)",
            [(f"sku-{item['id']}", item["name"], item["price"], item["attributes"]) for item in items()],
        )
    connection.close()
