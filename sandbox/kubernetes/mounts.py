"""Volumes of pods as folders of this machine, and the mount paths in commands, variables and files led to them."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandbox.kubernetes.status import Object
from sandbox.kubernetes.store import Key, Store

#: What may stand before a path that begins there, and is not the middle of a longer one.
_NOT_BEFORE: Final = r"(?<![\w./\-})\]*?])"
_NOT_AFTER: Final = r"(?![\w\-]|\.\w)"

#: The value of a field of the pod by its path, as the downward API gives it.
FieldOf = Callable[[str], str]
#: A token of the pod's service account, good for so many seconds.
TokenOf = Callable[[float], str]


class NotMounted(Exception):
    """A volume that is not there yet; the message is the kubelet's."""


@dataclass(frozen=True)
class Paths:
    """Mount paths of one container and the folders that they stand for."""

    real: Mapping[str, str]

    def led(self, text: str) -> str:
        """The text with each mount path replaced by its folder; a longer mount path wins over a shorter."""
        if not self.real:
            return text
        longest = sorted(self.real, key=len, reverse=True)
        pattern = _NOT_BEFORE + "(" + "|".join(re.escape(path) for path in longest) + ")" + _NOT_AFTER
        return re.sub(pattern, lambda found: self.real[found[1]], text)


class Volumes:
    """The disks of one pretend cluster below its state folder: claims are shared and kept, all else is the pod's."""

    def __init__(self, store: Store, state_dir: Path) -> None:
        self._store = store
        self._claims = state_dir / "claims"
        self._nodes = state_dir / "nodes"
        self._pods = state_dir / "pods"

    def folder_of(self, uid: str) -> Path:
        """The pod's own folder, in which its processes start."""
        return self._pods / uid

    def claim(self, namespace: str, name: str) -> Path:
        """The folder of a claim."""
        return self._claims / namespace / name

    def forget(self, uid: str) -> None:
        """Take away what was the pod's own."""
        shutil.rmtree(self.folder_of(uid), ignore_errors=True)

    def left_behind(self) -> list[str]:
        """Uids of pods that have a folder."""
        return sorted(path.name for path in self._pods.iterdir()) if self._pods.is_dir() else []

    def mount(
        self, pod: Object, container: Object, node: str, field_of: FieldOf, token_of: TokenOf | None = None
    ) -> Paths:
        """Lay down a container's volumes. Raises NotMounted where a claim, ConfigMap or Secret is missing.

        Files from ConfigMaps name mount paths, too: they are written when all mounts are known.
        """
        known = {one["name"]: one for one in pod["spec"].get("volumes") or ()}
        real: dict[str, str] = {}
        written: list[tuple[Path, dict[str, tuple[bytes, int]], bool]] = []
        for mount in container.get("volumeMounts") or ():
            volume = known.get(mount["name"])
            if volume is None:
                raise NotMounted(f'volume "{mount["name"]}" is not among the pod\'s volumes')
            where = self._place(pod, container, volume, node)
            files = self._files(pod, volume, field_of, token_of)
            if files is not None:
                written.append((where, files, "configMap" in volume))
            target = where / _inside(mount, field_of)
            if files is None:
                target.mkdir(parents=True, exist_ok=True)
            real[mount["mountPath"].rstrip("/") or "/"] = str(target)
        paths = Paths(real)
        for where, files, is_text in written:
            _write(where, files, paths if is_text else None)
        return paths

    def _place(self, pod: Object, container: Object, volume: Object, node: str) -> Path:
        metadata, own = pod["metadata"], self.folder_of(pod["metadata"]["uid"]) / "volumes"
        if claim := volume.get("persistentVolumeClaim"):
            key = Key("persistentvolumeclaims", metadata["namespace"], claim["claimName"])
            if self._store.get(key) is None:
                raise NotMounted(f'persistentvolumeclaim "{claim["claimName"]}" not found')
            return self.claim(metadata["namespace"], claim["claimName"])
        if host := volume.get("hostPath"):
            # A pretend node has a disk of its own: nothing of this machine is opened to a pod.
            return self._nodes / node / str(host["path"]).lstrip("/").replace("..", "_")
        if "emptyDir" in volume:
            return own / str(volume["name"])
        # Files are led to the mounts of one container, so each has its own copy.
        return own / f"{container['name']}.{volume['name']}"

    def _files(
        self, pod: Object, volume: Object, field_of: FieldOf, token_of: TokenOf | None
    ) -> dict[str, tuple[bytes, int]] | None:
        """Content and mode by path of a volume that is made of files; None for one that is a folder."""
        if "projected" in volume:
            made: dict[str, tuple[bytes, int]] = {}
            for source in volume["projected"].get("sources") or ():
                mode = volume["projected"].get("defaultMode", 0o644)
                made |= self._source(pod, source, mode, field_of, token_of)
            return made
        for kind in ("configMap", "secret", "downwardAPI"):
            if kind in volume:
                mode = volume[kind].get("defaultMode", 0o644)
                return self._source(pod, {kind: volume[kind]}, mode, field_of, token_of)
        return None

    def _source(
        self, pod: Object, source: Object, mode: int, field_of: FieldOf, token_of: TokenOf | None
    ) -> dict[str, tuple[bytes, int]]:
        namespace = pod["metadata"]["namespace"]
        if wanted := source.get("serviceAccountToken"):
            token = token_of(float(wanted.get("expirationSeconds", 3600))) if token_of else ""
            return {wanted["path"]: (token.encode(), 0o600)}
        if down := source.get("downwardAPI"):
            return {
                one["path"]: (field_of((one.get("fieldRef") or {}).get("fieldPath", "")).encode(), mode)
                for one in down.get("items") or ()
            }
        kind, resource = ("configMap", "configmaps") if "configMap" in source else ("secret", "secrets")
        about = source[kind]
        name = about.get("name") or about.get("secretName") or ""
        found = self._store.get(Key(resource, namespace, name))
        if found is None:
            if about.get("optional"):
                return {}
            raise NotMounted(f'MountVolume.SetUp failed for volume: {kind.lower()} "{name}" not found')
        data = _data(found, resource)
        items = about.get("items")
        if not items:
            return {key: (content, mode) for key, content in data.items()}
        missing = [one["key"] for one in items if one["key"] not in data]
        if missing and not about.get("optional"):
            raise NotMounted(f'MountVolume.SetUp failed for volume: references non-existent {kind} key "{missing[0]}"')
        return {one["path"]: (data[one["key"]], one.get("mode", mode)) for one in items if one["key"] in data}


