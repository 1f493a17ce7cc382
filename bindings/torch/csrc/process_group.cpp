#include "plan.hpp"

#include <algorithm>

namespace dtr_torch {

namespace {

// Names of groups have at most 63 bytes; those of torch may be longer, and differ at their ends.
std::string short_name(const std::string &name) {
    constexpr size_t limit = 63;
    const std::string full = "torch:" + name;
    return full.size() <= limit ? full : "torch:" + full.substr(full.size() - (limit - 6));
}

Tensors joined(const std::vector<Tensors> &lists) {
    Tensors all;
    for (const auto &list : lists) {
        all.insert(all.end(), list.begin(), list.end());
    }
    return all;
}

// The list of one tensor per rank that calls with a list of such lists carry.
const Tensors &only_list(const std::vector<Tensors> &lists, size_t size, const char *what) {
    TORCH_CHECK_VALUE(lists.size() == 1, what, ": ", lists.size(), " lists, one is needed");
    check_list(lists[0], size, what);
    return lists[0];
}

bool all_like(const Tensors &tensors, const at::Tensor &one) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [&](const at::Tensor &tensor) { return tensor.numel() == one.numel(); });
}

void same_type(const at::Tensor &a, const at::Tensor &b, const char *what) {
    TORCH_CHECK_VALUE(a.scalar_type() == b.scalar_type(), what, ": input of type ", a.scalar_type(),
                      ", output of ", b.scalar_type(), "; one type is needed");
}

// Elements of each rank's part of an all-to-all, from its rows; without a list, equal parts.
std::vector<size_t> parts(const at::Tensor &tensor, const std::vector<int64_t> &splits, int size,
                          const char *what) {
    const int64_t rows = tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
    const size_t row =
        rows == 0 ? 0 : moved_per_element(tensor) * static_cast<size_t>(tensor.numel() / rows);
    std::vector<size_t> all;
    if (splits.empty()) {
        TORCH_CHECK_VALUE(rows % size == 0, what, ": ", rows, " rows do not divide into ", size,
                          " equal parts");
        all.assign(size, row * static_cast<size_t>(rows / size));
        return all;
    }
    TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(size), what, ": ", splits.size(),
                      " splits for ", size, " ranks");
    int64_t sum = 0;
    for (const int64_t part : splits) {
        TORCH_CHECK_VALUE(part >= 0, what, ": a split is ", part);
        sum += part;
        all.push_back(row * static_cast<size_t>(part));
    }
    TORCH_CHECK_VALUE(sum == rows, what, ": the splits sum to ", sum, ", the tensor has ", rows,
                      " rows");
    return all;
}

} // namespace

ProcessGroupDtr::ProcessGroupDtr(int rank, std::vector<int> world_ranks,
                                 c10::intrusive_ptr<GroupOptions> options)
    : Backend(rank, static_cast<int>(world_ranks.size())), world_ranks_(std::move(world_ranks)),
      options_(std::move(options)) {
    const std::string name = short_name(options_->group_name);
    dtr_group_options how = DTR_GROUP_OPTIONS_INIT;
    how.timeout_s = seconds(options_->timeout);
    how.name = name.c_str();
    how.desc = options_->group_desc.c_str();
    how.backend = options_->transport.empty() ? nullptr : options_->transport.c_str();
    how.local_sync = true; // torch calls members only
    how.deterministic = options_->deterministic;
    how.reproducible = options_->reproducible;
    note_call_site();
    check(dtr_group_create(world(), world_ranks_.data(), size_, &how, &group_));
    init();
}

ProcessGroupDtr::~ProcessGroupDtr() {
    shutdown();
}

