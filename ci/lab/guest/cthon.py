#!/usr/bin/env python3
"""The cases of the Connectathon NFS test suite (cthon04), by their descriptions, in our own words.

    cthon.py basic|special|lock DIR      runs a group in DIR, an empty folder on the mount; status 1 on a failure

The group `general` (compilers under load) is rows.sh's. Each case prints its name. What the suite counts as
advisory (mandatory locks, mmap beside a lock) is left out.
"""
import contextlib
import ctypes
import errno
import fcntl
import os
import random
import shutil
import signal
import stat
import struct
import sys
import time


def check(what, found, wanted):
    if found != wanted:
        print(f"  {what}: found {found!r}, wanted {wanted!r}", flush=True)
        os._exit(1)


def refused(what, numbers, call, *arguments):
    try:
        call(*arguments)
    except OSError as e:
        check(what, e.errno in numbers, True)
    else:
        check(what, "success", [errno.errorcode[n] for n in numbers])


def create(name, mode=0o666):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode))


def clear():
    """Removes what a case has left."""
    for left in os.listdir("."):
        if os.path.isdir(left):
            shutil.rmtree(left)
            continue
        # A file that was removed while it was open keeps a name `.nfs…`. The client removes that name itself, some time after
        # the close, so it may be gone between the listing and here.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(left)


# basic -------------------------------------------------------------------------------------------------------

def build(levels, files=5, folders=2):
    for i in range(files):
        create(f"file.{i}")
    if levels > 1:
        for i in range(folders):
            os.mkdir(f"dir.{i}")
            os.chdir(f"dir.{i}")
            build(levels - 1, files, folders)
            os.chdir("..")


def unbuild():
    for name in os.listdir("."):
        if name.startswith("dir."):
            os.chdir(name)
            unbuild()
            os.chdir("..")
            os.rmdir(name)
        else:
            check("prefix", name[:5], "file.")
            os.unlink(name)


def basic_1_create_files_and_folders():
    build(5)


def basic_2_remove_them():
    unbuild()
    check("left", os.listdir("."), [])


def basic_3_lookups_across_the_mount_point():
    for _ in range(250):
        here = os.getcwd()
        check("the working folder", os.path.samestat(os.stat(here), os.stat(".")), True)


def basic_4_setattr_getattr_lookup():
    for i in range(10):
        create(f"file.{i}")
    for _ in range(50):
        for i in range(10):
            os.chmod(f"file.{i}", 0)
            check("mode 0", stat.S_IMODE(os.stat(f"file.{i}").st_mode), 0)
            os.chmod(f"file.{i}", 0o666)
            check("mode 666", stat.S_IMODE(os.stat(f"file.{i}").st_mode), 0o666)
    unbuild()


def basic_5_write_and_read():
    data = b"".join(struct.pack("=I", i) for i in range(2048))
    for _ in range(10):
        with open("bigfile", "wb", buffering=0) as f:
            check("size when created", os.fstat(f.fileno()).st_size, 0)
            for _ in range(128):
                check("written", f.write(data), 8192)
        check("size", os.stat("bigfile").st_size, 1 << 20)
    for _ in range(10):
        with open("bigfile", "rb", buffering=0) as f:
            for _ in range(128):
                check("read", f.read(8192) == data, True)
            check("the end", f.read(8192), b"")
    os.unlink("bigfile")


