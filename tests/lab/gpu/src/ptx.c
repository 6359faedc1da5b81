/* An interpreter of the PTX that gpunode's kernels use. A block's threads run in lockstep, an instruction at a time, so that
 * the compiler can make vector code of the loops over them. Threads that go different ways at a branch run one set after the
 * other, to their ends: there are no barriers. */
#define _GNU_SOURCE
#include "ptx.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC optimize("O3")

enum { REGISTERS = 192, CODE = 1024, LABELS = 16, NAME = 40, VECTOR = 4, DEPTH = 64, CLASSES = 3 };
enum { ILLEGAL_ADDRESS = 700, MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719 };
enum op {
    MOV, ADD, SUB, MUL, MULWIDE, MAD, AND, OR, XOR, NOT, SHL, SHR, CVT, SELP,
    FADD, FSUB, FMUL, FMA, SETP, LDPARAM, LD, ST, RED, BRA, RET,
};
enum compare { EQ, NE, LT, LE, GT, GE };

struct instruction {
    enum op op;
    enum compare compare;
    char kind;           /* of the type: b u s f, p */
    int width, from;     /* bytes of the type, of what cvt converts from */
    int d[VECTOR], a, b, c; /* registers; a of memory: the address */
    int vector, offset, guard, negated, target;
};
struct reg {
    char name[NAME];
    int width; /* 1: a predicate */
    int constant;
    uint64_t value;
};
struct ptx_kernel {
    char name[NAME];
    int parameters, registers, length, labels;
    struct { char name[NAME]; int width; } parameter[PTX_PARAMETERS];
    struct reg reg[REGISTERS];
    struct { char name[NAME]; int at; } label[LABELS];
    char target[CODE][NAME];
    struct instruction code[CODE];
    struct ptx_kernel *next;
};

/* Parser */

struct parser {
    struct ptx_kernel *k;
    char *log;
    size_t room;
    int failed;
};

static int fail(struct parser *p, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!p->failed && p->log && p->room)
        vsnprintf(p->log, p->room, format, args);
    va_end(args);
    return p->failed = 1, -1;
}

static char *strip(char *text)
{
    text += strspn(text, " \t\r\n");
    for (char *end = text + strlen(text); end > text && isspace((unsigned char)end[-1]);)
        *--end = 0;
    return text;
}

static int find(const struct ptx_kernel *k, const char *name)
{
    for (int i = 0; i < k->registers; i++)
        if (!k->reg[i].constant && !strcmp(k->reg[i].name, name))
            return i;
    return -1;
}

static int declare(struct parser *p, const char *name, int width)
{
    if (p->k->registers == REGISTERS)
        return fail(p, "too many registers");
    struct reg *r = &p->k->reg[p->k->registers];
    snprintf(r->name, NAME, "%s", name);
    r->width = width;
    return p->k->registers++;
}

/* The register of an operand; a number becomes one that is never written. */
static int operand(struct parser *p, const char *text, int width)
{
    char *end;
    if (*text == '%') {
        int r = find(p->k, text);
        if (r < 0)
            return fail(p, "unknown register %s", text);
        if (p->k->reg[r].width != width)
            return fail(p, "register %s has another size than the instruction", text);
        return r;
    }
    uint64_t value;
    if (!strncmp(text, "0f", 2) || !strncmp(text, "0F", 2))
        value = strtoull(text + 2, &end, 16);
    else
        value = *text == '-' ? (uint64_t)strtoll(text, &end, 0) : strtoull(text, &end, 0);
    if (end == text || (*end && strcmp(end, "U")))
        return fail(p, "not a number: %s", text);
    int r = declare(p, "", width);
    if (r >= 0)
        p->k->reg[r].constant = 1, p->k->reg[r].value = value;
    return r;
}

