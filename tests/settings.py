"""Settings of the test suite: the portal's own, in test mode, with a var folder outside the tree."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["QD_ENV"] = "test"
os.environ.setdefault("QD_VAR_DIR", str(Path(tempfile.gettempdir()) / f"quarterdeck-tests-{os.getuid()}"))
Path(os.environ["QD_VAR_DIR"]).mkdir(parents=True, exist_ok=True)

from portal.settings import *  # noqa: E402, F403