dtr_group *ProcessGroupDtr::live() const {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(group_ != nullptr, "the process group '", options_->group_name,
                "' has been shut down");
    return group_;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupDtr::split(
    const c10::intrusive_ptr<c10d::Store> & /*store*/, const std::vector<int> &ranks,
    const c10::intrusive_ptr<c10d::Backend::Options> &options) {
    const auto me = std::find(ranks.begin(), ranks.end(), rank_);
    if (me == ranks.end()) {
        return nullptr;
    }
    std::vector<int> world_ranks;
    for (const int rank : ranks) {
        TORCH_CHECK_VALUE(rank >= 0 && rank < size_, "split: rank ", rank, " of a group of ",
                          size_);
        world_ranks.push_back(world_ranks_[rank]);
    }
    auto own = c10::dynamic_intrusive_pointer_cast<GroupOptions>(options);
    if (!own) {
        own = c10::make_intrusive<GroupOptions>(*options_);
        own->timeout = options->timeout;
        own->group_name = options->group_name;
        own->group_desc = options->group_desc;
    }
    return c10::make_intrusive<ProcessGroupDtr>(static_cast<int>(me - ranks.begin()),
                                                std::move(world_ranks), own);
}

void ProcessGroupDtr::setTimeout(std::chrono::milliseconds timeout) {
    check(dtr_group_set_timeout(live(), seconds(timeout)));
    options_->timeout = timeout;
}

uint64_t ProcessGroupDtr::getSequenceNumberForGroup() {
    return dtr_group_seq(live());
}

c10d::ErrorType ProcessGroupDtr::getError() {
    switch (dtr_group_status(live())) {
    case DTR_OK:
        return c10d::ErrorType::SUCCESS;
    case DTR_ERR_TIMEOUT:
        return c10d::ErrorType::TIMEOUT;
    case DTR_ERR_REMOTE:
        return c10d::ErrorType::REMOTE_ERROR;
    default:
        return c10d::ErrorType::COMM_ERROR;
    }
}

void ProcessGroupDtr::abort() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (group_ != nullptr && has_world()) {
        dtr_group_abort(group_, "abort of the process group was called");
    }
}

void ProcessGroupDtr::shutdown() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (group_ != nullptr && has_world()) {
        dtr_group_release(group_); // ranks end their groups of torch when they like
    }
    group_ = nullptr;
}

WorkPtr ProcessGroupDtr::broadcast(Tensors &tensors, const c10d::BroadcastOptions &options) {
    const at::Tensor tensor = only(tensors, "broadcast");
    const at::Tensor flat = dense(tensor, true);
    Plan plan(*this, { c10d::OpType::BROADCAST, "dtr:broadcast", options.timeout, options.asyncOp },
              tensors, tensors);
    plan.copy_back(flat, tensor);
    return plan.start([&] {
        return dtr_broadcast(plan.group, moved(flat), static_cast<int>(options.rootRank),
                             &plan.options, plan.handle());
    });
}

WorkPtr ProcessGroupDtr::allreduce(Tensors &tensors, const c10d::AllreduceOptions &options) {
    if (tensors.size() == 1 && tensors[0].is_sparse()) {
        return allreduce_sparse(tensors, options);
    }
    const at::Tensor tensor = only(tensors, "all_reduce");
    const at::Tensor flat = dense(tensor, true);
    Call call{ c10d::OpType::ALLREDUCE, "dtr:all_reduce", options.timeout, options.asyncOp };
    const dtr_op op = operator_of(options.reduceOp, &call.premul, &call.premul_at);
    Plan plan(*this, call, tensors, tensors);
    plan.copy_back(flat, tensor);
    return plan.start([&] {
        return dtr_allreduce(plan.group, numbers(flat), numbers(flat), op, &plan.options,
                             plan.handle());
    });
}

WorkPtr ProcessGroupDtr::allreduce_coalesced(Tensors &tensors,
                                             const c10d::AllreduceCoalescedOptions &options) {
    check_list(tensors, std::max<size_t>(tensors.size(), 1), "all_reduce_coalesced");
    Call call{ c10d::OpType::ALLREDUCE_COALESCED, "dtr:all_reduce", options.timeout,
               options.asyncOp };
    const dtr_op op = operator_of(options.reduceOp, &call.premul, &call.premul_at);
    Plan plan(*this, call, tensors, tensors);
    Tensors flats;
    for (const auto &tensor : tensors) {
        flats.push_back(dense(tensor, true));
        plan.copy_back(flats.back(), tensor);
    }
    return plan.start_together(scope_mutex_, flats.size(), [&](size_t i) {
        return dtr_allreduce(plan.group, numbers(flats[i]), numbers(flats[i]), op, &plan.options,
                             nullptr);
    });
}

WorkPtr ProcessGroupDtr::reduce(Tensors &tensors, const c10d::ReduceOptions &options) {
    const at::Tensor tensor = only(tensors, "reduce");
    const at::Tensor flat = dense(tensor, true);
    Call call{ c10d::OpType::REDUCE, "dtr:reduce", options.timeout, options.asyncOp };
    const dtr_op op = operator_of(options.reduceOp, &call.premul, &call.premul_at);
    Plan plan(*this, call, tensors, tensors);
    if (options.rootRank == rank_) {
        plan.copy_back(flat, tensor);
    } else {
        plan.hold({ flat });
    }
    return plan.start([&] {
        return dtr_reduce(plan.group, numbers(flat), numbers(flat), op,
                          static_cast<int>(options.rootRank), &plan.options, plan.handle());
    });
}

