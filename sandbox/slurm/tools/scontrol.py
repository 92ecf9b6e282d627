"""scontrol beside the pretend Slurm: ``show hostnames`` in jobs, update, hold, release and requeue."""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from pathlib import Path


def expand(text: str) -> list[str]:
    """The names in a node list."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        match = re.search(r"\[([^\]]*)\]", part)
        if match is None:
            names.append(part.strip())
            continue
        for item in match.group(1).split(","):
            first, dash, last = item.partition("-")
            middles = [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)] if dash else [first]
            for middle in middles:
                names.extend(expand(part[: match.start()] + middle + part[match.end() :]))
    return [name for name in names if name]


def ask(command: dict[str, str]) -> int:
    """Have the controller do it; its refusal goes to stderr in scontrol's words."""
    url = os.environ.get("SANDBOX_SLURM_URL", "")
    token_file = os.environ.get("SANDBOX_SLURM_TOKEN_FILE", "")
    if not url or not token_file:
        print("slurm_update error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        return 1
    # Like the real one it acts as whoever SLURM_JWT says, where that is set.
    token = os.environ.get("SLURM_JWT") or Path(token_file).read_text().strip()
    request = urllib.request.Request(  # noqa: S310 - the address is the sandbox's own, on loopback
        f"{url}/scontrol",
        data=json.dumps(command).encode(),
        headers={"Content-Type": "application/json", "X-SLURM-USER-TOKEN": token},
        method="POST",
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            told = json.load(answer)
    except (urllib.error.URLError, OSError, ValueError):
        print("slurm_update error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        return 1
    if told.get("error"):
        print(told["error"], file=sys.stderr)
        return 1
    return 0


def main(words: list[str]) -> int:
    """Run one command."""
    if words[:2] == ["show", "hostnames"]:
        text = words[2] if len(words) > 2 else os.environ.get("SLURM_JOB_NODELIST", "")
        print("\n".join(expand(text)))
        return 0
    if words[:2] == ["show", "hostlist"] and len(words) > 2:
        print(words[2])
        return 0
    if words[:1] in (["requeue"], ["hold"], ["release"]) and len(words) == 2:
        return ask({"verb": words[0], "job": words[1]})
    if words[:1] == ["update"]:
        pairs = dict(word.partition("=")[::2] for word in words[1:])
        lowered = {key.lower(): value for key, value in pairs.items()}
        if "jobid" in lowered:
            changes = {"timelimit": "time_limit", "partition": "partition", "nice": "nice"}
            told = {name: lowered[key] for key, name in changes.items() if key in lowered}
            return ask({"verb": "update", "job": lowered["jobid"], **told})
        if "nodename" in lowered and "state" in lowered:
            return ask(
                {
                    "verb": "node",
                    "node": lowered["nodename"],
                    "state": lowered["state"],
                    "reason": lowered.get("reason", ""),
                }
            )
    print(f"invalid keyword: {' '.join(words) or 'none'} (the sandbox's scontrol knows few)", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