static int type(struct parser *p, const char *name, struct instruction *i)
{
    if (!strcmp(name, "pred"))
        return i->kind = 'p', i->width = 1;
    if (!strchr("busf", *name) || !*name || (strcmp(name + 1, "32") && strcmp(name + 1, "64")))
        return fail(p, "unknown type %s", name);
    i->kind = *name;
    return i->width = atoi(name + 1) / 8;
}

/* [%register], [%register+number], [name] */
static int address(struct parser *p, char *text, struct instruction *i)
{
    size_t length = strlen(text);
    if (*text != '[' || text[length - 1] != ']')
        return fail(p, "not an address: %s", text);
    text[length - 1] = 0;
    char *plus = strchr(++text, '+');
    if (plus)
        *plus++ = 0, i->offset = atoi(plus);
    if (i->op == LDPARAM) {
        for (int n = 0; n < p->k->parameters; n++)
            if (!strcmp(p->k->parameter[n].name, text)) {
                if (p->k->parameter[n].width != i->width || plus)
                    return fail(p, "parameter %s has another size", text);
                return i->a = n;
            }
        return fail(p, "no parameter %s", text);
    }
    return i->a = operand(p, strip(text), 8);
}

/* Splits at commas outside of braces. */
static int split(char *text, char **parts, int most)
{
    int n = 0, deep = 0;
    parts[n++] = text;
    for (; *text; text++) {
        deep += (*text == '{') - (*text == '}');
        if (*text == ',' && !deep && n < most)
            *text = 0, parts[n++] = text + 1;
    }
    for (int i = 0; i < n; i++)
        parts[i] = strip(parts[i]);
    return n;
}

static int values(struct parser *p, char *text, struct instruction *i)
{
    char *parts[VECTOR];
    if (*text == '{') {
        text[strlen(text) - 1] = 0;
        if (split(text + 1, parts, VECTOR) != i->vector)
            return fail(p, "a vector of another size");
    } else if (i->vector == 1) {
        parts[0] = text;
    } else {
        return fail(p, "not a vector: %s", text);
    }
    for (int n = 0; n < i->vector; n++)
        i->d[n] = operand(p, parts[n], i->width);
    return 0;
}

static const struct { const char *name; enum op op; int operands; } SIMPLE[] = {
    {"mov", MOV, 2}, {"add", ADD, 3}, {"sub", SUB, 3}, {"mul.lo", MUL, 3}, {"mad.lo", MAD, 4}, {"and", AND, 3}, {"or", OR, 3},
    {"xor", XOR, 3}, {"not", NOT, 2}, {"shl", SHL, 3}, {"shr", SHR, 3}, {"cvta.to.global", MOV, 2},
    {"add.rn", FADD, 3}, {"sub.rn", FSUB, 3}, {"mul.rn", FMUL, 3}, {"fma.rn", FMA, 4},
};

