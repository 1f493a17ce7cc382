/* The thresholds of this node: parsing of file and list, reading once per node, writing. */
#include "base/tune.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exchange.h"
#include "base/log.h"
#include "base/world.h"

enum { FILE_LIMIT = 1 << 20, WORDS = 3, WORD_CAP = 128 };
#define FIRST_LINE "dtr-tune 1"

static const struct {
    const char *name;
    uint64_t fallback, least, most;
    const char *help;
} table[DTR__TUNE_COUNT] = {
#define X(id, name, def, least, most, help) { name, def, least, most, help },
#include "base/tune.def"
#undef X
};

void dtr__tune_defaults(dtr__tune *t) {
    for (int i = 0; i < DTR__TUNE_COUNT; i++) {
        t->value[i] = table[i].fallback;
    }
}

/* ---- one value ---- */

/* Names that thresholds had before: taken for the new ones, with one warning per name. */
static const char *renamed(const char *where, const char *name) {
    static const char *const names[][2] = {
        { "stage_past", "stage_nontemporal" },
        { "zero_past", "zero_nontemporal" },
    };
    static atomic_flag warned[sizeof names / sizeof names[0]]; /* zero is clear */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i][0], name) == 0) {
            if (!atomic_flag_test_and_set(&warned[i])) {
                DTR_WARN(NULL, "%s: %s is called %s now", where, name, names[i][1]);
            }
            return names[i][1];
        }
    }
    return name;
}