def basic_6_readdir():
    for i in range(200):
        create(f"file.{i}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir.restype = ctypes.c_void_p
    libc.readdir.argtypes = libc.rewinddir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
    d = libc.opendir(b".")
    for gone in range(200):
        libc.rewinddir(d)
        names = []
        while entry := libc.readdir(d):
            names.append(ctypes.string_at(entry + 19).decode())  # struct dirent: ino, off, reclen, type
        check("no duplicates", len(names), len(set(names)))
        check("entries", set(names), {".", ".."} | {f"file.{i}" for i in range(gone, 200)})
        os.unlink(f"file.{gone}")
    libc.closedir(d)
    check("left", os.listdir("."), [])


def basic_7_link_and_rename():
    for i in range(10):
        create(f"file.{i}")
    for _ in range(10):
        for i in range(10):
            old, new = f"file.{i}", f"newfile.{i}"
            os.rename(old, new)
            check("the old name", os.path.exists(old), False)
            check("links of the new name", os.stat(new).st_nlink, 1)
            os.link(new, old)
            check("links", (os.stat(new).st_nlink, os.stat(old).st_nlink), (2, 2))
            os.unlink(new)
            check("links after unlink", os.stat(old).st_nlink, 1)
    unbuild()


def basic_8_symlink_and_readlink():
    for _ in range(20):
        for i in range(10):
            os.symlink(f"this/is/the/text/of/link.{i}", f"file.{i}")
            s = os.lstat(f"file.{i}")
            check("kind", stat.S_ISLNK(s.st_mode), True)
            check("text", os.readlink(f"file.{i}"), f"this/is/the/text/of/link.{i}")
            check("length", s.st_size, len(f"this/is/the/text/of/link.{i}"))
            os.unlink(f"file.{i}")


def basic_9_statfs():
    for _ in range(1500):
        v = os.statvfs(".")
        check("blocks", v.f_bsize > 0 and v.f_blocks >= v.f_bfree, True)


# special -----------------------------------------------------------------------------------------------------

def special_1_open_unlink():
    f = open("file", "w+b", buffering=0)
    f.write(b"This is a test message written to the unlinked file\n")
    os.unlink("file")
    refused("stat of the name", [errno.ENOENT], os.stat, "file")
    f.seek(0)
    check("content", f.read(), b"This is a test message written to the unlinked file\n")
    f.write(b"more")
    f.close()


def special_2_open_rename():
    create("other")
    f = open("file", "w+b", buffering=0)
    os.rename("file", "other")
    f.write(b"written after rename")
    f.close()
    with open("other", "rb") as g:
        check("content", g.read(), b"written after rename")


def special_3_open_chmod_0():
    f = open("file", "w+b", buffering=0)
    f.write(b"before")
    os.chmod("file", 0)
    f.write(b" and after")
    f.seek(0)
    check("content", f.read(), b"before and after")
    os.fsync(f.fileno())
    f.close()


def special_4_requests_that_must_not_run_twice():
    """A lost reply would show as ENOENT or EEXIST."""
    for i in range(200):
        create("file")
        os.link("file", "link")
        os.rename("link", "name")
        os.unlink("name")
        os.mkdir("folder")
        os.symlink("file", "folder/sym")
        os.unlink("folder/sym")
        os.rmdir("folder")
        os.unlink("file")


def special_5_exclusive_create():
    os.close(os.open("file", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o777))
    refused("a second one", [errno.EEXIST], os.open, "file", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o777)
    check("mode", stat.S_IMODE(os.stat("file").st_mode), 0o777)


def special_6_negative_seek():
    with open("file", "w+b", buffering=0) as f:
        f.write(b"x" * 100)
        refused("to before the start", [errno.EINVAL], os.lseek, f.fileno(), -1, os.SEEK_SET)
        refused("from the start to before it", [errno.EINVAL], os.lseek, f.fileno(), -101, os.SEEK_END)
        check("where it was", os.lseek(f.fileno(), 0, os.SEEK_CUR), 100)


def special_7_rename_in_a_crowd():
    """Two processes rename back and forth; each sees its own names only."""
    def work(me):
        create(f"{me}.0")
        for i in range(200):
            os.rename(f"{me}.{i}", f"{me}.{i + 1}")
            refused("the old name", [errno.ENOENT], os.stat, f"{me}.{i}")
            os.stat(f"{me}.{i + 1}")
        os.unlink(f"{me}.200")
    together([lambda: work("a"), lambda: work("b")])


def special_8_holes():
    size, step = 41000, 8192 + 3
    with open("file", "wb", buffering=0) as f:
        for at in range(0, 20 * step, step):
            f.seek(at)
            f.write(b"h" * 1000)
        f.truncate(20 * step + size)
    with open("file", "rb") as f:
        for at in range(0, 20 * step, step):
            check("data", f.read(1000), b"h" * 1000)
            check("a hole", f.read(step - 1000), bytes(step - 1000))
        check("the end", f.read(), bytes(size))


def special_9_truncate():
    with open("file", "w+b", buffering=0) as f:
        f.write(b"0123456789")
        f.truncate(5)
        check("size", os.fstat(f.fileno()).st_size, 5)
        f.truncate(0)
        check("size", os.stat("file").st_size, 0)
        f.truncate(100)
        f.seek(0)
        check("zeroes", f.read(), bytes(100))


def special_10_telldir():
    for i in range(200):
        create(f"file.{i}")
    libc = ctypes.CDLL(None)
    for f in (libc.opendir, libc.readdir):
        f.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long
    libc.telldir.argtypes = libc.readdir.argtypes = libc.closedir.argtypes = [ctypes.c_void_p]
    libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
    d = libc.opendir(b".")
    seen = []
    while True:
        at = libc.telldir(d)
        entry = libc.readdir(d)
        if not entry:
            break
        seen.append((at, ctypes.string_at(entry + 19)))
    check("entries", len(seen), 202)
    random.Random(7).shuffle(seen)
    for at, name in seen:
        libc.seekdir(d, at)
        check("the entry at a cookie", ctypes.string_at(libc.readdir(d) + 19), name)
    libc.closedir(d)


def special_11_write_and_read_from_one_descriptor():
    with open("file", "w+b", buffering=0) as f:
        for i in range(200):
            f.write(struct.pack("=I", i) * 300)
        for i in random.Random(3).sample(range(200), 200):
            f.seek(i * 1200)
            check("a record", f.read(1200), struct.pack("=I", i) * 300)


def special_12_beyond_4_gib():
    with open("file", "w+b", buffering=0) as f:
        for at in ((1 << 31) - 3, (1 << 32) - 3, (1 << 33) + 11):
            f.seek(at)
            f.write(b"around the limit %d" % at)
            os.fsync(f.fileno())
        check("size", os.fstat(f.fileno()).st_size > 1 << 33, True)
        for at in ((1 << 31) - 3, (1 << 32) - 3, (1 << 33) + 11):
            f.seek(at)
            text = b"around the limit %d" % at
            check("what was written there", f.read(len(text)), text)


# lock --------------------------------------------------------------------------------------------------------

END, MAX = 0, (1 << 63) - 1


def take(fd, at, length, wait=False):
    fcntl.lockf(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), length, at)


