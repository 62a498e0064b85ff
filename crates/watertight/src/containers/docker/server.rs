//! The plugin's HTTP server: one request for each connection, and a bounded number of both.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request as HttpRequest, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use super::protocol::{Capabilities, Reply, Request};
use super::volumes::Volumes;
use crate::containers::listener::Listener;
use crate::containers::names::VolumeName;

/// Calls at a time.
const CONNECTIONS_MAX: usize = 1024;
/// Bytes of a request's head, and of its body.
const HEAD_BYTES_MAX: usize = 16 << 10;
const BODY_BYTES_MAX: usize = 64 << 10;
/// How long each of the two may take.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

const TYPE: &str = "application/vnd.docker.plugins.v1.2+json";

/// Answers calls until `stop`, and gives those under way so much time to end.
pub(super) async fn serve(listener: &Listener, volumes: &Arc<Volumes>, stop: &Notify, finish: Duration) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Some((stream, permit)) = listener.next(&permits, stop).await {
        while connections.try_join_next().is_some() {}
        let volumes = Arc::clone(volumes);
        connections.spawn(async move {
            let _permit = permit;
            serve_connection(stream, volumes).await;
        });
    }
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(finish, all).await.is_err() {
        tracing::info!("calls are under way; what they began goes on");
    }
}

async fn serve_connection(stream: UnixStream, volumes: Arc<Volumes>) {
    let handler = service_fn(move |request| answer(request, Arc::clone(&volumes)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(READ_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), handler);
    // A caller that leaves has its answer's future dropped with it.
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn answer(
    request: HttpRequest<Incoming>,
    volumes: Arc<Volumes>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, reply) = match reply(request, &volumes).await {
        Ok(reply) => (StatusCode::OK, reply),
        Err((status, err)) => (status, Reply { err, ..Reply::default() }),
    };
    let body = serde_json::to_vec(&reply).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TYPE));
    Ok(response)
}

async fn reply(
    request: HttpRequest<Incoming>,
    volumes: &Arc<Volumes>,
) -> Result<Reply, (StatusCode, String)> {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    if request.method() != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "calls are made by POST".to_owned()));
    }
    let call = request.uri().path().to_owned();
    let body = Limited::new(request.into_body(), BODY_BYTES_MAX).collect();
    let body = tokio::time::timeout(READ_TIMEOUT, body).await;
    let body = body.map_err(|_| bad("the request did not come in time".to_owned()))?;
    let body = body.map_err(|error| bad(format!("the request cannot be read: {error}")))?.to_bytes();
    let request = if body.is_empty() { Ok(Request::default()) } else { serde_json::from_slice(&body) };
    let request: Request =
        request.map_err(|error| bad(format!("the request is not as it should be: {error}")))?;
    let failed = |why: String| (StatusCode::INTERNAL_SERVER_ERROR, why);
    handle(&call, request, volumes)
        .await
        .map_err(failed)?
        .ok_or_else(|| (StatusCode::NOT_FOUND, format!("there is no call {call:?}")))
}

/// Returns none where there is no such call.
async fn handle(call: &str, request: Request, volumes: &Arc<Volumes>) -> Result<Option<Reply>, String> {
    let mut reply = Reply::default();
    let Request { name, opts, id } = request;
    let name = || VolumeName::try_from(name.clone());
    match call {
        "/Plugin.Activate" => reply.implements = Some(["VolumeDriver"]),
        "/VolumeDriver.Capabilities" => reply.capabilities = Some(Capabilities { scope: "local" }),
        "/VolumeDriver.List" => reply.volumes = Some(volumes.list()),
        "/VolumeDriver.Get" => reply.volume = Some(volumes.get(&name()?).await?),
        "/VolumeDriver.Path" => reply.mountpoint = Some(volumes.path(&name()?)?),
        "/VolumeDriver.Create" => volumes.create(name()?, opts.unwrap_or_default()).await?,
        "/VolumeDriver.Remove" => volumes.remove(name()?).await?,
        "/VolumeDriver.Mount" => reply.mountpoint = Some(volumes.mount(name()?, id).await?),
        "/VolumeDriver.Unmount" => volumes.unmount(name()?, id).await?,
        _ => return Ok(None),
    }
    Ok(Some(reply))
}
