"""The lab itself: its folder, its daemons in the order they need each other, and their end."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sandbox.lab import processes, roots
from sandbox.lab.layout import (
    ACCOUNTING_PROGRAMS,
    PACKAGES,
    PROGRAMS,
    LabError,
    LabOptions,
    Ports,
    cgroup_conf,
    check_reachable,
    gres_conf,
    slurm_conf,
    slurmdbd_conf,
)
from sandbox.processes import descendants, identity_of, send
from sandbox.tokens import mint

STAMP = ".quarterdeck-lab"
TOKEN_LIFETIME_S = 30 * 24 * 3600
_PR_SET_PDEATHSIG = 1
#: The kernel has a fixed number of asynchronous requests for all databases of a machine together.
_NO_AIO = "--innodb-use-native-aio=0"
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def program(name: str, root: Path | None = None) -> str:
    """The program's path, inside ``root`` if given. Raises LabError naming the packages when it is not installed."""
    if root is not None:
        for folder in _SEARCH_PATH.split(":"):
            if (root / folder.lstrip("/") / name).exists():
                return f"{folder}/{name}"
        raise LabError(f"{name} is not in {root}; remove that folder and it is made again")
    found = shutil.which(name, path=_SEARCH_PATH)
    if found is None:
        raise LabError(f"{name} is not installed; a lab needs Debian's packages: {PACKAGES}")
    return found


def accounting_installed() -> bool:
    """Whether everything accounting needs is there."""
    return all(shutil.which(name, path=_SEARCH_PATH) for name in ACCOUNTING_PROGRAMS)


