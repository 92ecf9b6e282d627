"""Pages of shared storage: list, comparison, a new file system with its plan, and one with its ties to S3."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django_filters import FilterSet

from apps.audit.selectors import events_of
from apps.audit.timeline import Words, lines_of
from apps.connections.selectors import accounts_visible_to
from apps.connections.states import AccountPhase
from apps.core.errors import Refusal
from apps.core.filters import ChoicesFilter, TextFilter
from apps.core.forms import is_htmx, posted_version, typed_name
from apps.core.lists import listing
from apps.core.pages import Page, once
from apps.storage import rules
from apps.storage.forms import AssociationForm, ExportForm, FileSystemForm, GrowForm
from apps.storage.models import FileSystem
from apps.storage.permissions import can_operate_storage
from apps.storage.selectors import (
    association_for,
    associations_of,
    exports_of,
    file_system_for,
    file_system_sentence,
    file_systems_visible_to,
    fullness_of,
    is_settling,
    mount_command,
    storage_usd_per_month,
    unexported_reason,
)
from apps.storage.services import (
    association_create,
    association_delete,
    export_begin,
    file_system_adopt,
    file_system_create,
    file_system_delete,
    file_system_grow,
)
from apps.storage.states import (
    ASSOCIATION_COLOURS,
    EXPORT_COLOURS,
    WORKING,
    FileSystemKind,
    FileSystemPhase,
)
from apps.storage.words import MountWay, mount_ways
from apps.teams.selectors import teams_visible_to

WORDS: Words = {
    "FileSystemRequested": lambda e: ("wait", _("Asked for")),
    "FileSystemAvailable": lambda e: ("good", _("Available")),
    "FileSystemFailed": lambda e: ("bad", _("Failed: %(why)s") % {"why": e.text}),
    "FileSystemImpaired": lambda e: ("bad", _("Impaired: %(why)s") % {"why": e.text}),
    "FileSystemGrowing": lambda e: ("busy", _("Growing")),
    "FileSystemDeleteRequested": lambda e: (
        "wait",
        _("Deletion asked for by %(who)s") % {"who": e.text.removeprefix("deletion asked for by ")},
    ),
    "FileSystemDeleted": lambda e: ("off", _("Deleted: %(what)s") % {"what": e.text}),
    "AssociationAvailable": lambda e: (
        "good",
        _("%(path)s is tied to %(repository)s") % {"path": e.data.get("path"), "repository": e.data.get("repository")},
    ),
    "AssociationBroken": lambda e: (
        "bad",
        _("The tie of %(path)s to S3 is broken: %(why)s") % {"path": e.data.get("path"), "why": e.text},
    ),
    "ExportSucceeded": lambda e: ("good", _("Export to S3 ended")),
    "ExportFailed": lambda e: ("bad", _("Export to S3 failed: %(why)s") % {"why": e.text}),
}


class FileSystemFilter(FilterSet):  # type: ignore[misc]
    """By phase, kind and text."""

    phase = ChoicesFilter("phase", values=[c.value for c in FileSystemPhase])
    kind = ChoicesFilter("kind", values=[c.value for c in FileSystemKind])
    q = TextFilter("name", "provider_id", "account__name")

    class Meta:
        model = FileSystem
        fields: list[str] = []


class FileSystemList(Page):
    """All file systems."""

    right = "storage.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page, or with htmx its rows. Raises BadQuery."""
        rows = file_systems_visible_to(self.actor)
        if "phase" not in request.GET:
            rows = rows.exclude(phase=FileSystemPhase.DELETED)
        found = listing(
            request,
            rows,
            FileSystemFilter,
            sorts={
                "name": "name",
                "-name": "-name",
                "-capacity": "-observed_capacity_gib",
                "capacity": "observed_capacity_gib",
                "-created_at": "-created_at",
                "created_at": "created_at",
            },
            labels={"phase": gettext_lazy("State"), "kind": gettext_lazy("Kind"), "q": gettext_lazy("Text")},
            words={
                "phase": lambda v: str(FileSystemPhase(v).label),
                "kind": lambda v: str(FileSystemKind(v).label),
            },
        )
        context = {
            "list": found,
            "rows": [(fs, fullness_of(fs)) for fs in found.rows],
            "phases": FileSystemPhase.choices,
            "kinds": FileSystemKind.choices,
            "usd_per_month": storage_usd_per_month(self.actor),
            "price_source": rules.PRICE_SOURCE,
            "may_operate": can_operate_storage(self.actor),
            "is_settling": any(fs.phase in WORKING for fs in found.rows),
        }
        template = "storage/storage.html"
        return render(request, f"{template}#rows" if is_htmx(request) else template, context)


