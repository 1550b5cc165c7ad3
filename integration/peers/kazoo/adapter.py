"""The adapter of kazoo's Lock: see package peers.

The lock gets extra_lock_patterns=["-lock-"], so that it queues behind the nodes of Curator's recipe. That is one way
only: Curator does not see "<uuid>__lock__<sequence>". With KAZOO_NAMES=curator in the environment the lock's own nodes
get names of Curator's shape.
"""
import collections
import json
import os
import sys
import threading
import time
import uuid

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import LockTimeout, NoNodeError
from kazoo.recipe.lock import Lock

now = time.monotonic_ns
out_lock = threading.Lock()


def say(event, **fields):
    fields.setdefault("at", now())
    text = json.dumps(dict(event=event, **fields))
    with out_lock:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def describe(error):
    return "%s: %s" % (type(error).__name__, error)


def make_lock(client, path):
    lock = Lock(client, path, extra_lock_patterns=["-lock-"])
    if os.environ.get("KAZOO_NAMES") == "curator":
        lock.prefix = "_c_%s-lock-" % uuid.uuid4()
        lock.create_path = path + "/" + lock.prefix
    return lock


OUTCOME = b'{"status":"captured","payment":"pay_29a8c1","amount":1999}'
# How many calls of acquire have not returned. List operations are atomic here.
waiting = []


def wait(lock):
    waiting.append(None)
    try:
        lock.acquire()
    finally:
        waiting.pop()


def measured(f, client, path, *numbers):
    """Runs a command for measuring. Its lines come at its end."""
    lines = []
    try:
        f(client, lines, path, *numbers)
    except Exception as e:
        say("failed", path=path, error=describe(e))
    for line in lines:
        say(at=line["done"], **line)
    say("finished", path=path)


def cycle(client, lines, prefix, first, keys, n):
    locks = {}
    for i in range(n):
        path = "%s/%d" % (prefix, first + i % keys)
        asked = now()
        if path not in locks:
            locks[path] = make_lock(client, path)
        wait(locks[path])
        got = now()
        locks[path].release()
        lines.append(dict(event="grant", path=path, asked=asked, got=got, end=got, done=now()))


def tries(client, lines, path, n):
    lock = make_lock(client, path)
    for _ in range(n):
        asked = now()
        got = lock.acquire(blocking=False)
        lines.append(dict(event="tried", path=path, state="acquired" if got else "held", asked=asked, done=now()))
        if got:
            lock.release()


def guard(client, lines, prefix, first, keys, n):
    for i in range(n):
        path = "%s/%d" % (prefix, first + i % keys)
        asked = now()
        with make_lock(client, path):
            try:
                client.get(path + "-record")
                state = "replayed"
            except NoNodeError:
                client.create(path + "-record", OUTCOME)
                state = "ran"
        lines.append(dict(event="guarded", path=path, state=state, asked=asked, done=now()))


def memory():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Path:
    """One path, with the commands about it in turn."""

    def __init__(self, client, path):
        self.client, self.path = client, path
        self.jobs, self.news = collections.deque(), threading.Condition()
        self.lock = None
        threading.Thread(target=self.run, daemon=True).start()

    def put(self, job):
        with self.news:
            self.jobs.append(job)
            self.news.notify()

    def run(self):
        while True:
            with self.news:
                while not self.jobs:
                    self.news.wait()
                job = self.jobs.popleft()
            job()

    def acquire(self, limit):
        asked = now()
        self.lock = make_lock(self.client, self.path)
        try:
            got = self.lock.acquire(timeout=limit / 1000.0 if limit else None)
            at = now()
            say("acquired" if got else "timed out", at=at, path=self.path, asked=asked)
        except LockTimeout as e:
            say("timed out", path=self.path, asked=asked, error=describe(e))
        except Exception as e:
            say("failed", path=self.path, error=describe(e))

    def release(self):
        try:
            self.lock.release()
            say("released", path=self.path)
        except Exception as e:
            say("failed", path=self.path, error=describe(e))


def loop(client, path, n, hold, nodes):
    lock = make_lock(client, path)
    try:
        for _ in range(n):
            asked = now()
            wait(lock)
            got = now()
            line = {"node": path + "/" + lock.node} if nodes else {}
            if hold:
                time.sleep(hold / 1000.0)
            end = now()
            lock.release()
            say("grant", path=path, asked=asked, got=got, end=end, done=now(), **line)
    except Exception as e:
        say("failed", path=path, error=describe(e))
    say("finished", path=path)


def main():
    servers, timeout = sys.argv[1], int(sys.argv[2]) / 1000.0
    # Without this a client that is cut off would give up after one attempt to connect, or wait for a minute between
    # two of them.
    patient = dict(max_tries=-1, delay=0.1, backoff=2, max_delay=1)
    client = KazooClient(hosts=servers, timeout=timeout, connection_retry=patient)
    before = [None]

    def listen(state):
        if state == KazooState.SUSPENDED:
            say("suspended")
        elif state == KazooState.LOST:
            say("lost")
        elif before[0] == KazooState.SUSPENDED:
            say("reconnected")
        before[0] = state

    client.add_listener(listen)
    client.start(timeout=60)
    say("ready")
    paths, loops = {}, []
    for text in sys.stdin:
        words = text.split()
        if words[0] == "status":
            say("status", state=str(client.state), waiting=len(waiting), memory=memory())
            continue
        path = words[1]
        if words[0] == "loop":
            args = (client, path, int(words[2]), int(words[3]), len(words) == 5)
            loops.append(threading.Thread(target=loop, args=args, daemon=True))
            loops[-1].start()
            continue
        if words[0] in ("cycle", "try", "guard"):
            f = dict(cycle=cycle, guard=guard)
            f["try"] = tries
            args = (f[words[0]], client, path) + tuple(int(word) for word in words[2:])
            threading.Thread(target=measured, args=args, daemon=True).start()
            continue
        if path not in paths:
            paths[path] = Path(client, path)
        if words[0] == "acquire":
            limit = int(words[2])
            paths[path].put(lambda p=paths[path], l=limit: p.acquire(l))
        elif words[0] == "release":
            paths[path].put(paths[path].release)
        else:
            raise ValueError("command %r" % words)
    client.stop()
    client.close()
    say("closed")


main()
