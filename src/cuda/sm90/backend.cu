// SM90 (Hopper): the back end's table.
#include "cuda/device.h"
#include "cuda/operations.h"
#include "cuda/score.h"

namespace kvscout {
namespace sm90 {
namespace {

__global__ void probe() {}  // loads where this folder's code loads

bool runs_on(int index, std::string* why) {
  static std::atomic<std::uint64_t> known;
  return cuda::runs_on(index, reinterpret_cast<const void*>(probe), KVSCOUT_BUILT_FOR, known, why);
}

}  // namespace
}  // namespace sm90

extern const Backend sm90_backend = {
    .name = "sm90",
    .built_for = KVSCOUT_BUILT_FOR,
    .run_by_authors = true,
    .device = Device::cuda,
    .runs_on = sm90::runs_on,
    .describe = cuda::describe,
    .quantize = sm90::quantize,
    .score = sm90::score,
    .select = sm90::select,
    .index = sm90::index,
    .append = sm90::append,
    .score_workspace = nullptr,
    .index_workspace = sm90::index_workspace,
    .explain = sm90::explain,
    .read = cuda::read,
};

}  // namespace kvscout
