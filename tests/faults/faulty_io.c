/* Make one file operation below a folder fail, in the process that a test started itself.
 *
 * Preloaded into gpuemu-flow. FAULT_FOLDER says where, FAULT_PARENT in whose children, FAULT_KIND
 * ("read" or "write") which operations count, FAULT_AT which of them is the first to fail,
 * FAULT_COUNT how many fail, FAULT_ERRNO how, FAULT_LOG where the number of operations is written.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long counted;

static int active(void) {
    const char *parent = getenv("FAULT_PARENT");
    return parent && atoi(parent) == getppid();
}

/* Count an operation, and tell whether it has to fail. */
static int fails(const char *kind, const char *path) {
    const char *folder = getenv("FAULT_FOLDER"), *wanted = getenv("FAULT_KIND");
    int saved = errno, bad;
    if (!folder || !wanted || strcmp(kind, wanted) || !active() || !strstr(path, folder)) return 0;
    pthread_mutex_lock(&lock);
    long number = counted++;
    pthread_mutex_unlock(&lock);
    long first = atol(getenv("FAULT_AT")), count = atol(getenv("FAULT_COUNT"));
    bad = number >= first && number < first + count;
    errno = bad ? atoi(getenv("FAULT_ERRNO")) : saved;
    return bad;
}

static int fails_fd(const char *kind, int fd) {
    char link[64], path[PATH_MAX + 1];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX);
    errno = saved;
    if (length <= 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

/* Called at the end, which gpuemu-flow makes by _exit. */
static void tell(void) {
    const char *log = getenv("FAULT_LOG");
    if (!log || !active()) return;
    FILE *file = fopen(log, "w");
    if (file) fprintf(file, "%ld\n", counted), fclose(file);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void _exit(int code) {
    tell();
    REAL(_exit)(code);
    __builtin_unreachable();
}

#define ON_FD(type, name, kind, parameters, ...)                                                  \
    type name parameters {                                                                         \
        if (fails_fd(kind, fd)) return -1;                                                         \
        return REAL(name)(__VA_ARGS__);                                                            \
    }
#define ON_PATH(name, place, parameters, ...)                                                      \
    int name parameters {                                                                          \
        if (fails("write", place)) return -1;                                                      \
        return REAL(name)(__VA_ARGS__);                                                            \
    }
#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        int mode = va_arg(more, int);                                                              \
        va_end(more);                                                                              \
        if (fails(flags & O_CREAT ? "write" : "read", path)) return -1;                            \
        return REAL(name)(path, flags, mode);                                                      \
    }

ON_FD(ssize_t, write, "write", (int fd, const void *data, size_t size), fd, data, size)
ON_FD(ssize_t, pwrite, "write", (int fd, const void *d, size_t s, off_t o), fd, d, s, o)
ON_FD(ssize_t, pwrite64, "write", (int fd, const void *d, size_t s, off64_t o), fd, d, s, o)
ON_FD(ssize_t, read, "read", (int fd, void *data, size_t size), fd, data, size)
ON_FD(ssize_t, pread, "read", (int fd, void *d, size_t s, off_t o), fd, d, s, o)
ON_FD(ssize_t, pread64, "read", (int fd, void *d, size_t s, off64_t o), fd, d, s, o)
ON_FD(int, ftruncate, "write", (int fd, off_t size), fd, size)
ON_FD(int, ftruncate64, "write", (int fd, off64_t size), fd, size)
ON_FD(int, fsync, "write", (int fd), fd)
ON_FD(int, fdatasync, "write", (int fd), fd)
ON_PATH(rename, to, (const char *from, const char *to), from, to)
ON_PATH(mkdir, path, (const char *path, mode_t mode), path, mode)
ON_PATH(unlink, path, (const char *path), path)
ON_PATH(link, to, (const char *from, const char *to), from, to)
OPEN(open)
OPEN(open64)

/* CPython renames, links and removes by these where a folder's descriptor may be given. */
ON_PATH(renameat, to, (int a, const char *from, int b, const char *to), a, from, b, to)
ON_PATH(linkat, to, (int a, const char *f, int b, const char *to, int x), a, f, b, to, x)
ON_PATH(mkdirat, path, (int at, const char *path, mode_t mode), at, path, mode)
ON_PATH(unlinkat, path, (int at, const char *path, int flags), at, path, flags)
