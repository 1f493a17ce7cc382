/* Ranges for NVIDIA's profilers (DTR_NVTX): all are in one domain, so that they can be told from
 * the program's own and from NCCL's. */
#include "nvtx.h"

#ifdef DTR_HAVE_NVTX

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain; /* set once; NULL without a profiler */

static void create(void) {
    domain = nvtxDomainCreateA("dtr");
}

bool dtr__nvtx_open(void) {
    pthread_once(&once, create);
    return true;
}

static nvtxEventAttributes_t event(const char *text) {
    nvtxEventAttributes_t e = { 0 };
    e.version = NVTX_VERSION;
    e.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    e.messageType = NVTX_MESSAGE_TYPE_ASCII;
    e.message.ascii = text;
    return e;
}

void dtr__nvtx_push(const char *text) {
    nvtxEventAttributes_t e = event(text);
    (void)nvtxDomainRangePushEx(domain, &e);
}

void dtr__nvtx_pop(void) {
    (void)nvtxDomainRangePop(domain);
}

uint64_t dtr__nvtx_start(const char *text) {
    nvtxEventAttributes_t e = event(text);
    return nvtxDomainRangeStartEx(domain, &e);
}

void dtr__nvtx_end(uint64_t range) {
    nvtxDomainRangeEnd(domain, range);
}

#else

bool dtr__nvtx_open(void) {
    return false;
}

void dtr__nvtx_push(const char *text) {
    (void)text;
}

void dtr__nvtx_pop(void) {
}

uint64_t dtr__nvtx_start(const char *text) {
    (void)text;
    return 0;
}

void dtr__nvtx_end(uint64_t range) {
    (void)range;
}

#endif
