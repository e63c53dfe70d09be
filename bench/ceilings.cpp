// Register-only instruction mixes and streams: what the machine could do at best.
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstring>
#include <thread>
#include <vector>

#include "harness.h"

namespace bench {
namespace {

// Bytes of all threads' shares.
template <class Body>
void share(std::size_t bytes, int threads, const Body& body) {
  std::vector<std::thread> others;
  const auto edge = [&](int t) {
    return bytes / 256 * static_cast<std::size_t>(t) / static_cast<std::size_t>(threads) * 256;
  };
  for (int t = 1; t < threads; ++t)
    others.emplace_back([&, t] { body(edge(t), t + 1 == threads ? bytes : edge(t + 1)); });
  body(edge(0), threads == 1 ? bytes : edge(1));
  for (auto& o : others) o.join();
}

}  // namespace

#if defined(__x86_64__)
#define CLOBBERED                                                                          \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

// Four pair products, three additions, widening, correction, conversion, scales, fma.
#define AVX2_GROUP(A, F)                 \
  "vpmaddubsw %%ymm14,%%ymm15," A        \
  "\n"                                   \
  "vpmaddubsw %%ymm14,%%ymm15,%%ymm6\n"  \
  "vpaddw %%ymm6," A "," A               \
  "\n"                                   \
  "vpmaddubsw %%ymm14,%%ymm15,%%ymm7\n"  \
  "vpaddw %%ymm7," A "," A               \
  "\n"                                   \
  "vpmaddubsw %%ymm14,%%ymm15,%%ymm12\n" \
  "vpaddw %%ymm12," A "," A              \
  "\n"                                   \
  "vpmaddwd %%ymm14," A "," A            \
  "\n"                                   \
  "vpaddd %%ymm15," A "," A              \
  "\n"                                   \
  "vcvtdq2ps " A "," A                   \
  "\n"                                   \
  "vmulps %%ymm14,%%ymm15,%%ymm13\n"     \
  "vfmadd231ps %%ymm13," A "," F "\n"

__attribute__((target("avx2,fma"))) double avx2_mix(std::int64_t loops) {
  asm volatile("vzeroall" ::: CLOBBERED);
  for (std::int64_t i = 0; i < loops; ++i)
    asm volatile(AVX2_GROUP("%%ymm0", "%%ymm8") AVX2_GROUP("%%ymm1", "%%ymm9")
                     AVX2_GROUP("%%ymm2", "%%ymm10") AVX2_GROUP("%%ymm3", "%%ymm11")::
                         : CLOBBERED);
  asm volatile("vzeroupper" ::: CLOBBERED);
  return static_cast<double>(loops) * 4 * 8 * 16 * 2;
}

__attribute__((target("avx2,fma"))) double fma_loop(std::int64_t loops) {
  asm volatile("vzeroall" ::: CLOBBERED);
#define FMA(A) "vfmadd231ps %%ymm14,%%ymm15,%%ymm" #A "\n"
  for (std::int64_t i = 0; i < loops; ++i)
    asm volatile(FMA(0) FMA(1) FMA(2) FMA(3) FMA(4) FMA(5) FMA(6) FMA(7) FMA(8) FMA(9) FMA(10)
                     FMA(11)::
                         : CLOBBERED);
  asm volatile("vzeroupper" ::: CLOBBERED);
  return static_cast<double>(loops) * 12 * 8 * 2;
}

__attribute__((target("avx512f"))) static void wide_fma(std::int64_t loops) {
  asm volatile("vzeroall" ::: CLOBBERED);
#define WIDE_FMA(A) "vfmadd231ps %%zmm14,%%zmm15,%%zmm" #A "\n"
  for (std::int64_t i = 0; i < loops; ++i)
    asm volatile(WIDE_FMA(0) WIDE_FMA(1) WIDE_FMA(2) WIDE_FMA(3) WIDE_FMA(4) WIDE_FMA(5) WIDE_FMA(6)
                     WIDE_FMA(7) WIDE_FMA(8) WIDE_FMA(9) WIDE_FMA(10) WIDE_FMA(11)::
                         : CLOBBERED);
  asm volatile("vzeroupper" ::: CLOBBERED);
}
double wide_fma_loop(std::int64_t loops) {
  if (!__builtin_cpu_supports("avx512f")) return 0;
  wide_fma(loops);
  return static_cast<double>(loops) * 12 * 16 * 2;
}

#define DOT(A) "vpdpbusd %%zmm14,%%zmm15," A "\n"
#define START(A) "vmovdqa64 %%zmm15," A "\n"
#define STEP DOT("%%zmm0") DOT("%%zmm1") DOT("%%zmm2") DOT("%%zmm3") DOT("%%zmm4") DOT("%%zmm5")
#define STARTS \
  START("%%zmm0") START("%%zmm1") START("%%zmm2") START("%%zmm3") START("%%zmm4") START("%%zmm5")
#define MULTIPLIED(A, F)            \
  "vcvtdq2ps " A "," A              \
  "\n"                              \
  "vmulps %%zmm14,%%zmm15,%%zmm6\n" \
  "vfmadd231ps %%zmm6," A "," F "\n"
#define LOOKED_UP(A, F)             \
  "vcvtdq2ps " A "," A              \
  "\n"                              \
  "vpermd %%zmm14,%%zmm15,%%zmm6\n" \
  "vpaddd %%zmm14,%%zmm6,%%zmm6\n"  \
  "vfmadd231ps %%zmm6," A "," F "\n"
#define FUSED(A, F)                \
  "vfmadd132ps %%zmm14,%%zmm15," A \
  "\n"                             \
  "vfmadd231ps %%zmm14," A "," F "\n"
#define SIX(X)          \
  X("%%zmm0", "%%zmm8") \
  X("%%zmm1", "%%zmm9") \
  X("%%zmm2", "%%zmm10") X("%%zmm3", "%%zmm11") X("%%zmm4", "%%zmm12") X("%%zmm5", "%%zmm13")

#define VNNI_TARGET __attribute__((target("avx512f,avx512vnni")))
VNNI_TARGET static void multiplied(std::int64_t loops) {
  asm volatile("vzeroall" ::: CLOBBERED);
  for (std::int64_t i = 0; i < loops; ++i)
    asm volatile(STARTS STEP STEP STEP STEP SIX(MULTIPLIED)::: CLOBBERED);
  asm volatile("vzeroupper" ::: CLOBBERED);
}
VNNI_TARGET static void looked_up(std::int64_t loops) {
  asm volatile("vzeroall" ::: CLOBBERED);
  for (std::int64_t i = 0; i < loops; ++i)
    asm volatile(STARTS STEP STEP STEP STEP SIX(LOOKED_UP)::: CLOBBERED);
  asm volatile("vzeroupper" ::: CLOBBERED);
}
VNNI_TARGET static void fused(std::int64_t loops) {
  asm volatile("vzeroall" ::: CLOBBERED);
  for (std::int64_t i = 0; i < loops; ++i)
    asm volatile(STARTS STEP STEP STEP STEP SIX(FUSED)::: CLOBBERED);
  asm volatile("vzeroupper" ::: CLOBBERED);
}
static double vnni_loops(void (*mix)(std::int64_t), std::int64_t loops) {
  if (!__builtin_cpu_supports("avx512vnni")) return 0;
  mix(loops);
  return static_cast<double>(loops) * 6 * 16 * 16 * 2;
}
double vnni_mix(std::int64_t loops) { return vnni_loops(multiplied, loops); }
double fused_mix(std::int64_t loops) { return vnni_loops(fused, loops); }
double table_mix(std::int64_t loops) { return vnni_loops(looked_up, loops); }
// Where the library was allowed to use it.
static bool has_amx() {
#ifdef __linux__
  constexpr long kGetPermission = 0x1022, kTileData = 18;
  std::uint64_t allowed = 0;
  return syscall(SYS_arch_prctl, kGetPermission, &allowed) == 0 && (allowed >> kTileData & 1);
#else
  return false;
#endif
}
// All that AMX needs for 16 rows x 16 keys of `depth` elements.
static double tile_products(std::int64_t loops, std::uint8_t depth) {
  if (!has_amx()) return 0;
  struct alignas(64) {
    std::uint8_t palette = 1, start = 0, unused[14] = {};
    std::uint16_t bytes[16] = {64, 64, 64, 64, 0, 0, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 0, 0};
  } configuration;
  configuration.bytes[4] = configuration.bytes[5] = static_cast<std::uint16_t>(2 * depth);
  configuration.rows[6] = configuration.rows[7] = static_cast<std::uint8_t>(depth / 2);
  asm volatile("ldtilecfg %0" ::"m"(configuration));
#define TILES(C, A, B) "tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #C "\n"
  for (std::int64_t i = 0; i < loops; ++i)
    asm volatile(TILES(0, 4, 6) TILES(1, 4, 7) TILES(2, 5, 6) TILES(3, 5, 7)::);
  asm volatile("tilerelease" ::);
  return static_cast<double>(loops) * 4 * 16 * 16 * depth * 2;
}
double amx_mix(std::int64_t loops) { return tile_products(loops, 16); }
double amx_bf16_mix(std::int64_t loops) { return tile_products(loops, 32); }
#else
double amx_mix(std::int64_t) { return 0; }
double amx_bf16_mix(std::int64_t) { return 0; }
double avx2_mix(std::int64_t) { return 0; }
double fma_loop(std::int64_t) { return 0; }
double wide_fma_loop(std::int64_t) { return 0; }
double vnni_mix(std::int64_t) { return 0; }
double table_mix(std::int64_t) { return 0; }
double fused_mix(std::int64_t) { return 0; }
#endif

void stream_read(const void* data, std::size_t bytes, int threads) {
  share(bytes, threads, [&](std::size_t begin, std::size_t end) {
    const auto* p = static_cast<const char*>(data);
    using Vector = std::uint64_t __attribute__((vector_size(16)));
    Vector sum[8] = {};
    std::size_t i = begin;
    for (; i + 128 <= end; i += 128)
      for (int k = 0; k < 8; ++k) {
        Vector x;
        std::memcpy(&x, p + i + 16 * k, 16);
        sum[k] |= x;
      }
    for (int k = 0; k < 8; ++k) asm volatile("" ::"x"(sum[k]));
  });
}

void stream_copy(void* to, const void* from, std::size_t bytes, int threads) {
  share(bytes, threads, [&](std::size_t begin, std::size_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                end - begin);
  });
}

}  // namespace bench
