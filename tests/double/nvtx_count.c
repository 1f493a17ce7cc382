/* Stands where a profiler does (NVTX_INJECTION64_PATH): counts the ranges of the domain dtr. */
#include <pthread.h>
#include <string.h>

#include <nvtx3/nvToolsExt.h>

#include "nvtx_count.h"

enum { MOST = 4096 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { char kind, text[60]; } seen[MOST]; /* lock, as the next two */
static unsigned n_seen;
static int is_domain; /* its address is the handle */

static unsigned note(nvtxDomainHandle_t domain, char kind, const char *text) {
    pthread_mutex_lock(&lock);
    unsigned number = n_seen + 1;
    if ((void *)domain == (void *)&is_domain && n_seen < MOST) {
        seen[n_seen].kind = kind;
        strncpy(seen[n_seen].text, text, sizeof seen[0].text - 1);
        n_seen++;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

unsigned nvtx_count_of(char kind, const char *text) {
    unsigned n = 0;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < n_seen; i++) {
        n += seen[i].kind == kind && strncmp(seen[i].text, text, strlen(text)) == 0;
    }
    pthread_mutex_unlock(&lock);
    return n;
}

static nvtxDomainHandle_t create(const char *name) {
    return strcmp(name, "dtr") == 0 ? (nvtxDomainHandle_t)(void *)&is_domain : NULL;
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *e) {
    return (int)note(domain, NVTX_PUSH, e->message.ascii);
}

static int pop(nvtxDomainHandle_t domain) {
    return (int)note(domain, NVTX_POP, "");
}

static nvtxRangeId_t start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *e) {
    return note(domain, NVTX_START, e->message.ascii);
}

static void end(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
    note(domain, NVTX_END, range != 0 ? "a range" : "none");
}

/* What NVTX calls when it finds this library. */
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get) {
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned size = 0;
    if (callbacks == NULL ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
        size <= NVTX_CBID_CORE2_DomainCreateA) {
        return 0;
    }
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)start;
    *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)end;
    return 1;
}
