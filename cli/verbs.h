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
void add_show(CLI::App& app, int& exit_code);

// --topk, --force-begin, --force-end.
void add_select_options(CLI::App& verb, CallOptions& options);

// Data and scales of msa_proxy_score_fp4; and the whole question, with bounds, without output.
ScoreFp4Args read_score_fp4(Inputs& in);
ScoreFp4Args read_score_problem(Inputs& in);
std::int64_t heads_of_result(const ScoreFp4Args& a);

}  // namespace kvscout::tool
