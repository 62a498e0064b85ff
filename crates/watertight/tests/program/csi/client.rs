//! A client of the driver: gRPC over its socket.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use csi_proto::tonic::body::Body;
use csi_proto::tonic::codegen::Service;
use csi_proto::tonic::{Request, Response, Status};
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use csi_proto::v1::*;
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use super::PATIENT;

/// One connection's way to the server.
#[derive(Clone)]
pub(crate) struct Channel(SendRequest<Body>);

impl Service<hyper::Request<Body>> for Channel {
    type Response = hyper::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// A client, whose calls block.
pub(crate) struct Client {
    runtime: Runtime,
    channel: Channel,
    /// The deadline of its calls.
    pub(crate) deadline: Duration,
}

impl Client {
    pub(crate) fn connect(socket: &Path) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let channel = runtime.block_on(async {
            let stream = TokioIo::new(UnixStream::connect(socket).await.unwrap());
            let (channel, connection) = handshake(TokioExecutor::new(), stream).await.unwrap();
            tokio::spawn(connection);
            Channel(channel)
        });
        Self { runtime, channel, deadline: PATIENT }
    }

    pub(crate) fn within(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    fn call<T, R>(
        &self,
        message: T,
        call: impl AsyncFnOnce(Channel, Request<T>) -> Result<Response<R>, Status>,
    ) -> Result<R, Status> {
        let mut request = Request::new(message);
        request.set_timeout(self.deadline);
        self.runtime.block_on(call(self.channel.clone(), request)).map(Response::into_inner)
    }
}

fn origin() -> hyper::Uri {
    "http://driver".parse().unwrap()
}

macro_rules! calls {
    ($service:ident: $($name:ident($request:ty) -> $response:ty;)+) => {
        impl Client {
            $(pub(crate) fn $name(&self, request: $request) -> Result<$response, Status> {
                self.call(request, async |channel, request| {
                    $service::with_origin(channel, origin()).$name(request).await
                })
            })+
        }
    };
}

calls! { IdentityClient:
    get_plugin_info(GetPluginInfoRequest) -> GetPluginInfoResponse;
}
calls! { NodeClient:
    node_stage_volume(NodeStageVolumeRequest) -> NodeStageVolumeResponse;
    node_unstage_volume(NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse;
    node_publish_volume(NodePublishVolumeRequest) -> NodePublishVolumeResponse;
    node_unpublish_volume(NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse;
    node_get_volume_stats(NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse;
    node_get_volume_health(NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse;
    node_expand_volume(NodeExpandVolumeRequest) -> NodeExpandVolumeResponse;
}
calls! { ControllerClient:
    create_volume(CreateVolumeRequest) -> CreateVolumeResponse;
    delete_volume(DeleteVolumeRequest) -> DeleteVolumeResponse;
    create_snapshot(CreateSnapshotRequest) -> CreateSnapshotResponse;
    delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse;
    controller_expand_volume(ControllerExpandVolumeRequest) -> ControllerExpandVolumeResponse;
    controller_get_volume(ControllerGetVolumeRequest) -> ControllerGetVolumeResponse;
}

impl Client {
    pub(crate) fn create(&self, request: CreateVolumeRequest) -> Result<Volume, Status> {
        self.create_volume(request).map(|answer| answer.volume.unwrap())
    }

    pub(crate) fn delete(&self, id: &str) -> Result<DeleteVolumeResponse, Status> {
        self.delete_volume(DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() })
    }
}
