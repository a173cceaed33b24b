/* Loaded by LD_PRELOAD: counts the operations that change files below one folder, and disturbs one.

   The processes share `struct plan` through the file that $FAULTS_PLAN names. Operations are counted
   in all of them. Build: gcc -shared -fPIC -O1 -o faults.so faults_interposed.c -ldl */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, KILL, NOSPACE, IOERROR, SHORT };
struct plan { long mode, at, count, fired; char root[4096]; };
static struct plan *plan;

__attribute__((constructor)) static void open_plan(void) {
  const char *name = getenv("FAULTS_PLAN");
  int fd = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *found = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (found != MAP_FAILED) plan = found;
  close(fd);
}

static int below(const char *path) {
  size_t n = strlen(plan->root);
  return strncmp(path, plan->root, n) == 0 && (path[n] == '/' || !path[n]);
}

static int is_path(int dir, const char *path) {
  char whole[2 * PATH_MAX], link[64];
  ssize_t n;
  if (!plan || plan->mode == OFF || !path) return 0;
  if (path[0] == '/') return below(path);
  if (dir == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
  else snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
  n = readlink(link, whole, PATH_MAX);
  if (n < 0) return 0;
  snprintf(whole + n, PATH_MAX, "/%s", path);
  return below(whole);
}

static int is_file(int fd) {
  char link[64], path[PATH_MAX];
  ssize_t n;
  if (!plan || plan->mode == OFF) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return below(path);
}

/* 0: go ahead; > 0: fail with this errno; -1: write a part and return; -2: write a part and die. */
static int fate(int takes_space, int writes) {
  long number = __sync_fetch_and_add(&plan->count, 1);
  if (plan->mode == COUNT || number < plan->at) return 0;
  switch (plan->mode) {
    case KILL:
      plan->fired = 1;
      if (writes) return -2;
      kill(0, SIGKILL);
      _exit(137);
    case NOSPACE: /* the disk stays full */
      if (takes_space) plan->fired = 1;
      return takes_space ? ENOSPC : 0;
    case IOERROR: /* once */
      return __sync_fetch_and_add(&plan->fired, 1) ? 0 : EIO;
    default:
      return !writes || __sync_fetch_and_add(&plan->fired, 1) ? 0 : -1;
  }
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define SIMPLE(name, declared, passed, condition, space) \
  int name declared { \
    REAL(name); \
    int wrong = (condition) ? fate(space, 0) : 0; \
    if (wrong) { errno = wrong; return -1; } \
    return real passed; \
  }
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); va_list rest; va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    int changes = (flags & (O_CREAT | O_TRUNC)) && is_path(AT_FDCWD, path); \
    int wrong = changes ? fate(1, 0) : 0; \
    if (wrong) { errno = wrong; return -1; } \
    return real(path, flags, mode); \
  }
#define OPENAT(name) \
  int name(int dir, const char *path, int flags, ...) { \
    REAL(name); va_list rest; va_start(rest, flags); \
    mode_t mode = va_arg(rest, mode_t); va_end(rest); \
    int changes = (flags & (O_CREAT | O_TRUNC)) && is_path(dir, path); \
    int wrong = changes ? fate(1, 0) : 0; \
    if (wrong) { errno = wrong; return -1; } \
    return real(dir, path, flags, mode); \
  }
#define FOPEN(name) \
  FILE *name(const char *path, const char *mode) { \
    REAL(name); \
    int wrong = strpbrk(mode, "wa+") && is_path(AT_FDCWD, path) ? fate(1, 0) : 0; \
    if (wrong) { errno = wrong; return NULL; } \
    return real(path, mode); \
  }
#define WRITE(name, declared, whole, part) \
  ssize_t name declared { \
    REAL(name); \
    int wrong = is_file(fd) ? fate(1, 1) : 0; \
    if (wrong > 0) { errno = wrong; return -1; } \
    if (!wrong) return real whole; \
    ssize_t done = real part; \
    if (wrong == -2) { kill(0, SIGKILL); _exit(137); } \
    return done; \
  }
#define HALF(n) ((n) > 1 ? (n) / 2 : (n))

OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) FOPEN(fopen) FOPEN(fopen64)
WRITE(write, (int fd, const void *data, size_t n), (fd, data, n), (fd, data, HALF(n)))
WRITE(pwrite, (int fd, const void *data, size_t n, off_t at), (fd, data, n, at),
      (fd, data, HALF(n), at))
WRITE(pwrite64, (int fd, const void *data, size_t n, off64_t at), (fd, data, n, at),
      (fd, data, HALF(n), at))
WRITE(writev, (int fd, const struct iovec *data, int n), (fd, data, n), (fd, data, HALF(n)))
WRITE(sendfile, (int fd, int in, off_t *at, size_t n), (fd, in, at, n), (fd, in, at, HALF(n)))
WRITE(copy_file_range, (int in, off64_t *from, int fd, off64_t *to, size_t n, unsigned flags),
      (in, from, fd, to, n, flags), (in, from, fd, to, HALF(n), flags))
SIMPLE(rename, (const char *a, const char *b), (a, b), is_path(AT_FDCWD, b), 1)
SIMPLE(renameat, (int d, const char *a, int e, const char *b), (d, a, e, b), is_path(e, b), 1)
SIMPLE(renameat2, (int d, const char *a, int e, const char *b, unsigned f), (d, a, e, b, f),
       is_path(e, b), 1)
SIMPLE(link, (const char *a, const char *b), (a, b), is_path(AT_FDCWD, b), 1)
SIMPLE(symlink, (const char *a, const char *b), (a, b), is_path(AT_FDCWD, b), 1)
SIMPLE(mkdir, (const char *path, mode_t mode), (path, mode), is_path(AT_FDCWD, path), 1)
SIMPLE(mkdirat, (int d, const char *path, mode_t mode), (d, path, mode), is_path(d, path), 1)
SIMPLE(unlink, (const char *path), (path), is_path(AT_FDCWD, path), 0)
SIMPLE(unlinkat, (int d, const char *path, int flags), (d, path, flags), is_path(d, path), 0)
SIMPLE(rmdir, (const char *path), (path), is_path(AT_FDCWD, path), 0)
SIMPLE(fsync, (int fd), (fd), is_file(fd), 1)
SIMPLE(fdatasync, (int fd), (fd), is_file(fd), 1)
SIMPLE(ftruncate, (int fd, off_t n), (fd, n), is_file(fd), 1)
SIMPLE(ftruncate64, (int fd, off64_t n), (fd, n), is_file(fd), 1)
