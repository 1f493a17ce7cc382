/** @file
 * Marks what libdtr exports; everything else is hidden. */
#ifndef DTR_EXPORT_H
#define DTR_EXPORT_H

#if defined(__GNUC__)
#define DTR_API __attribute__((visibility("default")))
#define DTR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define DTR_API
#define DTR_PRINTF(fmt, args)
#endif

#ifdef __cplusplus
#define DTR_BEGIN_DECLS extern "C" {
#define DTR_END_DECLS }
#else
#define DTR_BEGIN_DECLS
#define DTR_END_DECLS
#endif

#endif /* DTR_EXPORT_H */