static int instruction(struct parser *p, char *text)
{
    static const char *const COMPARE[] = {"eq", "ne", "lt", "le", "gt", "ge"};
    struct ptx_kernel *k = p->k;
    if (k->length == CODE)
        return fail(p, "too many instructions");
    struct instruction *i = &k->code[k->length];
    *i = (struct instruction){.guard = -1, .vector = 1};
    char shown[120];
    snprintf(shown, sizeof shown, "%s", text);
    if (*text == '@') {
        i->negated = text[1] == '!';
        char *name = text + 1 + i->negated, *end = name + strcspn(name, " \t");
        char *rest = *end ? end + 1 : end;
        *end = 0;
        i->guard = operand(p, name, 1);
        text = strip(rest);
    }
    size_t length = strcspn(text, " \t");
    char name[64], *rest = text[length] ? strip(text + length + 1) : text + length, *parts[4] = {0};
    snprintf(name, sizeof name, "%.*s", (int)length, text);
    int n = *rest ? split(rest, parts, 4) : 0;
    char *last = strrchr(name, '.');
    if (!strcmp(name, "ret") && !n) {
        i->op = RET;
    } else if (!strcmp(name, "bra") && n == 1) {
        i->op = BRA;
        snprintf(k->target[k->length], NAME, "%s", parts[0]);
    } else if (!last) {
        return fail(p, "unknown instruction: %s", shown);
    } else {
        *last = 0;
        if (type(p, last + 1, i) < 0)
            return -1;
        int known = 0;
        for (size_t s = 0; s < sizeof SIMPLE / sizeof *SIMPLE; s++)
            if (!strcmp(SIMPLE[s].name, name) && SIMPLE[s].operands == n) {
                i->op = SIMPLE[s].op;
                int shift = i->op == SHL || i->op == SHR, real = i->op >= FADD && i->op <= FMA;
                if (i->guard >= 0 || (i->kind == 'f' && !real && i->op != MOV) || (real && (i->kind != 'f' || i->width != 4)))
                    return fail(p, "not an instruction of this interpreter: %s", shown);
                i->d[0] = operand(p, parts[0], i->width);
                i->a = operand(p, parts[1], i->width);
                i->b = n > 2 ? operand(p, parts[2], shift ? 4 : i->width) : 0;
                i->c = n > 3 ? operand(p, parts[3], i->width) : 0;
                known = 1;
            }
        if (!known && !strcmp(name, "mul.wide") && n == 3 && i->width == 4 && i->kind == 'u' && i->guard < 0) {
            i->op = MULWIDE;
            i->d[0] = operand(p, parts[0], 8), i->a = operand(p, parts[1], 4), i->b = operand(p, parts[2], 4);
        } else if (!known && (!strcmp(name, "cvt.u64") || !strcmp(name, "cvt.u32")) && n == 2 && i->kind == 'u' && i->guard < 0) {
            i->op = CVT, i->from = i->width, i->width = atoi(name + 5) / 8;
            i->d[0] = operand(p, parts[0], i->width), i->a = operand(p, parts[1], i->from);
        } else if (!known && !strncmp(name, "setp.", 5) && n == 3 && i->guard < 0) {
            for (i->op = SETP; i->compare <= GE && strcmp(name + 5, COMPARE[i->compare]); i->compare++)
                ;
            if (i->compare > GE || i->kind == 's')
                return fail(p, "unknown instruction: %s", shown);
            i->d[0] = operand(p, parts[0], 1), i->a = operand(p, parts[1], i->width), i->b = operand(p, parts[2], i->width);
        } else if (!known && !strcmp(name, "selp") && n == 4 && i->guard < 0) {
            i->op = SELP;
            i->d[0] = operand(p, parts[0], i->width), i->a = operand(p, parts[1], i->width);
            i->b = operand(p, parts[2], i->width), i->c = operand(p, parts[3], 1);
        } else if (!known && !strcmp(name, "ld.param") && n == 2 && i->guard < 0) {
            i->op = LDPARAM;
            i->d[0] = operand(p, parts[0], i->width);
            address(p, parts[1], i);
        } else if (!known && !strcmp(name, "red.global.add") && n == 2 && i->kind == 'u') {
            i->op = RED;
            address(p, parts[0], i);
            i->b = operand(p, parts[1], i->width);
        } else if (!known && n == 2 && (!strncmp(name, "ld.global", 9) || !strncmp(name, "st.global", 9))) {
            int store = *name == 's';
            i->op = store ? ST : LD;
            i->vector = !strcmp(name + 9, ".v2") ? 2 : !strcmp(name + 9, ".v4") ? 4 : 1;
            if (name[9] && i->vector == 1)
                return fail(p, "unknown instruction: %s", shown);
            address(p, parts[!store], i);
            values(p, parts[store], i);
        } else if (!known) {
            return fail(p, "unknown instruction: %s", shown);
        }
    }
    if (p->failed)
        return -1;
    for (int v = 0; i->op != ST && i->op < RED && v < i->vector; v++)
        if (k->reg[i->d[v]].constant)
            return fail(p, "a number is written to: %s", shown);
    return k->length++;
}