WorkPtr ProcessGroupDtr::allgather(std::vector<Tensors> &outputs, Tensors &inputs,
                                   const c10d::AllgatherOptions &options) {
    const at::Tensor input = only(inputs, "all_gather");
    const Tensors &list = only_list(outputs, size_, "all_gather");
    same_type(input, list[0], "all_gather");
    const at::Tensor in = dense(input, true), out = dense(list, false);
    Plan plan(*this,
              { c10d::OpType::ALLGATHER, "dtr:all_gather", options.timeout, options.asyncOp },
              inputs, list);
    plan.hold({ in });
    plan.copy_back(out, list);
    return plan.start([&] {
        if (all_like(list, list[0])) {
            return dtr_allgather(plan.group, moved(in), moved(out), &plan.options, plan.handle());
        }
        return dtr_allgatherv(plan.group, moved(in), moved(out), counts(list).data(), &plan.options,
                              plan.handle());
    });
}

WorkPtr ProcessGroupDtr::_allgather_base(at::Tensor &output, at::Tensor &input,
                                         const c10d::AllgatherOptions &options) {
    check_list({ input, output }, 2, "all_gather_into_tensor");
    const at::Tensor in = dense(input, true), out = dense(output, false);
    Plan plan(
        *this,
        { c10d::OpType::_ALLGATHER_BASE, "dtr:_all_gather_base", options.timeout, options.asyncOp },
        { input }, { output });
    plan.hold({ in });
    plan.copy_back(out, output);
    return plan.start([&] {
        return dtr_allgather(plan.group, moved(in), moved(out), &plan.options, plan.handle());
    });
}

WorkPtr ProcessGroupDtr::allgather_coalesced(std::vector<Tensors> &outputs, Tensors &inputs,
                                             const c10d::AllgatherOptions &options) {
    // Outputs come as one list for each rank, with one tensor for each input.
    TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(size_),
                      "all_gather_coalesced: ", outputs.size(),
                      " lists of outputs, one for each of ", size_, " ranks is needed");
    check_list(inputs, std::max<size_t>(inputs.size(), 1), "all_gather_coalesced");
    Plan plan(
        *this,
        { c10d::OpType::ALLGATHER_COALESCED, "dtr:all_gather", options.timeout, options.asyncOp },
        inputs, joined(outputs));
    Tensors ins, outs;
    for (size_t i = 0; i < inputs.size(); i++) {
        Tensors list;
        for (const auto &of_rank : outputs) {
            TORCH_CHECK_VALUE(of_rank.size() == inputs.size(),
                              "all_gather_coalesced: ", of_rank.size(), " outputs of a rank for ",
                              inputs.size(), " inputs");
            list.push_back(of_rank[i]);
        }
        check_list(list, size_, "all_gather_coalesced");
        ins.push_back(dense(inputs[i], true));
        outs.push_back(dense(list, false));
        plan.copy_back(outs.back(), list);
    }
    plan.hold(ins);
    return plan.start_together(scope_mutex_, ins.size(), [&](size_t i) {
        return dtr_allgather(plan.group, moved(ins[i]), moved(outs[i]), &plan.options, nullptr);
    });
}

WorkPtr ProcessGroupDtr::allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs,
                                                         const c10d::AllgatherOptions &options) {
    const char *what = "all_gather_into_tensor_coalesced";
    check_list(outputs, inputs.size(), what);
    check_list(inputs, inputs.size(), what);
    Plan plan(*this,
              { c10d::OpType::ALLGATHER_INTO_TENSOR_COALESCED, "dtr:_all_gather_base",
                options.timeout, options.asyncOp },
              inputs, outputs);
    Tensors ins, outs;
    for (size_t i = 0; i < inputs.size(); i++) {
        ins.push_back(dense(inputs[i], true));
        outs.push_back(dense(outputs[i], false));
        plan.copy_back(outs[i], outputs[i]);
    }
    plan.hold(ins);
    return plan.start_together(scope_mutex_, ins.size(), [&](size_t i) {
        return dtr_allgather(plan.group, moved(ins[i]), moved(outs[i]), &plan.options, nullptr);
    });
}

