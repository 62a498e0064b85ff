//! Who this driver is, and what it can.

use csi_proto::tonic::{Request, Response, Status, async_trait};
use csi_proto::v1::identity_server::Identity;
use csi_proto::v1::plugin_capability::{self, Service, VolumeExpansion};
use csi_proto::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

/// The service `csi.v1.Identity`.
#[derive(Debug)]
pub(super) struct IdentityService {
    pub(super) name: String,
    pub(super) has_controller: bool,
}

#[async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let expansion = VolumeExpansion { r#type: plugin_capability::volume_expansion::Type::Online.into() };
        let mut all = vec![plugin_capability::Type::VolumeExpansion(expansion)];
        if self.has_controller {
            let controller = Service { r#type: plugin_capability::service::Type::ControllerService.into() };
            all.push(plugin_capability::Type::Service(controller));
        }
        let capabilities = all.into_iter().map(|one| PluginCapability { r#type: Some(one) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// It answers, so it is ready: stores are asked by the calls that need them.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
