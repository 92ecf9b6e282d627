"""What operators do with a cluster's Slurm: its settings, who is who there, and whose an account is."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from apps.audit.services import event, record
from apps.clusters.models import Cluster
from apps.clusters.permissions import can_operate_clusters
from apps.clusters.slurm_models import SlurmAccount, SlurmUser
from apps.clusters.slurm_selectors import USER_NAME
from apps.clusters.states import LimitsMode, TokenStyle
from apps.core.errors import FieldProblem, Forbidden, InvalidInput
from apps.intents.services import intent_ask
from apps.teams.models import ServiceAccount, Team, User
from apps.teams.permissions import Actor

#: The intent that compares and repairs the limits of a cluster's accounts.
LIMITS_INTENT = "limits.reconcile"
SETTINGS = ("token_style", "token_lifetime_s", "same_names", "outside_team", "limits_mode")
_MAX_ID = 2**32 - 2
MIN_LIFETIME_S, MAX_LIFETIME_S = 60, 86_400
CSV_COLUMNS = ("user_name", "person", "uid", "gid", "gids", "team")
MAX_CSV_ROWS = 5000


@dataclass(frozen=True)
class ImportLine:
    """One row of a CSV import: what it would do ("new", "changed", "same") or why it cannot be taken."""

    number: int
    user_name: str
    verdict: str
    problem: str = ""


def _operate(actor: Actor) -> None:
    if not can_operate_clusters(actor):
        raise Forbidden(_("only operators and administrators do this"))


def _refuse(problems: Sequence[FieldProblem]) -> None:
    if problems:
        raise InvalidInput("; ".join(f"{p.pointer}: {p.detail}" for p in problems), problems=tuple(problems))


def slurm_settings_update(*, actor: Actor, cluster: Cluster, expected_version: int, **changes: Any) -> None:
    """Change how people act in a cluster's Slurm; what is not named stays.

    Raises Forbidden, InvalidInput, StaleVersion.
    """
    _operate(actor)
    spec = {name: getattr(cluster, name) for name in SETTINGS} | changes
    if set(spec) != set(SETTINGS):
        raise TypeError(f"not settings of a cluster's Slurm: {sorted(set(spec) - set(SETTINGS))}")
    problems = []
    for name, known in (("token_style", TokenStyle.values), ("limits_mode", LimitsMode.values)):
        if spec[name] not in known:
            text = _("one of %(known)s") % {"known": ", ".join(known)}
            problems.append(FieldProblem(f"/{name}", "unknown", text))
    if not MIN_LIFETIME_S <= spec["token_lifetime_s"] <= MAX_LIFETIME_S:
        text = _("from %(low)s to %(high)s s") % {"low": MIN_LIFETIME_S, "high": f"{MAX_LIFETIME_S:,}"}
        problems.append(FieldProblem("/token_lifetime_s", "out-of-range", text))
    _refuse(problems)
    changed = {name: value for name, value in spec.items() if getattr(cluster, name) != value}
    if not changed:
        return
    before = {name: getattr(cluster, name) for name in changed}
    with transaction.atomic():
        cluster.spec_update(expected_version, **changed)
        record(actor, "cluster.slurm", "cluster", cluster.uid, before=_plain(before), after=_plain(changed))
        event("cluster", cluster.uid, "SlurmSettingsChanged", ", ".join(changed), data={"fields": list(changed)})
        if cluster.limits_mode != LimitsMode.OFF:
            intent_ask(LIMITS_INTENT, cluster.uid)


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {k: (v.slug if isinstance(v, Team) else v) for k, v in spec.items()}


def user_problems(spec: Mapping[str, Any]) -> list[FieldProblem]:
    """What is wrong with a row by itself."""
    problems = []
    if not USER_NAME.fullmatch(spec["user_name"]):
        text = _("a user name of Slurm: letters, digits and ._@-, at most 60, starting with a letter")
        problems.append(FieldProblem("/user_name", "invalid", text))
    if spec["user_name"] == "root":
        problems.append(FieldProblem("/user_name", "root", _("nobody acts as root")))
    if spec["user"] is not None and spec["service_account"] is not None:
        problems.append(FieldProblem("/person", "two", _("a person or a service account, not both")))
    for name in ("uid_number", "gid_number"):
        value = spec[name]
        if value is not None and not 1 <= value <= _MAX_ID:
            text = _("from 1 to %(high)s; 0 is root's") % {"high": f"{_MAX_ID:,}"}
            problems.append(FieldProblem(f"/{name}", "out-of-range", text))
    if any(not isinstance(gid, int) or not 1 <= gid <= _MAX_ID for gid in spec["gids"]) or len(spec["gids"]) > 500:
        problems.append(FieldProblem("/gids", "invalid", _("group ids, at most 500")))
    if (spec["uid_number"] is None) != (spec["gid_number"] is None):
        problems.append(FieldProblem("/gid_number", "half", _("uid and gid go together")))
    return problems


def slurm_user_put(
    *,
    actor: Actor,
    cluster: Cluster,
    user_name: str,
    user: User | None = None,
    service_account: ServiceAccount | None = None,
    uid_number: int | None = None,
    gid_number: int | None = None,
    gids: Sequence[int] = (),
    team: Team | None = None,
) -> SlurmUser:
    """Say who a user of the cluster's Slurm is; said again it is corrected. Raises Forbidden, InvalidInput."""
    _operate(actor)
    spec: dict[str, Any] = {
        "user_name": user_name.strip(),
        "user": user,
        "service_account": service_account,
        "uid_number": uid_number,
        "gid_number": gid_number,
        "gids": list(gids),
        "team": team,
    }
    _refuse(user_problems(spec))
    others = SlurmUser.objects.filter(cluster=cluster).exclude(user_name=spec["user_name"])
    for name, who in (("user", user), ("service_account", service_account)):
        if who is not None and (taken := others.filter(**{name: who}).first()) is not None:
            text = _("%(person)s is already %(user)s there") % {"person": taken.who, "user": taken.user_name}
            _refuse([FieldProblem("/person", "taken", text)])
    try:
        with transaction.atomic():
            row = SlurmUser.objects.filter(cluster=cluster, user_name=spec["user_name"]).first()
            before: dict[str, Any] = {}
            if row is None:
                row = SlurmUser(cluster=cluster, **spec)
                row.save()
            else:
                before = _user_plain({name: getattr(row, name) for name in spec})
                if before == _user_plain(spec):
                    return row
                row.spec_update(**spec)
            after = _user_plain(spec)
            record(actor, "slurm_user.put", "cluster", cluster.uid, before=before or None, after=after)
    except IntegrityError:
        _refuse([FieldProblem("/person", "taken", _("someone changed the same row; look again"))])
        raise
    return row