def share(fd, at, length):
    fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, length, at)


def release(fd, at, length):
    fcntl.lockf(fd, fcntl.LOCK_UN, length, at)


FLOCK = "=hhxxxxqqi4x"


def free(fd, at, length):
    """Whether a write lock could be had (F_GETLK)."""
    got = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, at, length, 0))
    return struct.unpack(FLOCK, got)[0] == fcntl.F_UNLCK


def opened(name="lockfile"):
    return os.open(name, os.O_RDWR | os.O_CREAT, 0o666)


def together(jobs):
    children = []
    for job in jobs:
        pid = os.fork()
        if pid == 0:
            job()
            os._exit(0)
        children.append(pid)
    for pid in children:
        check("the other process's status", os.waitpid(pid, 0)[1], 0)


def other(job):
    """Runs `job` in another process, another owner of locks, to its end."""
    together([job])


def table(fd, answers):
    """`answers`: (offset, length, whether it is free) as another owner sees it."""
    def look():
        mine = opened()
        for at, length, wanted in answers:
            check(f"free from {at}, length {length or 'to the end'}", free(mine, at, length), wanted)
            try:
                take(mine, at, length)
                had = True
                release(mine, at, length)
            except OSError as e:
                check("why not", e.errno in (errno.EACCES, errno.EAGAIN), True)
                had = False
            check(f"to be had from {at}, length {length or 'to the end'}", had, wanted)
        os.close(mine)
    other(look)


