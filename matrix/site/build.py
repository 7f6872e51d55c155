"""From catalogue and evidence to the published data. Pure: no file is read or written."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pydantic import HttpUrl

from matrix.components import NONE, SYSTEM, Component
from matrix.judging.claims import Claim
from matrix.judging.explanations import explain_failures
from matrix.judging.findings import find
from matrix.judging.staleness import stale
from matrix.judging.verdicts import StackVerdict, is_required, judge, put_to_stacks
from matrix.keeping.records import Record
from matrix.planning.campaigns import Campaign
from matrix.probe_specs import ProbeSpec
from matrix.site.builds import builds_of
from matrix.site.by_version import strips_of, versions_of
from matrix.site.cell_views import cell_view
from matrix.site.changes import changes_of
from matrix.site.claim_views import claim_views
from matrix.site.compared import comparison_views
from matrix.site.coverage import coverage_of
from matrix.site.derived import DotStrip
from matrix.site.patch_views import patch_views
from matrix.site.published import (
    Choice,
    ComponentView,
    ContradictionView,
    EvidenceFolders,
    MachineView,
    Matrix,
    NameView,
    PatchChoice,
    ProbeView,
    StackView,
)
from matrix.site.reported import ReportEntry, reported_of
from matrix.site.table import codes
from matrix.site.words import reason_words, status_words, verdict_words
from matrix.stacks import stack_id
from matrix.versions import short_version
from patches.candidates import Candidate
from patches.history import is_sha
from patches.life import Lives

NAME = "CSA/DSA matrix"
DEFAULT_CAMPAIGN = "default"


def build_matrix(
    records: Iterable[Record],
    specs: Mapping[str, ProbeSpec],
    components: Mapping[str, Component],
    campaigns: Sequence[Campaign],
    candidates: Mapping[str, Candidate] | None = None,
    *,
    lives: Lives | None = None,
    claims: Sequence[Claim] = (),
    reports: Sequence[ReportEntry] = (),
    as_of: dt.date | None = None,
) -> Matrix:
    """Everything the site shows, from everything that is known.

    Args:
        records: the evidence.
        specs: the probes, in the order in which a stack is judged.
        components: the catalogue.
        campaigns: they name stacks, and plan some that have no evidence.
        candidates: patches that stacks may carry.
        lives: what becomes of patches on many revisions, where somebody looked.
        claims: statements of upstreams.
        reports: reports of failures that the evidence may answer.
        as_of: evidence that started after this day (UTC) is ignored.
    """
    asking = put_to_stacks(specs)
    if as_of is not None:
        records = [r for r in records if r.run.started.astimezone(dt.UTC).date() <= as_of]
    kept = sorted(records, key=lambda record: record.run.id, reverse=True)
    by_stack: dict[str, list[Record]] = defaultdict(list)
    for record in kept:
        by_stack[record.stack.id].append(record)
    heads = {id_: candidate.head for id_, candidate in (candidates or {}).items()}
    asked, names, order = _named(by_stack, campaigns, heads)
    verdicts = judge(kept, specs, asked)
    # The day that counts as today is one of the evidence, so that a page never changes by itself.
    today = as_of or (kept[0].run.started.astimezone(dt.UTC).date() if kept else None)

    def place(verdict: StackVerdict) -> tuple[bool, int, str]:
        # What nobody has run yet answers nothing, so it stands below what does.
        unseen = verdict.stack not in by_stack
        return unseen, order.get(verdict.stack, len(order)), verdict.stack

    stacks = [
        _stack(
            verdict,
            asked[verdict.stack],
            names[verdict.stack],
            by_stack,
            components,
            patches=_patches(by_stack.get(verdict.stack, ()), names[verdict.stack], heads),
            called=_called(by_stack.get(verdict.stack, ()), campaigns),
            today=today,
        )
        for verdict in sorted(verdicts, key=place)
    ]
    judged = {verdict.stack: verdict for verdict in verdicts}
    findings = find(kept, specs, judged={stack: found.cells for stack, found in judged.items()})
    letters = codes(list(asking))
    strips = {probe: strips_of(probe, components, stacks) for probe in asking}
    controls = _controls(kept)
    retired = sorted({record.probe.id for record in kept} - set(specs))
    return Matrix(
        name=NAME,
        data_date=kept[0].run.started if kept else None,
        runs=len(kept),
        evidence=EvidenceFolders(repository="matrix/evidence", published="evidence"),
        verdicts=verdict_words(),
        statuses=status_words(),
        reasons=reason_words(),
        components=[
            ComponentView(
                name=part.name,
                title=part.title,
                short=part.short,
                kind=part.kind,
                reason=part.reason,
                link=part.link,
                names=names_of(part),
                versions=versions_of(part.name, part, stacks),
            )
            for part in components.values()
        ],
        probes=[
            *(
                _probe(spec, letters[spec.id], strips[spec.id], controls.get(spec.id, []))
                for spec in asking.values()
            ),
            *(_retired(probe) for probe in retired),
        ],
        machines=_machines(kept),
        stacks=stacks,
        patches=patch_views(candidates or {}, stacks, lives),
        bases=lives.bases if lives else [],
        changes=changes_of(by_stack, specs, {stack.id: stack.title for stack in stacks}, judged),
        coverage=coverage_of(list(components), stacks),
        claims=claim_views(claims, findings, components),
        failures=explain_failures(findings, asking, components),
        comparisons=comparison_views(findings, components),
        reports=reported_of(reports, stacks, strips, components),
        citation=_citation(kept, today),
        as_of=as_of,
    )


def _citation(records: Sequence[Record], today: dt.date | None) -> str:
    """What was used, in one line: the name, the date of the data, and how much there was."""
    if not records or today is None:
        return f"{NAME}, no data yet, form 1."
    machines = len({record.machine.name for record in records})
    newest = records[0].run.started.astimezone(dt.UTC).date()
    cut = f", as of {today}" if today != newest else ""
    return (
        f"{NAME}, data of {newest}{cut}, {len(records)} runs on {machines} "
        f"machine{'' if machines == 1 else 's'}, form 1."
    )


def _controls(records: Sequence[Record]) -> dict[str, list[str]]:
    """The names of each probe's controls, from its newest run that showed some."""
    found: dict[str, list[str]] = {}
    for record in records:
        if record.control:
            found.setdefault(record.probe.id, sorted({c.name for c in record.control}))
    return found