def _uses(ways: Sequence[MountWay]) -> list[dict[str, Any]]:
    """The verdicts turned round: for each use, what each way is worth."""
    colours = {"good": "good", "fair": "warn", "bad": "bad"}
    return [
        {"label": label, "verdicts": [(colours[way.verdicts[i][1]], way.verdicts[i][2]) for way in ways]}
        for i, (label, _verdict, _text) in enumerate(ways[0].verdicts)
    ]


class Compare(Page):
    """The ways to mount data, side by side."""

    right = "storage.view"

    def get(self, request: HttpRequest) -> HttpResponse:
        """The page."""
        ways = mount_ways()
        context = {"ways": ways, "uses": _uses(ways), "price_source": rules.PRICE_SOURCE}
        return render(request, "storage/compare.html", context)


class _WithForm(Page):
    abstract = True
    right = "storage.operate"

    def form(self, *args: Any, **kwargs: Any) -> FileSystemForm:
        """The form with the accounts and teams that may be chosen."""
        accounts = list(accounts_visible_to(self.actor).filter(phase=AccountPhase.CONNECTED))
        return FileSystemForm(*args, accounts=accounts, teams=list(teams_visible_to(self.actor)), **kwargs)


def _plan(form: FileSystemForm) -> dict[str, Any] | None:
    """What will happen, as far as the input says; None while it says too little."""
    form.is_valid()
    data = form.cleaned_data
    if data.get("provider_id"):
        return {"is_adoption": True}
    if data.get("kind") == FileSystemKind.EFS:
        return {"is_efs": True, "usd_per_gib": rules.EFS_USD_PER_GIB_MONTH}
    capacity, throughput = data.get("capacity_gib") or 0, data.get("throughput_mb_s_tib") or 0
    if not throughput:
        return None
    problems = rules.lustre_problems(capacity, throughput, bool(data.get("has_efa")), data.get("metadata_iops") or 0)
    return {
        "step_gib": rules.step_gib(throughput, bool(data.get("has_efa"))),
        "capacity_gib": capacity,
        "usd_per_month": rules.usd_per_month(FileSystemKind.LUSTRE, capacity, throughput),
        "throughput_mb_s": capacity * throughput // 1024,
        "problems": [p.detail for p in problems],
        "price_source": rules.PRICE_SOURCE,
        "region": next((a.region for a in form.accounts.values() if a.uid == data.get("account")), ""),
        "price_region": rules.PRICE_REGION,
    }


class FileSystemNew(_WithForm):
    """Make a file system, or adopt one."""

    right = "storage.operate"

    def get(self, request: HttpRequest) -> HttpResponse:
        """A form with sensible values."""
        initial = {"key": uuid.uuid4().hex, "capacity_gib": 19_200, "throughput_mb_s_tib": 250, "has_efa": True}
        accounts = self.form().accounts
        typed = {**initial, "kind": FileSystemKind.LUSTRE, "account": next(iter(accounts), "")}
        context = {"form": self.form(initial=initial), "plan": _plan(self.form(typed))}
        return render(request, "storage/file_system_new.html", context)

    def post(self, request: HttpRequest) -> HttpResponse:
        """Ask for it; a refusal shows at its fields."""
        form = self.form(request.POST)
        if form.is_valid():

            def effect() -> str:
                verb = file_system_adopt if form.is_adoption else file_system_create
                made = verb(actor=self.actor, **form.values())
                return reverse("file-system", args=[made.uid])

            try:
                return HttpResponseRedirect(once(request, form.cleaned_data["key"], effect))
            except Refusal as refusal:
                form.show(refusal)
        context = {"form": form, "plan": _plan(form)}
        return render(request, "storage/file_system_new.html", context, status=422)


class FileSystemPlan(_WithForm):
    """What a file system as typed would be and cost."""

    right = "storage.operate"

    def post(self, request: HttpRequest) -> HttpResponse:
        """The plan alone."""
        form = self.form(request.POST)
        return render(request, "storage/file_system_new.html#plan", {"form": form, "plan": _plan(form)})


