// dtr.hpp: every method once with its result, what a failed call throws, and handles that end by themselves.
#include <array>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <dtr/dtr.hpp>

static int wrong = 0;

static void check(bool fine, const char *what, int line) {
    if (!fine) {
        std::fprintf(stderr, "line %d: %s\n", line, what);
        wrong++;
    }
}
#define CHECK(condition) check(condition, #condition, __LINE__)

static void reductions(dtr::group_ref g) {
    const int n = g.size(), r = g.rank(), all = n * (n + 1) / 2;
    std::vector<float> x(100, float(r + 1)), y(100);
    const std::vector<float> in = x;
    g.allreduce(in, y);
    CHECK(y[0] == float(all) && y[99] == float(all));
    g.allreduce(x, DTR_MAX); // in place
    CHECK(x[50] == float(n));
    double one = r + 1;
    g.allreduce(one); // a single number
    CHECK(one == all);
    long wide[3] = { r + 1, 2, 3 };
    dtr::work w = g.allreduce_async(wide, DTR_SUM);
    w.wait();
    CHECK(w.is_done() && wide[0] == all && wide[2] == 3L * n);
    std::array<std::complex<double>, 2> z{ { { 1, double(r) }, { 0, 1 } } };
    g.allreduce_async(z).wait();
    CHECK(z[0] == std::complex<double>(n, n * (n - 1) / 2) && z[1] == std::complex<double>(0, n));
    int sum = -1, mine = r + 1;
    g.reduce(mine, sum, DTR_SUM, n - 1);
    CHECK(r != n - 1 || sum == all);
    int before = 0;
    g.scan(mine, sum);
    g.exscan_async(mine, before).wait();
    CHECK(sum == (r + 1) * (r + 2) / 2 && before == r * (r + 1) / 2);
    std::vector<std::int64_t> parts(std::size_t(n) * 2, r), part(2);
    g.reduce_scatter(parts, part);
    CHECK(part[0] == n * (n - 1) / 2);
}

static void moves(dtr::group_ref g) {
    const int n = g.size(), r = g.rank();
    std::vector<std::uint16_t> x(10, std::uint16_t(r == n - 1 ? 7 : 0));
    g.broadcast(x, n - 1);
    CHECK(x[9] == 7);
    std::vector<double> all(static_cast<std::size_t>(n)), back(1);
    const double mine = r;
    g.allgather(mine, all);
    CHECK(all[0] == 0 && all[std::size_t(n) - 1] == n - 1);
    std::vector<double> gathered(r == 0 ? std::size_t(n) : 0, -1), dealt = all;
    g.gather(mine, gathered, 0);
    CHECK(r != 0 || gathered == all);
    dealt.resize(r == 0 ? dealt.size() : 0);
    g.scatter(dealt, back, 0);
    CHECK(back[0] == r);
    std::vector<int> to(static_cast<std::size_t>(n)), from(static_cast<std::size_t>(n));
    for (int i = 0; i < n; i++) {
        to[std::size_t(i)] = 100 * r + i;
    }
    g.alltoall(to, from);
    CHECK(from[std::size_t(n) - 1] == 100 * (n - 1) + r);
    int token = r, got = -1;
    dtr::work sent = g.send_async(token, (r + 1) % n, 5);
    dtr::work received = g.recv_async(got, (r + n - 1) % n, 5);
    received.wait();
    sent.wait();
    if (n > 1 && r == 0) {
        g.send(token, 1);
    } else if (r == 1) {
        int first = -1;
        g.recv(first, 0);
        CHECK(first == 0);
    }
    CHECK(got == (r + n - 1) % n);
    g.barrier_async().wait();
    const int values[2] = { r, r };
    int raw[2];
    g.allreduce(dtr_cpu_in(values, 2, DTR_I32), dtr_cpu(raw, 2, DTR_I32), DTR_MIN); // buffers of the C interface
    CHECK(raw[0] == 0);
}

// What a failed call throws has status and text, with the place of the call.
static void errors(dtr::group_ref g) {
    float x = 0;
    std::string text, line;
    dtr_status status = DTR_OK;
    try {
        line = "hpp.cpp:" + std::to_string(__LINE__ + 1);
        g.broadcast(x, g.size());
    } catch (const dtr::error &e) {
        status = e.status();
        text = e.what();
    }
    CHECK(status == DTR_ERR_RANK && text.find("root") != std::string::npos);
    // An operation that never ends names its place.
    dtr::group own = g.split(0, g.rank());
    try {
        line = "hpp.cpp:" + std::to_string(__LINE__ + 1);
        dtr::work w = own.recv_async(x, own.rank());
        w.wait(0.05);
        CHECK(!"a message that nobody sends has come");
    } catch (const dtr::error &e) {
        status = e.status();
        text = e.what();
    }
    CHECK(status == DTR_ERR_TIMEOUT);
    CHECK(text.find("called at " + line) != std::string::npos);
    CHECK(own.status() == DTR_ERR_TIMEOUT);
}

static void handles(dtr::world &world) {
    dtr::group_ref g = world.group();
    const int groups = dtr_world_group_count(world.get());
    {
        dtr::group a = g.split(g.rank() % 2), none = g.split(DTR_COLOR_NONE);
        CHECK(a && !none);
        int x = 1;
        a.allreduce(x);
        CHECK(x == a.size());
        dtr::group b = std::move(a);
        CHECK(b && !a && b.rank() >= 0);
        a = std::move(b);
        CHECK(a && !b && a.rank() >= 0);
        dtr::group c = g.split(0);
        c.destroy();
        CHECK(!c);
    }
    CHECK(dtr_world_group_count(world.get()) == groups);
    // An exception on all ranks but the last leaves the scope of a group in which the last waits for them.
    try {
        dtr::group a = g.split(0, g.rank());
        if (g.rank() < g.size() - 1) {
            throw std::runtime_error("the program's own");
        }
        if (g.size() > 1) {
            a.barrier();
        }
        a.destroy();
    } catch (const dtr::error &e) {
        CHECK(g.rank() == g.size() - 1 && (e.status() == DTR_ERR_ABORTED || e.status() == DTR_ERR_REMOTE));
    } catch (const std::runtime_error &) {
        CHECK(g.rank() < g.size() - 1);
    }
    CHECK(dtr_world_group_count(world.get()) == groups);
    // The end of a work waits for it: the memory may go.
    std::vector<float> y(1 << 20, 1);
    {
        dtr::work w = g.allreduce_async(y);
    }
    CHECK(y[0] == float(g.size()) && y.back() == float(g.size()));
}

int main() {
    try {
        dtr::world world;
        CHECK(world.rank() == world.group().rank() && world.local_rank() >= 0 && world.group().name() == "world");
        reductions(world.group());
        moves(world.group());
        errors(world.group());
        handles(world);
        int all = wrong;
        world.group().allreduce(all);
        if (world.rank() == 0) {
            std::printf("%d ranks, %d wrong\n", world.size(), all);
        }
        world.destroy();
        return all == 0 ? 0 : 1;
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        return 1;
    }
}
