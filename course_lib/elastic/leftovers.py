"""What a fleet may have left when it has ended: processes, ports and files."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.util import get_temp_dir

import psutil

from course_lib.elastic.journal import Journal
from course_lib.elastic.stores import split
from course_lib.processes.descendants import is_running


def own_processes() -> set[int]:
    """The numbers of all processes below this one, except for the two servers of multiprocessing."""
    servers = {forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid}
    family = {p.pid for p in psutil.Process().children(recursive=True)}
    return {pid for pid in family - servers if is_running(pid)}


def own_files() -> set[str]:
    """In the folder that multiprocessing removes when this process ends; the fork server's socket is not counted."""
    socket_of_server = os.path.basename(forkserver._forkserver._forkserver_address or "")
    return {*os.listdir(get_temp_dir())} - {socket_of_server}


def what_is_left(journal: Journal, hosts: Iterable[str], *folders: str) -> list[str]:
    """Of a fleet that has ended: processes that wrote to its journal, ports, and folders."""
    pids = sorted({e["pid"] for e in journal.events} - {os.getpid()})
    return [
        *(f"process {pid}" for pid in pids if is_running(pid)),
        *(f"port {host}" for host in hosts if listens(host)),
        *(f"folder {folder}" for folder in folders if os.path.exists(folder)),
    ]


def listens(host: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(split(host)) == 0
