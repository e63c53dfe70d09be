// SM80 (Ampere; by the same instructions also the data centre's Blackwell and, as PTX, what comes):
// the back end's table.
#include "cuda/device.h"
#include "cuda/operations.h"
#include "cuda/score.h"

namespace kvscout {
namespace sm80 {
namespace {

__global__ void probe() {}  // loads where this folder's code loads

bool runs_on(int index, std::string* why) {
  static std::atomic<std::uint64_t> known;
  return cuda::runs_on(index, reinterpret_cast<const void*>(probe), KVSCOUT_BUILT_FOR, known, why);
}

}  // namespace
}  // namespace sm80

extern const Backend sm80_backend = {
    .name = "sm80",
    .built_for = KVSCOUT_BUILT_FOR,
    .run_by_authors = false,
    .device = Device::cuda,
    .runs_on = sm80::runs_on,
    .describe = cuda::describe,
    .quantize = sm80::quantize,
    .score = sm80::score,
    .select = sm80::select,
    .index = sm80::index,
    .append = sm80::append,
    .score_workspace = nullptr,
    .index_workspace = sm80::index_workspace,
    .explain = sm80::explain,
    .read = cuda::read,
};

}  // namespace kvscout
