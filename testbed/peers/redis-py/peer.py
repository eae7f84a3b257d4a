"""redis-py's Lock as a peer: one client for all contenders, and a thread for each."""

import sys

import protocol
import redis
from redis.lock import Lock

client = redis.Redis.from_url(sys.argv[1])
ttl = int(sys.argv[2]) / 1000


def answer(held, verb, kind, name, wait=None):
    if verb in ("lock", "try"):
        # A waiter polls, because it receives no notification.
        lock = Lock(client, name, timeout=ttl, sleep=0.01, thread_local=False)
        wait = None if wait is None else int(wait) / 1000
        if not lock.acquire(blocking=verb == "lock", blocking_timeout=wait):
            return "busy"
        held[name] = lock
        return "held"
    if verb == "unlock":
        held.pop(name).release()
        return "free"
    if verb == "state":
        left = client.pttl(name)
        return "free" if left == -2 else f"held {left}"
    raise ValueError(f"unknown verb {verb}")


client.ping()
protocol.serve(["mutex"], lambda number: {}, answer)
