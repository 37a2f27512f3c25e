"""A flag that begins with another dash than a hyphen, as slides and documents have it: the sentence that refuses it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from harness.common.errors import RequestError

_DASH = "[\u2010-\u2015\u2212\ufe58\ufe63\uff0d]"
_FLAG = re.compile(rf"(?=-?{_DASH})[-{_DASH[1:]}+(?P<name>.*)")


def refuse_dashes(words: Iterable[str]) -> None:
    """Raises RequestError, with the flag in hyphens: one of the words begins with a dash and is no file."""
    for word in words:
        if (found := _FLAG.fullmatch(word)) is not None and not os.path.lexists(word):
            name, *value = re.sub(_DASH, "-", found["name"]).split("=", 1)
            is_short = len(name) == 1 or (len(name) > 1 and not name[1].isalpha())  # -e, -n2, a negative number
            flag = "=".join(["-" * (2 - is_short) + name, *value])
            raise RequestError(f"{word}: a flag begins with a hyphen (-), and this is another dash: type {flag}")
