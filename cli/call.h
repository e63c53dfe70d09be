// One operation from the command line: files in, the call, results compared, written and reported.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compare.h"
#include "inputs.h"

namespace kvscout::tool {

// What every verb that runs an operation takes.
struct CallOptions {
  std::vector<std::string> files, use, compare;
  std::string output, backend;
  int threads = 0;
  double tolerance = 0;
  bool json = false, checked = false;
  Given given;  // scalars, by argument name

  void add_to(CLI::App& verb);
  // An option whose text becomes the scalar `argument`.
  void scalar(CLI::App& verb, const char* flag, const char* argument, const std::string& help);
};

class Call {
 public:
  Call(const char* operation, const CallOptions& options,
       Inputs::Access access = Inputs::Access::read_only);

  Inputs in;
  Options options;
  safetensors::Metadata metadata;  // of the output file

  // A dense result of this name, zeroed; lives as long as the call.
  Tensor result(const std::string& name, DType type, const std::vector<std::int64_t>& shape);
  // A tensor that the call changes in place becomes a result.
  void add_result(const std::string& name, const Tensor& t);
  // The shape to aim at: the tensor that result `name` is to be compared with; undefined without
  // one.
  Tensor expected_for(const std::string& name);

  // Does the work with a workspace of that size, timed.
  void run(const std::function<void()>& work, std::size_t workspace_bytes = 0);

  // Needed only where scores are compared: the largest sums of |products|.
  std::function<std::vector<float>()> magnitudes;

  int finish();  // compares, writes, reports; the exit code

 private:
  struct Result {
    std::string name;
    Tensor tensor;
  };
  std::string counterpart(const std::string& name) const;  // "": not to be compared
  Comparison compare(const Result& r);

  const char* operation_;
  CallOptions asked_;
  std::vector<Result> results_;
  std::deque<std::vector<std::uint64_t>> owned_;
  double seconds_ = 0;
};

// Memory for a call: 256-byte aligned.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : memory_(bytes ? bytes + 256 : 0), bytes_(bytes) {}
  void give_to(Options& options) {
    if (!bytes_) return;
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    options.workspace = reinterpret_cast<void*>((address + 255) / 256 * 256);
    options.workspace_bytes = bytes_;
  }

 private:
  std::vector<char> memory_;
  std::size_t bytes_;
};

}  // namespace kvscout::tool
