#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void state_parse(struct state *s, char *text)
{
    s->text = text;
    s->count = 0;
    char *rest = text, *line;
    while ((line = strsep(&rest, "\n")) && s->count < STATE_LINES) {
        if (!*line)
            continue;
        char *value = strchr(line, ' ');
        if (value)
            *value++ = 0;
        s->key[s->count] = line;
        s->value[s->count++] = value ? value : "";
    }
}

static char *slurp(int fd)
{
    size_t size = 0, room = 1 << 15;
    char *text = malloc(room + 1);
    for (;;) {
        if (!text)
            return NULL;
        ssize_t n = pread(fd, text + size, room - size, (off_t)size);
        if (n <= 0)
            break;
        size += (size_t)n;
        if (size == room)
            text = realloc(text, (room *= 2) + 1);
    }
    text[size] = 0;
    return text;
}

int state_read(struct state *s, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    for (int attempt = 0; attempt < 1000; attempt++) {
        char *text = slurp(fd);
        if (!text)
            break;
        /* The writer replaces the text in place; a torn read shows two generations. */
        unsigned long head = 0, tail = 1;
        size_t size = strlen(text);
        char *end = NULL;
        if (size && text[size - 1] == '\n') {
            text[size - 1] = 0;
            end = strrchr(text, '\n');
            text[size - 1] = '\n';
        }
        if (end && sscanf(text, "lab-gpus %lu", &head) == 1 && sscanf(end + 1, "end %lu", &tail) == 1 && head == tail) {
            close(fd);
            state_parse(s, text);
            return 0;
        }
        free(text);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    close(fd);
    errno = EIO;
    return -1;
}

void state_free(struct state *s)
{
    free(s->text);
    s->text = NULL;
    s->count = 0;
}

static const char *lookup(const struct state *s, const char *key)
{
    for (int i = 0; i < s->count; i++)
        if (!strcmp(s->key[i], key))
            return s->value[i];
    return NULL;
}

const char *state_get(const struct state *s, const char *format, ...)
{
    char key[256];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    return lookup(s, key);
}

long long state_int(const struct state *s, long long otherwise, const char *format, ...)
{
    char key[256];
    va_list args;
    va_start(args, format);
    vsnprintf(key, sizeof key, format, args);
    va_end(args);
    const char *value = lookup(s, key);
    return value && *value ? strtoll(value, NULL, 0) : otherwise;
}
