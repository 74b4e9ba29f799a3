// The threads of all kernels: a team that is made on first use and kept.
#pragma once

namespace minivllm {

void set_threads(int threads);  // the caller of a kernel counts; not while another thread is in one
int num_threads();

// body(context, chunk) for each chunk in [0, chunks), by the caller and whichever helpers come in time. Chunks are claimed one
// by one, so a helper that the system has put aside holds up at most one, and the caller never waits for one that has not come.
// A caller that finds the team busy with another thread's work, or that is part of it, does everything itself.
// Which thread takes a chunk changes from run to run, so results must not depend on it.
void run_chunks(long chunks, void (*body)(const void* context, long chunk), const void* context);

// Wakes sleeping helpers, for work that is about to come.
void wake_team();

}  // namespace minivllm
