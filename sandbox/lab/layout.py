"""Where the lab keeps its files, and the configuration texts of its daemons."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass, field
from pathlib import Path

#: What the lab runs; each must be installed.
PROGRAMS = ("munged", "slurmctld", "slurmd", "slurmrestd", "scontrol", "scancel", "sinfo")
#: What accounting needs on top.
ACCOUNTING_PROGRAMS = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")
#: Debian's packages that bring all of them, for the refusal's sentence.
PACKAGES = (
    "slurmctld slurmd slurmdbd slurmrestd slurm-client slurm-wlm-basic-plugins slurm-wlm-jwt-plugin "
    "slurm-wlm-mysql-plugin munge mariadb-server"
)


class LabError(Exception):
    """The lab cannot be started or stopped; the message is one line a person can act on."""


@dataclass(frozen=True)
class LabOptions:
    """What to start: ``nodes`` machines of ``gpus`` GPUs each, jobs running as ``user``.

    ``release`` is Slurm's; any but the machine's own needs ``root``, the folder that holds it. ``pcs``: tokens must
    carry who their bearer is and Slurm makes none, as on AWS PCS (25.05 and later). ``enforce``: with accounting, jobs
    need an association and its limits hold.
    """

    directory: Path
    release: str = "22.05"
    root: Path | None = None
    nodes: int = 4
    gpus: int = 8
    accounting: bool = True
    user: str = "nobody"
    min_job_age_s: int = 300
    max_jobs: int = 10_000
    partition: str = "gpu"
    max_time_min: int = 7 * 24 * 60
    pcs: bool = False
    enforce: bool = False

    @property
    def node_names(self) -> tuple[str, ...]:
        """The nodes' names, as Slurm numbers them."""
        return tuple(f"p5-{i}" for i in range(1, self.nodes + 1))


@dataclass(frozen=True)
class Ports:
    """Loopback ports, one a daemon; ``slurmd`` holds one a node."""

    slurmctld: int
    slurmrestd: int
    slurmdbd: int
    mariadb: int
    slurmd: tuple[int, ...] = field(default_factory=tuple)


#: Slurm refuses to count for ever without either.
_COUNTING = ("PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=YEARLY", "PriorityCalcPeriod=1")


def check_reachable(directory: Path, user: str) -> None:
    """Refuse a folder whose ancestors the job's user cannot enter: every job would fail in it."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise LabError(f"there is no user {user!r} on this machine to run jobs as") from None
    groups = {account.pw_gid, *os.getgrouplist(user, account.pw_gid)}
    for folder in (directory, *directory.parents):
        info = folder.stat()
        if info.st_uid == account.pw_uid:
            open_to_user = info.st_mode & stat.S_IXUSR
        elif info.st_gid in groups:
            open_to_user = info.st_mode & stat.S_IXGRP
        else:
            open_to_user = info.st_mode & stat.S_IXOTH
        if not open_to_user:
            raise LabError(
                f"user {user!r} cannot enter {folder} (mode {stat.S_IMODE(info.st_mode):o}); "
                "give --dir a folder whose parents are open to all, for example under /tmp"
            )


def _token_rules(options: LabOptions) -> str:
    """AWS PCS takes a token's word for who its bearer is and no other, and makes no tokens itself."""
    return ",use_jwt_client_ids_only,disable_token_creation" if options.pcs else ""


