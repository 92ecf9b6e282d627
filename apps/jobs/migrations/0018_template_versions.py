"""Versions of templates, defaults and locks of a job's fields, and a team's rules for failures."""

import apps.core.clock
import django.db.models.deletion
from django.db import migrations, models

CONTENT = ("title", "description", "script", "parameters")


def forwards(apps, schema_editor):
    """What the console's history holds becomes versions; the newest is what the template says now."""
    JobTemplate = apps.get_model("jobs", "JobTemplate")
    Version = apps.get_model("jobs", "JobTemplateVersion")
    History = apps.get_model("jobs", "HistoricalJobTemplate")
    User = apps.get_model("teams", "User")
    for template in JobTemplate.objects.all():
        found = []
        for row in History.objects.filter(id=template.pk).order_by("history_date", "history_id"):
            said = {name: getattr(row, name) for name in CONTENT}
            if not found or found[-1][0] != said:
                who = User.objects.filter(pk=row.history_user_id).first() if row.history_user_id else None
                found.append((said, row.history_date, who.username if who else "", row.history_change_reason or ""))
        now = {name: getattr(template, name) for name in CONTENT}
        if not found or found[-1][0] != now:
            at = template.created_at if not found else _now()
            found.append((now, at, "", ""))
        for number, (said, at, by, why) in enumerate(found, start=1):
            Version.objects.create(template=template, number=number, created_at=at, by=by, why=why, **said)
        JobTemplate.objects.filter(pk=template.pk).update(number=len(found))


def _now():
    from apps.core import clock

    return clock.now()


class Migration(migrations.Migration):
    dependencies = [("jobs", "0017_template_teams"), ("teams", "0002_saved_view")]

    operations = [
        migrations.AddField("job", "retry_defaults", models.JSONField(default=list)),
        migrations.AddField("job", "template_version", models.PositiveIntegerField(default=0)),
        migrations.AddField("jobtemplate", "defaults", models.JSONField(blank=True, default=dict)),
        migrations.AddField("jobtemplate", "locked", models.JSONField(blank=True, default=list)),
        migrations.AddField("jobtemplate", "number", models.PositiveIntegerField(default=0)),
        migrations.AlterField("jobtemplate", "parameters", models.JSONField(blank=True, default=list)),
        migrations.CreateModel(
            name="JobTemplateVersion",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("number", models.PositiveIntegerField()),
                ("created_at", models.DateTimeField(default=apps.core.clock.now)),
                ("by", models.CharField(blank=True, default="", max_length=150)),
                ("why", models.CharField(blank=True, default="", max_length=200)),
                ("title", models.CharField(max_length=80)),
                ("description", models.CharField(blank=True, default="", max_length=300)),
                ("script", models.TextField()),
                ("parameters", models.JSONField(default=list)),
                ("defaults", models.JSONField(default=dict)),
                ("locked", models.JSONField(default=list)),
                (
                    "template",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="versions", to="jobs.jobtemplate"
                    ),
                ),
            ],
            options={
                "ordering": ["-number"],
                "constraints": [
                    models.UniqueConstraint(fields=("template", "number"), name="jobs_one_version_per_number")
                ],
            },
        ),
        migrations.CreateModel(
            name="TeamRetry",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("uid", models.CharField(editable=False, max_length=40, unique=True)),
                (
                    "created_at",
                    models.DateTimeField(db_index=True, default=apps.core.clock.now, editable=False),
                ),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                ("rules", models.JSONField(default=list)),
                ("changed_at", models.DateTimeField(default=apps.core.clock.now)),
                ("changed_by", models.CharField(blank=True, default="", max_length=150)),
                (
                    "team",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="retry_defaults",
                        to="teams.team",
                    ),
                ),
            ],
            options={"ordering": ["team"]},
        ),
        migrations.RunPython(forwards, migrations.RunPython.noop),
        migrations.DeleteModel("HistoricalJobTemplate"),
    ]
