// Who holds what: the operands of mma.sync m16n8k64 (kind::mxf4nvf4, e2m1 elements, ue4m3 scales,
// scale_vec::4X), and how 16-byte loads of rows become those operands. Written once: the kernels
// and the software instruction take everything from here, and tests/sm120_maps_test.cpp writes it a
// second time.
//
// The instruction splits every group of 16 elements over two neighbouring lanes, and takes one
// scale for it, so no choice of k makes a 16-byte load fit as it comes. What fits: lanes 2i and
// 2i+1 load whole groups, and each gives the other half of them away, one shuffle for two
// registers.
#pragma once

#include "kvscout/types.h"

namespace kvscout::sm120::map {

// ---- the instruction: PTX ISA, "Matrix fragments for mma.m16n8k64" and "Block scaling" ----
// Register `reg` of a lane holds eight elements, nibble 0 first.
KVSCOUT_HD constexpr int a_row(int lane, int reg) { return lane / 4 + 8 * (reg & 1); }
KVSCOUT_HD constexpr int a_k(int lane, int reg, int nibble) {
  return 8 * (lane % 4) + nibble + 32 * (reg >> 1);
}
KVSCOUT_HD constexpr int b_column(int lane) { return lane / 4; }
KVSCOUT_HD constexpr int b_k(int lane, int reg, int nibble) {
  return 8 * (lane % 4) + nibble + 32 * reg;
}
KVSCOUT_HD constexpr int c_row(int lane, int i) { return lane / 4 + 8 * (i >> 1); }
KVSCOUT_HD constexpr int c_column(int lane, int i) { return 2 * (lane % 4) + (i & 1); }
// The lane whose scale register counts for a row of A (a column of B), as a selector says; its byte
// s is the scale of slot s, k = 16s..16s+15.
KVSCOUT_HD constexpr int scale_a_lane(int row, int selector) {
  return 4 * (row % 8) + 2 * selector + row / 8;
}
KVSCOUT_HD constexpr int scale_b_lane(int column, int selector) { return 4 * column + selector; }
KVSCOUT_HD constexpr int slot_of(int k) { return k / 16; }

// ---- our use of it: a row of 128 elements in two instructions, first one half row, then the
// other. Every schedule adds them in this order, which is why all of them give the same bits; the
// order within an instruction does not count. ----
inline constexpr int kHalves = 2;

// Where the elements of a half row go. `paired`: from 16-byte loads, with one exchange. `natural`:
// in order, as ldmatrix and 4-byte loads bring them.
enum class Order { paired, natural };

// paired: which 16 bytes of a row lane c of four loads: 0, 2, 1, 3, so that a pair of lanes has a
// half row each: 32 elements of it, two groups.
KVSCOUT_HD constexpr int chunk_of_lane(int c) { return (c & 1) * 2 + (c >> 1); }
// So slot s of an instruction holds group kGroupOfSlot[s] of its half row; as a byte permutation:
inline constexpr int kGroupOfSlot[4] = {0, 2, 1, 3};
inline constexpr unsigned kSlotOrder = 0x3120;

// The element of the row that a lane's nibble means, in registers 0, 1 (upper = 0) or 2, 3 of A,
// and in register `upper` of B. paired: words 0, 1 of the 16 bytes that a lane loaded are a group,
// words 2, 3 another; the lane of the half's own parity keeps the low word of each, its partner
// gets the high ones.
KVSCOUT_HD constexpr int element_of(Order order, int lane, int half, int upper, int nibble) {
  const int c = lane % 4, owner = (c & 2) | half;
  return order == Order::natural
             ? 64 * half + 32 * upper + 8 * c + nibble
             : 32 * chunk_of_lane(owner) + 16 * upper + 8 * ((c & 1) != half) + nibble;
}

// Keys are A. Row m of group g of 16 keys is this key of the block of 128: four groups share rows
// r, r+32, r+64, r+96 and with them one 16-byte load of 128x4 scales.
KVSCOUT_HD constexpr int key_row(int group, int m) { return group % 4 * 32 + group / 4 * 16 + m; }
// The scale word that a lane holds for a group of keys: of row m, of half a row.
KVSCOUT_HD constexpr int scale_a_row(int lane) { return lane / 4 + 8 * (lane & 1); }
KVSCOUT_HD constexpr int scale_a_half(int lane) { return lane % 4 / 2; }
KVSCOUT_HD constexpr int scale_a_selector(int half) { return half; }

// Query rows are B, eight of them a tile; one register serves two tiles.
KVSCOUT_HD constexpr int scale_b_row(int lane, int tile_pair) {
  return 8 * (2 * tile_pair + lane % 4 / 2) + lane / 4;
}
KVSCOUT_HD constexpr int scale_b_half(int lane) { return lane & 1; }
KVSCOUT_HD constexpr int scale_b_selector(int half, int tile) { return 2 * (tile & 1) + half; }

}  // namespace kvscout::sm120::map
