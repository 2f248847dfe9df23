/*
 * What a test puts before the C library of one process: a clock that jumps, names that move.
 *
 * PRELOAD_CLOCK: a file of eight bytes, the seconds that the wall clock is ahead, read at each look
 * at the clock. The monotonic clock stays what it is.
 * PRELOAD_HOSTS: a file with a line "name address" for each name below .moving.test that is known;
 * all other names are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead_s;

__attribute__((constructor)) static void open_clock(void) {
    const char *path = getenv("PRELOAD_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) ahead_s = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && ahead_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *ahead_s;
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (!result && ahead_s) now->tv_sec += *ahead_s;
    return result;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

static int known(const char *name, char *address) {
    const char *path = getenv("PRELOAD_HOSTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char each[256];
    int found = 0;
    while (file && !found && fscanf(file, "%255s %255s", each, address) == 2)
        found = !strcmp(each, name);
    if (file) fclose(file);
    return found;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **result) {
    static int (*ask)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    const char *suffix = name ? strstr(name, ".moving.test") : NULL;
    char address[256];
    if (!ask) ask = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!suffix) return ask(name, service, hints, result);
    return known(name, address) ? ask(address, service, hints, result) : EAI_NONAME;
}
