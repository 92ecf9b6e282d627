"""The control desk's faults of Kubernetes clusters: what is asked for, checked, and what it does, in a sentence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandbox.control.stack import Stack

#: Which keys each kind takes.
FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "node-back": frozenset({"node"}),
    "pod-oom": frozenset({"pod", "container"}),
    "pod-evict": frozenset({"pod"}),
    "pod-preempt": frozenset({"pod", "lasts"}),
    "image-pull": frozenset({"image", "times", "seconds"}),
    "api-away": frozenset({"cluster", "seconds"}),
    "clock-skew": frozenset({"cluster", "ahead", "times", "seconds"}),
}
_POD: Final = re.compile(r"(?:[a-z0-9][a-z0-9-]{0,62}/)?[a-z0-9][a-z0-9.-]{0,252}")
_IMAGE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}")
_CLUSTER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class Wrong(Exception):
    """What was asked for makes no sense; the message names the key."""


class Missing(Exception):
    """The pod that the fault is for does not run now."""


def at_once(stack: Stack, kind: str, given: Mapping[str, Any]) -> str:
    """Do to a pod what ``kind`` says; the sentence. Raises Wrong or Missing."""
    from sandbox.kubernetes import mischief

    pod = _matching(given, "pod", _POD, "a pod's name or namespace/name")
    if not pod:
        raise Wrong("pod: say which pod, for example vision/train-0")
    try:
        if kind == "pod-oom":
            done = mischief.out_of_memory(stack.kubernetes, pod, str(given.get("container") or ""))
            return f"A container of {done} was killed for its memory."
        if kind == "pod-evict":
            return f"{mischief.evict(stack.kubernetes, pod)} was evicted: its node is low on memory."
        lasts = _number(given, "lasts", 1, 3600, 30)
        done = mischief.push_out(stack.kubernetes, pod, int(lasts))
        return f"{done} asks for its place, for {int(lasts)} s."
    except mischief.NoSuchPod as error:
        raise Missing(str(error)) from None


def lasting(kind: str, given: Mapping[str, Any]) -> tuple[dict[str, object], str]:
    """The parameters of a fault that stays in force, and what it does in words. Raises Wrong."""
    if kind == "image-pull":
        image = _matching(given, "image", _IMAGE, "an image's name")
        return ({"image": image} if image else {}), f"Pulling {image or 'any image'} fails"
    cluster = _matching(given, "cluster", _CLUSTER, "a cluster's name")
    parameters: dict[str, object] = {"cluster": cluster} if cluster else {}
    whose = f"of {cluster}" if cluster else "of every cluster"
    if kind == "api-away":
        return parameters, f"The API server {whose} is away"
    ahead = _number(given, "ahead", -86_400, 86_400, 300)
    return {
        **parameters,
        "ahead": ahead,
    }, f"The clock {whose} is {abs(ahead):g} s {'ahead' if ahead >= 0 else 'behind'}"


def _matching(given: Mapping[str, Any], key: str, form: re.Pattern[str], what: str) -> str:
    value = str(given.get(key) or "")
    if value and not form.fullmatch(value):
        raise Wrong(f"{key}: {value!r} is not {what}")
    return value


def _number(given: Mapping[str, Any], key: str, least: float, most: float, default: float) -> float:
    if given.get(key) in (None, ""):
        return default
    try:
        value = float(str(given[key]))
    except ValueError:
        raise Wrong(f"{key}: {given[key]!r} is not a number of seconds") from None
    if not least <= value <= most:
        raise Wrong(f"{key}: {given[key]} is not between {least:g} and {most:g} seconds")
    return value
