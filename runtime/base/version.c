/* Version of the library and of the MPI it was built with and runs on. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <dtr/version.h>

#define STRING_(x) #x
#define STRING(x) STRING_(x)

/* The MPI whose header was used. */
#if defined(OMPI_MAJOR_VERSION)
#define BUILT_WITH                                                                    \
    "Open MPI " STRING(OMPI_MAJOR_VERSION) "." STRING(OMPI_MINOR_VERSION) "." STRING( \
        OMPI_RELEASE_VERSION)
#elif defined(MPICH_VERSION)
#define BUILT_WITH "MPICH " MPICH_VERSION
#else
#define BUILT_WITH "another MPI"
#endif

#ifdef DTR_CUDA_TOOLKIT
#define CUDA_TEXT DTR_CUDA_TOOLKIT " at build"
#else
#define CUDA_TEXT "none"
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static char text[512];

/* First line of what MPI says, blanks in one, up to a comma, without MPICH's word "Version:". */
static void library_name(char *name, size_t cap) {
    char all[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int length = 0;
    MPI_Get_library_version(all, &length);
    size_t n = 0;
    for (const char *c = all; *c != '\0' && *c != '\n' && *c != ',' && n + 1 < cap; c++) {
        char blank = (char)(*c == '\t' ? ' ' : *c);
        if (blank != ' ' || (n > 0 && name[n - 1] != ' ')) {
            name[n++] = blank;
        }
    }
    name[n] = '\0';
    char *word = strstr(name, " Version:");
    if (word != NULL) {
        memmove(word, word + strlen(" Version:"), strlen(word + strlen(" Version:")) + 1);
    }
}

static void make_text(void) {
    char mpi[128];
    library_name(mpi, sizeof mpi);
    snprintf(text, sizeof text,
             "dtr %d.%d.%d; MPI at run: %s; MPI at build: %s (standard %d.%d); CUDA: " CUDA_TEXT,
             DTR_VERSION_MAJOR, DTR_VERSION_MINOR, DTR_VERSION_PATCH, mpi, BUILT_WITH, MPI_VERSION,
             MPI_SUBVERSION);
}

int dtr_version(void) {
    return DTR_VERSION;
}

const char *dtr_version_string(void) {
    pthread_once(&once, make_text);
    return text;
}