class FileSystemPage(Page):
    """One file system: how full, its mount line, its ties to S3, its exports, its timeline."""

    right = "storage.view"

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """The page, or with htmx its live part."""
        fs = file_system_for(actor=self.actor, may="storage.view", uid=uid)
        template = "storage/file_system.html"
        name = f"{template}#live" if is_htmx(request) else template
        return render(request, name, self.context(fs))

    def context(self, fs: FileSystem, **more: Any) -> dict[str, Any]:
        """What the page shows; forms that were refused come in ``more``."""
        mounts = getattr(fs, "mounts", None)
        return {
            "fs": fs,
            "sentence": file_system_sentence(fs),
            "full": fullness_of(fs),
            "associations": list(associations_of(fs)),
            "exports": list(exports_of(fs)[:10]),
            "mounts": list(mounts.select_related("cluster")) if mounts is not None else [],
            "mount_command": mount_command(fs),
            "unexported": unexported_reason(fs),
            "association_colours": ASSOCIATION_COLOURS,
            "export_colours": EXPORT_COLOURS,
            "lines": lines_of(events_of([fs.uid], 100), WORDS),
            "is_settling": is_settling(fs),
            "is_deleted": fs.phase == FileSystemPhase.DELETED,
            "is_lustre": fs.kind == FileSystemKind.LUSTRE,
            "may_operate": can_operate_storage(self.actor),
            "association_form": AssociationForm(),
            "export_form": ExportForm(),
            "grow_form": GrowForm(
                initial={
                    "capacity_gib": fs.observed_capacity_gib
                    + (rules.step_gib(fs.throughput_mb_s_tib, fs.has_efa) if fs.throughput_mb_s_tib else 0)
                }
            ),
            **more,
        }


class _Change(FileSystemPage):
    """A form on the page of a file system; a refusal shows the page again with the form open."""

    abstract = True
    right = "storage.operate"

    def refused(self, request: HttpRequest, fs: FileSystem, **forms: Any) -> HttpResponse:
        """The page with what was wrong."""
        fs.refresh_from_db()
        return render(request, "storage/file_system.html", self.context(fs, **forms), status=422)

    def done(self, fs: FileSystem, words: str) -> HttpResponse:
        """Back to the page, with a word."""
        self.say(words)
        return HttpResponseRedirect(reverse("file-system", args=[fs.uid]))

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A reload after a refusal leads back to the page."""
        return HttpResponseRedirect(reverse("file-system", args=[uid]))


class FileSystemGrow(_Change):
    """Grow a file system."""

    right = "storage.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it."""
        fs = file_system_for(actor=self.actor, may="storage.operate", uid=uid)
        form = GrowForm(request.POST)
        if form.is_valid():
            try:
                file_system_grow(
                    actor=self.actor,
                    file_system=fs,
                    capacity_gib=form.cleaned_data["capacity_gib"],
                    expected_version=posted_version(request),
                )
                return self.done(fs, _("%(name)s grows.") % {"name": fs.name})
            except Refusal as refusal:
                form.show(refusal)
        return self.refused(request, fs, grow_form=form, open_dialog="ask-grow")


class FileSystemDelete(_Change):
    """Delete a file system, or let an adopted one go."""

    right = "storage.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it; the name must be typed. Raises InvalidInput, ExportPending, FileSystemInUse."""
        fs = file_system_for(actor=self.actor, may="storage.operate", uid=uid)
        typed_name(request, fs.name)
        file_system_delete(
            actor=self.actor,
            file_system=fs,
            expected_version=posted_version(request),
            loses_unexported=request.POST.get("loses_unexported") == "on",
        )
        return self.done(fs, _("%(name)s is being deleted.") % {"name": fs.name})


class AssociationNew(_Change):
    """Tie a folder to S3."""

    right = "storage.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it."""
        fs = file_system_for(actor=self.actor, may="storage.operate", uid=uid)
        form = AssociationForm(request.POST)
        if form.is_valid():
            try:
                association_create(actor=self.actor, file_system=fs, **form.cleaned_data)
                return self.done(fs, _("%(path)s is being tied to S3.") % {"path": form.cleaned_data["path"]})
            except Refusal as refusal:
                form.show(refusal)
        return self.refused(request, fs, association_form=form, open_dialog="ask-tie")


class AssociationDelete(_Change):
    """Untie a folder."""

    right = "storage.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it."""
        association = association_for(actor=self.actor, may="storage.operate", uid=uid)
        association_delete(actor=self.actor, association=association, expected_version=posted_version(request))
        return self.done(association.file_system, _("%(path)s is being untied.") % {"path": association.path})

    def get(self, request: HttpRequest, uid: str) -> HttpResponse:
        """A reload leads back to the file system."""
        association = association_for(actor=self.actor, may="storage.view", uid=uid)
        return HttpResponseRedirect(reverse("file-system", args=[association.file_system.uid]))


class ExportNew(_Change):
    """Export to S3 now."""

    right = "storage.operate"

    def post(self, request: HttpRequest, uid: str) -> HttpResponse:
        """Ask for it."""
        fs = file_system_for(actor=self.actor, may="storage.operate", uid=uid)
        form = ExportForm(request.POST)
        if form.is_valid():
            try:
                export_begin(actor=self.actor, file_system=fs, paths=form.cleaned_data["paths"].splitlines())
                return self.done(fs, _("The export has been asked for."))
            except Refusal as refusal:
                form.show(refusal)
        return self.refused(request, fs, export_form=form, open_dialog="ask-export")
