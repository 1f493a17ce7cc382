/* Names of kinds and operators, and how a work is called in messages. */
#include <stdio.h>
#include <string.h>

#include "core/call.h"
#include "core/team.h"
#include "core/work.h"
#include "kernels/operators.h"
#include "kernels/user_ops.h"
#include "recorder/recording.h"

static const char *const entries[DTR__K_COUNT] = {
#define DTR__OP(KIND, name, ...) [DTR__K_##KIND] = "dtr_" #name,
#define DTR__OP_MADE(KIND, name, family) [DTR__K_##KIND] = "dtr_" #name,
#include "core/ops.def"
};

const char *dtr__kind_entry(dtr__kind k) {
    return (unsigned)k < DTR__K_COUNT ? entries[k] : "dtr_?";
}

const char *dtr__kind_name(dtr__kind k) {
    return dtr__kind_entry(k) + strlen("dtr_");
}

#define NAME(OP, name, types, identity) [DTR_##OP] = #name,
static const char *const ops[DTR__N_OPS] = { DTR__OPERATORS(NAME) };

/* Those of the program by their code without its highest bit: numbers, then those that commute. */
#define TEN(n, end)                                                                             \
    "user op " n "0" end, "user op " n "1" end, "user op " n "2" end, "user op " n "3" end,     \
        "user op " n "4" end, "user op " n "5" end, "user op " n "6" end, "user op " n "7" end, \
        "user op " n "8" end, "user op " n "9" end
#define SIXTY_FOUR(end)                                                                      \
    TEN("", end), TEN("1", end), TEN("2", end), TEN("3", end), TEN("4", end), TEN("5", end), \
        "user op 60" end, "user op 61" end, "user op 62" end, "user op 63" end
static const char *const user_ops[] = { SIXTY_FOUR(""), SIXTY_FOUR(" (commutes)") };
_Static_assert(sizeof user_ops / sizeof user_ops[0] == DTR__RECORDING_USER_OP,
               "a name for each code");

unsigned dtr__op_code(dtr_op op) {
    dtr__user_op is;
    if (!dtr__op_is_user(op)) {
        return (unsigned)op;
    }
    if (!dtr__user_op_find(op, &is)) {
        return UINT8_MAX + 1;
    }
    return DTR__RECORDING_USER_OP | (is.commutes ? DTR__RECORDING_OP_COMMUTES : 0) |
           is.number % DTR__RECORDING_OP_COMMUTES;
}

const char *dtr__op_name(dtr_op op) {
    const unsigned code = dtr__op_code(op);
    if (code >= DTR__RECORDING_USER_OP) {
        return code <= UINT8_MAX ? user_ops[code - DTR__RECORDING_USER_OP] : "a freed operator";
    }
    return code < DTR__N_OPS ? ops[code] : "?";
}

dtr__error_context dtr__work_context(const dtr_work *w) {
    return (dtr__error_context){
        .world = w->world,
        .operation = dtr__kind_name(dtr__user_call(&w->call)->kind),
        .group = w->group->name,
        .seq = w->seq,
    };
}

/* Appends to text[*at], which is in front of cap, and not past it. */
static void DTR_PRINTF(4, 5) add(char *text, size_t cap, size_t *at, const char *fmt, ...) {
    size_t left = cap - *at;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text + *at, left, fmt, args); // NOLINT(clang-analyzer-valist.Uninitialized)
    va_end(args);
    *at += n < 0 ? 0 : (size_t)n < left ? (size_t)n : left - 1;
}

/* "0->2", as sender and receiver stand; of a receive "2<-0". */
static void add_ends(char *text, size_t cap, size_t *at, const dtr_work *w) {
    const dtr__call *c = dtr__user_call(&w->call);
    bool send = c->kind == DTR__K_SEND || c->kind == DTR__K_SEND_BYTES;
    add(text, cap, at, " %d%s", dtr__reported_rank(w->group, w->group->rank), send ? "->" : "<-");
    if (c->root == DTR_ANY_SOURCE) {
        add(text, cap, at, "any");
    } else {
        add(text, cap, at, "%d", c->root);
    }
}

const char *dtr__work_title(const dtr_work *w, char *text, size_t cap) {
    const dtr__call *c = dtr__user_call(&w->call);
    size_t at = 0;
    text[0] = '\0';
    add(text, cap, &at, "%s #%llu", dtr__kind_name(c->kind), (unsigned long long)w->seq);
    if (c->tag >= 0) {
        add_ends(text, cap, &at, w);
    }
    if (c->n_batch > 0) {
        add(text, cap, &at, " (%zu operation%s)", c->n_batch, c->n_batch == 1 ? "" : "s");
    } else if (c->kind != DTR__K_BARRIER && c->kind != DTR__K_COALESCED) {
        add(text, cap, &at, " %s x %zu", dtr_dtype_name(c->dtype),
            c->in_count > c->out_count ? c->in_count : c->out_count);
    }
    if (dtr__kind_reduces(c->kind) || c->kind == DTR__K_SPARSE_ALLREDUCE) {
        add(text, cap, &at, " %s", dtr__op_name(c->op));
    }
    if (c->tag >= 0) {
        add(text, cap, &at, " tag %d", c->tag);
    } else if (c->root >= 0) {
        add(text, cap, &at, " root %d", c->root);
    }
    if (c->label[0] != '\0') {
        add(text, cap, &at, " '%s'", c->label);
    }
    add(text, cap, &at, " group '%s'", w->group->name);
    if (w->scope.parts != 0) {
        add(text, cap, &at, " (call %u of %u in a scope)", w->scope.part, w->scope.parts);
    }
    return text;
}
