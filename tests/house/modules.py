"""Which file of a Rust crate uses which, as `use` lines and paths say it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

NAME = r"(?:r#)?[A-Za-z_][A-Za-z0-9_]*"
HEADS = ("crate", "super", "self")


@dataclass
class Module:
    """A file, or a `mod NAME { … }` within one, and what stands in it."""

    path: Path
    name: tuple[str, ...]
    code: str
    # The module that the whole file is.
    file: tuple[str, ...]
    children: set[str] = field(default_factory=set)
    # What `use` lines call something here: name -> the path that it stands for.
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    # What it hands on from another module: name -> the path that it stands for; "*" -> paths of which all is handed on.
    hands_on: dict[str, tuple[str, ...]] = field(default_factory=dict)
    all_of: list[tuple[str, ...]] = field(default_factory=list)
    # Paths from the crate's root.
    paths: list[tuple[str, ...]] = field(default_factory=list)
    # What `use` lines take from other crates.
    outside: list[tuple[str, ...]] = field(default_factory=list)


def without_comments_and_texts(source: str) -> str:
    """The code alone: no comment, and of texts and characters nothing but their quotes."""
    pattern = re.compile(
        r"""//[^\n]* | /\*.*?\*/ | b?r(?P<h>\#*)".*?"(?P=h) | b?"(?:\\.|[^"\\])*" | b?'(?:\\.[^']*|[^'\\])'""",
        re.DOTALL | re.VERBOSE,
    )
    return pattern.sub(lambda found: " " if found[0].startswith("/") else '""', source)


def without_tests(code: str) -> str:
    """Without items that only a test build has."""
    for found in reversed(list(re.finditer(r"#\[cfg\((?:all\()?(?:test|loom)\b[^\]]*\]", code))):
        end = end_of_item(code, found.end())
        code = code[: found.start()] + code[end:]
    return code


def end_of_item(code: str, start: int) -> int:
    depth = 0
    for at in range(start, len(code)):
        if code[at] in "([{":
            depth += 1
        elif code[at] in ")]}":
            depth -= 1
            if depth == 0 and code[at] == "}":
                return at + 1
        elif code[at] == ";" and depth == 0:
            return at + 1
    return len(code)


