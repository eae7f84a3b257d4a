"""kazoo's locks as a peer, with the names of Curator's nodes: one client for all contenders, and a thread for each."""

import sys

import protocol
from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout, NoNodeError
from kazoo.recipe.lock import Lock, ReadLock, WriteLock


class CuratorMutex(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["lock-"]


class CuratorWrite(WriteLock):
    _NODE_NAME = "-__WRIT__"
    _EXCLUDE_NAMES = ["__WRIT__", "__READ__"]


class CuratorRead(ReadLock):
    _NODE_NAME = "-__READ__"
    _EXCLUDE_NAMES = ["__WRIT__"]


# Parent node of the locks.
BASE = "/it/"
KINDS = {"mutex": CuratorMutex, "read": CuratorRead, "write": CuratorWrite}
client = KazooClient(sys.argv[1].removeprefix("zk://"), timeout=int(sys.argv[2]) / 1000)


def acquire(kind, name, blocking, wait):
    """The lock if it was granted, else None."""
    while True:
        lock = KINDS[kind](client, BASE + name)
        try:
            return lock if lock.acquire(blocking=blocking, timeout=wait) else None
        except LockTimeout:
            return None
        except NoNodeError:
            # The server has deleted the empty directory, which is a container, between two requests of kazoo. A lock
            # object creates the directory only once, so a new object is needed.
            continue


def answer(held, verb, kind, name, wait=None):
    if verb in ("lock", "try"):
        lock = acquire(kind, name, verb == "lock", None if wait is None else int(wait) / 1000)
        if lock is None:
            return "busy"
        held[kind, name] = lock
        return "held"
    if verb == "unlock":
        held.pop((kind, name)).release()
        return "free"
    raise ValueError(f"unknown verb {verb}")


client.start(timeout=50)
# At the end of the program the locks are held until the session ends.
protocol.serve(KINDS, lambda number: {}, answer)
