# Functions that run the steps of ci/test, two at a time. Sourced by bash after ci/lib.sh; needs bash 5.1.
# shellcheck shell=bash

# Steps that run at the same time. Most use one core for most of their time.
STEPS_AT_ONCE=${STEPS_AT_ONCE:-2}
# The tests that may be late, a line each, as `failed_tests` prints them, and why after a bar.
LATE_TESTS=${LATE_TESTS:-$ROOT/ci/late-tests}
# Of the steps that ended: name|how|seconds|CPU seconds|why, how many there were of each kind, and how many ran twice.
rows=() passed=0 failed=0 skipped=0 tried_again=0
# By process id: the name and the log of each step that runs, and when it began.
declare -A step_names=() step_logs=() step_began=()
# By name: how each step is begun, and what its failure says of a crash and the like.
declare -A step_commands=() step_signs=()
# What a failed step's output says where a process crashed, as the tests' tools write it: pytest and minitest, xUnit, cargo
# and the programs themselves.
crashed='^(E  |FAILED ).*[^0-9.]-(4|5|6|7|8|9|11|31)([^0-9.]|$)|Signals\.SIG|SIG[A-Z0-9]+ \(signal [0-9]|signal: [0-9]'
crashed+='|unix_wait_status\([0-9]{1,2}\)|unix_wait_status\(1[0-9]{2}\)|(Actual: +|exit code:? |ExitCode:? |status )(13[24-79]|159|162)$'
crashed+='|signal: segmentation|core dumped|Segmentation fault|Fatal Python error|\[BUG\]|^Fatal error\.|cannot unwind|non-unwinding panic'
spoiled='^==[0-9]+== |Sanitizer:|double free|free\(\): |malloc[a-z_]*\(\): |corrupted size|stack smashing'
hung='^(E  |FAILED ).*(TimeoutExpired|timed out)|Timeout::Error|execution expired|test timed out after|did not end| hung'
wrong='^(E  |FAILED |thread |[^ ]* panicked).*wrong| in the span |odd_(names|calls|spans)|(wrong|not) (chain|span)'
broken='adds?_up|adds? up'
# And where what a step wanted to install could not be fetched.
not_fetched='Temporary failure|[Cc]ould not resolve|Could not (fetch|reach)|[Cc]onnection (broken|reset|refused|timed out)|timed out'
not_fetched+='|NewConnectionError|HTTPSConnectionPool|spurious network error|failed to download|Network error|ECONNRESET|ETIMEDOUT|EAI_AGAIN'
not_fetched+='|NU1301|service index|Failed to fetch|TLS handshake|network is unreachable'

# skip TEXT: ends a step that cannot run here.
skip() {
    printf '%s' "$*" >"$reason"
    exit 77
}

# step NAME COMMAND...: begins it when there is room for it. Its output is shown when it has ended.
step() {
    local name=$1 log
    shift
    while [ ${#step_names[@]} -ge "$STEPS_AT_ONCE" ]; do settle_one; done
    say "... $name"
    step_commands[$name]=$(printf '%q ' "$@")
    log=$(log_of "$name")
    mkdir -p "${log%/*}"
    reason=$log.reason
    # A folder for what runs in the step: the kernel writes a core where the process stands.
    step_folder=${log%.log}
    rm -rf "$reason" "$log.times" "$step_folder"
    mkdir "$step_folder"
    : >"$log.began"
    (
        set -e
        ulimit -c unlimited 2>/dev/null || ulimit -c "$(ulimit -Hc)"
        # With the name as it is now: when a function fails its variables are gone before the trap runs.
        # shellcheck disable=SC2064
        trap "end_all; times >$(printf '%q' "$log.times")" EXIT
        trap 'exit 143' TERM INT HUP
        "$@"
    ) >"$log" 2>&1 </dev/null &
    step_names[$!]=$name step_logs[$!]=$log step_began[$!]=$SECONDS
}

# log_of NAME: where its output goes.
log_of() {
    printf '%s/logs/steps/%s.log' "$TARGET" "$(printf '%s' "$1" | tr -c 'a-zA-Z0-9.' -)"
}

# settle NAME...: waits until these have ended.
settle() {
    local name
    for name in "$@"; do
        while printf '%s\n' "${step_names[@]}" | grep -qxF "$name"; do settle_one; done
    done
}

# settle_all: waits until each step has ended.
settle_all() {
    while [ ${#step_names[@]} -gt 0 ]; do settle_one; done
}

# settle_one: waits until one step has ended, shows what it printed and remembers how it ended.
settle_one() {
    local pid code=0 name log took how why=''
    wait -n -p pid "${!step_names[@]}" || code=$?
    name=${step_names[$pid]} log=${step_logs[$pid]} took=$((SECONDS - step_began[$pid]))
    unset "step_names[$pid]" "step_logs[$pid]" "step_began[$pid]"
    case $code in
    0) how=run && passed=$((passed + 1)) ;;
    77) how=skipped && why=$(cat "$log.reason") && skipped=$((skipped + 1)) ;;
    *)
        how=FAILED && failed=$((failed + 1))
        why=$(sign_of "$code" "$log")
        case $why in *signal* | *memory* | *hung*) print_cores "$log" >>"$log" 2>&1 ;; esac
        ;;
    esac
    step_signs[$name]=$why
    rows+=("$name|$how|$took|$(cpu_seconds "$log.times")|$why")
    printf '\n'
    say "=== $name: $how${why:+: $why}"
    cat "$log"
}

