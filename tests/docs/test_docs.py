"""The documents say what the program does: names, defaults, links, YAML and the Python in them."""

import enum
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pyroscope
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("bindings-*/README.md")), *sorted(DOCS.rglob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("README.md"))
CONFIGURATION = DOCS / "python" / "configuration.md"
TROUBLESHOOTING = DOCS / "python" / "troubleshooting.md"
DOTNET_TROUBLESHOOTING = DOCS / "dotnet" / "troubleshooting.md"
LIMITS = DOCS / "python" / "limits.md"
MESSAGES = DOCS / "messages.md"


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, of lines that begin with a name."""
    section = page.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def as_written(default: object) -> str:
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    return f'"{default}"' if isinstance(default, str) else repr(default)


def test_the_reference_has_every_argument_with_its_default():
    written = {cells[0].strip("`"): cells[2].strip("`") for cells in rows(CONFIGURATION, "Arguments of `configure`")}
    parameters = inspect.signature(pyroscope.configure).parameters
    assert written == {name: as_written(parameter.default) for name, parameter in parameters.items()}
    assert list(written) == list(parameters)


def test_the_reference_has_every_variable_that_is_read():
    core = (ROOT / "core/src/config/environment.rs").read_text().split("#[cfg(test)]")[0]
    sources = [core, *(file.read_text() for file in (ROOT / "bindings-python/python").rglob("*.py"))]
    # As a string of its own, not in prose.
    read = {name for source in sources for name in re.findall(r'"((?:OTEL|PYROSCOPE)_[A-Z_]+)"', source)}
    assert {cells[0].strip("`") for cells in rows(CONFIGURATION, "Environment")} == read


def test_an_argument_names_only_variables_that_the_reference_explains():
    variables = {cells[0].strip("`") for cells in rows(CONFIGURATION, "Environment")}
    for name, *_, environment in rows(CONFIGURATION, "Arguments of `configure`"):
        assert set(re.findall(r"`([A-Z_]{4,})`", environment)) <= variables, name


def test_the_reference_has_every_key_of_stats():
    written = [name for cells in rows(TROUBLESHOOTING, "stats()") for name in re.findall(r"`(\w+)`", cells[0])]
    assert set(written) | {"last_error"} == set(pyroscope.stats())


def test_the_reference_of_dotnet_has_every_key_of_stats():
    written = [name for cells in rows(DOTNET_TROUBLESHOOTING, "Stats") for name in re.findall(r"`(\w+)`", cells[0])]
    source = (ROOT / "core/src/stats.rs").read_text()
    assert sorted(written) == sorted(re.findall(r'\("(\w+)", self\.\w+\)', source))
    # And the properties are those of the first table.
    properties = re.findall(r'public Tally \w+ => Tally\("(\w+)"\)', (ROOT / "bindings-dotnet/Pyroscope.OpenTelemetry/Diagnostics/ProfilerStats.cs").read_text())
    assert set(properties) == set(written[: len(properties)])


def test_the_messages_of_python_are_those_of_the_program():
    folders = [ROOT / "bindings-python/src", ROOT / "bindings-python/python"]
    files = [file for folder in folders for file in folder.rglob("*.*") if file.suffix in (".rs", ".py")]
    # What all languages say stands in the engine.
    files += [ROOT / "core/src/host.rs", ROOT / "core/src/config/tag_name.rs"]
    sources = [file.read_text() for file in files]
    # Where a text is broken over two lines.
    text = re.sub(r'"\s*\n\s*"', "", "\n".join(sources))
    messages = [cells[0].strip("`") for cells in rows(MESSAGES, "From Python")]
    for message in messages:
        assert all(part in text for part in re.split("[ =]?…[ =]?", message)), message
    # And there are no others.
    literal = [max(re.split("[ =]?…[ =]?", message), key=len) for message in messages]
    for sentence in re.findall(r'(?:(?:warn|inform|keep)_once\(|report\(Level::\w+, format!\()\s*"([^"]+)"', text):
        assert any(part in sentence for part in literal), sentence


def test_the_messages_of_dotnet_are_those_of_the_program():
    folder = ROOT / "bindings-dotnet"
    files = [*(folder / "src").rglob("*.rs"), *(folder / "Pyroscope.OpenTelemetry").rglob("*.cs")]
    text = "\n".join(file.read_text() for file in files)
    said = re.findall(r'(?:ProfilerMessages\.(?:Warn|Note)\(\$?|\breport\(\s*Level::\w+,\s*format!\()\s*"([^"]+)"', text)
    assert len(said) == len(re.findall(r"ProfilerMessages\.(?:Warn|Note)\(|\breport\(\s*Level", text)), "each is a text that is found here"
    # A name in braces there is … here, and so are two in a row.
    said = {re.sub(r"\{[^{}]*\}(: \{[^{}]*\})*", "…", sentence) for sentence in said}
    assert {cells[0].strip("`") for cells in rows(MESSAGES, "From .NET")} == said


def test_the_frames_without_a_function_are_those_of_the_program():
    files = [file for folder in ("core/src", "bindings-python/src") for file in (ROOT / folder).rglob("*.rs")]
    sources = "\n".join(file.read_text() for file in files)
    written = {name for cells in rows(LIMITS, "Frames in parentheses") for name in re.findall(r"`(.+?)`", cells[0])}
    assert {name for name in written if f'"{name}"' not in sources} == set()
    assert set(re.findall(r'named\("(\(.+?\))"\)', sources)) <= written


def test_the_frames_without_a_method_of_dotnet_are_those_of_the_program():
    sources = "\n".join(file.read_text() for folder in ("core/src", "bindings-dotnet/src") for file in (ROOT / folder).rglob("*.rs"))
    written = {name for cells in rows(DOTNET_TROUBLESHOOTING, "Frames in parentheses") for name in re.findall(r"`(\(.+?\))`", cells[0])}
    assert {name for name in written if f'"{name}"' not in sources} == set()
    binding = "\n".join(file.read_text() for file in (ROOT / "bindings-dotnet/src").rglob("*.rs"))
    assert set(re.findall(r'const \w+: &str = "(\(.+?\))"', binding)) <= written


def headings(page: Path) -> set[str]:
    """What can follow the # of a link, as GitHub makes it."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = re.sub(r"^( {4}|```).*?$", "", page.read_text(), flags=re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), f"{target} is not there"
        assert not heading or heading in headings(linked), f"{target}: no such heading"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_it_names_nothing_outside_of_the_project(page):
    assert re.findall(r"(?:\.\./)+shared\b", page.read_text()) == []


