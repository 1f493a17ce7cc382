"""dtr as a backend of torch.distributed, for processes that mpirun or torchrun has started.

    import dtr_torch
    torch.distributed.init_process_group("dtr")

Rank, size and rendezvous come from MPI; where torchrun has started the processes and mpirun has not, from torchrun, and MPI is
not used. DistributedDataParallel of this module keeps its buckets in memory that the
ranks of a node share, and shared_memory() does so for other tensors.
"""
import atexit
import contextlib
import importlib
import os
import socket
import threading

import torch
import torch.distributed as dist

from . import _C
from ._C import Options

_torch_rendezvous = importlib.import_module("torch.distributed.rendezvous")  # the package has a function of that name

__version__ = _C.version()
__all__ = ["DistributedDataParallel", "Options", "shared_memory", "shutdown"]

_C.skip_folders([os.path.join(os.path.dirname(os.path.abspath(module.__file__)), "") for module in (torch, _C)])


# What says that a launcher of MPI has started this process.
_OF_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE")


def _by_store():
    """Whether the ranks have to find each other in a store of torch."""
    return bool(os.environ.get("MASTER_PORT")) and not any(name in os.environ for name in _OF_MPI)


def _begin_world(facts):
    """The world of the processes that torchrun has started, in the store of the group of all of them."""
    if not facts.global_ranks_in_group:
        _C.begin_world(facts.store, facts.group_rank, facts.group_size)
    else:  # the group of all ranks has another backend
        store = dist.distributed_c10d._get_default_store()
        _C.begin_world(store, dist.get_rank(), dist.get_world_size())


def _create(facts, options):
    if _by_store() and not _C.has_world():
        _begin_world(facts)
    rank, size, _, _ = _C.world()
    ranks = list(facts.global_ranks_in_group) or list(range(facts.group_size))
    if not facts.global_ranks_in_group and (facts.group_rank, facts.group_size) != (rank, size):
        raise ValueError(f"torch.distributed says rank {facts.group_rank} of {facts.group_size}, MPI says {rank} of {size}: start "
                         "the processes with mpirun (torchrun itself too, one per process, with --nproc-per-node 1), and "
                         "leave out rank and world_size")
    if max(ranks) >= size:
        raise ValueError(f"rank {max(ranks)} is in the group, the MPI world has {size}")
    own = Options(facts.timeout)
    if isinstance(options, Options):
        own.transport, own.deterministic, own.reproducible = options.transport, options.deterministic, options.reproducible
    elif options is not None and type(options) is not torch._C._distributed_c10d.Backend.Options:
        raise ValueError(f"pg_options of the backend dtr are dtr_torch.Options, not {type(options).__module__}.{type(options).__qualname__}")
    own.group_name = facts.group_id
    return _C.create(facts.group_rank, ranks, own)


def _address(nodes):
    """Where the other ranks reach a store of this one."""
    if nodes == 1:
        return "127.0.0.1"
    return os.environ.get("MASTER_ADDR") or socket.gethostname()


def _rendezvous(url, timeout=dist.constants.default_pg_timeout, **_):
    """A store on rank 0 of the MPI world, whose address MPI tells the others."""
    rank, size, _, nodes = _C.world()
    query = _torch_rendezvous._query_to_dict(url.partition("?")[2])
    for name, given, ours in (("rank", query.get("rank", rank), rank), ("world_size", query.get("world_size", size), size)):
        if int(given) != ours:
            raise ValueError(f"{name}={given} was given, MPI says {ours}: leave it out")
    store, place, failure = None, "", None
    if rank == 0:
        try:
            store = dist.TCPStore(_address(nodes), 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
            place = f"{_address(nodes)}|{store.port}"
        except Exception as error:  # the others have to learn of it
            failure = error
    host, _, port = _C.broadcast_text(place, timeout.total_seconds()).partition("|")
    if failure is not None:
        raise failure
    if not port:
        raise RuntimeError("rank 0 could not make a store, see its message")
    if store is None:
        store = dist.TCPStore(host, int(port), size, is_master=False, timeout=timeout, wait_for_workers=False)
    yield store, rank, size


_env = _torch_rendezvous._rendezvous_handlers["env"]


def _env_or_mpi(url, **arguments):
    """env:// as before where a launcher has set it up (torchrun), else from MPI."""
    return (_env if os.environ.get("MASTER_PORT") else _rendezvous)(url, **arguments)


_torch_rendezvous._rendezvous_handlers["env"] = _env_or_mpi
_torch_rendezvous.register_rendezvous_handler("dtr", _rendezvous)
dist.Backend.register_backend("dtr", _create, extended_api=True, devices=["cpu"])

_shared_lock = threading.RLock()


@contextlib.contextmanager
def shared_memory(at_least=65536):
    """CPU tensors of at_least bytes or more that are made inside lie in memory that the ranks of a node share, which
    collectives read where it is. This holds for all threads; the tensors may be used and freed at any time."""
    if _by_store() and not _C.has_world():
        raise RuntimeError("memory is shared by the ranks of a world: call torch.distributed.init_process_group first")
    with _shared_lock:
        before = _C.use_shared_memory(True, at_least)
        try:
            yield
        finally:
            if not before:
                _C.use_shared_memory(False, 0)


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """As that of torch, with buckets in memory that the ranks of a node share. With gradient_as_bucket_view=True gradients
    are there too, and nothing is copied before the ranks add them up."""

    def __init__(self, *arguments, **named):
        with shared_memory():
            super().__init__(*arguments, **named)

    def _pre_forward(self, *inputs, **named):
        # Torch makes the buckets anew here once, when the order of gradients is known.
        with shared_memory() if not getattr(self, "_has_rebuilt_buckets", False) else contextlib.nullcontext():
            return super()._pre_forward(*inputs, **named)


def shutdown():
    """End process groups, the world of dtr, and MPI where dtr began it. A collective of all ranks; called at the end of
    the process if it has not been called before."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _C.shutdown()


atexit.register(shutdown)
