"""Prints the public surface of the modules that are installed, as JSON: run by test_surface.py with either's Python."""

import inspect
import json
import types

import pyroscope
import pyroscope.otel
import pyroscope_io


def shown(value):
    """A default: members of enums by name, as the classes differ."""
    for kind in (pyroscope.LineNo, pyroscope.ProfilerImplementation):
        if isinstance(value, kind):
            return str(value).replace(f"{int(value)}", members(kind)[int(value)])
    return repr(value)


def members(kind):
    return [f"{kind.__name__}.{name}" for number in range(8) for name in dir(kind) if is_member(kind, name, number)]


def is_member(kind, name, number):
    return isinstance(getattr(kind, name), kind) and int(getattr(kind, name)) == number


def signature(function):
    return [
        (parameter.name, parameter.kind.name, parameter.default is not parameter.empty and shown(parameter.default))
        for parameter in inspect.signature(function).parameters.values()
    ]


def surface(module):
    found = {}
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("_") or isinstance(value, types.ModuleType):
            continue
        if getattr(value, "__module__", "builtins").split(".")[0] not in ("pyroscope", "builtins"):
            continue
        if isinstance(value, type) and callable(getattr(value, "on_start", None)):
            for method in ("on_start", "on_end", "shutdown", "force_flush"):
                found[f"{name}.{method}"] = signature(getattr(value, method))
        elif name in ("LineNo", "ProfilerImplementation"):
            found[name] = members(value)
        elif callable(value):
            found[name] = signature(value)
        elif isinstance(value, str):
            found[name] = value
    return found


def names(module):
    return sorted(name for name in dir(module) if not name.startswith("_"))


described = {module.__name__: surface(module) for module in (pyroscope, pyroscope.otel)}
described["pyroscope_io names"] = [name for name in described["pyroscope"] if name in names(pyroscope_io)]
described["logger"] = pyroscope.LOGGER.name
print(json.dumps(described))
