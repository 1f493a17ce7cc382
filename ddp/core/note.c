/* One rank's errors in an iteration. A rank notes what went wrong and carries on with zeros, so
 * that no peer waits; the ranks agree on errors at the end of the backward pass. */
#include "ddp_internal.h"

bool dtr__ddp_own_failure(dtr_status s) {
    return s == DTR_ERR_NOMEM || s == DTR_ERR_SYSTEM || s == DTR_ERR_MPI || s == DTR_ERR_CUDA ||
           s == DTR_ERR_NCCL;
}

/* The lowest parameter is named, the others are counted. */
static void keep(dtr_ddp *ddp, dtr_status s, size_t param, bool callers, const dtr_error *native,
                 const char *text) {
    pthread_mutex_lock(&ddp->errors.lock);
    dtr__step_status *v = &ddp->errors.mine;
    uint64_t at = param == DTR__NONE ? UINT64_MAX : param;
    uint64_t others = v->status != DTR_OK ? v->others + 1 : 0;
    if (v->status == DTR_OK || at < v->param) {
        *v = (dtr__step_status){ .status = s,
                                 .rank = ddp->rank,
                                 .param = at,
                                 .callers = callers,
                                 .native = (int32_t)native->native,
                                 .native_code = native->native_code };
        snprintf(v->native_text, sizeof v->native_text, "%s", native->native_text);
        if ((size_t)snprintf(v->text, sizeof v->text, "%s", text) >= sizeof v->text - 1) {
            memcpy(v->text + sizeof v->text - 5, " ...", 5);
        }
    }
    v->others = others;
    atomic_store(&ddp->errors.bad, true);
    pthread_mutex_unlock(&ddp->errors.lock);
}

/* The native call that led to `s`, if this thread's last error knows one. */
static dtr_error native_of(dtr_status s) {
    dtr_error e = DTR_ERROR_INIT;
    (void)dtr_last_error(&e);
    return e.status == s ? e : (dtr_error){ .native_text = "" };
}

static dtr_status note(dtr_ddp *ddp, dtr_status s, size_t param, bool callers, const char *fmt,
                       va_list ap) {
    char text[sizeof ddp->errors.mine.text];
    vsnprintf(text, sizeof text, fmt, ap); // NOLINT(clang-analyzer-valist.Uninitialized)
    dtr_error native = native_of(s);
    dtr__error_context ctx = { .world = ddp->world,
                               .operation = "ddp",
                               .group = ddp->group->name,
                               .native = native.native,
                               .native_code = native.native_code,
                               .native_text = native.native_text };
    DTR_FAIL(&ctx, s, "%s", text);
    native = native_of(s); /* the text has moved */
    keep(ddp, s, param, callers, &native, text);
    return dtr__ddp_failed(ddp, s);
}

dtr_status dtr__ddp_note(dtr_ddp *ddp, dtr_status s, size_t param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    s = note(ddp, s, param, false, fmt, ap);
    va_end(ap);
    return s;
}

dtr_status dtr__ddp_note_caller(dtr_ddp *ddp, dtr_status s, size_t param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    s = note(ddp, s, param, true, fmt, ap);
    va_end(ap);
    return s;
}

void dtr__ddp_note_again(dtr_ddp *ddp, const dtr__step_status *before) {
    const dtr_error native = { .native = (dtr_native)before->native,
                               .native_code = before->native_code,
                               .native_text = before->native_text };
    keep(ddp, (dtr_status)before->status,
         before->param == UINT64_MAX ? DTR__NONE : (size_t)before->param, before->callers != 0,
         &native, before->text);
}

dtr_status dtr__ddp_note_last(dtr_ddp *ddp, dtr_status s, size_t param) {
    if (s < 0) {
        char text[sizeof ddp->errors.mine.text];
        const dtr_error native = native_of(s);
        snprintf(text, sizeof text, "rank %d: %s", ddp->rank, dtr_last_error_message());
        keep(ddp, s, param, false, &native, text);
        (void)dtr__ddp_failed(ddp, s);
    }
    return s;
}

void dtr__ddp_note_nan(dtr_ddp *ddp, size_t i, size_t element) {
    dtr__ddp_note(ddp, DTR_ERR_NAN, i,
                  "the gradient of parameter '%s' (%zu) has a NaN on rank %d (element %zu in "
                  "memory order)",
                  ddp->params[i].name, i, ddp->rank, element);
}
