"""Each example starts by its one command, shows its functions in the flame graph of a span, and leaves nothing behind."""

import re
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(EXAMPLES / "run"), *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("example", ["flask", "fastapi", "django", "celery"])
def test_one_command_shows_the_examples_functions(example):
    ended = run(example, "--check")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^\w+ is in it$", ended.stdout, re.MULTILINE), ended.stdout
    viewer = re.search(r"^flame graph of .+: (http://127\.0\.0\.1:\d+)/flame\?", ended.stdout, re.MULTILINE)
    assert viewer, ended.stdout
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(viewer[1], timeout=10)


def test_there_is_a_folder_for_each_example_and_no_other():
    with_requirements = {file.parent.name for file in EXAMPLES.glob("*/requirements.txt")}
    assert with_requirements == {"flask", "fastapi", "django", "celery", "shop"}
    listed = run("--help").stdout.splitlines()[0]
    assert set(listed.split()[1].split("|")) == with_requirements - {"shop"}


@pytest.mark.parametrize("arguments", [[], ["rails"], ["flask", "--seconds", "few"]])
def test_what_cannot_be_meant_is_refused(arguments):
    ended = run(*arguments)
    assert ended.returncode != 0 and "examples/run flask|fastapi" in ended.stderr or "--seconds needs a number" in ended.stderr
