/* Statuses, the thread's last-error record and options structs (EA table, EA7). */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "unit.h"
#include "world/world.h"

START_TEST(every_status_has_name_text_class) {
    static const struct {
        const char *name;
        dtr_status s;
        dtr_error_class blast;
    } rows[] = {
        { "DTR_OK", DTR_OK, DTR_CLASS_NONE },
        { "DTR_NOT_MEMBER", DTR_NOT_MEMBER, DTR_CLASS_NONE },
        { "DTR_IN_PROGRESS", DTR_IN_PROGRESS, DTR_CLASS_NONE },
        { "DTR_ERR_ARG", DTR_ERR_ARG, DTR_CLASS_ARG },
        { "DTR_ERR_DTYPE", DTR_ERR_DTYPE, DTR_CLASS_ARG },
        { "DTR_ERR_DEVICE", DTR_ERR_DEVICE, DTR_CLASS_ARG },
        { "DTR_ERR_SHAPE", DTR_ERR_SHAPE, DTR_CLASS_ARG },
        { "DTR_ERR_LAYOUT", DTR_ERR_LAYOUT, DTR_CLASS_ARG },
        { "DTR_ERR_RANK", DTR_ERR_RANK, DTR_CLASS_ARG },
        { "DTR_ERR_STATE", DTR_ERR_STATE, DTR_CLASS_ARG },
        { "DTR_ERR_UNSUPPORTED", DTR_ERR_UNSUPPORTED, DTR_CLASS_ARG },
        { "DTR_ERR_OVERFLOW", DTR_ERR_OVERFLOW, DTR_CLASS_ARG },
        { "DTR_ERR_NOMEM", DTR_ERR_NOMEM, DTR_CLASS_OP },
        { "DTR_ERR_IO", DTR_ERR_IO, DTR_CLASS_OP },
        { "DTR_ERR_MISMATCH", DTR_ERR_MISMATCH, DTR_CLASS_GROUP },
        { "DTR_ERR_TIMEOUT", DTR_ERR_TIMEOUT, DTR_CLASS_GROUP },
        { "DTR_ERR_ABORTED", DTR_ERR_ABORTED, DTR_CLASS_GROUP },
        { "DTR_ERR_REMOTE", DTR_ERR_REMOTE, DTR_CLASS_GROUP },
        { "DTR_ERR_GRAPH", DTR_ERR_GRAPH, DTR_CLASS_OP },
        { "DTR_ERR_NAN", DTR_ERR_NAN, DTR_CLASS_OP },
        { "DTR_ERR_MPI", DTR_ERR_MPI, DTR_CLASS_GROUP },
        { "DTR_ERR_CUDA", DTR_ERR_CUDA, DTR_CLASS_GROUP },
        { "DTR_ERR_NCCL", DTR_ERR_NCCL, DTR_CLASS_GROUP },
        { "DTR_ERR_SYSTEM", DTR_ERR_SYSTEM, DTR_CLASS_GROUP },
        { "DTR_ERR_INTERNAL", DTR_ERR_INTERNAL, DTR_CLASS_PROCESS },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert_str_eq(dtr_status_name(rows[i].s), rows[i].name);
        ck_assert_int_eq(dtr_status_class(rows[i].s), rows[i].blast);
        ck_assert_int_eq(DTR_FAILED(rows[i].s), rows[i].blast != DTR_CLASS_NONE);
        ck_assert_int_gt((int)strlen(dtr_status_text(rows[i].s)), 5);
        ck_assert_int_eq(dtr_status_hint(rows[i].s)[0] == '\0', rows[i].s == DTR_OK);
    }
    ck_assert_str_eq(dtr_status_name((dtr_status)-1000), "DTR_ERR_?");
    ck_assert_int_eq(dtr_status_class((dtr_status)1000), DTR_CLASS_NONE);
    ck_assert_int_ne(dtr_status_text((dtr_status)1000)[0], '\0');
}
END_TEST

static void *message_of_new_thread(void *arg) {
    (void)arg;
    dtr_error e = DTR_ERROR_INIT;
    dtr_last_error(&e);
    return (void *)(intptr_t)(dtr_last_error_message()[0] == '\0' && e.status == DTR_OK &&
                              e.world_rank == -1 && e.file[0] == '\0');
}

