// The table of the back end `cpu`.
#include <string>

#include "cpu/kernels.h"
#include "cpu/operations.h"
#include "cpu/threads.h"

namespace kvscout {
namespace {

bool runs_on(int, std::string*) { return true; }

std::string describe(int) {
  const cpu::Kernels* chosen = cpu::find_kernels();
  std::string text = chosen ? chosen->name : "nothing that KVSCOUT_CPU_TARGET names";
  text += " of";
  for (const cpu::Kernels* k : cpu::available_kernels()) text += std::string(" ") + k->name;
  return text + ", " + std::to_string(cpu::most_threads(0)) + " threads";
}

}  // namespace

extern const Backend cpu_backend = {
    .name = "cpu",
    .built_for = KVSCOUT_BUILT_FOR,
    .run_by_authors = true,
    .device = Device::cpu,
    .runs_on = runs_on,
    .describe = describe,
    .quantize = cpu::quantize,
    .score = cpu::score,
    .select = cpu::select,
    .index = cpu::index,
    .append = cpu::append,
    .score_workspace = cpu::score_workspace,
    .index_workspace = cpu::index_workspace,
    .explain = cpu::explain_score,
    .read = nullptr,
};

}  // namespace kvscout
