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

# find_python 3.N: prints the path of such an interpreter: from PATH, from pyenv's versions, from uv's, or unpacked from
# an archive beside the project.
find_python() {
    local version=$1 candidate
    # A shim of pyenv may be on PATH for a version that is not chosen, so each candidate has to run.
    while read -r candidate; do
        if [ -x "$candidate" ] &&
            "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done < <(
        type -aP "python$version" || true
        printf '%s\n' "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version"
        type -aP python3 || true
        if command -v uv >/dev/null; then uv python find --no-project --system "$version" 2>/dev/null || true; fi
    )
    if [ -x "$ROOT/../shared/python/unpack" ]; then
        mkdir -p "$TARGET/python"
        flock "$TARGET/python" "$ROOT/../shared/python/unpack" "$TARGET/python" "$version" 2>/dev/null && return 0
    fi
    return 1
}

# newest_python: the newest of those that the profiler knows, or a newer one, or nothing.
newest_python() {
    local version
    for version in 3.13 3.12 3.11; do
        if find_python "$version"; then return 0; fi
    done
    if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        command -v python3
        return 0
    fi
    return 1
}

# find_ruby 3.N: prints the exports that make such a Ruby the one that `ruby` and `bundle` are: from PATH, from rbenv's
# versions, Debian's, or unpacked from an archive beside the project, which also has the gems.
find_ruby() {
    local version=$1 candidate unpack=$ROOT/../shared/ruby/unpack
    # Gems with C in them need make. Who asks for a Ruby says what to install where this is not allowed.
    if [ "$version" = 3.1 ] && may_apt && ! ruby -rmkmf -e '' 2>/dev/null; then apt_install ruby ruby-dev ruby-bundler make >&2 || true; fi
    while read -r candidate; do
        if [ -x "$candidate" ] && "$candidate" -rmkmf -e "exit RUBY_VERSION.start_with?('$version.')" >/dev/null 2>&1; then
            printf "export PATH='%s':\"\$PATH\"\n" "${candidate%/*}"
            if [ -x "$unpack" ]; then unpack_ruby system; fi
            return 0
        fi
    done < <(
        type -aP ruby || true
        printf '%s\n' "${RBENV_ROOT:-$HOME/.rbenv}/versions/$version".*/bin/ruby
    )
    [ -x "$unpack" ] && unpack_ruby "$version" 2>/dev/null
}

# unpack_ruby 3.N|system: prints the exports for a Ruby, or for the gems alone, of the archive beside the project.
unpack_ruby() {
    mkdir -p "$TARGET/ruby"
    flock "$TARGET/ruby" "$ROOT/../shared/ruby/unpack" "$TARGET/ruby" "$1"
}

# use_ruby 3.N [NAME GEMFILE]: makes this Ruby the one of this shell, with the gems that the file lists: by default what
# builds the gem and tests it. Fails with nothing said if there is no such Ruby.
use_ruby() {
    local version=$1 name=${2:-tests} gemfile=${3:-$ROOT/bindings-ruby/Gemfile} exports
    exports=$(find_ruby "$version") || return 1
    eval "$exports"
    # Gems of other versions of Ruby have other folders in it.
    export BUNDLE_PATH=${BUNDLE_PATH:-$TARGET/ruby/bundle/own} BUNDLE_GEMFILE=$TARGET/ruby-$version/$name/Gemfile
    mkdir -p "${BUNDLE_GEMFILE%/*}"
    # Each Ruby has a lock file of its own, and finds the gem itself by its whole path.
    sed "s|path: \"[^\"]*\"|path: \"$ROOT/bindings-ruby\"|" "$gemfile" >"$BUNDLE_GEMFILE.new"
    if ! cmp -s "$BUNDLE_GEMFILE.new" "$BUNDLE_GEMFILE" || ! bundle check >/dev/null 2>&1; then
        mv "$BUNDLE_GEMFILE.new" "$BUNDLE_GEMFILE"
        say "bundle install for Ruby $version: ${gemfile#"$ROOT/"}" >&2
        (
            # Two at a time write the same files.
            flock 6
            quietly "$TARGET/logs/bundle-$version-$name.log" bundle install
        ) 6>"$TARGET/ruby-$version/bundle.lock"
    fi
}

