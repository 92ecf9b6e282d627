"""The Korean catalogue is whole: nothing missing, nothing fuzzy, nothing in the code that it does not hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polib
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
CATALOGUE = ROOT / "locale" / "ko" / "LC_MESSAGES" / "django.po"
#: Particles that change with the sound before them: never right after a placeholder.
PARTICLES = re.compile(r"%\(\w+\)s(을|를|은|는|이가|이|가|와|과|으로|로|아|야)(?=[\s.,:;)]|$)")
PLACEHOLDER = re.compile(r"%\((\w+)\)[sd]|%%")


def entries() -> list[polib.POEntry]:
    return [entry for entry in polib.pofile(str(CATALOGUE)) if not entry.obsolete]


def texts(entry: polib.POEntry) -> list[str]:
    return list(entry.msgstr_plural.values()) if entry.msgid_plural else [entry.msgstr]


def test_nothing_is_missing_or_fuzzy() -> None:
    missing = [e.msgid for e in entries() if e.fuzzy or not texts(e) or not all(texts(e))]
    assert missing == []


def test_placeholders_survive_translation() -> None:
    wrong = []
    for entry in entries():
        wanted = set(PLACEHOLDER.findall(entry.msgid)) | set(PLACEHOLDER.findall(entry.msgid_plural or ""))
        for text in filter(None, texts(entry)):
            found = set(PLACEHOLDER.findall(text))
            if not found <= wanted or (wanted - found and not entry.msgid_plural):
                wrong.append((entry.msgid, text))
    assert wrong == []


def test_no_particle_tricks_and_no_guessed_particle() -> None:
    tricks = ("을(를)", "를(을)", "은(는)", "이(가)", "와(과)", "(으)로")
    wrong = [t for e in entries() for t in texts(e) if any(trick in t for trick in tricks) or PARTICLES.search(t)]
    assert wrong == []


@pytest.mark.skipif(shutil.which("xgettext") is None, reason="needs GNU gettext")
def test_every_string_of_the_code_is_in_the_catalogue(tmp_path: Path) -> None:
    """Collects the strings anew beside the tree and compares."""
    copy = tmp_path / "tree"
    for name in ("apps", "portal", "templates", "static", "worker"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "migrations"))
    (copy / "locale" / "ko" / "LC_MESSAGES").mkdir(parents=True)
    command = [sys.executable, "-m", "django", "makemessages", "-l", "ko", "--no-location", "-v", "0"]
    # Without our settings: collecting strings needs none, and ours would look for their own folder.
    environment = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(command, cwd=copy, env=environment, check=True, capture_output=True, timeout=120)
    fresh = polib.pofile(str(copy / "locale" / "ko" / "LC_MESSAGES" / "django.po"))
    known = {(e.msgctxt, e.msgid, e.msgid_plural) for e in entries()}
    assert [e.msgid for e in fresh if (e.msgctxt, e.msgid, e.msgid_plural) not in known] == []
