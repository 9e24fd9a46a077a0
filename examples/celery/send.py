"""Sends tasks to the worker and waits for what they return, for some seconds.

    python send.py 8
"""

import sys
import time

from app import analyse

AT_ONCE = 4
AT_LEAST = 8  # Tasks, so that a busy machine has something to show too.


def main() -> None:
    """Prints how many tasks were done."""
    until = time.monotonic() + float(sys.argv[1])
    done = 0
    while done < AT_LEAST or time.monotonic() < until:
        for result in [analyse.delay(done + number) for number in range(AT_ONCE)]:
            result.get(timeout=30)
        done += AT_ONCE
    print(f"{done} tasks were done")


if __name__ == "__main__":
    main()
