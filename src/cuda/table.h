// A back end's table, the same for every architecture folder but for its name and whether its
// authors have run it. Read by the folders' backend.cu alone.
#pragma once

#include "cuda/device.h"
#include "cuda/operations.h"
#include "cuda/score.h"

// The probe is a kernel: it loads where this folder's code loads.
#define KVSCOUT_CUDA_BACKEND(folder, has_been_run)                                              \
  namespace kvscout {                                                                           \
  namespace folder {                                                                            \
  namespace {                                                                                   \
  __global__ void probe() {}                                                                    \
  bool runs_on(int index, std::string* why) {                                                   \
    static std::atomic<std::uint64_t> known;                                                    \
    return cuda::runs_on(index, reinterpret_cast<const void*>(probe), KVSCOUT_BUILT_FOR, known, \
                         why);                                                                  \
  }                                                                                             \
  }                                                                                             \
  }                                                                                             \
  extern const Backend folder##_backend = {                                                     \
      .name = #folder,                                                                          \
      .built_for = KVSCOUT_BUILT_FOR,                                                           \
      .run_by_authors = has_been_run,                                                           \
      .device = Device::cuda,                                                                   \
      .runs_on = folder::runs_on,                                                               \
      .describe = cuda::describe,                                                               \
      .quantize = folder::quantize,                                                             \
      .score = folder::score,                                                                   \
      .select = folder::select,                                                                 \
      .index = folder::index,                                                                   \
      .append = folder::append,                                                                 \
      .score_workspace = nullptr,                                                               \
      .index_workspace = folder::index_workspace,                                               \
      .explain = folder::explain,                                                               \
      .read = cuda::read,                                                                       \
  };                                                                                            \
  }
