"""The one typed configuration: read from the environment, secret files and defaults, checked at start."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

BASE_DIR = Path(__file__).resolve().parent.parent


class Config(BaseSettings):
    """Every variable starts with ``QD_``; a secret may come from a file of that name in ``QD_SECRETS_DIR``."""

    model_config = SettingsConfigDict(env_prefix="QD_", extra="ignore")

    env: Literal["development", "test", "production"] = "development"
    var_dir: Path = BASE_DIR / "var"
    secret_key: SecretStr = SecretStr("")
    #: Peppers of token digests, newest first; old ones stay until their tokens have expired.
    token_peppers: list[SecretStr] = Field(default_factory=list)
    database_url: str = ""
    redis_url: str = ""
    allowed_hosts: list[str] = Field(default_factory=lambda: ["localhost", "127.0.0.1", "[::1]"])
    csrf_trusted_origins: list[str] = Field(default_factory=list)
    #: Where jobs' runners reach this portal; must be reachable from the compute nodes.
    base_url: str = "http://127.0.0.1:8000"
    behind_tls_proxy: bool = False
    log_level: str = "INFO"
    log_json: bool = True
    #: Folder that holds secret files named by ``file:`` references.
    secrets_dir: Path = Path()
    #: scontrol command on the worker's machine, for Slurm REST versions that cannot drain a node.
    scontrol: str = ""
    #: Demo sign-ins and data may be seeded (never in production).
    demo: bool = False
    #: A bearer token that /metrics asks for; empty in development leaves it open to loopback only.
    metrics_token: SecretStr = SecretStr("")
    throttle_read: str = "1200/min"
    throttle_write: str = "240/min"
    #: Seconds between two reads while something changes, and at most while nothing does.
    collect_queue_s: float = Field(default=2.0, ge=0.1, le=60)
    collect_queue_most_s: float = Field(default=30.0, ge=1, le=600)
    collect_health_s: float = Field(default=5.0, ge=0.1, le=300)
    collect_nodes_most_s: float = Field(default=30.0, ge=1, le=600)
    #: The part of the time that reading one scheduler's queue (or its nodes) may take.
    collect_share: float = Field(default=0.1, ge=0.01, le=0.5)
    #: Seconds between two forecasts of when waiting jobs start.
    predict_every_s: float = Field(default=60.0, ge=5, le=3600)
    collect_fleet_s: float = 10.0
    sweep_grace_s: int = 900
    charge_every_s: int = 30
    #: Where jobs' output goes from the database: s3://bucket/prefix, or a folder; empty: ``object-store`` in var_dir.
    object_store: str = ""
    object_store_region: str = "us-east-1"
    #: Address of a store that speaks like S3; empty for S3 itself.
    object_store_endpoint: str = ""
    #: Secret reference (env:NAME or file:NAME) of its access key; empty: the SDK's own chain (an instance role).
    object_store_credentials: str = ""
    #: Shared folders as a cluster names them, and where the worker sees them: output of jobs without a runner is read.
    shared_folders: dict[str, str] = Field(default_factory=dict)
    #: Newest output of a running attempt that stays in the database, in MiB.
    log_keep_mib: int = Field(default=64, ge=1, le=4096)
    #: How long after an attempt's end its output leaves the database, in seconds.
    log_roll_after_s: int = Field(default=3600, ge=0, le=30 * 86_400)
    #: How old what a DCGM exporter shows may be: its own collection interval.
    exporter_interval_s: float = 30.0

    @model_validator(mode="after")
    def _fill(self) -> Config:
        secrets_dir = self.secrets_dir if self.secrets_dir != Path() else self.var_dir / "secrets"
        self.secrets_dir = secrets_dir
        for name in ("secret_key", "metrics_token"):
            path = secrets_dir / name
            if not getattr(self, name).get_secret_value() and path.is_file():
                setattr(self, name, SecretStr(path.read_text().strip()))
        path = secrets_dir / "token_peppers"
        if not self.token_peppers and path.is_file():
            self.token_peppers = [SecretStr(line.strip()) for line in path.read_text().splitlines() if line.strip()]
        path = secrets_dir / "database_url"
        if not self.database_url and path.is_file():
            self.database_url = path.read_text().strip()
        if self.env == "production":
            missing = [
                name
                for name, value in (
                    ("QD_SECRET_KEY", self.secret_key.get_secret_value()),
                    ("QD_TOKEN_PEPPERS", self.token_peppers),
                    ("QD_DATABASE_URL", self.database_url),
                    ("QD_REDIS_URL", self.redis_url),
                    ("QD_METRICS_TOKEN", self.metrics_token.get_secret_value()),
                )
                if not value
            ]
            if missing:
                raise ValueError(f"production needs {', '.join(missing)} (or files of that name in QD_SECRETS_DIR)")
            if self.demo:
                raise ValueError("QD_DEMO is for trying the portal and cannot be set in production")
        else:
            if not self.secret_key.get_secret_value():
                self.secret_key = SecretStr("development-only-" + "k" * 50)
            if not self.token_peppers:
                self.token_peppers = [SecretStr("development-only-pepper")]
        if not self.redis_url:
            self.redis_url = f"redis+socket://{self.var_dir.resolve()}/valkey.sock"
        return self

    @property
    def redis_client_url(self) -> str:
        """The Redis address as redis-py writes it (Celery says redis+socket, redis-py says unix)."""
        return self.redis_url.replace("redis+socket://", "unix://", 1)
