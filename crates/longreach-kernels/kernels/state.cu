// The carried state: for each row of [batch, heads, rows] max and sum, and in acc [batch, heads, rows, dim] float32
//     sum >= 0: the unnormalised sum of weight x value, with weights relative to e^max; what an empty row has is not read.
//     sum < 0:  up to two normalised parts of 16-bit elements, one in each half of the row's memory, as a library wrote
//               them: the row is (1 - w) first + w second with w = -1 - sum, and max is its lse.
// So the first two parts of a row are written once and read once, at the end.
//
// A block has dim / 8 threads for each of its rows; the grid is (heads, blocks of rows, batch).

static __device__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// The row in which this thread's `u`-th piece is; `step` counts the grid's turns.
static __device__ i64 row_of(int u, i64 turn) {
    return ((turn * gridDim.y + blockIdx.y) * UNROLL + u) * blockDim.y + threadIdx.y;
}

// This thread's columns of a row, as they lie in memory.
struct Held {
    Bits a, b;
};

static __device__ Held held(const float* row, float sum) {
    Held held = {};
    int column = threadIdx.x * 8, dim = blockDim.x * 8;
    const u16* bits = reinterpret_cast<const u16*>(row);
    // Two loads without a branch around them, so that those of several rows are under way at once.
    bool parts = sum < 0.0f;
    if (sum != 0.0f) held.a = load(bits + (parts ? column : 2 * column));
    if (sum != 0.0f && sum != -1.0f) held.b = load(bits + (parts ? dim + column : 2 * column + 8));
    return held;
}

// The columns as numbers x of which the row has x / (what is returned).
template <class T>
static __device__ float opened(Held held, float sum, float x[8]) {
    if (!(sum < 0.0f)) {
        widen(held.a, held.b, x);
        return sum;
    }
    float second[8], w = -1.0f - sum;
    widen<T>(held.a, x), widen<T>(held.b, second);
    // Where w is 0 there may be no second part, and held.b is 0.
    for (int i = 0; i < 8; i++) x[i] = (1.0f - w) * x[i] + w * second[i];
    return 1.0f;
}

// Adds a normalised part over other keys of the same rows: o [batch, heads, rows, dim] of 16 bits, lse [batch, heads,
// rows]. The state has state_heads heads and state_rows rows, and its pointers are at the part's first row.
template <class T>
static __device__ void merge(const u16* o, const float* lse, float* acc, float* max, float* sum, i64 rows,
                             i64 state_heads, i64 state_rows) {
    int column = threadIdx.x * 8, dim = blockDim.x * 8;
    i64 turns = (rows + i64(gridDim.y) * UNROLL * blockDim.y - 1) / (i64(gridDim.y) * UNROLL * blockDim.y);
    for (i64 turn = 0; turn < turns; turn++) {
        float part_lse[UNROLL], old_max[UNROLL], old_sum[UNROLL];
        Bits part[UNROLL];
        Held old[UNROLL];
        i64 at[UNROLL];
        for (int u = 0; u < UNROLL; u++) {
            i64 row = row_of(u, turn), from = (i64(blockIdx.z) * gridDim.x + blockIdx.x) * rows + row;
            at[u] = (i64(blockIdx.z) * state_heads + blockIdx.x) * state_rows + row;
            part_lse[u] = minus_infinity();
            if (row >= rows) continue;
            part_lse[u] = lse[from], old_max[u] = max[at[u]], old_sum[u] = sum[at[u]];
            part[u] = load(o + from * dim + column);
        }
        for (int u = 0; u < UNROLL; u++) {
            if (part_lse[u] != minus_infinity()) old[u] = held(acc + at[u] * dim, old_sum[u]);
        }
        // All threads of a row have read it before one of them writes.
        __syncthreads();
        for (int u = 0; u < UNROLL; u++) {
            if (part_lse[u] == minus_infinity()) continue;
            float x[8], y[8], before = opened<T>(old[u], old_sum[u], y);
            widen<T>(part[u], x);
            float new_max = fmaxf(old_max[u], part_lse[u]);
            // One of the factors is 1 and the other at most 1.
            float keep = before == 0.0f ? 0.0f : expf(old_max[u] - new_max), add = expf(part_lse[u] - new_max);
            for (int i = 0; i < 8; i++) y[i] = y[i] * keep + x[i] * add;
            write<T>(acc + at[u] * dim + column, y);
            if (column == 0) max[at[u]] = new_max, sum[at[u]] = before * keep + add;
        }
    }
}

