/* Main of a suite without MPI: no forking, exit status 1 on any failure. */
#include "unit.h"

int th_unit_main(const char *suite, void (*make)(Suite *s)) {
    Suite *s = suite_create(suite);
    make(s);
    SRunner *r = srunner_create(s);
    srunner_set_fork_status(r, CK_NOFORK);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed == 0 ? 0 : 1;
}
