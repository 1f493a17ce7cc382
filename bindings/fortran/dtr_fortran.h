/* What the C side of the module shares: one call of Fortran, from its arguments to its end. */
#ifndef DTR_FORTRAN_H
#define DTR_FORTRAN_H

#include <ISO_Fortran_binding.h>

#define DTR_NO_CALL_SITE /* dtr_f_site notes where the Fortran program called */
#include <dtr/dtr.h>

enum { DTR_F_TEXT = 256, DTR_F_MESSAGE = 4096 };

/* A function that dtr.f90 declares. */
#define DTR_F_FUNCTION(signature) \
    signature;                    \
    signature

/* A contiguous copy of an argument with gaps. */
typedef struct dtr_f_copy {
    void *data;
    const CFI_cdesc_t *of;
    bool write_back;
} dtr_f_copy;

typedef struct dtr_f_call {
    const char *name;
    dtr_status status;
    char message[DTR_F_MESSAGE]; /* "": the library's is that of the failure */
    int *stat;
    const CFI_cdesc_t *errmsg;
    dtr_coll_options options;
    char label[DTR_F_TEXT];
    dtr_work **work; /* NULL: the call blocks */
    dtr_f_copy copies[2];
    int n_copies;
    size_t *counts[2];
    int n_counts;
} dtr_f_call;

void dtr_f_begin(dtr_f_call *c, const char *name, int *stat, const CFI_cdesc_t *errmsg);

/* Give back copies and counts, and say how it went: by stat and errmsg, else by ERROR STOP. */
void dtr_f_end(dtr_f_call *c);

/* The first refusal of a call is the one that counts. */
void dtr_f_refuse(dtr_f_call *c, dtr_status status, const char *format, ...) DTR_PRINTF(3, 4);

/* The next operation was called from there. */
void dtr_f_site(const void *return_address);

/* A text of the program without the blanks at its end; NULL of NULL. `to` has DTR_F_TEXT bytes. */
const char *dtr_f_text(const CFI_cdesc_t *from, char *to);

/* A logical of any kind; NULL is false. */
bool dtr_f_logical(const CFI_cdesc_t *from);

/* Whether `d` is an integer of 4 or 8 bytes or an array of them, and its element i. */
bool dtr_f_is_whole(const CFI_cdesc_t *d);
int64_t dtr_f_whole(const CFI_cdesc_t *d, CFI_index_t i);

/* Between an array section and a contiguous copy of it. */
void dtr_f_pack(const CFI_cdesc_t *from, void *to);
void dtr_f_unpack(const void *from, const CFI_cdesc_t *to);

/* Evaluate `expression` unless the call has failed. */
#define DTR_F_TRY(c, expression)        \
    do {                                \
        if ((c)->status == DTR_OK) {    \
            (c)->status = (expression); \
        }                               \
    } while (0)

#endif /* DTR_FORTRAN_H */
