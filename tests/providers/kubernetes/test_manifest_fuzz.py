"""Manifests of any shape: never an error of ours, never a pod past the rules, never a character changed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.providers.kubernetes.test_manifest import COUNTED, OWNER, POLICY, job
from worker.providers.kubernetes.manifest import check_manifest, prepared, read_manifest
from worker.providers.kubernetes.manifest_kinds import KNOWN
from worker.providers.kubernetes.yaml_text import Unreadable

SCALARS = st.none() | st.booleans() | st.integers(-3, 10) | st.floats(allow_nan=False) | st.text(max_size=8)
NAMES = """
    metadata name labels annotations namespace spec template containers initContainers image resources limits requests
    nvidia.com/gpu volumes hostPath path securityContext capabilities add sysctls env envFrom secretRef valueFrom
    secretKeyRef replicas parallelism completions replicatedJobs pytorchReplicaSpecs Worker trainer numNodes size
    resourcesPerNode leaderWorkerTemplate workerTemplate runtimePatches runtimeRef mlPolicy elasticPolicy overhead
    jobTemplate kueue.x-k8s.io/queue-name type externalIPs imagePullSecrets ports initializer
"""
KEYS = st.sampled_from(NAMES.split())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=30
)


@given(st.text(alphabet="ab:-[]{}&*#|>'\"!? \t\n\r\x85é,.0", max_size=80))
@settings(max_examples=200, deadline=None)
def test_any_text_is_read_or_refused(text):
    manifest = read_manifest(text)

    assert manifest.problem or manifest.documents
    assert check_manifest(manifest, POLICY)


@given(
    st.sampled_from(sorted(KNOWN)), st.dictionaries(KEYS, VALUES, max_size=4), st.dictionaries(KEYS, VALUES, max_size=4)
)
@settings(max_examples=200, deadline=None)
def test_any_shape_is_checked_without_an_error(kind, meta, spec):
    value: dict[str, Any] = {
        "apiVersion": f"{kind[0]}/v1" if kind[0] else "v1",
        "kind": kind[1],
        "metadata": {**meta, "name": "a"},
        "spec": spec,
        "type": None,
    }
    found = check_manifest(read_manifest(yaml.safe_dump(value)), POLICY)

    assert all(str(problem) for problem in found)


@given(st.dictionaries(st.text(max_size=6), VALUES, max_size=4))
@settings(max_examples=100, deadline=None)
def test_any_mapping_is_checked_without_an_error(value):
    assert check_manifest(read_manifest(yaml.safe_dump(value)), POLICY)


RICH = job(
    "securityContext: {capabilities: {add: [A]}}\nports: [{hostPort: 1}]\nresources: {limits: {nvidia.com/gpu: 1}}\n"
    "env: [{name: A, valueFrom: {secretKeyRef: {name: a, key: b}}}]\nenvFrom: [{secretRef: {name: a}}]",
    meta="labels: {kueue.x-k8s.io/queue-name: vision}\nannotations: {a: b}\nnamespace: team-vision",
    spec="""\
    securityContext: {sysctls: [{name: a}], seccompProfile: {type: A}, seLinuxOptions: {type: a}}
    volumes: [{name: a, hostPath: {path: /a}}, {name: b, secret: {secretName: a}},
              {name: c, projected: {sources: [{secret: {name: a}}]}}]
    imagePullSecrets: [{name: a}]
    initContainers: [{name: a, image: a, restartPolicy: Always}]
    overhead: {cpu: 1}
    """,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a value."""
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in rows for place in places(inner, (*path, key)))]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_any_value_in_any_place_is_checked_without_an_error(data):
    text = data.draw(st.sampled_from([RICH, *sorted(text for text, _count in COUNTED.values())]))
    rows = list(yaml.safe_load_all(text))
    *steps, last = data.draw(st.sampled_from([place for place in places(rows) if place]))
    inner: Any = rows
    for step in steps:
        inner = inner[step]
    inner[last] = data.draw(VALUES)
    manifest = read_manifest(yaml.safe_dump_all(rows))

    if not check_manifest(manifest, POLICY):
        assert prepared(manifest, **OWNER, queue="vision").objects


def dumped(value: Any, draw: st.DrawFn) -> str:
    style = draw(st.sampled_from([None, True, False]))
    return yaml.safe_dump(value, default_flow_style=style, indent=draw(st.integers(2, 6)), allow_unicode=True)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_nothing_but_labels_is_added(data):
    """Whatever is written, and however: without the added text the manifest is what it was."""
    text, _count = data.draw(st.sampled_from(sorted(COUNTED.values())))
    rows = list(yaml.safe_load_all(text))
    for row in rows:
        row["metadata"] |= {
            "annotations": data.draw(st.dictionaries(st.text("ab/. ", max_size=5), st.text(max_size=9)))
        }
        if data.draw(st.booleans()):
            row["metadata"]["labels"] = data.draw(st.none() | st.dictionaries(st.text("ab", min_size=1), st.text("ab")))
    written = "---\n".join(dumped(row, data.draw) for row in rows)
    try:
        manifest = read_manifest(written)
        found = prepared(manifest, **OWNER, queue="vision")
    except Unreadable:
        pytest.fail("nothing here has an anchor")
    # An empty value where the labels go is the one thing that gives way to them.
    kept, remaining = re.sub(r"(labels\"?:) null", r"\1", written), iter(found.text)

    assert manifest.problem or all(letter in remaining for letter in kept if not letter.isspace())
    for before, after in zip(manifest.documents, found.objects, strict=True):
        assert _without(after, before.value) == before.value


def _without(after: Any, before: Any) -> Any:
    """What is left of ``after`` when what was added is taken away; nothing that was there may be missing."""
    if isinstance(after, dict):
        kept = before if isinstance(before, dict) else {}
        return None if before is None else {key: _without(after[key], kept[key]) for key in kept}
    if isinstance(after, list):
        return [_without(one, other) for one, other in zip(after, before, strict=True)]
    return after
