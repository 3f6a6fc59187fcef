"""The kernels of FlashAttention-2 (arXiv:2307.08691) in Triton: the tiles of ``flash.py``, each in fast memory.

A program is one block of queries (forward, and the gradient of Q) or one block of keys (the gradients of K and V) of
one head. It loads its block once, loops over the blocks on the other side, and stores its result once; no two programs
write to the same place. S, P, dP and dS exist as tiles of one program and never reach the GPU's memory.

Tensors are ``(batch, length, heads, SIZE)`` in memory, so the rows of one head are ``heads * SIZE`` elements apart.
Exponentials are powers of 2, which a GPU computes faster: scores are scaled by log2(e), too. The letters are those of
``flash.py``. ``flash_triton`` starts the kernels; on the CPU they run under Triton's interpreter, right and slowly.
"""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:  # ``flash_triton`` says so when it is called
    triton = None

# Triton decides when it is imported: then its own functions are for its interpreter, or they are to be compiled.
INTERPRETED = triton is not None and not isinstance(tl.sum, triton.JITFunction)


def kernel(function: Any) -> Any:
    return triton.jit(function) if triton else function


def tuned(*blocks: tuple[int, int, int, int]) -> Any:
    """Time each (BLOCK_Q, BLOCK_K, warps, stages) once for every kind of call, and keep the fastest.

    The interpreter cannot choose among several, and takes the first.
    """
    if triton is None:
        return lambda function: function
    configs = [
        triton.Config({"BLOCK_Q": q, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
        for q, k, warps, stages in blocks
    ]
    return triton.autotune(configs[:1] if INTERPRETED else configs, key=["size_class", "SIZE", "CAUSAL"])


@kernel
def load(pointer, index, length, heads, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """Rows ``index`` of one head, ``(len(index), SIZE)``; those beyond ``length`` are 0."""
    place = pointer + index[:, None] * (heads * SIZE) + tl.arange(0, SIZE)[None, :]
    tile = tl.load(place, mask=index[:, None] < length, other=0.0)
    if WIDE:  # the interpreter computes bfloat16 wrongly
        tile = tile.to(tl.float32)
    return tile


@kernel
def store(pointer, tile, index, length, heads, SIZE: tl.constexpr):
    place = pointer + index[:, None] * (heads * SIZE) + tl.arange(0, SIZE)[None, :]
    tl.store(place, tile.to(pointer.dtype.element_ty), mask=index[:, None] < length)


@kernel
def visible(row, key, rows, keys, CAUSAL: tl.constexpr):
    """``row`` and ``key`` broadcast: is there such a key, and may this query look at it?"""
    seen = key < keys
    if CAUSAL:
        seen = seen & (key <= row + keys - rows)
    return seen


@kernel
def key_limits(i, rows, keys, CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """Keys before the first limit need no mask for queries ``i``; those from the second on are not visited."""
    unmasked, end = keys, keys
    if CAUSAL:
        seen_by_first_row = i * BLOCK_Q + 1 + keys - rows
        unmasked = tl.minimum(keys, tl.maximum(seen_by_first_row, 0))
        end = tl.minimum(keys, seen_by_first_row + BLOCK_Q - 1)  # what the last row sees
    return unmasked // BLOCK_K * BLOCK_K, end


# fmt: off
@tuned((128, 64, 8, 3), (128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 4, 3), (64, 64, 4, 3), (128, 32, 4, 4))
@kernel
def forward_kernel(q, k, v, o, L, scale_log2, heads, group, rows, keys, size_class,
                   CAUSAL: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
                   BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """O and L of one block of queries of one head."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)  # with a causal mask, the programs with most keys begin first
    batch, head, kv_heads = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads, heads // group
    q += (batch * rows * heads + head) * SIZE
    o += (batch * rows * heads + head) * SIZE
    k += (batch * keys * kv_heads + head // group) * SIZE
    v += (batch * keys * kv_heads + head // group) * SIZE
    row = i * BLOCK_Q + tl.arange(0, BLOCK_Q)
    Q = load(q, row, rows, heads, SIZE, WIDE)
    m = tl.full([BLOCK_Q], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, SIZE], tl.float32)
    unmasked, end = key_limits(i, rows, keys, CAUSAL, BLOCK_Q, BLOCK_K)
    for MASKED in tl.static_range(2):
        first = unmasked if MASKED else 0
        last = end if MASKED else unmasked
        for start in range(first, last, BLOCK_K):
            key = start + tl.arange(0, BLOCK_K)
            K = load(k, key, keys, kv_heads, SIZE, WIDE)
            V = load(v, key, keys, kv_heads, SIZE, WIDE)
            S = tl.dot(Q, tl.trans(K), input_precision="ieee")
            if MASKED:
                S = tl.where(visible(row[:, None], key[None, :], rows, keys, CAUSAL), S, -float("inf"))
            larger = tl.maximum(m, tl.max(S, 1) * scale_log2)  # m is that of the scaled scores
            finite = tl.where(larger == -float("inf"), 0.0, larger)
            P = tl.exp2(S * scale_log2 - finite[:, None])
            a = tl.exp2(m - finite)
            l = a * l + tl.sum(P, 1)
            acc = tl.dot(P.to(V.dtype), V, acc * a[:, None], input_precision="ieee")
            m = larger
    total = tl.where(l == 0.0, 1.0, l)  # a row without keys: O is 0 and L is -inf
    store(o, acc / total[:, None], row, rows, heads, SIZE)
    ln_2 = 0.6931471805599453
    tl.store(L + tl.program_id(1).to(tl.int64) * rows + row, (m + tl.log2(total)) * ln_2, mask=row < rows)


@kernel
def row_sums_kernel(o, do, D, heads, rows, SIZE: tl.constexpr, BLOCK_Q: tl.constexpr):
    """D: the sum of dO O in every row."""
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    row = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    O = load(o + (batch * rows * heads + head) * SIZE, row, rows, heads, SIZE, True)
    dO = load(do + (batch * rows * heads + head) * SIZE, row, rows, heads, SIZE, True)
    tl.store(D + tl.program_id(1).to(tl.int64) * rows + row, tl.sum(O * dO, 1), mask=row < rows)


@tuned((64, 128, 8, 2), (64, 128, 8, 3), (32, 128, 8, 3), (64, 64, 8, 2), (32, 64, 8, 3), (32, 64, 4, 4))
@kernel
def keys_backward_kernel(q, k, v, do, L, D, dk, dv, scale, scale_log2, heads, group, rows, keys, size_class,
                         CAUSAL: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
                         BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """dK and dV of one block of keys of one head of keys, from all query heads of its group. Tiles are transposed."""
    kv_heads = heads // group
    batch, kv_head = (tl.program_id(1) // kv_heads).to(tl.int64), tl.program_id(1) % kv_heads
    start_of_keys = (batch * keys * kv_heads + kv_head) * SIZE
    key = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    K = load(k + start_of_keys, key, keys, kv_heads, SIZE, WIDE)
    V = load(v + start_of_keys, key, keys, kv_heads, SIZE, WIDE)
    dK = tl.zeros([BLOCK_K, SIZE], tl.float32)
    dV = tl.zeros([BLOCK_K, SIZE], tl.float32)
    begin, unmasked = 0, 0  # rows from which on a query sees the first key of the block, and all of them
    if CAUSAL:
        first_row = tl.program_id(0) * BLOCK_K + rows - keys
        begin = tl.maximum(first_row, 0) // BLOCK_Q * BLOCK_Q
        unmasked = tl.minimum(tl.cdiv(tl.maximum(first_row + BLOCK_K - 1, 0), BLOCK_Q) * BLOCK_Q, rows)
    for head in range(kv_head * group, (kv_head + 1) * group):
        start_of_rows = (batch * rows * heads + head) * SIZE
        start_of_sums = (batch * heads + head) * rows
        for UNMASKED in tl.static_range(2):
            first = unmasked if UNMASKED else begin
            last = rows if UNMASKED else unmasked
            for start in range(first, last, BLOCK_Q):
                row = start + tl.arange(0, BLOCK_Q)
                Q = load(q + start_of_rows, row, rows, heads, SIZE, WIDE)
                dO = load(do + start_of_rows, row, rows, heads, SIZE, WIDE)
                L_i = tl.load(L + start_of_sums + row, mask=row < rows, other=float("inf"))
                D_i = tl.load(D + start_of_sums + row, mask=row < rows, other=0.0)
                P = tl.exp2(tl.dot(K, tl.trans(Q), input_precision="ieee") * scale_log2 - L_i[None, :])
                if not UNMASKED:
                    P = tl.where(visible(row[None, :], key[:, None], rows, keys, CAUSAL), P, 0.0)
                dV = tl.dot(P.to(dO.dtype), dO, dV, input_precision="ieee")
                dP = tl.dot(V, tl.trans(dO), input_precision="ieee")
                dS = P * (dP - D_i[None, :])
                dK = tl.dot(dS.to(Q.dtype), Q, dK, input_precision="ieee")
    store(dk + start_of_keys, dK * scale, key, keys, kv_heads, SIZE)
    store(dv + start_of_keys, dV, key, keys, kv_heads, SIZE)


@tuned((128, 64, 8, 2), (128, 64, 8, 3), (64, 128, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2), (128, 32, 8, 3))
@kernel
def queries_backward_kernel(q, k, v, do, L, D, dq, scale, scale_log2, heads, group, rows, keys, size_class,
                            CAUSAL: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
                            BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """dQ of one block of queries of one head: the loop of forward, with P from L."""
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head, kv_heads = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads, heads // group
    start_of_rows = (batch * rows * heads + head) * SIZE
    start_of_sums = tl.program_id(1).to(tl.int64) * rows
    k += (batch * keys * kv_heads + head // group) * SIZE
    v += (batch * keys * kv_heads + head // group) * SIZE
    row = i * BLOCK_Q + tl.arange(0, BLOCK_Q)
    Q = load(q + start_of_rows, row, rows, heads, SIZE, WIDE)
    dO = load(do + start_of_rows, row, rows, heads, SIZE, WIDE)
    L_i = tl.load(L + start_of_sums + row, mask=row < rows, other=float("inf"))
    D_i = tl.load(D + start_of_sums + row, mask=row < rows, other=0.0)
    dQ = tl.zeros([BLOCK_Q, SIZE], tl.float32)
    unmasked, end = key_limits(i, rows, keys, CAUSAL, BLOCK_Q, BLOCK_K)
    for MASKED in tl.static_range(2):
        first = unmasked if MASKED else 0
        last = end if MASKED else unmasked
        for start in range(first, last, BLOCK_K):
            key = start + tl.arange(0, BLOCK_K)
            K = load(k, key, keys, kv_heads, SIZE, WIDE)
            V = load(v, key, keys, kv_heads, SIZE, WIDE)
            P = tl.exp2(tl.dot(Q, tl.trans(K), input_precision="ieee") * scale_log2 - L_i[:, None])
            if MASKED:
                P = tl.where(visible(row[:, None], key[None, :], rows, keys, CAUSAL), P, 0.0)
            dS = P * (tl.dot(dO, tl.trans(V), input_precision="ieee") - D_i[:, None])
            dQ = tl.dot(dS.to(K.dtype), K, dQ, input_precision="ieee")
    store(dq + start_of_rows, dQ * scale, row, rows, heads, SIZE)
# fmt: on
