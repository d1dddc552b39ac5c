/* Records what a process does to the files under one directory, in the order it happens, for tests.powerloss.

   Preloaded (LD_PRELOAD). Every call takes one lock from before the system call until its record is written, so the order
   of the records is the order of the effects; a sync is two records, because what is written while it runs may miss it.
   Record: op, number (a descriptor, or that of a sync), offset, two lengths, then so many bytes twice; see trace.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MARK = 1, OPEN, CLOSE, WRITE, ZEROS, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, LINK, UNLINK, MKDIR, RMDIR, UNSEEN };

#define DESCRIPTORS 65536
#define REAL(name, ...) ((int (*)(__VA_ARGS__))next(#name))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_length;
static int trace = -1;
static int sync_delay_us;
static uint32_t syncs;
static unsigned char tracked[DESCRIPTORS];

static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) abort();
  return found;
}

struct head { uint32_t op; int32_t number; uint64_t offset; uint32_t first, second; } __attribute__((packed));

static void emit(uint32_t op, int number, uint64_t offset, const void *a, size_t na, const void *b, size_t nb) {
  static ssize_t (*real)(int, const struct iovec *, int);
  if (!real) real = next("writev");
  struct head head = {op, number, offset, (uint32_t)na, (uint32_t)nb};
  struct iovec parts[3] = {{&head, sizeof head}, {(void *)a, na}, {(void *)b, nb}};
  if (trace >= 0 && real(trace, parts, 3) != (ssize_t)(sizeof head + na + nb)) abort();
}

static void emit_paths(uint32_t op, int number, uint64_t offset, const char *a, const char *b) {
  emit(op, number, offset, a, strlen(a), b, b ? strlen(b) : 0);
}

static void emit_data(int fd, uint64_t offset, const char *data, size_t size) {
  if (size && !data[0] && !memcmp(data, data + 1, size - 1)) {
    uint64_t zeros = size;
    emit(ZEROS, fd, offset, &zeros, sizeof zeros, NULL, 0);
  } else if (size)
    emit(WRITE, fd, offset, data, size, NULL, 0);
}

/* Called by the recorded program. */
void powerloss_begin(const char *directory, const char *file, int delay_us) {
  pthread_mutex_lock(&lock);
  if (trace >= 0) REAL(close, int)(trace);
  memset(tracked, 0, sizeof tracked);
  trace = REAL(open, const char *, int, ...)(file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  if (trace < 0) abort();
  snprintf(root, sizeof root, "%s", directory);
  root_length = strlen(root);
  sync_delay_us = delay_us;
  pthread_mutex_unlock(&lock);
}

void powerloss_end(void) {
  pthread_mutex_lock(&lock);
  if (trace >= 0) REAL(close, int)(trace);
  trace = -1;
  root_length = 0;
  memset(tracked, 0, sizeof tracked);
  pthread_mutex_unlock(&lock);
}

void powerloss_mark(const void *data, size_t size) {
  pthread_mutex_lock(&lock);
  emit(MARK, 0, 0, data, size, NULL, 0);
  pthread_mutex_unlock(&lock);
}

/* The absolute path, in `out`; 0 if it is not under the root. */
static int inside(int dirfd, const char *path, char *out) {
  int saved = errno;
  if (!root_length || !path) return 0;
  if (path[0] == '/')
    snprintf(out, PATH_MAX, "%s", path);
  else {
    char base[PATH_MAX / 2], link[64];
    if (dirfd == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) base[0] = 0;
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
      ssize_t n = readlink(link, base, sizeof base - 1);
      base[n < 0 ? 0 : n] = 0;
    }
    snprintf(out, PATH_MAX, "%.2000s/%.2000s", base, path);
  }
  errno = saved;
  return !strncmp(out, root, root_length) && (out[root_length] == '/' || !out[root_length]);
}

static int follows(int fd) { return fd >= 0 && fd < DESCRIPTORS && tracked[fd]; }

