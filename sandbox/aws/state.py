"""What exists in the fake account, kept in one file so that a restart of the sandbox loses no instance."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import secrets
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from sandbox.aws.errors import AwsError
from sandbox.aws.options import AwsOptions
from sandbox.aws.reservations import Book

STATE_FILE = "aws-state.json"


def new_id(prefix: str) -> str:
    """An id in AWS's shape: prefix, dash, 17 hexadecimal digits."""
    return f"{prefix}-0{secrets.token_hex(8)}"


@dataclass
class Interface:
    """A network interface. ``private_ip`` is empty for efa-only, ``instance_id`` once it is detached."""

    id: str
    instance_id: str
    card: int
    device: int
    kind: str
    subnet_id: str
    vpc_id: str
    group_ids: list[str]
    private_ip: str
    mac: str
    tags: dict[str, str]
    delete_on_termination: bool
    attachment_id: str
    attached_at: float


@dataclass
class Machine:
    """An instance. Its state follows from the clock, see ``Cloud.state_of``."""

    id: str
    reservation_id: str
    client_token: str
    index: int
    instance_type: str
    vcpus: int
    cores: int
    memory_mib: int
    image_id: str
    architecture: str
    root_device: str
    subnet_id: str
    vpc_id: str
    zone: str
    zone_id: str
    group_ids: list[str]
    private_ip: str
    private_dns_name: str
    placement_group: str
    user_data: str
    profile_arn: str
    metadata_options: dict[str, Any]
    ebs_optimized: bool
    volumes: list[dict[str, Any]]
    tags: dict[str, str]
    launched_at: float
    terminated_at: float | None = None
    #: Its place among the machines of its type and zone, which decides the switches above it.
    place: int = 0
    #: Why it dies while it starts: code and message of its StateReason.
    death: list[str] = field(default_factory=list)
    #: What "AWS" has planned for it, as DescribeInstanceStatus lists it, instants in Unix seconds.
    planned: list[dict[str, Any]] = field(default_factory=list)

    @property
    def node_name(self) -> str:
        """The host name: the first label of the private DNS name."""
        return self.private_dns_name.split(".")[0]


@dataclass
class Group:
    """A placement group."""

    id: str
    name: str
    strategy: str
    tags: dict[str, str]


@dataclass
class Template:
    """A launch template; only its first version exists here."""

    id: str
    name: str
    data: dict[str, Any]
    tags: dict[str, str]
    description: str
    created_at: float
    client_token: str
    fingerprint: str


@dataclass
class LaunchToken:
    """What an idempotency token of RunInstances stood for."""

    fingerprint: str
    instance_ids: list[str]


@dataclass
class _Saved:
    machines: dict[str, Machine] = field(default_factory=dict)
    interfaces: dict[str, Interface] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    templates: dict[str, Template] = field(default_factory=dict)
    tokens: dict[str, LaunchToken] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)


_Row = TypeVar("_Row")


def _rows(kind: type[_Row], raw: dict[str, Any]) -> dict[str, _Row]:
    return {key: kind(**value) for key, value in raw.items()}


