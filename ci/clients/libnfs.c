/* A client of a server on libnfs: names, data at random places, many Calls at once. Each is compared with what it
 * must be; the first difference is printed, and the status is 1.
 *
 *   libnfs names|data|parallel URL NAME      NAME: what to make there, and to remove again
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <nfsc/libnfs.h>

static struct nfs_context *nfs;

#define CHECK(call, wanted) check((call), (wanted), #call, __LINE__)
static void check(long found, long wanted, const char *what, int line)
{
    if (found != wanted) {
        fprintf(stderr, "line %d: %s: %ld, not %ld: %s\n", line, what, found, wanted, nfs_get_error(nfs));
        exit(1);
    }
}

static uint32_t state = 12345;
static uint32_t next(void)
{
    return state = state * 1664525 + 1013904223;
}

static const char *in(const char *folder, const char *name)
{
    static char paths[4][4096];
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], "/%s/%s", folder, name);
    return path;
}

static int count(const char *folder)
{
    struct nfsdir *directory;
    int entries = 0;
    CHECK(nfs_opendir(nfs, in(".", folder), &directory), 0);
    while (nfs_readdir(nfs, directory))
        entries++;
    nfs_closedir(nfs, directory);
    return entries - 2; /* . and .. */
}

static void names(const char *folder)
{
    struct nfsfh *file;
    struct nfs_stat_64 stat;
    char text[5000], back[5000];

    CHECK(nfs_mkdir(nfs, in(".", folder)), 0);
    CHECK(nfs_mkdir(nfs, in(".", folder)), -EEXIST);
    for (int i = 0; i < 1500; i++) {
        snprintf(text, sizeof text, "a name that is neither short nor long, number %d", i);
        CHECK(nfs_creat(nfs, in(folder, text), 0640, &file), 0);
        CHECK(nfs_close(nfs, file), 0);
    }
    CHECK(count(folder), 1500);
    for (int i = 0; i < 1500; i++) {
        snprintf(text, sizeof text, "a name that is neither short nor long, number %d", i);
        CHECK(nfs_unlink(nfs, in(folder, text)), 0);
        CHECK(nfs_unlink(nfs, in(folder, text)), -ENOENT);
    }
    CHECK(count(folder), 0);

    CHECK(nfs_creat(nfs, in(folder, "file"), 0600, &file), 0);
    CHECK(nfs_write(nfs, file, 10, "0123456789"), 10);
    CHECK(nfs_close(nfs, file), 0);
    CHECK(nfs_link(nfs, in(folder, "file"), in(folder, "link")), 0);
    CHECK(nfs_stat64(nfs, in(folder, "link"), &stat), 0);
    CHECK(stat.nfs_nlink, 2);
    CHECK(stat.nfs_size, 10);
    CHECK(nfs_rename(nfs, in(folder, "link"), in(folder, "renamed")), 0);
    CHECK(nfs_stat64(nfs, in(folder, "link"), &stat), -ENOENT);
    CHECK(nfs_chmod(nfs, in(folder, "renamed"), 0444), 0);
    CHECK(nfs_truncate(nfs, in(folder, "file"), 1000000), 0);
    CHECK(nfs_stat64(nfs, in(folder, "renamed"), &stat), 0);
    CHECK(stat.nfs_mode & 0777, 0444);
    CHECK(stat.nfs_size, 1000000);

    memset(text, 'x', sizeof text);
    for (int len = 1; len < 1024; len += 146) {
        text[len] = 0;
        CHECK(nfs_symlink(nfs, text, in(folder, "symlink")), 0);
        memset(back, 0, sizeof back);
        CHECK(nfs_readlink(nfs, in(folder, "symlink"), back, sizeof back), 0);
        CHECK(strcmp(text, back), 0);
        CHECK(nfs_unlink(nfs, in(folder, "symlink")), 0);
        text[len] = 'x';
    }
    CHECK(nfs_mknod(nfs, in(folder, "fifo"), S_IFIFO | 0600, 0), 0);
    CHECK(nfs_rmdir(nfs, in(".", folder)), -ENOTEMPTY);
    CHECK(nfs_unlink(nfs, in(folder, "fifo")), 0);
    CHECK(nfs_unlink(nfs, in(folder, "file")), 0);
    CHECK(nfs_unlink(nfs, in(folder, "renamed")), 0);
    CHECK(nfs_rmdir(nfs, in(".", folder)), 0);
}

