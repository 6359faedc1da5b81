/* The one shared fact of a lab node: what its "kernel driver" and its GPUs are doing.
 *
 * A text file of `key value` lines, framed by `lab-gpus N` and `end N` (N: generation). Only lab-gpu writes
 * it, in place, so that the inode stays the same: a container that has the file mounted sees every change.
 */
#ifndef LAB_STATE_H
#define LAB_STATE_H
#include <stddef.h>

#define STATE_DIR "/run/lab-gpus"
#define STATE_FILE STATE_DIR "/state"
#define STATE_LINES 4096

struct state {
    char *text;
    int count;
    const char *key[STATE_LINES];
    const char *value[STATE_LINES];
};

/* Reads a whole, untorn state from `path`. 0, or -1 with errno. */
int state_read(struct state *s, const char *path);
/* Splits `text` (taken over, malloc'ed) into lines. */
void state_parse(struct state *s, char *text);
void state_free(struct state *s);
/* The value of a key, or NULL. The key is a printf format. */
const char *state_get(const struct state *s, const char *key, ...) __attribute__((format(printf, 2, 3)));
long long state_int(const struct state *s, long long otherwise, const char *key, ...)
    __attribute__((format(printf, 3, 4)));
#endif
