// The verbs of the tool: each add_* function tells the command line about one.
#pragma once

#include "call.h"
#include "inputs.h"

namespace kvscout::tool {

void add_info(CommandLine& line);
void add_quantize(CommandLine& line);
void add_score(CommandLine& line);
void add_select(CommandLine& line);
void add_index(CommandLine& line);
void add_append(CommandLine& line);
void add_check(CommandLine& line);
void add_bench(CommandLine& line);
void add_show(CommandLine& line);

// --topk, --force-begin, --force-end.
void add_select_options(Verb& verb, CallOptions& options);

// Data and scales of msa_proxy_score_fp4; and the whole question, with bounds, without output.
ScoreFp4Args read_score_fp4(Inputs& in);
ScoreFp4Args read_score_problem(Inputs& in);
std::int64_t heads_of_result(const ScoreFp4Args& a);

}  // namespace kvscout::tool