static int find_key(const char *name) {
    for (int i = 0; i < DTR__TUNE_COUNT; i++) {
        if (strcmp(table[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static void list_keys(char *text, size_t cap) {
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < DTR__TUNE_COUNT && at < cap; i++) {
        at += (size_t)snprintf(text + at, cap - at, "%s%s", i > 0 ? ", " : "", table[i].name);
    }
}

/* `where` begins every message: "FILE, line 3" or "DTR_TUNE". */
static dtr_status set(const char *where, const char *name, const char *value, dtr__tune *t) {
    name = renamed(where, name);
    int key = find_key(name);
    if (key < 0) {
        char keys[256];
        list_keys(keys, sizeof keys);
        return DTR_FAIL(NULL, DTR_ERR_ARG, "%s: \"%s\" is no threshold; there are %s", where, name,
                        keys);
    }
    uint64_t number = UINT64_MAX;
    DTR_REQUIRE(strcmp(value, "never") == 0 || dtr__parse_bytes(value, &number), NULL, DTR_ERR_ARG,
                "%s: %s is \"%s\"; write a whole number of bytes, one with KiB, MiB or GiB, or "
                "never",
                where, name, value);
    DTR_REQUIRE(number >= table[key].least && number <= table[key].most, NULL, DTR_ERR_ARG,
                "%s: %s is %s; it must be %llu to %llu bytes", where, name, value,
                (unsigned long long)table[key].least, (unsigned long long)table[key].most);
    t->value[key] = number;
    return DTR_OK;
}

/* ---- DTR_TUNE ---- */

dtr_status dtr__tune_list(const char *text, dtr__tune *t) {
    dtr__tune mine = *t;
    while (*text != '\0') {
        char item[WORD_CAP];
        size_t n = strcspn(text, ",");
        DTR_REQUIRE(n < sizeof item, NULL, DTR_ERR_ARG,
                    "DTR_TUNE: an item has more than %d letters", WORD_CAP - 1);
        memcpy(item, text, n);
        item[n] = '\0';
        char *equals = strchr(item, '=');
        DTR_REQUIRE(equals != NULL, NULL, DTR_ERR_ARG,
                    "DTR_TUNE: \"%s\" has no value; write NAME=SIZE[,NAME=SIZE]", item);
        *equals = '\0';
        DTR_TRY(set("DTR_TUNE", item, equals + 1, &mine));
        text += n + (text[n] == ',');
    }
    *t = mine;
    return DTR_OK;
}

/* ---- a file ---- */

typedef struct reader {
    const char *at, *end;
    int line;
    char where[256];
    char word[WORDS][WORD_CAP];
    int n_words;
} reader;

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* One word, or what is between quotation marks. False when it has no end or is too long. */
static bool take_word(const char **at, const char *end, char *word) {
    const bool quoted = **at == '"';
    const char *from = *at + quoted, *p = from;
    while (p < end && (quoted ? *p != '"' : !is_blank(*p) && *p != '#')) {
        p++;
    }
    const size_t n = (size_t)(p - from);
    if ((quoted && p == end) || n >= WORD_CAP || memchr(from, '\0', n) != NULL) {
        return false;
    }
    memcpy(word, from, n);
    word[n] = '\0';
    *at = p + quoted;
    return true;
}

/* The next line that says something; n_words 0 at the end. */
static dtr_status next_line(reader *r, const char *name) {
    r->n_words = 0;
    while (r->at < r->end && r->n_words == 0) {
        const char *end = memchr(r->at, '\n', (size_t)(r->end - r->at));
        const char *next = end != NULL ? end + 1 : r->end, *at = r->at;
        end = end != NULL ? end : r->end;
        r->line++;
        r->at = next;
        snprintf(r->where, sizeof r->where, "%.200s, line %d", name, r->line);
        for (;;) {
            while (at < end && is_blank(*at)) {
                at++;
            }
            if (at == end || *at == '#') {
                break;
            }
            DTR_REQUIRE(r->n_words < WORDS, NULL, DTR_ERR_ARG, "%s: too many words", r->where);
            DTR_REQUIRE(take_word(&at, end, r->word[r->n_words]), NULL, DTR_ERR_ARG,
                        "%s: a word is longer than %d letters, has no closing quotation mark or "
                        "holds a zero byte",
                        r->where, WORD_CAP - 1);
            r->n_words++;
        }
    }
    return DTR_OK;
}

/* node "MODEL" RANKS */
static dtr_status take_section(const reader *r, const char *cpu, int ranks, bool *mine) {
    DTR_REQUIRE(r->n_words == 3, NULL, DTR_ERR_ARG,
                "%s: a section begins with: node \"CPU MODEL\" RANKS", r->where);
    char *end;
    const char *text = r->word[2];
    unsigned long n = isdigit((unsigned char)text[0]) ? strtoul(text, &end, 10) : 0;
    DTR_REQUIRE(n > 0 && n < 1000000 && *end == '\0', NULL, DTR_ERR_ARG,
                "%s: \"%s\" is no number of ranks", r->where, text);
    *mine = strcmp(r->word[1], cpu) == 0 && n == (unsigned long)ranks;
    return DTR_OK;
}

dtr_status dtr__tune_text(const char *name, const char *text, size_t nbytes, const char *cpu,
                          int ranks, dtr__tune *t, int *sections) {
    reader r = { .at = text, .end = text + nbytes };
    dtr__tune mine = *t, others;
    bool here = false, any = false;
    *sections = 0;
    DTR_TRY(next_line(&r, name));
    DTR_REQUIRE(r.n_words == 2 && strcmp(r.word[0], "dtr-tune") == 0 && strcmp(r.word[1], "1") == 0,
                NULL, DTR_ERR_ARG,
                "%.200s, line %d: it does not begin with \"" FIRST_LINE
                "\"; this build reads version 1 of what dtr-bench --tune writes",
                name, r.line > 0 ? r.line : 1);
    for (;;) {
        DTR_TRY(next_line(&r, name));
        if (r.n_words == 0) {
            *t = mine;
            return DTR_OK;
        }
        if (strcmp(r.word[0], "node") == 0) {
            DTR_TRY(take_section(&r, cpu, ranks, &here));
            *sections += here;
            any = true;
            continue;
        }
        DTR_REQUIRE(r.n_words == 2, NULL, DTR_ERR_ARG, "%s: write one threshold and its value",
                    r.where);
        DTR_REQUIRE(any, NULL, DTR_ERR_ARG,
                    "%s: %s stands before the first section; begin one with: node \"CPU MODEL\" "
                    "RANKS",
                    r.where, r.word[0]);
        others = mine;
        DTR_TRY(set(r.where, r.word[0], r.word[1], here ? &mine : &others));
    }
}

static void write_size(FILE *to, uint64_t n) {
    if (n == UINT64_MAX) {
        fprintf(to, "never");
    } else if (n > 0 && n % 1024 == 0) {
        fprintf(to, "%lluKiB", (unsigned long long)(n / 1024));
    } else {
        fprintf(to, "%llu", (unsigned long long)n);
    }
}

void dtr__tune_write(FILE *to, const char *cpu, int ranks, const dtr__tune *t) {
    fprintf(to,
            FIRST_LINE "\n# Thresholds in bytes of one rank's buffer; DTR_TUNE_FILE names this "
                       "file.\n\nnode \"%s\" %d\n",
            cpu, ranks);
    for (int i = 0; i < DTR__TUNE_COUNT; i++) {
        fprintf(to, "# %s\n%s ", table[i].help, table[i].name);
        write_size(to, t->value[i]);
        fprintf(to, "\n");
    }
}

void dtr__tune_cpu(char *model, size_t cap) {
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(model, cap, "unknown");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon != NULL && strncmp(line, "model name", 10) == 0) {
            snprintf(model, cap, "%s", colon + 1 + strspn(colon + 1, " \t"));
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    size_t n = 0;
    for (const char *p = model; *p != '\0'; p++) {
        if (isprint((unsigned char)*p) && *p != '"') {
            model[n++] = *p;
        }
    }
    model[n] = '\0';
}

/* ---- once per node ---- */

static dtr_status read_file(const char *path, char **text, size_t *nbytes) {
    FILE *f = fopen(path, "r");
    DTR_REQUIRE(f != NULL, NULL, DTR_ERR_IO, "DTR_TUNE_FILE: cannot open %s: %s", path,
                strerror(errno));
    *text = malloc(FILE_LIMIT + 1);
    *nbytes = *text != NULL ? fread(*text, 1, FILE_LIMIT + 1, f) : 0;
    const bool bad = ferror(f) != 0;
    const int code = errno;
    fclose(f);
    DTR_REQUIRE(*text != NULL, NULL, DTR_ERR_NOMEM, "DTR_TUNE_FILE: no memory to read %s", path);
    DTR_REQUIRE(!bad, NULL, DTR_ERR_IO, "DTR_TUNE_FILE: cannot read %s: %s", path, strerror(code));
    DTR_REQUIRE(*nbytes <= FILE_LIMIT, NULL, DTR_ERR_ARG,
                "DTR_TUNE_FILE: %s is longer than %d bytes", path, FILE_LIMIT);
    return DTR_OK;
}

static dtr_status read_settings(const dtr_world *world, dtr__tune *t) {
    const char *path = dtr__opt_text(&world->options, DTR__OPT_TUNE_FILE);
    if (path[0] != '\0') {
        char *text = NULL, cpu[WORD_CAP];
        size_t nbytes = 0;
        int sections = 0;
        dtr__tune_cpu(cpu, sizeof cpu);
        dtr_status s = read_file(path, &text, &nbytes);
        if (s == DTR_OK) {
            s = dtr__tune_text(path, text, nbytes, cpu, world->local_size, t, &sections);
        }
        free(text);
        DTR_TRY(s);
        if (sections == 0) {
            DTR_INFO(world, "%s has no section for %d ranks on \"%s\": built-in thresholds", path,
                     world->local_size, cpu);
        }
    }
    return dtr__tune_list(dtr__opt_text(&world->options, DTR__OPT_TUNE), t);
}

/* ---- what is found out ---- */

/* Seconds of one copy; 0: the kernel refuses. */
static double copy_time(char *to, char *from, size_t nbytes, bool by_kernel) {
    const double begin = dtr__now();
    if (by_kernel) {
        struct iovec here = { to, nbytes }, there = { from, nbytes };
        if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)nbytes) {
            return 0;
        }
    } else {
        memcpy(to, from, nbytes);
        __asm__ volatile("" : : "r"(to) : "memory"); /* the copy has a reader */
    }
    return dtr__now() - begin;
}

/* One copy by the kernel replaces two ordinary ones. Where two ranks make those at the same time it
 * must be about as fast as one of them; where each rank has both to make, or its giver other things
 * to do, as fast as both, of which one fetches data from another core's cache. Its cost is in the
 * pages, which have to be looked up one by one; on virtual machines it can be three times that of a
 * copy. */
static void find_kernel_copies(const dtr_world *world, dtr__tune *t) {
    enum { NBYTES = 256 << 10, SLOW_PERCENT = 150, VERY_SLOW_PERCENT = 250, TIMES = 8 };
    /* The fastest of some, which other work on the machine disturbs least. */
    double kernel = 1, plain = 1;
    char *block = calloc(2, NBYTES);
    if (block == NULL) {
        return;
    }
    memset(block, 1, (size_t)2 * NBYTES); /* pages of its own */
    for (int i = 0; i < TIMES; i++) {
        plain = fmin(plain, copy_time(block, block + NBYTES, NBYTES, false));
        kernel = fmin(kernel, copy_time(block, block + NBYTES, NBYTES, true));
    }
    free(block);
    const bool slow = kernel * 100 > plain * SLOW_PERCENT,
               very = kernel * 100 > plain * VERY_SLOW_PERCENT;
    if (slow) {
        DTR_INFO(world,
                 "cross-memory attach takes %.1f times as long as a copy on host %s: large plain "
                 "buffers are staged%s (cma_* in DTR_TUNE say otherwise)",
                 kernel / plain, world->host,
                 very ? "" : ", but for what ranks exchange or deal out");
        t->value[DTR__TUNE_CMA_REDUCE] = t->value[DTR__TUNE_CMA_P2P] = UINT64_MAX;
    }
    if (very) {
        t->value[DTR__TUNE_CMA_DEAL] = t->value[DTR__TUNE_CMA_EXCHANGE] = UINT64_MAX;
    }
}

bool dtr__tune_fabric(const char *classes) {
    static const char *const known[] = { "infiniband", "cxi" }; /* the first of most vendors */
    bool found = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", classes, known[i]);
        DIR *folder = opendir(path);
        const struct dirent *entry = NULL;
        while (folder != NULL && !found && (entry = readdir(folder)) != NULL) {
            found = entry->d_name[0] != '.';
        }
        if (folder != NULL) {
            closedir(folder);
        }
    }
    return found;
}

dtr_status dtr__tune_open(dtr_world *world) {
    enum { FABRIC_SEGMENT = 32 << 10, FABRIC_INLINE = 4 << 10 };
    dtr_status s = DTR_OK;
    dtr__tune_defaults(&world->tune);
    if (world->local_rank == 0) {
        if (dtr__tune_fabric("/sys/class")) { /* no answer waits behind data, nothing is copied */
            world->tune.value[DTR__TUNE_NODES_SEGMENT] = FABRIC_SEGMENT;
            world->tune.value[DTR__TUNE_NODES_INLINE] = FABRIC_INLINE;
        }
        if (world->local_size > 1 && dtr__opt_number(&world->options, DTR__OPT_CMA) == 0) {
            find_kernel_copies(world, &world->tune);
        }
        const dtr__tune found = world->tune;
        s = read_settings(world, &world->tune);
        world->tune = s == DTR_OK ? world->tune : found;
    }
    DTR_KEEP_FIRST(s, dtr__exchange_broadcast(dtr__members_of_node(world), &world->tune,
                                              sizeof world->tune, 0));
    if (world->node_count > 1) { /* ranks of several nodes go by these: rank 0 speaks for all */
        enum { N = DTR__TUNE_COUNT - DTR__TUNE_NODES_DOUBLING };
        DTR_KEEP_FIRST(s, dtr__exchange_broadcast(dtr__members_of(world),
                                                  &world->tune.value[DTR__TUNE_NODES_DOUBLING],
                                                  N * sizeof world->tune.value[0], 0));
    }
    return s;
}