// out [batch, rows, heads, dim] = the state's rows and lse [batch, heads, rows]; 0 and -inf where no key was seen.
template <class T, class Out>
static __device__ void finish(const float* acc, const float* max, const float* sum, Out* out, float* lse, i64 rows,
                              i64 batch_stride, i64 row_stride, i64 head_stride) {
    int column = threadIdx.x * 8, dim = blockDim.x * 8;
    i64 first = (i64(blockIdx.z) * gridDim.x + blockIdx.x) * rows;
    out += i64(blockIdx.z) * batch_stride + i64(blockIdx.x) * head_stride + column;
    for (i64 turn = 0; row_of(0, turn) < rows; turn++) {
        float top[UNROLL], total[UNROLL];
        Held all[UNROLL];
        for (int u = 0; u < UNROLL; u++) {
            i64 row = row_of(u, turn);
            if (row < rows) top[u] = max[first + row], total[u] = sum[first + row];
        }
        for (int u = 0; u < UNROLL; u++) {
            i64 row = row_of(u, turn);
            if (row < rows) all[u] = held(acc + (first + row) * dim, total[u]);
        }
        for (int u = 0; u < UNROLL; u++) {
            i64 row = row_of(u, turn);
            if (row >= rows) continue;
            float x[8], weight = opened<T>(all[u], total[u], x);
            if (column == 0) lse[first + row] = weight == 0.0f ? minus_infinity() : top[u] + logf(weight);
            float scale = weight == 0.0f ? 0.0f : 1.0f / weight;
            for (int i = 0; i < 8; i++) x[i] *= scale;
            write<T>(out + row * row_stride, x);
        }
    }
}

// Notes that a part with this lse stands in the first or the second half of the rows' memory. The grid is (blocks of
// rows, heads, batch), a thread a row.
extern "C" __global__ void hold(const float* lse, float* max, float* sum, int second, i64 rows, i64 state_heads,
                                i64 state_rows) {
    i64 row = i64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float part = lse[(i64(blockIdx.z) * gridDim.y + blockIdx.y) * rows + row];
    i64 at = (i64(blockIdx.z) * state_heads + blockIdx.y) * state_rows + row;
    if (!second) {
        max[at] = part, sum[at] = -1.0f;
        return;
    }
    float first = max[at], most = fmaxf(first, part), least = fminf(first, part);
    float both = most + log1pf(expf(least - most));
    max[at] = both, sum[at] = -1.0f - expf(part - both);
}

#define OF_TYPE(T, name)                                                                                               \
    extern "C" __global__ void merge_##name(const u16* o, const float* lse, float* acc, float* max, float* sum,        \
                                            i64 rows, i64 state_heads, i64 state_rows) {                               \
        merge<T>(o, lse, acc, max, sum, rows, state_heads, state_rows);                                                \
    }                                                                                                                  \
    extern "C" __global__ void finish_##name(const float* acc, const float* max, const float* sum, u16* out,           \
                                             float* lse, i64 rows, i64 batch, i64 row, i64 head) {                     \
        finish<T>(acc, max, sum, out, lse, rows, batch, row, head);                                                    \
    }                                                                                                                  \
    extern "C" __global__ void finish_f32_##name(const float* acc, const float* max, const float* sum, float* out,     \
                                                 float* lse, i64 rows, i64 batch, i64 row, i64 head) {                 \
        finish<T>(acc, max, sum, out, lse, rows, batch, row, head);                                                    \
    }

OF_TYPE(Bf16, bf16)
OF_TYPE(F16, f16)