def slurm_conf(options: LabOptions, ports: Ports, host: str) -> str:
    """The text of slurm.conf: one host, several slurmd, GPUs that are plain files."""
    d = options.directory
    lines = [
        "ClusterName=lab",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports.slurmctld}",
        "SlurmUser=slurm",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={d}/munge/munge.socket",
        "CredType=cred/munge",
        "AuthAltTypes=auth/jwt",
        f"AuthAltParameters=jwt_key={d}/jwt.key{_token_rules(options)}",
        f"StateSaveLocation={d}/state",
        f"SlurmctldPidFile={d}/run/slurmctld.pid",
        f"SlurmctldLogFile={d}/log/slurmctld.log",
        "SlurmctldDebug=info",
        f"SlurmdSpoolDir={d}/spool/%n",
        f"SlurmdPidFile={d}/run/slurmd-%n.pid",
        f"SlurmdLogFile={d}/log/slurmd-%n.log",
        "SlurmdDebug=info",
        "SlurmdParameters=config_overrides",
        f"PlugStackConfig={d}/plugstack.conf",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "MpiDefault=none",
        "GresTypes=gpu",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        # Only multifactor counts what an account used; without decay and once a minute, so that a test can see it.
        "PriorityType=priority/multifactor" if options.enforce else "PriorityType=priority/basic",
        *(
            ["PriorityDecayHalfLife=0", "PriorityUsageResetPeriod=YEARLY", "PriorityCalcPeriod=1"]
            if options.enforce
            else []
        ),
        "SchedulerType=sched/backfill",
        "SchedulerParameters=bf_interval=2,sched_interval=5,batch_sched_delay=0",
        "ReturnToService=2",
        f"MinJobAge={options.min_job_age_s}",
        f"MaxJobCount={options.max_jobs}",
        "KillWait=5",
        "SlurmdTimeout=60",
        "SlurmctldTimeout=60",
        "JobRequeue=1",
        "EnforcePartLimits=ALL",
        "MailProg=/bin/true",
    ]
    if options.accounting:
        lines += [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={ports.slurmdbd}",
            # Connections to slurmdbd do not read AuthInfo: they take munged's socket from here.
            f"AccountingStoragePass={d}/munge/munge.socket",
            "AccountingStorageTRES=gres/gpu",
            *(["AccountingStorageEnforce=associations,limits,qos,safe"] if options.enforce else []),
            # The comment is how an attempt is found again, so accounting must keep it.
            "AccountingStoreFlags=job_comment",
        ]
    shape = "CPUs=192 Boards=1 SocketsPerBoard=2 CoresPerSocket=48 ThreadsPerCore=2 RealMemory=2000000"
    for name, port in zip(options.node_names, ports.slurmd, strict=True):
        lines.append(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} {shape} Feature=p5 "
            f"Gres=gpu:h100:{options.gpus}"
        )
    lines.append(
        f"PartitionName={options.partition} Nodes={','.join(options.node_names)} Default=YES State=UP "
        f"MaxTime={options.max_time_min} DefaultTime=60"
    )
    return "\n".join(lines) + "\n"


def gres_conf(options: LabOptions) -> str:
    """The text of gres.conf. Without ``File=`` a node registers no GPU and is set to INVAL."""
    files = f"{options.directory}/gpu/nvidia" + (f"[0-{options.gpus - 1}]" if options.gpus > 1 else "0")
    return "".join(f"NodeName={name} Name=gpu Type=h100 File={files}\n" for name in options.node_names)


def cgroup_conf() -> str:
    """The text of cgroup.conf: from 23.11 on Slurm looks for cgroups unless told not to."""
    return "CgroupPlugin=disabled\n"


def slurmdbd_conf(options: LabOptions, ports: Ports, host: str, password: str) -> str:
    """The text of slurmdbd.conf; the file must belong to the slurm user with mode 600."""
    d = options.directory
    return (
        "\n".join(
            [
                f"DbdHost={host}",
                "DbdAddr=127.0.0.1",
                f"DbdPort={ports.slurmdbd}",
                "SlurmUser=slurm",
                "AuthType=auth/munge",
                f"AuthInfo=socket={d}/munge/munge.socket",
                "AuthAltTypes=auth/jwt",
                f"AuthAltParameters=jwt_key={d}/jwt.key{_token_rules(options)}",
                f"LogFile={d}/log/slurmdbd.log",
                f"PidFile={d}/run/slurmdbd.pid",
                "DebugLevel=info",
                "StorageType=accounting_storage/mysql",
                "StorageHost=127.0.0.1",
                f"StoragePort={ports.mariadb}",
                "StorageUser=slurm",
                f"StoragePass={password}",
                "StorageLoc=slurm_acct_db",
            ]
        )
        + "\n"
    )
