/* Settings: parsing, the environment over the defaults, unknown names, and the table dtr-info
 * prints. */
#include "base/options.h"

#include <ctype.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/file.h"

typedef struct setting {
    const char *name;
    dtr__opt_type type;
    const char *fallback, *help;
} setting;

static const setting table[DTR__OPT_COUNT] = {
#define X(id, name, type, def, help) { name, DTR__OPT_##type, def, help },
#include "base/options.def"
#undef X
};

extern char **environ;

/* ---- one value ---- */

static bool is_word(const char *text, const char *word, size_t length) {
    return strlen(text) == length && strncasecmp(text, word, length) == 0;
}

static bool parse_bool(const char *text, dtr__opt_value *v) {
    static const char *const words[][2] = {
        { "0", "1" }, { "no", "yes" }, { "false", "true" }, { "off", "on" }
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (int b = 0; b < 2; b++) {
            if (strcasecmp(text, words[i][b]) == 0) {
                v->number = (uint64_t)b;
                return true;
            }
        }
    }
    return false;
}

/* Digits only; *end is what follows. strtoull alone would take signs and blanks. */
static bool parse_digits(const char *text, uint64_t *number, char **end) {
    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    errno = 0;
    *number = strtoull(text, end, 10);
    return errno == 0;
}

static bool parse_int(const char *text, const char *help, dtr__opt_value *v) {
    char *end;
    uint64_t number;
    unsigned long long low, high;
    if (!parse_digits(text, &number, &end) || *end != '\0') {
        return false;
    }
    if (sscanf(help, "%llu..%llu:", &low, &high) == 2 && (number < low || number > high)) {
        return false;
    }
    v->number = number;
    return true;
}

bool dtr__parse_bytes(const char *text, uint64_t *number) {
    static const struct {
        const char *unit;
        int shift;
    } units[] = { { "", 0 },     { "b", 0 },  { "kib", 10 }, { "mib", 20 }, { "gib", 30 },
                  { "tib", 40 }, { "k", 10 }, { "m", 20 },   { "g", 30 },   { "t", 40 } };
    char *end;
    uint64_t digits;
    if (!parse_digits(text, &digits, &end)) {
        return false;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (strcasecmp(end, units[i].unit) == 0) {
            *number = digits << units[i].shift;
            return *number >> units[i].shift == digits;
        }
    }
    return false;
}

/* "256KiB..1GiB:" at the beginning of a help. */
static bool bytes_range(const char *help, uint64_t *low, uint64_t *high) {
    char text[64];
    size_t n = strcspn(help, ":");
    char *dots;
    if (n >= sizeof text) {
        return false;
    }
    memcpy(text, help, n);
    text[n] = '\0';
    dots = strstr(text, "..");
    if (dots == NULL) {
        return false;
    }
    *dots = '\0';
    return dtr__parse_bytes(text, low) && dtr__parse_bytes(dots + 2, high);
}

static bool parse_seconds(const char *text, const char *help, dtr__opt_value *v) {
    if (strcasecmp(text, "inf") == 0 || strcasecmp(text, "infinity") == 0) {
        v->seconds = INFINITY;
        return true;
    }
    /* Own check of the first character: strtod takes blanks, signs, hexadecimal and nan. */
    if (!isdigit((unsigned char)text[0]) && text[0] != '.') {
        return false;
    }
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        return false;
    }
    char *end;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* the host may write 1,5 */
    double seconds = c != (locale_t)0 ? strtod_l(text, &end, c) : strtod(text, &end);
    if (c != (locale_t)0) {
        freelocale(c);
    }
    bool zero_is_off = strstr(help, "0: off") != NULL;
    if (*end != '\0' || end == text || isinf(seconds) || (seconds == 0 && !zero_is_off)) {
        return false;
    }
    v->seconds = seconds;
    return true;
}

static bool parse_enum(const char *text, const char *help, dtr__opt_value *v) {
    const char *word = help;
    for (uint64_t index = 0;; index++) {
        size_t length = strcspn(word, "|:");
        if (is_word(text, word, length)) {
            v->number = index;
            return true;
        }
        if (word[length] != '|') {
            return false;
        }
        word += length + 1;
    }
}

