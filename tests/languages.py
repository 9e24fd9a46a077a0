"""What tests of all languages share: the command that runs a client of each, and the sums of stats().

CLIENTS names the languages whose packages are to be had where the tests run: "python" unless it says more; DOTNET_CLIENTS the
program that bindings-dotnet/tests/Clients was built to.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
STATS = json.loads((HERE / "conformance/stats.json").read_text(encoding="utf-8"))

#: By language what runs a program of its. .NET's are compiled into one, which takes the source's place as an argument.
COMMANDS = {
    "python": [sys.executable, "python.py"],
    "ruby": ["bundle", "exec", "ruby", "-I", str(HERE.parent / "bindings-ruby/lib"), "ruby.rb"],
    "dotnet": ["dotnet", os.environ.get("DOTNET_CLIENTS", "Clients.dll"), "dotnet.cs"],
}
CLIENTS = os.environ.get("CLIENTS", "python").split()


def clients(directory: Path) -> list[Any]:
    """The languages that have a client in this directory, for a test to be run with; skipped if they are not there."""
    there = [language for language in COMMANDS if (directory / COMMANDS[language][-1]).exists()]

    def marks(language: str) -> list[Any]:
        reason = f"no package of {language} was built for these tests: CLIENTS is {' '.join(CLIENTS)}"
        return [] if language in CLIENTS else [pytest.mark.skip(reason=reason)]

    return [pytest.param(language, marks=marks(language)) for language in there]


def command(language: str, directory: Path, *arguments: str) -> list[str]:
    """Runs the client of a language."""
    *program, file = COMMANDS[language]
    return [*program, str(directory / file), *arguments]


def environment(**settings: str) -> dict[str, str]:
    """Ours, without what whoever runs the tests has set for profilers, proxies and certificates."""
    kept = {name: value for name, value in os.environ.items() if not is_setting(name)}
    return {**kept, **settings}


def is_setting(name: str) -> bool:
    return name.startswith(("PYROSCOPE_", "OTEL_", "SSL_CERT_")) or name.lower().endswith("_proxy")


def assert_adds_up(stats: dict[str, Any]) -> None:
    """Both equations, in number and in weight, and nothing waits after a stop."""
    for name, parts in STATS["sums"].items():
        for unit in ("samples", "weight") if name in STATS["tallies"] else (None,):
            whole, *rest = (stats[key] if unit is None else stats[key][unit] for key in (name, *parts))
            assert whole == sum(rest), (name, unit, stats)
    assert all(stats[name]["samples"] == stats[name]["weight"] == 0 for name in STATS["nothing_after_a_stop"]), stats


def in_any_case(text: str) -> str:
    """To compare by: a setting has the name that its language gives it, server_address or ServerAddress."""
    return text.replace("_", "").lower()
