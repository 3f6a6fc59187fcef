"""Compile every kernel of FlashAttention for a GPU that need not be there; one line of JSON for each.

Run by ``test_flash_triton.py`` in a process of its own: there Triton was imported without its interpreter.
"""

import json
from math import prod

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from course_lib.attention import flash_kernels as kernels

FP32 = {"L", "D"}
BF16 = {"q", "k", "v", "o", "do", "dq", "dk", "dv"}
KERNELS = (
    kernels.forward_kernel,
    kernels.row_sums_kernel,
    kernels.keys_backward_kernel,
    kernels.queries_backward_kernel,
)


def compiled(kernel, capability, size, config=None):
    """What Triton makes of one kernel for ``sm_<capability>``, bf16 and a causal mask."""
    function = kernel.fn if hasattr(kernel, "configs") else kernel
    configs = getattr(kernel, "configs", [triton.Config({"BLOCK_Q": 64})])
    config = config or min(configs, key=lambda one: prod(one.kwargs.values()))  # small tiles compile fastest
    names = function.arg_names
    constants = {"SIZE": size, "CAUSAL": True, "WIDE": False} | config.kwargs
    constants = {name: value for name, value in constants.items() if name in names}
    kinds = {name: "*bf16" if name in BF16 else "*fp32" if name in FP32 else "i32" for name in names}
    kinds |= {name: "fp32" for name in names if name.startswith("scale")} | dict.fromkeys(
        constants, "constexpr"
    )
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in BF16 | FP32}
    return triton.compile(
        ASTSource(function, kinds, constants, aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )


if __name__ == "__main__":
    for capability, kernels_of_it in ((80, KERNELS[:1]), (90, KERNELS)):
        for kernel in kernels_of_it:
            made = compiled(kernel, capability, 64)
            ptx = made.asm["ptx"]
            row = {
                "kernel": made.metadata.name,
                "target": f"sm_{capability}",
                "found": f".target sm_{capability}" in ptx,
                "tensor_cores": "mma." in ptx or "wgmma" in ptx,
                "shared": made.metadata.shared,
                "cubin": len(made.asm["cubin"]),
            }
            print(json.dumps(row))