static int open_any(int dirfd, const char *path, int flags, mode_t mode) {
  char full[PATH_MAX];
  int (*real)(int, const char *, int, ...) = next("openat");
  if (!inside(dirfd, path, full)) {
    int fd = real(dirfd, path, flags, mode);
    if (fd >= 0 && fd < DESCRIPTORS) tracked[fd] = 0;
    return fd;
  }
  pthread_mutex_lock(&lock);
  int fd = real(dirfd, path, flags, mode);
  int saved = errno;
  if (fd >= 0 && fd < DESCRIPTORS) {
    tracked[fd] = 1;
    emit_paths(OPEN, fd, (uint64_t)flags, full, NULL);
  }
  pthread_mutex_unlock(&lock);
  errno = saved;
  return fd;
}

static mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0;
}

#define OPENING(name)                               \
  int name(const char *path, int flags, ...) {      \
    va_list arguments;                              \
    va_start(arguments, flags);                     \
    mode_t mode = mode_of(flags, arguments);        \
    va_end(arguments);                              \
    return open_any(AT_FDCWD, path, flags, mode);   \
  }
OPENING(open)
OPENING(open64)

#define OPENING_AT(name)                                  \
  int name(int dirfd, const char *path, int flags, ...) { \
    va_list arguments;                                    \
    va_start(arguments, flags);                           \
    mode_t mode = mode_of(flags, arguments);              \
    va_end(arguments);                                    \
    return open_any(dirfd, path, flags, mode);            \
  }
OPENING_AT(openat)
OPENING_AT(openat64)

