//! How the verbs talk to a running mount process: HTTP and JSON over a unix socket.
//!
//! | call | answer |
//! |---|---|
//! | `GET /healthz` | `ok`, or with status 503 the reason why data does not get to the store. Not a reason to kill the process: that would lose this data |
//! | `GET /metrics` | the figures of [`api::Status`] in Prometheus' text format |
//! | `GET /v1/openapi.json` | the description of all this, `openapi.json` beside `Cargo.toml` |
//! | `GET /v1/status` | [`api::Status`] |
//! | `GET /v1/volumes?after=ID` | a list of [`api::Status`], of some of the volumes that are attached to the mountpoint: those whose ids follow. Ask again after the last one, until there are none |
//! | `GET /v1/events?since=N&follow=BOOL` | lines of [`events::Event`], after number N, until the volume's end or, without `follow`, until now |
//! | `POST /v1/sync` | [`api::Synced`], once the data that was dirty in the volume at the call is durable, by the policy of the caller's cgroup; with `?all=1` all of it, at full speed. Data in the kernel (mapped memory, kernel write-back) needs a syncfs(2) first; the mount process cannot ask its own kernel side for it |
//! | `GET /v1/limits` | [`api::Limits`]: the limits of cgroups |
//! | `POST /v1/limit` with [`api::LimitRequest`] | [`api::Limits`] as they are then |
//! | `POST /v1/umount` with [`api::UmountRequest`] | [`api::UmountReply`]; for `force` at once, else once all is written |
//! | `GET /v1/wait?timeout_ms=N` | [`api::WaitReply`], once the volume is released or failed, or at the timeout |
//!
//! An error is an [`api::ErrorReply`] with an HTTP status of 400 or more; 503 where too many such
//! calls are under way, of all or of the caller's process, user or cgroup (module `call_limits`). A
//! connection is for one request; one whose peer is slow is closed where its process or user has
//! too many (module `connections`). The caller is root or the mount's owner: the socket is 0600 in
//! a directory of the owner's, and both sides check the other's user id as the kernel reports it.

pub(crate) mod accept;
pub mod api;
mod call_limits;
pub mod client;
mod connections;
pub mod events;
pub mod metrics;
mod peer;
pub mod progress;
pub mod routes;
pub mod server;
pub mod service;
pub mod volume_id;

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor in the runtime's event loop.
#[expect(
    deprecated,
    reason = "what is given owns one descriptor for its whole life, as the unsafe replacement demands"
)]
pub(crate) fn registered<T: AsFd + AsRawFd>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(fd, interest)
}
