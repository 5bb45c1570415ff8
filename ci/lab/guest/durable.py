#!/usr/bin/env python3
"""A load on a mount whose server dies and comes back: what fsync promised must be there.

    durable.py FILE ROUNDS COMMAND...     FILE on the mount; COMMAND kills and restarts the server, once for each round

A lock is held on a file of its own, which is written after each restart: a client that could not reclaim the lock gets an error.
Three processes work all the time: one appends records, each with an fsync of its own; one writes 4 MiB that the
server need not keep before the fsync at the end (a server that forgot them says so by its write verifier, and the
client sends them again); one creates, links, renames and removes. Then everything is read back from the server.
"""
import fcntl
import os
import random
import subprocess
import sys
import time

RECORD, BULK = 8000, 4 << 20


def content(size, seed):
    return random.Random(seed).randbytes(size)


def appender(path, acknowledged, until):
    with open(path, "wb", buffering=0) as f:
        i = 0
        while not os.path.exists(until):
            f.write(content(RECORD, i))
            os.fsync(f.fileno())
            i += 1
            with open(acknowledged, "w") as a:
                a.write(str(i))


def bulk(path, rounds_done, until):
    n = 0
    while not os.path.exists(until):
        with open(f"{path}.{n % 3}", "wb", buffering=0) as f:
            data = content(BULK, n % 3)
            for at in range(0, BULK, 65536):
                f.write(data[at:at + 65536])
            os.fsync(f.fileno())
        n += 1
        with open(rounds_done, "w") as a:
            a.write(str(n))


def names(folder, rounds, until):
    os.mkdir(folder)
    os.chdir(folder)
    twice = 0
    while not os.path.exists(until):
        try:
            os.close(os.open("a", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            os.link("a", "b")
            os.rename("b", "c")
            os.mkdir("d")
            os.symlink("a", "d/e")
            os.unlink("d/e")
            os.rmdir("d")
            os.unlink("a")
            os.unlink("c")
        except (FileExistsError, FileNotFoundError) as e:
            # Done by the server that died before its Reply, and sent again: once for each death at most.
            print(f"done twice: {e}", flush=True)
            twice += 1
            assert twice <= rounds, "more often done twice than the server died"
            subprocess.run("rm -rf a b c d", shell=True, check=True)


def number(path):
    try:
        with open(path) as f:
            return int(f.read() or 0)
    except FileNotFoundError:
        return 0


def hold_lock(path):
    """Opens a file and locks it, exclusively. Returns its descriptor."""
    held = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.lockf(held, fcntl.LOCK_EX)
    return held


def main():
    path, rounds, command = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    until, acknowledged, rounds_done = "/tmp/durable-stop", "/tmp/durable-records", "/tmp/durable-bulk"
    for stale in (until, acknowledged, rounds_done):
        if os.path.exists(stale):
            os.unlink(stale)
    held = hold_lock(path + ".lock")
    children = {}
    for job in (lambda: appender(path, acknowledged, until), lambda: bulk(path + ".bulk", rounds_done, until), lambda: names(path + ".names", rounds, until)):
        pid = os.fork()
        if pid == 0:
            job()
            os._exit(0)
        children[pid] = job
    try:
        for _ in range(rounds):
            before = number(acknowledged)
            while number(acknowledged) < before + 10:
                time.sleep(0.1)
                assert os.waitpid(-1, os.WNOHANG) == (0, 0), "a process of the load has ended"
            # Not from here: a server that it starts would keep the mount busy.
            subprocess.run(command, check=True, cwd="/")
            before, began = number(acknowledged), time.monotonic()
            while number(acknowledged) < before + 10:
                time.sleep(0.1)
                assert time.monotonic() < began + 120, "the load does not go on"
                assert os.waitpid(-1, os.WNOHANG) == (0, 0), "a process of the load has ended"
            print(f"the load went on {time.monotonic() - began:.1f} s after the restart", flush=True)
            os.pwrite(held, b"held", 0)
            os.fsync(held)
    finally:
        open(until, "w").close()
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0, "a process of the load has failed"

    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")
    kept = number(acknowledged)
    with open(path, "rb") as f:
        for i in range(kept):
            assert f.read(RECORD) == content(RECORD, i), f"record {i} of {kept} is not there"
        assert f.read() == b"", "more than what was written"
    for n in range(min(3, number(rounds_done))):
        with open(f"{path}.bulk.{n}", "rb") as f:
            assert f.read() == content(BULK, n), f"bulk {n} is not as it was written"
    assert os.listdir(path + ".names") == [], os.listdir(path + ".names")
    print(f"{kept} records and {number(rounds_done)} times 4 MiB are there")


main()
