// Rows of [batch, rows, heads, dim] from one place to another: pieces of rows, each with its own place at both ends.
// The grid is (blocks, pieces, batch).

#define PIECES 32

struct Pieces {
    i64 from[PIECES], to[PIECES], rows[PIECES];
};

// Strides in elements. `flat` says that a piece has no gap at either end; a piece has less than 2^31 elements.
struct Shape {
    i64 from_batch, from_row, from_head, from_column;
    i64 to_batch, to_row, to_head;
    int heads, dim, flat;
};

// Lets `op` load and then store each `Wide` elements that lie side by side at both ends, several of a thread's at once.
template <int Wide, class Op>
static __device__ void each(const Shape& shape, const Pieces& pieces, Op op) {
    int piece = blockIdx.y;
    u32 in_head = shape.dim / Wide, in_row = shape.heads * in_head, total = u32(pieces.rows[piece]) * in_row;
    i64 from = blockIdx.z * shape.from_batch + pieces.from[piece] * shape.from_row;
    i64 to = blockIdx.z * shape.to_batch + pieces.to[piece] * shape.to_row;
    for (u32 first = blockIdx.x * blockDim.x * UNROLL; first < total; first += gridDim.x * blockDim.x * UNROLL) {
        typename Op::Held held[UNROLL];
        i64 b[UNROLL];
        for (int u = 0; u < UNROLL; u++) {
            u32 i = first + u * blockDim.x + threadIdx.x;
            if (i >= total) continue;
            i64 a;
            if (shape.flat) {
                a = from + i64(i) * Wide, b[u] = to + i64(i) * Wide;
            } else {
                u32 row = i / in_row, rest = i - row * in_row, head = rest / in_head;
                i64 column = (rest - head * in_head) * Wide;
                a = from + row * shape.from_row + head * shape.from_head + column * shape.from_column;
                b[u] = to + row * shape.to_row + head * shape.to_head + column;
            }
            held[u] = op.load(a, b[u]);
        }
        for (int u = 0; u < UNROLL; u++) {
            if (first + u * blockDim.x + threadIdx.x < total) op.store(held[u], b[u]);
        }
    }
}

struct Copy {
    const u16* from;
    u16* to;
    typedef Bits Held;
    __device__ Held load(i64 a, i64) { return ::load(from + a); }
    __device__ void store(Held held, i64 b) { ::store(to + b, held); }
};

struct CopyOne {
    const u16* from;
    u16* to;
    typedef u16 Held;
    __device__ Held load(i64 a, i64) { return from[a]; }
    __device__ void store(Held held, i64 b) { to[b] = held; }
};

template <class T>
struct Add {
    const u16* from;
    float* to;
    struct Held {
        Bits part, low, high;
    };
    __device__ Held load(i64 a, i64 b) { return {::load(from + a), ::load(to + b), ::load(to + b + 4)}; }
    __device__ void store(Held held, i64 b) {
        float x[8], y[8];
        widen<T>(held.part, x), widen(held.low, held.high, y);
        for (int i = 0; i < 8; i++) y[i] += x[i];
        write<T>(to + b, y);
    }
};

// Float32 into float32, four at a time.
struct AddFloat {
    const float* from;
    float* to;
    struct Held {
        Bits term, sum;
    };
    __device__ Held load(i64 a, i64 b) { return {::load(from + a), ::load(to + b)}; }
    __device__ void store(Held held, i64 b) {
        Bits bits;
        for (int i = 0; i < 4; i++)
            bits.x[i] = __float_as_uint(__uint_as_float(held.sum.x[i]) + __uint_as_float(held.term.x[i]));
        ::store(to + b, bits);
    }
};

// The first to be added: what is there is not read.
template <class T>
struct Put {
    const u16* from;
    float* to;
    typedef Bits Held;
    __device__ Held load(i64 a, i64) { return ::load(from + a); }
    __device__ void store(Held held, i64 b) {
        float x[8];
        widen<T>(held, x);
        write<T>(to + b, x);
    }
};

template <class T>
struct Cast {
    const float* from;
    u16* to;
    struct Held {
        Bits low, high;
    };
    __device__ Held load(i64 a, i64) { return {::load(from + a), ::load(from + a + 4)}; }
    __device__ void store(Held held, i64 b) {
        float x[8];
        widen(held.low, held.high, x);
        write<T>(to + b, x);
    }
};

#define ROWS(name, From, To, Wide, Op)                                                                                 \
    extern "C" __global__ void name(const From* from, To* to, __grid_constant__ const Shape shape,                     \
                                    __grid_constant__ const Pieces pieces) {                                           \
        each<Wide>(shape, pieces, Op{from, to});                                                                       \
    }

// Rows whose columns lie side by side, 16-byte aligned.
ROWS(copy, u16, u16, 8, Copy)
// Rows of any strides.
ROWS(copy_strided, u16, u16, 1, CopyOne)
// Sums in float32.
ROWS(add_bf16, u16, float, 8, Add<Bf16>)
ROWS(add_f16, u16, float, 8, Add<F16>)
ROWS(add_f32, float, float, 4, AddFloat)
ROWS(put_bf16, u16, float, 8, Put<Bf16>)
ROWS(put_f16, u16, float, 8, Put<F16>)
// Rounding, once.
ROWS(cast_bf16, float, u16, 8, Cast<Bf16>)
ROWS(cast_f16, float, u16, 8, Cast<F16>)

// Rows of [batch, from_heads, from_rows] into [batch, heads, rows], one number each; the grid is (blocks of rows,
// heads, batch).
extern "C" __global__ void copy_numbers(const float* from, float* to, i64 rows, i64 from_heads, i64 from_rows) {
    i64 row = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    i64 a = (i64(blockIdx.z) * from_heads + blockIdx.y) * from_rows + row;
    to[(i64(blockIdx.z) * gridDim.y + blockIdx.y) * rows + row] = from[a];
}

// Sets `count` numbers.
extern "C" __global__ void fill(float* to, float value, i64 count) {
    i64 step = i64(gridDim.x) * blockDim.x;
    for (i64 i = i64(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) to[i] = value;
}

// Nanoseconds of the GPU's clock.
static __device__ u64 now() {
    u64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}

// Notes the time.
extern "C" __global__ void stamp(u64* at) { *at = now(); }

// Lasts until `nanoseconds` after the time that was noted.
extern "C" __global__ void pace(const u64* at, u64 nanoseconds) {
    while (now() - *at < nanoseconds) __nanosleep(500);
}