def why_not() -> str:
    """One sentence why no lab can run here, or an empty string."""
    if os.geteuid() != 0:
        return "a Slurm lab needs root, because slurmd starts jobs as other users"
    missing = [name for name in PROGRAMS if shutil.which(name, path=_SEARCH_PATH) is None]
    if missing:
        return f"a Slurm lab needs {', '.join(missing)}: install Debian's packages {PACKAGES}"
    for name in ("slurm", "munge"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            return f"a Slurm lab needs the system user {name!r}, which Debian's packages make"
    return ""


def _become(root: Path | None, folder: Path, uid: int, gid: int) -> None:
    """Run in the child before exec: enter the root, become the user, and end when the supervisor is killed.

    The kernel forgets the last of these when the user changes, so it comes last.
    """
    if root is not None:
        processes.enter(root, str(folder))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


class Lab:
    """One running Slurm; this process must have adopted orphans, so that ``stop`` finds everything below it."""

    def __init__(self, options: LabOptions, *, tell: Callable[[str], None]) -> None:
        self.options = options
        self.directory = options.directory
        self.host = socket.gethostname().split(".")[0]
        self._tell = tell
        self._daemons: dict[str, int] = {}
        self._commands: dict[str, Callable[[], None]] = {}
        numbers = processes.free_ports(4 + options.nodes)
        self.ports = Ports(numbers[0], numbers[1], numbers[2], numbers[3], tuple(numbers[4:]))

    # --- folder ----------------------------------------------------------------------------------

    def _prepare(self) -> None:
        d = self.directory
        if d.exists() and any(d.iterdir()) and not (d / STAMP).exists():
            raise LabError(f"{d} is not empty and was not made by a lab; give another --dir")
        d.mkdir(parents=True, exist_ok=True)
        d.chmod(0o755)
        (d / STAMP).touch()
        check_reachable(d, self.options.user)
        try:
            socket.gethostbyname(self.host)
        except OSError:
            raise LabError(f"the host name {self.host!r} does not resolve; add it to /etc/hosts") from None
        for name in ("munge", "state", "spool", "run", "log", "gpu", "mysql"):
            shutil.rmtree(d / name, ignore_errors=True)
        (d / "lab.json").unlink(missing_ok=True)
        self._folder("munge", "munge", 0o755)
        self._folder("state", "slurm", 0o700)
        self._folder("run", "slurm", 0o755)
        self._folder("log", "slurm", 0o755)
        self._folder("spool", "root", 0o755)
        self._folder("gpu", "root", 0o755)
        self._folder("work", self.options.user, 0o755)
        for name in self.options.node_names:
            self._folder(f"spool/{name}", "root", 0o755)
        for index in range(self.options.gpus):
            (d / "gpu" / f"nvidia{index}").touch()
        self._file("munge/munge.key", secrets.token_bytes(128), "munge", 0o400)
        self._file("jwt.key", secrets.token_bytes(32), "slurm", 0o600)
        self._file("plugstack.conf", b"", "slurm", 0o644)
        self._file("slurm.conf", slurm_conf(self.options, self.ports, self.host).encode(), "slurm", 0o644)
        if self.options.root is not None:
            self._file("cgroup.conf", cgroup_conf().encode(), "slurm", 0o644)
        self._file("gres.conf", gres_conf(self.options).encode(), "slurm", 0o644)

    def _folder(self, name: str, owner: str, mode: int) -> Path:
        path = self.directory / name
        path.mkdir(exist_ok=True)
        shutil.chown(path, owner, pwd.getpwnam(owner).pw_gid)
        path.chmod(mode)
        return path

    def _file(self, name: str, content: bytes, owner: str, mode: int) -> Path:
        path = self.directory / name
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
        shutil.chown(path, owner, pwd.getpwnam(owner).pw_gid)
        return path

    # --- processes -------------------------------------------------------------------------------

    def environment(self, **more: str) -> dict[str, str]:
        """The environment of the lab's daemons and of its Slurm commands."""
        return {
            "PATH": _SEARCH_PATH,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            processes.MARKER: str(self.directory),
            **more,
        }

    def _start(self, name: str, command: Sequence[str], *, user: str = "root", **more: str) -> None:
        self._commands[name] = lambda: self._start(name, command, user=user, **more)
        account = pwd.getpwnam(user)
        # Munge is the machine's own, whatever Slurm asks it.
        root = self.options.root if command[0].startswith("slurm") else None
        with (self.directory / "log" / f"{name}.out").open("ab") as output:
            child = subprocess.Popen(
                [program(command[0], root), *command[1:]],
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.directory,
                start_new_session=True,
                preexec_fn=lambda: _become(root, self.directory, account.pw_uid, account.pw_gid),
            )
        self._daemons[name] = child.pid

    def ended(self) -> list[str]:
        """Names of daemons that are no longer there; each is named once."""
        gone = [name for name, pid in self._daemons.items() if identity_of(pid) is None]
        for name in gone:
            del self._daemons[name]
        return gone

    def _ended_sentence(self) -> str:
        gone = [name for name, pid in self._daemons.items() if identity_of(pid) is None]
        return f"{gone[0]} ended; {self._last_words(gone[0])}" if gone else ""

    def _last_words(self, name: str) -> str:
        for suffix in (".log", ".out"):
            path = self.directory / "log" / f"{name}{suffix}"
            if path.exists() and (lines := path.read_text(errors="replace").strip().splitlines()):
                return f"its last line in {path}: {lines[-1]}"
        return f"it left no line in {self.directory / 'log'}"

    def _wait(self, what: str, probe: Callable[[], bool], timeout_s: float = 60.0) -> None:
        processes.wait_for(what, probe, timeout_s=timeout_s, alive=self._ended_sentence)

    def command(self, *words: str) -> tuple[int, str]:
        """Run a Slurm command against this lab; its exit code and output."""
        root = self.options.root
        return processes.run([program(words[0], root), *words[1:]], environment=self.environment(), root=root)

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring all daemons up until every node is IDLE and slurmrestd answers. Raises LabError; then call ``stop``."""
        self._prepare()
        if self.options.root is not None:
            roots.enter_namespace(self.options.root, self.directory)
        try:
            self._start_all()
        except (TimeoutError, OSError) as error:
            raise LabError(str(error)) from None

    def _start_all(self) -> None:
        d = self.directory
        self._tell("munged")
        munge = d / "munge"
        self._start(
            "munged",
            [
                "munged",
                "--foreground",
                f"--socket={munge}/munge.socket",
                f"--key-file={munge}/munge.key",
                f"--pid-file={munge}/munged.pid",
                f"--seed-file={munge}/munged.seed",
                f"--log-file={munge}/munged.log",
            ],
            user="munge",
        )
        self._wait("munged", (munge / "munge.socket").exists)
        if self.options.accounting:
            self._start_accounting()
        self._tell("slurmctld")
        self._start("slurmctld", ["slurmctld", "-D", "-f", f"{d}/slurm.conf"], user="slurm")
        self._wait("slurmctld", lambda: processes.port_answers(self.ports.slurmctld))
        for name in self.options.node_names:
            self._tell(f"slurmd {name}")
            self._start(f"slurmd-{name}", ["slurmd", "-D", "-N", name, "-f", f"{d}/slurm.conf"])
        self._tell("slurmrestd")
        self._start(
            "slurmrestd",
            ["slurmrestd", "-a", "rest_auth/jwt", "-s", self._plugins(), f"127.0.0.1:{self.ports.slurmrestd}"],
            # slurmrestd refuses to run as root or as SlurmUser.
            user="daemon" if self.options.user != "daemon" else "nobody",
            SLURM_JWT="daemon",
        )
        self._wait("slurmrestd", lambda: processes.port_answers(self.ports.slurmrestd))
        self._wait("the nodes", self._nodes_idle)
        self._write_description()

    def _plugins(self) -> str:
        """Of 22.05 one a version; later one for all. That of slurmdbd fails to load where there is none."""
        names = ["openapi/v0.0.38", "openapi/dbv0.0.38"]
        if self.options.root is not None:
            names = ["openapi/slurmctld", "openapi/slurmdbd"]
        return ",".join(names if self.options.accounting else names[:1])

    def _nodes_idle(self) -> bool:
        code, text = self.command("sinfo", "-h", "-N", "-o", "%T")
        states = text.split()
        return code == 0 and len(states) == self.options.nodes and set(states) == {"idle"}

    def _make_database(self, data: Path) -> None:
        """An empty MariaDB. One lab of the machine does it at a time, and once more where it failed."""
        words = [
            program("mariadb-install-db"),
            "--no-defaults",
            "--user=mysql",
            f"--datadir={data}/data",
            "--skip-test-db",
            "--auth-root-authentication-method=socket",
            _NO_AIO,
        ]
        with Path(tempfile.gettempdir(), "quarterdeck-lab-mariadb.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for is_last in (False, True):
                code, text = processes.run(words, environment=self.environment(), timeout_s=60.0)
                if code == 0:
                    return
                if is_last:
                    told = [line for line in text.splitlines() if "ERROR" in line] or text.splitlines()[-1:]
                    raise LabError(f"mariadb-install-db failed ({code}): {'; '.join(told)[:400]}")
                shutil.rmtree(data / "data", ignore_errors=True)

    def _start_accounting(self) -> None:
        self._tell("mariadbd")
        data = self._folder("mysql", "mysql", 0o700)
        password = secrets.token_hex(16)
        self._make_database(data)
        self._file(
            "mysql/init.sql",
            (
                "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
                f"CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED BY '{password}';\n"
                f"CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY '{password}';\n"
                "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'localhost';\n"
                "GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';\n"
            ).encode(),
            "mysql",
            0o400,
        )
        self._start(
            "mariadbd",
            [
                "mariadbd",
                "--no-defaults",
                f"--datadir={data}/data",
                f"--socket={data}/mariadb.socket",
                f"--pid-file={data}/mariadb.pid",
                "--bind-address=127.0.0.1",
                f"--port={self.ports.mariadb}",
                f"--init-file={data}/init.sql",
                "--innodb-buffer-pool-size=64M",
                "--innodb-lock-wait-timeout=900",
                _NO_AIO,
                # The data lives for one test run: losing the last second of it to a power cut harms nobody.
                "--innodb-flush-log-at-trx-commit=2",
            ],
            user="mysql",
        )
        self._wait("mariadbd", lambda: processes.port_answers(self.ports.mariadb))
        self._tell("slurmdbd")
        self._file(
            "slurmdbd.conf", slurmdbd_conf(self.options, self.ports, self.host, password).encode(), "slurm", 0o600
        )
        self._start("slurmdbd", ["slurmdbd", "-D"], user="slurm")
        self._wait("slurmdbd", lambda: processes.port_answers(self.ports.slurmdbd))
        self._wait("accounting", lambda: self.command("sacctmgr", "-i", "add", "cluster", "lab")[0] == 0)
        for words in (("account", "default", "Cluster=lab"), ("user", self.options.user, "Account=default")):
            code, text = self.command("sacctmgr", "-i", "add", *words)
            if code != 0:
                raise LabError(f"sacctmgr add {' '.join(words)} failed: {text}")

    def description(self) -> Mapping[str, object]:
        """What lab.json holds: everything a client needs to know."""
        d = self.directory
        own = identity_of(os.getpid())
        return {
            "slurmrestd_url": f"http://127.0.0.1:{self.ports.slurmrestd}",
            "user": self.options.user,
            "token": self._token(self.options.user),
            "admin_token": self._token("slurm"),
            "pcs": self.options.pcs,
            "admin_user": "slurm",
            "jwt_key": str(d / "jwt.key"),
            "partition": self.options.partition,
            "nodes": list(self.options.node_names),
            "gpus_per_node": self.options.gpus,
            "gpu_type": "h100",
            "accounting": self.options.accounting,
            "release": self.options.release,
            "scontrol": self._words("scontrol"),
            "sbatch": self._words("sbatch"),
            "sacctmgr": self._words("sacctmgr"),
            "slurm_conf": str(d / "slurm.conf"),
            "work_dir": str(d / "work"),
            "log_dir": str(d / "log"),
            "supervisor": {"pid": os.getpid(), "started": own.started if own else 0},
            "daemons": dict(self._daemons),
        }

    def _token(self, user: str) -> str:
        account = pwd.getpwnam(user)
        properties = {"name": user, "gecos": user, "dir": "/", "shell": "/bin/sh", "gids": [account.pw_gid]}
        who = {"uid": account.pw_uid, "gid": account.pw_gid, "id": properties}
        key = (self.directory / "jwt.key").read_bytes()
        return mint(key, user, TOKEN_LIFETIME_S, who if self.options.pcs else None)

    def _words(self, name: str) -> list[str]:
        """How a Slurm command is run against this lab from outside."""
        inside = [f"SLURM_CONF={self.directory}/slurm.conf", program(name, self.options.root)]
        if self.options.root is None:
            return [program("env"), *inside]
        into = [program("nsenter"), "--mount", f"--target={os.getpid()}"]
        return [*into, program("chroot"), str(self.options.root), "/usr/bin/env", *inside]

    def _write_description(self) -> None:
        target = self.directory / "lab.json"
        fresh = self.directory / "lab.json.new"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            json.dump(self.description(), stream, indent=1)
        fresh.replace(target)

    def follow(self, finished: Callable[[], bool]) -> None:
        """Wait until ``finished``, collecting adopted children and naming each daemon that ends meanwhile."""
        while not finished():
            processes.reap()
            self._start_what_is_asked()
            for name in self.ended():
                print(f"lab: {name} ended; {self._last_words(name)}", file=sys.stderr, flush=True)
            time.sleep(0.2)

    def _start_what_is_asked(self) -> None:
        """Start a daemon again whose name somebody wrote into ``start-again``: what was killed comes back as it was."""
        asked = self.directory / "start-again"
        try:
            name = asked.read_text().strip()
        except FileNotFoundError:
            return
        self.ended()
        if name in self._commands and name not in self._daemons:
            self._commands[name]()
            self._write_description()
        asked.unlink()

    def stop(self) -> None:
        """End jobs, then daemons; everything that descends from this process goes. Takes under 10 s."""
        daemons = set(self._daemons.values())
        # Steps first: a slurmstepd told to end politely waits for its tasks.
        for pid in descendants(os.getpid()):
            if pid not in daemons:
                send(pid, signal.SIGKILL)
        left = processes.end_all(lambda: descendants(os.getpid()), grace_s=4.0)
        (self.directory / "lab.json").unlink(missing_ok=True)
        self._daemons.clear()
        if left:
            raise LabError(f"these processes could not be ended: {', '.join(map(str, left))}")
