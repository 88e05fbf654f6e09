// What stands around a library's attention kernels: parts into the carried state, its end, and gradients into sums.
//
// NVRTC compiles this for the device that is there; it has no headers, so 16-bit floats are converted here.

#define INFINITY __int_as_float(0x7f800000)

typedef unsigned short bits;
typedef long long index;

struct Bf16 {
    static __device__ float load(bits x) { return __uint_as_float(static_cast<unsigned>(x) << 16); }
    static __device__ bits store(float x) {
        unsigned u = __float_as_uint(x);
        // To nearest, ties to even; a NaN stays one.
        if (x != x) return 0x7fff;
        return static_cast<bits>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
    }
};

struct F16 {
    static __device__ float load(bits x) {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(x));
        return f;
    }
    static __device__ bits store(float x) {
        bits h;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
        return h;
    }
};

constexpr int WARP = 32;
// Elements that a lane has at a time; head dimensions are multiples of 8.
constexpr int LANE = 4;

// Adds a normalised part, o [rows, heads, dim] and lse [heads, rows], to rows first.. of a state whose acc is
// [heads, state_rows, dim]. A warp a row of a head.
template <typename T>
__device__ void absorb(const bits* o, const float* lse, float* acc, float* max, float* sum, int rows, int heads,
                       int dim, int state_rows, int first) {
    index warp = (static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP;
    if (warp >= static_cast<index>(rows) * heads) return;
    int row = static_cast<int>(warp % rows), head = static_cast<int>(warp / rows);
    index at = static_cast<index>(head) * state_rows + first + row;
    float theirs = lse[static_cast<index>(head) * rows + row], ours = max[at];
    // A part that has seen no key adds nothing.
    if (theirs == -INFINITY) return;
    float most = fmaxf(ours, theirs);
    float keep = ours == -INFINITY ? 0.0f : expf(ours - most), weight = expf(theirs - most);
    float before = sum[at];
    const bits* from = o + (static_cast<index>(row) * heads + head) * dim;
    float* into = acc + at * dim;
    for (int d = lane * LANE; d < dim; d += WARP * LANE) {
        // What a row that has seen no key holds is not looked at: it may be anything.
        float4 have = {0.0f, 0.0f, 0.0f, 0.0f};
        if (keep != 0.0f) have = *reinterpret_cast<float4*>(into + d);
        ushort4 part = *reinterpret_cast<const ushort4*>(from + d);
        have.x = have.x * keep + T::load(part.x) * weight;
        have.y = have.y * keep + T::load(part.y) * weight;
        have.z = have.z * keep + T::load(part.z) * weight;
        have.w = have.w * keep + T::load(part.w) * weight;
        *reinterpret_cast<float4*>(into + d) = have;
    }
    // All lanes have read max and sum before one writes them.
    __syncwarp();
    if (lane == 0) {
        max[at] = most;
        sum[at] = before * keep + weight;
    }
}

// out [rows, heads, dim] = acc / sum, in float32 and rounded; lse [heads, rows] = max + ln sum. A row that has seen no
// key gives 0 and -inf.
template <typename T>
__device__ void finish(const float* acc, const float* max, const float* sum, float* out, bits* rounded, float* lse,
                       int rows, int heads, int dim) {
    index warp = (static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
    int lane = threadIdx.x % WARP;
    if (warp >= static_cast<index>(rows) * heads) return;
    int row = static_cast<int>(warp % rows), head = static_cast<int>(warp / rows);
    index at = static_cast<index>(head) * rows + row;
    float total = sum[at], scale = total == 0.0f ? 0.0f : 1.0f / total;
    const float* from = acc + at * dim;
    index to = (static_cast<index>(row) * heads + head) * dim;
    for (int d = lane * LANE; d < dim; d += WARP * LANE) {
        float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
        if (total != 0.0f) x = *reinterpret_cast<const float4*>(from + d);
        x.x *= scale, x.y *= scale, x.z *= scale, x.w *= scale;
        if (out) *reinterpret_cast<float4*>(out + to + d) = x;
        ushort4 r = {T::store(x.x), T::store(x.y), T::store(x.z), T::store(x.w)};
        *reinterpret_cast<ushort4*>(rounded + to + d) = r;
    }
    if (lane == 0) lse[at] = total == 0.0f ? -INFINITY : max[at] + logf(total);
}

// sum[i] += part[i], fours of elements.
template <typename T>
__device__ void add(float* sum, const bits* part, index fours) {
    index stride = static_cast<index>(gridDim.x) * blockDim.x;
    for (index i = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x; i < fours; i += stride) {
        float4 have = reinterpret_cast<float4*>(sum)[i];
        ushort4 x = reinterpret_cast<const ushort4*>(part)[i];
        have.x += T::load(x.x), have.y += T::load(x.y), have.z += T::load(x.z), have.w += T::load(x.w);
        reinterpret_cast<float4*>(sum)[i] = have;
    }
}

// The identity of the carried state: max -inf, sum 0. Nobody looks at acc then.
extern "C" __global__ void reset(float* max, float* sum, index rows) {
    index stride = static_cast<index>(gridDim.x) * blockDim.x;
    for (index i = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x; i < rows; i += stride) {
        max[i] = -INFINITY;
        sum[i] = 0.0f;
    }
}

// Rows first.. of lse [heads, all_rows] side by side: into [heads, rows].
extern "C" __global__ void pack(const float* lse, float* into, int rows, int all_rows, int first, index elements) {
    index stride = static_cast<index>(gridDim.x) * blockDim.x;
    for (index i = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride) {
        into[i] = lse[i / rows * all_rows + first + i % rows];
    }
}

#define OF_TYPE(T, name)                                                                                              \
    extern "C" __global__ void absorb_##name(const bits* o, const float* lse, float* acc, float* max, float* sum,     \
                                             int rows, int heads, int dim, int state_rows, int first) {               \
        absorb<T>(o, lse, acc, max, sum, rows, heads, dim, state_rows, first);                                        \
    }                                                                                                                 \
    extern "C" __global__ void finish_##name(const float* acc, const float* max, const float* sum, float* out,        \
                                             bits* rounded, float* lse, int rows, int heads, int dim) {               \
        finish<T>(acc, max, sum, out, rounded, lse, rows, heads, dim);                                                \
    }                                                                                                                 \
    extern "C" __global__ void add_##name(float* sum, const bits* part, index fours) { add<T>(sum, part, fours); }

OF_TYPE(Bf16, bf16)
OF_TYPE(F16, f16)
