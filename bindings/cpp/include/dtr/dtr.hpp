/** @file
 * The library for C++17 programs: handles that end by themselves, buffers with the types of their
 * elements, and errors as exceptions. Everything is inline over the C interface, whose rules hold:
 * who must call, what blocks, and which errors there are stand there (dtr/coll.h and so on).
 * Handles give the C one by get(), so both can be mixed.
 *
 *     dtr::world world;
 *     std::vector<float> x(1024, 1.0f);
 *     world.group().allreduce(x);                       // in place, a sum
 *     dtr::work w = world.group().allreduce_async(x, y, DTR_MAX);
 *     w.wait();
 *
 * Since 0.2. */
#ifndef DTR_DTR_HPP
#define DTR_DTR_HPP

#include <complex>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <dtr/dtr.h>

/* The functions themselves: the place of a call is the program's, and noted apart from them. */
#if DTR_CALL_SITES == 2
#define DTR_HPP_C(function) ::dtr_c::function
#else
#define DTR_HPP_C(function) ::function
#endif
/* Where the program calls: last arguments, which are never written out. */
#if DTR_CALL_SITES == 0
#define DTR_HPP_SITE const char *file = nullptr, int line = 0
#else
#define DTR_HPP_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()
#endif

namespace dtr {

/** A call that failed: what() is the library's message. */
class error : public std::runtime_error {
  public:
    explicit error(dtr_status status) : std::runtime_error(message_of(status)), status_(status) {
    }
    dtr_status status() const noexcept {
        return status_;
    }

