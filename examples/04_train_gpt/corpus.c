/* Training text. */
#include "corpus.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "gpt.h"

static int append_file(corpus *c, const char *path, char *why, size_t cap) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        snprintf(why, cap, "cannot open %s: %s", path, strerror(errno));
        return -1;
    }
    int rc = 0;
    uint8_t chunk[1 << 16];
    size_t n = 0;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        uint8_t *grown = realloc(c->text, c->size + n);
        if (grown == NULL) {
            break;
        }
        c->text = grown;
        memcpy(c->text + c->size, chunk, n);
        c->size += n;
    }
    if (n > 0 || ferror(f)) {
        snprintf(why, cap, "cannot read %s: %s", path, strerror(n > 0 ? ENOMEM : errno));
        rc = -1;
    }
    fclose(f);
    c->files++;
    return rc;
}

static int not_hidden(const struct dirent *e) {
    return e->d_name[0] != '.';
}

static int append_directory(corpus *c, const char *path, char *why, size_t cap) {
    struct dirent **list = NULL;
    int n = scandir(path, &list, not_hidden, alphasort), rc = 0;
    if (n < 0) {
        snprintf(why, cap, "cannot list %s: %s", path, strerror(errno));
        return -1;
    }
    for (int i = 0; i < n; i++) {
        char name[4096];
        struct stat st;
        snprintf(name, sizeof name, "%s/%s", path, list[i]->d_name);
        if (rc == 0 && lstat(name, &st) == 0 && S_ISREG(st.st_mode)) {
            rc = append_file(c, name, why, cap);
        }
        free(list[i]);
    }
    free(list);
    return rc;
}

int corpus_load(corpus *c, const char *path, char *why, size_t cap) {
    *c = (corpus){ 0 };
    struct stat st;
    if (stat(path, &st) != 0) {
        snprintf(why, cap, "cannot find %s: %s; name a text file with --data", path,
                 strerror(errno));
        return -1;
    }
    int rc =
        S_ISDIR(st.st_mode) ? append_directory(c, path, why, cap) : append_file(c, path, why, cap);
    if (rc != 0) {
        corpus_free(c);
    }
    return rc;
}

void corpus_free(corpus *c) {
    free(c->text);
    *c = (corpus){ 0 };
}

void corpus_sequence(const corpus *c, uint64_t seed, long step, int index, int context,
                     uint8_t *input, uint8_t *target) {
    uint64_t state = seed ^ ((uint64_t)step << 24) ^ (uint64_t)index;
    gpt_random(&state); /* spread neighbouring seeds */
    size_t at = (size_t)(gpt_random(&state) % (uint64_t)(c->size - (size_t)context));
    memcpy(input, c->text + at, (size_t)context);
    memcpy(target, c->text + at + 1, (size_t)context);
}