def test_every_page_is_in_the_index():
    listed = {(DOCS / link).resolve() for link in re.findall(r"\]\(([^)\s#]+)", (DOCS / "README.md").read_text())}
    assert {page for page in DOCS.rglob("*.md") if page not in listed} == {DOCS / "README.md"}


def soaked(heading: str) -> list[dict[str, int]]:
    """The numbers of a table of RELIABILITY.md, by column."""
    lines = [line for line in (ROOT / "RELIABILITY.md").read_text().split(f"## {heading}\n")[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [{name: int(cell) for name, cell in zip(cells[0], row, strict=True) if cell.isdigit()} for row in cells[2:]]


def test_the_numbers_of_the_readme_are_those_that_were_counted():
    text = " ".join((ROOT / "README.md").read_text().split())
    wrong, millions = re.search(r"(\d+) wrong of (\d+) million samples", text).groups()
    python = soaked("python")
    assert sum(row["samples"] for row in python) >= int(millions) * 1_000_000
    assert sum(row["wrong"] for row in python) == int(wrong)
    wrong, millions, lost = re.search(r"(\d+) wrong of (\d+) million waits .*?; (\d+) were lost", text).groups()
    waits = soaked("waits")
    assert sum(row["waits"] for row in waits) >= int(millions) * 1_000_000
    assert [sum(row[name] for row in waits) for name in ("wrong", "lost")] == [int(wrong), int(lost)]
    programs, signals = re.search(r"Of ([\d,]+) programs .*? none hung and (\d+), on .NET 8, ended by a signal", text).groups()
    exits = soaked("exits")
    assert sum(row["processes"] for row in exits) >= int(programs.replace(",", ""))
    assert [sum(row[name] for row in exits) for name in ("signals", "hung", "wrong")] == [int(signals), 0, 0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_in_it_runs_and_warns_of_nothing(page):
    for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        code = code.replace('"http://localhost:4040"', '"none"')
        # A span, so that the processor has met the provider's resource.
        code += "\nfrom opentelemetry import trace\nwith trace.get_tracer('t').start_as_current_span('s'): pass\n"
        environment = {**os.environ, "OTEL_SERVICE_NAME": "checkout", "PYROSCOPE_SERVER_ADDRESS": "none"}
        ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == (0, ""), code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_ruby_in_it_that_adds_our_processor_adds_an_exporter_too(page):
    # OpenTelemetry's SDK for Ruby adds one by itself only where no processor was added.
    for code in re.findall(r"^```ruby\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        if "sdk.add_span_processor(Pyroscope" in code:
            assert 'require "opentelemetry-exporter-otlp"' in code
            assert "sdk.add_span_processor(OpenTelemetry::SDK::Trace::Export::BatchSpanProcessor.new(exporter))" in code


@pytest.mark.parametrize("file", [*PAGES, ROOT / "examples/dotnet/Program.cs", ROOT / "viewer/src/pages/services.rs"], ids=lambda file: str(file.relative_to(ROOT)))
def test_the_dotnet_in_it_adds_our_processor_before_the_exporter(file):
    # What a span gets at its end comes too late for an exporter before it.
    blocks = [file.read_text()] if file.suffix != ".md" else re.findall(r"^```csharp\n(.*?)^```", file.read_text(), re.MULTILINE | re.DOTALL)
    for code in blocks:
        added = re.findall(r"\.(AddPyroscope|AddOtlpExporter)\(", code)
        assert added == sorted(added, key=["AddPyroscope", "AddOtlpExporter"].index), code


@pytest.mark.parametrize("file", sorted((DOCS / "grafana").glob("*.y*ml")), ids=lambda file: file.name)
def test_the_yaml_parses_and_has_no_key_twice(file):
    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict:
        keys = [loader.construct_object(key) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"twice in {file.name}: {keys}"
        return {loader.construct_object(key): loader.construct_object(value, deep=True) for key, value in node.value}

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    assert yaml.load(file.read_text(), Strict)


def data_sources() -> dict:
    provisioned = yaml.safe_load((DOCS / "grafana" / "datasources.yaml").read_text())
    assert provisioned["apiVersion"] == 1
    return {source["type"]: source for source in provisioned["datasources"]}


def test_grafana_is_told_to_look_for_spans_as_the_profiler_labels_them():
    sources = data_sources()
    pyroscope_source, tempo = sources["grafana-pyroscope-datasource"], sources["tempo"]
    # The keys of Grafana's documentation, "Configure trace to profiles correlation".
    to_profiles = tempo["jsonData"]["tracesToProfiles"]
    assert set(to_profiles) == {"datasourceUid", "tags", "profileTypeId", "customQuery"}
    assert to_profiles["datasourceUid"] == pyroscope_source["uid"]
    assert to_profiles["customQuery"] is False
    assert to_profiles["profileTypeId"] == "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
    assert to_profiles["tags"] == [
        {"key": "service.name", "value": "service_name"},
        {"key": "service.namespace", "value": "service_namespace"},
    ]


def test_the_containers_have_the_names_that_the_data_sources_use():
    services = yaml.safe_load((DOCS / "grafana" / "docker-compose.yaml").read_text())["services"]
    for source in data_sources().values():
        host, port = re.fullmatch(r"http://([a-z]+):(\d+)", source["url"]).groups()
        assert host in services
        published = [str(mapping).rpartition(":")[2] for mapping in services[host]["ports"]]
        assert port in published
    for service in services.values():
        assert re.fullmatch(r"grafana/[a-z]+:\d+\.\d+\.\d+", service["image"]), "a version, so that it works next year"
        assert all(str(mapping).startswith("127.0.0.1:") for mapping in service["ports"])
        for volume in service.get("volumes", []):
            assert (DOCS / "grafana" / volume.split(":")[0]).exists()
