"""What a sample of a wait of the program of waits may look like, a row a function of the program.

    name | callers | spans | waits | files

callers  functions of the program that may be below it: `x` right below, `x~` below functions of other files, `~` none below
         other files' functions, `-` nothing. `*`: any, as with handlers of signals.
spans    those that may be current where it is the innermost function of the program; after a `;` those where it is a caller,
         if they are others. `-`: none, so it has no sample. `*`: any; `^x`: any but x.
waits    states, and the calls that are their leaves. A wait for the GIL may come anywhere, and so may `close` and what asks for a file by name.
files    modules and packages whose functions may be above it, but for a wait that may come anywhere. `*`: any, as with what is called at a fork.
"""

from dataclasses import dataclass

ANY = "*"
ALIASES = {
    "$sleep": "sleep:clock_nanosleep,select",
    # From 3.13 on some of Python's locks have a semaphore of their own.
    "$lock": "lock:sem_wait,sem_timedwait,sem_clockwait",
    "$join": "lock:sem_wait,sem_timedwait,sem_clockwait,pthread_join",
    "$open": "io:open64,read,write",
    "$names": "io:mkdir,open64,rename,link,symlink,truncate64,ftruncate64,posix_fallocate64,fallocate64,opendir,readdir64,unlink,rmdir",
    "$names_at": "io:openat64,renameat,unlinkat",
    "$await": "await:(await),(await_Future),(await_Task) busy:(event_loop_busy)",
    # What the loop and its executor call, too.
    "$loop": "asyncio selectors threading concurrent queue socket contextlib os",
}
ROWS = """
live               | ~                    | -;*
work_on            | live                 | -;*
lead               | live                 | -;*
follow             | live                 | -;*
run                | main                 | -;*
main               | <module>             | -;*
<module>           | -                    | -;*
is_over            | work_on lead interrupt loops | -;*
sleeps             | work_on              | sleeps
sleep_shortly      | sleeps               | sleeps              | $sleep
sleep_by_select    | sleeps               | sleeps              | sleep:select
sleep_by_poll      | sleeps               | sleeps              | sleep:poll,ppoll
sleep_by_signal    | sleeps               | sleeps              | sleep:sigtimedwait
contends           | work_on              | contends
take_shared        | contends             | contends            | $lock
sleep_with_shared  | contends             | contends            | $sleep
give_shared        | contends             | contends            | $lock
monitors           | work_on              | monitors
wait_in_monitor    | monitors             | monitors            | $lock | threading
wake_in_monitor    | monitors             | monitors            | $lock | threading
files              | work_on              | files
write_file         | files                | files               | $open
read_file          | files                | files               | $open
sync_file          | files                | files               | io:open64,fsync
lock_file          | files                | files               | io:open64 lock:flock
name_files         | files                | files               | $names
name_files_in      | files                | files               | $names_at io:open64
sleep_with_file    | lock_file            | files               | $sleep
joins              | work_on              | joins
start_short        | joins                | joins               | $lock | threading
join_short         | joins                | joins               | $join | threading
short_thread       | ~                    | short_thread
sleep_in_short     | short_thread         | short_thread        | $sleep
spawns             | work_on              | spawns
run_child          | spawns               | spawns              | io:read,poll,ppoll child:waitpid | subprocess selectors contextlib
spawn_child        | spawns               | spawns
wait_for_child     | spawns               | spawns              | child:waitpid
run_system         | spawns               | spawns              | child:system
forks              | work_on              | forks
fork_child         | forks                | forks               | $join io:* | *
end_child          | fork_child           | forks
sleep_in_child     | end_child            | forks               | $sleep
flush_child        | end_child            | forks
wait_for_fork      | forks                | forks               | child:waitpid
names              | work_on              | names
find_host          | names                | names               | name:getaddrinfo | socket
find_user          | names                | names               | name:getpwnam_r
times_out          | work_on              | times_out
receive_nothing    | times_out            | times_out           | io:poll,ppoll,recv
poll_nothing       | times_out            | times_out           | io:select
lock_nothing       | times_out            | times_out           | $lock
get_nothing        | times_out            | times_out           | $lock | queue threading
result_of_nothing  | times_out            | times_out           | $lock | concurrent threading
sleep_after_time   | times_out            | times_out           | $sleep
falls              | work_on              | falls,falls_out
fall_asleep        | fall_asleep falls    | falls               | $sleep
sleep_and_raise    | falls                | falls_out           | $sleep
sleep_after_fall   | falls                | -
nests              | work_on              | outer,inner,innermost
sleep_in_outer     | nests                | outer               | $sleep
sleep_in_inner     | nests                | inner               | $sleep
sleep_in_innermost | nests                | innermost           | $sleep
generates          | work_on              | generates
sleeping_numbers   | generates            | generates           | $sleep
outside            | work_on              | -
sleep_outside      | outside              | -
raises_into        | work_on              | raises_into
start_raised       | raises_into          | raises_into         | $lock | threading
wait_until_ready   | raises_into          | raises_into         | $lock | threading
join_raised        | raises_into          | raises_into         | $join | threading
raised_into        | ~                    | raised_into
sleep_till_raised_into | raised_into      | raised_into         | $sleep $lock | threading
sleep_after_raise  | raised_into          | -
modules            | work_on              | modules
open_module        | modules              | modules
wait_in_module     | modules              | modules             | sleep:nanosleep,poll lock:pthread_cond_timedwait,pthread_join | ctypes
call_back_from_module | modules           | modules             | sleep:nanosleep | ctypes
called_back        | call_back_from_module | modules
sleep_in_callback  | called_back          | modules             | $sleep
jump_in_module     | modules              | modules
close_module       | modules              | modules             | sleep:nanosleep | ctypes
check              | wait_in_module call_back_from_module jump_in_module | modules
hands_locks        | lead                 | hands_locks
takes_locks        | follow               | takes_locks
give_lock          | hands_locks takes_locks | hands_locks,takes_locks | $lock
take_lock          | hands_locks takes_locks | hands_locks,takes_locks | $lock
leads_turns        | lead                 | leads_turns
follows_turns      | follow               | follows_turns
take_turn          | leads_turns follows_turns | leads_turns,follows_turns | $lock | threading
asks               | lead                 | asks
answers            | follow               | answers
put_question       | asks                 | asks                | $lock | queue threading
get_question       | answers              | answers             | $lock | queue threading
put_answer         | answers              | answers             | $lock
get_answer         | asks                 | asks                | $lock
pipes              | lead                 | pipes
piped              | follow               | piped
push               | pipes piped          | pipes,piped         | io:write
pull               | pipes piped          | pipes,piped         | io:read
sends              | lead                 | sends
receives           | follow               | receives
send               | sends receives       | sends,receives      | io:send
receive            | sends receives       | sends,receives      | io:recv
receive_by_poll    | sends receives       | sends,receives      | io:poll,ppoll,recv
receive_by_select  | sends receives       | sends,receives      | io:select,recv
receive_by_epoll   | sends receives       | sends,receives      | io:epoll_wait,recv
interrupt          | run                  | -;*
interrupts         | interrupt            | interrupts
sleep_after_alarm  | interrupts           | interrupts          | $sleep
sleep_till_raised  | interrupts           | interrupts          | $sleep
lock_till_raised   | interrupts           | interrupts          | $lock
get_till_raised    | interrupts           | interrupts          | $lock
select_till_raised | interrupts           | interrupts          | io:select
poll_till_raised   | interrupts           | interrupts          | io:poll,ppoll
read_till_raised   | interrupts           | interrupts          | io:read
receive_till_raised | interrupts          | interrupts          | io:recv
signal_till_raised | interrupts           | interrupts          | sleep:sigtimedwait
lock_file_till_raised | interrupts        | interrupts          | lock:flock
find_host_till_raised | interrupts        | interrupts          | name:getaddrinfo | socket
__init__           | interrupts           | -;*
close              | interrupts           | -;*
joins_till_raised  | interrupt            | joins_till_raised
wait_outside       | ~                    | -
join_till_raised   | joins_till_raised    | joins_till_raised   | $join | threading
sleep_after_join   | joins_till_raised    | joins_till_raised   | $sleep
waits_for_child_till_raised | interrupt   | waits_for_child_till_raised;*
child_till_raised  | waits_for_child_till_raised | waits_for_child_till_raised | child:waitpid | subprocess
sleep_after_child  | waits_for_child_till_raised | waits_for_child_till_raised | $sleep
on_disturbance     | *                    | *
wait_in_handler    | on_disturbance       | ^handled            | $sleep
wait_in_handled    | on_disturbance       | handled             | $sleep
on_alarm           | *                    | *
arm                | *                    | *
disturb            | ~                    | -
loops              | live                 | loop;*
run_tasks          | loops                | loop;*              | io:epoll_wait,recv,send $join $await | $loop
all_tasks          | run_tasks~           | loop                | $await | $loop random
<genexpr>          | *                    | *
<listcomp>         | *                    | *
task_sleeps        | run_tasks~           | task_sleeps,loop
sleep_in_task      | task_sleeps          | task_sleeps         | $await | $loop
task_queues        | run_tasks~           | loop                | $await | $loop
task_puts          | run_tasks~           | task_puts,loop
put_in_task        | task_puts            | task_puts           | $await | $loop
task_gets          | run_tasks~           | task_gets,loop
get_in_task        | task_gets            | task_gets           | $await | $loop
task_futures       | run_tasks~           | task_futures,loop
wait_for_future    | task_futures         | task_futures        | $await | $loop
task_cancels       | run_tasks~           | task_cancels,loop
sleep_before_cancel | task_cancels        | task_cancels        | $await | $loop
wait_for_cancelled | task_cancels         | task_cancels        | $await | $loop
task_cancelled     | run_tasks~           | task_cancelled,task_cancels
wait_for_ever      | task_cancelled       | task_cancelled      | $await | $loop
clean_up           | wait_for_ever        | task_cancelled      | $await | $loop
task_times_out     | run_tasks~           | task_times_out,loop
time_out           | task_times_out       | task_times_out      | $await | $loop
sleep_too_long     | time_out~ run_tasks~ | task_times_out      | $await | $loop
task_gathers       | run_tasks~           | task_gathers,loop
gather             | task_gathers         | task_gathers        | $await | $loop
sleep_beside       | run_tasks~           | task_gathers        | $await | $loop
task_threads       | run_tasks~           | task_threads,loop
wait_for_thread    | task_threads         | task_threads        | $await $lock io:send | $loop
sleep_in_executor  | ~                    | task_threads        | $sleep
task_nests         | run_tasks~           | task_outer,task_inner,loop
sleep_in_task_outer | task_nests          | task_outer          | $await | $loop
sleep_in_task_inner | task_nests          | task_inner          | $await | $loop
task_blocks        | run_tasks~           | task_blocks,loop
block              | task_blocks          | task_blocks         | $sleep
give_way           | task_blocks          | task_blocks         | $await | $loop
task_generates     | run_tasks~           | task_generates,loop
close_numbers      | task_generates       | task_generates      | $await | $loop
awaited_numbers    | close_numbers        | task_generates      | $await | $loop
task_receives      | run_tasks~           | task_receives,loop
receive_in_task    | task_receives        | task_receives       | $await io:recv | $loop
task_locks         | run_tasks~           | loop                | $await | $loop
task_lock          | run_tasks~           | task_lock,loop
sleep_with_lock    | task_lock            | task_lock           | $await | $loop
"""
#: Files of the program.
FILES = frozenset(f"waits_{name}.py" for name in ("program", "work", "ended", "pairs", "modules", "signals", "tasks"))
#: What asyncio calls between the steps of tasks is called below this one, in the context of a task, beside its flow.
LOOP, LOOP_SPAN = "run_tasks", "loop"
#: Run beside the flow that their span began in.
BESIDE = frozenset({"sleep_beside", "sleep_in_executor"})
#: Spans that tasks beside them inherit until they have their own.
INHERITED = frozenset({"loop", "task_cancels", "task_times_out", "task_gathers", "task_threads", "forks"})
#: Run wherever the main thread is; what is below them tells the span, but where one has its own.
HANDLERS = frozenset({"on_disturbance", "on_alarm"})
HANDLER, HANDLED = "on_disturbance", "handled"


@dataclass(frozen=True)
class Function:
    callers: frozenset[str]
    own_spans: frozenset[str]
    spans: frozenset[str]
    waits: frozenset[tuple[str, str]]
    files: frozenset[str]


def function_of(row: str) -> tuple[str, Function]:
    name, callers, spans, waits, files = (*(column.strip() for column in row.split("|")), "", "")[:5]
    own, _, below = spans.partition(";")
    return name, Function(
        callers=frozenset(callers.split()),
        own_spans=frozenset(own.split(",")),
        spans=frozenset((below or own).split(",")),
        waits=frozenset(
            (state, leaf.replace("_", " ") if leaf.startswith("(") else leaf)
            for wait in words(waits)
            for state, _, leaves in [wait.partition(":")]
            for leaf in leaves.split(",")
        ),
        files=frozenset(words(files)),
    )


def words(column: str) -> list[str]:
    return " ".join(ALIASES.get(word, word) for word in column.split()).split()


FUNCTIONS = dict(map(function_of, ROWS.strip().splitlines()))


def is_among(span: str, spans: frozenset[str]) -> bool:
    return span in spans or ANY in spans or any(one.startswith("^") and one != f"^{span}" for one in spans)
