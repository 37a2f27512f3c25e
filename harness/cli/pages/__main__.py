"""`python -m harness.cli.pages` renews the written parts of all documents; with names it prints these parts."""

from __future__ import annotations

import sys

from harness.cli.pages.parts import PARTS, documents, renewed

if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(PARTS[name]())
    for path in () if sys.argv[1:] else documents():
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
