#!/usr/bin/env python3
"""`etcdctl lock` and `etcdctl elect` as a peer: a process for each lock that is held, and a thread for each contender."""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading

URL, TTL = sys.argv[1], max(1, (int(sys.argv[2]) + 999) // 1000)
ETCDCTL = ["etcdctl", "--endpoints", URL.removeprefix("etcd://")]
ENV = {**os.environ, "ETCDCTL_API": "3"}
# Maximum time in seconds to take a free lock, on a busy machine.
TRY = 20.0

speaking = threading.Lock()


def say(line):
    with speaking:
        print(line, flush=True)


def ask(*words):
    told = subprocess.run([*ETCDCTL, *words, "-w", "json"], env=ENV, capture_output=True, check=True)
    return json.loads(told.stdout)


def leave(process):
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)


def start(*words):
    return subprocess.Popen([*ETCDCTL, *words], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def first_line(process, wait):
    ready, _, _ = select.select([process.stdout], [], [], wait)
    return process.stdout.readline().decode().strip() if ready else ""


def lock(held, number, kind, name, wait):
    # `etcdctl elect` has no option for the ttl, which is 60 s.
    words = ["elect", name, f"peer-{number}"] if kind == "candidate" else ["lock", f"--ttl={TTL}", name]
    process = start(*words)
    key = first_line(process, wait)
    if not key:
        leave(process)
        return "busy"
    held[name] = process
    if kind == "mutex":
        return "held"
    return f"held {ask('get', key)['kvs'][0]['create_revision']}"


def contenders_of(name):
    return ask("get", f"{name}/", "--prefix", "--limit=1").get("kvs")


def leader(name):
    if not contenders_of(name):
        return "vacant"
    process = start("elect", "--listen", name)
    # The key, and then its value. Both are printed at once.
    is_reported = first_line(process, TRY)
    label = process.stdout.readline().decode().strip() if is_reported else ""
    leave(process)
    return f"leader {label}"


def answer(held, number, verb, kind, name, *rest):
    if kind not in ("mutex", "fenced", "candidate"):
        raise ValueError(f"unknown kind {kind}")
    if verb == "lock":
        return lock(held, number, kind, name, int(rest[0]) / 1000)
    if verb == "try":
        # etcdctl has no try, and would wait behind the other contenders.
        return "busy" if contenders_of(name) else lock(held, number, kind, name, TRY)
    if verb == "leader":
        return leader(name)
    if verb == "unlock":
        leave(held.pop(name))
        return "free"
    if verb == "state":
        return f"held {TTL * 1000}" if contenders_of(name) else "free"
    raise ValueError(f"unknown verb {verb}")


def serve(number, asked):
    held = {}
    while True:
        words = asked.get()
        try:
            told = answer(held, number, *words)
        except Exception as error:  # Whatever it is, whoever asked is told.
            told = "error " + f"{type(error).__name__}: {error}".replace("\n", " ")
        say(f"{number} {told}")


ask("endpoint", "health")
say("ready mutex fenced candidate")
contenders = {}
for line in sys.stdin:
    number, *words = line.split()
    if number not in contenders:
        contenders[number] = queue.Queue()
        threading.Thread(target=serve, args=(number, contenders[number]), daemon=True).start()
    contenders[number].put(words)
# As in a crash, no lock is released.
os._exit(0)
