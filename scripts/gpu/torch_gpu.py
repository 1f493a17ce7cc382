"""The baselines of scripts/gpu/measure by PyTorch; status 77 where it, or a device for it, is not there."""
import sys

try:
    import torch
except ImportError:
    print("no PyTorch here")
    sys.exit(77)


def gb_per_s(nbytes, work):
    """Median of 21 rounds by events, after one to warm up."""
    took = []
    for _ in range(22):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        took.append(begin.elapsed_time(end) * 1e-3)
    return nbytes / sorted(took[1:])[10] * 1e-9


def copies():
    n = 1 << 28
    x, y = torch.full((n,), 3.0, device="cuda"), torch.empty(n, device="cuda")
    half = torch.empty(n, device="cuda", dtype=torch.bfloat16)
    for name, nbytes, work in (("copy", 8 * n, lambda: y.copy_(x)), ("f32_to_bf16", 6 * n, lambda: half.copy_(x)),
                               ("bf16_to_f32", 6 * n, lambda: y.copy_(half)), ("scale", 8 * n, lambda: y.mul_(1.0)),
                               ("axpy", 12 * n, lambda: y.add_(x)), ("fill", 4 * n, lambda: y.fill_(1.0))):
        print("torch_%s_gb_per_s %.1f" % (name, gb_per_s(nbytes, work)))


if not torch.cuda.is_available():
    print("PyTorch %s finds no device" % torch.__version__)
    sys.exit(77)
if sys.argv[1:] == ["copies"]:
    copies()
else:
    sys.exit("usage: torch_gpu.py copies")
