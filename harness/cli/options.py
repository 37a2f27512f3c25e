"""Options that several commands share, each declared once."""

from __future__ import annotations

from typing import Annotated

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="print machine-readable JSON")]
