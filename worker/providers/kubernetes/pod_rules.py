"""What pods of people may not do unless their cluster allows it: the host's files, its network, more rights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from worker.providers.kubernetes.efa import EFA, GPU
from worker.providers.kubernetes.pod_sets import PodSet, Values, as_list, as_map, spell
from worker.providers.values import Text

Step = str | int
#: An image as registries name it; no blanks, no line breaks.
IMAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/:@-]*[A-Za-z0-9])?")
#: Volumes that touch nothing outside the pod but what the namespace itself holds.
SAFE_VOLUMES = frozenset(
    (
        *("configMap", "downwardAPI", "emptyDir", "ephemeral"),
        *("image", "persistentVolumeClaim", "projected", "secret"),
    )
)
#: What Kubernetes itself counts as safe: of the pod's own namespaces alone.
SAFE_SYSCTLS = frozenset(
    (
        "kernel.shm_rmid_forced",
        *("net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start"),
        *("net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_syncookies"),
        *("net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time"),
        *("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
    )
)
_SELINUX = frozenset({"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"})
#: Devices that carry data and compute nothing: they come with the GPUs.
_NETWORK = ("rdma/", "vpc.amazonaws.com/")
#: NVIDIA's runtime shows a container the GPUs that this names, whatever it asked for.
_SHOWS_GPUS, _NO_GPUS = "NVIDIA_VISIBLE_DEVICES", ("none", "void")
_LISTS = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class PodPolicy:
    """What a cluster allows pods. ``host_paths`` are folders of the host (and all below) that may be mounted.

    ``secrets`` and ``service_accounts`` are those of the team, None for all of its namespace; names that begin with
    one of ``kept_secrets`` are the portal's. ``priority_classes`` of None: all but the system's.
    """

    host_paths: tuple[str, ...] = ()
    allows_privileged: bool = False
    allows_host_network: bool = False
    allows_host_pid: bool = False
    allows_host_ipc: bool = False
    allows_proc_mount: bool = False
    allows_unconfined: bool = False
    capabilities: frozenset[str] = frozenset()
    sysctls: frozenset[str] = frozenset()
    secrets: frozenset[str] | None = None
    kept_secrets: tuple[str, ...] = ("qd-",)
    service_accounts: frozenset[str] | None = frozenset({"", "default"})
    priority_classes: frozenset[str] | None = None
    schedulers: frozenset[str] = frozenset({"", "default-scheduler"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """One field that is refused: its steps from the object, a code and a sentence."""

    keys: tuple[Step, ...]
    code: str
    text: Text

    @property
    def path(self) -> str:
        """The steps as people write them."""
        return spell(self.keys)


def _(template: str, /, **facts: object) -> Text:
    return Text(template, facts)


def refusals(pods: PodSet, policy: PodPolicy, own_secrets: frozenset[str] = frozenset()) -> Iterator[Refusal]:
    """All that is refused of the pods of one set; ``own_secrets`` are made by the same manifest."""
    base = (*pods.keys, "spec") if pods.path != "spec.trainer" else pods.keys
    spec = pods.spec
    yield from _host(spec, base, policy)
    yield from _whole_pod(spec, base, policy)
    for number, volume in enumerate(as_list(spec.get("volumes"))):
        yield from _volume(as_map(volume), (*base, "volumes", number), policy)
    for name in _LISTS:
        for number, container in enumerate(as_list(spec.get(name))):
            where = (*base, name, number) if pods.path != "spec.trainer" else base
            yield from _container(as_map(container), where, policy)
    yield from _annotations(as_map(as_map(pods.template.get("metadata")).get("annotations")), pods.keys, policy)
    for keys, secret in _secrets(spec, base, is_trainer=pods.path == "spec.trainer"):
        if refusal := secret_refusal(secret, keys, policy, own_secrets):
            yield refusal


def _host(spec: Values, base: tuple[Step, ...], policy: PodPolicy) -> Iterator[Refusal]:
    fields = (
        ("hostNetwork", policy.allows_host_network, _("The host's network is not allowed on this cluster.")),
        ("hostPID", policy.allows_host_pid, _("The host's processes are not allowed on this cluster.")),
        ("hostIPC", policy.allows_host_ipc, _("The host's shared memory is not allowed on this cluster.")),
    )
    for name, allowed, text in fields:
        if spec.get(name) and not allowed:
            yield Refusal((*base, name), f"{name[0].upper()}{name[1:]}", text)


def _whole_pod(spec: Values, base: tuple[Step, ...], policy: PodPolicy) -> Iterator[Refusal]:
    if name := spec.get("nodeName"):
        text = _("A pod for the node %(name)s passes by the queue and its quota.", name=name)
        yield Refusal((*base, "nodeName"), "NodeName", text)
    if spec.get("resourceClaims"):
        text = _("Devices by resource claims cannot be counted against a quota; ask for nvidia.com/gpu.")
        yield Refusal((*base, "resourceClaims"), "ResourceClaims", text)
    scheduler = spec.get("schedulerName")
    if scheduler is not None and str(scheduler) not in policy.schedulers:
        text = _("The scheduler %(name)s is not this cluster's.", name=scheduler)
        yield Refusal((*base, "schedulerName"), "SchedulerName", text)
    priority = str(spec.get("priorityClassName") or "")
    known = policy.priority_classes
    if priority.startswith("system-") or (priority and known is not None and priority not in known):
        text = _("The priority class %(name)s is not for teams.", name=priority)
        yield Refusal((*base, "priorityClassName"), "PriorityClass", text)
    for field in ("serviceAccountName", "serviceAccount"):
        account = str(spec.get(field) or "")
        if policy.service_accounts is not None and account not in policy.service_accounts:
            text = _("The service account %(name)s is not this team's.", name=account)
            yield Refusal((*base, field), "ServiceAccount", text)
    security = as_map(spec.get("securityContext"))
    where = (*base, "securityContext")
    for number, sysctl in enumerate(as_list(security.get("sysctls"))):
        name = str(as_map(sysctl).get("name"))
        if name not in SAFE_SYSCTLS and name not in policy.sysctls:
            text = _("The sysctl %(name)s is not safe for other pods of the node.", name=name)
            yield Refusal((*where, "sysctls", number), "Sysctl", text)
    yield from _confinement(security, where, policy)


def _volume(volume: Values, keys: tuple[Step, ...], policy: PodPolicy) -> Iterator[Refusal]:
    for kind in volume:
        if kind == "name" or kind in SAFE_VOLUMES:
            continue
        if kind == "hostPath":
            path = str(as_map(volume[kind]).get("path") or "")
            if not _is_below(path, policy.host_paths):
                text = _("The host's folder %(path)s is not allowed on this cluster.", path=path or "/")
                yield Refusal((*keys, kind), "HostPath", text)
            continue
        text = _("Volumes of the kind %(kind)s are not allowed on this cluster.", kind=kind)
        yield Refusal((*keys, kind), "VolumeKind", text)


def _is_below(path: str, folders: tuple[str, ...]) -> bool:
    if not path.startswith("/") or ".." in path.split("/"):
        return False
    return any(path.rstrip("/") == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def _container(container: Values, keys: tuple[Step, ...], policy: PodPolicy) -> Iterator[Refusal]:
    image = container.get("image")
    if image is not None and (not isinstance(image, str) or not IMAGE.fullmatch(image)):
        text = _("%(image)s is no name of an image.", image=repr(image)[:120])
        yield Refusal((*keys, "image"), "ImageName", text)
    yield from _devices(as_map(container.get("resources")), keys)
    for number, row in enumerate(as_list(container.get("env"))):
        if as_map(row).get("name") == _SHOWS_GPUS and as_map(row).get("value") not in _NO_GPUS:
            text = _("%(name)s could show GPUs that were not asked for: leave it out.", name=_SHOWS_GPUS)
            yield Refusal((*keys, "env", number), "VisibleDevices", text)
    security, where = as_map(container.get("securityContext")), (*keys, "securityContext")
    if security.get("privileged") and not policy.allows_privileged:
        text = _("Privileged containers are not allowed on this cluster.")
        yield Refusal((*where, "privileged"), "Privileged", text)
    for number, name in enumerate(as_list(as_map(security.get("capabilities")).get("add"))):
        plain = str(name).removeprefix("CAP_")
        if plain not in policy.capabilities:
            text = _("The capability %(name)s is not allowed on this cluster.", name=plain)
            yield Refusal((*where, "capabilities", "add", number), "Capability", text)
    if security.get("procMount") not in (None, "Default") and not policy.allows_proc_mount:
        yield Refusal((*where, "procMount"), "ProcMount", _("An unmasked /proc is not allowed on this cluster."))
    for number, port in enumerate(as_list(container.get("ports"))):
        if as_map(port).get("hostPort") and not policy.allows_host_network:
            text = _("Ports of the host are not allowed on this cluster.")
            yield Refusal((*keys, "ports", number, "hostPort"), "HostPort", text)
    yield from _confinement(security, where, policy)


def _devices(resources: Values, keys: tuple[Step, ...]) -> Iterator[Refusal]:
    """GPUs under another name (a slice, a share) and accelerators of others, which no quota here counts."""
    for part in ("requests", "limits"):
        for name in as_map(resources.get(part)):
            if "/" in name and name not in (GPU, EFA) and not name.startswith(_NETWORK):
                text = _("%(name)s cannot be counted against a quota; ask for nvidia.com/gpu.", name=name)
                yield Refusal((*keys, "resources", part, name), "ResourceClaims", text)


def _confinement(security: Values, keys: tuple[Step, ...], policy: PodPolicy) -> Iterator[Refusal]:
    """What would lift the node's own fences around a container."""
    if policy.allows_unconfined:
        return
    for name in ("seccompProfile", "appArmorProfile"):
        if as_map(security.get(name)).get("type") == "Unconfined":
            text = _("A container without %(name)s is not allowed on this cluster.", name=name)
            yield Refusal((*keys, name), "Unconfined", text)
    selinux = as_map(security.get("seLinuxOptions"))
    if str(selinux.get("type") or "") not in _SELINUX or selinux.get("user") or selinux.get("role"):
        yield Refusal((*keys, "seLinuxOptions"), "Unconfined", _("These SELinux options are not allowed."))
    if as_map(security.get("windowsOptions")).get("hostProcess"):
        yield Refusal((*keys, "windowsOptions"), "Privileged", _("Processes of the host are not allowed."))


