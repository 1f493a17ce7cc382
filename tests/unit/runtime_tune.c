/* Thresholds of the shm backend: files, lists, refusals that name the line, and texts by chance. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/tune.h"
#include "unit.h"

static dtr__tune t;
static int sections;

static dtr_status read_text(const char *text) {
    dtr__tune_defaults(&t);
    return dtr__tune_text("a.tune", text, strlen(text), "Some CPU @ 2 GHz", 4, &t, &sections);
}

static void refused(const char *text, const char *words) {
    dtr__tune fresh;
    dtr__tune_defaults(&fresh);
    ck_assert_msg(read_text(text) == DTR_ERR_ARG, "accepted: %s", text);
    ck_assert_msg(strstr(dtr_last_error_message(), words) != NULL, "%s: %s", text,
                  dtr_last_error_message());
    ck_assert_mem_eq(&t, &fresh, sizeof t);
}

START_TEST(sections_of_this_node) {
    ck_assert_int_eq(read_text("# by hand\n\n dtr-tune 1 # version\r\n"
                               "node \"Some CPU @ 2 GHz\" 2\nchunk 4KiB\n"
                               "node \"Some CPU @ 2 GHz\" 4\n\tchunk 64KiB\nzero_copy 4096#x\n"
                               "node other 4\nchunk 8K\nnode \"Some CPU @ 2 GHz\" 4\n"
                               "cma_reduce never"),
                     DTR_OK);
    ck_assert_int_eq(sections, 2);
    ck_assert_uint_eq(t.value[DTR__TUNE_CHUNK], 64 << 10);
    ck_assert_uint_eq(t.value[DTR__TUNE_ZERO_COPY], 4096);
    ck_assert_uint_eq(t.value[DTR__TUNE_CMA_REDUCE], UINT64_MAX);
    ck_assert_int_eq(read_text("dtr-tune 1\nnode x 4\nchunk 4K\n"), DTR_OK);
    ck_assert_int_eq(sections, 0);
    ck_assert_uint_eq(t.value[DTR__TUNE_CHUNK], 128 << 10);
}
END_TEST

START_TEST(refusals_name_the_line) {
    refused("", "line 1: it does not begin");
    refused("\n\nchunk 4K\n", "line 3: it does not begin");
    refused("dtr-tune 2\n", "line 1: it does not begin with \"dtr-tune 1\"");
    refused("dtr-tune 1\nchunk 4K\n", "line 2: chunk stands before the first section");
    refused("dtr-tune 1\nnode x\n", "line 2: a section begins with");
    refused("dtr-tune 1\nnode x -3\n", "line 2: \"-3\" is no number of ranks");
    refused("dtr-tune 1\nnode x 4y\n", "line 2: \"4y\" is no number of ranks");
    refused("dtr-tune 1\nnode \"x 4\n", "line 2: a word is longer");
    refused("dtr-tune 1\nnode x 4\n\nchink 4K\n", "line 4: \"chink\" is no threshold");
    refused("dtr-tune 1\nnode x 4\nchunk 4 K\n", "line 3: write one threshold");
    refused("dtr-tune 1\nnode x 4\nchunk 4 K 3 2\n", "line 3: too many words");
    refused("dtr-tune 1\nnode x 4\nchunk -4K\n", "line 3: chunk is \"-4K\"");
    refused("dtr-tune 1\nnode x 4\nchunk 1GiB\n", "line 3: chunk is 1GiB; it must be 4096 to");
    refused("dtr-tune 1\nnode x 4\ncma_end 2MiB\ncma_piece 2MiB\n", "line 4: cma_piece is 2MiB");
    refused("dtr-tune 1\nnode x 4\ncma_p2p 0\n", "line 3: cma_p2p is 0; it must be 1 to");
    refused("dtr-tune 1\nnode x 4\nchunk 99999999999999999999\n", "line 3: chunk is");
}
END_TEST

START_TEST(lists) {
    dtr__tune before;
    dtr__tune_defaults(&t);
    ck_assert_int_eq(dtr__tune_list("", &t), DTR_OK);
    ck_assert_int_eq(dtr__tune_list("cma_end=never,cma_piece=64K,cma_p2p=2MiB", &t), DTR_OK);
    ck_assert_uint_eq(t.value[DTR__TUNE_CMA_END], UINT64_MAX);
    ck_assert_uint_eq(t.value[DTR__TUNE_CMA_PIECE], 64 << 10);
    ck_assert_uint_eq(t.value[DTR__TUNE_CMA_P2P], 2 << 20);
    ck_assert_int_eq(dtr__tune_list("chunk=8K,cma_copy=1", &t), DTR_OK);
    ck_assert_uint_eq(t.value[DTR__TUNE_CHUNK], 8192);
    ck_assert_uint_eq(t.value[DTR__TUNE_CMA_COPY], 1);
    /* names of older versions */
    ck_assert_int_eq(dtr__tune_list("stage_past=1,zero_past=2,stage_past=3", &t), DTR_OK);
    ck_assert_uint_eq(t.value[DTR__TUNE_STAGE_NONTEMPORAL], 3);
    ck_assert_uint_eq(t.value[DTR__TUNE_ZERO_NONTEMPORAL], 2);
    before = t;
    static const char *const bad[] = {
        "chunk", "chunk=", "=4K", ",", "chunk=8K,x=1", "chunk=8K,,"
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(dtr__tune_list(bad[i], &t) == DTR_ERR_ARG, "accepted: %s", bad[i]);
        ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "DTR_TUNE"));
        ck_assert_mem_eq(&t, &before, sizeof t);
    }
}
END_TEST

