"""Has pydantic look for its own plugins now, where that can fail without harm.

It does so when the first model is built, and reads the entry points of every installed package for
that: one whose file is broken would make our first model an error. At its second try it goes on
without plugins.
"""

from __future__ import annotations

import logging

from pydantic import BaseModel

from ._installed import read

__all__: list[str] = []

try:

    class _First(BaseModel):
        pass
except Exception as error:
    # Unreadable entry points are told of by who looks for gofer's plugins.
    if not read(())[1]:
        logging.getLogger("gofer").warning(
            "pydantic goes on without its own plugins, as loading them raised %s: %s",
            type(error).__name__, error,
        )  # fmt: skip