enum { LEN = 6 << 20 };
static char wanted[LEN], found[LEN];

static void data(const char *name)
{
    struct nfsfh *file;
    CHECK(nfs_creat(nfs, in(".", name), 0600, &file), 0);
    CHECK(nfs_ftruncate(nfs, file, LEN), 0);
    for (int i = 0; i < 400; i++) {
        /* Some are pages, some are anything. */
        uint32_t at = next() % LEN, len = next() % ((i % 8) ? 20000 : 1100000);
        if (i % 3 == 0)
            at &= ~4095u, len = (len + 4096) & ~4095u;
        if (len > LEN - at)
            len = LEN - at;
        for (uint32_t octet = 0; octet < len; octet++)
            wanted[at + octet] = (char)(next() >> 24);
        for (uint32_t done = 0, part; done < len; done += part) {
            part = nfs_pwrite(nfs, file, at + done, len - done, wanted + at + done);
            CHECK((int)part > 0, 1);
        }
        at = next() % LEN, len = next() % 1100000;
        if (len > LEN - at)
            len = LEN - at;
        for (uint32_t done = 0, part; done < len; done += part) {
            part = nfs_pread(nfs, file, at + done, len - done, found);
            CHECK((int)part > 0, 1);
            CHECK(memcmp(found, wanted + at + done, part), 0);
        }
    }
    CHECK(nfs_fsync(nfs, file), 0);
    CHECK(nfs_close(nfs, file), 0);
    CHECK(nfs_unlink(nfs, in(".", name)), 0);
}

/* Many Calls at once on one connection. */
enum { CALLS = 4000, AT_ONCE = 200, PIECE = 30000 };
static int answered, bad;

static void wrote(int status, struct nfs_context *context, void *bytes, void *expected)
{
    (void)context, (void)bytes;
    answered++;
    bad += status != (int)(intptr_t)expected;
}

static void was_read(int status, struct nfs_context *context, void *bytes, void *place)
{
    (void)context;
    int len = 1 + (int)((intptr_t)place % PIECE);
    answered++;
    bad += status != len || memcmp(bytes, wanted + (intptr_t)place, len) != 0;
}

static void wait_for(int begun)
{
    while (answered < begun) {
        struct pollfd poller = {.fd = nfs_get_fd(nfs), .events = nfs_which_events(nfs)};
        CHECK(poll(&poller, 1, 10000) > 0, 1);
        CHECK(nfs_service(nfs, poller.revents) >= 0, 1);
    }
}

static void parallel(const char *name)
{
    struct nfsfh *file;
    CHECK(nfs_creat(nfs, in(".", name), 0600, &file), 0);
    for (int octet = 0; octet < LEN; octet++)
        wanted[octet] = (char)(next() >> 24);
    int begun = 0;
    for (int at = 0; at < LEN; at += PIECE) {
        int len = at + PIECE > LEN ? LEN - at : PIECE;
        CHECK(nfs_pwrite_async(nfs, file, at, len, wanted + at, wrote, (void *)(intptr_t)len), 0);
        begun++;
    }
    wait_for(begun);
    CHECK(bad, 0);
    for (int i = 0; i < CALLS; i++) {
        intptr_t place = next() % (LEN - PIECE);
        CHECK(nfs_pread_async(nfs, file, place, 1 + place % PIECE, was_read, (void *)place), 0);
        begun++;
        wait_for(begun - AT_ONCE);
    }
    wait_for(begun);
    CHECK(bad, 0);
    CHECK(nfs_close(nfs, file), 0);
    CHECK(nfs_unlink(nfs, in(".", name)), 0);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    nfs = nfs_init_context();
    struct nfs_url *url = nfs_parse_url_dir(nfs, argv[2]);
    if (!url || nfs_mount(nfs, url->server, url->path) != 0) {
        fprintf(stderr, "mount: %s\n", nfs_get_error(nfs));
        return 1;
    }
    if (strcmp(argv[1], "names") == 0)
        names(argv[3]);
    else if (strcmp(argv[1], "data") == 0)
        data(argv[3]);
    else if (strcmp(argv[1], "parallel") == 0)
        parallel(argv[3]);
    else
        return 2;
    nfs_destroy_url(url);
    nfs_destroy_context(nfs);
    return 0;
}
