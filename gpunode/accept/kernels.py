"""The kernels of the measurements, in PTX 6.0 for sm_50: the driver compiles them for any GPU since Maxwell."""

THREADS = 256  # of a block
COPIED = 4 * 16 * THREADS  # bytes that a block of `copy` moves
UNIT = 16  # bytes that a thread of `fill` and `check` has
CHAINS = 8  # of a thread of `compute`, independent of each other: the latency of one is filled by the others
STEPS = 1024  # of a chain in a round
TURN = 16  # steps in a turn of the loop
MIX = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: neighbours have patterns that differ in half of their bits

# A step is x = x * x - 1.9: it stays between -1.9 and 2, and is chaotic. An error grows instead of fading, and operands
# change in every bit. FMA rounds once, on every GPU alike, so the result of a round is known. Bits of float32.
STARTS = (0x3DCCCCCD, 0x3E4CCCCD, 0x3E99999A, 0x3ECCCCCD, 0x3F000000, 0x3F19999A, 0x3F333333, 0x3F4CCCCD)
ADDEND = 0xBFF33333
RESULTS = (0x3FC98134, 0xBFA15707, 0xBE9790C4, 0xBCD7C04B, 0x3ED3D4F6, 0x3FCBE8C4, 0xBFEDD2E3, 0x3F5E7735)

# The index of a thread among all, in %i.
_INDEX = """
    mov.u32     %block, %ctaid.x;
    mov.u32     %size, %ntid.x;
    mov.u32     %thread, %tid.x;
    mul.wide.u32 %i, %block, %size;
    cvt.u64.u32 %wide, %thread;
    add.u64     %i, %i, %wide;
"""

# The address of the thread's unit in %at, and in %x and %y the pattern that its address would give it were %at `base`.
_PATTERN = f"""
    ld.param.u64 %n, [units];
    setp.ge.u64 %out, %i, %n;
    @%out ret;
    ld.param.u64 %at, [at];
    cvta.to.global.u64 %at, %at;
    shl.b64     %i, %i, 4;
    add.u64     %at, %at, %i;
    ld.param.u64 %x, [base];
    ld.param.u64 %seed, [seed];
    add.u64     %x, %x, %i;
    shr.u64     %x, %x, 4;
    mul.lo.u64  %x, %x, 0x{MIX:X};
    add.u64     %y, %x, 0x{MIX:X};
    xor.b64     %x, %x, %seed;
    xor.b64     %y, %y, %seed;
"""

_FILL = f"""
// Writes a pattern that depends on the address, counted from `base`; a thread has a unit.
.visible .entry fill(.param .u64 at, .param .u64 base, .param .u64 units, .param .u64 seed)
{{
    .reg .pred %out;
    .reg .b32  %block, %size, %thread;
    .reg .b64  %i, %wide, %n, %at, %seed, %x, %y;
{_INDEX}{_PATTERN}
    st.global.v2.u64 [%at], {{%x, %y}};
    ret;
}}
"""

_CHECK = f"""
// Adds to *counter how many words of 64 bits are not as `fill` wrote them.
.visible .entry check(.param .u64 at, .param .u64 base, .param .u64 units, .param .u64 seed, .param .u64 counter)
{{
    .reg .pred %out, %first, %second;
    .reg .b32  %block, %size, %thread;
    .reg .b64  %i, %wide, %n, %at, %seed, %x, %y, %u, %v, %counter;
{_INDEX}{_PATTERN}
    ld.global.v2.u64 {{%u, %v}}, [%at];
    setp.ne.u64 %first, %u, %x;
    setp.ne.u64 %second, %v, %y;
    ld.param.u64 %counter, [counter];
    cvta.to.global.u64 %counter, %counter;
    @%first red.global.add.u64 [%counter], 1;
    @%second red.global.add.u64 [%counter], 1;
    ret;
}}
"""


