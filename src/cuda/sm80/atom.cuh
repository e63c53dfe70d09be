// SM80: mma.sync m16n8k16 in fp16 or bf16, no e4m3 conversion: bit arithmetic.
#pragma once

namespace kvscout::sm80 {

struct Atom {
  static constexpr bool kConvertsE4m3 = false;
  static constexpr bool kLooksUp = false;
};

}  // namespace kvscout::sm80
