"""The EC2 calls about tags, over our things and moto's, mixed into the EC2 handler."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult

from sandbox.aws.errors import AwsError
from sandbox.aws.filters import matches
from sandbox.aws.state import Cloud


class TagCalls:
    """Tags of everything in the account."""

    cloud: Cloud
    ec2_backend: Any
    _all: Any
    _filters: Any

    def _tagged(self) -> dict[str, tuple[str, dict[str, str]]]:
        found: dict[str, tuple[str, dict[str, str]]] = {}
        found |= {m.id: ("instance", m.tags) for m in self.cloud.machines.values()}
        found |= {disk["id"]: ("volume", disk["tags"]) for m in self.cloud.live() for disk in m.volumes}
        found |= {i.id: ("network-interface", i.tags) for i in self.cloud.interfaces.values()}
        found |= {g.id: ("placement-group", g.tags) for g in self.cloud.groups.values()}
        found |= {t.id: ("launch-template", t.tags) for t in self.cloud.templates.values()}
        found |= dict(self.cloud.book.tagged())
        return found

    def create_tags(self) -> ActionResult:
        """On our things and on moto's."""
        return self._change_tags(remove=False)

    def delete_tags(self) -> ActionResult:
        """From our things and from moto's."""
        return self._change_tags(remove=True)

    def _change_tags(self, *, remove: bool) -> ActionResult:
        ids = self._all.get("Resources") or []
        tags = {tag["Key"]: tag.get("Value") for tag in self._all.get("Tags") or []}
        ours = self._tagged()
        others = [i for i in ids if i not in ours]
        for unknown in (i for i in others if i.startswith(("i-", "eni-", "pg-", "lt-", "vol-", "cr-"))):
            raise AwsError("InvalidID", f"The ID '{unknown}' is not valid")
        self.ec2_backend.do_resources_exist(others)
        self._refuse_dry_run()  # type: ignore[attr-defined]
        for thing_id in ids:
            if thing_id in others:
                continue
            own = ours[thing_id][1]
            for key, value in tags.items():
                if not remove:
                    own[key] = value or ""
                elif value is None or own.get(key) == value:
                    own.pop(key, None)
        if others and remove:
            self.ec2_backend.delete_tags(others, tags)
        elif others:
            self.ec2_backend.create_tags(others, {key: value or "" for key, value in tags.items()})
        self.cloud.book.save()
        self.cloud.save()
        return ActionResult(None)

    def describe_tags(self) -> ActionResult:
        """Tags of our things and of moto's."""
        listed = [
            {"ResourceId": thing_id, "ResourceType": kind, "Key": key, "Value": value}
            for thing_id, (kind, tags) in self._tagged().items()
            for key, value in tags.items()
        ]

        def passes(tag: dict[str, str]) -> bool:
            values = {
                "key": [tag["Key"]],
                "value": [tag["Value"]],
                "resource-id": [tag["ResourceId"]],
                "resource-type": [tag["ResourceType"]],
            }
            return matches(self._filters, {}, values.get)

        rest = [
            {
                "ResourceId": tag["resource_id"],
                "ResourceType": tag["resource_type"],
                "Key": tag["key"],
                "Value": tag["value"],
            }
            for tag in self.ec2_backend.describe_tags(filters=self._filters)
        ]
        shown, following = self._paged([tag for tag in listed if passes(tag)] + rest)  # type: ignore[attr-defined]
        return ActionResult({"Tags": shown, "NextToken": following})
