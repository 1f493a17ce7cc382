/* A page that whoever touches it first has to wait at, so that a test can let others go on while a
 * thread stands in the midst of a copy. */
#ifndef TH_GATE_H
#define TH_GATE_H

#include <signal.h>
#include <sys/mman.h>

#include "harness.h"

enum { GATE_PAGE = 4096 };

static struct {
    char *page;
    void (*wait)(void);
    struct sigaction before;
    bool on;
} gate;

static inline void open_gate(void) {
    (void)mprotect(gate.page, GATE_PAGE, PROT_READ | PROT_WRITE);
}

static void at_gate(int signal, siginfo_t *info, void *context) {
    (void)context;
    if ((uintptr_t)info->si_addr - (uintptr_t)gate.page >= GATE_PAGE) {
        (void)sigaction(signal, &gate.before, NULL); /* a true fault: it comes again */
        return;
    }
    gate.wait();
    open_gate();
}

/* Close the first whole page from `at` on: the thread that touches it calls `wait`, then goes on.
 */
static inline void close_gate(char *at, void (*wait)(void)) {
    struct sigaction here = { .sa_sigaction = at_gate, .sa_flags = SA_SIGINFO };
    gate.page = at + (GATE_PAGE - (uintptr_t)at % GATE_PAGE) % GATE_PAGE;
    gate.wait = wait;
    gate.on = true;
    TH_CHECK(sigaction(SIGSEGV, &here, &gate.before) == 0 &&
                 mprotect(gate.page, GATE_PAGE, PROT_NONE) == 0,
             "no gate");
}

static inline void remove_gate(void) {
    if (gate.on) {
        open_gate();
        (void)sigaction(SIGSEGV, &gate.before, NULL);
        gate.on = false;
    }
}

#endif /* TH_GATE_H */