# sign_of CODE LOG: what a failed step's end and output say of a failure that is never a matter of time, or nothing.
sign_of() {
    local code=$1 said
    said=$(grep -vE ' s = \.$|\.\.\. ok$' "$2") || true
    if [ "$code" = 124 ]; then
        echo "hung"
    elif [ "$code" -gt 128 ]; then
        echo "ended by signal $((code - 128))"
    elif grep -qE "$crashed" <<<"$said"; then
        echo "a process ended by a signal"
    elif grep -qE "$spoiled" <<<"$said"; then
        echo "a memory error"
    elif grep -qE "$hung" <<<"$said"; then
        echo "a process hung"
    elif grep -qE "$wrong" <<<"$said"; then
        echo "something was wrong"
    elif grep -qE "$broken" <<<"$said"; then
        echo "an equation is broken"
    fi
}

# failed_tests LOG: the tests that failed, without their parameters, as pytest, minitest, xUnit, cargo and Go name them.
failed_tests() {
    sed -nE -e 's#^(FAILED|ERROR) (\.\./)*([^[ ]+::[^[ ]+).*#\3#p' \
        -e '/^ +[0-9]+\) (Failure|Error):$/ { n; s/(:| \[.*)$//; p }' \
        -e 's/^.* ([A-Za-z_][A-Za-z0-9_.]*)(\(.*\))? \[FAIL\].*/\1/p' \
        -e 's/^test (.+) \.\.\. FAILED.*/\1/p' -e 's/^---- (.+) stdout ----$/\1/p' \
        -e 's/^ *--- FAIL: ([^ ]+).*/\1/p' "$1" | sort -u
}

