/* Settings: every type's accepted and refused texts, precedence, unknown names (T0, ENV6, ENV16,
 * ENV17). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/options.h"
#include "unit.h"

static dtr__options o;

static dtr_status read_with(const char *name, const char *value) {
    dtr__options_free(&o);
    setenv(name, value, 1);
    dtr_status s = dtr__options_read(&o);
    unsetenv(name);
    return s;
}

/* The message names variable, value and what is accepted. */
static void refused(const char *name, const char *value, const char *accepted) {
    ck_assert_msg(read_with(name, value) == DTR_ERR_ARG, "%s=%s was accepted", name, value);
    const char *message = dtr_last_error_message();
    ck_assert_msg(strstr(message, name) != NULL && strstr(message, value) != NULL &&
                      strstr(message, accepted) != NULL,
                  "%s=%s: %s", name, value, message);
}

/* A program with more rights than its caller, as the C library would see it. */
static bool privileged;
char *wrapped_secure_getenv(const char *name) __asm__("__wrap_secure_getenv");
char *wrapped_secure_getenv(const char *name) {
    return privileged ? NULL : getenv(name);
}

START_TEST(paths_of_a_caller) {
    static const struct {
        const char *name;
        dtr__opt id;
    } paths[] = { { "DTR_LOG_FILE", DTR__OPT_LOG_FILE },
                  { "DTR_METRICS_FILE", DTR__OPT_METRICS_FILE },
                  { "DTR_RECORDER_DIR", DTR__OPT_RECORDER_DIR },
                  { "DTR_TRACE", DTR__OPT_TRACE },
                  { "DTR_TUNE_FILE", DTR__OPT_TUNE_FILE } };
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        ck_assert_int_eq(read_with(paths[i].name, "/somewhere"), DTR_OK);
        ck_assert_str_eq(dtr__opt_text(&o, paths[i].id), "/somewhere");
        privileged = true;
        dtr_status s = read_with(paths[i].name, "/somewhere");
        privileged = false;
        ck_assert_int_eq(s, DTR_OK);
        ck_assert_msg(strcmp(dtr__opt_text(&o, paths[i].id), "/somewhere") != 0, "%s",
                      paths[i].name);
    }
    privileged = true;
    dtr_status s = read_with("DTR_TIMEOUT", "5");
    privileged = false;
    ck_assert_int_eq(s, DTR_OK);
    ck_assert_double_eq(dtr__opt_seconds(&o, DTR__OPT_TIMEOUT), 5);
}
END_TEST

START_TEST(defaults) {
    ck_assert_int_eq(dtr__options_read(&o), DTR_OK);
    ck_assert_double_eq(dtr__opt_seconds(&o, DTR__OPT_TIMEOUT), 1800);
    ck_assert_str_eq(dtr__opt_text(&o, DTR__OPT_BACKEND), "cpu:auto,cuda:auto");
    ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_PROGRESS_THREAD), 1);
    ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_LOG), 1);
    for (int i = 0; i < DTR__OPT_COUNT; i++) {
        ck_assert_int_eq(o.value[i].origin, DTR__FROM_DEFAULT);
    }
    ck_assert_int_eq(read_with("DTR_TIMEOUT", ""), DTR_OK); /* empty: unset */
    ck_assert_int_eq(o.value[DTR__OPT_TIMEOUT].origin, DTR__FROM_DEFAULT);
}
END_TEST

START_TEST(booleans) {
    static const char *const off[] = { "0", "no", "False", "OFF" };
    static const char *const on[] = { "1", "YES", "true", "On" };
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(read_with("DTR_NAN_CHECK", off[i]), DTR_OK);
        ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_NAN_CHECK), 0);
        ck_assert_int_eq(read_with("DTR_NAN_CHECK", on[i]), DTR_OK);
        ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_NAN_CHECK), 1);
    }
    refused("DTR_NAN_CHECK", "2", "0/1");
    refused("DTR_NAN_CHECK", "yes ", "no/yes");
}
END_TEST

/* reliability:T11 */
START_TEST(numbers) {
    ck_assert_int_eq(read_with("DTR_RECORDER_ENTRIES", "64"), DTR_OK);
    ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_RECORDER_ENTRIES), 64);
    ck_assert_int_eq(read_with("DTR_RECORDER_ENTRIES", "1048576"), DTR_OK);
    static const char *const bad[] = { "63",  "1048577", "-1",  "+70",
                                       " 70", "70x",     "1e3", "99999999999999999999999" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refused("DTR_RECORDER_ENTRIES", bad[i], "64..1048576");
    }
}
END_TEST

START_TEST(bytes) {
    static const struct {
        const char *text;
        uint64_t n;
    } good[] = { { "4096", 4096 },     { "64KiB", 65536 },          { "25mib", 25u << 20 },
                 { "1GiB", 1u << 30 }, { "3g", UINT64_C(3) << 30 }, { "2TiB", UINT64_C(2) << 40 } };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ck_assert_int_eq(read_with("DTR_ARENA", good[i].text), DTR_OK);
        ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_ARENA), good[i].n);
    }
    static const char *const bad[] = { "1.5GiB", "-1", "64 KiB", "1PiB", "99999999999TiB" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refused("DTR_ARENA", bad[i], "KiB");
    }
    ck_assert_int_eq(read_with("DTR_SHM_STAGING", "256KiB"), DTR_OK);
    ck_assert_int_eq(read_with("DTR_SHM_STAGING", "1GiB"), DTR_OK);
    static const char *const outside[] = { "0", "262143", "1073741825", "2TiB" };
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        refused("DTR_SHM_STAGING", outside[i], "in 256KiB..1GiB");
    }
}
END_TEST

