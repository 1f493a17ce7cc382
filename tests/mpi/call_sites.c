/* Where a call was made, as recordings and errors have it: never cut into another place, and right
 * for places that a program makes up while it runs (reliability P13). */
#include <stdio.h>
#include <string.h>

#include "core/call.h"
#include "core/call_site.h"
#include "harness.h"
#include "recorder/recorder.h"

enum { TIMES = 40 };

/* The site of the newest record is `want`. */
static void newest(const char *want) {
    dtr__record r = { .site = "" };
    TH_CHECK(dtr__rec_read(th_world(), &r, 1) == 1, "no record");
    TH_CHECK(strcmp(r.site, want) == 0, "the site is '%s', not '%s'", r.site, want);
}

static dtr_status reduce(void) {
    int32_t x = 1, y = 0;
    return (dtr_allreduce)(th_group(), dtr_cpu_in(&x, 1, DTR_I32), dtr_cpu(&y, 1, DTR_I32), DTR_SUM,
                           NULL, NULL); /* by itself, not by the macro, which names this line */
}

/* The number stays whole, and '~' stands for what the name lacks. */
START_TEST(texts_are_cut_in_the_name) {
    static const struct {
        const char *file;
        int line;
        size_t cap;
        const char *want;
    } rows[] = {
        { "train.c", 88, 48, "train.c:88" },
        { "/a/b/train.c", 88, 48, "train.c:88" },
        { "train.c", 88, 11, "train.c:88" },
        { "train.c", 88, 10, "train~:88" },
        { "train.c", 123456, 10, "t~:123456" },
        { "train.c", 123456, 9, "~:123456" },
        { "train.c", 123456, 8, "~" },
        { "train.c", -5, 9, "trai~:-5" },
        { "train.c", 0, 48, "train.c" }, /* a binding that knows an address and no line */
        { "0123456789012345678901234567890123456789.c", 1234, 48,
          "0123456789012345678901234567890123456789.c:1234" },
        { "0123456789012345678901234567890123456789.c", 12345, 48,
          "0123456789012345678901234567890123456789~:12345" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dtr__call c = { .file = rows[i].file, .line = rows[i].line };
        char text[64];
        memset(text, 'x', sizeof text);
        (void)dtr__call_site_text(&c, text, rows[i].cap);
        TH_CHECK(strcmp(text, rows[i].want) == 0, "row %zu: '%s', not '%s'", i, text, rows[i].want);
    }
    dtr__call c = { .return_address = (void *)(uintptr_t)newest };
    char whole[64], text[64];
    (void)dtr__call_site_text(&c, whole, sizeof whole);
    const char *number = strchr(whole, '+');
    TH_CHECK(number != NULL && strncmp(whole, "test_call_sites+0x", 18) == 0, "'%s'", whole);
    for (size_t cap = 1; number != NULL && cap <= sizeof whole; cap++) {
        (void)dtr__call_site_text(&c, text, cap);
        const char *cut = strstr(text, "~+");
        bool right = strlen(whole) < cap        ? strcmp(text, whole) == 0
                     : strlen(number) + 1 < cap ? cut != NULL && strcmp(cut + 1, number) == 0
                                                : strcmp(text, cap > 1 ? "~" : "") == 0;
        TH_CHECK(right, "%zu bytes: '%s' of '%s'", cap, text, whole);
    }
    TH_AGREE();
}
END_TEST

#line 4711 "somewhere/a_file_whose_name_has_no_room_in_a_record_of_the_recorder.c"
static dtr_status reduce_far_away(int32_t x, int32_t *y) {
    return dtr_allreduce(th_group(), dtr_cpu_in(&x, 1, DTR_I32), dtr_cpu(y, 1, DTR_I32), DTR_SUM,
                         NULL, NULL);
}
#line 80 "mpi/call_sites.c"

START_TEST(long_names_in_records) {
    int32_t y = 0;
    TH_IS(reduce_far_away(1, &y), DTR_OK);
    dtr__record r = { .site = "" };
    TH_CHECK(dtr__rec_read(th_world(), &r, 1) == 1, "no record");
    TH_CHECK(strcmp(r.site, "a_file_whose_name_has_no_room_in_a_record~:4712") == 0 ||
                 strcmp(r.site, "a_file_whose_name_has_no_room_in_a_record~:4713") == 0,
             "the site is '%s'", r.site);
    TH_AGREE();
}
END_TEST

/* One piece of memory holds the names of several files one after the other, and is then used for
 * something else: records, the fast path's too, have each place as it was. */
START_TEST(places_made_at_run_time) {
    char file[64], want[64];
    for (int i = 0; i < TIMES; i++) { /* some come again, after others and at once */
        snprintf(file, sizeof file, "scripts/step_%d.py", i / 4 % 3);
        snprintf(want, sizeof want, "step_%d.py:%d", i / 4 % 3, 10 + i / 20);
        dtr_call_site_copy(file, 10 + i / 20);
        memset(file, 'X', sizeof file);
        TH_IS(reduce(), DTR_OK);
        newest(want);
    }
    memset(file, 'n', sizeof file);
    file[sizeof file - 1] = '\0';
    dtr_call_site_copy(file, 7);
    TH_IS(reduce(), DTR_OK);
    newest("nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn~:7");
    dtr_call_site_copy(NULL, 7);
    TH_IS(reduce(), DTR_OK);
    dtr__record r = { .site = "" };
    TH_CHECK(dtr__rec_read(th_world(), &r, 1) == 1, "no record");
    TH_CHECK(strstr(r.site, "test_call_sites+0x") != NULL, "the site is '%s'", r.site);
    TH_AGREE();
}
END_TEST

/* An error speaks of the place too. */
START_TEST(errors_name_places_made_at_run_time) {
    dtr_work *w = NULL;
    int32_t x = 0;
    char file[] = "model.py";
    dtr_coll_options o = DTR_COLL_OPTIONS_INIT;
    o.timeout_s = 0.2;
    if (th_rank() == 0) {
        dtr_call_site_copy(file, 33);
        memset(file, 'X', sizeof file - 1);
        TH_IS((dtr_recv)(th_group(), dtr_cpu(&x, 1, DTR_I32), 1, 0, &o, &w), DTR_OK);
        TH_IS(dtr_work_wait(w, -1), DTR_ERR_TIMEOUT);
        TH_MESSAGE("called at model.py:33");
        TH_IS(dtr_work_release(w), DTR_OK);
    }
    TH_AGREE();
}
END_TEST

static void make(Suite *s) {
    TCase *tc = th_case(s, "call_sites", 60);
    th_add(tc, texts_are_cut_in_the_name, 0, 0);
    th_add(tc, long_names_in_records, 0, 0);
    th_add(tc, places_made_at_run_time, 0, 0);
    th_add(tc, errors_name_places_made_at_run_time, 2, 0);
}

int main(int argc, char **argv) {
    return th_main(argc, argv, "call_sites", make);
}