def missing_claims(pod: Object, store: Store) -> list[str]:
    """Claims that a pod mounts and that are not there: without them no node is looked for."""
    namespace = pod["metadata"]["namespace"]
    named = [
        one["persistentVolumeClaim"]["claimName"]
        for one in pod["spec"].get("volumes") or ()
        if one.get("persistentVolumeClaim")
    ]
    return [name for name in named if store.get(Key("persistentvolumeclaims", namespace, name)) is None]


def _data(found: Object, resource: str) -> dict[str, bytes]:
    told: dict[str, Any] = found.get("data") or {}
    if resource == "secrets":
        return {key: base64.b64decode(value) for key, value in told.items()}
    binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return {**{key: str(value).encode() for key, value in told.items()}, **binary}


def _inside(mount: Object, field_of: FieldOf) -> str:
    """The folder inside the volume, without leaving it."""
    text = str(mount.get("subPath") or mount.get("subPathExpr") or "")
    text = re.sub(r"\$\((\w+)\)", lambda found: field_of(f"$({found[1]})"), text)
    return "/".join(part for part in text.split("/") if part not in ("", ".", ".."))


def _write(folder: Path, files: Mapping[str, tuple[bytes, int]], paths: Paths | None) -> None:
    """Each file whole or not at all; those of an earlier start are replaced, whatever their mode."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (content, mode) in files.items():
        target = folder / name.lstrip("/").replace("..", "_")
        target.parent.mkdir(parents=True, exist_ok=True)
        if paths is not None:
            try:
                content = paths.led(content.decode()).encode()
            except UnicodeDecodeError:
                content = bytes(content)
        beside = target.with_name(f".{target.name}.new")
        beside.unlink(missing_ok=True)
        beside.write_bytes(content)
        beside.chmod(mode | 0o400)
        beside.replace(target)
