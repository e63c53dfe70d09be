// The vocabulary of validate.cpp: one-line errors and the checks that several arguments share.
//
// Every message reads "operation: argument: got X, expected Y".
#pragma once

#include <initializer_list>
#include <string>

#include "kvscout/kvscout.h"

namespace kvscout::checks {

// Where a message points.
struct Argument {
  const char* operation;
  const char* name;
};

[[noreturn]] void fail(Argument, const std::string& got, const std::string& expected);

std::string describe(const Tensor&);          // "f32 (4, 7, 16) on the host"
std::string describe_strides(const Tensor&);  // the same with its strides
std::string describe(Device);

// The argument is there, and its sizes and strides are such that no later sum or product of them
// overflows. Every other check relies on it.
void require_given(Argument, const Tensor&, const char* expected);
void require_dtype(Argument, const Tensor&, std::initializer_list<DType>);
void require_rank(Argument, const Tensor&, int rank, const char* shape_in_words);
void require_size(Argument, const Tensor&, int dimension, std::int64_t size, const char* meaning);
void require_device(Argument, const Tensor&, Device);
void require_address(Argument, const Tensor&);     // not null unless empty
void require_dense(Argument, const Tensor&);       // row-major without gaps
void require_dense_rows(Argument, const Tensor&);  // last dimension without gaps
void require_no_overlap(Argument, const Tensor&);  // no two elements at one address
void require_at_least(Argument, std::int64_t got, std::int64_t least);

// i32 (size), dense, on `device`.
void require_lengths(Argument, const Tensor&, std::int64_t size, const char* meaning, Device);

// An e4m3 buffer of at least `bytes` dense bytes.
void require_scales(Argument, const Tensor&, std::int64_t bytes, Device);

}  // namespace kvscout::checks
