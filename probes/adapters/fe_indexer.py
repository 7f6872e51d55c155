"""cuDNN Frontend: the indexer of its DSA package, scores and selection, on SM90.

Public functions, called by keyword because releases inserted arguments in the middle. What a
release lacks is found from its files, its signatures and its own words, never from its number.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from probes.adapters.shapes import expect_keywords, parameter_names
from probes.refusals import refusal
from probes.session import Session, absent

_PACKAGE = "cudnn.deepseek_sparse_attention"

FORWARD_KEYWORDS = (
    "q", "k", "w", "ratio", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k",
)  # fmt: skip
OFFSETS_KEYWORD = "q_causal_offsets"
TOP_K_KEYWORDS = ("input_values", "seq_lens", "top_k", "next_n", "return_val")
DETERMINISTIC_KEYWORD = "deterministic"


@dataclass(frozen=True)
class Forward:
    """`DSA.indexer_forward_wrapper`."""

    function: Callable[..., Any]
    takes_offsets: bool
    """Whether a segment may begin inside its sequence."""


@dataclass(frozen=True)
class TopK:
    """`DSA.indexer_top_k_wrapper`."""

    package: Any
    function: Callable[..., Any]
    takes_deterministic: bool
    """Whether it can be asked for a selection that repeats."""

    @contextmanager
    def supported(self) -> Iterator[None]:
        """Around a call: releases whose selection is for later architectures say so and lack it.

        Raises:
            Concluded: the call was refused because of the architecture.
        """
        try:
            yield
        except Exception as error:
            words = refusal(error, self.package, r"compute capability|requires SM\d+")
            if words is None:
                raise
            raise absent(f"this frontend's top-k says: {words}") from error


def forward(probe: Session) -> Forward:
    """The scores of queries against keys.

    Raises:
        Concluded: the stack or its frontend has none for SM90, or it did not import.
        UnknownShape: it lost an argument that every known release takes.
    """
    function = _member(probe, "indexer_forward_wrapper")
    home = _import(probe, f"{_PACKAGE}.indexer_forward")
    files = [module.name for module in pkgutil.iter_modules(home.__path__)]
    if not any("sm90" in name for name in files):
        raise absent("this frontend has no indexer forward for SM90")
    expect_keywords("indexer_forward_wrapper", function, FORWARD_KEYWORDS)
    return Forward(function, OFFSETS_KEYWORD in parameter_names(function))


def top_k(probe: Session) -> TopK:
    """The selection of the largest scores.

    Raises:
        Concluded: the stack or its frontend has none, or it did not import.
        UnknownShape: it lost an argument that every known release takes.
    """
    function = _member(probe, "indexer_top_k_wrapper")
    expect_keywords("indexer_top_k_wrapper", function, TOP_K_KEYWORDS)
    package = _import(probe, "cudnn")
    return TopK(package, function, DETERMINISTIC_KEYWORD in parameter_names(function))


def _member(probe: Session, name: str) -> Callable[..., Any]:
    probe.load("nvidia-cudnn-frontend")
    namespace = _import(probe, _PACKAGE).DSA
    with probe.tested("import", f"DSA.{name}"):
        try:
            function: Callable[..., Any] = getattr(namespace, name)
        except AttributeError as error:
            # A name that the package does not list; an import that failed inside is another error.
            if name in str(error):
                raise absent(f"this frontend has no {name}") from error
            raise
    return function


def _import(probe: Session, name: str) -> Any:
    with probe.tested("import", f"import {name}"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and name.startswith(error.name):
                raise absent(f"this frontend has no {error.name}") from error
            raise
