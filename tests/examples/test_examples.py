"""Each example starts by its one command, shows its functions in the flame graph of a span, and leaves nothing behind."""

import http.client
import re
import subprocess
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
PYTHON, RUBY = ["flask", "fastapi", "django", "celery"], ["sinatra", "rails", "sidekiq"]
NAMES = PYTHON + RUBY
ABSENT = 77  # The code that says that what an example needs is not to be had here.


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(EXAMPLES / "run"), *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def checked() -> dict[str, Future]:
    """Four at a time, as they wait most of the time. Each has a viewer and ports of its own."""
    with ThreadPoolExecutor(4) as pool:
        return {name: pool.submit(run, name, "--check") for name in NAMES}


@pytest.mark.parametrize("example", NAMES)
def test_one_command_shows_the_examples_functions(checked, example):
    ended = checked[example].result()
    if ended.returncode == ABSENT and example in RUBY:
        pytest.skip(ended.stderr.splitlines()[-1])
    assert ended.returncode == 0, ended.stdout + ended.stderr
    seen = re.search(r"^([\w#]+) is in it$", ended.stdout, re.MULTILINE)
    assert seen, ended.stdout
    page = re.search(r"^flame graph of .+: (http://127\.0\.0\.1:\d+/flame\?\S+)", ended.stdout, re.MULTILINE)
    assert page, ended.stdout
    assert not shows(page[1], seen[1]), "its viewer goes on"


def shows(url: str, function: str) -> bool:
    """Whether a page has a function. Another example's viewer may have its port by now."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return function in answer.read().decode()
    except (OSError, http.client.HTTPException):
        return False


def test_there_is_a_folder_for_each_example_and_no_other():
    assert {file.parent.name for file in EXAMPLES.glob("*/requirements.txt")} == {*PYTHON, "shop"}
    assert {file.parent.name for file in EXAMPLES.glob("ruby/*/Gemfile")} == {*RUBY, "shop"}
    listed = run("--help").stdout.splitlines()[0]
    assert listed.split()[1].split("|") == NAMES


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "examples/run flask|fastapi|django|celery|sinatra|rails|sidekiq"),
        (["spring"], "examples/run: spring is not allowed"),
        (["flask", "--seconds", "few"], "--seconds needs a number"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments, says):
    ended = run(*arguments)
    assert ended.returncode != 0
    assert says in ended.stderr
