/* Creating a module: what one rank can judge alone, and what the ranks compare. */
#ifndef DTR_DDP_MODULE_H
#define DTR_DDP_MODULE_H

#include "core/ddp_internal.h"
#include "device/device.h"
#include "hooks/hooks.h"
#include "reducer/reducer.h"
#include "zero/zero.h"

/* ---- settings.c, params.c: what one rank can judge alone ---- */
dtr_status dtr__ddp_settings_read(const dtr_ddp_options *given, dtr_ddp_options *o,
                                  dtr__ddp_settings *set);
dtr_status dtr__ddp_params_read(dtr_ddp *ddp, const dtr_param *params, size_t n,
                                const dtr_ddp_options *o);
/* What a CUDA device cannot do. */
dtr_status dtr__ddp_params_check_served(const dtr_ddp *ddp);
void dtr__ddp_params_free(dtr_ddp *ddp);

/* ---- verify.c ---- */
/* Compare this rank's status, parameters, options and plan with all others'; agreed. */
dtr_status dtr__ddp_verify(dtr_ddp *ddp, dtr_status mine);

/* ---- group.c ---- */
/* The module's new group, a duplicate of `parent`; its settings. */
dtr_status dtr__ddp_group_dup(dtr_group *parent, dtr_group **group);
char *dtr__ddp_backend_of(const dtr_group *group); /* its name, to be freed */
void dtr__ddp_group_adopt(dtr_ddp *ddp, const dtr_group *parent);

#endif /* DTR_DDP_MODULE_H */
