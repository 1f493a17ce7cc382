/* Files that the library writes beside the program: text with numbers that every reader takes, in
 * files that no other user of the machine can read, plant or redirect. */
#ifndef DTR_RT_FILE_H
#define DTR_RT_FILE_H

#include <locale.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

/* Between the two this thread writes numbers with a point, whatever locale the program has set. */
locale_t dtr__point_begin(void);
void dtr__point_end(locale_t was);

/* Text made in memory, numbers with a point. */
typedef struct dtr__text {
    FILE *to;
    char *bytes; /* valid after the end; the caller frees them */
    size_t nbytes;
    locale_t was;
} dtr__text;
bool dtr__text_begin(dtr__text *t); /* false: no memory */
bool dtr__text_end(dtr__text *t);   /* false: it is not complete; bytes is NULL then */

/* Put a file of these bytes in the place of `path`, whole or not at all. It is made anew under
 * another name, so that nothing is followed or kept that somebody has put there. `mode`: 0600, or
 * more where others shall read it. False with errno. */
bool dtr__replace_file(const char *path, mode_t mode, const char *bytes, size_t nbytes);

/* A descriptor that appends to `path`, which only this user can read where it is made now. A
 * symbolic link is followed if it is root's (as /dev/stderr is) or this user's. -1 with errno. */
int dtr__append_file(const char *path);

#endif /* DTR_RT_FILE_H */
