/* A clock that is put forward and back: CLOCK_STEPS lists seconds, CLOCK_EVERY the looks at it
 * after which the next of them counts. Files keep the kernel's own time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long step(void) {
    static long looks;
    const char *steps = getenv("CLOCK_STEPS"), *every = getenv("CLOCK_EVERY");
    if (!steps || !every) return 0;
    long number = looks++ / atol(every), offset;
    do {
        char *end;
        offset = strtol(steps, &end, 10);
        if (*end != ',') break;
        steps = end + 1;
    } while (number-- > 0);
    return offset;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, now);
    if (!failed && id == CLOCK_REALTIME) now->tv_sec += step();
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(now, zone);
    if (!failed) now->tv_sec += step();
    return failed;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
