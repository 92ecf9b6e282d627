"""AWS ParallelCluster as it looks in an account: a stack, a configuration in a bucket, machines with its tags, its API.

CloudFormation answers for its stacks only, S3 for its bucket only; the ParallelCluster API stands behind
``/parallelcluster`` of the endpoint, where a real one stands behind API Gateway.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Final
from urllib.parse import unquote
from xml.sax.saxutils import escape

import yaml
from botocore import xform_name
from botocore.model import Shape
from werkzeug.wrappers import Request, Response

from sandbox.aws.errors import AwsError
from sandbox.aws.group_machines import Wanted, scale
from sandbox.aws.modelcheck import answer_problems, request_problems
from sandbox.aws.network import subnet_of
from sandbox.aws.options import ACCOUNT_ID
from sandbox.aws.service import Service, WrongAnswer
from sandbox.aws.state import Cloud

VERSION: Final = "3.12.0"
API_PATH: Final = "/parallelcluster"
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,59}")
_WORKING: Final = ("CREATE_IN_PROGRESS", "DELETE_IN_PROGRESS")


class ApiRefusal(Exception):
    """An error answer of the ParallelCluster API: status, message, problems of the configuration."""

    def __init__(self, status: int, message: str, problems: list[dict[str, str]] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, **({"configurationValidationErrors": problems} if problems else {})}


class CloudFormation(Service):
    """The stacks of ParallelCluster's clusters. ``make`` and ``remove`` are what its API and its CLI do."""

    name: ClassVar[str] = "cloudformation"

    def __init__(self, *args: Any, cloud: Cloud) -> None:
        super().__init__(*args)
        self._cloud = cloud

    def settle(self) -> None:
        """Making and taking away end by the clock."""
        now = time.time()
        for name, stack in list(self.rows("stacks").items()):
            if stack["status"] == "CREATE_IN_PROGRESS" and now >= stack["since"] + self.options.cluster_create_s:
                self._made(stack)
            elif stack["status"] == "DELETE_IN_PROGRESS":
                self._scale(stack, 0)
                if now >= stack["since"] + self.options.cluster_delete_s:
                    del self.rows("stacks")[name]

    def _made(self, stack: dict[str, Any]) -> None:
        if self.world.fault_use("cluster-fails", what="parallelcluster"):
            stack |= {
                "status": "CREATE_FAILED",
                "reason": "The following resource(s) failed to create: [HeadNodeWaitCondition]. "
                "WaitCondition received failed message: 'Failed to run chef recipe'",
            }
            return
        stack["status"] = "CREATE_COMPLETE"
        self._scale(stack, 1)

    def _scale(self, stack: Mapping[str, Any], heads: int) -> None:
        config = yaml.safe_load(stack["config"])
        common = {"parallelcluster:cluster-name": stack["name"], "parallelcluster:version": VERSION, **stack["tags"]}
        head = config["HeadNode"]
        tags = {**common, "parallelcluster:node-type": "HeadNode", "Name": "HeadNode"}
        machine = Wanted(tags, str(head["InstanceType"]), str(head["Networking"]["SubnetId"]))
        scale(self._cloud, self.world, machine, heads)
        for queue, resource, kind, subnet in resources(config):
            tags = {
                **common,
                "parallelcluster:node-type": "Compute",
                "parallelcluster:queue-name": queue,
                "parallelcluster:compute-resource-name": str(resource["Name"]),
                "Name": "Compute",
            }
            scale(self._cloud, self.world, Wanted(tags, kind, subnet), int(resource.get("MinCount") or 0) * heads)

    def census(self) -> dict[str, int]:
        """Stacks; their machines are EC2's."""
        return {"stacks": len(self.rows("stacks"))}

    # --- what ParallelCluster does

    def make(self, name: str, text: str) -> dict[str, Any]:
        """A new cluster of this configuration. Raises ``ApiRefusal``."""
        with self.lock:
            self.settle()
            if not _NAME.fullmatch(name):
                raise ApiRefusal(400, f"Bad Request: '{name}' does not match '^[a-zA-Z][a-zA-Z0-9-]+$'")
            if name in self.rows("stacks"):
                raise ApiRefusal(409, f"Cluster {name} already exists")
            problems = list(self._problems(text))
            if problems:
                raise ApiRefusal(400, "Invalid cluster configuration.", problems)
            config = yaml.safe_load(text)
            unique = secrets.token_hex(8)
            self.rows("stacks")[name] = {
                "name": name,
                "id": f"arn:aws:cloudformation:{self.options.region}:{ACCOUNT_ID}:stack/{name}/{unique}",
                "status": "CREATE_IN_PROGRESS",
                "reason": "",
                "since": time.time(),
                "created": time.time(),
                "config": text,
                "folder": f"parallelcluster/{VERSION}/clusters/{name}-{unique}",
                "config_version": secrets.token_hex(16),
                "tags": {str(t["Key"]): str(t["Value"]) for t in config.get("Tags") or []},
            }
            self.save()
            return self.rows("stacks")[name]

    def _problems(self, text: str) -> Iterator[dict[str, str]]:
        def problem(kind: str, message: str) -> dict[str, str]:
            return {"level": "ERROR", "type": kind, "message": message}

        try:
            config = yaml.safe_load(text)
            queues = list(resources(config))
            head = config["HeadNode"]["Networking"]["SubnetId"]
            if not config["HeadNode"]["InstanceType"] or not config["Image"]["Os"]:
                raise KeyError("InstanceType")
        except (yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            yield problem("ConfigSchemaValidator", f"Missing or unreadable: {' '.join(str(error).split())}")
            return
        for _queue, resource, _kind, subnet in [*queues, ("", {}, "", head)]:
            if subnet_of(self.options.region, str(subnet)) is None:
                yield problem("SubnetsValidator", f"The subnet ID '{subnet}' does not exist")
            if int(resource.get("MinCount") or 0) > int(resource.get("MaxCount", 10)):
                yield problem("ComputeResourceSizeValidator", "The max count must be greater than or equal to min.")

    def remove(self, name: str) -> dict[str, Any]:
        """Take a cluster away with everything in it. Raises ``ApiRefusal``."""
        with self.lock:
            self.settle()
            stack = self.rows("stacks").get(name)
            if stack is None:
                raise ApiRefusal(404, f"Cluster {name} does not exist.")
            if stack["status"] not in _WORKING or stack["status"] == "CREATE_IN_PROGRESS":
                stack |= {"status": "DELETE_IN_PROGRESS", "since": time.time()}
                self.save()
            return stack

    def config_at(self, bucket: str, key: str, version: str) -> str:
        """A configuration in ParallelCluster's bucket. Raises ``AwsError`` where there is none."""
        with self.lock:
            for stack in self.rows("stacks").values():
                fits = version in ("", stack["config_version"])
                if bucket == bucket_of(self.options.region) and key == f"{stack['folder']}/configs/cluster-config.yaml":
                    if fits:
                        return str(stack["config"])
                    raise AwsError("NoSuchVersion", "The specified version does not exist.", status=404)
        raise AwsError("NoSuchKey", "The specified key does not exist.", status=404)

    # --- CloudFormation's call

    def describe_stacks(self, asked: dict[str, Any]) -> dict[str, Any]:
        """All stacks, or one by name or id."""
        wanted = asked.get("StackName")
        rows = [s for s in self.rows("stacks").values() if wanted in (None, s["name"], s["id"])]
        if wanted and not rows:
            raise AwsError("ValidationError", f"Stack with id {wanted} does not exist")
        return {"Stacks": [self._view(s) for s in rows]}

    def _view(self, stack: Mapping[str, Any]) -> dict[str, Any]:
        parameters = {
            "Scheduler": "slurm",
            "ClusterUser": "ubuntu",
            "ResourcesS3Bucket": bucket_of(self.options.region),
            "ArtifactS3RootDirectory": stack["folder"],
            "ConfigVersion": stack["config_version"],
        }
        tags = {**stack["tags"], "parallelcluster:version": VERSION, "parallelcluster:cluster-name": stack["name"]}
        return {
            "StackId": stack["id"],
            "StackName": stack["name"],
            "StackStatus": stack["status"],
            **({"StackStatusReason": stack["reason"]} if stack["reason"] else {}),
            "CreationTime": datetime.fromtimestamp(stack["created"], UTC),
            "Parameters": [{"ParameterKey": k, "ParameterValue": value} for k, value in parameters.items()],
            "Tags": [{"Key": k, "Value": value} for k, value in tags.items()],
        }

    def operation_of(self, request: Request) -> str:
        """The query protocol names it in the form."""
        return str(request.form.get("Action", ""))

    def answer(self, request: Request, body: bytes) -> Response:
        """One call in the query protocol. Raises ``AwsError``."""
        name = self.operation_of(request)
        method = getattr(self, xform_name(name), None) if name in self.model.operation_names else None
        if method is None:
            raise AwsError("InvalidAction", f"The sandbox has no cloudformation {name}.")
        operation = self.model.operation_model(name)
        asked = {k: value for k, value in request.form.items() if k not in ("Action", "Version")}
        problems = request_problems(operation, asked)
        if problems:
            raise AwsError("ValidationError", f"{len(problems)} validation error(s) detected: {'; '.join(problems)}")
        with self.lock:
            self.settle()
            found = method(asked)
        wrong = answer_problems(operation, found)
        if wrong:
            raise WrongAnswer(f"cloudformation {name}: {'; '.join(wrong[:5])}")
        assert operation.output_shape is not None
        inner = _xml(operation.output_shape, found)
        text = f"<{name}Response><{name}Result>{inner}</{name}Result></{name}Response>"
        return Response(text, content_type="text/xml")


def bucket_of(region: str) -> str:
    """The bucket that ParallelCluster keeps in a region of an account."""
    return f"parallelcluster-{ACCOUNT_ID[:8]}{region.replace('-', '')}-v1-do-not-delete"


def resources(config: Any) -> Iterator[tuple[str, Mapping[str, Any], str, str]]:
    """Queue, compute resource, instance type and subnet, one for each resource. Raises KeyError for what is missing."""
    for queue in config["Scheduling"]["SlurmQueues"]:
        for resource in queue["ComputeResources"]:
            kind = resource.get("InstanceType") or resource["Instances"][0]["InstanceType"]
            yield str(queue["Name"]), resource, str(kind), str(queue["Networking"]["SubnetIds"][0])


def _xml(shape: Shape, value: Any) -> str:
    match shape.type_name:
        case "structure":
            members: Mapping[str, Shape] = shape.members  # type: ignore[attr-defined]
            return "".join(f"<{k}>{_xml(s, value[k])}</{k}>" for k, s in members.items() if k in value)
        case "list":
            member: Shape = shape.member  # type: ignore[attr-defined]
            return "".join(f"<member>{_xml(member, item)}</member>" for item in value)
        case "timestamp":
            return str(value.isoformat())
        case _:
            return escape(str(value))


class Bucket:
    """As much of S3 as reading ParallelCluster's configurations takes."""

    signing_name = "s3"

    def __init__(self, stacks: CloudFormation) -> None:
        self.lock = threading.RLock()
        self._stacks = stacks

    def operation_of(self, request: Request) -> str:
        """Only one thing can be done."""
        return "GetObject" if request.method == "GET" else ""

    def answer(self, request: Request, body: bytes) -> Response:
        """One object by its path. Raises ``AwsError``."""
        if request.method != "GET":
            raise AwsError("MethodNotAllowed", "The specified method is not allowed against this resource.", status=405)
        bucket, _slash, key = request.path.lstrip("/").partition("/")
        text = self._stacks.config_at(bucket, unquote(key), request.args.get("versionId", ""))
        return Response(text, content_type="application/x-yaml", headers={"ETag": '"sandbox"'})

    def status_of(self, code: str) -> int:
        """What most refusals are."""
        return 400

    def settle(self) -> None:
        """Time does nothing to it."""

    def census(self) -> dict[str, int]:
        """Nothing of its own."""
        return {}


class ParallelClusterApi:
    """The ParallelCluster API 3: create, describe in short, delete."""

    signing_name = "execute-api"

    def __init__(self, stacks: CloudFormation) -> None:
        self.lock = threading.RLock()
        self._stacks = stacks

    def operation_of(self, request: Request) -> str:
        """As the API's description names it."""
        return {"POST": "CreateCluster", "DELETE": "DeleteCluster", "GET": "DescribeCluster"}.get(request.method, "")

    def answer(self, request: Request, body: bytes) -> Response:
        """One call."""
        try:
            status, found = self._answered(request, body)
        except ApiRefusal as refusal:
            return _json(refusal.status, refusal.body)
        return _json(status, {"cluster": self._summary(found)})

    def _answered(self, request: Request, body: bytes) -> tuple[int, Mapping[str, Any]]:
        path = request.path.removeprefix(API_PATH).rstrip("/")
        name = path.removeprefix("/v3/clusters").lstrip("/")
        if not path.startswith("/v3/clusters"):
            raise ApiRefusal(404, "Not Found")
        if request.method == "POST" and not name:
            try:
                asked = json.loads(body)
                return 202, self._stacks.make(str(asked["clusterName"]), str(asked["clusterConfiguration"]))
            except (ValueError, KeyError, TypeError) as error:
                raise ApiRefusal(400, f"Bad Request: {error}") from error
        if request.method == "DELETE" and name:
            return 202, self._stacks.remove(name)
        if request.method == "GET" and name:
            with self._stacks.lock:
                self._stacks.settle()
                stack = self._stacks.rows("stacks").get(name)
            if stack is None:
                raise ApiRefusal(404, f"Cluster {name} does not exist.")
            return 200, stack
        raise ApiRefusal(405, "Method Not Allowed")

    def _summary(self, stack: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "clusterName": stack["name"],
            "cloudformationStackArn": stack["id"],
            "cloudformationStackStatus": stack["status"],
            "clusterStatus": stack["status"],
            "region": self._stacks.options.region,
            "version": VERSION,
        }

    def status_of(self, code: str) -> int:
        """What most refusals are."""
        return 400

    def settle(self) -> None:
        """Its stacks settle themselves."""

    def census(self) -> dict[str, int]:
        """Nothing of its own."""
        return {}


def _json(status: int, body: Mapping[str, Any]) -> Response:
    return Response(json.dumps(body), status=status, content_type="application/json")
