"""Django settings, all of them, filled from portal.config."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog
from csp.constants import NONE, SELF
from django.utils.translation import gettext_lazy as _

from portal.config import BASE_DIR, Config

CONFIG = Config()
ENV = CONFIG.env
DEBUG = False
SECRET_KEY = CONFIG.secret_key.get_secret_value() or secrets.token_urlsafe(50)
ALLOWED_HOSTS = CONFIG.allowed_hosts
CSRF_TRUSTED_ORIGINS = CONFIG.csrf_trusted_origins
VAR_DIR = CONFIG.var_dir

INSTALLED_APPS = [
    "portal.apps.PortalConfig",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "allauth",
    "allauth.account",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "template_partials",
    "simple_history",
    "csp",
    "django_structlog",
    "apps.core",
    "apps.teams",
    "apps.audit",
    "apps.intents",
    "apps.catalog",
    "apps.connections",
    "apps.costs",
    "apps.quotas",
    "apps.storage",
    "apps.capacity",
    "apps.clusters",
    "apps.checkpoints",
    "apps.health",
    "apps.jobs",
    "apps.dashboard",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "apps.core.middleware.RequestIdMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "apps.core.middleware.LanguageMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "apps.teams.middleware.ActorMiddleware",
    "django_structlog.middlewares.RequestMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "simple_history.middleware.HistoryRequestMiddleware",
    "apps.core.middleware.MetricsMiddleware",
]

#: Who tells the very request of a submit: what sends it builds it, and apps know no worker.
EXACT_REQUEST = "worker.exact_request.exact_request"
MANIFEST_CHECK = "worker.manifests.check"
MANIFEST_SENT = "worker.manifests.marked"
MANIFEST_SHOWN = "worker.manifests.shown"
ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "django.template.context_processors.i18n",
                "apps.dashboard.context.frame",
            ],
            "builtins": ["apps.core.templatetags.qd", "template_partials.templatetags.partials"],
        },
    }
]


def _database() -> dict[str, Any]:
    """SQLite in the var folder unless QD_DATABASE_URL names a PostgreSQL."""
    url = CONFIG.database_url
    if not url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("QD_SQLITE_FILE") or VAR_DIR / "quarterdeck.sqlite3",
            "OPTIONS": {
                # A writer takes its lock at BEGIN, so two writers queue instead of failing half-way.
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA busy_timeout=20000;",
            },
            # A file, not memory: several processes and threads of one test share it.
            "TEST": {"NAME": VAR_DIR / "test.sqlite3"},
        }
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError(f"QD_DATABASE_URL must start with postgresql://, not {parts.scheme}://")
    options: dict[str, Any] = {}
    host = parts.hostname or ""
    for pair in filter(None, parts.query.split("&")):
        name, _sep, value = pair.partition("=")
        if name == "host":
            host = unquote(value)
        else:
            options[name] = unquote(value)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or ""),
        "CONN_MAX_AGE": 0,
        "OPTIONS": options,
    }


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
CACHES = {
    "default": {
        "BACKEND": "portal.cache.FallbackRedisCache",
        "LOCATION": CONFIG.redis_client_url,
        "KEY_PREFIX": "qd",
        "OPTIONS": {"socket_connect_timeout": 0.5, "socket_timeout": 1.0},
    }
}
if ENV == "test":
    CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}

# --- people -------------------------------------------------------------------------------------
AUTH_USER_MODEL = "teams.User"
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.ScryptPasswordHasher"]
if ENV == "test":
    PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "apps.teams.adapter.ClosedAccountAdapter"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_RATE_LIMITS = {"login_failed": "10/m/ip,5/5m/key"}
ALLAUTH_TRUSTED_PROXY_COUNT = 1 if CONFIG.behind_tls_proxy else 0
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
CSRF_FAILURE_VIEW = "apps.core.pages.csrf_failure"

# --- headers ------------------------------------------------------------------------------------
_policy: dict[str, Any] = {
    "default-src": [NONE],
    "script-src": [SELF],
    "style-src": [SELF],
    "img-src": [SELF, "data:"],
    "font-src": [SELF],
    "connect-src": [SELF],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
    "base-uri": [NONE],
    "manifest-src": [SELF],
}
CONTENT_SECURITY_POLICY = {"DIRECTIVES": _policy}
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
_tls = ENV == "production" or CONFIG.behind_tls_proxy
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _tls
SECURE_SSL_REDIRECT = _tls
SECURE_HSTS_SECONDS = 31_536_000 if _tls else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = _tls
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if CONFIG.behind_tls_proxy else None
#: Probes and the runners' ingest come from inside the cluster, not through the TLS proxy.
SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$", r"^api/v1/ingest/"]
DATA_UPLOAD_MAX_MEMORY_SIZE = 4 * 1024 * 1024

# --- language and time --------------------------------------------------------------------------
LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("ko", _("Korean"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

# --- static files: what pages load of npm's packages, as they are, plus our own ---------------------
_modules = BASE_DIR / "node_modules"
STATIC_URL = "/static/"
STATIC_ROOT = Path(os.environ.get("QD_STATIC_ROOT", VAR_DIR / "static"))
STATICFILES_DIRS = [BASE_DIR / "static"]
STATICFILES_FINDERS = [
    "django.contrib.staticfiles.finders.FileSystemFinder",
    "django.contrib.staticfiles.finders.AppDirectoriesFinder",
    "portal.assets.VendorFinder",
]
#: Only what pages load: the packages hold hundreds of files more, some naming files that they do not bring.
VENDOR_FILES = {
    "vendor/tabler/css": (_modules / "@tabler/core/dist/css", ("tabler.min.css", "tabler.min.css.map")),
    "vendor/htmx": (_modules / "htmx.org/dist", ("htmx.min.js",)),
    "vendor/uplot": (_modules / "uplot/dist", ("uPlot.min.css", "uPlot.iife.min.js")),
}
#: Lucide's drawings, which the ``icon`` tag puts into the page: no sprite of half a megabyte is loaded.
ICONS_DIR = _modules / "lucide-static/icons"
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if ENV == "production"
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}
WHITENOISE_USE_FINDERS = ENV != "production"
WHITENOISE_AUTOREFRESH = False
WHITENOISE_MAX_AGE = 3600

# --- API ----------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["apps.teams.authentication.TokenOrSession"],
    "DEFAULT_PERMISSION_CLASSES": ["apps.core.access.HasDeclaredRight"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "apps.core.schema.ProblemAutoSchema",
    "EXCEPTION_HANDLER": "apps.core.api.problem_handler",
    "DEFAULT_THROTTLE_CLASSES": ["apps.core.throttles.ReadThrottle", "apps.core.throttles.WriteThrottle"],
    "DEFAULT_THROTTLE_RATES": {"read": CONFIG.throttle_read, "write": CONFIG.throttle_write},
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
    "DATETIME_FORMAT": "iso-8601",
    "COERCE_DECIMAL_TO_STRING": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Quarterdeck API",
    "DESCRIPTION": "Fleets, jobs, checkpoints, GPU health and cost of foundation-model training on AWS.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.IsAuthenticated"],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "JobPhase": "apps.jobs.states.JobPhase",
        "AttemptPhase": "apps.jobs.states.AttemptPhase",
        "FleetPhase": "apps.clusters.states.FleetPhase",
        "ClusterPhase": "apps.clusters.states.ClusterPhase",
        "NodePhase": "apps.clusters.states.NodePhase",
        "ClusterKind": "apps.clusters.states.ClusterKind",
        "ManagedKind": "apps.clusters.managed_api.MANAGED_CHOICES",
        "TokenStyle": "apps.clusters.states.TokenStyle",
        "LimitsMode": "apps.clusters.states.LimitsMode",
        "KubeAuth": "apps.clusters.kube_states.KubeAuth",
        "KubeScheduler": "apps.clusters.kube_states.KubeScheduler",
        "WrittenKind": "apps.jobs.kube_api.WRITTEN_CHOICES",
        "WorkloadKind": "apps.clusters.kube_states.WorkloadKind",
        "JobOrigin": "apps.jobs.states.JobOrigin",
        "CapacitySource": "apps.clusters.states.CapacitySource",
        "GroupSource": "apps.clusters.states.GroupSource",
        "GroupPhase": "apps.clusters.states.GroupPhase",
        "NodeActionPhase": "apps.clusters.states.NodeActionPhase",
        "NodeVerb": "apps.clusters.states.NodeVerb",
        "CheckpointState": "apps.checkpoints.states.CheckpointState",
        "AccountPhase": "apps.connections.states.AccountPhase",
        "FindingPhase": "apps.health.states.FindingPhase",
        "Severity": "apps.health.states.Severity",
        "FileSystemKind": "apps.storage.states.FileSystemKind",
        "FileSystemPhase": "apps.storage.states.FileSystemPhase",
        "AssociationPhase": "apps.storage.states.AssociationPhase",
        "ExportPhase": "apps.storage.states.ExportPhase",
        "RepositoryEvent": "apps.storage.states.RepositoryEvent",
        "ReservationKind": "apps.capacity.states.ReservationKind",
        "ReservationPhase": "apps.capacity.states.ReservationPhase",
        "PurchaseKind": "apps.capacity.states.PurchaseKind",
        "PurchasePhase": "apps.capacity.states.PurchasePhase",
        "SearchPhase": "apps.capacity.states.SearchPhase",
        "OrphanKind": "apps.capacity.orphan_states.OrphanKind",
        "OrphanPhase": "apps.capacity.orphan_states.OrphanPhase",
        "MountKind": "apps.clusters.states.MountKind",
        "MountPurpose": "apps.clusters.states.MountPurpose",
        "JobActionKind": "apps.jobs.action_states.ActionKind",
        "JobActionPhase": "apps.jobs.action_states.ActionPhase",
        "StopKind": "apps.jobs.stop_api.STOP_KINDS",
        "TeamRole": "apps.teams.states.TeamRole",
    },
}

# --- logs ---------------------------------------------------------------------------------------
_shared: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "main": {
            "()": structlog.stdlib.ProcessorFormatter,
            "processor": structlog.processors.JSONRenderer()
            if CONFIG.log_json
            else structlog.dev.ConsoleRenderer(colors=False),
            "foreign_pre_chain": _shared,
        }
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "main"}},
    "root": {"handlers": ["stderr"], "level": CONFIG.log_level if ENV != "test" else "WARNING"},
    "loggers": {
        "django_structlog": {"level": "WARNING"},
        "celery": {"level": "WARNING"},
        "django.request": {"level": "ERROR"},
        "httpx2": {"level": "WARNING"},
        "botocore": {"level": "WARNING"},
    },
}
structlog.configure(
    processors=[
        *_shared,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
    cache_logger_on_first_use=True,
)
DJANGO_STRUCTLOG_CELERY_ENABLED = True
SIMPLE_HISTORY_REVERT_DISABLED = True
SILENCED_SYSTEM_CHECKS: list[str] = []
