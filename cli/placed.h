// Calls on data in the memory of the back end that was asked for: copied there, run, copied back.
//
// Without --backend, or with a back end of the CPU, everything stays where it is.
#pragma once

#include <memory>
#include <vector>

#include "cases/problem.h"
#include "kvscout/kvscout.h"

namespace kvscout::tool {

// Null for host memory. Throws Error(unsupported) for a device that this build does not serve.
std::unique_ptr<cases::Memory> device_memory(Device::Type type);

// Copies on the device and waits.
void copy_in_device(void* to, const void* from, std::size_t bytes);

// Where the back end of that name (null: any) keeps its data.
Device::Type device_of(const char* backend);

// A copy of the arguments whose dense tensors lie in `memory`; null: the arguments as they are.
template <class Args>
class Placed {
 public:
  Placed(const Args& host, cases::Memory* memory) : args(host), memory_(memory) {
    if (!memory_) return;
    cases::for_each_view(
        args,
        [this](const char*, Tensor& t, bool written) {
          if (!t.defined) return;
          const auto bytes = static_cast<std::size_t>(t.count() * bytes_of(t.dtype));
          void* there = copy(t.data, bytes);
          if (written) written_.push_back({t.data, there, bytes});
          t.data = there;
          t.device = memory_->device();
        },
        [this](const float*& p) {
          if (p) p = static_cast<const float*>(copy(p, sizeof *p));
        });
  }

  // The options with the workspace that the call asks for, which lives as long as this object.
  Options with_workspace(Options options) {
    const std::size_t bytes = cases::workspace_bytes(args, options);
    options.workspace_bytes = bytes;
    if (bytes && memory_) {
      options.workspace = memory_->allocate(bytes);
    } else if (bytes) {
      workspace_.resize(bytes + 256);
      const auto address = reinterpret_cast<std::uintptr_t>(workspace_.data());
      options.workspace = workspace_.data() + (256 - address % 256) % 256;
    }
    return options;
  }
  void run(const Options& options) { cases::run(args, with_workspace(options)); }

  // Where the written tensor with this host memory lies.
  const void* there(const void* host) const {
    for (const Written& w : written_)
      if (w.host == host) return w.there;
    return host;
  }

  void download() {
    for (const Written& w : written_) memory_->read(w.host, w.there, w.bytes);
  }

  Args args;

 private:
  struct Written {
    void *host, *there;
    std::size_t bytes;
  };
  void* copy(const void* from, std::size_t bytes) {
    void* there = memory_->allocate(bytes);
    if (bytes) memory_->write(there, from, bytes);
    return there;
  }

  cases::Memory* memory_;
  std::vector<Written> written_;
  std::vector<std::uint8_t> workspace_;
};

// One call with a workspace of its own.
template <class Args>
void run_operation(const Args& args, const Options& options) {
  const std::unique_ptr<cases::Memory> memory = device_memory(device_of(options.backend));
  Placed<Args> placed(args, memory.get());
  placed.run(options);
  placed.download();
}

}  // namespace kvscout::tool
