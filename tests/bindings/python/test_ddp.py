"""Averaging of gradients: a loop of several ranks ends with the parameters of one rank with all samples."""
import numpy as np
import pytest

import dtr

SAMPLES, STEPS, RATE = 24, 20, 0.125
rng = np.random.default_rng(1)
INPUTS, TARGETS = rng.integers(-2, 3, (SAMPLES, 4)).astype(float), rng.integers(-2, 3, SAMPLES).astype(float)


def gradients(params, rows):
    """Of half the mean square error of inputs @ w + b over these rows."""
    error = INPUTS[rows] @ params["w"] + params["b"] - TARGETS[rows]
    return {"w": INPUTS[rows].T @ error / len(rows), "b": error.mean(keepdims=True)}


def start():
    return {"w": np.arange(4.0), "b": np.zeros(1)}


def one_rank():
    params = start()
    for _ in range(STEPS):
        for name, grad in gradients(params, np.arange(SAMPLES)).items():
            params[name] -= RATE * grad
    return params


@pytest.mark.parametrize("pieces", [1, 2])
def test_equals_one_rank(group, pieces):
    params = start()
    if group.rank != 0:
        params["w"][:] = -1  # rank 0's values count
    rows = np.array_split(np.arange(group.rank, SAMPLES, group.size), pieces)
    with dtr.DDP(group, params, bucket_bytes=16) as ddp:
        for _ in range(STEPS):
            ddp.zero_grad()
            for i, part in enumerate(rows):
                if i + 1 < pieces:
                    with ddp.no_sync():
                        backward(ddp, params, part, pieces)
                else:
                    backward(ddp, params, part, pieces)
            for name, value in params.items():
                value -= RATE * ddp.grads[name]
        ddp.check_equal()
        stats = ddp.stats()
        assert stats["steps"] == STEPS and stats["local_steps"] == STEPS * (pieces - 1) and stats["errors"] == 0
    want = one_rank()
    for name in want:
        assert np.allclose(params[name], want[name], rtol=1e-12, atol=1e-12)


def backward(ddp, params, part, pieces):
    with ddp.backward():
        for name, grad in gradients(params, part).items():
            ddp.grads[name] += grad / pieces
            ddp.grad_ready(name)


def test_lists_clip_and_types(group):
    params = [np.zeros(3, np.float32), np.zeros((2, 2), np.float32)]
    grads = [np.zeros(3, np.float32), np.zeros((2, 2), np.float32)]
    with dtr.DDP(group, params, grads, reduce_dtype=np.float64) as ddp:
        assert ddp.grads is grads
        with ddp.forward():
            pass
        with ddp.backward():
            grads[1][...] = group.rank
            ddp.grad_ready(1)
            grads[0][...] = 2 * group.rank
            ddp.grad_ready(0)
        mean = (group.size - 1) / 2
        assert (grads[1] == mean).all() and (grads[0] == 2 * mean).all()
        norm = ddp.clip_grad_norm(1.0)
        assert norm == pytest.approx(mean * 4)
        assert np.sqrt(sum((g.astype(float) ** 2).sum() for g in grads)) == pytest.approx(min(1.0, mean * 4))


def test_buffers_follow_rank_0(group):
    seen = np.full(2, float(group.rank + 1))
    with dtr.DDP(group, {"w": np.zeros(1)}, buffers={"mean": seen}) as ddp:
        seen[:] = group.rank + 5
        with ddp.forward():
            assert (seen == 5).all()
        with ddp.backward():
            ddp.grad_ready("w")


def test_unused(group):
    with dtr.DDP(group, {"a": np.zeros(1), "b": np.zeros(1)}, find_unused=True) as ddp:
        ddp.forward_begin()
        ddp.forward_end(["b"] if group.rank else [])
        with ddp.backward():
            for name in ("a", "b") if group.rank == 0 else ("a",):
                ddp.grads[name][:] = group.size
                ddp.grad_ready(name)
        assert ddp.grads["a"][0] == group.size and ddp.grads["b"][0] == 1


def test_errors_name_the_parameter_and_the_rank(group):
    with dtr.DDP(group, {"a": np.zeros(1), "b": np.zeros(1)}) as ddp:
        with pytest.raises(dtr.StateError, match="'?b'?.*rank 0"):
            with ddp.backward():
                ddp.grad_ready("a")
                if group.rank != 0:
                    ddp.grad_ready("b")
        with pytest.raises(dtr.ArgError, match="param is 'c'; the module has a, b"):
            ddp.grad_ready("c")
        with pytest.raises(dtr.ArgError, match="7"):
            ddp.grad_ready(7)
        with pytest.raises(dtr.ArgError, match="max_norm is 'much'"):
            ddp.clip_grad_norm("much")


@pytest.mark.parametrize("local", [False, True])
def test_exception_in_backward_ends_the_others(group, local):
    error, text = (ZeroDivisionError, "") if group.rank == 0 else (dtr.AbortedError, "destroyed in an open backward pass")
    ddp = None  # and so it stays where that rank is done before the module is made here
    with pytest.raises(error, match=text):
        with dtr.DDP(group, {"a": np.zeros(1), "b": np.zeros(1)}, bucket_bytes=8, first_bucket_bytes=8) as ddp:
            if local:
                with ddp.no_sync(), ddp.backward():
                    if group.rank == 0:
                        1 / 0
                    ddp.grad_ready("b")
                    ddp.grad_ready("a")
            with ddp.backward():
                if group.rank == 0:
                    1 / 0
                ddp.grad_ready("b")
                ddp.grad_ready("a")
    assert ddp is None or ddp.closed