# need_libclang: what reads Ruby's headers for the engine, and clang's own headers, which Debian keeps in a package of their own.
need_libclang() {
    if [ -n "${LIBCLANG_PATH:-}" ]; then return 0; fi
    # libclang-cpp is another library, which is there wherever LLVM is.
    if compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null || compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null; then
        if compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stdarg.h' >/dev/null; then return 0; fi
    fi
    # Both are small in Debian 12; elsewhere they come with more.
    if may_apt && apt_install libclang1-14 libclang-common-14-dev; then return 0; fi
    apt_install libclang-dev
}

# build_ruby 3.N: compiles the engine for this Ruby into bindings-ruby/lib/pyroscope_otel/3.N, linked for glibc 2.17 where
# there is zig, if any source is newer than what was compiled here before with the same settings. Call use_ruby before, or make
# this Ruby the one of the shell: that needs no gem.
build_ruby() {
    local library=$ROOT/bindings-ruby/lib/pyroscope_otel/$1/pyroscope_otel.so stamp=$TARGET/ruby-$1/compiled settings environment
    need_rust
    need_libclang || fail "please install libclang and its headers (Debian: libclang1-14 libclang-common-14-dev)"
    settings=$(library_settings)
    mapfile -t environment <<<"$settings"
    settings="lto=${CARGO_PROFILE_RELEASE_LTO:-} ${environment[0]}"
    (
        # Two at a time write the same files, also for two Rubies: cargo leaves each at the same place.
        flock 5
        # Somebody else may have compiled another one since.
        if [ "$(cat "$stamp" 2>/dev/null)" = "$settings" ] && [ -f "$library" ] && [ ! "$library" -nt "$stamp" ] &&
            [ -z "$(find "$ROOT"/{Cargo.toml,Cargo.lock,core/Cargo.toml,core/src,bindings-ruby/ext} -newer "$stamp" -print -quit)" ]; then
            exit 0
        fi
        cd "$ROOT/bindings-ruby" || exit
        quietly "$TARGET/logs/ruby-$1-build.log" env "${environment[@]}" ruby -S rake compile 5>&-
        printf '%s\n' "$settings" >"$stamp"
    ) 5>"$TARGET/ruby-build.lock"
}

# is_venv PYTHON DIRECTORY: whether there is a virtual environment whose interpreter still runs and is this one.
is_venv() {
    [ -x "$2/bin/python" ] && "$2/bin/python" -c '' 2>/dev/null && [ "$("$2/bin/python" -V)" = "$("$1" -V)" ]
}

# make_venv PYTHON DIRECTORY: a virtual environment, if it is not there. It has no pip of its own, which would take longer than all
# else: `pip_install` installs into it.
make_venv() {
    local python=$1 directory=$2
    if is_venv "$python" "$directory"; then return 0; fi
    rm -rf "$directory"
    "$python" -m venv --without-pip "$directory" || fail "$python -m venv failed"
}

# pip_install LOG VENV ARGUMENT...: by the pip of the tools.
pip_install() {
    local log=$1 venv=$2 pip
    shift 2
    pip=$(tools)/bin/python
    # What pip itself compiles for this Python is kept for the next one with it.
    quietly "$log" env -u PYTHONDONTWRITEBYTECODE "$pip" -m pip --python "$venv/bin/python" install -q "$@"
}