def _annotations(annotations: Values, keys: tuple[Step, ...], policy: PodPolicy) -> Iterator[Refusal]:
    for name, value in annotations.items():
        is_apparmor = name.startswith("container.apparmor.security.beta.kubernetes.io/")
        if is_apparmor and value == "unconfined" and not policy.allows_unconfined:
            text = _("A container without %(name)s is not allowed on this cluster.", name="AppArmor")
            yield Refusal((*keys, "metadata", "annotations", name), "Unconfined", text)


def secret_refusal(name: str, keys: tuple[Step, ...], policy: PodPolicy, own_secrets: frozenset[str]) -> Refusal | None:
    """Why a Secret may not be used, None where it may."""
    if name in own_secrets:
        return None
    is_kept = name.startswith(policy.kept_secrets) if policy.kept_secrets else False
    if is_kept or (policy.secrets is not None and name not in policy.secrets):
        return Refusal(keys, "Secret", _("The Secret %(name)s is not this team's.", name=name))
    return None


def _secrets(spec: Values, base: tuple[Step, ...], *, is_trainer: bool) -> Iterator[tuple[tuple[Step, ...], str]]:
    """Every Secret that the pods read, with the field that names it."""
    for name in _LISTS:
        for number, container in enumerate(as_list(spec.get(name))):
            where = base if is_trainer else (*base, name, number)
            yield from container_secrets(as_map(container), where)
    for number, pull in enumerate(as_list(spec.get("imagePullSecrets"))):
        yield (*base, "imagePullSecrets", number, "name"), str(as_map(pull).get("name") or "")
    for number, row in enumerate(as_list(spec.get("volumes"))):
        keys, volume = (*base, "volumes", number), as_map(row)
        if secret := as_map(volume.get("secret")).get("secretName"):
            yield (*keys, "secret", "secretName"), str(secret)
        for index, source in enumerate(as_list(as_map(volume.get("projected")).get("sources"))):
            if secret := as_map(as_map(source).get("secret")).get("name"):
                yield (*keys, "projected", "sources", index, "secret", "name"), str(secret)


def container_secrets(container: Mapping[str, Any], keys: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], str]]:
    """The Secrets of a container's environment."""
    for number, row in enumerate(as_list(container.get("env"))):
        reference = as_map(as_map(as_map(row).get("valueFrom")).get("secretKeyRef"))
        if name := reference.get("name"):
            yield (*keys, "env", number, "valueFrom", "secretKeyRef", "name"), str(name)
    for number, row in enumerate(as_list(container.get("envFrom"))):
        if name := as_map(as_map(row).get("secretRef")).get("name"):
            yield (*keys, "envFrom", number, "secretRef", "name"), str(name)
