/* Checkpoints of train_gpt. */
#include "checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dtr/dtr.h>

enum { KINDS = 3, NAME = 48 }; /* value, m and v of every parameter */
static const char *const prefix[KINDS] = { "", "adam.m.", "adam.v." };

typedef struct state_list {
    size_t n;
    dtr_named_tensor *tensor;
    char (*name)[NAME];
} state_list;

static void release(state_list *l) {
    for (size_t i = 0; l->tensor != NULL && i < l->n; i++) {
        dtr_tensor_release(l->tensor[i].tensor);
    }
    free(l->tensor);
    free(l->name);
}

/* Tensors over the training state, none of it copied. */
static dtr_status list_state(state_list *l, const gpt *g, float *m, float *v) {
    *l = (state_list){ .n = KINDS * g->n_params };
    l->tensor = calloc(l->n, sizeof *l->tensor);
    l->name = calloc(l->n, sizeof *l->name);
    if (l->tensor == NULL || l->name == NULL) {
        return DTR_ERR_NOMEM;
    }
    size_t at = 0, i = 0;
    for (size_t p = 0; p < g->n_params; p++) {
        const gpt_param *param = &g->params[p];
        float *data[KINDS] = { param->value, m + at, v + at };
        for (int k = 0; k < KINDS; k++, i++) {
            snprintf(l->name[i], NAME, "%s%s", prefix[k], param->name);
            l->tensor[i].name = l->name[i];
            dtr_status s =
                dtr_tensor_from_buffer(dtr_cpu(data[k], param->count, DTR_F32), param->ndim,
                                       param->shape, NULL, NULL, NULL, &l->tensor[i].tensor);
            if (s != DTR_OK) {
                return s;
            }
        }
        at += param->count;
    }
    return DTR_OK;
}

static bool report(dtr_status s, const char *path, char *why, size_t cap) {
    if (s != DTR_OK) {
        snprintf(why, cap, "checkpoint %s: %s: %s", path, dtr_status_name(s),
                 dtr_last_error_message());
    }
    return s == DTR_OK;
}

bool checkpoint_save(const char *path, const gpt *g, const float *m, const float *v, long step,
                     char *why, size_t cap) {
    char text[32];
    snprintf(text, sizeof text, "%ld", step);
    dtr_text_pair about[] = { { "format", "train_gpt" }, { "step", text } };
    state_list list;
    /* Saving only reads; the tensor interface has one kind of pointer. */
    dtr_status s = list_state(&list, g, (float *)(uintptr_t)m, (float *)(uintptr_t)v);
    if (s == DTR_OK) {
        s = dtr_safetensors_save(path, list.tensor, list.n, about, 2);
    }
    release(&list);
    return report(s, path, why, cap);
}

static dtr_status load_all(const dtr_safetensors *file, gpt *g, float *m, float *v) {
    state_list list;
    dtr_status s = list_state(&list, g, m, v);
    for (size_t i = 0; s == DTR_OK && i < list.n; i++) {
        s = dtr_safetensors_load_into(file, list.tensor[i].name, list.tensor[i].tensor);
    }
    release(&list);
    return s;
}

bool checkpoint_load(const char *path, gpt *g, float *m, float *v, long *step, char *why,
                     size_t cap) {
    dtr_safetensors *file = NULL;
    if (access(path, F_OK) != 0 && errno == ENOENT) {
        return true;
    }
    dtr_status s = dtr_safetensors_open(path, &file);
    if (s != DTR_OK) {
        return report(s, path, why, cap);
    }
    const char *text = dtr_safetensors_metadata(file, "step");
    char *end = NULL;
    long done = text != NULL ? strtol(text, &end, 10) : -1;
    bool ok = false;
    if (text == NULL || end == text || *end != '\0' || done < 0) {
        snprintf(why, cap,
                 "checkpoint %s: its metadata has no step; it was not written by train_gpt", path);
    } else {
        ok = report(load_all(file, g, m, v), path, why, cap);
    }
    if (ok) {
        *step = done;
    }
    dtr_safetensors_close(file);
    return ok;
}
