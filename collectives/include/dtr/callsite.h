/** @file
 * Where an operation was called from, which errors, logs and recordings say.
 *
 * Calls that start operations note the caller's file and line first. In C they are also macros of
 * the same name. In C++ they are function objects of the same name, so that members and functions
 * of other namespaces may have these names too; dtr_c::dtr_allreduce is the function itself, which
 * `&dtr_allreduce` and a conversion to a pointer give. Calls through a pointer are known by their
 * return address. Define DTR_NO_CALL_SITE to have plain functions in both. */
#ifndef DTR_CALLSITE_H
#define DTR_CALLSITE_H

#include <dtr/status.h>

DTR_BEGIN_DECLS

/** Note file (a string that lives for ever, as `__FILE__` does) and line for this thread's next
 * operation; line 0: the file alone; NULL: know it by its return address.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.1 */
DTR_API void dtr_call_site(const char *file, int line);

/** As dtr_call_site for a string made at run time, such as the file of a script: its last part is
 * copied, once for each that is new, and kept until the process ends. After 65,536 of them the
 * operation is known by its return address. The call itself must not note a call site of its own:
 * make it with DTR_NO_CALL_SITE or through a pointer.
 *  @collective no  @blocking no  @gpu no  @errors none  @since 0.2 */
DTR_API void dtr_call_site_copy(const char *file, int line);

DTR_END_DECLS

/* How the other headers do it: 0 not at all, 1 by macros, 2 by objects. */
#if defined(DTR_NO_CALL_SITE)
#define DTR_CALL_SITES 0
#elif !defined(__cplusplus)
#define DTR_CALL_SITES 1
#elif defined(__clang__) && defined(__has_builtin)
#define DTR_CALL_SITES (__has_builtin(__builtin_LINE) ? 2 : 0)
#elif defined(__GNUC__) && __cplusplus >= 201103L
#define DTR_CALL_SITES 2
#else
#define DTR_CALL_SITES 0
#endif

#if DTR_CALL_SITES == 1
#define DTR_AT(function, ...) (dtr_call_site(__FILE__, __LINE__), function(__VA_ARGS__))
#endif

#if DTR_CALL_SITES == 2
#define DTR_BEGIN_SITED namespace dtr_c {
#define DTR_END_SITED }

/** A function that notes its caller: the default arguments stand where it is called. */
template <class F, F *f> struct dtr_sited_function;
template <class R, class... P, R (*f)(P...)> struct dtr_sited_function<R(P...), f> {
    typedef R function(P...);
    constexpr dtr_sited_function() {
    }
    __attribute__((always_inline)) inline R operator()(P... arguments,
                                                       const char *file = __builtin_FILE(),
                                                       int line = __builtin_LINE()) const {
        dtr_call_site(file, line);
        return f(arguments...);
    }
    constexpr operator function *() const {
        return f;
    }
    constexpr function *operator&() const {
        return f;
    }
};

#if __cplusplus >= 201703L
#define DTR_SITED_CONSTANT inline constexpr
#else
#define DTR_SITED_CONSTANT constexpr
#endif
#define DTR_SITED(name)                                                               \
    namespace dtr_sited {                                                             \
    DTR_SITED_CONSTANT dtr_sited_function<decltype(dtr_c::name), dtr_c::name> name{}; \
    }                                                                                 \
    using dtr_sited::name
#else
#define DTR_BEGIN_SITED
#define DTR_END_SITED
#endif

#endif /* DTR_CALLSITE_H */
