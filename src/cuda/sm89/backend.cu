// SM89 (Ada): the back end's table.
#include "cuda/device.h"
#include "cuda/operations.h"
#include "cuda/score.h"

namespace kvscout {
namespace sm89 {
namespace {

__global__ void probe() {}  // loads where this folder's code loads

bool runs_on(int index, std::string* why) {
  static std::atomic<std::uint64_t> known;
  return cuda::runs_on(index, reinterpret_cast<const void*>(probe), KVSCOUT_BUILT_FOR, known, why);
}

}  // namespace
}  // namespace sm89

extern const Backend sm89_backend = {
    .name = "sm89",
    .built_for = KVSCOUT_BUILT_FOR,
    .run_by_authors = false,
    .device = Device::cuda,
    .runs_on = sm89::runs_on,
    .describe = cuda::describe,
    .quantize = sm89::quantize,
    .score = sm89::score,
    .select = sm89::select,
    .index = sm89::index,
    .append = sm89::append,
    .score_workspace = nullptr,
    .index_workspace = sm89::index_workspace,
    .explain = sm89::explain,
    .read = cuda::read,
};

}  // namespace kvscout