START_TEST(written_files_are_read) {
    char *text = NULL, cpu[128];
    size_t nbytes = 0;
    dtr__tune_cpu(cpu, sizeof cpu);
    ck_assert(cpu[0] != '\0' && strchr(cpu, '"') == NULL && strchr(cpu, '\n') == NULL);
    dtr__tune out, in;
    dtr__tune_defaults(&out);
    out.value[DTR__TUNE_CHUNK] = 12345;
    out.value[DTR__TUNE_CMA_REDUCE] = UINT64_MAX;
    FILE *f = open_memstream(&text, &nbytes);
    dtr__tune_write(f, cpu, 7, &out);
    fclose(f);
    dtr__tune_defaults(&in);
    ck_assert_int_eq(dtr__tune_text("w", text, nbytes, cpu, 7, &in, &sections), DTR_OK);
    ck_assert_int_eq(sections, 1);
    ck_assert_mem_eq(&in, &out, sizeof in);
    free(text);
}
END_TEST

/* A folder of a class without a device is none. */
START_TEST(fabrics) {
    char folder[] = "/tmp/dtr-classes-XXXXXX", path[64];
    static const char *const parts[] = { "net", "infiniband", "infiniband/mlx5_0" };
    ck_assert_ptr_nonnull(mkdtemp(folder));
    for (int i = 0; i < 3; i++) {
        ck_assert(!dtr__tune_fabric(folder));
        snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
        ck_assert_int_eq(mkdir(path, 0700), 0);
    }
    ck_assert(dtr__tune_fabric(folder));
    for (int i = 2; i >= 0; i--) {
        snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
        ck_assert_int_eq(rmdir(path), 0);
    }
    ck_assert_int_eq(rmdir(folder), 0);
}
END_TEST

static uint64_t seed = 88172645463325252u;
static size_t chance(size_t n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (size_t)(seed % n);
}

/* Good files with bytes changed, cut and repeated: an answer, a message on refusal, and values in
 * their limits. */
START_TEST(texts_by_chance) {
    static const char good[] = "dtr-tune 1\n# c\nnode \"cpu\" 4\nchunk 64KiB\ncma_reduce never\n"
                               "zero_copy 0\nnode \"b\" 9\nstream 1M\n";
    for (int i = 0; i < 20000; i++) {
        size_t n = chance(2 * sizeof good);
        char *text = malloc(n + 1); /* no spare byte: reading past the end is seen */
        for (size_t k = 0; k < n; k++) {
            text[k] = good[k % (sizeof good - 1)];
        }
        for (size_t k = chance(4); n > 0 && k > 0; k--) {
            text[chance(n)] = (char)chance(256);
        }
        char *exact = malloc(n);
        memcpy(exact, text, n);
        dtr__tune_defaults(&t);
        dtr_status s = dtr__tune_text("f", exact, n, "cpu", 4, &t, &sections);
        ck_assert_msg(s == DTR_OK || strstr(dtr_last_error_message(), "f, line ") != NULL, "%s",
                      dtr_last_error_message());
        ck_assert_uint_ge(t.value[DTR__TUNE_CHUNK], 4096);
        ck_assert_uint_le(t.value[DTR__TUNE_CHUNK], 4 << 20);
        text[n] = '\0';
        (void)dtr__tune_list(text, &t);
        free(exact);
        free(text);
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("tune");
    tcase_add_test(tc, sections_of_this_node);
    tcase_add_test(tc, refusals_name_the_line);
    tcase_add_test(tc, lists);
    tcase_add_test(tc, written_files_are_read);
    tcase_add_test(tc, fabrics);
    tcase_add_test(tc, texts_by_chance);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime_tune", make);
}
