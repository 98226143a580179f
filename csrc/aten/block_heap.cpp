#include "csrc/aten/block_heap.h"

#include <utility>

#include "csrc/aten/caching_allocator.h"

namespace neuron {
namespace {

/// One heap of two; each may be null.
Block* join(Block* a, Block* b) {
  if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
  if (b->data < a->data) std::swap(a, b);
  b->links.next = a->links.child;
  if (a->links.child != nullptr) a->links.child->links.previous = b;
  b->links.previous = a;
  a->links.child = b;
  return a;
}

/// One heap of the siblings from `first` on: pairs from the left, then all from the right.
Block* join_siblings(Block* first) {
  Block* pairs = nullptr;  // linked by `next`, the last one first
  while (first != nullptr) {
    Block* second = first->links.next;
    Block* rest = second != nullptr ? second->links.next : nullptr;
    first->links.next = first->links.previous = nullptr;
    if (second != nullptr) second->links.next = second->links.previous = nullptr;
    Block* pair = join(first, second);
    pair->links.next = pairs;
    pairs = pair;
    first = rest;
  }
  Block* heap = nullptr;
  while (pairs != nullptr) {
    Block* pair = std::exchange(pairs, pairs->links.next);
    pair->links.next = nullptr;
    heap = join(heap, pair);
  }
  return heap;
}

}  // namespace

void BlockHeap::add(Block* block) {
  block->links = {};
  root_ = join(root_, block);
}

void BlockHeap::remove(Block* block) {
  BlockLinks& links = block->links;
  if (links.previous != nullptr) {
    BlockLinks& before = links.previous->links;
    (before.child == block ? before.child : before.next) = links.next;
    if (links.next != nullptr) links.next->links.previous = links.previous;
    root_ = join(root_, join_siblings(links.child));
  } else {
    root_ = join_siblings(links.child);
  }
  links = {};
}

std::vector<Block*> BlockHeap::all() const {
  std::vector<Block*> found;
  if (root_ != nullptr) found.push_back(root_);
  for (size_t i = 0; i < found.size(); ++i) {
    for (Block* child = found[i]->links.child; child != nullptr; child = child->links.next) found.push_back(child);
  }
  return found;
}

}  // namespace neuron
