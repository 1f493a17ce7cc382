/* The exit status of the measuring programs: 0 whenever they could measure, more on request only.
 */
#include <check.h>

#include "measure.h"
#include "unit.h"

START_TEST(status_says_more_on_request_only) {
    for (int strict = 0; strict < 2; strict++) {
        for (int wrong = 0; wrong < 2; wrong++) {
            for (int calm = 0; calm < 2; calm++) {
                int expected = !strict ? 0 : wrong ? 1 : calm ? 0 : 3;
                ck_assert_int_eq(measure_status("test", strict, false, (size_t)wrong, calm),
                                 expected);
            }
        }
    }
}
END_TEST

static void make(Suite *s) {
    TCase *tc = tcase_create("measure");
    tcase_add_test(tc, status_says_more_on_request_only);
    suite_add_tcase(s, tc);
}

int main(void) {
    return th_unit_main("measure", make);
}