static void registers(struct parser *p, char *text)
{
    struct instruction t = {0};
    char *parts[64], *end = text + strcspn(text, " \t");
    if (*text != '.' || !*end) {
        fail(p, "not a declaration: %s", text);
        return;
    }
    *end = 0;
    int width = type(p, text + 1, &t), n = split(end + 1, parts, 64);
    for (int i = 0; i < n && width > 0; i++) {
        char *range = strchr(parts[i], '<');
        if (!range) {
            declare(p, parts[i], width);
            continue;
        }
        *range = 0;
        for (int m = 0; m < atoi(range + 1); m++) {
            char name[NAME + 12];
            snprintf(name, sizeof name, "%.*s%d", NAME / 2, parts[i], m);
            declare(p, name, width);
        }
    }
}

static void parameters(struct parser *p, char *text)
{
    char *parts[PTX_PARAMETERS];
    struct instruction t = {0};
    text = strip(text);
    int n = *text ? split(text, parts, PTX_PARAMETERS) : 0;
    for (int i = 0; i < n; i++) {
        char kind[8], name[NAME];
        if (sscanf(parts[i], ".param .%7s %39s", kind, name) != 2 || type(p, kind, &t) < 0) {
            fail(p, "unknown parameter: %s", parts[i]);
            return;
        }
        snprintf(p->k->parameter[i].name, NAME, "%s", name);
        p->k->parameter[i].width = t.width;
    }
    p->k->parameters = n;
}

static const char *const SPECIAL[] = {"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x"};

static void body(struct parser *p, char *text)
{
    struct ptx_kernel *k = p->k;
    for (int i = 0; i < 4; i++)
        declare(p, SPECIAL[i], 4);
    for (char *statement; !p->failed && (statement = strsep(&text, ";"));) {
        statement = strip(statement);
        for (char *colon; (colon = strchr(statement, ':')) && !p->failed; statement = strip(colon + 1)) {
            *colon = 0;
            if (k->labels == LABELS) {
                fail(p, "too many labels");
                return;
            }
            snprintf(k->label[k->labels].name, NAME, "%s", statement);
            k->label[k->labels++].at = k->length;
        }
        if (!strncmp(statement, ".reg", 4) && isspace((unsigned char)statement[4]))
            registers(p, strip(statement + 4));
        else if (*statement)
            instruction(p, statement);
    }
    for (int i = 0; i < k->length && !p->failed; i++) {
        k->code[i].target = -1;
        for (int l = 0; l < k->labels; l++)
            if (k->code[i].op == BRA && !strcmp(k->label[l].name, k->target[i]))
                k->code[i].target = k->label[l].at;
        if (k->code[i].op == BRA && k->code[i].target < 0)
            fail(p, "no label %s", k->target[i]);
    }
}

static void uncomment(char *text)
{
    for (char *at = text; *at; at++) {
        char *end = !strncmp(at, "//", 2) ? at + strcspn(at, "\n") : !strncmp(at, "/*", 2) ? strstr(at, "*/") : at;
        end = end ? end + 2 * (*end == '*' && end > at) : at + strlen(at);
        for (; at < end; at++)
            *at = ' ';
        if (!*at)
            return;
    }
}

struct ptx_kernel *ptx_parse(const char *text, char *log, size_t room)
{
    char *copy = strdup(text), *at = copy;
    struct ptx_kernel *all = NULL;
    struct parser p = {NULL, log, room, 0};
    uncomment(copy);
    while (!p.failed && (at = strstr(at, ".entry"))) {
        p.k = calloc(1, sizeof *p.k);
        p.k->next = all;
        all = p.k;
        char *open = strchr(at, '('), *close = open ? strchr(open, ')') : NULL;
        char *begin = close ? strchr(close, '{') : NULL, *end = begin ? begin : NULL;
        for (int deep = 0; end && *end; end++) {
            deep += (*end == '{') - (*end == '}');
            if (!deep)
                break;
        }
        if (!end || !*end) {
            fail(&p, "an entry without an end");
            break;
        }
        *open = *close = *end = 0;
        snprintf(p.k->name, NAME, "%s", strip(at + strlen(".entry")));
        parameters(&p, open + 1);
        body(&p, begin + 1);
        at = end + 1;
    }
    free(copy);
    if (p.failed || !all) {
        fail(&p, "no entry");
        ptx_free(all);
        return NULL;
    }
    return all;
}

