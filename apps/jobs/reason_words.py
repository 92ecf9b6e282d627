"""Reasons of a waiting job in plain words: every code of Slurm 26.05, by its parts where it has parts; Kubernetes'."""

from __future__ import annotations

import re

from django.utils.translation import gettext as _

from apps.jobs.kube_words import code_words

_LIMIT = re.compile(
    r"(?P<whose>Assoc|QOS)(?P<kind>Grp|Max|Min)"
    r"(?P<what>CPU|Cpu|SubmitJobs?|Jobs?|Memory|Mem|Node|WallDuration|Wall|Energy|GRES|License|BB|Billing|Unknown)"
    r"(?P<span>RunMinutes|Minutes)?(?P<each>PerJob|PerNode|PerUser)?(?:Limit|NotSatisfied)?"
)
_PER_ACCOUNT = re.compile(
    r"Max(?P<what>CPU|Cpu|SubmitJobs|Jobs|Memory|Node|Energy|GRES|License|BB|Billing|Unknown)PerAccount"
)


def _what(word: str) -> str:
    """A resource by Slurm's word for it."""
    words = {
        "Cpu": _("CPUs"),
        "Job": _("running jobs"),
        "SubmitJob": _("submitted jobs"),
        "Mem": _("memory"),
        "Node": _("nodes"),
        "Wall": _("running time"),
        "Energy": _("energy"),
        "GRES": _("GPUs"),
        "License": _("licences"),
        "BB": _("burst buffer"),
        "Billing": _("billing units"),
        "Unknown": _("resources"),
    }
    key = {"CPU": "Cpu", "Memory": "Mem", "WallDuration": "Wall", "Jobs": "Job", "SubmitJobs": "SubmitJob"}
    return words[key.get(word, word)]


def _limit_words(reason: str) -> str:
    """A limit of an association, a QOS or an account in words; empty for any other reason."""
    if (match := _PER_ACCOUNT.fullmatch(reason)) is not None:
        return _("the account has reached the most that the QOS allows one account: %(what)s") % {
            "what": _what(match["what"])
        }
    if (match := _LIMIT.fullmatch(reason)) is None:
        return ""
    facts = {"whose": _("account") if match["whose"] == "Assoc" else _("QOS"), "what": _what(match["what"])}
    span, each = match["span"], match["each"]
    if match["kind"] == "Min":
        return _("it asks for less than the %(whose)s demands: %(what)s") % facts
    if match["kind"] == "Grp":
        if span == "Minutes":
            return _("the minutes that the %(whose)s was given are used up: %(what)s") % facts
        if span == "RunMinutes":
            return _("running jobs have taken all minutes that the %(whose)s may have running: %(what)s") % facts
        return _("all that the %(whose)s may use at once is in use: %(what)s") % facts
    if each == "PerUser" or (each is None and match["what"].startswith(("Job", "SubmitJob"))):
        return _("its user has reached the most that the %(whose)s allows one user: %(what)s") % facts
    if each == "PerNode":
        return _("it asks for more on a node than the %(whose)s allows: %(what)s") % facts
    if span == "Minutes":
        return _("it asks for more minutes than the %(whose)s allows one job: %(what)s") % facts
    return _("it asks for more than the %(whose)s allows one job: %(what)s") % facts


def waiting_words(reason: str) -> str:
    """The scheduler's reason for a pending job in plain words; the word itself where we have none."""
    code = reason.partition(",")[0].strip()
    words = {
        "": _("the scheduler has not looked at it yet"),
        "None": _("the scheduler has not looked at it yet"),
        "Resources": _("not enough free GPUs or nodes"),
        "Priority": _("jobs with higher priority are ahead"),
        "ReqNodeNotAvail": _("a node it needs is drained, down or excluded"),
        "PartitionTimeLimit": _("its time limit is above the partition's"),
        "PartitionNodeLimit": _("it asks for more nodes than the partition has"),
        "PartitionDown": _("the partition is down"),
        "PartitionInactive": _("the partition starts no jobs now"),
        "PartitionConfig": _("the partition does not take such jobs"),
        "NodeDown": _("a node it needs is down"),
        "BeginTime": _("its start time has not come"),
        "JobHeldUser": _("it is held by its user"),
        "JobHeldAdmin": _("it is held by an administrator"),
        "JobHoldMaxRequeue": _("it was requeued too often and is held"),
        "JobArrayTaskLimit": _("as many tasks of its array run as may run at once"),
        "Dependency": _("a job it depends on has not finished"),
        "DependencyNeverSatisfied": _("a job it depends on ended otherwise than it asks for: it will never start"),
        "BadConstraints": _("no node can satisfy its constraints"),
        "Licenses": _("a licence it needs is in use"),
        "Reservation": _("the reservation it asks for has not begun"),
        "ReservationDeleted": _("the reservation it asks for is gone"),
        "Prolog": _("its nodes are being prepared"),
        "Cleaning": _("its earlier run is still being cleaned up"),
        "SchedDefer": _("the scheduler looks at it in its next round"),
        "FedJobLock": _("the federation of clusters is deciding where it runs"),
        "NvidiaImexChannels": _("all IMEX channels between the nodes are in use"),
        "BurstBufferResources": _("there is not enough burst buffer"),
        "BurstBufferStageIn": _("its data is being brought into the burst buffer"),
        "BurstBufferOperation": _("an operation on its burst buffer failed"),
        "DeadLine": _("it can no longer end before its deadline"),
        "AccountingPolicy": _("a policy of accounting keeps it"),
        "AccountNotAllowed": _("the partition does not take jobs of its account"),
        "QOSNotAllowed": _("its account or partition may not use this QOS"),
        "InvalidAccount": _("Slurm does not know its account"),
        "InvalidQOS": _("Slurm does not know its QOS"),
        "QOSUsageThreshold": _("its account has used too much for this QOS"),
        "AssociationJobLimit": _("as many jobs of its account run as may run at once"),
        "AssociationResourceLimit": _("its account uses all that it may use at once"),
        "AssociationTimeLimit": _("the time that its account was given is used up"),
        "QOSJobLimit": _("as many jobs of its QOS run as may run at once"),
        "QOSResourceLimit": _("its QOS uses all that it may use at once"),
        "QOSTimeLimit": _("the time that its QOS was given is used up"),
        "MaxMemPerLimit": _("it asks for more memory on a node or a CPU than is allowed"),
        "SystemFailure": _("Slurm failed to start it"),
        "JobLaunchFailure": _("it could not be started"),
        "NonZeroExitCode": _("its script failed"),
        "RaisedSignal": _("a signal ended it"),
        "TimeLimit": _("it reached its time limit"),
        "InactiveLimit": _("it was inactive for too long"),
        "OutOfMemory": _("it ran out of memory"),
        "InvalidReason": _("the scheduler tells no reason"),
    }
    return words.get(code) or code_words(code) or _limit_words(code) or reason
