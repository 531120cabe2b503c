"""The one exception a user's input can raise: a single line that says what is wrong and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input, named in one line: argument, value, what is allowed, way out. The command line exits with code 2 on it."""

    def __init__(self, message: str):
        super().__init__(" ".join(str(message).split("\n")))  # one line, also of a value that is written over several


def unknown(argument: str, value: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not one of `known`, with the nearest known name as a suggestion."""
    known = sorted(known)
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"{argument} = {value!r} is not known.{hint} Allowed: {', '.join(known)}.")
