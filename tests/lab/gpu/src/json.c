#include "json.h"

#include <ctype.h>
#include <string.h>

struct reader {
    const char *start, *at;
    FILE *out;
    char path[512];
};

static void space(struct reader *r)
{
    while (isspace((unsigned char)*r->at))
        r->at++;
}

static int string(struct reader *r, char *into, size_t room)
{
    if (*r->at++ != '"')
        return -1;
    size_t n = 0;
    while (*r->at && *r->at != '"') {
        char c = *r->at++;
        if (c == '\\')
            c = *r->at++;
        if (n + 1 < room && c != '\n')
            into[n++] = c;
    }
    into[n] = 0;
    return *r->at++ == '"' ? 0 : -1;
}

static int value(struct reader *r);

/* Runs `value` with one more part on the path. */
static int descend(struct reader *r, const char *part)
{
    size_t length = strlen(r->path);
    snprintf(r->path + length, sizeof r->path - length, "%s%s", length ? "." : "", part);
    int result = value(r);
    r->path[length] = 0;
    return result;
}

static int array(struct reader *r)
{
    int count = 0;
    char index[16];
    r->at++;
    for (space(r); *r->at != ']'; space(r)) {
        snprintf(index, sizeof index, "%d", count++);
        if (descend(r, index))
            return -1;
        space(r);
        if (*r->at == ',')
            r->at++;
        else if (*r->at != ']')
            return -1;
    }
    r->at++;
    fprintf(r->out, "%s.count %d\n", r->path, count);
    return 0;
}

static int object(struct reader *r)
{
    char name[128];
    r->at++;
    for (space(r); *r->at != '}'; space(r)) {
        if (string(r, name, sizeof name))
            return -1;
        space(r);
        if (*r->at++ != ':' || descend(r, name))
            return -1;
        space(r);
        if (*r->at == ',')
            r->at++;
        else if (*r->at != '}')
            return -1;
    }
    r->at++;
    return 0;
}

static int value(struct reader *r)
{
    char text[512];
    space(r);
    if (*r->at == '{')
        return object(r);
    if (*r->at == '[')
        return array(r);
    if (*r->at == '"') {
        if (string(r, text, sizeof text))
            return -1;
    } else {
        size_t n = strcspn(r->at, ",]} \t\r\n");
        if (!n || n >= sizeof text)
            return -1;
        memcpy(text, r->at, n);
        text[n] = 0;
        r->at += n;
        if (!strcmp(text, "true"))
            strcpy(text, "1");
        else if (!strcmp(text, "false") || !strcmp(text, "null"))
            strcpy(text, "0");
        else if (!isdigit((unsigned char)*text) && *text != '-')
            return -1;
    }
    fprintf(r->out, "%s %s\n", r->path, text);
    return 0;
}

int json_flatten(const char *text, FILE *out, size_t *where)
{
    struct reader r = {text, text, out, ""};
    int result = value(&r);
    space(&r);
    if (!result && *r.at)
        result = -1;
    *where = (size_t)(r.at - text);
    return result;
}