START_TEST(seconds) {
    ck_assert_int_eq(read_with("DTR_TIMEOUT", "0.25"), DTR_OK);
    ck_assert_double_eq(dtr__opt_seconds(&o, DTR__OPT_TIMEOUT), 0.25);
    ck_assert_int_eq(o.value[DTR__OPT_TIMEOUT].origin, DTR__FROM_ENV);
    ck_assert_int_eq(read_with("DTR_TIMEOUT", "Inf"), DTR_OK);
    ck_assert(isinf(dtr__opt_seconds(&o, DTR__OPT_TIMEOUT)));
    static const char *const bad[] = { "0",   "0.0",  "-1",  "-inf", "nan",
                                       "abc", "0x10", "5 s", "1e999" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refused("DTR_TIMEOUT", bad[i], "inf");
    }
}
END_TEST

/* ENV6, ENU13, reliability:T3 */
START_TEST(debug_levels) {
    ck_assert_int_eq(read_with("DTR_DEBUG", "Detail"), DTR_OK);
    ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_DEBUG), 2);
    ck_assert_int_eq(read_with("DTR_DEBUG", "INFO"), DTR_OK);
    ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_DEBUG), 1);
    ck_assert_int_eq(read_with("DTR_DEBUG", ""), DTR_OK);
    ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_DEBUG), 0);
    refused("DTR_DEBUG", "2", "off|info|detail");
    refused("DTR_DEBUG", "on", "off|info|detail");
    refused("DTR_DEBUG", "of", "off|info|detail");
}
END_TEST

/* ENV16 */
START_TEST(code_beats_environment) {
    ck_assert_int_eq(read_with("DTR_TIMEOUT", "9"), DTR_OK);
    ck_assert_int_eq(dtr__options_set_seconds(&o, DTR__OPT_TIMEOUT, 1.5), DTR_OK);
    ck_assert_double_eq(dtr__opt_seconds(&o, DTR__OPT_TIMEOUT), 1.5);
    ck_assert_int_eq(o.value[DTR__OPT_TIMEOUT].origin, DTR__FROM_CODE);
    ck_assert_int_eq(dtr__options_set(&o, DTR__OPT_BACKEND, "cpu:mpi"), DTR_OK);
    ck_assert_str_eq(dtr__opt_text(&o, DTR__OPT_BACKEND), "cpu:mpi");
    ck_assert_int_eq(dtr__options_set(&o, DTR__OPT_DEBUG, "nope"), DTR_ERR_ARG);
    ck_assert_uint_eq(dtr__opt_number(&o, DTR__OPT_DEBUG), 0); /* untouched */
    ck_assert_str_eq(dtr__opt_text(&o, DTR__OPT_DEBUG), "off");

    char *text = NULL;
    size_t n = 0;
    FILE *to = open_memstream(&text, &n);
    dtr__options_print(&o, to);
    fclose(to);
    ck_assert_ptr_nonnull(strstr(text, "DTR_TIMEOUT"));
    ck_assert_ptr_nonnull(strstr(text, "code"));
    ck_assert_ptr_nonnull(strstr(text, "help"));
    free(text);
}
END_TEST

static int warnings;
static char warned[128], suggested[128];

static void count(void *arg, const char *name, const char *nearest) {
    (void)arg;
    warnings++;
    snprintf(warned, sizeof warned, "%s", name);
    snprintf(suggested, sizeof suggested, "%s", nearest);
}

static void unknown(const char *name, int times, const char *nearest) {
    warnings = 0;
    setenv(name, "1", 1);
    dtr__options_unknown(count, NULL);
    unsetenv(name);
    ck_assert_msg(warnings == times, "%s: %d warnings", name, warnings);
    if (times > 0) {
        ck_assert_str_eq(warned, name);
        ck_assert_int_eq(strncmp(suggested, "DTR_", 4), 0);
        ck_assert_msg(nearest == NULL || strcmp(suggested, nearest) == 0, "%s: suggests %s", name,
                      suggested);
    }
}

/* ENV17 */
START_TEST(unknown_names) {
    unknown("DTR_DEBGU", 1, "DTR_DEBUG");
    unknown("DTR_TIMEOUTS", 1, "DTR_TIMEOUT");
    unknown("DTR_PROGRESS", 1, "DTR_PROGRESS_THREAD");
    unknown("DTR_LOGFILE", 1, "DTR_LOG_FILE");
    unknown("DTR_FAKE_CUDA_MEM", 0, NULL);
    unknown("DTR_KERNELS", 0, NULL);
    unknown("DTRX_DEBUG", 0, NULL);
    unknown("DTR_A_NAME_LONGER_THAN_ANY_SETTING_THAT_THE_TABLE_WILL_EVER_HOLD_AND_MORE", 1, NULL);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("options");
    tcase_add_test(tc, defaults);
    tcase_add_test(tc, paths_of_a_caller);
    tcase_add_test(tc, booleans);
    tcase_add_test(tc, numbers);
    tcase_add_test(tc, bytes);
    tcase_add_test(tc, seconds);
    tcase_add_test(tc, debug_levels);
    tcase_add_test(tc, code_beats_environment);
    tcase_add_test(tc, unknown_names);
    suite_add_tcase(s, tc);
}

int main(void) {
    unsetenv("DTR_RECORDER_DIR"); /* the tests' own */
    int status = th_unit_main("runtime options", make);
    dtr__options_free(&o);
    return status;
}
