/* JSON flattened to `path value` lines: {"a": [{"b": 1}]} is `a.0.b 1` and `a.count 1`.
 * Enough for the lab's own files: no \u escapes, numbers as they stand, null and false as 0, true as 1. */
#ifndef LAB_JSON_H
#define LAB_JSON_H
#include <stdio.h>
/* 0, or -1 when the text is not JSON; *where is then the offset of the mistake. */
int json_flatten(const char *text, FILE *out, size_t *where);
#endif
