# Functions that run the steps of ci/test, two at a time. Sourced by bash after ci/lib.sh; needs bash 5.1.
# shellcheck shell=bash

# Steps that run at the same time. Most use one core for most of their time.
STEPS_AT_ONCE=${STEPS_AT_ONCE:-2}
# Of the steps that ended: name|how|seconds|CPU seconds|why, and how many there were of each kind.
rows=() passed=0 failed=0 skipped=0
# By process id: the name and the log of each step that runs, and when it began.
declare -A step_names=() step_logs=() step_began=()
# By name: how each step is begun.
declare -A step_commands=()

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
    rm -f "$reason"
    (
        set -e
        trap 'end_all; times >"$log.times"' EXIT
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
    *) how=FAILED && failed=$((failed + 1)) ;;
    esac
    rows+=("$name|$how|$took|$(cpu_seconds "$log.times")|$why")
    printf '\n'
    say "=== $name: $how${why:+: $why}"
    cat "$log"
}

# cpu_seconds FILE: the sum of what `times` wrote there.
cpu_seconds() {
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

# try_again: each step that failed, once more and by itself. What passes then was a matter of time: it is said in the table, and
# its first output stays above.
try_again() {
    local row name before=("${rows[@]}")
    for row in "${before[@]}"; do
        case $row in *'failed at first'*) continue ;; *'|FAILED|'*) ;; *) continue ;; esac
        name=${row%%|*}
        failed=$((failed - 1))
        mapfile -t rows < <(printf '%s\n' "${rows[@]}" | awk -v begin="$name|FAILED|" 'index($0, begin) != 1 && NF')
        say "once more: $name"
        eval "step \"\$name\" ${step_commands[$name]}"
        settle_all
        rows[-1]=${rows[-1]%|*}"|failed at first; see above"
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