START_TEST(record_is_complete_and_per_thread) {
    dtr_world world = { .rank = 3, .host = "node7" };
    dtr__error_context ctx = {
        .world = &world, .operation = "allreduce", .group = "grads", .seq = 17
    };
    int line = __LINE__ + 1;
    ck_assert_int_eq(DTR_FAIL(&ctx, DTR_ERR_SHAPE, "%d against %d", 4, 5), DTR_ERR_SHAPE);
    dtr_error e = DTR_ERROR_INIT;
    ck_assert_int_eq(dtr_last_error(&e), DTR_OK);
    ck_assert_int_eq(e.status, DTR_ERR_SHAPE);
    ck_assert_int_eq(e.blast, DTR_CLASS_ARG);
    ck_assert_str_eq(e.message, "4 against 5");
    ck_assert_str_eq(e.file, "unit/runtime_errors.c");
    ck_assert_int_eq(e.line, line);
    ck_assert_str_eq(e.operation, "allreduce");
    ck_assert_str_eq(e.group, "grads");
    ck_assert_uint_eq(e.seq, 17);
    ck_assert_int_eq(e.world_rank, 3);
    ck_assert_str_eq(e.host, "node7");
    ck_assert_int_eq(e.native, DTR_NATIVE_NONE);
    ck_assert_str_eq(e.native_text, "");

    pthread_t thread;
    void *fresh;
    pthread_create(&thread, NULL, message_of_new_thread, NULL);
    pthread_join(thread, &fresh);
    ck_assert_ptr_nonnull(fresh);
    ck_assert_str_eq(dtr_last_error_message(), "4 against 5");
}
END_TEST

START_TEST(errno_is_kept) {
    errno = ENOENT;
    ck_assert_int_eq(DTR_FAIL_ERRNO(NULL, DTR_ERR_IO, "open %s", "/no/file"), DTR_ERR_IO);
    dtr_error e = DTR_ERROR_INIT;
    dtr_last_error(&e);
    ck_assert_int_eq(e.native, DTR_NATIVE_ERRNO);
    ck_assert_int_eq(e.native_code, ENOENT);
    ck_assert_str_eq(e.native_text, "No such file or directory");
    ck_assert_str_eq(e.message, "open /no/file: No such file or directory (errno 2)");
    ck_assert_int_ne(e.host[0], '\0');
}
END_TEST

/* A new message may quote the old one; a message too long ends with a mark; newlines go. */
START_TEST(messages_quote_and_end) {
    DTR_FAIL(NULL, DTR_ERR_IO, "first");
    DTR_FAIL(NULL, DTR_ERR_REMOTE, "rank 1 said: %s", dtr_last_error_message());
    ck_assert_str_eq(dtr_last_error_message(), "rank 1 said: first");
    static char lengthy[10000];
    memset(lengthy, 'x', sizeof lengthy - 1);
    DTR_FAIL(NULL, DTR_ERR_IO, "%s", lengthy);
    size_t n = strlen(dtr_last_error_message());
    ck_assert_uint_gt(n, 1000);
    ck_assert_str_eq(dtr_last_error_message() + n - 4, " ...");
    DTR_FAIL(NULL, DTR_ERR_IO, "two\nlines\n");
    ck_assert_str_eq(dtr_last_error_message(), "two lines");
}
END_TEST

static void *restore_in_thread(void *copy) {
    bool ok = dtr__error_restore(copy, DTR_ERR_TIMEOUT) == DTR_ERR_TIMEOUT;
    dtr_error e = DTR_ERROR_INIT;
    dtr_last_error(&e);
    ok = ok && strcmp(e.message, "late by 3 s") == 0 && e.seq == 9 && e.status == DTR_ERR_TIMEOUT;
    return (void *)(intptr_t)ok;
}

START_TEST(errors_cross_threads) {
    dtr__error_context ctx = { .operation = "barrier", .seq = 9 };
    DTR_FAIL(&ctx, DTR_ERR_TIMEOUT, "late by %d s", 3);
    dtr__error_copy *copy = dtr__error_save();
    DTR_FAIL(NULL, DTR_ERR_ARG, "another");
    pthread_t thread;
    void *ok;
    pthread_create(&thread, NULL, restore_in_thread, copy);
    pthread_join(thread, &ok);
    ck_assert_ptr_nonnull(ok);
    ck_assert_str_eq(dtr_last_error_message(), "another");
    dtr__error_copy_free(copy);
    ck_assert_int_eq(dtr__error_restore(NULL, DTR_ERR_ABORTED), DTR_ERR_ABORTED);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "DTR_ERR_ABORTED"));
    ck_assert_int_eq(dtr__error_restore(NULL, DTR_OK), DTR_OK);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "DTR_ERR_ABORTED"));
}
END_TEST

