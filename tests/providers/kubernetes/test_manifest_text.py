"""Owner's labels put into manifests: where they belong, and everything else to the letter."""

from __future__ import annotations

import pytest
import yaml

from tests.providers.kubernetes.test_manifest import OWNER, job, problems
from worker.providers.kubernetes.manifest import prepared, read_manifest
from worker.providers.kubernetes.yaml_text import Unreadable

WRITTEN = """\
# mine, ordered as I like it
kind: "Job"     # quoted
apiVersion: batch/v1

metadata:
  name: 'train'   # single quotes
spec:
  parallelism: 2
  template:
    spec: {containers: [{image: "a:1", name: m, args: [--lr, 1e-4, "0644"]}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: files, labels: {}}
data:
  script: |
    #!/bin/bash
    echo "a:  b"   # not a comment
...
---
apiVersion: v1
kind: Service
metadata:
  labels:
    app: train
  name: train
"""


def test_labels_are_added_and_everything_else_stays_to_the_letter():
    found = prepared(read_manifest(WRITTEN), **OWNER, queue="vision")
    added = [line for line in found.text.splitlines() if line not in WRITTEN.splitlines()]

    owner = (
        'app.kubernetes.io/managed-by: "quarterdeck", quarterdeck.dev/job: "job_01", '
        'quarterdeck.dev/attempt: "att_01", quarterdeck.dev/team: "vision", quarterdeck.dev/owner: "owner"'
    )
    assert added == [
        f'  labels: {{{owner}, kueue.x-k8s.io/queue-name: "vision"}}',
        f"    metadata: {{labels: {{{owner}}}}}",
        f"metadata: {{name: files, labels: {{{owner}}}}}",
        *[f"    {pair}" for pair in owner.split(", ")],
    ]
    kept = found.text.replace(f"name: files, labels: {{{owner}}}}}", "name: files, labels: {}}")
    for line in (added[0], added[1], *added[3:]):
        kept = kept.replace(f"{line}\n", "", 1)
    assert kept == WRITTEN
    assert [made["kind"] for made in found.objects] == ["Job", "ConfigMap", "Service"]
    assert found.objects[2]["metadata"]["labels"]["app"] == "train"
    assert [*yaml.safe_load_all(found.text)][0]["spec"]["template"]["metadata"]["labels"][
        "quarterdeck.dev/job"
    ] == "job_01"


@pytest.mark.parametrize(
    "meta",
    [
        "metadata: {name: a}\n",
        "metadata:\n  name: a\n  labels:\n",
        "metadata:\n  name: a\n  labels: ~   # none yet\n",
        "metadata:\n  name: a\n  labels: {}\n",
        "metadata:\n    name: a\n    labels:\n        x: y\n",
        "metadata: &m\n  name: a\n",
        '"metadata":\n  "name": "a"\n',
        "metadata:\r\n  name: a\r\n",
    ],
)
def test_labels_find_their_place_in_every_way_of_writing(meta):
    text = f"apiVersion: v1\nkind: Pod\n{meta}spec: {{containers: [{{name: é, image: a}}]}}\n"
    found = prepared(read_manifest(text), **OWNER, queue="vision")
    (before,), (after,) = [list(yaml.safe_load_all(t)) for t in (text, found.text)]

    labels = after["metadata"].pop("labels")
    before["metadata"].pop("labels", None)
    assert before == after
    assert labels["quarterdeck.dev/owner"] == "owner"
    assert labels["kueue.x-k8s.io/queue-name"] == "vision"


def test_json_is_yaml_too():
    text = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "m"}]}}'
    (made,) = prepared(read_manifest(text), **OWNER).objects

    assert made["metadata"]["labels"]["quarterdeck.dev/team"] == "vision"


def test_an_owner_that_no_label_holds_is_in_an_annotation():
    (made,) = prepared(read_manifest(job()), **{**OWNER, "owner": "first.last+tag@example.org"}).objects
    label = made["metadata"]["labels"]["quarterdeck.dev/owner"]

    assert label.startswith("first.last-tag-example.org-")
    assert made["metadata"]["annotations"] == {"quarterdeck.dev/owner": "first.last+tag@example.org"}


def test_a_queue_that_the_author_named_stays():
    text = job(meta="labels: {kueue.x-k8s.io/queue-name: vision}")

    assert problems(text) == []
    (made,) = prepared(read_manifest(text), **OWNER, queue="other").objects
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "vision"


def test_a_label_that_would_show_elsewhere_is_not_added():
    text = (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a}\nspec:\n"
        "  selector: {matchLabels: &app {app: a}}\n  template:\n    metadata: {labels: *app}\n"
        "    spec: {containers: [{name: m, image: a}]}\n"
    )

    with pytest.raises(Unreadable) as refused:
        prepared(read_manifest(text), **OWNER)
    assert refused.value.problem.code == "CannotAdd"
