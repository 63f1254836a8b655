"""``python -m tools.sandbox`` says which Python back ends protect here; exit status 1 if none."""

from __future__ import annotations

import sys

from tools.python_exec import describe


def main() -> int:
    """Print a line for each back end."""
    statuses = describe()
    for status in statuses:
        print(f"{status.name}\t{'开' if status.active else '关'}\t{status.reason}")
    return 0 if any(status.active for status in statuses) else 1


if __name__ == "__main__":
    sys.exit(main())
