"""The backend dtr under torchrun alone: the ranks find each other in torchrun's store, and MPI is never initialised.

Usage: torch_store.py RANKS [RANKS_OF_A_NODE]    starts itself by torchrun; the second makes several nodes of this host
"""
import ctypes
import os
import subprocess
import sys

try:
    import torch
    import torch.distributed as dist

    import dtr_torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def of_mpi():
    """MPI_Initialized, of the library that libdtr has loaded."""
    answer = ctypes.c_int(-1)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        path = next(line.split()[-1] for line in maps if "/libmpi.so" in line or "/libmpich.so" in line)
    ctypes.CDLL(path).MPI_Initialized(ctypes.byref(answer))
    return answer.value


def rank_main():
    dist.init_process_group("dtr")
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.full((1000,), float(rank + 1))
    dist.all_reduce(x)
    assert x[7] == size * (size + 1) / 2, x[7]
    half = dist.new_group(list(range(0, size, 2)), backend="dtr")
    if rank % 2 == 0:
        y = torch.ones(3)
        dist.all_reduce(y, group=half)
        assert y[0] == (size + 1) // 2, y
    model = dtr_torch.DistributedDataParallel(torch.nn.Linear(4, 1), gradient_as_bucket_view=True)
    for _ in range(3):
        model(torch.full((2, 4), float(rank))).sum().backward()
    grad = model.module.weight.grad[0, 0].clone()
    dist.broadcast(grad, 0)
    assert grad == model.module.weight.grad[0, 0], grad
    assert of_mpi() == 0, "MPI was initialised"
    with open(os.environ["TORCH_STORE_DONE"] + str(rank), "w", encoding="utf-8"):
        pass
    dtr_torch.shutdown()
    assert of_mpi() == 0, "MPI was initialised"


if "RANK" in os.environ and "TORCH_STORE_DONE" in os.environ:
    rank_main()
else:
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        done = os.path.join(folder, "done")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_COMM", "PMI", "RANK"))}
        environment["TORCH_STORE_DONE"] = done
        environment.update({"DTR_NODE_RANKS": n for n in sys.argv[2:]})
        status = subprocess.run([sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", sys.argv[1],
                                 os.path.abspath(__file__)], env=environment, timeout=240, check=False).returncode
        missing = [rank for rank in range(int(sys.argv[1])) if not os.path.exists(done + str(rank))]
        if status != 0 or missing:
            sys.exit(f"torchrun ended with {status}; ranks that did not come through: {missing}")
