// A few threads that share the work of one caller.
//
// The caller cuts a job into chunks; whoever is free takes the next one, the caller too, and a job
// is over when all chunks are done, not when all threads were there: a thread that the system
// does not run delays nothing but the chunk it holds. Threads spin for a moment between jobs and
// then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { work(i); });
  }

  ~Pool() {
    stopping_ = true;
    publish(0, {});
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return (int)workers_.size() + 1; }

  // fn(chunk, thread) for every chunk, once each; fn must not throw.
  template <class Fn>
  void each(int chunks, const Fn& fn) {
    for (int from = 0; from < chunks; from += CHUNKS_MAX) {
      auto part = [&fn, from](int chunk, int thread) { fn(from + chunk, thread); };
      using Part = decltype(part);
      auto call = [](void* f, int chunk, int thread) { (*static_cast<Part*>(f))(chunk, thread); };
      run(chunks - from < CHUNKS_MAX ? chunks - from : CHUNKS_MAX, {call, &part});
    }
  }

 private:
  // A ticket is a job's number, its number of chunks and the next chunk, in one word, so that
  // nobody takes a chunk of one job for one of another.
  static constexpr int CHUNK_BITS = 16;
  static constexpr uint64_t CHUNK_MASK = (1 << CHUNK_BITS) - 1;
  static constexpr int CHUNKS_MAX = 1 << (CHUNK_BITS - 1);
  static constexpr int SPINS = 4000;
  struct Job {
    void (*chunk)(void* context, int chunk, int thread);
    void* context;
  };

  void publish(int chunks, Job job) {
    number_++;
    jobs_[number_ & 1] = job;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store((number_ << 32) | ((uint64_t)chunks << CHUNK_BITS));
    if (sleepers_.load()) {
      { std::lock_guard<std::mutex> lock(mutex_); }
      wake_.notify_all();
    }
  }

  void run(int chunks, Job job) {
    if (workers_.empty() || chunks <= 1) {
      for (int i = 0; i < chunks; i++) job.chunk(job.context, i, 0);
      return;
    }
    publish(chunks, job);
    take(0);
    for (int spins = 0; done_.load(std::memory_order_acquire) < chunks; spins++)
      spins < SPINS ? pause() : std::this_thread::yield();
  }

  // Do chunks of the job at hand until there are none left.
  void take(int thread) {
    for (;;) {
      uint64_t seen = ticket_.load(std::memory_order_acquire);
      if ((seen & CHUNK_MASK) >= ((seen >> CHUNK_BITS) & CHUNK_MASK)) return;
      seen = ticket_.fetch_add(1);
      int next = (int)(seen & CHUNK_MASK), chunks = (int)((seen >> CHUNK_BITS) & CHUNK_MASK);
      if (next >= chunks) return;
      const Job job = jobs_[(seen >> 32) & 1];  // stays: its job is not over before this chunk is
      job.chunk(job.context, next, thread);
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  void work(int thread) {
    uint64_t last = 0;
    while (!stopping_) {
      for (int spins = 0; ticket_.load(std::memory_order_acquire) >> 32 == last; spins++) {
        if (spins < SPINS) {
          pause();
          continue;
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_++;
        wake_.wait(lock, [&] { return ticket_.load() >> 32 != last; });
        sleepers_--;
      }
      last = ticket_.load(std::memory_order_acquire) >> 32;
      take(thread);
    }
  }

  static void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  Job jobs_[2] = {};
  std::atomic<bool> stopping_{false};
  uint64_t number_ = 0;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int> done_{0};
};

}  // namespace
