"""A package of JavaScript from npm, fetched once and kept under ``build/npm``: the site serves its files itself."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

KEPT = Path(__file__).parents[1] / "build" / "npm"


def npm_package(name: str, version: str, kept: Path = KEPT) -> Path:
    """The folder with the package's files. npm checks what it fetches against the registry's checksum.

    Raises:
        RuntimeError: there is no npm on the PATH, or it cannot fetch the package.
    """
    folder = kept / f"{name.replace('/', '-').removeprefix('@')}-{version}"
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError(
            f"npm is needed to fetch {name}: install Node.js, or put its bin folder on the PATH"
        )
    kept.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", f"{name}@{version}", "--silent", "--pack-destination", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"npm cannot fetch {name}@{version}: {done.stderr.strip() or done.stdout.strip()}")
    archive = kept / done.stdout.split()[-1]
    draft = folder.with_name(f"{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extractall(draft, filter="data")
    archive.unlink()
    (draft / "package").rename(folder)
    shutil.rmtree(draft)
    return folder
