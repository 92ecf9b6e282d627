"""Interface layouts of the whole P family, checked against AWS's own description of each type as moto carries it."""

from __future__ import annotations

import pytest

from sandbox.aws.seed import instance_type
from worker.providers.aws.layouts import BACKENDS, SHAPES, addresses_per_node, interface_layout
from worker.providers.aws.preflight import layout_problems
from worker.providers.errors import InvalidRequest
from worker.providers.values import InterfaceSpec

#: p6e-gb200 is in no public instance type data; the sandbox describes it by AWS's EFA guide.
DESCRIBED = list(SHAPES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", DESCRIBED)
def test_layout_fits_the_type(name: str, backend: str) -> None:
    described = instance_type(name)
    assert described is not None
    layout = interface_layout(name, backend)
    assert layout_problems(layout, described) == []
    efas = sum(1 for interface in layout if interface.kind != "interface")
    if name == "p6e-gb200.36xlarge":
        # Half the cards of a pair: 4 × 400 Gbps instead of 8 × 200.
        assert [i.card for i in layout if i.kind != "interface"] == [1, 5, 9, 13]
        return
    assert efas == described["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"]


@pytest.mark.parametrize(
    ("name", "interfaces"),
    [
        ("p4d.24xlarge", 5),
        ("p4de.24xlarge", 5),
        ("p5.4xlarge", 2),
        ("p5.48xlarge", 33),
        ("p5e.48xlarge", 33),
        ("p5en.48xlarge", 17),
        ("p6-b200.48xlarge", 9),
        ("p6-b300.48xlarge", 17),
        ("p6e-gb200.36xlarge", 5),
    ],
)
def test_counts_and_addresses(name: str, interfaces: int) -> None:
    assert len(interface_layout(name)) == interfaces
    assert addresses_per_node(interface_layout(name)) == 1
    assert addresses_per_node(interface_layout(name, "pcs")) == interfaces


@pytest.mark.parametrize("name", SHAPES)
def test_primary_is_ena_and_positions_are_unique(name: str) -> None:
    layout = interface_layout(name)
    assert layout[0] == InterfaceSpec(0, 0, "interface")
    assert len({(i.card, i.device) for i in layout}) == len(layout)


def test_b300_has_no_efa_on_card_0() -> None:
    assert [i for i in interface_layout("p6-b300.48xlarge") if i.card == 0] == [InterfaceSpec(0, 0, "interface")]


def test_unknown_type_and_backend_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"p6e-gb300\.36xlarge"):
        interface_layout("p6e-gb300.36xlarge")
    with pytest.raises(InvalidRequest, match="hyperpod"):
        interface_layout("p5.48xlarge", "hyperpod")


@pytest.mark.parametrize(
    ("interfaces", "problem"),
    [
        ((), "first interface"),
        ((InterfaceSpec(0, 0, "efa-only"),), "first interface"),
        ((InterfaceSpec(0, 0, "interface"), InterfaceSpec(0, 0, "efa-only")), "share"),
        ((InterfaceSpec(0, 0, "interface"), InterfaceSpec(0, 1, "efa-only")), "card 0 takes no efa-only"),
        ((InterfaceSpec(0, 0, "interface"), InterfaceSpec(17, 0, "efa-only")), "no network card 17"),
        ((InterfaceSpec(0, 0, "interface"), *(InterfaceSpec(1, d, "efa-only") for d in range(5))), "card 1 takes 4"),
        (
            (
                InterfaceSpec(0, 0, "interface"),
                *(InterfaceSpec(c, d, "efa-only") for c in range(1, 17) for d in range(2)),
            ),
            "at most 16 EFA",
        ),
    ],
)
def test_wrong_layouts_are_named(interfaces: tuple[InterfaceSpec, ...], problem: str) -> None:
    described = instance_type("p6-b300.48xlarge")
    assert any(problem in text for text in layout_problems(interfaces, described))
