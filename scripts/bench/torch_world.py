"""torch.distributed with Gloo beside a dtr world, on the ranks that mpirun has started."""
import argparse
import datetime
import os
import socket
import sys

from benchlib import ROOT
from dtr_ctypes import Dtr


TUNABLE = "glibc.rtld.optional_static_tls=16384"


def room_for_tls():
    """libdtr keeps its thread-local data where the C library leaves little room for what is loaded late; the room is
    chosen when a process starts."""
    if TUNABLE not in os.environ.get("GLIBC_TUNABLES", ""):
        os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, (os.environ.get("GLIBC_TUNABLES"), TUNABLE)))
        os.execv(sys.executable, [sys.executable, "-B"] + sys.argv)


def arguments(description, default_rounds):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="Gloo talks over the loopback device; GLOO_SOCKET_IFNAME chooses another.")
    parser.add_argument("--library", default=os.path.join(ROOT, "build", "release", "libdtr.so"),
                        help="libdtr.so (build/release/libdtr.so)")
    parser.add_argument("--rounds", type=int, default=default_rounds, help="samples per contender (%(default)s)")
    parser.add_argument("--runs", type=int, default=1, help="times the whole is run (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of torch (%(default)s)")
    parser.add_argument("--port", type=int, default=0, help="where Gloo's ranks find each other (one that is free)")
    parser.add_argument("--json", help="write the figures as JSON too")
    return parser


def open_both(options):
    """A dtr world and a Gloo process group with the same ranks."""
    room_for_tls()
    import torch
    import torch.distributed
    dtr = Dtr(options.library)
    port = options.port
    probe = socket.socket()
    if dtr.rank == 0 and port == 0:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    probe.close()
    port = int(dtr.slowest(port if dtr.rank == 0 else 0))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(port)
    torch.set_num_threads(options.threads)
    torch.distributed.init_process_group("gloo", rank=dtr.rank, world_size=dtr.size,
                                         timeout=datetime.timedelta(seconds=300))
    return dtr, torch


def congestion_control():
    try:
        with open("/proc/sys/net/ipv4/tcp_congestion_control", encoding="ascii") as source:
            return source.read().strip()
    except OSError:
        return "unknown"
