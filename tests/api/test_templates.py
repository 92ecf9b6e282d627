"""Templates by the API: made, versions, locks, jobs from template and parameters, a team's rules for failures."""

from __future__ import annotations

from typing import Any

import pytest

from apps.jobs.models import Job, JobTemplate
from tests.api.test_behaviour import problem

pytestmark = pytest.mark.django_db
BODY: dict[str, Any] = {
    "name": "sweep",
    "title": "Sweep",
    "teams": ["nlp"],
    "script": "#!/bin/bash\ntrain --lr {{ lr }} {{ fast }}\n",
    "parameters": [
        {"name": "lr", "type": "number", "default": 0.1, "maximum": 1},
        {"name": "fast", "type": "switch", "on": "--fast", "off": "", "default": True, "locked": True},
    ],
    "defaults": {
        "cluster": "lab",
        "nodes": 2,
        "gpus_per_node": 8,
        "gpu_type": "h100",
        "time_limit_min": 60,
        "environment": {"A": "1"},
        "slurm_options": ["--constraint=h100", "--wckey=x"],
        "retry_rules": ["retry exit 75"],
    },
    "locked": ["gpus_per_node"],
    "why": "first",
}


@pytest.fixture
def lead(team: Any) -> Any:
    from tests.conftest import _user

    user = _user("lead")
    user.memberships.create(team=team, role="lead")
    return user


@pytest.fixture
def made(as_user: Any, lead: Any, cluster: Any) -> Any:
    answer = as_user(lead).send("POST", "templates", {**BODY, "defaults": {**BODY["defaults"], "slurm_options": []}})
    assert answer.status_code == 201, answer.content
    assert answer["Location"] == "/api/v1/templates/sweep"
    return answer.json()


