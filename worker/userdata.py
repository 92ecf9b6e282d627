"""What a new machine runs at its first boot to join its cluster."""

from __future__ import annotations

import json
import shlex
from urllib.parse import urlsplit


def bootstrap_script(*, cluster_uid: str, controller_url: str, partition: str, gpu_type: str, gpus: int) -> str:
    """A cloud-init shell script: start slurmd as a dynamic node of the controller's partition.

    The comment line is for whoever reads the machine's user data; the rest needs an image with
    slurmd 22.05 or later, munge's key and NVIDIA's driver, as AWS's deep-learning images carry.
    """
    facts = {"cluster": cluster_uid, "partition": partition, "gpu_type": gpu_type, "gpus": gpus}
    host = urlsplit(controller_url).hostname or ""
    gres = f"Gres=gpu:{gpu_type}:{gpus} Feature={partition}" if gpus else f"Feature={partition}"
    return "\n".join(
        [
            "#!/bin/bash",
            f"# quarterdeck-node: {json.dumps(facts, sort_keys=True)}",
            "set -euo pipefail",
            "systemctl start munge",
            f"exec slurmd -D -Z --conf-server {shlex.quote(host)}:6817 --conf {shlex.quote(gres)}",
            "",
        ]
    )
