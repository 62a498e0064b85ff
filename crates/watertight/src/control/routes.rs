//! The calls of the control socket: their methods, their paths, and their answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Either, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::api::{ErrorReply, LeaveRequest, LimitRequest, UmountRequest, WaitReply};
use super::call_limits::CallKind;
use super::events::{Stream, Wish};
use super::metrics;
use super::peer::{Peer, READ_TIMEOUT};
use super::service::Service;

/// Bytes of a request's body.
const BODY_BYTES_MAX: usize = 64 << 10;
/// The longest `wait` in one call; a client that wants more calls again.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The type of a line for a person.
const PLAIN: &str = "text/plain; charset=utf-8";
/// The type of all other answers but the metrics.
const JSON: &str = "application/json";
/// The type of events: a JSON object in each line.
const LINES: &str = "application/x-ndjson";

/// The description of the API. A test holds it against this server.
pub const OPENAPI: &str = include_str!("../../openapi.json");

/// The call of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Health,
    Metrics,
    OpenApi,
    Status,
    Stats,
    Requests,
    Volumes,
    Events,
    Wait,
    Limits,
    Limit,
    Sync,
    Umount,
    Attach,
    Detach,
    Move,
    Clone,
    Leave,
    Snapshots,
    Warm,
    Upgrade,
}

/// A call that the server takes.
#[derive(Debug)]
pub struct Route {
    /// The one method of the path.
    pub method: Method,
    /// The path.
    pub path: &'static str,
    call: Call,
}

const fn route(method: Method, path: &'static str, call: Call) -> Route {
    Route { method, path, call }
}

/// All calls.
pub static ROUTES: [Route; 21] = [
    route(Method::GET, "/healthz", Call::Health),
    route(Method::GET, "/metrics", Call::Metrics),
    route(Method::GET, "/v1/openapi.json", Call::OpenApi),
    route(Method::GET, "/v1/status", Call::Status),
    route(Method::GET, "/v1/stats", Call::Stats),
    route(Method::GET, "/v1/requests", Call::Requests),
    route(Method::GET, "/v1/volumes", Call::Volumes),
    route(Method::GET, "/v1/events", Call::Events),
    route(Method::GET, "/v1/wait", Call::Wait),
    route(Method::GET, "/v1/limits", Call::Limits),
    route(Method::POST, "/v1/limit", Call::Limit),
    route(Method::POST, "/v1/sync", Call::Sync),
    route(Method::POST, "/v1/umount", Call::Umount),
    route(Method::POST, "/v1/attach", Call::Attach),
    route(Method::POST, "/v1/detach", Call::Detach),
    route(Method::POST, "/v1/move", Call::Move),
    route(Method::POST, "/v1/clone", Call::Clone),
    route(Method::POST, "/v1/leave", Call::Leave),
    route(Method::POST, "/v1/snapshots", Call::Snapshots),
    route(Method::POST, "/v1/warm", Call::Warm),
    route(Method::POST, "/v1/upgrade", Call::Upgrade),
];

pub(super) type Reply = Response<Either<Full<Bytes>, Stream>>;

pub(super) async fn answer(request: Request<Incoming>, peer: Arc<Peer>) -> Result<Reply, Infallible> {
    peer.expect_reader();
    let service = Arc::clone(&peer.service);
    let path = request.uri().path().to_owned();
    let Some(route) = ROUTES.iter().find(|route| route.path == path) else {
        return Ok(refuse(StatusCode::NOT_FOUND, format!("there is no call {path}")));
    };
    if request.method() != route.method {
        let error = format!("{path} takes {}, not {}", route.method, request.method());
        let mut reply = refuse(StatusCode::METHOD_NOT_ALLOWED, error);
        if let Ok(allowed) = HeaderValue::from_str(route.method.as_str()) {
            reply.headers_mut().insert(ALLOW, allowed);
        }
        return Ok(reply);
    }
    Ok(match route.call {
        Call::Health => match service.status().health() {
            Ok(()) => text(PLAIN, "ok\n".to_owned()),
            Err(why) => {
                let mut reply = text(PLAIN, format!("{why}\n"));
                *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                reply
            }
        },
        Call::Metrics => text(metrics::CONTENT_TYPE, metrics::page(&[&service.status()], &[])),
        Call::OpenApi => text(JSON, OPENAPI.to_owned()),
        Call::Status => json(StatusCode::OK, &service.status()),
        Call::Stats => json(StatusCode::OK, &service.stats()),
        Call::Requests => json(StatusCode::OK, &service.under_way()),
        Call::Volumes => {
            let after = request.uri().query().and_then(|query| query.strip_prefix("after="));
            match after.filter(|after| !after.is_empty()).map(str::parse).transpose() {
                Ok(after) => json(StatusCode::OK, &service.volumes(after.as_ref())),
                Err(error) => refuse(StatusCode::BAD_REQUEST, error.to_string()),
            }
        }
        Call::Events => events(request.uri().query(), &peer),
        Call::Wait => match peer.enter(CallKind::Wait) {
            Ok(_permit) => {
                let reply = wait(request.uri().query(), &*service).await;
                peer.expect_reader();
                reply
            }
            Err(full) => refuse(StatusCode::SERVICE_UNAVAILABLE, full),
        },
        Call::Limits => json(StatusCode::OK, &service.limits()),
        Call::Limit => match body::<LimitRequest>(request).await.and_then(|body| service.limit(body)) {
            Ok(limits) => json(StatusCode::OK, &limits),
            Err(error) => refuse(StatusCode::BAD_REQUEST, error),
        },
        Call::Sync => {
            let pid = peer.caller.pid;
            let by = (pid != 0 && request.uri().query() != Some("all=1")).then_some(pid);
            let kind = if by.is_some() { CallKind::Sync } else { CallKind::SyncAll };
            blocking(&peer, kind, move || service.sync(by)).await
        }
        Call::Umount => {
            let kind = |body: &UmountRequest| CallKind::of(body.how);
            with_body(request, &peer, kind, move |body| service.umount(body)).await
        }
        Call::Attach => with_body(request, &peer, |_| CallKind::Tree, move |body| service.attach(body)).await,
        Call::Detach => with_body(request, &peer, |_| CallKind::Tree, move |body| service.detach(body)).await,
        Call::Move => with_body(request, &peer, |_| CallKind::Tree, move |body| service.move_to(body)).await,
        Call::Clone => {
            with_body(request, &peer, |_| CallKind::Tree, move |body| service.clone_to(body)).await
        }
        Call::Warm => with_body(request, &peer, |_| CallKind::Warm, move |body| service.warm(body)).await,
        Call::Leave => {
            let kind = |body: &LeaveRequest| CallKind::of(body.how);
            with_body(request, &peer, kind, move |body| service.leave(body)).await
        }
        Call::Snapshots => {
            with_body(request, &peer, |_| CallKind::Snapshots, move |body| service.snapshots(body)).await
        }
        Call::Upgrade => {
            with_body(request, &peer, |_| CallKind::Tree, move |body| service.upgrade(body)).await
        }
    })
}

