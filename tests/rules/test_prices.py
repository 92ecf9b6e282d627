"""Whose price it is: of the machine's own region, or said to be an estimate."""

from __future__ import annotations

import pytest
from django.utils import translation

from apps.catalog.models import all_types, type_by_name
from apps.catalog.selectors import gpu_price, price_words


@pytest.mark.parametrize("region", ["us-east-1", "us-east-2", "us-west-2"])
def test_where_the_price_holds_it_is_named_with_its_region(region: str) -> None:
    kind = type_by_name("p5.48xlarge")
    assert kind is not None
    assert price_words(kind, region) == f"p5.48xlarge on demand, {region}, {kind.price_date} ({kind.price_source})"


def test_elsewhere_it_is_an_estimate_by_the_price_of_the_region_known() -> None:
    kind = type_by_name("p5.48xlarge")
    assert kind is not None
    words = price_words(kind, "eu-north-1")
    assert words.startswith("estimate for eu-north-1 by the price of us-east-1: p5.48xlarge on demand")
    with translation.override("ko"):
        assert str(words).startswith("eu-north-1 추정치(us-east-1 가격 기준)")
    found = gpu_price("p5.48xlarge", "h100", "eu-north-1")
    assert found is not None
    assert found[1] == words


def test_without_a_region_the_price_says_where_it_is_from() -> None:
    kind = type_by_name("p5.48xlarge")
    assert kind is not None
    assert "us-east-1" in price_words(kind, "")


def test_every_type_names_the_region_of_its_price() -> None:
    assert {kind.price_region for kind in all_types()} == {"us-east-1"}
