// The carried state: acc [batch, heads, rows, dim], max and sum [batch, heads, rows], all float32.
// A block has dim / 8 threads for each of its rows; the grid is (blocks of rows, heads, batch).

static __device__ float minus_infinity() { return __int_as_float(0xff800000); }

// Adds a normalised part over other keys of the same rows: o [batch, heads, rows, dim] of 16 bits, lse [batch, heads,
// rows]. The state has state_heads heads and state_rows rows, and its pointers are at the part's first row.
// acc of a row that has seen no key is written and not read.
template <class T>
static __device__ void merge(const u16* o, const float* lse, float* acc, float* max, float* sum, i64 rows,
                             i64 state_heads, i64 state_rows) {
    i64 row = i64(blockIdx.x) * blockDim.y + threadIdx.y;
    bool live = row < rows;
    i64 part = (i64(blockIdx.z) * gridDim.y + blockIdx.y) * rows + row;
    i64 at = (i64(blockIdx.z) * state_heads + blockIdx.y) * state_rows + row;
    float part_lse = live ? lse[part] : minus_infinity();
    float old_max = live ? max[at] : 0.0f;
    float old_sum = live ? sum[at] : 0.0f;
    // All threads of a row have read its max before one of them writes it.
    __syncthreads();
    if (part_lse == minus_infinity()) return;
    float new_max = fmaxf(old_max, part_lse);
    bool first = old_max == minus_infinity();
    // One of the factors is 1 and the other at most 1.
    float keep = first ? 0.0f : expf(old_max - new_max);
    float add = expf(part_lse - new_max);
    i64 column = threadIdx.x * 8, dim = blockDim.x * 8;
    if (column == 0) {
        max[at] = new_max;
        sum[at] = first ? add : old_sum * keep + add;
    }
    float x[8], y[8] = {};
    load<T>(o + part * dim + column, x);
    if (!first) load(acc + at * dim + column, y);
    for (int i = 0; i < 8; i++) y[i] = y[i] * keep + x[i] * add;
    store(acc + at * dim + column, y);
}

extern "C" __global__ void merge_bf16(const u16* o, const float* lse, float* acc, float* max, float* sum, i64 rows,
                                      i64 state_heads, i64 state_rows) {
    merge<Bf16>(o, lse, acc, max, sum, rows, state_heads, state_rows);
}

extern "C" __global__ void merge_f16(const u16* o, const float* lse, float* acc, float* max, float* sum, i64 rows,
                                     i64 state_heads, i64 state_rows) {
    merge<F16>(o, lse, acc, max, sum, rows, state_heads, state_rows);
}

// A row's share of out = acc / sum for one thread, and lse = max + ln(sum) by the first; 0 and -inf where no key was
// seen. Returns whether there is something to store.
static __device__ bool normalised(const float* acc, const float* max, const float* sum, float* lse, i64 rows,
                                  float x[8]) {
    i64 row = i64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= rows) return false;
    i64 at = (i64(blockIdx.z) * gridDim.y + blockIdx.y) * rows + row;
    i64 column = threadIdx.x * 8, dim = blockDim.x * 8;
    float total = sum[at];
    if (column == 0) lse[at] = total == 0.0f ? minus_infinity() : max[at] + logf(total);
    if (total == 0.0f) {
        for (int i = 0; i < 8; i++) x[i] = 0.0f;
    } else {
        load(acc + at * dim + column, x);
        for (int i = 0; i < 8; i++) x[i] /= total;
    }
    return true;
}

static __device__ i64 place(i64 batch, i64 row, i64 head) {
    i64 s = i64(blockIdx.x) * blockDim.y + threadIdx.y;
    return i64(blockIdx.z) * batch + s * row + i64(blockIdx.y) * head + threadIdx.x * 8;
}

extern "C" __global__ void finish_f32(const float* acc, const float* max, const float* sum, float* out, float* lse,
                                      i64 rows, i64 batch_stride, i64 row_stride, i64 head_stride) {
    float x[8];
    if (normalised(acc, max, sum, lse, rows, x)) store(out + place(batch_stride, row_stride, head_stride), x);
}

extern "C" __global__ void finish_bf16(const float* acc, const float* max, const float* sum, u16* out, float* lse,
                                       i64 rows, i64 batch_stride, i64 row_stride, i64 head_stride) {
    float x[8];
    if (normalised(acc, max, sum, lse, rows, x)) store<Bf16>(out + place(batch_stride, row_stride, head_stride), x);
}

extern "C" __global__ void finish_f16(const float* acc, const float* max, const float* sum, u16* out, float* lse,
                                      i64 rows, i64 batch_stride, i64 row_stride, i64 head_stride) {
    float x[8];
    if (normalised(acc, max, sum, lse, rows, x)) store<F16>(out + place(batch_stride, row_stride, head_stride), x);
}
