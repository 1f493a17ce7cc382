/* Communicators of a Fortran program, which are integers. Apart from the rest: only programs that
 * use these functions have to link MPI. */
#include <dtr/mpi.h>

#include "dtr_fortran.h"

#define FORTRAN(signature) DTR_F_FUNCTION(void dtr_f_##signature)

FORTRAN(world_create_from_fcomm(const MPI_Fint *comm, dtr_world **world, const CFI_cdesc_t *backend,
                                const double *timeout, int *stat, const CFI_cdesc_t *errmsg)) {
    dtr_f_call c;
    char text[DTR_F_TEXT];
    dtr_world_options o = DTR_WORLD_OPTIONS_INIT;
    dtr_f_begin(&c, "world_create_from_fcomm", stat, errmsg);
    o.backend = dtr_f_text(backend, text);
    o.timeout_s = timeout != NULL ? *timeout : -1;
    c.status = dtr_world_create_from_comm(MPI_Comm_f2c(*comm), &o, world);
    dtr_f_end(&c);
}

FORTRAN(group_fcomm(dtr_group *const *group, MPI_Fint *comm, int *stat,
                    const CFI_cdesc_t *errmsg)) {
    dtr_f_call c;
    MPI_Comm made = MPI_COMM_NULL;
    dtr_f_begin(&c, "group_fcomm", stat, errmsg);
    c.status = dtr_group_mpi_comm(*group, &made);
    if (!DTR_FAILED(c.status)) {
        *comm = MPI_Comm_c2f(made);
    }
    dtr_f_end(&c);
}
