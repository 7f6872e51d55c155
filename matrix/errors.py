"""Errors that end a command, each with its exit status and a message that says what to do next."""

from __future__ import annotations


class MatrixError(Exception):
    """Something begun could not be finished; the command ends with exit status 1."""

    exit_status = 1


class DataError(MatrixError):
    """A catalogue, settings or evidence file is wrong, or the command line is; exit status 2.

    Messages name the file and the entry and say what to do.
    """

    exit_status = 2


class Unavailable(MatrixError):
    """This machine can't provide a part of one stack; other stacks go on.

    `reason` is a `miss` reason of `matrix.reasons`, kept with the run it explains.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ResolutionConflict(MatrixError):
    """What is asked for can't be put together; a result, not a mishap.

    `reason` is a `fail` reason of `matrix.reasons`.
    """

    reason = "resolve:conflict"
    patches: tuple[tuple[str, str, str], ...] = ()
    """(candidate, head, result) for each patch that was tried."""


class PatchConflict(ResolutionConflict):
    """A candidate can't be put onto the revision of a stack."""

    def __init__(
        self, reason: str, message: str, patches: tuple[tuple[str, str, str], ...]
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.patches = patches