# may_pass_later NAME: says why a failed step is tried again: it could not fetch what it installs, or all that failed are tests
# that may be late. Fails for all else.
may_pass_later() {
    local log test tests why
    log=$(log_of "$1")
    [ -z "${step_signs[$1]}" ] || return 1
    mapfile -t tests < <(failed_tests "$log")
    if [ ${#tests[@]} = 0 ]; then
        # The end is that of the command that installs, or of cargo's.
        tail -n 60 "$log" | grep -qE "$not_fetched" || return 1
        grep -qE '^[a-z.-]+: failed: .*(pip|bundle|npm|cargo|maturin|dotnet|rake)|^error: (failed to|could not)|^E: ' "$log" || return 1
        echo "a download failed"
        return
    fi
    for test in "${tests[@]}"; do
        why=$(awk -F ' *[|] *' -v test="$test" '!/^#/ && $1 == test { print $2 }' "$LATE_TESTS")
        [ -n "$why" ] || return 1
    done
    echo "${tests[*]}: $why"
}

# print_cores LOG: the backtraces of the cores that were written since this step began, at most three. Where two steps run the
# core of the other may be among them.
print_cores() {
    local log=$1 pattern places core count=0
    pattern=$(cat /proc/sys/kernel/core_pattern 2>/dev/null) || pattern='|nothing'
    case $pattern in
    '|'*)
        echo "no backtrace: cores go to a program here ($pattern)"
        return
        ;;
    /*) places=("${pattern%/*}") ;;
    *) places=("${log%.log}" "$ROOT" "${TMPDIR:-/tmp}") ;;
    esac
    while read -r core; do
        # An ELF file of type 4 is a core, whatever its name.
        [[ $(od -An -tx1 -N 18 "$core" 2>/dev/null | tr -d ' \n') =~ ^7f454c46.{24}0400$ ]] || continue
        count=$((count + 1))
        if [ "$count" -le 3 ]; then print_core "$core"; fi
    done < <(find "${places[@]}" -xdev -type f -newer "$log.began" -name '*core*' 2>/dev/null |
        awk -v steps="$TARGET/logs/steps/" -v own="${log%.log}/" '(index($0, steps) != 1 || index($0, own) == 1) && !seen[$0]++')
    if [ "$count" = 0 ]; then echo "no backtrace: no core was found"; fi
    if [ "$count" -gt 3 ]; then echo "and $((count - 3)) more cores"; fi
}

# print_core FILE: who left it, and the backtraces by gdb.
print_core() {
    local core=$1 program
    printf '\n--- core %s\n' "$core"
    if ! command -v gdb >/dev/null && ! apt_install gdb; then
        echo "no backtrace: gdb is not installed"
        return 0
    fi
    # What is mapped first is the program, which a core does not name by its whole path.
    program=$(timeout 60 gdb -nx -batch -ex 'info proc mappings' -c "$core" 2>/dev/null | awk '$NF ~ /^\// { print $NF; exit }') || true
    timeout 120 gdb -nx -batch -iex 'set debuginfod enabled off' -iex 'set auto-load no' -ex 'bt 40' -ex 'thread apply all bt 12' \
        ${program:+"$program"} -c "$core" 2>&1 </dev/null | grep -vE '^(\[New LWP|warning:|$)' | head -n 150 || true
}

# cpu_seconds FILE: the sum of what `times` wrote there.
cpu_seconds() {
    if [ ! -f "$1" ]; then echo 0 && return; fi
    tr ' ms' '\n  ' <"$1" | awk 'NF == 2 { sum += 60 * $1 + $2 } END { printf "%.0f", sum }'
}

# end_steps: for a trap on EXIT. Each step ends what it has started.
end_steps() {
    local pid
    for pid in "${!step_names[@]}"; do end_tree "$pid"; done
    for pid in "${!step_names[@]}"; do wait "$pid" 2>/dev/null || true; done
}

# end_tree PID: TERM to a process and to all below it. A shell alone would first wait for the command that it runs.
end_tree() {
    local child children=()
    { read -ra children <"/proc/$1/task/$1/children"; } 2>/dev/null || true
    for child in "${children[@]}"; do end_tree "$child"; done
    kill -TERM "$1" 2>/dev/null || true
}

# try_again: once more and by itself, each failed step whose failure is no more than a download that failed, or tests that may
# be late. The table says so, and the first output stays above.
try_again() {
    local row name why before=("${rows[@]}")
    for row in "${before[@]}"; do
        case $row in *'failed at first'*) continue ;; *'|FAILED|'*) ;; *) continue ;; esac
        name=${row%%|*}
        why=$(may_pass_later "$name") || continue
        failed=$((failed - 1)) tried_again=$((tried_again + 1))
        mapfile -t rows < <(printf '%s\n' "${rows[@]}" | awk -v begin="$name|FAILED|" 'index($0, begin) != 1 && NF')
        say "once more: $name ($why)"
        eval "step \"\$name\" ${step_commands[$name]}"
        settle_all
        case ${rows[-1]} in *'|') ;; *) rows[-1]+='; ' ;; esac
        rows[-1]+="failed at first ($why); see above"
    done
}

# print_failures: once more, and shorter, what the failed steps printed: the rest of a long output may not be kept.
print_failures() {
    local row name
    for row in "${rows[@]}"; do
        case $row in
        *'|FAILED|'*)
            name=${row%%|*}
            printf '\n'
            say "=== $name failed; where its output speaks of it, and the end:"
            grep -n -m 20 -A 12 -E 'Failure:|Error:|^FAILED|^E  |^error|panicked|\[FAIL\]' "$(log_of "$name")" | tail -n 120 || true
            printf -- '--\n'
            tail -n 30 "$(log_of "$name")"
            ;;
        esac
    done
}

# print_steps: the table of all steps that ended.
print_steps() {
    local row what how took cpu why
    printf '\n%-44s %-8s %6s %6s\n' what how 's' 'CPU s'
    for row in "${rows[@]}"; do
        IFS='|' read -r what how took cpu why <<<"$row"
        printf '%-44s %-8s %6s %6s  %s\n' "$what" "$how" "$took" "$cpu" "$why"
    done
}
