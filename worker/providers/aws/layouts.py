"""Network interface layouts by instance type and backend: what a launch template asks for so that every EFA works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

from worker.providers.errors import InvalidRequest
from worker.providers.values import InterfaceSpec

Backend = Literal["ec2", "pcs"]

BACKENDS: Final[tuple[Backend, ...]] = ("ec2", "pcs")


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """What decides a layout: the card indices that carry an EFA; card 0 always carries the primary ENA interface."""

    efa_cards: tuple[int, ...]


def _first(count: int) -> NetworkShape:
    return NetworkShape(tuple(range(count)))


#: The P family. p6-b300's card 0 is ENA only; on p6e-gb200 the odd cards up to 13, every fourth, carry 400 Gbps each.
SHAPES: Final[Mapping[str, NetworkShape]] = MappingProxyType(
    {
        "p4d.24xlarge": _first(4),
        "p4de.24xlarge": _first(4),
        "p5.4xlarge": _first(1),
        "p5.48xlarge": _first(32),
        "p5e.48xlarge": _first(32),
        "p5en.48xlarge": _first(16),
        "p6-b200.48xlarge": _first(8),
        "p6-b300.48xlarge": NetworkShape(tuple(range(1, 17))),
        "p6e-gb200.36xlarge": NetworkShape((1, 5, 9, 13)),
    }
)


def interface_layout(instance_type: str, backend: str = "ec2") -> tuple[InterfaceSpec, ...]:
    """The interfaces of one node, primary first.

    On "ec2" one ENA interface takes the node's only address and every EFA is ``efa-only``. "pcs" wants plain ``efa``
    interfaces, each of which takes an address. An EFA shares card 0 with the primary at device 1, because an
    ``efa-only`` interface may never be the primary; on every other card it is device 0.

    Raises ``InvalidRequest`` for a type or backend without a known layout: a guessed one launches and then hangs.
    """
    shape = SHAPES.get(instance_type)
    if shape is None:
        raise InvalidRequest(
            f"no interface layout is known for {instance_type!r}; known types: {', '.join(SHAPES)}",
            source="aws",
            code="UnknownInstanceType",
        )
    if backend not in BACKENDS:
        raise InvalidRequest(
            f"no interface layout is known for backend {backend!r}; known backends: {', '.join(BACKENDS)}",
            source="aws",
            code="UnknownBackend",
        )
    kind = "efa-only" if backend == "ec2" else "efa"
    efas = (InterfaceSpec(card=card, device=1 if card == 0 else 0, kind=kind) for card in shape.efa_cards)
    return (InterfaceSpec(card=0, device=0, kind="interface"), *efas)


def addresses_per_node(interfaces: tuple[InterfaceSpec, ...]) -> int:
    """Private addresses that one node takes from its subnet: one an interface, none for ``efa-only``."""
    return sum(1 for interface in interfaces if interface.kind != "efa-only")