void ptx_free(struct ptx_kernel *k)
{
    for (struct ptx_kernel *next; k; k = next) {
        next = k->next;
        free(k);
    }
}

struct ptx_kernel *ptx_entry(struct ptx_kernel *k, const char *name)
{
    for (; k; k = k->next)
        if (!strcmp(k->name, name))
            return k;
    return NULL;
}

/* Execution */

struct block {
    const struct ptx_kernel *k;
    unsigned n;
    char *registers; /* of each n slots of 8 bytes */
    unsigned char alive[PTX_THREADS];
    void **parameters;
    ptx_memory *memory;
    ptx_stored *stored;
    struct ptx_work *work;
    uint64_t near;
    char *near_host;
    size_t near_room;
};

#define SLOT(r) (b->registers + (size_t)(r) * b->n * 8)
#define W(r) ((uint32_t *)(void *)SLOT(r))
#define D(r) ((uint64_t *)(void *)SLOT(r))
#define F(r) ((float *)(void *)SLOT(r))
#define EACH _Pragma("GCC ivdep") for (unsigned l = 0; l < n; l++)
/* The same expression for both sizes; `x`, `y`, `z` are the operands. */
#define BOTH(expression) \
    if (i->width == 4) { \
        uint32_t *out = W(i->d[0]); \
        const uint32_t *A = W(i->a), *B = W(i->b), *C = W(i->c); \
        EACH { \
            uint32_t x = A[l], y = B[l], z = C[l]; \
            (void)x, (void)y, (void)z; \
            out[l] = (uint32_t)(expression); \
        } \
    } else { \
        uint64_t *out = D(i->d[0]); \
        const uint64_t *A = D(i->a), *B = D(i->b), *C = D(i->c); \
        EACH { \
            uint64_t x = A[l], y = B[l], z = C[l]; \
            (void)x, (void)y, (void)z; \
            out[l] = (uint64_t)(expression); \
        } \
    } \
    break

#define LOOP_FMA EACH d[l] = __builtin_fmaf(x[l], y[l], z[l])
#ifdef __x86_64__
__attribute__((target("avx2,fma"))) static void fma_fast(float *d, const float *x, const float *y, const float *z, unsigned n)
{
    LOOP_FMA;
}
#endif
static void fma_lanes(float *d, const float *x, const float *y, const float *z, unsigned n)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) {
        fma_fast(d, x, y, z, n);
        return;
    }
#endif
    LOOP_FMA;
}

static void compare(struct block *b, const struct instruction *i)
{
    uint32_t *out = W(i->d[0]);
    for (unsigned l = 0; l < b->n; l++) {
        int order; /* 2: not a number */
        if (i->kind == 'f') {
            float x = F(i->a)[l], y = F(i->b)[l];
            order = x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
        } else {
            uint64_t x = i->width == 4 ? W(i->a)[l] : D(i->a)[l], y = i->width == 4 ? W(i->b)[l] : D(i->b)[l];
            order = x < y ? -1 : x > y;
        }
        switch (i->compare) {
        case EQ: out[l] = order == 0; break;
        case NE: out[l] = order == -1 || order == 1; break;
        case LT: out[l] = order == -1; break;
        case LE: out[l] = order == -1 || order == 0; break;
        case GT: out[l] = order == 1; break;
        case GE: out[l] = order == 1 || order == 0; break;
        }
    }
}

static int taken(struct block *b, const struct instruction *i, unsigned l)
{
    return b->alive[l] && (i->guard < 0 || (W(i->guard)[l] != 0) != i->negated);
}