  private:
    static std::string message_of(dtr_status status) {
        const char *text = dtr_last_error_message();
        return text != nullptr && *text != '\0' ? text : dtr_status_name(status);
    }
    dtr_status status_;
};

/** Throws dtr::error where `status` is an error, else gives it back. */
inline dtr_status check(dtr_status status) {
    if (DTR_FAILED(status)) {
        throw error(status);
    }
    return status;
}

// ---- buffers ------------------------------------------------------------------------------------

/** dtype_of<T>: DTR_F32 of float, and so on; a type without one does not compile. */
template <class T> struct dtype_of_type;
#define DTR_HPP_TYPE(type, dtype) \
    template <> struct dtype_of_type<type> { static constexpr dtr_dtype value = dtype; }
DTR_HPP_TYPE(bool, DTR_BOOL);
DTR_HPP_TYPE(std::uint8_t, DTR_U8);
DTR_HPP_TYPE(std::int8_t, DTR_I8);
DTR_HPP_TYPE(std::int16_t, DTR_I16);
DTR_HPP_TYPE(std::uint16_t, DTR_U16);
DTR_HPP_TYPE(std::int32_t, DTR_I32);
DTR_HPP_TYPE(std::uint32_t, DTR_U32);
DTR_HPP_TYPE(float, DTR_F32);
DTR_HPP_TYPE(double, DTR_F64);
DTR_HPP_TYPE(std::complex<float>, DTR_C64);
DTR_HPP_TYPE(std::complex<double>, DTR_C128);
DTR_HPP_TYPE(dtr_f32_index, DTR_F32_INDEX);
DTR_HPP_TYPE(dtr_f64_index, DTR_F64_INDEX);
DTR_HPP_TYPE(dtr_i64_index, DTR_I64_INDEX);
/* Two types have 64 bits, and either may be the standard's int64_t. */
DTR_HPP_TYPE(long, sizeof(long) == 8 ? DTR_I64 : DTR_I32);
DTR_HPP_TYPE(unsigned long, sizeof(long) == 8 ? DTR_U64 : DTR_U32);
DTR_HPP_TYPE(long long, DTR_I64);
DTR_HPP_TYPE(unsigned long long, DTR_U64);
#undef DTR_HPP_TYPE
template <class T> inline constexpr dtr_dtype dtype_of = dtype_of_type<std::remove_cv_t<T>>::value;

/** Elements of the program's: of an array, or of a container with data() and size(). */
template <class T> class span {
  public:
    span(T *data, std::size_t size) noexcept : data_(data), size_(size) {
    }
    T *data() const noexcept {
        return data_;
    }
    std::size_t size() const noexcept {
        return size_;
    }

  private:
    T *data_;
    std::size_t size_;
};

namespace detail {

template <class C, class = void> struct is_container : std::false_type {};
template <class C>
struct is_container<
    C, std::void_t<decltype(std::declval<C &>().data()), decltype(std::declval<C &>().size())>>
    : std::true_type {};
template <class C>
inline constexpr bool is_buffer = is_container<std::remove_reference_t<C>>::value ||
                                  std::is_same_v<std::decay_t<C>, dtr_buffer> ||
                                  std::is_array_v<std::remove_reference_t<C>> ||
                                  (std::is_arithmetic_v<std::remove_reference_t<C>> &&
                                   !std::is_enum_v<std::decay_t<C>>);

template <class T> dtr_buffer of(T *data, std::size_t count) {
    if constexpr (std::is_const_v<T>) {
        return dtr_cpu_in(data, count, dtype_of<T>);
    } else {
        return dtr_cpu(data, count, dtype_of<T>);
    }
}

/* The elements of what a program has: container, array, one number, or a buffer of its own. */
template <class C> dtr_buffer buffer(C &&c) {
    using plain = std::remove_reference_t<C>;
    if constexpr (std::is_same_v<std::decay_t<C>, dtr_buffer>) {
        return c;
    } else if constexpr (std::is_array_v<plain>) {
        return of(&c[0], std::extent_v<plain>);
    } else if constexpr (std::is_arithmetic_v<plain>) {
        return of(&c, 1);
    } else {
        return of(c.data(), c.size());
    }
}

/* Ends what is left of a handle; its error is the thread's last one. */
template <class T, auto end> class handle {
  public:
    handle() noexcept = default;
    explicit handle(T *raw) noexcept : raw_(raw) {
    }
    handle(handle &&other) noexcept : raw_(other.release()) {
    }
    handle &operator=(handle &&other) noexcept {
        if (this != &other) {
            reset(other.release());
        }
        return *this;
    }
    handle(const handle &) = delete;
    handle &operator=(const handle &) = delete;
    ~handle() {
        reset();
    }
    /** The C handle, which stays this object's. */
    T *get() const noexcept {
        return raw_;
    }
    explicit operator bool() const noexcept {
        return raw_ != nullptr;
    }
    /** The C handle, which is the caller's to end from now on. */
    T *release() noexcept {
        return std::exchange(raw_, nullptr);
    }
    void reset(T *raw = nullptr) noexcept {
        T *old = std::exchange(raw_, raw);
        if (old != nullptr) {
            (void)end(old);
        }
    }

  private:
    T *raw_ = nullptr;
};

/* While an exception leaves the scope, other ranks need not come: the group is broken, not met. */
inline dtr_status end_group(dtr_group *group) {
    if (std::uncaught_exceptions() > 0) {
        (void)::dtr_group_abort(group, "an exception left the scope of a dtr::group");
    }
    return ::dtr_group_destroy(group);
}

inline dtr_status end_world(dtr_world *world) {
    return ::dtr_world_destroy(world);
}

inline dtr_status end_tensor(dtr_tensor *tensor) {
    dtr_tensor_release(tensor);
    return DTR_OK;
}

} // namespace detail

// ---- works --------------------------------------------------------------------------------------

/** An operation under way. Its end waits for it, because it may still use the program's memory;
 * where an exception leaves its scope, its group is aborted, as others may not come any more. */
class work {
  public:
    work() noexcept = default;
    work(dtr_work *raw, dtr_group *group) noexcept : raw_(raw), group_(group) {
    }
    work(work &&other) noexcept : raw_(other.release()), group_(other.group_) {
    }
    work &operator=(work &&other) noexcept {
        if (this != &other) {
            end();
            raw_ = other.release();
            group_ = other.group_;
        }
        return *this;
    }
    ~work() {
        end();
    }
    /** The C handle, which stays this object's. */
    dtr_work *get() const noexcept {
        return raw_;
    }
    /** The C handle, which is the caller's to release from now on. */
    dtr_work *release() noexcept {
        return std::exchange(raw_, nullptr);
    }
    /** Wait, at most so many seconds: negative means the group's limit. Throws where it failed. */
    void wait(double timeout_s = -1) {
        check(::dtr_work_wait(raw_, timeout_s));
    }
    bool is_done() const {
        bool done = false;
        check(::dtr_work_test(raw_, &done));
        return done;
    }
    double duration() const {
        return ::dtr_work_duration(raw_);
    }

