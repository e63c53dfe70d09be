// The tables of the kernels in this folder: where scales are looked up, and where they are
// multiplied.
#if defined(__x86_64__)

#include "cpu/vnni/layout.h"

namespace kvscout::cpu {
namespace {

Kernels kernels_of(const Kernels& avx512, const char* name, const Route& route) {
  Kernels k = avx512;
  k.name = name;
  k.nvfp4 = route;
  k.score_keys = vnni::score_keys;
  k.row_bytes = sizeof(vnni::QueryRow);
  k.max_rows_of_score_keys = vnni::kMostFewRows;
  if (__builtin_cpu_supports("avx512vbmi2")) k.list_marks = vnni::list_marks;
  return k;
}

}  // namespace

int vnni_kernels(const Kernels& avx512, const Kernels** list) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi")) return 0;
  static const Kernels looked_up = kernels_of(avx512, "vnni_table", vnni::table_route());
  static const Kernels multiplied = kernels_of(avx512, "vnni", vnni::block_route());
  const int intel = __builtin_cpu_is("intel") ? 1 : 0;
  list[intel] = &looked_up;
  list[1 - intel] = &multiplied;
  return 2;
}

}  // namespace kvscout::cpu

#else

#include "cpu/kernels.h"

namespace kvscout::cpu {
int vnni_kernels(const Kernels&, const Kernels**) { return 0; }
}  // namespace kvscout::cpu

#endif
