"""Writes the random secrets of a new site into deploy/secrets, each a file; what is there already stays."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "secrets"


def make(folder: Path) -> list[str]:
    """Write what is missing and return the names written.

    The folder is closed to other users; the files in it can be read by a container's user, to whom each is mounted
    alone. A half-written file never appears: each is written beside its name and moved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    password_file = folder / "postgres_password"
    password = password_file.read_text().strip() if password_file.exists() else secrets.token_urlsafe(32)
    values = {
        "postgres_password": password,
        "secret_key": secrets.token_urlsafe(60),
        "token_peppers": secrets.token_urlsafe(48),
        "metrics_token": secrets.token_urlsafe(32),
        "database_url": f"postgresql://quarterdeck:{password}@postgres:5432/quarterdeck",
    }
    written = []
    for name, value in values.items():
        path = folder / name
        if path.exists():
            continue
        temporary = path.with_suffix(".new")
        # No line end: Prometheus sends a token file as it is.
        temporary.write_text(value)
        temporary.chmod(0o444)
        temporary.replace(path)
        written.append(name)
    return written


def main() -> int:
    """Write and tell."""
    written = make(FOLDER)
    print(f"{FOLDER}: {', '.join(written) if written else 'all there already, nothing changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