fn events(query: Option<&str>, peer: &Peer) -> Reply {
    let wish = match Wish::parse(query) {
        Ok(wish) => wish,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, error),
    };
    if let Err(full) = peer.enter(CallKind::Events) {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, full);
    }
    let stream = match Stream::new(peer.service.status().id, &peer.service.events(), wish) {
        Ok(stream) => stream,
        Err(error) => {
            peer.expect_reader();
            return refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string());
        }
    };
    let mut reply = Response::new(Either::Right(stream));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(LINES));
    reply
}

async fn wait(query: Option<&str>, service: &dyn Service) -> Reply {
    let timeout = match query.unwrap_or("").strip_prefix("timeout_ms=") {
        None if query.is_none() => WAIT_MAX,
        Some(ms) if let Ok(ms) = ms.parse() => Duration::from_millis(ms).min(WAIT_MAX),
        _ => return refuse(StatusCode::BAD_REQUEST, "wait takes timeout_ms=NUMBER".to_owned()),
    };
    let mut ended = service.ended();
    let seen = tokio::time::timeout(timeout, ended.wait_for(Option::is_some)).await;
    let ended = seen.ok().and_then(|seen| seen.ok().and_then(|ended| ended.clone()));
    json(StatusCode::OK, &WaitReply { ended, status: service.status() })
}

async fn blocking<T: Serialize + Send + 'static>(
    peer: &Peer,
    kind: CallKind,
    call: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Reply {
    let permit = match peer.enter(kind) {
        Ok(permit) => permit,
        Err(full) => return refuse(StatusCode::SERVICE_UNAVAILABLE, full),
    };
    let thread = permit.acquire_thread().await;
    // A caller that leaves does not end the call: its thread permit lasts as long as that does.
    let called = tokio::task::spawn_blocking(move || {
        let result = call();
        drop(thread);
        result
    });
    let reply = match called.await {
        Ok(Ok(value)) => json(StatusCode::OK, &value),
        Ok(Err(error)) => refuse(StatusCode::CONFLICT, error),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the call panicked; see the log".to_owned()),
    };
    peer.expect_reader();
    reply
}

async fn with_body<B: DeserializeOwned + Send + 'static, T: Serialize + Send + 'static>(
    request: Request<Incoming>,
    peer: &Peer,
    kind: impl FnOnce(&B) -> CallKind,
    call: impl FnOnce(B) -> Result<T, String> + Send + 'static,
) -> Reply {
    match body::<B>(request).await {
        Ok(body) => blocking(peer, kind(&body), move || call(body)).await,
        Err(error) => refuse(StatusCode::BAD_REQUEST, error),
    }
}

async fn body<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, String> {
    let collect = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = tokio::time::timeout(READ_TIMEOUT, collect)
        .await
        .map_err(|_| "the request's body did not arrive in time".to_owned())?
        .map_err(|error| format!("the request's body cannot be read: {error}"))?;
    serde_json::from_slice(&body.to_bytes())
        .map_err(|error| format!("the request's body is invalid: {error}"))
}

fn refuse(status: StatusCode, error: String) -> Reply {
    json(status, &ErrorReply { error })
}

fn text(kind: &'static str, text: String) -> Reply {
    let mut reply = Response::new(Either::Left(Full::from(text)));
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Reply {
    let (status, body) = match serde_json::to_vec(value) {
        Ok(body) => (status, body),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string().into_bytes()),
    };
    let mut reply = Response::new(Either::Left(Full::from(body)));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
    reply
}
