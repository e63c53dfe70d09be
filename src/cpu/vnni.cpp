#include "cpu/kernels.h"
namespace kvscout::cpu {
const Kernels* vnni_kernels();
const Kernels* vnni_kernels() { return nullptr; }
}  // namespace kvscout::cpu
