"""``%%ranks 4`` and ``%%rank 0``: cells that run on ranks which keep their variables. ``%load_ext course_lib``.

    %%ranks 4                 run this cell on four ranks; they stay for the next cell
    %%ranks dp=2 tp=2         the same, with a mesh; cells find it as ``mesh``
    %%ranks                   on the ranks that are there
    %%rank 0                  on rank 0 alone; ``%%rank 0,2`` on two of them
    %ranks                    which ranks are alive, since when, with which variables
    %ranks stop               end them

    --with batch, model       send a copy of these variables of the notebook first
    --get loss                afterwards, the notebook has ``loss``: a list, one value a rank
    --timeout 60              seconds after which the cell counts as hung (no limit by default)
    --quiet                   show neither prints nor progress

A cell on the ranks has ``torch``, ``dist``, ``rank``, ``world_size``, ``device`` and, on a mesh, ``mesh``. Functions,
classes and modules of the notebook that it uses are sent by themselves; a rank's own variable of the same name
goes first. Data is sent only with ``--with``.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import psutil
from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, magics_class

from course_lib.runtime import cell as on_rank
from course_lib.runtime.errors import RankError
from course_lib.runtime.magic_options import Options, parse, ranks_of
from course_lib.runtime.notebook_variables import names_in, pickle_data, pickle_needed
from course_lib.runtime.report import death_message, name_ranks
from course_lib.runtime.world import World

NONE_RUN = "no ranks are running: %%ranks 4 starts four and runs the cell on them"
RECONNECTED = (
    "Some ranks waited for the one that raised, so all connections were closed and opened again: make process "
    "groups, meshes and wrapped models (DDP, FSDP) of earlier cells again."
)


def one_at_a_time(magic: Callable[..., Any]) -> Callable[..., Any]:
    """Between two cells a thread may end the ranks; not during one."""

    @functools.wraps(magic)
    def alone(self: RanksMagics, *args: Any) -> Any:
        with self._in_cell:
            return magic(self, *args)

    return alone


class CellSyntaxError(Exception):
    """The cell is not Python; nothing was sent to the ranks."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


