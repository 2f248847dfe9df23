/*
 * Override of rename() for a Spark job (LD_PRELOAD), which blocks forever for one path.
 *
 * PRELOAD_HOLD: a path suffix. A thread that renames a file to such a path blocks forever.
 * PRELOAD_HELD: a file that is created once a thread blocks.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int rename(const char *old, const char *new) {
    static int (*next)(const char *, const char *);
    const char *end = getenv("PRELOAD_HOLD"), *held = getenv("PRELOAD_HELD");
    size_t skip = end && strlen(new) > strlen(end) ? strlen(new) - strlen(end) : 0;
    if (skip && held && !strcmp(new + skip, end)) {
        close(open(held, O_CREAT | O_WRONLY, 0600));
        for (;;) pause();
    }
    if (!next) next = dlsym(RTLD_NEXT, "rename");
    return next(old, new);
}
