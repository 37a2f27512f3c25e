"""Options that several commands share, each declared once. Not in parser.py, since a dry run needs no Typer."""

from __future__ import annotations

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="print machine-readable JSON")]
