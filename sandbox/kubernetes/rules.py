"""Those rules that CRDs write in CEL which this server understands; the others it lets pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Rule = Callable[[Any, Any], bool]

_NAME: Final = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_HOST: Final = "kubernetes.io/hostname"


def _borrows(spec: Any) -> bool:
    return any(
        "borrowingLimit" in resource
        for group in spec.get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
        for resource in flavor.get("resources") or ()
    )


def _unlike(items: Any) -> bool:
    return all(item not in items[:at] for at, item in enumerate(items))


def _host_is_last(levels: Any) -> bool:
    hosts = [level for level in levels if level.get("nodeLabel") == _HOST]
    return not hosts or levels[-1].get("nodeLabel") == _HOST


_TRUE_UNLESS_BORROWING: Final = (
    "has(self.resourceGroups) ? self.resourceGroups.all(rg, rg.flavors.all(f, f.resources.all(r,"
    " !has(r.borrowingLimit)))) : true"
)

#: By the rule's text with single spaces; each gets the value and the stored one (None where there is none).
_KNOWN: Final[Mapping[str, Rule]] = {
    f"!has(self.cohort) && {_TRUE_UNLESS_BORROWING}": lambda new, _: "cohort" in new or not _borrows(new),
    f"!has(self.cohortName) && {_TRUE_UNLESS_BORROWING}": lambda new, _: "cohortName" in new or not _borrows(new),
    "self.flavors.all(x, size(x.resources) == size(self.coveredResources))": lambda new, _: all(
        len(flavor.get("resources") or ()) == len(new.get("coveredResources") or ())
        for flavor in new.get("flavors") or ()
    ),
    "!(self.reclaimWithinCohort == 'Never' && has(self.borrowWithinCohort) &&"
    " self.borrowWithinCohort.policy != 'Never')": lambda new, _: (
        not (
            new.get("reclaimWithinCohort") == "Never"
            and (new.get("borrowWithinCohort") or {}).get("policy", "Never") != "Never"
        )
    ),
    "!has(self.topologyName) || self.nodeLabels.size() >= 1": lambda new, _: (
        "topologyName" not in new or bool(new.get("nodeLabels"))
    ),
    "!has(oldSelf.topologyName) || (has(self.topologyName) && self.topologyName == oldSelf.topologyName)": (
        lambda new, old: old is None or "topologyName" not in old or new.get("topologyName") == old["topologyName"]
    ),
    "self.all(x, x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])": lambda new, _: all(
        taint.get("effect") in _EFFECTS for taint in new
    ),
    "self.all(x, !has(x.effect) || x.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])": lambda new, _: all(
        one.get("effect", "NoSchedule") in _EFFECTS for one in new
    ),
    "self.all(x, !has(x.key) ? x.operator == 'Exists' : true)": lambda new, _: all(
        "key" in one or one.get("operator") == "Exists" for one in new
    ),
    "self.all(x, !has(x.operator) || x.operator in ['Equal', 'Exists'])": lambda new, _: all(
        one.get("operator", "Equal") in ("Equal", "Exists") for one in new
    ),
    "size(self.filter(i, size(self.filter(j, j == i)) > 1)) == 0": lambda new, _: _unlike(new),
    "size(self.filter(i, i.nodeLabel == 'kubernetes.io/hostname')) == 0 ||"
    " self[size(self) - 1].nodeLabel == 'kubernetes.io/hostname'": lambda new, _: _host_is_last(new),
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')": lambda new, _: (
        _NAME.match(new["metadata"].get("name", "")) is not None
    ),
    "size(self.metadata.name) <= 63": lambda new, _: len(new["metadata"].get("name", "")) <= 63,
    "self in ['trainer.kubeflow.org/trainjob-controller', 'kueue.x-k8s.io/multikueue']": lambda new, _: (
        new in ("trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue")
    ),
    "self >= 1": lambda new, _: not isinstance(new, int) or new >= 1,
    "has(self.minCount) ? self.minCount <= self.count : true": lambda new, _: (
        "minCount" not in new or new["minCount"] <= new.get("count", 1)
    ),
    "has(self.priorityClassName) ? has(self.priority) : true": lambda new, _: (
        "priorityClassName" not in new or "priority" in new
    ),
    "!has(self.priorityClassRef) || has(self.priority)": lambda new, _: (
        "priorityClassRef" not in new or "priority" in new
    ),
    "[has(self.torch), has(self.mpi), has(self.jax), has(self.xgboost),has(self.flux)].filter(x, x).size() <= 1": (
        lambda new, _: sum(name in new for name in ("torch", "mpi", "jax", "xgboost", "flux")) <= 1
    ),
}


def broken_rule(rule: str, value: Any, before: Any) -> bool:
    """Whether a value breaks a rule; a rule in words that are not known here is never broken."""
    text = " ".join(rule.split())
    if text == "self == oldSelf":
        return before is not None and value != before
    known = _KNOWN.get(text)
    try:
        return known is not None and not known(value, before)
    except (AttributeError, KeyError, TypeError):
        # A value of the wrong shape has been told already by its type.
        return False
