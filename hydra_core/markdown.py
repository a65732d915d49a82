"""Text from outside inside Markdown."""

from __future__ import annotations


def escape(text: object) -> str:
    r"""The text as it is, whatever markup stands in it.

    >>> escape("**bold** | <b>")
    '\\*\\*bold\\*\\* \\| \\<b\\>'
    """
    out = str(text)
    for char in "\\`*_[]<>$#~|":
        out = out.replace(char, "\\" + char)
    return out
