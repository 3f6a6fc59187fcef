"""The course's own files while answers run: not to be written where Landlock is, else put back when they change."""

from __future__ import annotations

import os
from pathlib import Path

from course_lib.grading import landlock
from course_lib.notebooks.places import back_up

PACKAGES = tuple(Path(__file__).resolve().parents[2] / name for name in ("course_lib", "simulator"))
_CACHE = "__pycache__"


class CourseFiles:
    """How the course's files are now; ``restore`` makes them so again.

    The packages and the files named are looked after. The learner's own notebooks are not among them, since
    JupyterLab may save one at any moment. What is put back or removed is kept in ``.backups``: it may have been an
    editor that wrote it.

    Args:
        more: further files to look after, such as the solution that grades.
    """

    def __init__(self, *more: Path) -> None:
        self.more = tuple(path.resolve() for path in more)
        self._stats: dict[Path, tuple[int, ...]] = {}
        self._contents: dict[Path, bytes] = {}
        # Folders that the run cannot write in. Then there is nothing to put back, and whoever edits the course
        # meanwhile keeps the edit.
        folders = {path.parent for path in (*PACKAGES, *self.more)}
        self.kept: tuple[Path, ...] = tuple(sorted(folders)) if landlock.available() else ()
        for path in self._files():
            self._stats[path] = _stat(path)
            if path.parent.name != _CACHE:
                self._contents[path] = path.read_bytes()

    def restore(self) -> list[str]:
        """Put back what has changed since; the files that had, as ``course_lib/grading/judge.py``."""
        now = {path: _stat(path) for path in self._files()}
        touched = [path for path in {**self._stats, **now} if now.get(path) != self._stats.get(path)]
        changed = []
        for path in touched:
            if path.parent.name == _CACHE:  # Python writes it anew from the source
                path.unlink(missing_ok=True)
                self._stats.pop(path, None)
            elif path not in self._contents:
                self._keep(path)
                path.unlink(missing_ok=True)
                changed.append(self._name(path))
            elif not path.is_file() or path.is_symlink() or path.read_bytes() != self._contents[path]:
                self._keep(path)
                self._write(path)
                changed.append(self._name(path))
            else:
                self._stats[path] = now[path]  # touched, and the same
        return sorted(changed)

    def _keep(self, path: Path) -> None:
        if path.is_file() and not path.is_symlink():
            back_up(path, PACKAGES[0].parent)

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(self._contents[path])
        draft.chmod(self._stats[path][0] & 0o777)
        os.replace(draft, path)
        self._stats[path] = _stat(path)

    def _files(self) -> list[Path]:
        if self.kept:
            return []
        found = [path for path in self.more if path.is_file()]
        for package in PACKAGES:
            for folder, _, names in os.walk(package):
                found += [Path(folder, name) for name in names]
        return found

    def _name(self, path: Path) -> str:
        parent = next((p.parent for p in PACKAGES if path.is_relative_to(p)), path.parents[1])
        return path.relative_to(parent).as_posix()


def _stat(path: Path) -> tuple[int, ...]:
    """What changes when a file is written, also where the time of its change is set back."""
    try:
        stat = path.lstat()
    except OSError:
        return ()
    return stat.st_mode, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
