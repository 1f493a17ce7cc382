/* What the tests of tensors share: shapes as arguments, statuses and error texts in verdicts. */
#ifndef TESTS_TENSOR_UNIT_H
#define TESTS_TENSOR_UNIT_H

#include <string.h>

#include <dtr/tensor.h>

#include "unit.h"

#define SHAPE(...)  \
    (int64_t[]) {   \
        __VA_ARGS__ \
    }
#define MESSAGE(word)                                                                          \
    ck_assert_msg(strstr(dtr_last_error_message(), (word)) != NULL, "message '%s' lacks '%s'", \
                  dtr_last_error_message(), (word))
#define IS(call, want)                                                           \
    do {                                                                         \
        dtr_status is_ = (call);                                                 \
        ck_assert_msg(is_ == (want), "%s: %s (%s)", #call, dtr_status_name(is_), \
                      dtr_last_error_message());                                 \
    } while (0)

#endif /* TESTS_TENSOR_UNIT_H */
