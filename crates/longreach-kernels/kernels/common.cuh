// What the kernels share. NVRTC compiles common.cuh, state.cu and rows.cu as one source, without any header.

typedef unsigned short u16;
typedef long long i64;

// Eight 16-bit elements, which is what a thread moves at a time.
struct alignas(16) Eight {
    u16 x[8];
};

struct alignas(16) Four {
    float x[4];
};

struct Bf16 {
    static __device__ float widen(u16 x) { return __int_as_float(int(x) << 16); }
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

static __device__ void load(const float* from, float x[8]) {
    Four low = *reinterpret_cast<const Four*>(from), high = *reinterpret_cast<const Four*>(from + 4);
    for (int i = 0; i < 4; i++) x[i] = low.x[i], x[i + 4] = high.x[i];
}

static __device__ void store(float* to, const float x[8]) {
    Four low, high;
    for (int i = 0; i < 4; i++) low.x[i] = x[i], high.x[i] = x[i + 4];
    *reinterpret_cast<Four*>(to) = low, *reinterpret_cast<Four*>(to + 4) = high;
}

template <class T>
static __device__ void load(const u16* from, float x[8]) {
    Eight all = *reinterpret_cast<const Eight*>(from);
    for (int i = 0; i < 8; i++) x[i] = T::widen(all.x[i]);
}

template <class T>
static __device__ void store(u16* to, const float x[8]) {
    Eight all;
    for (int i = 0; i < 8; i++) all.x[i] = T::narrow(x[i]);
    *reinterpret_cast<Eight*>(to) = all;
}
