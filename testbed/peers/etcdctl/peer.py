#!/usr/bin/env python3
"""`etcdctl lock` and `etcdctl elect` as a peer: a process for each lock that is held, and a thread for each contender."""

import json
import os
import select
import signal
import subprocess
import sys

import protocol

URL, TTL = sys.argv[1], max(1, (int(sys.argv[2]) + 999) // 1000)
ETCDCTL = ["etcdctl", "--endpoints", URL.removeprefix("etcd://")]
ENV = {**os.environ, "ETCDCTL_API": "3"}
# Maximum time in seconds to take a free lock, on a busy machine.
TRY = 20.0


class Contender:
    """A contender, with the process of each lock that it holds."""

    def __init__(self, number):
        self.label = f"peer-{number}"
        self.held = {}


def query(*words):
    reply = subprocess.run([*ETCDCTL, *words, "-w", "json"], env=ENV, capture_output=True, check=True)
    return json.loads(reply.stdout)


def stop(process):
    process.send_signal(signal.SIGINT)
    process.wait(timeout=20)


def start(*words):
    return subprocess.Popen([*ETCDCTL, *words], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def first_line(process, wait):
    ready, _, _ = select.select([process.stdout], [], [], wait)
    return process.stdout.readline().decode().strip() if ready else ""


def lock(contender, kind, name, wait):
    # `etcdctl elect` has no option for the ttl, which is 60 s.
    words = ["elect", name, contender.label] if kind == "candidate" else ["lock", f"--ttl={TTL}", name]
    process = start(*words)
    key = first_line(process, wait)
    if not key:
        stop(process)
        return "busy"
    contender.held[name] = process
    if kind == "mutex":
        return "held"
    return f"held {query('get', key)['kvs'][0]['create_revision']}"


def contenders_of(name):
    return query("get", f"{name}/", "--prefix", "--limit=1").get("kvs")


def leader(name):
    if not contenders_of(name):
        return "vacant"
    process = start("elect", "--listen", name)
    # The key, and then its value. Both are printed at once.
    is_reported = first_line(process, TRY)
    label = process.stdout.readline().decode().strip() if is_reported else ""
    stop(process)
    return f"leader {label}"


def answer(contender, verb, kind, name, *times):
    if verb == "lock":
        return lock(contender, kind, name, int(times[0]) / 1000)
    if verb == "try":
        # etcdctl has no try, and would wait behind the other contenders.
        return "busy" if contenders_of(name) else lock(contender, kind, name, TRY)
    if verb == "leader":
        return leader(name)
    if verb == "unlock":
        stop(contender.held.pop(name))
        return "free"
    if verb == "state":
        return f"held {TTL * 1000}" if contenders_of(name) else "free"
    raise ValueError(f"unknown verb {verb}")


query("endpoint", "health")
protocol.serve(["mutex", "fenced", "candidate"], Contender, answer)