START_TEST(last_error_struct_sizes) {
    DTR_FAIL(NULL, DTR_ERR_IO, "here");
    ck_assert_int_eq(dtr_last_error(NULL), DTR_ERR_ARG);
    dtr_error e = DTR_ERROR_INIT;
    e.struct_size = 0;
    ck_assert_int_eq(dtr_last_error(&e), DTR_ERR_ARG);
    ck_assert_str_eq(dtr_last_error_message(), "here");
    /* A program that knows only the first fields. */
    e.struct_size = offsetof(dtr_error, message);
    e.message = "untouched";
    ck_assert_int_eq(dtr_last_error(&e), DTR_OK);
    ck_assert_int_eq(e.status, DTR_ERR_IO);
    ck_assert_str_eq(e.message, "untouched");
    ck_assert_uint_eq(e.struct_size, offsetof(dtr_error, message));
}
END_TEST

START_TEST(options_structs_grow) {
    struct {
        dtr_world_options o;
        uint64_t later;
    } newer = { DTR_WORLD_OPTIONS_INIT, 0 };
    dtr_world_options own;
    newer.o.struct_size = sizeof newer;
    newer.o.timeout_s = 5;
    ck_assert_int_eq(dtr__options_copy(&newer, &own, sizeof own, "dtr_world_options"), DTR_OK);
    ck_assert_double_eq(own.timeout_s, 5);
    ck_assert_uint_eq(own.struct_size, sizeof own);
    newer.later = 1;
    ck_assert_int_eq(dtr__options_copy(&newer, &own, sizeof own, "dtr_world_options"), DTR_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "dtr_world_options"));

    dtr_world_options older = DTR_WORLD_OPTIONS_INIT;
    older.struct_size = offsetof(dtr_world_options, backend);
    older.timeout_s = 7;
    older.flags = 99; /* beyond what it says it has */
    ck_assert_int_eq(dtr__options_copy(&older, &own, sizeof own, "dtr_world_options"), DTR_OK);
    ck_assert_double_eq(own.timeout_s, 7);
    ck_assert_uint_eq(own.flags, 0);

    const size_t impossible[] = { 0, 4, offsetof(dtr_world_options, backend) + 5, SIZE_MAX - 7 };
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++) {
        older.struct_size = impossible[i];
        ck_assert_int_eq(dtr__options_copy(&older, &own, sizeof own, "dtr_world_options"),
                         DTR_ERR_ARG);
        ck_assert_ptr_nonnull(strstr(dtr_last_error_message(), "DTR_WORLD_OPTIONS_INIT"));
    }
    ck_assert_int_eq(dtr__options_copy(NULL, &own, sizeof own, "dtr_world_options"), DTR_OK);
    ck_assert_uint_eq(own.flags, 0);
}
END_TEST

/* INI13, INI20, DES3: what can be asked of no world. */
START_TEST(null_world) {
    ck_assert_int_eq(dtr_world_rank(NULL), -1);
    ck_assert_int_eq(dtr_world_size(NULL), -1);
    ck_assert_int_eq(dtr_world_local_rank(NULL), -1);
    ck_assert_int_eq(dtr_world_local_size(NULL), -1);
    ck_assert_int_eq(dtr_world_node(NULL), -1);
    ck_assert_int_eq(dtr_world_node_count(NULL), -1);
    ck_assert_int_eq(dtr_world_device(NULL).type, DTR_CPU);
    ck_assert_int_eq(dtr__world_check(NULL), DTR_ERR_ARG);
    void *p = &p;
    ck_assert_int_eq(dtr_alloc(NULL, (dtr_device){ DTR_CPU, 0 }, DTR_MEM_DEFAULT, 1, &p),
                     DTR_ERR_ARG);
    ck_assert_ptr_eq(p, &p);
    ck_assert_int_eq(dtr_free(NULL, NULL), DTR_ERR_ARG);
    ck_assert_int_eq(dtr_device_count(DTR_CPU), 1);
    ck_assert_int_eq(dtr_device_count(DTR_CUDA), 0);
    ck_assert_int_eq(dtr_device_count((dtr_device_type)9), 0);
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("errors");
    tcase_add_test(tc, every_status_has_name_text_class);
    tcase_add_test(tc, record_is_complete_and_per_thread);
    tcase_add_test(tc, errno_is_kept);
    tcase_add_test(tc, messages_quote_and_end);
    tcase_add_test(tc, errors_cross_threads);
    tcase_add_test(tc, last_error_struct_sizes);
    tcase_add_test(tc, options_structs_grow);
    tcase_add_test(tc, null_world);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("runtime errors", make);
}
