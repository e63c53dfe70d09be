// What a back end is: a name, an answer to "do you run here", and one function an operation.
//
// Functions get problems that validate.cpp has accepted. They may throw Error(device_failure), or
// Error(unsupported) where the environment forces what is not there; nothing else. A null function
// means "not offered": the registry then asks the next back end.
#pragma once

#include <string>

#include "kvscout/kvscout.h"
#include "kvscout/problem.h"

namespace kvscout {

// How to run: resolved from Options.
struct Launch {
  Device device;
  void* stream = nullptr;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  int threads = 0;
};

struct Backend {
  const char* name;
  const char* built_for;
  bool run_by_authors;  // false: "compiled, not run by the authors"
  Device::Type device;

  // Runs on device `index`; otherwise says why not, as the end of a sentence.
  bool (*runs_on)(int index, std::string* why);
  // The device's name for people; what was found at `index`.
  std::string (*describe)(int index);

  void (*quantize)(const QuantizeProblem&, const Launch&);
  void (*score)(const ScoreProblem&, const Launch&);
  void (*select)(const SelectProblem&, const Launch&);
  void (*index)(const IndexProblem&, const Launch&);
  void (*append)(const AppendProblem&, const Launch&);

  // Bytes of workspace; functions of bounds alone, never of lengths. Null: none needed.
  std::size_t (*score_workspace)(const ScoreProblem&, const Launch&);
  std::size_t (*index_workspace)(const IndexProblem&, const Launch&);

  // The plan in words, for `explain`.
  std::string (*explain)(const ScoreProblem&, const Launch&);

  // Copies device memory to the host and waits (checked mode); Error(invalid_argument) while the
  // stream is being captured. Null: host memory.
  void (*read)(void* host, const void* device, std::size_t bytes, const Launch&);
};

}  // namespace kvscout
