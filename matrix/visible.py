"""Text from outside, made safe to show: nothing in it is hidden and nothing in it acts."""

from __future__ import annotations

import unicodedata


def visible(text: str) -> str:
    """Text on one line in which nothing is hidden.

    Control characters could end a block of HTML early, drive an operator's terminal, or be taken
    for a placeholder by the Markdown library; characters that turn the direction of writing could
    show a reader another text than the one that is there; lone surrogates can't be written at all.
    """
    if text.isprintable():
        return str(text)  # nearly every one: of categories C and Z only the space is printable
    return "".join(
        " "
        if char in "\n\r\t"
        else f"\\u{ord(char):04x}"
        if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") and char != "\ufe0e"
        else char
        for char in text
    )


def visible_lines(text: str) -> str:
    """The same, with line breaks kept."""
    return "\n".join(visible(line) for line in text.split("\n"))
