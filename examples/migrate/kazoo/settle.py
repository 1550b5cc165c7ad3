"""The settlement with kazoo's Lock, as it was before."""
import sys
import threading
import time

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import LockTimeout


def settle(invoice):
    print("begin", invoice, flush=True)
    time.sleep(0.02)
    print("end", invoice, flush=True)


def run(servers, invoices):
    client = KazooClient(hosts=servers, timeout=12)
    doubt = threading.Event()  # the connection is gone, or the session

    def listen(state):
        if state in (KazooState.SUSPENDED, KazooState.LOST):
            doubt.set()

    client.add_listener(listen)
    client.start()
    try:
        lock = client.Lock("/locks/settlement")
        try:
            lock.acquire(timeout=60)
        except LockTimeout:
            sys.exit("somebody else has it")
        try:
            for invoice in invoices:
                if doubt.is_set():
                    sys.exit("somebody else may have the lock")
                settle(invoice)
        finally:
            lock.release()
    finally:
        client.stop()


run(sys.argv[1], sys.argv[2:])
