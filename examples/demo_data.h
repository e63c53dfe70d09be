// The data of the demo: vectors from bible.safetensors, the text from blocks.tsv, questions.tsv.
// examples/README.md says where they come from.
#pragma once

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvscout/kvscout.h"
#include "safetensors.h"

namespace demo {

struct Block {
  std::string first, last, text;  // verses, for example "Ruth 1:1"
};

struct Question {
  std::string text, passage;  // "Ruth 1:16-17"
  std::vector<int> blocks;    // that hold a part of the passage
};

inline std::vector<std::vector<std::string>> read_tsv(const std::string& path,
                                                      std::size_t columns) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<std::vector<std::string>> rows;
  std::string line, cell;
  std::getline(file, line);  // names of the columns
  while (std::getline(file, line)) {
    std::vector<std::string> row;
    for (std::istringstream cells(line); std::getline(cells, cell, '\t');) row.push_back(cell);
    if (row.size() != columns)
      throw std::runtime_error(path + ": a line of another width: " + line);
    rows.push_back(row);
  }
  return rows;
}

class Data {
 public:
  explicit Data(const std::string& folder) : file_(folder + "/bible.safetensors") {
    q = tensor("q", "F16", kvscout::DType::f16);
    k = tensor("k", "F16", kvscout::DType::f16);
    cu_q = tensor("cu_seqlens_q", "I32", kvscout::DType::i32);
    cu_k = tensor("cu_seqlens_k", "I32", kvscout::DType::i32);
    for (auto& row : read_tsv(folder + "/blocks.tsv", 4))
      blocks.push_back({row[1], row[2], row[3]});
    for (auto& row : read_tsv(folder + "/questions.tsv", 3)) {
      Question question{row[0], row[1], {}};
      std::string number;
      for (std::istringstream list(row[2]); std::getline(list, number, ',');)
        question.blocks.push_back(std::stoi(number));
      questions.push_back(question);
    }
    const std::size_t tokens = static_cast<std::size_t>(k.size(0));
    if (q.size(0) != static_cast<std::int64_t>(questions.size()) ||
        blocks.size() != (tokens + kvscout::kBlock - 1) / kvscout::kBlock)
      throw std::runtime_error(folder + ": vectors, questions and blocks do not belong together");
  }

  kvscout::Tensor q, k, cu_q, cu_k;  // (questions, 1, 128), (tokens, 1, 128), (2), (2)
  std::vector<Block> blocks;
  std::vector<Question> questions;

 private:
  kvscout::Tensor tensor(const std::string& name, const std::string& dtype,
                         kvscout::DType type) const {
    const auto found = file_.contents().tensors.find(name);
    if (found == file_.contents().tensors.end() || found->second.dtype != dtype)
      throw std::runtime_error("bible.safetensors has no " + dtype + " tensor " + name);
    const auto& view = found->second;
    if (view.shape.size() == 1) return {view.data, type, {view.shape[0]}};
    if (view.shape.size() == 3)
      return {view.data, type, {view.shape[0], view.shape[1], view.shape[2]}};
    throw std::runtime_error("bible.safetensors: " + name + " has an unexpected rank");
  }

  kvscout::safetensors::File file_;
};

}  // namespace demo