def names_of(part: Component) -> list[str]:
    """What tools call a component, in small letters."""
    names = {part.name, part.title.lower(), part.short.lower()}
    if part.distribution is not None:
        names.add(part.distribution.lower())
    if part.kind == "cudnn":
        # Its packages carry the CUDA version in their names.
        names |= {"nvidia-cudnn-cu12", "nvidia-cudnn-cu13"}
    return sorted(names)


def _patches(
    records: Sequence[Record], names: Sequence[NameView], heads: Mapping[str, str]
) -> list[PatchChoice]:
    """A stack's patches: of its runs, or of the campaign that plans it."""
    if records:
        return [PatchChoice(id=p.id, head=p.head) for p in records[0].stack.patches]
    wanted = names[0].patches if names else []
    return [PatchChoice(id=id_, head=heads.get(id_, "unknown")) for id_ in wanted]


def _called(records: Sequence[Record], campaigns: Sequence[Campaign]) -> str | None:
    """What a stack with patches from a command line is called: after the stack that it changes."""
    if not records or not records[0].stack.patches:
        return None
    facts = records[0].stack
    ids = [patch.id for patch in facts.patches]
    found = (campaign.name_of(facts.requested, ids) for campaign in campaigns)
    return next((name for name in found if name), None)


def _named(
    by_stack: Mapping[str, Sequence[Record]],
    campaigns: Sequence[Campaign],
    heads: Mapping[str, str],
) -> tuple[dict[str, dict[str, str]], dict[str, list[NameView]], dict[str, int]]:
    """What each stack asks for, what campaigns call it, and where it stands in the table.

    `system` in a campaign stands for whatever a machine has, so one entry can name several stacks
    of the evidence; where it names none, the entry stands for itself.
    """
    asked = {stack: records[0].stack.requested for stack, records in by_stack.items()}
    names: dict[str, list[NameView]] = defaultdict(list)
    order: dict[str, int] = {}
    for campaign in sorted(campaigns, key=lambda c: (c.name != DEFAULT_CAMPAIGN, c.name)):
        for entry in campaign.stacks:
            requested = campaign.requested(entry)
            meant = [
                stack
                for stack, records in sorted(by_stack.items())
                if [patch.id for patch in records[0].stack.patches] == entry.patches
                and _fits(requested, asked[stack])
            ]
            if not meant:
                pins = tuple((id_, heads.get(id_, "unknown")) for id_ in entry.patches)
                meant = [stack_id(requested, pins)]
                asked[meant[0]] = requested
            for stack in meant:
                order.setdefault(stack, len(order))
                names[stack].append(
                    NameView(
                        campaign=campaign.name,
                        name=entry.name,
                        reason=entry.reason,
                        link=entry.link,
                        patches=entry.patches,
                    )
                )
    return asked, names, order


def _fits(entry: Mapping[str, str], requested: Mapping[str, str]) -> bool:
    # A component that came into the catalogue later is none in what was run before.
    return {**entry, **requested}.keys() == entry.keys() and all(
        version in (SYSTEM, requested.get(component, NONE)) for component, version in entry.items()
    )