static int access_memory(struct block *b, const struct instruction *i)
{
    size_t size = (size_t)i->width * (size_t)i->vector;
    const uint64_t *addresses = D(i->a);
    char *lanes[VECTOR];
    for (int v = 0; v < i->vector; v++)
        lanes[v] = SLOT(i->op == RED ? i->b : i->d[v]);
    for (unsigned l = 0; l < b->n; l++) {
        if (!taken(b, i, l))
            continue;
        uint64_t address = addresses[l] + (uint64_t)(int64_t)i->offset;
        if (address & (size - 1))
            return MISALIGNED_ADDRESS;
        if (address < b->near || b->near_room < size || address - b->near > b->near_room - size) {
            b->near = address;
            b->near_host = b->memory(address, size, &b->near_room);
            if (!b->near_host)
                return b->near_room = 0, ILLEGAL_ADDRESS;
        }
        char *host = b->near_host + (address - b->near);
        b->work->bytes += size;
        if (i->op == RED && i->width == 4)
            *(uint32_t *)(void *)host += ((uint32_t *)(void *)lanes[0])[l];
        else if (i->op == RED)
            *(uint64_t *)(void *)host += ((uint64_t *)(void *)lanes[0])[l];
        else
            for (int v = 0; v < i->vector; v++) {
                char *slot = lanes[v] + (size_t)l * (size_t)i->width, *word = host + v * i->width;
                if (i->width == 4)
                    *(uint32_t *)(void *)(i->op == LD ? slot : word) = *(uint32_t *)(void *)(i->op == LD ? word : slot);
                else
                    *(uint64_t *)(void *)(i->op == LD ? slot : word) = *(uint64_t *)(void *)(i->op == LD ? word : slot);
            }
        if (b->stored && i->op != LD)
            b->stored(address, host, size);
    }
    return 0;
}

static int run(struct block *b, int at, int depth);

/* Runs the set of threads that take the branch to their ends, then leaves the others where they are. */
static int diverge(struct block *b, const struct instruction *i, int depth)
{
    if (depth == DEPTH)
        return LAUNCH_FAILED;
    unsigned char alive[PTX_THREADS];
    size_t size = (size_t)b->k->registers * b->n * 8;
    char *kept = malloc(size);
    memcpy(alive, b->alive, sizeof alive);
    memcpy(kept, b->registers, size);
    for (unsigned l = 0; l < b->n; l++)
        b->alive[l] = (unsigned char)taken(b, i, l);
    int result = run(b, i->target, depth + 1);
    memcpy(b->registers, kept, size);
    free(kept);
    for (unsigned l = 0; l < b->n; l++)
        b->alive[l] = alive[l];
    for (unsigned l = 0; l < b->n; l++)
        b->alive[l] = alive[l] && !taken(b, i, l);
    return result;
}

