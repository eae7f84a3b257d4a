#!/usr/bin/env python3
"""Advisory locks of PostgreSQL as a peer: a `psql` and a thread for each contender.

The key of a lock is `hashtext(NAME)`, as with `names=hashtext` in the URL of dlock.
"""

import subprocess
import sys

import protocol

URL = sys.argv[1]
# Error of a statement that has waited for longer than `lock_timeout`.
LOCK_NOT_AVAILABLE = "55P03"
END = "-- end --"
FUNCTION_SUFFIXES = {"mutex": "", "write": "", "read": "_shared"}


class Refused(Exception):
    """The SQLSTATE of a failed statement."""


class Session:
    """A `psql` that executes one statement at a time."""

    def __init__(self):
        # -X: no start-up file. -q -A -t: prints only values.
        command = ["psql", "-XqAt", "--set=VERBOSITY=sqlstate", URL]
        pipe = subprocess.PIPE
        self.psql = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def execute(self, statement):
        """Returns the lines that the statement prints."""
        self.psql.stdin.write(f"{statement};\n\\echo {END}\n")
        self.psql.stdin.flush()
        lines, refused = [], None
        for line in map(str.strip, self.psql.stdout):
            if line == END:
                if refused:
                    raise refused
                return lines
            if line.startswith("ERROR:"):
                refused = Refused(line.split()[1])
            else:
                lines.append(line)
        raise EOFError("psql has ended")


def key(name):
    quoted = name.replace("'", "''")
    return f"hashtext('{quoted}')"


def lock(session, kind, name, wait):
    function = f"pg_advisory_lock{FUNCTION_SUFFIXES[kind]}"
    try:
        # A limit of 0 would be none.
        session.execute(f"SET lock_timeout = {max(1, wait)}")
        session.execute(f"SELECT {function}({key(name)})")
    except Refused as refused:
        if str(refused) == LOCK_NOT_AVAILABLE:
            return "busy"
        raise
    return "held"


def answer(session, verb, kind, name, *rest):
    if verb == "lock":
        return lock(session, kind, name, int(rest[0]))
    if verb == "try":
        taken = session.execute(f"SELECT pg_try_advisory_lock{FUNCTION_SUFFIXES[kind]}({key(name)})")
        return "held" if taken == ["t"] else "busy"
    if verb == "unlock":
        freed = session.execute(f"SELECT pg_advisory_unlock{FUNCTION_SUFFIXES[kind]}({key(name)})")
        if freed[-1:] != ["t"]:
            raise RuntimeError(f"not held: {freed}")
        return "free"
    if verb == "state":
        # Both halves of the key, as the server shows them.
        held = session.execute(
            f"""SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
                AND (classid::bigint << 32 | objid::bigint) = {key(name)}::bigint"""
        )
        # The hold has no ttl. It ends with its session.
        return "free" if held == ["0"] else "held 86400000"
    raise ValueError(f"unknown verb {verb}")


Session().execute("SELECT 1")
# At the end of the program the sessions end with their `psql`.
protocol.serve(FUNCTION_SUFFIXES, lambda number: Session(), answer)
