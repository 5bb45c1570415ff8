#!/usr/bin/env python3
"""Two clients of one server, this guest and another (twin.py), on one file at a time.

    twins.py files|locks DIR      runs a group in DIR, a mount that the other guest has too; status 1 on a failure

`files` is close-to-open: what one has closed, the other sees when it opens the file. `locks` is that no two have a lock at a time.
"""
import errno
import fcntl
import os
import subprocess
import sys
import time

from files import content, fails, read, same, write
from twin import count


def twin(*words, wanted=True):
    """The other client does it; it has to succeed, or to fail."""
    ended = subprocess.run(["bash", "/payload/ask.sh", "twin", *map(str, words)], capture_output=True, text=True)
    same(f"the other client: {' '.join(map(str, words))}", ended.returncode == 0, wanted)


def group_files():
    sizes = [0, 1, 4096, 4097, 100_000, 1_048_577]
    for turn in range(3):
        for size in sizes:
            seed = turn * 10_000_000 + size
            write("shared", content(size, seed))
            twin("has", "shared", seed, size)
            twin("write", "shared", seed + 1, size)
            same(f"{size} octets of the other", read("shared"), content(size, seed + 1))
    # One in place, the other at the end of it.
    write("grows", content(10_000, 1))
    twin("has", "grows", 1, 10_000)
    with open("grows", "r+b") as f:
        f.write(content(10_000, 2))
    twin("has", "grows", 2, 10_000)
    # What one removed, the other cannot open. (A name that the other has seen lately may be looked up in its cache.)
    twin("remove", "shared")
    fails("opening what the other removed", errno.ENOENT, open, "shared")
    os.remove("grows")
    twin("none", "grows")


def group_locks():
    write("locked", bytes(100))
    fd = os.open("locked", os.O_RDWR)

    def busy(at, length):
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, length, at)
        except OSError:
            return True
        fcntl.lockf(fd, fcntl.LOCK_UN, length, at)
        return False

    # At once: here, then there; parts of it.
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 50, 0)
    twin("lock", "locked", 0, 10, wanted=False)
    twin("lock", "locked", 49, 10, wanted=False)
    twin("lock", "locked", 50, 50)
    same("what the other has", busy(60, 1), True)
    twin("unlock", "locked", 60, 1)
    same("what the other gave back", busy(60, 1), False)
    same("what the other kept", busy(61, 1), True)
    # It waits until it can have it.
    twin("wait", "locked", 0, 10)
    time.sleep(1)
    began = time.monotonic()
    fcntl.lockf(fd, fcntl.LOCK_UN, 50, 0)
    twin("got")
    print(f"the other had the lock {time.monotonic() - began:.1f} s after its release", flush=True)
    same("what the other waited for", busy(0, 1), True)
    twin("unlock", "locked", 0, 0)
    same("all of it", busy(0, 0), False)
    # Both count in one file, each under the lock: none is lost.
    write("number", b"%020d" % 0)
    twin("count", "number")
    count("number", 20)
    twin("got")
    same("the count of both", int(read("number")), 40)
    os.close(fd)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("files", "locks"):
        sys.exit("usage: twins.py files|locks DIR")
    os.chdir(sys.argv[2])
    {"files": group_files, "locks": group_locks}[sys.argv[1]]()


if __name__ == "__main__":
    main()
