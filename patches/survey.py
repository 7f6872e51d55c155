"""One component's candidates and revisions, brought together for a look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from matrix.errors import DataError
from patches.applying import Bench, Change, Pin
from patches.bases import Base, Series, bases_of
from patches.candidates import Candidate
from patches.containment import Past
from patches.frames import Frame
from patches.history import Commits, History, is_sha
from patches.inert import OLDEST_GIT, git_version
from patches.life import Finder, Life, Lives, Memory
from patches.overlap import Overlap, declared, overlap_of
from patches.remotes import Remote
from patches.results import Applied
from patches.tracing import Place, Tracer, locate


@dataclass(frozen=True)
class Looked:
    """What a traceback has to do with the candidates."""

    base: str
    places: list[Place]
    found: list[tuple[Overlap, Applied | None]]
    """With what comes of the candidate on the revision; None where its head was not seen."""


class Survey:
    """A component's candidates on its revisions.

    Args:
        remote: where its commits come from.
        cache: folder of mirrors and of what is remembered.
        roots: folders of the tree that are imported.
        candidates: with their pins.
        series: which revisions.
        catalogue: revisions that are always among them.

    Raises:
        DataError: this machine's git is too old.
    """

    def __init__(
        self,
        *,
        remote: Remote,
        cache: Path,
        roots: Sequence[str],
        candidates: Sequence[tuple[Candidate, Pin]],
        series: Series,
        catalogue: Sequence[str],
    ) -> None:
        if git_version() < OLDEST_GIT:
            raise DataError(
                f"git {'.'.join(map(str, git_version()))} can't merge without a worktree. Install "
                f"git {'.'.join(map(str, OLDEST_GIT))} or newer."
            )
        self.history = History(remote, cache)
        self._memory = Memory(cache / "lives" / remote.name)
        self._roots = tuple(roots)
        self._candidates = list(candidates)
        self.candidates = [candidate for candidate, _ in candidates]
        self._series = series
        self._catalogue = list(catalogue)
        self._missing: dict[str, str] = {}

    def sync(self, *, again: bool = False) -> None:
        """Have everything here.

        Raises:
            SourceError: the source can't be asked, and something is missing.
        """
        pins = [pin for _, pin in self._candidates]
        heads: list[tuple[int | None, str]] = [(None, sha) for sha in self._catalogue]
        heads += [(pin.number, pin.head) for pin in pins if is_sha(pin.head)]
        branches = {self._series.branch, *(pin.target for pin in pins if pin.target)}
        self._missing = self.history.sync(
            branches=sorted(branches), tags=self._series.releases, heads=heads, again=again
        )

    def lives(self, doing: Callable[[str], None]) -> Lives:
        """Every candidate on every revision.

        Raises:
            GitFailed: the source is damaged.
            DataError: it has no such branch.
        """
        commits = self._commits()
        bases = bases_of(self._series, self.history, commits, self._catalogue)
        bench = self._bench(commits, bases)
        lives = Finder(bench, self._memory, doing).find(
            self.history.remote.name, bases, self._candidates, self._missing
        )
        # Titles and the like are for pages; what is not known comes last in every list.
        return lives.model_copy(update={"candidates": sorted(lives.candidates, key=_order)})

    def look(self, frames: Sequence[Frame], base: str) -> Looked:
        """What candidates do to frames of a traceback seen at a revision.

        Args:
            frames: as they were given.
            base: a full SHA, or the beginning of one that is known.

        Raises:
            DataError: there is no such revision, or none of the frames is in it.
            GitFailed: the source is damaged.
        """
        commits = self._commits()
        fitting = [sha for sha in commits.all if sha.startswith(base)]
        if len(fitting) != 1 and base not in commits.all:
            how = "no" if not fitting else "more than one"
            raise DataError(f"--at {base}: {how} known revision begins so. Give the full SHA.")
        revision = base if base in commits.all else fitting[0]
        bench = self._bench(commits, [])
        bench.past = replace(bench.past, tips=(revision,))
        tree = self.history.tree_of(revision)
        tracer = Tracer(self.history, tree, self._roots)
        places = locate(tracer.base, frames)
        if not any(place.function for place in places):
            why = "; ".join(dict.fromkeys(f"{place.frame}: {place.why}" for place in places))
            raise DataError(f"None of it is in {revision[:12]}. {why or 'No frame was given.'}")
        found: list[tuple[Overlap, Applied | None]] = []
        for candidate, pin in self._candidates:
            seen = pin.text is not None or (is_sha(pin.head) and pin.head not in self._missing)
            if seen:
                change, applied = self._applied(bench, tracer, pin, revision)
                found.append((overlap_of(tracer, places, change, candidate.shown), applied))
            else:
                found.append((self._declared(tracer, places, candidate, revision), None))
        return Looked(revision, places, found)

    def _declared(
        self, tracer: Tracer, places: Sequence[Place], candidate: Candidate, revision: str
    ) -> Overlap:
        """What a candidate whose head nobody has seen says of itself."""
        target = self.history.branch(candidate.target or "") or revision
        return declared(
            tracer,
            places,
            tracer.tree(self.history.tree_of(target)),
            id_=candidate.id,
            shown=candidate.shown,
            sites=candidate.call_sites,
        )

    @staticmethod
    def _applied(bench: Bench, tracer: Tracer, pin: Pin, revision: str) -> tuple[Change, Applied]:
        change = bench.change(pin)
        tree = tracer.base.tree
        applied = bench.apply(change, revision, tree)
        if pin.text is not None:
            # A patch file has no revision of its own, so it is compared where it applies.
            change = replace(change, before=tree, after=applied.tree or tree)
        return change, applied

    def _commits(self) -> Commits:
        refs = self.history.refs
        branches = {self._series.branch, *(pin.target for _, pin in self._candidates)}
        tips = [tip for name in branches if name and (tip := self.history.branch(name))]
        tips += [sha for ref, sha in refs.items() if ref.startswith("refs/tags/")]
        tips += [pin.head for _, pin in self._candidates if is_sha(pin.head)]
        tips += self._catalogue
        return self.history.commits(tip for tip in tips if tip not in self._missing)

    def _bench(self, commits: Commits, bases: Sequence[Base]) -> Bench:
        past = Past(self.history, commits, tuple(base.sha for base in bases))
        return Bench(self.history, past, self._roots)


def _order(life: Life) -> bool:
    return life.unavailable is not None
