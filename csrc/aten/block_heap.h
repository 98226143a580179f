// The free blocks of one bin, the lowest address first.
//
// Note [Lowest address first]
// Which block serves a request depends on which blocks are free, not on the order in which they became so. A program that comes back to the
// same live tensors, as a training step does, so gets the same addresses in each round; what is recognised by how tensors share memory
// (windows of Adaptive Eager) is then recognised at once, where a stack of free blocks would go through its permutations.
//
// A pairing heap (Fredman, Sedgewick, Sleator, Tarjan 1986) whose links lie in the blocks: adding is constant, removing logarithmic, both
// amortised, and the first is at hand.
#pragma once

#include <vector>

namespace neuron {

struct Block;

/// What a Block keeps for the heap it is in. `previous`: of a first child its parent, else the sibling before; of the root null.
struct BlockLinks {
  Block* child = nullptr;
  Block* next = nullptr;
  Block* previous = nullptr;
};

class BlockHeap {
 public:
  Block* first() const { return root_; }
  bool empty() const { return root_ == nullptr; }
  void add(Block* block);
  void remove(Block* block);
  /// All of them, the first first, the others in no order.
  std::vector<Block*> all() const;

 private:
  Block* root_ = nullptr;
};

}  // namespace neuron