def leaves(tree: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The paths of a `use` tree, each with the name that it has from there on."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if brace:
        prefix = tuple(part for part in re.split(r"\s*::\s*", head.strip()) if part)
        for part in split_at_commas(rest[: rest.rindex("}")]):
            for path, name in leaves(part):
                yield (prefix, prefix[-1] if name == "self" else name) if path == ("self",) else (prefix + path, name)
        return
    path_text, _, alias = tree.partition(" as ")
    path = tuple(re.split(r"\s*::\s*", path_text.strip()))
    yield path, alias.strip() or path[-1]


def split_at_commas(text: str) -> Iterator[str]:
    depth, begin = 0, 0
    for at, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    if text[begin:].strip():
        yield text[begin:]


class Crate:
    """The modules of a crate, and the arrows between their files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[tuple[str, ...], Module] = {}
        top = root / "lib.rs" if (root / "lib.rs").exists() else root / "main.rs"
        self.read(top, ())
        for module in self.modules.values():
            self.read_paths(module)

    def read(self, path: Path, name: tuple[str, ...]) -> None:
        code = without_tests(without_comments_and_texts(path.read_text(encoding="utf-8")))
        self.add(path, name, code, name)
        below = path.parent if path.name in ("lib.rs", "main.rs", "mod.rs") else path.with_suffix("")
        module = self.modules[name]
        for child in re.findall(rf"\bmod\s+({NAME})\s*;", module.code):
            for file in (below / f"{child}.rs", below / child / "mod.rs"):
                if file.exists():
                    module.children.add(child)
                    self.read(file, (*name, child))

    def add(self, path: Path, name: tuple[str, ...], code: str, file: tuple[str, ...]) -> None:
        module = self.modules[name] = Module(path, name, code, file)
        while found := re.search(rf"\bmod\s+({NAME})\s*(?=\{{)", module.code):
            end = end_of_item(module.code, found.end())
            module.children.add(found[1])
            self.add(path, (*name, found[1]), module.code[found.end() + 1 : end - 1], file)
            module.code = module.code[: found.start()] + module.code[end:]

    def read_paths(self, module: Module) -> None:
        code = module.code
        for public, tree in re.findall(r"\b(pub(?:\s*\([^)]*\))?\s+)?use\s+([^;]+);", code):
            for path, name in leaves(tree):
                known = self.from_root(module, path)
                if known is None:
                    module.outside.append(path)
                    continue
                module.names[name] = known
                if not public:
                    module.paths.append(known)
                elif name == "*":
                    module.all_of.append(known[:-1])
                else:
                    module.hands_on[name] = known
        rest = re.sub(r"\buse\s+[^;]+;", "", code)
        for text in re.findall(rf"(?<![\w:])(?:{NAME}\s*::\s*)+{NAME}", rest):
            known = self.from_root(module, tuple(re.split(r"\s*::\s*", text)))
            if known is not None:
                module.paths.append(known)

    def from_root(self, module: Module, path: tuple[str, ...]) -> tuple[str, ...] | None:
        """A path as it is from the crate's root; None where it is of another crate, or of no file."""
        here = module.name
        if path[0] == "crate":
            return path[1:]
        if path[0] in module.names:
            return module.names[path[0]] + path[1:]
        if path[0] in module.children:
            return here + path
        if path[0] not in HEADS:
            return None
        while path and path[0] in ("super", "self"):
            here = here[:-1] if path[0] == "super" else here
            path = path[1:]
        return here + path

    def target(self, path: tuple[str, ...], seen: frozenset[tuple[str, ...]] = frozenset()) -> tuple[str, ...] | None:
        """The module that defines what a path names, past all that hand it on."""
        if path in seen:
            return None
        for length in range(len(path), -1, -1):
            module = self.modules.get(path[:length])
            if module is None:
                continue
            rest = path[length:]
            if rest and rest[0] in module.hands_on:
                return self.target(module.hands_on[rest[0]] + rest[1:], seen | {path})
            if rest and not self.defines(module, rest[0]):
                for given in module.all_of:
                    found = self.target(given + rest, seen | {path})
                    if found is not None and self.defines(self.modules[found], rest[0]):
                        return found
            return path[:length]
        return None

    def defines(self, module: Module, name: str) -> bool:
        return re.search(rf"\b(?:fn|struct|enum|trait|type|const|static|union|macro_rules!|mod)\s+{re.escape(name)}\b", module.code) is not None

    def arrows(self) -> dict[tuple[str, ...], dict[tuple[str, ...], set[str]]]:
        """Of each module those whose files it needs, with the names it needs of them."""
        found: dict[tuple[str, ...], dict[tuple[str, ...], set[str]]] = {module.file: {} for module in self.modules.values()}
        for module in self.modules.values():
            for path in module.paths:
                # A module by itself is no use of what is in its file: what is called by its name is.
                target = None if path in self.modules else self.target(path)
                target = None if target is None else self.modules[target].file
                if target is not None and target != module.file:
                    found[module.file].setdefault(target, set()).add(path[-1])
        return found


def circles(arrows: dict[tuple[str, ...], dict[tuple[str, ...], set[str]]]) -> list[list[tuple[str, ...]]]:
    """Modules that need each other, each group of them sorted."""
    reach: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for start in arrows:
        seen: set[tuple[str, ...]] = set()
        waiting = list(arrows[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting.extend(arrows[name])
        reach[start] = seen
    groups = {frozenset(other for other in reach[name] if name in reach[other]) for name in arrows if name in reach[name]}
    return sorted(sorted(group) for group in groups)


def floor_of(name: tuple[str, ...], floors: list[list[str]]) -> int | None:
    """The number of the floor that a module is on: that of the longest of its names that a floor lists."""
    for length in range(len(name), 0, -1):
        for number, floor in enumerate(floors):
            if "/".join(name[:length]) in floor:
                return number
    return None
