"""Averaging of gradients beside a backward pass that the program writes itself."""
from __future__ import annotations

from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type, Union

import numpy as np

from ._buffers import View, dtype_code, view
from ._call import Options, c_text, note_caller, seconds, whole
from ._dtr import ffi, lib
from ._errors import ArgError, ShapeError, StateError, check
from ._group import Group

Arrays = Union[Mapping[str, Any], Sequence[Any]]


class _Block:
    """What a with block does at its end."""

    def __init__(self, end: Any) -> None:
        self._end = end

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self._end(kind is None)


class DDP:
    """Distributed data parallel for parameters that are NumPy arrays.

    `params` is a dict of names and arrays, or a list of arrays; making the module gives every rank the values
    of rank 0. `grads` are arrays of the same shapes and element types, in the same form; zeros where they are
    not given. Both stay the program's and are kept alive. An iteration is

        with ddp.backward():
            ddp.grads["w"][...] = ...
            ddp.grad_ready("w")         # each as soon as it is final: it travels while the rest is computed

    after which every gradient is the average over all ranks; then the optimizer is the program's. `buffers`
    are arrays that follow rank 0 at every ddp.forward().

    find_unused: some ranks leave out some parameters. static_graph: the set that is used never changes.
    reduce_dtype: element type of what travels. bucket_bytes, first_bucket_bytes: sizes of buckets.
    """

    def __init__(self, group: Group, params: Arrays, grads: Optional[Arrays] = None, *, buffers: Optional[Arrays] = None,
                 bucket_bytes: int = 0, first_bucket_bytes: int = 0, find_unused: bool = False, static_graph: bool = False,
                 reduce_dtype: Any = None, init_sync: bool = True, timeout: Optional[float] = None) -> None:
        self._group, self._world = group, group.world
        self._closed = self._local = False
        self._tensors: List[Any] = []
        self._views: List[Any] = []
        named = isinstance(params, Mapping)
        self._names = list(params) if named else ["%d" % i for i in range(len(params))]
        self._index = {name: i for i, name in enumerate(self._names)}
        #: The parameters, in the form they were given in.
        self.params: Any = params
        #: The gradients, in the form of the parameters.
        self.grads: Any = grads
        if grads is None:
            fresh = {name: np.zeros_like(values) for name, values in zip(self._names, listed(params))}
            self.grads = fresh if named else list(fresh.values())
        if isinstance(self.grads, Mapping) != named or (named and set(self.grads) != set(params)) or len(self.grads) != len(params):
            raise ArgError("grads must have the names, or the number, of params: %d of them" % len(params))
        entries = self._entries("params", self._names, params, self.grads)
        extra = buffers if buffers is not None else []
        buffer_names = list(extra) if isinstance(extra, Mapping) else ["buffer.%d" % i for i in range(len(extra))]
        options = Options(
            "dtr_ddp_options", bucket_cap_bytes=whole(bucket_bytes, "bucket_bytes", 0, 2**63 - 1),
            first_bucket_bytes=whole(first_bucket_bytes, "first_bucket_bytes", 0, 2**63 - 1), find_unused=bool(find_unused),
            static_graph=bool(static_graph), no_init_sync=not init_sync, timeout_s=seconds(timeout, "timeout"),
            has_reduce_dtype=reduce_dtype is not None,
            reduce_dtype=0 if reduce_dtype is None else dtype_code(reduce_dtype, "reduce_dtype"),
            buffers=self._entries("buffers", buffer_names, extra, None), n_buffers=len(extra))
        made = ffi.new("dtr_ddp **")
        raw = group._enter()
        try:
            note_caller()
            check(lib.dtr_ddp_create(raw, entries, len(self._names), options.c, made))
        finally:
            self._world._leave()
        self._raw = made[0]
        self._world._modules.append(self)

    def _entries(self, what: str, names: List[str], values: Any, grads: Any) -> Any:
        entries = ffi.new("dtr_param[]", len(names))
        for i, name in enumerate(names):
            key = name if isinstance(values, Mapping) else i
            c_name = c_text(name, "a name of " + what)
            self._views.append(c_name)
            entries[i].name = c_name
            entries[i].value = self._tensor(values[key], "%s[%r]" % (what, key))
            if grads is not None:
                entries[i].grad = self._tensor(grads[key], "grads[%r]" % (key,))
                if self._views[-1].shape != self._views[-2].shape:
                    raise ShapeError("grads[%r] has shape %s, its parameter has %s" % (key, self._views[-1].shape, self._views[-2].shape))
        return entries

    def _tensor(self, x: Any, what: str) -> Any:
        v: View = view(x, what)
        made = ffi.new("dtr_tensor **")
        check(lib.dtr_tensor_from_buffer(v.c, len(v.shape), ffi.new("int64_t[]", v.shape), ffi.NULL, ffi.NULL, ffi.NULL, made))
        self._views.append(v)
        self._tensors.append(ffi.gc(made[0], lib.dtr_tensor_release))
        return made[0]

    # ---- calls ----

    def _call(self, function: Any, *arguments: Any) -> Any:
        self._world._enter()
        try:
            if self._closed:
                raise StateError("the DDP module is closed")
            note_caller()
            return check(function(self._raw, *arguments))
        finally:
            self._world._leave()

    def _number(self, param: Union[int, str]) -> int:
        if isinstance(param, str):
            if param not in self._index:
                raise ArgError("param is %r; the module has %s" % (param, ", ".join(self._names[:10]) + (", ..." if len(self._names) > 10 else "")))
            return self._index[param]
        return whole(param, "param", 0, 2**31 - 1)

    def grad_ready(self, param: Union[int, str]) -> None:
        """Say that a parameter's gradient is final, by index or name: it belongs to the library until backward_end."""
        self._call(lib.dtr_ddp_grad_ready, self._number(param), ffi.NULL)

    def forward_begin(self) -> None:
        """Begin an iteration: buffers become those of rank 0. May be left out where there are none."""
        self._call(lib.dtr_ddp_forward_begin)

    def forward_end(self, unused: Sequence[Union[int, str]] = ()) -> None:
        """End the forward pass; with find_unused, name the parameters that backward will not reach, if they are known."""
        if unused:
            numbers = [self._number(p) for p in unused]
            self._call(lib.dtr_ddp_forward_end, ffi.new("size_t[]", numbers), len(numbers))
        else:
            self._call(lib.dtr_ddp_forward_end, ffi.NULL, 0)

    def backward_end(self) -> None:
        """Wait until every gradient is the average over all ranks."""
        self._call(lib.dtr_ddp_backward_end, ffi.NULL)

    def forward(self) -> Any:
        """forward_begin and forward_end as a with block."""
        self.forward_begin()
        return _Block(lambda well: self.forward_end() if well else None)

    def backward(self) -> Any:
        """A with block that ends with backward_end, but not where an exception leaves it."""
        return _Block(lambda well: self.backward_end() if well else None)

    def no_sync(self) -> Any:
        """A with block whose iterations average nothing: the program adds up gradients, the next iteration averages them."""
        self._set_sync(False)
        return _Block(lambda well: None if self._closed else self._set_sync(True))

    def _set_sync(self, on: bool) -> None:
        self._call(lib.dtr_ddp_set_sync, on)
        self._local = not on

    def set_eval(self, on: bool) -> None:
        """Evaluate from the next forward pass on: nothing is sent, no gradient may become ready."""
        self._call(lib.dtr_ddp_set_eval, bool(on))

    def zero_grad(self) -> None:
        """Fill the gradients with zeros and forget that there were any."""
        self._call(lib.dtr_ddp_grad_clear, 2**64 - 1)
        for grad in listed(self.grads):
            grad[...] = 0

    def clip_grad_norm(self, max_norm: float) -> float:
        """Scale all gradients so that their norm is at most max_norm (0: only measure); returns the norm before."""
        norm = ffi.new("double *")
        try:
            limit = float(max_norm)
        except (TypeError, ValueError):
            raise ArgError("max_norm is %r; it must be a number" % (max_norm,)) from None
        self._call(lib.dtr_ddp_clip_grad_norm, ffi.NULL, limit, norm)
        return float(norm[0])

    def check_equal(self) -> None:
        """Raise MismatchError unless all ranks hold the same parameters, bit by bit. Collective."""
        self._call(lib.dtr_ddp_check_equal)

    def stats(self) -> Dict[str, Any]:
        """Steps so far, and of the last one: bytes, buckets, and seconds of communication and of waiting for it."""
        stats = Options("dtr_ddp_stats")
        self._call(lib.dtr_ddp_get_stats, stats.c)
        last = stats.c.last
        return {"steps": stats.c.steps, "local_steps": stats.c.local_steps, "errors": stats.c.errors, "buckets": stats.c.buckets,
                "bytes": last.bytes, "comm_s": last.comm_s, "exposed_comm_s": last.exposed_comm_s, "overlap": last.overlap}

    # ---- the end ----

    @property
    def group(self) -> Group:
        return self._group

    @property
    def closed(self) -> bool:
        return self._closed

    def _abandon(self) -> None:
        """End the module without the others. Destroying it in an open backward pass is their error at once, so there is to be one."""
        try:
            if self._local:
                self.backward_end()
                self._call(lib.dtr_ddp_set_sync, True)
            self.grad_ready(0)
        except Exception:
            pass  # it is open, or no module any more
        try:
            self.close()
        except Exception:
            pass  # the exception that is on its way is the one to see

    def close(self) -> None:
        """End the module; collective. Parameters and gradients stay as they are."""
        if self._closed:
            return
        self._world._enter()
        try:
            self._closed = True
            self._world._modules.remove(self)
            status = lib.dtr_ddp_destroy(self._raw)
        finally:
            self._world._leave()
        self._tensors.clear()
        check(status)

    def __enter__(self) -> "DDP":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def __repr__(self) -> str:
        return "<dtr.DDP of %d parameters on group '%s'%s>" % (len(self._names), self._group.name, ", closed" if self._closed else "")


def listed(arrays: Arrays) -> List[Any]:
    return list(arrays.values()) if isinstance(arrays, Mapping) else list(arrays)