  private:
    void end() noexcept {
        bool done = true;
        if (raw_ == nullptr) {
            return;
        }
        if (std::uncaught_exceptions() > 0 && ::dtr_work_test(raw_, &done) == DTR_OK && !done) {
            (void)::dtr_group_abort(group_, "an exception left the scope of a dtr::work");
        }
        (void)::dtr_work_wait(raw_, -1);
        (void)::dtr_work_release(release());
    }
    dtr_work *raw_ = nullptr;
    dtr_group *group_ = nullptr; /* of the work: it must live as long */
};

// ---- groups -------------------------------------------------------------------------------------

class group;

/** A group that somebody else ends, such as the world's own. Buffers are containers with data() and
 * size(), arrays, single numbers, or a dtr_buffer; results are lvalues. Without a second buffer a
 * call works in place. NAME_async starts the operation and gives a dtr::work. */
class group_ref {
  public:
    group_ref() noexcept = default;
    explicit group_ref(dtr_group *raw) noexcept : raw_(raw) {
    }
    dtr_group *get() const noexcept {
        return raw_;
    }
    int rank() const {
        return ::dtr_group_rank(raw_);
    }
    int size() const {
        return ::dtr_group_size(raw_);
    }
    std::string name() const {
        return ::dtr_group_name(raw_);
    }
    dtr_status status() const {
        return ::dtr_group_status(raw_);
    }
    void abort(const char *reason) {
        check(::dtr_group_abort(raw_, reason));
    }
    /** Ranks of one color make a group; a negative color (DTR_COLOR_NONE) gives an empty one. */
    inline group split(int color, int key = 0, const dtr_group_options *options = nullptr) const;

