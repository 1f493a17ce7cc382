"""Trains a small network on NumPy arrays; gradients are averaged while the backward pass goes on.

Run: mpirun -n 2 python3 train.py. The losses are the same on any number of ranks that divides 64.
"""
import numpy as np

import dtr

SAMPLES, STEPS, RATE = 64, 200, 0.2


def forward(params, x):
    hidden = np.tanh(x @ params["w1"] + params["b1"])
    return hidden, hidden @ params["w2"] + params["b2"]


def backward(ddp, params, x, hidden, error):
    """The last layer first: its gradients travel while those of the first are computed."""
    with ddp.backward():
        ddp.grads["w2"][...] = hidden.T @ error / len(x)
        ddp.grad_ready("w2")
        ddp.grads["b2"][...] = error.mean(axis=0)
        ddp.grad_ready("b2")
        inner = (error @ params["w2"].T) * (1 - hidden ** 2)
        ddp.grads["w1"][...] = x.T @ inner / len(x)
        ddp.grad_ready("w1")
        ddp.grads["b1"][...] = inner.mean(axis=0)
        ddp.grad_ready("b1")


def main():
    with dtr.World() as world:
        random = np.random.default_rng(world.rank)  # what rank 0 draws is what all begin with
        params = {"w1": random.normal(size=(1, 16)), "b1": np.zeros(16), "w2": random.normal(size=(16, 1)) / 4, "b2": np.zeros(1)}
        inputs = np.linspace(-3, 3, SAMPLES).reshape(-1, 1)
        mine = inputs[world.rank::world.size]
        with dtr.DDP(world.group, params) as ddp:
            for step in range(1, STEPS + 1):
                hidden, out = forward(params, mine)
                error = out - np.sin(mine)
                backward(ddp, params, mine, hidden, error)
                ddp.clip_grad_norm(1.0)
                for name, value in params.items():
                    value -= RATE * ddp.grads[name]
                if step % 50 == 0:
                    loss = world.group.allreduce((error ** 2).mean(keepdims=True), dtr.AVG)
                    if world.rank == 0:
                        print("step %d/%d  loss %.4f" % (step, STEPS, loss[0, 0]))
            ddp.check_equal()
            if world.rank == 0:
                stats = ddp.stats()
                print("%d ranks, %d steps, %d bytes of gradients each: parameters are equal" % (
                    world.size, stats["steps"], stats["bytes"]))


main()