def lock_1_regions_of_a_file_without_locks():
    fd = opened()
    for at in (0, 1):
        for length in (1, END, MAX):
            check("free", free(fd, at, length) if at + length <= MAX else True, True)
    check("free", free(fd, MAX, 1), True)
    os.close(fd)


def lock_2_the_whole_file():
    fd = opened()
    take(fd, 0, END)
    table(fd, [(0, 1, False), (0, END, False), (0, MAX, False), (1, 1, False), (1, END, False), (MAX, 1, False), (MAX, END, False)])
    release(fd, 0, END)
    table(fd, [(0, END, True)])
    os.close(fd)


def lock_3_the_first_octet():
    fd = opened()
    take(fd, 0, 1)
    table(fd, [(0, 1, False), (0, END, False), (1, 1, True), (1, END, True)])
    release(fd, 0, 1)
    os.close(fd)


def lock_4_the_second_octet():
    fd = opened()
    take(fd, 1, 1)
    table(fd, [(0, 1, True), (0, 2, False), (0, END, False), (1, 1, False), (1, 2, False), (1, END, False),
               (2, 1, True), (2, 2, True), (2, END, True)])
    release(fd, 1, 1)
    os.close(fd)


def lock_5_the_first_and_the_third():
    fd = opened()
    take(fd, 0, 1)
    take(fd, 2, 1)
    table(fd, [(0, 1, False), (0, 2, False), (0, END, False), (1, 1, True), (1, 2, False), (1, END, False), (2, 1, False),
               (2, 2, False), (2, END, False), (3, 1, True), (3, 2, True), (3, END, True)])
    release(fd, 0, 1)
    release(fd, 2, 1)
    os.close(fd)


def lock_6_the_last_octet():
    fd = opened()
    take(fd, MAX, 1)
    table(fd, [(MAX - 1, 1, True), (MAX - 1, 2, False), (MAX - 1, END, False), (MAX, 1, False), (MAX, END, False)])
    release(fd, MAX, 1)
    os.close(fd)


def lock_7_parent_and_child_exclude_each_other():
    """The child waits for the lock: the server's answer comes later, by callback or by asking again."""
    at, mine, its = 4092, b"aaaa eh", b"bebebebeb"
    fd = opened()
    take(fd, at, len(its))
    os.pwrite(fd, mine, at)
    ready, has, done = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        fd = opened()
        os.write(ready[1], b".")
        take(fd, at, len(its), wait=True)
        os.write(has[1], b".")
        os.pwrite(fd, its, at)
        release(fd, at, len(its))
        os.close(fd)
        os.write(done[1], b".")
        os._exit(0)
    os.read(ready[0], 1)
    time.sleep(1)
    check("what is there while the child waits", os.pread(fd, len(mine), at), mine)
    began = time.monotonic()
    release(fd, at, len(its))
    os.read(has[0], 1)
    print(f"  the child had the lock {time.monotonic() - began:.1f} s after its release", flush=True)
    take(fd, at, len(its), wait=True)
    os.read(done[0], 1)
    check("what the child wrote", os.pread(fd, len(its), at), its)
    release(fd, at, len(its))
    os.close(fd)
    check("the child's status", os.waitpid(pid, 0)[1], 0)


def lock_8_many_in_turn():
    fd = opened()
    for i in range(300):
        take(fd, i, 1)
        release(fd, i, 1)
    os.close(fd)