# tools: a virtual environment with what builds the packages; prints its directory.
tools() {
    local python package directory=$TARGET/venv-tools
    python=$(newest_python) || fail "please install Python 3.11 or newer; python3.13, 3.12, 3.11 were not found"
    (
        # Two steps may want it at a time.
        flock 6
        if [ ! -x "$directory/bin/pip" ] || ! is_venv "$python" "$directory"; then
            if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
                # Debian keeps both in a package of their own.
                apt_install "python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv" || exit 1
            fi
            rm -rf "$directory"
            "$python" -m venv "$directory" || fail "$python -m venv failed"
        fi
        if [ ! -x "$directory/bin/maturin" ]; then
            say "pip install maturin" >&2
            quietly "$TARGET/logs/pip-tools.log" "$directory/bin/python" -m pip install -q 'maturin>=1.16,<2'
        fi
        # Older ones of pip do not run on the newest Python.
        for package in 'pip>=26' 'ziglang>=0.17,<0.18' 'cargo_zigbuild>=0.24,<0.25'; do
            if [ -f "$directory/.${package%%>*}" ]; then continue; fi
            say "pip install ${package%%>*}" >&2
            if "$directory/bin/python" -m pip install -q "$package" >"$TARGET/logs/pip-${package%%>*}.log" 2>&1 </dev/null; then
                : >"$directory/.${package%%>*}"
            else
                say "${package%%>*} could not be installed (see $TARGET/logs/pip-${package%%>*}.log)" >&2
            fi
        done
    ) 6>"$TARGET/tools.lock" || exit 1
    printf '%s\n' "$directory"
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

# build_wheel DIRECTORY [RUST TARGET]: leaves the one wheel for this machine, or for another target, there and prints its path. Not in
# target/wheels, where maturin leaves what pip makes of the sources.
build_wheel() {
    local directory=$1 processor settings environment options=() venv
    need_rust
    venv=$(tools)
    if [ $# -gt 1 ]; then
        processor=${2%%-*}
        has_zig || fail "a wheel for $2 needs ziglang, which could not be installed"
        options=(--target "$2" --zig --compatibility manylinux2014)
        # maturin looks for zig in the Python on the path.
        environment=("CARGO_TARGET_DIR=$TARGET/maturin" "PATH=$venv/bin:$PATH" "RUSTFLAGS=$(rust_flags "$processor")")
    else
        processor=$(uname -m)
        if has_zigbuild; then options=(--compatibility manylinux2014); fi
        settings=$(library_settings)
        mapfile -t environment <<<"$settings"
    fi
    mkdir -p "$directory"
    (
        cd "$ROOT" || exit
        # Two at a time make the same one, while others install it: it takes the old one's place at once.
        flock 7
        rm -rf "$directory/.new"
        quietly "$TARGET/logs/maturin-$processor.log" env "${environment[@]}" "$venv/bin/maturin" build --release --strip --locked \
            --manifest-path bindings-python/Cargo.toml --interpreter "$venv/bin/python" --out "$directory/.new" "${options[@]}"
        for old in "$directory"/pyroscope_otel-*"_$processor.whl"; do
            if [ ! -e "$directory/.new/${old##*/}" ]; then rm -f "$old"; fi
        done
        mv -f "$directory/.new"/*.whl "$directory"
        rmdir "$directory/.new"
    ) 7>"$TARGET/wheel.lock"
    printf '%s\n' "$directory"/pyroscope_otel-*"_$processor.whl"
}

# build_viewer: the unoptimised build, which is ready in a third of the time; prints its path. $BUILT_WITH may say with what else it is
# built here, as cargo builds what they share once more for another choice.
build_viewer() {
    local selection
    need_rust
    read -ra selection <<<"${BUILT_WITH:--p spanprof}"
    (cd "$ROOT" && quietly "$TARGET/logs/viewer.log" cargo build --locked "${selection[@]}" --target-dir "$TARGET")
    printf '%s\n' "$TARGET/debug/spanprof"
}

# find_dotnet: puts an SDK for .NET 10 on the path: the machine's, or one unpacked from an archive beside the project. Fails
# where there is none.
find_dotnet() {
    # No telemetry, no greeting, and no servers that outlive the build.
    export DOTNET_CLI_TELEMETRY_OPTOUT=1 DOTNET_NOLOGO=1 MSBUILDDISABLENODEREUSE=1 DOTNET_CLI_USE_MSBUILD_SERVER=0
    if command -v dotnet >/dev/null && dotnet --list-sdks 2>/dev/null | grep -qE '^(1[0-9]|[2-9][0-9])\.'; then return 0; fi
    [ -x "$ROOT/../shared/dotnet/unpack" ] || return 1
    mkdir -p "$TARGET"
    local exports
    exports=$(flock "$TARGET/dotnet-sdk.lock" "$ROOT/../shared/dotnet/unpack" "$TARGET/dotnet-sdk" 2>/dev/null) || return 1
    eval "$exports"
}

# has_dotnet_runtime N.0: whether programs for this version can run, ASP.NET Core's too.
has_dotnet_runtime() { dotnet --list-runtimes | grep -q "^Microsoft.AspNetCore.App $1\."; }

# build_dotnet_library: the native half of the .NET package; prints its path.
build_dotnet_library() {
    local settings environment library=$TARGET/dotnet-library/libspanprof.so
    need_rust
    settings=$(library_settings)
    mapfile -t environment <<<"$settings"
    mkdir -p "${library%/*}"
    (
        cd "$ROOT" || exit
        # Two at a time write the same files.
        flock 4
        quietly "$TARGET/logs/dotnet-library.log" env "${environment[@]}" cargo build --release --locked -p pyroscope-otel-dotnet --lib 4>&-
        strip -o "$library.new" "${environment[0]#*=}/release/libspanprof.so"
        # What is the same keeps its time, and a process may have the old one open.
        if ! cmp -s "$library.new" "$library"; then mv "$library.new" "$library"; fi
    ) 4>"$library.lock"
    printf '%s\n' "$library"
}

# dotnet_build LIBRARY PROJECT [OPTION...]: builds a project of bindings-dotnet or examples, whose output is under target/dotnet.
dotnet_build() {
    local library=$1 project=$2
    shift 2
    quietly "$TARGET/logs/dotnet-$(basename "$project").log" dotnet build "$ROOT/$project" -c Release \
        -p:NativeLibrary="$library" -p:ArtifactsPath="$TARGET/dotnet" -p:UseSharedCompilation=false "$@"
}

# dotnet_build_with_package FOLDER PROJECT OUTPUT [OPTION...]: builds a program with the package of this folder, not with
# its sources, into a folder of its own.
dotnet_build_with_package() {
    local folder=$1 project=$2 output=$3 sources=RestoreAdditionalProjectSources
    shift 3
    # Where packages come with the SDK there is no other source to ask.
    if [ -n "${NUGET_FALLBACK_PACKAGES:-}" ]; then sources=RestoreSources; fi
    # The version stays and its content changes, so what was unpacked before is not this one.
    export NUGET_PACKAGES=$TARGET/dotnet-packages
    rm -rf "$NUGET_PACKAGES/pyroscope.opentelemetry" "$output"
    quietly "$TARGET/logs/dotnet-$(basename "$output").log" dotnet build "$ROOT/$project" -c Release -p:PackageFolder="$folder" \
        -p:$sources="$folder" -p:ArtifactsPath="$output" -p:UseSharedCompilation=false "$@"
}

# install_wheel VENV WHEEL: installs this very file, unless it is there already.
install_wheel() {
    local venv=$1 wheel=$2 sum log=$TARGET/logs/pip-wheel-${1##*/}.log
    sum=$(sha256sum <"$wheel")
    if [ "$(cat "$venv/.wheel" 2>/dev/null)" = "$sum" ]; then return 0; fi
    # Its version stays and its content changes.
    if [ -f "$venv/.wheel" ]; then pip_install "$log" "$venv" --force-reinstall --no-deps "$wheel"; fi
    pip_install "$log" "$venv" "$wheel"
    printf '%s' "$sum" >"$venv/.wheel"
}

# install_requirements VENV FILE...: installs what the files list, unless the same was done before.
install_requirements() {
    local venv=$1 sum file arguments=()
    shift
    sum=$(cat "$@" "$ROOT/ci/constraints.txt" | sha256sum)
    if [ "$(cat "$venv/.requirements" 2>/dev/null)" = "$sum" ]; then return 0; fi
    for file in "$@"; do arguments+=(-r "$file"); done
    say "pip install the requirements of ${venv##*/}" >&2
    pip_install "$TARGET/logs/pip-${venv##*/}.log" "$venv" -c "$ROOT/ci/constraints.txt" "${arguments[@]}"
    printf '%s' "$sum" >"$venv/.requirements"
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

# start_viewer PROGRAM LOG PORT OTLP_PORT [OPTION...]: sets url and viewer_pid. If another program has the port a free one is
# taken. OTLP_PORT may be `none`: the port of the pages takes traces too.
start_viewer() {
    local program=$1 log=$2 port=$3 otlp=$4
    shift 4
    if [ "$otlp" != none ]; then otlp=127.0.0.1:$otlp; fi
    while :; do
        start "$log" "$program" --listen "127.0.0.1:$port" --listen-otlp "$otlp" --listen-grpc none "$@"
        viewer_pid=$!
        # shellcheck disable=SC2034 # url is for the script that sources this.
        if url=$(wait_for_line "$log" 'spanprof listening on (http://[^ ]+)' "$viewer_pid"); then return 0; fi
        if [ "$port" = 0 ] || ! grep -q 'another program uses it' "$log"; then fail "the viewer did not start: $(cat "$log")"; fi
        say "port $port is taken by another program, so the viewer takes a free one"
        port=0
    done
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