static void accepted(const setting *s, char *text, size_t cap) {
    int words = (int)strcspn(s->help, ":");
    uint64_t low, high;
    switch (s->type) {
    case DTR__OPT_BOOL:
        snprintf(text, cap, "0/1, no/yes, false/true or off/on");
        break;
    case DTR__OPT_INT:
        if (strstr(s->help, "..") != NULL) {
            snprintf(text, cap, "a whole number %.*s", words, s->help);
        } else {
            snprintf(text, cap, "a whole number from 0");
        }
        break;
    case DTR__OPT_BYTES:
        snprintf(text, cap, "a whole number of bytes, or one with KiB, MiB, GiB or TiB%s%.*s",
                 bytes_range(s->help, &low, &high) ? ", in " : "",
                 bytes_range(s->help, &low, &high) ? words : 0, s->help);
        break;
    case DTR__OPT_SECONDS:
        snprintf(text, cap, "seconds as a decimal number > 0, or inf%s",
                 strstr(s->help, "0: off") != NULL ? ", or 0 for off" : "");
        break;
    case DTR__OPT_ENUM:
        snprintf(text, cap, "one of %.*s", words, s->help);
        break;
    case DTR__OPT_TEXT:
        snprintf(text, cap, "text");
        break;
    }
}

static bool parse(const setting *s, const char *text, dtr__opt_value *v) {
    uint64_t low, high;
    switch (s->type) {
    case DTR__OPT_BOOL:
        return parse_bool(text, v);
    case DTR__OPT_INT:
        return parse_int(text, s->help, v);
    case DTR__OPT_BYTES:
        return dtr__parse_bytes(text, &v->number) &&
               (!bytes_range(s->help, &low, &high) || (v->number >= low && v->number <= high));
    case DTR__OPT_SECONDS:
        return parse_seconds(text, s->help, v);
    case DTR__OPT_ENUM:
        return parse_enum(text, s->help, v);
    case DTR__OPT_TEXT:
        return true;
    }
    return false;
}

static dtr_status assign(dtr__options *o, dtr__opt id, const char *text, dtr__opt_origin origin) {
    const setting *s = &table[id];
    dtr__opt_value v = { .origin = origin };
    if (!parse(s, text, &v)) {
        char what[160];
        accepted(s, what, sizeof what);
        return DTR_FAIL(NULL, DTR_ERR_ARG, "%s is \"%s\"; accepted is %s", s->name, text, what);
    }
    v.text = strdup(text);
    DTR_REQUIRE(v.text != NULL, NULL, DTR_ERR_NOMEM, "no memory for the text of %s", s->name);
    free(o->value[id].text);
    o->value[id] = v;
    return DTR_OK;
}

/* ---- all values ---- */

/* A program with more rights than its caller takes no paths from him. */
static const char *from_environment(dtr__opt id) {
    bool path = id == DTR__OPT_LOG_FILE || id == DTR__OPT_METRICS_FILE ||
                id == DTR__OPT_RECORDER_DIR || id == DTR__OPT_TRACE || id == DTR__OPT_TUNE_FILE;
    return path ? secure_getenv(table[id].name) : getenv(table[id].name);
}

dtr_status dtr__options_read(dtr__options *o) {
    memset(o, 0, sizeof *o);
    for (int id = 0; id < DTR__OPT_COUNT; id++) {
        dtr_status s = assign(o, (dtr__opt)id, table[id].fallback, DTR__FROM_DEFAULT);
        const char *set = from_environment((dtr__opt)id);
        if (s == DTR_OK && set != NULL && set[0] != '\0') { /* empty counts as unset */
            s = assign(o, (dtr__opt)id, set, DTR__FROM_ENV);
        }
        if (s != DTR_OK) {
            dtr__options_free(o);
            return s;
        }
    }
    return DTR_OK;
}

void dtr__options_free(dtr__options *o) {
    for (int id = 0; id < DTR__OPT_COUNT; id++) {
        free(o->value[id].text);
    }
    memset(o, 0, sizeof *o);
}

dtr_status dtr__options_set(dtr__options *o, dtr__opt id, const char *text) {
    return assign(o, id, text, DTR__FROM_CODE);
}

dtr_status dtr__options_set_seconds(dtr__options *o, dtr__opt id, double seconds) {
    char text[32];
    const locale_t was = dtr__point_begin();
    snprintf(text, sizeof text, "%g", seconds);
    dtr__point_end(was);
    char *copy = strdup(text);
    DTR_REQUIRE(copy != NULL, NULL, DTR_ERR_NOMEM, "no memory for the text of %s", table[id].name);
    free(o->value[id].text);
    o->value[id] = (dtr__opt_value){ .origin = DTR__FROM_CODE, .text = copy, .seconds = seconds };
    return DTR_OK;
}

/* ---- one setting ---- */

const char *dtr__opt_name(dtr__opt id) {
    return table[id].name;
}

