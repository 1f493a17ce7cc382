/* How a call of the module begins and ends: texts, errors, call sites, copies of array sections. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtr_fortran.h"

void dtr_f_error_stop(const char *text, size_t length); /* of dtr.f90 */

/* ---- texts ---- */

const char *dtr_f_text(const CFI_cdesc_t *from, char *to) {
    if (from == NULL) {
        return NULL;
    }
    const char *text = from->base_addr;
    size_t n = from->elem_len;
    while (n > 0 && text[n - 1] == ' ') {
        n--;
    }
    n = n < DTR_F_TEXT ? n : DTR_F_TEXT - 1; /* longer than any name that the library takes */
    memcpy(to, text, n);
    to[n] = '\0';
    return to;
}

bool dtr_f_logical(const CFI_cdesc_t *from) {
    bool any = false;
    for (size_t i = 0; from != NULL && i < from->elem_len; i++) {
        any = any || ((const char *)from->base_addr)[i] != 0;
    }
    return any;
}

bool dtr_f_is_whole(const CFI_cdesc_t *d) {
    return d->rank <= 1 && (d->type == CFI_type_int32_t || d->type == CFI_type_int64_t);
}

int64_t dtr_f_whole(const CFI_cdesc_t *d, CFI_index_t i) {
    const char *at = (const char *)d->base_addr + (d->rank > 0 ? i * d->dim[0].sm : 0);
    int32_t narrow;
    int64_t wide;
    if (d->elem_len == sizeof narrow) {
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

/* As Fortran assigns texts: cut, or filled up with blanks. */
static void assign_text(const CFI_cdesc_t *to, const char *text) {
    const size_t n = strlen(text), most = to->elem_len;
    memset(to->base_addr, ' ', most);
    memcpy(to->base_addr, text, n < most ? n : most);
}

/* The message of this thread's last failed call; "": the library's. */
static _Thread_local char own_message[DTR_F_MESSAGE];

DTR_F_FUNCTION(const char *dtr_f_last_error_message(void)) {
    return own_message[0] != '\0' ? own_message : dtr_last_error_message();
}

/* ---- a call ---- */

void dtr_f_begin(dtr_f_call *c, const char *name, int *stat, const CFI_cdesc_t *errmsg) {
    c->name = name;
    c->status = DTR_OK;
    c->message[0] = '\0';
    c->stat = stat;
    c->errmsg = errmsg;
    c->options = (dtr_coll_options)DTR_COLL_OPTIONS_INIT;
    c->work = NULL;
    c->n_copies = c->n_counts = 0;
}

void dtr_f_refuse(dtr_f_call *c, dtr_status status, const char *format, ...) {
    if (c->status != DTR_OK) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    const int n = snprintf(c->message, sizeof c->message, "%s: ", c->name);
    vsnprintf(c->message + n, sizeof c->message - (size_t)n, format, arguments);
    va_end(arguments);
    c->status = status;
}

static void report_failure(const dtr_f_call *c) {
    snprintf(own_message, sizeof own_message, "%s", c->message);
    const char *message = dtr_f_last_error_message();
    if (c->errmsg != NULL) {
        assign_text(c->errmsg, message);
    }
    if (c->stat == NULL) {
        char text[DTR_F_MESSAGE + DTR_F_TEXT];
        snprintf(text, sizeof text, "%s: %s", dtr_status_name(c->status), message);
        dtr_f_error_stop(text, strlen(text));
    }
}

void dtr_f_end(dtr_f_call *c) {
    for (int i = 0; i < c->n_copies; i++) {
        if (c->status == DTR_OK && c->copies[i].write_back) {
            dtr_f_unpack(c->copies[i].data, c->copies[i].of);
        }
        free(c->copies[i].data);
    }
    for (int i = 0; i < c->n_counts; i++) {
        free(c->counts[i]);
    }
    dtr_call_site(NULL, 0); /* where nothing was called after all */
    if (c->stat != NULL) {
        *c->stat = (int)c->status;
    }
    if (DTR_FAILED(c->status)) {
        report_failure(c);
    }
}

/* ---- call sites ----
 * The library would take the place in this file for that of every call. A text is made once for
 * each place of the program, "program+0x12f4", which addr2line turns into file and line, and kept
 * for ever. */

enum { SITES = 1024, LOOKS = 8 };

typedef struct site {
    const void *address;
    char text[DTR_F_TEXT];
} site;

static _Atomic(site *) sites[SITES]; /* set once, from NULL */

static site *make_site(const void *address) {
    Dl_info info;
    site *s = malloc(sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->address = address;
    if (dladdr(address, &info) != 0 && info.dli_fname != NULL) {
        const char *slash = strrchr(info.dli_fname, '/');
        snprintf(s->text, sizeof s->text, "%s+0x%zx", slash != NULL ? slash + 1 : info.dli_fname,
                 (size_t)((const char *)address - (const char *)info.dli_fbase));
    } else {
        snprintf(s->text, sizeof s->text, "%p", address);
    }
    return s;
}

/* NULL: the place is taken by another address. */
static const site *site_at(size_t index, const void *address) {
    site *s = atomic_load_explicit(&sites[index], memory_order_acquire);
    if (s == NULL) {
        site *own = make_site(address);
        if (own == NULL) {
            return NULL;
        }
        if (atomic_compare_exchange_strong_explicit(&sites[index], &s, own, memory_order_acq_rel,
                                                    memory_order_acquire)) {
            return own;
        }
        free(own);
    }
    return s->address == address ? s : NULL;
}

void dtr_f_site(const void *return_address) {
    const size_t first = (size_t)((uintptr_t)return_address >> 2);
    const site *found = NULL;
    for (size_t i = 0; i < LOOKS && found == NULL; i++) {
        found = site_at((first + i) % SITES, return_address);
    }
    dtr_call_site(found != NULL ? found->text : NULL, 0);
}

/* ---- array sections ---- */

static char *copy_section(const CFI_cdesc_t *d, int dim, char *at, char *packed, bool pack) {
    const size_t whole = dim == 0 && (size_t)d->dim[0].sm == d->elem_len
                             ? d->elem_len * (size_t)d->dim[0].extent
                             : d->elem_len;
    if (dim < 0 || whole > d->elem_len) {
        memcpy(pack ? packed : at, pack ? at : packed, whole);
        return packed + whole;
    }
    for (CFI_index_t i = 0; i < d->dim[dim].extent; i++) {
        packed = copy_section(d, dim - 1, at + i * d->dim[dim].sm, packed, pack);
    }
    return packed;
}

void dtr_f_pack(const CFI_cdesc_t *from, void *to) {
    (void)copy_section(from, from->rank - 1, from->base_addr, to, true);
}

void dtr_f_unpack(const void *from, const CFI_cdesc_t *to) {
    char *packed;
    memcpy(&packed, &from, sizeof packed); /* only read */
    (void)copy_section(to, to->rank - 1, to->base_addr, packed, false);
}
