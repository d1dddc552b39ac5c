/* Disk faults for one process tree, by LD_PRELOAD: calls on files under the data directory fail, wait, are cut or
 * kill the process, as the control file says at that moment (tests/chaos/control.py writes it). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, TRUNCATE = 4, RENAME = 8 };
enum { LIVE = 0, HALF = 1, BEFORE = 2, AFTER = 3 };

struct control {
    uint32_t enabled, operations, error, permille, delay_ms, kill_when, kill_countdown, hits, state;
    uint32_t unused[55];
    char filter[256];
};

static struct control *control;
static const char *data;

/* For a forked process, once. */
void chaos_attach(const char *control_path, const char *data_path) {
    int descriptor = syscall(SYS_openat, AT_FDCWD, control_path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return;
    void *place = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    syscall(SYS_close, descriptor);
    data = strdup(data_path);
    if (place != MAP_FAILED) control = place;
}

static uint32_t chance(void) {
    uint32_t x = __atomic_add_fetch(&control->state, 0x9E3779B9u, __ATOMIC_RELAXED);
    x ^= x >> 16; x *= 0x85EBCA6Bu; x ^= x >> 13; x *= 0xC2B2AE35u; x ^= x >> 16;
    return x;
}

static int on(uint32_t operation) {
    return control && __atomic_load_n(&control->enabled, __ATOMIC_ACQUIRE) && (control->operations & operation);
}

static int concerns(const char *path) {
    size_t length = strlen(data);
    return strncmp(path, data, length) == 0 && path[length] == '/' && strstr(path + length, control->filter) != NULL;
}

static int concerns_file(int descriptor) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return concerns(path);
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

/* Where libfaketime stands behind this with another time of day, it takes the end of a sleep on the monotonic clock for
 * one of its own, and refuses it. */
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    return syscall(SYS_clock_nanosleep, clock, flags, time, left) ? errno : 0;
}

/* 1: this is the call to die at. */
static int last_call(void) {
    if (control->kill_when == LIVE) return 0;
    return __atomic_fetch_sub(&control->kill_countdown, 1, __ATOMIC_RELAXED) == 1;
}

/* 0: go on; otherwise errno is set and the call fails. */
static int fails(void) {
    if (control->delay_ms) {
        struct timespec wait = {control->delay_ms / 1000, (control->delay_ms % 1000) * 1000000L};
        syscall(SYS_nanosleep, &wait, NULL);
    }
    if (!control->error || chance() % 1000 >= control->permille) return 0;
    __atomic_add_fetch(&control->hits, 1, __ATOMIC_RELAXED);
    errno = control->error;
    return 1;
}

/* How many of `length` bytes to write before this process dies or the disk is full; -1: all of them. */
#define WRITTEN(descriptor, length, part_call, whole_call)                                          \
    do {                                                                                            \
        if (on(WRITE) && concerns_file(descriptor)) {                                               \
            if (last_call()) {                                                                      \
                if (control->kill_when == BEFORE) die();                                            \
                if (control->kill_when == AFTER) { whole_call; die(); }                             \
                size_t part = (length) / 2; if (part) { part_call; }                                \
                die();                                                                              \
            }                                                                                       \
            if (control->kill_when == LIVE && fails()) {                                            \
                size_t part = (length) / 2;                                                         \
                if (errno == ENOSPC && part && chance() % 2) return part_call;                      \
                return -1;                                                                          \
            }                                                                                       \
        }                                                                                           \
        return whole_call;                                                                          \
    } while (0)

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int d, const void *b, size_t n) { REAL(write); WRITTEN(d, n, real(d, b, part), real(d, b, n)); }
ssize_t pwrite(int d, const void *b, size_t n, off_t o) {
    REAL(pwrite); WRITTEN(d, n, real(d, b, part, o), real(d, b, n, o));
}
ssize_t pwrite64(int d, const void *b, size_t n, off64_t o) {
    REAL(pwrite64); WRITTEN(d, n, real(d, b, part, o), real(d, b, n, o));
}

static size_t bytes_of(const struct iovec *v, int n) {
    size_t total = 0;
    for (int i = 0; i < n; i++) total += v[i].iov_len;
    return total;
}

/* The first `part` bytes of the pieces, at `offset` or where the file is (-1). */
static ssize_t gather_part(int d, const struct iovec *v, int n, size_t part, off64_t offset) {
    char *bytes = malloc(part);
    size_t at = 0;
    for (int i = 0; i < n && at < part; i++) {
        size_t piece = v[i].iov_len < part - at ? v[i].iov_len : part - at;
        memcpy(bytes + at, v[i].iov_base, piece);
        at += piece;
    }
    ssize_t done = offset < 0 ? syscall(SYS_write, d, bytes, part) : syscall(SYS_pwrite64, d, bytes, part, offset);
    free(bytes);
    return done;
}

ssize_t writev(int d, const struct iovec *v, int n) {
    REAL(writev); WRITTEN(d, bytes_of(v, n), gather_part(d, v, n, part, -1), real(d, v, n));
}
ssize_t pwritev(int d, const struct iovec *v, int n, off_t o) {
    REAL(pwritev); WRITTEN(d, bytes_of(v, n), gather_part(d, v, n, part, o), real(d, v, n, o));
}
ssize_t pwritev64(int d, const struct iovec *v, int n, off64_t o) {
    REAL(pwritev64); WRITTEN(d, bytes_of(v, n), gather_part(d, v, n, part, o), real(d, v, n, o));
}

#define WHOLE(operation, concerned, call, failure)                                                  \
    do {                                                                                            \
        if (on(operation) && (concerned)) {                                                         \
            if (last_call()) { if (control->kill_when == AFTER) call; die(); }                      \
            if (control->kill_when == LIVE && fails()) return failure;                              \
        }                                                                                           \
        return call;                                                                                \
    } while (0)

int fsync(int d) { REAL(fsync); WHOLE(SYNC, concerns_file(d), real(d), -1); }
int fdatasync(int d) { REAL(fdatasync); WHOLE(SYNC, concerns_file(d), real(d), -1); }
int sync_file_range(int d, off64_t o, off64_t n, unsigned f) {
    REAL(sync_file_range); WHOLE(SYNC, concerns_file(d), real(d, o, n, f), -1);
}
int ftruncate(int d, off_t n) { REAL(ftruncate); WHOLE(TRUNCATE, concerns_file(d), real(d, n), -1); }
int ftruncate64(int d, off64_t n) { REAL(ftruncate64); WHOLE(TRUNCATE, concerns_file(d), real(d, n), -1); }
int fallocate(int d, int m, off_t o, off_t n) { REAL(fallocate); WHOLE(WRITE, concerns_file(d), real(d, m, o, n), -1); }
int fallocate64(int d, int m, off64_t o, off64_t n) {
    REAL(fallocate64); WHOLE(WRITE, concerns_file(d), real(d, m, o, n), -1);
}
int posix_fallocate(int d, off_t o, off_t n) { REAL(posix_fallocate); WHOLE(WRITE, concerns_file(d), real(d, o, n), errno); }
int rename(const char *a, const char *b) {
    REAL(rename);
    char path[PATH_MAX];
    WHOLE(RENAME, realpath(a, path) && concerns(path), real(a, b), -1);
}
int renameat(int x, const char *a, int y, const char *b) {
    REAL(renameat);
    char path[PATH_MAX];
    WHOLE(RENAME, x == AT_FDCWD && y == AT_FDCWD && realpath(a, path) && concerns(path), real(x, a, y, b), -1);
}