bool dtr__opt_alike(dtr__opt id) {
    static const char suffix[] = "; the same on all ranks";
    const size_t n = strlen(table[id].help), k = sizeof suffix - 1;
    return n > k && strcmp(table[id].help + n - k, suffix) == 0;
}

void dtr__opt_canonical(const dtr__options *o, dtr__opt id, char *text, size_t cap) {
    const dtr__opt_value *v = &o->value[id];
    const locale_t was = dtr__point_begin();
    switch (table[id].type) {
    case DTR__OPT_TEXT:
        snprintf(text, cap, "%s", v->text);
        break;
    case DTR__OPT_SECONDS:
        snprintf(text, cap, "%.17g", v->seconds);
        break;
    case DTR__OPT_BOOL:
    case DTR__OPT_INT:
    case DTR__OPT_BYTES:
    case DTR__OPT_ENUM:
        snprintf(text, cap, "%llu", (unsigned long long)v->number);
        break;
    }
    dtr__point_end(was);
}

/* ---- unknown names ---- */

/* Levenshtein distance; names longer than the row count as far away. */
static size_t distance(const char *a, const char *b) {
    enum { ROW = 64 };
    size_t row[ROW + 1], na = strlen(a), nb = strlen(b);
    if (nb > ROW) {
        return SIZE_MAX - 1;
    }
    for (size_t j = 0; j <= nb; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t swap = diagonal + (toupper((unsigned char)a[i - 1]) != b[j - 1]);
            diagonal = row[j];
            size_t step = (row[j - 1] < row[j] ? row[j - 1] : row[j]) + 1;
            row[j] = step < swap ? step : swap;
        }
    }
    return row[nb];
}

/* "DTR_TIMEOUT_S" and "DTR_RECORDER" mean the setting they begin like. */
static bool begins_alike(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b), n = na < nb ? na : nb;
    return n > strlen("DTR_") && strncasecmp(a, b, n) == 0;
}

static const char *nearest_name(const char *name) {
    const char *best = table[0].name;
    size_t away = SIZE_MAX;
    for (int id = 0; id < DTR__OPT_COUNT; id++) {
        size_t d = begins_alike(name, table[id].name) ? 2 : distance(name, table[id].name);
        if (d < away) {
            away = d;
            best = table[id].name;
        }
    }
    return best;
}

static bool is_setting(const char *name) {
    for (int id = 0; id < DTR__OPT_COUNT; id++) {
        if (strcmp(name, table[id].name) == 0) {
            return true;
        }
    }
    return false;
}

void dtr__options_unknown(void (*warn)(void *arg, const char *name, const char *nearest),
                          void *arg) {
    for (char **e = environ; e != NULL && *e != NULL; e++) {
        if (strncmp(*e, "DTR_", 4) != 0 || strncmp(*e, "DTR_FAKE_", 9) == 0) {
            continue;
        }
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*e, "="), *e);
        if (!is_setting(name)) {
            warn(arg, name, nearest_name(name));
        }
    }
}

/* ---- printing ---- */

void dtr__options_print(const dtr__options *o, FILE *to) {
    static const char *const types[] = { "bool", "int", "bytes", "seconds", "text", "enum" };
    static const char *const origins[] = { "default", "environment", "code" };
    static const char line[] = "%-22s %-8s %-20s %-20s %-12s %s\n";
    fprintf(to, line, "name", "type", "default", "value", "set by", "help");
    for (int id = 0; id < DTR__OPT_COUNT; id++) {
        const setting *s = &table[id];
        const dtr__opt_value *v = &o->value[id];
        fprintf(to, line, s->name, types[s->type], s->fallback[0] != '\0' ? s->fallback : "-",
                v->text[0] != '\0' ? v->text : "-", origins[v->origin], s->help);
    }
}

void dtr__options_list(const dtr__options *o, char *text, size_t cap) {
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < DTR__OPT_COUNT; i++) {
        if (o->value[i].origin != DTR__FROM_DEFAULT && at + 1 < cap) {
            int n = snprintf(text + at, cap - at, "%s=%s\n", table[i].name, o->value[i].text);
            at += n > 0 && (size_t)n < cap - at ? (size_t)n : cap - at - 1;
        }
    }
    for (char **e = environ; e != NULL && *e != NULL; e++) {
        if (strncmp(*e, "NCCL_", 5) == 0 && at + 1 < cap) {
            int n = snprintf(text + at, cap - at, "%s\n", *e);
            at += n > 0 && (size_t)n < cap - at ? (size_t)n : cap - at - 1;
        }
    }
}
