// The verbs of the tool: each add_* function adds one to the command line and stores its exit code.
#pragma once

#include <CLI/CLI.hpp>

#include "call.h"
#include "inputs.h"

namespace kvscout::tool {

void add_info(CLI::App& app, int& exit_code);
void add_quantize(CLI::App& app, int& exit_code);
void add_score(CLI::App& app, int& exit_code);
void add_select(CLI::App& app, int& exit_code);
void add_index(CLI::App& app, int& exit_code);
void add_append(CLI::App& app, int& exit_code);
void add_check(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_show(CLI::App& app, int& exit_code);

// --topk, --force-begin, --force-end.
void add_select_options(CLI::App& verb, CallOptions& options);

// Data and scales of msa_proxy_score_fp4; and the whole question, with bounds, without output.
ScoreFp4Args read_score_fp4(Inputs& in);
ScoreFp4Args read_score_problem(Inputs& in);

// The operations by the type of their arguments, so that a verb need not name them again.
inline void run_operation(const QuantizeArgs& a, const Options& o) { nvfp4_quantize(a, o); }
inline void run_operation(const ScoreFp4Args& a, const Options& o) { msa_proxy_score_fp4(a, o); }
inline void run_operation(const ScoreArgs& a, const Options& o) { msa_proxy_score(a, o); }
inline void run_operation(const SelectArgs& a, const Options& o) { msa_topk_select(a, o); }
inline void run_operation(const IndexArgs& a, const Options& o) { msa_index_select_fp4(a, o); }
inline void run_operation(const AppendArgs& a, const Options& o) { msa_index_append_fp4(a, o); }
inline std::size_t workspace_of(const ScoreFp4Args& a, const Options& o) {
  return msa_proxy_score_fp4_workspace(a, o);
}
inline std::size_t workspace_of(const ScoreArgs& a, const Options& o) {
  return msa_proxy_score_workspace(a, o);
}
inline std::size_t workspace_of(const IndexArgs& a, const Options& o) {
  return msa_index_select_fp4_workspace(a, o);
}

}  // namespace kvscout::tool
