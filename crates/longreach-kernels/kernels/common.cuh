// What the kernels share. NVRTC compiles common.cuh, state.cu and rows.cu as one source, without any header.

typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// What a thread moves at a time: eight 16-bit elements or four of float32.
struct alignas(16) Bits {
    u32 x[4];
};

// Of these a thread has some under way at once.
#define UNROLL 4

struct Bf16 {
    static __device__ float widen(u16 x) { return __uint_as_float(u32(x) << 16); }
    static __device__ u16 narrow(float x) {
        u16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
        return y;
    }
};

struct F16 {
    static __device__ float widen(u16 x) {
        float y;
        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
        return y;
    }
    static __device__ u16 narrow(float x) {
        u16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
        return y;
    }
};

template <class X>
static __device__ Bits load(const X* from) {
    return *reinterpret_cast<const Bits*>(from);
}

template <class X>
static __device__ void store(X* to, Bits bits) {
    *reinterpret_cast<Bits*>(to) = bits;
}

// Eight elements of 16 bits as float32.
template <class T>
static __device__ void widen(Bits bits, float x[8]) {
    for (int i = 0; i < 4; i++) x[2 * i] = T::widen(u16(bits.x[i])), x[2 * i + 1] = T::widen(u16(bits.x[i] >> 16));
}

static __device__ void widen(Bits low, Bits high, float x[8]) {
    for (int i = 0; i < 4; i++) x[i] = __uint_as_float(low.x[i]), x[i + 4] = __uint_as_float(high.x[i]);
}

// Writes eight numbers as 16-bit elements, or as float32.
template <class T>
static __device__ void write(u16* to, const float x[8]) {
    Bits bits;
    for (int i = 0; i < 4; i++) bits.x[i] = T::narrow(x[2 * i]) | u32(T::narrow(x[2 * i + 1])) << 16;
    store(to, bits);
}

template <class T>
static __device__ void write(float* to, const float x[8]) {
    Bits low, high;
    for (int i = 0; i < 4; i++) low.x[i] = __float_as_uint(x[i]), high.x[i] = __float_as_uint(x[i + 4]);
    store(to, low), store(to + 4, high);
}
