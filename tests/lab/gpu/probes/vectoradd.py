"""Adds two arrays on every visible GPU through libcuda.so.1, then makes every mistake once. Runs on a host."""

import ctypes

PTX = b""".version 6.0
.target sm_50
.address_size 64

.visible .entry vectoradd(
    .param .u64 a,
    .param .u64 b,
    .param .u64 c,
    .param .u32 n
)
{
    .reg .pred %out;
    .reg .f32  %x, %y, %sum;
    .reg .b32  %i, %n, %block, %size, %thread;
    .reg .b64  %pa, %pb, %pc, %offset;

    mov.u32     %block, %ctaid.x;
    mov.u32     %size, %ntid.x;
    mov.u32     %thread, %tid.x;
    mad.lo.u32  %i, %block, %size, %thread;
    ld.param.u32 %n, [n];
    setp.ge.u32 %out, %i, %n;
    @%out ret;

    ld.param.u64 %pa, [a];
    ld.param.u64 %pb, [b];
    ld.param.u64 %pc, [c];
    cvta.to.global.u64 %pa, %pa;
    cvta.to.global.u64 %pb, %pb;
    cvta.to.global.u64 %pc, %pc;
    mul.wide.u32 %offset, %i, 4;
    add.u64     %pa, %pa, %offset;
    add.u64     %pb, %pb, %offset;
    add.u64     %pc, %pc, %offset;
    ld.global.f32 %x, [%pa];
    ld.global.f32 %y, [%pb];
    add.rn.f32  %sum, %x, %y;
    st.global.f32 [%pc], %sum;
    ret;
}
\0"""
N = 5000
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments, expect=0):
    result = getattr(cuda, name)(*arguments)
    if result != expect:
        text = ctypes.c_char_p()
        cuda.cuGetErrorName(result, ctypes.byref(text))
        raise SystemExit(f"{name}: {result} {text.value}, expected {expect}")


def out(kind=ctypes.c_void_p):
    value = kind()
    return value, ctypes.byref(value)


call("cuInit", 0)
count, at = out(ctypes.c_int)
call("cuDeviceGetCount", at)
for device in range(count.value):
    context, at = out()
    call("cuCtxCreate_v2", at, 0, device)
    module, at = out()
    call("cuModuleLoadData", at, b"no ptx\0", expect=200)
    call("cuModuleLoadData", at, PTX.replace(b"sm_50", b"sm_999"), expect=209)
    call("cuModuleLoadData", at, PTX.replace(b"6.0", b"99.0"), expect=222)
    call("cuModuleLoadData", at, PTX)
    kernel, at = out()
    call("cuModuleGetFunction", at, module, b"no_such", expect=500)
    call("cuModuleGetFunction", at, module, b"vectoradd")
    left, right, sums = (
        (ctypes.c_float * N)(*range(N)),
        (ctypes.c_float * N)(*[0.5] * N),
        (ctypes.c_float * N)(),
    )
    addresses = [ctypes.c_uint64() for _ in range(3)]
    for address in addresses:
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(4 * N))
    call("cuMemAlloc_v2", ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1 << 50), expect=2)
    call("cuMemcpyHtoD_v2", addresses[0], left, ctypes.c_size_t(4 * N))
    call("cuMemcpyHtoD_v2", addresses[1], right, ctypes.c_size_t(4 * N))
    call("cuMemcpyHtoD_v2", addresses[1], right, ctypes.c_size_t(4 * N + 1), expect=1)
    length = ctypes.c_uint32(N)
    values = (ctypes.c_void_p * 4)(
        *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in (*addresses, length))
    )
    call("cuLaunchKernel", kernel, 0, 1, 1, 256, 1, 1, 0, None, values, None, expect=1)
    call("cuLaunchKernel", kernel, 1, 1, 1, 2048, 1, 1, 0, None, values, None, expect=1)
    call("cuLaunchKernel", kernel, 4, 1, 1, 256, 1, 1, 0, None, values, None)
    call("cuCtxSynchronize")
    call("cuMemcpyDtoH_v2", sums, addresses[2], ctypes.c_size_t(4 * N))
    assert [sums[i] for i in range(1024)] == [left[i] + 0.5 for i in range(1024)]
    call("cuLaunchKernel", kernel, (N + 255) // 256, 1, 1, 256, 1, 1, 0, None, values, None)
    call("cuMemcpyDtoH_v2", sums, addresses[2], ctypes.c_size_t(4 * N))
    assert all(sums[i] == left[i] + 0.5 for i in range(N)), "wrong sums"
    length.value = 100 * N
    call("cuLaunchKernel", kernel, N, 1, 1, 256, 1, 1, 0, None, values, None)
    call("cuCtxSynchronize", expect=700)
    call("cuMemcpyDtoH_v2", sums, addresses[2], ctypes.c_size_t(4 * N), expect=700)
    call("cuCtxDestroy_v2", context)
print(f"vectoradd on {count.value} GPUs")
