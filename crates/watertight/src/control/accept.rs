//! Connections of the control socket, from their beginning to their end.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sync::atomic::{AtomicU64, Ordering};
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::call_limits::CallLimits;
use super::connections::{Caller, Connections, Socket};
use super::peer::{Peer, READ_TIMEOUT};
use super::routes::answer;
use super::service::Service;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// How long connections may take to receive the end.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// How much at a time. Shared by all of a server's sockets, as its threads are.
#[derive(Debug, Clone, Default)]
pub(super) struct Limiters {
    connections: Arc<Connections>,
    call_limits: Arc<CallLimits>,
    sockets: Arc<AtomicU64>,
}

impl Limiters {
    /// One more socket.
    fn socket(&self) -> Socket {
        // ORDERING: Relaxed, each number is taken once.
        Socket(self.sockets.fetch_add(1, Ordering::Relaxed))
    }
}

/// Takes every connection at once: none waits behind others in the socket's queue, where slow peers
/// could not be recognised.
pub(super) async fn accept(
    listener: Arc<UnixListener>,
    owner_uid: u32,
    service: Arc<dyn Service>,
    limits: Limiters,
    stopped: watch::Receiver<bool>,
) {
    let socket = limits.socket();
    let mut connections = JoinSet::new();
    let mut stop = stopped.clone();
    loop {
        while connections.try_join_next().is_some() {}
        let stream = tokio::select! {
            () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
            next = listener.accept() => match next {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, for example: others are served on, so do not spin.
                    tracing::warn!(%error, "a control connection was not accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let caller = match admit(&stream, owner_uid) {
            Ok(caller) => caller,
            Err(reason) => {
                tracing::warn!(reason, "a control connection was refused");
                continue;
            }
        };
        let waiting = limits.connections.enter(socket, caller);
        let closed = waiting.closed();
        let call_limits = Arc::clone(&limits.call_limits);
        let peer = Arc::new(Peer::new((caller, socket), Arc::clone(&service), waiting, call_limits));
        connections.spawn(serve(stream, peer, closed, stopped.clone()));
        // A request that has arrived already is answered before the next connection is taken, which
        // could close this one.
        tokio::task::yield_now().await;
    }
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(FINISH_TIMEOUT, all).await.is_err() {
        tracing::debug!("control connections were still open at the end");
    }
}

/// The peer's process and user, if that is root or `owner_uid`.
///
/// # Errors
/// Why the peer may not call.
pub(crate) fn check_peer(stream: &UnixStream, owner_uid: u32) -> Result<UCred, String> {
    let peer = stream.peer_cred().map_err(|error| format!("its user is unknown: {error}"))?;
    if peer.uid() == 0 || peer.uid() == owner_uid {
        Ok(peer)
    } else {
        Err(format!("user {} is neither root nor the owner, {owner_uid}", peer.uid()))
    }
}

/// The caller at the other end, if it may call at all.
fn admit(stream: &UnixStream, owner_uid: u32) -> Result<Caller, String> {
    let peer = check_peer(stream, owner_uid)?;
    Ok(Caller { pid: peer.pid().map_or(0, i32::unsigned_abs), uid: peer.uid() })
}

async fn serve(stream: UnixStream, peer: Arc<Peer>, closed: Arc<Notify>, mut stopped: watch::Receiver<bool>) {
    let caller = Arc::clone(&peer);
    let handler = service_fn(move |request| answer(request, Arc::clone(&caller)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), handler);
    tokio::pin!(connection);
    let mut is_stopping = false;
    let result = loop {
        tokio::select! {
            // Anything that can be answered is answered first.
            biased;
            result = connection.as_mut() => break result,
            () = closed.notified() => {
                tracing::debug!(caller = ?peer.caller, "a slow control connection gives way to a new one");
                return;
            }
            () = peer.wait_late() => {
                tracing::debug!(caller = ?peer.caller, "a control connection was too slow");
                return;
            }
            () = async { drop(stopped.wait_for(|stop| *stop).await) }, if !is_stopping => {
                is_stopping = true;
                if peer.waits_for_request() {
                    // A request that has come by now is still answered; the server does not wait
                    // for the rest of one.
                    tokio::task::yield_now().await;
                    tokio::select! {
                        biased;
                        result = connection.as_mut() => break result,
                        () = std::future::ready(()) => {}
                    }
                    if peer.waits_for_request() {
                        return;
                    }
                }
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a control connection ended early");
    }
}
