"""Reads pprof profiles with nothing but the standard library.

It shares no code with the profiler: what that writes is judged by a second reading of the format
(https://github.com/google/pprof/blob/main/proto/profile.proto). It checks what it relies on, and a profile that points
nowhere is an error here, not a gap.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Frame:
    function: str
    file: str
    line: int
    first_line: int


@dataclass(frozen=True)
class Sample:
    stack: tuple[Frame, ...]
    """Leaf first."""
    values: tuple[int, ...]
    labels: dict[str, str] = field(hash=False)
    """A label that is there twice, which no server expects, has both values: `a, b`."""

    @property
    def names(self) -> list[str]:
        return [frame.function for frame in self.stack]


@dataclass(frozen=True)
class Profile:
    sample_types: list[tuple[str, str]]
    samples: tuple[Sample, ...]
    period_type: tuple[str, str]
    period: int
    time_nanos: int
    duration_nanos: int
    file: str = ""
    """The name of the file that it was read from, if it was."""

    def weight(self, sample: Sample) -> int:
        """The sample's nanoseconds; of a profile that has counts alone, count times period."""
        for value, (_, unit) in zip(sample.values, self.sample_types):
            if unit == "nanoseconds":
                return value
        return sample.values[0] * self.period

    def total(self) -> int:
        return sum(self.weight(sample) for sample in self.samples)


def read_folder(folder: Path) -> list[Profile]:
    """All profiles that `server_address="file:///folder"` left, oldest first."""
    profiles = [parse(path.read_bytes(), path.name) for path in sorted(folder.glob("*.pb.gz"))]
    return sorted(profiles, key=lambda profile: profile.time_nanos)


def samples_of(folder: Path) -> list[Sample]:
    """The samples of all profiles in a folder."""
    return [sample for profile in read_folder(folder) for sample in profile.samples]


def parse(data: bytes, file: str = "") -> Profile:
    """Decodes a profile, gzipped or not."""
    message = Message(gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data)
    strings = [text.decode("utf-8") for text in message.many(6)]
    if not strings or strings[0] or len(set(strings)) != len(strings):
        raise ValueError("a string table starts with the empty string and holds each string once")
    functions = {}
    for data in message.many(5):
        function = Message(data)
        name, source = strings[function.number(2)], strings[function.number(4)]
        functions[function.number(1)] = (name, source, function.number(5))
    locations = {}
    for data in message.many(4):
        location = Message(data)
        lines = [Message(line) for line in location.many(4)]
        frames = []
        for line in lines:
            name, source, first_line = functions[line.number(1)]
            frames.append(Frame(name, source, line.number(2), first_line))
        locations[location.number(1)] = frames
    sample_types = [value_type(data, strings) for data in message.many(1)]

    def sample(data: bytes) -> Sample:
        fields = Message(data)
        stack = tuple(frame for at in fields.numbers(1) for frame in locations[at])
        labels = {}
        for text in fields.many(3):
            label = Message(text)
            name = strings[label.number(1)]
            value = strings[label.number(2)]
            labels[name] = f"{labels[name]}, {value}" if name in labels else value
        values = tuple(fields.numbers(2))
        if len(values) != len(sample_types):
            raise ValueError("a sample has one value for each sample type")
        return Sample(stack, values, labels)

    return Profile(
        sample_types=sample_types,
        samples=tuple(sample(data) for data in message.many(2)),
        period_type=value_type(message.one(11), strings),
        period=message.number(12),
        time_nanos=message.number(9),
        duration_nanos=message.number(10),
        file=file,
    )


def value_type(data: bytes, strings: list[str]) -> tuple[str, str]:
    message = Message(data)
    return strings[message.number(1)], strings[message.number(2)]


class Message:
    """The fields of one protobuf message, by number."""

    def __init__(self, data: bytes) -> None:
        self.fields: dict[int, list[int | bytes]] = {}
        for number, value in fields_of(data):
            self.fields.setdefault(number, []).append(value)

    def many(self, number: int) -> list[bytes]:
        """A repeated message or string."""
        values = self.fields.get(number, [])
        if any(isinstance(value, int) for value in values):
            raise ValueError(f"field {number} is not of bytes")
        return values  # type: ignore[return-value]

    def one(self, number: int) -> bytes:
        values = self.many(number)
        return values[-1] if values else b""

    def number(self, number: int) -> int:
        """A varint field, 0 if it is not there."""
        value = self.fields.get(number, [0])[-1]
        if isinstance(value, bytes):
            raise ValueError(f"field {number} is not a number")
        return value

    def numbers(self, number: int) -> Iterator[int]:
        """A repeated varint field, packed or not."""
        for value in self.fields.get(number, []):
            if isinstance(value, int):
                yield value
                continue
            at = 0
            while at < len(value):
                one, at = varint(value, at)
                yield one


def fields_of(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of a message's fields, in their order."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        if kind == 2:
            length, at = varint(data, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        if at + length > len(data):
            raise ValueError(f"field {number} is longer than its message")
        yield number, data[at : at + length]
        at += length


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A signed 64-bit varint at `at`, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    value &= (1 << 64) - 1
    return (value - (1 << 64) if value >> 63 else value), at
