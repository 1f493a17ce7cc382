/* The CUDA runtime as a program without this library uses it, for the measuring programs: opened
 * when --device cuda asks for it, so that a host without CUDA can run all the rest. Failures end
 * the program. */
#ifndef DTR_MEASURE_CUDA_H
#define DTR_MEASURE_CUDA_H

#include <stdbool.h>
#include <stddef.h>

typedef struct measure_cuda_ops {
    /* Makes the device current and times the copy that stands for compute; collective. */
    void (*open)(const char *program, int device);
    void (*close)(void);
    const char *(*name)(void); /* of the device */
    void *(*stream)(void);     /* all below are on it */
    /* Host memory has to be pinned. */
    void (*upload)(void *to, const void *from, size_t nbytes);
    void (*download)(void *to, const void *from, size_t nbytes);
    void (*begin)(void), (*end)(void); /* record an event each */
    double (*elapsed)(void);           /* seconds between the two; both are over */
    void (*synchronize)(void);
    /* Compute is a number of copies in device memory. */
    double (*copy_s)(void); /* seconds for one, of the slowest rank */
    void (*compute)(long copies);
} measure_cuda_ops;
extern const measure_cuda_ops *const measure_cuda; /* NULL: not in this build */

/* A GPU for this rank: those of a host are dealt out to its ranks in turn; collective. */
int measure_cuda_index(int count);
/* A symbol of a library; ends the program where it has none. */
void *measure_symbol(const char *program, void *library, const char *name);

#endif /* DTR_MEASURE_CUDA_H */