def test_made_once_by_its_key(as_user: Any, lead: Any, cluster: Any) -> None:
    body = {**BODY, "defaults": {"cluster": "lab"}, "locked": []}
    first, again = (as_user(lead).send("POST", "templates", body, Idempotency_Key="k") for _turn in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["uid"] == again.json()["uid"]
    # A cluster is kept by its uid, whatever it is called later.
    assert first.json()["defaults"]["cluster"] == cluster.uid
    assert as_user(lead).send("POST", "templates", body, Idempotency_Key="other").status_code == 422


def test_every_bad_parameter_is_named(as_user: Any, lead: Any) -> None:
    parameters = [{"name": "A"}, {"name": "b", "type": "integer", "default": "x"}, {"name": "b", "type": "choice"}]
    answer = as_user(lead).send("POST", "templates", {**BODY, "parameters": parameters, "defaults": {"nodes": 0}})
    pointers = {e["pointer"] for e in problem(answer, 422, "InvalidInput")["errors"]}
    assert {
        "/parameters/0/name",
        "/parameters/1/default",
        "/parameters/2/name",
        "/parameters/2/choices",
        "/script",
        "/defaults/nodes",
        "/locked/0",
    } <= pointers
    for who, status in ((["nobody"], 404), ([], 403)):
        assert as_user(lead).send("POST", "templates", {**BODY, "teams": who}).status_code == status


def test_versions(as_user: Any, lead: Any, made: Any, outsider: Any) -> None:
    client = as_user(lead)
    assert client.send("POST", "templates/sweep/versions", {"title": "B"}).status_code == 428
    answer = client.send("POST", "templates/sweep/versions", {"title": "B", "why": "better"}, If_Match='"1"')
    assert (answer.status_code, answer.json()["number"], answer["ETag"]) == (201, 2, '"2"')
    assert answer.json()["defaults"]["nodes"] == 2, "what is left out stays"
    assert client.send("POST", "templates/sweep/versions", {"title": "C"}, If_Match='"1"').status_code == 412
    assert client.send("POST", "templates/sweep/versions", {"title": "B"}, If_Match='"2"').status_code == 200
    both = {"restore": 1, "title": "D"}
    assert client.send("POST", "templates/sweep/versions", both, If_Match='"2"').status_code == 422
    assert client.send("POST", "templates/sweep/versions", {"restore": 9}, If_Match='"2"').status_code == 404
    answer = client.send("POST", "templates/sweep/versions", {"restore": 1}, If_Match='"2"')
    assert (answer.json()["number"], answer.json()["title"]) == (3, "Sweep")
    rows = client.send("GET", "templates/sweep/versions").json()["results"]
    assert [(r["number"], r["by"], r["why"]) for r in rows][1:] == [(2, "lead", "better"), (1, "lead", "first")]
    changes = client.send("GET", "templates/sweep/versions/2").json()
    assert changes["values"] == [{"what": "text", "name": "title", "before": "Sweep", "after": "B"}]
    assert client.send("GET", "templates/sweep/versions/3?against=1").json()["values"] == []
    assert as_user(outsider).send("GET", "templates/sweep/versions").status_code == 404


def test_a_job_from_template_and_parameters(as_user: Any, owner: Any, made: Any, cluster: Any) -> None:
    body = {"team": "nlp", "template": "sweep", "template_parameters": {"lr": 0.2}}
    answer = as_user(owner).send("POST", "jobs", body, Idempotency_Key="a")
    assert answer.status_code == 202, answer.content
    job = Job.objects.get()
    assert (job.name, job.nodes, job.gpus_per_node, job.time_limit_min) == ("sweep", 2, 8, 60)
    assert (job.cluster, job.environment, job.template_version) == (cluster, {"A": "1"}, 1)
    assert job.script == "#!/bin/bash\ntrain --lr 0.2 --fast\n"
    assert (job.retry_rules, [r["rule"] for r in job.retry_defaults]) == ([], ["retry exit 75"])
    preview = as_user(owner).send("POST", "jobs/preview", {**body, "nodes": 1, "template_parameters": {}}).json()
    assert preview["changes"]["job"] == job.uid
    assert [(c["what"], c["name"], c["after"]) for c in preview["changes"]["values"]] == [
        ("parameter", "lr", "0.1"),
        ("field", "nodes", "1"),
    ]
    assert preview["changes"]["script"][-1] == "+train --lr 0.1 --fast"
    spec = as_user(owner).send("GET", f"jobs/{job.uid}/spec").json()
    assert "gpus_per_node" not in spec, "what is fixed is said by the template alone"
    assert as_user(owner).send("POST", "jobs/preview", spec).json()["problems"] == []


def test_the_api_refuses_what_a_template_fixes(as_user: Any, owner: Any, made: Any) -> None:
    body = {"team": "nlp", "template": "sweep", "gpus_per_node": 4, "template_parameters": {"fast": False, "lr": 3}}
    found = problem(as_user(owner).send("POST", "jobs", body, Idempotency_Key="b"), 422, "InvalidInput")["errors"]
    told = {e["pointer"]: e["detail"] for e in found}
    assert told["/gpus_per_node"] == "GPUs per node is fixed to 8 by template sweep"
    assert told["/template_parameters/fast"] == "fast is fixed to true by template sweep"
    assert told["/template_parameters/lr"] == "lr: must be at most 1"
    assert Job.objects.count() == 0


def test_without_a_default_it_is_needed(as_user: Any, owner: Any, cluster: Any) -> None:
    answer = as_user(owner).send("POST", "jobs", {"team": "nlp", "template": "charlm"}, Idempotency_Key="c")
    pointers = [e["pointer"] for e in problem(answer, 422, "InvalidInput")["errors"]]
    assert pointers == ["/cluster", "/nodes", "/gpus_per_node", "/time_limit_min"]


def test_options_of_the_template_and_of_the_job(as_user: Any, owner: Any, lead: Any, cluster: Any) -> None:
    assert as_user(lead).send("POST", "templates", BODY).status_code == 201
    body = {"team": "nlp", "template": "sweep", "constraint": "a100"}
    answer = as_user(owner).send("POST", "jobs", body, Idempotency_Key="d")
    assert answer.status_code == 202, answer.content
    assert sorted(Job.objects.get().slurm_options) == ["--constraint=a100", "--wckey=x"]


def test_retired_and_offered(as_user: Any, owner: Any, lead: Any, made: Any) -> None:
    assert as_user(owner).send("POST", "templates/sweep/retire", {}).status_code == 403
    assert as_user(lead).send("POST", "templates/sweep/retire", {}).json()["is_enabled"] is False
    names = [r["name"] for r in as_user(owner).send("GET", "templates").json()["results"]]
    assert "sweep" not in names
    assert "sweep" in [r["name"] for r in as_user(owner).send("GET", "templates?retired=1").json()["results"]]
    body = {"team": "nlp", "template": "sweep"}
    assert as_user(owner).send("POST", "jobs", body, Idempotency_Key="e").status_code == 404
    assert as_user(lead).send("POST", "templates/sweep/offer", {}).json()["is_enabled"] is True
    assert JobTemplate.objects.get(name="sweep").is_enabled


def test_a_template_is_retired_as_it_was_read(as_user: Any, lead: Any, made: Any) -> None:
    client = as_user(lead)
    tag = client.send("GET", "templates/sweep")["ETag"]
    changed = client.send("POST", "templates/sweep/versions", {"title": "B"}, If_Match=tag)
    assert client.send("POST", "templates/sweep/retire", {}, If_Match=tag).status_code == 412
    assert JobTemplate.objects.get(name="sweep").is_enabled
    answer = client.send("POST", "templates/sweep/retire", {}, If_Match=changed["ETag"])
    assert (answer.status_code, answer.json()["is_enabled"]) == (200, False)
    for stale in (changed["ETag"], '"²"', f'"{"9" * 5000}"'):
        assert client.send("POST", "templates/sweep/offer", {}, If_Match=stale).status_code == 412, stale
    assert client.send("GET", "templates/sweep/versions/2?against=²").status_code == 400
    assert client.send("POST", "templates/sweep/offer", {}, If_Match=answer["ETag"]).json()["is_enabled"] is True


def test_a_value_longer_than_any_number_is_refused(as_user: Any, owner: Any, lead: Any, made: Any) -> None:
    told = {"script": "#!/bin/bash\necho {{ n }}\n", "parameters": [{"name": "n", "type": "integer"}]}
    assert as_user(lead).send("POST", "templates/sweep/versions", told, If_Match='"1"').status_code == 201
    body = {"team": "nlp", "template": "sweep", "template_parameters": {"n": "1" + "0" * 400}}
    answer = as_user(owner).send("POST", "jobs/preview", body)
    assert [p["pointer"] for p in answer.json()["problems"]] == ["/template_parameters/n"]
    answer = as_user(owner).send("POST", "jobs", body, Idempotency_Key="n")
    assert problem(answer, 422, "InvalidInput")["errors"][0]["detail"] == "n: a whole number of at most 40 digits"


def test_the_rules_of_a_team(as_user: Any, owner: Any, lead: Any, team: Any) -> None:
    where = "teams/nlp/retry-rules"
    answer = as_user(owner).send("GET", where)
    assert (answer.json()["rules"], answer["ETag"]) == ([], '"0"')
    assert as_user(owner).send("PUT", where, {"rules": []}, If_Match='"0"').status_code == 403
    assert as_user(lead).send("PUT", where, {"rules": []}).status_code == 428
    bad = as_user(lead).send("PUT", where, {"rules": ["retry exit 900"]}, If_Match='"0"')
    assert problem(bad, 422, "InvalidInput")["errors"][0]["pointer"] == "/rules"
    answer = as_user(lead).send("PUT", where, {"rules": ["retry exit 75"]}, If_Match='"0"')
    assert (answer.status_code, answer["ETag"], answer.json()["changed_by"]) == (200, '"1"', "lead")
    assert as_user(lead).send("PUT", where, {"rules": []}, If_Match='"0"').status_code == 412