WorkPtr ProcessGroupDtr::gather(std::vector<Tensors> &outputs, Tensors &inputs,
                                const c10d::GatherOptions &options) {
    const at::Tensor input = only(inputs, "gather");
    const bool root = options.rootRank == rank_;
    TORCH_CHECK_VALUE(root || joined(outputs).empty(),
                      "gather: outputs are given on a rank that is not the root");
    const Tensors list = root ? only_list(outputs, size_, "gather") : Tensors{};
    const at::Tensor in = dense(input, true);
    const at::Tensor out = root ? dense(list, false) : at::empty({ 0 }, input.options());
    same_type(input, out, "gather");
    Plan plan(*this, { c10d::OpType::GATHER, "dtr:gather", options.timeout, options.asyncOp },
              inputs, list);
    plan.hold({ in });
    plan.copy_back(out, list);
    return plan.start([&] {
        return dtr_gatherv(plan.group, moved(in), moved(out), counts(list).data(),
                           static_cast<int>(options.rootRank), &plan.options, plan.handle());
    });
}

WorkPtr ProcessGroupDtr::scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                 const c10d::ScatterOptions &options) {
    const at::Tensor output = only(outputs, "scatter");
    const bool root = options.rootRank == rank_;
    TORCH_CHECK_VALUE(root || joined(inputs).empty(),
                      "scatter: inputs are given on a rank that is not the root");
    const Tensors list = root ? only_list(inputs, size_, "scatter") : Tensors{};
    const at::Tensor out = dense(output, false);
    const at::Tensor in = root ? dense(list, true) : at::empty({ 0 }, output.options());
    same_type(in, output, "scatter");
    Plan plan(*this, { c10d::OpType::SCATTER, "dtr:scatter", options.timeout, options.asyncOp },
              list, outputs);
    plan.hold({ in });
    plan.copy_back(out, output);
    return plan.start([&] {
        return dtr_scatterv(plan.group, moved(in), counts(list).data(), moved(out),
                            static_cast<int>(options.rootRank), &plan.options, plan.handle());
    });
}

WorkPtr ProcessGroupDtr::reduce_scatter(Tensors &outputs, std::vector<Tensors> &inputs,
                                        const c10d::ReduceScatterOptions &options) {
    const at::Tensor output = only(outputs, "reduce_scatter");
    const Tensors &list = only_list(inputs, size_, "reduce_scatter");
    same_type(list[0], output, "reduce_scatter");
    const at::Tensor in = dense(list, true), out = dense(output, false);
    Call call{ c10d::OpType::REDUCE_SCATTER, "dtr:reduce_scatter", options.timeout,
               options.asyncOp };
    const dtr_op op = operator_of(options.reduceOp, &call.premul, &call.premul_at);
    Plan plan(*this, call, list, outputs);
    plan.hold({ in });
    plan.copy_back(out, output);
    return plan.start([&] {
        if (all_like(list, list[0])) {
            return dtr_reduce_scatter(plan.group, numbers(in), numbers(out), op, &plan.options,
                                      plan.handle());
        }
        return dtr_reduce_scatterv(plan.group, numbers(in), counts(list).data(), numbers(out), op,
                                   &plan.options, plan.handle());
    });
}

WorkPtr ProcessGroupDtr::_reduce_scatter_base(at::Tensor &output, at::Tensor &input,
                                              const c10d::ReduceScatterOptions &options) {
    check_list({ input, output }, 2, "reduce_scatter_tensor");
    const at::Tensor in = dense(input, true), out = dense(output, false);
    Call call{ c10d::OpType::_REDUCE_SCATTER_BASE, "dtr:_reduce_scatter_base", options.timeout,
               options.asyncOp };
    const dtr_op op = operator_of(options.reduceOp, &call.premul, &call.premul_at);
    Plan plan(*this, call, { input }, { output });
    plan.hold({ in });
    plan.copy_back(out, output);
    return plan.start([&] {
        return dtr_reduce_scatter(plan.group, numbers(in), numbers(out), op, &plan.options,
                                  plan.handle());
    });
}

WorkPtr ProcessGroupDtr::reduce_scatter_tensor_coalesced(
    Tensors &outputs, Tensors &inputs, const c10d::ReduceScatterOptions &options) {
    const char *what = "reduce_scatter_tensor_coalesced";
    check_list(outputs, inputs.size(), what);
    check_list(inputs, inputs.size(), what);
    Call call{ c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED, "dtr:_reduce_scatter_base",
               options.timeout, options.asyncOp };
    const dtr_op op = operator_of(options.reduceOp, &call.premul, &call.premul_at);
    Plan plan(*this, call, inputs, outputs);
    Tensors ins, outs;
    for (size_t i = 0; i < inputs.size(); i++) {
        ins.push_back(dense(inputs[i], true));
        outs.push_back(dense(outputs[i], false));
        plan.copy_back(outs[i], outputs[i]);
    }
    plan.hold(ins);
    return plan.start_together(scope_mutex_, ins.size(), [&](size_t i) {
        return dtr_reduce_scatter(plan.group, numbers(ins[i]), numbers(outs[i]), op, &plan.options,
                                  nullptr);
    });
}