int creat(const char *path, mode_t mode) { return open_any(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }

int close(int fd) {
  int (*real)(int) = next("close");
  if (!follows(fd)) return real(fd);
  pthread_mutex_lock(&lock);
  tracked[fd] = 0;
  emit(CLOSE, fd, 0, NULL, 0, NULL, 0);
  int result = real(fd);
  pthread_mutex_unlock(&lock);
  return result;
}

static ssize_t writev_any(int fd, const struct iovec *parts, int count, off_t offset) {
  ssize_t (*real)(int, const struct iovec *, int) = next("writev");
  ssize_t (*real_at)(int, const struct iovec *, int, off_t) = next("pwritev64");
  if (!follows(fd)) return offset < 0 ? real(fd, parts, count) : real_at(fd, parts, count, offset);
  pthread_mutex_lock(&lock);
  ssize_t written = offset < 0 ? real(fd, parts, count) : real_at(fd, parts, count, offset);
  int saved = errno;
  if (written > 0) {
    uint64_t at = offset < 0 ? (uint64_t)(lseek(fd, 0, SEEK_CUR) - written) : (uint64_t)offset;
    char *all = malloc((size_t)written);
    size_t have = 0;
    for (int i = 0; i < count && have < (size_t)written; i++) {
      size_t size = parts[i].iov_len;
      if (size > (size_t)written - have) size = (size_t)written - have;
      memcpy(all + have, parts[i].iov_base, size);
      have += size;
    }
    emit_data(fd, at, all, have);
    free(all);
  }
  pthread_mutex_unlock(&lock);
  errno = saved;
  return written;
}

ssize_t writev(int fd, const struct iovec *parts, int count) { return writev_any(fd, parts, count, -1); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) { return writev_any(fd, parts, count, at); }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { return writev_any(fd, parts, count, at); }
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
  (void)flags; /* hints, but for RWF_DSYNC, which nothing here uses */
  return writev_any(fd, parts, count, at);
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
  return pwritev2(fd, parts, count, at, flags);
}
ssize_t write(int fd, const void *data, size_t size) {
  if (!follows(fd)) return ((ssize_t(*)(int, const void *, size_t))next("write"))(fd, data, size);
  struct iovec part = {(void *)data, size};
  return writev_any(fd, &part, 1, -1);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  if (!follows(fd)) return ((ssize_t(*)(int, const void *, size_t, off_t))next("pwrite"))(fd, data, size, at);
  struct iovec part = {(void *)data, size};
  return writev_any(fd, &part, 1, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return pwrite(fd, data, size, at); }

int ftruncate(int fd, off_t size) {
  if (!follows(fd)) return REAL(ftruncate, int, off_t)(fd, size);
  pthread_mutex_lock(&lock);
  int result = REAL(ftruncate, int, off_t)(fd, size);
  int saved = errno;
  if (!result) emit(TRUNCATE, fd, (uint64_t)size, NULL, 0, NULL, 0);
  pthread_mutex_unlock(&lock);
  errno = saved;
  return result;
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

/* Recorded as the growth of the file: the bytes that it adds are zeros. Returns an error number instead of errno. */
int posix_fallocate(int fd, off_t at, off_t size) {
  if (!follows(fd)) return REAL(posix_fallocate, int, off_t, off_t)(fd, at, size);
  struct stat before;
  pthread_mutex_lock(&lock);
  int result = fstat(fd, &before) ? errno : REAL(posix_fallocate, int, off_t, off_t)(fd, at, size);
  if (!result && at + size > before.st_size) emit(TRUNCATE, fd, (uint64_t)(at + size), NULL, 0, NULL, 0);
  pthread_mutex_unlock(&lock);
  return result;
}
int posix_fallocate64(int fd, off64_t at, off64_t size) { return posix_fallocate(fd, at, size); }

static int sync_any(const char *name, int fd) {
  int (*real)(int) = next(name);
  if (!follows(fd)) return real(fd);
  pthread_mutex_lock(&lock);
  uint32_t number = ++syncs;
  emit(SYNC_BEGIN, fd, number, NULL, 0, NULL, 0);
  pthread_mutex_unlock(&lock);
  if (sync_delay_us) usleep((useconds_t)sync_delay_us);
  int result = real(fd);
  int saved = errno;
  pthread_mutex_lock(&lock);
  if (!result) emit(SYNC_END, fd, number, NULL, 0, NULL, 0);
  pthread_mutex_unlock(&lock);
  errno = saved;
  return result;
}
int fsync(int fd) { return sync_any("fsync", fd); }
int fdatasync(int fd) { return sync_any("fdatasync", fd); }

static void unseen(const char *what) {
  pthread_mutex_lock(&lock);
  emit_paths(UNSEEN, 0, 0, what, NULL);
  pthread_mutex_unlock(&lock);
}

/* What would pass by the record: said, so that the trace is refused. `sync_file_range` promises nothing. */
#define REFUSED(type, name, parameters, arguments, fd)          \
  type name parameters {                                        \
    if (follows(fd)) unseen(#name);                             \
    return ((type(*) parameters)next(#name)) arguments;         \
  }
REFUSED(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), fd)
REFUSED(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size), fd)
REFUSED(ssize_t, sendfile, (int out, int in, off_t *at, size_t size), (out, in, at, size), out)
REFUSED(ssize_t, sendfile64, (int out, int in, off64_t *at, size_t size), (out, in, at, size), out)
REFUSED(ssize_t, copy_file_range, (int in, off64_t *a, int out, off64_t *b, size_t n, unsigned f),
        (in, a, out, b, n, f), out)

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
  if (follows(fd) && (flags & MAP_SHARED) && (protection & PROT_WRITE)) unseen("mmap");
  return ((void *(*)(void *, size_t, int, int, int, off_t))next("mmap"))(at, size, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset) {
  return mmap(at, size, protection, flags, fd, offset);
}

#define NAMED_TWO(op, call, from_fd, from, to_fd, to)                     \
  char a[PATH_MAX], b[PATH_MAX];                                          \
  int is_inside = inside(from_fd, from, a) & inside(to_fd, to, b);        \
  if (!is_inside) return call;                                            \
  pthread_mutex_lock(&lock);                                              \
  int result = call, saved = errno;                                       \
  if (!result) emit_paths(op, 0, 0, a, b);                                \
  pthread_mutex_unlock(&lock);                                            \
  errno = saved;                                                          \
  return result;

int renameat2(int x, const char *from, int y, const char *to, unsigned flags) {
  NAMED_TWO(RENAME, REAL(renameat2, int, const char *, int, const char *, unsigned)(x, from, y, to, flags), x, from, y, to)
}
int renameat(int x, const char *from, int y, const char *to) {
  NAMED_TWO(RENAME, REAL(renameat, int, const char *, int, const char *)(x, from, y, to), x, from, y, to)
}
int rename(const char *from, const char *to) {
  NAMED_TWO(RENAME, REAL(rename, const char *, const char *)(from, to), AT_FDCWD, from, AT_FDCWD, to)
}
int linkat(int x, const char *from, int y, const char *to, int flags) {
  NAMED_TWO(LINK, REAL(linkat, int, const char *, int, const char *, int)(x, from, y, to, flags), x, from, y, to)
}
int link(const char *from, const char *to) {
  NAMED_TWO(LINK, REAL(link, const char *, const char *)(from, to), AT_FDCWD, from, AT_FDCWD, to)
}

#define NAMED_ONE(op, call, dirfd, path)                \
  char full[PATH_MAX];                                  \
  if (!inside(dirfd, path, full)) return call;          \
  pthread_mutex_lock(&lock);                            \
  int result = call, saved = errno;                     \
  if (!result) emit_paths(op, 0, 0, full, NULL);        \
  pthread_mutex_unlock(&lock);                          \
  errno = saved;                                        \
  return result;

int unlink(const char *path) { NAMED_ONE(UNLINK, REAL(unlink, const char *)(path), AT_FDCWD, path) }
int unlinkat(int x, const char *path, int flags) {
  NAMED_ONE((flags & AT_REMOVEDIR) ? RMDIR : UNLINK, REAL(unlinkat, int, const char *, int)(x, path, flags), x, path)
}
int rmdir(const char *path) { NAMED_ONE(RMDIR, REAL(rmdir, const char *)(path), AT_FDCWD, path) }
int mkdir(const char *path, mode_t mode) { NAMED_ONE(MKDIR, REAL(mkdir, const char *, mode_t)(path, mode), AT_FDCWD, path) }
int mkdirat(int x, const char *path, mode_t mode) {
  NAMED_ONE(MKDIR, REAL(mkdirat, int, const char *, mode_t)(x, path, mode), x, path)
}

/* Streams write inside the C library, where nothing can be preloaded: they get our own ends. */
static ssize_t stream_write(void *fd, const char *data, size_t size) {
  ssize_t written = write((int)(intptr_t)fd, data, size);
  return written < 0 ? 0 : written;
}
static ssize_t stream_read(void *fd, char *data, size_t size) { return read((int)(intptr_t)fd, data, size); }
static int stream_seek(void *fd, off64_t *at, int whence) {
  off64_t to = lseek64((int)(intptr_t)fd, *at, whence);
  if (to < 0) return -1;
  *at = to;
  return 0;
}
static int stream_close(void *fd) { return close((int)(intptr_t)fd); }

static FILE *fopen_any(const char *name, const char *path, const char *mode) {
  char full[PATH_MAX];
  const char *base = path ? strrchr(path, '/') : NULL;
  /* RocksDB's own information log needs a descriptor, and nobody reads it. */
  int is_ignored = base && !strncmp(base, "/LOG", 4);
  if (is_ignored || !inside(AT_FDCWD, path, full) || !strpbrk(mode, "wa+"))
    return ((FILE * (*)(const char *, const char *)) next(name))(path, mode);
  int flags = strchr(mode, 'w') ? O_CREAT | O_TRUNC : strchr(mode, 'a') ? O_CREAT | O_APPEND : 0;
  int fd = open_any(AT_FDCWD, path, flags | (strchr(mode, '+') ? O_RDWR : O_WRONLY), 0666);
  if (fd < 0) return NULL;
  cookie_io_functions_t functions = {stream_read, stream_write, stream_seek, stream_close};
  return fopencookie((void *)(intptr_t)fd, mode, functions);
}
FILE *fopen(const char *path, const char *mode) { return fopen_any("fopen", path, mode); }
FILE *fopen64(const char *path, const char *mode) { return fopen_any("fopen64", path, mode); }