def _copy() -> str:
    quads = [", ".join(f"%x{4 * n + word}" for word in range(4)) for n in range(4)]
    loads = "    add.u64     %from, %from, %step;\n".join(
        f"    ld.global.v4.u32 {{{quad}}}, [%from];\n" for quad in quads
    )
    stores = "    add.u64     %to, %to, %step;\n".join(
        f"    st.global.v4.u32 [%to], {{{quad}}};\n" for quad in quads
    )
    return f"""
// Copies; a block moves {COPIED} bytes, a thread four times 16 of them.
.visible .entry copy(.param .u64 to, .param .u64 from)
{{
    .reg .b32  %block, %size, %thread, %x<16>;
    .reg .b64  %i, %wide, %to, %from, %step;
    mov.u32     %block, %ctaid.x;
    mov.u32     %size, %ntid.x;
    mov.u32     %thread, %tid.x;
    mul.wide.u32 %step, %size, 16;
    mul.wide.u32 %i, %block, %size;
    shl.b64     %i, %i, 6;
    mul.wide.u32 %wide, %thread, 16;
    add.u64     %i, %i, %wide;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    cvta.to.global.u64 %to, %to;
    cvta.to.global.u64 %from, %from;
    add.u64     %to, %to, %i;
    add.u64     %from, %from, %i;
{loads}{stores}    ret;
}}
"""


def _compute() -> str:
    chains = range(CHAINS)
    read = "".join(
        f"""
    add.u32     %at, %thread, {n};
    and.b32     %at, %at, {CHAINS - 1};
    mul.wide.u32 %wide, %at, 4;
    add.u64     %entry, %table, %wide;
    ld.global.u32 %x{n}, [%entry];
    ld.global.u32 %back{n}, [%entry+{4 * CHAINS}];"""
        for n in chains
    )
    step = "".join(f"    fma.rn.f32  %x{n}, %x{n}, %x{n}, %addend;\n" for n in chains)
    back = "".join(f"    xor.b32     %x{n}, %x{n}, %back{n};\n" for n in chains)
    result = "".join(f"    xor.b32     %x{n}, %x{n}, %done;\n" for n in chains)
    quads = [", ".join(f"%x{n}" for n in half) for half in (chains[:4], chains[4:])]
    return f"""
// Rounds of {STEPS} steps of {CHAINS} chains; each round begins with what the last one's result leads back to, and an error of any
// shows in the end. Writes the chains' results, each with the number of turns done in its bits.
.visible .entry compute(.param .u64 out, .param .u64 table, .param .u32 rounds)
{{
    .reg .pred %more;
    .reg .b32  %block, %size, %thread, %at, %rounds, %turn, %done;
    .reg .b32  %x<{CHAINS}>, %back<{CHAINS}>;
    .reg .f32  %addend;
    .reg .b64  %i, %wide, %table, %entry, %out;
{_INDEX}
    ld.param.u64 %table, [table];
    cvta.to.global.u64 %table, %table;{read}
    mov.f32     %addend, 0f{ADDEND:08X};
    mov.u32     %done, 0;
    ld.param.u32 %rounds, [rounds];
ROUND:
    mov.u32     %turn, {STEPS // TURN};
TURN:
{step * TURN}    add.u32     %done, %done, 1;
    sub.u32     %turn, %turn, 1;
    setp.ne.u32 %more, %turn, 0;
    @%more bra  TURN;
    sub.u32     %rounds, %rounds, 1;
    setp.eq.u32 %more, %rounds, 0;
    @%more bra  END;
{back}    bra         ROUND;
END:
{result}    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    shl.b64     %i, %i, 5;
    add.u64     %out, %out, %i;
    st.global.v4.u32 [%out], {{{quads[0]}}};
    st.global.v4.u32 [%out+16], {{{quads[1]}}};
    ret;
}}
"""


PTX = f"""
.version 6.0
.target sm_50
.address_size 64
{_FILL}{_CHECK}{_copy()}{_compute()}""".encode()