WorkPtr ProcessGroupDtr::alltoall_base(at::Tensor &output, at::Tensor &input,
                                       std::vector<int64_t> &output_splits,
                                       std::vector<int64_t> &input_splits,
                                       const c10d::AllToAllOptions &options) {
    check_list({ input, output }, 2, "all_to_all_single");
    const at::Tensor in = dense(input, true), out = dense(output, false);
    const auto sent = parts(in, input_splits, size_, "all_to_all_single: input");
    const auto received = parts(out, output_splits, size_, "all_to_all_single: output");
    Plan plan(*this,
              { c10d::OpType::ALLTOALL_BASE, "dtr:all_to_all", options.timeout, options.asyncOp },
              { input }, { output });
    plan.hold({ in });
    plan.copy_back(out, output);
    return plan.start([&] {
        return dtr_alltoallv(plan.group, moved(in), sent.data(), moved(out), received.data(),
                             &plan.options, plan.handle());
    });
}

WorkPtr ProcessGroupDtr::alltoall(Tensors &outputs, Tensors &inputs,
                                  const c10d::AllToAllOptions &options) {
    check_list(outputs, size_, "all_to_all");
    check_list(inputs, size_, "all_to_all");
    same_type(inputs[0], outputs[0], "all_to_all");
    const at::Tensor in = dense(inputs, true), out = dense(outputs, false);
    Plan plan(*this, { c10d::OpType::ALLTOALL, "dtr:all_to_all", options.timeout, options.asyncOp },
              inputs, outputs);
    plan.hold({ in });
    plan.copy_back(out, outputs);
    return plan.start([&] {
        return dtr_alltoallv(plan.group, moved(in), counts(inputs).data(), moved(out),
                             counts(outputs).data(), &plan.options, plan.handle());
    });
}

WorkPtr ProcessGroupDtr::send(Tensors &tensors, int peer, int tag) {
    const at::Tensor flat = dense(only(tensors, "send"), true);
    Plan plan(*this, { c10d::OpType::SEND, "dtr:send" }, tensors, {});
    plan.hold({ flat });
    return plan.start(
        [&] { return dtr_send(plan.group, moved(flat), peer, tag, &plan.options, plan.handle()); });
}

WorkPtr ProcessGroupDtr::receive(Tensors &tensors, c10d::OpType type, int peer, int tag) {
    const at::Tensor tensor = only(tensors, "recv");
    const at::Tensor flat = dense(tensor, false);
    Plan plan(*this, { type, type == c10d::OpType::RECV ? "dtr:recv" : "dtr:recvAnySource" },
              tensors, tensors);
    plan.copy_back(flat, tensor);
    return plan.start(
        [&] { return dtr_recv(plan.group, moved(flat), peer, tag, &plan.options, plan.handle()); });
}

WorkPtr ProcessGroupDtr::recv(Tensors &tensors, int peer, int tag) {
    return receive(tensors, c10d::OpType::RECV, peer, tag);
}

WorkPtr ProcessGroupDtr::recvAnysource(Tensors &tensors, int tag) {
    return receive(tensors, c10d::OpType::RECVANYSOURCE, DTR_ANY_SOURCE, tag);
}

WorkPtr ProcessGroupDtr::barrier(const c10d::BarrierOptions &options) {
    Plan plan(*this, { c10d::OpType::BARRIER, "dtr:barrier", options.timeout, options.asyncOp }, {},
              {});
    return plan.start([&] { return dtr_barrier(plan.group, &plan.options, plan.handle()); });
}

void ProcessGroupDtr::monitoredBarrier(const c10d::BarrierOptions &options, bool wait_all) {
    std::vector<int> missing(size_);
    int n = 0;
    const double limit = options.timeout < std::chrono::milliseconds(0)
                             ? -1
                             : std::chrono::duration<double>(options.timeout).count();
    note_call_site();
    try {
        check(dtr_monitored_barrier(live(), limit, wait_all, missing.data(), &n));
    } catch (c10::Error &error) {
        if (n > 0) { // what Gloo says, for programs that look for it
            std::string ranks = std::to_string(missing[0]);
            for (int i = 1; i < n; i++) {
                ranks += ", " + std::to_string(missing[i]);
            }
            error.add_context((n == 1 ? "Rank " : "Ranks ") + ranks +
                              " failed to pass monitoredBarrier in " +
                              std::to_string(options.timeout.count()) + " ms");
        }
        throw;
    }
}

} // namespace dtr_torch
