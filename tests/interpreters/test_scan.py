"""The interpreter under test publishes no frame that a handler could not read yet: see scan.py."""

import pytest
import scan


def test_the_entry_frame_is_written_before_it_is_published() -> None:
    try:
        version, late = scan.scan()
    except scan.NotHere as why:
        pytest.skip(str(why))
    assert not late, version


DEBIAN = """
push   %rbp
sub    $0x178,%rsp
mov    %rax,0x120(%rsp)
movups %xmm0,0x128(%rsp)
lea    0x120(%rsp),%rax
mov    %rax,0x8(%rsi)
mov    %rsi,0x48(%rdi)
movb   $0x3,0x166(%rsp)
"""


def test_what_comes_too_late_is_seen() -> None:
    lines = DEBIAN.split("\n")
    assert scan.missing(lines, 70) == ["owner"]
    assert scan.missing([*lines[:3], lines[8], *lines[3:]], 70) == []
    assert scan.missing([line for line in lines if "xmm" not in line], 70) == ["previous", "owner"]
