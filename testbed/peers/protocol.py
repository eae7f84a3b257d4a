"""The protocol of peers, for peers in Python. `README.md` describes it."""

import os
import queue
import sys
import threading

_output = threading.Lock()


def serve(kinds, new_contender, answer):
    """Prints that the peer is ready, and executes the requests of the input until it ends.

    Each contender has a thread. `new_contender(number)` returns its state, and `answer(state, verb, kind, name, *times)`
    returns the reply to a request. Does not return: the program ends as in a crash, without releasing locks.
    """
    _say("ready " + " ".join(kinds))
    contenders = {}
    for line in sys.stdin:
        number, *words = line.split()
        if number not in contenders:
            contenders[number] = requests = queue.Queue()
            serving = (number, kinds, new_contender, answer, requests)
            threading.Thread(target=_serve_contender, args=serving, daemon=True).start()
        contenders[number].put(words)
    os._exit(0)


def _serve_contender(number, kinds, new_contender, answer, requests):
    contender = new_contender(number)
    while True:
        verb, kind, *words = requests.get()
        try:
            if kind not in kinds:
                raise ValueError(f"unknown kind {kind}")
            reply = answer(contender, verb, kind, *words)
        except Exception as error:  # pylint: disable=broad-except
            reply = f"error {type(error).__name__}: {error}".replace("\n", " ")
        _say(f"{number} {reply}")


def _say(line):
    with _output:
        print(line, flush=True)
