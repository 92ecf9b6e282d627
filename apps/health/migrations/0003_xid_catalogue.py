"""Fill the XID catalogue from the CSV beside this app; later edits are the site's own and stay."""

import csv
from pathlib import Path

from django.db import migrations

SOURCE = "NVIDIA XID catalogue, docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
KNOWN = {"info", "app", "watch", "reset", "reboot", "replace"}


def forwards(apps, schema_editor):
    XidCode = apps.get_model("health", "XidCode")
    path = Path(__file__).resolve().parent.parent / "data" / "xid_catalogue.csv"
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            # "by decode" and "by text" need the log line to decide: watch until someone has read it.
            severity = row["suggested_severity"] if row["suggested_severity"] in KNOWN else "watch"
            XidCode.objects.get_or_create(
                code=int(row["xid"]),
                defaults={
                    "mnemonic": row["mnemonic"],
                    "meaning": row["meaning"],
                    "architectures": row["architectures"],
                    "fault_class": row["class"],
                    "nvidia_immediate_action": row["nvidia_immediate_action"],
                    "nvidia_if_it_recurs": row["nvidia_if_it_recurs"],
                    "severity": severity,
                    "suggested_action": row["suggested_action"],
                    "source": SOURCE,
                },
            )


class Migration(migrations.Migration):
    dependencies = [("health", "0002_initial")]
    operations = [migrations.RunPython(forwards, migrations.RunPython.noop)]
