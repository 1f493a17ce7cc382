"""Nothing of the C interface is forgotten: the package has what <dtr/coll.h> has, and says what it does."""
import inspect

import dtr
from dtr._dtr import ffi, lib

OTHER = {"batch_p2p": "batch"}  # names that differ
# Scopes of several calls, for which Python has batches of messages and many works at once; rows of tensors.
LEFT_OUT = {"coalesce_end", "sparse_allreduce"}


def test_every_operation():
    found = 0
    for name in dir(lib):
        if not name.startswith("dtr_") or not callable(getattr(lib, name)):
            continue
        kinds = [argument.cname for argument in ffi.typeof(getattr(lib, name)).args]
        short = name[len("dtr_"):]
        if kinds[:1] == ["struct dtr_group *"] and kinds[-1:] == ["struct dtr_work * *"] and "tensor" not in name and short not in LEFT_OUT:
            method = getattr(dtr.Group, OTHER.get(short, short), None)
            assert method is not None, name
            found += 1
    assert found >= 18


def test_every_operator():
    names = set(ffi.typeof("dtr_op").elements.values())
    assert {"DTR_" + op.name for op in dtr.Op} == names - {"DTR_USER_OP"}


def test_every_dtype():
    from dtr import _buffers
    assert set(_buffers.DTYPES.values()) | set(_buffers.NAMED.values()) == set(ffi.typeof("dtr_dtype").elements)


def test_everything_is_described():
    for name in dtr.__all__:
        thing = getattr(dtr, name)
        if not inspect.isclass(thing):
            continue
        assert thing.__doc__, name
        for member, value in vars(thing).items():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                documented = value.__doc__ or member in ("name", "hint", "breaks", "world", "closed", "group")
                assert documented, "%s.%s" % (name, member)


def test_versions():
    assert dtr.version() == dtr.__version__ and dtr.version_text().startswith("dtr " + dtr.version() + "; MPI")
