# Ruby: its interpreters, the gem, and the steps that test it. Sourced by ci/lib.sh.
# shellcheck shell=bash

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

LIBCLANG='libclang and its headers (Debian: libclang1-14 libclang-common-14-dev)'

# has_libclang: what reads Ruby's headers for the engine, and clang's own headers, which Debian keeps in a package of their own.
has_libclang() {
    if [ -n "${LIBCLANG_PATH:-}" ]; then return 0; fi
    # libclang-cpp is another library, which is there wherever LLVM is.
    compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null || compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null || return 1
    compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stdarg.h' >/dev/null
}

# need_libclang: the same, installed where that is allowed.
need_libclang() {
    if has_libclang; then return 0; fi
    # Both are small in Debian 12; elsewhere they come with more.
    if may_apt && apt_install libclang1-14 libclang-common-14-dev; then return 0; fi
    apt_install libclang-dev
}

# need_for_gem RUBY TEXT COMMAND...: ends the script with one line of all that is missing to compile the gem: RUBY, which COMMAND finds,
# and libclang, if it cannot be installed; TEXT is its end.
need_for_gem() {
    local missing=() ruby=$1 text=$2
    shift 2
    if ! "$@" >/dev/null; then missing+=("$ruby"); fi
    if ! has_libclang && ! may_apt; then missing+=("$LIBCLANG"); fi
    case ${#missing[@]} in
    1) fail "please install ${missing[0]}$text" ;;
    2) fail "please install ${missing[0]} and ${missing[1]}$text" ;;
    esac
    need_libclang || exit 1
}

# build_ruby 3.N: compiles the engine for this Ruby into bindings-ruby/lib/pyroscope_otel/3.N, linked for glibc 2.17 where
# there is zig, if any source is newer than what was compiled here before with the same settings. Call use_ruby before, or make
# this Ruby the one of the shell: that needs no gem.
build_ruby() {
    local library=$ROOT/bindings-ruby/lib/pyroscope_otel/$1/pyroscope_otel.so stamp=$TARGET/ruby-$1/compiled settings environment
    need_rust
    need_libclang || fail "please install $LIBCLANG"
    settings=$(library_settings)
    mapfile -t environment <<<"$settings"
    settings="lto=${CARGO_PROFILE_RELEASE_LTO:-} ${environment[0]}"
    (
        # Two at a time write the same files, also for two Rubies: cargo leaves each at the same place.
        flock 5
        # Somebody else may have compiled another one since.
        if [ "$(cat "$stamp" 2>/dev/null)" = "$settings" ] && [ -f "$library" ] && [ ! "$library" -nt "$stamp" ] &&
            [ -z "$(find "$ROOT"/{Cargo.toml,Cargo.lock,core/Cargo.toml,core/build.rs,core/src,bindings-ruby/ext} -newer "$stamp" -print -quit)" ]; then
            exit 0
        fi
        cd "$ROOT/bindings-ruby" || exit
        mkdir -p "$(dirname "$stamp")"
        quietly "$TARGET/logs/ruby-$1-build.log" env "${environment[@]}" ruby -S rake compile 5>&-
        printf '%s\n' "$settings" >"$stamp"
    ) 5>"$TARGET/ruby-build.lock"
}

# ruby_build: compiles the gem's engine for each Ruby that is found.
ruby_build() {
    local version built=0
    for version in $RUBIES; do
        if (use_ruby "$version" && say "compiling for Ruby $version" && build_ruby "$version"); then
            built=$((built + 1))
        else
            [ -z "$(find_ruby "$version")" ] || fail "Ruby $version is here, and nothing was compiled for it"
            say "no Ruby $version here"
        fi
    done
    [ "$built" -gt 0 ] || skip "no Ruby from 3.1 on here (Debian: apt-get install ruby ruby-dev)"
}

# with_gem 3.N [NAME GEMFILE]: makes this Ruby, with the compiled gem and what the file lists, the one of the step.
with_gem() {
    [ -n "$(find_ruby "$1")" ] || skip "no Ruby $1 here (for example: rbenv install $1)"
    use_ruby "$@" || skip "the gems that the tests need could not be installed for Ruby $1"
    [ -f "bindings-ruby/lib/pyroscope_otel/$1/pyroscope_otel.so" ] || skip "the gem was not compiled for Ruby $1"
}

# ruby_tests 3.N
ruby_tests() {
    with_gem "$1"
    cd bindings-ruby
    STRESS_SECONDS=8 bundle exec rake test TESTOPTS=--verbose
}

# The signatures against the code, and the surface of Grafana's gems in ours.
ruby_types() {
    with_gem 3.4
    cd bindings-ruby
    bundle exec rake types
}

ruby_drop_in() {
    with_gem 3.4 drop-in tests/drop_in/ruby/Gemfile
    bundle exec ruby tests/drop_in/ruby/surface_test.rb --verbose
}

# Each Ruby installs the gem for this platform; the newest compiles the one with the sources.
ruby_packages() {
    local version packages=$TARGET/packages-ruby
    [ -n "$(find_ruby 3.4 || find_ruby 3.3 || find_ruby 3.1)" ] || skip "no Ruby from 3.1 on here"
    ci/package --to "$packages" ruby
    for version in $RUBIES; do
        if ! find_ruby "$version" >/dev/null; then continue; fi
        say "Ruby $version"
        (
            use_ruby "$version"
            # The sources compile for two minutes of a core, which is what CI is short of.
            if [ "$version" = 3.4 ] && [ -z "${CI:-}" ]; then export TRY_SOURCES=1; fi
            env PACKAGES="$packages" TARGET="$TARGET" bundle exec ruby tests/packages/package_test.rb --verbose
        )
    done
}

ruby_demo() {
    find_ruby 3.4 >/dev/null || skip "no Ruby 3.4 here"
    ci/demo ruby --check --port 0 --seconds 15
}
