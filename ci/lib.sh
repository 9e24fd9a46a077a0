# Functions that the scripts in ci/ share. Sourced by bash with `set -euo pipefail`; a script sets nothing before it.
# shellcheck shell=bash

shopt -s inherit_errexit
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
case $TARGET in /*) ;; *) TARGET=$ROOT/$TARGET ;; esac
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The Pythons that are tested and measured, where they are found.
export PYTHONS="3.10 3.11 3.12 3.13 3.14 3.15"
# The same of Ruby.
export RUBIES="3.1 3.3 3.4"
# What reads profiles and takes uploads for the tests of all languages (tests/faults); `build_fault_server` builds it.
export FAULT_SERVER=$TARGET/debug/fault-server

# say TEXT: a line of progress, with the seconds since the script began.
say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }

# not_allowed ARGUMENT: ends the script as one does that was called in a wrong way.
not_allowed() {
    printf '%s: %s is not allowed; %s --help says what is\n' "${0#"$ROOT/"}" "${1:-to say nothing}" "${0#"$ROOT/"}" >&2
    exit 2
}

# fail TEXT: ends the script with a sentence.
fail() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# show_progress LOG PID: the file's last line each half minute while the process is there.
show_progress() {
    # Not with `sleep`, which would be left behind and keep the terminal's pipe open.
    while ! read -rt 30 <> <(:) && kill -0 "$2" 2>/dev/null; do say "... $(tail -n 1 "$1" | cut -c 1-100)"; done
}

# quietly LOG COMMAND...: its output goes to the file, whose last line is shown each half minute, and its end if the command fails.
quietly() {
    local log=$1 shows code=0
    shift
    mkdir -p "${log%/*}"
    : >"$log"
    show_progress "$log" "$BASHPID" >&2 &
    shows=$!
    "$@" >"$log" 2>&1 </dev/null || code=$?
    kill "$shows" 2>/dev/null || true
    wait "$shows" 2>/dev/null || true
    if [ "$code" != 0 ]; then
        tail -n 40 "$log" >&2
        fail "failed: $* (all of its output: $log)"
    fi
}

# may_apt: whether Debian packages can be installed here.
may_apt() { command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; }

# apt_install PACKAGE...: installs Debian packages if this is allowed here, else says what to install and fails.
apt_install() {
    if ! may_apt; then
        if command -v apt-get >/dev/null; then
            printf '%s: please install, as root: apt-get install %s\n' "${0##*/}" "$*" >&2
        else
            printf '%s: please install what Debian calls: %s\n' "${0##*/}" "$*" >&2
        fi
        return 1
    fi
    say "apt-get install $*" >&2
    local log=$TARGET/logs/apt.log
    mkdir -p "${log%/*}"
    (
        # Two at a time refuse each other.
        flock 7
        export DEBIAN_FRONTEND=noninteractive
        apt-get install -y --no-install-recommends "$@" && exit
        # A machine that never updated knows no package.
        apt-get update && apt-get install -y --no-install-recommends "$@"
    ) >"$log" 2>&1 </dev/null 7>"$TARGET/apt.lock" || {
        tail -n 10 "$log" >&2
        return 1
    }
}

