// Rows of [batch, rows, heads, dim] from one place to another: pieces of rows, each with its own place at both ends.
// A block has threads for the columns of a row and for several rows; the grid is (blocks of rows, pieces, batch).

#define PIECES 32

struct Pieces {
    i64 from[PIECES], to[PIECES], rows[PIECES];
};

// Strides in elements.
struct Shape {
    i64 from_batch, from_row, from_head, from_column;
    i64 to_batch, to_row, to_head;
    int heads, dim;
};

// Calls move(from, to) for the first of each `Wide` elements that lie side by side at both ends.
template <int Wide, class Move>
static __device__ void each(const Shape& shape, const Pieces& pieces, Move move) {
    int piece = blockIdx.y, in_head = shape.dim / Wide, in_row = shape.heads * in_head;
    i64 from = blockIdx.z * shape.from_batch, to = blockIdx.z * shape.to_batch;
    i64 step = i64(gridDim.x) * blockDim.y;
    for (i64 row = i64(blockIdx.x) * blockDim.y + threadIdx.y; row < pieces.rows[piece]; row += step) {
        i64 from_row = from + (pieces.from[piece] + row) * shape.from_row;
        i64 to_row = to + (pieces.to[piece] + row) * shape.to_row;
        for (int i = threadIdx.x; i < in_row; i += blockDim.x) {
            int head = i / in_head, column = (i - head * in_head) * Wide;
            move(from_row + head * shape.from_head + column * shape.from_column,
                 to_row + head * shape.to_head + column);
        }
    }
}

// Copies rows whose columns lie side by side, 16-byte aligned.
extern "C" __global__ void copy(const u16* from, u16* to, __grid_constant__ const Shape shape,
                                __grid_constant__ const Pieces pieces) {
    each<8>(shape, pieces, [=](i64 a, i64 b) {
        *reinterpret_cast<Eight*>(to + b) = *reinterpret_cast<const Eight*>(from + a);
    });
}

// Copies rows of any strides.
extern "C" __global__ void copy_strided(const u16* from, u16* to, __grid_constant__ const Shape shape,
                                        __grid_constant__ const Pieces pieces) {
    each<1>(shape, pieces, [=](i64 a, i64 b) { to[b] = from[a]; });
}

template <class T>
static __device__ void add(const u16* from, float* to, const Shape& shape, const Pieces& pieces) {
    each<8>(shape, pieces, [=](i64 a, i64 b) {
        float x[8], y[8];
        load<T>(from + a, x);
        load(to + b, y);
        for (int i = 0; i < 8; i++) y[i] += x[i];
        store(to + b, y);
    });
}

// Adds to float32.
extern "C" __global__ void add_bf16(const u16* from, float* to, __grid_constant__ const Shape shape,
                                    __grid_constant__ const Pieces pieces) {
    add<Bf16>(from, to, shape, pieces);
}

extern "C" __global__ void add_f16(const u16* from, float* to, __grid_constant__ const Shape shape,
                                   __grid_constant__ const Pieces pieces) {
    add<F16>(from, to, shape, pieces);
}

template <class T>
static __device__ void cast(const float* from, u16* to, const Shape& shape, const Pieces& pieces) {
    each<8>(shape, pieces, [=](i64 a, i64 b) {
        float x[8];
        load(from + a, x);
        store<T>(to + b, x);
    });
}

// Rounds from float32, once.
extern "C" __global__ void cast_bf16(const float* from, u16* to, __grid_constant__ const Shape shape,
                                     __grid_constant__ const Pieces pieces) {
    cast<Bf16>(from, to, shape, pieces);
}

extern "C" __global__ void cast_f16(const float* from, u16* to, __grid_constant__ const Shape shape,
                                    __grid_constant__ const Pieces pieces) {
    cast<F16>(from, to, shape, pieces);
}

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