@magics_class
class RanksMagics(Magics):
    """The ranks of this notebook, and the magics that use them."""

    shell: Any  # IPython's

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.world: World | None = None
        self.mesh: dict[str, int] | None = None
        self.ready = False  # whether the cells' names (rank, mesh, ...) are those of the present connections
        self.sent: dict[int, dict[str, Any]] = {}  # by rank: what the notebook sent, and under which name
        self.lost = ""  # how the ranks ended, if that was between two cells
        self._in_cell = threading.RLock()
        atexit.register(self.stop)

    @line_cell_magic
    @one_at_a_time
    def ranks(self, line: str, cell: str | None = None) -> None:
        if cell is None and line.strip() == "stop":
            print(f"{self._names()} ended" if self.world else self.lost or "no ranks are running")
            self.lost = ""
            return self.stop()
        if cell is None and not line.strip():
            return self._show_status()
        options = parse("ranks", line)
        if cell is None:
            self._start(options)
            print(f"{self._running.size} ranks run")
            return None
        self._check_syntax(cell)  # before any ranks are started or ended
        self._start(options)
        return self._run(f"%%ranks {line}", cell, options, on=None)

    @cell_magic
    @one_at_a_time
    def rank(self, line: str, cell: str) -> None:
        options = parse("rank", line)
        self._check_syntax(cell)
        self._run(f"%%rank {line}", cell, options, on=ranks_of(options, self._running.size))

    @property
    def _running(self) -> World:
        if self.world is None:
            raise UsageError(self._none_run())
        return self.world

    def _none_run(self) -> str:
        return f"{self.lost}; %%ranks 4 starts four new ones" if self.lost else NONE_RUN

    def stop(self) -> None:
        """End the ranks, if there are any."""
        world, self.world = self.world, None
        if world is not None:
            world.stop()

    def _cell_number(self) -> int:
        """The number at the running cell; IPython 9 has counted on when it runs, older ones have not."""
        return len(self.shell.history_manager.input_hist_raw) - 1

    def _check_syntax(self, cell: str) -> None:
        try:
            names_in(f"\n{cell}", f"Cell In[{self._cell_number()}]")
        except SyntaxError as error:
            raise CellSyntaxError("".join(traceback.format_exception_only(error)).rstrip()) from None

    def _start(self, options: Options) -> None:
        size = options.size
        if size is None:
            assert self._running
            return
        if self.world is not None and self.world.size != size:
            print(f"{self._names()} ended, and their variables are gone: {size} new ranks start")
            self.stop()
        if self.world is not None and options.backend not in (None, self.world.backend):
            raise UsageError(
                f"the ranks that run use {self.world.backend}: end them with %ranks stop to start some with "
                f"{options.backend}"
            )
        if self.world is None:
            if self.lost:
                print(f"{self.lost}: {size} new ranks start")
            try:
                self.world = World(size, options.backend)
            except ValueError as error:
                raise UsageError(str(error)) from None
            self.mesh, self.ready, self.sent = None, False, {r: {} for r in range(size)}
            self._end_all_with_the_first()
        if options.mesh and options.mesh != self.mesh:
            self.mesh, self.ready = options.mesh, False

    def _end_all_with_the_first(self) -> None:
        """Let a thread wait until a rank dies between two cells; the others would live on, with nobody to tell."""
        if os.name == "nt":  # there one can only wait for a process whose handle stays open
            return
        world, self.lost = self._running, ""
        ends = [os.dup(p.process.sentinel) for p in world.processes]

        def watch() -> None:
            wait(ends)
            for end in ends:
                os.close(end)
            with self._in_cell:  # a running cell finds out by itself
                if world is self.world and (dead := [p for p in world.processes if p.is_dead()]):
                    why = death_message(dead[0].rank, dead[0].exit_code(), {})
                    self.lost = (
                        f"{why} between two cells: {self._names()} ended, and their variables are gone"
                    )
                    self.stop()

        threading.Thread(target=watch, daemon=True).start()

    def _run(self, first_line: str, cell: str, options: Options, on: list[int] | None) -> None:
        notebook, world = self.shell.user_ns, self._running
        filename = self.shell.compile.cache(f"{first_line}\n{cell}", self._cell_number())
        source = f"\n{cell}"  # the magic's own line counts, as in the notebook
        names = names_in(source, filename)
        try:
            data, more = pickle_data(options.send, notebook)
            targets = range(world.size) if on is None else on
            common = {
                n: v
                for n, v in self.sent[targets[0]].items()
                if all(self.sent[r].get(n) is v for r in targets)
            }
            needed, sent = pickle_needed(names | more, notebook, common)
        except ValueError as error:
            raise UsageError(str(error)) from None
        world.show_output(not options.quiet)
        try:
            if not self.ready:
                world.run(on_rank.prepare, mesh=self.mesh, timeout=60, keep=True)
                self.ready = True
            cell_of_rank = (source, filename, needed, data, options.get)
            results = world.run(on_rank.run_cell, cell_of_rank, on=on, timeout=options.timeout, keep=True)
        except RankError as error:
            self._explain(error, cell)
            raise
        finally:
            if not world.is_alive():
                self.world = None
        for r in targets:
            self.sent[r] |= sent
        for name in options.get:
            values = [result[name] for result in results]
            notebook[name] = values[0] if on is not None and len(on) == 1 else values

    def _explain(self, error: RankError, cell: str) -> None:
        """Add what has become of the ranks, and how a variable that only the notebook has gets there."""
        undefined = re.match(r"name '(\w+)' is not defined", str(error.__cause__))
        if undefined and (missing := undefined[1]) in self.shell.user_ns:
            error.add(
                f"The notebook has a variable {missing}, the ranks do not: --with {missing} sends a copy."
            )
        if "NoneType" in str(error.__cause__) and "dist.all_reduce" in cell:
            error.add("dist.all_reduce returns None: the sum is in its tensor.")
        if not error.ranks_alive:
            error.add(f"{self._names()} ended, and their variables are gone.")
            return
        error.add("The ranks are alive and keep their variables.")
        if error.reconnected:
            self.ready = False
            error.add(RECONNECTED)

    def _names(self) -> str:
        size = self._running.size
        return f"{name_ranks(list(range(size)))} {'was' if size == 1 else 'were'}"

    def _show_status(self) -> None:
        if self.world is None:
            print(self._none_run())
            return
        axes = " ".join(f"{name}={size}" for name, size in (self.mesh or {}).items())
        since = time.strftime("%H:%M:%S", time.localtime(self.world.started))
        print(f"{self.world.size} ranks{f' ({axes})' if axes else ''}, alive since {since}")
        names = self.world.run(on_rank.own_names, timeout=60, keep=True)
        for process, own in zip(self.world.processes, names, strict=True):
            megabytes = psutil.Process(process.pid).memory_info().rss / 1e6
            print(f"  rank {process.rank}  {megabytes:.0f} MB  variables: {', '.join(own) or 'none'}")


RanksMagics.ranks.__doc__ = RanksMagics.rank.__doc__ = __doc__  # what %%ranks? and %%rank? show


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext course_lib``; loaded again it keeps the ranks that run."""
    if "ranks" not in shell.magics_manager.magics["cell"]:
        shell.register_magics(RanksMagics)
