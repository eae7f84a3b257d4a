"""redis-py's Lock as a peer: one client for all contenders, and a thread for each."""

import queue
import sys
import threading

import redis
from redis.lock import Lock

client = redis.Redis.from_url(sys.argv[1])
ttl = int(sys.argv[2]) / 1000
output = threading.Lock()


def say(line):
    with output:
        print(line, flush=True)


def answer(held, verb, kind, name, wait=None):
    if kind != "mutex":
        return f"error unknown kind {kind}"
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
    return f"error unknown verb {verb}"


def contend(number, lines):
    held = {}
    while True:
        try:
            said = answer(held, *lines.get())
        except Exception as error:
            said = f"error {error!r}".replace("\n", " ")
        say(f"{number} {said}")


client.ping()
say("ready mutex")
contenders = {}
for line in sys.stdin:
    number, *words = line.split()
    if number not in contenders:
        contenders[number] = queue.Queue()
        # A daemon thread ends with the program. As in a crash, no lock is released.
        threading.Thread(target=contend, args=(number, contenders[number]), daemon=True).start()
    contenders[number].put(words)
