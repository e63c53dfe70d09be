// One operation from the command line: files in, the call, results compared, written and reported.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "command_line.h"
#include "compare.h"
#include "inputs.h"
#include "placed.h"

namespace kvscout::tool {

// What every verb that runs an operation takes.
struct CallOptions {
  std::vector<std::string> files, use, compare;
  std::string output, backend;
  int threads = 0;
  double tolerance = 9e-7;  // score: 5e-7 of the CPU back ends, 4e-7 of expected values in fp32
  bool json = false, checked = false;
  Given given;  // scalars, by argument name

  void add_to(Verb& verb);
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

  // Runs msa_topk_select, ... by the type of the arguments, timed.
  template <class Args>
  void run(const Args& args) {
    timed([&] { run_operation(args, options); });
  }

  // Needed only where scores are compared: the largest sums of |products|.
  std::function<std::vector<float>()> magnitudes;

  int finish();  // compares, writes, reports; the exit code

 private:
  void timed(const std::function<void()>& work);
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

}  // namespace kvscout::tool
