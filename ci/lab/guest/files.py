#!/usr/bin/env python3
"""What programs do to files, on a mount, one group for each name.

    files.py GROUP DIR      runs a group in DIR, an empty folder on the mount; status 1 and a line on a failure

Content is pseudo-random by a seed that is the file's size, so that a block in the wrong place is seen. Caches
are dropped between writing and reading: what is compared came from the server.
"""
import errno
import os
import random
import stat
import subprocess
import sys
import tempfile
import threading


def content(size, seed=None):
    return random.Random(size if seed is None else seed).randbytes(size)


def drop():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("3")


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def same(what, found, wanted):
    if found != wanted:
        if isinstance(found, bytes) and isinstance(wanted, bytes):
            at = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
            print(f"{what}: {len(found)} bytes, wanted {len(wanted)}; they differ from {at}:"
                  f" {found[at:at + 16].hex()} instead of {wanted[at:at + 16].hex()}")
        else:
            print(f"{what}: found {found!r}, wanted {wanted!r}")
        sys.exit(1)


def fails(what, number, call, *arguments):
    """`call` fails with errno `number`."""
    try:
        call(*arguments)
    except OSError as e:
        same(what, errno.errorcode.get(e.errno), errno.errorcode[number])
    else:
        same(what, "success", errno.errorcode[number])


def sizes():
    """0 B to 8 MB, around every limit that RPC-over-RDMA, pages or rsize draw."""
    around = [(n - 1, n, n + 1) for n in (512, 4096, 65536, 131072, 262144, 1 << 20)]
    return [0, 1, 2, 3, 5, 1000, 3000, 100001, 5000003, 8 << 20] + [n for three in around for n in three]


def files():
    for n in sizes():
        write(f"f{n}", content(n))
    drop()
    for n in sizes():
        same(f"size of f{n}", os.stat(f"f{n}").st_size, n)
        same(f"f{n}", read(f"f{n}"), content(n))
    # Parts of a file, written over in place and read back at odd offsets.
    data = bytearray(content(1 << 20))
    with open("f1048576", "r+b") as f:
        for at, n in ((0, 1), (4095, 2), (65530, 70000), (777777, 12345), ((1 << 20) - 3, 3)):
            f.seek(at)
            f.write(content(n, at))
            data[at:at + n] = content(n, at)
    drop()
    with open("f1048576", "rb") as f:
        for at, n in ((1, 1), (4090, 20), (65536, 65536), (777000, 99999), (1048570, 100)):
            f.seek(at)
            same(f"{n} bytes at {at}", f.read(n), bytes(data[at:at + n]))
    same("f1048576 after parts were written", read("f1048576"), bytes(data))
    # Appending, by a descriptor of its own each time.
    for i in range(50):
        with open("appended", "ab") as f:
            f.write(content(777, i))
    drop()
    same("appended", read("appended"), b"".join(content(777, i) for i in range(50)))


