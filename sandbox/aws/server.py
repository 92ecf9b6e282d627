"""The fake AWS's front door: who calls, which fault is in force, which service answers."""

from __future__ import annotations

import contextlib
import io
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sandbox.aws.seed import seed  # isort: skip  (first: it sets what moto reads while it is imported)

from botocore.model import OperationNotFoundError
from moto.cloudwatch.models import cloudwatch_backends
from moto.core.exceptions import ServiceException
from moto.moto_server.werkzeug_app import BackendRequest, DomainDispatcherApplication, create_backend_app
from werkzeug.wrappers import Request, Response

from sandbox.aws import options as o
from sandbox.aws import signing
from sandbox.aws.ec2 import Ec2Handler
from sandbox.aws.errors import EC2, AwsError, ConnectionCut, HtmlAnswer, invalid_action, rendered
from sandbox.aws.fsx import Fsx
from sandbox.aws.joining import Joiner
from sandbox.aws.launch import terminate
from sandbox.aws.services import services_of
from sandbox.aws.state import Cloud, new_id
from sandbox.serving import ThreadedServer
from sandbox.world import Fault, World

SERVICE = "aws"
_HTML = b"<!DOCTYPE html><html><head><title>Bad gateway</title></head><body><h1>502<br>Bad gateway</h1></body></html>"