static int run(struct block *b, int at, int depth)
{
    const struct ptx_kernel *k = b->k;
    unsigned n = b->n;
    while (at < k->length) {
        const struct instruction *i = &k->code[at++];
        switch (i->op) {
        case MOV: BOTH(x);
        case ADD: BOTH(x + y);
        case SUB: BOTH(x - y);
        case MUL: BOTH(x * y);
        case MAD: BOTH(x * y + z);
        case AND: BOTH(x & y);
        case OR: BOTH(x | y);
        case XOR: BOTH(x ^ y);
        case NOT: BOTH(~x);
        case SHL:
            if (i->width == 4)
                EACH W(i->d[0])[l] = W(i->b)[l] > 31 ? 0 : W(i->a)[l] << W(i->b)[l];
            else
                EACH D(i->d[0])[l] = W(i->b)[l] > 63 ? 0 : D(i->a)[l] << W(i->b)[l];
            break;
        case SHR:
            if (i->width == 4)
                EACH W(i->d[0])[l] = W(i->b)[l] > 31 ? 0 : W(i->a)[l] >> W(i->b)[l];
            else
                EACH D(i->d[0])[l] = W(i->b)[l] > 63 ? 0 : D(i->a)[l] >> W(i->b)[l];
            break;
        case MULWIDE:
            EACH D(i->d[0])[l] = (uint64_t)W(i->a)[l] * W(i->b)[l];
            break;
        case CVT:
            if (i->width == 8)
                EACH
                    D(i->d[0])[l] = i->from == 4 ? W(i->a)[l] : D(i->a)[l];
            else
                EACH W(i->d[0])[l] = i->from == 4 ? W(i->a)[l] : (uint32_t)D(i->a)[l];
            break;
        case SELP:
            if (i->width == 4)
                EACH W(i->d[0])[l] = W(i->c)[l] ? W(i->a)[l] : W(i->b)[l];
            else
                EACH D(i->d[0])[l] = W(i->c)[l] ? D(i->a)[l] : D(i->b)[l];
            break;
        case FADD:
            EACH F(i->d[0])[l] = F(i->a)[l] + F(i->b)[l];
            break;
        case FSUB:
            EACH F(i->d[0])[l] = F(i->a)[l] - F(i->b)[l];
            break;
        case FMUL:
            EACH F(i->d[0])[l] = F(i->a)[l] * F(i->b)[l];
            break;
        case FMA:
            fma_lanes(F(i->d[0]), F(i->a), F(i->b), F(i->c), n);
            b->work->operations += 2 * n;
            break;
        case SETP:
            compare(b, i);
            break;
        case LDPARAM:
            if (i->width == 4) {
                uint32_t value;
                memcpy(&value, b->parameters[i->a], 4);
                EACH W(i->d[0])[l] = value;
            } else {
                uint64_t value;
                memcpy(&value, b->parameters[i->a], 8);
                EACH D(i->d[0])[l] = value;
            }
            break;
        case LD: case ST: case RED: {
            int result = access_memory(b, i);
            if (result)
                return result;
            break;
        }
        case RET: {
            unsigned left = 0;
            EACH {
                b->alive[l] = b->alive[l] && !taken(b, i, l);
                left += b->alive[l];
            }
            if (!left)
                return 0;
            break;
        }
        case BRA: {
            unsigned go = 0, stay = 0;
            EACH {
                int there = taken(b, i, l);
                go += (unsigned)there;
                stay += b->alive[l] && !there;
            }
            if (!stay)
                at = i->target;
            else if (go) {
                int result = diverge(b, i, depth);
                if (result)
                    return result;
            }
            break;
        }
        }
    }
    return 0;
}

int ptx_run(const struct ptx_kernel *k, unsigned blocks, unsigned threads, void **parameters, ptx_memory *memory,
            ptx_stored *stored, struct ptx_work *work)
{
    struct block b = {.k = k, .n = threads, .parameters = parameters, .memory = memory, .stored = stored, .work = work};
    int result = 0;
    b.registers = malloc((size_t)k->registers * threads * 8);
    for (unsigned number = 0; number < blocks && !result; number++) {
        /* registers that are read before they are written shall not work by chance */
        memset(b.registers, 0xa5, (size_t)k->registers * threads * 8);
        for (int r = 0; r < k->registers; r++)
            for (unsigned l = 0; l < threads; l++) {
                uint64_t value = r == 0 ? l : r == 1 ? threads : r == 2 ? number : r == 3 ? blocks : k->reg[r].value;
                if (r > 3 && !k->reg[r].constant)
                    break;
                if (k->reg[r].width == 8)
                    ((uint64_t *)(void *)(b.registers + (size_t)r * threads * 8))[l] = value;
                else
                    ((uint32_t *)(void *)(b.registers + (size_t)r * threads * 8))[l] = (uint32_t)value;
            }
        memset(b.alive, 1, sizeof b.alive);
        result = run(&b, 0, 0);
    }
    free(b.registers);
    return result;
}