    void barrier(const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {
        run(file, line, DTR_HPP_C(dtr_barrier), raw_, o);
    }
    work barrier_async(const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {
        return start(file, line, DTR_HPP_C(dtr_barrier), raw_, o);
    }

/* In place from one buffer, whose operator or root follows. */
#define DTR_HPP_ONE(name, type, argument)                                                        \
    template <class B>                                                                           \
    void name(B &&x, type argument, const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {         \
        run(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(x), argument, o);            \
    }                                                                                            \
    template <class B>                                                                           \
    work name##_async(B &&x, type argument, const dtr_coll_options *o = nullptr, DTR_HPP_SITE) { \
        return start(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(x), argument, o);   \
    }
    DTR_HPP_ONE(broadcast, int, root)
#undef DTR_HPP_ONE

/* An operator, a sum where none is given; in place where there is one buffer. */
#define DTR_HPP_REDUCTION(name)                                                                    \
    template <class I, class O, class = std::enable_if_t<detail::is_buffer<O>>>                    \
    void name(const I &in, O &&out, dtr_op op = DTR_SUM, const dtr_coll_options *o = nullptr,      \
              DTR_HPP_SITE) {                                                                      \
        run(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(in), detail::buffer(out), op,  \
            o);                                                                                    \
    }                                                                                              \
    template <class B>                                                                             \
    void name(B &&x, dtr_op op = DTR_SUM, const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {     \
        run(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(x), detail::buffer(x), op, o); \
    }                                                                                              \
    template <class I, class O, class = std::enable_if_t<detail::is_buffer<O>>>                    \
    work name##_async(const I &in, O &&out, dtr_op op = DTR_SUM,                                   \
                      const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {                         \
        return start(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(in),                  \
                     detail::buffer(out), op, o);                                                  \
    }                                                                                              \
    template <class B>                                                                             \
    work name##_async(B &&x, dtr_op op = DTR_SUM, const dtr_coll_options *o = nullptr,             \
                      DTR_HPP_SITE) {                                                              \
        return start(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(x),                   \
                     detail::buffer(x), op, o);                                                    \
    }
    DTR_HPP_REDUCTION(allreduce)
    DTR_HPP_REDUCTION(scan)
    DTR_HPP_REDUCTION(exscan)
    DTR_HPP_REDUCTION(reduce_scatter)
#undef DTR_HPP_REDUCTION

    template <class I, class O>
    void reduce(const I &in, O &&out, dtr_op op, int root, const dtr_coll_options *o = nullptr,
                DTR_HPP_SITE) {
        run(file, line, DTR_HPP_C(dtr_reduce), raw_, detail::buffer(in), detail::buffer(out), op,
            root, o);
    }
    template <class I, class O>
    work reduce_async(const I &in, O &&out, dtr_op op, int root,
                      const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {
        return start(file, line, DTR_HPP_C(dtr_reduce), raw_, detail::buffer(in),
                     detail::buffer(out), op, root, o);
    }

#define DTR_HPP_MOVE(name)                                                                        \
    template <class I, class O>                                                                   \
    void name(const I &in, O &&out, const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {          \
        run(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(in), detail::buffer(out), o); \
    }                                                                                             \
    template <class I, class O>                                                                   \
    work name##_async(const I &in, O &&out, const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {  \
        return start(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(in),                 \
                     detail::buffer(out), o);                                                     \
    }
    DTR_HPP_MOVE(allgather)
    DTR_HPP_MOVE(alltoall)
#undef DTR_HPP_MOVE

#define DTR_HPP_ROOTED(name)                                                                       \
    template <class I, class O>                                                                    \
    void name(const I &in, O &&out, int root, const dtr_coll_options *o = nullptr, DTR_HPP_SITE) { \
        run(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(in), detail::buffer(out),      \
            root, o);                                                                              \
    }                                                                                              \
    template <class I, class O>                                                                    \
    work name##_async(const I &in, O &&out, int root, const dtr_coll_options *o = nullptr,         \
                      DTR_HPP_SITE) {                                                              \
        return start(file, line, DTR_HPP_C(dtr_##name), raw_, detail::buffer(in),                  \
                     detail::buffer(out), root, o);                                                \
    }
    DTR_HPP_ROOTED(gather)
    DTR_HPP_ROOTED(scatter)
#undef DTR_HPP_ROOTED

    template <class I>
    void send(const I &x, int peer, int tag = 0, const dtr_coll_options *o = nullptr,
              DTR_HPP_SITE) {
        run(file, line, DTR_HPP_C(dtr_send), raw_, detail::buffer(x), peer, tag, o);
    }
    template <class I>
    work send_async(const I &x, int peer, int tag = 0, const dtr_coll_options *o = nullptr,
                    DTR_HPP_SITE) {
        return start(file, line, DTR_HPP_C(dtr_send), raw_, detail::buffer(x), peer, tag, o);
    }
    template <class O>
    void recv(O &&x, int peer, int tag = 0, const dtr_coll_options *o = nullptr, DTR_HPP_SITE) {
        run(file, line, DTR_HPP_C(dtr_recv), raw_, detail::buffer(x), peer, tag, o);
    }
    template <class O>
    work recv_async(O &&x, int peer, int tag = 0, const dtr_coll_options *o = nullptr,
                    DTR_HPP_SITE) {
        return start(file, line, DTR_HPP_C(dtr_recv), raw_, detail::buffer(x), peer, tag, o);
    }

  private:
    template <class F, class... A>
    static void run(const char *file, int line, F function, A... arguments) {
        dtr_call_site(file, line);
        check(function(arguments..., nullptr));
    }
    template <class F, class... A>
    static work start(const char *file, int line, F function, dtr_group *group, A... arguments) {
        dtr_work *raw = nullptr;
        dtr_call_site(file, line);
        check(function(group, arguments..., &raw));
        return work(raw, group);
    }
    dtr_group *raw_ = nullptr;
};

/** A group of one's own. Its end is collective; where an exception leaves its scope, the group is
 * aborted first, so that no rank waits there for another. */
class group : public group_ref {
  public:
    group() noexcept = default;
    explicit group(dtr_group *raw) noexcept : group_ref(raw), own_(raw) {
    }
    group(group &&other) noexcept : group_ref(other.get()), own_(std::move(other.own_)) {
        static_cast<group_ref &>(other) = group_ref();
    }
    group &operator=(group &&other) noexcept {
        own_ = std::move(other.own_);
        static_cast<group_ref &>(*this) = group_ref(own_.get());
        static_cast<group_ref &>(other) = group_ref(other.own_.get());
        return *this;
    }
    explicit operator bool() const noexcept {
        return get() != nullptr;
    }
    /** End it now, with its error. */
    void destroy() {
        static_cast<group_ref &>(*this) = group_ref();
        check(::dtr_group_destroy(own_.release()));
    }

  private:
    detail::handle<dtr_group, detail::end_group> own_;
};

inline group group_ref::split(int color, int key, const dtr_group_options *options) const {
    dtr_group *raw = nullptr;
    check(::dtr_group_split(raw_, color, key, options, &raw));
    return group(raw);
}

// ---- worlds and what else has an end ------------------------------------------------------------

/** All ranks that were started together. Its end is collective. */
class world : public detail::handle<dtr_world, detail::end_world> {
  public:
    explicit world(const dtr_world_options *options = nullptr) {
        dtr_world *raw = nullptr;
        check(::dtr_world_create(options, &raw));
        reset(raw);
    }
    int rank() const {
        return ::dtr_world_rank(get());
    }
    int size() const {
        return ::dtr_world_size(get());
    }
    int local_rank() const {
        return ::dtr_world_local_rank(get());
    }
    group_ref group() const {
        return group_ref(::dtr_world_group(get()));
    }
    /** End it now, with its error. */
    void destroy() {
        check(::dtr_world_destroy(release()));
    }
};

/** A reference to a tensor, given back at its end. */
using tensor = detail::handle<dtr_tensor, detail::end_tensor>;

} // namespace dtr

#undef DTR_HPP_C
#undef DTR_HPP_SITE

#endif /* DTR_DTR_HPP */