class AwsServer:
    """All of the fake AWS on one port. ``url`` is the endpoint for every client of every service.

    EC2 and the services of ``services_of`` are ours, STS and CloudWatch are moto's.
    """

    def __init__(
        self, world: World, host: str, port: int, state_dir: Path, options: o.AwsOptions | None = None
    ) -> None:
        self.world = world
        self.options = options or o.AwsOptions()
        seed(self.options)
        self.cloud = Cloud(self.options, state_dir)
        self.cloud.book.follow(world)
        self.services = services_of(self.options, world, state_dir, self.cloud)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._joiner = Joiner(self.cloud, world)
        self._server = ThreadedServer("aws", host, port, self)
        self.url = self._server.url
        self.port = self._server.port

    def start(self) -> None:
        """Begin to answer and to let machines boot."""
        self._server.start()
        self._joiner.start()

    def stop(self) -> None:
        """Stop answering; what exists stays in the state file."""
        self._joiner.stop()
        self._server.stop()

    def ids(self) -> dict[str, str]:
        """Ids of what exists at every start."""
        return {
            "account_id": o.ACCOUNT_ID,
            "region": self.options.region,
            "zone": self.options.zone,
            "vpc_id": o.VPC_ID,
            "subnet_id": o.SUBNET_ID,
            "second_subnet_id": o.SECOND_SUBNET_ID,
            "security_group_id": o.SECURITY_GROUP_ID,
            "image_id": o.IMAGE_ID,
            "arm_image_id": o.ARM_IMAGE_ID,
        }

    def census(self) -> dict[str, int]:
        """How many things exist that cost money or block a name, over all services."""
        found = self.cloud.census()
        for service in self.services.values():
            with service.lock:
                service.settle()
                found |= service.census()
        return found

    def instances(self) -> list[dict[str, Any]]:
        """All instances in short, for the control page."""
        with self.cloud.lock:
            self.cloud.settle()
            return [
                {
                    "id": machine.id,
                    "name": machine.node_name,
                    "type": machine.instance_type,
                    "state": self.cloud.state_of(machine),
                    "placement_group": machine.placement_group,
                    "interfaces": len(self.cloud.interfaces_of(machine.id)),
                    "launched_at": machine.launched_at,
                }
                for machine in self.cloud.machines.values()
            ]

    def terminate_by_hand(self, instance_ids: list[str]) -> None:
        """End instances as an operator in AWS's console would. Raises ``AwsError`` for an unknown id."""
        with self.cloud.lock:
            terminate(self.cloud, instance_ids)

    def plan_event(self, instance_id: str, code: str, hours: int) -> None:
        """Let AWS plan something for an instance, to begin in so many hours. Raises KeyError for an unknown one."""
        with self.cloud.lock:
            begins = time.time() + hours * 3600
            machine = self.cloud.machines[instance_id]
            machine.planned.append(
                {
                    "id": new_id("instance-event"),
                    "code": code,
                    "description": "The instance is running on degraded hardware",
                    "not_before": begins,
                    "not_after": begins + 14 * 86_400,
                }
            )
            self.cloud.save()

    # --- answering

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI application."""
        try:
            response = self._answer(environ)
        except ConnectionCut:
            _cut(environ)
            # The server insists on a status; there is no connection left to write it to.
            start_response("500 Internal Server Error", [])
            return []
        return response(environ, start_response)

    def _answer(self, environ: dict[str, Any]) -> Response:
        request: Request = BackendRequest(environ)
        body = request.get_data(cache=True)
        signed = signing.signature_of(request)
        service = signed.service if signed is not None else EC2
        ours = self.services.get(service)
        operation = ours.operation_of(request) if ours is not None else _operation(request)
        try:
            self._delay_and_refuse(service, operation)
            if signed is None:
                raise AwsError("MissingAuthenticationToken", "Request is missing Authentication Token", status=403)
            signing.check(request, signed)
            signing.CALLER.set(signing.principal_of(signed.access_key_id))
            broken = self.world.fault_use("server-error", service=SERVICE, operation=operation)
            if broken is not None:
                _break_before(broken)
            response = self._serve(request, environ, body, service)
            if broken is not None and broken.parameters.get("shape") == "lost-reply":
                raise ConnectionCut
        except HtmlAnswer as page:
            return Response(_HTML, status=page.status, content_type="text/html; charset=utf-8")
        except ConnectionCut:
            raise
        except AwsError as error:
            if ours is not None and error.status == 400:
                error.status = ours.status_of(error.code)
            return _error(error, service)
        except ServiceException as error:
            return _error(AwsError(str(error.code), str(error.message)), service)
        except OperationNotFoundError:
            return _error(invalid_action(operation), service)
        except Exception:
            # A mistake of ours must look like AWS's own, not like a page, and must be seen.
            traceback.print_exc(file=sys.stderr)
            return _error(AwsError("InternalError", "An internal error has occurred", status=500), service)
        return response

    def _delay_and_refuse(self, service: str, operation: str) -> None:
        slow = self.world.fault_use("slow-api", service=SERVICE, operation=operation)
        if slow is not None:
            time.sleep(float(str(slow.parameters.get("delay") or 5)))
        if self.world.fault_use("throttling", service=SERVICE, operation=operation) is not None:
            raise AwsError("RequestLimitExceeded", "Request limit exceeded.", status=503)
        if self.world.fault_use("access-denied", service=SERVICE, operation=operation) is not None:
            who = f"arn:aws:sts::{o.ACCOUNT_ID}:assumed-role/quarterdeck/quarterdeck"
            code = "UnauthorizedOperation" if service == EC2 else "AccessDeniedException"
            raise AwsError(
                code,
                f"User: {who} is not authorized to perform: {service}:{operation} because no identity-based policy "
                f"allows the {service}:{operation} action",
                status=403,
            )

    def _serve(self, request: Request, environ: dict[str, Any], body: bytes, service: str) -> Response:
        if service == EC2:
            status, headers, content = Ec2Handler(self.cloud, self.world)._dispatch(request)
            kept = {key: value for key, value in headers.items() if key.lower() not in ("status", "content-length")}
            return Response(content, status=status, headers=kept)
        if service in self.services:
            return self.services[service].answer(request, body)
        if service in ("sts", "monitoring"):
            if service == "monitoring":
                fsx = self.services["fsx"]
                assert isinstance(fsx, Fsx)
                fsx.publish(cloudwatch_backends[o.ACCOUNT_ID][self.options.region])
            return Response.from_app(self._moto, {**environ, "wsgi.input": io.BytesIO(body)})
        raise AwsError("UnknownOperationException", f"The sandbox has no service {service!r}.")


def _operation(request: Request) -> str:
    target = str(request.headers.get("X-Amz-Target", ""))
    return target.rpartition(".")[2] if target else str(request.form.get("Action", request.args.get("Action", "")))


def _error(error: AwsError, service: str) -> Response:
    status, content_type, body = rendered(error, service)
    return Response(body, status=status, content_type=content_type)


def _break_before(fault: Fault) -> None:
    """The shapes in which a call breaks before it takes effect."""
    shape = str(fault.parameters.get("shape") or "error")
    if shape == "lost-reply":
        return
    if shape == "html":
        raise HtmlAnswer(502)
    if shape == "html-ok":
        raise HtmlAnswer(200)
    if shape == "cut":
        raise ConnectionCut
    raise AwsError("InternalError", "An internal error has occurred", status=500)


def _cut(environ: dict[str, Any]) -> None:
    connection: socket.socket | None = environ.get("werkzeug.socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
