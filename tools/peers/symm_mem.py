#!/usr/bin/env python3
"""symm_mem measures the collectives of PyTorch's symmetric memory by the method of nccl.c: calls follow each other on a
stream, or in a CUDA graph that is launched several times, at up to 20 places of the buffers in turn, and the mean of a
call counts, on the slowest rank. A first launch of each graph is not timed. One process for each GPU of one host, float32,
sums. It prints lines "operation way bytes microseconds", and lines that begin with "#" for people: also where this
PyTorch, or this number of ranks, does not have a way.

    MASTER_PORT=29500 mpirun -n 2 python3 symm_mem.py 1073741824 20 20 two_shot:all_reduce:16,64 pulled:reduce_scatter:1024

The numbers are the bytes of each buffer, timed calls (5 come before), and launches of a graph of them, 0 for none; a
quarter of the launches is made from 64 MiB on. What to measure follows: way, operation, and sizes, of all ranks' parts
together where there are parts. It also runs under python3 -m torch.distributed.run.

Multicast stays off, which would have the switch do the work: the comparison is of what the link between the GPUs does.
"""

import gc
import itertools
import os
import sys
import time

# Set before torch is loaded, overriding any other values: torch would make multicast objects by itself.
OFF = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0", "NVSHMEM_DISABLE_NVLS": "1"}
os.environ.update(OFF, TORCH_SYMMMEM="CUDA")  # not by way of NVSHMEM or NCCL

WARMUP, SHIFTS = 5, 20
measured = itertools.count()


def of_launcher(*names):
    for name in names:
        if name in os.environ:
            return int(os.environ[name])
    sys.exit("symm_mem: start it by mpirun or torch.distributed.run")


rank = of_launcher("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
ranks = of_launcher("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def say(*words):
    if rank == 0:
        print(*words, flush=True)


def leave_out(why):
    """End well: there is nothing here to compare with."""
    say(f"# symmetric memory: left out: {why}")
    sys.exit(0)


if len(sys.argv) < 5:
    sys.exit("usage: symm_mem.py MEMORY CALLS LAUNCHES WAY:OP:BYTES[,BYTES]...")
memory, calls, launches = (int(x) for x in sys.argv[1:4])

try:
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem
    from torch._C._autograd import DeviceType
    from torch._C._distributed_c10d import _SymmetricMemory
except ImportError as e:
    leave_out(e)
if not torch.cuda.is_available() or torch.cuda.device_count() < ranks:
    leave_out("PyTorch finds too few GPUs")

torch.cuda.set_device(rank)
if _SymmetricMemory.has_multicast_support(DeviceType.CUDA, rank):
    sys.exit("symm_mem: this PyTorch would use multicast, although it was told not to: not measured")
os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
dist.init_process_group("nccl")  # only its addresses are used: NCCL makes no communicator
store = dist.distributed_c10d._get_default_store()
group = dist.group.WORLD.group_name
stream = torch.cuda.Stream()
torch.cuda.set_stream(stream)

# src and flag are in symmetric memory; barrier uses flag's signals.
src = symm_mem.empty(memory // 4, dtype=torch.float32, device=f"cuda:{rank}")
symm_mem.rendezvous(src, group)
dst = torch.empty(memory // 4, dtype=torch.float32, device=f"cuda:{rank}")
flag = symm_mem.empty(4, dtype=torch.float32, device=f"cuda:{rank}")
signals = symm_mem.rendezvous(flag, group)
ops = torch.ops.symm_mem


def barrier():
    signals.barrier(channel=0)
    stream.synchronize()


def gathered(a):
    """The copy engines' all-gather. It reads the beginning of the peers' memory whatever place it is given."""
    return torch.ops._c10d_functional.wait_tensor(ops._low_contention_all_gather(a, group))


# A way returns a function that makes the call for elements [i, j) of the buffers and returns the tensor with the
# result.
def one_shot(i, j):
    a, b = src[i:j], dst[i:j]
    return lambda: ops.one_shot_all_reduce_out(a, "sum", group, b)


def two_shot(i, j):
    a = src[i:j]
    return lambda: ops.two_shot_all_reduce_(a, "sum", group)


def two_shot_out(i, j):
    a, b = src[i:j], dst[i:j]
    return lambda: ops.two_shot_all_reduce_out(a, "sum", group, b)


def pulled(i, j):
    a, b = src[i:j], dst[i:i + (j - i) // ranks]
    return lambda: ops.reduce_scatter_out(a, group, False, b)


def copied(i, j):
    a = src[:(j - i) // ranks]
    return lambda: gathered(a)


def given(r, part):
    return float(r * ranks + part + 1)


def total(part):
    return sum(given(r, part) for r in range(ranks))


# For each operation: how many parts its source and its result have, the value of each part of the result if sources
# have the values of given, and its ways.
operations = {
    "all_reduce": (1, 1, total, {"one_shot": one_shot, "two_shot": two_shot, "two_shot_out": two_shot_out}),
    "reduce_scatter": (ranks, 1, lambda part: total(rank), {"pulled": pulled}),
    "all_gather": (1, ranks, lambda part: given(part, 0), {"copied": copied}),
}


def check(name, op, way):
    sources, results, want, ways = operations[op]
    n = 1024 // max(sources, results) * max(sources, results)
    for part in range(sources):
        src[n // sources * part:n // sources * (part + 1)] = given(rank, part)
    dst[:n] = -1
    barrier()
    got = ways[way](0, n)()
    barrier()
    size = got.numel() // results
    for part in range(results):
        if not bool((got[size * part:size * (part + 1)] == want(part)).all()):
            sys.exit(f"symm_mem: rank {rank}: {name}: wrong data")


def measure(call, times):
    """The mean of a call in microseconds, on the slowest rank. The calls are made in turn."""
    for i in range(WARMUP):
        call[i % len(call)]()
    stream.synchronize()
    if times > 0:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for i in range(calls):
                call[i % len(call)]()
        graph.replay()
    barrier()
    start = time.perf_counter()
    if times > 0:
        for _ in range(times):
            graph.replay()
    else:
        for i in range(calls):
            call[i % len(call)]()
    stream.synchronize()
    us = (time.perf_counter() - start) * 1e6 / calls / max(times, 1)
    key = next(measured)
    store.set(f"{key}/{rank}", str(us))
    return max(float(store.get(f"{key}/{r}")) for r in range(ranks))


def each(way, op, sizes):
    sources, results, _, ways = operations[op]
    check(f"{op}, {way}", op, way)
    for size in sizes:
        n = size // 4 // max(sources, results) * max(sources, results)
        places = min(memory // 4 // n, SHIFTS)
        # So small that sums that are added to again and again, in place, stay finite.
        src.uniform_(1, 2).mul_(2.0**-120)
        times = launches if size < 64 << 20 else max(launches // 4, min(launches, 2))
        us = measure([ways[way](n * i, n * (i + 1)) for i in range(places)], times)
        say(op, way, n * 4, f"{us:.3f}")


say(f"# PyTorch {torch.__version__}, symmetric memory without multicast")
gc.disable()
gc.freeze()  # each graph triggers a garbage collection
for argument in sys.argv[4:]:
    way, op, sizes = argument.split(":")
    if op not in operations or way not in operations[op][3]:
        sys.exit(f"symm_mem: {argument}: there is no such way")
    try:
        each(way, op, [int(x) for x in sizes.split(",")])
    except (RuntimeError, AttributeError) as e:  # the same on all ranks
        say(f"# symmetric memory: {op}, {way}: {str(e).splitlines()[0]}")
barrier()
os._exit(0)  # destroying the group would wait for NCCL
