// Whether this process may use AMX, and the table of its kernels.
//
// Linux saves tile registers only for processes that asked (arch_prctl; the answer holds for all of
// their threads and for children): signal frames grow by 8 KB, and the kernel refuses if a thread
// has an alternate signal stack too small for that. Asked once, when the instruction sets are
// looked up; refused or elsewhere, the byte dot product and fma serve.
#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/amx/layout.h"

namespace kvscout::cpu {
namespace amx {
namespace {

bool cpu_has_it() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kBf16 = 1u << 22, kFp16 = 1u << 23, kTile = 1u << 24, kVbmi2 = 1u << 6;
  return (d & kBf16) && (d & kFp16) && (d & kTile) && (c & kVbmi2);
}

bool allowed() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

void pack_any(const QuerySource& source, void* vector) {
  (source.repeated ? vnni::pack_rows : pack)(source, vector);
}

}  // namespace
}  // namespace amx

int amx_kernels(const Kernels& vnni, const Kernels** list) {
  if (!amx::cpu_has_it() || !amx::allowed()) return 0;
  static const Kernels kernels = [&] {
    Kernels k = vnni;
    k.name = "amx";
    k.nvfp4 = {.vector_bytes = sizeof(amx::QueryTiles<amx::kGroupDepth>),
               .block_bytes = sizeof(amx::KeyBlock),
               .pack = amx::pack_any,
               .unpack = amx::unpack,
               .score = amx::score<amx::kGroupDepth>,
               .enter = amx::enter<amx::kGroupDepth>,
               .leave = amx::leave};
    k.bf16_e2m1 = {.vector_bytes = sizeof(amx::QueryTiles<amx::kPairDepth>),
                   .block_bytes = sizeof(amx::KeyBlock),
                   .takes = amx::takes<amx::kScaled>,
                   .pack = amx::pack_bf16<amx::kScaled>,
                   .unpack = amx::unpack,
                   .score = amx::score<amx::kPairDepth>,
                   .enter = amx::enter<amx::kPairDepth>,
                   .leave = amx::leave};
    k.bf16_e4m3 = k.bf16_e2m1;
    k.bf16_e4m3.unpack = amx::unpack_e4m3;
    k.bf16_e4m3.score = amx::score_unpacked;
    k.bf16_bf16 = k.bf16_e4m3;
    k.bf16_bf16.takes = amx::takes<amx::kPlain>;
    k.bf16_bf16.takes_keys = amx::takes_keys;
    k.bf16_bf16.pack = amx::pack_bf16<amx::kPlain>;
    k.bf16_bf16.unpack = amx::unpack_bf16;
    k.max_rows_of_score_keys = 8;  // measured: 6.6 ns a key, 7.0 with tiles
    return k;
  }();
  list[0] = &kernels;
  return 1;
}

}  // namespace kvscout::cpu

#else

#include "cpu/kernels.h"

namespace kvscout::cpu {
int amx_kernels(const Kernels&, const Kernels**) { return 0; }
}  // namespace kvscout::cpu

#endif
