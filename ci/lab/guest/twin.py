#!/usr/bin/env python3
"""One of two clients of a server, each in a guest of its own: the other tells it what to do, and hears whether it succeeded.

    twin.py DIR      does in DIR what the lines of the second serial line say, until `end`; answers each with a status, 0 or 1

    write NAME SEED SIZE    a file with that content, closed at the end
    has NAME SEED SIZE      opened now, it has that content
    none NAME               it cannot be opened: there is no such file
    remove NAME
    lock NAME AT LENGTH     a write lock at once
    wait NAME AT LENGTH     a write lock, whenever it can be had; `got` waits for it
    got
    unlock NAME AT LENGTH
    count NAME              adds 1 to the number in NAME under a lock, 20 times; `got` waits for it
"""
import fcntl
import os
import sys
import threading
import traceback

from files import content

files = {}
waiting = None


def opened(name):
    if name not in files:
        files[name] = os.open(name, os.O_RDWR)
    return files[name]


def lock(name, at, length, how):
    fcntl.lockf(opened(name), how, int(length), int(at))


def count(name, times):
    """Adds 1 to the number in `name` so many times, each under a lock."""
    fd = os.open(name, os.O_RDWR)
    for _ in range(times):
        fcntl.lockf(fd, fcntl.LOCK_EX)
        number = int(os.pread(fd, 20, 0))
        os.pwrite(fd, b"%020d" % (number + 1), 0)
        fcntl.lockf(fd, fcntl.LOCK_UN)
    os.close(fd)


class Waiting(threading.Thread):
    """What is waited for beside the talk."""

    def __init__(self, work, *arguments):
        super().__init__(daemon=True)
        self.work, self.arguments, self.is_done = work, arguments, False
        self.start()

    def run(self):
        self.work(*self.arguments)
        self.is_done = True


def obey(verb, *words):
    """Does it. False, or an error of the system: it failed."""
    global waiting
    match verb, words:
        case "write", (name, seed, size):
            with open(name, "wb") as f:
                f.write(content(int(size), int(seed)))
        case "has", (name, seed, size):
            with open(name, "rb") as f:
                return f.read() == content(int(size), int(seed))
        case "none", (name,):
            try:
                open(name, "rb").close()
            except FileNotFoundError:
                return True
            return False
        case "remove", (name,):
            os.remove(name)
        case "lock", (name, at, length):
            lock(name, at, length, fcntl.LOCK_EX | fcntl.LOCK_NB)
        case "wait", (name, at, length):
            waiting = Waiting(lock, name, at, length, fcntl.LOCK_EX)
        case "got", ():
            waiting.join(100)
            return waiting.is_done
        case "unlock", (name, at, length):
            lock(name, at, length, fcntl.LOCK_UN)
        case "count", (name,):
            waiting = Waiting(count, name, 20)
        case _:
            raise ValueError(f"unknown request {verb}")


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: twin.py DIR")
    os.chdir(sys.argv[1])
    with open("/dev/ttyS1", "r+b", buffering=0) as talk:
        line = b""
        while (octet := talk.read(1)) is not None:
            if octet != b"\n":
                line += octet
                continue
            words, line = line.decode().split(), b""
            if words == ["end"]:
                return
            try:
                status = 1 if obey(*words) is False else 0
            except OSError as error:
                print(f"{' '.join(words)}: {error}", flush=True)
                status = 1
            except Exception:
                traceback.print_exc()
                status = 1
            talk.write(b"%d\n" % status)


if __name__ == "__main__":
    main()
