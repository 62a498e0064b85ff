//! FUSE over io_uring: the kernel and the daemon share entries, and a request costs one system call
//! and no wake-up of another CPU.
//!
//! Purpose: a second transport. The readers of `/dev/fuse` (module `dev_fuse`) go on beside it: the
//! kernel still sends FORGET and INTERRUPT there, and everything until the entries are known.
//! Requests of both are served in the same way (module `dispatch`).
//!
//! # How it works
//! The kernel has a queue for each CPU the host can have, and puts a request into an entry of the
//! queue of the CPU that the caller runs on. On that CPU it wakes the thread that handed the entry
//! over. That thread gets the request copied into the entry (in its own context), and hands the
//! entry over again with the answer. Two facts of the kernel decide the design:
//! - The copying is done by **the thread that handed the entry over**, when it enters the kernel. A
//!   thread that sleeps in the store therefore holds up every other entry that it has handed over,
//!   and no other thread can help.
//! - The entry that was handed over last is used first.
//!
//! So a thread that serves ([`worker`]) has **one** entry. While it serves, that entry is the
//! request's, and it has none in the kernel. All other entries are handed over by one thread
//! ([`dispatcher`]) which serves nothing. An entry of the dispatcher's is used when every serving
//! thread of the queue is busy; it is given to a thread that rests or a new one, which has it from
//! then on. In the steady state the dispatcher sleeps, and the entries used are those of threads
//! that were busy a moment ago. A thread whose request was slow, where enough others wait, gives
//! its entry back to the dispatcher and rests.
//!
//! # What is guaranteed
//! - **No request holds up another**, whether its handler announces that it waits (`before_wait`)
//!   or hangs in a system call of the store: there is nothing to detect, and no watchdog. The
//!   number of entries limits this. All queues together begin with as many entries as there may be
//!   threads (`SessionOptions::threads_max`, at least 256; a queue has at least 32). They may grow
//!   to twice as many; the first queues that run short get the further entries. Once these are used
//!   up, the kernel holds the next request from a CPU until a request from that CPU is answered, or
//!   until the client runs on another CPU. Threads are bounded by the number of entries plus
//!   `SessionOptions::threads_max`; the latter serve calls that are still under way although their
//!   callers were killed.
//! - Nothing runs while there is no traffic: all threads sleep in the kernel, those that rest end
//!   after a while.
//! - Nothing is allocated in the steady state.
//!
//! # Answers from elsewhere (SAFETY of the payload)
//! An answer hands the entry over at once, and the kernel may fill it with the next request. In one
//! case it is given before the handler returns, and then no thread of the daemon reads the
//! entry's memory any more: a killed caller is answered EINTR while the handler is still in the
//! store. The handler has a copy of the whole message in its thread's own buffer
//! ([`entry::Payload::Copied`]) and finds out that its answer is not wanted before it writes it.
//! Requests whose data stays in the entry ([`entry::Payload::InPlace`]: more than 16 KiB written or
//! read) are *not* answered early: such a caller is gone when the store answers or the volume ends
//! the wait. With `/dev/fuse` it is gone at once.
//!
//! The dispatcher hands such an entry over, since the thread that answers may sleep in the store
//! afterwards.
//!
//! # Memory
//! An entry is a mapping of one page and 1 MiB, of which only the used part takes memory. As the
//! kernel uses the entries like a stack, few are ever touched. The memory that a burst leaves
//! behind is given back: an entry that held much data and is handed over while more than `resident`
//! of its queue are in use gives its pages back, so that about `resident` MiB per CPU stay. One
//! waiting entry of each queue keeps its pages even then: beside requests of stalled stores, which
//! are under way for long, a large write finds its pages there.
//!
//! A burst of requests that are quick leaves its threads asleep, one for each that was under way at
//! the same time, since an entry cannot be called back from the kernel. They are the last ones that
//! the kernel uses again.
//!
//! # Order
//! Requests from different CPUs are served in any order, and RELEASE, for which close(2) does not
//! wait, is overtaken by later requests from other CPUs. DESTROY may overtake it, too: a volume can
//! be shut down with files open.
//!
//! # Whose CPU
//! A serving thread is kept on its queue's CPU, where its caller has just gone to sleep: this makes
//! it quick. A thread that reads ahead for a caller that goes on meanwhile is not kept there.
//!
//! # The end
//! The kernel brings every entry back with an error when the connection ends. A serving thread ends
//! when its entry comes back, the dispatcher when it has all of its own. Memory of an entry that
//! the kernel has is never unmapped.
//!
//! # Lock order
//! `RequestSlot::cancel` (module `in_flight`), then `ReplySlot::state`. `Ring::returned` is taken
//! without `ReplySlot::state`, and nothing is taken under it. `ThreadPool::state`, then
//! `Parker::state`; a thread is made under the former. No lock is held inside `io_uring_enter(2)`.
//!
//! # Limits
//! A signal that arrives between a request's queueing and its copying is not passed on by the
//! kernel (Linux 6.18); with `/dev/fuse` it is.

mod cpus;
mod dispatcher;
mod entry;
#[allow(unsafe_code, reason = "commands whose memory the kernel uses until they complete")]
mod entry_ring;
mod idle_sched;
mod pool;
pub(crate) mod reply_slot;
pub(crate) mod ring;
mod single_client;
mod worker;

pub(crate) use dispatcher::PreparedDispatcher;
