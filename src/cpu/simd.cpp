// The kernels of every instruction set that Highway knows, from one source, as tables.
// No sizeless vectors here: on Arm the NEON code serves. Newer versions of Highway split AVX-512
// and NEON further; what that would bring is in vnni.cpp.
// Sanitized builds leave SSE4 to SSSE3, whose source and width it shares.
#define HWY_DISABLED_TARGETS                                                           \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV | KVSCOUT_SPLIT_TARGETS | \
   KVSCOUT_SPARED_TARGETS)
#ifdef KVSCOUT_SANITIZED
#define KVSCOUT_SPARED_TARGETS HWY_SSE4
#else
#define KVSCOUT_SPARED_TARGETS 0
#endif
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/simd.cpp"
// clang-format off
#include <hwy/detect_targets.h>
#if defined(HWY_AVX3_ZEN4)
#define KVSCOUT_SPLIT_TARGETS \
  (HWY_AVX3_DL | HWY_AVX3_ZEN4 | HWY_AVX3_SPR | HWY_NEON_BF16 | HWY_NEON_WITHOUT_AES)
#else
#define KVSCOUT_SPLIT_TARGETS 0
#endif
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

#include "cpu/fill-inl.h"
#include "cpu/quantize-inl.h"
#include "cpu/score_float-inl.h"
#include "cpu/score_int-inl.h"
#include "cpu/score_keys-inl.h"
#include "cpu/topk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

const Kernels& table() {
  static const Kernels kernels = {
      .name = HWY_TARGET == HWY_AVX3    ? "avx512"
              : HWY_TARGET == HWY_AVX2  ? "avx2"
              : HWY_TARGET == HWY_SSE4  ? "sse4"
              : HWY_TARGET == HWY_SSSE3 ? "ssse3"
              : HWY_TARGET == HWY_NEON  ? "neon"
                                        : "portable",
      .lanes = kLanes,
      .nvfp4 = {.vector_bytes = sizeof(IntQueryVector<kLanes>),
                .block_bytes = sizeof(IntKeyBlock),
                .pack = pack_int,
                .unpack = unpack_int,
                .score = score_int},
      .floats = {.vector_bytes = sizeof(FloatQueryVector<kLanes>),
                 .block_bytes = sizeof(FloatKeyBlock),
                 .pack = pack_float,
                 .unpack = unpack_float,
                 .score = score_float},
      .score_keys = score_keys_int,
      .row_bytes = sizeof(IntQueryVector<kLanes>),
      .max_rows_of_score_keys = kLanes == 8 ? 16 : kLanes - 1,  // measured
      .fill_around = fill_around,
      .quantize = quantize,
      .copy_columns = copy_columns,
      .floor_of = floor_of,
      .mark = mark,
      .list_marks = list_marks,
      .choose = choose,
  };
  return kernels;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvscout::cpu {

int highway_kernels(const Kernels** list) {
  int count = 0;
#if HWY_ARCH_X86
  __builtin_cpu_init();
#if HWY_TARGETS & HWY_AVX3
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512cd"))
    list[count++] = &N_AVX3::table();
#endif
#if HWY_TARGETS & HWY_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2"))
    list[count++] = &N_AVX2::table();
#endif
#if HWY_TARGETS & HWY_SSE4
  if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("aes") &&
      __builtin_cpu_supports("pclmul"))
    list[count++] = &N_SSE4::table();
#endif
#if HWY_TARGETS & HWY_SSSE3
  if (__builtin_cpu_supports("ssse3")) list[count++] = &N_SSSE3::table();
#endif
#endif
  if (count == 0) list[count++] = &HWY_STATIC_DISPATCH(table)();
  return count;
}

}  // namespace kvscout::cpu
#endif