def _user_plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {k: (str(v) if isinstance(v, User | ServiceAccount | Team) else v) for k, v in spec.items()}


def slurm_user_remove(*, actor: Actor, row: SlurmUser) -> None:
    """Forget who a user of Slurm is; jobs that were submitted keep the name. Raises Forbidden."""
    _operate(actor)
    with transaction.atomic():
        before = {"user_name": row.user_name, "person": row.who}
        record(actor, "slurm_user.remove", "cluster", row.cluster.uid, before=before)
        row.delete()


def account_problems(name: str) -> list[FieldProblem]:
    """What is wrong with an account's name."""
    if not USER_NAME.fullmatch(name):
        text = _("an account of Slurm: letters, digits and ._@-, at most 60, starting with a letter")
        return [FieldProblem("/account", "invalid", text)]
    if name == "root":
        return [FieldProblem("/account", "root", _("Slurm's root account is nobody's"))]
    return []


def slurm_account_put(
    *, actor: Actor, cluster: Cluster, account: str, team: Team, is_default: bool = False
) -> SlurmAccount:
    """Say whose an account of the cluster's Slurm is; said again it is corrected. Raises Forbidden, InvalidInput."""
    _operate(actor)
    name = account.strip()
    _refuse(account_problems(name))
    with transaction.atomic():
        if is_default:
            SlurmAccount.objects.filter(cluster=cluster, team=team, is_default=True).exclude(account=name).update(
                is_default=False
            )
        row = SlurmAccount.objects.filter(cluster=cluster, account=name).first()
        before = {"team": row.team.slug, "is_default": row.is_default} if row is not None else None
        if row is None:
            row = SlurmAccount(cluster=cluster, account=name, team=team, is_default=is_default)
            row.save()
        elif (row.team_id, row.is_default) != (team.pk, is_default):
            row.spec_update(team=team, is_default=is_default)
        else:
            return row
        after = {"account": name, "team": team.slug, "is_default": is_default}
        record(actor, "slurm_account.put", "cluster", cluster.uid, team_id=team.pk, before=before, after=after)
        if cluster.limits_mode != LimitsMode.OFF:
            intent_ask(LIMITS_INTENT, cluster.uid)
    return row


