/* Names, texts, hints and classes of the statuses, all from status.def. */
#include <dtr/status.h>

typedef struct status_row {
    dtr_status status;
    dtr_error_class blast;
    const char *name, *text, *hint;
} status_row;

static const status_row rows[] = {
#define X(id, blast, text, hint) { id, DTR_CLASS_##blast, #id, text, hint },
#include "status.def"
#undef X
};

static const status_row unknown = { DTR_ERR_INTERNAL, DTR_CLASS_PROCESS, "DTR_ERR_?",
                                    "This value is no status of this library.",
                                    "The program may have been built against a newer version." };

static const status_row *row_of(dtr_status s) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].status == s) {
            return &rows[i];
        }
    }
    return &unknown;
}

const char *dtr_status_name(dtr_status s) {
    return row_of(s)->name;
}

const char *dtr_status_text(dtr_status s) {
    return row_of(s)->text;
}

const char *dtr_status_hint(dtr_status s) {
    return row_of(s)->hint;
}

dtr_error_class dtr_status_class(dtr_status s) {
    return s >= 0 ? DTR_CLASS_NONE : row_of(s)->blast;
}
