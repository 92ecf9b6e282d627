"""Containers of pods as processes: their volumes laid down, paths, names and ports led to this machine, and started."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandbox.kubernetes.environment import environment_of, field_of
from sandbox.kubernetes.meeting import Meetings
from sandbox.kubernetes.mounts import NotMounted, Volumes
from sandbox.kubernetes.server import ClusterApi
from sandbox.kubernetes.status import Object

#: What every pretend image holds: the example programs, which stay on loopback.
_IN_IMAGES: Final = {"QD_EXAMPLES": str(Path(__file__).resolve().parents[2] / "examples"), "CHARLM_HOST": "127.0.0.1"}
#: The interpreter that runs the sandbox comes last: a pod's python3 is this machine's, where there is one.
_PATH: Final = f"/usr/local/bin:/usr/bin:/bin:{Path(sys.executable).parent}"
_IMAGE: Final = re.compile(r"[a-z0-9][a-zA-Z0-9._:/@-]*")


class Waiting(Exception):
    """A container that cannot start yet: the reason as its state shows it, and the message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Containers:
    """Starts containers of one cluster."""

    def __init__(self, cluster: ClusterApi) -> None:
        self._cluster = cluster
        self.volumes = Volumes(cluster.store, cluster.state_dir)
        self.meetings = Meetings(cluster.store)

    def start(self, pod: Object, container: Object, node: str) -> subprocess.Popen[bytes]:
        """A container's process. Raises Waiting where something is missing that may come, OSError for a bad command."""
        self._pull(str(container.get("image", "")))
        folder = self.volumes.folder_of(pod["metadata"]["uid"])
        folder.mkdir(parents=True, exist_ok=True)
        metadata = pod["metadata"]
        try:
            told = environment_of(pod, container, self._cluster.store, node)
        except KeyError as error:
            raise Waiting("CreateContainerConfigError", str(error.args[0])) from None

        def value_of(path: str) -> str:
            return _filled(path, told) if path.startswith("$(") else field_of(pod, path, node)

        def token_of(lifetime_s: float) -> str:
            account = pod["spec"].get("serviceAccountName") or "default"
            return self._cluster.access.token_for(metadata["namespace"], account, lifetime_s)

        try:
            paths = self.volumes.mount(pod, container, node, value_of, token_of)
        except NotMounted as error:
            raise Waiting("ContainerCreating", str(error)) from None
        told = self.meetings.led(pod, {name: paths.led(value) for name, value in told.items()})
        environment = {"PATH": _PATH, "HOME": str(folder), "HOSTNAME": host_of(pod), **_IN_IMAGES, **told}
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        command = [_filled(self.meetings.text(pod, paths.led(word)), environment) for word in words]
        where = paths.led(str(container.get("workingDir") or ""))
        return subprocess.Popen(
            command or ["true"],
            cwd=where if where and Path(where).is_dir() else folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _pull(self, image: str) -> None:
        """Images are not pulled, but one can fail to be. Raises Waiting."""
        if not _IMAGE.fullmatch(image):
            raise Waiting("InvalidImageName", f'couldn\'t parse image name "{image}": invalid reference format')
        if self._cluster.world.fault_use("image-pull", image=image) is not None:
            said = f'Back-off pulling image "{image}": ErrImagePull: failed to resolve reference "{image}": not found'
            raise Waiting("ImagePullBackOff", said)


def host_of(pod: Object) -> str:
    """The pod's own name for itself."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])


def _filled(part: str, environment: Mapping[str, str]) -> str:
    """A part of a command with $(NAME) of its environment filled in."""
    for name, value in environment.items():
        part = part.replace(f"$({name})", value)
    return part