def directory():
    # Enough for a listing of many Calls: Linux begins with 4 KiB each.
    count = int(os.environ.get("LABV_ENTRIES", 1000))
    names = {f"entry-with-a-name-of-some-length-{i:06d}" for i in range(count)}
    os.mkdir("many")
    for name in names:
        os.close(os.open("many/" + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    drop()
    found = os.listdir("many")
    same("entries", len(found), count)
    same("names", set(found), names)
    # READDIRPLUS, then attributes of each.
    drop()
    same("modes", {stat.S_IMODE(e.stat().st_mode) for e in os.scandir("many")}, {0o600})
    # Removed while it is listed. (With a tmpfs below it, the kernel's server passes over some.)
    while True:
        gone = 0
        for entry in os.scandir("many"):
            os.unlink(entry.path)
            gone += 1
        if not os.environ.get("LABV_STAND_IN"):
            same("removed", gone, count)
        if not gone or len(os.listdir("many")) == 0:
            break
    same("left", os.listdir("many"), [])
    os.rmdir("many")
    long = "n" * 255
    write(long, b"x")
    same("the longest name", os.listdir("."), [long])
    fails("a name too long", errno.ENAMETOOLONG, write, "n" * 256, b"")
    os.unlink(long)


def links():
    lengths = (1, 2, 3, 8, 255, 1000, 2000, 3000, 4000)
    for n in lengths:
        os.symlink("l" * n, f"to{n}")
    drop()
    for n in lengths:
        same(f"link of {n}", os.readlink(f"to{n}"), "l" * n)
        same(f"size of the link of {n}", os.lstat(f"to{n}").st_size, n)
    os.mkdir("folder")
    write("folder/file", b"through a link")
    os.symlink("folder", "way")
    drop()
    same("through a link", read("way/file"), b"through a link")
    os.symlink("nowhere", "dangling")
    fails("a dangling link", errno.ENOENT, os.stat, "dangling")


def names():
    write("a", b"a")
    os.rename("a", "b")
    fails("the old name", errno.ENOENT, os.stat, "a")
    write("c", b"c")
    os.rename("b", "c")
    same("renamed over another", read("c"), b"a")
    os.link("c", "d")
    drop()
    same("links", os.stat("c").st_nlink, 2)
    same("one file", os.stat("c").st_ino, os.stat("d").st_ino)
    os.unlink("c")
    same("links after one went", os.stat("d").st_nlink, 1)
    os.mkdir("one")
    os.mkdir("two")
    write("one/file", b"moved")
    os.rename("one/file", "two/file")
    same("moved between folders", read("two/file"), b"moved")
    os.rename("two", "one/two")
    same("a moved folder", read("one/two/file"), b"moved")
    fails("a folder into itself", errno.EINVAL, os.rename, "one", "one/two/one")
    fails("a folder that is not empty", errno.ENOTEMPTY, os.rmdir, "one")
    fails("over a folder that is not empty", errno.ENOTEMPTY, lambda: (os.mkdir("three"), os.rename("three", "one")))
    fails("a file in place of a folder", errno.ENOTDIR, os.listdir, "d")
    fails("mkdir of what is there", errno.EEXIST, os.mkdir, "one")
    fails("exclusive creation of what is there", errno.EEXIST, os.open, "d", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    fails("unlink of a folder", errno.EISDIR, os.unlink, "one")

    os.chmod("d", 0o4750)
    os.chown("d", 1234, 5678)
    os.chmod("d", 0o2640)
    os.utime("d", ns=(1_000_000_000_123_456_789, 2_000_000_000_987_654_321))
    drop()
    s = os.stat("d")
    same("mode", stat.S_IMODE(s.st_mode), 0o2640)
    same("owner", (s.st_uid, s.st_gid), (1234, 5678))
    same("times", (s.st_atime_ns, s.st_mtime_ns), (1_000_000_000_123_456_789, 2_000_000_000_987_654_321))

    os.mkfifo("pipe", 0o600)
    os.mknod("character", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod("block", stat.S_IFBLK | 0o600, os.makedev(7, 300))
    os.mknod("socket", stat.S_IFSOCK | 0o600)
    drop()
    same("a pipe", stat.S_ISFIFO(os.stat("pipe").st_mode), True)
    same("a character device", (stat.S_ISCHR(os.stat("character").st_mode), os.stat("character").st_rdev), (True, os.makedev(1, 3)))
    same("a block device", (stat.S_ISBLK(os.stat("block").st_mode), os.stat("block").st_rdev), (True, os.makedev(7, 300)))
    same("a socket", stat.S_ISSOCK(os.stat("socket").st_mode), True)
    with open("character", "wb") as f:  # /dev/null by another name: the client's device, not the server's
        f.write(b"gone")

    # A file that is open lives on without its name, and nothing of it is left. The client tells the server after the close,
    # which only rmdir waits for.
    os.mkdir("held")
    f = open("held/open", "w+b")
    f.write(b"still here")
    f.flush()
    os.unlink("held/open")
    drop()
    f.seek(0)
    same("a removed file that is open", f.read(), b"still here")
    f.close()
    os.rmdir("held")

    v = os.statvfs(".")
    same("statfs", v.f_blocks >= v.f_bfree >= v.f_bavail > 0 and v.f_files >= v.f_ffree > 0 and v.f_namemax == 255, True)

    # What others may not do.
    write("private", b"p")
    os.chmod("private", 0o600)
    if os.fork() == 0:
        os.setgroups([])
        os.setgid(4000)
        os.setuid(4000)
        fails("another's private file", errno.EACCES, read, "private")
        fails("chmod of another's file", errno.EPERM, os.chmod, "private", 0o666)
        os._exit(0)
    same("the other's status", os.wait()[1], 0)


def acl():
    def run(*command):
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    write("file", b"f")
    os.chmod("file", 0o640)
    run("setfacl", "-m", "u:1000:rw,g:2000:r", "file")
    drop()
    entries = set(run("getfacl", "-cnp", "file").split())
    same("entries", entries, {"user::rw-", "user:1000:rw-", "group::r--", "group:2000:r--", "mask::rw-", "other::---"})
    same("the mask is the group's mode", stat.S_IMODE(os.stat("file").st_mode), 0o660)
    run("setfacl", "-x", "u:1000", "file")
    drop()
    same("one less", "user:1000:rw-" in run("getfacl", "-cnp", "file").split(), False)
    run("setfacl", "-b", "file")
    drop()
    same("none left", set(run("getfacl", "-cnp", "file").split()), {"user::rw-", "group::r--", "other::---"})
    os.mkdir("folder")
    os.chmod("folder", 0o755)
    run("setfacl", "-d", "-m", "u:1000:rwx", "folder")
    drop()
    same("a folder's default", "default:user:1000:rwx" in run("getfacl", "-cnp", "folder").split(), True)
    write("folder/child", b"c")
    drop()
    same("a child has it", "user:1000:rwx" in run("getfacl", "-cnp", "folder/child").replace("\t", " ").split(), True)

    def shown(path):
        return [line for line in run("getfacl", "-nR", path).splitlines() if not line.startswith("# file:")]

    # What backups do.
    os.mkdir("tar")
    run("cp", "-a", "folder", "copy")
    run("sh", "-c", "tar -cC folder --acls . | tar -xC tar --acls -p")
    drop()
    for copied in "copy", "tar":
        same(f"lists of {copied}", shown(copied), shown("folder"))

    def all_below(folder):
        """The lists by name: folders show their names in orders of their own."""
        return sorted(run("sh", "-c", 'cd "$1" && getfacl -nR .', "sh", folder).split("\n\n"))

    # Onto the mount and back, of files and folders with lists of their own. A second time there is nothing to do.
    with tempfile.TemporaryDirectory() as local:
        for folder in f"{local}/from", f"{local}/from/below":
            os.mkdir(folder)
            write(f"{folder}/file", b"f")
            run("setfacl", "-m", "u:1000:r,g:2000:rw,o::-", f"{folder}/file")
        run("setfacl", "-m", "u:1000:rwx", "-d", "-m", "u:1000:rwx,g:2000:r", f"{local}/from/below")
        run("setfacl", "-d", "-m", "u:1001:r", f"{local}/from")
        copies = (f"{local}/from", "rsync"), ("rsync", f"{local}/back")
        for source, copied in copies:
            run("rsync", "-aA", f"{source}/", copied)
            drop()
            same(f"lists of {copied}", all_below(copied), all_below(f"{local}/from"))
        for source, copied in copies:
            same(f"what is left to copy to {copied}", run("rsync", "-aAi", "--dry-run", f"{source}/", copied), "")

    def may(user, how):
        wanted = subprocess.run(["test", f"-{how}", "file"], user=user, group=user, extra_groups=[])
        return wanted.returncode == 0

    os.chmod("file", 0o600)
    same("a user without an entry", [may(1000, how) for how in "rw"], [False, False])
    run("setfacl", "-m", "u:1000:r", "file")
    drop()
    same("a named user reads", [may(1000, how) for how in "rw"], [True, False])
    same("others do not", [may(1001, how) for how in "rw"], [False, False])


def holes():
    def blocks(path):
        return os.stat(path).st_blocks * 512

    with open("sparse", "wb") as f:
        f.write(b"start")
        f.seek(64 << 20)
        f.write(b"end")
    drop()
    same("size", os.stat("sparse").st_size, (64 << 20) + 3)
    same("takes less than its size", blocks("sparse") < 8 << 20, True)
    with open("sparse", "rb") as f:
        same("the start and a hole", f.read(4096), b"start" + bytes(4091))
        f.seek(33 << 20)
        same("a hole", f.read(1 << 20), bytes(1 << 20))
        f.seek(64 << 20)
        same("the end", f.read(), b"end")
    os.truncate("sparse", 3)
    drop()
    same("cut short", read("sparse"), b"sta")
    os.truncate("sparse", 10000)
    drop()
    same("made longer: zeroes, not what was there", read("sparse"), b"sta" + bytes(9997))
    write("full", content(200000))
    os.truncate("full", 70001)
    drop()
    os.truncate("full", 200000)
    drop()
    same("cut and made longer", read("full"), content(200000)[:70001] + bytes(129999))
    with open("full", "r+b") as f:
        os.ftruncate(f.fileno(), 0)
        f.write(b"new")
    drop()
    same("emptied and written", read("full"), b"new")


def tree():
    """A real tree: copied, compared, packed on the mount and unpacked there."""
    source = "/usr/lib/python3.11"
    parts = ("json", "email", "asyncio", "unittest", "os.py", "argparse.py", "typing.py", "lib-dynload")
    os.mkdir("copy")
    subprocess.run(["cp", "-r", "--preserve=all"] + [f"{source}/{p}" for p in parts] + ["copy"], check=True)
    drop()
    for p in parts:
        subprocess.run(["diff", "-r", f"{source}/{p}", f"copy/{p}"], check=True)
    subprocess.run(["tar", "-cf", "packed.tar", "copy"], check=True)
    drop()
    subprocess.run(["tar", "-df", "packed.tar"], check=True)
    os.mkdir("unpacked")
    subprocess.run(["tar", "-xf", "packed.tar", "-C", "unpacked"], check=True)
    drop()
    subprocess.run(["diff", "-r", "copy", "unpacked/copy"], check=True)
    found = subprocess.run(["find", "copy", "-type", "f"], check=True, capture_output=True, text=True).stdout
    here = subprocess.run(["find", *[f"{source}/{p}" for p in parts], "-type", "f"], check=True, capture_output=True, text=True).stdout
    same("files found", len(found.split()), len(here.split()))
    subprocess.run(["df", "."], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["rm", "-r", "copy", "unpacked"], check=True)


def parallel():
    """Four processes write, each its own file and its own stripe of one they share; four read at the same time."""
    stripe, stripes, workers = 65536, 16, 4
    write("old", content(2 << 20))
    with open("shared", "wb") as f:
        f.truncate(stripe * stripes * workers)
    drop()

    def writer(k):
        with open("shared", "r+b") as f:
            for i in range(stripes):
                f.seek((i * workers + k) * stripe)
                f.write(content(stripe, i * workers + k))
                write(f"own-{k}-{i}", content(10007, i))

    def reader(k):
        for _ in range(3):
            fd = os.open("old", os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found = b"".join(iter(lambda: os.read(fd, 100000 + k), b""))
            os.close(fd)
            same("what is read beside writers", found, content(2 << 20))

    children = []
    for k in range(workers):
        for job in (writer, reader):
            pid = os.fork()
            if pid == 0:
                job(k)
                os._exit(0)
            children.append(pid)
    for pid in children:
        same("a worker's status", os.waitpid(pid, 0)[1], 0)
    drop()
    same("shared", read("shared"), b"".join(content(stripe, i) for i in range(stripes * workers)))
    for k in range(workers):
        for i in range(stripes):
            same(f"own-{k}-{i}", read(f"own-{k}-{i}"), content(10007, i))
    # Two threads of one process and one file: reads and writes of one stream do not disturb each other.
    with open("shared", "r+b", buffering=0) as f:
        t = threading.Thread(target=lambda: [os.pwrite(f.fileno(), content(4096, i), i * 8192) for i in range(200)])
        t.start()
        for i in range(200):
            same("the half that nobody writes", os.pread(f.fileno(), 4096, i * 8192 + 4096), content(stripe, i * 8192 // stripe)[(i * 8192 + 4096) % stripe:][:4096])
        t.join()


def main():
    groups = {f.__name__: f for f in (files, directory, links, names, acl, holes, tree, parallel)}
    if len(sys.argv) != 3 or sys.argv[1] not in groups:
        sys.exit(f"usage: files.py {'|'.join(groups)} DIR")
    os.chdir(sys.argv[2])
    os.umask(0o022)
    groups[sys.argv[1]]()


if __name__ == "__main__":
    main()
