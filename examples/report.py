"""What a service's spans burnt, and where to look at it.

    python report.py http://127.0.0.1:4040 orders 'summarise' [function that must be in this span's flame graph]
"""

import sys
from urllib.parse import urlencode

from shop.report import HEADING, Viewer, row, show


def main() -> None:
    """Prints the table and the address. Fails if a function was named and has no CPU in the span."""
    viewer, service, span = Viewer(sys.argv[1]), sys.argv[2], sys.argv[3]
    show([HEADING, *(row(service, one) for one in viewer.spans(service).values())])
    print(f"\nflame graph of {span}: {viewer.url}/flame?{urlencode({'service': service, 'name': span})}")
    for function in sys.argv[4:]:
        top = viewer.get("/api/top", service=service, name=span)
        functions = [entry["function"] for entry in top["functions"]]
        if function not in functions:
            raise SystemExit(f"{function} is not among the functions of {span}: {', '.join(functions) or 'none'}")
        print(f"{function} is in it")


if __name__ == "__main__":
    main()
