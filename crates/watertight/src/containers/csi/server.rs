//! The driver's gRPC server: HTTP/2 over a unix socket, of which root alone is answered, with a
//! bounded number of connections and calls.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::tonic::Status;
use csi_proto::tonic::body::Body;
use csi_proto::tonic::codegen::Service as _;
use csi_proto::v1::controller_server::ControllerServer;
use csi_proto::v1::identity_server::IdentityServer;
use csi_proto::v1::node_server::NodeServer;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{Notify, Semaphore};

use super::controller::ControllerService;
use super::identity::IdentityService;
use super::node::NodeService;
use crate::containers::listener::Listener;

/// Connections at a time, and calls of each: sidecars and kubelet have one each.
const CONNECTIONS_MAX: usize = 64;
const CALLS_MAX: u32 = 256;
/// Bytes of a request's head, and of its message.
const HEAD_BYTES_MAX: u32 = 16 << 10;
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// How often a silent peer is asked whether it is there, and how long it may take.
const PING: Duration = Duration::from_secs(60);

/// What is served.
#[derive(Debug, Clone)]
pub(super) struct Services {
    pub(super) identity: IdentityServer<IdentityService>,
    pub(super) controller: Option<ControllerServer<ControllerService>>,
    pub(super) node: Option<NodeServer<NodeService>>,
}

impl Services {
    pub(super) fn new(
        identity: IdentityService,
        controller: Option<ControllerService>,
        node: Option<Arc<NodeService>>,
    ) -> Self {
        Self {
            identity: IdentityServer::new(identity).max_decoding_message_size(MESSAGE_BYTES_MAX),
            controller: controller
                .map(|service| ControllerServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX)),
            node: node
                .map(|service| NodeServer::from_arc(service).max_decoding_message_size(MESSAGE_BYTES_MAX)),
        }
    }

    async fn answer(mut self, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let service = request.uri().path().trim_start_matches('/').split('/').next().unwrap_or_default();
        match (service, &mut self.controller, &mut self.node) {
            ("csi.v1.Identity", ..) => self.identity.call(request).await,
            ("csi.v1.Controller", Some(controller), _) => controller.call(request).await,
            ("csi.v1.Node", _, Some(node)) => node.call(request).await,
            _ => Ok(Status::unimplemented("this driver has no such service").into_http()),
        }
    }
}

/// Answers calls until `stop`. What calls have begun goes on in processes of its own.
pub(super) async fn serve(listener: &Listener, services: &Services, stop: &Notify) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Some((stream, permit)) = listener.next(&permits, stop).await {
        let services = services.clone();
        tokio::spawn(async move {
            let _permit = permit;
            serve_connection(stream, services).await;
        });
    }
}

async fn serve_connection(stream: UnixStream, services: Services) {
    let handler = service_fn(move |request| services.clone().answer(request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .serve_connection(TokioIo::new(stream), handler);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}