class Cloud:
    """The account. Hold ``lock`` around anything that reads and then writes; call ``save`` after writing."""

    def __init__(self, options: AwsOptions, state_dir: Path) -> None:
        self.options = options
        self.lock = threading.RLock()
        self._path = state_dir / STATE_FILE
        saved = self._load()
        self.machines = saved.machines
        self.interfaces = saved.interfaces
        self.groups = saved.groups
        self.templates = saved.templates
        self.tokens = saved.tokens
        self._cursors = saved.cursors
        self.book = Book(self, state_dir)

    def _load(self) -> _Saved:
        try:
            raw = json.loads(self._path.read_text())
        except FileNotFoundError:
            return _Saved()
        try:
            return _Saved(
                machines=_rows(Machine, raw["machines"]),
                interfaces=_rows(Interface, raw["interfaces"]),
                groups=_rows(Group, raw["groups"]),
                templates=_rows(Template, raw["templates"]),
                tokens=_rows(LaunchToken, raw["tokens"]),
                cursors=raw["cursors"],
            )
        except (KeyError, TypeError) as exc:
            raise ValueError(f"{self._path} is of another version of the sandbox; delete it to start empty") from exc

    def save(self) -> None:
        """Write everything; a kill at any moment leaves the old or the new file, never half of one."""
        with self.lock:
            raw = dataclasses.asdict(
                _Saved(self.machines, self.interfaces, self.groups, self.templates, self.tokens, self._cursors)
            )
            self._path.parent.mkdir(parents=True, exist_ok=True)
            beside = self._path.with_suffix(".tmp")
            beside.write_text(json.dumps(raw))
            beside.replace(self._path)

    # --- time

    def state_of(self, machine: Machine, now: float | None = None) -> str:
        """pending until booted, running, then shutting-down for a while, then terminated."""
        now = time.time() if now is None else now
        if machine.terminated_at is not None and now >= machine.terminated_at:
            return "terminated" if now >= machine.terminated_at + self.options.shutdown_s else "shutting-down"
        return "running" if now >= machine.launched_at + self.options.boot_s else "pending"

    def settle(self) -> None:
        """Let time act: interfaces of terminated machines go, and long terminated machines are forgotten."""
        now = time.time()
        with self.lock:
            changed = False
            for machine in list(self.machines.values()):
                if self.state_of(machine, now) != "terminated" or machine.terminated_at is None:
                    continue
                for interface in self.interfaces_of(machine.id):
                    changed = True
                    if interface.delete_on_termination:
                        del self.interfaces[interface.id]
                    else:
                        interface.instance_id = ""
                if now > machine.terminated_at + self.options.shutdown_s + self.options.terminated_visible_s:
                    changed = True
                    del self.machines[machine.id]
            if changed:
                self.save()
            self.book.settle()

    # --- reads

    def interfaces_of(self, instance_id: str) -> list[Interface]:
        """Interfaces attached to an instance, by card and device."""
        mine = [i for i in self.interfaces.values() if i.instance_id == instance_id]
        return sorted(mine, key=lambda i: (i.card, i.device))

    def live(self, instance_type: str = "") -> list[Machine]:
        """Machines that still take up capacity: all but terminated ones."""
        return [
            machine
            for machine in self.machines.values()
            if self.state_of(machine) != "terminated" and instance_type in ("", machine.instance_type)
        ]

    def addresses_taken(self, subnet_id: str) -> set[str]:
        """Private addresses in use in a subnet."""
        return {i.private_ip for i in self.interfaces.values() if i.subnet_id == subnet_id and i.private_ip}

    def free_addresses(self, subnet_id: str, cidr: str) -> int:
        """Addresses left; AWS keeps five of every subnet for itself."""
        return ipaddress.ip_network(cidr).num_addresses - 5 - len(self.addresses_taken(subnet_id))

    def take_addresses(self, subnet_id: str, cidr: str, count: int) -> list[str]:
        """Reserve addresses, going round the subnet so that a freed one is not the next one used.

        Raises ``AwsError`` InsufficientFreeAddressesInSubnet, having taken none.
        """
        network = ipaddress.ip_network(cidr)
        usable = network.num_addresses - 5
        taken = self.addresses_taken(subnet_id)
        if count > usable - len(taken):
            raise AwsError(
                "InsufficientFreeAddressesInSubnet",
                f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of "
                "instances.",
            )
        cursor = self._cursors.get(subnet_id, 0)
        found: list[str] = []
        while len(found) < count:
            # The first four addresses and the last one are AWS's.
            address = str(network[4 + cursor % usable])
            cursor += 1
            if address not in taken:
                found.append(address)
        self._cursors[subnet_id] = cursor % usable
        return found

    def census(self) -> dict[str, int]:
        """How many things exist that cost money or block a name."""
        with self.lock:
            self.settle()
            live = self.live()
            return {
                "instances": len(live),
                "placement_groups": len(self.groups),
                "launch_templates": len(self.templates),
                "network_interfaces": len(self.interfaces),
                "volumes": sum(len(machine.volumes) for machine in live),
                **self.book.census(),
            }