def _stack(
    verdict: StackVerdict,
    requested: Mapping[str, str],
    names: list[NameView],
    by_stack: Mapping[str, Sequence[Record]],
    components: Mapping[str, Component],
    *,
    patches: list[PatchChoice],
    called: str | None,
    today: dt.date | None,
) -> StackView:
    records = by_stack.get(verdict.stack, ())
    by_probe: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_probe[record.probe.id].append(record)
    # A component that left the catalogue is still part of the stacks that were run with it.
    parts = [
        *components,
        *sorted(component for component in requested if component not in components),
    ]
    return StackView(
        id=verdict.stack,
        title=names[0].name if names else called or verdict.stack,
        page=f"stacks/{verdict.stack}.html",
        names=names,
        repeat=_repeat(verdict.stack if records else None, names),
        campaign_entry=[] if names else _entry(verdict.stack, requested, records),
        verdict=verdict.verdict,
        summary=verdict.summary,
        probe=verdict.probe,
        reason=verdict.reason,
        missing=verdict.missing,
        notes=verdict.notes,
        strength=verdict.strength,
        weakest=verdict.weakest,
        marks=stale(requested, verdict.newest, components, today) if today and records else [],
        newest=verdict.newest,
        runs=len(records),
        machines=sorted({record.machine.name for record in records}),
        components=[
            _choice(part, requested[part], components.get(part))
            for part in parts
            if part in requested
        ],
        patches=patches,
        contradicted=[
            ContradictionView(claim=claim, asked=found)
            for claim, found in sorted(
                {(c.claim, c.asked) for record in records for c in record.stack.contradicted}
            )
        ],
        builds=builds_of(records, [part for part in parts if part in requested], components),
        cells=[cell_view(cell, by_probe[cell.probe]) for cell in verdict.cells],
    )


def _repeat(stack: str | None, names: Sequence[NameView]) -> str | None:
    if not names:
        return None
    campaign = "" if names[0].campaign == DEFAULT_CAMPAIGN else f"--campaign {names[0].campaign} "
    # By id where evidence knows it: the name stands for another stack where torch is another.
    which = f"{stack} --again" if stack is not None else names[0].name
    return f"nox -s matrix -- {campaign}--stack {which}"


def _entry(stack: str, requested: Mapping[str, str], records: Sequence[Record]) -> list[str]:
    """Lines that name the stack in a campaign; which has no word for patch files."""
    patches = records[0].stack.patches if records else []
    if any(not is_sha(patch.head) for patch in patches):
        return []
    named = [f"patches = {json.dumps([patch.id for patch in patches])}"] if patches else []
    versions = [f"{name} = {json.dumps(version)}" for name, version in requested.items()]
    return [
        "[[stack]]",
        f'name = "again-{stack}"',
        f'reason = "To repeat stack {stack}."',
        *named,
        "[stack.components]",
        *versions,
    ]


def _choice(name: str, version: str, component: Component | None) -> Choice:
    link = None
    if component is not None and component.remote and component.is_revision(version):
        link = HttpUrl(f"{component.remote.removesuffix('.git')}/commit/{version}")
    return Choice(component=name, version=version, short=short_version(version), link=link)


def _probe(spec: ProbeSpec, code: str, strips: list[DotStrip], controls: list[str]) -> ProbeView:
    return ProbeView(
        id=spec.id,
        code=code,
        question=spec.question,
        method=_paragraphs(spec.method),
        required=is_required(spec),
        group=spec.group,
        gpu=spec.gpu,
        gpus=spec.gpus,
        needs=[need for need in spec.needs if not need.startswith("gpu:")],
        revision=spec.revision,
        retired=False,
        time_limit_s=spec.time_limit_s,
        parameters=spec.parameters,
        controls=controls,
        strips=strips,
    )


def _retired(probe: str) -> ProbeView:
    return ProbeView(
        id=probe,
        question="This probe is no longer in the project; its evidence is kept.",
        method=[],
        required=False,
        group=None,
        gpu=None,
        needs=[],
        revision=None,
        retired=True,
    )


def _paragraphs(text: str) -> list[str]:
    """Paragraphs of a docstring; each item of a list is one of its own."""
    blocks = re.split(r"\n\s*\n|\n\s*(?=[-*] )", text)
    return [" ".join(block.split()) for block in blocks if block.strip()]


def _machines(records: Sequence[Record]) -> list[MachineView]:
    newest: dict[str, Record] = {}
    for record in records:
        newest.setdefault(record.machine.name, record)
    counts = Counter(record.machine.name for record in records)
    return [
        MachineView(
            name=name,
            gpu=record.machine.gpu,
            sm=record.machine.sm,
            driver=record.machine.driver,
            cuda=record.machine.cuda,
            cpu=record.machine.cpu,
            kernel=record.machine.kernel,
            runs=counts[name],
            newest=record.run.started,
        )
        for name, record in sorted(newest.items())
    ]
