/*
 * Overrides of C library functions for one process (LD_PRELOAD): wall clock and name resolution.
 *
 * PRELOAD_CLOCK: a file of eight bytes, the offset of the wall clock in seconds, read at each call.
 * The monotonic clock is unchanged.
 * PRELOAD_HOSTS: a file with lines "name address" for the existing names below .moving.test. Other
 * names are resolved as usual.
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
