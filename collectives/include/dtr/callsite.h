/* Where an operation was called from. The calls of dtr/coll.h are also macros of the same name that
 * note the caller's file and line first; define DTR_NO_CALL_SITE to do without. Calls through a
 * pointer are known by their return address. */
#ifndef DTR_CALLSITE_H
#define DTR_CALLSITE_H

#include <dtr/status.h>

DTR_BEGIN_DECLS

/** Note file (a string that lives for ever) and line for this thread's next operation.
 *  @collective no
 *  @blocking   no
 *  @gpu        no
 *  @errors     none
 *  @since 0.1 */
DTR_API void dtr_call_site(const char *file, int line);

DTR_END_DECLS

#endif /* DTR_CALLSITE_H */
