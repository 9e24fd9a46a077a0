"""Reads the profiles that ``server_address="file:///dir"`` writes, independently of the code that wrote them.

A profile is protobuf by the letter of its specification, so the few lines below know the wire format and pprof's field
numbers and nothing of ours.
"""

import gzip
import pathlib
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Tuple


@dataclass
class Frame:
    function: str
    file: str
    line: int
    first_line: int


@dataclass
class Sample:
    #: Leaf first.
    stack: List[Frame]
    #: One value a sample type.
    values: List[int]
    labels: Dict[str, str]

    @property
    def names(self) -> List[str]:
        return [frame.function for frame in self.stack]


@dataclass
class Profile:
    file: str
    #: (type, unit) of each value.
    sample_types: List[Tuple[str, str]] = field(default_factory=list)
    period_type: Tuple[str, str] = ("", "")
    period: int = 0
    samples: List[Sample] = field(default_factory=list)


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def fields(data: bytes) -> Iterator[Tuple[int, object]]:
    """(number, value) of each field of a message: an int for a varint, bytes for what has a length."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
        elif key & 7 == 2:
            length, at = _varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"wire type {key & 7} does not occur in pprof")
        yield key >> 3, value


def _numbers(value: object) -> List[int]:
    """A repeated number, packed or not."""
    if isinstance(value, int):
        return [value]
    numbers, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        numbers.append(number)
    return numbers


def parse(data: bytes, name: str = "") -> Profile:
    """A profile from its uncompressed bytes."""
    parts: Dict[int, list] = {}
    for number, value in fields(data):
        parts.setdefault(number, []).append(value)
    strings = [text.decode() for text in parts[6]]
    assert strings[0] == "" and len(set(strings)) == len(strings)

    def one(message: bytes) -> Dict[int, object]:
        return dict(fields(message))

    def value_type(message: bytes) -> Tuple[str, str]:
        return strings[one(message)[1]], strings[one(message)[2]]

    functions = {}
    for message in parts.get(5, ()):
        function = one(message)
        functions[function[1]] = (strings[function[2]], strings[function.get(4, 0)], function.get(5, 0))
    locations = {}
    for message in parts.get(4, ()):
        lines = []
        for number, value in fields(message):
            if number == 1:
                location = value
            elif number == 4:
                line = one(value)
                function, file, first = functions[line[1]]
                lines.append(Frame(function, file, line.get(2, 0), first))
        locations[location] = lines
    profile = Profile(name, [value_type(message) for message in parts[1]])
    profile.period_type = value_type(parts[11][0])
    profile.period = parts[12][0]
    for message in parts.get(2, ()):
        sample = Sample([], [], {})
        for number, value in fields(message):
            if number == 1:
                sample.stack += [frame for location in _numbers(value) for frame in locations[location]]
            elif number == 2:
                sample.values += _numbers(value)
            elif number == 3:
                label = one(value)
                sample.labels[strings[label[1]]] = strings[label[2]] if 2 in label else str(label[3])
        profile.samples.append(sample)
    return profile


def read_folder(folder: pathlib.Path) -> List[Profile]:
    """All profiles in a folder, oldest first."""
    files = sorted(pathlib.Path(folder).glob("*.pb.gz"))
    return [parse(gzip.decompress(file.read_bytes()), file.name) for file in files]


def samples_of(folder: pathlib.Path) -> List[Sample]:
    """The samples of all profiles in a folder."""
    return [sample for profile in read_folder(folder) for sample in profile.samples]
