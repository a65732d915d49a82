"""`python -m benchmarks [NAME ...]`: run all benchmarks, or the named ones, and print one table."""

from __future__ import annotations

import sys
from importlib import import_module

NAMES = ("evaluator", "toggle", "fusion", "heads", "pages")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"There is no benchmark named {unknown[0]!r}. Choose from: {', '.join(NAMES)}.")
        return 2
    missed = 0
    for name in names or NAMES:
        for row in import_module(f"benchmarks.{name}").run():
            print(row, flush=True)
            missed += not row.holds
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
