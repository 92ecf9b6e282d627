"""Pricing: on-demand Linux prices of the P family as GetProducts lists them, each product a JSON string."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar, Final

from sandbox.aws.service import Service

#: Region codes and the names that products carry.
_REGIONS: Final = {
    "us-east-1": "US East (N. Virginia)",
    "us-east-2": "US East (Ohio)",
    "us-west-2": "US West (Oregon)",
}
#: USD an hour, Linux, shared tenancy; Karpenter's generated price list of 2026-07-20, the same in these regions.
_PRICES: Final = {
    "p4d.24xlarge": "21.9576420000",
    "p4de.24xlarge": "27.4470500000",
    "p5.4xlarge": "6.8800000000",
    "p5.48xlarge": "55.0400000000",
    "p5en.48xlarge": "63.2960000000",
    "p6-b200.48xlarge": "113.9328000000",
    "p6-b300.48xlarge": "142.4160000000",
    "g5.48xlarge": "16.2880000000",
    "g6.48xlarge": "13.3504000000",
    "g6e.48xlarge": "30.1311800000",
}


class Pricing(Service):
    """The price list; it knows no Capacity Blocks, as AWS's does not."""

    name: ClassVar[str] = "pricing"
    refusal: ClassVar[str] = "InvalidParameterException"

    def get_products(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Products whose attributes equal all filters."""
        wanted = {f["Field"]: f["Value"] for f in asked.get("Filters", []) if f["Type"] == "TERM_MATCH"}
        found = []
        if asked["ServiceCode"] == "AmazonEC2":
            for region, location in _REGIONS.items():
                for name, usd in _PRICES.items():
                    product = _product(region, location, name, usd)
                    attributes = {**product["product"]["attributes"], "productFamily": "Compute Instance"}
                    if all(attributes.get(field) == value for field, value in wanted.items()):
                        found.append(json.dumps(product))
        rows, following = self.page(found, asked)
        return {"FormatVersion": "aws_v1", "PriceList": rows, **({"NextToken": following} if following else {})}


def _product(region: str, location: str, name: str, usd: str) -> dict[str, Any]:
    sku = hashlib.sha256(f"{region}/{name}".encode()).hexdigest()[:16].upper()
    term = {
        "unit": "Hrs",
        "description": f"${usd} per On Demand Linux {name} Instance Hour",
        "pricePerUnit": {"USD": usd},
    }
    return {
        "serviceCode": "AmazonEC2",
        "product": {
            "sku": sku,
            "productFamily": "Compute Instance",
            "attributes": {
                "instanceType": name,
                "regionCode": region,
                "location": location,
                "operatingSystem": "Linux",
                "tenancy": "Shared",
                "preInstalledSw": "NA",
                "capacitystatus": "Used",
                "marketoption": "OnDemand",
            },
        },
        "terms": {
            "OnDemand": {f"{sku}.ONDEMAND": {"priceDimensions": {f"{sku}.ONDEMAND.HRS": term}, "sku": sku}},
        },
        "publicationDate": "2026-07-20T00:00:00Z",
    }


def price_of(instance_type: str) -> float:
    """USD an hour on demand, 0 for what is not sold that way."""
    return float(_PRICES.get(instance_type, "0"))