def slurm_account_remove(*, actor: Actor, row: SlurmAccount) -> None:
    """Forget whose an account is; limits that were written there stay in Slurm. Raises Forbidden."""
    _operate(actor)
    with transaction.atomic():
        before = {"account": row.account, "team": row.team.slug}
        record(actor, "slurm_account.remove", "cluster", row.cluster.uid, team_id=row.team_id, before=before)
        row.delete()


# --- CSV --------------------------------------------------------------------------------------------


def slurm_users_import(*, actor: Actor, cluster: Cluster, text: str, dry_run: bool) -> list[ImportLine]:
    """Put users from CSV: user_name, person (or team/robot), uid, gid, gids (with spaces), team; all or nothing.

    With ``dry_run``, or where any row has a problem, nothing is written. Raises Forbidden, InvalidInput for no CSV.
    """
    _operate(actor)
    rows = _csv_rows(text)
    teams = {team.slug: team for team in Team.objects.all()}
    people = {user.username: user for user in User.objects.filter(is_active=True)}
    robots = {str(one): one for one in ServiceAccount.objects.select_related("team")}
    known = {row.user_name: row for row in SlurmUser.objects.filter(cluster=cluster).select_related("team")}
    lines: list[ImportLine] = []
    specs: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    for number, cells in rows:
        name = cells.get("user_name", "")
        spec, problem = _row_spec(cells, people, robots, teams)
        for key in (name, f"person {cells.get('person')}" if cells.get("person") else ""):
            if key and key in seen and not problem:
                problem = _("the same as in row %(n)s") % {"n": seen[key]}
            elif key:
                seen[key] = number
        if problem:
            lines.append(ImportLine(number, name, "refused", problem))
            continue
        row = known.get(name)
        same = row is not None and all(getattr(row, key) == value for key, value in spec.items())
        lines.append(ImportLine(number, name, "same" if same else "changed" if row is not None else "new"))
        specs.append(spec)
    if dry_run or any(line.problem for line in lines):
        return lines
    with transaction.atomic():
        for line, spec in zip(lines, specs, strict=True):
            if line.verdict != "same":
                slurm_user_put(actor=actor, cluster=cluster, **spec)
    return lines


def _csv_rows(text: str) -> list[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff").replace("\r\n", "\n")))
    names = [name.strip() for name in reader.fieldnames or []]
    if "user_name" not in names or (unknown := [name for name in names if name not in CSV_COLUMNS]):
        text = _("the first line names the columns: %(columns)s") % {"columns": ", ".join(CSV_COLUMNS)}
        if "user_name" in names:
            text += "; " + _("unknown: %(names)s") % {"names": ", ".join(unknown)[:200]}
        raise InvalidInput(text, problems=[FieldProblem("/text", "columns", text)])
    found: list[tuple[int, dict[str, str]]] = []
    for number, row in enumerate(reader, start=2):
        if len(found) >= MAX_CSV_ROWS:
            text = _("at most %(most)s rows") % {"most": MAX_CSV_ROWS}
            raise InvalidInput(text, problems=[FieldProblem("/text", "too-long", text)])
        cells = {(k or "").strip(): (v or "").strip() for k, v in row.items() if isinstance(v, str) or v is None}
        if any(cells.values()):
            found.append((number, cells))
    return found


def _row_spec(
    cells: Mapping[str, str],
    people: Mapping[str, User],
    robots: Mapping[str, ServiceAccount],
    teams: Mapping[str, Team],
) -> tuple[dict[str, Any], str]:
    """What a row says, and the first thing that is wrong with it."""
    person, slug = cells.get("person", ""), cells.get("team", "")
    numbers: dict[str, Any] = {}
    for column, name in (("uid", "uid_number"), ("gid", "gid_number")):
        value = cells.get(column, "")
        if value and not value.isdecimal():
            return {}, _("%(column)s must be a number") % {"column": column}
        numbers[name] = int(value) if value else None
    gids = cells.get("gids", "").split()
    if not all(gid.isdecimal() for gid in gids):
        return {}, _("%(column)s must be a number") % {"column": "gids"}
    if person and person not in people and person not in robots:
        return {}, _("nobody in the portal is called %(name)s") % {"name": person}
    if slug and slug not in teams:
        return {}, _("no team %(name)s") % {"name": slug}
    spec = {
        "user_name": cells.get("user_name", ""),
        "user": people.get(person),
        "service_account": robots.get(person) if person not in people else None,
        **numbers,
        "gids": [int(gid) for gid in gids],
        "team": teams.get(slug),
    }
    problems = user_problems(spec)
    return spec, problems[0].detail if problems else ""
