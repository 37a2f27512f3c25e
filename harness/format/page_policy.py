"""What every page keeps to: its own scripts by their checksums, no network, nothing embedded, no hidden text.

So a name that slipped through every escape would still run nothing and fetch nothing. Styles must be allowed inline:
Plotly sets them as attributes, and without a network they can send nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from markupsafe import Markup

from harness.common.printable import printable

_NOWHERE = "default-src 'none'; base-uri 'none'; form-action 'none'"


def with_scripts(scripts: Sequence[str]) -> str:
    """The policy of a page that runs these scripts, each whole between its tags, and no other."""
    allowed = " ".join(map(_checksum, scripts))
    # Images: a plot that is saved as a picture goes through one of its own.
    return f"{_NOWHERE}; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def without_scripts(style: str) -> str:
    """The policy of a page with this one style element, whole between its tags, and no script."""
    return f"{_NOWHERE}; style-src {_checksum(style)}"


def shown_in_page(value: object) -> object:
    """A text of a page, which hides and reorders no other; the page's own parts are Markup. For Jinja's `finalize`."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _checksum(text: str) -> str:
    """As a browser computes it of an element's text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
