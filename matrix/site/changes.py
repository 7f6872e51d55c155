"""What changed in support and why, day by day, from the dates of the evidence."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree as ET

from matrix.judging.verdicts import StackVerdict, judge_stack
from matrix.keeping.records import Record
from matrix.probe_specs import ProbeSpec
from matrix.site.derived import Cause, Change
from matrix.visible import visible

#: Below the site's root.
FEED_FILE = "api/v1/changes.atom"

_ATOM = "http://www.w3.org/2005/Atom"


def changes_of(
    by_stack: Mapping[str, Sequence[Record]],
    specs: Mapping[str, ProbeSpec],
    titles: Mapping[str, str],
    judged: Mapping[str, StackVerdict],
) -> list[Change]:
    """Every day on which a stack's verdict or a failing cell changed, newest first.

    The probes are taken as they are now: a day is judged as today's rules judge its evidence.
    `judged` holds the verdicts from all evidence, which are those of each stack's last day.
    """
    found = []
    for stack, records in by_stack.items():
        before: StackVerdict | None = None
        dates = [record.run.started.astimezone(dt.UTC).date() for record in records]
        days = sorted(set(dates))
        for day in days:
            if day == days[-1]:
                after = judged[stack]
            else:
                known = [r for r, date in zip(records, dates, strict=True) if date <= day]
                after = judge_stack(stack, known, specs)
            causes = _causes(before, after, specs)
            if before is None or before.verdict != after.verdict or causes:
                found.append(
                    Change(
                        day=day,
                        stack=stack,
                        title=titles.get(stack, stack),
                        before=before.verdict if before else None,
                        after=after.verdict,
                        summary=after.summary,
                        causes=causes,
                    )
                )
            before = after
    return sorted(found, key=lambda c: (-c.day.toordinal(), c.title, c.stack))


def _causes(
    before: StackVerdict | None, after: StackVerdict, specs: Mapping[str, ProbeSpec]
) -> list[Cause]:
    """Cells that began or ceased to fail."""
    causes = []
    for cell in after.cells:
        was = before.cell(cell.probe) if before else None
        old = was.status if was else "not run"
        bad = {"fail", "flaky"}
        if cell.probe in specs and old != cell.status and {old, cell.status} & bad:
            causes.append(
                Cause(probe=cell.probe, before=old, after=cell.status, reason=cell.reason)
            )
    return causes


def feed(changes: Sequence[Change], name: str) -> str:
    """The changes as an Atom feed; links are relative to the feed, for nobody knows its host."""
    ET.register_namespace("", _ATOM)
    root = ET.Element(f"{{{_ATOM}}}feed")
    _add(root, "title", f"{name}: what changed in support")
    _add(root, "id", _id(name))
    _add(root, "updated", _moment(changes[0].day) if changes else "1970-01-01T00:00:00Z")
    ET.SubElement(root, f"{{{_ATOM}}}link", rel="self", href="changes.atom")
    ET.SubElement(root, f"{{{_ATOM}}}link", rel="alternate", href="../../changes.html")
    author = ET.SubElement(root, f"{{{_ATOM}}}author")
    _add(author, "name", name)
    for change in changes[:200]:
        entry = ET.SubElement(root, f"{{{_ATOM}}}entry")
        was = f"{change.before} → " if change.before and change.before != change.after else ""
        _add(entry, "title", f"{change.title}: {was}{change.after}")
        _add(entry, "id", _id(f"{name} {change.day} {change.stack}"))
        _add(entry, "updated", _moment(change.day))
        ET.SubElement(entry, f"{{{_ATOM}}}link", href=f"../../stacks/{change.stack}.html")
        causes = [
            f"{c.probe}: {c.before} → {c.after}{f' ({c.reason})' if c.reason else ''}"
            for c in change.causes
        ]
        _add(entry, "summary", " ".join([change.summary, *(f"{cause}." for cause in causes)]))
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add(parent: ET.Element, tag: str, text: str) -> None:
    ET.SubElement(parent, f"{{{_ATOM}}}{tag}").text = visible(text)


def _id(text: str) -> str:
    return f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, text)}"


def _moment(day: dt.date) -> str:
    return f"{day}T00:00:00Z"
