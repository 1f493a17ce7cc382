// Sums of sparse tensors: their indices and values are gathered, and every rank adds them up in
// rank order.
#include "plan.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

namespace dtr_torch {

namespace {

// `tensor`, of `sizes[r]` rows on rank r, of all ranks one below another. Waits.
at::Tensor gather_rows(dtr_group *group, const at::Tensor &tensor,
                       const std::vector<int64_t> &sizes, const dtr_coll_options &options) {
    const at::Tensor in = dense(tensor, true);
    auto shape = in.sizes().vec();
    const size_t row = static_cast<size_t>(c10::multiply_integers(shape.begin() + 1, shape.end()));
    std::vector<size_t> counts;
    shape[0] = 0;
    for (const int64_t size : sizes) {
        counts.push_back(row * static_cast<size_t>(size));
        shape[0] += size;
    }
    const at::Tensor out = at::empty(shape, in.options());
    note_call_site();
    check(dtr_allgatherv(group, numbers(in), numbers(out), counts.data(), &options, nullptr));
    return out;
}

} // namespace

WorkPtr ProcessGroupDtr::allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &options) {
    TORCH_CHECK_VALUE(tensors.size() == 1 && tensors[0].is_sparse() && tensors[0].device().is_cpu(),
                      "all_reduce of sparse tensors: one sparse CPU tensor is needed");
    TORCH_CHECK_VALUE(options.reduceOp.op_ == c10d::ReduceOp::SUM,
                      "all_reduce of sparse tensors: SUM is the only operator");
    Plan plan(*this, { c10d::OpType::_ALLREDUCE_SPARSE, "dtr:all_reduce", options.timeout, false },
              tensors, tensors);
    const at::Tensor target = tensors[0];
    return plan.start([&] {
        at::AutoDispatchBelowADInplaceOrView below;
        const at::Tensor mine = target.coalesce();
        const at::Tensor indices = mine.indices().t().contiguous(), values = mine.values();
        const at::Tensor size = at::full({ 1 }, mine._nnz(), at::kLong);
        const std::vector<int64_t> ones(size_, 1);
        const at::Tensor sizes = gather_rows(plan.group, size, ones, plan.options);
        const std::vector<int64_t> rows(sizes.data_ptr<int64_t>(),
                                        sizes.data_ptr<int64_t>() + size_);
        const at::Tensor all_indices = gather_rows(plan.group, indices, rows, plan.options);
        const at::Tensor all_values = gather_rows(plan.group, values, rows, plan.options);
        const at::Tensor sum =
            at::sparse_coo_tensor(all_indices.t(), all_values, target.sizes(), target.options())
                .coalesce();
        target.copy_(sum);
        return DTR_OK;
    });
}

} // namespace dtr_torch
