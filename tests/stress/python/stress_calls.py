"""The calls that the stress program can make, and the spans that its functions are in.

Functions are known by their plain names, as CPython 3.10 has no others.
"""

import re
import sys

# A function of this program: those of its functions that may be the next frame below it. Where CPython itself runs a
# function in between calls (destructors), any may be.
ANYWHERE = frozenset({"*"})
CALLERS: dict[str, frozenset[str]] = {
    name: frozenset(callers.split())
    for name, callers in {
        "generators": "one",
        "outer_generator": "generators",
        "inner_generator": "outer_generator short_thread raw_thread __del__",
        "recursion": "one",
        "dive": "dive recursion",
        "exceptions": "one",
        "fall": "fall exceptions",
        "classes": "one",
        # A specialised call has a frame of the interpreter's own in between, which is not shown.
        "__init__": "classes garbage",
        "coroutines": "one",
        # A coroutine's frame is below its caller's at the moment in which it is made.
        "gather_steps": "coroutines",
        "step": "gather_steps",
        "inner_step": "step",
        "__await__": "inner_step",
        "contexts": "one",
        "set_many": "contexts",
        "greenlets": "one",
        "swim": "",
        "swim_deep": "swim_deep swim",
        "compare_in_greenlet": "swim",
        "garbage": "one",
        "made_code": "one short_thread",
        "callbacks": "one",
        "<lambda>": "callbacks",
        "compare": "callbacks",
        "replace": "",
        "__hash__": "callbacks",
        "__eq__": "callbacks",
        "libraries": "one",
        "spans": "one",
        "in_outer": "spans",
        "in_inner": "spans",
        "tags": "one",
        "in_tags": "tags",
        "one": "worker",
        "worker": "daemon",
        "daemon": "",
        "churn": "",
        "raw_thread": "",
        "subinterpreters": "",
        # In a subinterpreter the stack begins anew; before 3.12 the caller's is what is seen.
        "in_subinterpreter": "in_subinterpreter <module>",
        "short_thread": "",
        "<module>": "made_code",
        "<listcomp>": "churn greenlets",
    }.items()
}
CALLERS["__del__"] = ANYWHERE
# Called by asyncio or threading, too. All other functions with callers in the table are called by nobody else.
INDIRECT = frozenset({"gather_steps", "step", "worker"})
MADE = re.compile(r"(made|leaf)_(\d+)")
MADE_FILE = "<made code>"
# The file of code that `run_string` runs, by version.
STRING_FILES = ("<string>", "<script>")
# Functions that run in a span of such a name: one that was renamed has its first name in a profile that is written before
# it ends. All other functions of this program run outside of spans, but for those that start and end them.
SPANS = {"in_outer": ("outer",), "in_inner": ("before", "inner")}
EDGES = frozenset({"spans", "subinterpreters"})


def is_allowed(callee: str, caller: str) -> bool:
    """Whether this program has such a call; "" is a caller that is not of this program.

    A made function calls its own leaf, which has the same number.
    """
    made, maker = MADE.fullmatch(callee), MADE.fullmatch(caller)
    if made and made[1] == "leaf":
        return bool(maker) and maker[1] == "made" and maker[2] == made[2]
    if made:
        return caller == "made_code"
    callers = CALLERS.get(callee, frozenset())
    if not caller:
        return not callers or callers is ANYWHERE or callee in INDIRECT
    return callers is ANYWHERE or caller in callers


HAS_OWN_STACK = sys.version_info >= (3, 12)
"""Whether a subinterpreter's samples have the stack there, and no span; before, they have its caller's, and its span."""