# need_rust: cargo, as new as the sources want it, and the C compiler that it links with.
need_rust() {
    local needed found
    needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml")
    command -v cargo >/dev/null || fail "please install Rust $needed or newer (rustup.rs); cargo was not found"
    found=$(cd "$ROOT" && cargo --version 2>&1) || fail "please install Rust $needed or newer (rustup.rs); \`cargo --version\` fails: $found"
    found=${found#cargo }
    if [ "$(printf '%s\n' "$needed" "${found%% *}" | sort -V | head -n 1)" != "$needed" ]; then
        fail "please install Rust $needed or newer (rustup.rs, or rustup update); this is ${found%% *}"
    fi
    command -v cc >/dev/null || apt_install gcc libc6-dev || exit 1
}

# has_zig: whether wheels can be linked against an old glibc, and for other machines.
has_zig() { "$(tools)/bin/python" -m ziglang version >/dev/null 2>&1; }

# has_zigbuild: whether cargo can link libraries against an old glibc.
has_zigbuild() { has_zig && [ -x "$(tools)/bin/cargo-zigbuild" ]; }

# unwinder [PROCESSOR]: what a library that zig links is linked with in place of libgcc_s.so.1 (ci/unwinder.c), for this
# machine's processor or another; prints its path.
unwinder() {
    local processor=${1:-$(uname -m)} python library
    library=$TARGET/unwinder/$processor/libgcc_s.so.1
    python=$(tools)/bin/python
    (
        # Two steps may want it at a time.
        flock 4
        if [ "$library" -nt "$ROOT/ci/unwinder.c" ]; then exit 0; fi
        mkdir -p "${library%/*}"
        quietly "$TARGET/logs/unwinder-$processor.log" "$python" -m ziglang cc -target "$processor-linux-gnu.2.17" -shared -fPIC \
            -nostdlib -Wl,-soname,libgcc_s.so.1 -o "$library.new" "$ROOT/ci/unwinder.c"
        mv "$library.new" "$library"
    ) 4>"$TARGET/unwinder.lock" || exit 1
    printf '%s\n' "$library"
}

# rust_flags [PROCESSOR]: the flags of a build that zig links: those of .cargo/config.toml, which RUSTFLAGS replaces, and libgcc's
# unwinder.
rust_flags() { printf '%s -Clink-arg=%s\n' -Cforce-frame-pointers=yes "$(unwinder "$@")"; }

# library_settings: how cargo builds the libraries of all packages for this machine, a variable a line: in one folder and with the same
# flags, so that what they share is compiled once, and linked for glibc 2.17 where there is zig. What is tested and measured is what
# users get.
library_settings() {
    local venv triple
    if has_zigbuild; then
        venv=$(tools)
        triple=$(uname -m)_unknown_linux_gnu
        # zig links and no more: with its headers `cargo zigbuild` finds names of Ruby's C API twice. In a folder of their own, as
        # cargo builds all again when the linker changes.
        printf '%s\n' "CARGO_TARGET_DIR=$TARGET/old-glibc" "PATH=$venv/bin:$PATH" "UNWINDER=$(unwinder)" \
            "CARGO_TARGET_${triple^^}_LINKER=$ROOT/ci/link-old-glibc"
    else
        say "without zig: what is built here only runs where glibc is as new as here" >&2
        printf '%s\n' "CARGO_TARGET_DIR=$TARGET/libraries"
    fi
}

# check_unwinder FILE...: fails with a sentence if one of these libraries has an unwinder of its own, or asks for none.
check_unwinder() {
    local library
    for library in "$@"; do
        if ! objdump -p "$library" | grep -q 'NEEDED *libgcc_s\.so\.1$'; then
            fail "${library##*/} does not ask for libgcc_s.so.1, so it has an unwinder of its own: pthread_exit through it crashes"
        fi
        if grep -qa 'libunwind: ' "$library"; then fail "${library##*/} has LLVM's unwinder in it: pthread_exit through it crashes"; fi
    done
}

# Processes that end with the script. Each has a process group of its own, so that its children end too.
STARTED=()

# start LOG COMMAND...: runs it in the background; $! is its process and group.
start() {
    local log=$1
    shift
    : >"$log"
    setsid "$@" >"$log" 2>&1 </dev/null &
    STARTED+=($!)
}

# wait_for_line LOG PATTERN PID: the text that the pattern's group matches, at most 30 s later, while the process runs.
wait_for_line() {
    local log=$1 pattern=$2 pid=$3 deadline=$((SECONDS + 30)) found
    while :; do
        found=$(sed -nE "s|.*$pattern.*|\1|p" "$log" | head -n 1)
        if [ -n "$found" ]; then
            printf '%s\n' "$found"
            return 0
        fi
        if ! kill -0 "$pid" 2>/dev/null || [ "$SECONDS" -ge "$deadline" ]; then return 1; fi
        sleep 0.1
    done
}

# end PID...: TERM to their groups, KILL to what is still there 20 s later.
end() {
    local pid deadline=$((SECONDS + 20))
    for pid in "$@"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
    for pid in "$@"; do
        while kill -0 -- "-$pid" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do sleep 0.1; done
        kill -KILL -- "-$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
}

# end_all: for a trap on EXIT. The last started ends first: what it still has to send goes to those that were started before.
end_all() {
    local number
    for ((number = ${#STARTED[@]} - 1; number >= 0; number--)); do end "${STARTED[number]}"; done
    STARTED=()
}

# shellcheck source-path=SCRIPTDIR
for library in core python ruby dotnet viewer; do . "$ROOT/ci/$library.sh"; done
unset library