def lock_10_a_region_is_split():
    fd = opened()
    take(fd, 0, 3)
    release(fd, 1, 1)
    table(fd, [(0, 1, False), (2, 1, False), (3, END, True), (1, 1, True)])
    release(fd, 0, 1)
    release(fd, 2, 1)
    table(fd, [(0, 3, True)])
    release(fd, 0, 1)
    take(fd, 1, 3)
    release(fd, 2, 1)
    table(fd, [(1, 1, False), (3, 1, False), (4, END, True), (2, 1, True), (0, 1, True)])
    os.close(fd)


def lock_11_close_releases():
    for locked in ([(0, END)], [(29, 1463), (0x2000, 87)]):
        fd = opened()
        twin = os.dup(fd)
        for at, length in locked:
            take(fd, at, length)
        os.write(fd, b"123456789abcdef")
        os.close(fd)
        table(twin, [(0, END, True)])
        os.ftruncate(twin, 0)
        os.close(twin)


def lock_12_a_signal_releases():
    ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        fd = opened()
        take(fd, 0, END)
        os.write(ready[1], b".")
        while True:
            signal.pause()
    os.read(ready[0], 1)
    table(None, [(0, 1, False)])
    os.kill(pid, signal.SIGINT)
    os.waitpid(pid, 0)
    time.sleep(1)
    table(None, [(0, END, True)])


def lock_14_input_and_output_under_a_lock():
    fd = opened()
    take(fd, 0, END)
    for i in range(32):
        os.pwrite(fd, bytes([i]) * 8192, i * 8192)
    for i in range(32):
        check("a block", os.pread(fd, 8192, i * 8192), bytes([i]) * 8192)
    release(fd, 0, END)
    os.close(fd)


def lock_15_a_second_descriptor():
    fd, second = opened(), opened()
    take(fd, 0, END, wait=True)
    release(fd, 0, END)
    os.close(fd)
    fd = opened()
    os.pwrite(fd, b"abcdefghij\0", 0)
    check("content", os.pread(fd, 11, 0), b"abcdefghij\0")
    os.close(second)
    os.close(fd)


def lock_16_shared_locks():
    fd = opened()
    share(fd, 0, 100)

    def look():
        mine = opened()
        share(mine, 50, 100)
        refused("an exclusive one", [errno.EACCES, errno.EAGAIN], take, mine, 0, 10)
        take(mine, 100, 50)
        os.close(mine)
    other(look)
    take(fd, 0, 100)  # from shared to exclusive
    table(fd, [(0, 1, False), (99, 1, False), (100, 1, True)])
    share(fd, 0, 50)  # and half of it back

    def look_again():
        mine = opened()
        share(mine, 0, 50)
        refused("a shared one of the exclusive half", [errno.EACCES, errno.EAGAIN], share, mine, 50, 1)
        os.close(mine)
    other(look_again)
    os.close(fd)


def lock_17_a_crowd_counts():
    """Four processes add to one number, each time under the lock: none is lost."""
    fd = opened()
    os.pwrite(fd, struct.pack("=I", 0), 0)
    os.close(fd)

    def work():
        fd = opened()
        for _ in range(25):
            take(fd, 0, 4, wait=True)
            n = struct.unpack("=I", os.pread(fd, 4, 0))[0]
            os.pwrite(fd, struct.pack("=I", n + 1), 0)
            release(fd, 0, 4)
        os.close(fd)
    together([work] * 4)
    with open("lockfile", "rb") as f:
        check("the sum", struct.unpack("=I", f.read(4))[0], 100)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("basic", "special", "lock"):
        sys.exit("usage: cthon.py basic|special|lock DIR")
    os.umask(0)
    os.chdir(sys.argv[2])
    for name, case in list(globals().items()):
        if not name.startswith(sys.argv[1] + "_"):
            continue
        began = time.monotonic()
        print(name.replace("_", " "), flush=True)
        case()
        print(f"  ok, {time.monotonic() - began:.1f} s", flush=True)
        if name != "basic_1_create_files_and_folders":
            clear()


main()
