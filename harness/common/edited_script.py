"""A script that was edited and submitted by hand: how it differs from what was requested, in numbers and words. The
difference is a unified diff. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from harness.common.paths import IN_CHECKOUT, PROGRAM

AS_REQUESTED = "as requested"


class Edit(NamedTuple):
    """lines: that were added, or those that were removed where these are more. checksum: tells two edits apart."""

    lines: int
    checksum: str

    @property
    def words(self) -> str:
        """
        >>> Edit(1, "").words, Edit(2, "").words
        ('1 line differs', '2 lines differ')
        """
        return "1 line differs" if self.lines == 1 else f"{self.lines} lines differ"

    @property
    def setting(self) -> str:
        """
        >>> Edit(1, "").setting, Edit(2, "").setting
        ('edited (1 line)', 'edited (2 lines)')
        """
        return f"edited ({self.lines} {'line' if self.lines == 1 else 'lines'})"

    def sentence(self, job_id: str) -> str:
        """That the script of this run was edited, and the command that shows how."""
        shows = f"{'bash ' * IN_CHECKOUT}{PROGRAM} status {job_id}"
        return f"Its script was edited by hand ({self.words}): {shows} shows {'it' if self.lines == 1 else 'them'}"


def edit_of(difference: str) -> Edit | None:
    """What differs; None: nothing does.

    >>> edit_of("--- as requested\\n+++ as edited\\n@@ -1,2 +1,3 @@\\n a\\n-b\\n+c\\n+---\\n").lines
    2
    """
    if not difference:
        return None
    lines = difference.split("\n")
    names = [line[:4] for line in lines[:2]] == ["--- ", "+++ "]
    signs = [line[:1] for line in lines[2 * names :]]
    return Edit(max(map(signs.count, "+-")), sha256(difference.encode(errors="surrogatepass")).hexdigest()[:8])


def edit_in(facts: Mapping[str, Any] | None) -> Edit | None:
    """What the facts of a run in its summary say of it; None: nothing was edited, or the run is from before."""
    found = (facts or {}).get("edited")
    try:
        return Edit(int(found["lines"]), str(found["checksum"])) if found else None
    except (KeyError, TypeError, ValueError):
        return None
