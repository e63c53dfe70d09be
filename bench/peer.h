// The peer: OpenBLAS sgemm on queries and keys that were dequantised beforehand and for nothing. It
// does not even take the block maximum. Where OpenBLAS was not found, it is not run.
#pragma once

#include <cstdint>
#include <memory>

namespace bench {

// The kernels that OpenBLAS chose, or was told by OPENBLAS_CORETYPE to take; null: no OpenBLAS.
const char* peer_core();

class Peer {
 public:
  // rows x 128 times 128 x keys, `chunk` keys a call, so that its result can stay in the cache.
  Peer(std::int64_t rows, std::int64_t keys, std::int64_t chunk);
  ~Peer();
  void run(int threads) const;

 private:
  std::int64_t rows_, keys_, step_;
  std::unique_ptr<float[]> q_, k_, out_;
};

}  // namespace bench
