#include "recording_unit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char base[64];

void make_base(void) {
    strcpy(base, "/tmp/dtr-test-recording-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(base));
}

void remove_base(void) {
    char path[600];
    DIR *d = opendir(base);
    ck_assert_ptr_nonnull(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", base, e->d_name);
        if (e->d_name[0] != '.') {
            unlink(path);
        }
    }
    closedir(d);
    ck_assert_int_eq(rmdir(base), 0);
}

void open_world(dtr_world *w, const char *folder, const char *entries) {
    memset(w, 0, sizeof *w);
    w->serial = 3;
    w->job_id = 77;
    w->rank = 2;
    w->size = 5;
    strcpy(w->host, "here");
    setenv("DTR_RECORDER_ENTRIES", entries, 1);
    setenv("DTR_RECORDER_DIR", folder, 1);
    ck_assert_int_eq(dtr__options_read(&w->options), DTR_OK);
    unsetenv("DTR_RECORDER_ENTRIES");
    unsetenv("DTR_RECORDER_DIR");
    ck_assert_int_eq(dtr__recorder_open(w), DTR_OK);
}

void close_world(dtr_world *w) {
    dtr__recorder_close(w);
    dtr__options_free(&w->options);
}

const char *kind_name(int k) {
    return k == 2 ? "allreduce" : "other";
}

const char *op_name(int o) {
    return o == 0 ? "sum" : "max";
}

void find_file(char *path, size_t cap) {
    DIR *d = opendir(base);
    path[0] = '\0';
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] != '.') {
            snprintf(path, cap, "%s/%s", base, e->d_name);
        }
    }
    closedir(d);
}
